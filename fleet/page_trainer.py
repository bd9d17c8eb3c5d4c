"""The page of the trainers of a node: one agent a node shows the metrics of all ranks that run there.

Printed as prometheus-client prints it (labels sorted, floats with a point). The agent stays when the ranks go: then
their series are absent. After a clean end they stay with phase `done` until the job is placed anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client.utils import floatToGoString

from core.targets import PHASES
from core.types import Floats
from fleet.hardware import Node
from fleet.job import Job
from fleet.world import World

PREFIX = "greylag_train_"


def _all(value: Callable[[Job], float]) -> Callable[[Job], Floats]:
    return lambda job: np.full(job.ranks, value(job))


METRICS: tuple[tuple[str, str, str, Callable[[Job], Floats]], ...] = (
    ("step", "gauge", "Last finished step.", _all(lambda j: float(j.step))),
    ("last_step_timestamp_seconds", "gauge", "When the last step finished, since the epoch.",
     _all(lambda j: j.last_step_ms / 1000 if j.last_step_ms else np.nan)),
    ("step_seconds", "gauge", "Duration of the last step.", _all(lambda j: j.step_seconds)),
    ("data_wait_seconds", "gauge", "Part of the last step spent waiting for input data.", lambda j: j.data_wait),
    ("compute_seconds", "gauge", "Part of the last step spent computing.", lambda j: j.compute),
    ("comm_wait_seconds", "gauge", "Part of the last step spent in collectives.", lambda j: j.comm_wait),
    ("loss", "gauge", "Training loss of the last step.", _all(lambda j: j.loss)),
    ("grad_norm", "gauge", "Gradient norm of the last step.", _all(lambda j: j.grad_norm)),
    ("tokens_per_second", "gauge", "Tokens a second of this rank.", _all(lambda j: j.tokens_per_second)),
    ("nonfinite_total", "counter", "Values that were not finite.", _all(lambda j: float(j.nonfinite))),
    ("skipped_total", "counter", "Optimizer steps that were skipped.", _all(lambda j: float(j.skipped))),
    ("last_checkpoint_step", "gauge", "Step of the newest complete checkpoint.", _all(lambda j: float(j.last_checkpoint))),
    ("collective_seq", "gauge", "Sequence number of the last collective that the rank entered.", lambda j: j.seq),
)


class TrainerPages:
    """Pages of all nodes. A value that the trainer has not got yet (no step finished) is absent."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._labels: dict[tuple[str, int, int], str] = {}

    def page(self, node: Node) -> bytes:
        """The node's page as of now."""
        job = self._world.job_on(node.index)
        shown = job is not None and node.up and (job.alive or job.clean)
        ranks = self._ranks(job, node) if job is not None and shown else []
        lines = [f"# HELP {PREFIX}agent_ranks Ranks that run on this node.", f"# TYPE {PREFIX}agent_ranks gauge",
                 f'{PREFIX}agent_ranks{{node="{node.name}"}} {floatToGoString(float(len(ranks)))}']
        if job is not None and ranks:
            lines.extend(self._samples(job, node, ranks))
        return ("\n".join(lines) + "\n").encode()

    @staticmethod
    def _ranks(job: Job, node: Node) -> list[int]:
        first = job.nodes.index(node.index) * job.gpus
        return list(range(first, first + job.gpus))

    def _label(self, job: Job, node: Node, rank: int) -> str:
        key = (job.name, node.index, rank)
        found = self._labels.get(key)
        if found is None:
            found = f'gpu="{rank % job.gpus}",job="{job.name}",node="{node.name}",rank="{rank}"'
            found = self._labels.setdefault(key, found)
        return found

    def _samples(self, job: Job, node: Node, ranks: list[int]) -> Iterable[str]:
        labels = [self._label(job, node, rank) for rank in ranks]
        for name, kind, text, get in METRICS:
            values = get(job)[ranks[0]:ranks[-1] + 1].tolist()
            if any(map(math.isnan, values)):  # NaN: nothing to show yet
                continue
            full = PREFIX + name
            yield f"# HELP {full} {text}"
            yield f"# TYPE {full} {kind}"
            for label, value in zip(labels, values, strict=True):
                yield f"{full}{{{label}}} {floatToGoString(value)}"
        full = f"{PREFIX}phase"
        yield f"# HELP {full} 1 for the phase that the rank is in."
        yield f"# TYPE {full} gauge"
        for phase in PHASES:
            mark = floatToGoString(1.0 if phase == job.phase else 0.0)
            for label in labels:
                # Sorted by name: `phase` stands between `node` and `rank`.
                head, _, rank = label.rpartition(",")
                yield f'{full}{{{head},phase="{phase}",{rank}}} {mark}'
