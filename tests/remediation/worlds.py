"""A small world to act on, and records to act about: fakes with the real protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.errors import Unavailable
from core.protocols import Checkpoint, NodeView
from core.targets import CLOSED_STATES
from core.types import Action, Finding, Incident, JobState, Outcome, Target
from remediation.engine import Engine, Site, Step
from remediation.kinds import KINDS
from remediation.policy import Policy, parse_policy

T0 = 1_800_000_000_000
TICK = 15_000
ALL_KINDS = frozenset(k for k in KINDS)

POLICY = """
version: 1
mode: act
limits: {concurrent_nodes: 1, pool_nodes: 3, pool_ratio: 0.1, per_hour: 20, per_job_per_day: 20, spare_floor: 0, cooldown_seconds: 600}
rules:
- name: hot
  match: {fault: [thermal_throttle], scope: [device], confidence_min: 0.7, duration_seconds_min: 60}
  attempts:
  - do: [{drain: {wait_for: checkpoint}}, reset_gpu, diagnose, undrain, {resume_job: {mode: full}}]
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, step_time_ratio_max: 1.05, deadline_seconds: 300}
  finally: escalate
- name: hung-job
  match: {fault: [stalled_loss], scope: [job]}
  attempts:
  - do: [{resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, deadline_seconds: 300}
  finally: escalate
- name: shared
  match: {scope: [switch, rack]}
  attempts:
  - do: [drain, replace]
  verify: {quiet_seconds: 60, deadline_seconds: 300}
  finally: escalate
"""


def policy(text: str = POLICY, **limits: object) -> Policy:
    """The policy with some limits changed."""
    read = parse_policy(text)
    return replace(read, limits=replace(read.limits, **limits)) if limits else read


def finding(at: int, fault: str = "thermal_throttle", target: Target | None = None, name: str = "fnd-1") -> Finding:
    """An open finding, renewed at `at`."""
    where = target or Target("gpu", "n1", "3", "GPU-1", "train", 11)
    return Finding(name, fault, fault, where, "open", 0.6, (), "why", T0, T0, at)


def incident(name: str = "inc-1", fault: str = "thermal_throttle", scope: str = "device", culprit: Target | None = None,
             **more: object) -> Incident:
    """An open incident about GPU 3 of n1, used by the job `train`."""
    if culprit is None and scope == "device":
        culprit = Target("gpu", "n1", "3", "GPU-1", "train", 11)
    base = Incident(name, fault, scope, culprit, 0.9, (), (), ("fnd-1",), (), ("train",), 0.0, "infra", "page", "open",
                    "opened_by_finding", None, T0, T0, T0)
    return replace(base, **more)


@dataclass
class World:
    """Door and view. arrived and executed count how often each id came and was carried out. It remembers ids, refusals included.

    lasts: seconds each kind takes; refuse, fail: by kind the reason; down: nothing answers; deaf: it does what it is
    asked but the answer is lost; also forgets on demand.
    """

    states: dict[str, NodeView] = field(default_factory=dict)
    lasts: dict[str, float] = field(default_factory=dict)
    refuse: dict[str, str] = field(default_factory=dict)
    fail: dict[str, str] = field(default_factory=dict)
    down: bool = False
    deaf: bool = False
    simulate: bool = False
    now: int = T0
    executed: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    order: list[Action] = field(default_factory=list)
    known: dict[str, tuple[Action, Outcome, int]] = field(default_factory=dict)

    def submit(self, action: Action) -> Outcome:
        if self.down:
            raise Unavailable("down")
        self.arrived[action.id] = self.arrived.get(action.id, 0) + 1
        if action.id not in self.known:
            self._begin(action)
        if self.deaf:
            raise Unavailable("the answer was lost")
        return self._now(action.id)

    def _begin(self, action: Action) -> None:
        if self.simulate:
            outcome = Outcome(action.id, "SIMULATED", "simulated")
        elif action.kind in self.refuse:
            outcome = Outcome(action.id, "REFUSED", self.refuse[action.kind])
        else:
            self.executed[action.id] = self.executed.get(action.id, 0) + 1
            self.order.append(action)
            outcome = Outcome(action.id, "RUNNING", "policy")
        self.known[action.id] = (action, outcome, self.now)

    def poll(self, action_id: str) -> Outcome:
        if self.down:
            raise Unavailable("down")
        if action_id not in self.known:
            return Outcome(action_id, "REFUSED", "unknown_operation")
        return self._now(action_id)

    def _now(self, action_id: str) -> Outcome:
        action, outcome, began = self.known[action_id]
        if outcome.state == "RUNNING" and self.now - began >= self.lasts.get(action.kind, 0) * 1000:
            failed = self.fail.get(action.kind)
            outcome = Outcome(action_id, "FAILED" if failed else "DONE", failed or "done", (self.now - began) / 1000, self.now)
            self.known[action_id] = (action, outcome, began)
            if not failed:
                self._effect(action)
        return outcome

    def _effect(self, action: Action) -> None:
        node = action.target.node
        if action.kind in ("drain", "exclude_node", "replace") and node in self.states:
            self.states[node] = replace(self.states[node], state="drained", held_by="greylag")
        if action.kind == "undrain" and node in self.states:
            self.states[node] = replace(self.states[node], state="in_service", held_by=None)
        if action.kind == "replace":
            spare = next((n for n, v in sorted(self.states.items()) if v.state == "spare"), None)
            if spare:
                self.states[spare] = replace(self.states[spare], state="in_service")

    def running(self) -> list[Action]:
        """What is under way in the world now."""
        return [a for a, o, _ in self.known.values() if o.state == "RUNNING" and self._now(a.id).state == "RUNNING"]

    def nodes(self) -> Mapping[str, NodeView]:
        if self.down:
            raise Unavailable("down")
        return dict(self.states)


def cluster(nodes: int = 6, spares: int = 2) -> World:
    """n1..n<nodes> in service, s1..s<spares> spare."""
    world = World()
    world.states = {f"n{i}": NodeView(f"n{i}", "in_service", None, ("train",)) for i in range(1, nodes + 1)}
    world.states |= {f"s{i}": NodeView(f"s{i}", "spare") for i in range(1, spares + 1)}
    return world


@dataclass
class Facts:
    """What the engine may know of the work. steps, tokens, heard: (from ms, value) rows of step time, tokens a second per GPU
    and ranks, the last that began before `end` counts. saves: checkpoints by job; nonfinite: since when, by job; in_use: whether the GPUs of a node compute."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[tuple[int, float | None]] = field(default_factory=lambda: [(0, 2.0)])
    jobs: dict[str, JobState] = field(default_factory=lambda: {"train": JobState("train", "train")})
    tokens: list[tuple[int, float | None]] = field(default_factory=list)
    heard: list[tuple[int, int | None]] = field(default_factory=lambda: [(0, 8)])
    saves: dict[str, Checkpoint] = field(default_factory=dict)
    nonfinite: dict[str, int] = field(default_factory=dict)
    in_use: dict[str, bool] = field(default_factory=dict)

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        return next((s for at, s in reversed(self.steps) if at < end), None)

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        return next((t for at, t in reversed(self.tokens) if at < end), None)

    def ranks(self, job: str, start: int, end: int) -> int | None:
        return next((n for at, n in reversed(self.heard) if at < end), None)

    def checkpoint(self, job: str) -> Checkpoint:
        return self.saves.get(job, Checkpoint())

    def gpu_in_use(self, gpu: Target) -> bool | None:
        return self.in_use.get(gpu.node or "")

    def nonfinite_since(self, job: str) -> int | None:
        return self.nonfinite.get(job)

    def open_findings(self) -> list[Finding]:
        return self.findings

    def job(self, job: str) -> JobState | None:
        return self.jobs.get(job)


class Owner:
    """The owner's loop in small: step, commit, carry out; it can die at any point and start again from the commit."""

    def __init__(self, rules: Policy, world: World, facts: Facts | None = None, kinds: Iterable[str] = ALL_KINDS) -> None:
        self.rules, self.world, self.facts, self.kinds = rules, world, facts or Facts(), frozenset(kinds)
        self.freeze_file = False  # a person's
        self.own_freeze_file = False  # a call's: a kill does not lift it
        self.site: Site | None = None
        self.at = T0 + 120_000
        self.incidents: dict[str, Incident] = {}
        self.rows: list[tuple[Action, Outcome]] = []
        self.carried: list[tuple[Action, Outcome]] = []
        self.mortal = True  # False where it will not die any more: what a restart needs is not kept then
        self.saved: tuple[str, dict[str, Incident]] = ("", {})
        self.steps: list[Step] = []
        self.engine = self.new()

    def new(self) -> Engine:
        """An engine that remembers nothing."""
        return Engine(self.rules, self.kinds, self.world, freeze_file_exists=lambda: self.freeze_file or self.own_freeze_file)

    def freeze(self) -> None:
        """By call, which writes a file as well."""
        self.own_freeze_file = True
        self.engine.freeze()

    def resume(self) -> None:
        """By call; a person's file goes on to hold."""
        self.own_freeze_file = False
        self.engine.resume()

    def open(self, *incidents: Incident) -> None:
        """The book has these from now on."""
        self.incidents |= {i.id: i for i in incidents}
        self.saved = (self.saved[0], dict(self.incidents))

    def decide(self, shown: Iterable[Incident] | None = None) -> Step:
        """The tick's decisions, nothing committed. shown: what the engine gets to see, None = what the book has open."""
        self.world.now = self.at
        if shown is None:
            shown = [i for i in self.incidents.values() if i.state not in CLOSED_STATES]
        step = self.engine.step(self.at, shown, self.facts, self.site)
        self.incidents |= {i.id: i for i in step.incidents}
        self.steps.append(step)
        return step

    def commit(self, step: Step) -> None:
        """Rows, incidents and state, all together."""
        self.rows += [*self.carried, *step.actions]
        self.carried = []
        if self.mortal:
            self.saved = (self.engine.dump(), dict(self.incidents))

    def carry(self) -> None:
        """To the door."""
        self.carried += self.engine.carry_out(self.at, self.world)

    def tick(self, times: int = 1) -> Step:
        """Whole ticks; gives the last one's decisions."""
        for _ in range(times):
            step = self.decide()
            self.commit(step)
            self.carry()
            self.at += TICK
        return step

    def die(self, rows: Sequence[tuple[Action, Outcome]] | None = None) -> None:
        """kill -9 and a new start from what was committed. rows: the ledger as it comes then, None = as it was written."""
        self.carried = []
        self.engine = self.new()
        text, incidents = self.saved
        self.incidents = dict(incidents)
        if text:
            self.engine.load(text, self.rows if rows is None else rows)

    def state(self, name: str = "inc-1") -> tuple[str, str]:
        """(state, reason) of an incident."""
        one = self.incidents[name]
        return one.state, one.reason

    def did(self) -> list[str]:
        """Kinds in the order in which the world carried them out."""
        return [a.kind for a in self.world.order]

    def last(self, action_id: str) -> Outcome:
        """The newest row of an action."""
        return [o for a, o in self.rows if a.id == action_id][-1]

    def until(self, state: str, ticks: int = 200, name: str = "inc-1") -> None:
        """Ticks until the incident is in the state; it fails the test where that never comes."""
        for _ in range(ticks):
            if self.incidents[name].state == state:
                return
            self.tick()
        raise AssertionError(f"{name} never became {state}: {self.state(name)}, did {self.did()}")


class Fault:
    """A fault that is there until something of `cured_by` was done, and slows the job meanwhile."""

    def __init__(self, owner: Owner, cured_by: tuple[str, ...], slow: float = 3.0) -> None:
        self.owner, self.cured_by, self.slow = owner, cured_by, slow
        owner.facts.steps = [(0, 2.0), (T0 + 1, slow)]

    @property
    def cured(self) -> bool:
        return any(k in self.owner.did() for k in self.cured_by)

    def shine(self) -> None:
        """Findings and step time as they are now."""
        owner = self.owner
        owner.facts.findings = [] if self.cured else [finding(owner.at)]
        if self.cured and owner.facts.steps[-1][1] != 2.0:
            owner.facts.steps.append((owner.at, 2.0))

    def run(self, ticks: int) -> None:
        """Ticks with the fault shining."""
        for _ in range(ticks):
            self.shine()
            self.owner.tick()

    def until(self, state: str, ticks: int = 200, name: str = "inc-1") -> None:
        """As Owner.until."""
        for _ in range(ticks):
            if self.owner.incidents[name].state == state:
                return
            self.run(1)
        raise AssertionError(f"{name} never became {state}: {self.owner.state(name)}, did {self.owner.did()}")
