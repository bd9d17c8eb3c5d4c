"""From the size of a fault (by how much the job's step is to be longer) to how far its knob has to be turned.

Built on `fleet.shape.Impact`, which inverts the job's step, with the healthy spread of the parts counted in: what a slow
part adds shows only beyond the part that was the slowest before.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from fleet.gpus import BRAKE_CLOCK, CLOCK_PER_DEGREE, POWER_EXPONENT
from fleet.job import COMPUTE, EXCHANGE
from fleet.places import Place
from fleet.plants import MOST
from fleet.shape import CLOCK_EXPONENT, Impact, JobShape
from fleet.world import World

# What a fault costs the job that has no part in its step (telemetry, a drifted setting), one with which it stands still, and
# one that can be of any size.
HARMLESS, STANDS, WIDEST = (0.01, 0.01), (MOST, MOST), (0.01, MOST)
# Median times after which slowness goes away by itself: of computing (mean 10 minutes) and of communication (mean 24
# minutes) in the 10,000-GPU cluster of the Greyhound study (USENIX ATC 2025), at the spread of 0.8 that planting draws.
COMPUTE_HEALS_SECONDS, NETWORK_HEALS_SECONDS = 435.0, 1045.0
# Steps jitter by 0.5 %, rank by rank; the slowest of a few dozen is two of those behind, one that is chosen is none.
_JITTER = 0.008


def impact_at(world: World, place: Place) -> Impact:
    """What a slower part costs the job at the place (the first job where none is there, a usual one without any)."""
    job = world.job_on(place.rows[0]) if place.rows else None
    job = job or next(iter(world.jobs.values()), None)
    return job.impact if job is not None else Impact(JobShape())


def _peers(world: World, place: Place) -> list[int]:
    job = world.job_on(place.rows[0]) if place.rows else None
    return list(job.nodes) if job is not None else list(place.rows)


def _index(place: Place) -> tuple[int, ...] | list[int]:
    """Where the place is in arrays of [node, gpu]; the rows of what covers many nodes."""
    return place.index if len(place.index) > 1 else list(place.rows)


def compute_factor(world: World, place: Place, severity: float) -> float:
    """The factor on the compute time of a GPU (of all of a node) that makes the step longer by `severity`."""
    if severity <= 0:
        return 1.0
    healthy = world.gpus.slowness
    slowest = float(healthy[_peers(world, place)].max()) + _JITTER
    one = len(place.index) > 1
    own = float(healthy[_index(place)].max()) + (0.0 if one else _JITTER)
    return max(1.0, (slowest + impact_at(world, place).compute(severity) - 1.0) / own)


def clock_share(world: World, place: Place, severity: float) -> float:
    """The share of its clock at which a GPU makes the step longer by `severity`."""
    return float(compute_factor(world, place, severity) ** (-1 / CLOCK_EXPONENT))


def exchange_factor(world: World, place: Place, severity: float) -> float:
    """The factor on the collective of one link that makes the step longer by `severity`."""
    return impact_at(world, place).link(severity)


def nvlink_factor(world: World, place: Place, severity: float) -> float:
    """The factor on the collectives inside a node that makes the step longer by `severity`."""
    return impact_at(world, place).nvlink(severity)


def wait_factor(world: World, place: Place, severity: float, ranks: int) -> float:
    """The factor on the wait for data of so many ranks that makes the step longer by `severity`.

    Waits spread log-normally from rank to rank and step to step (`Job`), and the step waits for the longest of them.
    """
    longest = 0.4 + 0.6 * math.exp(0.4 * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)))
    return 1.0 + (impact_at(world, place).data(severity) - 1.0) / longest


def loader_factor(world: World, place: Place, severity: float) -> float:
    """The factor on a node's loading of data, which hides behind the compute until it takes longer, for `severity`."""
    return max(1.0, impact_at(world, place).loader(severity)) if severity > 0 else 1.0


def watts_at(world: World, place: Place, clock: float) -> float:
    """The power that a GPU draws in the job at this share of its clock, when it never waits."""
    impact, kind = impact_at(world, place), world.kind
    kernels = impact.shape.compute_seconds / clock**CLOCK_EXPONENT
    exchange = impact.step_seconds - impact.shape.compute_seconds - impact.shape.fetch_seconds
    load = (COMPUTE * kernels + EXCHANGE * exchange) / (kernels + exchange + impact.shape.fetch_seconds)
    silicon = float(world.gpus.silicon[place.index])
    return float(kind.idle_watts + kind.load_watts * load * silicon * clock**POWER_EXPONENT)


def power_share(world: World, place: Place, severity: float) -> float:
    """The share of its board limit at which a GPU's clock gives way so far that the step is longer by `severity`; no less than
    the least limit that the board takes."""
    watts = watts_at(world, place, clock_share(world, place, severity))
    return max(watts, world.kind.least_watts) / world.kind.limit_watts


def _wanted_celsius(world: World, place: Place, clock: float) -> float:
    """The core temperature at which the driver holds a GPU at this share of its clock."""
    limit = min(world.kind.core_limit, world.kind.hbm_limit - float(world.gpus.hbm_offset[place.index]))
    return limit + (1 - clock) / CLOCK_PER_DEGREE


def _air(world: World, place: Place) -> float:
    return float(world.hosts.inlet[place.index[0]] + world.gpus.offset[place.index])


def cooling_factor(world: World, place: Place, severity: float) -> float:
    """The factor on a GPU's thermal resistance with which its own heat makes the step longer by `severity`."""
    clock = clock_share(world, place, severity)
    rise = _wanted_celsius(world, place, clock) - _air(world, place)
    return max(1.0, rise / (world.kind.resistance * watts_at(world, place, clock)))


def air_degrees(world: World, place: Place, severity: float) -> float:
    """By how many °C the air has to be hotter for a GPU's heat to make the step longer by `severity`."""
    clock = clock_share(world, place, severity)
    rise = world.kind.resistance * watts_at(world, place, clock)
    return max(0.0, _wanted_celsius(world, place, clock) - rise - _air(world, place))


def brake_share(world: World, place: Place, severity: float) -> float:
    """The share of time, at most 1, for which GPUs have to brake to make the job's step longer by `severity`.

    A braked job gets on at a fraction of its pace; the paces of both states, weighted by their time, have to fit.
    """
    impact = impact_at(world, place)
    free, compute = impact.step_seconds, impact.shape.compute_seconds
    braked = free - compute + compute / BRAKE_CLOCK**CLOCK_EXPONENT
    return min(1.0, (1 - 1 / (1 + severity)) / (1 - free / braked))


def gpus_of(world: World, row: int) -> list[Place]:
    """The GPUs of a node as places."""
    return [Place(world.gpu_target(row, gpu), (row, gpu), (row,)) for gpu in range(world.kind.gpus)]


def working_gpus(world: World, rows: list[int]) -> list[Place]:
    """The GPUs of those of these nodes that a job uses; of all of them where none does."""
    used = [row for row in rows if world.job_on(row) is not None] or rows
    return [gpu for row in used for gpu in gpus_of(world, row)]


def cpu_share(world: World, place: Place, severity: float) -> float:
    """The share of a node's CPU at which its loaders and launches make the step longer by `severity`."""
    return 1.0 / loader_factor(world, place, severity)


def steal_share(world: World, place: Place, severity: float) -> float:
    """The share of CPU time whose theft makes the step longer by `severity`."""
    return 1.0 - cpu_share(world, place, severity)


def frequency_share(world: World, place: Place, severity: float) -> float:
    """The share of the CPU's clock at which the step is longer by `severity`."""
    return cpu_share(world, place, severity)


def memory_stall(world: World, place: Place, severity: float) -> float:
    """The share of time stalled for memory that makes the step longer by `severity`."""
    return 1.0 - cpu_share(world, place, severity)


def disk_load(world: World, place: Place, severity: float) -> float:
    """The share of the scratch disk's time that others have to take to make the step longer by `severity`."""
    return 1.0 - cpu_share(world, place, severity)


def disk_factor(world: World, place: Place, severity: float) -> float:
    """The factor on the scratch disk's service time that makes the step longer by `severity`."""
    return loader_factor(world, place, severity)


def mount_factor(world: World, place: Place, severity: float) -> float:
    """The factor on one client's storage waits that makes the step longer by `severity`."""
    return loader_factor(world, place, severity)


def target_factor(world: World, place: Place, severity: float) -> float:
    """The factor on one storage target's service time that makes the step longer by `severity`."""
    return loader_factor(world, place, severity)
