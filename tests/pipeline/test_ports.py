"""A RoCE port and the Ethernet interface over it are one part."""

from __future__ import annotations

import pytest

from core.types import Finding, Incident, Target
from pipeline.incidents import IncidentBook
from pipeline.ports import pairs
from tests.pipeline.worlds import T0, finding, tick, window

FAST, SLOW = 5e10, 1.25e9
PORTS = [f"mlx5_{i}/1" for i in (0, 1, 2, 10)]
OVER = ["enp24s0np0", "enp64s0np0", "enp79s0np0", "enp170s0np0"]


def nic(device: str, node: str = "n1") -> Target:
    return Target("nic", node, device)


def rates(fast: list[str], slow: tuple[str, ...] = ()) -> dict[str, float]:
    return {nic(d).key: FAST for d in fast} | {nic(d).key: SLOW for d in slow}


PAIRS = [
    ("counted off along the buses", PORTS[::-1] + OVER, rates(PORTS + OVER), dict(zip(OVER, PORTS, strict=True))),
    ("with an interface that manages the node", [*PORTS, *OVER, "enp1s0f0"], rates(PORTS + OVER, ("enp1s0f0",)),
     dict(zip(OVER, PORTS, strict=True))),
    ("InfiniBand and as many slower interfaces", [*PORTS[:1], "enp1s0f0"], rates(PORTS[:1], ("enp1s0f0",)), {}),
    ("one interface more than ports", [*PORTS[:3], *OVER], rates(PORTS[:3] + OVER), {}),
    ("rates that nobody tells", PORTS + OVER, {}, {}),
    ("devices named by place", ["rocep56s0f1/1", "rocep56s0f0/1", "enp56s0f0np0", "enp56s0f1np1"], {},
     {"enp56s0f0np0": "rocep56s0f0/1", "enp56s0f1np1": "rocep56s0f1/1"}),
    ("EFA has functions of its own", ["rdmap16s27/1", "enp16s26"], rates(["rdmap16s27/1", "enp16s26"]), {}),
    ("a second domain comes last", [*PORTS[:2], "enP1p2s0np0", "enp80s0np0"], rates([*PORTS[:2], "enP1p2s0np0", "enp80s0np0"]),
     {"enp80s0np0": PORTS[0], "enP1p2s0np0": PORTS[1]}),
]


@pytest.mark.parametrize(("devices", "known", "found"), [c[1:] for c in PAIRS], ids=[c[0] for c in PAIRS])
def test_pairs(devices: list[str], known: dict[str, float], found: dict[str, str]) -> None:
    """By name or by order, and only where both tell."""
    assert {t.split("/", 1)[1]: port.device for t, port in pairs([nic(d) for d in devices], known).items()} == found


def ill(fault: str, device: str, onset: int = T0, node: str = "n1") -> Finding:
    return finding(nic(device, node), fault, severity=0.6, reason="flaps", onset=onset)


def opened(findings: list[Finding], told: bool) -> list[Incident]:
    parts = tuple(nic(d, n) for n in ("n1", "n2", "n3", "n4") for d in PORTS + OVER)
    signal, value = ("nic.rate_bytes_per_second", FAST) if told else ("nic.link_up", 1.0)
    seen = window(tick(4), {signal: (parts, [[value] * len(parts)] * 3)})
    return [incident for _, incident in IncidentBook().update(seen, findings, ())]


@pytest.mark.parametrize("fault", ["link_down", "link_slow", "link_flap"])
@pytest.mark.parametrize("told", [True, False])
def test_one_port_is_one_incident(fault: str, told: bool) -> None:
    """Both sides show the fault: the port is named, once, whether the pair is known or only the moment tells."""
    found = opened([ill(fault, OVER[2], T0 + 30_000), ill(fault, PORTS[2])], told)
    assert [(i.culprit.device, len(i.findings)) for i in found if i.culprit] == [(PORTS[2], 2)]


def test_the_port_is_named_where_only_the_interface_tells() -> None:
    """A port without a counter of its downs flaps by its interface's carrier."""
    assert [i.culprit.device for i in opened([ill("link_flap", OVER[1])], True) if i.culprit] == [PORTS[1]]


@pytest.mark.parametrize(("device", "onset", "told"), [(OVER[0], T0, True), (OVER[1], T0 + 120_000, False)])
def test_two_ports_are_two(device: str, onset: int, told: bool) -> None:
    """The interface of another port, or one that fails minutes later where no pair is known."""
    assert len(opened([ill("link_down", PORTS[1]), ill("link_down", device, onset)], told)) == 2


def test_two_ports_seen_from_both_sides_are_no_switch() -> None:
    """Four findings on two ports of two nodes are two parts: too few for a shared cause."""
    both = [ill("link_down", d, node=n) for n, at in (("n1", 0), ("n2", 1)) for d in (PORTS[at], OVER[at])]
    assert sorted(i.scope for i in opened(both, True)) == ["device", "device"]
