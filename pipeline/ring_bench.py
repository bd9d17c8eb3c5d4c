"""How long a tick of the ring takes: synthetic nodes of 8 GPUs and 8 NICs, one exporter each, no detectors."""

from __future__ import annotations

import numpy as np

from core.clock import TICK_MS, monotonic_seconds, process_cpu_seconds
from core.inventory import Inventory
from core.signals import SIGNALS
from core.types import Batch, Layout, Scrape, Series, SignalRef, Target
from pipeline.ring import Ring

START_MS = 1_700_000_010_000 // TICK_MS * TICK_MS
PER_NODE = 8


def _layout(node: str) -> Layout:
    names = [n for n, s in SIGNALS.items() if s.kind in ("gpu", "nic")]
    series: list[Series] = []
    signals: list[SignalRef] = []
    for device in range(PER_NODE):
        for name in names:
            kind = SIGNALS[name].kind
            target = Target(kind, node, str(device) if kind == "gpu" else f"mlx5_{device}")
            counter = name.endswith("_per_second")
            signals.append(SignalRef(len(series), name, target, 1.0, counter))
            series.append(Series(name, (("device", str(device)),), "counter" if counter else "gauge"))
    return Layout(f"layout-{node}", f"{node}:9400", tuple(series), tuple(signals), node)


def bench_ring(nodes: int, ticks: int = 8, seed: int = 0) -> dict[str, float]:
    """Feeds `ticks` slots of `nodes` nodes. Seconds are wall time; the first tick, which compiles all layouts, apart."""
    rng = np.random.default_rng(seed)
    ring = Ring(Inventory())
    layouts = tuple(_layout(f"n{i}") for i in range(nodes))
    width = len(layouts[0].series) if layouts else 0
    values = rng.uniform(10.0, 90.0, (max(1, nodes), width))
    took: list[float] = []
    cpu = process_cpu_seconds()
    for i in range(ticks + 1):
        at = START_MS + i * TICK_MS
        values = values + rng.uniform(0.0, 1.0, values.shape)
        scrapes = tuple(Scrape(one.id, one.target_id, at, values[n]) for n, one in enumerate(layouts))
        started = monotonic_seconds()
        ring.feed(Batch("bench", 1, i, at, layouts if i == 0 else (), scrapes))
        ring.window(at)
        took.append(monotonic_seconds() - started)
        if i == 0:
            cpu = process_cpu_seconds()
    spent = process_cpu_seconds() - cpu
    later = np.array(took[1:])
    return {
        "nodes": float(nodes), "values_per_tick": float(nodes * width), "first_tick_seconds": round(took[0], 4),
        "tick_seconds_median": round(float(np.median(later)), 4), "tick_seconds_max": round(float(later.max()), 4),
        "cpu_microseconds_per_value": round(1e6 * spent / max(1, ticks * nodes * width), 4),
    }
