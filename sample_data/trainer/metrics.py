"""The trainer metrics that Greylag understands, on prometheus-client: copy this file beside your training script.

    metrics = TrainerMetrics(job="llm-7b", rank=rank, node=socket.gethostname(), gpu=local_rank, port=9401)
    metrics.phase("train")
    for step, batch in enumerate(loader):
        ...
        metrics.collective(seq)          # before each all-reduce: a rank that hangs then shows as the one behind
        ...
        metrics.step(step, loss=loss, seconds=elapsed, data_wait=waited)

One port a rank: the labels job, rank, node and gpu say whose the numbers are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

LABELS = ("job", "rank", "node", "gpu")
GAUGES = {
    "step": "last finished step",
    "last_step_timestamp_seconds": "when it finished",
    "step_seconds": "how long it took",
    "data_wait_seconds": "of it: waiting for data",
    "compute_seconds": "of it: computing",
    "comm_wait_seconds": "of it: waiting in collectives",
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "tokens_per_second": "tokens a second",
    "last_checkpoint_step": "step of the newest complete checkpoint",
    "collective_seq": "sequence number of the last collective entered",
}


class TrainerMetrics:
    """Gauges and counters of one rank, served on `port` (0 = a free one; `self.port` tells which).

    clock: seconds since the epoch for timestamps of steps.
    """

    def __init__(self, job: str, rank: int, node: str, gpu: int, port: int = 9401, host: str = "127.0.0.1",
                 clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._labels = {"job": job, "rank": str(rank), "node": node, "gpu": str(gpu)}
        self._gauges = {name: Gauge(f"greylag_train_{name}", text, LABELS, registry=self.registry)
                        for name, text in GAUGES.items()}
        self._phases = Gauge("greylag_train_phase", "1 for the phase that the rank is in", (*LABELS, "phase"),
                             registry=self.registry)
        self._phase: str | None = None
        self._nonfinite = Counter("greylag_train_nonfinite", "steps whose loss or gradient norm was not finite", LABELS,
                                  registry=self.registry)
        self._nonfinite.labels(**self._labels)
        self._server: WSGIServer
        self._server, self._thread = start_http_server(port, host, registry=self.registry)
        self.port = self._server.server_port

    def phase(self, phase: str) -> None:
        """init, warmup, train, eval, checkpoint or done."""
        before, self._phase = self._phase, phase
        self._phases.labels(**self._labels, phase=phase).set(1)
        if before not in (None, phase):
            self._phases.remove(*self._labels.values(), before)

    def collective(self, seq: int) -> None:
        """The rank enters its collective number `seq` now."""
        self._set("collective_seq", seq)

    def step(self, step: int, loss: float, seconds: float, data_wait: float = 0.0, **more: float) -> None:
        """A finished step; `more` are further gauges by their short names (see GAUGES)."""
        values = {"step": step, "loss": loss, "step_seconds": seconds, "data_wait_seconds": data_wait,
                  "last_step_timestamp_seconds": self._clock(), **more}
        for name, value in values.items():
            self._set(name, value)
        if not (math.isfinite(loss) and math.isfinite(more.get("grad_norm", 0.0))):
            self._nonfinite.labels(**self._labels).inc()

    def checkpoint(self, step: int) -> None:
        """A checkpoint of `step` is complete."""
        self._set("last_checkpoint_step", step)

    def _set(self, name: str, value: float) -> None:
        self._gauges[name].labels(**self._labels).set(value)

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
