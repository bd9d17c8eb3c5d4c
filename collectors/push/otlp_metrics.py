"""OTLP metrics into samples: gauges and sums as they are, histograms and summaries as their classic series.

Not taken, each by name: delta temporality (adding deltas up would count a repeated request twice: let the SDK or a
collector send cumulative values), exponential histograms (no classic series stands for them), points without a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from collectors.push.otlp_names import (
    attributes,
    choose_name,
    identity,
    labels_from,
    node_of_resource,
    with_identity,
)
from collectors.push.parts import Parsed, PushRefused, Samples, bad
from collectors.push.series import SeriesBook, check_labels, check_name
from core.derive import STALE_NAN
from core.protocols import MapSeries, TargetInfo
from core.types import Series

NO_RECORDED_VALUE = 1  # a point's flag: the series has ended
CUMULATIVE = 2
MOST_POINTS = 1_000_000
DELTA = ("delta temporality is not taken: set OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative at the sender, "
         "or add a deltatocumulative processor.")
EXPONENTIAL = "exponential histograms are not taken: use explicit buckets at the sender."
Rows = Iterator[tuple[str, dict[str, str], float]]


def request_of(body: bytes, is_json: bool) -> Any:
    """An ExportMetricsServiceRequest. Raises PushRefused(400)."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    return parse_message(ExportMetricsServiceRequest(), body, is_json)


def parse_message(message: Any, body: bytes, is_json: bool) -> Any:
    """Fills an OTLP message from protobuf or JSON. Raises PushRefused(400)."""
    from google.protobuf import json_format
    from google.protobuf.message import DecodeError

    try:
        if is_json:
            json_format.Parse(body, message, ignore_unknown_fields=True, max_recursion_depth=50)
        else:
            message.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        kind, why = ("JSON" if is_json else "protobuf"), str(error).splitlines()[0][:200] if str(error) else "no message"
        raise bad("bad_json" if is_json else "bad_protobuf", f"the body is no OTLP {kind} request: {why}.") from None
    return message


class OtlpMetrics:
    """Reads requests into the book. map_series: of all sources, to see which names they know."""

    def __init__(self, book: SeriesBook, map_series: tuple[MapSeries, ...]) -> None:
        self._book, self._map_series = book, map_series
        self._names: dict[tuple[Any, ...], str] = {}

    def read(self, request: Any, sender: str, received_ms: int) -> Parsed:
        """All points of an ExportMetricsServiceRequest."""
        out = Parsed()
        rows: list[tuple[int, int, float]] = []
        for resource_metrics in request.resource_metrics:
            resource = attributes(resource_metrics.resource.attributes)
            base, node = identity(resource), node_of_resource(resource)
            newest = 0
            for scope in resource_metrics.scope_metrics:
                for metric in scope.metrics:
                    newest = max(newest, self._metric(metric, base, node, sender, received_ms, rows, out))
                    if len(rows) > MOST_POINTS:
                        raise PushRefused(413, "body_too_large", f"the request has more than {MOST_POINTS} samples: send smaller ones.")
            if newest and base:
                about = {k: v for k, v in resource.items() if k not in ("service.name", "service.namespace", "service.instance.id")}
                if about:
                    self._add("target_info", with_identity(labels_from(about), base), "gauge", sender, node, newest, 1.0, rows, out)
        if rows:
            at, ids, values = zip(*rows, strict=True)
            out.samples = Samples(np.array(at, np.int64), np.array(ids, np.int64), np.array(values, np.float64))
        return out

    def _metric(self, metric: Any, base: Mapping[str, str], node: str | None, sender: str, received_ms: int,
                rows: list[tuple[int, int, float]], out: Parsed) -> int:
        """Adds the points of one metric; gives their newest time, 0 where it has none."""
        which = metric.WhichOneof("data")
        if which is None:
            return 0
        data = getattr(metric, which)
        points = data.data_points
        if which == "exponential_histogram":
            out.refuse("not_representable", EXPONENTIAL, len(points))
            return 0
        if which in ("sum", "histogram") and data.aggregation_temporality != CUMULATIVE:
            out.refuse("delta_temporality", DELTA, len(points))
            return 0
        kind = ("counter" if data.is_monotonic else "gauge") if which == "sum" else which
        newest = 0
        for point in points:
            at = point.time_unix_nano // 1_000_000 or received_ms
            newest = max(newest, at)
            labels = with_identity(labels_from(attributes(point.attributes)), base)
            name = self._name(metric, kind, labels)
            for suffix, more, value in _values(which, point):
                self._add(name + suffix, {**labels, **more}, kind, sender, node, at, value, rows, out)
        return newest

    def _add(self, name: str, labels: Mapping[str, str], kind: str, sender: str, node: str | None, at: int, value: float,
             rows: list[tuple[int, int, float]], out: Parsed) -> None:
        try:
            pairs = check_labels(labels, self._book.budget)
            number = self._book.number(check_name(name), pairs, sender, kind, node)
        except PushRefused as error:
            out.refuse(error.reason, error.sentence)
            return
        rows.append((at, number, value))

    def _name(self, metric: Any, kind: str, labels: Mapping[str, str]) -> str:
        """The series name; kept by metric and labels, since asking all sources is slow."""
        key = (metric.name, metric.unit, kind, tuple(labels.items()))
        found = self._names.get(key)
        if found is None:
            if len(self._names) >= 50_000:
                self._names.clear()
            pairs = tuple(sorted(labels.items()))
            target = TargetInfo("push", labels, "?")
            found = self._names[key] = choose_name(metric.name, metric.unit, kind, known_to(self._map_series, pairs, target))
        return found


def known_to(map_series: tuple[MapSeries, ...], labels: tuple[tuple[str, str], ...], target: TargetInfo) -> Callable[[str], bool]:
    """Whether any source knows a series of a name with these labels."""
    def known(name: str) -> bool:
        one = Series(name, labels)
        return any(ask(one, target) is not None for ask in map_series)
    return known


def _values(which: str, point: Any) -> Rows:
    """(suffix, labels to add, value) of a point."""
    ended = bool(point.flags & NO_RECORDED_VALUE)
    if which in ("gauge", "sum"):
        kind = point.WhichOneof("value")
        if kind is None and not ended:
            return
        yield "", {}, STALE_NAN if ended else float(getattr(point, str(kind)))
        return
    yield "_count", {}, STALE_NAN if ended else float(point.count)
    if which == "summary":
        yield "_sum", {}, STALE_NAN if ended else point.sum
        for quantile in point.quantile_values:
            yield "", {"quantile": shown(quantile.quantile)}, STALE_NAN if ended else quantile.value
        return
    if ended or point.HasField("sum"):
        yield "_sum", {}, STALE_NAN if ended else point.sum
    total = 0.0
    for bound, count in zip(point.explicit_bounds, point.bucket_counts, strict=False):
        total += count
        yield "_bucket", {"le": shown(bound)}, STALE_NAN if ended else total
    yield "_bucket", {"le": "+Inf"}, STALE_NAN if ended else float(point.count)


def shown(bound: float) -> str:
    """A bucket's bound as Prometheus writes it: `5`, `0.25`, `1e+06`."""
    if bound in (float("inf"), float("-inf")):
        return "+Inf" if bound > 0 else "-Inf"
    if bound == int(bound) and abs(bound) < 1e6:
        return str(int(bound))
    text = repr(bound)
    return text.removesuffix(".0")
