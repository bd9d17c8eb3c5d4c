"""The systems that `greylag bench ingest` compares: each is started on the same targets, watched from /proc and ended by pid.

CPU is user and system time of the whole process tree; memory is the sum of the resident sets, so pages that Greylag's
processes share count several times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.processes import free_port
from core.clock import monotonic_seconds, wall_ms
from core.errors import Unavailable

START_SECONDS = 60.0
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and all its descendants that live."""
    out = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                out += tree(int(child))
    return out


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds of a process, its ended children included; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICKS_A_SECOND


def rss_bytes(pid: int) -> int:
    """The resident set of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class System(ABC):
    """One system under test. samples(): how many it has stored since its start."""

    name = ""

    def __init__(self, folder: Path, targets: Sequence[tuple[str, str]], interval_seconds: float, **options: Any) -> None:
        """targets: (host:port, path, …) of each; interval_seconds: between two scrapes of one target. option pushed: it
        scrapes nothing and takes remote write."""
        self.folder, self.targets, self.interval, self.options = folder, targets, interval_seconds, options
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pushed(self) -> bool:
        """Whether samples are pushed to it."""
        return bool(self.options.get("pushed"))

    @property
    def push_address(self) -> str:
        """host:port that takes remote write at /api/v1/write."""
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """The command line; writes what the system reads."""

    @abstractmethod
    def samples(self) -> float:
        """Samples stored since the start."""

    def start(self, within_seconds: float = START_SECONDS) -> float:
        """Starts it; gives the seconds until it answers. Raises Unavailable."""
        began = monotonic_seconds()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        while monotonic_seconds() - began < within_seconds:
            with contextlib.suppress(OSError, ValueError):
                self.samples()
                return monotonic_seconds() - began
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        text = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        raise Unavailable(f"{self.name} did not start ({text[-1] if text else 'it said nothing'})")

    def usage(self) -> tuple[float, int]:
        """(CPU seconds, resident bytes) of all its processes."""
        assert self.process is not None
        pids = tree(self.process.pid)
        return sum(map(cpu_seconds, pids)), sum(map(rss_bytes, pids))

    def stop(self) -> None:
        """Ends it in order; after 30 s by force."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def metric(self, pattern: str) -> float:
        """The sum of the values of the series of its /metrics that match."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.metrics().splitlines() if re.match(pattern, line))

    def metrics(self, timeout_seconds: float = 10.0) -> str:
        """Its /metrics page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=timeout_seconds) as answer:
            return str(answer.read().decode())

    def newcomer(self) -> float | None:
        """A target is added while it runs: seconds from its first scrape to when that can be queried, to 0.5 s; None where
        it did not come within 40 s, or the system has no such query, or scrapes nothing."""
        if self.pushed:
            return None
        name, (address, place) = "newcomer", self.targets[0]
        began = wall_ms() / 1000
        self.targets = [*self.targets, (address, place)]
        self.target_file(newcomer=name)
        query = urllib.parse.quote(f'up{{instance="{name}"}}')
        while (now := wall_ms() / 1000) < began + 40:
            url = f"http://127.0.0.1:{self.port}/api/v1/query_range?query={query}&start={began:.1f}&end={now:.1f}&step=0.5"
            with contextlib.suppress(OSError, ValueError, KeyError), urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
                if found:
                    return max(0.0, now - float(found[0]["values"][0][0]))
            time.sleep(0.1)
        return None

    def target_file(self, newcomer: str = "") -> Path:
        """Service discovery by file, as all systems read it. newcomer: what the last target is called."""
        path = self.folder / "targets.json"
        names = [place.rpartition("/")[2] for _, place in self.targets]
        if newcomer:
            names[-1] = newcomer
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": [address], "labels": {"__metrics_path__": place, "instance": name}}
                                     for (address, place), name in zip(self.targets, names, strict=True)]))
        fresh.replace(path)
        return path

    def scrape_file(self) -> Path:
        """A Prometheus configuration with the targets."""
        path = self.folder / "prometheus.yml"
        if self.pushed:
            path.write_text("{}")
            return path
        seconds = f"{round(self.interval * 1000)}ms" if self.interval % 1 else f"{round(self.interval)}s"
        path.write_text(json.dumps({
            "global": {"scrape_interval": seconds, "scrape_timeout": seconds},
            "scrape_configs": [{"job_name": "bench", "file_sd_configs": [{"files": [str(self.target_file())]}]}]}))
        return path


class Prometheus(System):
    """Debian's Prometheus with its defaults; no rules, no remote write, no queries."""

    name = "prometheus"

    def command(self) -> list[str]:
        return ["prometheus", f"--config.file={self.scrape_file()}", f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error",
                *(("--web.enable-remote-write-receiver",) if self.pushed else ())]

    def samples(self) -> float:
        return self.metric(r"prometheus_tsdb_head_samples_appended_total")


class VictoriaMetrics(System):
    """Debian's VictoriaMetrics single node with its own scraper."""

    name = "victoriametrics"

    def command(self) -> list[str]:
        return ["victoria-metrics", f"-promscrape.config={self.scrape_file()}", f"-storageDataPath={self.folder / 'data'}",
                f"-httpListenAddr=127.0.0.1:{self.port}", "-loggerLevel=ERROR", "-retentionPeriod=1"]

    def samples(self) -> float:
        return self.metric(r'vm_rows_inserted_total\{type="%s"' % ("promremotewrite" if self.pushed else "promscrape"))


class Greylag(System):
    """`greylag run` with everything on: ring, detectors, tick, store, API. option workers: collector processes."""

    name = "greylag"

    def __init__(self, folder: Path, targets: Sequence[tuple[str, str]], interval_seconds: float, **options: Any) -> None:
        super().__init__(folder, targets, interval_seconds, **options)
        self.push_port = free_port()

    @property
    def push_address(self) -> str:
        return f"127.0.0.1:{self.push_port}"

    def command(self) -> list[str]:
        seconds = f"{round(self.interval)}s"
        workers = int(self.options.get("workers", 1))
        file = self.folder / "greylag.yaml"
        file.write_text(json.dumps({
            "data_dir": str(self.folder / "data"), "listen": f"127.0.0.1:{self.port}",
            "workers": {"min": workers, "max": workers},
            **({"push_listen": self.push_address} if self.pushed else {
                "global": {"scrape_interval": seconds, "scrape_timeout": seconds},
                "scrape_configs": [{"job_name": "bench", "file_sd_configs": [{"files": [str(self.target_file())]}]}]})}))
        return [sys.executable, "-m", "app.cli", "run", "-c", str(file)]

    def samples(self) -> float:
        return self.metric(r"greylag_collector_samples_total")


SYSTEMS: dict[str, type[System]] = {one.name: one for one in (Greylag, Prometheus, VictoriaMetrics)}
PROGRAMS = {"prometheus": "prometheus", "victoriametrics": "victoria-metrics"}


def installed(name: str) -> bool:
    """True where the system's program is here."""
    return name not in PROGRAMS or shutil.which(PROGRAMS[name]) is not None
