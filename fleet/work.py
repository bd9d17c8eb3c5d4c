"""What the jobs ask of the hardware during one sub-step, node by node and GPU by GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.types import Floats


@dataclass(slots=True)
class Work:
    """float64[node, gpu] each, means over the sub-step.

    load: share of full-load power that the kernels ask for. busy: share of time in compute. stalled: the part of it that a slow
    GPU's kernels take longer for the same work: no more of it is done, and its SMs wait. traffic: bytes sent by the
    GPU's NIC. resident: a kernel is on the GPU (it stays so in a hang). memory_mib: held by the job. writing: bytes
    that the node writes to its disk (checkpoints), float64[node]. rings: node indexes of each job in ring order.
    """

    load: Floats
    busy: Floats
    stalled: Floats
    traffic: Floats
    resident: NDArray[np.bool_]
    memory_mib: Floats
    writing: Floats
    rings: list[NDArray[np.int64]] = field(default_factory=list)

    @staticmethod
    def idle(nodes: int, gpus: int) -> Work:
        """No work at all."""
        def zeros() -> Floats:
            return np.zeros((nodes, gpus))
        return Work(zeros(), zeros(), zeros(), zeros(), np.zeros((nodes, gpus), bool), zeros(), np.zeros(nodes))
