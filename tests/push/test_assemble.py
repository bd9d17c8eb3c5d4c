"""Readings from pieces: whatever the order, the cuts and the delays, each sample comes out once, in few layouts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.mapping import Mapper
from collectors.push.assemble import Assembler
from collectors.push.parts import Samples
from collectors.push.series import FORGET_MS, SeriesBook
from core.derive import STALE_NAN, absent
from tests.push.site import SOURCES, START_MS

PIECE = st.tuples(st.integers(0, 2), st.integers(0, 5), st.sets(st.integers(0, 5), min_size=1), st.integers(0, 9_000), st.booleans())


def made() -> tuple[SeriesBook, Assembler]:
    book = SeriesBook()
    return book, Assembler(book, Mapper(SOURCES))


def numbers(book: SeriesBook, target: int, series: set[int] | range) -> np.ndarray:
    return np.array([book.number("m", (("i", str(i)), ("instance", f"n{target}:1"), ("job", "j")), "s") for i in sorted(series)])


def values_of(results: list) -> Counter:
    return Counter((s.labels, scrape.at, value.tobytes()) for layout, scrape in results
                   for s, value in zip(layout.series, scrape.values, strict=True) if not absent(np.array([value]))[0])


@given(st.lists(PIECE, max_size=40))
@settings(max_examples=150, deadline=None)
def test_each_sample_comes_out_once(pieces: list) -> None:
    """Pieces of three targets' readings: late, repeated, out of order, in any cut, with ends of series in between."""
    book, assembler = made()
    wanted: dict = {}
    results, now = [], START_MS
    for record, (target, slot, series, wait, ended) in enumerate(pieces):
        ids = numbers(book, target, series)
        at = START_MS + slot * 15_000
        values = np.full(len(ids), STALE_NAN) if ended else ids + slot * 100.0
        assembler.add(record, Samples(np.full(len(ids), at), ids, values), now)
        for number, value in zip(ids, values, strict=True):
            wanted.setdefault((book.series[number].labels, at), []).append(value.tobytes())
        now += wait
        results += assembler.due(now)
    results += assembler.due(now, everything=True)
    found = values_of(results)
    assert assembler.waiting == 0
    assert assembler.oldest_record() is None
    stale = np.array([STALE_NAN]).tobytes()
    for (labels, at), given_values in wanted.items():
        alive = {v for v in given_values if v != stale}
        here = {key[2] for key in found if key[:2] == (labels, at)}
        assert here <= alive
        assert here or given_values[0] == stale or not alive
    assert all(len(layout.series) == len(scrape.values) and layout.partial for layout, scrape in results)
    same = Counter((scrape.target_id, scrape.at) for _, scrape in results if "#late" not in scrape.target_id)
    assert not [key for key, n in same.items() if n > 1]


def test_a_series_that_vanishes_without_a_word_ends_the_waiting() -> None:
    """A sender that starts anew with fewer series: after four readings nothing waits any more, and the target keeps its name."""
    book, assembler = made()
    seen = []
    for k in range(10):
        at = START_MS + 15_000 * k
        ids = numbers(book, 0, range(10 if k < 2 else 8))
        assembler.add(k, Samples(np.full(len(ids), at), ids, np.ones(len(ids))), at)
        at_once, later = assembler.due(at + 500), assembler.due(at + 6_500)
        seen.append((len(at_once), [layout.target_id for layout, _ in at_once + later]))
    assert seen[2:5] == [(0, ["push/j/n0:1"])] * 3
    assert seen[6:] == [(1, ["push/j/n0:1"])] * 4


def test_layouts_do_not_grow_with_series_that_come_and_go() -> None:
    """A target whose series change with each job keeps a layout of about what is alive."""
    book, assembler = made()
    sizes = []
    for k in range(60):
        at = START_MS + 15_000 * k
        old, new = numbers(book, 0, range(20 * (k - 1), 20 * k)), numbers(book, 0, range(20 * k, 20 * (k + 1)))
        ids = np.concatenate([old, new]) if k else new
        values = np.concatenate([np.full(len(old), STALE_NAN), np.ones(len(new))]) if k else np.ones(len(new))
        assembler.add(k, Samples(np.full(len(ids), at), ids, values), at)
        sizes += [len(layout.series) for layout, _ in assembler.due(at + 6_500)]
    assert max(sizes) <= 100


@pytest.mark.parametrize("jump", [0, 365 * 86_400_000])
def test_what_nobody_sends_is_forgotten(jump: int) -> None:
    """Series of half an hour ago leave book and blocks, their numbers are used again; what goes on stays."""
    book, assembler = made()
    old, kept = numbers(book, 0, range(6)), numbers(book, 1, range(6))
    for k, ids in enumerate((old, kept)):
        book.heard[ids] = START_MS
        assembler.add(k, Samples(np.full(len(ids), START_MS), ids, np.ones(len(ids))), START_MS)
    assembler.due(START_MS + 7_000)
    later = START_MS + FORGET_MS + 1_000 + jump
    book.heard[kept] = later
    assembler.forget(book.forget(later - FORGET_MS).tolist())
    assert (len(book), [t.id for t in book.targets.values()]) == (6, ["push/j/n1:1"])
    again = numbers(book, 0, range(6))
    assert set(again.tolist()) == set(old.tolist())
    ids = np.concatenate([again, kept])
    assembler.add(3, Samples(np.full(12, later), ids, np.ones(12)), later)
    assert {layout.target_id for layout, _ in assembler.due(later + 7_000)} == {"push/j/n0:1", "push/j/n1:1"}


def test_what_is_still_to_be_expected() -> None:
    """The next reading of a target that pushes every 15 s; one that went silent is not waited for."""
    book, assembler = made()
    for k in range(5):
        for target in range(2):
            at = START_MS + 15_000 * k + target * 1_000
            ids = numbers(book, target, range(3))
            assembler.add(k, Samples(np.full(3, at), ids, np.ones(3)), at)
            assembler.due(at + 2_500)
    slot = START_MS + 75_000 + 2_000
    assert assembler.expected(slot) == START_MS + 75_000
    for target in range(2):
        ids = numbers(book, target, range(3))
        assembler.add(9, Samples(np.full(3, START_MS + 75_000 + 1_000 * target), ids, np.ones(3)), slot)
    assert assembler.expected(slot) == START_MS + 75_000
    assembler.due(slot)
    assert assembler.expected(slot) == START_MS + 90_000
    assert assembler.expected(slot + 90_000) is None
