"""vLLM's servers (version 1): one endpoint a node, printed as prometheus-client prints it, `_created` series included.

A node without an endpoint has no such exporter; one whose server still loads its weights answers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.utils import floatToGoString

from core.types import Floats
from fleet.hardware import Node
from fleet.inference import HISTOGRAMS, Inference
from fleet.sheets.base import PYTHON, Family, Get, Sheet
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

OfServers = Callable[[Inference], Floats]
GAUGES: tuple[tuple[str, str, OfServers], ...] = (
    ("num_requests_running", "Number of requests in model execution batches.", lambda j: j.running),
    ("num_requests_waiting", "Number of requests waiting to be processed.", lambda j: j.waiting),
    ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", lambda j: j.cache),
)
COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", "prefix_cache_queries"),
    ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", "prefix_cache_hits"),
    ("num_preemptions", "Cumulative number of preemption from the engine.", "preemptions"),
    ("prompt_tokens", "Number of prefill tokens processed.", "prompt_tokens"),
    ("generation_tokens", "Number of generation tokens processed.", "generation_tokens"),
)
TIMES = {
    "time_to_first_token": "time to first token", "inter_token_latency": "inter-token latency",
    "e2e_request_latency": "e2e request latency", "request_queue_time": "time spent in WAITING phase",
    "request_prefill_time": "time spent in PREFILL phase", "request_decode_time": "time spent in DECODE phase",
}
REASONS = ("stop", "length")


def serving(world: World) -> list[Inference]:
    """The jobs that serve requests, whether they answer or not."""
    return [job for job in world.jobs.values() if isinstance(job, Inference)]


class VllmSheet(Sheet):
    """The servers of all nodes."""

    name = "vllm"
    nothing = "down"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        self._models: dict[int, str] = {}
        self._none: Floats | None = None  # what it shows while nobody answers
        families: list[Family] = []
        for name, text, get in GAUGES:
            families.append(self._family(name, text, "gauge", ["@"], self._each(get)))
        for name, text, key in COUNTERS:
            families += self._counter(name, text, ["@"], self._each(lambda j, key=key: j.totals[key]))  # type: ignore[misc]
        families += self._counter("request_success", "Count of successfully processed requests.",
                                  [f'@finished_reason="{one}",' for one in REASONS], self._each(
                                      lambda j: np.stack([j.totals[f"success_{one}"] for one in REASONS], axis=1), len(REASONS)))
        for name, bounds in HISTOGRAMS.items():
            families += self._histogram(name, bounds)
        super().__init__(world, families)

    def values(self) -> Floats:
        if any(job.answers for job in serving(self.world)):
            return super().values()
        if self._none is None:
            self._none = super().values()
        return self._none

    def rows(self) -> list[int]:
        """The nodes that have an endpoint."""
        return sorted({row for job in serving(self.world) for row in job.nodes})

    def keys(self) -> list[Hashable]:
        """The model that each node serves."""
        self._models = {row: job.shape.model for job in serving(self.world) for row in job.nodes}
        return [self._models.get(row) for row in range(len(self.world.nodes))]

    def _family(self, name: str, text: str, kind: str, blocks: Sequence[str], get: Get) -> Family:
        """blocks: of each series the suffix of its name, `@`, and the label before `model_name`."""
        parts = [block.split("@") for block in blocks]

        def labels(node: Node) -> list[str]:
            model = self._models.get(node.index, "")
            return [f'{suffix}{{engine="0",{label}model_name="{model}"}}' for suffix, label in parts]
        return Family(f"vllm:{name}", text, kind, labels, len(blocks), get, PYTHON)

    def _counter(self, name: str, text: str, blocks: Sequence[str], get: Get) -> list[Family]:
        return [self._family(f"{name}_total", text, "counter", blocks, get),
                self._family(f"{name}_created", text, "gauge", blocks, self._each(_born, len(blocks)))]

    def _histogram(self, name: str, bounds: Sequence[float]) -> list[Family]:
        text = f"Histogram of {TIMES[name]} in seconds."
        blocks = [f'_bucket@le="{floatToGoString(bound)}",' for bound in (*bounds, float("inf"))] + ["_count@", "_sum@"]

        def of_servers(job: Inference) -> Floats:
            counts = np.cumsum(job.buckets[name], axis=1)
            return np.concatenate([counts, counts[:, -1:], job.sums[name][:, None]], axis=1)

        return [self._family(f"{name}_seconds", text, "histogram", blocks, self._each(of_servers, len(blocks))),
                self._family(f"{name}_seconds_created", text, "gauge", ["@"], self._each(_born))]

    @staticmethod
    def _each(get: OfServers, width: int = 1) -> Get:
        """Of all nodes what a job's servers say; NaN elsewhere."""
        def of_all(world: World) -> Floats:
            out = np.full((len(world.nodes), width), np.nan)
            for job in serving(world):
                if job.answers:
                    found = get(job)
                    out[job.nodes] = found if found.ndim == 2 else found[:, None]
            return out
        return of_all


def _born(job: Inference) -> Floats:
    return np.full(len(job.nodes), job.born_ms / 1000)
