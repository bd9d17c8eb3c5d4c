"""Answers over a store: look-back, stale markers, ranges, labels and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from core.errors import Refused, Unavailable
from core.protocols import Matcher, SeriesSamples, TickCommit
from core.types import Batch, Series
from pipeline import promql
from pipeline.promql.evaluate import evaluate
from pipeline.promql.parse import Selector
from pipeline.store.duck import DuckStore
from tests.store.build import STEP, T0, batch, layout, scrape

MINUTE = 60_000


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    made = DuckStore(None)
    shape, other = layout(names=["a", "b", "c"]), layout("t2", ["a"], gpu="3")
    readings = [scrape(shape, T0 + n * STEP, v) for n, v in enumerate([[1, 10, math.nan], [2, None, math.inf], [3, 30, 0.5]])]
    made.append([batch(1, *readings, scrape(other, T0, [7]), layouts=[shape, other])])
    yield made
    made.close()


def vector(answer: dict[str, Any]) -> list[tuple[str, str]]:
    assert answer["status"] == "success", answer
    return sorted((row["metric"]["instance"], row["value"][1]) for row in answer["data"]["result"])


@pytest.mark.parametrize(("query", "at", "expected"), [
    ("a", T0, [("t1", "1"), ("t2", "7")]),
    ("a", T0 + 1, [("t1", "1"), ("t2", "7")]),
    ("a", T0 - 1, []),
    ("a", T0 + STEP, [("t1", "2"), ("t2", "7")]),
    ("b", T0 + STEP, []),  # stale from here
    ("b", T0 + 2 * STEP - 1, []),
    ("b", T0 + 2 * STEP, [("t1", "30")]),
    ("c", T0, [("t1", "NaN")]),
    ("c", T0 + STEP, [("t1", "+Inf")]),
    ('a{gpu="3"}', T0 + 5 * MINUTE, [("t2", "7")]),  # exactly 5 minutes old counts, as in Prometheus 2
    ('a{gpu="3"}', T0 + 5 * MINUTE + 1, []),
    ("a offset 15s", T0 + 2 * STEP, [("t1", "2"), ("t2", "7")]),
    ("a offset -15s", T0, [("t1", "2"), ("t2", "7")]),
    ('a{gpu=""}', T0, [("t1", "1")]),
    ('{__name__=~"a|b",gpu=""}', T0, [("t1", "1"), ("t1", "10")]),
    ("nothing", T0, []),
])
def test_an_instant_query_gives_the_newest_value_that_is_not_stale(
    store: DuckStore, query: str, at: int, expected: list[tuple[str, str]],
) -> None:
    """Look-back of 5 minutes; a stale marker ends a series at once."""
    assert vector(promql.instant(store, query, at)) == expected


def test_a_vector_has_prometheus_form(store: DuckStore) -> None:
    """Name and labels in `metric`, the asked time in seconds, the value as text."""
    answer = promql.instant(store, 'a{gpu="3"}', T0 + 500)
    assert answer == {"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"__name__": "a", "gpu": "3", "instance": "t2"}, "value": [T0 / 1000 + 0.5, "7"]}]}}


def test_a_number_is_a_scalar(store: DuckStore) -> None:
    """Grafana's health check asks `1+1`."""
    assert promql.instant(store, "1+1", T0)["data"] == {"resultType": "scalar", "result": [T0 // 1000, "2"]}


def test_a_range_of_a_number_has_a_value_at_each_step(store: DuckStore) -> None:
    """One series without labels."""
    found = promql.range_(store, "1+1", T0, T0 + 2 * STEP, STEP)["data"]["result"]
    assert found == [{"metric": {}, "values": [[T0 // 1000 + n * 15, "2"] for n in range(3)]}]


def test_a_range_leaves_out_what_is_stale(store: DuckStore) -> None:
    """A point at each step where there is a value, and none where the series had ended."""
    found = promql.range_(store, "b", T0 - STEP, T0 + 3 * STEP, STEP)["data"]["result"]
    assert found[0]["values"] == [[T0 // 1000, "10"], [T0 // 1000 + 30, "30"], [T0 // 1000 + 45, "30"]]


def test_prometheus_3_does_not_count_the_left_edge(store: DuckStore) -> None:
    """`left_open` is its rule: a sample exactly 5 minutes old is out."""
    what = Selector((Matcher("__name__", "=", "a"), Matcher("gpu", "=", "3")))
    times = np.array([T0 + 5 * MINUTE - 1, T0 + 5 * MINUTE])
    counts = [[p.at.tolist() for p in evaluate(store, what, times, left_open)] for left_open in (True, False)]
    assert counts == [[times[:1].tolist()], [times.tolist()]]


@pytest.mark.parametrize(("start", "end", "step", "words"), [
    (0, 1000, 0, "zero or negative query resolution step"),
    (1000, 0, 1000, "end timestamp must not be before start time"),
    (0, 11_001_000, 1000, "exceeded maximum resolution of 11,000 points per timeseries"),
])
def test_a_bad_range_is_refused(store: DuckStore, start: int, end: int, step: int, words: str) -> None:
    """In Prometheus' words, as bad_data."""
    answer = promql.range_(store, "a", start, end, step)
    assert (answer["status"], answer["errorType"], answer["code"]) == ("error", "bad_data", 400)
    assert words in answer["error"]


@pytest.mark.parametrize("query", ["rate(a[5m])", "a{", "", 'a{b=~"a++"}', 'a{b=~"a(?=b)"}'])
def test_a_bad_query_is_bad_data(store: DuckStore, query: str) -> None:
    """One sentence, and JSON can carry it."""
    answer = promql.instant(store, query, T0)
    assert (answer["errorType"], answer["code"], "\n" in json.dumps(answer)) == ("bad_data", 400, False)


def test_series_and_labels_are_listed(store: DuckStore) -> None:
    """Merged over all selectors, without repeats."""
    found = promql.series(store, ["a", 'a{gpu="3"}', "b"], T0, T0 + STEP)["data"]
    assert found == [{"__name__": "a", "gpu": "3", "instance": "t2"}, {"__name__": "a", "instance": "t1"},
                     {"__name__": "b", "instance": "t1"}]
    assert promql.labels(store, ["b"])["data"] == ["__name__", "instance"]
    assert promql.labels(store)["data"] == ["__name__", "gpu", "instance"]
    assert promql.label_values(store, "instance", ["a"])["data"] == ["t1", "t2"]
    assert promql.label_values(store, "__name__")["data"] == ["a", "b", "c"]


def test_series_without_a_selector_is_refused(store: DuckStore) -> None:
    """As Prometheus does."""
    assert promql.series(store, [])["errorType"] == "bad_data"


class Failing:
    """A store whose reads fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def append(self, batches: Sequence[Batch]) -> None: ...

    def commit_tick(self, commit: TickCommit) -> None: ...

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[SeriesSamples]:
        raise self.error


@pytest.mark.parametrize(("error", "kind", "code"), [
    (Unavailable("the query took longer than 10 s"), "timeout", 503),
    (Refused("too_many_samples", "too many"), "execution", 422),
])
def test_a_store_that_cannot_answer_is_told(error: Exception, kind: str, code: int) -> None:
    """The kind of error and status are Prometheus' own."""
    answer = promql.instant(Failing(error), "a", T0)
    assert (answer["errorType"], answer["code"]) == (kind, code)


class Listed(Failing):
    """A store that has only `select`."""

    def select(self, matchers: Sequence[Matcher], start: int, end: int) -> list[SeriesSamples]:
        return [SeriesSamples(Series("a", (("instance", "x"),)), [T0, T0 + STEP], [1.0, None])]


def test_any_store_can_be_asked() -> None:
    """The protocol's `select` is enough; its None is the stale marker."""
    store = Listed(ValueError())
    assert [vector(promql.instant(store, "a", at)) for at in (T0, T0 + STEP)] == [[("x", "1")], []]
