"""Each guard: what holds an attempt back, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocols import NodeView
from core.reasons import ACTION_REASONS
from core.types import Target
from remediation.guards import BEFORE_ATTEMPT, BEFORE_COMMAND, Ask, World, first_reason, fresh_ids
from remediation.ledger import Entry, Ledger
from remediation.policy import Limits
from tests.remediation.worlds import T0, Fault, Owner, cluster, finding, incident, policy

HOUR = 3_600_000
ASK = Ask(T0, "inc-1", "gpu:1", ("n1",), ("train",), frozenset({"drain", "replace", "resume_job"}))
LIMITS = Limits(concurrent_nodes=1, pool_ratio=0.0, pool_nodes=1, per_hour=2, per_job_per_day=2, spare_floor=0,
                cooldown_seconds=3600)


def world(ledger=(), limits=LIMITS, nodes=None, **more):
    book = Ledger()
    for entry in ledger:
        book.note(entry)
    base = dict(cluster(6, 1).states)
    return World(limits, book, base | (nodes or {}), **more)


def entry(name="inc-9", attempt=1, part="gpu:9", nodes=(), jobs=(), ago=60_000):
    return Entry(name, attempt, part, nodes, jobs, T0 - ago, T0 - ago)


def held(node, state="drained", by="greylag"):
    return {node: NodeView(node, state, by)}


CASES = [
    ("free", world(), None),
    ("node busy", world(busy_nodes=frozenset({"n1"})), "target_busy"),
    ("job busy", world(busy_jobs=frozenset({"train"})), "target_busy"),
    ("another node busy", world(busy_nodes=frozenset({"n2"})), "limit_concurrent_nodes"),
    ("node not known", World(LIMITS, Ledger(), {}), "node_unknown"),
    ("held by a person", world(nodes=held("n1", "drained", "ada")), "other_hand"),
    ("in service, held by another", world(nodes=held("n1", "in_service", "nhc")), "other_hand"),
    ("held by us", world(nodes=held("n1")), None),
    ("boots", world(nodes=held("n1", "rebooting", None)), "target_busy"),
    ("drains by no hand of ours", world(nodes=held("n1", "draining", None)), "target_busy"),
    ("drains by our hand", world(nodes=held("n1", "draining")), None),
    ("pool full", world(nodes=held("n2")), "limit_pool"),
    ("out by another hand costs no budget", world(nodes=held("n2", "drained", "ada")), None),
    ("larger pool by ratio", world(nodes=held("n2"), limits=replace(LIMITS, pool_ratio=0.34)), None),
    ("pool forbids", world(limits=replace(LIMITS, pool_nodes=0)), "limit_pool"),
    ("two within the hour", world([entry("a"), entry("b")]), "limit_per_hour"),
    ("two longer ago", world([entry("a", ago=HOUR), entry("b", ago=HOUR + 1)]), None),
    ("two on the job today", world([entry("a", jobs=("train",), ago=2 * HOUR), entry("b", jobs=("train",), ago=23 * HOUR)]),
     "limit_per_job_per_day"),
    ("two on another job", world([entry("a", jobs=("x",), ago=2 * HOUR), entry("b", jobs=("x",), ago=3 * HOUR)]), None),
    ("part rests", world([entry(part="gpu:1", ago=HOUR - 1)]), "cooldown"),
    ("part has rested", world([entry(part="gpu:1", ago=HOUR)]), None),
    ("own attempt before", world([entry("inc-1", part="gpu:1")]), None),
    ("spare floor", world(limits=replace(LIMITS, spare_floor=1)), "spare_floor"),
    ("no spare", world(nodes=held("s1", "in_service", None)), "no_spare"),
    ("the spare is promised", world(spares_promised=1), "no_spare"),
    ("the spare is another's", world(nodes=held("s1", "spare", "ada")), "no_spare"),
]


@pytest.mark.parametrize(("name", "state", "reason"), CASES, ids=[c[0] for c in CASES])
def test_the_first_guard_that_holds_names_its_reason(name, state, reason):
    """One case for each way in which a guard holds or lets go."""
    assert first_reason(ASK, state) == reason
    assert reason is None or reason in ACTION_REASONS


def test_job_steps_need_no_node():
    """Without a node the guards of nodes are silent; job and hour still count."""
    ask = replace(ASK, nodes=(), kinds=frozenset({"resume_job"}))
    assert first_reason(ask, world(busy_nodes=frozenset({"n2"}), limits=replace(LIMITS, pool_nodes=0))) is None
    assert first_reason(ask, world(limits=replace(LIMITS, per_hour=0))) == "limit_per_hour"


@pytest.mark.parametrize(("kind", "view", "reason"), [
    ("undrain", NodeView("n1", "drained", "greylag"), None),
    ("undrain", NodeView("n1", "drained", None), "other_hand"),
    ("undrain", NodeView("n1", "in_service", None), None),
    ("reboot", NodeView("n1", "down", "nhc"), "other_hand"),
    ("reboot", NodeView("n1", "provisioning", None), "target_busy"),
])
def test_before_each_command_the_world_is_read_again(kind, view, reason):
    """Only what we took out is given back, and nothing is done to what somebody else holds."""
    ask = replace(ASK, kinds=frozenset({kind}))
    assert first_reason(ask, World(Limits(), Ledger(), {"n1": view}), BEFORE_COMMAND) == reason


@pytest.mark.parametrize(("row", "expected"), [
    (finding(T0), True),
    (finding(T0 - 120_000), True),
    (finding(T0 - 120_001), False),
    (finding(T0, name="fnd-2"), False),
    (replace(finding(T0), ended_at=T0), False),
])
def test_fresh_evidence_is_an_open_finding_renewed_lately(row, expected):
    """Two minutes, of the incident's own findings."""
    assert (not fresh_ids(T0, [row]).isdisjoint(incident().findings)) is expected


@pytest.mark.parametrize("limits", [{"concurrent_nodes": 0}, {"pool_nodes": 0, "pool_ratio": 0.0}, {"per_hour": 0},
                                    {"per_job_per_day": 0}, {"spare_floor": 2}])
def test_the_engine_holds_with_the_guards_reason(limits):
    """A budget of nothing: the incident is holding, and the world hears nothing."""
    rules = policy(**limits)
    first = replace(rules.rules[0], attempts=rules.rules[0].attempts[1:])
    owner = Owner(replace(rules, rules=(first,)), cluster(6, 2))
    owner.open(incident())
    Fault(owner, ()).run(5)
    assert owner.incidents["inc-1"].state == "holding"
    assert owner.world.known == {}


def test_what_is_held_goes_on_when_the_reason_passes():
    """A node that a person gives back is repaired at once."""
    owner = Owner(policy(), cluster())
    owner.world.states["n1"] = NodeView("n1", "drained", "ada")
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    fault.run(3)
    assert owner.state() == ("holding", "other_hand")
    owner.world.states["n1"] = NodeView("n1", "in_service")
    fault.until("resolved")


def test_two_incidents_of_one_job_take_turns():
    """The second waits until the first attempt has done its steps."""
    owner = Owner(policy(), cluster())
    other = Target("gpu", "n2", "0", "GPU-2", "train", 16)
    owner.open(incident(), incident("inc-2", culprit=other, findings=("fnd-2",), opened_at=T0 + 1))
    owner.world.lasts["drain"] = 60
    owner.facts.findings = [finding(owner.at), finding(owner.at, target=other, name="fnd-2")]
    owner.tick(1)
    assert owner.state("inc-1") == ("acting", "action_planned")
    assert owner.state("inc-2") == ("holding", "target_busy")


def test_a_world_that_does_not_answer_holds():
    """No view, no action: unreachable."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    owner.world.down = True
    Fault(owner, ()).run(1)
    assert owner.state() == ("holding", "unreachable")


def test_all_guards_are_asked():
    """The list of guards is the one that the docs name."""
    assert len(BEFORE_ATTEMPT) == 10
