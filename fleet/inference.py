"""Inference endpoints: one server a node with continuous batching, fed by bursty requests.

Arrivals come in Poisson bursts whose rate switches and follows the day. A server admits requests while it has room for
their keys and values, prefills them, and generates one token for all that run at a time; what does not fit waits. Little
of it looks like training: its GPUs are idle, then busy, and no two servers alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.groups import Groups
from fleet.job import CLOCK_EXPONENT, HANG, LOAD
from fleet.joblog import ServerLog
from fleet.knobs import JobKnobs
from fleet.running import Running
from fleet.shape import JobShape

TICK_MS = 2_500
STATS_EVERY_MS = 10_000
DAY_MS = 24 * 3600 * 1000
# Upper bounds of vLLM's histograms, seconds (version 1).
FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                       80.0, 160.0, 640.0, 2560.0)
TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
REQUEST_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
                   960.0, 1920.0, 7680.0)
HISTOGRAMS = {"time_to_first_token": FIRST_TOKEN_BUCKETS, "inter_token_latency": TOKEN_BUCKETS, "e2e_request_latency": REQUEST_BUCKETS,
              "request_queue_time": REQUEST_BUCKETS, "request_prefill_time": REQUEST_BUCKETS, "request_decode_time": REQUEST_BUCKETS}
COUNTERS = ("prompt_tokens", "generation_tokens", "preemptions", "success_stop", "success_length", "prefix_cache_queries",
            "prefix_cache_hits")
# Spread (sigma of the log-normal) of each time around its mean of some seconds.
SPREADS = {"time_to_first_token": 0.35, "inter_token_latency": 0.25, "e2e_request_latency": 0.7, "request_queue_time": 0.6,
           "request_prefill_time": 0.35, "request_decode_time": 0.7}
_SIGMA = np.array([SPREADS[name] for name in HISTOGRAMS])
_BOUNDS = np.log(np.concatenate([np.array(bounds) for bounds in HISTOGRAMS.values()]))
_OF = np.repeat(np.arange(len(HISTOGRAMS)), [len(bounds) for bounds in HISTOGRAMS.values()])
# Requests that end because they reached their greatest length.
LENGTH_SHARE = 0.12
# Load and share of time in compute of a server at full batch, and of one that prefills.
DECODE_LOAD, DECODE_BUSY, PREFILL_LOAD, PREFILL_BUSY = 0.5, 0.28, 0.95, 0.85
IDLE_LOAD = 0.03


@dataclass(frozen=True, slots=True)
class ServingShape(JobShape):
    """An endpoint's sizes. requests_per_second: mean for each server; burst: factor in a burst, which is burst_share of the
    time and lasts burst_seconds; day: swing over the day. prompt_tokens, output_tokens: means. batch: most requests that
    run at once; cache_tokens: keys and values that fit. prefill: prompt tokens a second; token_seconds: of one token with
    an empty batch, and at a full batch token_growth times more. model: as the page names it."""

    requests_per_second: float = 3.0
    burst: float = 3.0
    burst_share: float = 0.12
    burst_seconds: float = 45.0
    day: float = 0.4
    prompt_tokens: float = 1_100.0
    output_tokens: float = 320.0
    batch: int = 256
    cache_tokens: float = 480_000.0
    prefill: float = 24_000.0
    token_seconds: float = 0.016
    token_growth: float = 2.2
    hit_share: float = 0.3
    model: str = "meta-llama/Llama-3.1-70B-Instruct"
    load_seconds: tuple[float, float] = (60.0, 120.0)
    first_step: int = 0
    collective_seconds: float = 0.0
    memory_mib: float = 72_000.0


class Inference(Running):
    """See `Running`; phase `train` = it serves. The servers' numbers, float64[node] in the order of `nodes`: waiting, running (requests), cache (0–1),
    and of the last tick first_token_seconds, token_seconds. totals: counters by name, float64[node]; buckets: counts by
    histogram, float64[node, bucket] (the last = +Inf; not cumulative); sums: by histogram. All counters begin anew with a
    start; born_ms says when."""

    kind = "inference"
    trains, serves, linked = False, True, False
    shape: ServingShape
    log: ServerLog

    def __init__(self, name: str, shape: ServingShape, nodes: list[int], gpus: int, log: ServerLog, rng: np.random.Generator,
                 names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        super().__init__(name, shape, nodes, gpus, log, rng)

    def _fit(self, ranks: int) -> Groups:
        return Groups(self.gpus, 1, max(1, ranks // self.gpus))

    def _clear(self) -> None:
        super()._clear()
        n = len(self.nodes)
        self.waiting, self.running, self.cache = np.zeros(n), np.zeros(n), np.zeros(n)
        self.first_token_seconds, self.token_seconds = np.full(n, np.nan), np.full(n, np.nan)
        self.totals: dict[str, Floats] = {name: np.zeros(n) for name in COUNTERS}
        self.buckets: dict[str, Floats] = {name: np.zeros((n, len(b) + 1)) for name, b in HISTOGRAMS.items()}
        self.sums: dict[str, Floats] = {name: np.zeros(n) for name in HISTOGRAMS}
        self._counts = {name: np.zeros(n) for name in HISTOGRAMS}
        self._weighed = {name: np.zeros(n) for name in HISTOGRAMS}
        self._bursting: NDArray[np.bool_] = np.zeros(n, bool)
        self._hung: NDArray[np.bool_] = np.zeros(n, bool)
        self._ready, self._stats = 0, 0
        self._last = {name: np.zeros(n) for name in ("prompt_tokens", "generation_tokens")}
        self.born_ms = 0

    # --- what the world does to it -----------------------------------------------------------------------------------
    def start(self, at: int, load_seconds: float | None = None, mode: str | None = None) -> None:
        """Starts all servers; they answer once their weights are loaded."""
        seconds = float(self._rng.uniform(*self.shape.load_seconds)) if load_seconds is None else load_seconds
        self.started_ms = at if self.started_ms is None else self.started_ms
        self.state, self.clean = "running", False
        self.run += 1
        self._clear()
        self._now = self.born_ms = at
        self._ready = at + int(seconds * 1000)
        self._stats = self._ready + STATS_EVERY_MS
        self.trained_since = 0
        self._enter("init", at)

    def _end(self, at: int, state: str, clean: bool) -> None:
        self.advance(at)
        super()._end(at, state, clean)

    def suffer(self, knobs: JobKnobs, at: int) -> None:
        """Takes over the knobs; a server whose rank hangs answers no more."""
        super().suffer(knobs, at)
        if not self.alive:
            return
        if knobs.crash is not None:
            self.log.crashed(at, (knobs.crash_rank or 0) // self.gpus, knobs.crash)
            self._end(at, "failed", False)
            return
        self._hung = np.asarray(knobs.hung.reshape(-1, self.gpus).any(axis=1))

    # --- time --------------------------------------------------------------------------------------------------------
    def advance(self, to: int) -> None:
        """Moves all servers on to `to` (ms), tick by tick."""
        while self.alive and self._now < to:
            until = min(to, (self._now // TICK_MS + 1) * TICK_MS)
            if until <= self._ready or self._now < self._ready:
                until = min(to, max(self._now + 1, self._ready))
                self._acc.load += (until - self._now) * LOAD
                self._book("init" if self.run == 1 else "restart", until - self._now)
            else:
                if self.phase == "init":
                    self._enter("train", self._now)
                self._serve(until - self._now, until)
            self._now = until
            if self._now >= self._stats:
                self._tell(self._now)
        if any(count.any() for count in self._counts.values()):
            self._fill()
        self._now = max(self._now, to)

    def _serve(self, ms: int, at: int) -> None:
        """One tick (or what is left of it) of all servers."""
        rng, shape, n, dt = self._rng, self.shape, len(self.nodes), ms / 1000
        pace = self._pace()
        arrived = rng.poisson(self._rate(at, dt) * dt, n).astype(float)
        length = shape.prompt_tokens * rng.gamma(2.0, 0.5, n)
        each = shape.prompt_tokens + 0.5 * shape.output_tokens
        room = np.maximum(0.0, np.minimum(shape.batch - self.running, (0.97 * shape.cache_tokens / each - self.running)))
        fits = shape.prefill * dt / (length * pace * (1 - shape.hit_share))
        queue = self.waiting + arrived
        admitted = np.where(self._hung, 0.0, np.floor(np.minimum(np.minimum(queue, room), fits + (fits < 1) * (rng.random(n) < fits))))
        self.waiting = queue - admitted
        prefill = admitted * length * (1 - shape.hit_share) * pace / shape.prefill
        decode = np.clip(1.0 - prefill / dt, 0.15, 1.0)
        token = shape.token_seconds * (1 + shape.token_growth * self.running / shape.batch) * pace * rng.lognormal(0, 0.04, n)
        self.running = self.running + admitted
        # Lengths are exponential; who ends within the tick makes no more tokens in it.
        able, mean = dt * decode / token, shape.output_tokens
        share = np.where(self._hung, 0.0, 1 - np.exp(-able / mean))
        made = np.floor(self.running * mean * share)
        ends = rng.binomial(self.running.astype(np.int64), share)
        self.running = self.running - ends
        held = rng.normal(0, 0.01, n)
        used = self.running * each / shape.cache_tokens * (1 + held)
        thrown = np.where(used > 0.99, rng.poisson(0.5, n), 0).astype(float)
        self.cache = np.clip(used, 0.0, 1.0)
        self._count({"prompt_tokens": np.floor(admitted * length), "generation_tokens": made, "preemptions": thrown,
                     "prefix_cache_queries": np.floor(admitted * length),
                     "prefix_cache_hits": np.floor(admitted * length * shape.hit_share)}, ends)
        wait = self.waiting / np.maximum(0.2, np.maximum(admitted, 0.3 * queue) / dt)
        self._time(admitted, made, ends.astype(float), wait, prefill, token / decode)
        self._ask_hardware(ms, prefill / dt, decode)

    def _pace(self) -> Floats:
        """How much slower than healthy each server works: its slowest GPU, as its GPUs share each token's work."""
        felt = self._felt
        own = self.slowness * felt.compute / self.slow ** (0.5 * CLOCK_EXPONENT)
        inside = 0.85 + 0.15 * self.nvlink
        worst = (own * inside).reshape(-1, self.gpus).max(axis=1)
        return worst * felt.numbers.pace * felt.numbers.service

    def _rate(self, at: int, dt: float) -> Floats:
        """Requests a second that arrive at each server."""
        shape, n = self.shape, len(self.nodes)
        uniform = self._rng.random(n)
        ends, begins = dt / shape.burst_seconds, dt / shape.burst_seconds * shape.burst_share / (1 - shape.burst_share)
        self._bursting = (self._bursting & (uniform > ends)) | (~self._bursting & (uniform < begins))
        day = 1 + shape.day * float(np.sin(2 * np.pi * (at / DAY_MS - 0.375)))
        calm = shape.requests_per_second / (1 + (shape.burst - 1) * shape.burst_share)
        return day * calm * np.where(self._bursting, shape.burst, 1.0) * self._felt.numbers.tokens

    def _count(self, grown: dict[str, Floats], ends: NDArray[np.int64]) -> None:
        for name, more in grown.items():
            self.totals[name] += more
        long = self._rng.binomial(ends, LENGTH_SHARE)
        self.totals["success_length"] += long
        self.totals["success_stop"] += ends - long

    def _time(self, admitted: Floats, made: Floats, ended: Floats, wait: Floats, prefill: Floats, token: Floats) -> None:
        """Fills the histograms: how many, around which mean."""
        one = prefill / np.maximum(1.0, admitted) + token
        life = self.shape.output_tokens * token
        means = {"time_to_first_token": wait + one, "inter_token_latency": token, "e2e_request_latency": wait + one + life,
                 "request_queue_time": wait + 1e-4, "request_prefill_time": one, "request_decode_time": life}
        counts = {"inter_token_latency": made, "time_to_first_token": admitted, "request_queue_time": admitted}
        for name, mean in means.items():
            count = counts.get(name, ended)
            self._counts[name] += count
            self._weighed[name] += count * mean
        self.first_token_seconds = np.where(admitted > 0, means["time_to_first_token"], self.first_token_seconds)
        self.token_seconds = np.where(made > 0, token, self.token_seconds)

    def _fill(self) -> None:
        """Draws into which buckets the times since the last call fall: log-normal around their mean."""
        mean = np.stack([self._weighed[name] / np.maximum(1.0, self._counts[name]) for name in HISTOGRAMS], axis=1)
        median = np.log(np.maximum(mean, 1e-6)) - _SIGMA**2 / 2
        z = (_BOUNDS - median[:, _OF]) / _SIGMA[_OF]
        # The normal distribution's logistic likeness is within a hundredth of it, and cheap.
        below = 1 / (1 + np.exp(np.clip(-1.702 * z, -60, 60)))
        for i, name in enumerate(HISTOGRAMS):
            part = below[:, i == _OF]
            share = np.empty((len(part), part.shape[1] + 1))
            share[:, 0], share[:, 1:-1], share[:, -1] = part[:, 0], part[:, 1:] - part[:, :-1], 1 - part[:, -1]
            share /= share.sum(axis=1, keepdims=True)
            self.buckets[name] += self._rng.multinomial(self._counts[name].astype(np.int64), share)
            self.sums[name] += self._weighed[name]
            self._counts[name].fill(0.0)
            self._weighed[name].fill(0.0)

    def _ask_hardware(self, ms: int, prefill: Floats, decode: Floats) -> None:
        """What the tick asks of the GPUs; a server with nothing to do idles."""
        batch = self.running / self.shape.batch
        filling = np.clip(prefill, 0, 1)
        work = decode * np.where(self.running > 0, 0.35 + 0.65 * np.minimum(1.0, 2 * batch), 0.0)
        load = np.where(self._hung, HANG, IDLE_LOAD * (self.running == 0) + PREFILL_LOAD * filling + DECODE_LOAD * work)
        busy = np.where(self._hung, 0.0, PREFILL_BUSY * filling + DECODE_BUSY * work)
        self._acc.load += ms * np.repeat(np.minimum(load, 1.0), self.gpus)
        self._acc.busy += ms * np.repeat(np.minimum(busy, 1.0), self.gpus)
        self._serving = self.running + self.waiting > 0
        for mine, cause in ((self._serving & ~self._hung, "productive"), (self._hung, "hung"), (~self._serving & ~self._hung, "idle")):
            if mine.any():
                self._book_rows(self._rows[mine], cause, ms)

    def _tell(self, at: int) -> None:
        self._stats += STATS_EVERY_MS
        span = STATS_EVERY_MS / 1000
        now = {name: self.totals[name].copy() for name in self._last}
        rates = {name: (now[name] - self._last[name]) / span for name in now}
        self._last = now
        for i in range(len(self.nodes)):
            if rates["generation_tokens"][i] > 0 or self.waiting[i] > 0:
                self.log.stats(at, i, float(rates["prompt_tokens"][i]), float(rates["generation_tokens"][i]), int(self.running[i]),
                               int(self.waiting[i]), float(self.cache[i]))

    # --- what pages read ---------------------------------------------------------------------------------------------
    @property
    def answers(self) -> bool:
        """Whether the servers' pages are there."""
        return self.alive and self.phase != "init"

    def _resident(self) -> NDArray[np.bool_]:
        return np.repeat((self.running > 0) | self._hung, self.gpus)
