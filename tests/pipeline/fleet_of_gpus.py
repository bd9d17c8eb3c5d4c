"""Healthy GPUs for tests of the trained model: physics and work of their own, by no model of the product or of the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from core.types import Batch, Floats, Layout, Scrape, Series, SignalRef, Target
from pipeline.store.duck import DuckStore

SIGNALS = ("gpu.utilization_ratio", "gpu.power_watts", "gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.tensor_active_ratio",
           "gpu.dram_active_ratio", "gpu.nvlink_bytes_per_second")
STEP = 15_000


def gpus(nodes: int) -> tuple[Target, ...]:
    return tuple(Target("gpu", f"n{n}", str(i), f"GPU-{n}-{i}") for n in range(nodes) for i in range(8))


def silicon(nodes: int, seed: int) -> Floats:
    """float64[part, 3]: how each chip differs for ever: leakage, cooling, boost."""
    return np.random.default_rng(seed).normal(0, 1, (nodes * 8, 3))


def shown(nodes: int, ticks: int, chips: Floats, rng: np.random.Generator, warmer: float = 0.0) -> dict[str, Floats]:
    """float64[tick, part] by signal. Each node has a job of its own whose load wanders; chips differ; everything is noisy."""
    n = nodes * 8
    load = np.repeat(np.clip(0.8 + 0.15 * np.sin(np.arange(ticks)[:, None] / 37 + rng.uniform(0, 6, (1, nodes))), 0, 1), 8, axis=1)
    slot = np.arange(n) % 8
    tensor = np.clip(0.42 * load + rng.normal(0, 0.015, (ticks, n)), 0, 1)
    power = 90 + 560 * load * (1 + 0.015 * chips[:, 0]) + rng.normal(0, 12, (ticks, n))
    celsius = 27 + warmer + power * 0.05 * (1 + 0.03 * chips[:, 1]) + 0.7 * (slot - 3.5) + rng.normal(0, 0.5, (ticks, n))
    clock = 1.74e9 * (1 - 0.06 * load) * (1 + 0.006 * chips[:, 2]) + rng.normal(0, 4e6, (ticks, n))
    return {"gpu.utilization_ratio": np.clip(0.985 + rng.normal(0, 0.01, (ticks, n)), 0, 1), "gpu.power_watts": power,
            "gpu.temperature_celsius": celsius, "gpu.sm_clock_hertz": clock, "gpu.tensor_active_ratio": tensor,
            "gpu.dram_active_ratio": np.clip(0.35 * load + rng.normal(0, 0.012, (ticks, n)), 0, 1),
            "gpu.nvlink_bytes_per_second": 1.2e11 * load * (1 + rng.normal(0, 0.03, (ticks, n)))}


def store_of(nodes: int, hours: float, start: int, seed: int = 1, changes: Mapping[float, float] | None = None,
             path: Path | None = None) -> DuckStore:
    """A store (in memory where no path is given) with that history, a page a node each 15 s. changes: from which hour on the fleet is
    warmer, by how many degrees."""
    store, rng, chips = DuckStore(path), np.random.default_rng(seed), silicon(nodes, seed)
    parts = gpus(nodes)
    layouts = []
    for n in range(nodes):
        mine = parts[n * 8 : n * 8 + 8]
        series = tuple(Series(s, (("UUID", str(p.id)), ("instance", f"n{n}")), "gauge") for s in SIGNALS for p in mine)
        refs = tuple(SignalRef(k, s, p) for k, (s, p) in enumerate((s, p) for s in SIGNALS for p in mine))
        layouts.append(Layout(Layout.make_id(f"n{n}", series, refs), f"n{n}", series, refs, f"n{n}"))
    for hour in range(int(np.ceil(hours))):
        ticks = int(min(1.0, hours - hour) * 240)
        warmer = sum(by for since, by in (changes or {}).items() if hour >= since)
        blocks = shown(nodes, ticks, chips, rng, warmer)
        values = np.stack([blocks[s] for s in SIGNALS], axis=1).reshape(ticks, len(SIGNALS), nodes, 8)
        scrapes = [Scrape(one.id, one.target_id, start + (hour * 240 + t) * STEP, values[t, :, n].reshape(-1))
                   for t in range(ticks) for n, one in enumerate(layouts)]
        store.append([Batch("w", 1, hour + 1, start + hour * 3_600_000, tuple(layouts) if not hour else (), tuple(scrapes))])
    return store
