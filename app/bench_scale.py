"""`greylag bench ingest --scale`: 1,000 targets of 5,000 series at 15 s, with a job that starts on 500 nodes and changes all
their DCGM labels; then everything is killed and started again.

It asks three things of Greylag: was a slot missed, how much memory do all processes hold, how soon after a kill -9 is
what was stored readable again. Prometheus on the same targets stands beside it for the last two.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.bench_ingest import page_server
from app.bench_pages import Serving
from app.bench_systems import SYSTEMS, System, installed, tree
from core.clock import monotonic_seconds

RESTART_SECONDS = 600.0
STEADY = 0.97


@dataclass(frozen=True, slots=True)
class Scale:
    """The load. A job starts every `job_seconds`; at least one start falls into the measured time if that is longer.

    The measured time begins when as many samples come in as the targets show (`STEADY` of them), at the latest after
    `warm_seconds`: five million series that were never seen before are learnt once, and that is told apart.
    """

    targets: int = 1000
    series: int = 5000
    interval_seconds: float = 15.0
    job_targets: int = 500
    job_seconds: float = 300.0
    warm_seconds: float = 900.0
    seconds: float = 330.0

    @property
    def serving(self) -> Serving:
        return Serving(self.targets, extra=self.series - 2459, variants=2, job_targets=self.job_targets,
                       job_seconds=self.job_seconds)


def answers(system: System, query: str) -> int:
    """How many series a query gives; 0 while the system does not answer."""
    url = f"http://127.0.0.1:{system.port}/api/v1/query?query={query}"
    with contextlib.suppress(OSError, ValueError, urllib.error.HTTPError), urllib.request.urlopen(url, timeout=60) as answer:
        return len(json.load(answer)["data"]["result"])
    return 0


def restart(system: System) -> float:
    """Kills all of its processes and starts it anew: seconds until a query gives what was stored before."""
    assert system.process is not None
    for pid in reversed(tree(system.process.pid)):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    system.process.wait()
    began = monotonic_seconds()
    system.start(RESTART_SECONDS)
    while not answers(system, "up") and monotonic_seconds() - began < RESTART_SECONDS:
        time.sleep(0.2)
    return monotonic_seconds() - began


def warmed(system: System, scale: Scale) -> tuple[float, float]:
    """Waits until all targets are read at their interval: (seconds, the share of the samples that came in at the end)."""
    began, share = monotonic_seconds(), 0.0
    wanted = scale.targets * scale.series / scale.interval_seconds
    while share < STEADY and monotonic_seconds() - began < scale.warm_seconds:
        count, since = system.samples(), monotonic_seconds()
        time.sleep(2 * scale.interval_seconds)
        share = (system.samples() - count) / (monotonic_seconds() - since) / wanted
        print(f"greylag: {system.name}: {monotonic_seconds() - began:.0f} s after the start {share:.0%} of the samples come in",
              file=sys.stderr, flush=True)
    return monotonic_seconds() - began, share


def watch(system: System, scale: Scale) -> dict[str, Any]:
    """One run of a system."""
    try:
        system.start()
        warm_seconds, share = warmed(system, scale)
        cpu, _ = system.usage()
        count, began = system.samples(), monotonic_seconds()
        missed, waited = _dropped(system, "missed_slot"), _dropped(system, "first_reading_waits")
        peak = 0
        while monotonic_seconds() - began < scale.seconds:
            time.sleep(5)
            peak = max(peak, system.usage()[1])
        after, _ = system.usage()
        samples, took = system.samples() - count, monotonic_seconds() - began
        lost = None if missed is None else (_dropped(system, "missed_slot") or 0.0) - missed
        seconds = restart(system)
    finally:
        system.stop()
    return {"system": system.name, "targets": scale.targets, "series": scale.targets * scale.series,
            "cpu_us_per_sample": round((after - cpu) / max(1.0, samples) * 1e6, 3), "rss_bytes": peak,
            "samples_per_second": round(samples / took), "missed_slots": lost, "missed_at_start": missed,
            "first_readings_left_out": waited, "learning_seconds": round(warm_seconds), "learning_cpu_seconds": round(cpu),
            "share_of_samples_at_begin": round(share, 3), "restart_seconds": round(seconds, 1)}


def _dropped(system: System, reason: str) -> float | None:
    """Readings that Greylag counts as left out for this reason; None for a system that does not count them."""
    if system.name != "greylag":
        return None
    return system.metric(rf'greylag_collector_dropped_total\{{.*reason="{reason}"')


def bench_scale(scale: Scale | None = None) -> Iterator[dict[str, Any]]:
    """Greylag, then Prometheus where it is installed; one row each."""
    scale = scale or Scale()
    folder = Path(tempfile.mkdtemp(prefix="greylag-bench-"))
    try:
        for name in ("greylag", "prometheus"):
            if not installed(name):
                print(f"greylag: {name} is not installed and is left out", file=sys.stderr)
                continue
            print(f"greylag: {name}, {scale.targets} targets of {scale.series} series "
                  f"(until all are read, then {scale.seconds:.0f} s and a restart)", file=sys.stderr, flush=True)
            with page_server(scale.serving) as address:
                targets = [(address, f"/nodes/{i}") for i in range(scale.targets)]
                yield watch(SYSTEMS[name](folder / name, targets, scale.interval_seconds), scale)
            shutil.rmtree(folder / name, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
