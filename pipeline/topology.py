"""Views of the inventory that judgement needs: which GPU a PCI address is, and which causes parts can share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from core.inventory import Inventory
from core.types import Target
from core.window import Topology

_PCI = re.compile(r"^(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-9a-f]))?$")


def pci_key(address: str | None) -> str | None:
    """`0000:b3:00` for every spelling of a PCI address (driver, NVML with 8 digits, with or without function); None for
    text that is no PCI address. The function is left out: logs write it or not."""
    found = _PCI.match((address or "").strip().lower())
    if found is None:
        return None
    return f"{int(found['domain'] or '0', 16):04x}:{found['bus']}:{found['device']}"


class Hardware:
    """GPUs of the inventory by their PCI address."""

    def __init__(self, inventory: Inventory) -> None:
        self._gpus = {(t.node, key): t for t, pci in inventory.gpus() if (key := pci_key(pci)) is not None}

    def gpu_at(self, node: str | None, device: str | None) -> Target | None:
        """The GPU at a PCI address of a node, None where the inventory does not say."""
        key = pci_key(device)
        return None if key is None else self._gpus.get((node, key))


@dataclass(frozen=True, slots=True)
class Cause:
    """What parts can share. kind: of the culprit (switch, cooling, pdu, rack, label); level: the incident's scope."""

    kind: str
    name: str
    scope: str

    @property
    def culprit(self) -> Target:
        return Target(self.kind, device=self.name)


NETWORK_FAULTS = frozenset({"packet_loss", "link_flap", "link_down", "link_slow"})
HEAT_FAULTS = frozenset({"thermal_throttle"})
POWER_FAULTS = frozenset({"power_brake", "power_cap"})
GONE_FAULTS = frozenset({"target_down", "gpu_lost"})  # what a rack that lost its power shows of each of its nodes


def causes_of(target: Target, fault: str, topology: Topology) -> tuple[Cause, ...]:
    """The causes that could make this part show this fault, the most telling first. Heat comes from a cooling loop, else
    a rack; power from a PDU; loss from the leaf switch; nodes that vanish, from what feeds their rack. Anything can come with
    a label (a firmware version)."""
    place = topology.place(target.node)
    found: list[Cause] = []
    if fault in NETWORK_FAULTS:
        leaf = topology.leaf_of(target)
        if leaf is not None:
            found.append(Cause("switch", leaf, "switch"))
    elif place is not None:
        named = {"cooling": place.cooling, "pdu": place.pdu, "rack": place.rack}
        order = {True: ("cooling", "rack", "pdu")}.get(fault in HEAT_FAULTS, ("pdu", "rack", "cooling"))
        if fault in GONE_FAULTS:  # which of its feeds failed is not seen: the rack is what people can find
            order = ("rack", "pdu", "cooling")
        if fault in HEAT_FAULTS | POWER_FAULTS | GONE_FAULTS:
            found += [Cause(kind, name, "rack") for kind in order if (name := named[kind]) is not None]
    if place is not None:
        found += [Cause("label", f"{key}={value}", "fleet") for key, value in place.labels]
    return tuple(found)


def members(cause: Cause, parts: Iterable[Target], topology: Topology) -> frozenset[str]:
    """The nodes with monitored parts under a cause."""
    out: set[str] = set()
    decided: set[str | None] = {None}  # all but ports hang where their node hangs
    for part in parts:
        if part.node is None or part.node in decided:
            continue
        place = topology.place(part.node)
        if cause.kind != "switch" or place is None:
            decided.add(part.node)
        if place is None:
            continue
        held: Mapping[str, object] = {"cooling": place.cooling, "pdu": place.pdu, "rack": place.rack}
        if cause.kind == "switch":
            under = topology.leaf_of(part) == cause.name
        elif cause.kind == "label":
            under = any(f"{k}={v}" == cause.name for k, v in place.labels)
        else:
            under = held[cause.kind] == cause.name
        if under:
            out.add(part.node)
            decided.add(part.node)
    return frozenset(out)
