"""Each guard: what holds an attempt back, with its reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocols import Checkpoint, NodeView
from core.reasons import ACTION_REASONS
from core.types import Target
from core.window import NicPlace, Place, Topology
from remediation.fabric import Fabric
from remediation.guards import (
    BEFORE_ATTEMPT,
    BEFORE_COMMAND,
    Ask,
    Save,
    World,
    first_reason,
    fresh_ids,
    rest_ms,
)
from remediation.ledger import Entry, Ledger
from remediation.policy import Limits
from tests.remediation.worlds import POLICY, T0, Fault, Owner, cluster, finding, incident, policy

HOUR = 3_600_000
DAY = 24 * HOUR
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


def rails(**groups):
    """Nodes by leaf, two NICs each: one of rail 0 on the leaf, one of rail 1 on the leaf's twin."""
    nics = [NicPlace(node, f"mlx5_{rail}", rail, leaf if rail == 0 else f"{leaf}-twin")
            for leaf, nodes in groups.items() for node in nodes.split() for rail in (0, 1)]
    return Fabric.of(Topology(nics={(n.node, n.device): n for n in nics}))


def racks(**groups):
    """Nodes by leaf, of which no NIC is known."""
    return Fabric.of(Topology({n: Place(n, leaf=leaf) for leaf, nodes in groups.items() for n in nodes.split()}))


def out(*nodes, by="ada"):
    return {n: NodeView(n, "drained", by) for n in nodes}


def saved(ago_seconds, interval=300.0, progress_ago=None, bad_ago=None, steps=(None, None)):
    """A job's newest checkpoint, so many seconds ago."""
    progress = None if progress_ago is None else T0 - progress_ago * 1000
    bad = None if bad_ago is None else T0 - bad_ago * 1000
    at = None if ago_seconds is None else T0 - ago_seconds * 1000
    return {"train": Save(Checkpoint(at, 100.0, interval, progress, *steps), bad)}


WIDE = replace(LIMITS, per_leaf=2, pool_nodes=9, concurrent_nodes=9, per_node_per_week=3, per_hour=99)
ALL = "n1 n2 n3 n4 n5 n6"
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
    ("the spare is in maintenance", world(nodes={"s1": NodeView("s1", "spare", None, (), "upgrade")}), "no_spare"),
    ("a pool of three works", World(LIMITS, Ledger(), {n: NodeView(n, "in_service") for n in ("n1", "n2", "n3")} | held("s1", "spare", None)),
     None),
    ("a pool of three, one out", World(LIMITS, Ledger(), {n: NodeView(n, "in_service") for n in ("n1", "n2", "s1")} | held("n3")),
     "limit_pool"),
    ("reserved", world(nodes={"n1": NodeView("n1", "in_service", None, (), "bios-wave")}), "maintenance"),
    ("planned drain by a person", world(nodes={"n1": NodeView("n1", "draining", "ada", (), "bios-wave")}), "maintenance"),
    ("another node is reserved", world(nodes={"n2": NodeView("n2", "in_service", None, (), "bios-wave")}), None),
    ("the job runs on a node that a person holds", world(nodes=held("n2", "draining", "ada"), job_nodes={"train": ["n1", "n2"]}),
     "other_hand"),
    ("another job does", world(nodes=held("n2", "draining", "ada"), job_nodes={"other": ["n2"]}), None),
    ("the job runs on a node that we hold", world(nodes=held("n2"), limits=WIDE, job_nodes={"train": ["n1", "n2"]}), None),
    ("not its turn", world(too_soon=True), "paced"),
    ("two behind the leaf are out", world(nodes=out("n2", "n3"), limits=WIDE, fabric=rails(a=ALL)), "limit_per_leaf"),
    ("one behind the leaf is out", world(nodes=out("n2"), limits=WIDE, fabric=rails(a=ALL)), None),
    ("one is out and one is worked on", world(nodes=out("n2"), busy_nodes=frozenset({"n3"}), limits=WIDE, fabric=rails(a=ALL)),
     "limit_per_leaf"),
    ("two behind another leaf are out", world(nodes=out("n4", "n5"), limits=WIDE, fabric=rails(a="n1 n2 n3", b="n4 n5 n6")), None),
    ("only the node's leaf is known", world(nodes=out("n2", "n3"), limits=WIDE, fabric=racks(a=ALL)), "limit_per_leaf"),
    ("it is out itself already", world(nodes=out("n2", "n3") | held("n1"), limits=WIDE, fabric=racks(a=ALL)), None),
    ("a spare behind the leaf is not out", world(limits=WIDE, nodes={"n2": NodeView("n2", "spare"), "n3": NodeView("n3", "spare")},
                                               fabric=racks(a=ALL)), None),
    ("no topology is known", world(nodes=out("n2", "n3", "n4"), limits=WIDE), None),
    ("the last of its rail", world(nodes=out("n2"), limits=WIDE, fabric=rails(a="n1 n2", b="n3 n4")), "last_of_rail"),
    ("the other one is worked on", world(busy_nodes=frozenset({"n2"}), limits=WIDE, fabric=rails(a="n1 n2", b="n3 n4")),
     "last_of_rail"),
    ("the other one works", world(limits=WIDE, fabric=rails(a="n1 n2", b="n3 n4")), None),
    ("beside a spare alone there is no group", world(nodes={"n2": NodeView("n2", "spare")}, limits=WIDE, fabric=rails(a="n1 n2")), None),
    ("a leaf of one node is no group", world(limits=WIDE, fabric=rails(a="n1", b="n2 n3")), None),
    ("it is out itself, and the last", world(nodes=out("n2") | held("n1"), limits=WIDE, fabric=rails(a="n1 n2")), None),
    ("three in the week", world([entry(f"i{i}", nodes=("n1",), ago=i * DAY + HOUR) for i in range(3)], limits=WIDE),
     "too_many_remediations"),
    ("own attempts count as well", world([entry("inc-1", i, nodes=("n1",), ago=i * 60_000) for i in (1, 2, 3)], limits=WIDE),
     "too_many_remediations"),
    ("three, one of them longer ago", world([entry(f"i{i}", nodes=("n1",), ago=i * 3 * DAY + HOUR * 2 * i) for i in (1, 2, 3)],
                                          limits=WIDE), None),
    ("three on another node", world([entry(f"i{i}", nodes=("n2",), ago=i * DAY + HOUR) for i in range(3)], limits=WIDE), None),
    ("acted on twice lately", world([entry("a", part="gpu:1", ago=HOUR), entry("b", part="gpu:1", ago=2 * HOUR)]), "damped"),
    ("twice, long apart", world([entry("a", part="gpu:1", ago=HOUR * 5 // 4), entry("b", part="gpu:1", ago=6 * DAY)]), None),
    ("twice, and damping is off", world([entry("a", part="gpu:1", ago=HOUR), entry("b", part="gpu:1", ago=2 * HOUR)],
                                       limits=replace(LIMITS, damping_half_life_seconds=0)), None),
]
ASKS = [
    ("silenced", replace(ASK, silenced=True), world(), "silenced"),
    ("an old checkpoint", replace(ASK, stops=("train",)), world(saves=saved(601)), "checkpoint_old"),
    ("one of just twice the interval", replace(ASK, stops=("train",)), world(saves=saved(600)), None),
    ("slow steps, not late saves", replace(ASK, stops=("train",)), world(saves=saved(9000, steps=(100.0, 150.0))), None),
    ("late in steps as well", replace(ASK, stops=("train",)), world(saves=saved(9000, steps=(100.0, 201.0))), "checkpoint_old"),
    ("nothing is stopped", ASK, world(saves=saved(9000)), None),
    ("a person said yes", replace(ASK, stops=("train",), approved=True), world(saves=saved(9000)), None),
    ("no interval is known", replace(ASK, stops=("train",)), world(saves=saved(9000, None)), None),
    ("no save was seen", replace(ASK, stops=("train",)), world(saves=saved(None)), None),
    ("the job does not run", replace(ASK, stops=("train",)), world(), None),
    ("it has stood still since", replace(ASK, stops=("train",)), world(saves=saved(9000, progress_ago=8500)), None),
    ("it stood still too late", replace(ASK, stops=("train",)), world(saves=saved(9000, progress_ago=8000)), "checkpoint_old"),
    ("its loss has been no number since", replace(ASK, stops=("train",)), world(saves=saved(9000, bad_ago=8500)), None),
]


@pytest.mark.parametrize(("name", "ask", "state", "reason"), ASKS, ids=[c[0] for c in ASKS])
def test_what_an_attempt_asks_for_can_hold_it_back(name, ask, state, reason):
    """Silences and checkpoints, one case for each way in which they hold or let go."""
    assert first_reason(ask, state) == reason
    assert reason is None or reason in ACTION_REASONS


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
    ("undrain", NodeView("n1", "drained", "greylag", (), "bios-wave"), "maintenance"),
    ("reset_gpu", NodeView("n1", "drained", "ada"), "other_hand"),
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


@pytest.mark.parametrize(("fault", "reason"), [
    pytest.param("gpu_lost", "target_busy", id="a part that kills the job"),
    pytest.param("thermal_throttle", "being_weighed", id="a slow part, which shows nothing while the job stands"),
])
def test_two_incidents_of_one_job_take_turns(fault, reason):
    """The second waits until the first attempt has done its steps."""
    owner = Owner(policy(POLICY.replace("thermal_throttle", fault)), cluster())
    other = Target("gpu", "n2", "0", "GPU-2", "train", 16)
    owner.open(incident(fault=fault), incident("inc-2", fault=fault, culprit=other, findings=("fnd-2",), opened_at=T0 + 1))
    owner.world.lasts["drain"] = 60
    owner.facts.findings = [finding(owner.at, fault), finding(owner.at, fault, target=other, name="fnd-2")]
    owner.facts.steps = [(0, 2.0), (T0 + 1, 3.0)]
    owner.tick(1)
    assert owner.state("inc-1") == ("acting", "action_planned")
    assert owner.state("inc-2") == ("holding", reason)


def test_a_world_that_does_not_answer_holds():
    """No view, no action: unreachable."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    owner.world.down = True
    Fault(owner, ()).run(1)
    assert owner.state() == ("holding", "unreachable")


@pytest.mark.parametrize(("view", "kind", "reason"), [
    (NodeView("n1", "in_service", None), "reset_gpu", "other_hand"),
    (NodeView("n1", "spare", None), "reboot", "other_hand"),
    (NodeView("n1", "drained", "greylag"), "reset_gpu", None),
    (NodeView("n1", "down", None), "diagnose", None),
    (NodeView("n1", "in_service", None), "undrain", None),
])
def test_a_node_that_we_took_out_and_another_hand_gave_back_is_left_alone(view, kind, reason):
    """In the middle of an attempt: what is in service again is somebody else's decision."""
    ask = replace(ASK, kinds=frozenset({kind}), jobs=(), ours=True)
    assert first_reason(ask, World(Limits(), Ledger(), {"n1": view}), BEFORE_COMMAND) == reason


@pytest.mark.parametrize(("hours_ago", "rest_hours"), [
    ([1], 1), ([1, 1], 2), ([1, 1, 1], 4), ([1, 25], 2**0.5), ([1, 25, 49], 2**0.75), ([0] * 60, 168),
])
def test_rest_doubles_with_each_attempt_and_decays(hours_ago, rest_hours):
    """Half a day's worth each day: a part that was quiet for long is as good as new; never more than a week."""
    times = [T0 - h * HOUR for h in hours_ago]
    assert rest_ms(times, LIMITS) == pytest.approx(rest_hours * HOUR, rel=1e-6)


views = st.builds(
    NodeView, st.just(""), st.sampled_from(["in_service"] * 3 + ["spare", "drained", "draining", "down", "rebooting", "unknown"]),
    st.sampled_from([None, None, None, "greylag", "ada"]), st.just(()), st.sampled_from([None, None, None, "bios-wave"]))


@settings(max_examples=120, deadline=None)
@given(st.one_of(st.just(NodeView("", "in_service")), st.just(NodeView("", "in_service", None, (), "bios-wave")), views),
       st.lists(views, min_size=1, max_size=5), st.integers(1, 2),
       st.integers(0, 3), st.integers(0, 4), st.sets(st.integers(1, 6), max_size=2))
def test_what_is_let_go_keeps_every_promise(first, others, leaves, per_leaf, pool_nodes, busy):
    """Whatever the world looks like: counted in another way than the guards do, no promise is broken by an attempt on n1."""
    nodes = {f"n{i}": replace(view, node=f"n{i}") for i, view in enumerate([first, *others], 1)}
    leaf_of = {f"n{i}": f"leaf-{i % leaves}" for i in range(1, len(nodes) + 1)}
    working = frozenset(f"n{i}" for i in busy) & nodes.keys()
    limits = replace(LIMITS, concurrent_nodes=9, per_leaf=per_leaf, pool_nodes=pool_nodes)
    state = World(limits, Ledger(), nodes, working, fabric=Fabric.of(Topology({n: Place(n, leaf=leaf_of[n]) for n in nodes})))
    if first_reason(replace(ASK, kinds=frozenset({"drain"})), state) is not None:
        return
    one = nodes["n1"]
    assert (one.held_by in (None, "greylag"), one.maintenance, "n1" in working) == (True, None, False)
    gone = {n for n, v in nodes.items() if n == "n1" or n in working or (v.held_by == "greylag" and v.state not in ("in_service", "spare"))}
    assert len(gone) <= pool_nodes
    around = [n for n in nodes if leaf_of[n] == leaf_of["n1"]]
    if one.state == "in_service" and len(around) > 1:
        assert sum(n == "n1" or n in working or nodes[n].state not in ("in_service", "spare") for n in around) <= per_leaf
        if one.held_by is None:
            assert any(nodes[n].state == "in_service" and nodes[n].held_by is None and n not in working for n in around if n != "n1")


def test_the_docs_name_every_guard():
    """What can hold an attempt back is written down, with what lifts it."""
    text = (Path(__file__).parents[2] / "docs" / "guards.md").read_text()
    reasons = {"silenced", "target_busy", "node_unknown", "other_hand", "maintenance", "too_many_remediations", "paced", "cooldown",
               "damped", "limit_concurrent_nodes", "limit_pool", "limit_per_leaf", "last_of_rail", "limit_per_hour",
               "limit_per_job_per_day", "no_spare", "spare_floor", "checkpoint_old", "software_crash_loop", "approval_expired",
               "awaiting_approval", "frozen", "unreachable", "stale_evidence", "shared_cause", "unknown_culprit"}
    assert len(BEFORE_ATTEMPT) == 17
    assert reasons <= set(ACTION_REASONS)
    assert [r for r in sorted(reasons) if f"`{r}`" not in text] == []
