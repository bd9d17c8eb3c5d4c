"""Rendezvous hashing and the lease table: one worker for each target and time, and only what must move moves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.shards import LeaseAnswer, LeaseTable, Segment, owner_of
from tests import needs

WORKERS = tuple(f"collector-{i}" for i in range(8))
TARGETS = [f"dcgm/n{i}:9400" for i in range(1000)]


@pytest.mark.parametrize("n", range(2, 9))
def test_load_is_spread(n):
    """Of 1,000 targets each worker gets about its share."""
    owners = [owner_of(t, WORKERS[:n]) for t in TARGETS]
    shares = [owners.count(w) for w in WORKERS[:n]]
    assert sum(shares) == 1000
    assert all(0.7 * 1000 / n < share < 1.3 * 1000 / n for share in shares)


@given(st.sets(st.sampled_from(WORKERS), min_size=2), st.data())
def test_only_the_targets_of_the_one_that_leaves_move(workers, data):
    """A worker that leaves gives its targets away; every other target stays where it is (and so for one that joins)."""
    gone = data.draw(st.sampled_from(sorted(workers)))
    rest = sorted(workers - {gone})
    for target in TARGETS[:50]:
        before = owner_of(target, sorted(workers))
        assert owner_of(target, rest) == before or before == gone


@given(st.permutations(WORKERS))
def test_the_order_of_the_workers_does_not_matter(workers):
    """The same set gives the same owner."""
    assert [owner_of(t, workers) for t in TARGETS[:20]] == [owner_of(t, WORKERS) for t in TARGETS[:20]]


def test_another_process_comes_to_the_same_answer():
    """Nothing depends on the hash seed of a process."""
    code = f"from collectors.shards import owner_of; print([owner_of(t, {WORKERS!r}) for t in {TARGETS[:20]!r}])"
    said = subprocess.run([sys.executable, "-c", code], check=True, cwd=needs.ROOT, env={"PYTHONHASHSEED": "7"},
                          capture_output=True, text=True)
    assert said.stdout.strip() == repr([owner_of(t, WORKERS) for t in TARGETS[:20]])


def test_an_empty_table_leases_everything():
    """A worker beside an owner that issues no leases reads all targets."""
    assert LeaseTable().holds("w", "t", 0)
    assert owner_of("t", ()) is None


@pytest.mark.parametrize(("at", "generation"), [(0, 1), (99, 1), (100, 2), (150, 2), (200, 3), (10**15, 3)])
def test_the_segment_in_force(at, generation):
    """From its time on, until the next one's; before the first one the first holds."""
    table = LeaseTable([Segment(3, 200, ("a",)), Segment(1, 50, ("a",)), Segment(2, 100, ("a", "b"))])
    assert table.at(at).generation == generation
    assert table.generation == 3


@given(st.integers(0, 400), st.sampled_from(TARGETS[:50]))
def test_one_worker_holds_a_target_at_a_time(at, target):
    """Never two, never none."""
    table = LeaseTable([Segment(1, 0, ("a",)), Segment(2, 100, ("a", "b")), Segment(3, 200, ("b", "c", "d"))])
    assert sum(table.holds(w, target, at) for w in "abcd") == 1


def test_a_section_goes_with_its_target():
    """The GPU part of a page is the same lease as the page."""
    table = LeaseTable([Segment(1, 0, WORKERS)])
    assert all(table.owner(f"{t}#gpu", 5) == table.owner(t, 5) for t in TARGETS[:100])


def test_the_way_over_the_wire():
    """A table and what comes with it survive JSON."""
    table = LeaseTable([Segment(1, 0, ("a",)), Segment(4, 100, ("a", "b"))])
    answer = LeaseAnswer.of_json({"segments": table.as_json(), "resume_ms": 7, "known": {"version": 3, "jobs": ["j"], "boots": {"n": 9}}})
    assert answer.table.segments == table.segments
    assert (answer.resume_ms, answer.jobs, answer.boots, answer.version) == (7, ("j",), {"n": 9}, 3)


@pytest.mark.parametrize("said", [{}, {"segments": [[1]]}, {"segments": 5}, {"segments": [["x", 1, []]]}])
def test_what_is_no_answer_is_refused(said):
    """An answer that cannot be read raises one of three errors, and nothing else."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        LeaseAnswer.of_json(said)
