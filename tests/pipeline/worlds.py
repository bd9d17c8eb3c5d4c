"""Small worlds for the tests of windows, findings and incidents: batches, windows and findings in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.inventory import Inventory, inventory_from
from core.signals import SIGNALS
from core.types import Batch, Evidence, Finding, Layout, Scrape, Series, SignalRef, Target
from core.window import Block, Window

T0 = 1_700_000_010_000 // 15_000 * 15_000
GPU = Target("gpu", "n1", "0", "GPU-a")


def tick(i: int) -> int:
    return T0 + i * 15_000


def layout(refs: Sequence[tuple[str, Target, bool]], target_id: str = "n1:9400", node: str | None = "n1",
           scale: float = 1.0, names: Sequence[str] | None = None) -> Layout:
    """A layout with one series for each (signal, target, counter)."""
    series = tuple(Series(names[i] if names else s, (("part", t.key), ("i", str(i) if names else s)))
                   for i, (s, t, _) in enumerate(refs))
    signals = tuple(SignalRef(i, s, t, scale, c) for i, (s, t, c) in enumerate(refs))
    return Layout(Layout.make_id(target_id, series, signals), target_id, series, signals, node)


def scrape(one: Layout, at: int, *values: float, error: str | None = None) -> Scrape:
    return Scrape(one.id, one.target_id, at, np.array(values if error is None else (), np.float64), error=error)


_SEQ = [0]


def batch(*scrapes: Scrape, layouts: Sequence[Layout] = (), events: Sequence = ()) -> Batch:
    _SEQ[0] += 1
    return Batch("w", 1, _SEQ[0], 0, tuple(layouts), tuple(scrapes), tuple(events))


def inventory(**data: object) -> Inventory:
    return inventory_from(data, "inventory.yaml")


def window(end: int, signals: Mapping[str, tuple[Sequence[Target], Sequence[Sequence[float]]]] | None = None,
           **more: object) -> Window:
    """A window with {signal: (entities, rows)}; signals of one kind must name the same entities."""
    blocks: dict[str, Block] = {}
    entities: dict[str, tuple[Target, ...]] = dict(more.pop("entities", {}))  # type: ignore[call-overload]
    n = 1
    for name, (parts, rows) in (signals or {}).items():
        values = np.array(rows, np.float64)
        n = len(values)
        entities[SIGNALS[name].kind] = tuple(parts)
        width = len(parts)
        blocks[name] = Block(name, tuple(parts), values, np.zeros(width), np.full(width, 15.0), np.full(width, float(T0)))
    times = np.arange(end - (n - 1) * 15_000, end + 1, 15_000, dtype=np.int64)
    return Window(end, 15, times, entities, blocks, **more)  # type: ignore[arg-type]


def finding(target: Target, fault: str = "thermal_throttle", at: int = T0, *, severity: float = 0.6, reason: str = "hot",
            onset: int | None = None, suspects: tuple = (), observed: float = 90.0) -> Finding:
    return Finding(f"fnd-{fault}-{target.key}-{at}", fault, fault, target, "open", severity,
                   (Evidence("gpu.temperature_celsius", "°C", observed, 60.0, "peers"),), reason,
                   at if onset is None else onset, at, at, suspects=suspects)
