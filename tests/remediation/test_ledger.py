"""What is remembered of attempts: results, what each did, and how incidents end that nobody acts on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.types import JobState
from remediation.ledger import DAY_MS, MOST_ENTRIES, Entry, Ledger
from remediation.untouched import MOST_OF_A_FAULT, Untouched
from tests.remediation.worlds import T0, Fault, Owner, cluster, finding, incident, policy

STEPS = ("drain", "reset_gpu", "diagnose", "undrain", "resume_job")


def entry(i: int = 0, at: int = T0, **more: object) -> Entry:
    return replace(Entry(f"inc-{i}", 1, "gpu/n1/3", ("n1",), ("train",), at, at), **more)


def repaired(cured_by: tuple[str, ...] = ("reset_gpu",)) -> tuple[Owner, Fault]:
    owner = Owner(policy(), cluster())
    owner.open(incident())
    owner.facts.tokens = [(0, 1000.0)]
    return owner, Fault(owner, cured_by)


# --- results ------------------------------------------------------------------------------------------------------------
def test_an_attempt_that_worked_is_a_cure():
    """Proved by the detectors and the job's speed: cured, with what it did and which fault it was for."""
    owner, fault = repaired()
    fault.until("resolved")
    (one,) = owner.engine.history.ledger.entries()
    assert (one.result, one.why, one.fault, one.kinds) == ("cured", "recovered", "thermal_throttle", STEPS)
    assert one.last_at - one.started_at == owner.incidents["inc-1"].resolved_at - one.started_at


def test_an_attempt_that_did_not_work_is_a_failure():
    """The first did not cure, the second did: each has its own result."""
    owner, fault = repaired(("replace",))
    fault.until("resolved")
    first, second = owner.engine.history.ledger.entries()
    assert (first.result, first.why, second.result) == ("failed", "verify_failed", "cured")
    assert second.kinds == ("drain", "replace", "resume_job")


def test_a_step_that_failed_is_the_last_thing_that_was_done():
    """kinds says what the world tried: not what came after the failed step."""
    owner, fault = repaired(("replace",))
    owner.world.fail["reset_gpu"] = "backend_failed"
    fault.until("resolved")
    first = owner.engine.history.ledger.entries()[0]
    assert (first.result, first.why, first.kinds) == ("failed", "step_failed", ("drain", "reset_gpu"))


@pytest.mark.parametrize(("change", "why"), [
    (lambda f: f.jobs.update(train=JobState("train", "done")), "job_ended"),
    (lambda f: f.heard.append((T0 + 1, 6)), "job_shrank"),
    (lambda f: f.steps.append((T0 + 1, 1.0)), "job_rebatched"),
], ids=["ended", "shrank", "re-batched"])
def test_a_job_that_cannot_be_compared_is_neither_cure_nor_failure(change, why):
    """The incident ends by the detectors' silence, and its attempt counts for nothing."""
    owner, fault = repaired()
    fault.until("verifying")
    change(owner.facts)
    owner.until("resolved", 40)
    (one,) = owner.engine.history.ledger.entries()
    assert (owner.state()[1], one.result, one.why) == (why, "inconclusive", why)


def test_a_queued_job_leaves_the_incident_to_a_person():
    """The job that should run does not: inconclusive, escalated, the part is not touched again."""
    owner, fault = repaired()
    fault.until("verifying")
    owner.facts.heard.append((T0 + 1, 0))
    owner.until("escalated", 40)
    (one,) = owner.engine.history.ledger.entries()
    assert (owner.state()[1], one.result) == ("job_queued", "inconclusive")
    assert tuple(owner.did()) == STEPS


def test_what_came_back_was_no_cure():
    """An incident that reopens turns its cure into a failure."""
    owner, fault = repaired()
    fault.until("resolved")
    owner.open(replace(owner.incidents["inc-1"], state="open", reason="reopened", resolved_at=None, updated_at=owner.at))
    owner.tick()
    first = owner.engine.history.ledger.entries()[0]
    assert (first.result, first.why) == ("failed", "reopened")


@pytest.mark.parametrize("state", ["merged", "resolved", "abandoned"])
def test_an_attempt_that_was_cut_short_counts_for_nothing(state):
    """The book or a person ended the incident in the middle of the attempt."""
    owner, fault = repaired()
    owner.world.lasts["drain"] = 400
    fault.run(3)
    owner.open(replace(owner.incidents["inc-1"], state=state))
    owner.tick(2)
    assert owner.engine.history.ledger.entries()[0].result == "inconclusive"


def test_a_result_is_said_once_and_told_once():
    """The first word on an attempt stays, and each tick tells what is new."""
    ledger = Ledger()
    ledger.note(entry())
    ledger.end("inc-0", 1, "failed", "step_failed")
    ledger.end("inc-0", 1, "cured", "recovered")
    assert [(e.result, e.why) for e in ledger.take_results()] == [("failed", "step_failed")]
    assert ledger.take_results() == ()


def test_results_are_told_with_the_step():
    """What `step` gives names each attempt whose result is new, beside the proof."""
    owner, fault = repaired(("replace",))
    fault.until("resolved")
    assert [(e.attempt, e.result) for s in owner.steps for e in s.results] == [(1, "failed"), (2, "cured")]
    assert [(r.attempt, r.result) for s in owner.steps for r in s.recoveries] == [(1, "failed"), (2, "cured")]


def test_a_dump_keeps_results_and_an_older_one_is_read():
    """All fields come back; rows of before there were results have none."""
    ledger, again, old = Ledger(), Ledger(), Ledger()
    ledger.note(entry(kinds=("drain",), result="failed", why="step_failed", fault="gpu_lost", rule="r"))
    again.load(ledger.dump())
    assert again.entries() == ledger.entries()
    old.load([{k: row[k] for k in ("incident", "attempt", "part", "nodes", "jobs", "started_at", "last_at")} for row in ledger.dump()])
    assert old.entries()[0].result == ""


def test_rows_alone_tell_what_was_done_and_what_failed():
    """From the store's action rows: kinds as far as they reached the world, and a failure where a step failed."""
    owner, fault = repaired(("replace",))
    owner.world.fail["reset_gpu"] = "backend_failed"
    fault.until("resolved")
    ledger = Ledger()
    ledger.add_rows(owner.rows)
    first, second = ledger.entries()
    assert (first.kinds, first.result, first.why) == (("drain", "reset_gpu"), "failed", "backend_failed")
    assert (second.kinds, second.result) == (("drain", "replace", "resume_job"), "")


# --- how long it is kept ------------------------------------------------------------------------------------------------
def test_a_month_is_kept_and_no_more():
    """Older entries go, and a guard that looks back for longer keeps them."""
    ledger = Ledger()
    for i in range(40):
        ledger.note(entry(i, T0 + i * DAY_MS))
    ledger.prune(T0 + 40 * DAY_MS)
    assert len(ledger) == 30
    ledger.prune(T0 + 40 * DAY_MS, 40 * 86_400)
    assert len(ledger) == 30


def test_the_number_is_bounded_but_for_what_guards_count():
    """Of more than MOST_ENTRIES the oldest go, never those of the last week."""
    old, new = Ledger(), Ledger()
    for i in range(MOST_ENTRIES + 50):
        old.note(entry(i, T0 + i * 60_000))
        new.note(entry(i, T0 + 19 * DAY_MS + i))
    old.prune(T0 + 20 * DAY_MS)
    new.prune(T0 + 20 * DAY_MS)
    assert (len(old), len(new)) == (MOST_ENTRIES, MOST_ENTRIES + 50)


# --- nobody acted -------------------------------------------------------------------------------------------------------
def watched(n: int, ends: dict[int, str]) -> Untouched:
    """n incidents that a policy would have acted on at T0; ends: after how many minutes each closes, and why."""
    book = Untouched()
    for i in range(n):
        book.watch(T0, incident(f"inc-{i}"))
    for i, (minutes, reason) in enumerate(ends.items()):
        book.over(T0 + minutes * 60_000, [incident(f"inc-{i}", state="resolved", reason=reason)])
    return book


def test_incidents_that_nobody_acted_on_are_counted_within_a_time():
    """Recovered in time, recovered too late, lasting for longer; one that lasts for less is not counted yet."""
    book = watched(5, {5: "quiet", 10: "quiet", 90: "quiet", 20: "evidence_expired"})
    assert book.within("thermal_throttle", 1800, T0 + 100 * 60_000) == (2, 4)
    assert book.within("thermal_throttle", 8000, T0 + 100 * 60_000) == (3, 3)
    assert book.within("gpu_lost", 1800, T0) == (0, 0)


@pytest.mark.parametrize("state", ["merged", "abandoned"])
def test_what_was_no_fault_of_the_part_does_not_count(state):
    """A wider incident, or a person's word, says nothing of how the fault goes away."""
    book = Untouched()
    book.watch(T0, incident())
    book.over(T0 + 60_000, [incident(state=state, reason="absorbed")])
    assert (book.endings(), book.watched()) == ((), ())


def test_observe_mode_watches_what_it_would_have_acted_on():
    """From the SIMULATED action to the end by the book; in act mode nothing is watched."""
    for mode, n in (("observe", 1), ("act", 0)):
        owner = Owner(replace(policy(), mode=mode), cluster())
        owner.open(incident())
        owner.facts.findings = [finding(owner.at)]
        owner.tick()
        assert len(owner.engine.history.untouched.watched()) == n
        owner.engine.over(owner.at + 600_000, [replace(owner.incidents["inc-1"], state="resolved", reason="quiet")])
        assert [(e.fault, e.seconds, e.recovered) for e in owner.engine.history.untouched.endings()] == [
            ("thermal_throttle", 615.0, True)][:n]


def test_an_act_after_all_forgets_the_watching():
    """Observed first, acted on later: how it ends is the act's doing."""
    owner = Owner(replace(policy(), mode="observe"), cluster())
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    fault.run(2)
    owner.engine.policy = owner.rules = replace(owner.rules, mode="act")
    fault.until("resolved")
    assert owner.engine.history.untouched.watched() == ()


def test_the_watching_survives_a_restart():
    """It is part of the engine's state."""
    book, again = watched(3, {5: "quiet"}), Untouched()
    again.load(book.dump())
    assert (again.endings(), again.watched()) == (book.endings(), book.watched())


def test_the_watching_is_bounded():
    """The newest endings of a fault are kept, and nothing is watched for more than a month."""
    book = Untouched()
    for i in range(MOST_OF_A_FAULT + 20):
        book.watch(T0 + i, incident(f"inc-{i}"))
        book.over(T0 + i + 60_000, [incident(f"inc-{i}", state="resolved", reason="quiet")])
    book.watch(T0, incident("inc-x"))
    book.prune(T0 + 31 * DAY_MS)
    assert (len(book.endings()), book.watched()) == (MOST_OF_A_FAULT, ())
