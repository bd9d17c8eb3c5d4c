"""Answers in the form of Prometheus' HTTP API: {"status": "success", "data": …} or {"status": "error", …, "code": …}.

`code` is the HTTP status of an error; the API takes it out. Times are ms here and seconds in the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from core.errors import BadInput, GreylagError, Refused, Unavailable
from core.protocols import Matcher, Store
from core.types import Series
from pipeline.promql.evaluate import evaluate
from pipeline.promql.numbers import number, seconds
from pipeline.promql.parse import METRIC, Scalar, parse, selector

MOST_POINTS = 11_000  # of one series, as Prometheus


class SeriesStore(Store, Protocol):
    """A store that can also list its series."""

    def series(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> list[Series]:
        """Series that match and have samples from start to end (ms)."""
        ...

    def label_names(self, matchers: Sequence[Matcher] = (), start: int | None = None, end: int | None = None) -> list[str]:
        """Label names in use."""
        ...

    def label_values(self, name: str, matchers: Sequence[Matcher] = (), start: int | None = None,
                     end: int | None = None) -> list[str]:
        """Values of a label."""
        ...


def instant(store: Store, query: str, at: int) -> dict[str, Any]:
    """`/api/v1/query`: the value of `query` at one time (ms)."""
    def work() -> dict[str, Any]:
        what = parse(query)
        if isinstance(what, Scalar):
            return {"resultType": "scalar", "result": [seconds(at), number(what.value, exponents=False)]}
        found = evaluate(store, what, np.array([at], np.int64))
        rows = [{"metric": metric(p.series), "value": [seconds(at), number(float(p.values[0]))]} for p in found]
        return {"resultType": "vector", "result": rows}

    return _answer(work)


def range_(store: Store, query: str, start: int, end: int, step: int) -> dict[str, Any]:
    """`/api/v1/query_range`: the values of `query` at start, start + step, … up to end (ms)."""
    def work() -> dict[str, Any]:
        _check_range(start, end, step)
        times = np.arange(start, end + 1, step, dtype=np.int64)
        shown = [seconds(t) for t in times.tolist()]
        what = parse(query)
        if isinstance(what, Scalar):
            text = number(what.value)
            return {"resultType": "matrix", "result": [{"metric": {}, "values": [[t, text] for t in shown]}]}
        rows = []
        for points in evaluate(store, what, times):
            moments = shown if len(points.at) == len(times) else [seconds(t) for t in points.at.tolist()]
            values = [[t, number(v)] for t, v in zip(moments, points.values.tolist(), strict=True)]
            rows.append({"metric": metric(points.series), "values": values})
        return {"resultType": "matrix", "result": rows}

    return _answer(work)


def _check_range(start: int, end: int, step: int) -> None:
    if step <= 0:
        raise BadInput("step", "", step / 1000, "zero or negative query resolution step widths are not accepted")
    if end < start:
        raise BadInput("end", "", seconds(end), "end timestamp must not be before start time")
    if (end - start) // step > MOST_POINTS:
        raise BadInput("step", "", step / 1000, f"exceeded maximum resolution of {MOST_POINTS:,} points per timeseries."
                       " Try decreasing the query resolution (?step=XX)")


def series(store: SeriesStore, matches: Sequence[str], start: int | None = None, end: int | None = None) -> dict[str, Any]:
    """`/api/v1/series`: label sets of the series that any of the selectors matches."""
    def work() -> list[dict[str, str]]:
        if not matches:
            raise BadInput("match[]", "", "", "no match[] parameter provided")
        found: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
        for one in matches:
            for row in store.series(selector(one).matchers, start, end):
                found[(row.name, row.labels)] = row
        return [metric(found[key]) for key in sorted(found)]

    return _answer(work)


def labels(store: SeriesStore, matches: Sequence[str] = (), start: int | None = None,
           end: int | None = None) -> dict[str, Any]:
    """`/api/v1/labels`: label names, of the matching series where selectors are given."""
    return _answer(lambda: _merged(matches, lambda matchers: store.label_names(matchers, start, end)))


def label_values(store: SeriesStore, label: str, matches: Sequence[str] = (), start: int | None = None,
                 end: int | None = None) -> dict[str, Any]:
    """`/api/v1/label/<label>/values`."""
    return _answer(lambda: _merged(matches, lambda matchers: store.label_values(label, matchers, start, end)))


def _merged(matches: Sequence[str], ask: Callable[[Sequence[Matcher]], list[str]]) -> list[str]:
    if not matches:
        return ask(())
    return sorted({name for one in matches for name in ask(selector(one).matchers)})


def metric(one: Series) -> dict[str, str]:
    """The label set of a series, its name included."""
    return {METRIC: one.name, **dict(one.labels)}


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"status": "success", "data": work()}
    except BadInput as error:
        return _error(400, "bad_data", str(error))
    except Unavailable as error:
        return _error(503, "timeout", str(error))
    except Refused as error:
        return _error(422, "execution", error.detail or error.reason)
    except GreylagError as error:
        return _error(500, "internal", str(error))


def _error(code: int, kind: str, text: str) -> dict[str, Any]:
    return {"status": "error", "errorType": kind, "error": text, "code": code}
