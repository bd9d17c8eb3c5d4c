"""A synchronous training job: a rank on each GPU of its nodes, in lock-step, in tensor, data and pipeline groups.

What a rank does not compute it waits; so victims wait and the culprit does not, and neither is painted on. The job moves
from event to event (end of a step, of a checkpoint, of loading) in whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.types import Floats
from fleet import recovery
from fleet.checkpoints import SPREAD, CheckpointStore, Tier
from fleet.groups import lockstep
from fleet.joblog import JobLog
from fleet.knobs import JobKnobs
from fleet.loss import LossCurve
from fleet.noise import Noise, StepNoise
from fleet.running import Running
from fleet.shape import CLOCK_EXPONENT, Impact, JobShape
from fleet.waits import WORTH_ASKING_SECONDS, late, moved

__all__ = ["CHECKPOINT", "CLOCK_EXPONENT", "COMPUTE", "EXCHANGE", "HANG", "LOAD", "WAIT", "WARMUP",
           "WATCHDOG_SECONDS", "Impact", "Job", "JobShape"]

# Share of full-load power while the SMs of a slow GPU wait in the middle of a kernel (its power is a little low, facts/signals.md §11).
STALLED = 0.5
# Share of full-load power while a rank computes, exchanges data, waits for others, writes a checkpoint, hangs, loads.
COMPUTE, EXCHANGE, WAIT, CHECKPOINT, HANG, LOAD = 1.0, 0.6, 0.25, 0.15, 0.155, 0.04
# Load and share of time in compute while it evaluates.
EVAL_LOAD, EVAL_BUSY = 0.8, 0.62
# The first steps of a run compile, allocate and fill caches.
WARMUP = (10.0, 2.8, 1.5, 1.2, 1.06)
SEQ_PER_STEP = 26
WATCHDOG_SECONDS = 600
# A step counts as slow by what it takes beyond this factor on the same step with healthy parts.
SLOW_BEYOND = 1.03
# The log's clock is read when its line is written, up to so much late: seen only where steps are short.
PRINT_SECONDS = 0.002


@dataclass(slots=True)
class Segment:
    """A stretch of time in which the job does one thing. load, busy, stalled, traffic: float64[rank], of a ms. healthy_ms: what a
    step would have taken on healthy parts, without warm-up. timing: a step's parts, float64[rank]. tier: what is saved to or
    read from; its last `stored_ms` are that, reckoned with the factor `slowed`. late: seconds that each rank's batch comes
    too late, float64[rank], as of `seen` ms and at the loaders' factors `loader`."""

    kind: str
    start: int
    end: int
    load: Floats
    busy: Floats
    traffic: float = 0.0
    healthy_ms: int = 0
    timing: dict[str, Floats] = field(default_factory=dict)
    tier: Tier | None = None
    stored_ms: int = 0
    slowed: float = 1.0
    late: Floats | None = None
    loader: Floats | None = None
    seen: int = 0
    stalled: Floats | float = 0.0


class Job(Running):
    """A training job; see `Running` for what the world, pages and doors use.

    hung_rank: the rank that stands still. curve: the state of its loss. store: its checkpoints.
    """

    log: JobLog

    def __init__(self, name: str, shape: JobShape, nodes: list[int], gpus: int, log: JobLog,
                 rng: np.random.Generator) -> None:
        self.curve, self._noise = LossCurve(shape.fp16, shape.loss_noise), StepNoise(shape, len(nodes))
        self.store = CheckpointStore.of(shape.checkpoint_tier, shape.checkpoint_every_seconds, shape.extra_tiers)
        self.store.on_clock = shape.checkpoint_on_clock
        self._segment: Segment | None = None
        self._reached = shape.first_step
        self._before: frozenset[int] = frozenset()
        super().__init__(name, shape, nodes, gpus, log, rng)

    @property
    def last_checkpoint(self) -> int:
        """Step of the newest complete checkpoint of any tier."""
        newest = self.store.newest()
        return self.shape.first_step if newest is None else newest.step

    def _clear(self) -> None:
        super()._clear()
        self.curve.restart()
        self._steps_of_run = self._warm = 0
        self._asked: str | None = None
        self._paused: Floats | None = None
        self._told = (0, 0)
        self._felt_at = 0
        self._nan_rank: int | None = None

    # --- what the world and the operations do to it ------------------------------------------------------------------
    def start(self, at: int, load_seconds: float | None = None, mode: str | None = None) -> None:
        """Starts (or starts again) all ranks from the newest complete checkpoint that its nodes can read.

        load_seconds: how long that takes; else as the way of recovery `mode` costs (`fleet.recovery.WAYS`), else as the
        shape says. Raises BadInput for an unknown mode.
        """
        way = None if mode is None else recovery.way_named(mode)
        usable = self.store.usable(self.nodes)
        if way is not None and way.from_peers:
            in_memory = [saved for saved in usable if saved.tier.in_memory]
            # Nothing (any more) in the peers' memory: what was exchanged reads from where the newest lies.
            usable, way = (in_memory, way) if in_memory else (usable, recovery.way_named("partial"))
        source = usable[0] if usable else None
        seconds, reading = load_seconds, 0.0
        tier = None if source is None or way is None or way.from_peers else source.tier
        slowed = 1.0 if tier is None else self._pace_of(tier)
        if seconds is None and way is not None:
            connecting, reading = recovery.stages(way, self.ranks, self.shape.checkpoint_bytes_per_node,
                                                  None if source is None else source.tier, slowed, self._rng)
            seconds = connecting + reading
        if seconds is None:
            seconds = float(self._rng.uniform(*self.shape.load_seconds))
        self.started_ms = at if self.started_ms is None else self.started_ms
        self.state, self.clean, self.hung_rank = "running", False, None
        self.run += 1
        self._now = at
        self._clear()
        if way is not None and way.keeps:
            self._holds = np.repeat([0.0 if n in self._before else 1.0 for n in self.nodes], self.gpus)
        self._before = frozenset(self.nodes)
        self.step = self.shape.first_step if source is None else source.step
        self.trained_since = 0
        self._enter("init", at)
        self.log.loading(at, self)
        n = self.ranks
        self._segment = Segment("init", at, at + max(1, int(seconds * 1000)), np.full(n, LOAD), np.zeros(n), tier=tier,
                                stored_ms=0 if tier is None else int(reading * 1000), slowed=slowed)
        self._felt_at = at

    def _pace_of(self, tier: Tier) -> float:
        """The factor on what is written to a tier or read from it now."""
        return self.storing if tier.name == "lustre" else self.saving

    def distrust(self, since: int) -> bool:
        """The next start loads nothing that was saved after `since` (ms). False where there is no such checkpoint."""
        return self.store.distrust(since)

    def stop(self, at: int, clean: bool) -> None:
        """Ends all ranks. clean: after a checkpoint, with a last word (phase done); else killed."""
        if self.alive:
            self.advance(at)
        super().stop(at, clean)

    def _end(self, at: int, state: str, clean: bool) -> None:
        self._interrupt(at)
        self.store.abort()
        self._segment = None
        super()._end(at, state, clean)

    def _interrupt(self, at: int) -> None:
        """The step under way will never end: its time is lost."""
        segment = self._segment
        if segment is None:
            return
        self._spend(segment, at)
        self._move("productive", "lost_work", self._lost_ms(segment))

    def _lost_ms(self, segment: Segment) -> int:
        """What the step under way has taken so far."""
        return max(0, self._now - segment.start) if self._cause(segment) == "productive" else 0

    def suffer(self, knobs: JobKnobs, at: int) -> None:
        """Takes over the knobs; a rank hangs or goes on, the processes die, a phase is asked for."""
        super().suffer(knobs, at)
        if not self.alive:
            return
        self._wait_on(knobs, at)
        if knobs.crash is not None:
            self.crash(knobs.crash, knobs.crash_rank or 0, at)
            return
        if knobs.hung.any() and self.hung_rank is None:
            self.hang(int(np.argmax(knobs.hung)), at)
            # Ranks that stop together are behind together.
            self.seq[knobs.hung] = self.seq[self.hung_rank]
        elif self.hung_rank is not None and not knobs.hung.any():
            self.release(at)
        if knobs.ask is not None and self.phase != ("warmup" if knobs.ask == "compile" else knobs.ask):
            self._asked = knobs.ask
        self._paused = knobs.pause_seconds.copy() if knobs.pause_seconds.any() else None
        self._nan_rank = knobs.nan_rank if knobs.nan_rank is not None else self._nan_rank

    def _wait_on(self, knobs: JobKnobs, at: int) -> None:
        """What waits for storage takes as long as it does at the pace of now."""
        since, self._felt_at = self._felt_at, at
        for saved in self.store.under_way:
            saved.pace(since, at, knobs.save_slowness * self._pace_of(saved.tier))
        segment = self._segment
        if segment is None:
            return
        if segment.tier is not None and segment.stored_ms:
            now = self._pace_of(segment.tier) * (knobs.save_slowness if segment.kind == "checkpoint" else 1.0)
            segment.end, segment.stored_ms = moved(segment.end, segment.stored_ms, max(since, segment.start), at, segment.slowed, now)
            segment.slowed = now
        elif segment.late is not None and segment.loader is not None and segment.late.any():
            self._await_batches(segment, segment.late, segment.loader, at)

    def _await_batches(self, segment: Segment, owed: Floats, then: Floats, at: int) -> None:
        """The step under way ends when the last rank has its batch, whose source may have become quicker meanwhile."""
        passed = (at - max(segment.seen, segment.start)) / 1000
        rest = late(owed, passed, then, self.loader)
        # Whoever had its batch already waits with the others, whose batches now come later or sooner than was reckoned.
        shift = float(rest.max() - max(0.0, float(owed.max()) - passed))
        own = rest - np.maximum(0.0, owed - passed)
        segment.end = max(at + 1, segment.end + round(shift * 1000))
        if segment.timing:
            segment.timing["data"] = np.maximum(0.0, segment.timing["data"] + own)
            segment.timing["comm"] = np.maximum(0.0, segment.timing["comm"] + shift - own)
        segment.late, segment.loader, segment.seen = rest, self.loader.copy(), at

    def crash(self, reason: str, rank: int, at: int) -> None:
        """A rank dies and takes the others with it. reason: a name of `joblog.CRASHES`, or the message."""
        if self.alive:
            self.log.crashed(at, self, reason, rank)
            self._end(at, "failed", False)

    def hang(self, rank: int, at: int) -> None:
        """From now on the rank enters no collective any more, so the step under way never ends."""
        share = 0.0
        if self._segment is not None and self._segment.end > self._segment.start:
            share = min(1.0, max(0.0, (at - self._segment.start) / (self._segment.end - self._segment.start)))
        self._interrupt(at)
        entered = self._steps_of_run * SEQ_PER_STEP + max(1, int(share * SEQ_PER_STEP))
        entered = max(entered, int(self.seq.max()))
        self.seq = np.full(self.ranks, float(entered))
        self.seq[rank] = entered - 1.0
        self.hung_rank = rank
        n = self.ranks
        load = HANG * (1 + 0.12 * self._rng.normal(0, 1, n))
        self._segment = Segment("hang", at, at + WATCHDOG_SECONDS * 1000, np.clip(load, 0.1, 0.22), np.zeros(n))

    def release(self, at: int) -> None:
        """Ends a hang: the step under way begins anew."""
        if self.hung_rank is not None:
            self.hung_rank = None
            self._begin_step(at)

    def node_lost(self, node: int, memory_only: bool) -> bool:
        """A node rebooted (`memory_only`) or left with its disks: checkpoints that only lay there are gone."""
        had = len(self.store.complete)
        self.store.node_lost(node, memory_only)
        self._before -= {node}
        return len(self.store.complete) < had

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, to: int) -> None:
        """Moves on to `to` (ms)."""
        while self._segment is not None and self._segment.end <= to:
            segment = self._segment
            self._spend(segment, segment.end)
            self._finish(segment)
        if self._segment is not None:
            self._spend(self._segment, to)
            if self._segment.kind in ("step", "warmup") and self.hung_rank is None:
                self._tick_seq(self._segment, to)
        self._now = max(self._now, to)

    def _spend(self, segment: Segment, until: int) -> None:
        span = until - self._now
        if span <= 0:
            return
        acc = self._acc
        acc.load += span * segment.load
        acc.busy += span * segment.busy
        acc.stalled += span * segment.stalled
        acc.traffic += span * segment.traffic
        for saved in self.store.under_way:
            # Host memory and object stores take nothing from the node's disks.
            written = saved.write(self._now, until)
            if saved.tier.name in ("lustre", "nvme") and written > 0:
                acc.writing += self.shape.checkpoint_bytes_per_node * written
        self._book(self._cause(segment), span)
        self._now = until

    def _cause(self, segment: Segment) -> str:
        if segment.kind == "init":
            return "init" if self.run == 1 else "restart"
        return {"checkpoint": "checkpoint", "eval": "eval", "hang": "hung"}.get(segment.kind, "productive")

    def _tick_seq(self, segment: Segment, at: int) -> None:
        share = (at - segment.start) / max(1, segment.end - segment.start)
        entered = self._steps_of_run * SEQ_PER_STEP + np.floor(share * SEQ_PER_STEP)
        # The ranks are read a moment apart, so healthy ones differ by one.
        fresh = np.maximum(0.0, entered - (self._rng.random(self.ranks) < 0.3))
        self.seq = np.maximum(self.seq, fresh)

    @property
    def loaded_share(self) -> float:
        """How much of its memory the job has filled, 0–1."""
        if self.alive and self.phase == "init" and self._segment is not None:
            done = (self._now - self._segment.start) / max(1, self._segment.end - self._segment.start)
            return min(1.0, 0.05 + 0.9 * done)
        return super().loaded_share

    # --- from segment to segment -------------------------------------------------------------------------------------
    def _finish(self, segment: Segment) -> None:
        at = segment.end
        if segment.kind == "hang":
            self.log.watchdog(at, self, WATCHDOG_SECONDS)
            self._end(at, "failed", False)
            return
        if segment.kind == "init":
            self.log.loaded(at, self)
            self._holds = np.ones(self.ranks)
        elif segment.kind in ("step", "warmup"):
            self._finish_step(segment)
        elif segment.kind == "eval":
            self._eval_due = at + int((self.shape.eval_every_seconds or 0) * 1000)
            self.log.evaluated(at, self.step, self.loss)
        self._settle(at)
        if self.step >= self.shape.last_step:
            self._segment = None
            self.log.finished(at, self)
            self._end(at, "done", True)
            return
        self._begin(at)

    def _settle(self, at: int) -> None:
        fails = self._felt.numbers.saves_fail
        for saved in self.store.settle(at, fails):
            if fails:
                self.log.save_failed(at, saved.step, self.ranks - 1, saved.tier.name)
                continue
            self.checkpoints += saved.tier is self.store.main
            self.log.saved(at, saved.step, saved.done - saved.began, saved.tier.name)

    def _begin(self, at: int) -> None:
        shape, asked = self.shape, self._asked
        training = self._warm >= len(WARMUP)
        if training and not self.store.planned:
            self.store.plan(at)
            self._eval_due = at + int((shape.eval_every_seconds or 0) * 1000)
        self._asked = None
        if asked == "compile":
            self._warm, training = 0, False
        tier = self.store.due(at) if training else None
        if asked == "checkpoint" and not self.store.under_way:
            tier = self.store.main
        if tier is not None:
            self._save(tier, at)
        elif asked == "eval" or (training and shape.eval_every_seconds and at >= self._eval_due):
            self._pause("eval", at, shape.eval_seconds, EVAL_LOAD, EVAL_BUSY)
        else:
            self._begin_step(at)

    def _save(self, tier: Tier, at: int) -> None:
        """The training stands still for what of the saving blocks it."""
        shape = self.shape
        if tier.name == "lustre":
            seconds = float(self._rng.uniform(*shape.checkpoint_seconds))
        else:
            seconds = shape.checkpoint_bytes_per_node / tier.write * float(self._rng.uniform(*SPREAD))
        slowed = self._felt.numbers.save_slowness * self._pace_of(tier)
        seconds *= slowed
        self.store.begin(tier, self.step, at, seconds, self.nodes, slowed)
        self.log.saving(at, self.step, tier.name)
        paused = self._pause("checkpoint", at, seconds * tier.blocks, CHECKPOINT, 0.0)
        paused.tier, paused.slowed, paused.stored_ms = tier, slowed, paused.end - paused.start

    def _pause(self, kind: str, at: int, seconds: float, load: float, busy: float) -> Segment:
        n, ms = self.ranks, max(1, int(seconds * 1000))
        spread = 1 + 0.05 * self._rng.normal(0, 1, n)
        self._enter(kind, at)
        self._segment = Segment(kind, at, at + ms, load * spread, np.full(n, busy))
        return self._segment

    # --- steps -------------------------------------------------------------------------------------------------------
    def _begin_step(self, at: int) -> None:
        warm = self._warm < len(WARMUP)
        self._enter("warmup" if warm else "train", at)
        noise = self._noise.draw(self._rng, self.ranks, self.step + 1)
        self._segment = self._time_step("warmup" if warm else "step", at, noise, WARMUP[self._warm] if warm else 1.0)

    def _time_step(self, kind: str, at: int, noise: Noise, factor: float) -> Segment:
        rng, shape, n, felt = self._rng, self.shape, self.ranks, self._felt
        pace, tokens, impact = felt.numbers.pace, felt.numbers.tokens, Impact(shape, self.groups.pp, self.groups.dp)
        usual = shape.compute_seconds * noise.common * factor
        kernels = (usual * tokens * pace * self.slowness * felt.compute / self.slow**CLOCK_EXPONENT
                   * (1 + 0.005 * rng.normal(0, 1, n)))
        owed = np.maximum(0.0, shape.loader_seconds * tokens * self.loader - kernels)
        data = shape.fetch_seconds * (0.4 + 0.6 * rng.lognormal(0, 0.4, n)) * felt.data + owed
        wobble = float(rng.lognormal(0, 0.07))
        usual_step = impact.step_seconds
        stall = self._stall(noise, usual_step) + kernels * (felt.late - 1.0)
        exchange = pace * wobble * self.links
        step = lockstep(self.groups, kernels + data + stall, pace * shape.tensor_seconds * self.nvlink,
                        shape.hop_seconds * exchange, shape.collective_seconds * exchange, shape.microbatches)
        shared = noise.excess * usual_step if noise.rank is None and kind == "step" else 0.0
        total = step.seconds + shared
        wait = total - kernels - data - step.exchange
        stalled = kernels * (1.0 - 1.0 / self.slowness)
        load = (COMPUTE * kernels - (COMPUTE - STALLED) * stalled + EXCHANGE * step.exchange + WAIT * (wait + data)) / total
        healthy = usual_step * (1 + noise.excess) + tokens * usual / factor - shape.compute_seconds
        ms = max(1, round(total * 1000))
        timing = {"compute": kernels + stall, "data": data, "comm": total - kernels - stall - data}
        return Segment(kind, at, at + ms, load, kernels / total, shape.bytes_per_step * tokens / ms, round(healthy * 1000), timing,
                       late=owed if (owed > WORTH_ASKING_SECONDS).any() else None, loader=self.loader.copy(), seen=at,
                       stalled=stalled / total)

    def _stall(self, noise: Noise, usual: float) -> Floats:
        """Seconds that ranks stand still in the middle of their step: pauses from outside, and one rank's own hiccup."""
        stall = np.zeros(self.ranks)
        if self._paused is not None:
            stall, self._paused = stall + self._paused, None
        if noise.rank is not None:
            stall[noise.rank] += noise.excess * usual
        return stall

    def _finish_step(self, segment: Segment) -> None:
        shape, numbers = self.shape, self._felt.numbers
        self.step += 1
        self._steps_of_run += 1
        self._warm += 1
        self.seq = np.full(self.ranks, float(self._steps_of_run * SEQ_PER_STEP))
        self.last_step_ms = segment.end
        self.step_seconds = (segment.end - segment.start) / 1000
        self.compute, self.data_wait, self.comm_wait = (segment.timing[k] for k in ("compute", "data", "comm"))
        self.tokens_per_second = shape.tokens_per_rank * numbers.tokens / self.step_seconds
        self.curve.step(self._rng, self.step, numbers.loss_bump, numbers.loss_slope, numbers.nonfinite or self._nan_rank is not None,
                        numbers.overflow_share, numbers.grad, numbers.loss_frozen)
        if self._nan_rank is not None:
            self.log.found_nan(segment.end, self._nan_rank, self.step)
            self._nan_rank = None
        self.loss, self.grad_norm = self.curve.loss, self.curve.grad_norm
        self.skipped, self.nonfinite = self.curve.skipped, self.curve.nonfinite
        if self.curve.overflowed is not None:
            self.log.overflow(segment.end, self.curve.overflowed)
        if self.step % shape.log_every == 0:
            skipped, nonfinite = self._told
            shown = self.step_seconds + PRINT_SECONDS * (_late(self.step) - _late(self.step - 1))
            self.log.iteration(segment.end, self, shown, self.skipped - skipped, self.nonfinite - nonfinite)
            self._told = (self.skipped, self.nonfinite)
        self._judge_step(segment)

    def _judge_step(self, segment: Segment) -> None:
        """Books what of the step was not productive: done before, warm-up, or slower than healthy parts are."""
        took = segment.end - segment.start
        if self.step <= self._reached:
            self._move("productive", "lost_work", took)
            return
        self._reached = self.step
        beyond = took - round(segment.healthy_ms * SLOW_BEYOND)
        if beyond > 0:
            self._move("productive", "warmup" if segment.kind == "warmup" else "slow", took - min(took, segment.healthy_ms))


def _late(step: int) -> float:
    """How late a step's line is written, 0-1: the same for the same step, so that it decides nobody's draws."""
    return (step * 2_654_435_761 & 0xFFFF_FFFF) * 0x9E37_79B1 % 65_521 / 65_521
