"""Greylag on a fleet that is stepped from event to event: its own engine, policy and guards over incidents that are drawn.

There is no telemetry between events, so whether, when and where a fault is found is drawn from the scorecard: the fault is
missed, or an incident opens after a delay, on the right part or on another node, as sure of itself as those of the scorecard
were. False incidents come at the scorecard's rate on parts that have nothing. Everything after that is the product's own code:
`remediation.engine` with the policy decides, its guards hold back, the fleet's operations take their time and may fail, and
what it verifies is the job's pace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.evaluate.score import COUNTED_IMPACT
from app.goodput.arms import BY_HAND, NOTICED_MS, PERSON_MS, REQUEUE_MS, Restarting, hard, make_room
from app.goodput.chances import OF_A_JOB, Chances
from app.goodput.judging import Judge
from core.clock import TICK_MS
from core.faults import faults
from core.protocols import Checkpoint, NodeView
from core.targets import ACTION_KINDS, CLOSED_STATES
from core.types import Action, Finding, Incident, JobState, Outcome, Target
from fleet.eventstep import EventWorld, RateJob
from fleet.frames import FleetDoor
from fleet.operations import Operations
from fleet.plants import NEVER, Planted
from fleet.running import Running
from fleet.state import node_views
from remediation.engine import Engine
from remediation.policy import Policy

DAY_MS = 86_400_000
# Detectors let go of a part after about eight clear ticks. A false incident is over when its cause is: log-normal like all that passes,
# a quarter of an hour on average (our reading).
OFF_MS, FALSE_MEAN_MS, FALSE_SIGMA = 120_000, 900_000, 0.8
# How sure an incident is of one of two parts that look alike.
TIED = 0.5
# What a false incident makes of its job's pace: a tenth (our reading).
FALSE_SLOWER = 0.1
# How long what a job's step took is remembered: longer than an incident takes to open.
HISTORY_MS = 3 * 3_600_000
# How often an incident that only waits is looked at, one that has waited for YOUNG_MS, and one whose job runs again.
WAIT_MS, LATER_MS, PROOF_MS, YOUNG_MS = 60_000, 180_000, 30_000, 600_000
# Scopes of which an incident names a part of one node.
PARTS = frozenset({"device", "node"})


@dataclass(slots=True)
class Case:
    """An incident and what is behind it. planted: None = nothing is. ends_at: of a false one. lost: GPU-hours since it was opened. told_at:
    when a person was paged with it."""

    incident: Incident
    planted: Planted | None
    ends_at: int = NEVER
    quiet_since: int | None = None
    lost: float = 0.0
    told_at: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Implements `core.protocols.WorkFacts` over the fleet as it is now."""

    event: EventWorld
    at: int
    findings: tuple[Finding, ...]
    slowed: frozenset[str] = frozenset()  # jobs of which a false incident has it that they are slower
    known: dict[str, JobState | None] = field(default_factory=dict)
    paces: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  # by job: since when a step took how long
    moved: Mapping[str, int] = field(default_factory=dict)  # by job: when a run of it last made a step

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        """What a step takes now, or took last at a time that is over."""
        running = self.event.world.jobs.get(job)
        if not isinstance(running, RateJob) or not running._usual_ms:
            return None
        usual = running._usual_ms / 1000
        if end < self.at:
            return next((seconds for since, seconds in reversed(self.paces.get(job, ())) if since <= end), usual)
        stands = not running.alive or running.hung_rank is not None or running.phase not in ("train", "eval", "checkpoint") or math.isnan(running.step_seconds)
        return None if stands else usual * running.factor * (1.0 + FALSE_SLOWER if job in self.slowed else 1.0)

    def open_findings(self) -> Sequence[Finding]:
        """Those of the open cases."""
        return self.findings

    def job(self, job: str) -> JobState | None:
        """The job with its phase."""
        if job not in self.known:
            running = self.event.world.jobs.get(job)
            self.known[job] = None if running is None else JobState(
                job, running.phase, tuple(self.event.world.nodes[n].name for n in running.nodes), start=running.started_ms)
        return self.known[job]

    def checkpoint(self, job: str) -> Checkpoint:
        """The newest complete one."""
        running = self.event.world.jobs.get(job)
        saved = running.store.newest() if isinstance(running, RateJob) else None
        if saved is None or not isinstance(running, RateJob):
            return Checkpoint()
        return Checkpoint(saved.done, float(saved.step), running.store.every_seconds, self.moved.get(job))

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        """By the step's pace."""
        seconds = self.step_seconds(job, start, end)
        running = self.event.world.jobs.get(job)
        return None if seconds is None or not isinstance(running, RateJob) else running.shape.tokens_per_rank / seconds

    def nonfinite_since(self, job: str) -> int | None:
        """Since the fault's onset, where one of the open cases is of that kind."""
        return next((f.onset_at for f in self.findings if f.fault == "nonfinite_loss" and f.target.job == job), None)

    def ranks(self, job: str, start: int, end: int) -> int | None:
        """How many it has now."""
        running = self.event.world.jobs.get(job)
        return running.ranks if running is not None and running.alive else None

    def gpu_in_use(self, gpu: Target) -> bool | None:
        """Whether a job computes on its node."""
        node = self.event.world.find(gpu.node)
        job = None if node is None else self.event.world.job_on(node.index)
        return None if node is None else job is not None and job.alive


def _lost_share(job: Running) -> float:
    """Which share of a job's work is being lost now, as `pipeline.losses` has it: all while it makes no step, none in a pause."""
    if not job.alive:
        return 0.0 if job.state == "done" else 1.0
    if not isinstance(job, RateJob) or job.phase in ("checkpoint", "eval"):
        return 0.0
    return 1.0 if job.phase == "init" or job.hung_rank is not None else 1.0 - 1.0 / job.factor


class OneLook(FleetDoor):
    """The fleet's door that reads all nodes once between two commands of anybody."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self._seen: dict[str, NodeView] = {}
        self._told: Mapping[str, tuple[object, ...]] = {}
        self._as_is: tuple[object, ...] = ()
        self._new = True

    def forget(self) -> None:
        """Something may have changed."""
        self._new = True

    def submit(self, action: Action) -> Outcome:
        """As the fleet's."""
        self.forget()
        return super().submit(action)

    def nodes(self) -> Mapping[str, NodeView]:
        """As the fleet's."""
        if self._new:
            self._new, world = False, self._operations.world
            # Most looks find the fleet as it was: that is seen without a row for each node.
            as_is = ([n.state for n in world.nodes], [n.held_by for n in world.nodes],
                     [(job.name, tuple(job.nodes)) for job in world.jobs.values()], dict(world.checked))
            if as_is == self._as_is:
                return self._seen
            self._as_is = as_is
            on = {index: job.name for job in reversed(world.jobs.values()) for index in job.nodes}
            now = {n.name: (n.state, n.held_by, on.get(n.index), world.checked.get(n.index)) for n in world.nodes}
            changed = [name for name, one in now.items() if self._told.get(name) != one]
            if changed:
                # Views are made for what changed alone, in the order of the nodes; what was handed out before stays as it was.
                self._seen, self._told = {**self._seen, **node_views(world, changed)}, now
        return self._seen


@dataclass
class Watching:
    """The arm `greylag`: a watcher of an EventWorld. healthy_acted: (at, node, kind) of attempts on nodes that had nothing;
    repairs: seconds from an incident's opening to the proof of its recovery, of those that ended recovered. back: of those that replaced a
    node, seconds from the incident's opening (it is confirmed then) to its job's first step after, waiting until acting was worth it
    included; back_attempt: the same from the start of the attempt."""

    event: EventWorld
    chances: Chances
    policy: Policy
    seed: int
    draw: int = 0
    cases: dict[str, Case] = field(default_factory=dict)
    healthy_acted: list[tuple[int, str, str]] = field(default_factory=list)
    actions: dict[str, int] = field(default_factory=dict)
    repairs: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    back_attempt: list[float] = field(default_factory=list)
    missed: int = 0
    found: int = 0

    def __post_init__(self) -> None:
        self.door = OneLook(self.event.operations)
        self.engine = Engine(self.policy, frozenset(ACTION_KINDS), self.door)
        # The script and the people of the arm `restart` go on beside Greylag: they wait only where it acts on the job.
        self.fallback = Restarting(self.event, REQUEUE_MS, NOTICED_MS)
        self._seen: set[int] = set()
        self._coming: list[tuple[int, Case]] = []
        self._judge = Judge()
        self._returning: dict[str, tuple[Incident, int]] = {}  # replaced a node, since when; their job has made no step yet
        self._rng = np.random.default_rng([self.seed, 8106, *([self.draw] if self.draw else [])])
        self._tick = 0
        self._look_at = 0
        self._revision = -1
        self._lost_at = self.event.world.now_ms
        self._pace: dict[str, tuple[int, float]] = {}
        self._paces: dict[str, list[tuple[int, float]]] = {}
        self._moved: dict[str, int] = {}
        self._draw_false()

    # --- what is found ------------------------------------------------------------------------------------------------
    def _draw_false(self) -> None:
        """All false incidents of the span, on parts that are drawn."""
        scenario, rng = self.event.scenario, self._rng
        span = scenario.end_ms - scenario.start_ms
        names = [n.name for n in self.event.world.nodes[:scenario.fleet.nodes]]
        for fault, per_day in sorted(self.chances.false.items()):
            of_a_job = fault in OF_A_JOB
            many = len(self.event.world.jobs) if of_a_job else len(names)
            for at in np.sort(rng.uniform(0, span, int(rng.poisson(per_day * many * span / DAY_MS)))):
                node = names[int(rng.integers(len(names)))]
                opened = scenario.start_ms + int(at)
                part = Target("gpu", node, str(int(rng.integers(self.event.world.kind.gpus)))) if faults()[fault].owner == "infra" \
                    else Target("node", node)
                lasts = round(FALSE_MEAN_MS * math.exp(FALSE_SIGMA * float(rng.standard_normal()) - FALSE_SIGMA**2 / 2))
                scope = self.chances.scope(fault, rng)
                whole = of_a_job or (scope is not None and scope not in PARTS)  # a rack's or a file system's names no node
                self._coming.append((opened, self._case(fault, None, None if whole else part, opened, opened, False, opened + lasts, scope)))
        self._coming.sort(key=lambda one: one[0])

    def _notice(self, at: int) -> None:
        """Faults that are new: each is drawn once."""
        for planted in self.event.world.plants.current:
            if not planted.present or planted.plugin.fault is None:
                continue
            for row in planted.place.rows:
                self._judge.ill(self.event.world.nodes[row].name, at)
            if planted.cured_at is not None:  # out of the way: when its node comes back with it, it is new again
                self._seen.discard(id(planted))
                continue
            if id(planted) in self._seen:
                continue
            self._seen.add(id(planted))
            chance, rng = self.chances.faults[planted.plugin.fault], self._rng
            found = float(rng.random()) < (chance.recall if hard(planted) or planted.severity >= COUNTED_IMPACT else chance.small)
            delay, placed = chance.delay_ms(rng), chance.place(rng)
            other = int(rng.integers(self.event.scenario.fleet.nodes))
            if not found:
                self.missed += 1
                continue
            self.found += 1
            culprit = self._culprit(planted)
            scope = self.chances.misplaced(planted.plugin.fault, rng) if placed == "wrong" else None
            if culprit is not None and placed == "wrong":  # a switch's or a rack's names no node
                culprit = Target("node", self.event.world.nodes[other].name) if scope is None or scope in PARTS else None
            opens = max(at, planted.at) + delay
            case = self._case(planted.plugin.fault, planted, culprit, planted.at, opens, placed != "wrong", drawn=scope)
            if placed == "tied":
                case.incident = replace(case.incident, confidence=min(TIED, case.incident.confidence))
            self._coming.append((opens, case))
        self._coming.sort(key=lambda one: one[0])

    def _culprit(self, planted: Planted) -> Target | None:
        culprit = planted.culprit
        if planted.plugin.scope == "job" or planted.plugin.place == "job":
            return None
        if culprit.kind == "rank" and planted.place.rows:
            return replace(culprit, node=self.event.world.nodes[planted.place.rows[0]].name)
        return culprit

    def _case(self, fault: str, planted: Planted | None, culprit: Target | None, onset: int, opened: int, right: bool,
              ends: int = NEVER, drawn: str | None = None) -> Case:
        tick = -(-opened // TICK_MS) * TICK_MS
        scope = (drawn or planted.plugin.scope) if planted is not None else "device" if culprit is not None and culprit.device else "node"
        scope = scope if planted is not None or culprit is not None else "job" if drawn is None or fault in OF_A_JOB else drawn
        row = faults()[fault]
        key = culprit.key if culprit is not None else fault
        sure = self.chances.confidence(right, self._rng)
        ident = Incident.make_id(fault, scope, f"{key}/{onset}", tick)
        incident = Incident(ident, fault, scope, culprit, sure, (), (), (f"f-{ident}",), (), (), 0.0, row.owner, row.klass, "open",
                            "opened_by_finding", None, min(onset, tick), tick, tick)
        return Case(incident, planted, ends)

    def _open(self, at: int) -> None:
        while self._coming and self._coming[0][0] <= at:
            _, case = self._coming.pop(0)
            if case.planted is not None and case.planted.cured_at is not None:
                continue  # it was gone before it was found
            jobs = self._jobs(case)
            if case.planted is None and case.incident.scope == "job" and not jobs:
                continue
            case.incident = replace(case.incident, jobs=jobs, opened_at=at, updated_at=at)
            self.cases[case.incident.id] = case

    def _jobs(self, case: Case) -> tuple[str, ...]:
        world, culprit = self.event.world, case.incident.culprit
        if culprit is not None and culprit.node is not None:
            node = world.find(culprit.node)
            job = None if node is None else world.job_on(node.index)
            return () if job is None else (job.name,)
        if case.planted is not None and case.planted.culprit.job is not None:
            return (case.planted.culprit.job,)
        rows = set(case.planted.place.rows) if case.planted is not None else set()
        return tuple(name for name, job in world.jobs.items() if not rows or rows & set(job.nodes))

    def _people(self, at: int) -> None:
        """A page is answered as a failed job's is in the arm `people`: what is slow by then and stays so is replaced. They see that a
        false one is none."""
        for case in self.cases.values():
            if case.told_at is None or case.planted is None or at < case.told_at + PERSON_MS or case.quiet_since is not None:
                continue
            if case.planted.plugin.fault in BY_HAND:
                make_room(self.event, case.planted)
                continue
            for name in case.incident.jobs:
                job = self.event.world.jobs[name]
                if job.alive and name not in self.fallback.hands_off:
                    self.fallback.mend(case.planted, job, at)

    # --- a tick -------------------------------------------------------------------------------------------------------
    def step(self, at: int) -> None:
        """All that is due at `at` (ms)."""
        self._lose(at)
        self._notice(at)
        self._first_steps(at)
        self.fallback.hands_off = frozenset(job for case in self.cases.values() if case.incident.state == "acting" for job in case.incident.jobs)
        self.fallback.step(at)
        self._people(at)
        self.door.forget()
        tick = at // TICK_MS * TICK_MS
        changed = self.event.world.revision != self._revision
        if tick <= self._tick or (tick < self._look_at and not changed and not (self._coming and self._coming[0][0] <= at)):
            return
        self._tick, self._revision = tick, self.event.world.revision
        self._open(at)
        for case in self.cases.values():
            over = at >= case.ends_at or (case.planted is not None and case.planted.cured_at is not None)
            case.quiet_since = (case.quiet_since or at) if over else None
            case.incident = replace(case.incident, lost_gpu_hours=case.lost)
        findings = tuple(self._finding(case, at) for case in self.cases.values()
                         if case.quiet_since is None or at - case.quiet_since < OFF_MS)
        told = Told(self.event, at, findings, self._slowed(), paces=self._paces, moved=self._moved)
        step = self.engine.step(at, [case.incident for case in self.cases.values()], told)
        for incident in step.incidents:
            case = self.cases[incident.id]
            if incident.state == "verifying" and case.incident.state == "acting" and (began := self._replacing(incident)) is not None:
                self._returning[incident.id] = incident, began
            case.incident = incident
            if incident.state == "escalated" and incident.klass == "page" and case.told_at is None:
                case.told_at = at
        self.repairs += [(at - self.cases[r.incident].incident.opened_at) / 1000 for r in step.recoveries if r.incident in self.cases]
        for action, outcome in (*step.actions, *self.engine.carry_out(at, self.door)):
            self._count(action, outcome.state, at)
        self._close(at)
        self._look_at = self._next_look(at)

    def _lose(self, at: int) -> None:
        """Adds to each open incident what its jobs have lost since the last event, as the product counts it: the whole of the
        job's slowness, whoever is to blame. What a false one makes of a job that is as fast as ever is FALSE_SLOWER."""
        span, pace = at - self._lost_at, self._pace
        for case in self.cases.values() if span > 0 else ():
            least = FALSE_SLOWER / (1.0 + FALSE_SLOWER) if case.planted is None and case.quiet_since is None else 0.0
            case.lost += sum(gpus * max(least, share) for name in case.incident.jobs for gpus, share in [pace.get(name, (0, 0.0))]) * span / 3.6e6
        self._lost_at = at
        self._pace = {name: (job.ranks, _lost_share(job)) for name, job in self.event.world.jobs.items()}
        self._remember(Told(self.event, at, (), self._slowed()))

    def _slowed(self) -> frozenset[str]:
        return frozenset(job for case in self.cases.values() if case.planted is None and case.quiet_since is None for job in case.incident.jobs)

    def _remember(self, told: Told) -> None:
        """Keeps how fast the jobs were lately, and when they last made a step."""
        for job in self.event.world.jobs:
            seconds, kept = told.step_seconds(job, told.at, told.at), self._paces.setdefault(job, [])
            if seconds is not None and told.event.world.jobs[job].phase == "train":
                self._moved[job] = told.at
            if seconds is not None and (not kept or kept[-1][1] != seconds):
                kept.append((told.at, seconds))
                while len(kept) > 1 and kept[1][0] < told.at - HISTORY_MS:
                    del kept[0]

    def _finding(self, case: Case, at: int) -> Finding:
        one = case.incident
        target = one.culprit or Target("job", job=one.jobs[0] if one.jobs else None)
        return Finding(one.findings[0], one.fault, one.fault, target, "open", 0.6, (), "drawn", one.onset_at, one.opened_at, at)

    def _count(self, action: Action, state: str, at: int) -> None:
        """Commands that were done, and attempts that began on a node that has nothing and had nothing lately. The tests of spares
        are no attempts: no incident stands behind them, and no job runs there."""
        if state == "DONE":
            self.actions[action.kind] = self.actions.get(action.kind, 0) + 1
        if action.incident in self.cases and self._judge.began_on_healthy(action, state, at):
            self.healthy_acted.append((at, str(action.target.node), action.kind))

    def _replacing(self, incident: Incident) -> int | None:
        """When the incident's attempt began, where it replaced a node (ms)."""
        entry = self.engine.history.ledger.of(incident.id, incident.attempt)
        return entry.started_at if entry is not None and "replace" in entry.kinds else None

    def _first_steps(self, at: int) -> None:
        """Jobs whose nodes were replaced and that have made their first step since. One that dies before it is back when its next run
        has made one."""
        for ident, (incident, began) in list(self._returning.items()):
            runs = [self.event.world.jobs[name] for name in incident.jobs if name in self.event.world.jobs]
            firsts = [run.first_step_ms if isinstance(run, RateJob) and run.alive else None for run in runs]
            steps = [first for first in firsts if first is not None and began < first <= at]
            if not runs or len(steps) < len(runs):
                continue
            del self._returning[ident]
            self.back.append((max(steps) - incident.opened_at) / 1000)
            self.back_attempt.append((max(steps) - began) / 1000)

    def _close(self, at: int) -> None:
        """What the book would close: quiet incidents that nobody works on, and what the engine closed."""
        for ident, case in list(self.cases.items()):
            quiet = case.quiet_since is not None and at - case.quiet_since >= OFF_MS
            if case.incident.state in CLOSED_STATES or (quiet and case.incident.state not in ("acting", "verifying")):
                over = case.incident if case.incident.state in CLOSED_STATES else replace(case.incident, state="resolved", reason="quiet")
                self.engine.over(at, [over])
                del self.cases[ident]

    def _next_look(self, at: int) -> int:
        states = {case.incident.state for case in self.cases.values()}
        if "acting" in states:
            return at + self._command_ms(at)
        if "verifying" in states:
            return at + PROOF_MS
        if states & {"open", "holding", "proposed"} or any(case.quiet_since is not None for case in self.cases.values()):
            return at + (WAIT_MS if any(at - case.incident.opened_at < YOUNG_MS for case in self.cases.values()) else LATER_MS)
        return NEVER

    def _command_ms(self, at: int) -> int:
        """Until a command that is under way can be over: a tick, or longer where all of them say so."""
        dues = [op.work.due() if op.work is not None and op.work.due is not None else at for op in self.event.operations.running()]
        return max(TICK_MS, min(WAIT_MS, min(dues, default=at) - at))

    def next_ms(self, now: int) -> int:
        """When it has something to do at the latest."""
        coming = self._coming[0][0] if self._coming else NEVER
        return max(now + 1, min(coming, self._look_at, self.fallback.next_ms(now)))
