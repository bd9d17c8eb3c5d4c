"""node_exporter: families in sorted order, labels sorted, floats as Go prints them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from fleet.sheets.base import Sheet
from fleet.sheets.node_disks import disk_families
from fleet.sheets.node_extras import extra_families
from fleet.sheets.node_host import clock_families, cpu_families, memory_families, net_families, own_families
from fleet.sheets.node_nics import nic_families
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

# Those that run out of the box and have something to say on such a machine; those on the demo's pages; those told to.
LEAN = ("boottime", "cpu", "diskstats", "filesystem", "hwmon", "infiniband", "loadavg", "meminfo", "netdev", "netstat",
        "pressure", "time", "timex", "uname", "vmstat")
DEFAULT = (*LEAN, "cpufreq", "edac", "kernel_hung", "netclass", "nvme", "textfile")
EXTRA = (*DEFAULT, "ethtool", "pcidevice", "systemd")


class NodeSheet(Sheet):
    """The families of the tier, for all nodes."""

    name = "node"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        every = [*nic_families(world, telemetry), *disk_families(world, telemetry), *net_families(world, telemetry),
                 *memory_families(world, telemetry), *cpu_families(world, telemetry), *clock_families(world, telemetry)]
        extra = telemetry.at_least("C") and not telemetry.lean
        collectors = LEAN if telemetry.lean else EXTRA if extra else DEFAULT
        if extra:
            every += extra_families(world)
        super().__init__(world, [*every, *own_families(world, collectors)])
        self.clock = next(start for one, (start, _) in zip(self.families, self.spans, strict=True) if one.name == "node_time_seconds")

    def keys(self) -> list[Hashable]:
        """The disks, and the settings that differ from the fleet's."""
        keys: list[Hashable] = [node.disk_serials for node in self.world.nodes]
        for (row, what), value in sorted(self.world.knobs.settings.items()):
            keys[row] = (keys[row], what, value)
        return keys
