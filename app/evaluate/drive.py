"""Runs one scenario through the whole path in virtual time, with remediation off, and gives what is to be scored."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from app.evaluate.baselines import StaticRules
from app.evaluate.chances import BRIEF_SECONDS, harms, stands
from app.evaluate.facts import Part, Ran, Said, Truth
from app.evaluate.plan import Planned, is_wide, shows
from app.virtual import VirtualSite
from core.clock import TICK_MS, process_cpu_seconds
from core.targets import CLOSED_STATES
from core.types import Batch, Incident, Layout
from core.window import Window
from fleet.build import build_scenario
from fleet.nics import netdev
from fleet.plants import Planted
from fleet.programme import Programme
from fleet.world import World

ONE_PERCENT = 0.01
# Part-minutes are counted once a minute, over parts of these kinds.
MINUTE_MS = 60_000
COUNTED_KINDS = ("gpu", "nic", "node", "disk", "rank")


def run(planned: Planned) -> Ran:
    """The scenario from start to end. Raises what the path raises."""
    cpu = process_cpu_seconds()
    scenario = planned.scenario
    world, operations, programme = build_scenario(scenario)
    site = VirtualSite(act=False, built=(world, operations))
    rules, thin, seen, episodes = StaticRules(), _Thinner(scenario.seed, planned.missing), Seen(), Episodes()
    unknown = known = 0.0
    tick = world.now_ms // TICK_MS * TICK_MS
    while tick < scenario.end_ms:
        tick += TICK_MS
        ticked = site.judge(tick, thin.batch)
        seen.take(ticked.commit.incidents)
        episodes.look(world.faults, tick)
        rules.judge(ticked.window)
        if tick % MINUTE_MS == 0:
            missing, there = _part_minutes(ticked.window)
            unknown, known = unknown + missing, known + there
    spec = scenario.fleet
    return Ran(planned.id, planned.kind, planned.stress, spec.tier, spec.type, spec.nodes, spec.scrape_seconds,
               planned.minutes, truths(world, programme, spec.tier, episodes), tuple(_said(one) for one in seen.said()),
               tuple(rules.said()), groups(world), unknown, known, process_cpu_seconds() - cpu)


# --- the data -------------------------------------------------------------------------------------------------------------
class _Thinner:
    """Leaves a share of the series out, each for the whole run. share 0 = none."""

    def __init__(self, seed: int, share: float) -> None:
        self._seed, self._share = seed, share

    def batch(self, batch: Batch) -> Batch:
        if not self._share or not batch.layouts:
            return batch
        return replace(batch, layouts=tuple(self._layout(one) for one in batch.layouts))

    def _layout(self, layout: Layout) -> Layout:
        return replace(layout, signals=tuple(r for r in layout.signals if not self._drops(f"{r.target.key}/{r.signal}")))

    def _drops(self, series: str) -> bool:
        return zlib.crc32(f"{self._seed}/{series}".encode()) / 2**32 < self._share


def _part_minutes(window: Window) -> tuple[float, float]:
    """(unknown, known) parts of nodes in service: unknown is a part of which no signal at all is fresh."""
    unknown = known = 0
    for kind in COUNTED_KINDS:
        parts = window.of_kind(kind)
        if not parts:
            continue
        fresh = np.zeros(len(parts), np.bool_)
        for signal, block in window.blocks.items():
            if signal.startswith(f"{kind}."):
                fresh |= block.fresh()
        places = [window.topology.place(t.node) for t in parts]
        counts = np.array([p is None or p.state == "in_service" for p in places])
        unknown += int((counts & ~fresh).sum())
        known += int((counts & fresh).sum())
    return float(unknown), float(known)


# --- truth ----------------------------------------------------------------------------------------------------------------
class Episodes:
    """How long each fault that comes and goes was there at a stretch, as far as ticks tell."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._longest: dict[int, int] = {}

    def look(self, faults: Iterable[Planted], tick: int) -> None:
        """Which of them are there at the tick (ms)."""
        for one in faults:
            if one.onset != "intermittent":
                continue
            if one.present and one.cured_at is None and one.level > 0:
                began = self._since.setdefault(id(one), tick)
                self._longest[id(one)] = max(self._longest.get(id(one), 0), tick - began + TICK_MS)
            else:
                self._since.pop(id(one), None)

    def brief(self, planted: Planted) -> bool:
        """Whether it comes and goes, and never stood for long."""
        return planted.onset == "intermittent" and self._longest.get(id(planted), 0) < 1000 * BRIEF_SECONDS


def truths(world: World, programme: Programme, tier: str, episodes: Episodes) -> tuple[Truth, ...]:
    """All that was planted while the scenario ran, look-alikes among them."""
    found = [_truth(world, programme, one, tier, episodes.brief(one)) for one in world.faults]
    return tuple(replace(one, overlaps=_overlaps(one, found)) for one in found)


def _truth(world: World, programme: Programme, planted: Planted, tier: str, brief: bool) -> Truth:
    plugin, rows = planted.plugin, set(planted.place.rows)
    culprit = Part.of(planted.culprit)
    assert culprit is not None
    end = min(programme.scenario.end_ms, planted.heals_at if planted.cured_at is None else planted.cured_at)
    jobs = tuple(j.name for j in world.jobs.values() if rows & set(j.nodes))
    # A ramp that ended on its way never cost what it was going to.
    reached = min(1.0, (end - planted.at) / (1000 * planted.onset_seconds)) if planted.onset == "ramp" else 1.0
    impact = None if stands(plugin) else float(f"{planted.severity * reached:.3g}") if harms(plugin) else 0.0
    brief = brief and bool(plugin.fault) and not stands(plugin)
    return Truth(plugin.name, plugin.fault or "", plugin.scope, culprit, tuple(world.nodes[r].name for r in sorted(rows)), jobs,
                 planted.at, onset_of(planted), end, impact, shows(plugin, tier, world.kind.fabric, world.kind.vendor) and not brief, is_wide(plugin),
                 brief=brief)


def onset_of(planted: Planted) -> int:
    """When it first costs the job 1 %: of a ramp, later than it was planted."""
    if planted.onset != "ramp" or not harms(planted.plugin) or planted.severity <= 0:
        return planted.at
    return planted.at + int(1000 * planted.onset_seconds * min(1.0, ONE_PERCENT / planted.severity))


def _overlaps(one: Truth, others: Iterable[Truth]) -> bool:
    return bool(one.fault) and any(
        o is not one and o.fault and set(o.jobs) & set(one.jobs) and o.at < one.end and one.at < o.end for o in others)


def groups(world: World) -> dict[str, tuple[str, ...]]:
    """The nodes under each shared cause, by `kind:name`: causes that cover the same nodes cannot be told apart. Also the port
    behind each network interface, by `nic:node/interface`."""
    out: dict[str, list[str]] = {}
    for node in world.nodes:
        for kind in ("rack", "pdu", "cooling"):
            out.setdefault(f"{kind}:{getattr(node, kind)}", []).append(node.name)
        for switch in dict.fromkeys(int(s) for s in world.topology.leaf_of[node.index]):
            out.setdefault(f"switch:{world.topology.switches[switch]}", []).append(node.name)
        if node.kind.fabric != "efa":  # the port's network interface is the same part under another name
            out |= {f"nic:{node.name}/{netdev(node.kind, nic)}": [node.nic(nic)] for nic in range(node.kind.nics)}
    return {name: tuple(nodes) for name, nodes in out.items()}


# --- incidents ------------------------------------------------------------------------------------------------------------
class Seen:
    """Incidents in their last state. One that was resolved and comes back on the same part is told anew when it is reopened, so it
    counts once for each time: for the fault that it is about, or as one more false alarm."""

    def __init__(self) -> None:
        self._now: dict[str, Incident] = {}
        self._before: list[Incident] = []

    def take(self, incidents: Iterable[Incident]) -> None:
        """Incidents as they are after a tick."""
        for one in incidents:
            known = self._now.get(one.id)
            if known is None:
                self._now[one.id] = one
            elif known.state == "resolved" and one.state not in CLOSED_STATES:
                self._before.append(known)
                self._now[one.id] = replace(one, opened_at=one.updated_at)
            else:
                self._now[one.id] = replace(one, opened_at=known.opened_at)

    def said(self) -> tuple[Incident, ...]:
        """All of them; `opened_at` is when it was opened, or reopened."""
        return (*self._before, *self._now.values())


def _said(one: Incident) -> Said:
    nodes = {t.node for t in (one.culprit, *one.victims) if t is not None and t.node is not None}
    suspects = tuple((part, s.probability) for s in one.suspects if (part := Part.of(s.target)) is not None)
    return Said(one.id, one.fault, one.scope, Part.of(one.culprit), one.opened_at, one.klass, one.state, one.confidence,
                suspects, one.jobs, tuple(sorted(nodes)), one.evidence[0].signal if one.evidence else one.reason)
