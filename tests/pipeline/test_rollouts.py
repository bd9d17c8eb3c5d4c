"""What was rolled out before nodes fell ill, by their exporters' labels or by word of people, is their cause."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.brain import Brain
from collectors.mapping import Mapper
from core.inventory import Inventory
from core.plugins import load_plugins
from core.protocols import TargetInfo
from core.types import Batch, Event, Finding, Layout, Scrape, Series, Target
from core.window import Window
from pipeline.incidents import IncidentBook
from tests.pipeline.test_incidents import FIRMWARE, NODES, gpu, seen, site
from tests.pipeline.worlds import T0, finding, tick, window

HOUR = 3_600_000
OLD, NEW = "driver=580.95.05", "driver=590.44.01"
WAVE = (0, 3, 6)
EACH = [("xid_fatal", "device", f"gpu:GPU-{n}-0") for n in WAVE]
ROLLOUT = [("xid_fatal", "fleet", f"label:/{NEW}")]


def xid(node: int, fault: str = "xid_fatal", minutes: float = 0) -> Finding:
    return finding(gpu(node), fault, severity=0.9, reason="fatal_xid", onset=T0 + int(minutes * 60_000))


def rolled(*nodes: int, at: int = T0 - HOUR, new: str | None = "590.44.01", what: str = "driver", by: str | None = None) -> list[Event]:
    fields = {"what": what, "old": "580.95.05" if new else None, "new": new, "by": by}
    return [Event(at, Target("node", f"n{n}"), "config_change", fields) for n in nodes]


def world(events: list[Event], on_new: tuple[int, ...] | None, topology: object = None) -> Window:
    """Eight nodes; on_new: those whose exporters show the new driver, the others show the old one; None = no exporter tells."""
    base = seen(4, topology)
    if on_new is None:
        return replace(base, events=tuple(events))
    parts = [Target("label", f"n{n}", NEW if n in on_new else OLD) for n in range(NODES)]
    shown = window(base.end, {"label.present": (parts, [[1.0] * NODES])})
    return replace(base, events=tuple(events), blocks=shown.blocks, times=shown.times, entities={**base.entities, **shown.entities})


WHOLE_RACK = (0, 1, 2, 3)
CASES = [
    ("a label of the inventory", [xid(n) for n in WAVE], seen(4, FIRMWARE), [("xid_fatal", "fleet", "label:/bmc_firmware=24.09")]),
    ("a driver that exporters show", [xid(n) for n in WAVE], world(rolled(*WAVE), WAVE), ROLLOUT),
    ("hours apart from each other", [xid(n, minutes=90 * n) for n in WAVE], world(rolled(*WAVE), WAVE), ROLLOUT),
    ("a rollout that people posted", [xid(n) for n in WAVE], world(rolled(*WAVE, by="ansible"), None), ROLLOUT),
    ("posted without a value", [xid(n) for n in WAVE], world(rolled(*WAVE, new=None, what="nic firmware", by="ansible"), None),
     [("xid_fatal", "fleet", "label:/nic firmware=changed")]),
    ("the exporter tells of it after the first line", [xid(n) for n in WAVE], world(rolled(*WAVE, at=T0 + 240_000), WAVE), ROLLOUT),
    ("taken back since", [xid(n) for n in WAVE], world([*rolled(*WAVE), *rolled(*WAVE, at=T0 + HOUR, new="580.95.05")], ()), ROLLOUT),
    ("half of all are ill, one of them without it", [*(xid(n) for n in WAVE), xid(5, minutes=30)], world(rolled(*WAVE), WAVE),
     [("xid_fatal", "fleet", "")]),
    ("all nodes have it", [xid(n) for n in WAVE], world(rolled(*range(NODES)), tuple(range(NODES))), EACH),
    ("one of the ill ones has it", [xid(n) for n in WAVE], world(rolled(3), (3,)), EACH),
    ("most that have it are well", [xid(n) for n in WAVE], world(rolled(*WAVE), (0, 1, 2, 3, 4, 5, 6)), EACH),
    ("a part of the fleet has had it for ever", [xid(n) for n in WAVE], world([], WAVE), EACH),
    ("one of those came to it today", [xid(n) for n in WAVE], world(rolled(3), WAVE), EACH),
    ("two days before", [xid(n) for n in WAVE], world(rolled(*WAVE, at=T0 - 48 * HOUR), WAVE), EACH),
    ("after they fell ill", [xid(n) for n in WAVE], world(rolled(*WAVE, at=T0 + HOUR), WAVE), EACH),
    ("another board is no rollout", [xid(n) for n in WAVE], world(rolled(*WAVE, what="gpu model"), WAVE), EACH),
    ("it went to everybody, by word", [xid(n) for n in WAVE],
     world([replace(rolled(0)[0], target=Target("fleet"))], None), EACH),
    ("lost GPUs of one rack", [xid(n, "gpu_lost") for n in WHOLE_RACK], world(rolled(*WHOLE_RACK), WHOLE_RACK, site(cooling=lambda i: None)),
     [("gpu_lost", "rack", "rack:/r0")]),
    ("lost GPUs of nodes that are in several racks", [xid(n, "gpu_lost") for n in WAVE], world(rolled(*WAVE), WAVE),
     [("gpu_lost", "fleet", f"label:/{NEW}")]),
    ("nodes that no inventory knows", [xid(n) for n in WAVE], world(rolled(*WAVE), WAVE, window(T0).topology), ROLLOUT),
]


@pytest.mark.parametrize(("findings", "now", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_which_incidents_open(findings: list[Finding], now: Window, expected: list[tuple[str, str, str]]) -> None:
    """A label that separates the ill nodes from the well ones, and that came within the day before they fell ill."""
    news = IncidentBook().update(now, findings, ())
    assert sorted((i.fault, i.scope, i.culprit.key if i.culprit else "") for _, i in news) == sorted(expected)


def test_the_incident_stays_while_the_rollout_is_taken_back() -> None:
    """The nodes show the old driver again and are still ill: the same incident names the new one."""
    book, ill = IncidentBook(), [xid(n) for n in WAVE]
    book.update(world(rolled(*WAVE), WAVE), ill, ())
    (before,) = book.open()
    book.update(replace(world([*rolled(*WAVE), *rolled(*WAVE, at=tick(30), new="580.95.05")], ()), end=tick(40)), ill, ())
    assert [(i.id, str(i.culprit)) for i in book.open()] == [(before.id, str(before.culprit))]


# --- from pages and kernel lines to the incident ------------------------------------------------------------------------
def page(node: int, driver: str, mapper: Mapper) -> tuple[Layout, int]:
    """The layout of what dcgm-exporter shows of a node's two GPUs."""
    series = [Series("DCGM_FI_DEV_GPU_TEMP", (("gpu", str(d)), ("UUID", f"GPU-{node}-{d}"), ("Hostname", f"n{node}"),
                                              ("DCGM_FI_DRIVER_VERSION", driver), ("modelName", "NVIDIA H100 80GB HBM3")), "gauge")
              for d in range(2)]
    info = TargetInfo(f"dcgm/n{node}", {"instance": f"n{node}:9400", "job": "dcgm"}, f"n{node}")
    return mapper.layout(info, series), len(series)


def test_from_dcgms_driver_version_to_an_incident_of_the_rollout() -> None:
    """Three of eight nodes show another driver, and met XID 119 an hour later: one incident, of the driver."""
    brain, mapper = Brain(load_plugins("detectors"), {}, Inventory()), Mapper(load_plugins("collectors.sources"))
    for i in range(120):
        sent, layouts = [], []
        for node in range(NODES):
            layout, width = page(node, "590.44.01" if node in WAVE and i >= 40 else "580.95.05", mapper)
            layouts.append(layout)
            sent.append(Scrape(layout.id, layout.target_id, tick(i), np.full(width, 55.0 + node)))
        events = [Event(tick(i), Target("gpu", f"n{n}", "1", f"GPU-{n}-1"), "xid", {"xid": 119, "pci": "0000:9b:00", "fatal": None},
                        "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout waiting for RPC from GSP") for n in WAVE if i == 90 + 2 * n]
        brain.feed(Batch("w", 1, i, tick(i), tuple(layouts), tuple(sent), tuple(events)))
        brain.tick(tick(i))
    assert [(one.fault, one.scope, str(one.culprit and one.culprit.device)) for one in brain.open_incidents()] == [("xid_fatal", "fleet", NEW)]
