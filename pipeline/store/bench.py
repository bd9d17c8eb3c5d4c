"""What the store costs: `greylag bench store --json` prints what `bench_store` gives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from core.clock import monotonic_seconds, process_cpu_seconds
from core.protocols import Matcher
from core.types import Batch, Layout, Scrape, Series
from pipeline.promql.answers import range_
from pipeline.store.duck import DuckStore

T0 = 1_700_000_000_000 // 3_600_000 * 3_600_000
STEP_MS = 15_000
# (name, targets, series of each): the demo's lean pages, and what a dense node exposes (performance.md §4).
SHAPES = (("demo", 36, 400), ("dense", 100, 2_500))


def bench_store(seed: int = 1, slots: int = 60, shapes: tuple[tuple[str, int, int], ...] = SHAPES) -> dict[str, Any]:
    """Appends `slots` scrapes of each target for each shape (name, targets, series of each), seals them, and queries.

    CPU is of this process, all threads, the appends' own only. Rows are made before the clock starts.
    """
    return {name: _shape(targets, series, slots, seed) for name, targets, series in shapes}


def _batches(targets: int, series: int, slots: int, seed: int) -> list[Batch]:
    random = np.random.default_rng(seed)
    layouts = []
    for t in range(targets):
        many = tuple(Series(f"metric_{i // 8}_total" if i % 3 else f"metric_{i // 8}", (
            ("gpu", str(i % 8)), ("instance", f"n{t}:9400"), ("job", "bench"))) for i in range(series))
        layouts.append(Layout(f"bench-{t}", f"t{t}", many, (), f"n{t}"))
    counters = np.arange(series) % 3 != 0
    # A third gauges that wander in halves, the rest counters of which half stand still: what exporter pages look like.
    level = np.where(counters, random.integers(0, 10**9, (targets, series)), random.integers(20, 80, (targets, series)))
    rate = np.where(counters & (random.random((targets, series)) < 0.5), random.integers(1, 5_000, (targets, series)), 0)
    batches = []
    for slot in range(slots):
        at = T0 + slot * STEP_MS
        wander = np.where(counters, 0, random.integers(-2, 3, (targets, series)) / 2)
        values = (level + rate * slot + wander).astype(np.float64)
        scrapes = tuple(Scrape(f"bench-{t}", f"t{t}", at, values[t]) for t in range(targets))
        batches.append(Batch("bench", 1, slot, at, tuple(layouts) if slot == 0 else (), scrapes))
    return batches


def _shape(targets: int, series: int, slots: int, seed: int) -> dict[str, Any]:
    batches = _batches(targets, series, slots, seed)
    samples = targets * series * slots
    with tempfile.TemporaryDirectory(prefix="greylag-bench-") as folder:
        store = DuckStore(Path(folder))
        first = _clocked(lambda: store.append(batches[:1]))
        commits = [_clocked(lambda one=one: store.append([one])) for one in batches[1:]]  # type: ignore[misc]
        wall, cpu = sum(c[0] for c in commits), sum(c[1] for c in commits)
        appended = samples - targets * series
        query = _clocked(lambda: range_(store, 'metric_1{gpu="0"}', T0, T0 + slots * STEP_MS, STEP_MS))
        instant = _clocked(lambda: store.arrays([Matcher("instance", "=", "n0:9400")], T0, T0 + slots * STEP_MS))
        store.newest_ms = T0 + 2 * 3_600_000  # the hour is over: sealing is due
        sealing = _clocked(store.seal)
        stats = store.stats()
        store.close()
        opened = _clocked(lambda: DuckStore(Path(folder)).close())
    return {
        "targets": targets, "series": targets * series, "samples": samples,
        "first_append_seconds": round(first[0], 3),
        "append_samples_per_second": round(appended / wall), "append_cpu_us_per_sample": round(cpu / appended * 1e6, 4),
        "commit_p50_seconds": round(float(np.median([c[0] for c in commits])), 4),
        "commit_max_seconds": round(max(c[0] for c in commits), 4),
        "sealed_bytes_per_sample": round(stats["sealed_bytes"] / samples, 3),
        "seal_cpu_us_per_sample": round(sealing[1] / samples * 1e6, 4),
        "range_query_seconds": round(query[0], 4), "one_target_seconds": round(instant[0], 4),
        "open_seconds": round(opened[0], 3),
    }


def _clocked(work: Any) -> tuple[float, float]:
    wall, cpu = monotonic_seconds(), process_cpu_seconds()
    work()
    return monotonic_seconds() - wall, process_cpu_seconds() - cpu
