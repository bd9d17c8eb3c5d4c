"""Greylag's own `/metrics`, rendered by prometheus-client from the telemetry registry."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from core.telemetry import METRICS, Telemetry


class _Adapter:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        values = self._telemetry.snapshot()
        by_name: dict[str, list[tuple[tuple[tuple[str, str], ...], float]]] = {}
        for (name, labels), value in sorted(values.items()):
            by_name.setdefault(name, []).append((labels, value))
        for name, (kind, text, names) in METRICS.items():
            rows = by_name.get(name, [])
            family: CounterMetricFamily | GaugeMetricFamily
            if kind == "counter":
                family = CounterMetricFamily(name.removesuffix("_total"), text, labels=names)
            else:
                family = GaugeMetricFamily(name, text, labels=names)
            for pairs, value in rows:
                found = dict(pairs)
                family.add_metric([found[label] for label in names], value)
            if rows:
                yield family


def metrics_page(telemetry: Telemetry, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, text or OpenMetrics as the scraper accepts."""
    registry = CollectorRegistry()
    registry.register(_Adapter(telemetry))  # type: ignore[arg-type]
    encoder, content_type = choose_encoder(accept)
    return encoder(registry), content_type
