"""What is drawn from a scorecard, and what is none."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from app.goodput.chances import read_chances
from core.errors import BadInput
from core.faults import faults


def _rate(value, n=20):
    return {"value": value, "n": n, "low": None, "high": None}


def _row(recall=0.9, top1=0.8, p50=100.0, p95=400.0, false=0):
    return {"recall": _rate(recall), "small": _rate(None, 0), "localisation_top1": _rate(top1), "delay_p50_seconds": p50,
            "delay_p95_seconds": p95, "false": {"count": false, "node_days": 200.0, "cluster_days": 20.0}, "incidents": {"right": 9, "misplaced": 3, "unfounded": false}}


CARD = {
    "settings": {"suite": "standard", "first_seed": 40_000},
    "macro": {"recall": 0.7, "localisation_top1": 0.6, "node_days": 200.0, "delay_p50_seconds": 200.0, "delay_p95_seconds": 800.0},
    "faults": {name: _row() for name in faults()},
    "calibration": {"confidence": {"bins": [{"said": 0.55, "true": _rate(0.5, 10)}, {"said": 0.92, "true": _rate(1.0, 30)}]}},
}


def written(tmp_path, **changed):
    card = copy.deepcopy(CARD)
    for path, value in changed.items():
        at = card
        *outer, last = path.split("__")
        for key in outer:
            at = at[key]
        at[last] = value
    file = tmp_path / "card.json"
    file.write_text(json.dumps(card))
    return file


def test_a_faults_own_figures_are_drawn_from(tmp_path):
    """Recall, right part and delays are the scorecard's; half of the drawn delays lie below its median."""
    chance = read_chances(written(tmp_path)).faults["gpu_slow"]
    drawn = [chance.delay_ms(rng) for rng in [np.random.default_rng(1)] for _ in range(4000)]
    assert (chance.recall, chance.top1) == (0.9, 0.8)
    assert np.median(drawn) == pytest.approx(100_000, rel=0.05)
    assert np.quantile(drawn, 0.95) == pytest.approx(400_000, rel=0.1)


def test_a_tie_is_unsure_and_not_wrong(tmp_path):
    """A scorecard counts two parts that look alike as half a hit; where no incident was misplaced, none is drawn elsewhere."""
    row = {**_row(top1=0.875), "incidents": {"right": 4}}
    chance, rng = read_chances(written(tmp_path, faults__gpu_slow=row)).faults["gpu_slow"], np.random.default_rng(3)
    drawn = [chance.place(rng) for _ in range(2000)]
    assert "wrong" not in drawn
    assert drawn.count("tied") / 2000 == pytest.approx(0.25, abs=0.04)


def test_a_misplaced_incident_is_drawn_on_another_part(tmp_path):
    """One of four was."""
    row = {**_row(top1=0.75), "incidents": {"right": 3, "misplaced": 1}}
    chance, rng = read_chances(written(tmp_path, faults__gpu_slow=row)).faults["gpu_slow"], np.random.default_rng(3)
    drawn = [chance.place(rng) for _ in range(2000)]
    assert "tied" not in drawn
    assert drawn.count("wrong") / 2000 == pytest.approx(0.25, abs=0.04)


def test_a_fault_without_figures_gets_the_macro_ones(tmp_path):
    """Nothing was planted of it: it is not taken for found."""
    chance = read_chances(written(tmp_path, faults__gpu_slow=_row(None, None, None, None))).faults["gpu_slow"]
    assert (chance.recall, chance.top1, chance.p50_seconds) == (0.7, 0.6, 200.0)


def test_false_incidents_of_a_node_and_of_a_job_have_rates_of_their_own(tmp_path):
    """A node's come by node-days, a job's by the days of jobs, with half a count more than came."""
    card = read_chances(written(tmp_path, faults__gpu_slow=_row(false=2), faults__stalled_loss=_row(false=2)))
    assert dict(card.false) == pytest.approx({"gpu_slow": 2.5 / 200, "stalled_loss": 2.5 / 20})


def test_one_false_incident_is_weaker_evidence_than_many(tmp_path):
    """The half count and what one of few takes from its sort: of two faults that came once and nine times, the rarer gains."""
    card = read_chances(written(tmp_path, faults__stalled_loss=_row(false=9), faults__straggler=_row(false=1)))
    assert sum(card.false.values()) == pytest.approx(10.5 / 20)
    assert 1 / 20 < card.false["straggler"] < 2 / 20


def test_confidence_is_drawn_as_it_came_true(tmp_path):
    """Wrong incidents of this scorecard were never very sure, right ones mostly were."""
    card, rng = read_chances(written(tmp_path)), np.random.default_rng(2)
    assert {card.confidence(False, rng) for _ in range(50)} == {0.55}
    assert np.mean([card.confidence(True, rng) > 0.9 for _ in range(1000)]) == pytest.approx(30 / 35, abs=0.05)


@pytest.mark.parametrize("changed", [
    {"macro": {}}, {"faults": []}, {"calibration": None}, {"macro__node_days": 0.0}, {"macro__recall": None},
    {"calibration__confidence__bins": []}, {"faults__gpu_slow": {}},
    {"faults__gpu_slow": _row(0.2, 1.0, None, None), "macro__delay_p50_seconds": None},
])
def test_what_is_no_whole_scorecard_is_refused(tmp_path, changed):
    """One sentence that names the option and what is needed."""
    with pytest.raises(BadInput, match=r"--scorecard: got .*what .greylag evaluate --out FILE. wrote is needed"):
        read_chances(written(tmp_path, **changed))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"macro": 3}'])
def test_what_is_no_scorecard_at_all_is_refused(tmp_path, text):
    """Whatever is in the file."""
    file = tmp_path / "card.json"
    file.write_text(text)
    with pytest.raises(BadInput, match="--scorecard"):
        read_chances(file)


def test_the_scope_of_a_false_incident_is_the_scorecards(tmp_path):
    """Three of four were a rack's; a card that does not tell has none."""
    row = {**_row(false=4), "unfounded_scopes": {"device": 1, "rack": 3}}
    chances, rng = read_chances(written(tmp_path, faults__power_cap=row)), np.random.default_rng(3)
    drawn = [chances.scope("power_cap", rng) for _ in range(400)]
    assert drawn.count("rack") / 400 == pytest.approx(0.75, abs=0.06)
    assert chances.scope("gpu_slow", rng) is None
