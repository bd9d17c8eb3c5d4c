"""What the guards do to incidents, from the hold to what lifts it; freezes, approvals and other hands in the middle of things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.clock import rfc3339
from core.errors import BadInput
from core.protocols import Checkpoint, NodeView
from core.types import JobState, Target
from core.window import NicPlace, Topology
from remediation.engine import Engine, Site
from remediation.kinds import on_node
from remediation.ledger import Entry
from remediation.policy import Step
from tests.remediation.worlds import (
    ALL_KINDS,
    T0,
    TICK,
    Facts,
    Fault,
    Owner,
    cluster,
    finding,
    incident,
    policy,
)

HUNG = {"fault": "stalled_loss", "scope": "job"}
WORN = """
version: 1
mode: act
limits: {concurrent_nodes: 2, pool_nodes: 3, per_hour: 99, per_job_per_day: 99, spare_floor: 0, cooldown_seconds: 0, release_seconds: 60}
rules:
- name: any-job
  match: {fault: [stalled_loss, nonfinite_loss, job_crash_loop, straggler]}
  attempts:
  - do: [{resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, deadline_seconds: 900}
  finally: escalate
"""


def start(rules=None, **more):
    """One incident about a GPU of n1, with a fault that a reset cures."""
    owner = Owner(rules or policy(**more), cluster())
    owner.open(incident())
    return owner, Fault(owner, ("reset_gpu",))


def jobs(n, rules=None):
    """So many hung jobs, one a node, each an incident of its own."""
    owner = Owner(rules or policy(WORN), cluster(n))
    names = [f"j{i}" for i in range(1, n + 1)]
    owner.world.states |= {f"n{i}": NodeView(f"n{i}", "in_service", None, (f"j{i}",)) for i in range(1, n + 1)}
    owner.facts.jobs = {name: JobState(name, "train") for name in names}
    owner.open(*(incident(f"inc-{name}", **HUNG, jobs=(name,), findings=(f"fnd-{name}",)) for name in names))
    owner.shine = lambda: setattr(owner.facts, "findings", [
        finding(owner.at, "stalled_loss", Target("job", job=name), f"fnd-{name}") for name in names])
    return owner


def run(owner, ticks):
    for _ in range(ticks):
        owner.shine()
        owner.tick()


def began(owner):
    """When each attempt was written down, in seconds since the first."""
    at = sorted(a.at for a, o in owner.rows if o.state == "PENDING" and o.reason == "policy")
    return [(t - at[0]) // 1000 for t in at]


# --- silences, windows, places ----------------------------------------------------------------------------------------
def test_nothing_begins_on_a_silenced_incident():
    """It holds while the silence does, and goes on by itself."""
    owner, fault = start()
    owner.site = Site(silenced=lambda one: True)
    fault.run(5)
    assert owner.state() == ("holding", "silenced")
    assert owner.world.known == {}
    owner.site = None
    fault.until("resolved")


def test_a_silence_that_comes_before_the_door_heard_of_it_stops_the_command():
    """Decided, not sent yet: it is taken back and costs no budget."""
    owner, fault = start()
    fault.shine()
    owner.commit(owner.decide())
    owner.world.down = True
    owner.carry()
    owner.site, owner.world.down = Site(silenced=lambda one: True), False
    owner.at += TICK
    fault.run(3)
    assert owner.state() == ("holding", "silenced")
    assert owner.world.known == {}


def test_an_attempt_under_way_is_finished_whoever_is_silent():
    """A node is not left drained because somebody wants no messages."""
    owner, fault = start()
    fault.run(2)
    owner.site = Site(silenced=lambda one: True)
    fault.until("resolved")


def test_a_reserved_node_is_left_alone_until_the_window_ends():
    """Neither begun nor, in the middle of an attempt, gone on with."""
    owner, fault = start()
    owner.world.states["n1"] = replace(owner.world.states["n1"], maintenance="bios-wave")
    fault.run(3)
    assert owner.state() == ("holding", "maintenance")
    owner.world.states["n1"] = replace(owner.world.states["n1"], maintenance=None)
    fault.run(2)
    owner.world.states["n1"] = replace(owner.world.states["n1"], maintenance="bios-wave")
    did = owner.did()
    fault.run(6)
    assert owner.did() == did
    owner.world.states["n1"] = replace(owner.world.states["n1"], maintenance=None)
    fault.until("resolved")


def test_the_inventory_tells_who_shares_a_leaf():
    """The last node in service of a rail group is not taken out; without an inventory nobody knows, and it is."""
    owner, fault = start()
    owner.world.states["n2"] = NodeView("n2", "drained", "ada")
    nics = {(n, "mlx5_0"): NicPlace(n, "mlx5_0", 0, "leaf-1") for n in ("n1", "n2")}
    owner.site = Site(Topology(nics=nics))
    fault.run(3)
    assert owner.state() == ("holding", "last_of_rail")
    owner.site = None
    fault.until("resolved")


def test_a_worn_node_goes_to_a_person():
    """Five attempts in seven days, whatever they were for: the sixth is a person's, and the world hears nothing of it."""
    owner, fault = start(per_node_per_week=5)
    owner.engine.history.ledger.load([])
    for i in range(5):
        owner.engine.history.ledger.note(Entry(f"old-{i}", 1, f"nic:{i}", ("n1",), (), T0 - i * 86_400_000, T0 - i * 86_400_000))
    fault.run(2)
    assert owner.state() == ("escalated", "too_many_remediations")
    assert owner.world.known == {}


# --- freezes ----------------------------------------------------------------------------------------------------------
def test_after_a_freeze_attempts_start_one_by_one():
    """Six jobs hang during a freeze: they are let go a minute apart, over a restart of Greylag too."""
    owner = jobs(6)
    owner.engine.freeze()
    run(owner, 8)
    assert {i.reason for i in owner.incidents.values()} == {"frozen"}
    owner.engine.resume()
    run(owner, 6)
    assert sorted(i.reason for i in owner.incidents.values()).count("paced") == 4
    owner.die()
    run(owner, 24)
    assert began(owner) == [0, 60, 120, 180, 240, 300]


def test_a_freeze_that_no_tick_saw_is_followed_by_one_by_one_too():
    """The file came after the decision and went before the next tick: what it kept from the door is let go a minute apart."""
    owner = jobs(4)
    owner.commit(owner.decide())
    owner.freeze_file = True
    owner.carry()
    owner.freeze_file = False
    owner.at += TICK
    run(owner, 20)
    starts = began(owner)
    assert [at - starts[0] for at in starts] == [0, 60, 120, 180]


def test_without_a_freeze_nobody_waits_for_a_turn():
    """Jobs that have nothing to do with each other are repaired at once."""
    owner = jobs(6)
    run(owner, 1)
    assert began(owner) == [0] * 6


def test_a_world_that_comes_back_is_not_stormed():
    """What could not start because nothing answered is let go one by one as well."""
    owner = jobs(4)
    owner.world.down = True
    run(owner, 3)
    assert {i.reason for i in owner.incidents.values()} == {"unreachable"}
    owner.world.down = False
    run(owner, 16)
    assert began(owner) == [0, 60, 120, 180]


@pytest.mark.parametrize("by", ["call", "file", "a file that nobody can look at"])
def test_a_freeze_holds_while_everything_else_is_down(by):
    """No door, no view, nothing committed: a freeze needs none of them, and holds at the next command."""
    owner, fault = start()
    fault.shine()
    step = owner.decide()  # decided, and the store is gone: it is never committed
    assert step.actions
    owner.world.down = True
    if by == "call":
        owner.engine.freeze()
    elif by == "file":
        owner.freeze_file = True
    else:
        owner.engine._file = _unreadable
    assert owner.engine.frozen
    owner.world.down = False
    assert owner.engine.carry_out(owner.at, owner.world) == []
    assert owner.world.arrived == {}


def _unreadable():
    raise PermissionError("the data directory does not answer")


# --- approvals --------------------------------------------------------------------------------------------------------
def test_a_proposal_that_nobody_answers_is_asked_anew():
    """The old one cannot be approved any more: its evidence is of then. The new one can."""
    owner, fault = start(replace(policy(approval_seconds=120), mode="propose"))
    fault.run(12)
    ends = [(a.id, o.reason) for a, o in owner.rows if o.state == "REFUSED"]
    assert ends == [("inc-1/1/1", "approval_expired")]
    with pytest.raises(KeyError):
        owner.engine.approve("inc-1/1/1", "ada", owner.at)
    owner.engine.approve("inc-1/2/1", "ada", owner.at)
    fault.until("resolved")
    assert {a.actor for a in owner.world.order} == {"ada"}


def test_an_approval_that_could_not_be_used_expires():
    """Approved during a freeze, released an hour later: a person is asked again."""
    owner, fault = start(replace(policy(approval_seconds=120), mode="propose"))
    fault.run(2)
    owner.engine.freeze()
    owner.engine.approve("inc-1", "ada", owner.at)
    fault.run(12)
    owner.engine.resume()
    fault.run(2)
    assert owner.state() == ("proposed", "awaiting_approval")
    assert owner.world.known == {}


@pytest.mark.parametrize("actor", ["", "  ", "greylag"])
def test_nobody_is_no_approver(actor):
    """Who said yes is in the record, so it has to be somebody; Greylag does not approve what it proposed."""
    owner, fault = start(replace(policy(), mode="propose"))
    fault.run(1)
    for word in (owner.engine.approve, owner.engine.reject):
        with pytest.raises(BadInput):
            word("inc-1", actor, owner.at)
    fault.run(1)
    assert owner.state() == ("proposed", "awaiting_approval")


# --- jobs -------------------------------------------------------------------------------------------------------------
def one_job(fault="straggler", **more):
    """The job `train`, with an incident that no part is to blame for."""
    owner = Owner(policy(WORN), cluster())
    owner.open(incident(**{"fault": fault, "scope": "job"} | more))
    owner.facts.steps = [(0, 2.0), (T0 + 1, 3.0)]
    owner.shine = lambda: setattr(owner.facts, "findings", [finding(owner.at, fault, Target("job", job="train"))])
    return owner


def test_a_job_with_an_old_checkpoint_is_stopped_only_with_approval():
    """In mode act too: a person is asked, and who said yes is in the action."""
    owner = one_job()
    owner.facts.saves = {"train": Checkpoint(owner.at - 1_000_000, 100.0, 300.0, owner.at)}
    run(owner, 3)
    assert owner.state() == ("proposed", "checkpoint_old")
    assert owner.world.known == {}
    owner.engine.approve("inc-1", "ada", owner.at)
    run(owner, 3)
    assert [(a.kind, a.actor, a.reason) for a in owner.world.order] == [("resume_job", "ada", "approved")]


def test_a_new_checkpoint_makes_the_question_needless():
    """The job saved: the attempt starts by itself, under the number that was proposed."""
    owner = one_job()
    owner.facts.saves = {"train": Checkpoint(owner.at - 1_000_000, 100.0, 300.0, owner.at)}
    run(owner, 3)
    owner.facts.saves = {"train": Checkpoint(owner.at, 200.0, 300.0, owner.at)}
    run(owner, 2)
    assert [(a.id, a.actor) for a in owner.world.order] == [("inc-1/1/1", "greylag")]


def test_a_drain_asks_for_every_job_on_the_node():
    """Not only the incident's own job is lost with a node; that the drain would wait for a checkpoint changes nothing."""
    owner, fault = start()
    owner.world.states["n1"] = replace(owner.world.states["n1"], jobs=("train", "other"))
    owner.facts.saves = {"other": Checkpoint(T0 - 1_000_000, 100.0, 300.0)}
    fault.run(2)
    assert owner.state() == ("proposed", "checkpoint_old")


@pytest.mark.parametrize(("fault", "since", "before"), [
    ("nonfinite_loss", None, T0), ("nonfinite_loss", T0 - 60_000, T0 - 60_000), ("nonfinite_loss", T0 + 60_000, T0),
    ("stalled_loss", T0 - 60_000, T0 - 60_000), ("stalled_loss", None, None),
])
def test_a_nan_resumes_from_before_it_began(fault, since, before):
    """Whatever the incident is called: a checkpoint that may hold the NaN is not loaded."""
    owner = one_job(fault)
    owner.facts.nonfinite = {} if since is None else {"train": since}
    run(owner, 2)
    args = owner.world.order[0].args
    assert args == {"mode": "full"} | ({} if before is None else {"before": rfc3339(before)})


def test_a_crash_loop_in_software_is_not_retried():
    """It would fail again: its owner is told at once."""
    owner = one_job("job_crash_loop", culprit=Target("job", job="train"))
    run(owner, 2)
    assert owner.state() == ("escalated", "software_crash_loop")
    assert owner.world.known == {}


def test_crashes_that_follow_a_part_are_repaired():
    """A rank on a node is no software: the rule goes on."""
    owner = one_job("job_crash_loop", scope="device", culprit=Target("rank", "n1", "3", job="train", rank=3))
    run(owner, 2)
    assert owner.did() == ["resume_job"]


# --- other hands ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("held", [NodeView("n2", "drained", "ada", ("train",)), NodeView("n2", "draining", "nhc", ("train",))])
def test_a_job_on_a_node_that_another_hand_holds_is_not_started_again(held):
    """Nothing that somebody took out is brought back under a job."""
    owner = one_job()
    owner.world.states["n2"] = held
    run(owner, 3)
    assert owner.state() == ("holding", "other_hand")
    assert owner.world.known == {}


@pytest.mark.parametrize("kind", ["resume_job", "shrink_job", "restart_process"])
def test_the_world_is_read_again_before_each_command_on_a_job(kind):
    """A hand that takes a node of the job between decision and command stops the command."""
    text = WORN.replace("{resume_job: {mode: full}}", kind)
    owner = one_job()
    owner.rules = policy(text)
    owner.engine = Engine(owner.rules, ALL_KINDS, owner.world)
    owner.shine()
    owner.commit(owner.decide())
    owner.world.states["n3"] = NodeView("n3", "drained", "ada", ("train",))
    owner.carry()
    owner.at += TICK
    run(owner, 1)
    assert owner.world.known == {}
    assert owner.state() == ("escalated", "other_hand")


@pytest.mark.parametrize("kind", sorted(k for k in ALL_KINDS if on_node(k)))
def test_the_world_is_read_again_before_each_command_on_a_node(kind):
    """A hand that takes the node between decision and command stops the command, whatever it is."""
    rules = policy()
    one = replace(rules.rules[0], attempts=(replace(rules.rules[0].attempts[0], do=(Step(kind, {}, 600.0),)),))
    owner, fault = start(replace(rules, rules=(one,)))
    fault.shine()
    owner.commit(owner.decide())
    assert owner.state() == ("acting", "action_planned")
    owner.world.states["n1"] = NodeView("n1", "drained", "ada", ("train",))
    owner.carry()
    owner.at += TICK
    fault.run(1)
    assert owner.world.known == {}
    assert owner.state() == ("escalated", "other_hand")


def test_a_node_that_somebody_gave_back_in_mid_attempt_is_let_go():
    """Our drain was undone by another hand: no reset follows on a node with work on it."""
    owner, fault = start()
    fault.run(1)
    owner.world.states["n1"] = NodeView("n1", "in_service", None, ("train",))
    fault.until("escalated")
    assert owner.did() == ["drain"]
    assert owner.state() == ("escalated", "other_hand")


def test_facts_of_the_world_are_fakes_of_the_real_ones():
    """The fakes know nothing that was not put into them."""
    assert (Facts().checkpoint("x"), Facts().nonfinite_since("x")) == (Checkpoint(), None)
