"""Several nodes of one job: changed in one stop, and a ladder only where no spare is."""

from __future__ import annotations

import pytest

from core.types import Target
from tests.remediation.worlds import T0, Fault, Owner, cluster, finding, incident, policy

REPLACES = """
version: 1
mode: act
limits: {concurrent_nodes: 2, pool_nodes: 3, pool_ratio: 0.1, per_hour: 20, per_job_per_day: 1, spare_floor: 0, cooldown_seconds: 600}
rules:
- name: dead
  match: {fault: [gpu_lost]}
  attempts:
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, step_time_ratio_max: 1.05, deadline_seconds: 300}
  finally: escalate
- name: hot
  match: {fault: [thermal_throttle], scope: [device], duration_seconds_min: 60}
  attempts:
  - do: [{drain: {wait_for: cheapest}}, replace, {resume_job: {mode: full}}]
  - when: no_spare
    do: [drain, reset_gpu, diagnose, undrain, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, step_time_ratio_max: 1.05, deadline_seconds: 300}
  finally: escalate
"""
HOURS_MS = 3 * 3_600_000  # for so long the hot one has been measured: it is not likely to pass
HOT, DEAD = Target("gpu", "n2", "1", "GPU-2", "train", 5), Target("gpu", "n1", "3", "GPU-1", "train", 11)


def two_of_one_job(spares=2, **more):
    """A dead GPU on n1 and a hot one on n2, both of the job `train`."""
    owner = Owner(policy(REPLACES), cluster(spares=spares))
    owner.facts.steps = [(0, 2.0), (T0 - HOURS_MS + 1, 3.0)]
    hot = incident("inc-2", culprit=HOT, findings=("fnd-2",), onset_at=T0 - HOURS_MS, opened_at=T0 - HOURS_MS, lost_gpu_hours=24.0)
    owner.open(hot)
    owner.facts.findings = [finding(owner.at, "thermal_throttle", HOT, "fnd-2")]
    owner.tick()
    owner.open(incident("inc-1", "gpu_lost", culprit=DEAD, findings=("fnd-1",)))
    owner.world.lasts = {"drain": 15, "replace": 60, "resume_job": 15, **more}
    return owner


def go(owner, ticks):
    for _ in range(ticks):
        owner.facts.findings = [finding(owner.at, "gpu_lost", DEAD, "fnd-1"), finding(owner.at, "thermal_throttle", HOT, "fnd-2")]
        owner.tick()


def test_a_slow_node_is_changed_while_the_job_stands_for_a_dead_one():
    """One stop for both: the job starts once, after both nodes were replaced, and its budget of one attempt a day is kept."""
    owner = two_of_one_job()
    go(owner, 14)
    did = [(a.kind, a.target.node) for a in owner.world.order]
    assert sorted(did) == sorted([("drain", "n1"), ("replace", "n1"), ("drain", "n2"), ("replace", "n2"), ("resume_job", None)])
    assert did[-1] == ("resume_job", None)
    assert {owner.state("inc-1")[0], owner.state("inc-2")[0]} == {"verifying"}


def test_the_job_waits_for_the_node_that_is_changed_beside_it():
    """The rider takes longer: the leader says for what it waits."""
    owner = two_of_one_job(replace=120)
    seen = set()
    for _ in range(24):
        go(owner, 1)
        seen |= {owner.state("inc-1"), owner.state("inc-2")}
    assert {("acting", "riders_change"), ("acting", "rides_along")} & seen
    assert [a.kind for a in owner.world.order][-1] == "resume_job"


@pytest.mark.parametrize(("spares", "kind"), [(2, "replace"), (0, "reset_gpu")])
def test_the_ladder_for_which_the_job_waits_is_for_want_of_a_spare(spares, kind):
    """`when: no_spare`: with a spare the node is replaced, without one it is reset and tested while the job waits."""
    owner = Owner(policy(REPLACES), cluster(spares=spares))
    owner.open(incident(culprit=HOT))
    fault = Fault(owner, ("replace", "reset_gpu"))
    fault.run(8)
    assert owner.did()[:2] == ["drain", kind]


def test_a_replacement_that_did_not_help_is_not_followed_by_a_reset_of_the_old_node():
    """The node is out of the job: what is left goes to a person."""
    owner = Owner(policy(REPLACES), cluster(spares=1))
    owner.open(incident(culprit=HOT))
    fault = Fault(owner, ())
    fault.until("escalated")
    assert owner.did() == ["drain", "replace", "resume_job"]
    assert owner.state() == ("escalated", "policy_exhausted")
