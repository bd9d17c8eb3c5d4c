"""A node whose software or settings differ from those of its group: driver, VBIOS, firmware, kernel, MTU, CPU governor, ECC,
MIG or persistence mode, locked clocks, power limit.

A group is the nodes of one instance type with GPUs of one model; it needs a majority. One node that differs is drift. Several
that share another value are a rollout (or a fleet that is two by design) and named so, without an incident: nodes that go
one after the other to one value, or the last ones that have not yet. A node that changed with a boot or a drain may be the
first of a rollout: it is given more time than one that changed in service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Target, Verdict
from core.window import Window
from detectors import shared, stats
from detectors.exporters import withdrawn

FAULT = "config_drift"
TICKET = 0.3
MODEL = "gpu model"
NOT_SETTINGS = frozenset({MODEL})
# Settings that are numbers of each GPU or NIC: the signal, what people call it, and how a node's parts come together. A node
# whose GPUs differ among each other is not judged by them: that is a matter of the GPU.
_NUMBERS = (
    ("gpu.ecc_enabled", "ECC mode", "same"), ("gpu.persistence_enabled", "persistence mode", "same"),
    ("gpu.mig_enabled", "MIG mode", "same"),
    ("gpu.application_clock_hertz", "application clock", "same"), ("gpu.power_limit_watts", "power limit", "same"),
    ("nic.mtu_bytes", "port MTU", "least"),
)


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §11 (a node that differs from its group); the majority of at least two thirds of at least four nodes
    is the project's own rule; times are our judgement: a rolling upgrade takes minutes to an hour a node.

    group_min, majority: nodes that show the setting, and the share of them that must agree. shared_ratio: of the group, above
    which nodes with one other value (two at least) are a rollout. settle_seconds: how long a node must differ; planned_seconds:
    the same where it changed with a boot or a drain. rollout_seconds: a change of another node to the same or to the majority's
    value within this time is a rollout under way.
    """

    group_min: int = 4
    majority: float = 0.66
    shared_ratio: float = 0.05
    settle_seconds: float = 180.0
    planned_seconds: float = 3600.0
    rollout_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class _Fact:
    """A node's value of a setting (several joined where it shows several), and since when (ms) it has it."""

    value: str
    since: int
    signal: str = "label.present"
    number: float | None = None


Facts = dict[str, dict[str, _Fact]]  # by setting, then by node


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each node with GPUs that shows a setting which its group shows too."""
    if not len(window.times):
        return []
    facts, begun = _facts(window)
    if not facts:
        return []
    known, settled = shared.kept("settings", (facts, window.of_kind("gpu"), window.topology, params),
                                 lambda: _settings(window, facts, params))
    judged: set[str] = set(settled)
    rollout: set[str] = set()
    drift: dict[str, list[tuple[int, Evidence]]] = {}
    for one in known:
        judged |= one.here.keys()
        for node, fact in one.odd:
            word = _word(window, node, fact, one.here, one.right, one.counts[fact.value], begun, params)
            if word == "drift":
                drift.setdefault(node, []).append((fact.since, _row(one.setting, fact, one.here, one.right, one.group)))
            elif word == "rollout":
                rollout.add(node)
            else:
                judged.discard(node)
    out = [Verdict(Target("node", node), FAULT, "faulty", TICKET, tuple(row for _, row in rows)[:6], "differs",
                   onset_at=min(at for at, _ in rows)) for node, rows in sorted(drift.items())]
    words = shared.kept("words", (facts,), dict)
    for node in sorted((judged | rollout) - drift.keys()):
        reason = "rollout" if node in rollout else "clear"
        if (node, reason) not in words:
            words[node, reason] = Verdict(Target("node", node), FAULT, "clear", reason=reason)
        out.append(words[node, reason])
    return out


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of a group that has a majority for one value. here: by node; odd: those with another one, in order."""

    setting: str
    group: str
    here: Mapping[str, _Fact]
    right: str
    odd: tuple[tuple[str, _Fact], ...]
    counts: Mapping[str, int]


def _settings(window: Window, facts: Facts, p: Params) -> tuple[list[_Setting], set[str]]:
    """The settings of groups in which a node is odd, in order of both names, and the nodes of those before the first of them.

    Between two odd ones are settings of which no node is odd; they are there too, for what is judged depends on the order."""
    out: list[_Setting] = []
    settled: set[str] = set()
    groups = _groups(window, facts)
    for setting, by_node in sorted(facts.items()):
        if setting in NOT_SETTINGS:
            continue
        for name, members in groups.items():
            here = {node: by_node[node] for node in members if node in by_node}
            right = _majority(here, p)
            if right is None:
                continue
            odd = tuple(sorted((node, fact) for node, fact in here.items() if fact.value != right))
            if odd or out:
                out.append(_Setting(setting, name, here, right, odd, Counter(fact.value for _, fact in odd)))
            else:
                settled |= here.keys()
    return out, settled


def _majority(here: Mapping[str, _Fact], p: Params) -> str | None:
    """The value that enough of the nodes have; fewer nodes than a group needs can only agree."""
    counts = Counter(fact.value for fact in here.values())
    if len(here) < p.group_min and (len(here) < 2 or len(counts) > 1):
        return None
    value, n = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return value if n >= p.majority * len(here) else None


def _word(window: Window, node: str, fact: _Fact, here: Mapping[str, _Fact], right: str, sharing: int,
          begun: Mapping[str, int], p: Params) -> str:
    """drift, rollout, or wait: it has not differed for long enough."""
    if sharing > max(1.0, p.shared_ratio * len(here)):
        return "rollout"
    since = window.end - 1000 * p.rollout_seconds
    others = [f for other, f in here.items() if other != node and f.since >= since and f.since > begun[other] + 120_000]
    # The last of a rollout stands where it stood; one that left the majority's value after others came to it is none of them.
    behind = sum(f.value == right and f.since > fact.since for f in others)
    if behind >= 2 or any(f.value == fact.value for f in others):
        return "rollout"
    planned = any(e.target.node == node and abs(e.at - fact.since) <= 1_800_000
                  for e in window.events_of("boot", "drain", "undrain", since=fact.since - 1_800_000))
    changed = fact.since > begun[node] + 120_000
    wait = p.planned_seconds if planned and changed else p.settle_seconds
    return "drift" if window.end - fact.since >= 1000 * wait else "wait"


def _row(setting: str, fact: _Fact, here: Mapping[str, _Fact], right: str, group: str) -> Evidence:
    agree = [f for f in here.values() if f.value == right]
    text = f"{setting} is {fact.value or 'not set'}, and {right or 'not set'} on {len(agree)} of {len(here)} nodes of its group"
    return Evidence(fact.signal, stats.unit_of(fact.signal), fact.number, agree[0].number,
                    f"{len(agree)} of {len(here)} nodes{f' of {group}' if group else ''}", text)


# --- what nodes show --------------------------------------------------------------------------------------------------
def _facts(window: Window) -> tuple[Facts, dict[str, int]]:
    """All settings, and when each node was first heard of. Nodes out of service or silent are left out. They stand for hours: the
    same object is given as long as nothing of them changes."""
    away = sorted(window.silent_nodes | withdrawn(window))
    arrays: list[NDArray[Any]] = [np.array(away, np.str_)]
    of: list[tuple[Target, ...]] = []
    for signal in ("label.present", "label.chosen"):
        block = window.block(signal)
        arrays += [block.fresh() & (block.last == 1.0), block.first_at]
        of.append(block.entities)
    numbers = {signal: _last_and_since(window, signal) for signal, _, _ in _NUMBERS if signal in window.blocks}
    for signal, (last, since) in numbers.items():
        # What the window does not reach back to has always been so, as far as is known; what is not shown has no time.
        arrays += [last, np.where(np.isnan(last) | (since <= window.times[0]), 0, since), window.block(signal).first_at]
        of.append(window.block(signal).entities)
    return shared.standing(("facts", tuple(numbers)), tuple(of), arrays, lambda: _read_facts(window, frozenset(away), numbers))


def _last_and_since(window: Window, signal: str) -> tuple[Floats, stats.Ints]:
    """What each part shows now, and since when (ms)."""
    block = window.block(signal)
    last = np.where(block.fresh(), block.last, np.nan)
    return last, stats.run_start(block.values == last, window.times, 2)


def _read_facts(window: Window, away: frozenset[str], numbers: Mapping[str, tuple[Floats, stats.Ints]]) -> tuple[Facts, dict[str, int]]:
    values: dict[tuple[str, str], list[tuple[str, int]]] = {}
    begun: dict[str, int] = {}
    for signal in ("label.present", "label.chosen"):
        block = window.block(signal)
        shown = block.fresh() & (block.last == 1.0)
        for e in np.flatnonzero(shown):
            part = block.entities[e]
            if part.node is None or part.node in away:
                continue
            name, _, value = (part.device or "").partition("=")
            values.setdefault((name, part.node), []).append((value, int(block.first_at[e])))
    facts: Facts = {}
    for (name, node), found in values.items():
        first = min(at for _, at in found)
        begun[node] = min(first, begun.get(node, first))
        facts.setdefault(name, {})[node] = _Fact(" and ".join(sorted({v for v, _ in found})), max(at for _, at in found))
    for signal, name, how in _NUMBERS:
        if signal in window.blocks:
            for node, fact, first in _numbers(window, signal, how, *numbers[signal]):
                if node not in away:
                    facts.setdefault(name, {})[node] = fact
                    begun[node] = min(first, begun.get(node, first))
    return facts, begun


def _numbers(window: Window, signal: str, how: str, last: Floats, since: stats.Ints) -> Iterator[tuple[str, _Fact, int]]:
    """The value of each node's parts: the one that all of them have, or the least."""
    block = window.block(signal)
    nodes: dict[str, list[int]] = {}
    for e in np.flatnonzero(~np.isnan(last)):
        node = block.entities[e].node
        if node is not None:
            nodes.setdefault(node, []).append(int(e))
    for node, columns in nodes.items():
        mine = last[columns]
        low, high = float(mine.min()), float(mine.max())
        if how == "same" and (low != high or len(columns) < 2):
            continue
        first = int(block.first_at[columns].min())
        start = int(since[columns].max())
        yield node, _Fact(f"{low:g}", first if start <= window.times[0] else start, signal, low), first


def _groups(window: Window, facts: Facts) -> dict[str, list[str]]:
    """Nodes with GPUs, by instance type and model of the GPUs."""
    gpus = Counter(gpu.node for gpu in window.of_kind("gpu") if gpu.node is not None and "/" not in (gpu.device or ""))
    models = facts.get(MODEL, {})
    out: dict[str, list[str]] = {}
    for node in sorted(gpus):
        model = models[node].value if node in models else ""
        name = " ".join(word for word in (stats.model_of(window, node), model) if word)
        out.setdefault(name, []).append(node)
    return out


PLUGIN = DetectorPlugin(
    name="config_drift", fault=FAULT, judge=judge, params=Params, needs=(("label.present", "label.chosen", "nic.mtu_bytes"),),
    hold=Hold(on=2, of=2, off=4),
    must_not=("a rollout under way", "nodes of another type or with other GPUs", "a group of fewer than four nodes",
              "a group without a majority", "one GPU that differs from its siblings"),
)
