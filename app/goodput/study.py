"""The arms over the same month, from the same seeds: what each leaves of the GPU time, and what share of the gap is closed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.evaluate.rates import poisson_upper
from app.goodput.arms import ARMS
from app.goodput.chances import Chances
from app.goodput.watching import Watching
from core.clock import process_cpu_seconds
from fleet.build import with_rates
from fleet.eventstep import EventWorld
from fleet.scenario import FleetSpec, JobSpec, RatesSpec, Scenario
from remediation.policy import Policy

JOB, TYPE, TIMES = "pretrain", "p5.48xlarge", "real"
NODES_A_SPARE = 16
CHECKPOINT_SECONDS = 1800
# Of the bootstrap over months.
LEAST_MONTHS, RESAMPLES, ONE_SIDE = 3, 4000, 0.025
GREYLAG, WITHOUT, BEST = "greylag", "restart", "oracle"


@dataclass(frozen=True, slots=True)
class Span:
    """nodes, days: of the fleet; seed: of its faults."""

    nodes: int
    days: float
    seed: int

    @property
    def node_days(self) -> float:
        return self.nodes * self.days


def month(span: Span) -> Scenario:
    """One training job on all nodes, faults at the published rates, no look-alikes: these are in the scorecard's false rates. It saves
    at each full and half hour, so that a failure costs the same work in all arms: else each earlier restart of an arm moves its saves,
    and what is left of a month is how lucky they then fall."""
    shape = {"pp": min(16, max(1, span.nodes // 8)), "checkpoint_every_seconds": CHECKPOINT_SECONDS,
             "checkpoint_on_clock": True, "last_step": 50_000_000}
    fleet = FleetSpec(span.nodes, max(2, span.nodes // NODES_A_SPARE), TYPE, None, "D", 15, 30, TIMES)
    draft = Scenario(name=f"goodput-{span.nodes}", about="A month at published rates.", seed=span.seed, fleet=fleet,
                     jobs=(JobSpec(JOB, "training", None, shape, None),), schedule=(), duration=f"{span.days:g}d", rates=RatesSpec())
    return with_rates(draft)


def limits_for(policy: Policy, nodes: int) -> Policy:
    """The policy with its budgets for one job on so many nodes: those of the file are for a job on up to 64."""
    times = max(1.0, nodes / 64)
    limits = policy.limits
    return replace(policy, limits=replace(limits, per_hour=math.ceil(limits.per_hour * times),
                                          per_job_per_day=math.ceil(limits.per_job_per_day * times)))


def run_arm(arm: str, scenario: Scenario, chances: Chances, policy: Policy, tell: Callable[[str], None], draw: int = 0) -> dict[str, Any]:
    """One arm to the end. draw: which of the draws of what is found. goodput_ratio: productive share of all GPU time, spares and
    repairs included."""
    began = process_cpu_seconds()
    event = EventWorld(scenario, [lambda e: Watching(e, chances, policy, scenario.seed, draw) if arm == GREYLAG else ARMS[arm](e)])
    event.advance(scenario.end_ms, lambda line: tell(f"{arm}: {line}"))
    spent, whole = event.world.goodput.gpu_seconds(), event.world.goodput.elapsed_gpu_seconds()
    row: dict[str, Any] = {
        "arm": arm, "goodput_ratio": round(event.world.goodput.ratio(), 6), "events": event.events,
        "shares": {cause: round(seconds / whole, 6) for cause, seconds in spent.items() if seconds},
        "cpu_seconds": round(process_cpu_seconds() - began, 1),
    }
    watcher = event.watchers[0]
    if isinstance(watcher, Watching):
        row |= {"found": watcher.found, "missed": watcher.missed, "actions": dict(sorted(watcher.actions.items())),
                "healthy_nodes_acted_on": len(watcher.healthy_acted),
                "repair_seconds_median": round(statistics.median(watcher.repairs), 1) if watcher.repairs else None,
                "repairs": len(watcher.repairs),
                "replaced": len(watcher.back),
                **{key: round(statistics.median(took), 1) if took else None for key, took in (
                    ("back_seconds_median", watcher.back), ("back_attempt_seconds_median", watcher.back_attempt))}}
    return row


def compare(spans: Sequence[Span], chances: Chances, policy: Policy, tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """A row for each span and arm, then one for each size with what its seeds say together."""
    by_nodes: dict[int, list[Mapping[str, Any]]] = {}
    for span in spans:
        scenario, limits = month(span), limits_for(policy, span.nodes)
        for arm in (*ARMS, GREYLAG):
            row = {"nodes": span.nodes, "days": span.days, "seed": span.seed, "faults": len(scenario.schedule),
                   **run_arm(arm, scenario, chances, limits, tell)}
            by_nodes.setdefault(span.nodes, []).append(row)
            yield row
    for nodes, rows in by_nodes.items():
        yield together(nodes, rows)


def _spread(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The 95 % interval of the share of the gap, by drawing months with replacement; None of fewer than LEAST_MONTHS, or where one draw
    in forty has no gap."""
    of = {(r.get("seed", 0), r["arm"]): float(r["goodput_ratio"]) for r in rows}
    seeds = sorted({seed for seed, _ in of})
    gaps = np.array([of[seed, BEST] - of[seed, WITHOUT] for seed in seeds])
    wins = np.array([of[seed, GREYLAG] - of[seed, WITHOUT] for seed in seeds])
    if len(seeds) < LEAST_MONTHS:
        return None
    drawn = np.random.default_rng(len(seeds)).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    gap, won = gaps[drawn].sum(axis=1), wins[drawn].sum(axis=1)
    if (gap <= 0).mean() > ONE_SIDE:
        return None
    low, high = np.quantile((won / np.where(gap > 0, gap, np.nan))[gap > 0], (ONE_SIDE, 1 - ONE_SIDE))
    return float(low), float(high)


def together(nodes: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means over seeds, the share of the gap between restarting and the oracle that Greylag closes, and what it did to
    healthy nodes with the 95 % upper bound."""
    ratio = {arm: statistics.fmean(r["goodput_ratio"] for r in rows if r["arm"] == arm) for arm in (*ARMS, GREYLAG)}
    gap = ratio[BEST] - ratio[WITHOUT]
    own = [r for r in rows if r["arm"] == GREYLAG]
    span = _spread(rows)
    node_days, acted = sum(r["nodes"] * r["days"] for r in own), sum(r["healthy_nodes_acted_on"] for r in own)
    return {"nodes": nodes, "seeds": len(own), "node_days": node_days, "goodput_ratio": {a: round(v, 5) for a, v in ratio.items()},
            "gap": round(gap, 5), "gap_closed": round((ratio[GREYLAG] - ratio[WITHOUT]) / gap, 3) if gap > 0 else None,
            "gap_closed_95": None if span is None else [round(one, 3) for one in span],
            "healthy_nodes_acted_on": acted, "healthy_upper_95_per_1000_node_days": round(poisson_upper(acted) / node_days * 1000, 4),
            "found": sum(r["found"] for r in own), "missed": sum(r["missed"] for r in own)}
