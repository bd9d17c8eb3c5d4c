"""A GPU's micro-controller halts (XID 62): only the kernel log says so, DCGM does not, and the job dies."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import crash, say, strikes
from fleet.faults.sizes import STANDS
from fleet.plants import Planted
from fleet.world import World


def apply(world: World, planted: Planted) -> None:
    """Each run dies as it reaches the halted unit; no exporter shows the number."""
    if not strikes(world, planted, ("warmup", "train"), (10.0, 60.0)):
        return
    row, gpu = planted.place.index
    say(world, row, f"NVRM: Xid (PCI:{world.nodes[row].pci(gpu)[:-2]}): 62, pid={int(planted.rng.integers(9_000, 900_000))}, "
                    "name=python3, 2a57(31a4) 00000000 00000000")
    crash(world, planted, "gpu_lost")


PLUGIN = FaultPlugin(
    name="xid_62", fault="xid_fatal", scope="device", place="gpu", apply=apply, cured_by=("reset_gpu", "reboot", "replace"),
    impact=STANDS, tier="B", needs=("nvidia",),
)
