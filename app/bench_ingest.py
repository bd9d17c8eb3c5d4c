"""`greylag bench ingest`: Greylag and its peers scrape the same targets in turn, and the CPU of each is read from /proc.

Systems run one after the other, in two rounds (A B A B), each with a warm-up that is not counted: the machine's noise
hits all of them. One row per (system, targets, workers) and path: how Greylag takes the samples in.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.bench_pages import Serving, serve_pages
from app.bench_push import push_pages
from app.bench_systems import SYSTEMS, System, installed
from core.clock import monotonic_seconds

STEADY = 0.97  # of the samples that the targets show: from then on all of them are read at their interval
CAUGHT_UP = 1.05  # more than that, and what was read before is still being stored
SLOW_INTERVAL_SECONDS = 5.0  # about 50,000 samples/s of 100 targets
LOOK_SECONDS = 1.0  # between two looks at the resident memory: it swings by a tenth with each batch and block
Systems = list[tuple[str, dict[str, Any]]]  # (name, options), in the order in which they take turns


@dataclass(frozen=True, slots=True)
class Load:
    """What is scraped, how often, and for how long it is watched. The measured time begins after `warm_seconds`, and not
    before all targets are read at their interval, or `learn_seconds` are over. pushed: the same pages come by remote write."""

    serving: Serving = field(default_factory=Serving)
    interval_seconds: float = 1.0
    warm_seconds: float = 25.0
    learn_seconds: float = 180.0
    seconds: float = 30.0
    pushed: bool = False

    @property
    def path(self) -> str:
        """How Greylag takes the samples in: fast (a page like the last one), strict (the strict parser) or push."""
        return "push" if self.pushed else "strict" if self.serving.stamped else "fast"


@contextlib.contextmanager
def sender(load: Load, address: str) -> Iterator[None]:
    """A process that pushes to host:port; its CPU is in no figure."""
    process = multiprocessing.get_context("spawn").Process(
        target=push_pages, args=(load.serving, load.interval_seconds, address, "/api/v1/write"), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


@contextlib.contextmanager
def page_server(serving: Serving) -> Iterator[str]:
    """A process that serves the pages; gives its host:port."""
    context = multiprocessing.get_context("spawn")
    ports, theirs = context.Pipe(duplex=False)
    server = context.Process(target=serve_pages, args=(theirs, serving), daemon=True)
    server.start()
    try:
        yield f"127.0.0.1:{ports.recv()}"
    finally:
        server.terminate()
        server.join()


def until_steady(system: System, per_second: float, look_seconds: float, most_seconds: float) -> float:
    """Waits until so many samples a second come in (`STEADY` to `CAUGHT_UP` times): the share that came in at the end."""
    began, share = monotonic_seconds(), 0.0
    while not STEADY <= share <= CAUGHT_UP and monotonic_seconds() - began < most_seconds:
        count, since = system.samples(), monotonic_seconds()
        time.sleep(look_seconds)
        share = (system.samples() - count) / (monotonic_seconds() - since) / per_second
        print(f"greylag: {system.name}: {monotonic_seconds() - began:.0f} s later {share:.0%} of the samples come in",
              file=sys.stderr, flush=True)
    return share


def measure(system: System, load: Load) -> dict[str, Any]:
    """One run: CPU-µs a sample over the measured time, the median of the resident bytes in it, samples a second, and
    seconds from the first scrape of a new target to when it can be queried."""
    with contextlib.ExitStack() as stack:
        stack.callback(system.stop)
        system.start()
        if load.pushed:
            stack.enter_context(sender(load, system.push_address))
        time.sleep(load.warm_seconds)
        until_steady(system, load.serving.series * load.serving.targets / load.interval_seconds,
                     max(10.0, 2 * load.interval_seconds), load.learn_seconds)
        cpu, _ = system.usage()
        count, began = system.samples(), monotonic_seconds()
        resident: list[int] = []
        while monotonic_seconds() - began < load.seconds:
            time.sleep(LOOK_SECONDS)
            resident.append(system.usage()[1])
        after, _ = system.usage()
        samples, took = system.samples() - count, monotonic_seconds() - began
        newcomer = system.newcomer()
    return {"cpu_us_per_sample": (after - cpu) / max(1.0, samples) * 1e6, "rss_bytes": statistics.median(resident),
            "samples_per_second": samples / took, "first_queryable_seconds": newcomer}


def run(load: Load, systems: Systems, rounds: int = 2) -> list[dict[str, Any]]:
    """The rows of one load."""
    runs: dict[int, list[dict[str, Any]]] = {i: [] for i in range(len(systems))}
    folder = Path(tempfile.mkdtemp(prefix="greylag-bench-"))
    try:
        with page_server(load.serving) as address:
            targets = [(address, f"/nodes/{i}") for i in range(load.serving.targets)]
            for turn in range(rounds):
                for i, (name, options) in enumerate(systems):
                    place = folder / f"{turn}-{i}-{name}"
                    print(f"greylag: {name}, {load.serving.targets} targets, round {turn + 1} of {rounds} "
                          f"({load.warm_seconds + load.seconds:.0f} s)", file=sys.stderr, flush=True)
                    runs[i].append(measure(SYSTEMS[name](place, targets, load.interval_seconds, pushed=load.pushed, **options), load))
                    shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows(load, systems, runs)


def rows(load: Load, systems: Systems, runs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a system: the median of its runs, and Prometheus' CPU a sample over its own."""
    costs = {i: statistics.median(one["cpu_us_per_sample"] for one in found) for i, found in runs.items()}
    peer = next((costs[i] for i, (name, _) in enumerate(systems) if name == "prometheus"), None)
    out = []
    for i, (name, options) in enumerate(systems):
        out.append({
            "system": name, "targets": load.serving.targets, "workers": int(options.get("workers", 1)),
            "cpu_us_per_sample": round(costs[i], 3),
            "rss_bytes": round(statistics.median(one["rss_bytes"] for one in runs[i])),
            "times_cheaper_than_prometheus": None if peer is None else round(peer / costs[i], 2),
            "samples_per_second": round(statistics.median(one["samples_per_second"] for one in runs[i])),
            "first_queryable_seconds": _middle([one["first_queryable_seconds"] for one in runs[i]]),
            "path": load.path, "structures": load.serving.structures, "storm": load.serving.storm,
            "interval_seconds": load.interval_seconds,
            "rounds": [round(one["cpu_us_per_sample"], 3) for one in runs[i]],
        })
    return out


def _middle(found: Sequence[float | None]) -> float | None:
    known = [one for one in found if one is not None]
    return round(statistics.median(known), 1) if known else None


def bench_ingest(matrix: bool = False) -> Iterator[dict[str, Any]]:
    """The default comparison (100 targets, about 250,000 samples/s), or the whole matrix. Peers that are not installed are
    left out, and said to be."""
    peers: Systems = [(name, {}) for name in ("prometheus", "victoriametrics") if installed(name)]
    for name in ("prometheus", "victoriametrics"):
        if not installed(name):
            print(f"greylag: {name} is not installed and is left out", file=sys.stderr)
    for load, systems in loads(peers) if matrix else [(Load(), [("greylag", {}), *peers[:1]])]:
        yield from run(load, systems)


def loads(peers: Systems) -> Iterator[tuple[Load, Systems]]:
    """The matrix: 100 targets with one and two workers beside all peers; 50 to 400 targets; a fleet whose layouts all
    differ; the strict path; the push path; the storm. Strict and push cost several times as much a sample, so they get a
    rate that two cores can take."""
    default: Systems = [("greylag", {}), *peers[:1]]
    yield Load(), [("greylag", {}), ("greylag", {"workers": 2}), *peers]
    for targets in (50, 200, 400):
        yield Load(Serving(targets=targets), interval_seconds=max(1.0, targets / 100)), default
    yield Load(Serving(structures=100)), default
    yield Load(Serving(stamped=True), interval_seconds=SLOW_INTERVAL_SECONDS), default
    yield Load(Serving(), interval_seconds=SLOW_INTERVAL_SECONDS, pushed=True), [("greylag", {}), *peers]
    yield Load(Serving(storm=True)), default
