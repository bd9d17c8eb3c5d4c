"""The same weeks through the whole path: exporters' pages, collectors' mapping, detectors, incidents, the engine and its guards.

The event-stepped months rest on a scorecard: whether, when and where a fault is found is drawn. Here nothing is drawn but the faults: the
full model of the fleet is run sub-step by sub-step, Greylag sees what its exporters and logs show, and the script and the people
of the arm `restart` go on beside it as in the months. Each stretch is then run from event to event with several draws; the two
agree where the goodput of the whole path lies within the spread of those draws.

A node-day costs 30 to 40 CPU-seconds, so stretches are short and each is written down as it ends: a run that was cut off goes on
where it stopped. What was kept of another policy or another state of the code is run again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.fingerprint import code_hash, policy_hash
from app.goodput.arms import BY_HAND, NOTICED_MS, PERSON_MS, REQUEUE_MS, Restarting, make_room
from app.goodput.chances import Chances
from app.goodput.judging import Judge
from app.goodput.study import GREYLAG, Span, limits_for, month, run_arm
from app.virtual import VirtualSite
from app.workerfiles import write_whole
from core.clock import TICK_MS, process_cpu_seconds
from core.types import Incident
from fleet.build import build_scenario, with_rates
from fleet.operations import Operations
from fleet.scenario import RatesSpec, Scenario
from fleet.world import World
from remediation.policy import Policy

NODES, DAYS, DRAWS = 16, 1.0, 8
# Published rates bring one fault in a stretch of 16 node-days, of which nothing is learnt: so many times as many.
FACTOR = 12.0
# Whose bytes decide how a stretch goes.
CODE = ("app", "collectors", "core", "detectors", "fleet", "pipeline", "remediation")
# The two models of a healthy step differ by so much of the GPU time, whatever happens (`tests/fleet/test_eventstep.py` holds more).
MODEL = 0.01


@dataclass(frozen=True, slots=True)
class Stage:
    """What the arms look at: the full model under the names of `fleet.eventstep.EventWorld`."""

    world: World
    operations: Operations
    scenario: Scenario


def stretch(seed: int, days: float = DAYS) -> Scenario:
    """A day of 16 nodes with many faults."""
    span = Span(NODES, days, seed)
    return with_rates(replace(month(span), schedule=(), rates=RatesSpec(FACTOR)))


def whole(scenario: Scenario, policy: Policy, tell: Callable[[str], None]) -> dict[str, Any]:
    """The scenario through the whole path, Greylag acting. goodput_ratio: productive share of all GPU time."""
    cpu = process_cpu_seconds()
    world, operations, _ = build_scenario(scenario)
    fallback = Restarting(Stage(world, operations, scenario), REQUEUE_MS, NOTICED_MS)  # type: ignore[arg-type]
    site = VirtualSite(act=True, built=(world, operations), policy=policy)
    seen: dict[str, Any] = {}
    judge, acted = Judge(), 0
    pages: dict[str, int] = {}
    tick, told = world.now_ms // TICK_MS * TICK_MS, 0.0
    while tick < scenario.end_ms:
        tick += TICK_MS
        commit = site.judge(tick).commit
        seen |= {one.id: one for one in commit.incidents}
        for planted in world.plants.current:
            for row in planted.place.rows if planted.present and planted.plugin.fault is not None else ():
                judge.ill(world.nodes[row].name, tick)
        acted += sum(judge.began_on_healthy(action, outcome.state, tick) for action, outcome in commit.actions if action.incident in seen)
        fallback.hands_off = frozenset(job for one in seen.values() if one.state == "acting" for job in one.jobs)
        fallback.step(tick)
        _people(tick, seen.values(), pages, world, fallback)
        site.brain.carry_out(tick, site.door)
        done = (tick - scenario.start_ms) / max(1, scenario.end_ms - scenario.start_ms)
        if done - told >= 0.05:
            told = done
            tell(f"whole path, seed {scenario.seed}: {done:.0%}")
    return {"goodput_ratio": round(world.goodput.ratio(), 6), "incidents": sum(one.state != "merged" for one in seen.values()),
            "faults": sum(p.plugin.fault is not None for p in world.faults), "healthy_nodes_acted_on": acted,
            "cpu_seconds": round(process_cpu_seconds() - cpu, 1)}


def _people(at: int, incidents: Iterable[Incident], pages: dict[str, int], world: World, fallback: Restarting) -> None:
    """A page that was handed to a person is answered as in the months. pages: since when, by incident."""
    for one in incidents:
        if one.state != "escalated" or one.klass != "page":
            continue
        if at < pages.setdefault(one.id, at) + PERSON_MS:
            continue
        node = one.culprit.node if one.culprit is not None else None
        for planted in [p for p in world.plants.current if p.present and p.plugin.fault == one.fault]:
            rows = {world.nodes[row].name for row in planted.place.rows}
            for job in [world.jobs[name] for name in one.jobs if name in world.jobs and (node is None or node in rows)]:
                if planted.plugin.fault in BY_HAND:
                    make_room(fallback.event, planted)
                elif job.alive and job.name not in fallback.hands_off:
                    fallback.mend(planted, job, at)


def compare_whole(node_days: float, first_seed: int, chances: Chances, policy: Policy, keep: str | None,
                  tell: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Rows for stretches that make up so many node-days. What went through the whole path with this policy and this code and stands in
    `keep` does not again, whatever scorecard it was held against then: no scorecard decides anything there. Draws are made anew for
    another scorecard."""
    rows, limits = _kept(keep), limits_for(policy, NODES)
    made = {"policy": policy_hash(limits), "code": code_hash(CODE)}
    count = max(1, -(-int(node_days) // int(NODES * DAYS)))
    for seed in range(first_seed, first_seed + count):
        scenario, row = stretch(seed), rows.get(seed)
        other = [what for what, value in made.items() if row is not None and row.get(what) != value]
        if other:
            tell(f"seed {seed}: what is kept is of another {' and another '.join(other)}: it is run again")
            row = None
        if row is None or row.get("scorecard") != chances.sha256:
            drawn = [run_arm(GREYLAG, scenario, chances, limits, tell, draw)["goodput_ratio"] for draw in range(DRAWS)]
            seen = {"whole_path": True, "seed": seed, "nodes": NODES, "days": DAYS, **whole(scenario, limits, tell)} if row is None else row
            rows[seed] = row = {**seen, **made, "scorecard": chances.sha256, "drawn": drawn}
            if keep is not None:
                write_whole(Path(keep), json.dumps({"rows": [rows[one] for one in sorted(rows)]}, indent=1, sort_keys=True) + "\n")
        yield row


def _kept(keep: str | None) -> dict[int, dict[str, Any]]:
    """Stretches of an earlier run, by seed."""
    try:
        known = json.loads(Path(keep).read_text(encoding="utf-8")) if keep is not None else {}
        return {int(row["seed"]): row for row in known["rows"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether the mean of the whole path lies within the 95 % interval of the mean of the draws, MODEL wider."""
    whole_mean = statistics.fmean(row["goodput_ratio"] for row in rows)
    draws = [statistics.fmean(row["drawn"][n] for row in rows) for n in range(len(rows[0]["drawn"]))]
    middle, spread = statistics.fmean(draws), 2.0 * (statistics.stdev(draws) if len(draws) > 1 else 0.0)
    low, high = middle - spread - MODEL, middle + spread + MODEL
    return {"whole_path": True, "stretches": len(rows), "node_days": sum(row["nodes"] * row["days"] for row in rows),
            "goodput_ratio": round(whole_mean, 5), "low": round(low, 5), "high": round(high, 5), "agrees": low <= whole_mean <= high,
            "healthy_nodes_acted_on": sum(row["healthy_nodes_acted_on"] for row in rows)}
