"""What budgets do to a worker's readings: which are left out or spaced out, and what the worker says of it.

`Restrainer` is asked for each reading and answers from what is known; once in a few seconds it looks at the process. Each change is said once, in the log and as an event `collector_shed`, which the detector
`collector_starved` shows as evidence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from collectors.budgets import TargetBudgetKeeper
from collectors.discovery import ScrapeTarget
from collectors.shedding import TARGET_SHARE, CpuMeter, Level, ProcessGovernor, TargetCosts
from core.config import BudgetsConfig
from core.telemetry import Telemetry
from core.types import Event, Target

log = logging.getLogger("greylag.budgets")
LOOK_SECONDS = 5.0
TARGETS_NAMED = 8
OWN_REASONS = frozenset({"shed_labels", "shed_series_budget", "shed_churn_budget"})  # of a target's own budget
TARGETS_SHOWN = 50  # rows of `greylag_target_shed_series`: an explosion everywhere must not become one of own series


class Restrainer:
    """See the module. keeper: the budgets of targets, for the scrapers."""

    def __init__(self, budgets: BudgetsConfig, worker: str, telemetry: Telemetry) -> None:
        self.keeper = TargetBudgetKeeper(budgets.target)
        self.governor = ProcessGovernor(budgets.process)
        self.costs = TargetCosts(TARGET_SHARE * budgets.process.cpu_ratio)
        self._worker, self._telemetry = worker, telemetry
        self._meter = CpuMeter()
        self._plain: set[str] = set()  # targets that were read and carry no health signal
        self._looked_at = float("-inf")
        self._late_ms = 0
        self._told: tuple[object, ...] = (0, (), ())
        self._events: list[Event] = []
        self._shown: set[tuple[str, str]] = set()

    # --- asked for each reading ---------------------------------------------------------------------------------------
    @property
    def level(self) -> Level:
        """How far the worker sheds load now."""
        return self.governor.level

    def factor(self, target_id: str) -> int:
        """How many of its intervals a target waits for its next reading."""
        level = self.governor.level
        return max(level.plain_factor if target_id in self._plain else level.factor, self.costs.factor(target_id))

    def skip(self, target: ScrapeTarget, at_ms: int) -> str | None:
        """A named reason why this reading is left out, or None."""
        level = self.governor.level
        return level.reason if level.skip_plain and target.info.id in self._plain else None

    def noted(self, target: ScrapeTarget, health: bool, cpu_seconds: float) -> None:
        """What a reading was: whether the page carries a canonical signal, and what it cost."""
        target_id = target.info.id
        if health:
            self._plain.discard(target_id)
        else:
            self._plain.add(target_id)
        self.costs.note(target_id, cpu_seconds, target.interval_ms)
        for reason, n in self.keeper.shed_of(target_id).items():
            self._dropped(n, reason)

    def forget(self, living: Collection[str]) -> None:
        """Drops what is known of targets that are not among the living."""
        self.keeper.forget(living)
        self.costs.forget(living)
        self._plain.intersection_update(living)

    # --- looked at every few seconds ----------------------------------------------------------------------------------
    def late(self, late_ms: int) -> None:
        """How late a slot began."""
        self._late_ms = max(self._late_ms, late_ms)

    def look(self, wall: float, at_ms: int, cpu_seconds: float, rss_bytes: Callable[[], int]) -> Level:
        """Looks at the process where LOOK_SECONDS have passed. wall: monotonic seconds; at_ms: cluster time of events."""
        if wall - self._looked_at < LOOK_SECONDS:
            return self.governor.level
        self._looked_at = wall
        level = self.governor.look(wall, self._meter.ratio(wall, cpu_seconds), rss_bytes(), self._late_ms / 1000)
        self._late_ms = 0
        self.keeper.set_health_only(level.health_only, level.reason)
        shed, widened = self.keeper.shedding(), self.costs.widened()
        self._measure(level, shed, widened)
        # Counts move at each look; what is told is which targets, by which reasons.
        own = [(key, tuple(sorted(OWN_REASONS & one.keys()))) for key, one in shed.items()]
        state = (level.number, level.restart, tuple(row for row in own if row[1]), tuple(widened.items()))
        if state != self._told and (any(state[2:]) or level.number or any(self._told)):
            self._tell(level, shed, widened, at_ms)
        self._told = state
        return level

    def events(self) -> list[Event]:
        """What is to be handed over since the last call."""
        out, self._events = self._events, []
        return out

    def _tell(self, level: Level, shed: Mapping[str, Mapping[str, int]], widened: Mapping[str, int], at_ms: int) -> None:
        counts: dict[str, int] = {}
        for one in shed.values():
            for reason, n in one.items():
                counts[reason] = counts.get(reason, 0) + n
        if widened:
            counts["shed_target_cpu"] = len(widened)
        names = sorted(_own(shed) | widened.keys())
        more = f" and {len(names) - TARGETS_NAMED} more" if len(names) > TARGETS_NAMED else ""
        said = ", ".join(f"{reason} {n}" for reason, n in sorted(counts.items()))
        fields = {"level": level.number, "reason": level.reason, "targets": ", ".join(names[:TARGETS_NAMED]) + more,
                  "shed": said}
        self._events.append(Event(at_ms, Target("collector", device=self._worker), "collector_shed", fields))
        log.warning("shed level %d (%s); targets over their budgets: %s; left out: %s", level.number, level.reason,
                    fields["targets"] or "none", said or "nothing")

    def _measure(self, level: Level, shed: Mapping[str, Mapping[str, int]], widened: Mapping[str, int]) -> None:
        tell = self._telemetry
        tell.set("greylag_collector_shed_level", level.number, worker=self._worker)
        tell.set("greylag_collector_shed_targets", len(_own(shed) | widened.keys()), worker=self._worker)
        rows = {(target_id, reason): n for target_id, one in list(shed.items())[:TARGETS_SHOWN] for reason, n in one.items()}
        for target_id, reason in self._shown - rows.keys():
            tell.set("greylag_target_shed_series", 0, target=target_id, reason=reason)
        for (target_id, reason), n in rows.items():
            tell.set("greylag_target_shed_series", n, target=target_id, reason=reason)
        self._shown = set(rows)

    def _dropped(self, n: int, reason: str) -> None:
        self._telemetry.add("greylag_collector_dropped_total", n, worker=self._worker, reason=reason)


def _own(shed: Mapping[str, Mapping[str, int]]) -> set[str]:
    """The targets that are over a budget of their own."""
    return {target_id for target_id, one in shed.items() if not OWN_REASONS.isdisjoint(one)}
