"""Worlds in which faults show: quiet jobs, two copies side by side, of which one is struck."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np

from fleet.build import all_plugins
from fleet.hardware import NODE_TYPES
from fleet.job import JobShape
from fleet.jobs import make_job, shape_of
from fleet.knobs import Knobs
from fleet.plants import NEVER, Planted
from fleet.world import World
from tests.fleet.fleethelp import START

PLUGINS = all_plugins()
FAULTS = sorted(name for name, plugin in PLUGINS.items() if plugin.fault is not None)
LOOK_ALIKES = sorted(name for name, plugin in PLUGINS.items() if plugin.fault is None)
# A job whose steps differ little, so that small faults show in few steps; it saves only when it is asked to.
QUIET = JobShape(checkpoint_every_seconds=1e6, step_noise=0.002, rough_share=0.0, outlier_share=0.0, bytes_per_step=2.1e10)
PIPELINE = ("last_stage_uneven",)
NODES, SPARES = 4, 2


@cache
def _built(kind: str, work: str) -> World:
    shape = replace(QUIET, pp=2) if work == "pipeline" else QUIET
    job = None if work == "inference" else "train-1"
    world = World(NODES, SPARES, 4, START, job, NODE_TYPES[kind], shape, PLUGINS)
    if job is None:
        names = [n.name for n in world.nodes]
        world.add_job(make_job(work, "serve-1", shape_of(work, {}), range(NODES), world.kind.gpus, np.random.default_rng(1), names))
    world.advance(START + 240_000)
    assert next(iter(world.jobs.values())).phase == "train"
    return world


def kind_for(name: str) -> str:
    """The first kind of node that has what the plug-in needs."""
    return next(k for k, kind in NODE_TYPES.items() if all(n in kind.has for n in PLUGINS[name].needs))


def shared_world_for(name: str) -> World:
    """A world in which the plug-in can be: four nodes at work and two spares, that train (or serve) undisturbed. Not to be changed."""
    work = "inference" if "inference" in PLUGINS[name].needs else "pipeline" if name in PIPELINE else "training"
    return _built(kind_for(name), work)


def world_for(name: str) -> World:
    """The same, to be changed at will."""
    return deepcopy(shared_world_for(name))


def struck(name: str, seconds: int, severity: float | None = None, seed: int = 3) -> tuple[World, Planted]:
    """A world that has had the plug-in for so long; it does not heal meanwhile."""
    world = world_for(name)
    planted = world.inject(name, severity=severity, seed=seed, onset=PLUGINS[name].onsets[0])
    planted.heals_at = NEVER
    world.advance(world.now_ms + seconds * 1000)
    return world, planted


def knob_groups(world: World) -> dict[str, Knobs]:
    """The groups of arrays."""
    knobs = world.knobs
    return {"gpu": knobs.gpu, "nic": knobs.nic, "switch": knobs.switch, "host": knobs.host, "storage": knobs.storage}


def turned(world: World) -> dict[str, object]:
    """Every knob that is not healthy now."""
    found: dict[str, object] = {}
    for group, knobs in knob_groups(world).items():
        for knob, healthy in knobs.HEALTHY.items():
            values = getattr(knobs, knob)
            if (values != healthy).any():
                found[f"{group}.{knob}"] = values.tolist()
    exporter = world.knobs.exporter
    for field in ("answers", "missing", "renamed", "extra_series", "restarted"):
        if getattr(exporter, field):
            found[f"exporter.{field}"] = repr(sorted(getattr(exporter, field)))
    for field in ("settings", "down_services"):
        if getattr(world.knobs, field):
            found[field] = repr(sorted(getattr(world.knobs, field)))
    for job, knobs in world.knobs.jobs.items():
        for knob, healthy in vars(type(knobs)(len(knobs.compute))).items():
            value = getattr(knobs, knob)
            if np.any(value != healthy):
                found[f"{job}.{knob}"] = np.asarray(value).tolist()
    return found
