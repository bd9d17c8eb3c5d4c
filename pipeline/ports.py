"""A RoCE port and the Ethernet interface over it are one part: one cable, one optic, one adapter.

The pages tell of them in two families (`mlx5_2/1` and `enp56s0np0`), and no label of node_exporter joins the two. What does:

* the name, where udev names the device by its place: `rocep56s0f1` is the port under `enp56s0f1np1`;
* the order, where both are counted off along the PCI buses: the kernel numbers verbs devices as it finds the adapters, and an
  interface carries its bus in its name. Only where a node has as many interfaces of that kind as ports, at the ports' own
  rate: an InfiniBand port has no Ethernet above it, and the interface that manages a node is slower;
* failing both, the moment: one port and one interface of a node with the same fault of the link within a minute.

The port is named: jobs use that, and inventories list it. EFA devices are no such pairs, their interface is a function of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from core.types import Finding, Target
from core.window import Window

# Faults of a link, which both sides of a port show by their own counters.
LINK_FAULTS = frozenset({"link_down", "link_slow", "link_flap", "packet_loss"})
SAME_TIME_MS = 60_000
RATE = "nic.rate_bytes_per_second"
LIKE_RATE = 0.01
# How systemd names interfaces by PCI place (domain, bus, slot, function, port), and rdma-core the devices under them.
_INTERFACE = re.compile(r"en(?:P(\d+))?p(\d+)s(\d+)(?:f(\d+))?(?:(?:np|d)(\d+))?")
_PLACED = re.compile(r"roce(?:P(\d+))?p(\d+)s(\d+)(?:f(\d+))?/1")
_NUMBERED = re.compile(r"(mlx5_|bnxt_re)(\d+)/1")

_Spot = tuple[int, ...]


def one_port(findings: Sequence[Finding], window: Window) -> list[Finding]:
    """The findings, those of links on an interface over a RoCE port as findings on the port. Their order stays."""
    nodes = {f.target.node for f in findings if f.fault in LINK_FAULTS and f.target.kind == "nic" and _is_interface(f.target)}
    if not nodes:
        return list(findings)
    nics = window.of_kind("nic")
    columns = np.array([i for i, nic in enumerate(nics) if nic.node in nodes], np.int64)
    port_of = pairs([nics[i] for i in columns], _rates(window, columns))
    taken: set[tuple[str, str]] = set()
    return [_on_port(f, port_of.get(f.target.key) or _by_moment(f, findings, taken))
            if f.fault in LINK_FAULTS and f.target.kind == "nic" else f for f in findings]


def _on_port(finding: Finding, port: Target | None) -> Finding:
    return finding if port is None else replace(finding, target=port)


def _is_interface(target: Target) -> bool:
    return target.device is not None and "/" not in target.device


def _by_moment(finding: Finding, findings: Sequence[Finding], taken: set[tuple[str, str]]) -> Target | None:
    """The only port of the node that shows the same fault since the same minute, where the interface is the only one too.
    taken: (fault, port) that have their interface."""
    if not _is_interface(finding.target) or _INTERFACE.fullmatch(finding.target.device or "") is None:
        return None
    alike = [f.target for f in findings if f.fault == finding.fault and f.target.kind == "nic"
             and f.target.node == finding.target.node and abs(f.onset_at - finding.onset_at) <= SAME_TIME_MS]
    ports = [t for t in alike if not _is_interface(t) and _NUMBERED.fullmatch(t.device or "")]
    if len(ports) != 1 or len(alike) != 2 or (finding.fault, ports[0].key) in taken:
        return None
    taken.add((finding.fault, ports[0].key))
    return ports[0]


def pairs(nics: Iterable[Target], rates: Mapping[str, float]) -> dict[str, Target]:
    """By key of an interface the RoCE port under it, as far as names and order tell. rates: bytes a second by key."""
    by_node: dict[str | None, list[Target]] = {}
    for nic in nics:
        by_node.setdefault(nic.node, []).append(nic)
    out: dict[str, Target] = {}
    for mine in by_node.values():
        out.update(_of_node(mine, rates))
    return out


def _of_node(nics: Sequence[Target], rates: Mapping[str, float]) -> dict[str, Target]:
    interfaces = sorted((_spot(found), nic) for nic in nics if (found := _INTERFACE.fullmatch(nic.device or "")))
    placed = {_spot(found): nic for nic in nics if (found := _PLACED.fullmatch(nic.device or ""))}
    out = {nic.key: placed[spot[:4]] for spot, nic in interfaces if spot[:4] in placed}
    numbered: dict[str, list[tuple[int, Target]]] = {}
    for nic in nics:
        found = _NUMBERED.fullmatch(nic.device or "")
        if found is not None:
            numbered.setdefault(found[1], []).append((int(found[2]), nic))
    if len(numbered) != 1:
        return out  # none, or two makers' ports: the order among them is not known
    ports = [nic for _, nic in sorted(next(iter(numbered.values())), key=lambda pair: pair[0])]
    left = [(spot, nic) for spot, nic in interfaces if nic.key not in out]
    # Drivers of such adapters name the port of the adapter (`np0`); a driver that does not is another adapter's.
    over = [nic for spot, nic in left if spot[4] >= 0] or [nic for _, nic in left]
    usual, rate = _usual(over, rates), _usual(ports, rates)
    if len(over) == len(ports) and usual and rate and abs(usual / rate - 1.0) <= LIKE_RATE:
        out.update({nic.key: port for nic, port in zip(over, ports, strict=True)})
    return out


def _spot(found: re.Match[str]) -> _Spot:
    """Domain, bus, slot, function, and -1 where no port is named."""
    numbers = found.groups()
    return (*(int(n or 0) for n in numbers[:4]), *(-1 if n is None else int(n) for n in numbers[4:]))


def _usual(nics: Sequence[Target], rates: Mapping[str, float]) -> float | None:
    known = [rates[nic.key] for nic in nics if rates.get(nic.key, 0.0) > 0]
    return float(np.median(known)) if known else None


def _rates(window: Window, columns: NDArray[np.int64]) -> dict[str, float]:
    """The greatest rate of each port in the window: a link that is down or slow now had its own before."""
    values = window.values(RATE)[:, columns]
    if not values.size:
        return {}
    most = np.where(np.isnan(values), -np.inf, values).max(axis=0)
    nics = window.of_kind("nic")
    return {nics[i].key: float(rate) for i, rate in zip(columns.tolist(), most, strict=True) if np.isfinite(rate)}
