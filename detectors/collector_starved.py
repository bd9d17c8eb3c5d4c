"""A collector of Greylag's own that falls behind, or leaves something out to stay within its budgets.

It says so itself: the level to which it sheds load, how many targets are over their own budgets, due readings that were not
begun in time, and how long ago it had reported everything. What it has left out, and of which targets, stands in the event
`collector_shed` of each change and becomes evidence here.

One missed slot is no starvation, nor is a worker that has just started, a target that answers late (its own reading fails),
or a worker that is gone (its targets move to the others).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Floats, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Bools

FAULT = "collector_starved"
DEGRADED, TICKET = 0.6, 0.3


@dataclass(frozen=True)
class Params:
    """Sources: our judgement; a site's own series are the only data there are of it.

    window_seconds: how far back evidence is read, at least three samples. missed_share: of the readings that are due once a
    minute, those that were missed, from which a worker falls behind (in each third of the window some were). missed_min:
    how many at least. lag_seconds: time without a complete report; a worker reports every few seconds, a target that does
    not answer holds it for one interval.
    level_degraded: from this level on health signals come less often than configured.
    """

    window_seconds: float = 120.0
    missed_share: float = 0.02
    missed_min: float = 3.0
    lag_seconds: float = 60.0
    level_degraded: float = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What the last minutes show, by worker. missed_low: of the thirds of the window the one that missed least."""

    level: Floats
    over: Floats
    missed: Floats
    missed_low: Floats
    targets: Floats
    lag: Floats
    known: Bools


def _view(window: Window, p: Params) -> _View:
    def low(signal: str) -> Floats:
        return stats.span_of(window, f"collector.{signal}", p.window_seconds / 2).low

    missed = stats.span_of(window, "collector.missed_slots_per_second", p.window_seconds)
    level = window.block("collector.shed_level")
    lag = window.block("collector.lag_seconds")
    fresh = level.fresh() | lag.fresh()
    known = fresh & (~np.isnan(level.last) | ~np.isnan(lag.last))
    targets = stats.filled(window.values("collector.targets"))
    return _View(low("shed_level"), low("shed_targets"), missed.mean, missed.low,
                 targets[-1] if len(targets) else np.full(len(known), np.nan), low("lag_seconds"), known)


def _missed_share(view: _View) -> Floats:
    """Missed readings a minute for each target."""
    return stats.ratio(60.0 * view.missed, np.maximum(view.targets, 1.0))


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each worker that says anything of itself now."""
    workers = window.of_kind("collector")
    if not workers or not len(window.times):
        return []
    view = _view(window, params)
    shedding = stats.above(view.level, 1.0)
    behind = (stats.above(_missed_share(view), params.missed_share) & stats.above(view.missed_low, 1e-9)
              & stats.above(view.missed * params.window_seconds, params.missed_min))
    late = stats.above(view.lag, params.lag_seconds)
    over = stats.above(view.over, 1.0)
    faulty = view.known & (shedding | behind | late | over)
    onsets = _onsets(window, params)
    out: list[Verdict] = []
    for e, worker in enumerate(workers):
        if not view.known[e]:
            continue
        if not faulty[e]:
            out.append(Verdict(worker, FAULT, "clear", reason="clear"))
            continue
        reason = ("sheds_load" if shedding[e] else "misses_slots" if behind[e] else "lags" if late[e]
                  else "targets_over_budget")
        mild = reason == "targets_over_budget" or (reason == "sheds_load" and view.level[e] < params.level_degraded)
        said = _said(window, worker.device or "")
        out.append(Verdict(worker, FAULT, "faulty", TICKET if mild else DEGRADED, _evidence(e, view, said), reason,
                           onset_at=int(onsets[e])))
    return out


def _said(window: Window, worker: str) -> str | None:
    """What the worker's newest word says of targets and of what is left out."""
    events = [one for one in window.events_of("collector_shed") if one.target.device == worker]
    return _words(events[-1]) if events else None


def _words(event: Event) -> str | None:
    parts = [f"reason {event.fields['reason']}" if event.fields.get("level") else "",
             f"targets {event.fields['targets']}" if event.fields.get("targets") else "",
             f"left out {event.fields['shed']}" if event.fields.get("shed") else ""]
    return "; ".join(part for part in parts if part) or None


def _evidence(e: int, view: _View, said: str | None) -> tuple[Evidence, ...]:
    """All that speaks, with the worker's own words on the first."""
    rows: list[tuple[str, float, float, str]] = []
    if view.level[e] >= 1:
        rows.append(("collector.shed_level", float(view.level[e]), 0.0, "a worker within its budget"))
    if view.over[e] >= 1:
        rows.append(("collector.shed_targets", float(view.over[e]), 0.0, "targets within their budgets"))
    if view.missed[e] > 0:
        rows.append(("collector.missed_slots_per_second", float(view.missed[e]), 0.0,
                     f"a worker that keeps its times ({view.targets[e]:.0f} targets)"))
    if not np.isnan(view.lag[e]):
        rows.append(("collector.lag_seconds", float(view.lag[e]), 15.0, "one tick"))
    return tuple(stats.evidence(*row, text=said if i == 0 else None) for i, row in enumerate(rows))


def _onsets(window: Window, p: Params) -> stats.Ints:
    symptom = stats.above(window.values("collector.shed_level"), 1.0)
    symptom |= stats.above(window.values("collector.shed_targets"), 1.0)
    symptom |= stats.above(window.values("collector.missed_slots_per_second"), 1e-9)
    symptom |= stats.above(window.values("collector.lag_seconds"), p.lag_seconds)
    return stats.run_start(symptom, window.times, 4)


PLUGIN = DetectorPlugin(
    name="collector_starved",
    fault=FAULT,
    judge=judge,
    params=Params,
    needs=(("collector.shed_level", "collector.lag_seconds"),),
    hold=Hold(on=3, of=4, off=8, expire=40),
    must_not=(
        "one missed slot", "a worker that starts or leaves", "a target that answers late or not at all",
        "a worker that reports within a tick",
    ),
)
