"""NVIDIA Triton, `nv_inference_…` (signals.md §8): counters of requests and of microseconds, by model; versions are added.

Its `nv_gpu_…` metrics are not taken: dcgm-exporter says the same of the GPU, and a pod's address is no node. Summaries
(`…_summary_us`) repeat the counters of microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.endpoint import endpoint
from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef

PREFIX = "nv_inference_"
MICRO, MILLI = 1e-6, 1e-3
TABLE: dict[str, Meaning] = {
    "pending_request_count": gauge("job.requests_waiting"),
    "request_success": counter("job.requests_per_second"),
    "request_failure": counter("job.requests_failed_per_second"),
    "request_duration_us": counter("job.request_time_ratio", MICRO),
    "queue_duration_us": counter("job.queue_time_ratio", MICRO),
    "first_response_histogram_ms_sum": counter("job.first_token_time_ratio", MILLI),
    "first_response_histogram_ms_count": counter("job.first_tokens_per_second"),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a Triton series."""
    meaning = TABLE.get(series.name.removeprefix(PREFIX)) if series.name.startswith(PREFIX) else None
    if meaning is None:
        return None
    labels = labels_of(series)
    return meaning.ref(endpoint(labels, target, labels.get("model")))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(PREFIX + name, meaning, "job `model`@`pod` or `instance`") for name, meaning in TABLE.items())


PLUGIN = SourcePlugin("triton", map_series=map_series, prefixes=(PREFIX,))
