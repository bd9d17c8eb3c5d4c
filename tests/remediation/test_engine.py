"""The state machine of one incident, from open to proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocols import NodeView
from core.types import JobState, Outcome, Target
from tests.remediation.worlds import T0, TICK, Facts, Fault, Owner, cluster, finding, incident, policy


def start(world=None, rules=None, cured_by=("reset_gpu",), facts=None):
    owner = Owner(rules or policy(), world or cluster(), facts)
    owner.open(incident())
    return owner, Fault(owner, cured_by)


def test_an_incident_is_repaired_and_proved():
    """Steps run one after another, then quiet detectors and the old step time resolve the incident as recovered."""
    owner, fault = start()
    fault.until("resolved")
    assert owner.did() == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]
    assert owner.state() == ("resolved", "recovered")
    assert owner.incidents["inc-1"].resolved_at == owner.at - TICK
    proof = [r for s in owner.steps for r in s.recoveries]
    assert [(r.job, r.before_seconds, r.after_seconds) for r in proof] == [("train", 2.0, 2.0)]


def test_each_step_is_written_before_it_is_done():
    """PENDING is committed in a tick of its own before the door hears of the action."""
    owner, fault = start()
    fault.shine()
    step = owner.decide()
    assert [(a.id, o.state) for a, o in step.actions] == [("inc-1/1/1", "PENDING")]
    assert owner.world.known == {}


def test_the_next_step_waits_for_the_previous():
    """While a drain runs nothing else is decided."""
    owner, fault = start()
    owner.world.lasts["drain"] = 300
    fault.run(10)
    assert owner.did() == ["drain"]
    assert owner.state() == ("acting", "action_planned")


def test_the_second_attempt_follows_a_failed_verification():
    """When the evidence is still there at the deadline, the next attempt of the rule starts."""
    owner, fault = start(cured_by=("replace",))
    fault.until("resolved")
    assert owner.did()[-3:] == ["drain", "replace", "resume_job"]
    assert {a.attempt for a in owner.world.order} == {1, 2}


def test_a_failed_step_leads_to_the_next_attempt_without_fresh_evidence():
    """A part that stands idle after a failed step shows nothing; the ladder goes on all the same."""
    owner, fault = start(cured_by=("replace", "reset_gpu"))
    owner.world.fail["diagnose"] = "diagnose_failed"
    fault.until("resolved")
    assert owner.did() == ["drain", "reset_gpu", "diagnose", "drain", "replace", "resume_job"]


@pytest.mark.parametrize(("refuse", "fail", "reason"), [
    ({"drain": "not_supported"}, {}, "door_refused"),
    ({"drain": "frozen"}, {}, "door_refused"),
    ({}, {"drain": "no such thing"}, "policy_exhausted"),
])
def test_what_fails_to_the_end_is_escalated(refuse, fail, reason):
    """A refusal or failure in the last attempt hands the incident to a person, with a row that says so."""
    owner, fault = start()
    owner.world.refuse, owner.world.fail = refuse, fail
    fault.until("escalated")
    assert owner.state() == ("escalated", reason)
    action, outcome = owner.rows[-1]
    assert (action.kind, outcome.state, outcome.reason) == ("escalate", "DONE", "escalated")


def test_a_reason_of_the_backends_own_is_named():
    """A word that the closed lists do not have becomes backend_failed."""
    owner, fault = start()
    owner.world.fail["drain"] = "no such thing"
    fault.until("escalated")
    assert owner.last("inc-1/1/1").reason == "backend_failed"


def test_no_recovery_without_the_step_time():
    """Quiet detectors alone do not prove it while the step time is known and still bad: a person looks, no part is touched."""
    owner, fault = start()
    fault.until("verifying")
    owner.facts.findings = []
    owner.facts.steps = [(0, 2.0), (T0 + 1, 3.0)]
    owner.until("escalated", 30)
    assert owner.state() == ("escalated", "verify_failed")
    assert "replace" not in owner.did()


def test_without_trainer_metrics_quiet_is_enough():
    """No step time before the fault: the detectors' silence has to do."""
    owner, _ = start()
    owner.facts.steps, owner.facts.findings = [], [finding(owner.at)]
    owner.until("verifying", 8)
    owner.facts.findings = []
    owner.until("resolved", 10)
    assert owner.state() == ("resolved", "quiet")


def test_a_job_that_does_not_step_has_not_recovered():
    """Step time known before and unknown now is no recovery."""
    owner, fault = start()
    fault.until("verifying")
    owner.facts.findings, owner.facts.steps = [], [(0, 2.0), (T0 + 1, None)]
    owner.tick(10)
    assert owner.incidents["inc-1"].state == "verifying"


def test_a_job_that_ended_closes_the_incident():
    """There is nothing left to prove."""
    owner, fault = start()
    fault.until("verifying")
    owner.facts.jobs["train"] = JobState("train", "done")
    owner.until("resolved", 10)
    assert owner.state() == ("resolved", "job_ended")


def test_a_finding_during_verification_starts_the_quiet_time_again():
    """quiet_seconds counts from the last open finding of the fault on the part."""
    owner, fault = start()
    fault.until("verifying")
    owner.facts.findings = []
    owner.tick(2)
    owner.facts.findings = [finding(owner.at)]
    owner.tick(1)
    owner.facts.findings = []
    owner.tick(4)
    assert owner.incidents["inc-1"].state == "verifying"


def test_observe_says_it_once_and_touches_nothing():
    """Mode observe: the steps of the first attempt, SIMULATED, once; the incident stays open."""
    owner, fault = start(rules=replace(policy(), mode="observe"))
    fault.run(20)
    assert owner.state() == ("open", "mode_observe")
    assert [(a.kind, o.state) for a, o in owner.rows] == [
        (k, "SIMULATED") for k in ("drain", "reset_gpu", "diagnose", "undrain", "resume_job")]
    assert owner.world.known == {}


def test_a_backend_that_simulates_is_never_taken_for_done():
    """SIMULATED from the door ends the attempt: nothing is proved."""
    owner, fault = start()
    owner.world.simulate = True
    fault.run(20)
    assert owner.state() == ("open", "mode_observe")
    assert {o.state for _, o in owner.rows} == {"PENDING", "SIMULATED"}
    assert len({a.id for a, _ in owner.rows}) == 5


@pytest.mark.parametrize("by", ["inc-1/1/1", "inc-1"])
def test_propose_waits_for_a_person(by):
    """Mode propose: nothing is done before somebody says yes; who did is in the record."""
    owner, fault = start(rules=replace(policy(), mode="propose"))
    fault.run(10)
    assert owner.state() == ("proposed", "awaiting_approval")
    assert owner.world.known == {}
    owner.engine.approve(by, "ada", owner.at)
    fault.until("resolved")
    assert owner.world.order[0].actor == "ada"
    assert owner.world.order[0].id == "inc-1/1/1"
    assert owner.world.order[0].reason == "approved"


def test_a_rejected_proposal_is_a_persons():
    """No means no: the proposal ends REFUSED, and nothing is proposed again."""
    owner, fault = start(rules=replace(policy(), mode="propose"))
    fault.run(3)
    owner.engine.reject("inc-1", "ada", owner.at)
    fault.run(10)
    assert owner.state() == ("escalated", "rejected")
    assert owner.last("inc-1/1/1").reason == "rejected"
    assert owner.world.known == {}


def test_a_proposal_ends_with_its_incident():
    """When the book closes the incident the proposal is withdrawn, so no PENDING stays."""
    owner, fault = start(rules=replace(policy(), mode="propose"))
    fault.run(3)
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="resolved", reason="quiet")
    owner.tick()
    assert (owner.last("inc-1/1/1").state, owner.last("inc-1/1/1").reason) == ("REFUSED", "withdrawn")


def test_a_yes_for_one_part_is_none_for_another():
    """When the culprit changes, the approval falls and the new plan is proposed."""
    owner, fault = start(rules=replace(policy(), mode="propose"))
    fault.run(3)
    owner.engine.approve("inc-1", "ada", owner.at)
    other = Target("gpu", "n2", "0", "GPU-2", "train", 16)
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], culprit=other)
    fault.run(5)
    assert owner.world.known == {}
    assert owner.state() == ("proposed", "awaiting_approval")
    assert owner.last("inc-1/1/1").reason == "withdrawn"


@pytest.mark.parametrize("ref", ["inc-9", "inc-1/1/1", "nothing"])
def test_only_what_is_proposed_can_be_approved(ref):
    """An id that waits for nobody is a KeyError."""
    owner, _ = start()
    with pytest.raises(KeyError):
        owner.engine.approve(ref, "ada", T0)


@pytest.mark.parametrize(("change", "state"), [
    ({"confidence": 0.5}, ("holding", "confidence_too_low")),
    ({"onset_at": T0 + 110_000}, ("holding", "too_young")),
    ({"fault": "disk_full"}, ("open", "no_rule")),
    ({"culprit": None, "scope": "device"}, ("holding", "unknown_culprit")),
    ({"culprit": Target("switch", device="leaf1"), "scope": "switch"}, ("holding", "shared_cause")),
    ({"culprit": Target("rack", device="r1"), "scope": "rack"}, ("holding", "shared_cause")),
    ({"culprit": Target("nic", "n1", "mlx5_0/1")}, ("holding", "unknown_culprit")),
    ({"findings": ("fnd-9",)}, ("holding", "stale_evidence")),
])
def test_what_is_not_known_well_enough_is_held(change, state):
    """Each hold has its reason and sends nothing to the world."""
    owner, fault = start()
    owner.open(replace(incident(), **change))
    fault.run(1)
    assert owner.state() == state
    assert owner.world.known == {}


def test_old_evidence_starts_nothing():
    """A finding that was not renewed for two minutes says nothing about now."""
    owner, _ = start()
    owner.facts.findings = [finding(owner.at - 135_000)]
    owner.tick()
    assert owner.state() == ("holding", "stale_evidence")


def test_a_job_incident_without_a_culprit_restarts_the_job_only():
    """scope job, culprit null: resume_job is allowed, no node is touched."""
    owner, _ = start()
    hung = incident("inc-2", "stalled_loss", "job")
    owner.incidents = {}
    owner.open(hung)
    owner.facts.findings = [finding(owner.at, "stalled_loss", Target("job", job="train"))]
    owner.tick(2)
    assert [(a.kind, a.target) for a in owner.world.order] == [("resume_job", Target("job", job="train"))]


def test_a_merged_incident_is_left_alone():
    """Absorbed by a wider incident before its turn came: nothing happens."""
    owner, fault = start()
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="merged")
    fault.run(3)
    assert owner.rows == []


def test_a_merge_in_mid_attempt_hands_the_cordon_over():
    """What runs ends, nothing follows, and the drained node is told to a person."""
    owner, fault = start()
    owner.world.lasts["drain"] = 60
    fault.run(2)
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="merged")
    fault.run(12)
    assert owner.did() == ["drain"]
    action = owner.rows[-1][0]
    assert (action.kind, action.args["nodes"]) == ("escalate", "n1")
    assert owner.last("inc-1/1/1").state == "DONE"


def test_a_reopened_incident_takes_the_next_attempt():
    """The cure did not hold: the ladder goes on, and no id is used twice."""
    owner, fault = start()
    fault.until("resolved")
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="open", reason="reopened", resolved_at=None, updated_at=owner.at)
    owner.facts.findings = [finding(owner.at)]
    owner.tick(1)
    assert owner.did()[5:] == ["drain"]
    assert owner.world.order[-1].id == "inc-1/2/1"


def test_reopening_again_and_again_is_bounded():
    """A flapping part uses up its attempts and goes to a person."""
    owner, _ = start()
    owner.facts.steps = [(0, 2.0), (T0 + 1, 2.05)]
    for _ in range(4):
        for _ in range(60):
            owner.facts.findings = [finding(owner.at)] if owner.incidents["inc-1"].state == "open" else []
            owner.tick()
            if owner.incidents["inc-1"].state in ("resolved", "escalated"):
                break
        if owner.incidents["inc-1"].state == "resolved":
            owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="open", reason="reopened", updated_at=owner.at)
    assert owner.state() == ("escalated", "policy_exhausted")
    assert len([k for k in owner.did() if k == "resume_job"]) == 2


@pytest.mark.parametrize("beside", [True, False])
def test_an_older_culprit_is_not_acted_on(beside):
    """The incident names another part by now: its older state, in whatever order it comes or alone, begins nothing on the first."""
    owner, _ = start(rules=policy(per_hour=0))
    owner.tick()
    older = owner.incidents["inc-1"]
    newer = replace(older, culprit=replace(older.culprit, node="n2"), updated_at=owner.at)
    owner.open(newer)
    owner.tick()
    owner.engine.policy = policy()
    owner.facts.findings = [finding(owner.at)]
    owner.decide([owner.incidents["inc-1"], older] if beside else [older])
    owner.carry()
    assert [a.target.node for a in owner.world.order] == (["n2"] if beside else [])


def test_an_older_state_does_not_open_what_is_over():
    """Only the book's own word after the end does."""
    owner, fault = start()
    fault.run(2)
    older = owner.incidents["inc-1"]
    fault.until("resolved")
    owner.tick()
    owner.facts.findings = [finding(owner.at)]
    assert owner.decide([older]).incidents == ()
    assert owner.engine.history.ledger.entries()[0].result == "cured"


def test_what_waits_to_be_sent_is_not_sent_on_an_older_state():
    """The door did not answer, and then the newest state is not at hand: the attempt is decided on anew."""
    owner, fault = start()
    older = replace(owner.incidents["inc-1"], updated_at=T0 - 1)
    fault.shine()
    owner.commit(owner.decide())
    owner.world.down = True
    owner.carry()
    owner.at, owner.world.down = owner.at + TICK, False
    fault.shine()
    owner.decide([older])
    owner.carry()
    assert owner.did() == []
    owner.at += TICK
    fault.run(3)
    assert owner.did()[:1] == ["drain"]


def test_an_answer_about_another_command_is_none():
    """It came late, and says nothing of the command that was asked after."""
    owner, fault = start()
    owner.world.lasts = {"reset_gpu": 60.0}
    fault.run(2)
    assert owner.did() == ["drain", "reset_gpu"]
    owner.world.poll = lambda action_id: Outcome("inc-1/1/1", "DONE", "done")
    fault.run(3)
    assert owner.did() == ["drain", "reset_gpu"]
    del owner.world.poll
    fault.until("resolved")
    assert owner.did() == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]


def test_a_kind_that_the_backend_lacks_is_escalated():
    """A dead end at run time goes to a person."""
    owner = Owner(policy(), cluster(), kinds=("drain", "resume_job"))
    owner.open(incident())
    fault = Fault(owner, ())
    fault.run(1)
    assert owner.state() == ("escalated", "not_supported")


def test_own_words_need_no_backend():
    """notify is done by writing it down; then the rule waits and escalates."""
    rules = policy("version: 1\nmode: act\nrules:\n- name: tell\n  attempts:\n  - do: [notify]\n"
                   "  verify: {quiet_seconds: 60, deadline_seconds: 120}\n  finally: escalate\n")
    owner = Owner(rules, cluster(), kinds=())
    owner.open(incident())
    Fault(owner, ()).until("escalated")
    assert [(a.kind, o.state) for a, o in owner.rows] == [("notify", "DONE"), ("escalate", "DONE")]


@pytest.mark.parametrize("seconds", [60, 600])
def test_a_temporary_refusal_is_tried_again(seconds):
    """target_busy passes: the step is tried again under a new id, with growing pauses, within its deadline."""
    owner, fault = start()
    fault.run(1)
    owner.world.refuse["reset_gpu"] = "target_busy"
    fault.run(seconds // 15)
    tried = [a for a, o, _ in owner.world.known.values() if o.reason == "target_busy"]
    owner.world.refuse = {}
    if seconds == 60:
        fault.until("resolved")
        assert owner.did() == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]
    assert 1 < len(tried) <= 1 + seconds // 30


def test_a_target_that_stays_busy_ends_the_attempt():
    """Beyond the step's deadline the attempt has failed."""
    owner, fault = start(cured_by=("replace",))
    fault.run(1)
    owner.world.refuse["reset_gpu"] = "target_busy"
    fault.until("resolved")
    assert owner.did() == ["drain", "drain", "replace", "resume_job"]


def test_a_door_that_never_answers_ends_in_escalation():
    """Unavailable keeps the action PENDING until its deadline; then it FAILED, and in the end a person has it."""
    owner, fault = start()
    fault.run(2)
    owner.world.down = True
    fault.until("escalated", 600)
    reasons = {o.reason for _, o in owner.rows if o.state == "FAILED"}
    assert reasons == {"deadline_exceeded"}
    assert all(o.state != "PENDING" for o in {a.id: o for a, o in owner.rows}.values())


def test_a_command_that_outlives_its_deadline_keeps_its_target():
    """Nothing else touches the node while the world is still at it."""
    owner, fault = start()
    owner.world.lasts["drain"] = 1500
    fault.run(2 + 1200 // 15)
    assert owner.last("inc-1/1/1").reason == "deadline_exceeded"
    fault.run(5)
    assert owner.state() == ("holding", "target_busy")
    assert owner.did() == ["drain"]


def test_a_command_that_never_ends_is_escalated():
    """The target stays taken only so long; then a person has it."""
    owner, fault = start()
    owner.world.lasts["drain"] = 1e9
    fault.until("escalated", 300)
    assert owner.did() == ["drain"]


def test_a_command_that_the_world_forgot_is_given_up():
    """RUNNING, then unknown: it is never sent again."""
    owner, fault = start()
    owner.world.lasts["drain"] = 300
    fault.run(3)
    owner.world.known.clear()
    fault.run(1)
    owner.tick()
    assert owner.last("inc-1/1/1").reason == "unknown_operation"
    assert owner.world.executed["inc-1/1/1"] == 1


@pytest.mark.parametrize("how", ["call", "file"])
def test_freeze_holds_and_resume_lets_go(how):
    """Frozen: nothing starts; resumed: it does."""
    owner, fault = start()
    owner.engine.freeze() if how == "call" else setattr(owner, "freeze_file", True)
    assert owner.engine.frozen
    fault.run(5)
    assert owner.state() == ("holding", "frozen")
    owner.engine.resume()
    owner.freeze_file = False
    fault.until("resolved")


def test_a_freeze_between_decision_and_door_takes_the_attempt_back():
    """What was decided but not sent is not sent; it costs no budget and is decided on anew."""
    owner, fault = start()
    fault.shine()
    owner.commit(owner.decide())
    owner.engine.freeze()
    owner.carry()
    owner.at += TICK
    fault.run(3)
    assert owner.world.known == {}
    assert owner.state() == ("holding", "frozen")
    assert owner.last("inc-1/1/1").reason == "frozen"
    owner.engine.resume()
    fault.until("resolved")
    assert owner.world.order[0].id == "inc-1/2/1"


def test_a_freeze_in_mid_attempt_pauses_it():
    """What runs is watched to its end; the next step waits for the resume."""
    owner, fault = start()
    owner.world.lasts["drain"] = 60
    fault.run(2)
    owner.engine.freeze()
    fault.run(20)
    assert owner.did() == ["drain"]
    assert owner.state() == ("acting", "frozen")
    owner.engine.resume()
    fault.until("resolved")


def test_evidence_that_ages_before_the_door_answers_stops_the_command():
    """Decided, unreachable, and by the time the door answers the evidence is old: nothing is sent."""
    owner, fault = start()
    owner.world.down = True
    fault.shine()
    owner.world.down = False
    owner.commit(owner.decide())
    owner.world.down = True
    owner.carry()
    owner.at += TICK
    owner.tick(12)
    owner.world.down = False
    owner.tick(3)
    assert owner.world.known == {}
    assert owner.state() == ("holding", "stale_evidence")


def test_another_hand_in_mid_attempt_is_stood_down_for():
    """Somebody took the node over after our drain: no further command touches it."""
    owner, fault = start()
    fault.run(1)
    owner.world.states["n1"] = NodeView("n1", "drained", "ada")
    fault.until("escalated")
    assert owner.did() == ["drain"]
    assert owner.state() == ("escalated", "other_hand")


def test_a_switch_to_observe_in_mid_attempt_hands_over():
    """The operator took the hands away: what runs ends, nothing follows, a person is told of the drained node."""
    owner, fault = start()
    fault.run(1)
    owner.rules = replace(owner.rules, mode="observe")
    owner.die()
    fault.run(5)
    assert owner.did() == ["drain"]
    assert owner.state() == ("escalated", "mode_observe")
    assert owner.rows[-1][0].args == {"nodes": "n1"}


def test_each_change_has_a_decision():
    """The decisions tell each change of state with its reason, in order."""
    owner, fault = start()
    fault.until("resolved")
    told = [(d.decision, d.reason) for s in owner.steps for d in s.decisions]
    assert told == [("acting", "action_planned"), ("verifying", "verify_started"), ("resolved", "recovered")]


def test_lost_memory_proves_and_does_not_repeat():
    """An acting incident whose engine state is gone is only verified."""
    owner, fault = start()
    owner.incidents["inc-1"] = replace(incident(), state="acting", reason="action_planned", attempt=1)
    fault.run(5)
    assert owner.incidents["inc-1"].state == "verifying"
    assert owner.world.known == {}


def test_worlds_are_fakes_of_the_real_protocols():
    """The fake facts answer as the protocol says."""
    assert Facts().step_seconds("train", 0, T0) == 2.0
