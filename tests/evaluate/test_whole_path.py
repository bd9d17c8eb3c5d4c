"""One small scenario from plan to scorecard: a hot GPU is planted, found on the right part, and nothing else is said."""

from __future__ import annotations

from app.evaluate.command import safe_run
from app.evaluate.match import RIGHT
from app.evaluate.plan import Planned
from app.evaluate.score import judge
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario


def test_a_planted_fault_is_found_and_scored() -> None:
    """The truth comes from the fleet, the incident from Greylag, and both meet."""
    hot = Entry(fault="thermal_throttle", at="3m", node="n02", device="3", severity=0.4, onset="step", seed=1)
    scenario = Scenario("small", FleetSpec(3, 0, tier="C", before="3m"), (JobSpec("train-1"),), (hot,), seed=3, duration="6m30s")
    ran = safe_run(Planned("small-0", "local", scenario))
    judged = judge([ran])[0]
    assert (ran.error, [w.word for w in judged.words]) == ("", [RIGHT])
    assert (judged.found[0].top1, judged.found[0].count) == (1.0, 1)
