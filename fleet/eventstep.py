"""The fleet from event to event: no telemetry, jobs as rates of progress, for policy runs of weeks.

Nodes, plants, operations, lives, checkpoints, recovery and accounts are those of the full model; only what lies between
two events is not emulated. A job's step gets longer by what the faults on it were planted to cost: faults of one kind of
part do not add up (the slowest sets the pace), those of different kinds do. What kills a job or lets it hang is asked of
the plug-ins every half minute while one of them is on a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from core.clock import monotonic_seconds
from fleet.build import bare
from fleet.groups import per_gpu
from fleet.job import SLOW_BEYOND, WARMUP, Job, JobShape, Segment
from fleet.joblog import log_of
from fleet.jobs import make_job
from fleet.network import STALLED
from fleet.places import ON_NODE
from fleet.plants import NEVER, Planted
from fleet.programme import records
from fleet.running import Running
from fleet.scenario import Scenario
from fleet.world import SUBSTEP_MS

POLL_MS, SELDOM_MS = 30_000, 600_000
# Look-alikes do what they do in their first hour.
LOOK_ALIKE_SECONDS = 3600.0
# A ramp is climbed in so many steps.
RAMP_STEPS = 6
# Healthy steps that are drawn to learn what one takes, its usual roughness included.
SAMPLES = 120
NETWORK = ("packet_loss", "link_slow", "link_flap", "link_down")
DATA = ("data_stall", "storage_slow", "disk_slow", "disk_full")
# What comes and goes within seconds would hold from one event to the next: a port that is down for 5 to 25 seconds would stop its
# job, and kill it where the next event is a minute away. It costs what it was planted to cost on average, as in the full model.
AVERAGED = ("link_flap",)
STANDS_STILL = 1e6
TELL_SECONDS = 2.0


def part_of(planted: Planted) -> str:
    """The part of a step that the fault makes longer: faults of one part do not add up, those of different ones do."""
    fault = planted.plugin.fault
    return "network" if fault in NETWORK else "data" if fault in DATA else "job" if planted.plugin.place == "job" else "compute"


class Watcher(Protocol):
    """A policy: looks at the world at each event and asks its operations for things."""

    def step(self, at: int) -> None: ...

    def next_ms(self, now: int) -> int:
        """When it wants to look again at the latest."""
        ...


class RateJob(Job):
    """A training job whose steps are not taken one by one. factor: how much longer a step is than a healthy one. first_step_ms: when the
    first step of this run is complete, None = it has begun none yet."""

    factor = 1.0

    def _clear(self) -> None:
        super()._clear()
        self._part = 0.0
        self.first_step_ms: int | None = None
        # One node in another's place changes the slowest of many by next to nothing; fewer nodes change it.
        if getattr(self, "_learnt", 0) != len(self.nodes):
            self._usual_ms, self._rough, self._learnt = 0.0, 0.0, 0
            self._warm_ms: list[int] = []

    @property
    def next_ms(self) -> int:
        """When what it does now is over."""
        return NEVER if self._segment is None else self._segment.end

    def _learn(self) -> None:
        """What a healthy step takes on these nodes, and which share of it counts as slow."""
        took, slow, self._learnt = 0, 0, len(self.nodes)
        for _ in range(SAMPLES):
            one = self._time_step("step", 0, self._noise.draw(self._rng, self.ranks), 1.0)
            took += one.end
            slow += one.end - one.healthy_ms if one.end > one.healthy_ms * SLOW_BEYOND else 0
        self._usual_ms, self._rough = took / SAMPLES, slow / took
        self._warm_ms = [self._time_step("warmup", 0, self._noise.draw(self._rng, self.ranks), w).end for w in WARMUP]

    def _begin_step(self, at: int) -> None:
        """Warm-up as one stretch; then one until something is due."""
        if not self._usual_ms:
            self._learn()
        nothing = np.zeros(self.ranks)
        if self._warm < len(WARMUP):
            self._enter("warmup", at)
            slower = min(self.factor, STALLED)
            if self.first_step_ms is None:
                self.first_step_ms = at + max(1, int(self._warm_ms[self._warm] * slower))
            left = sum(self._warm_ms[self._warm:]) * slower
            self._segment = Segment("heating", at, at + max(1, int(left)), nothing, nothing)
            return
        self._enter("train", at)
        last = at + max(1, int((self.shape.last_step - self.step) * self._usual_ms * self.factor))
        end = min(self.store.next_ms(at) or NEVER, last)
        if self.shape.eval_every_seconds and self._eval_due > at:
            end = min(end, self._eval_due)
        self._segment = Segment("stretch", at, max(at + 1, end), nothing, nothing)

    def _spend(self, segment: Segment, until: int) -> None:
        span = until - self._now
        super()._spend(segment, until)
        if span > 0 and segment.kind == "stretch":
            self._progress(span, until)

    def _progress(self, span: int, until: int) -> None:
        before = self.step + self._part
        after = before + span / (self._usual_ms * self.factor)
        self.step, self._part = int(after), after - int(after)
        self.step_seconds, self.last_step_ms = self._usual_ms * self.factor / 1000, until
        again = min(1.0, max(0.0, (min(after, self._reached) - before) / max(1e-12, after - before)))
        lost = round(span * again)
        self._move("productive", "lost_work", lost)
        # What a slowed step takes beyond a healthy one, and the slow share of the healthy ones.
        self._move("productive", "slow", round((span - lost) * (1.0 - (1.0 - self._rough) / self.factor)))
        self._reached = max(self._reached, self.step)

    def _lost_ms(self, segment: Segment) -> int:
        """Of a stretch only the step under way is lost, which is too little to count."""
        return 0 if segment.kind == "stretch" else super()._lost_ms(segment)

    def _finish(self, segment: Segment) -> None:
        if segment.kind == "heating":
            took = segment.end - segment.start
            fresh = (len(WARMUP) - self._warm) * self._usual_ms
            self.step += len(WARMUP) - self._warm
            self._warm = len(WARMUP)
            cause = "lost_work" if self.step <= self._reached else "warmup"
            self._move("productive", cause, took if cause == "lost_work" else max(0, int(took - fresh)))
            self._reached = max(self._reached, self.step)
        super()._finish(segment)


def rate_job(kind: str, name: str, shape: JobShape, nodes: Sequence[int], gpus: int, rng: np.random.Generator,
             names: Sequence[str] = ()) -> Running:
    """As `fleet.jobs.make_job`, with training jobs as rates; other kinds are small enough to be emulated."""
    if kind == "training":
        return RateJob(name, shape, list(nodes), gpus, log_of(shape.trainer), rng)
    return make_job(kind, name, shape, nodes, gpus, rng, names)


class EventWorld:
    """A scenario from event to event. watchers: policies, asked at each event. events: how many there were."""

    def __init__(self, scenario: Scenario, watchers: Sequence[Callable[[Any], Watcher]] = ()) -> None:
        self.scenario = scenario
        self.world, self.operations, self.programme = bare(scenario, rate_job)
        self.programme.begin(scenario.fleet.cold)
        self.watchers = [make(self) for make in watchers]
        self.events = 0
        self._soon, self._ill, self._fed = False, True, True
        self._turned: list[int] | None = None  # the nodes whose knobs were turned last; None = any of them
        self._conditions(0)

    def run(self, tell: Callable[[str], None] = lambda line: None) -> Iterator[dict[str, Any]]:
        """To the scenario's end; then the records that a run of the full model gives."""
        self.advance(self.scenario.end_ms, tell)
        for row in records(self.world, self.operations, self.programme):
            yield {**row, "events": self.events} if row["type"] == "summary" else row

    def advance(self, to: int, tell: Callable[[str], None] = lambda line: None) -> None:
        """Moves on to `to` (ms)."""
        told = monotonic_seconds()
        while self.world.now_ms < to:
            self._go(min(to, self._next()))
            if monotonic_seconds() - told > TELL_SECONDS:
                told = monotonic_seconds()
                span = max(1, self.scenario.end_ms - self.scenario.start_ms)
                tell(f"{self.scenario.name}: {(self.world.now_ms - self.scenario.start_ms) / span:.0%}, {self.events} events")

    # --- one event -----------------------------------------------------------------------------------------------------
    def _go(self, to: int) -> None:
        world, span = self.world, to - self.world.now_ms
        for job in world.jobs.values():
            job.advance(to)
        world._at = world.now_ms = to
        world.goodput.step(to)
        self._conditions(span)
        revision = world.revision
        self.operations.step(to)
        self.programme.step(to)
        for watcher in self.watchers:
            watcher.step(to)
        if world.scheduler is not None:
            world.scheduler.step(to)
        # What was done just now holds from the next sub-step on.
        self._soon = world.revision != revision
        self.events += 1

    def _conditions(self, span: int) -> None:
        """What holds from now on: knobs, connections, each job's pace; what dies now dies."""
        world = self.world
        world.knobs.reset(self._turned)
        world.plants.apply(world, world.now_ms, AVERAGED)
        wide = any(p.plugin.fault is None or p.plugin.place not in (*ON_NODE, "job") for p in world.plants.current)
        self._turned = None if wide else sorted({row for p in world.plants.current for row in p.place.rows if p.plugin.place != "job"})
        for name, job in world.jobs.items():
            knobs = world.knobs.jobs[name]
            if len(knobs.compute) != job.ranks:
                knobs.resize(job.ranks)
        self._links(span)
        self._storage()
        for name, job in world.jobs.items():
            rows = job._rows
            if isinstance(job, RateJob):
                job.factor = self.factor(job)
                job.storing = float(world.storage.write_factor[rows].max(initial=1.0))
                job.slowness = world.gpus.slowness[rows].ravel()
            else:
                job.links = per_gpu(world.network.endpoint[rows], job.gpus).ravel()
            job.suffer(world.knobs.jobs[name], world.now_ms)

    def _storage(self) -> None:
        """What the storage does to the jobs; while nothing is wrong with it there is nothing to feel."""
        knobs = self.world.knobs.storage
        ill = bool((knobs.up < 1).any() or (knobs.slowness != 1.0).any())
        if ill or self._fed:
            self.world.storage.feel()
        self._fed = ill

    def _links(self, span: int) -> None:
        """Connections under what the network's faults do to them; nothing is to be learnt while there are none."""
        world = self.world
        ill = any(p.plugin.place in ("nic", "switch", "spine", "fleet", "label") or p.plugin.fault in NETWORK
                  for p in world.plants.current if p.present)
        if ill or self._ill:
            world.network.step(world.jobs, max(1, round(span / 1000)), world.knobs.jobs)
        self._ill = ill

    def factor(self, job: Running) -> float:
        """How much longer the job's step is now, by what is planted on it."""
        world, rows, index = self.world, set(job.nodes), job._rows
        stuck = bool((world.knobs.host.mount_hung[index] > 0).any() or (world.knobs.storage.up < 1).any()
                     or (world.network.endpoint[index] >= STALLED).any())
        if stuck:
            return STANDS_STILL
        worst = {"job": world.knobs.jobs[job.name].pace - 1.0}
        for planted in world.plants.current:
            low, high = planted.plugin.impact
            if not planted.present or planted.plugin.fault is None or low == high or planted.level <= 0:
                continue
            at_job = planted.plugin.place == "job"
            if planted.culprit.job != job.name if at_job else not rows & set(planted.place.rows):
                continue
            part = part_of(planted)
            worst[part] = max(worst.get(part, 0.0), planted.severity * planted.level)
        return 1.0 + sum(worst.values())

    # --- the next event --------------------------------------------------------------------------------------------------
    def _next(self) -> int:
        world, now = self.world, self.world.now_ms
        if self._soon:
            return now + SUBSTEP_MS
        times = [self.programme.next_ms(now), self.operations.life.next_ms or NEVER]
        times += [self._plant_next(planted, now) for planted in world.plants.current if planted.present]
        for op in self.operations.running():
            due = NEVER if op.work is None or op.work.due is None else op.work.due()
            times.append(due if now < due < NEVER else self._work_next(now))
        times += [watcher.next_ms(now) for watcher in self.watchers]
        if self.operations.queue.waiting or self.programme.waiting:
            times.append(now + POLL_MS)
        soonest = max(now + 1, min(times))
        # What happens in the full model happens at the end of a sub-step.
        return -(-soonest // SUBSTEP_MS) * SUBSTEP_MS

    def _work_next(self, now: int) -> int:
        """When a job next does something that an operation may wait for."""
        ends = [job.next_ms if isinstance(job, RateJob) else now + SUBSTEP_MS for job in self.world.jobs.values() if job.alive]
        return max(now + SUBSTEP_MS, min((*ends, now + POLL_MS)))

    def _plant_next(self, planted: Planted, now: int) -> int:
        times = [planted.heals_at]
        if planted.onset == "intermittent":
            times.append(max(now + 1, planted._until))
        elif planted.onset == "ramp" and planted.level < 1.0:
            times.append(now + max(1, int(planted.onset_seconds * 1000 / RAMP_STEPS)))
        low, high = planted.plugin.impact
        if planted.plugin.fault is None:
            times.append(now + (POLL_MS if planted.age_seconds(now) < LOOK_ALIKE_SECONDS else SELDOM_MS))
        elif low == high and self._on_a_job(planted):
            # What only leaves marks is asked seldom, what kills often.
            times.append(now + (POLL_MS if high >= 1.0 else SELDOM_MS))
        return min(times)

    def _on_a_job(self, planted: Planted) -> bool:
        rows = set(planted.place.rows)
        return any(job.alive and rows & set(job.nodes) for job in self.world.jobs.values())
