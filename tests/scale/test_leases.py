"""The owner's leases: planned changes, dead workers, what is refused, and what a restart keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.leases import Leases
from collectors.shards import owner_of
from core.types import Batch, Scrape

TARGETS = [f"t{i}" for i in range(60)]


def shared(*workers: str) -> Leases:
    """Leases in which these workers share from the beginning."""
    leases = Leases()
    leases.share(workers, 0)
    return leases


def of(worker: str, workers) -> str:
    """A target of that worker."""
    return next(t for t in TARGETS if owner_of(t, workers) == worker)


def batch(worker: str, *scrapes: tuple[str, int, int]) -> Batch:
    """A batch of (target, time, generation)."""
    return Batch(worker, 1, 1, 0, (), tuple(Scrape("l", t, at, np.ones(1), generation=g) for t, at, g in scrapes))


def test_a_planned_change_leaves_the_time_before_it_alone():
    """Until its time the old workers hold, from then on the new ones."""
    leases = shared("a")
    leases.share(["a", "b"], 1000)
    moved = of("b", ("a", "b"))
    assert [leases.table.owner(moved, at) for at in (0, 999, 1000)] == ["a", "a", "b"]


@pytest.mark.parametrize(("worker", "at", "generation", "kept"), [
    ("a", 999, 1, 1), ("a", 1000, 1, 0), ("a", 1000, 2, 0), ("b", 999, 2, 0), ("b", 1000, 2, 1), ("a", 5000, 0, 1)])
def test_what_its_worker_does_not_hold_is_refused(worker, at, generation, kept):
    """By the scheduled time: the old owner before the change, the new one after it; no lease is needed for generation 0."""
    leases = shared("a")
    leases.share(["a", "b"], 1000)
    checked, refused = leases.check(batch(worker, (of("b", ("a", "b")), at, generation)))
    assert (len(checked.scrapes), refused) == (kept, 1 - kept)


def test_an_old_generation_of_a_target_that_stays_is_taken():
    """A worker that has not heard of the change yet loses nothing of what it keeps."""
    leases = shared("a")
    leases.share(["a", "b"], 1000)
    stays = of("a", ("a", "b"))
    assert leases.check(batch("a", (stays, 2000, 1)))[1] == 0


def test_the_dead_lose_what_they_have_not_reported():
    """From its last word on a dead worker's targets are the others', so a sleeper that wakes up doubles nothing."""
    leases = shared("a", "b")
    assert leases.bury("b", 700)
    target = of("b", ("a", "b"))
    assert [leases.table.owner(target, at) for at in (0, 700, 701, 10**6)] == ["b", "b", "a", "a"]
    assert leases.check(batch("b", (target, 700, 1), (target, 715, 1)))[1] == 1


def test_a_death_reaches_into_what_was_planned():
    """A change that is still to come goes on without the dead worker."""
    leases = shared("a", "b")
    leases.share(["a", "b", "c"], 1000)
    assert leases.bury("b", 700)
    assert [one.workers for one in leases.table.segments] == [("a", "b"), ("a",), ("a", "c")]
    assert [one.from_ms for one in leases.table.segments] == [0, 701, 1000]


def test_the_only_worker_is_not_buried():
    """Its leases wait for its restart: there is nobody else."""
    leases = shared("a")
    generation = leases.generation
    assert not leases.bury("a", 700)
    assert leases.generation == generation


def test_the_only_one_until_another_comes():
    """Where the others begin later, the dead worker's leases run on until then."""
    leases = shared("a")
    leases.share(["a", "b"], 1000)
    assert leases.bury("a", 700)
    assert {leases.table.owner(t, 999) for t in TARGETS} == {"a"}
    assert {leases.table.owner(t, 1000) for t in TARGETS} == {"b"}


def test_a_restart_knows_all_leases(tmp_path):
    """Table and generation are those that were there; a damaged file begins anew."""
    file = tmp_path / "leases.json"
    leases = Leases(file)
    leases.share(["a"], 0)
    leases.share(["a", "b"], 1000)
    assert Leases(file).table.segments == leases.table.segments
    file.write_text("{")
    assert Leases(file).generation == 0


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["join", "leave", "die"]), st.integers(1, 4000)), max_size=25))
def test_always_one_owner_and_ever_newer_generations(steps):
    """Whatever comes: one worker for each target and time, generations grow with every change, times ascend."""
    leases, now = shared("a"), 10_000
    for worker, what, wait in steps:
        now += wait
        before, members = leases.generation, set(leases.workers)
        if what == "join":
            leases.share(members | {worker}, now + 3000)
        elif what == "leave" and members - {worker}:
            leases.share(members - {worker}, now + 3000)
        elif what == "die":
            leases.bury(worker, now - 2000)
        assert leases.generation >= before
        starts = [one.from_ms for one in leases.table.segments]
        assert starts == sorted(set(starts))
        for at in (0, now - 1, now, now + 3000, now + 10**6):
            assert all(leases.table.owner(t, at) for t in TARGETS[:5])


@given(st.lists(st.sampled_from("bcd"), min_size=1, max_size=6))
def test_history_is_never_rewritten(dead):
    """What was someone's before a death stays so: only times after the last word change hands."""
    leases = shared("a", "b", "c", "d")
    for i, worker in enumerate(dead):
        word = 1000 + i * 100
        before = {(t, at): leases.table.owner(t, at) for t in TARGETS[:20] for at in range(0, word + 1, 50)}
        leases.bury(worker, word)
        assert all(leases.table.owner(t, at) == owner for (t, at), owner in before.items())
