"""Who looks after the fleet: nobody but people, a script that restarts what fails, and one who knows each fault at its onset.

All of them find out what a failed job died of (its own last words and the scheduler's health check say so), replace that node
and start the job again. They differ in how soon, and in what they know of parts that are slow and not dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.goodput.errands import Errands
from core.types import Target
from fleet.eventstep import STANDS_STILL, EventWorld
from fleet.plants import NEVER, Planted
from fleet.running import Running

Steps = Sequence[tuple[str, Target]]
# A person starts a failed job again: our reading of "time to a person" beside the 30 minutes that operators give for a page.
PERSON_MS = 30 * 60_000
# A scheduler's requeue: Slurm starts a requeued job after at least two minutes.
REQUEUE_MS = 2 * 60_000
# A part that is slow and stays so is found by people on the next working day.
NOTICED_MS = 12 * 3_600_000
WORTH_NOTICING = 0.05
# What an oracle reckons a restart costs a job beside the work since its checkpoint: replace (10 to 15 minutes), load, warm up.
RESTART_MS = 16 * 60_000


# Slow while it lasts, and deadly when a collective meets it: the link's own counters tell the health check.
DEADLY = ("link_flap",)


def hard(planted: Planted) -> bool:
    """Whether its job fails of it."""
    low, high = planted.plugin.impact
    return planted.plugin.fault in DEADLY or (planted.plugin.fault is not None and low == high and high >= 1.0)


def on_job(planted: Planted, job: Running) -> bool:
    """Whether a part of the job has it."""
    if planted.culprit.job is not None and planted.plugin.place in ("job", "rank"):
        return planted.culprit.job == job.name
    return bool(set(planted.place.rows) & set(job.nodes))


def cure(event: EventWorld, planted: Planted, job: Running) -> Steps:
    """The shortest way to be rid of it; empty where nothing that is done to one node or job helps."""
    again = ("resume_job", Target("job", job=job.name))
    cures, rows = planted.plugin.cured_by, planted.place.rows
    if "resume_job" in cures:
        return (again,)
    if "replace" in cures and len(rows) == 1:
        node = Target("node", event.world.nodes[rows[0]].name)
        return (("drain", node), ("replace", node), again)
    return ()


class Restarting:
    """Starts jobs again that failed or were left stopped, without the nodes that they died of. patience_ms: how long after the
    failure. notices_ms: after how long a part that is slow is found; None = never."""

    def __init__(self, event: EventWorld, patience_ms: int, notices_ms: int | None) -> None:
        self.event, self.patience_ms, self.notices_ms = event, patience_ms, notices_ms
        self.errands = Errands(event.operations)
        self._failed: dict[str, int] = {}

    def step(self, at: int) -> None:
        """Looks at all jobs at `at` (ms)."""
        self.errands.step(at)
        for name, job in self.event.world.jobs.items():
            if job.alive or job.state in ("done", "queued") or name in self.errands.running:
                self._failed.pop(name, None)
            elif at >= self._failed.setdefault(name, at) + self.patience_ms and not self._busy(name):
                self.errands.begin(name, self._restart(job), at)
            if job.alive and self.notices_ms is not None:
                self._notice(job, at, self.notices_ms)

    def _busy(self, job: str) -> bool:
        return any(job in op.busy for op in self.event.operations.running())

    def _restart(self, job: Running) -> Steps:
        world = self.event.world
        rows = {row for p in world.plants.current if p.present and hard(p) and "replace" in p.plugin.cured_by
                       for row in p.place.rows}
        steps: list[tuple[str, Target]] = []
        for row in job.nodes:
            node, out = Target("node", world.nodes[row].name), world.nodes[row].state != "in_service"
            steps += [("drain", node)] if row in rows and not out else []
            steps += [("replace", node)] if row in rows or out else []
        return (*steps, ("resume_job", Target("job", job=job.name)))

    def _notice(self, job: Running, at: int, after_ms: int) -> None:
        for planted in self.event.world.plants.current:
            old = at - planted.at >= after_ms
            if old and planted.present and planted.severity * planted.level >= WORTH_NOTICING and on_job(planted, job) \
                    and (steps := cure(self.event, planted, job)):
                self.errands.begin(job.name, steps, at)
                return

    def next_ms(self, now: int) -> int:
        """When it has something to do at the latest."""
        times = [self.errands.next_ms(), *(at + self.patience_ms for at in self._failed.values())]
        if self.notices_ms is not None:
            times += [p.at + self.notices_ms for p in self.event.world.plants.current if p.present and p.at + self.notices_ms > now]
        return max(now + 1, min(times))


class Oracle(Restarting):
    """Knows each fault at its onset, what it costs and how long it will last, and acts where that costs more than acting."""

    def __init__(self, event: EventWorld) -> None:
        super().__init__(event, 0, None)
        self._weighed: set[int] = set()

    def step(self, at: int) -> None:
        """Looks at all faults and jobs at `at` (ms)."""
        super().step(at)
        for planted in self.event.world.plants.current:
            if planted.present and planted.plugin.fault is not None and id(planted) not in self._weighed:
                self._weighed.add(id(planted))
                self._weigh(planted, at)

    def _weigh(self, planted: Planted, at: int) -> None:
        for job in self.event.world.jobs.values():
            if not job.alive or not on_job(planted, job):
                continue
            slower = STANDS_STILL if hard(planted) else planted.severity
            left = (planted.heals_at if planted.heals_at < NEVER else self.event.scenario.end_ms) - at
            saved = job.store.newest() if hasattr(job, "store") else None
            lost = RESTART_MS + (at - saved.done if saved is not None else 0)
            steps = cure(self.event, planted, job)
            if steps and slower / (1.0 + slower) * left > lost:
                self.errands.begin(job.name, steps, at)


ARMS: dict[str, Callable[[EventWorld], Restarting]] = {
    "people": lambda event: Restarting(event, PERSON_MS, NOTICED_MS),
    "restart": lambda event: Restarting(event, REQUEUE_MS, NOTICED_MS),
    "oracle": Oracle,
}
