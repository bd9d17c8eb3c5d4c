"""Random stories of a cluster and its Greylag, and what must hold in each of them at every command and at the end.

A story is a seed: `tell(seed)` draws its policy, its world and what happens, and runs it. `shorten` drops what a failure does
not need. The ops are tuples, so that a story can be printed and told again.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from core.protocols import Checkpoint, NodeView
from core.reasons import ACTION_REASONS, INCIDENT_REASONS
from core.targets import CLOSED_STATES, INCIDENT_STATES
from core.types import Action, Incident, JobState, Outcome, Target
from core.window import Place, Topology
from remediation.engine import Site
from remediation.kinds import FINAL, SHARED_SCOPES, on_node
from remediation.ledger import Entry
from remediation.policy import Policy, SpareRules
from remediation.spares import is_check
from tests.remediation.late import Late, Op, put_in
from tests.remediation.worlds import ALL_KINDS, T0, Facts, Owner, World, cluster, finding, incident, policy

HOUR, DAY, WEEK = 3_600_000, 86_400_000, 604_800_000
BUDGETS = (
    {"concurrent_nodes": 2, "pool_nodes": 2, "per_hour": 5, "per_job_per_day": 6, "spare_floor": 1, "cooldown_seconds": 300.0},
    {"concurrent_nodes": 1, "pool_nodes": 4, "per_hour": 9, "per_job_per_day": 9, "spare_floor": 0, "cooldown_seconds": 0.0},
    {"concurrent_nodes": 4, "pool_nodes": 1, "per_hour": 9, "per_job_per_day": 1, "spare_floor": 0, "cooldown_seconds": 3600.0},
    {"concurrent_nodes": 4, "pool_nodes": 4, "per_hour": 2, "per_job_per_day": 9, "spare_floor": 0, "cooldown_seconds": 0.0},
    {"concurrent_nodes": 4, "pool_nodes": 4, "per_hour": 9, "per_job_per_day": 9, "spare_floor": 1, "cooldown_seconds": 0.0,
     "per_leaf": 1},
    {"concurrent_nodes": 4, "pool_nodes": 4, "per_hour": 9, "per_job_per_day": 9, "spare_floor": 0, "cooldown_seconds": 60.0,
     "per_leaf": 4, "per_node_per_week": 1, "release_seconds": 300.0, "approval_seconds": 300.0},
)
REASONS = ACTION_REASONS.keys() | INCIDENT_REASONS.keys()
NODES = ("n1", "n2", "n3")
KINDS = tuple(sorted(ALL_KINDS))
REFUSALS = (None, None, "target_busy", "other_hand", "not_supported", "no_spare", "frozen", "made up")
NOT_TRIED = ("frozen", "stale_evidence", "silenced", "not_sent", "unreachable")  # such an attempt was no attempt
DEATHS = ("before commit", "after commit", "after door", "door shut", "frozen in between")
# Three nodes behind one leaf, and one alone behind another: the last of three must go on.
TOPOLOGY = Topology(places={f"n{i}": Place(f"n{i}", leaf="leaf1" if i < 4 else "leaf2") for i in range(1, 5)})


RESET = ("drain", "reset_gpu", "diagnose", "undrain", "resume_job")


@cache
def rules_of(budget: int, mode: str, tests: bool = False) -> Policy:
    """The policy of the small worlds with one of the budgets. tests: its spares are diagnosed on a schedule."""
    found = replace(policy(pool_ratio=0.0, damping_half_life_seconds=0.0, **BUDGETS[budget]), mode=mode)
    return replace(found, spares=SpareRules(600.0, 0.0, 1)) if tests else found


class Watched(World):
    """A world that checks each command at the moment when it arrives. taken: the spare that a replacement has chosen, by
    action; broken: spares whose tests fail."""

    story: Story

    def submit(self, action: Action) -> Outcome:
        return self.story.told(super().submit(action), self.known)

    def poll(self, action_id: str) -> Outcome:
        return self.story.told(super().poll(action_id), self.known)

    def _begin(self, action: Action) -> None:
        self.story.check(action)
        if action.kind == "replace" and action.kind not in self.refuse:
            spare = self.story.choose(action)
            if spare is None:
                self.known[action.id] = (action, Outcome(action.id, "REFUSED", "no_spare"), self.now)
                return
            self.taken[action.id] = spare
        super()._begin(action)

    def _now(self, action_id: str) -> Outcome:
        action, before, began = self.known[action_id]
        outcome = super()._now(action_id)
        if before.state == "RUNNING" and outcome.state == "DONE" and action.kind == "diagnose" and action.target.node in self.broken:
            outcome = replace(outcome, state="FAILED", reason="diagnose_failed")
            self.known[action_id] = (action, outcome, began)
        return outcome

    def _effect(self, action: Action) -> None:
        if action.kind != "replace":
            super()._effect(action)
            return
        node, spare = action.target.node or "", self.taken[action.id]
        self.states[node] = replace(self.states[node], state="drained", held_by="greylag")
        self.states[spare] = replace(self.states[spare], state="in_service")


class Story(Late):
    """An owner, a world and the book, moved by operations."""

    def __init__(self, rules: Policy, reload: bool = False) -> None:
        super().__init__()
        world = Watched(states=cluster(4, 3 if rules.spares.diagnose_every_seconds > 0 else 2).states)
        world.story, world.taken, world.broken = self, {}, set()
        self.owner = Owner(rules, world, Facts())
        self.owner.site = Site(TOPOLOGY, lambda one: one.id in self.silenced)
        self.reload = reload
        self.shining: dict[str, bool] = {}
        self.silenced: set[str] = set()
        self.thawed_at: int | None = None
        self.was_frozen = False
        self.begun: dict[tuple[str, int], tuple[int, Target | None]] = {}
        self.lagging = 0
        self.tests = 0  # of spares
        self.costs: dict[str, float] = {}  # GPU-hours an hour, by incident
        self.sizes: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}
        self.doomed = False  # the next tick dies before it commits: this one's commit is what it starts from

    def do(self, op: Op) -> None:
        """One thing happens."""
        getattr(self, op[0])(*op[1:])

    # --- what happens -------------------------------------------------------------------------------------------------
    def appear(self, n: int, node: str, kind: str) -> None:
        """A new incident: of a GPU, of a whole job, of a shared cause, or of nobody knows what."""
        name = f"inc-{n}"
        if name in self.owner.incidents:
            return
        at, job = self.owner.at, f"job-{n % 4}"  # two of them share one
        hurt = tuple(Target("gpu", other, "0", job=job) for other in NODES if other != node)
        common = {"findings": (f"fnd-{n}",), "opened_at": at, "onset_at": at - 90_000, "updated_at": at, "jobs": (job,), "victims": hurt}
        culprit = Target("gpu", node, str(n % 2), f"GPU-{node}-{n % 2}", job, n)
        if kind == "gpu":
            one = incident(name, culprit=culprit, **common)
        elif kind == "job":
            one = incident(name, "stalled_loss", "job", **common)
        elif kind == "shared":
            one = incident(name, "packet_loss", "switch", Target("switch", device="leaf1"), **common)
        elif kind == "rack":
            one = incident(name, "thermal_throttle", "rack", Target("rack", device="r1"), **common)
        else:
            one = replace(incident(name, **common), culprit=None)
        self.owner.open(one)
        self.shining[name] = True

    def shine(self, n: int, on: bool) -> None:
        """The fault shows, or does not."""
        if f"inc-{n}" in self.shining:
            self.shining[f"inc-{n}"] = on

    def lag(self, ticks: int) -> None:
        """Findings are this much older than they should be: the telemetry is late."""
        self.lagging = ticks * 15_000

    def move(self, n: int, node: str) -> None:
        """The evidence changed: the incident names another culprit."""
        one = self.owner.incidents.get(f"inc-{n}")
        if one is not None and one.culprit is not None and one.scope == "device":
            self.owner.open(replace(one, culprit=replace(one.culprit, node=node, id=f"GPU-{node}-{n % 2}"), updated_at=self.owner.at))

    def book(self, n: int, state: str) -> None:
        """The book closes, absorbs or reopens an incident, where that is its business."""
        one = self.owner.incidents.get(f"inc-{n}")
        if one is None:
            return
        if state == "reopen":
            if one.state == "resolved":
                self.owner.open(replace(one, state="open", reason="reopened", resolved_at=None, updated_at=self.owner.at))
        elif one.state not in CLOSED_STATES and (one.state not in ("acting", "verifying") or state == "merged"):
            self.owner.open(replace(one, state=state, reason="quiet" if state == "resolved" else "absorbed", updated_at=self.owner.at))

    def world(self, what: str, value: object) -> None:
        """The world does not answer, loses its answers, or takes its time."""
        world = self.owner.world
        if what == "down":
            world.down = bool(value)
        elif what == "deaf":
            world.deaf = bool(value)
        else:
            world.lasts = dict.fromkeys(ALL_KINDS, float(value))

    def refuse(self, kind: str, reason: str | None, fail: bool) -> None:
        """The world refuses a kind, or fails at it."""
        rows = self.owner.world.fail if fail else self.owner.world.refuse
        rows.pop(kind, None)
        if reason is not None:
            rows[kind] = reason

    def hand(self, node: str, what: str) -> None:
        """Another hand takes a node out, gives it back, gives back one of ours, or plans maintenance."""
        states = self.owner.world.states
        view = states[node]
        if what == "takes" and view.held_by is None:
            states[node] = NodeView(node, "drained", "ada", maintenance=view.maintenance)
        elif what == "returns" and view.held_by == "ada":
            states[node] = NodeView(node, "in_service", maintenance=view.maintenance)
        elif what == "returns ours" and view.held_by == "greylag":
            states[node] = replace(view, state="in_service", held_by=None)
        elif what in ("plans", "is done"):
            states[node] = replace(view, maintenance="kernel update" if what == "plans" else None)

    def person(self, n: int, what: str) -> None:
        """A person approves, rejects, silences or listens again."""
        name = f"inc-{n}"
        if what in ("silence", "listen"):
            (self.silenced.add if what == "silence" else self.silenced.discard)(name)
            return
        one = self.owner.incidents.get(name)
        if one is not None and one.state == "proposed":
            try:
                (self.owner.engine.approve if what == "yes" else self.owner.engine.reject)(name, "ada", self.owner.at)
            except KeyError:
                return

    def freeze(self, on: bool, by_file: bool) -> None:
        """By call or by file."""
        if by_file:
            self.owner.freeze_file = on
        elif on:
            self.owner.freeze()
        else:
            self.owner.resume()

    def job(self, n: int, what: str) -> None:
        """A job ends, waits in a queue, shrinks, or trains as before."""
        facts, name = self.owner.facts, f"job-{n % 4}"
        facts.jobs[name] = JobState(name, "done" if what == "ends" else "train", *self.sizes.get(name, ()))
        facts.heard = [(0, 8), (self.owner.at, {"queues": 0, "shrinks": 6}.get(what, 8))]

    def save(self, n: int, minutes: int) -> None:
        """A job's newest checkpoint is so many minutes old, of one that saves every ten."""
        at = self.owner.at
        self.owner.facts.saves[f"job-{n % 4}"] = Checkpoint(at - minutes * 60_000, 100.0, 600.0, at)

    def cost(self, n: int, gpus: float, size: int) -> None:
        """What an incident costs becomes known: so many of its job's GPUs do nothing."""
        name = f"job-{n % 4}"
        self.costs[f"inc-{n}"] = gpus
        self.sizes[name] = (NODES, tuple(range(size)))
        if self.owner.facts.jobs.get(name, JobState(name, "train")).running:
            self.owner.facts.jobs[name] = JobState(name, "train", *self.sizes[name])

    def past(self, failed: int) -> None:
        """The ledger remembers that a reset seldom cured this fault."""
        engine = self.owner.engine
        for i in range(failed):
            at = T0 - 20 * DAY + i
            engine.history.ledger.note(Entry(f"old-{i}", 1, "gpu:old", (), (), at, at, "thermal_throttle", RESET, "failed"))
        self.owner.saved = (engine.dump(), dict(self.owner.incidents))

    def breaks(self, spare: str, on: bool) -> None:
        """A spare breaks, or is mended: its next test says so."""
        (self.owner.world.broken.add if on else self.owner.world.broken.discard)(spare)

    def mode(self, mode: str) -> None:
        """The policy is edited."""
        self.owner.rules = replace(self.owner.rules, mode=mode)
        self.owner.engine.policy = self.owner.rules

    def tick(self, times: int, dies: str = "") -> None:
        """Ticks; in the last of them the process may die."""
        owner = self.owner
        for i in range(times):
            last = i == times - 1
            owner.mortal = (last and (bool(dies) or self.doomed)) or (bool(dies) and i == times - 2)
            self._shine()
            self._thaw()
            self._lose()
            step = self.decide()
            if last and dies == "before commit":
                self.die()
            else:
                self.commit(step)
                if last and dies == "after commit":
                    self.die()
                else:
                    owner.world.down = owner.world.down or (last and dies == "door shut")
                    if last and dies == "frozen in between":
                        owner.freeze()
                    owner.carry()
                    if last and dies == "after door":
                        self.die()
            if self.reload:
                text = owner.engine.dump()
                owner.engine = owner.new()
                owner.engine.load(text)
            owner.at += 15_000

    def leap(self, minutes: int) -> None:
        """Time goes by between two ticks: the process was not scheduled."""
        self.owner.at += minutes * 60_000
        self.tick(1)

    def _shine(self) -> None:
        owner = self.owner
        names = [n for n, on in self.shining.items() if on]
        # What shines no more stays open for a while, and is not renewed: evidence that grows old.
        old = [f for f in owner.facts.findings if f"inc-{f.id[4:]}" not in names and owner.at - f.updated_at < 600_000]
        owner.facts.findings = old + [
            finding(owner.at - self.lagging, owner.incidents[n].fault, owner.incidents[n].culprit, f"fnd-{n[4:]}") for n in names]

    def _lose(self) -> None:
        """What goes on costs more."""
        for name, gpus in self.costs.items():
            one = self.owner.incidents.get(name)
            if one is not None and one.state not in CLOSED_STATES and self.shining.get(name):
                self.owner.open(replace(one, lost_gpu_hours=one.lost_gpu_hours + gpus * 15 / 3600))

    def _thaw(self) -> None:
        frozen = self.owner.engine.frozen
        if self.was_frozen and not frozen:
            self.thawed_at = self.owner.at
        self.was_frozen = frozen

    # --- what must hold at each command -------------------------------------------------------------------------------
    def check(self, action: Action) -> None:
        """Raises AssertionError where the command breaks a promise."""
        owner, world = self.owner, self.owner.world
        if is_check(action.incident):
            self._check_test(action)
            return
        one = owner.incidents[action.incident]
        starts = (action.incident, action.attempt) not in self.begun
        assert owner.rules.mode != "observe"
        # A policy that is edited in the middle of an attempt does not undo the word that began it.
        assert not starts or action.mode != "propose" or action.actor == "ada", "nobody said yes"
        assert not owner.engine.frozen, "frozen"
        assert any(a.id == action.id for a, _ in owner.rows), "not written before"
        assert one.state not in CLOSED_STATES, f"the incident is {one.state}"
        assert one.scope not in SHARED_SCOPES, "a shared cause"
        node, job = action.target.node, action.target.job
        for other in world.running():
            assert (other.target.node, other.target.job) != (node, job), "two on one target"
            assert node is None or other.target.node != node, "two on one node"
        self._check_forward(action)
        if on_node(action.kind):
            self._check_node(action, one, starts)
        self._check_budgets(action, starts)
        if starts:
            self._check_start(action, one)
            self.begun[action.incident, action.attempt] = (action.at, one.culprit)

    def attempts(self) -> list[Action]:
        """What the world carried out, tests of spares left out."""
        return [a for a in self.owner.world.order if not is_check(a.incident)]

    def unfit(self) -> set[str]:
        """Spares under test, those whose last test failed, and those that a replacement has taken."""
        world, rows = self.owner.world, [*self.owner.rows, *self.owner.carried]
        ends = {a.target.node or "": o.state for a, o in rows if is_check(a.incident) and a.kind == "diagnose"
                and (o.state == "DONE" or o.reason == "diagnose_failed")}
        tested = {a.target.node or "" for a in world.running() if is_check(a.incident)}
        taken = {world.taken[a.id] for a in world.running() if a.kind == "replace"}
        return tested | taken | {node for node, state in ends.items() if state == "FAILED"}

    def _check_test(self, action: Action) -> None:
        """A spare's scheduled test: raises AssertionError where it may not begin."""
        owner, world, node = self.owner, self.owner.world, action.target.node or ""
        view = world.states[node]
        assert owner.rules.mode == "act", "tests are for a policy that acts"
        assert not owner.engine.frozen, "frozen"
        assert any(a.id == action.id for a, _ in owner.rows), "not written before"
        assert (view.state, view.held_by, view.maintenance, view.jobs) == ("spare", None, None, ()), "no idle spare"
        ended = {a.id for a, o in (*owner.rows, *owner.carried) if o.state in FINAL}  # for Greylag: one that was given up runs on
        others = [a for a in world.running() if a.target.node == node or (is_check(a.incident) and a.id not in ended)]
        assert not others, "two tests at once"
        assert node not in {world.taken[a.id] for a in world.running() if a.kind == "replace"}, "a replacement has it"
        self.tests += 1

    def choose(self, action: Action) -> str | None:
        """The spare that a world would take: the first that it may. Raises AssertionError where it must not be used, or where
        those that are left are fewer than the floor."""
        avoid = {name.strip() for name in str(action.args.get("avoid") or "").split(",")}
        spares, unfit, world = [n for n, v in sorted(self.owner.world.states.items()) if v.state == "spare"], self.unfit(), self.owner.world
        taken = {world.taken[a.id] for a in world.running() if a.kind == "replace"}
        found = next((name for name in spares if name not in avoid | taken), None)
        assert found not in unfit, f"{found} is under test, or failed its last"
        fit = [name for name in spares if name not in unfit]
        assert found is None or len(fit) - 1 >= self.owner.rules.limits.spare_floor, "spare_floor of those that may be used"
        return found

    def _check_node(self, action: Action, one: Incident, starts: bool) -> None:
        node, view = action.target.node, self.owner.world.states[action.target.node or ""]
        assert view.held_by in (None, "greylag"), "another hand holds it"
        assert view.maintenance is None, "in maintenance"
        culprit = one.culprit if starts else self.begun[action.incident, action.attempt][1]
        assert culprit is not None, "no culprit is known"
        # A plan is made once: where the evidence moved on since, the part that was named then is the one.
        assert node == culprit.node, "not the culprit"
        if action.kind in ("undrain", "replace"):
            later = [a for a in self.owner.world.order if a.target.node == node and a.kind in ("drain", "exclude_node")]
            assert not later or later[-1].incident == action.incident, "an older incident gives back what a newer one took out"
            assert not later or later[-1].attempt <= action.attempt, "an older attempt gives back what a newer one took out"

    def _check_forward(self, action: Action) -> None:
        """An incident goes from step to step and from attempt to attempt, never back."""
        world = self.owner.world
        mine = [a for a in world.order if a.incident == action.incident]
        assert all((a.attempt, a.step) < (action.attempt, action.step) for a in mine), "an older step or attempt begins again"
        done = [a for a in mine if a.attempt == action.attempt and world._now(a.id).state == "DONE"]
        assert not any((a.kind, a.target.key) == (action.kind, action.target.key) for a in done), "a finished step is done again"

    def _check_budgets(self, action: Action, starts: bool) -> None:
        owner, world, limits = self.owner, self.owner.world, self.owner.rules.limits
        node, job, at = action.target.node, action.target.job, owner.at
        began: dict[tuple[str, int], int] = {}
        touched: dict[tuple[str, int], set[str]] = {}
        for a in [*self.attempts(), action]:
            began.setdefault((a.incident, a.attempt), a.at)
            touched.setdefault((a.incident, a.attempt), set()).update({a.target.node or "", a.target.job or ""})
        assert sum(at - t < HOUR for t in began.values()) <= limits.per_hour, "per_hour"
        busy = {a.target.node for a in world.running() if a.target.node and not is_check(a.incident)} | ({node} if node else set())
        assert len(busy) <= limits.concurrent_nodes, "concurrent_nodes"
        out = {v.node for v in world.states.values() if v.held_by == "greylag" and v.state != "in_service"}
        assert len(out | busy) <= limits.pool_nodes, "pool_nodes"
        if action.kind == "replace":
            assert sum(v.state == "spare" for v in world.states.values()) - 1 >= limits.spare_floor, "spare_floor"
        if job is not None:
            assert sum(job in t and at - began[k] < DAY for k, t in touched.items()) <= limits.per_job_per_day, "per_job_per_day"
        if node is not None:
            assert sum(node in t and at - began[k] < WEEK for k, t in touched.items()) <= limits.per_node_per_week, "per_node_per_week"
        if starts and node is not None and world.states[node].state == "in_service":
            leaf = TOPOLOGY.places[node].leaf
            peers = [n for n, p in TOPOLOGY.places.items() if p.leaf == leaf]
            gone = {n for n in peers if world.states[n].state != "in_service"} | (busy & set(peers))
            assert len(gone) <= limits.per_leaf, "per_leaf"
            assert len(gone) < len(peers), "the last of its leaf"

    def _check_start(self, action: Action, one: Incident) -> None:
        """What holds at the first command of an attempt."""
        owner, limits = self.owner, self.owner.rules.limits
        assert one.id not in self.silenced, "silenced"
        self._check_worth(action)
        failed = [o for a, o in owner.rows if a.incident == action.incident and a.attempt < action.attempt
                  and (o.state == "FAILED" or (o.state == "REFUSED" and o.reason not in NOT_TRIED))]
        if not failed:  # an attempt that follows one that failed in mid-way need not see its idle part
            fresh = [f for f in owner.facts.findings if f.id in one.findings and owner.at - f.updated_at <= 135_000]
            assert fresh, "old evidence"
        for other in self.attempts():
            before = self.begun[other.incident, other.attempt][1]
            if other.incident != one.id and one.culprit and before and before.key == one.culprit.key:
                assert owner.at - other.at >= limits.cooldown_seconds * 1000, "the part rests"
        if self.thawed_at is not None and owner.at - self.thawed_at < 60_000:
            together = [at for at, _ in self.begun.values() if at == action.at]
            assert not together, "all at once after a freeze"
        if action.actor == "greylag" and action.kind in ("restart_process", "resume_job"):
            saved = owner.facts.saves.get(action.target.job or "")
            known = owner.facts.jobs.get(action.target.job or "")
            if saved is not None and (known is None or known.running):
                assert saved.progress_at - saved.saved_at <= 2 * 600_000, "its work is in no checkpoint"

    def _check_worth(self, action: Action) -> None:
        """Nobody approved it and nothing was tried before: it is not dearer than waiting, nor is one made that seldom cures."""
        worth, track = self.owner.engine.worth(action.incident), self.owner.engine.track(action.incident)
        if worth is None or track is None or action.actor != "greylag" or any(name == action.incident for name, _ in self.begun):
            return
        assert worth.at == self.owner.at, "weighed long ago"
        assert not worth.hold, "waiting is cheaper"
        assert not any(one.skip and one.place == track.rung for one in worth.options), "not worth it"

    # --- what must hold at the end ------------------------------------------------------------------------------------
    def settle(self) -> None:
        """The world is well again and people are away: everything comes to its end."""
        world, self.lagging = self.owner.world, 0
        self.be_punctual()
        world.down = world.deaf = False
        world.lasts, world.refuse, world.fail = {}, {}, {}
        self.owner.freeze_file = False
        self.owner.resume()
        for i in range(300):
            self.tick(1)
            self.owner.at += 45_000
            tracks = self.owner.engine.history.tracks.values()
            if i >= 80 and not any(t.current is not None or t.state in ("acting", "verifying") for t in tracks):
                break
            if all((t.current is None and t.state not in ("acting", "verifying") and t.ended not in ("step_failed", "verify_failed", "lost"))
                   or (t.state == "escalated" and t.current is None) for t in tracks):
                break

    def check_end(self) -> None:
        """Raises AssertionError where something has no end, no reason or no exit, or was done twice."""
        owner = self.owner
        newest = {a.id: (a, o) for a, o in [*owner.rows, *owner.carried]}
        for action, outcome in newest.values():
            waits = outcome.reason == "awaiting_approval" and owner.incidents[action.incident].state in ("proposed", "holding")
            assert outcome.state in FINAL or waits, f"{action.id} never ended: {outcome}"
        told = {o.reason for _, o in owner.rows} | {a.reason for a, _ in owner.rows} | {i.reason for i in owner.incidents.values()}
        told |= {d.reason for s in owner.steps for d in s.decisions} | {e.why for s in owner.steps for e in s.results}
        assert told <= REASONS, told - REASONS
        assert {i.state for i in owner.incidents.values()} <= set(INCIDENT_STATES)
        assert all(n == 1 for n in owner.world.executed.values()), "repeated"
        assert all(n == 1 for n in owner.world.arrived.values()), "sent twice"
        finals = [a.id for a, o in owner.rows if o.state in FINAL]
        assert len(finals) == len(set(finals)), "an action ended twice"
        decided: set[tuple[str, str]] = set()
        for step in owner.steps:
            decided |= {(d.incident, d.decision) for d in step.decisions}
            assert all((i.id, i.state) in decided or i.state == "open" for i in step.incidents), "a change that nobody decided on"
        named = {n for a, o in newest.values() if a.kind == "escalate" and o.state == "DONE"
                 for n in str(a.args.get("nodes", "")).split(",")}
        for name, view in owner.world.states.items():
            if view.state == "drained" and view.held_by == "greylag":
                replaced = any(a.kind == "replace" and o.state == "DONE" and a.target.node == name for a, o in newest.values())
                assert replaced or name in named, f"{name} has no exit"


# --- drawing ------------------------------------------------------------------------------------------------------------
def draw(chance: random.Random) -> Op:
    """Something that may happen."""
    n, node = chance.randint(1, 5), chance.choice(NODES)
    what = chance.choices(
        ("tick", "long", "dies", "leap", "appear", "shine", "lag", "move", "book", "down", "lasts", "refuse", "hand", "person",
         "freeze", "job", "save", "mode", "silence", "cost", "breaks"),
        (24, 6, 14, 4, 12, 8, 3, 3, 6, 5, 4, 6, 7, 9, 6, 4, 6, 2, 5, 5, 3))[0]
    ops: dict[str, Op] = {
        "tick": ("tick", chance.randint(1, 5)), "long": ("tick", chance.randint(6, 20)),
        "dies": ("tick", chance.randint(1, 3), chance.choice(DEATHS)), "leap": ("leap", chance.choice((1, 3, 10, 40))),
        "appear": ("appear", n, node, chance.choice(("gpu", "gpu", "gpu", "job", "job", "shared", "rack", "unknown"))),
        "shine": ("shine", n, chance.random() < 0.5), "lag": ("lag", chance.choice((0, 0, 4, 8, 9, 20))), "move": ("move", n, node),
        "book": ("book", n, chance.choice(("resolved", "merged", "reopen", "abandoned"))),
        "down": ("world", chance.choice(("down", "deaf")), chance.random() < 0.4),
        "lasts": ("world", "lasts", chance.choice((0, 20, 100, 400, 2000))),
        "refuse": ("refuse", chance.choice(KINDS), chance.choice(REFUSALS), chance.random() < 0.5),
        "hand": ("hand", node, chance.choice(("takes", "returns", "returns", "returns ours", "plans", "is done", "is done"))),
        "person": ("person", n, chance.choice(("yes", "yes", "yes", "yes", "no", "listen"))),
        "silence": ("person", n, "silence"),
        "freeze": ("freeze", chance.random() < 0.4, chance.random() < 0.5),
        "job": ("job", n, chance.choice(("ends", "queues", "shrinks", "trains", "trains"))),
        "cost": ("cost", n, chance.choice((0.01, 0.5, 8.0, 16.0)), 16), "breaks": ("breaks", f"s{chance.randint(1, 3)}", chance.random() < 0.6),
        "save": ("save", n, chance.choice((5, 19, 30, 60))), "mode": ("mode", chance.choice(("act", "propose", "observe", "act"))),
    }
    return ops[what]


def invent(seed: int, late: bool = True) -> tuple[Policy, list[Op]]:
    """The policy and the ops of a story. late: with what comes late or twice."""
    chance = random.Random(seed)
    rules = rules_of(chance.randrange(len(BUDGETS)), chance.choice(("act", "act", "act", "act", "propose", "propose", "observe")),
                     chance.random() < 0.5)
    ops: list[Op] = [("world", "lasts", chance.choice((0, 0, 100, 400)))]
    ops += [("person", n, "silence") for n in range(1, 6) if chance.random() < 0.06]
    ops += [("save", n, chance.choice((5, 30, 60))) for n in range(4) if chance.random() < 0.3]
    ops += [("past", 8)] if chance.random() < 0.2 else []
    ops += [("cost", n, chance.choice((0.01, 0.5, 8.0, 16.0)), 16) for n in range(1, 6) if chance.random() < 0.3]
    ops += [("appear", n, chance.choice(NODES), "gpu") for n in chance.sample(range(1, 6), chance.randint(1, 4))]
    ops += [draw(chance) for _ in range(chance.randint(5, 22))]
    return rules, put_in(seed, ops) if late else ops


def tell(rules: Policy, ops: list[Op], reload: bool = False) -> Story:
    """Runs a story to its end. Raises AssertionError where a promise is broken."""
    story = Story(rules, reload)
    ticks = [op for op in ops if op[0] in ("tick", "leap")]
    for op in ops:
        if op[0] in ("tick", "leap"):
            ticks.pop(0)
            story.doomed = bool(ticks) and len(ticks[0]) == 3 and ticks[0][1] == 1
        story.do(op)
    story.settle()
    story.check_end()
    return story


def breaks(rules: Policy, ops: list[Op]) -> str | None:
    """What the story breaks, None where it is sound."""
    try:
        tell(rules, ops)
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error) else "an assertion"
    return None


def shorten(rules: Policy, ops: list[Op]) -> list[Op]:
    """The story without what its failure does not need."""
    i = 0
    while i < len(ops):
        fewer = ops[:i] + ops[i + 1:]
        if breaks(rules, fewer) is not None:
            ops = fewer
        else:
            i += 1
    return ops
