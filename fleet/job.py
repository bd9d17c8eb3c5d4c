"""One synchronous training job: a rank on each GPU of its nodes, in lock-step.

A step lasts as long as its slowest rank computes, plus a collective that is as slow as the slowest rail. What a rank
does not compute it waits; so victims wait and the culprit does not, and neither is painted on. The job moves from
event to event (end of a step, of a checkpoint, of loading) in whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from core.types import Floats
from fleet.joblog import JobLog
from fleet.knobs import JobKnobs
from fleet.work import Work

# Share of full-load power while a rank computes, exchanges data, waits for others, writes a checkpoint, hangs, loads.
COMPUTE, EXCHANGE, WAIT, CHECKPOINT, HANG, LOAD = 1.0, 0.6, 0.25, 0.15, 0.155, 0.04
# The first steps of a run compile, allocate and fill caches.
WARMUP = (10.0, 2.8, 1.5, 1.2, 1.06)
CLOCK_EXPONENT = 0.95
SEQ_PER_STEP = 26
WATCHDOG_SECONDS = 600
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class JobShape:
    """Sizes of a job. Seconds are those of a healthy run; intervals are between the ends of one and the start of the
    next. eval_every_seconds: None = no evaluation. step_noise: sigma of the log-normal noise of a step."""

    compute_seconds: float = 2.55
    collective_seconds: float = 0.58
    checkpoint_every_seconds: float = 300.0
    checkpoint_seconds: tuple[float, float] = (20.0, 30.0)
    eval_every_seconds: float | None = None
    eval_seconds: float = 30.0
    load_seconds: tuple[float, float] = (40.0, 60.0)
    step_noise: float = 0.03
    outlier_share: float = 0.004
    bytes_per_step: float = 2.1e10
    tokens_per_rank: int = 3072
    memory_mib: float = 71_500.0
    checkpoint_bytes_per_node: float = 5.6e10
    first_step: int = 18_000
    last_step: int = 500_000
    log_every: int = 5


@dataclass(slots=True)
class _Segment:
    kind: str
    start: int
    end: int
    load: Floats
    busy: Floats
    traffic: float = 0.0  # bytes a NIC sends per ms
    writing: float = 0.0  # bytes a node writes per ms
    timing: dict[str, Floats] = field(default_factory=dict)


class Job:
    """state: running | stopped (cleanly) | killed | failed | done. nodes: indexes in rank order.

    cooling share, rail factors and hangs come from outside: `slow` float64[rank] (1 = healthy clock) and
    `rails` float64[rail] (1 = healthy) are set by the world before each sub-step.
    """

    def __init__(self, name: str, shape: JobShape, nodes: list[int], gpus: int, log: JobLog,
                 rng: np.random.Generator) -> None:
        self.name, self.shape, self.gpus, self.log, self._rng = name, shape, gpus, log, rng
        self.nodes = list(nodes)
        self.started_ms: int | None = None
        self.state, self.phase, self.clean = "stopped", "init", False
        self.run = 0
        self.step, self.last_checkpoint = shape.first_step, shape.first_step
        self.checkpoints = 0
        self.phase_since = self.trained_since = 0
        self.hung_rank: int | None = None
        self._segment: _Segment | None = None
        self._now = 0
        self._mood = 0.0
        self._loss_wave = 0.0
        self._clear()

    # --- what pages and doors read -----------------------------------------------------------------------------------
    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.gpus

    @property
    def alive(self) -> bool:
        """Whether the ranks' processes exist."""
        return self.state == "running"

    def place(self, rank: int) -> tuple[int, int]:
        """(node index, GPU) of a rank."""
        return self.nodes[rank // self.gpus], rank % self.gpus

    def rank_of(self, node: int, gpu: int) -> int | None:
        """The rank on a GPU; None where the job has none there."""
        return self.nodes.index(node) * self.gpus + gpu if node in self.nodes else None

    def _clear(self) -> None:
        n = self.ranks
        self.slow, self.rails = np.ones(n), np.ones(self.gpus)
        self.slowness = np.ones(n)
        self.seq = np.zeros(n)
        self.last_step_ms = 0
        self.step_seconds = np.nan
        self.compute = np.full(n, np.nan)
        self.comm_wait = np.full(n, np.nan)
        self.data_wait = np.full(n, np.nan)
        self.loss = self.grad_norm = self.tokens_per_second = np.nan
        self.skipped = self.nonfinite = 0
        self._steps_of_run = 0
        self._acc_load, self._acc_busy = np.zeros(n), np.zeros(n)
        self._acc_traffic = self._acc_writing = 0.0

    # --- what the world and the operations do to it ------------------------------------------------------------------
    def start(self, at: int, load_seconds: float | None = None) -> None:
        """Starts (or starts again) all ranks from the newest complete checkpoint."""
        low, high = self.shape.load_seconds
        seconds = load_seconds if load_seconds is not None else float(self._rng.uniform(low, high))
        self.started_ms = at if self.started_ms is None else self.started_ms
        self.state, self.clean, self.hung_rank = "running", False, None
        self.run += 1
        self._now = at
        self._clear()
        self.step = self.last_checkpoint
        self._checkpoint_due = self._eval_due = 0
        self.trained_since = 0
        self._enter("init", at)
        self.log.loading(at, self.name, self.last_checkpoint, self.ranks)
        n = self.ranks
        self._segment = _Segment("init", at, at + int(seconds * 1000), np.full(n, LOAD), np.zeros(n))

    def stop(self, at: int, clean: bool) -> None:
        """Ends all ranks. clean: after a checkpoint, with a last word (phase done); else killed."""
        if not self.alive:
            return
        self.state, self.clean, self._segment, self.hung_rank = ("stopped" if clean else "killed"), clean, None, None
        self._enter("done", at)
        self.log.stopped(at, self.step, clean)

    def suffer(self, knobs: JobKnobs, at: int) -> None:
        """What the knobs do at once: a rank hangs, or goes on."""
        if not self.alive:
            return
        if knobs.hung.any() and self.hung_rank is None:
            self.hang(int(np.argmax(knobs.hung)), at)
        elif self.hung_rank is not None and not knobs.hung.any():
            self.release(at)

    def hang(self, rank: int, at: int) -> None:
        """From now on the rank enters no collective any more, so the step under way never ends."""
        share = 0.0
        if self._segment is not None and self._segment.end > self._segment.start:
            share = (at - self._segment.start) / (self._segment.end - self._segment.start)
        entered = self._steps_of_run * SEQ_PER_STEP + max(1, int(share * SEQ_PER_STEP))
        entered = max(entered, int(self.seq.max()))
        self.seq = np.full(self.ranks, float(entered))
        self.seq[rank] = entered - 1.0
        self.hung_rank = rank
        n = self.ranks
        load = HANG * (1 + 0.12 * self._rng.normal(0, 1, n))
        self._segment = _Segment("hang", at, at + WATCHDOG_SECONDS * 1000, np.clip(load, 0.1, 0.22), np.zeros(n))

    def release(self, at: int) -> None:
        """Ends a hang: the step under way begins anew."""
        if self.hung_rank is not None:
            self.hung_rank = None
            self._begin_step(at)

    def seat(self, nodes: list[int]) -> None:
        """Gives a job that is not running other nodes."""
        self.nodes = list(nodes)
        self._clear()

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
        self._now = to

    def _spend(self, segment: _Segment, until: int) -> None:
        span = until - self._now
        if span <= 0:
            return
        self._acc_load += span * segment.load
        self._acc_busy += span * segment.busy
        self._acc_traffic += span * segment.traffic
        self._acc_writing += span * segment.writing
        self._now = until

    def _tick_seq(self, segment: _Segment, at: int) -> None:
        share = (at - segment.start) / max(1, segment.end - segment.start)
        entered = self._steps_of_run * SEQ_PER_STEP + np.floor(share * SEQ_PER_STEP)
        # The ranks are read a moment apart, so healthy ones differ by one.
        fresh = np.maximum(0.0, entered - (self._rng.random(self.ranks) < 0.3))
        self.seq = np.maximum(self.seq, fresh)

    def collect(self, work: Work, span_ms: int, growth: float) -> None:
        """Adds the means since the last call (span_ms) to the node arrays. growth: share of its memory that it holds."""
        rows = np.array(self.nodes)
        shape = (len(rows), self.gpus)
        work.load[rows] += (self._acc_load / span_ms).reshape(shape)
        work.busy[rows] += (self._acc_busy / span_ms).reshape(shape)
        work.traffic[rows] += self._acc_traffic
        work.writing[rows] += self._acc_writing
        if self.alive:
            work.resident[rows] = self.phase not in ("init", "done")
            work.memory_mib[rows] = self.shape.memory_mib * growth
            work.rings.append(rows)
        self._acc_load[:], self._acc_busy[:] = 0.0, 0.0
        self._acc_traffic = self._acc_writing = 0.0

    @property
    def loaded_share(self) -> float:
        """How much of its memory the job has filled, 0–1."""
        if not self.alive:
            return 0.0
        if self.phase == "init" and self._segment is not None:
            return min(1.0, 0.05 + 0.9 * (self._now - self._segment.start) / max(1, self._segment.end - self._segment.start))
        return 1.0

    # --- segments ----------------------------------------------------------------------------------------------------
    def _enter(self, phase: str, at: int) -> None:
        if phase != self.phase or phase == "init":
            self.phase, self.phase_since = phase, at
            if phase == "train" and not self.trained_since:
                self.trained_since = at

    def _finish(self, segment: _Segment) -> None:
        at = segment.end
        if segment.kind == "hang":
            self._watchdog(at)
            return
        if segment.kind == "init":
            self.log.loaded(at, self.name, self.last_checkpoint)
        if segment.kind in ("step", "warmup"):
            self._finish_step(segment)
        elif segment.kind == "checkpoint":
            self.last_checkpoint = self.step
            self.checkpoints += 1
            self._checkpoint_due = at + int(self.shape.checkpoint_every_seconds * 1000)
            self.log.saved(at, self.step, segment.end - segment.start)
        elif segment.kind == "eval":
            self._eval_due = at + int((self.shape.eval_every_seconds or 0) * 1000)
            self.log.evaluated(at, self.step, self.loss)
        if self.step >= self.shape.last_step:
            self.state, self.clean, self._segment = "done", True, None
            self._enter("done", at)
            return
        self._begin(at)

    def _begin(self, at: int) -> None:
        shape = self.shape
        training = self._steps_of_run >= len(WARMUP)
        if training and not self._checkpoint_due:
            self._checkpoint_due = at + int(shape.checkpoint_every_seconds * 1000)
            self._eval_due = at + int((shape.eval_every_seconds or 0) * 1000)
        if training and at >= self._checkpoint_due:
            self._pause("checkpoint", at, float(self._rng.uniform(*shape.checkpoint_seconds)), CHECKPOINT, 0.0)
        elif training and shape.eval_every_seconds and at >= self._eval_due:
            self._pause("eval", at, shape.eval_seconds, 0.8, 0.62)
        else:
            self._begin_step(at)

    def _pause(self, kind: str, at: int, seconds: float, load: float, busy: float) -> None:
        n, ms = self.ranks, max(1, int(seconds * 1000))
        spread = 1 + 0.05 * self._rng.normal(0, 1, n)
        writing = self.shape.checkpoint_bytes_per_node / ms if kind == "checkpoint" else 0.0
        self._enter(kind, at)
        if kind == "checkpoint":
            self.log.saving(at, self.step)
        self._segment = _Segment(kind, at, at + ms, load * spread, np.full(n, busy), 0.0, writing)

    def _begin_step(self, at: int) -> None:
        rng, shape, n = self._rng, self.shape, self.ranks
        warm = self._steps_of_run < len(WARMUP)
        factor = WARMUP[self._steps_of_run] if warm else 1.0
        self._enter("warmup" if warm else "train", at)
        self._mood = 0.985 * self._mood + 0.0006 * float(rng.normal())
        common = float(np.exp(shape.step_noise * rng.normal() - shape.step_noise**2 / 2 + self._mood))
        compute = (shape.compute_seconds * common * factor * self.slowness / self.slow**CLOCK_EXPONENT
                   * (1 + 0.005 * rng.normal(0, 1, n)))
        data = 0.008 + 0.012 * rng.lognormal(0, 0.4, n)
        exchange = shape.collective_seconds * float(self.rails.max()) * float(rng.lognormal(0, 0.07))
        hiccup = 0.0
        if not warm and rng.random() < shape.outlier_share:
            hiccup = (shape.compute_seconds + shape.collective_seconds) * float(rng.uniform(0.25, 1.2))
        total = float((compute + data).max()) + exchange + hiccup
        wait = total - compute - data - exchange
        load = (COMPUTE * compute + EXCHANGE * exchange + WAIT * (wait + data)) / total
        ms = max(1, round(total * 1000))
        timing = {"compute": compute, "data": data, "comm": wait + exchange}
        self._segment = _Segment("warmup" if warm else "step", at, at + ms, load, compute / total,
                                 shape.bytes_per_step / ms, 0.0, timing)

    def _finish_step(self, segment: _Segment) -> None:
        rng, shape = self._rng, self.shape
        self.step += 1
        self._steps_of_run += 1
        self.seq = np.full(self.ranks, float(self._steps_of_run * SEQ_PER_STEP))
        self.last_step_ms = segment.end
        self.step_seconds = (segment.end - segment.start) / 1000
        self.compute, self.data_wait, self.comm_wait = (segment.timing[k] for k in ("compute", "data", "comm"))
        self.tokens_per_second = shape.tokens_per_rank / self.step_seconds
        self._loss_wave = 0.6 * self._loss_wave + 0.02 * float(rng.normal())
        bump = float(rng.exponential(0.05)) if rng.random() < 0.006 else 0.0
        self.loss = 1.62 + 8.4 * (self.step + 60.0) ** -0.31 + self._loss_wave + 0.012 * float(rng.normal()) + bump
        self.grad_norm = float(0.31 * rng.lognormal(0, 0.13)) * (1 + 2 * bump)
        if self.step % shape.log_every == 0:
            self.log.iteration(segment.end, self, self.step_seconds)

    def _watchdog(self, at: int) -> None:
        self.log.watchdog(at, self, WATCHDOG_SECONDS)
        self.state, self.clean, self._segment = "failed", False, None
        self._enter("done", at)
