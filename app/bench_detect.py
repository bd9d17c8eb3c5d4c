"""`greylag bench detect`: what one tick of judgement costs: window, all detectors, incidents and localisation.

An emulated fleet that shows all it can (tier D, a reading every 15 s; see `app.bench_blocks`) fills a window; then ticks are judged. Some parts are
ill, so that there is something to localise. One row for each size of the fleet; `times_longer` is the tick's time over
that of the smallest fleet, `cpu_times_longer` the same of its CPU time (what counts where others use the machine too), beside
`nodes_over` by how much larger it is: equal numbers are linear.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from app import wiring
from app.bench_blocks import BlockFleet
from app.brain import Brain
from app.lean import lean
from core.clock import TICK_MS, monotonic_seconds, process_cpu_seconds
from core.memory import resident_bytes
from core.telemetry import Telemetry as OwnTelemetry

SIZES = (50, 250, 1000)
WINDOW_TICKS, JUDGED_TICKS = 60, 6
ILL = ("thermal_throttle", "packet_loss", "ecc_correctable_storm")
ILL_TICKS = 12  # before the window's end, so that what is ill is found while ticks are measured
SEED = 7
SLOWEST = 5
TOLD_TICKS = 15  # how often the set-up of a large fleet, which takes minutes, says how far it is


def bench_detect(sizes: Sequence[int] = SIZES, window_ticks: int = WINDOW_TICKS, judged: int = JUDGED_TICKS) -> Iterator[dict[str, Any]]:
    """One row a size. The first judged tick is told apart: caches are cold, and everything that is ill opens."""
    lean()  # as the owner's process, which judges
    smallest: tuple[int, float, float] | None = None
    for nodes in sizes:
        print(f"greylag: {nodes} nodes, a window of {window_ticks * TICK_MS / 60000:.0f} minutes", file=sys.stderr, flush=True)
        row = _measure(nodes, window_ticks, judged)
        smallest = smallest or (nodes, row["tick_seconds_median"], row["tick_cpu_seconds_median"])
        yield {**row, "nodes_over": round(nodes / smallest[0], 2),
               "times_longer": round(row["tick_seconds_median"] / smallest[1], 2),
               "cpu_times_longer": round(row["tick_cpu_seconds_median"] / smallest[2], 2), "peer": f"{smallest[0]} nodes in the same run"}


def _measure(nodes: int, window_ticks: int, judged: int) -> dict[str, Any]:
    began_setup = process_cpu_seconds()
    fleet = BlockFleet(nodes, SEED)
    told = OwnTelemetry()
    plugins, params = wiring.detectors({}, "bench")
    brain = Brain(plugins, params, fleet.inventory(), None, told)
    at = fleet.ill.now_ms // TICK_MS * TICK_MS
    for i in range(window_ticks):
        at += TICK_MS
        if i == window_ticks - ILL_TICKS:
            for fault in ILL:
                fleet.ill.inject(fault, seed=SEED)
        fleet.feed(brain, at)
        brain.ring.window(at)
        if (i + 1) % TOLD_TICKS == 0:
            print(f"greylag: {i + 1} of {window_ticks} ticks are there, {process_cpu_seconds() - began_setup:.0f} s of CPU, "
                  f"{resident_bytes() / 1e9:.1f} GB", file=sys.stderr, flush=True)
    setup = process_cpu_seconds() - began_setup
    took, cpu = [], []
    by_detector: dict[str, float] = {}
    for _ in range(judged + 1):
        at += TICK_MS
        fleet.feed(brain, at)
        began, used = monotonic_seconds(), process_cpu_seconds()
        brain.tick(at)
        took.append(monotonic_seconds() - began)
        cpu.append(process_cpu_seconds() - used)
        by_detector = {name: told.get("greylag_detector_seconds", detector=name) for name in plugins}
    slowest = sorted(by_detector.items(), key=lambda one: -one[1])[:SLOWEST]
    return {"nodes": nodes, "gpus": fleet.gpus, "detectors": len(plugins), "window_ticks": window_ticks, "setup_cpu_seconds": round(setup, 1),
            "first_tick_seconds": round(took[0], 3), "tick_seconds_median": round(statistics.median(took[1:]), 3),
            "tick_seconds_max": round(max(took[1:]), 3), "tick_cpu_seconds_median": round(statistics.median(cpu[1:]), 3),
            "tick_cpu_seconds_max": round(max(cpu[1:]), 3), "first_tick_cpu_seconds": round(cpu[0], 3),
            "detectors_seconds": round(sum(by_detector.values()), 3),
            "slowest_detectors": {name: round(seconds, 3) for name, seconds in slowest},
            "rss_bytes": resident_bytes(), "incidents": len(brain.open_incidents())}
