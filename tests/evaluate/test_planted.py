"""Made-up recordings: the healthy one opens nothing, the same one with a planted fault opens exactly that incident."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.evaluate.judge import incidents_of, judged
from tests.evaluate.plan import PARTS, draw
from tests.evaluate.recordings import write

# Small ones of several forms, for each run of the tests: seed and what is planted.
QUICK = [(29, None), (128, "stalled_loss"), *(pytest.param(*one, marks=pytest.mark.evaluate) for one in (
    (155, "packet_loss"), (213, "thermal_throttle")))]
# What went wrong once: a rank that logs beside ranks that expose their steps, save lines without a time of their own, ports
# read at different moments, a half-used node, a pause for a restart, a burst across two slow samples, values that stay exposed after the end.
ONCE_WRONG = [
    (312, "stalled_loss"), (619, None), (645, "packet_loss"), (674, None), (674, "stalled_loss"), (682, "stalled_loss"),
    (802, None), (834, None), (853, None), (1042, None), (3071, "packet_loss"), (3071, "stalled_loss"),
]
STUDY_SEEDS = range(5000, 5030)
LARGEST = 64  # GPUs


@pytest.mark.parametrize(("seed", "kind"), QUICK)
def test_planted_fault_is_the_only_incident(tmp_path: Path, seed: int, kind: str | None) -> None:
    """Right fault, scope and part, and nothing else; nothing at all where nothing was planted."""
    truth = write(draw(seed, kind), tmp_path)
    answer = judged(truth, incidents_of(tmp_path))
    assert answer.word == "right", (truth, answer.said)


@pytest.mark.evaluate
@pytest.mark.parametrize(("seed", "kind"), ONCE_WRONG)
def test_what_went_wrong_once(tmp_path: Path, seed: int, kind: str | None) -> None:
    """Recordings that were judged wrongly once are judged rightly."""
    truth = write(draw(seed, kind), tmp_path)
    answer = judged(truth, incidents_of(tmp_path))
    assert answer.word == "right", (truth, answer.said)


@pytest.mark.evaluate
@pytest.mark.parametrize("kind", [None, *PARTS])
def test_many_recordings(tmp_path: Path, kind: str | None) -> None:
    """Thirty recordings of each kind: none healthy opens anything, at most one in thirty plants is missed."""
    answers: Counter[str] = Counter()
    wrong: list[object] = []
    delays: list[float] = []
    for seed in STUDY_SEEDS:
        plan = draw(seed, kind)
        if len(plan.nodes) * plan.gpus > LARGEST:
            continue
        folder = tmp_path / str(seed)
        truth = write(plan, folder)
        answer = judged(truth, incidents_of(folder))
        answers[answer.word] += 1
        if answer.word != "right":
            wrong.append((seed, truth, answer.said))
        if answer.delay_seconds is not None:
            delays.append(answer.delay_seconds)
    middle = sorted(delays)[len(delays) // 2] if delays else None
    print(f"{kind or 'healthy'}: {dict(answers)}, median delay {middle} s")
    assert answers["false"] == answers["wrong"] == 0, wrong
    assert answers["miss"] <= 1, wrong
