"""kill -9 of the owner or of a worker at random moments: what was acknowledged is in the store once and whole.

Acknowledged is a reading that a query has shown (the owner commits before it shows anything), and a push that was answered
204. Roles run without a supervisor, whose pauses grow with each death, and are started again at once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.processes import free_port
from collectors.schedule import offset_of
from core.clock import wall_ms
from tests import needs
from tests.live.site import Greylag, named, wait_for
from tests.push.encode import snappy, write_request

TARGETS, SERIES, INTERVAL_MS = 6, 20, 1000
ROLES = ("owner", "collector-0", "collector-1")
SETTLE_SECONDS = 12.0  # what was pushed and stays in pieces is given out after 6 s


class Roles:
    """An owner and two collectors as processes of the test's own, over a target server and a push port."""

    def __init__(self, folder: Path) -> None:
        self._server = subprocess.Popen([sys.executable, "-m", "tests.scale.targets"], cwd=needs.ROOT, stdout=subprocess.PIPE,
                                        env={**os.environ, "SERIES": str(SERIES)})
        assert self._server.stdout is not None
        door = f"http://127.0.0.1:{int(self._server.stdout.readline())}"
        httpx.get(f"{door}/count/{TARGETS}", trust_env=False).raise_for_status()
        port, push = free_port(), free_port()
        self.push_url = f"http://127.0.0.1:{push}/api/v1/write"
        self.greylag = Greylag(folder, port, flush_seconds=0.5, push_listen=f"127.0.0.1:{push}", workers={"min": 2, "max": 2},
                               scrape_configs=[{"job_name": "load", "scrape_interval": "1s", "scrape_timeout": "1s",
                                                "http_sd_configs": [{"url": f"{door}/sd"}]}])
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str) -> None:
        """Starts one of `ROLES`."""
        command = [sys.executable, "-m", "app.cli", "run", "-c", str(self.greylag.file), "--role"]
        command += ["owner"] if role == "owner" else ["collector", "--worker", role]
        with (self.greylag.folder / "greylag.log").open("ab") as log:
            self._running[role] = subprocess.Popen(command, cwd=needs.ROOT, stdout=log, stderr=log)

    def kill(self, role: str) -> None:
        """kill -9, and a new one at once."""
        self._running[role].kill()
        self._running[role].wait()
        self.start(role)

    def stop(self) -> list[int]:
        """Ends them in order, the owner last; their exit statuses."""
        out = []
        for role in reversed(ROLES):
            process = self._running[role]
            process.send_signal(signal.SIGTERM)
            out.append(process.wait(40))
        return out

    def close(self) -> None:
        """Ends what still runs, by pid."""
        self.greylag.close()
        for process in (*self._running.values(), self._server):
            if process.poll() is None:
                process.kill()
            process.wait()

    def shown(self) -> set[tuple[str, float]]:
        """(instance, number of the reading) of what a query shows now; empty while nobody answers."""
        with suppress(httpx.HTTPError, KeyError):
            return {(row["metric"]["instance"], float(row["value"][1])) for row in self.greylag.query('work_total{part="0"}')}
        return set()


class Pusher:
    """Pushes a sample of a counter several times a second, each until it is acknowledged. taken: (ms, value) of those."""

    def __init__(self, url: str) -> None:
        self.taken: list[tuple[int, float]] = []
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(timeout=10.0, trust_env=False) as http:
            while not self._stop.is_set():
                at, value = wall_ms(), float(len(self.taken) + 1)
                body = snappy(write_request([({"__name__": "pushed_total", "job": "pusher", "instance": "p:1"}, [(at, value)])]))
                while not self._stop.is_set():
                    with suppress(httpx.HTTPError):
                        if http.post(self._url, content=body, headers={"content-encoding": "snappy"}).status_code == 204:
                            self.taken.append((at, value))
                            break
                    time.sleep(0.1)
                time.sleep(0.15)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)


@contextmanager
def roles_in(folder: Path) -> Iterator[Roles]:
    """Started roles; all of them end with the test."""
    roles = Roles(folder)
    try:
        for role in ROLES:
            roles.start(role)
        yield roles
    finally:
        roles.close()


def live_through(roles: Roles, rounds: int, seed: int) -> tuple[set[tuple[str, float]], list[tuple[int, float]], Counter[str]]:
    """Kills so many times; gives what was shown, what was pushed and acknowledged, and who was killed how often."""
    rng, shown, killed = random.Random(seed), set(), Counter[str]()

    def more() -> bool:
        found = roles.shown() - shown
        shown.update(found)
        return bool(found)

    wait_for(more, 90, f"the first reading (log: {roles.greylag.folder}/greylag.log)")
    pusher = Pusher(roles.push_url)
    try:
        for i in range(rounds):
            wait_for(more, 90, f"a reading after kill {i} (log: {roles.greylag.folder}/greylag.log)")
            until = time.monotonic() + rng.uniform(0.0, 1.5)
            while time.monotonic() < until:  # what is shown up to the very moment is acknowledged
                more()
            victim = rng.choice(ROLES)
            killed[victim] += 1
            roles.kill(victim)
        wait_for(more, 90, "a reading after the last kill")
    finally:
        pusher.stop()
    time.sleep(SETTLE_SECONDS)
    assert roles.stop() == [0, 0, 0]
    return shown, pusher.taken, killed


def problems(greylag: Greylag, shown: set[tuple[str, float]], pushed: list[tuple[int, float]]) -> Iterator[str]:
    """What the store holds that it must not, and what it lacks."""
    readings: dict[tuple[str, int], set[float]] = defaultdict(set)
    parts: Counter[tuple[str, int]] = Counter()
    with greylag.store() as store:
        for one in store.select(named("work_total"), 0, 2**62):
            instance, part = one.series.label("instance"), int(one.series.label("part") or 0)
            if len(set(one.at)) != len(one.at):
                yield f"{one.series} has a time twice"
            for at, value in zip(one.at, one.values, strict=True):
                if value is not None:
                    readings[instance, at].add(value - part)
                    parts[instance, at] += 1
        arrived = Counter((at, value) for one in store.select(named("pushed_total"), 0, 2**62)
                          for at, value in zip(one.at, one.values, strict=True) if value is not None)
    yield from (f"reading {key} is there in part, or of two readings" for key, numbers in readings.items()
                if len(numbers) != 1 or parts[key] != SERIES)
    yield from (f"{key} is off its grid" for key in readings if (key[1] - offset_of(f"load/{key[0]}", INTERVAL_MS)) % INTERVAL_MS)
    stored = Counter((instance, number) for (instance, _), numbers in readings.items() for number in numbers)
    yield from (f"reading {key} is there {n} times" for key, n in stored.items() if n != 1)
    yield from (f"reading {key} was shown and is lost" for key in sorted(shown - set(stored)))
    yield from (f"push {key} was acknowledged and is there {arrived[key]} times" for key in pushed if arrived[key] != 1)
    if len(arrived) > len(pushed) + 1:
        yield f"{len(arrived)} pushes are there of {len(pushed)}"


def judge(folder: Path, rounds: int, seed: int) -> dict[str, Any]:
    """One site lives through so many kills; what was wrong, and how much there was to be wrong."""
    with roles_in(folder) as roles:
        shown, pushed, killed = live_through(roles, rounds, seed)
        wrong = list(problems(roles.greylag, shown, pushed))
    print(f"\n{rounds} kills ({dict(killed)}), {len(shown)} readings shown, {len(pushed)} pushes acknowledged, {len(wrong)} wrong")
    return {"wrong": wrong[:10], "shown": len(shown) > rounds, "pushed": len(pushed) > rounds / 2}


@pytest.mark.lab
def test_six_kills_of_owner_and_workers(tmp_path):
    """Six rounds from a fixed seed, whoever it strikes."""
    assert judge(tmp_path, 6, 23) == {"wrong": [], "shown": True, "pushed": True}


@pytest.mark.chaos
def test_a_hundred_kills_of_owner_and_workers(tmp_path):
    """A hundred rounds from a fixed seed on one site."""
    assert judge(tmp_path, 100, 2) == {"wrong": [], "shown": True, "pushed": True}
