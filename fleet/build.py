"""Puts a world together with its fault plug-ins and its operations, by hand or from a scenario."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from core.errors import BadInput
from core.plugins import load_plugins
from core.protocols import FaultPlugin
from core.yamlfile import read_yaml
from fleet.hardware import H100_ROCE, NodeType, kind_named
from fleet.job import JobShape
from fleet.jobs import make_job, shape_of
from fleet.operations import Operations
from fleet.programme import JOB_STREAM, Programme, plan
from fleet.rates import drawn
from fleet.running import Running
from fleet.scenario import PlaceError, Scenario, places_fit, scenario_from, seconds_of
from fleet.telemetry import DEMO, Telemetry
from fleet.times import times
from fleet.world import World

Maker = Callable[[str, str, JobShape, Sequence[int], int, np.random.Generator, Sequence[str]], Running]
# How long a fleet has been at work before anybody looks at it.
BEFORE_SECONDS = 900


@cache
def all_plugins() -> dict[str, FaultPlugin]:
    """Faults and look-alikes by name."""
    return {**load_plugins("fleet.faults"), **load_plugins("fleet.lookalikes")}


def build_world(
    nodes: int = 16,
    spares: int = 2,
    seed: int = 0,
    start_ms: int = 1_767_225_600_000,
    job: str = "train-1",
    kind: NodeType = H100_ROCE,
    shape: JobShape | None = None,
    before_seconds: int = BEFORE_SECONDS,
    durations: str = "fast",
    telemetry: Telemetry = DEMO,
) -> tuple[World, Operations]:
    """A world that stands at `start_ms` and has been at work for `before_seconds`, and the operations on it."""
    world = World(nodes, spares, seed, start_ms - before_seconds * 1000, job, kind, shape, all_plugins(), telemetry)
    operations = Operations(world, times(durations))
    world.watchers.append(operations)
    if telemetry.logs:
        world.watch_scheduler()
    world.advance(start_ms)
    return world, operations


# --- from a scenario --------------------------------------------------------------------------------------------------
def load_scenario(path: str | Path) -> Scenario:
    """The scenario of a file, every place in it known to exist. Raises ConfigError: file, line, key."""
    data, plugins = read_yaml(path), all_plugins()
    found = scenario_from(data, str(path), plugins)
    places_fit(found, data, str(path), bare)
    return found


def with_rates(scenario: Scenario) -> Scenario:
    """The scenario with what its rates bring written into its schedule."""
    if scenario.rates is None:
        return scenario
    return replace(scenario, schedule=(*scenario.schedule, *drawn(scenario, all_plugins())), rates=None)


def bare(scenario: Scenario, maker: Maker = make_job) -> tuple[World, Operations, Programme]:
    """The scenario's world before its first moment. maker: makes its jobs (as `fleet.jobs.make_job` does).

    Raises PlaceError for what does not fit into the fleet.
    """
    try:
        scenario = with_rates(scenario)
    except BadInput as error:
        raise PlaceError(("rates", "groups"), error) from None
    spec = scenario.fleet
    before = 0.0 if spec.cold else seconds_of(spec.before)
    kind = kind_named(spec.type)
    telemetry = Telemetry(spec.tier, spec.dcgm_cycle_seconds, spec.scrape_seconds, scheduler=spec.scheduler, switches=spec.switches)
    world = World(spec.nodes, spec.spares, scenario.seed, scenario.start_ms - int(before * 1000), None, kind, None,
                  all_plugins(), telemetry)
    first = 0
    for index, job in enumerate(scenario.jobs):
        count = spec.nodes - first if job.nodes is None else job.nodes
        rng = np.random.default_rng([scenario.seed, JOB_STREAM, index])
        try:
            shape = shape_of(job.kind, job.shape)
            made = maker(job.kind, job.name, shape, range(first, first + count), kind.gpus, rng, [n.name for n in world.nodes])
            world.add_job(made, start=not spec.cold)
        except BadInput as error:
            raise PlaceError(("jobs", index, "shape", error.key), error) from None
        first += count
    operations = Operations(world, times(spec.times))
    return world, operations, plan(scenario, world, operations)


def build_scenario(scenario: Scenario) -> tuple[World, Operations, Programme]:
    """The scenario's world as it stands at its start, with operations and programme at work."""
    world, operations, programme = bare(scenario)
    world.watchers += [operations, programme]
    if world.telemetry.logs:
        world.watch_scheduler()
    programme.begin(scenario.fleet.cold)
    world.advance(scenario.start_ms)
    return world, operations, programme
