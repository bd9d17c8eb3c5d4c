"""Spares: which may be counted on, and their diagnosis on a schedule, within every guard."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from core.protocols import NodeView
from core.types import Outcome, Target
from remediation.guards import Ask, World, first_reason, spares
from remediation.ledger import Ledger
from remediation.policy import Limits, SpareRules, parse_policy
from remediation.spares import AGAIN_MS, SpareBook, is_check, usable
from tests.remediation.worlds import POLICY, T0, Fault, Owner, cluster, finding, incident, policy

RULES = SpareRules(diagnose_every_seconds=3600, unchecked_max_seconds=7200)
WITH = POLICY.replace("rules:\n", "spares: {diagnose_every_seconds: 3600, unchecked_max_seconds: 7200}\nrules:\n", 1)
HOUR = 3_600_000
ASK = Ask(T0, "inc-1", "gpu:x", ("n1",), (), frozenset({"drain", "replace"}))


def nodes(*names, **views):
    return {n: NodeView(n, "spare") for n in names} | views


def book(at, view):
    out = SpareBook()
    out.look(at, view)
    return out


# --- which are counted ------------------------------------------------------------------------------------------------
def test_a_spare_that_nobody_tested_for_too_long_is_not_used():
    """Its age counts from its last passed test, or from when it was first seen."""
    view = nodes("s1", "s2")
    one = book(T0, view)
    assert one.unfit(T0 + 2 * HOUR, view, RULES, ()) == {}
    assert one.unfit(T0 + 2 * HOUR + 1, view, RULES, ()) == {"s1": "spare_unchecked", "s2": "spare_unchecked"}
    view["s1"] = replace(view["s1"], checked_at=T0 + HOUR)
    assert one.unfit(T0 + 2 * HOUR + 1, view, RULES, ()) == {"s2": "spare_unchecked"}
    assert one.unfit(T0 + 99 * HOUR, view, SpareRules(), ()) == {}


def test_a_spare_that_drifted_is_not_used_until_it_is_as_the_others():
    """An open finding of another software or setting holds it back; an ended one does not."""
    view = nodes("s1", "s2")
    drift = finding(T0, "config_drift", Target("label", "s1", "driver=550"))
    assert book(T0, view).unfit(T0, view, RULES, (drift,)) == {"s1": "spare_drifted"}
    assert book(T0, view).unfit(T0, view, RULES, (replace(drift, ended_at=T0),)) == {}


@pytest.mark.parametrize(("unfit", "reason"), [
    ({}, None), ({"s1": "spare_unchecked"}, None), ({"s1": "spare_unchecked", "s2": "spare_unchecked"}, "spare_unchecked"),
    ({"s1": "spare_drifted", "s2": "spare_drifted"}, "spare_drifted"), ({"s1": "spare_failed", "s2": "spare_unchecked"}, "spare_failed"),
    ({"s1": "target_busy", "s2": "target_busy"}, "no_spare")])
def test_the_guard_counts_only_what_may_be_used(unfit, reason):
    """Where none is left the reason says why they are not used."""
    world = World(Limits(spare_floor=0), Ledger(), nodes("s1", "s2"), unfit=unfit)
    assert first_reason(ASK, world, (spares,)) == reason


def test_the_spare_floor_is_of_spares_that_may_be_used():
    """An unfit one is no reserve."""
    world = World(Limits(spare_floor=1), Ledger(), nodes("s1", "s2"), unfit={"s1": "spare_unchecked"})
    assert first_reason(ASK, world, (spares,)) == "spare_floor"


def test_what_somebody_else_holds_is_no_spare():
    """Another hand, or a reservation."""
    view = nodes("s1", s2=NodeView("s2", "spare", "ops"), s3=NodeView("s3", "spare", None, maintenance="window"), s4=NodeView("s4", "drained"))
    assert usable(view, {}) == ["s1"]


# --- which is tested ----------------------------------------------------------------------------------------------------
def due(view, at=T0 + HOUR, one=None, busy=(), wanted=0, rules=RULES, findings=()):
    known = one or book(T0, view)
    known.look(at, view)
    return known.due(at, view, rules, known.unfit(at, view, rules, findings), busy, wanted)


@pytest.mark.parametrize(("why", "view", "more", "node"), [
    ("the longest ago first", nodes("s2", s1=NodeView("s1", "spare", checked_at=T0 + 1)), {"at": T0 + 2 * HOUR}, "s2"),
    ("not before its time", nodes("s1", "s2"), {"at": T0 + HOUR - 1}, None),
    ("never the last one that is fit", nodes("s1"), {}, None),
    ("unless its age makes it unfit anyway", nodes("s1"), {"at": T0 + 3 * HOUR}, "s1"),
    ("nor one that a replacement has to take", nodes("s1", "s2"), {"wanted": 1}, None),
    ("nor one that is worked on", nodes("s1", "s2", "s3"), {"busy": ("s1",)}, "s2"),
    ("nor one of another hand", nodes("s2", "s3", s1=NodeView("s1", "spare", "ops")), {}, "s2"),
    ("nor in maintenance", nodes("s2", "s3", s1=NodeView("s1", "spare", maintenance="w")), {}, "s2"),
    ("nor one with a job on it", nodes("s2", "s3", s1=NodeView("s1", "spare", None, ("j",))), {}, "s2"),
    ("nor a node that is no spare", nodes("s2", "s3", a1=NodeView("a1", "drained", "greylag")), {}, "s2"),
    ("nothing without a schedule", nodes("s1", "s2"), {"rules": SpareRules()}, None),
    ("nor what drifted", nodes("s1", "s2", "s3"), {"findings": (finding(T0, "config_drift", Target("node", "s1")),)}, "s2"),
])
def test_one_spare_is_tested_in_turn(why, view, more, node):
    """The schedule, and what it leaves alone."""
    assert due(view, **more) == node, why


def test_only_one_spare_is_tested_at_a_time():
    """While a test is under way none is due, and the tested one is not counted."""
    view = nodes("s1", "s2", "s3")
    one = book(T0, view)
    one.begin(T0 + HOUR, "s1", RULES, "act")
    assert due(view, one=one) is None
    assert one.unfit(T0 + HOUR, view, RULES, ()) == {"s1": "target_busy"}


@pytest.mark.parametrize(("state", "reason", "unfit", "again"), [
    ("DONE", "no_fault_found", None, None), ("DONE", "done", None, None), ("FAILED", "diagnose_failed", "spare_failed", None),
    ("FAILED", "diagnose_inconclusive", None, "later"), ("REFUSED", "target_busy", None, "later")])
def test_the_end_of_a_test_is_remembered(state, reason, unfit, again):
    """Passed is checked; failed is not used and people are told; what could not be run is tried again after a while."""
    view, at = nodes("s1", "s2"), T0 + HOUR
    one = book(T0, view)
    action, _ = one.begin(at, "s1", RULES, "act")
    one.current.outcome = Outcome(action.id, state, reason)
    rows = one.close(at, "act")
    assert [(a.kind, a.args) for a, _ in rows] == ([("escalate", {"nodes": "s1"})] if unfit else [])
    assert one.unfit(at, view, RULES, ()).get("s1") == unfit
    if again:
        assert due(view, at + AGAIN_MS - 1, one, busy=("s2",)) is None
        assert due(view, at + AGAIN_MS, one, busy=("s2",)) == "s1"


def test_a_spare_that_failed_is_fit_again_once_the_world_says_that_it_passed():
    """It was repaired and checked outside."""
    view = nodes("s1", "s2")
    one = book(T0, view)
    action, _ = one.begin(T0, "s1", RULES, "act")
    one.current.outcome = Outcome(action.id, "FAILED", "diagnose_failed")
    one.close(T0, "act")
    view["s1"] = replace(view["s1"], checked_at=T0 + 1)
    assert one.unfit(T0 + 2, view, RULES, ()) == {}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["pass", "fail", "unread", "wait"]), max_size=12), st.integers(1, 4))
def test_one_fit_spare_is_always_left_alone(ends, count):
    """Whatever the tests say, a test never takes the last spare that may be used."""
    view, at = nodes(*(f"s{i}" for i in range(count))), T0
    one = book(at, view)
    for end in ends:
        at += HOUR
        one.look(at, view)
        unfit = one.unfit(at, view, RULES, ())
        node = one.due(at, view, RULES, unfit, (), 0)
        if node is None or end == "wait":
            continue
        assert node in unfit or len(usable(view, unfit)) >= 2
        action, _ = one.begin(at, node, RULES, "act")
        outcome = {"pass": ("DONE", "no_fault_found"), "fail": ("FAILED", "diagnose_failed"), "unread": ("FAILED", "diagnose_inconclusive")}[end]
        one.current.outcome = Outcome(action.id, *outcome)
        one.close(at, "act")
        again = SpareBook()
        again.load(one.dump())
        assert again.dump() == one.dump()


# --- in the engine --------------------------------------------------------------------------------------------------------
def owner(text=WITH, **world):
    one = Owner(policy(text), cluster(spares=2))
    one.world.lasts = {"diagnose": 60}
    for name, value in world.items():
        setattr(one.world, name, value)
    one.tick()
    one.at += HOUR
    return one


def checks(one):
    return [(a, o) for a, o in one.rows if is_check(a.incident)]


def test_spares_are_tested_one_after_another():
    """Written down before it is done, visible in the ledger, without an incident, and each once in its time."""
    one = owner()
    one.tick(20)
    assert [a.target.node for a in one.world.order] == ["s1", "s2"]
    assert [o.state for a, o in checks(one) if a.target.node == "s1"] == ["PENDING", "RUNNING", "DONE"]
    assert checks(one)[0][0].id == f"spare-s1-{checks(one)[0][0].at}/1/1"
    assert all(t == 0 for t in [len(one.engine.history.ledger), len(one.engine.history.tracks)])


@pytest.mark.parametrize("how", ["call", "file"])
def test_a_freeze_stops_the_tests(how):
    """None starts, and one that was written down is not sent."""
    one = owner()
    one.commit(one.decide())
    if how == "call":
        one.engine.freeze()
    one.freeze_file = how == "file"
    one.carry()
    one.at += 15_000
    one.tick(4)
    assert one.world.order == []


def test_a_policy_that_does_not_act_tests_nothing():
    """Observe and propose leave spares alone."""
    for mode in ("observe", "propose"):
        one = owner(WITH.replace("mode: act", f"mode: {mode}"))
        one.tick(4)
        assert one.world.order == []


def test_a_spare_that_was_taken_meanwhile_is_not_tested():
    """The world is read once more just before the command."""
    one = owner()
    one.commit(one.decide())
    one.world.states["s1"] = replace(one.world.states["s1"], state="in_service", jobs=("train",))
    one.carry()
    assert one.world.order == []
    one.at += 15_000
    one.tick()
    assert checks(one)[-1][1].state == "REFUSED"


def test_a_crash_during_a_test_repeats_nothing():
    """The world is asked about it; it is sent once, and its end is remembered."""
    one = owner()
    one.tick(2)
    one.die()
    one.tick(20)
    assert set(one.world.executed.values()) == {1}
    assert [a.target.node for a in one.world.order] == ["s1", "s2"]
    assert one.engine.history.spares.spares["s1"].passed_at is not None


def test_a_result_that_came_this_moment_counts_before_it_is_taken_in():
    """Between the end of a test and the tick that books it nobody takes the spare."""
    view = nodes("s1", "s2")
    one = book(T0, view)
    action, _ = one.begin(T0 + HOUR, "s1", RULES, "act")
    one.current.outcome = Outcome(action.id, "FAILED", "diagnose_failed")
    assert one.unfit(T0 + HOUR, view, RULES, ()) == {"s1": "target_busy"}
    one.close(T0 + HOUR, "act")
    assert one.unfit(T0 + HOUR, view, RULES, ()) == {"s1": "spare_failed"}


def test_a_replacement_leaves_unfit_spares_alone():
    """The command names those that must not be taken, and one under test is among them."""
    one = owner()
    one.world.fail["diagnose"] = "diagnose_failed"
    one.tick(6)
    one.world.fail.clear()
    one.open(incident())
    Fault(one, ("replace",)).until("resolved", 120)
    replaced = next(a for a in one.world.order if a.kind == "replace")
    assert "s1" in replaced.args["avoid"].split(",")
    told = [a for a, _ in checks(one) if a.kind == "escalate"]
    assert [a.target.node for a in told][:1] == ["s1"]


def test_a_spare_whose_test_began_during_the_attempt_is_not_taken():
    """The plan was made while it was fit; what counts is the moment of the command, also for one that is fit again by then."""
    text = WITH.replace("3600", "600").replace("  - do: [{drain: {wait_for: checkpoint}}, reset_gpu, diagnose, undrain, {resume_job: {mode: full}}]\n", "")
    one = Owner(policy(text.replace("thermal_throttle", "row_remap_failure")), cluster(spares=3))
    one.world.lasts = {"drain": 900, "diagnose": 1000}
    one.open(incident(fault="row_remap_failure"))
    for _ in range(90):
        one.facts.findings = [finding(one.at, "row_remap_failure")]
        one.tick()
    [drained], [replaced] = ([a for a in one.world.order if a.kind == kind] for kind in ("drain", "replace"))
    tested = [a for a in one.world.order if a.kind == "diagnose" and drained.at < a.at < replaced.at]
    assert [a.target.node for a in tested] == ["s1"]
    assert replaced.args["avoid"] == "s1"


@pytest.mark.parametrize(("broken", "unfit"), [(False, None), (True, "spare_failed")])
def test_a_test_that_was_given_up_goes_on_to_count(broken, unfit):
    """While the world still runs it the spare is under test, also after a restart; what comes out of it late counts."""
    one = owner()
    one.world.lasts = {"diagnose": 4000}
    one.world.fail = {"diagnose": "diagnose_failed"} if broken else {}
    for _ in range(120):
        one.tick()
        one.at += 15_000
        if any(o.reason == "deadline_exceeded" for _, o in checks(one)):
            break
    one.tick(2)
    one.die()
    one.tick(2)
    book = one.engine.history.spares
    view = one.world.nodes()
    assert book.unfit(one.at, view, RULES, ())["s1"] == "target_busy"
    one.at += 4_000_000
    one.tick()
    assert (book.unfit(one.at, view, SpareRules(), ()).get("s1"), book.overdue) == (unfit, {})
    one.tick()
    assert [a.target.node for a, _ in checks(one) if a.kind == "escalate"] == (["s1"] if broken else [])


def test_tests_of_spares_cost_no_budget_of_repairs():
    """They are no attempts: after a restart from rows alone no guard counts them."""
    one = owner()
    one.tick(20)
    fresh = Owner(policy(WITH), one.world)
    fresh.engine.load("", one.rows)
    assert len(fresh.engine.history.ledger) == 0
    assert fresh.engine.history.tracks == {}


@pytest.mark.parametrize("text", ["{diagnose_every_seconds: -1}", "{level: 5}", "{often: 3}", "{unchecked_max_seconds: .nan}"])
def test_wrong_rules_for_spares_are_refused(text):
    """In one sentence, with the key."""
    with pytest.raises(ConfigError, match="spares"):
        parse_policy(f"version: 1\nspares: {text}\n")
