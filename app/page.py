"""Greylag's own `/metrics`, rendered by prometheus-client from the telemetry registry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from core.telemetry import METRICS, Telemetry

END = b"# EOF\n"  # of OpenMetrics
MOST_FORMATS = 8


class _Family:
    """One family as prometheus-client asks for it."""

    def __init__(self, telemetry: Telemetry, name: str) -> None:
        self._telemetry, self._name = telemetry, name

    def collect(self) -> Iterator[Metric]:
        kind, text, names = METRICS[self._name]
        rows = self._telemetry.rows(self._name)
        if not rows:
            return
        family: CounterMetricFamily | GaugeMetricFamily
        if kind == "counter":
            family = CounterMetricFamily(self._name.removesuffix("_total"), text, labels=names)
        else:
            family = GaugeMetricFamily(self._name, text, labels=names)
        for pairs, value in sorted(rows.items()):
            found = dict(pairs)
            family.add_metric([found[label] for label in names], value)
        yield family


class MetricsPage:
    """The page of a registry. A family in which nothing has changed is given as it was rendered the last time: 1,000 nodes have
    69,000 rows of coverage, which seldom change and take two seconds to print."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._made: dict[str, dict[str, tuple[int, bytes]]] = {}  # content type → family → (version, text)
        self._lock = threading.Lock()

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, text or OpenMetrics as the scraper accepts. From any thread."""
        encoder, content_type = choose_encoder(accept)
        with self._lock:
            if content_type not in self._made and len(self._made) >= MOST_FORMATS:
                self._made.clear()
            made = self._made.setdefault(content_type, {})
            parts = []
            for name in METRICS:
                version = self._telemetry.version(name)
                known = made.get(name)
                if known is None or known[0] != version:
                    known = made[name] = (version, self._print(name, encoder))
                parts.append(known[1])
        return b"".join(parts) + (END if "openmetrics" in content_type else b""), content_type

    def _print(self, name: str, encoder: Callable[[CollectorRegistry], bytes]) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Family(self._telemetry, name))  # type: ignore[arg-type]
        return encoder(registry).removesuffix(END)
