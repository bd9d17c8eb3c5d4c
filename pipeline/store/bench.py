"""What the store costs: appends, registration, live and sealed bytes, restart and queries, on pages of dense GPU nodes."""

from __future__ import annotations

import gc
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.clock import monotonic_seconds, process_cpu_seconds
from core.memory import resident_bytes
from core.protocols import Matcher
from core.types import Batch, Scrape
from pipeline.promql.answers import range_
from pipeline.store.bench_pages import layout, page, values
from pipeline.store.duck import DuckStore

T0 = 1_700_000_000_000 // 3_600_000 * 3_600_000
STEP_MS = 10_000  # 360 points are one hour
DISTINCT_PAGES = 10  # nodes beyond these repeat the values of another node, under their own names
KEPT_MS = 2**50


def bench_store(nodes: int = 20, points: int = 360, scrapes_a_flush: int = 6, seed: int = 1,
                rollups: bool = False) -> dict[str, Any]:
    """Appends `points` scrapes of `nodes` pages of about 2,500 series, seals the hour, opens the store again, queries.

    `scrapes_a_flush` scrapes of each node share a transaction. CPU is of this process, all threads, the measured calls'
    own only; values are made beforehand. The first append, which registers all series, is told apart.
    """
    shown = [page(n, seed) for n in range(nodes)]
    layouts = [layout(n, one) for n, one in enumerate(shown)]
    rows = [values(one, points, seed + n) for n, one in enumerate(shown[:DISTINCT_PAGES])]
    series = sum(len(one.series) for one in layouts)
    kept = KEPT_MS if rollups else 0
    del shown
    gc.collect()
    before = resident_bytes()
    with tempfile.TemporaryDirectory(prefix="greylag-bench-") as name:
        folder = Path(name)
        store = DuckStore(folder, retention_ms=KEPT_MS, rollup_1m_ms=kept, rollup_1h_ms=kept)

        def flush(first: int, last: int) -> tuple[float, float]:
            scrapes = tuple(Scrape(one.id, one.target_id, T0 + at * STEP_MS, rows[n % len(rows)][at])
                            for at in range(first, last) for n, one in enumerate(layouts))
            batch = Batch("bench", 1, first, T0 + first * STEP_MS, tuple(layouts) if first == 0 else (), scrapes)
            return _clocked(lambda: store.append([batch]))

        registered = flush(0, 1)
        held = resident_bytes()
        commits = [flush(at, min(at + scrapes_a_flush, points)) for at in range(1, points, scrapes_a_flush)]
        appended, samples = series * (points - 1), series * points
        wall = sorted(c[0] for c in commits)
        store.checkpoint()
        live = store.stats()["file_bytes"]
        store.newest_ms += 2 * 3_600_000  # the hour is over: sealing is due
        sealing = _clocked(store.seal)
        stats = store.stats()
        end = T0 + points * STEP_MS
        query = _clocked(lambda: range_(store, "DCGM_FI_DEV_GPU_TEMP", T0, end, STEP_MS))
        one_target = _clocked(lambda: store.arrays([Matcher("instance", "=", "n0:9100")], T0, end))
        peak = resident_bytes()
        store.close()
        opened = _clocked(lambda: DuckStore(folder, retention_ms=KEPT_MS).close())
    return {
        "nodes": nodes, "series": series, "samples": samples, "flush_samples": series * min(scrapes_a_flush, points - 1),
        "register_us_per_series": round(registered[1] / series * 1e6, 3),
        "append_us_per_sample": round(sum(c[1] for c in commits) / appended * 1e6, 4),
        "append_samples_per_second": round(appended / sum(wall)),
        "commit_p50_seconds": round(wall[len(wall) // 2], 4), "commit_max_seconds": round(wall[-1], 4),
        "live_bytes_per_sample": round(live / samples, 3),
        "seal_us_per_sample": round(sealing[1] / samples * 1e6, 4),
        "bytes_per_sample": round(stats["sealed_bytes"] / samples, 3),
        "rollup_1m_bytes_per_sample": round(stats["rollup_1m_bytes"] / samples, 3),
        "registered_rss_bytes": held - before, "rss_bytes": peak, "rss_max_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "range_query_seconds": round(query[0], 4), "one_target_seconds": round(one_target[0], 4),
        "open_seconds": round(opened[0], 3),
    }


def _clocked(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = monotonic_seconds(), process_cpu_seconds()
    work()
    return monotonic_seconds() - wall, process_cpu_seconds() - cpu
