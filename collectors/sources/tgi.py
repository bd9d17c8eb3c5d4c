"""Hugging Face text-generation-inference, `tgi_…` (signals.md §8). A server serves one model and does not name it.

It has no time to the first token; the time in the queue and the time per token stand for it. `tgi_request_success` is not
taken: `tgi_request_duration_count` counts the same requests.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.endpoint import endpoint
from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef

PREFIX = "tgi_"
TABLE: dict[str, Meaning] = {
    "batch_current_size": gauge("job.requests_running"),
    "queue_size": gauge("job.requests_waiting"),
    "request_duration_sum": counter("job.request_time_ratio"),
    "request_duration_count": counter("job.requests_per_second"),
    "request_queue_duration_sum": counter("job.queue_time_ratio"),
    "request_mean_time_per_token_duration_sum": counter("job.token_time_ratio"),
    "request_mean_time_per_token_duration_count": counter("job.token_gaps_per_second"),
    "request_generated_tokens_sum": counter("job.tokens_per_second"),
}


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a text-generation-inference series."""
    meaning = TABLE.get(series.name.removeprefix(PREFIX)) if series.name.startswith(PREFIX) else None
    return meaning.ref(endpoint(labels_of(series), target, None)) if meaning else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(PREFIX + name, meaning, "job `pod` or `instance`") for name, meaning in TABLE.items())


PLUGIN = SourcePlugin("tgi", map_series=map_series, prefixes=(PREFIX,))
