"""Faults and look-alikes in the world: planting, how far each has come on, cures, and the truth about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import BadInput
from core.protocols import FaultPlugin
from core.types import Target
from fleet.places import Place, draw, resolve

if TYPE_CHECKING:
    from fleet.running import Running
    from fleet.world import World

ONSETS = ("step", "ramp", "intermittent")
# Largest severity, drawn or asked for: the step gets longer by ten times what it takes healthy.
MOST = 10.0
RAMP_SECONDS = (120.0, 900.0)
EPISODE_SECONDS = (60.0, 600.0)
# Spread of the times after which a fault goes away by itself, as the sigma of their log-normal.
HEALS_SIGMA = 0.8
NEVER = 1 << 62
# Faults of a node's services: restarting a job's processes does not touch them.
SERVICE_FAULTS = ("exporter_stale", "exporter_partial", "target_down", "service_down")


@dataclass(slots=True)
class Planted:
    """One of them. severity: by how much the job's step is to be longer. level: 0–1, how far it has come on now.
    heals_at: when it goes away by itself. present: the part still has it. memo: what the plug-in keeps between sub-steps.
    rng: the plug-in's own stream. cured_at: when it ended for those who watch (cured, healed, or out of the way)."""

    plugin: FaultPlugin
    place: Place
    severity: float
    at: int
    onset: str
    onset_seconds: float
    rng: np.random.Generator
    heals_at: int = NEVER
    level: float = 0.0
    cured_at: int | None = None
    cured_by: str | None = None
    present: bool = True
    memo: dict[str, Any] = field(default_factory=dict)
    _until: int = 0

    @property
    def culprit(self) -> Target:
        return self.place.target

    def age_seconds(self, now_ms: int) -> float:
        return (now_ms - self.at) / 1000

    def grow(self, now_ms: int) -> None:
        """Sets `level` for this moment."""
        if self.onset == "ramp":
            self.level = min(1.0, self.age_seconds(now_ms) / self.onset_seconds)
        elif self.onset == "intermittent":
            if now_ms >= self._until:
                self.level = 1.0 - self.level
                low, high = EPISODE_SECONDS
                self._until = now_ms + int(1000 * float(self.rng.uniform(low, high)))
        else:
            self.level = 1.0


class Plants:
    """All that was ever planted, in order; current: what of it may still be present. plugins: by name, faults and
    look-alikes."""

    def __init__(self, plugins: Mapping[str, FaultPlugin], rng: np.random.Generator) -> None:
        self.plugins, self._rng = dict(plugins), rng
        self.all: list[Planted] = []
        self.current: list[Planted] = []

    def plant(self, world: World, name: str, target: Target | None, severity: float | None, onset: str | None,
              seed: int | None) -> Planted:
        """Plants it now; what is not given is drawn. Raises BadInput for an unknown fault, place, size or onset, Refused where
        it cannot be now."""
        return self.put(world, self.prepare(world, name, target, severity, onset, seed))

    def prepare(self, world: World, name: str, target: Target | None, severity: float | None, onset: str | None,
                seed: int | None, at: int | None = None, taken: Collection[int] = ()) -> Planted:
        """Draws all that is not given, for a time `at` (None = now), and plants nothing yet. taken: rows that a drawn place
        should leave alone."""
        plugin = self.plugins.get(name)
        if plugin is None:
            raise BadInput("fault", "fault", name, f"allowed are: {', '.join(sorted(self.plugins))}")
        lacking = [n for n in plugin.needs if n not in world.has]
        if lacking:
            raise BadInput("fault", "fault", name, f"this fleet has no {', '.join(lacking)}")
        if severity is not None and not 0 <= severity <= MOST:
            raise BadInput("fault", "severity", severity, f"a number from 0 to {MOST:g} is needed")
        if onset is not None and onset not in plugin.onsets:
            raise BadInput("fault", "onset", onset, f"allowed are: {', '.join(plugin.onsets)}")
        rng = np.random.default_rng(self._rng.integers(1 << 62) if seed is None else seed)
        if plugin.locate is not None:
            place = plugin.locate(world, target, rng)
        else:
            place = draw(world, plugin.place, rng, taken) if target is None else resolve(world, plugin.place, target)
        low, high = plugin.impact
        size = min(high, float(np.exp(rng.uniform(np.log(low), np.log(high))))) if severity is None else float(severity)
        # Who says how large it is to be wants it at once, unless he says that too.
        drawn = 0 if severity is not None else int(rng.integers(0, len(plugin.onsets)))
        how = onset or plugin.onsets[drawn]
        begins = world.now_ms if at is None else at
        planted = Planted(plugin, place, size, begins, how, float(rng.uniform(*RAMP_SECONDS)), rng)
        if plugin.heals_seconds is not None:
            planted.heals_at = begins + int(1000 * plugin.heals_seconds * float(rng.lognormal(0.0, HEALS_SIGMA)))
        return planted

    def put(self, world: World, planted: Planted) -> Planted:
        """What was prepared is there from now on. Raises Refused where it cannot be now."""
        late = world.now_ms - planted.at
        planted.at += late
        planted.heals_at = min(NEVER, planted.heals_at + late)
        culprit = planted.culprit
        if planted.plugin.place == "rank" and culprit.job in world.jobs and culprit.rank is not None:
            # A rank may have moved to another node since it was drawn.
            planted.place = resolve(world, "rank", Target("rank", job=culprit.job, rank=culprit.rank))
        if planted.plugin.begin is not None:
            planted.plugin.begin(world, planted)
        self.all.append(planted)
        self.current.append(planted)
        return planted

    def apply(self, world: World, now_ms: int, averaged: Collection[str] = ()) -> None:
        """Turns the knobs of everything that is present; ends what heals by itself. averaged: plug-ins that turn none, for who takes
        what they cost on average from their severity."""
        if any(not planted.present for planted in self.current):
            self.current = [planted for planted in self.current if planted.present]
        for planted in self.current:
            if not planted.present:
                continue
            if now_ms >= planted.heals_at:
                self.end(world, planted, now_ms, "itself")
                continue
            planted.grow(now_ms)
            if planted.plugin.name not in averaged:
                planted.plugin.apply(world, planted)

    def end(self, world: World, planted: Planted, now_ms: int, by: str) -> None:
        """The part is as new."""
        planted.present, planted.level = False, 0.0
        if planted.cured_at is None:
            planted.cured_at, planted.cured_by = now_ms, by
        if planted.plugin.end is not None:
            planted.plugin.end(world, planted)

    def cure(self, world: World, verb: str, now_ms: int, node: int | None = None, job: Running | None = None,
             gpu: int | None = None, services: bool = False) -> None:
        """Ends what the verb cures on a node (or on one GPU of it), or in a job.

        A replaced part keeps its defect: it is only out of the way, and comes back with its node. What covers more than
        one node (a switch, a rack) stays where it is, whatever is done to a node. services: the verb was done to the
        node's own services (an exporter, the fabric manager), not to a job's processes.
        """
        rows = set(job.nodes) if job is not None else {node}
        for planted in self.all:
            whole_job = job is not None and planted.plugin.place == "job" and planted.culprit.job == job.name
            on_node = len(planted.place.rows) == 1 and planted.plugin.place != "job" and planted.place.rows[0] in rows
            if planted.cured_at is not None or verb not in planted.plugin.cured_by or not (whole_job or on_node):
                continue
            if verb == "restart_process" and services != (planted.plugin.fault in SERVICE_FAULTS):
                continue
            if gpu is not None and planted.plugin.place in ("gpu", "rank") and planted.place.index[1] != gpu:
                continue
            if verb == "replace" and "restart_process" not in planted.plugin.cured_by:
                planted.cured_at, planted.cured_by = now_ms, verb
            else:
                self.end(world, planted, now_ms, verb)

    def returned(self, node: int) -> None:
        """A node goes (back) into service: the defects that its parts still have count again."""
        for planted in self.all:
            if planted.present and planted.place.rows == (node,):
                planted.cured_at = planted.cured_by = None

    def on(self, node: int) -> list[Planted]:
        """The defects that the node's own parts have now."""
        return [p for p in self.all if p.present and p.plugin.fault is not None and p.place.rows == (node,)]
