"""kill -9 at any moment: nothing acknowledged is lost, nothing is there in part, nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.protocols import SeriesSamples
from pipeline.store.duck import DuckStore
from tests.store.build import STEP, T0
from tests.store.chaos_child import SERIES

CHILD = Path(__file__).with_name("chaos_child.py")


def round_of(folder: Path, seed: int, after: int, pause: float) -> list[list[str]]:
    """Starts the child, kills it `pause` seconds after its line number `after`, and gives the lines that it acknowledged.

    The moment is counted in its own work: by the clock alone a busy machine would be killed before it did anything.
    """
    child = subprocess.Popen([sys.executable, str(CHILD), str(folder), str(seed)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    first = child.stdout.readline().split()
    assert first[:1] == ["ready"]
    killer = threading.Timer(pause, os.kill, (child.pid, signal.SIGKILL))
    lines: list[list[str]] = []
    if after == 0:
        killer.start()
    for line in child.stdout:
        if line.endswith("\n"):
            lines.append(line.split())
        if len(lines) == after and killer.ident is None:
            killer.start()
    child.wait(30)
    killer.join()
    child.stdout.close()
    return lines


def problems(folder: Path, acknowledged: list[list[str]], ticks: set[int]) -> Iterator[str]:
    """Opens the store as a restart does and compares it with all that was acknowledged so far."""
    store = DuckStore(folder)
    try:
        found = store.select([], 0, 2**50)
        if found:
            yield from wrong_samples(store, found, acknowledged)
        elif acknowledged:
            yield "all samples are lost"
        ledger = [a.step for a, _ in store.ledger()]
        if not len(set(ledger)) == len(ledger) == len(store.records(0, 1_000_000)):
            yield "a ledger row is lost or doubled"
        if not ticks <= set(ledger):
            yield "an acknowledged tick is lost"
        newest = (str(ledger[-1]), T0 + ledger[-1] * STEP) if ledger else (None, None)
        if (store.state("n"), store.last_tick()) != newest:
            yield f"the newest tick is {store.last_tick()}, not {newest}"
        if store.stats()["missing_segments"]:
            yield "a file of the manifest is missing"
    finally:
        store.close()


def wrong_samples(store: DuckStore, found: list[SeriesSamples], acknowledged: list[list[str]]) -> Iterator[str]:
    """What is wrong with the samples of the store's series."""
    times = found[0].at
    values = dict(zip(times, found[0].values, strict=True))
    if len(found) != SERIES or any((list(one.at), list(one.values)) != (list(times), list(found[0].values)) for one in found):
        yield "a batch is there in part"
    if len(values) != len(times):
        yield "a sample is there twice"
    for _, epoch, seq, number, slots in acknowledged:
        at = [T0 + (int(number) + n) * STEP for n in range(int(slots))]
        if {values.get(one) for one in at} != {int(epoch) * 1_000_000 + int(seq)}:
            yield f"batch {seq} of epoch {epoch} was acknowledged and is lost"
    counts = Counter(values.values())
    for epoch, seq, samples in store.rows("SELECT epoch, seq, samples FROM batches"):
        if counts[epoch * 1_000_000 + seq] * SERIES != samples:
            yield f"batch {seq} of epoch {epoch} was not acknowledged and is there in part"


def rounds(folder: Path, n: int, seed: int) -> tuple[list[str], int]:
    """(what is wrong after any of n kills, how many batches were acknowledged)."""
    chance = random.Random(seed)
    batches: list[list[str]] = []
    ticks: set[int] = set()
    wrong: list[str] = []
    for i in range(n):
        lines = round_of(folder, seed * 1000 + i, chance.randrange(0, 16), chance.uniform(0.0, 0.05))
        batches += [line for line in lines if line[0] == "batch"]
        ticks |= {int(line[1]) for line in lines if line[0] == "tick"}
        wrong += [f"round {i}: {one}" for one in problems(folder, batches, ticks)]
    return wrong, len(batches)


def test_six_kills(tmp_path: Path) -> None:
    """Six rounds with a fixed seed."""
    wrong, acknowledged = rounds(tmp_path, 6, 11)
    assert wrong == []
    assert acknowledged > 0


@pytest.mark.chaos
def test_a_hundred_kills(tmp_path: Path) -> None:
    """A hundred rounds on one store."""
    wrong, acknowledged = rounds(tmp_path, 100, 12)
    print(f"\n100 kills, {acknowledged} batches acknowledged, {len(wrong)} of them wrong")
    assert wrong == []
    assert acknowledged > 100
