"""A worker that costs more than its process budget sheds load step by step, and takes it up again step by step.

`ProcessGovernor` is the decision, without a clock and without I/O: numbers in, a level out. Health signals go last: first
targets that carry none are read half as often, then all are, then all are read a quarter as often, at last targets without
one are not read at all. Every change has a named reason of `core.reasons.SHED_REASONS`.

Series without a canonical signal are left out only for want of memory. That changes the layout of every page, and a changed
page costs a hundred times what an unchanged one does, here and in the owner: a worker short of CPU that did it would bury
itself (seen with 1,000 targets: shedding series for lag kept one busy for minutes that had been late by two seconds).

`TargetCosts` holds a single target back that alone uses much of a CPU: its own interval grows, nobody else's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from core.config import ProcessBudget

UP_LOOKS = 2  # looks in a row over the budget before a step up: one look is no load
SETTLE_SECONDS = 60.0  # the CPU share is a mean over a minute: an earlier second step would answer to the same load
LAG_SETTLE_SECONDS = 20.0
CALM_RATIO = 0.8  # of the budget, below which load is taken up again
CALM_SECONDS = 120.0
LONGEST_CALM_SECONDS = 1920.0  # after a step down that had to be taken back the next one waits twice as long
RELAPSE_SECONDS = 300.0
LAG_SECONDS = 2.0  # slots that begin later than this: there is no CPU to be had, whatever the process used of it
START_SECONDS = 60.0  # a worker that starts reads all pages for the first time: neither CPU nor lag of it is its load
RESTART_SECONDS = 300.0  # over the memory budget at the last step for so long: only a new process gives it back
CPU_WINDOW_SECONDS, LEAST_WINDOW_SECONDS = 60.0, 10.0

TARGET_SHARE = 0.1  # of the process' CPU budget, for one target
WIDEST = 8
UP_READINGS, DOWN_READINGS = 3, 5
STEADY, GRACE = "steady", "start_grace"


@dataclass(frozen=True, slots=True)
class Level:
    """number: 0 = nothing is shed. factor, plain_factor: intervals that a target waits, with and without health signals.

    health_only: series without a canonical signal are left out. skip_plain: targets without health signals are not read.
    reason: why it is so. restart: the process holds memory that it will not give back.
    """

    number: int = 0
    factor: int = 1
    plain_factor: int = 1
    health_only: bool = False
    skip_plain: bool = False
    reason: str = STEADY
    restart: bool = False


STEPS = (
    Level(0), Level(1, 1, 2), Level(2, 2, 2, True), Level(3, 4, 4, True), Level(4, 4, 4, True, True),
)


class ProcessGovernor:
    """See the module. Times are seconds of one monotonic clock. grace_seconds: how long after the first look nothing is
    shed for CPU or lag; memory is no matter of starting."""

    def __init__(self, budget: ProcessBudget | None = None, grace_seconds: float = START_SECONDS) -> None:
        self._budget = budget or ProcessBudget()
        self._grace_seconds = grace_seconds
        self._began: float | None = None
        self.level = STEPS[0]
        self._over = 0
        self._changed_at = float("-inf")
        self._calm_since: float | None = None
        self._calm_seconds = CALM_SECONDS
        self._down_at = float("-inf")
        self._full_since: float | None = None

    def look(self, now: float, cpu_ratio: float, rss_bytes: int, lag_seconds: float = 0.0) -> Level:
        """The level from now on. cpu_ratio: of one CPU, over a minute. lag_seconds: the latest begin of a slot since the
        last look."""
        reason = self._pressure(cpu_ratio, rss_bytes, lag_seconds)
        if self._starts(now) and reason in ("shed_cpu", "shed_lag"):
            self.level = replace(self.level, reason=GRACE)
            return self.level
        if self.level.reason == GRACE:
            self.level = STEPS[0]
        if reason is None:
            self._over = 0
            self._full_since = None
            self._relax(now, cpu_ratio, rss_bytes, lag_seconds)
            return self.level
        self._over += 1
        self._calm_since = None
        settle = LAG_SETTLE_SECONDS if reason == "shed_lag" else SETTLE_SECONDS
        top = self.level.number == len(STEPS) - 1
        if self._over >= UP_LOOKS and now - self._changed_at >= settle and not top:
            if now - self._down_at < RELAPSE_SECONDS:
                self._calm_seconds = min(LONGEST_CALM_SECONDS, 2 * self._calm_seconds)
            self._step(now, self.level.number + 1, reason)
        elif top:
            self._full(now, reason)
        return self.level

    def _starts(self, now: float) -> bool:
        if self._began is None:
            self._began = now
        return now - self._began < self._grace_seconds and not self.level.number

    def _pressure(self, cpu_ratio: float, rss_bytes: int, lag_seconds: float) -> str | None:
        if rss_bytes > self._budget.memory_bytes:
            return "shed_memory"
        if cpu_ratio > self._budget.cpu_ratio:
            return "shed_cpu"
        return "shed_lag" if lag_seconds > LAG_SECONDS else None

    def _relax(self, now: float, cpu_ratio: float, rss_bytes: int, lag_seconds: float) -> None:
        budget = self._budget
        calm = (cpu_ratio <= CALM_RATIO * budget.cpu_ratio and rss_bytes <= CALM_RATIO * budget.memory_bytes
                and lag_seconds <= CALM_RATIO * LAG_SECONDS)
        if not self.level.number or not calm:
            self._calm_since = None
            if not self.level.number and now - self._changed_at > LONGEST_CALM_SECONDS:
                self._calm_seconds = CALM_SECONDS
            return
        if self._calm_since is None:
            self._calm_since = now
        if now - max(self._calm_since, self._changed_at) >= self._calm_seconds:
            self._down_at = now
            self._step(now, self.level.number - 1, self.level.reason)

    def _step(self, now: float, number: int, reason: str) -> None:
        step = STEPS[number]
        # Once left out they stay so until the worker is calm: to take them in again is as dear.
        health_only = step.health_only and (reason == "shed_memory" or self.level.health_only)
        self.level = replace(step, health_only=health_only, reason=reason if number else STEADY)
        self._changed_at = now
        self._over = 0
        self._calm_since = None

    def _full(self, now: float, reason: str) -> None:
        """At the last step, and still over: memory that is not given back ends the process."""
        if reason != "shed_memory":
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
        if now - self._full_since >= RESTART_SECONDS:
            self.level = replace(self.level, reason="shed_memory_restart", restart=True)


class CpuMeter:
    """The share of a CPU that the process used over the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()

    def ratio(self, now: float, cpu_seconds: float) -> float:
        """now: monotonic seconds; cpu_seconds: of the process so far. 0 in the first seconds: a start is no load."""
        self._marks.append((now, cpu_seconds))
        while len(self._marks) > 2 and self._marks[1][0] <= now - CPU_WINDOW_SECONDS:
            self._marks.popleft()
        wall = now - self._marks[0][0]
        return (cpu_seconds - self._marks[0][1]) / wall if wall >= LEAST_WINDOW_SECONDS else 0.0


@dataclass(slots=True)
class _Cost:
    factor: int = 1
    high: int = 0
    low: int = 0


class TargetCosts:
    """How many of its intervals each target waits because of what reading it alone costs. share: of one CPU."""

    def __init__(self, share: float = TARGET_SHARE) -> None:
        self._share = share
        self._costs: dict[str, _Cost] = {}

    def note(self, target_id: str, cpu_seconds: float, interval_ms: int) -> int:
        """Takes what a reading cost; the factor from now on. It doubles after UP_READINGS readings in a row that cost more
        than the share, and halves after DOWN_READINGS that would be far below it at half the factor."""
        room = self._share * interval_ms / 1000
        one = self._costs.get(target_id)
        if one is None:
            if cpu_seconds <= room:
                return 1
            one = self._costs[target_id] = _Cost()
        one.high = one.high + 1 if cpu_seconds > room * one.factor else 0
        one.low = one.low + 1 if cpu_seconds < CALM_RATIO * room * one.factor / 2 else 0
        if one.high >= UP_READINGS and one.factor < WIDEST:
            one.factor, one.high = one.factor * 2, 0
        elif one.low >= DOWN_READINGS:
            one.factor, one.low = one.factor // 2, 0
            if one.factor <= 1:
                one.factor = 1
                del self._costs[target_id]
        return one.factor

    def factor(self, target_id: str) -> int:
        """1 for all but the few that cost much."""
        one = self._costs.get(target_id)
        return 1 if one is None else one.factor

    def widened(self) -> dict[str, int]:
        """The targets that are read less often than configured, and by which factor."""
        return {target_id: one.factor for target_id, one in sorted(self._costs.items()) if one.factor > 1}

    def forget(self, living: Collection[str]) -> None:
        """Drops what is known of targets that are not among the living."""
        for gone in [key for key in self._costs if key not in living]:
            del self._costs[gone]
