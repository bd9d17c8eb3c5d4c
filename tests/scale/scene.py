"""A scene of scaling with real processes: a climbing list of targets, Greylag with its own workers, and what was seen.

`python -m tests.scale.scene OUT.svg` plays the long form and draws it (see docs/scaling.md).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from collectors.schedule import offset_of
from tests import needs
from tests.live.site import Greylag, named

FEW, MANY = 20, 400


@dataclass
class Seen:
    """One look: seconds since the start, listed targets, live and wanted workers, CPU of all workers, missed readings."""

    at: float
    listed: int
    live: int
    wanted: int
    cpu: float
    missed: float
    samples: float
    note: str = ""


class Scene:
    """Target server and Greylag; `until` goes on looking while it waits."""

    def __init__(self, folder: Path, port: int, interval: str = "3s", series: int = 40, **workers: Any) -> None:
        self._targets = subprocess.Popen([sys.executable, "-m", "tests.scale.targets"], cwd=needs.ROOT, stdout=subprocess.PIPE,
                                         env={**os.environ, "SERIES": str(series)})
        assert self._targets.stdout is not None
        self._door = httpx.Client(base_url=f"http://127.0.0.1:{int(self._targets.stdout.readline())}", trust_env=False)
        self.interval_ms = int(interval.removesuffix("s")) * 1000
        self.greylag = Greylag(folder, port, flush_seconds=1.0, workers=workers, scrape_configs=[
            {"job_name": "load", "scrape_interval": interval, "scrape_timeout": interval,
             "http_sd_configs": [{"url": f"{self._door.base_url}/sd", "refresh_interval": "1s"}]}])
        self.seen: list[Seen] = []
        self.listed = 0
        self._started = time.monotonic()

    def start(self) -> None:
        """Lists the first few targets and starts Greylag."""
        self.list(FEW)
        self._started = time.monotonic()
        self.greylag.start()

    def list(self, n: int) -> None:
        """So many targets from now on."""
        self._door.get(f"/count/{n}").raise_for_status()
        self.listed = n

    def workers(self) -> dict[str, Any]:
        """The API's document of the workers."""
        return self.greylag.http.get("/api/greylag/v1/workers").raise_for_status().json()

    def look(self, note: str = "") -> dict[str, Any]:
        """Looks, remembers, and gives the document."""
        found = self.workers()
        live = [row for row in found["items"] if row["state"] == "active"]
        self.seen.append(Seen(
            time.monotonic() - self._started, self.listed, len(live), found["wanted"], sum(row["cpu_ratio"] or 0 for row in live),
            sum(row["missed"] or 0 for row in found["items"]), sum(row["samples_per_second"] or 0 for row in live), note))
        return found

    def until(self, condition: Callable[[dict[str, Any]], Any], seconds: float, what: str) -> Any:
        """Looks twice a second until the condition holds for the document."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(httpx.HTTPError):
                found = condition(self.look())
                if found:
                    return found
            assert time.monotonic() < deadline, f"{what} did not happen in {seconds:g} s (log: {self.greylag.folder}), {self.seen[-1:]}"
            time.sleep(0.5)

    def watch(self, seconds: float) -> None:
        """Only looks."""
        end = time.monotonic() + seconds
        with suppress(AssertionError):
            self.until(lambda found: time.monotonic() >= end, seconds + 5, "the end of the watch")

    def kill(self, worker: str) -> int:
        """kill -9 of a worker; gives the wall time (ms) at which."""
        pid = next(row["pid"] for row in self.workers()["items"] if row["worker"] == worker)
        os.kill(pid, signal.SIGKILL)
        self.look(f"kill -9 {worker}")
        return time.time_ns() // 1_000_000

    def missed(self) -> float:
        """Readings that Greylag itself counts as missed, of all workers there ever were: slots that were let pass, and first
        readings of targets (those taken over from a killed worker among them) that had to wait for their turn."""
        rows = self.greylag.query('greylag_collector_dropped_total{reason=~"missed_slot|first_reading_waits"}')
        return sum(float(row["value"][1]) for row in rows)

    def close(self) -> None:
        """Ends everything."""
        self.greylag.close()
        self._door.close()
        self._targets.terminate()
        self._targets.wait(5)


@dataclass
class Ledger:
    """What the store holds of the targets: readings, holes between a target's first and last one, and times that are wrong."""

    readings: int
    holes: int
    doubled: int
    off_schedule: int


def ledger(scene: Scene) -> Ledger:
    """Reads the store of a scene whose Greylag has ended. A target may come and go: a hole is a due time that is missing
    within one of its stays, and stays are told apart by pauses of more than 15 s, while the list was short."""
    readings = holes = doubled = off = 0
    with scene.greylag.store() as store:
        for one in store.select(named("up", job="load"), 0, 2**62):
            instance = one.series.label("instance")
            offset = offset_of(f"load/{instance}", scene.interval_ms)
            times = [at for at, value in zip(one.at, one.values, strict=True) if value is not None]
            readings += len(times)
            doubled += len(times) - len(set(times))
            off += sum((at - offset) % scene.interval_ms != 0 for at in times)
            for before, after in pairwise(times):
                if after - before <= 15_000:
                    holes += (after - before) // scene.interval_ms - 1
    return Ledger(readings, holes, doubled, off)


def draw(seen: list[Seen], out: Path) -> None:
    """An SVG of the scene: targets, workers and CPU over time."""
    width, height, left, gap = 760, 120, 60, 34
    begin, span = seen[0].at, seen[-1].at - seen[0].at

    def x(at: float) -> float:
        return left + (at - begin) / span * (width - left - 16)

    def panel(top: int, name: str, rows: list[tuple[str, str, list[float]]]) -> list[str]:
        high = max(1.0, *(v for _, _, values in rows for v in values)) * 1.1
        parts = [f'<rect x="{left}" y="{top}" width="{width - left - 16}" height="{height}" fill="#f6f8fa"/>',
                 f'<text x="{left}" y="{top - 6}" font-weight="bold">{name}</text>']
        for i in range(3):
            value = high * i / 2 / 1.1
            y = top + height - value / high * height
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
                         f'<line x1="{left}" x2="{width - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d8dee4"/>')
        for n, (label, colour, values) in enumerate(rows):
            points = []
            for i, value in enumerate(values):
                y = top + height - value / high * height
                if i:
                    points.append(f"{x(seen[i].at):.1f},{top + height - values[i - 1] / high * height:.1f}")
                points.append(f"{x(seen[i].at):.1f},{y:.1f}")
            parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(points)}"/>')
            parts.append(f'<text x="{left + 130 + n * 150}" y="{top - 6}" fill="{colour}">{label}</text>')
        return parts

    tops = [28 + i * (height + gap) for i in range(3)]
    parts = panel(tops[0], "Targets", [("listed", "#0969da", [float(s.listed) for s in seen])])
    parts += panel(tops[1], "Workers", [("wanted", "#bf8700", [float(s.wanted) for s in seen]),
                                        ("with leases in force", "#1a7f37", [float(s.live) for s in seen])])
    parts += panel(tops[2], "CPU of all workers", [("of one CPU", "#8250df", [s.cpu for s in seen])])
    bottom = tops[2] + height
    for s in seen:
        if s.note:
            parts.append(f'<line x1="{x(s.at):.1f}" x2="{x(s.at):.1f}" y1="{tops[0]}" y2="{bottom}" stroke="#cf222e" '
                         f'stroke-dasharray="4 3"/><text x="{x(s.at) + 4:.1f}" y="{bottom - height + 14}" fill="#cf222e">{s.note}</text>')
    step = 10 if span < 100 else 30
    parts += [f'<text x="{x(begin + t):.1f}" y="{bottom + 16}" text-anchor="middle">{t} s</text>' for t in range(0, int(span) + 1, step)]
    out.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 26}" '
                   f'font-family="sans-serif" font-size="11" fill="#24292f"><rect width="100%" height="100%" fill="white"/>'
                   + "".join(parts) + "</svg>\n", encoding="utf-8")


def thresholds() -> dict[str, Any]:
    """Cheap targets need low thresholds, and a fast machine lower ones: what counts is that load crosses them. Where this loop took 36 ms
    of CPU, 400 targets took 0.1 of one when they were read for the first time, and two idle workers 0.017."""
    costs = []
    for _ in range(5):
        begun = time.process_time()
        sum(i * i for i in range(1_000_000))
        costs.append(time.process_time() - begun)
    slower = min(costs) / 0.036
    return {"cpu_high": round(0.042 * slower, 4), "cpu_low": round(0.028 * slower, 4), "quiet_seconds": 4.0, "look_seconds": 1.0}


def play(scene: Scene, climb: list[tuple[int, float]], top: int, back: float) -> int:
    """Climbs, waits for `top` workers, kills one, goes back to few and waits for one worker. Gives when it killed (ms)."""
    scene.start()
    scene.until(lambda found: found["items"] and found["items"][0]["targets"] == FEW, 20, "the first list")
    for n, seconds in climb:
        scene.list(n)
        scene.watch(seconds)
    scene.until(lambda found: sum(row["state"] == "active" for row in found["items"]) >= top, 60, f"{top} workers")
    killed = scene.kill("collector-1")
    scene.watch(8)
    scene.list(FEW)
    scene.until(lambda found: found["wanted"] == 1 and [row["state"] for row in found["items"]] == ["active"], back, "one worker")
    scene.watch(2)
    return killed


def main(out: Path) -> None:
    """The long form, drawn."""
    from app.processes import free_port

    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), free_port(), "3s", max=4, **thresholds())
        try:
            play(scene, [(n, 6.0) for n in (60, 120, 200, 300, MANY)], 3, 120)
            missed = scene.missed()
            scene.greylag.stop()
            found = ledger(scene)
        finally:
            scene.close()
    draw(scene.seen, out)
    sys.stdout.write(f"{found}, counted as missed: {missed:g}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
