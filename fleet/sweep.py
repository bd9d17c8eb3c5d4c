"""A sweep: one run on each node, each for itself. Nobody waits for anybody, so a slow node slows only its own run.

Runs come and go: one trains its steps with its own sizes, evaluates, and the next one of the node begins. All of a fleet's
runs are moved on together, from event to event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet import loss
from fleet.groups import Groups
from fleet.job import CLOCK_EXPONENT, COMPUTE, EVAL_BUSY, EVAL_LOAD, EXCHANGE, HANG, LOAD, WAIT, WARMUP
from fleet.joblog import SweepLog
from fleet.knobs import JobKnobs
from fleet.running import CAUSE_INDEX, PHASE_INDEX, Entry, Running
from fleet.shape import JobShape
from fleet.waits import WORTH_ASKING_SECONDS, late

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

INIT, STEP, EVAL, GAP, HUNG = range(5)
_PHASE = np.array([PHASE_INDEX[p] for p in ("init", "train", "eval", "done", "train")])
_CAUSE = np.array([CAUSE_INDEX[c] for c in ("init", "productive", "eval", "idle", "hung")])
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class SweepShape(JobShape):
    """A sweep's sizes. run_steps: steps of a run (least, most); gap_seconds: between two runs of a node; sizes: factor on the
    compute of a run, drawn for each."""

    compute_seconds: float = 1.8
    tensor_seconds: float = 0.12
    collective_seconds: float = 0.0
    loader_seconds: float = 0.9
    load_seconds: tuple[float, float] = (10.0, 25.0)
    eval_seconds: float = 8.0
    first_step: int = 0
    last_step: int = 10**9
    memory_mib: float = 46_000.0
    log_every: int = 10
    run_steps: tuple[int, int] = (200, 1_000)
    gap_seconds: tuple[float, float] = (5.0, 40.0)
    sizes: tuple[float, float] = (0.6, 1.6)


class Sweep(Running):
    """See `Running`. Arrays with [run] have one value a node: kinds, steps, seconds and losses of its run."""

    kind = "sweep"
    linked = False
    shape: SweepShape
    log: SweepLog

    def __init__(self, name: str, shape: SweepShape, nodes: list[int], gpus: int, log: SweepLog, rng: np.random.Generator,
                 names: Sequence[str] = ()) -> None:
        self._names = dict(zip(nodes, names, strict=False))
        super().__init__(name, shape, nodes, gpus, log, rng)

    def _fit(self, ranks: int) -> Groups:
        return Groups(self.gpus, 1, max(1, ranks // self.gpus))

    def _clear(self) -> None:
        super()._clear()
        runs, n = len(self.nodes), self.ranks
        self._kind: Ints = np.full(runs, GAP)
        self._began, self._until = np.zeros(runs, np.int64), np.full(runs, NEVER)
        self._at = np.zeros(runs, np.int64)
        self._healthy = np.zeros(runs, np.int64)
        self._steps, self._goal = np.zeros(runs, np.int64), np.zeros(runs, np.int64)
        self._size = np.ones(runs)
        self._seconds, self._losses, self._ended = np.full(runs, np.nan), np.full(runs, np.nan), np.zeros(runs)
        self._grads = np.full(runs, np.nan)
        self._nonfinites = np.zeros(runs)
        self._load, self._busy = np.zeros(n), np.zeros(n)
        self._parts = np.full((3, n), np.nan)  # compute, data, comm of the step under way
        self._ranks_of = np.arange(n).reshape(runs, self.gpus)
        # Seconds that the step's batch comes too late, as of the last look, and the loader's factor then.
        self._late, self._loaders, self._looked = np.zeros(runs), np.ones(runs), 0

    # --- what the world does to it -----------------------------------------------------------------------------------
    def start(self, at: int, load_seconds: float | None = None, mode: str | None = None) -> None:
        """Each node begins a run; their loading ends at moments of their own."""
        self.started_ms = at if self.started_ms is None else self.started_ms
        self.state, self.clean = "running", False
        self.run += 1
        self._now = at
        self._clear()
        self._at[:] = at
        self.trained_since = 0
        self._enter("init", at)
        self._enter("train", at)
        self._begin_runs(np.ones(len(self.nodes), bool), self._at, load_seconds)

    def _end(self, at: int, state: str, clean: bool) -> None:
        self.advance(at)
        super()._end(at, state, clean)
        self._kind[:], self._until[:] = GAP, NEVER

    def suffer(self, knobs: JobKnobs, at: int) -> None:
        """Takes over the knobs; a run whose rank hangs stands still, a run whose rank dies is over."""
        super().suffer(knobs, at)
        if not self.alive:
            return
        self._await_batches(at)
        hung = knobs.hung.reshape(-1, self.gpus).any(axis=1)
        new, gone = hung & (self._kind == STEP), ~hung & (self._kind == HUNG)
        if new.any():
            self._kind[new], self._until[new] = HUNG, NEVER
            self._load[self._ranks_of[new]], self._busy[self._ranks_of[new]] = HANG, 0.0
        if gone.any():
            self._begin_steps(gone, np.where(gone, at, self._at))
        if knobs.crash is not None:
            dead, rank = np.zeros(len(self.nodes), bool), knobs.crash_rank or 0
            dead[rank // self.gpus] = True
            self.log.crashed(at, self._name(rank // self.gpus), knobs.crash, rank, rank % self.gpus)
            self._rest(dead, np.where(dead, at, self._at))

    def _await_batches(self, at: int) -> None:
        """Steps that wait for a batch end sooner when its source gets quicker, later while it is gone."""
        waiting = (self._kind == STEP) & (self._late > WORTH_ASKING_SECONDS)
        if waiting.any():
            now = self.loader.reshape(-1, self.gpus).max(axis=1)
            passed = np.maximum(0, at - np.maximum(self._began, self._looked)) / 1000
            rest = late(self._late, passed, self._loaders, now)
            shift = np.where(waiting, rest - np.maximum(0.0, self._late - passed), 0.0)
            self._until = np.where(waiting, np.maximum(at + 1, self._until + np.round(shift * 1000).astype(np.int64)), self._until)
            self._parts[1] += np.repeat(shift, self.gpus)
            self._late, self._loaders = np.where(waiting, rest, self._late), np.where(waiting, now, self._loaders)
        self._looked = at

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, to: int) -> None:
        """Moves all runs on to `to` (ms)."""
        while self.alive:
            ended = self._until <= to
            if not ended.any():
                break
            self._spend(ended, self._until)
            self._finish(ended)
        if self.alive:
            self._spend(self._at < to, np.full_like(self._at, to))
            # For doors that show one number a job: the run that is furthest.
            self.step = int(self._steps.max())
            self.step_seconds = float(self._seconds[int(self._steps.argmax())])
        self._now = max(self._now, to)

    def _spend(self, runs: Bools, until: Ints) -> None:
        span = np.where(runs, np.maximum(0, until - self._at), 0)
        spread = np.repeat(span, self.gpus)
        self._acc.load += spread * self._load
        self._acc.busy += spread * self._busy
        for kind in np.unique(self._kind[span > 0]):
            mine = (self._kind == kind) & (span > 0)
            self.entries.append(Entry(self._rows[mine], int(_CAUSE[kind]), span[mine]))
        self._at = self._at + span

    def _finish(self, ended: Bools) -> None:
        kind, at = self._kind, self._until.copy()
        stepped = ended & (kind == STEP)
        if stepped.any():
            self._finish_steps(stepped)
        full = stepped & (self._steps >= self._goal)
        rested, evaluated = ended & (kind == GAP), ended & (kind == EVAL)
        loaded = ended & (kind == INIT)
        if full.any():
            self._set(full, EVAL, at, np.full(len(at), self.shape.eval_seconds), EVAL_LOAD, EVAL_BUSY)
        if evaluated.any():
            self._rest(evaluated, at)
        if rested.any():
            self._begin_runs(rested, at, None)
        on = (stepped & ~full) | loaded
        if on.any():
            self._begin_steps(on, at)

    def _set(self, runs: Bools, kind: int, at: Ints, seconds: Floats, load: float, busy: float) -> None:
        ranks = self._ranks_of[runs].ravel()
        self._kind[runs], self._began[runs] = kind, at[runs]
        self._until[runs] = at[runs] + np.maximum(1, np.round(seconds[runs] * 1000)).astype(np.int64)
        self._load[ranks], self._busy[ranks] = load, busy

    def _rest(self, runs: Bools, at: Ints) -> None:
        self._set(runs, GAP, at, self._rng.uniform(*self.shape.gap_seconds, len(at)), 0.0, 0.0)

    def _begin_runs(self, runs: Bools, at: Ints, load_seconds: float | None) -> None:
        """New runs of these nodes, with sizes of their own."""
        rng, shape, n = self._rng, self.shape, len(self.nodes)
        low, high = shape.run_steps
        goal = rng.integers(low, high + 1, n)
        size = np.exp(rng.uniform(np.log(shape.sizes[0]), np.log(shape.sizes[1]), n))
        seconds = rng.uniform(*shape.load_seconds, n) if load_seconds is None else np.full(n, load_seconds)
        self._goal, self._size = np.where(runs, goal, self._goal), np.where(runs, size, self._size)
        self._steps[runs] = 0
        self._seconds[runs], self._losses[runs], self._grads[runs] = np.nan, np.nan, np.nan
        self._ended[runs], self._nonfinites[runs] = 0.0, 0.0
        for shown in (self.compute, self.data_wait, self.comm_wait):
            shown[self._ranks_of[runs].ravel()] = np.nan
        self._set(runs, INIT, at, seconds, LOAD, 0.0)

    # --- steps -------------------------------------------------------------------------------------------------------
    def _begin_steps(self, runs: Bools, at: Ints) -> None:
        rng, shape, felt, n = self._rng, self.shape, self._felt, len(self.nodes)
        warm = np.array([*WARMUP, 1.0])[np.minimum(self._steps, len(WARMUP))]
        noise = np.exp(shape.step_noise * rng.normal(0, 1, n)) * self._size
        uniform, tail, jitter = rng.random((2, n)), rng.exponential(shape.rough_mean, n), rng.normal(0, 1, (n, self.gpus))
        excess = np.where(uniform[0] < shape.rough_share, tail, 0.0)
        low, high = shape.outlier
        excess = np.where(uniform[1] < shape.outlier_share, low + (high - low) * uniform[1] / shape.outlier_share, excess)
        gpus = (n, self.gpus)
        pace = felt.numbers.pace
        usual = shape.compute_seconds * noise * warm
        kernels = (usual[:, None] * pace * (self.slowness * felt.compute / self.slow**CLOCK_EXPONENT).reshape(gpus)
                   * (1 + 0.005 * jitter))
        loader = self.loader.reshape(gpus)
        owed = np.maximum(0.0, shape.loader_seconds * self._size[:, None] * loader - kernels)
        data = shape.fetch_seconds * felt.data.reshape(gpus) + owed
        inside = shape.tensor_seconds * self._size * self.nvlink.reshape(gpus).max(axis=1)
        pause = felt.pause.reshape(gpus)
        best = (kernels + data + pause).max(axis=1) + inside
        total = best * (1 + np.where(self._steps < len(WARMUP), 0.0, excess))
        load = (COMPUTE * kernels + EXCHANGE * inside[:, None] + WAIT * (total[:, None] - kernels - inside[:, None])) / total[:, None]
        mine = np.repeat(runs, self.gpus)
        self._late, self._loaders = np.where(runs, owed.max(axis=1), self._late), np.where(runs, loader.max(axis=1), self._loaders)
        self._set(runs, STEP, at, total, 0.0, 0.0)
        self._load, self._busy = np.where(mine, load.ravel(), self._load), np.where(mine, (kernels / total[:, None]).ravel(), self._busy)
        parts = np.stack([(kernels + pause).ravel(), data.ravel(), (total[:, None] - kernels - data - pause).ravel()])
        self._parts = np.where(mine, parts, self._parts)
        healthy = (usual / warm + shape.fetch_seconds + shape.tensor_seconds * self._size) * (1 + excess)
        self._healthy = np.where(runs, np.round(1000 * healthy).astype(np.int64), self._healthy)

    def _finish_steps(self, runs: Bools) -> None:
        rng, felt, n = self._rng, self._felt.numbers, len(self.nodes)
        normal, at = rng.normal(0, 1, (3, n)), self._until
        self._steps[runs] += 1
        took = at - self._began
        self._seconds = np.where(runs, took / 1000, self._seconds)
        self._ended = np.where(runs, at / 1000, self._ended)
        smooth = loss.FLOOR + loss.SCALE * (self._steps + 60.0) ** loss.POWER
        value = smooth + self.shape.loss_noise * normal[1] + felt.loss_bump
        grad = loss.GRAD * np.exp(loss.GRAD_SPREAD * normal[2]) * felt.grad
        if felt.nonfinite:
            value, grad = np.full(n, np.nan), np.full(n, np.nan)
            self._nonfinites[runs] += 1
        if not felt.loss_frozen:
            self._losses = np.where(runs, value, self._losses)
        self._grads = np.where(runs, grad, self._grads)
        mine = np.repeat(runs, self.gpus)
        for shown, part in zip((self.compute, self.data_wait, self.comm_wait), self._parts, strict=True):
            np.copyto(shown, part, where=mine)
        self._judge_steps(runs, took)
        self._tell(runs & (self._steps % self.shape.log_every == 0))

    def _judge_steps(self, runs: Bools, took: Ints) -> None:
        """What of the steps was warm-up, or slower than healthy parts are."""
        beyond = np.maximum(0, took - self._healthy)
        warm = runs & (self._steps <= len(WARMUP)) & (beyond > 0)
        slow = runs & ~warm & (beyond > 0.03 * self._healthy)
        for mine, cause in ((warm, "warmup"), (slow, "slow")):
            if mine.any():
                rows, ms = self._rows[mine], beyond[mine]
                self.entries.append(Entry(rows, CAUSE_INDEX["productive"], -ms))
                self.entries.append(Entry(rows, CAUSE_INDEX[cause], ms))

    def _tell(self, runs: Bools) -> None:
        for run in np.flatnonzero(runs):
            self.log.steps(int(self._until[run]), [(self._name(int(run)), int(self._steps[run]), int(self._goal[run]),
                                                    float(self._seconds[run]), float(self._losses[run]))])

    def _name(self, run: int) -> str:
        return self._names.get(self.nodes[run], f"run{run}")

    # --- what pages read ---------------------------------------------------------------------------------------------
    def _resident(self) -> Bools:
        return np.repeat((self._kind != GAP) & (self._kind != INIT), self.gpus)

    def phases(self) -> Ints:
        """int64[rank]: index into core.targets.PHASES."""
        phase = _PHASE[self._kind] if self.alive else np.full(len(self.nodes), PHASE_INDEX["done"])
        warm = (self._kind == STEP) & (self._steps < len(WARMUP))
        return np.repeat(np.where(warm, PHASE_INDEX["warmup"], phase), self.gpus)

    def shown(self) -> dict[str, Floats]:
        """The trainer's metrics; each rank shows its own run's."""
        def each(values: NDArray[np.float64] | Ints) -> Floats:
            return np.repeat(np.asarray(values, dtype=np.float64), self.gpus)
        return {
            "step": each(self._steps), "last_step_timestamp_seconds": each(np.where(self._ended > 0, self._ended, np.nan)),
            "step_seconds": each(self._seconds), "data_wait_seconds": self.data_wait, "compute_seconds": self.compute,
            "comm_wait_seconds": self.comm_wait, "loss": each(self._losses), "grad_norm": each(self._grads),
            "tokens_per_second": each(self.shape.tokens_per_rank / self._seconds),
            "nonfinite_total": each(self._nonfinites), "skipped_total": np.zeros(self.ranks),
            "last_checkpoint_step": np.full(self.ranks, np.nan), "collective_seq": each(self._steps * 26),
        }
