"""The trainers of a node: one agent a node shows the metrics of all ranks that run there.

Printed as prometheus-client prints it (labels sorted, floats with a point). The agent stays when the ranks go: then
their series are absent. After a clean end they stay with phase `done` until the job is placed anew. What the trainer has
not got yet (no step finished) is absent; a loss that is not a number is shown as such.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from core.derive import STALE_NAN
from core.targets import PHASES
from core.types import Floats
from fleet.hardware import Node
from fleet.running import Running
from fleet.sheets.base import PYTHON, Family, Get, Sheet, blank
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

PREFIX = "greylag_train_"
# name, type, help; the values are the job's (`Running.shown`).
METRICS: tuple[tuple[str, str, str], ...] = (
    ("step", "gauge", "Last finished step."),
    ("last_step_timestamp_seconds", "gauge", "When the last step finished, since the epoch."),
    ("step_seconds", "gauge", "Duration of the last step."),
    ("data_wait_seconds", "gauge", "Part of the last step spent waiting for input data."),
    ("compute_seconds", "gauge", "Part of the last step spent computing."),
    ("comm_wait_seconds", "gauge", "Part of the last step spent in collectives."),
    ("loss", "gauge", "Training loss of the last step."),
    ("grad_norm", "gauge", "Gradient norm of the last step."),
    ("tokens_per_second", "gauge", "Tokens a second of this rank."),
    ("nonfinite_total", "counter", "Values that were not finite."),
    ("skipped_total", "counter", "Optimizer steps that were skipped."),
    ("last_checkpoint_step", "gauge", "Step of the newest complete checkpoint."),
    ("collective_seq", "gauge", "Sequence number of the last collective that the rank entered."),
)
# Those that may be not a number once a step has finished; before it they are absent, as the time of that step is.
_NUMBERS, _FINISHED = ("loss", "grad_norm"), "last_step_timestamp_seconds"


class TrainerSheet(Sheet):
    """The agents of all nodes."""

    name = "trainer"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        self._gpus = world.kind.gpus
        self._seated: tuple[object, ...] = ()
        self._jobs: list[tuple[Running, NDArray[np.int64]]] = []
        self._of: dict[int, tuple[Running, int]] = {}  # node index → its job and its place in it
        self._last: dict[int, tuple[str, int]] = {}  # the same, by name, of the job that was there last: frozen agents show it
        self._shown: list[dict[str, Floats]] = []
        families = [
            Family(PREFIX + "agent_ranks", "Ranks that run on this node.", "gauge", lambda node: (f'{{node="{node.name}"}}',), 1,
                   self._ranks, PYTHON),
            *(Family(PREFIX + name, text, kind, self._labels, self._gpus, self._metric(name), PYTHON, name in _NUMBERS)
              for name, kind, text in METRICS),
            Family(PREFIX + "phase", "1 for the phase that the rank is in.", "gauge", self._phase_labels,
                   self._gpus * len(PHASES), self._phases, PYTHON),
        ]
        super().__init__(world, families)

    def values(self) -> Floats:
        self._seat()
        self._shown = [job.shown() for job, _ in self._jobs]
        return super().values()

    def keys(self) -> list[Hashable]:
        """The job and the place in it of each node."""
        keys: list[Hashable] = [None] * len(self.world.nodes)
        for row, (job, place) in self._of.items():
            keys[row] = (job.name, place)
        return keys

    def _seat(self) -> None:
        """Who runs where; looked at anew only when a job came, went or moved."""
        jobs = [j for j in self.world.jobs.values() if j.trains and (j.alive or j.clean)]
        seated = tuple((j.name, tuple(j.nodes)) for j in jobs)
        if seated == self._seated:
            return
        self._seated = seated
        self._jobs = [(j, np.array(j.nodes, np.int64)) for j in jobs]
        self._of = {row: (j, place) for j in jobs for place, row in enumerate(j.nodes)}
        self._last.update((row, (j.name, place)) for row, (j, place) in self._of.items())

    def _ranks(self, world: World) -> Floats:
        out = np.zeros(len(world.nodes))
        for _, rows in self._jobs:
            out[rows] = self._gpus
        return out

    def _metric(self, name: str) -> Get:
        number = name in _NUMBERS

        def of_all(world: World) -> Floats:
            shape = (len(world.nodes), self._gpus)
            out = blank(shape) if number else np.full(shape, np.nan)
            for (_, rows), shown in zip(self._jobs, self._shown, strict=True):
                values = shown[name]
                if number:
                    unfinished = np.isnan(shown[_FINISHED])
                    values = np.where(unfinished, STALE_NAN, values) if unfinished.any() else values
                out[rows] = values.reshape(len(rows), self._gpus)
            return out
        return of_all

    def _phases(self, world: World) -> Floats:
        out = np.full((len(world.nodes), len(PHASES), self._gpus), np.nan)
        for job, rows in self._jobs:
            phase = job.phases().reshape(len(rows), 1, self._gpus)
            out[rows] = phase == np.arange(len(PHASES))[:, None]
        return out.reshape(len(out), -1)

    def _seats(self, node: Node) -> list[tuple[int, str, int]]:
        """(GPU, job, rank) of the node's ranks."""
        job, place = self._last[node.index]
        return [(gpu, job, place * self._gpus + gpu) for gpu in range(self._gpus)]

    def _labels(self, node: Node) -> Sequence[str]:
        return [f'{{gpu="{gpu}",job="{job}",node="{node.name}",rank="{rank}"}}' for gpu, job, rank in self._seats(node)]

    def _phase_labels(self, node: Node) -> Sequence[str]:
        return [f'{{gpu="{gpu}",job="{job}",node="{node.name}",phase="{phase}",rank="{rank}"}}'
                for phase in PHASES for gpu, job, rank in self._seats(node)]
