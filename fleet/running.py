"""What every kind of work on the fleet has in common: seats, phase, what it asks of the hardware, and its time accounts.

The world sets before each sub-step what the hardware gives each rank (`slow`, `slowness`, `links`, `nvlink`, `loader`,
`saving` on the nodes, `storing` on the shared file system), calls `suffer` with the work's knobs, `advance`, then `collect`. Pages read `shown` and `phases`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.targets import PHASES
from core.types import Floats
from fleet.groups import Groups
from fleet.joblog import ByteLog
from fleet.knobs import JobKnobs
from fleet.shape import Impact, JobShape
from fleet.work import Work

PHASE_INDEX = {name: index for index, name in enumerate(PHASES)}
# What GPU time goes into while processes exist, and (the last ones) while they do not; `fleet.goodput` adds the nodes'.
CAUSES = (
    "productive", "slow", "warmup", "init", "checkpoint", "eval", "hung", "lost_work", "restart", "queue_wait", "idle",
    "drained", "spare", "diagnosing", "rebooting", "provisioning", "repair",
)
CAUSE_INDEX = {name: index for index, name in enumerate(CAUSES)}


@dataclass(slots=True)
class Entry:
    """Time of nodes: `ms` of each of `rows` (one number, or one for each row) went into the cause; negative moves back."""

    rows: NDArray[np.int64]
    cause: int
    ms: int | NDArray[np.int64]


@dataclass(slots=True)
class Load:
    """What the ranks asked for since the last `collect`: integrals over ms. load, busy: float64[rank]; stalled: the part of busy in
    which a slow GPU's kernels only take longer, float64[rank]; traffic: bytes sent by a GPU's NIC, float64[rank]; writing: bytes a
    node writes, float64[node]."""

    load: Floats
    busy: Floats
    stalled: Floats
    traffic: Floats
    writing: Floats

    @staticmethod
    def none(ranks: int, nodes: int) -> Load:
        return Load(np.zeros(ranks), np.zeros(ranks), np.zeros(ranks), np.zeros(ranks), np.zeros(nodes))

    def clear(self) -> None:
        for values in (self.load, self.busy, self.stalled, self.traffic, self.writing):
            values.fill(0.0)


@dataclass(slots=True)
class Felt:
    """What a work's knobs are in this sub-step, float64[rank] and numbers; see `JobKnobs`."""

    compute: Floats
    data: Floats
    pause: Floats
    late: Floats
    numbers: JobKnobs = field(default_factory=lambda: JobKnobs(0))


class Running(ABC):
    """state: queued | running | stopped (cleanly) | killed | failed | done. nodes: indexes in rank order; benched: nodes that
    it was given and has no use for (no whole replica fits on them)."""

    kind = "training"
    # Whether its ranks have a page of trainer metrics; whether it serves requests; whether its nodes exchange data.
    trains, serves, linked = True, False, True

    def __init__(self, name: str, shape: JobShape, nodes: list[int], gpus: int, log: ByteLog,
                 rng: np.random.Generator) -> None:
        self.name, self.shape, self.gpus, self.log, self._rng = name, shape, gpus, log, rng
        self.started_ms: int | None = None
        self.state, self.phase, self.clean = "stopped", "init", False
        self.run = 0
        self.phase_since = self.trained_since = 0
        self.step = shape.first_step
        self.checkpoints = 0
        self.hung_rank: int | None = None
        self.entries: list[Entry] = []
        self.nodes: list[int] = []
        self.benched: list[int] = []
        self._now = 0
        self._place(nodes)

    # --- seats -------------------------------------------------------------------------------------------------------
    def _place(self, nodes: list[int]) -> None:
        groups = self._fit(len(nodes) * self.gpus)
        seats = max(1, groups.ranks // self.gpus)
        self.nodes, self.benched, self.groups = list(nodes[:seats]), list(nodes[seats:]), groups
        self._rows = np.array(self.nodes, dtype=np.int64)
        self._clear()

    def _fit(self, ranks: int) -> Groups:
        return Groups.fit(ranks, self.gpus, self.shape.tp, self.shape.pp)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Its nodes' indexes in rank order, int64[node]."""
        return self._rows

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.gpus

    @property
    def alive(self) -> bool:
        """Whether the ranks' processes exist."""
        return self.state == "running"

    @property
    def last_checkpoint(self) -> int:
        """Step of the newest complete checkpoint."""
        return self.step

    def distrust(self, since: int) -> bool:
        """The next start loads nothing that was saved after `since` (ms). False where there is no such checkpoint."""
        return True

    @property
    def impact(self) -> Impact:
        """What a slower part costs this work's step."""
        return Impact(self.shape, self.groups.pp, self.groups.dp)

    def place(self, rank: int) -> tuple[int, int]:
        """(node index, GPU) of a rank."""
        return self.nodes[rank // self.gpus], rank % self.gpus

    def rank_of(self, node: int, gpu: int) -> int | None:
        """The rank on a GPU; None where it has none there."""
        return self.nodes.index(node) * self.gpus + gpu if node in self.nodes else None

    def seat(self, nodes: list[int]) -> None:
        """Gives work that is not running other nodes."""
        self._place(nodes)

    def _clear(self) -> None:
        n = self.ranks
        self.slow, self.slowness = np.ones(n), np.ones(n)
        self.links, self.nvlink, self.loader = np.ones(n), np.ones(n), np.ones(n)
        self.saving = self.storing = 1.0
        self._felt = Felt(np.ones(n), np.ones(n), np.zeros(n), np.ones(n))
        self.seq = np.zeros(n)
        self.compute, self.comm_wait, self.data_wait = (np.full(n, np.nan) for _ in range(3))
        self.step_seconds = self.loss = self.grad_norm = self.tokens_per_second = np.nan
        self.skipped = self.nonfinite = 0
        self.last_step_ms = 0
        self._acc = Load.none(n, len(self.nodes))
        self._holds = np.ones(n)

    # --- what the world does to it -----------------------------------------------------------------------------------
    @abstractmethod
    def start(self, at: int, load_seconds: float | None = None, mode: str | None = None) -> None:
        """Starts (or starts again) its processes. mode: a way of recovery (`fleet.recovery`)."""

    def stop(self, at: int, clean: bool) -> None:
        """Ends its processes. clean: in order, with a last word (phase done); else killed."""
        if not self.alive:
            return
        self._end(at, "stopped" if clean else "killed", clean)
        self.log.stopped(at, self.step, clean)

    def _end(self, at: int, state: str, clean: bool) -> None:
        self.state, self.clean, self.hung_rank = state, clean, None
        self._enter("done", at)

    def node_lost(self, node: int, memory_only: bool) -> bool:
        """A node rebooted (`memory_only`) or left with its disks. Whether the work has lost a checkpoint with it."""
        return False

    def suffer(self, knobs: JobKnobs, at: int) -> None:
        """Takes over the knobs of this sub-step. They are read until the next one."""
        self._felt = Felt(knobs.compute, knobs.data, knobs.pause_seconds, knobs.late, knobs)

    @abstractmethod
    def advance(self, to: int) -> None:
        """Moves on to `to` (ms)."""

    def collect(self, work: Work, span_ms: int, growth: float) -> None:
        """Adds the means since the last call (span_ms) to the node arrays. growth: share of its memory that it holds."""
        rows, acc = self._rows, self._acc
        shape = (len(rows), self.gpus)
        work.load[rows] += (acc.load / span_ms).reshape(shape)
        work.busy[rows] += (acc.busy / span_ms).reshape(shape)
        work.stalled[rows] += (acc.stalled / span_ms).reshape(shape)
        work.traffic[rows] += acc.traffic.reshape(shape)
        work.writing[rows] += acc.writing
        if self.alive:
            work.resident[rows] = self._resident().reshape(shape)
            work.memory_mib[rows] = self.shape.memory_mib * np.maximum(growth, 1.0 - self._holds).reshape(shape)
            if self.linked:
                work.rings.append(rows)
        acc.clear()

    def _resident(self) -> NDArray[np.bool_]:
        return np.full(self.ranks, self.phase not in ("init", "done"))

    @property
    def loaded_share(self) -> float:
        """How much of its memory it has filled, 0–1."""
        return 1.0 if self.alive else 0.0

    def _enter(self, phase: str, at: int) -> None:
        if phase != self.phase or phase == "init":
            self.phase, self.phase_since = phase, at
            if phase == "train" and not self.trained_since:
                self.trained_since = at

    # --- time accounts -----------------------------------------------------------------------------------------------
    def _book(self, cause: str, ms: int) -> None:
        if ms:
            self._book_rows(self._rows, cause, ms)

    def _book_rows(self, rows: NDArray[np.int64], cause: str, ms: int) -> None:
        self.entries.append(Entry(rows, CAUSE_INDEX[cause], ms))

    def _move(self, source: str, target: str, ms: int) -> None:
        """Time that was booked before turns out to have another cause."""
        if ms and source != target:
            self._book(source, -ms)
            self._book(target, ms)

    def take_entries(self) -> list[Entry]:
        """The entries since the last call."""
        taken, self.entries = self.entries, []
        return taken

    # --- what pages read ---------------------------------------------------------------------------------------------
    def phases(self) -> NDArray[np.int64]:
        """int64[rank]: index into core.targets.PHASES."""
        return np.full(self.ranks, PHASE_INDEX[self.phase])

    def shown(self) -> dict[str, Floats]:
        """The trainer's metrics by name without prefix, float64[rank]; NaN = the trainer has no value yet."""
        n = self.ranks

        def every(value: float) -> Floats:
            return np.full(n, float(value))
        return {
            "step": every(self.step),
            "last_step_timestamp_seconds": every(self.last_step_ms / 1000 if self.last_step_ms else np.nan),
            "step_seconds": every(self.step_seconds), "data_wait_seconds": self.data_wait,
            "compute_seconds": self.compute, "comm_wait_seconds": self.comm_wait, "loss": every(self.loss),
            "grad_norm": every(self.grad_norm), "tokens_per_second": every(self.tokens_per_second),
            "nonfinite_total": every(self.nonfinite), "skipped_total": every(self.skipped),
            "last_checkpoint_step": every(self.last_checkpoint), "collective_seq": self.seq,
        }
