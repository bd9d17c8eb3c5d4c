"""How many collector workers there should be. Pure: what the workers say in, a number and a named reason out.

Up quickly: a worker over `cpu_high`, or one that has work to do and lags or misses slots, at two looks one after the
other; by as many workers as bring the mean down to the middle between the two thresholds. Down slowly: one worker, when
for `quiet_seconds` without a break the others would have stayed below `cpu_low`. Because a step down is taken only where
its result is well below what causes a step up, a constant load settles on one number; and a step down that had to be taken
back makes the next one wait twice as long.

Cost: a worker that is not needed costs memory and about one per cent of a CPU, so fewer is better wherever the load
allows it; one more is never started where the machine's memory would not hold it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from core.config import WorkersConfig

LOOKS = 2  # one high look may be a restart, a new layout, a neighbour's burst
# A slot of 15 s may begin 5 s late before it is missed; a worker that begins later than this has work in front of it.
LAG_HIGH_SECONDS = 2.0
BUSY_RATIO = 0.5  # of cpu_high: below it a worker that lags waits for something that another worker would wait for too
MOST_PATIENCE = 8
SPARE_MEMORY = 2.0  # a new worker must fit in so many times its likely size


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker since the last look. cpu_ratio: of one CPU; lag_seconds: the longest that a slot began late; missed: due
    readings that it could not begin; rss_bytes: 0 where not known."""

    name: str
    targets: int = 0
    samples_per_second: float = 0.0
    lag_seconds: float = 0.0
    cpu_ratio: float = 0.0
    missed: int = 0
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScalerState:
    """wanted: the number now. high_looks: looks in a row that asked for more. quiet_since, changed_at: wall seconds.
    patience: how many quiet times a step down waits for; went_down_at: of the last step down."""

    wanted: int
    high_looks: int = 0
    quiet_since: float | None = None
    patience: int = 1
    went_down_at: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """direction: up | down | hold; reason: one of `core.reasons.SCALE_REASONS`."""

    wanted: int
    direction: str
    reason: str


def decide(state: ScalerState, loads: Sequence[WorkerLoad], at: float, config: WorkersConfig, most: int,
           memory_free: int | None = None) -> tuple[ScalerState, Decision]:
    """One look at wall second `at`. most: `workers.max`, resolved. memory_free: bytes, None where not known."""
    targets = sum(one.targets for one in loads)
    top = max(config.min, min(most, max(1, targets)) if loads else most)
    if state.wanted < config.min:
        return _step(state, config.min, at, "up", "below_min")
    if state.wanted > top and state.wanted > config.min and loads:
        return _step(state, top, at, "down", "above_max")
    if len(loads) != state.wanted:
        return replace(state, high_looks=0, quiet_since=None), Decision(state.wanted, "hold", "settling")
    cause = _high(loads, config)
    if cause is not None:
        return _high_look(state, loads, at, config, top, cause, memory_free)
    state = replace(state, high_looks=0)
    if any(one.lag_seconds > LAG_HIGH_SECONDS or one.missed for one in loads):
        return replace(state, quiet_since=None), Decision(state.wanted, "hold", "owner_behind")
    return _low_look(state, loads, at, config)


def _high(loads: Sequence[WorkerLoad], config: WorkersConfig) -> str | None:
    """Why there are too few workers, or None."""
    if any(one.cpu_ratio > config.cpu_high for one in loads):
        return "cpu_high"
    busy = [one for one in loads if one.cpu_ratio > config.cpu_high * BUSY_RATIO]
    if any(one.lag_seconds > LAG_HIGH_SECONDS for one in busy):
        return "lag_high"
    return "missed_slots" if any(one.missed for one in busy) else None


def _high_look(state: ScalerState, loads: Sequence[WorkerLoad], at: float, config: WorkersConfig, top: int, cause: str,
               memory_free: int | None) -> tuple[ScalerState, Decision]:
    looks = state.high_looks + 1
    state = replace(state, high_looks=looks, quiet_since=None)
    if looks < LOOKS:
        return state, Decision(state.wanted, "hold", "watching")
    if state.wanted >= top:
        return state, Decision(state.wanted, "hold", "at_max")
    if memory_free is not None:
        each = max((one.rss_bytes for one in loads), default=0)
        if each * SPARE_MEMORY > memory_free:
            return state, Decision(state.wanted, "hold", "no_memory")
    total = sum(one.cpu_ratio for one in loads)
    fitting = math.ceil(total / ((config.cpu_low + config.cpu_high) / 2))
    return _step(state, min(top, max(state.wanted + 1, fitting)), at, "up", cause, config.quiet_seconds)


def _low_look(state: ScalerState, loads: Sequence[WorkerLoad], at: float,
              config: WorkersConfig) -> tuple[ScalerState, Decision]:
    fewer = state.wanted - 1
    if fewer < config.min:
        return replace(state, quiet_since=None), Decision(state.wanted, "hold", "steady")
    total, worst = sum(one.cpu_ratio for one in loads), max(one.cpu_ratio for one in loads)
    if max(total / fewer, worst * state.wanted / fewer) >= config.cpu_low:
        return replace(state, quiet_since=None), Decision(state.wanted, "hold", "steady")
    since = state.quiet_since if state.quiet_since is not None else at
    if at - since < config.quiet_seconds * state.patience:
        return replace(state, quiet_since=since), Decision(state.wanted, "hold", "watching")
    return _step(state, fewer, at, "down", "quiet")


def _step(state: ScalerState, wanted: int, at: float, direction: str, reason: str,
          quiet_seconds: float = 0.0) -> tuple[ScalerState, Decision]:
    patience = state.patience
    if direction == "up" and state.went_down_at is not None:
        # A step up soon after a step down: that one was a mistake, and the next one takes longer to convince.
        soon = at - state.went_down_at <= 2 * quiet_seconds * patience
        patience = min(MOST_PATIENCE, patience * 2) if soon else 1
    went = at if direction == "down" else None
    return ScalerState(wanted, 0, None, patience, went), Decision(wanted, direction, reason)
