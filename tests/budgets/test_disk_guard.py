"""A disk that fills up: first the past goes, then raw samples stop, and findings go on; with room all comes back."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from functools import partial

import pytest

from app.disk_guard import DiskGuard, DiskState, DiskWatch, free_ratio, no_space
from core.errors import GreylagError
from core.protocols import TickCommit
from core.telemetry import Telemetry
from pipeline.store.duck import DuckStore
from tests import needs
from tests.store.build import T0, batch, finding, layout, scrape

HOUR = 3_600_000
DAYS = 15 * 24 * HOUR


def looks(guard, readings):
    """(retention in hours, raw paused, reason) of one look a minute."""
    out = []
    for minute, free in enumerate(readings):
        state = guard.look(60.0 * minute, free)
        out.append((state.retention_ms // HOUR, state.raw_paused, state.reason))
    return out


@pytest.mark.parametrize(("readings", "wanted"), [
    ([0.5, 0.11], [(360, False, None), (360, False, None)]),
    ([0.09, 0.09, 0.2], [(180, False, "disk_low"), (90, False, "disk_low"), (90, False, None)]),
    ([0.04, 0.04, 0.07, 0.1], [(180, True, "disk_full"), (90, True, "disk_low"), (45, True, "disk_low"), (45, False, "disk_recovered")]),
    ([0.09, None], [(180, False, "disk_low"), (180, False, None)]),
    ([0.01] * 12, [(180, True, "disk_full"), *((h, True, "disk_low") for h in (90, 45, 22, 11, 5, 2, 1)), *[(1, True, None)] * 4]),
])
def test_each_step_has_its_bound_and_its_reason(readings, wanted):
    """Below the bound retention halves a step a minute, below half of it raw samples stop; the way back needs more room."""
    assert looks(DiskGuard(0.1, DAYS), readings) == wanted


def test_steps_are_taken_back_one_by_one():
    """With half as much again free for ten minutes the retention doubles, until it is as configured."""
    states = looks(DiskGuard(0.1, DAYS), [0.09] * 2 + [0.5] * 30)
    assert [hours for hours, _ in itertools.groupby(states, lambda s: s[0])] == [180, 90, 180, 360]
    assert [s[2] for s in states if s[2]] == ["disk_low", "disk_low", "disk_recovered", "disk_recovered"]


def test_a_disk_that_hovers_at_the_bound_changes_nothing():
    """Between the bound and one and a half of it nothing is tightened and nothing is taken back."""
    guard = DiskGuard(0.1, DAYS)
    guard.look(0.0, 0.09)
    assert {guard.look(60.0 * i, 0.1 + 0.04 * (i % 2)).retention_ms for i in range(1, 60)} == {DAYS // 2}


def test_a_shortened_retention_is_applied_again_and_again():
    """Hours grow old while the disk is full: what is too old now is dropped every ten minutes."""
    guard = DiskGuard(0.1, 2 * HOUR)
    applied = [minute for minute in range(40) if guard.look(60.0 * minute, 0.05).apply]
    assert applied == [0, 10, 20, 30]


@pytest.mark.parametrize("bound", [0.0, 0.1])
def test_a_full_disk_stops_samples_at_once_and_is_said_once(bound):
    """A commit that failed for want of space needs no reading; it is taken back when there is room."""
    guard = DiskGuard(bound, DAYS)
    first, second = guard.full(10.0), guard.full(11.0)
    assert first == DiskState(HOUR, True, "disk_full", True)
    assert second == DiskState(HOUR, True)
    assert not guard.look(20.0, 0.3).raw_paused


class FakeStore:
    """Notes what is asked of it."""

    def __init__(self):
        self.raw_paused, self.shortened = False, []

    def shorten(self, retention_ms):
        self.shortened.append(retention_ms // HOUR)
        return 0


def at_once(work):
    done = Future()
    done.set_result(work())
    return done


def test_the_watch_carries_it_out_and_counts_it(capsys):
    """The store is told to drop the past and to pause; each step is counted and said."""
    store, telemetry, free = FakeStore(), Telemetry(), [0.5, 0.09, 0.04, 0.3]
    watch = DiskWatch(DiskGuard(0.1, DAYS), store, at_once, telemetry, lambda: free.pop(0))
    paused = []
    for i in range(4):
        watch.look(100.0 * i)
        paused.append(store.raw_paused)
    assert paused == [False, False, True, False]
    assert store.shortened == [180, 90]
    assert telemetry.get("greylag_disk_steps_total", reason="disk_full") == 1
    assert telemetry.get("greylag_retention_seconds") == 90 * 3600
    assert "disk_full: 4.0% of the disk is free; raw samples are not stored" in capsys.readouterr().err


def test_a_commit_waits_for_space_and_for_nothing_else():
    """Want of space is waited for; any other failure is raised at once."""
    script = [GreylagError("could not commit (No space left on device)"), GreylagError("broken")]
    said = []

    def commit():
        done = Future()
        if script:
            done.set_exception(script.pop(0))
        else:
            done.set_result(None)
        return done

    watch = DiskWatch(DiskGuard(0.1, DAYS), FakeStore(), at_once, Telemetry(), lambda: None)
    with pytest.raises(GreylagError, match="broken"):
        watch.committed(commit, lambda: False, said.append, 0.0)
    script.append(GreylagError("No space left on device"))
    watch.committed(commit, lambda: False, said.append, 0.0)
    assert said[-1] is None
    assert all("disk_full" in one for one in said[:-1])


# --- a real disk ------------------------------------------------------------------------------------------------------
@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MiB; skips where this user may mount none."""
    with needs.small_file_system(tmp_path / "small", 24) as place:
        yield place


def fill(path, leave=0):
    """Writes the file system full but for `leave` bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leave))


def test_a_full_disk_loses_nothing_and_stores_nothing_by_half(small_disk):
    """An append that finds no space stores nothing and raises; findings and ticks still find room, because raw samples
    pause; with space the same batch is stored once, and all of it is there after a restart."""
    store = DuckStore(small_disk / "greylag.duckdb")
    shape = layout("t1", [f"m{i}" for i in range(2000)])
    epoch = store.epoch("w")
    send = [batch(i, scrape(shape, T0 + 15_000 * i, [float(i)] * 2000), layouts=[shape], epoch=epoch) for i in range(1, 4)]
    store.append(send[:1])
    watch = DiskWatch(DiskGuard(0.1, DAYS), store, at_once, Telemetry(), partial(free_ratio, small_disk))
    fill(small_disk / "ballast")
    with pytest.raises(GreylagError, match="No space left") as caught:
        store.append(send[1:2])
    assert no_space(caught.value)
    assert store.stats()["samples"] == 2000
    fill(small_disk / "ballast", leave=1 << 20)
    watch.look(0.0)
    assert store.raw_paused
    store.append(send[2:])
    store.commit_tick(TickCommit(tick=T0, findings=(finding(),)))
    assert store.stats()["samples"] == 2000
    (small_disk / "ballast").unlink()
    watch.look(100.0)
    assert not store.raw_paused
    store.append(send[1:2])
    store.close()
    again = DuckStore(small_disk / "greylag.duckdb")
    stats, last = again.stats(), again.last_tick()
    again.close()
    assert (stats["samples"], stats["findings"], last) == (4000, 1, T0)


def test_free_space_is_read_as_people_read_it(tmp_path):
    """A share between 0 and 1; what cannot be read is unknown."""
    assert 0 <= free_ratio(tmp_path) <= 1
    assert free_ratio(tmp_path / "none") is None
