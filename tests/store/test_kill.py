"""kill -9 at any moment: nothing acknowledged is lost, nothing is there in part, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.store.duck import DuckStore
from tests.store.build import STEP, T0
from tests.store.chaos_child import SERIES

CHILD = Path(__file__).with_name("chaos_child.py")


def round_of(folder: Path, seed: int, pause: float) -> list[list[str]]:
    """Starts the child, kills it `pause` seconds after it is ready, and gives the lines that it acknowledged."""
    child = subprocess.Popen([sys.executable, str(CHILD), str(folder), str(seed)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    first = child.stdout.readline().split()
    assert first[:1] == ["ready"]
    killer = threading.Timer(pause, os.kill, (child.pid, signal.SIGKILL))
    killer.start()
    lines = [line.split() for line in child.stdout if line.endswith("\n")]
    child.wait(30)
    killer.join()
    child.stdout.close()
    return lines


def check(folder: Path, acknowledged: list[list[str]], ticks: set[int]) -> None:
    """Opens the store as a restart does and compares it with all that was acknowledged so far."""
    store = DuckStore(folder)
    try:
        found = store.select([], 0, 2**50)
        if not found:
            assert not acknowledged
            return
        assert len(found) == SERIES
        times = found[0].at
        assert len(set(times)) == len(times), "a sample is there twice"
        values = dict(zip(times, found[0].values, strict=True))
        for one in found[1:]:
            assert (list(one.at), list(one.values)) == (list(times), list(found[0].values)), "a batch is there in part"
        for _, epoch, seq, number, slots in acknowledged:
            for n in range(int(slots)):
                at = T0 + (int(number) + n) * STEP
                assert values.get(at) == int(epoch) * 1_000_000 + int(seq), "an acknowledged batch is lost"
        for epoch, seq, samples in store.rows("SELECT epoch, seq, samples FROM batches"):
            whole = list(values.values()).count(epoch * 1_000_000 + seq) * SERIES
            assert whole == samples, "a batch that was not acknowledged is there in part"
        ledger = [a.step for a, _ in store.ledger()]
        journal = store.records(0, 1_000_000)
        assert len(set(ledger)) == len(ledger) == len(journal), "a ledger row is lost or doubled"
        assert ticks <= set(ledger), "an acknowledged tick is lost"
        newest = (str(ledger[-1]), T0 + ledger[-1] * STEP) if ledger else (None, None)
        assert (store.state("n"), store.last_tick()) == newest
        assert store.stats()["missing_segments"] == 0
    finally:
        store.close()


def rounds(folder: Path, n: int, seed: int) -> None:
    chance = random.Random(seed)
    batches: list[list[str]] = []
    ticks: set[int] = set()
    for i in range(n):
        lines = round_of(folder, seed * 1000 + i, chance.uniform(0.0, 0.8))
        done = [line for line in lines if line[0] == "batch"]
        batches += done
        ticks |= {int(line[1]) for line in lines if line[0] == "tick"}
        check(folder, batches, ticks)


def test_ten_kills(tmp_path: Path) -> None:
    """Ten rounds with a fixed seed."""
    rounds(tmp_path, 10, 11)


@pytest.mark.chaos
def test_a_hundred_kills(tmp_path: Path) -> None:
    """A hundred rounds on one store."""
    rounds(tmp_path, 100, 12)
