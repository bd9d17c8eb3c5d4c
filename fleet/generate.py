"""Scenarios from a seed: any fleet, any fault, place, size and telemetry tier, two at once, look-alikes close by.

A generated scenario names everything: what its seed drew stands in the file, so a person can read what happens and the
file runs the same after an edit of another line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.errors import BadInput
from core.protocols import FaultPlugin
from fleet.build import all_plugins, bare
from fleet.hardware import NODE_TYPES, NodeType
from fleet.places import GROUPS
from fleet.plants import NEVER, Planted
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario, duration_text
from fleet.telemetry import TIERS
from fleet.world import World

STREAM, HABITS = 8104, 8105
LOSS_NOISE, HEAVY_SHARE = (0.012, 0.2), 0.1
HAND = "operator"
# Weights: most sites have the generic node, most jobs are synchronous training.
JOB_WEIGHTS = {"training": 0.8, "sweep": 0.07, "rollout": 0.07, "inference": 0.06}
SCRAPES, SCRAPE_WEIGHTS = (10, 15, 30, 60), (0.1, 0.7, 0.12, 0.08)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is given rather than drawn; None = drawn. fault, look_alike: plug-ins by name ("" = none at all). faults: how
    many at once. type: kind of node."""

    fault: str | None = None
    look_alike: str | None = None
    faults: int | None = None
    type: str | None = None
    tier: str | None = None
    nodes: int | None = None
    job: str | None = None
    severity: float | None = None
    duration_seconds: int | None = None


def generate(seed: int, wishes: Wishes = Wishes()) -> Scenario:
    """The scenario of the seed; the same seed and wishes give the same one.

    Raises BadInput where what is wished for does not exist, or not in a fleet of that kind.
    """
    rng, plugins = np.random.default_rng([seed, STREAM]), all_plugins()
    kind = _kind(rng, plugins, wishes)
    spec = _fleet(rng, kind, wishes)
    job = _mannered(_job(rng, plugins, spec, kind, wishes), seed)
    length = wishes.duration_seconds or int(rng.integers(6, 19)) * 300
    schedule = _schedule(rng, plugins, kind, job, length, wishes)
    draft = Scenario(
        name=f"generated-{seed}", about="Drawn from a seed.", seed=seed, fleet=spec, jobs=(job,), schedule=tuple(schedule),
        duration=duration_text(length),
    )
    return settled(draft)


def _named(plugins: Mapping[str, FaultPlugin], name: str) -> FaultPlugin:
    found = plugins.get(name)
    if found is None:
        raise BadInput("generate", "fault", name, f"allowed are: {', '.join(sorted(plugins))}")
    return found


def _able(plugin: FaultPlugin, kind: NodeType) -> bool:
    return all(need in kind.has or need in ("trainer", "inference") for need in plugin.needs)


def _kind(rng: np.random.Generator, plugins: Mapping[str, FaultPlugin], wishes: Wishes) -> NodeType:
    wanted = [_named(plugins, name) for name in (wishes.fault, wishes.look_alike) if name]
    able = [k for k in NODE_TYPES.values() if all(_able(p, k) for p in wanted)]
    weights = np.array([3.0 if k.vendor == "nvidia" else 0.5 for k in able] or [0.0])
    draw = float(rng.random())
    if wishes.type is not None:
        able = [k for k in able if k.name == wishes.type]
        weights = np.ones(len(able))
    if not able:
        raise BadInput("generate", "type", wishes.type, f"{' and '.join(p.name for p in wanted)} cannot be in a fleet of it")
    return able[int(np.searchsorted(np.cumsum(weights) / weights.sum(), draw, side="right"))]


def _fleet(rng: np.random.Generator, kind: NodeType, wishes: Wishes) -> FleetSpec:
    nodes = int(rng.choice([4, 6, 8, 12, 16, 24, 32], p=[0.2, 0.15, 0.25, 0.12, 0.15, 0.08, 0.05]))
    spares, tier = int(rng.integers(0, 4)), TIERS[int(rng.integers(0, len(TIERS)))]
    scrape = int(rng.choice(SCRAPES, p=SCRAPE_WEIGHTS))
    cycle = int(rng.choice([0, 15, 30, 60], p=[0.1, 0.2, 0.6, 0.1]))
    return FleetSpec(wishes.nodes or nodes, spares, kind.name, None, wishes.tier or tier, scrape, cycle)


def _job(rng: np.random.Generator, plugins: Mapping[str, FaultPlugin], spec: FleetSpec, kind: NodeType, wishes: Wishes) -> JobSpec:
    names = list(JOB_WEIGHTS)
    drawn = names[int(rng.choice(len(names), p=list(JOB_WEIGHTS.values())))]
    serves = any("inference" in _named(plugins, n).needs for n in (wishes.fault, wishes.look_alike) if n)
    trains = any(_named(plugins, n).place in ("rank", "job") or "trainer" in _named(plugins, n).needs
                 for n in (wishes.fault, wishes.look_alike) if n)
    job = wishes.job or ("inference" if serves else "training" if trains else drawn)
    stages, restart = int(rng.choice([1, 1, 2, 4])), duration_text(60 * int(rng.integers(3, 16)))
    fits = job == "training" and spec.nodes % stages == 0 and spec.nodes >= 2 * stages
    shape = {"pp": stages} if fits and stages > 1 else {}
    name = {"training": "train-1", "sweep": "sweep-1", "rollout": "rollout-1", "inference": "serve-1"}[job]
    return JobSpec(name, job, None, shape, restart)


def _mannered(job: JobSpec, seed: int) -> JobSpec:
    """A training job with habits of its own, from a stream of their own: how rough its loss is, and whether its optimiser has
    a costly step now and then. Both as far apart as in the real runs of docs/realism.md."""
    if job.kind != "training":
        return job
    rng = np.random.default_rng([seed, HABITS])
    low, high = LOSS_NOISE
    habits: dict[str, object] = {"loss_noise": round(low * (high / low) ** float(rng.random()), 4)}
    if rng.random() < HEAVY_SHARE:
        habits |= {"heavy_every": 10, "heavy_excess": round(float(rng.uniform(2.5, 4.5)), 2)}
    return replace(job, shape={**job.shape, **habits})


def _fits(plugin: FaultPlugin, kind: NodeType, job: JobSpec) -> bool:
    """Whether the plug-in says anything in a fleet of that kind with that work."""
    if not _able(plugin, kind):
        return False
    if "inference" in plugin.needs or plugin.fault == "inference_slow":
        return job.kind == "inference"
    return job.kind == "training" or (plugin.place not in ("rank", "job") and "trainer" not in plugin.needs)


def _schedule(rng: np.random.Generator, plugins: Mapping[str, FaultPlugin], kind: NodeType, job: JobSpec, length: int,
              wishes: Wishes) -> list[Entry]:
    faults = sorted(n for n, p in plugins.items() if p.fault is not None and _fits(p, kind, job))
    likes = sorted(n for n, p in plugins.items() if p.fault is None and _fits(p, kind, job))
    count = int(rng.choice([1, 1, 1, 2])) if wishes.faults is None else wishes.faults
    first = float(rng.uniform(0.15, 0.35)) * length
    out: list[Entry] = []
    if wishes.fault != "":
        for index in range(count):
            name = wishes.fault if wishes.fault and index == 0 else faults[int(rng.integers(0, len(faults)))]
            at = first if index == 0 else first + float(rng.uniform(0, 0.2)) * length
            lasts = float(rng.uniform(0.2, 0.5)) * length if rng.random() < 0.3 else None
            out.append(Entry(fault=name, at=duration_text(at), for_=None if lasts is None else duration_text(lasts),
                             severity=wishes.severity if index == 0 else None, seed=int(rng.integers(1 << 31))))
    near, pick = float(np.clip(first + rng.uniform(-0.12, 0.12) * length, 60, 0.9 * length)), float(rng.random())
    if wishes.look_alike or (wishes.look_alike is None and likes and rng.random() < 0.6):
        out.append(Entry(look_alike=wishes.look_alike or likes[int(pick * len(likes))], at=duration_text(near),
                         seed=int(rng.integers(1 << 31))))
    if wishes.fault is None and rng.random() < 0.12:
        out.append(Entry(hand=HAND, at=duration_text(0.6 * length), for_=duration_text(0.2 * length), node="n01"))
    return out


def settled(scenario: Scenario) -> Scenario:
    """The scenario with every place, size and onset that its seed drew written into its schedule."""
    world, _, programme = bare(scenario)
    lines: list[Entry] = list(scenario.schedule)
    for line in programme.lines:
        if line.planted is not None:
            lines[line.index] = _written(world, scenario, line.entry, line.planted)
    return replace(scenario, schedule=tuple(lines))


def _written(world: World, scenario: Scenario, entry: Entry, planted: Planted) -> Entry:
    culprit, place = planted.culprit, planted.plugin.place
    size = float(f"{planted.severity:.3g}")
    lasts = entry.for_
    if lasts is None and planted.heals_at < NEVER:
        lasts = duration_text(max(5.0, (planted.heals_at - planted.at) / 1000))
    node = device = job = rank = None
    if place in ("gpu", "nic"):
        node, device = culprit.node, culprit.device
    elif place == "rank" and culprit.job in world.jobs:
        job, rank = culprit.job, culprit.rank
    elif place in ("rank", "disk", "mount", "node"):
        node, device = culprit.node, culprit.device if place == "rank" else None
    elif place in ("switch", "spine") or place in GROUPS:
        device = culprit.device
    elif place == "storage":
        device = world.topology.targets[planted.place.index[0]]
    elif place == "job":
        job = culprit.job
    return replace(entry, node=node, device=device, job=job, rank=rank, severity=size, onset=planted.onset, for_=lasts)


def suite(first_seed: int, count: int, wishes: Sequence[Wishes] = (Wishes(),)) -> list[Scenario]:
    """`count` scenarios of consecutive seeds, the wishes in turn."""
    return [generate(first_seed + i, wishes[i % len(wishes)]) for i in range(count)]
