"""How much has to be known of a slow part before its node is touched: a lone page costs a ticket, not a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocols import Checkpoint
from core.types import JobState, Target
from remediation.evidence import own_share, soft
from remediation.track import Speed, Track
from remediation.turn import Turn
from tests.remediation.test_riding import DEAD, HOT, REPLACES
from tests.remediation.worlds import T0, Facts, Owner, cluster, finding, incident, policy

HOURS_MS = 3 * 3_600_000
LATER = Target("gpu", "n3", "0", "GPU-3", "train", 16)


def standing(age_ms=0, lost=0.0, phase="train"):
    """A page about a hot GPU on n2 beside a dead one on n1, for which the job stands: what was done after 14 ticks."""
    owner = Owner(policy(REPLACES), cluster(spares=2))
    owner.facts.steps = [(0, 2.0), (T0 - age_ms + 1, 3.0)]
    owner.open(incident("inc-2", culprit=HOT, findings=("fnd-2",), onset_at=T0 - age_ms, opened_at=T0 - age_ms, lost_gpu_hours=lost))
    owner.facts.findings = [finding(owner.at, "thermal_throttle", HOT, "fnd-2")]
    if lost:
        owner.tick()
    owner.facts.jobs = {"train": JobState("train", phase)}
    owner.open(incident("inc-1", "gpu_lost", culprit=DEAD, findings=("fnd-1",)))
    owner.world.lasts = {"drain": 15, "replace": 60, "resume_job": 15}
    for _ in range(14):
        owner.facts.findings = [finding(owner.at, "gpu_lost", DEAD, "fnd-1"), finding(owner.at, "thermal_throttle", HOT, "fnd-2")]
        owner.tick()
    return [a.target.node for a in owner.world.order if a.kind == "replace"], owner.state("inc-2")


@pytest.mark.parametrize(("age_ms", "lost", "phase", "changed"), [
    (HOURS_MS, 24.0, "train", ["n1", "n2"]), (0, 0.0, "train", ["n1"]), (HOURS_MS, 0.0, "done", ["n1"]), (HOURS_MS, 0.0, "init", ["n1"])])
def test_a_node_is_changed_in_a_stop_only_for_a_loss_that_was_measured(age_ms, lost, phase, changed):
    """The job stands for a dead GPU: the page about the other node, whose cost nobody has measured, is left a page."""
    replaced, state = standing(age_ms, lost, phase)
    assert sorted(replaced) == changed
    assert len(changed) == 2 or state[0] in ("holding", "open")


def test_a_dead_job_is_no_evidence_against_a_slow_part():
    """It died of something else: the hot GPU's node is not taken out for it."""
    owner = Owner(policy(REPLACES), cluster(spares=2))
    owner.facts.steps = [(0, 2.0), (T0, None)]
    owner.facts.jobs = {"train": JobState("train", "done")}
    owner.open(incident(culprit=HOT, lost_gpu_hours=2.0))
    for _ in range(12):
        owner.facts.findings = [finding(owner.at, "thermal_throttle", HOT)]
        owner.tick()
    assert owner.did() == []
    assert owner.state() == ("holding", "being_weighed")


def test_a_part_that_slows_no_job_is_no_reason_to_take_its_node_out():
    """The world knows where the jobs are, and none is there."""
    owner = Owner(policy(REPLACES), cluster(spares=2))
    part = replace(HOT, node="n9", job=None, rank=None)
    owner.world.states["n9"] = replace(owner.world.states["n2"], node="n9", jobs=())
    owner.world.states["n1"] = replace(owner.world.states["n1"], jobs=("train",))
    owner.open(incident(culprit=part, jobs=()))
    for _ in range(8):
        owner.facts.findings = [finding(owner.at, "thermal_throttle", part)]
        owner.tick()
    assert owner.did() == []
    assert owner.state() == ("holding", "not_worth_it")


def charged(mine, others, now=4.0):
    """The share that an incident with the pace `mine` before its onset is charged, others being (minutes after it, pace before it)."""
    facts = Facts(steps=[(0, now)])
    turn = Turn(T0 + HOURS_MS, facts, frozenset(), False)

    def one(n, minutes, pace):
        return (incident(f"inc-{n}", onset_at=T0 + minutes * 60_000),
                Track(f"inc-{n}", before=(Speed("train", pace),) if pace is not None else ()))

    own, track = one(0, 0, mine)
    return own_share(turn, own, track, "train", [(own, track), *(one(n, *row) for n, row in enumerate(others, 1))])


@pytest.mark.parametrize(("mine", "others", "share"), [
    (2.0, [], None),                          # alone: all of the loss is its own
    (None, [(5, 3.0)], None),                 # its pace before is not known
    (2.0, [(-5, 1.0)], 0.5),                  # came second: from its onset to now
    (2.0, [(5, 2.0)], 0.0),                   # came first and cost nothing until the next came
    (2.0, [(5, 2.5), (9, 3.0)], 0.2),         # to the onset of the next one alone
])
def test_what_several_cost_is_dealt_out_in_the_order_of_their_onsets(mine, others, share):
    """Else a page about a well part is charged with what another part does."""
    assert charged(mine, others) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize(("fault", "is_soft"), [("gpu_slow", True), ("link_slow", True), ("link_flap", False), ("gpu_lost", False), ("disk_slow", False)])
def test_what_mostly_passes_and_kills_no_job_is_soft(fault, is_soft):
    """By the published shares."""
    assert soft(fault) is is_soft


MINUTE = 60_000
SPENT = Target("gpu", "n2", "0", "GPU-2", "train", 8)


def marked(last, age, phase="train", led=False, fault="row_remap_failure"):
    """A page about memory that is spent (or another fault) on n2, `age` minutes old, whose job made its last step `last` minutes after the onset (None = it
    goes on): the nodes that were replaced within five ticks, and the reason that holds the page back. led: the job stands for n1."""
    text = REPLACES.replace("thermal_throttle", fault)
    owner = Owner(policy(text), cluster(spares=3))
    owner.facts.jobs = {"train": JobState("train", phase, start=T0 - 3 * MINUTE if phase == "init" else None)}
    if last is not None:
        owner.facts.steps = [(0, 2.0), (T0 - (age - last) * MINUTE, None)]
    onset = T0 - age * MINUTE
    if led:
        owner.open(incident("inc-0", "gpu_lost", culprit=DEAD, findings=("fnd-1",)))
    owner.open(incident(fault=fault, culprit=SPENT, findings=("fnd-2",), onset_at=onset, opened_at=onset))
    owner.world.lasts = {"drain": 15, "replace": 60, "resume_job": 15}
    for _ in range(14 if led else 5):
        at = owner.at if last is None else onset + last * MINUTE
        owner.facts.saves = {"train": Checkpoint(onset - 5 * MINUTE, 10.0, 1800.0, at)}
        owner.facts.findings = [finding(owner.at, "gpu_lost", DEAD, "fnd-1"), finding(owner.at, fault, SPENT, "fnd-2")]
        owner.tick()
    return [a.target.node for a in owner.world.order if a.kind == "replace" and a.target.node == "n2"], owner.state()[1]


@pytest.mark.parametrize(("last", "age", "phase", "led", "replaced"), [
    pytest.param(None, 600, "train", False, False, id="the job goes on, for ten hours"),
    pytest.param(0, 3, "done", False, True, id="it died at the onset"),
    pytest.param(0, 3, "train", False, True, id="it hangs since the onset"),
    pytest.param(20, 30, "done", False, False, id="it died twenty minutes later, of something else"),
    pytest.param(20, 180, "done", False, True, id="it stands, and the mark has been there for three hours"),
    pytest.param(170, 180, "done", False, False, id="it has just failed of something else and will be back in minutes"),
    pytest.param(-10, 40, "init", False, False, id="it is on its way back"),
    pytest.param(-10, 5, "done", False, False, id="it stood before"),
    pytest.param(-10, 40, "done", False, True, id="it stood before, and still does"),
    pytest.param(100, 180, "done", True, True, id="it stands for another node, and the mark stays"),
    pytest.param(20, 30, "done", True, False, id="it stands for another node, and the mark is new"),
])
def test_what_kills_at_once_or_leaves_marks_is_no_reason_to_stop_a_job_that_makes_steps(last, age, phase, led, replaced):
    """A job that made steps for minutes after such a page did not die of it; its node is changed when the job stands anyhow."""
    nodes, reason = marked(last, age, phase, led)
    assert bool(nodes) is replaced, reason
    assert replaced or reason in ("not_worth_it", "being_weighed")


@pytest.mark.parametrize(("last", "age", "phase", "led", "replaced"), [
    pytest.param(None, 600, "train", False, False, id="the job goes on"),
    pytest.param(-10, 5, "done", False, True, id="it stood before"),
    pytest.param(-10, 5, "done", True, True, id="it stands for another node"),
])
def test_a_gpu_off_the_bus_is_changed_as_soon_as_its_job_stands(last, age, phase, led, replaced):
    """No job starts on its node: without that the next start would fail of it."""
    nodes, reason = marked(last, age, phase, led, "gpu_lost")
    assert bool(nodes) is replaced, reason
