"""What node_exporter shows only when it is told to: PCI devices, services, ethtool (`node_nics`), and the site's own text
files: how each node is set up, and what the Lustre client says of each storage target.

Lustre exports no latency, so sites read `osc/*/import` themselves; names of this file that start with `greylag_` are not of
node_exporter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.hosts import DISKS
from fleet.sheets.base import Family, Get, family
from fleet.sheets.node_nics import ethtool_families

if TYPE_CHECKING:
    from fleet.world import World

STATES = ("activating", "active", "deactivating", "failed", "inactive")
# Transfers a second of a PCIe lane, by generation.
TRANSFERS = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 1.6e10, 5: 3.2e10, 6: 6.4e10}
NETWORK_CLASS, NVME_CLASS = "0x020000", "0x010802"
NVME_BUSES, NVME_LANES, NVME_GENERATION = ("02", "03"), 4.0, 4
TEXT_FILES = ("lustre_osc.prom", "node_settings.prom")


def extra_families(world: World) -> list[Family]:
    """All of them."""
    made = [*ethtool_families(world), *_pci(world), *_services(world), *_settings(world), *_files(world)]
    return made + (_targets(world) if "lustre" in world.has else [])


def _pci(world: World) -> list[Family]:
    """The pcidevice collector: network adapters and NVMe drives."""
    kind = world.kind
    places = [(kind.nic_pci(i), NETWORK_CLASS) for i in range(kind.nics)]
    places += [(f"0000:{bus}:00.0", NVME_CLASS) for bus in NVME_BUSES[:len(DISKS)]]
    parts = [address.replace(".", ":").split(":") for address, _ in places]
    where = [f'bus="{bus}",device="{device}",function="{function}",segment="{segment}"' for segment, bus, device, function in parts]
    info = [f'bus="{bus}",class_id="{klass}",device="{device}",device_id="{"0x1021" if klass == NETWORK_CLASS else "0xa824"}",'
            f'function="{function}",parent_bus="*",parent_device="*",parent_function="*",parent_segment="*",revision="0x00",'
            f'segment="{segment}",subsystem_device_id="0x0041",subsystem_vendor_id="0x15b3",'
            f'vendor_id="{"0x15b3" if klass == NETWORK_CLASS else "0x144d"}"'
            for (segment, bus, device, function), (_, klass) in zip(parts, places, strict=True)]

    def both(nic: Get, drive: float) -> Get:
        def of_all(w: World) -> Floats:
            out = np.full((len(w.nodes), len(places)), drive)
            out[:, :kind.nics] = nic(w)
            return out
        return of_all

    def one(name: str, text: str, get: Get, blocks: Sequence[str] = where) -> Family:
        return family(f"node_pcidevice_{name}", text, "gauge", get, [f"{{{block}}}" for block in blocks])

    speed, lanes = TRANSFERS[kind.pcie_gen], float(kind.pcie_width)
    return [
        one("current_link_transfers_per_second", "Value of current link's transfers per second (T/s)",
            both(lambda w: speed, TRANSFERS[NVME_GENERATION])),
        one("current_link_width", "Value of current link's width (number of lanes)",
            both(lambda w: np.minimum(w.knobs.nic.pcie_width, lanes), NVME_LANES)),
        one("info", "Non-numeric data from /sys/bus/pci/devices/<location>, value is always 1.", lambda w: 1.0, info),
        one("max_link_transfers_per_second", "Value of maximum link's transfers per second (T/s)",
            both(lambda w: speed, TRANSFERS[NVME_GENERATION])),
        one("max_link_width", "Value of maximum link's width (number of lanes)", both(lambda w: lanes, NVME_LANES)),
    ]


def _services(world: World) -> list[Family]:
    """The systemd collector: one series for each state that a unit can be in."""
    names = world.kind.services
    blocks = [f'{{name="{name}",state="{state}",type="simple"}}' for name in names for state in STATES]

    def states(w: World) -> Floats:
        active = w.hosts.service_active
        out = np.zeros((*active.shape, len(STATES)))
        out[:, :, STATES.index("active")], out[:, :, STATES.index("failed")] = active, 1 - active
        return out.reshape(len(active), -1)

    return [family("node_systemd_unit_state", "Systemd unit", "gauge", states, blocks)] if names else []


def _settings(world: World) -> list[Family]:
    """How a node is set up, as the site's own text file says it."""
    keys = sorted(world.kind.settings)

    def labels(node: Node) -> Sequence[str]:
        own = world.knobs.settings
        return [f'{{setting="{key}",value="{own.get((node.index, key), node.kind.settings[key])}"}}' for key in keys]

    return [Family("greylag_node_setting_info", "How the node is set up, value is always 1.", "gauge", labels, len(keys),
                   lambda w: 1.0)]


def _targets(world: World) -> list[Family]:
    """What each client says of each object storage target (`osc/*/import`)."""
    blocks = [f'{{target="{name}"}}' for name in world.topology.targets]
    rows: tuple[tuple[str, str, str, Get], ...] = (
        ("connected", "1 where the client's import is FULL.", "gauge", lambda w: w.storage.connected),
        ("rpcs_in_flight", "Calls to the target that are under way.", "gauge", lambda w: w.storage.in_flight),
        ("timeouts_total", "Calls that got no answer in time.", "counter", lambda w: w.storage.timeouts),
        ("wait_seconds", "Average wait of a call, as the client says it.", "gauge",
         lambda w: np.rint(w.storage.wait_usec) / 1e6),
    )
    return [family(f"greylag_lustre_osc_{name}", text, kind, get, blocks) for name, text, kind, get in rows]


def _files(world: World) -> list[Family]:
    names = [f'{{file="/var/lib/node_exporter/{name}"}}' for name in TEXT_FILES]

    def written(w: World) -> Floats:
        # The site's script runs each minute, on each node a few seconds later than on the last.
        minute = (w.now_ms // 1000 - 7 * np.arange(len(w.nodes)) % 60) // 60 * 60
        return np.stack([minute + 1.0, minute + 2.0], axis=1)

    return [family("node_textfile_mtime_seconds", "Unixtime mtime of textfiles successfully read.", "gauge", written, names)]
