"""Tensor, data and pipeline groups of a job, and how long its ranks take together.

Ranks are numbered as Megatron-LM does: tensor index fastest, then data, then pipeline. So a tensor group lies inside a
node, the stages of a pipeline on different nodes, and every stage is a block of consecutive ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats


@dataclass(frozen=True, slots=True)
class Groups:
    """Sizes of the groups; tp * dp * pp ranks."""

    tp: int
    pp: int
    dp: int

    @staticmethod
    def fit(ranks: int, gpus: int, tp: int | None = None, pp: int = 1) -> Groups:
        """The groups that `ranks` allow: as asked for, else fewer stages. Ranks beyond a whole replica have no place."""
        inner = max(1, min(tp or min(8, gpus), ranks))
        stages = max(1, min(pp, ranks // inner))
        return Groups(inner, stages, ranks // (inner * stages))

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def grid(self, values: Floats) -> Floats:
        """float64[rank] as [stage, replica, tensor index]."""
        return values.reshape(self.pp, self.dp, self.tp)

    def index(self, rank: int) -> tuple[int, int, int]:
        """(stage, replica, tensor index) of a rank."""
        return rank // (self.tp * self.dp), rank // self.tp % self.dp, rank % self.tp

    def stage_ranks(self, stage: int) -> NDArray[np.int64]:
        """The ranks of a pipeline stage; -1 = the last."""
        size, first = self.tp * self.dp, (stage % self.pp) * self.tp * self.dp
        return np.arange(first, first + size)

    def peers(self, rank: int) -> dict[str, NDArray[np.int64]]:
        """The ranks of each of the rank's groups, itself included: by tp, dp, pp."""
        stage, replica, inner = self.index(rank)
        all_ranks = np.arange(self.ranks).reshape(self.pp, self.dp, self.tp)
        return {"tp": all_ranks[stage, replica], "dp": all_ranks[stage, :, inner], "pp": all_ranks[:, replica, inner]}


@dataclass(frozen=True, slots=True)
class Lockstep:
    """How a step went. seconds: of the whole step. exchange: what the rank's own collectives took, float64[rank]; what is
    left of the step beside compute, data and exchange it waited for others (or for the pipeline to fill)."""

    seconds: float
    exchange: Floats


def lockstep(groups: Groups, work: Floats, tensor: Floats, hop: Floats, collective: Floats, microbatches: int) -> Lockstep:
    """A step of all ranks. work: own compute and data; tensor, hop, collective: what each rank's links would take, all
    float64[rank] in seconds.

    A tensor group goes at the pace of its slowest rank. With m microbatches a pipeline (1F1B) takes m-1 times its slowest
    stage's share and once through all stages, so a slow stage holds up the others through bubbles. A data group begins
    when its last member is there and takes the time of its slowest link; the step ends with the slowest group.
    """
    inside = groups.grid(tensor).max(axis=2)
    stage = groups.grid(work).max(axis=2) + inside
    links: Floats | float = 0.0
    if groups.pp > 1:
        hops = groups.grid(hop).max(axis=2)
        busy = stage + hops
        replica = busy.max(axis=0) * (microbatches - 1) / microbatches + busy.sum(axis=0) / microbatches
        links = np.repeat(hops.reshape(-1), groups.tp)
    else:
        replica = stage[0]
    ended = float(replica.max())
    own = np.repeat(inside.reshape(-1), groups.tp) + links
    if groups.dp > 1:
        slowest = groups.grid(collective).max(axis=1, keepdims=True)
        ended += float(slowest.max())
        own = (own.reshape(groups.pp, groups.dp, groups.tp) + slowest).reshape(-1)
    return Lockstep(ended, own)


def per_gpu(values: Floats, gpus: int) -> Floats:
    """float64[node, nic] as [node, gpu]: the slowest of a GPU's NICs counts, or the one that GPUs share."""
    nics = values.shape[1]
    if nics == gpus:
        return values
    if nics > gpus:
        return values[:, : nics - nics % gpus].reshape(len(values), gpus, -1).max(axis=2)
    return np.repeat(values, -(-gpus // nics), axis=1)[:, :gpus]
