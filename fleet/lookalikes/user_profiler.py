"""A user profiles one rank of his job for some minutes: it is slower and its node's profiling fields vanish meanwhile."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import job_at, rank_at
from fleet.faults.sizes import compute_factor
from fleet.plants import Planted
from fleet.world import World

FIELDS = frozenset({
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
})


def apply(world: World, planted: Planted) -> None:
    """The profiler holds the counters and costs time."""
    found = job_at(world, planted)
    rank = None if found is None else rank_at(world, planted, found[0])
    if found is not None and rank is not None:
        found[1].compute[rank] *= compute_factor(world, planted.place, planted.severity)
    key = (planted.place.rows[0], "dcgm")
    world.knobs.exporter.missing[key] = world.knobs.exporter.missing.get(key, frozenset()) | FIELDS


PLUGIN = FaultPlugin(
    name="user_profiler", fault=None, scope="device", place="rank", apply=apply, impact=(0.03, 0.4), heals_seconds=240.0, needs=("nvidia",),
)
