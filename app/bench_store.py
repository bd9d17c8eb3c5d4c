"""`greylag bench store`: 360 points of each series of a few nodes, backfilled into Greylag, Prometheus and VictoriaMetrics.

One JSON row a system: bytes on disk a sample (everything in its data folder, indexes included); how long the whole server
takes from its start over that folder until it answers a query about it (`open_seconds`), and the same after kill -9
(`restart_seconds`). Greylag's rows take the whole way: pages through the scraper, batches into the store, hours sealed as they
end.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.bench_pages import PLACEHOLDER, node_name, node_pages
from app.bench_scale import answers
from app.bench_systems import System, installed, tree
from app.processes import free_port
from collectors.discovery import ScrapeTarget
from collectors.fetch import Body
from collectors.mapping import Mapper
from collectors.scrape import TargetScraper
from core.clock import monotonic_seconds, process_cpu_seconds
from core.plugins import load_plugins
from core.protocols import TargetInfo
from core.types import Batch

POINTS, INTERVAL_MS = 360, 15_000
# Half past an hour: 90 minutes then end on the hour, and all of it can be sealed. Far enough back for every peer.
START_MS = 1_790_001_000_000 // 3_600_000 * 3_600_000 + 1_800_000
SCRAPES_A_FLUSH = 20
_LINE = re.compile(rb"^([a-zA-Z_:][^ {]*)(\{[^\n]*\})? ([^ \n]+)$", re.MULTILINE)


def pages_of(node: int) -> list[bytes]:
    """360 pages of a node in time order."""
    place = PLACEHOLDER.encode()
    return [page.replace(place, node_name(node).encode()).replace(b"GPU-ffffffff", b"GPU-%08x" % node)
            for page in node_pages(node, POINTS)]


def into_greylag(folder: Path, nodes: int) -> dict[str, Any]:
    """Appends, seals, and opens again."""
    from pipeline.store.duck import DuckStore
    from pipeline.store.shrink import shrink

    mapper, seq, samples, cpu = Mapper(load_plugins("collectors.sources")), 0, 0, 0.0
    store = DuckStore(folder / "greylag.duckdb", retention_ms=10 * 365 * 86_400_000)
    info = [TargetInfo(f"bench/{i}", {"job": "bench", "instance": str(i)}, node_name(i)) for i in range(nodes)]
    scrapers = [TargetScraper(ScrapeTarget(one, "http://127.0.0.1/", INTERVAL_MS, 10.0), mapper) for one in info]
    pages = [pages_of(i) for i in range(nodes)]
    for first in range(0, POINTS, SCRAPES_A_FLUSH):
        rows = [row for turn in range(first, min(first + SCRAPES_A_FLUSH, POINTS)) for i, one in enumerate(scrapers)
                for row in one.page(Body(pages[i][turn], None), START_MS + turn * INTERVAL_MS, 0.0)]
        seq += 1
        batch = Batch("bench", 1, seq, rows[-1][1].at, tuple({layout.id: layout for layout, _ in rows}.values()),
                      tuple(scrape for _, scrape in rows))
        began = process_cpu_seconds()
        store.append([batch])
        cpu += process_cpu_seconds() - began
        samples += sum(len(scrape.values) for _, scrape in rows)
    # What comes two hours later ends the hours: they are sealed as in a run.
    later = START_MS + POINTS * INTERVAL_MS + 7_200_000
    store.append([Batch("bench", 1, seq + 1, later, (), tuple(
        type(s)(s.layout_id, s.target_id, later, s.values) for _, s in rows[:1]))])
    store.seal()
    store.close()
    size = folder_bytes(folder)
    began = monotonic_seconds()
    again = DuckStore(folder / "greylag.duckdb", retention_ms=10 * 365 * 86_400_000)
    store_opened = monotonic_seconds() - began
    sealed = again.stats()
    again.close()
    compact = shutil.copy(folder / "greylag.duckdb", folder / "compact.duckdb")
    won = shrink(Path(compact))  # as `greylag store compact` does it
    times = opened(BackfilledGreylag(folder, [], 15.0))
    return {"system": "greylag", "samples": samples, "bytes_per_sample": round(size / samples, 3),
            "compacted_bytes_per_sample": round((size - won) / samples, 3),
            **times, "store_open_seconds": round(store_opened, 2), "append_cpu_us_per_sample": round(cpu / samples * 1e6, 3),
            "sealed_bytes_per_sample": round(sealed["sealed_bytes"] / max(1, sealed["sealed_samples"]), 3)}


def openmetrics(nodes: int, out: Path) -> int:
    """Writes all samples in OpenMetrics text, series after series as promtool wants its families; gives their number."""
    samples = 0
    by_series: dict[bytes, list[bytes]] = {}
    for i in range(nodes):
        for turn, page in enumerate(pages_of(i)):
            at = (START_MS + turn * INTERVAL_MS) // 1000
            for name, labels, value in _LINE.findall(page):
                inner = labels[1:-1] + b"," if labels else b""
                series = b'%b{%binstance="%d",job="bench"}' % (name, inner, i)
                by_series.setdefault(series, []).append(b"%b %b %d\n" % (series, value, at))
                samples += 1
    with out.open("wb") as file:
        for series in sorted(by_series):
            file.writelines(by_series[series])
        file.write(b"# EOF\n")
    return samples


def folder_bytes(folder: Path) -> int:
    """What all files under a folder take on disk; a peer's cache of its own memory is not counted."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)


class _Backfilled(System):
    """A system that scrapes nothing and serves what was backfilled."""

    def samples(self) -> float:
        return float(answers(self, f"node_load1&time={(START_MS + 60_000) // 1000}")) or self._not_yet()

    def _not_yet(self) -> float:
        raise OSError("it does not answer yet")


class BackfilledGreylag(_Backfilled):
    """`greylag run` with all its processes over the store."""

    name = "greylag"

    def command(self) -> list[str]:
        file = self.folder / "greylag.yaml"
        file.write_text(json.dumps({"data_dir": str(self.folder), "listen": f"127.0.0.1:{self.port}", "retention": {"raw": "100y"}}))
        return [sys.executable, "-m", "app.cli", "run", "-c", str(file)]


class BackfilledPrometheus(_Backfilled):
    name = "prometheus"

    def command(self) -> list[str]:
        empty = self.folder / "empty.yml"
        empty.write_text("{}")
        return ["prometheus", f"--config.file={empty}", f"--storage.tsdb.path={self.folder / 'data'}", "--log.level=error",
                f"--web.listen-address=127.0.0.1:{self.port}", "--storage.tsdb.retention.time=100y"]


class BackfilledVictoria(_Backfilled):
    name = "victoriametrics"

    def command(self) -> list[str]:
        return ["victoria-metrics", f"-storageDataPath={self.folder / 'data'}", "-retentionPeriod=100y",
                f"-httpListenAddr=127.0.0.1:{self.port}", "-loggerLevel=ERROR"]


def opened(system: System) -> dict[str, float]:
    """Seconds from a start in order, and from one after kill -9, until a query for what was backfilled is answered."""
    try:
        first = system.start()
        assert system.process is not None
        for pid in reversed(tree(system.process.pid)):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        system.process.wait()
        again = system.start()
    finally:
        system.stop()
    return {"open_seconds": round(first, 2), "restart_seconds": round(again, 2)}


def into_prometheus(folder: Path, text: Path, samples: int) -> dict[str, Any]:
    """Blocks by promtool, then a server over them."""
    subprocess.run(["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
                   check=True, stdout=subprocess.DEVNULL)
    size = folder_bytes(folder / "data")
    return {"system": "prometheus", "samples": samples, "bytes_per_sample": round(size / samples, 3),
            **opened(BackfilledPrometheus(folder, [], 15.0))}


def into_victoria(folder: Path, text: Path, samples: int) -> dict[str, Any]:
    """Imports the same text (times in ms), lets it merge, and starts it again."""
    system = BackfilledVictoria(folder, [], 15.0)
    command = system.command()
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{system.port}"
    try:
        _wait(f"{base}/health")
        body = gzip.compress(re.sub(rb"(?m) (\d+)$", rb" \g<1>000", text.read_bytes().removesuffix(b"# EOF\n")), 1)
        request = urllib.request.Request(f"{base}/api/v1/import/prometheus", body, {"Content-Encoding": "gzip"})
        urllib.request.urlopen(request, timeout=300).close()
        for path in ("/internal/force_flush", "/internal/force_merge"):
            urllib.request.urlopen(base + path, timeout=60).close()
        time.sleep(10)
    finally:
        server.terminate()
        server.wait()
    size = folder_bytes(folder / "data")
    system.port = free_port()
    return {"system": "victoriametrics", "samples": samples, "bytes_per_sample": round(size / samples, 3), **opened(system)}


def _wait(url: str) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.1)


def bench_store(nodes: int = 3) -> Iterator[dict[str, Any]]:
    """One row a system that is installed."""
    folder = Path(tempfile.mkdtemp(prefix="greylag-bench-"))
    try:
        print(f"greylag: greylag, {nodes} nodes x {POINTS} points", file=sys.stderr, flush=True)
        yield into_greylag(folder / "greylag", nodes)
        text = folder / "all.om"
        samples = openmetrics(nodes, text)
        for name, into in (("prometheus", into_prometheus), ("victoriametrics", into_victoria)):
            if not installed(name):
                print(f"greylag: {name} is not installed and is left out", file=sys.stderr)
                continue
            print(f"greylag: {name}, {samples} samples", file=sys.stderr, flush=True)
            (folder / name).mkdir()
            yield into(folder / name, text, samples)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
