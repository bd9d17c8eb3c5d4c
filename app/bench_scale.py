"""`greylag bench ingest --scale`: 1,000 targets of 5,000 series at 15 s, with a job that starts on 500 nodes and changes all
their DCGM labels; then everything is killed and started again.

It asks three things of Greylag: was a slot missed, how much memory do all processes hold, how soon after a kill -9 is
what was stored readable again. Prometheus on the same targets stands beside it for the last two.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
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

from app.bench_ingest import page_server, until_steady
from app.bench_pages import NODE_SERIES, Serving
from app.bench_systems import SYSTEMS, System, installed, tree
from core.clock import monotonic_seconds

RESTART_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Scale:
    """The load. A job starts every `job_seconds`; at least one start falls into the measured time if that is longer.

    The measured time begins when as many samples come in as the targets show (97 % of them), at the latest after
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
        return Serving(self.targets, extra=self.series - NODE_SERIES, job_targets=self.job_targets,
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


def watch(system: System, scale: Scale) -> dict[str, Any]:
    """One run of a system."""
    try:
        system.start()
        began = monotonic_seconds()
        share = until_steady(system, scale.targets * scale.series / scale.interval_seconds, 2 * scale.interval_seconds,
                             scale.warm_seconds)
        warm_seconds = monotonic_seconds() - began
        cpu, _ = system.usage()
        count, began = system.samples(), monotonic_seconds()
        dropped = _dropped(system)
        peak = 0
        while monotonic_seconds() - began < scale.seconds:
            time.sleep(5)
            peak = max(peak, system.usage()[1])
        after, _ = system.usage()
        samples, took = system.samples() - count, monotonic_seconds() - began
        lost = {reason: n - dropped.get(reason, 0.0) for reason, n in _dropped(system).items() if n > dropped.get(reason, 0.0)}
        seconds = restart(system)
    finally:
        system.stop()
    return {"system": system.name, "targets": scale.targets, "series": scale.targets * scale.series,
            "cpu_us_per_sample": round((after - cpu) / max(1.0, samples) * 1e6, 3), "rss_bytes": peak,
            "samples_per_second": round(samples / took), "left_out": lost, "left_out_at_start": dropped,
            "learning_seconds": round(warm_seconds), "learning_cpu_seconds": round(cpu),
            "share_of_samples_at_begin": round(share, 3), "restart_seconds": round(seconds, 1)}


def _dropped(system: System) -> dict[str, float]:
    """What Greylag counts as left out so far, by reason (readings, or samples for `handover_full`); empty for others."""
    if system.name != "greylag":
        return {}
    rows = re.findall(r'^greylag_collector_dropped_total\{.*reason="(\w+)".*\} (\S+)$', system.metrics(60.0), re.MULTILINE)
    return {reason: sum(float(n) for other, n in rows if other == reason) for reason, _ in rows}


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
