"""vLLM (`vllm:…`), both generations of its names (signals.md §8).

Some tools make `vllm_…` of the colon: both are read. Version 1 says `inter_token_latency_seconds` and `kv_cache_usage_perc`
where version 0 said `time_per_output_token_seconds` and `gpu_cache_usage_perc`; some versions show old and new side by
side, and the new one counts then. Engines of a server (label `engine`) are added up; of the cache the fullest counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.endpoint import endpoint
from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef

# Without `vllm:` in front.
TABLE: dict[str, Meaning] = {
    "num_requests_running": gauge("job.requests_running"),
    "num_requests_waiting": gauge("job.requests_waiting"),
    "kv_cache_usage_perc": gauge("job.kv_cache_ratio"),
    "gpu_cache_usage_perc": gauge("job.kv_cache_ratio"),
    "generation_tokens_total": counter("job.tokens_per_second"),
    "num_preemptions_total": counter("job.preemptions_per_second"),
    "e2e_request_latency_seconds_sum": counter("job.request_time_ratio"),
    "e2e_request_latency_seconds_count": counter("job.requests_per_second"),
    "request_queue_time_seconds_sum": counter("job.queue_time_ratio"),
    "time_to_first_token_seconds_sum": counter("job.first_token_time_ratio"),
    "time_to_first_token_seconds_count": counter("job.first_tokens_per_second"),
    "inter_token_latency_seconds_sum": counter("job.token_time_ratio"),
    "inter_token_latency_seconds_count": counter("job.token_gaps_per_second"),
    "time_per_output_token_seconds_sum": counter("job.token_time_ratio"),
    "time_per_output_token_seconds_count": counter("job.token_gaps_per_second"),
}
PREFIXES = ("vllm:", "vllm_")
SECOND_CHOICE = frozenset(f"{prefix}{name}" for prefix in PREFIXES for name in (
    "time_per_output_token_seconds_sum", "time_per_output_token_seconds_count", "gpu_cache_usage_perc"))


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a vLLM series."""
    meaning = TABLE.get(series.name[5:]) if series.name.startswith(PREFIXES) else None
    if meaning is None:
        return None
    labels = labels_of(series)
    return meaning.ref(endpoint(labels, target, labels.get("model_name")))


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield from (Row(f"vllm:{name}", meaning, "job `model_name`@`pod` or `instance`") for name, meaning in TABLE.items())


PLUGIN = SourcePlugin("vllm", map_series=map_series, prefixes=PREFIXES, second_choice=SECOND_CHOICE)
