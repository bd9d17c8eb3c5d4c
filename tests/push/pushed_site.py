"""A made-up cluster's recording (tests/evaluate) as a site that only pushes: its samples as remote write of a sharded
Prometheus, through a real receiver into the same judgement as a replay's."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.brain import Brain
from app.replay import make_brain
from core.clock import TICK_MS, ManualClock, tick_at_or_after
from core.derive import STALE_NAN
from core.inventory import Inventory, read_inventory
from core.types import Batch
from tests.evaluate.pages import all_pages
from tests.evaluate.plan import Plan
from tests.evaluate.world import run_job
from tests.push.encode import snappy, write_request
from tests.push.site import drain, post, receiver

Row = tuple[dict[str, str], list[tuple[int, float]]]


@dataclass(frozen=True)
class Pushes:
    """rows: (ms, labels with `__name__`, value) by time."""

    rows: list[tuple[int, dict[str, str], float]]


def pushes_of(plan: Plan) -> Pushes:
    """Everything that the plan's recording holds, types left out."""
    runs = [run_job(plan, job, plan.fault if plan.fault is not None and i == plan.notes.get("job") else None)
            for i, job in enumerate(plan.jobs)]
    rng, rows = random.Random(plan.seed), []
    for page in all_pages(plan, runs):
        stamps = [plan.start_ms + round(float(t) * 1000) for t in page.times]
        for family in page.families:
            for labels, values in family.rows:
                pairs = [("__name__", family.name), *labels.items()]
                rng.shuffle(pairs)  # a sender keeps one order of a series' labels, whichever it is
                named = dict(pairs)
                shown = [not math.isnan(v) or "_loss" in family.name for v in values.tolist()]
                for at, v, now, before in zip(stamps, values.tolist(), shown, [False, *shown[:-1]], strict=True):
                    if now or before:  # a series that is gone from its page gets a stale marker, as Prometheus does it
                        rows.append((at, named, v if now else STALE_NAN))
    rows.sort(key=lambda row: row[0])
    return Pushes(rows)


def requests(rows: list[tuple[int, dict[str, str], float]]) -> list[bytes]:
    """The rows as requests of up to 500 samples, in two shards."""
    shards: list[list[Row]] = [[], []]
    for at, labels, value in rows:
        shards[sum(map(ord, labels["__name__"])) % 2].append((labels, [(at, value)]))
    return [snappy(write_request(shard[i:i + 500])) for shard in shards for i in range(0, len(shard), 500)]


async def story(plan: Plan, folder: Path, inventory: Path | None) -> list[dict[str, Any]]:
    """The records of the judgement, as `replay --json` prints them."""
    pushed = pushes_of(plan)
    ends = [pushed.rows[0][0], pushed.rows[-1][0]]
    clock = ManualClock(ends[0])
    brain, world = make_brain(read_inventory(inventory) if inventory else Inventory(), None, {})
    out: list[dict[str, Any]] = []
    async with receiver(folder, clock) as one:
        for seq, (tick, rows) in enumerate(_slots(pushed.rows, tick_at_or_after(ends[0]), tick_at_or_after(ends[1]))):
            clock.advance_to(max(clock.now_ms(), tick))
            for body in requests(rows):
                status, _, said = await post(one.port, "/api/v1/write", body)
                assert status == 204, said
            results, events = drain(one, tick + 10_000)
            assert one.watermark(tick, tick + 10_000) == tick
            _judge(brain, world, Batch("collector-0", 1, seq, tick, tuple({ly.id: ly for ly, _ in results}.values()),
                                       tuple(s for _, s in results), tuple(events)), tick, out)
    return out


def _judge(brain: Brain, world: Any, batch: Batch, tick: int, out: list[dict[str, Any]]) -> None:
    brain.feed(batch)
    out += [json.loads(record.line) for record in brain.tick(tick).commit.records]
    brain.carry_out(tick, world)


def _slots(rows: list[tuple[int, dict[str, str], float]], first: int, last: int,
           ) -> Iterator[tuple[int, list[tuple[int, dict[str, str], float]]]]:
    """(tick, the rows up to it) of each tick."""
    start = 0
    for tick in range(first, last + 1, TICK_MS):
        stop = start
        while stop < len(rows) and rows[stop][0] <= tick:
            stop += 1
        yield tick, rows[start:stop]
        start = stop
