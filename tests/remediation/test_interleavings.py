"""Whatever happens in whatever order: budgets hold, nothing is done twice or on old evidence, everything ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.protocols import NodeView
from core.reasons import ACTION_REASONS, INCIDENT_REASONS
from core.targets import CLOSED_STATES, INCIDENT_STATES
from core.types import Action, Incident, Target
from remediation.kinds import FINAL, KINDS, SHARED_SCOPES, on_node
from remediation.policy import Policy
from tests import needs
from tests.remediation.worlds import ALL_KINDS, T0, Facts, Owner, World, cluster, finding, incident, policy

EXAMPLES = 200 if needs.required() else 80
BUDGETS = (
    {"concurrent_nodes": 2, "pool_nodes": 2, "per_hour": 5, "per_job_per_day": 6, "spare_floor": 1, "cooldown_seconds": 300.0},
    {"concurrent_nodes": 1, "pool_nodes": 4, "per_hour": 9, "per_job_per_day": 9, "spare_floor": 0, "cooldown_seconds": 0.0},
    {"concurrent_nodes": 4, "pool_nodes": 1, "per_hour": 9, "per_job_per_day": 1, "spare_floor": 0, "cooldown_seconds": 3600.0},
    {"concurrent_nodes": 4, "pool_nodes": 4, "per_hour": 2, "per_job_per_day": 9, "spare_floor": 0, "cooldown_seconds": 0.0},
    {"concurrent_nodes": 4, "pool_nodes": 4, "per_hour": 9, "per_job_per_day": 9, "spare_floor": 1, "cooldown_seconds": 0.0},
)
REASONS = ACTION_REASONS.keys() | INCIDENT_REASONS.keys()
NODES = ("n1", "n2", "n3")
REFUSALS = ("target_busy", "other_hand", "not_supported", "no_spare", "frozen", "made up")


class Watched(World):
    """A world that checks each command at the moment when it arrives."""

    story: Story

    def _begin(self, action: Action) -> None:
        self.story.check(action)
        super()._begin(action)


class Story:
    """An owner, a world and the book, moved by random operations."""

    def __init__(self, rules: Policy, reload: bool = False) -> None:
        plain = cluster(4, 2)
        world = Watched(states=plain.states)
        world.story = self
        self.owner = Owner(rules, world, Facts())
        self.reload = reload
        self.shining: dict[str, bool] = {}

    # --- what happens -------------------------------------------------------------------------------------------------
    def do(self, op: tuple) -> None:
        getattr(self, op[0])(*op[1:])

    def appear(self, n: int, node: str, kind: str) -> None:
        """A new incident: of a GPU, of a whole job, or of a shared cause."""
        name = f"inc-{n}"
        if name in self.owner.incidents:
            return
        at = self.owner.at
        job = f"job-{n % 4}"  # two of them share one
        common = {"findings": (f"fnd-{n}",), "opened_at": at, "onset_at": at - 90_000, "jobs": (job,)}
        culprit = Target("gpu", node, str(n % 4), f"GPU-{node}-{n % 4}", job, n)
        one = {
            "gpu": incident(name, culprit=culprit, **common),
            "job": incident(name, "stalled_loss", "job", **common),
            "shared": incident(name, "packet_loss", "switch", Target("switch", device="leaf1"), **common),
            "unknown": replace(incident(name, **common), culprit=None),
        }[kind]
        self.owner.open(one)
        self.shining[name] = True

    def shine(self, n: int, on: bool) -> None:
        if f"inc-{n}" in self.shining:
            self.shining[f"inc-{n}"] = on

    def book(self, n: int, state: str) -> None:
        """The book closes, absorbs or reopens an incident, where that is its business."""
        one = self.owner.incidents.get(f"inc-{n}")
        if one is None:
            return
        if state == "reopen":
            if one.state == "resolved":
                self.owner.open(replace(one, state="open", reason="reopened", resolved_at=None))
        elif one.state not in CLOSED_STATES and (one.state not in ("acting", "verifying") or state == "merged"):
            self.owner.open(replace(one, state=state, reason="quiet" if state == "resolved" else "absorbed"))

    def world(self, what: str, value: object) -> None:
        world = self.owner.world
        if what == "down":
            world.down = bool(value)
        elif what == "deaf":
            world.deaf = bool(value)
        elif what == "lasts":
            world.lasts = dict.fromkeys(ALL_KINDS, float(value))

    def refuse(self, kind: str, reason: str | None, fail: bool) -> None:
        rows = self.owner.world.fail if fail else self.owner.world.refuse
        rows.pop(kind, None)
        if reason is not None:
            rows[kind] = reason

    def hand(self, node: str, takes: bool) -> None:
        """Another hand takes a node out, or gives it back."""
        states = self.owner.world.states
        if takes and states[node].held_by is None:
            states[node] = NodeView(node, "drained", "ada")
        elif not takes and states[node].held_by == "ada":
            states[node] = NodeView(node, "in_service")

    def person(self, n: int, yes: bool) -> None:
        decide = self.owner.engine.approve if yes else self.owner.engine.reject
        if self.owner.incidents.get(f"inc-{n}") is not None and self.owner.incidents[f"inc-{n}"].state == "proposed":
            try:
                decide(f"inc-{n}", "ada", self.owner.at)
            except KeyError:
                return

    def freeze(self, on: bool) -> None:
        self.owner.engine.freeze() if on else self.owner.engine.resume()

    def tick(self, times: int, dies: str = "") -> None:
        owner = self.owner
        for i in range(times):
            last = i == times - 1
            names = [n for n, on in self.shining.items() if on]
            # What shines no more stays open for a while, and is not renewed: evidence that grows old.
            old = [f for f in owner.facts.findings if f.id[4:] not in {n[4:] for n in names} and owner.at - f.updated_at < 600_000]
            owner.facts.findings = old + [
                finding(owner.at, owner.incidents[n].fault, owner.incidents[n].culprit, f"fnd-{n[4:]}") for n in names]
            step = owner.decide()
            if last and dies == "before commit":
                owner.die()
            else:
                owner.commit(step)
                if last and dies == "after commit":
                    owner.die()
                else:
                    owner.world.down = owner.world.down or (last and dies == "door shut")
                    owner.carry()
                    if last and dies == "after door":
                        owner.die()
            if self.reload:
                text = owner.engine.dump()
                owner.engine = owner._new()
                owner.engine.load(text)
            owner.at += 15_000

    # --- what must hold -----------------------------------------------------------------------------------------------
    def check(self, action: Action) -> None:
        owner, world, limits = self.owner, self.owner.world, self.owner.rules.limits
        one = owner.incidents[action.incident]
        assert owner.rules.mode != "observe"
        assert owner.rules.mode != "propose" or action.actor == "ada"
        assert not owner.engine.frozen
        assert any(a.id == action.id for a, _ in owner.rows), "not written before"
        assert one.scope not in SHARED_SCOPES
        assert one.culprit is not None or not on_node(action.kind)
        node, job = action.target.node, action.target.job
        for other in world.running():
            assert (other.target.node, other.target.job) != (node, job), "two on one target"
            assert node is None or other.target.node != node, "two on one node"
        if node is not None:
            assert world.states[node].held_by in (None, "greylag"), "another hand holds it"
        self._check_evidence(action)
        began: dict[tuple[str, int], int] = {}
        for a in [*world.order, action]:
            began.setdefault((a.incident, a.attempt), a.at)
        assert sum(owner.at - at < 3_600_000 for at in began.values()) <= limits.per_hour
        busy = {a.target.node for a in world.running() if a.target.node} | ({node} if node else set())
        assert len(busy) <= limits.concurrent_nodes
        out = {v.node for v in world.states.values() if v.held_by == "greylag" and v.state != "in_service"}
        assert len(out | busy) <= limits.pool_nodes
        if action.kind == "replace":
            assert sum(v.state == "spare" for v in world.states.values()) - 1 >= limits.spare_floor

        day = {(a.incident, a.attempt) for a in world.order if a.target.job == job} | {(action.incident, action.attempt)}
        assert job is None or len(day) <= limits.per_job_per_day
        self._check_cooldown(action, one)

    def _check_cooldown(self, action: Action, one: Incident) -> None:
        owner, rest = self.owner, self.owner.rules.limits.cooldown_seconds * 1000
        if any((a.incident, a.attempt) == (action.incident, action.attempt) for a in owner.world.order):
            return  # the attempt began before
        for other in owner.world.order:
            before = owner.incidents[other.incident]
            if other.incident != one.id and one.culprit and before.culprit and before.culprit.key == one.culprit.key:
                assert owner.at - other.at >= rest, "the part rests"

    def _check_evidence(self, action: Action) -> None:
        owner = self.owner
        done = [a for a in owner.world.order if (a.incident, a.attempt) == (action.incident, action.attempt)]
        failed = [o for a, o in owner.rows if a.incident == action.incident and a.attempt < action.attempt
                  and o.state in ("FAILED", "REFUSED") and o.reason not in ("frozen", "stale_evidence")]
        if done or failed:
            return  # the attempt goes on, or follows one that failed in mid-way
        names = owner.incidents[action.incident].findings
        assert any(f.id in names and owner.at - f.updated_at <= 135_000 for f in owner.facts.findings), "old evidence"

    def settle(self) -> None:
        """The world is well again and people are away: everything comes to its end."""
        world = self.owner.world
        world.down = world.deaf = False
        world.lasts, world.refuse, world.fail = {}, {}, {}
        self.owner.engine.resume()
        for _ in range(70):
            self.tick(1)
            self.owner.at += 45_000

    def check_end(self) -> None:
        owner = self.owner
        newest = {a.id: (a, o) for a, o in [*owner.rows, *owner.carried]}
        for action, outcome in newest.values():
            waits = outcome.reason == "awaiting_approval" and owner.incidents[action.incident].state in ("proposed", "holding")
            assert outcome.state in FINAL or waits, f"{action.id} never ended: {outcome}"
        assert {o.reason for _, o in owner.rows} <= REASONS
        assert {a.reason for a, _ in owner.rows} <= REASONS
        assert {i.reason for i in owner.incidents.values()} <= REASONS
        assert {i.state for i in owner.incidents.values()} <= set(INCIDENT_STATES)
        assert all(n == 1 for n in owner.world.executed.values()), "repeated"
        assert all(n == 1 for n in owner.world.arrived.values()), "sent twice"
        finals = [a.id for a, o in owner.rows if o.state in FINAL]
        assert len(finals) == len(set(finals)), "an action ended twice"
        for name, view in owner.world.states.items():
            if view.state == "drained" and view.held_by == "greylag":
                mine = [a for a, o in newest.values() if o.state == "DONE" and a.incident in {
                    x.incident for x in owner.world.order if x.target.node == name}]
                assert any(a.kind in ("replace", "escalate") for a in mine), f"{name} has no exit"


numbers = st.integers(1, 5)
reasons = st.none() | st.sampled_from(REFUSALS)
ops = st.one_of(
    st.tuples(st.just("tick"), st.integers(1, 6)),
    st.tuples(st.just("tick"), st.integers(1, 30)),
    st.tuples(st.just("tick"), st.integers(1, 3), st.sampled_from(["before commit", "after commit", "after door", "door shut"])),
    st.tuples(st.just("appear"), numbers, st.sampled_from(NODES), st.sampled_from(["gpu", "gpu", "gpu", "job", "shared", "unknown"])),
    st.tuples(st.just("shine"), numbers, st.booleans()),
    st.tuples(st.just("book"), numbers, st.sampled_from(["resolved", "merged", "reopen"])),
    st.tuples(st.just("world"), st.sampled_from(["down", "deaf"]), st.booleans()),
    st.tuples(st.just("world"), st.just("lasts"), st.sampled_from([0, 20, 100, 400, 2000])),
    st.tuples(st.just("refuse"), st.sampled_from(sorted(ALL_KINDS)), reasons, st.booleans()),
    st.tuples(st.just("hand"), st.sampled_from(NODES), st.booleans()),
    st.tuples(st.just("person"), numbers, st.booleans()),
    st.tuples(st.just("freeze"), st.booleans()),
)
stories = st.lists(ops, min_size=4, max_size=30)
modes = st.sampled_from(["act", "act", "act", "propose", "observe"])
CALM = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES, derandomize=True)


@CALM
@given(modes, st.sampled_from(BUDGETS), st.lists(st.tuples(numbers, st.sampled_from(NODES)), min_size=2, max_size=5, unique=True),
       st.sampled_from([0, 0, 100, 400]), stories)
def test_no_interleaving_breaks_a_promise(mode, limits, first, lasts, story):
    """Random events, delays, refusals, deaths and people: the promises hold at each command and at the end."""
    told = Story(replace(policy(pool_ratio=0.0, **limits), mode=mode))
    told.do(("world", "lasts", lasts))
    for one in first:
        told.do(("appear", *one, "gpu"))
    for op in story:
        told.do(op)
    told.settle()
    told.check_end()


@settings(CALM, max_examples=EXAMPLES // 5)
@given(modes, stories)
def test_dump_and_load_anywhere_change_nothing(mode, story):
    """An engine that is dumped and loaded after each tick decides what one that lives on decides."""
    calm = [op for op in story if not (op[0] == "tick" and len(op) == 3)]
    rows = []
    for reload in (False, True):
        told = Story(replace(policy(pool_ratio=0.0, **BUDGETS[0]), mode=mode), reload)
        told.do(("appear", 1, "n1", "gpu"))
        for op in calm:
            told.do(op)
        rows.append((told.owner.rows, told.owner.incidents, told.owner.world.order))
    assert rows[0] == rows[1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_a_subject_and_a_deadline(kind):
    """The table of kinds is complete and bounded."""
    assert KINDS[kind].subject in ("node", "gpu", "job", "people")
    assert 0 < KINDS[kind].deadline_seconds <= 3600
    assert T0
