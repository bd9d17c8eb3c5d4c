"""Is it worth it: expected GPU-hours lost by waiting and by each attempt, and what follows from them in the engine."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocols import Checkpoint
from core.types import Incident, JobState
from remediation.cures import Cures
from remediation.ledger import Entry
from remediation.policy import Attempt, Step
from remediation.track import Track
from remediation.weighing import note_loss
from remediation.worth import (
    Situation,
    checkpoint_first,
    proposal_args,
    saved,
    stop_gpu_hours,
    waiting_gpu_hours,
    weigh,
)
from tests.remediation.test_cures import RESET, entries
from tests.remediation.worlds import T0, TICK, Fault, Owner, cluster, incident, policy

HOURLY = 3_600_000
GENTLE = Attempt((Step("drain"), Step("reset_gpu"), Step("diagnose"), Step("undrain"), Step("resume_job", {"mode": "full"})))
HARD = Attempt((Step("drain"), Step("replace"), Step("resume_job", {"mode": "full"})))
LADDER = (GENTLE, HARD)
NOW = Situation("gpu_slow", lost_gpus=25.0, job_gpus=128.0, unsaved_seconds=300.0, next_seconds=300.0, spares=2)

numbers = st.floats(0, 1e5, allow_nan=False)
situations = st.builds(
    Situation, st.sampled_from(["gpu_slow", "thermal_throttle", "gpu_lost"]), st.floats(0.01, 4000), st.floats(1, 4000),
    st.one_of(st.none(), numbers), st.one_of(st.none(), numbers), st.integers(0, 5), st.just(8.0), st.floats(0, 1), st.floats(1, 1e5))


def judged(cured, failed):
    return Cures(entries(cured, failed))


# --- the two sides --------------------------------------------------------------------------------------------------------
def test_waiting_costs_the_rate_for_as_long_as_the_fault_lasts():
    """A day where it stays, less what the job's other stops end in passing; as long as it takes where it heals."""
    stops = NOW.job_gpus / NOW.node_gpus * 0.0038  # in a day
    assert waiting_gpu_hours(NOW) == pytest.approx(25 * 24 * (1 - math.exp(-stops)) / stops)
    assert waiting_gpu_hours(replace(NOW, heal_share=1.0, heal_seconds=600)) == pytest.approx(25 * 600 / 3600, rel=2e-3)


def test_a_job_that_stands_loses_what_it_did_since_its_checkpoint():
    """It has to start again from there, whatever is done."""
    stands = replace(NOW, lost_gpus=128.0)
    assert waiting_gpu_hours(stands) == pytest.approx(128 * 24 + 128 * 300 / 3600)


@pytest.mark.parametrize(("lost", "unsaved", "left", "said"), [
    (1.0, 600, 300, "checkpoint"), (100.0, 30, 600, "now"), (128.0, 600, 10, "now"), (1.0, None, 300, None), (1.0, 600, None, None)])
def test_a_drain_waits_for_a_checkpoint_where_that_is_cheaper(lost, unsaved, left, said):
    """A little for longer against all work since the last one; a job that stands writes none; unknown is unknown."""
    assert checkpoint_first(replace(NOW, lost_gpus=lost, unsaved_seconds=unsaved, next_seconds=left)) == said


def test_work_before_the_onset_counts_in_full_and_after_it_by_what_was_left():
    """Ten minutes at full speed and ten at half make fifteen."""
    found = saved(replace(NOW, lost_gpus=64.0), T0 + 1_200_000, T0 + 600_000, Checkpoint(T0, 5.0, 1800.0))
    assert (found.unsaved_seconds, found.next_seconds) == (900.0, 600.0)
    assert saved(NOW, T0, T0, Checkpoint()) == NOW


@settings(max_examples=80, deadline=None)
@given(situations, st.floats(0, 1e5))
def test_an_older_checkpoint_never_makes_stopping_cheaper(now, more):
    """Nor does a longer wait for the next one."""
    older = replace(now, unsaved_seconds=(now.unsaved_seconds or 0.0) + more)
    later = replace(now, next_seconds=None if now.next_seconds is None else now.next_seconds + more)
    for attempt in LADDER:
        assert stop_gpu_hours(attempt.do, older)[0] >= stop_gpu_hours(attempt.do, now)[0] - 1e-9
        assert stop_gpu_hours(attempt.do, later)[0] >= stop_gpu_hours(attempt.do, now)[0] - 1e-9


@settings(max_examples=80, deadline=None)
@given(situations, st.floats(0, 1000))
def test_a_faster_loss_never_makes_waiting_cheaper(now, more):
    """And a fault that heals seldomer never does, either."""
    assert waiting_gpu_hours(replace(now, lost_gpus=now.lost_gpus + more)) >= waiting_gpu_hours(now) - 1e-9
    seldomer = replace(now, heal_share=now.heal_share / 2)
    assert waiting_gpu_hours(seldomer) >= waiting_gpu_hours(now) * (1 - 1e-9) - 1e-9


@settings(max_examples=80, deadline=None)
@given(situations)
def test_a_spare_more_never_makes_a_replacement_dearer(now):
    """Without one the job waits for a node."""
    more = replace(now, spares=now.spares + 1)
    assert sum(stop_gpu_hours(HARD.do, more)) <= sum(stop_gpu_hours(HARD.do, now)) + 1e-9


@settings(max_examples=60, deadline=None)
@given(situations, st.integers(0, 30), st.integers(0, 30))
def test_a_better_chance_never_makes_an_attempt_dearer(now, cured, failed):
    """One cure more in the ledger, everything else equal."""
    first, second = (weigh(T0, LADDER, 0, now, judged(c, failed), 1200) for c in (cured, cured + 1))
    if first is not None and second is not None:
        assert second.options[0].expected_gpu_hours <= first.options[0].expected_gpu_hours + 1e-6


@settings(max_examples=60, deadline=None)
@given(situations, st.integers(0, 60), st.integers(0, 60))
def test_only_what_seldom_cures_is_skipped_and_never_the_last(now, cured, failed):
    """A gentler step that mostly helps goes first, and one attempt is always left."""
    worth = weigh(T0, LADDER, 0, now, judged(cured, failed), 1200)
    assert worth is None or not worth.options[-1].skip
    if worth is not None and worth.options[0].skip:
        assert worth.options[0].cure < 0.5
        assert cured + failed >= 5


# --- the decision -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("job_gpus", [32.0, 128.0, 512.0, 2048.0])
@pytest.mark.parametrize(("cured", "failed", "skip"), [(1, 19, True), (19, 1, False), (0, 0, False), (0, 4, False)])
def test_the_ledger_decides_whether_a_reset_is_tried(cured, failed, skip, job_gpus):
    """Skipped where it cures 5 %, tried where it cures 95 %, and where too little is known."""
    worth = weigh(T0, LADDER, 0, replace(NOW, job_gpus=job_gpus, lost_gpus=job_gpus / 5), judged(cured, failed), 1200)
    assert [o.skip for o in worth.options] == [skip, False]
    assert worth.best().place == int(skip)


@pytest.mark.parametrize(("lost", "hold"), [(0.3, True), (25.0, False), (128.0, False)])
def test_a_job_is_not_stopped_for_less_than_stopping_costs(lost, hold):
    """A quarter of a GPU lost of 128 does not pay for twenty minutes of all of them; a fifth, or a hang, does."""
    assert weigh(T0, LADDER, 0, replace(NOW, lost_gpus=lost), Cures(), 1200).hold == hold


@pytest.mark.parametrize("unknown", [{"lost_gpus": 0.0}, {"job_gpus": 0.0}, {"lost_gpus": float("nan")}])
def test_what_is_not_known_decides_nothing(unknown):
    """No rate, or no job: no worth."""
    assert weigh(T0, LADDER, 0, replace(NOW, **unknown), Cures(), 1200) is None


@pytest.mark.parametrize(("age", "share", "lost", "hold"), [
    (600, 0.95, 25.0, True), (20_000, 0.95, 25.0, False), (600, 0.0, 25.0, False), (600, 0.95, 1.0, True), (600, 0.95, 128.0, False)])
def test_what_mostly_heals_is_waited_for_until_it_has_lasted(age, share, lost, hold):
    """Ten minutes old it most likely goes away; five hours old it stays. A job that stands waits for nothing."""
    now = replace(NOW, lost_gpus=lost, heal_share=share, heal_seconds=600.0, age_seconds=age, unsaved_seconds=0.0, next_seconds=1800.0)
    worth = weigh(T0, (HARD,), 0, now, Cures(), 1200)
    assert (worth.hold, worth.wait_seconds > 0) == (hold, hold)
    assert worth.least_gpu_hours <= worth.waiting_gpu_hours


@pytest.mark.parametrize(("share", "wait"), [(0.95, 195.0), (0.0, 0.0)])
def test_a_drain_that_cannot_be_called_back_is_held_while_the_part_may_heal(share, wait):
    """Until right after one of the next checkpoints; one that stays is drained now, and its drain waits for the next."""
    now = replace(NOW, lost_gpus=20.0, unsaved_seconds=1370.0, next_seconds=180.0, interval_seconds=1800.0, heal_share=share,
                  heal_seconds=600.0, age_seconds=2400.0)
    worth = weigh(T0, (HARD,), 0, now, Cures(), 1200)
    assert (worth.wait_seconds % 1800.0, worth.wait_for) == (wait, "checkpoint")


@pytest.mark.parametrize(("stands", "lost", "hold"), [(30.0, 10.0, False), (700.0, 1.0, True), (None, 1.0, True)])
def test_a_job_that_stands_already_is_the_cheap_moment(stands, lost, hold):
    """Half a minute more of a stop is cheaper than a stop of its own; twelve are not for what costs next to nothing."""
    now = replace(NOW, lost_gpus=lost, heal_share=0.95, heal_seconds=600.0, age_seconds=3600.0, stands_seconds=stands)
    assert weigh(T0, (HARD,), 0, now, Cures(), 1200).hold == hold


# --- in the engine --------------------------------------------------------------------------------------------------------
def site(lost_per_hour=25.0, cured=0, failed=0, mode="act", rules=None, checkpoint=None):
    """An owner whose incident loses so many GPU-hours in an hour, with a ledger of resets of its fault."""
    owner = Owner(replace(rules or policy(), mode=mode), cluster())
    owner.facts.jobs = {"train": JobState("train", "train", tuple(f"n{i}" for i in range(1, 17)), ranks_per_node=8)}
    if checkpoint is not None:
        owner.facts.saves = {"train": checkpoint}
    for i, entry in enumerate(entries(cured, failed, fault="thermal_throttle", kinds=RESET)):
        owner.engine._memory.ledger.note(Entry(**{**{k: getattr(entry, k) for k in Entry.__slots__}, "incident": f"old-{i}", "part": "other",
                                                  "nodes": ("x",), "jobs": (), "started_at": T0 - 5 * 86_400_000, "last_at": T0 - 5 * 86_400_000}))
    owner.open(incident(onset_at=T0 - 4 * HOURLY))  # what lasts for so long does not go away by itself
    return owner, Fault(owner, ("replace",)), lost_per_hour


def run(owner, fault, rate, ticks):
    for _ in range(ticks):
        known = owner.incidents["inc-1"]
        owner.incidents["inc-1"] = replace(known, lost_gpu_hours=(owner.at - T0) * rate / HOURLY)
        fault.run(1)


def test_a_job_of_which_no_rank_is_known_has_the_usual_gpus_on_each_node():
    """Else it would be thought to be a job on eight times as many nodes, which something else stops in no time."""
    waiting = []
    for known in (8, None):
        owner, fault, rate = site()
        owner.facts.jobs = {"train": replace(owner.facts.jobs["train"], ranks_per_node=known)}
        run(owner, fault, rate, 12)
        waiting.append(owner.engine.worth("inc-1").waiting_gpu_hours)
    assert waiting[0] == pytest.approx(waiting[1])


def test_the_plan_skips_a_reset_that_seldom_cures():
    """The row says why, in numbers, and costs no budget; the replacement follows at once."""
    owner, fault, rate = site(cured=1, failed=19)
    run(owner, fault, rate, 12)
    assert owner.did()[:2] == ["drain", "replace"]
    skipped = [(a, o) for a, o in owner.rows if o.reason == "not_worth_it"]
    assert [(a.kind, a.id, o.state) for a, o in skipped] == [("reset_gpu", "inc-1/1/1", "REFUSED")]
    assert "1 of 20 here" in skipped[0][1].detail
    assert len([e for e in owner.engine.history.ledger.entries() if e.incident == "inc-1"]) == 1


@pytest.mark.parametrize(("cured", "failed"), [(19, 1), (0, 0)])
def test_a_reset_that_cures_or_that_nobody_knows_is_tried(cured, failed):
    """With 95 % in the ledger, and with an empty one."""
    owner, fault, rate = site(cured=cured, failed=failed)
    run(owner, fault, rate, 12)
    assert owner.did()[:2] == ["drain", "reset_gpu"]
    assert owner.engine.worth("inc-1").options[0].skip is False


def test_an_attempt_waits_where_stopping_the_job_costs_more():
    """A loss too small for the whole job to stand; when it grows the attempt starts."""
    owner, fault, rate = site(0.2)
    run(owner, fault, rate, 12)
    assert owner.state() == ("holding", "not_worth_it")
    assert owner.did() == []
    run(owner, fault, 60.0, 30)
    assert owner.did()[0] == "drain"


def test_without_a_known_loss_the_policy_alone_decides():
    """Nothing is skipped and nothing held for want of a number."""
    owner, fault, _ = site(cured=1, failed=19)
    fault.run(12)
    assert owner.did()[:2] == ["drain", "reset_gpu"]
    assert owner.engine.worth("inc-1") is None


BARE = """
version: 1
mode: act
limits: {concurrent_nodes: 1, pool_nodes: 3, spare_floor: 0}
rules:
- name: hot
  match: {fault: [thermal_throttle]}
  attempts: [{do: [%s, replace, resume_job]}]
  finally: escalate
"""
SOON = Checkpoint(T0 - 1_500_000, 10.0, 1800.0)
JUST = Checkpoint(T0 + 110_000, 10.0, 1800.0)


@pytest.mark.parametrize(("step", "checkpoint", "rate", "waits"), [
    ("drain", SOON, 20.0, True), ("drain", JUST, 100.0, False), ("drain", None, 20.0, False), ("{drain: {wait_for: cheapest}}", SOON, 20.0, True),
    ("{drain: {wait_for: cheapest}}", JUST, 100.0, False), ("{drain: {wait_for: cheapest}}", None, 20.0, True),
    ("{drain: {wait_for: nothing}}", SOON, 20.0, False), ("{drain: {wait_for: checkpoint}}", JUST, 100.0, True)])
def test_a_drain_waits_by_cost_unless_the_policy_says(step, checkpoint, rate, waits):
    """Absent and `cheapest` go by the cost; where that is not known `cheapest` waits; `nothing` and `checkpoint` are orders."""
    owner, fault, rate = site(rate, rules=policy(BARE % step), checkpoint=checkpoint)
    run(owner, fault, rate, 8)
    drain = next(a for a, _ in owner.rows if a.kind == "drain")
    assert drain.args.get("wait_for") == ("checkpoint" if waits else None)


@pytest.mark.parametrize(("step", "interval", "seconds"), [
    ("{drain: {wait_for: checkpoint}}", 1800.0, 2700.0), ("{drain: {wait_for: checkpoint}}", 300.0, 1200.0),
    ("{drain: {wait_for: checkpoint}}", 9_000.0, 7200.0), ("{drain: {wait_for: checkpoint, deadline_seconds: 600}}", 1800.0, 600.0),
    ("{drain: {wait_for: checkpoint}}", None, 1200.0), ("{drain: {wait_for: nothing}}", 1800.0, 1200.0)])
def test_a_drain_waits_as_long_as_the_jobs_saves_are_apart(step, interval, seconds):
    """A job that saves each half hour has none within twenty minutes; the policy's own word counts, two hours are the most."""
    owner, fault, rate = site(100.0, rules=policy(BARE % step), checkpoint=Checkpoint(T0 + 110_000, 10.0, interval))
    run(owner, fault, rate, 8)
    assert next(a for a, _ in owner.rows if a.kind == "drain").deadline_seconds == seconds


def test_a_proposal_shows_what_waiting_and_acting_cost():
    """Expected GPU-hours both ways and the chance to cure stand in the proposal that a person is asked about."""
    owner, fault, rate = site(mode="propose")
    run(owner, fault, rate, 12)
    proposal = next(a for a, o in owner.rows if o.reason == "awaiting_approval")
    assert set(proposal.args) >= {"waiting_gpu_hours", "attempt_gpu_hours", "cure_chance"}
    assert 0 < proposal.args["attempt_gpu_hours"] < proposal.args["waiting_gpu_hours"]
    assert proposal_args(None) == {}


def test_a_proposal_shows_each_attempt_and_what_its_cost_rests_on():
    """A line for each that the rule has left: steps, GPU-hours, restart and queue, chance and own record; and work, spares beside them."""
    owner, fault, rate = site(cured=3, failed=1, mode="propose", checkpoint=SOON)
    run(owner, fault, rate, 12)
    proposal, worth = next(a for a, o in owner.rows if o.reason == "awaiting_approval"), owner.engine.worth("inc-1")
    first, second = proposal.args["attempts"]
    assert "attempt 1 (drain, reset_gpu, diagnose, undrain, resume_job): " in first
    assert first.endswith("(3 of 4 here)")
    assert "attempt 2 (drain, replace, resume_job): " in second
    assert "(restart 1020 s, queue " in second
    assert second.endswith("(no own record)")
    assert proposal.args["spares"] == worth.spares
    assert 1_200 < proposal.args["unsaved_seconds"] < 1_700


def test_a_proposal_survives_a_restart_with_its_lines():
    """They are part of the state that commits with the tick."""
    owner, fault, rate = site(mode="propose")
    run(owner, fault, rate, 12)
    before = owner.engine.dump()
    owner.die()
    assert owner.engine.dump() == before
    assert len(owner.engine.track("inc-1").proposal.args["attempts"]) == 2


@pytest.mark.parametrize(("steps", "spares", "restart", "queue"), [
    (HARD, 2, 1020.0, 60.0), (HARD, 0, 1020.0, 3600.0), (Attempt((Step("reset_gpu"),)), 0, 60.0, 0.0)])
def test_an_attempt_tells_what_its_restart_and_its_queue_take(steps, spares, restart, queue):
    """Without a spare its job waits for a node; an attempt that starts no job waits for none."""
    worth = weigh(T0, (steps,), 0, replace(NOW, spares=spares), Cures(), 1200)
    assert (worth.options[0].restart_seconds, worth.options[0].queue_seconds, worth.spares) == (restart, queue, spares)


def test_a_restart_decides_the_same():
    """The rate is part of the state that commits with the tick."""
    owner, fault, rate = site(0.2)
    run(owner, fault, rate, 12)
    before = owner.engine.dump()
    owner.die()
    assert owner.engine.dump() == before
    run(owner, fault, rate, 4)
    assert owner.state() == ("holding", "not_worth_it")
    assert isinstance(owner.incidents["inc-1"], Incident)
    assert owner.at > T0 + TICK


def test_the_rate_is_that_of_the_last_minutes():
    """A loss that grew faster lately is not averaged over the quiet hours before, and one that came back begins anew."""
    track = Track("inc-1")
    for minute in range(120):
        at = T0 + minute * 60_000
        note_loss(track, incident(lost_gpu_hours=minute / 60 if minute < 100 else 100 / 60 + (minute - 100)), at)
    assert track.lost_gpus == pytest.approx(60.0)
    assert len(track.lost) <= 13
    track.ended = "verify_failed"
    note_loss(track, incident(lost_gpu_hours=500.0), T0 + 130 * 60_000)
    assert track.lost_gpus == pytest.approx(60.0)


def test_an_incident_that_comes_back_is_weighed_by_what_it_costs_now():
    """The hours in between, in which it cost nothing, do not dilute it."""
    owner, fault, rate = site()
    run(owner, fault, rate, 4)
    track = owner.engine.track("inc-1")
    track.closed_at, track.state = owner.at - 15_000, "resolved"
    track.current = None
    owner.incidents["inc-1"] = replace(owner.incidents["inc-1"], state="open", lost_gpu_hours=7.0, updated_at=owner.at)
    owner.decide()
    assert track.lost == ((owner.at, 7.0),)
    assert track.lost_gpus is None
