"""A real Prometheus writes to us: everything that it scraped arrives, with its bits, once; also across kill -9 of ours."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.push import prometheus
from tests.push.collect import committed

SETTLE_SECONDS = 14  # a reading that stays in pieces is given out 6 s after its first


def receiver(folder: Path, port: int, out: Path, spawn: Callable[..., Any]) -> subprocess.Popen[bytes]:
    process = spawn(sys.executable, "-m", "tests.push.collect", str(folder), str(port), str(out), cwd=needs.ROOT,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(needs.ROOT)})
    assert process.stdout.readline() == b"ready\n"
    return process


def arrived(out: Path) -> Counter[tuple[str, tuple[tuple[str, str], ...], int, int]]:
    found: Counter[Any] = Counter()
    for line in committed(out):
        found.update((name, tuple(tuple(pair) for pair in labels), at, bits) for name, labels, at, bits in line["samples"])
    return found


def bits_of(value: str) -> int:
    if value == "NaN":
        return 0x7FF8000000000001  # as Go parses a page's NaN
    return struct.unpack("<Q", struct.pack("<d", float(value.replace("Inf", "inf"))))[0]


def scraped(port: int, seconds: int) -> set[tuple[str, tuple[tuple[str, str], ...], int, int]]:
    rows = prometheus.raw_samples(port, time.time(), seconds)
    return {(name, labels, at, bits_of(value)) for (name, labels, at), value in rows.items()}


def run(folder: Path, free_port: Callable[[], int], spawn: Callable[..., Any], seconds: int, kills: int,
        ) -> tuple[set[Any], Counter[Any], list[dict[str, Any]]]:
    """(what Prometheus scraped, what was committed, the commits)."""
    program = needs.program("prometheus")
    targets = [prometheus.Target(180, 1), prometheus.Target(40, 2)]
    ours, theirs = free_port(), free_port()
    out = folder / "out.jsonl"
    rng = random.Random(7)
    process = receiver(folder / "data", ours, out, spawn)
    config = prometheus.configuration([t.address for t in targets], f"http://127.0.0.1:{ours}/api/v1/write", "1s")
    server = prometheus.start(program, folder, theirs, config, spawn)
    try:
        assert prometheus.wait_until(lambda: bool(arrived(out)), 40), "nothing arrived"
        deadline = time.monotonic() + seconds
        for k in range(kills):
            time.sleep(max(0.0, (deadline - time.monotonic()) / (kills - k) * rng.uniform(0.5, 1.0)))
            process.kill()
            process.wait(10)
            time.sleep(rng.uniform(0.0, 1.5))
            process = receiver(folder / "data", ours, out, spawn)
        time.sleep(max(0.0, deadline - time.monotonic()))
        for target in targets:
            target.close()  # what was scraped so far stays as it is
        time.sleep(1.5)
        wanted = scraped(theirs, seconds + 120)
        newest = max(at for name, _, at, _ in wanted if name == "probe_total")
        wanted = {row for row in wanted if row[2] <= newest}
        prometheus.wait_until(lambda: wanted <= set(arrived(out)), SETTLE_SECONDS + 10 * bool(kills))
        return wanted, arrived(out), committed(out)
    finally:
        server.kill()
        server.wait(10)
        process.kill()
        process.wait(10)


def test_everything_that_prometheus_scraped_arrives_once(tmp_path: Path, free_port: Callable[[], int],
                                                         spawn: Callable[..., Any]) -> None:
    """Some fifteen seconds of two targets, cut into requests of 200 samples: nothing lost, nothing doubled, few layouts."""
    wanted, found, lines = run(tmp_path, free_port, spawn, 12, 0)
    assert len(wanted) > 1_000
    assert wanted - set(found) == set()
    assert [row for row in wanted if found[row] != 1] == []
    assert len({layout for line in lines for layout in line["layouts"]}) < 16


@pytest.mark.chaos
def test_nothing_is_lost_when_the_receiver_is_killed(tmp_path: Path, free_port: Callable[[], int],
                                                     spawn: Callable[..., Any]) -> None:
    """A minute with five kill -9 of the receiver: all of it is committed; what comes twice is equal to the bit."""
    wanted, found, _ = run(tmp_path, free_port, spawn, 60, 5)
    assert len(wanted) > 8_000
    assert wanted - set(found) == set()
    twice = Counter((name, labels, at) for name, labels, at, _ in found)
    assert [key for key, n in twice.items() if n != 1] == []
