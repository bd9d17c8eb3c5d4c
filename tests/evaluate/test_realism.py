"""Can a classifier tell the fleet's healthy jobs from real ones? `pytest -m evaluate -s tests/evaluate/test_realism.py`."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from tests.evaluate.realism import FEATURES, Run, fleet_runs, real_runs, windows

SEEDS = range(20_000, 20_028)
SPLITS = 10
WINDOWS_OF_A_RUN = 40
TOLD_APART = 0.8


@cache
def runs() -> tuple[Run, ...]:
    return (*real_runs(), *fleet_runs(SEEDS))


def halves(signal: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(features, is real, is of the half that is learnt from) of all windows; a run is on one side only."""
    chosen = [run for run in runs() if run.signal == signal]
    rng = np.random.default_rng(seed)
    learnt = set()
    for real in (True, False):
        names = sorted(run.source for run in chosen if run.real == real)
        learnt.update(rng.permutation(names)[: len(names) // 2])
    rows = [(window, run.real, run.source in learnt) for run in chosen for window in windows(run, WINDOWS_OF_A_RUN)]
    return np.array([r[0] for r in rows]), np.array([r[1] for r in rows]), np.array([r[2] for r in rows])


@pytest.mark.evaluate
@pytest.mark.parametrize("signal", ["step time", "loss"])
def test_healthy_windows_are_hard_to_tell_from_real_ones(signal):
    """Trained on half of the real and half of the fleet's runs, boosted trees stay below 0.8 AUC on the other halves."""
    found, weights = [], np.zeros(len(FEATURES))
    for seed in range(SPLITS):
        features, real, learnt = halves(signal, seed)
        trees = GradientBoostingClassifier(random_state=seed).fit(features[learnt], real[learnt])
        found.append(roc_auc_score(real[~learnt], trees.predict_proba(features[~learnt])[:, 1]))
        weights += trees.feature_importances_ / SPLITS
    told = ", ".join(f"{name} {weight:.2f}" for weight, name in sorted(zip(weights, FEATURES, strict=True), reverse=True))
    print(f"\n{signal}: AUC mean {np.mean(found):.3f}, {min(found):.3f} to {max(found):.3f} over {SPLITS} splits; told apart by {told}")
    assert np.mean(found) < TOLD_APART


@pytest.mark.evaluate
def test_the_study_tells_a_painted_series_at_once():
    """The same classifier is near certain where the fleet's loss is a line: a low figure above is no blindness of its own."""
    features, real, learnt = halves("loss", 0)
    features = np.where(real[:, None], features, features * 0.1)
    trees = GradientBoostingClassifier(random_state=0).fit(features[learnt], real[learnt])
    assert roc_auc_score(real[~learnt], trees.predict_proba(features[~learnt])[:, 1]) > 0.95
