"""Who looks after the fleet: nobody but people, a script that restarts what fails, and one who knows each fault at its onset.

All of them find out what a failed job died of (its own last words and the scheduler's health check say so), replace that node
and start the job again. They differ in how soon, and in what they know of parts that are slow and not dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.goodput.errands import Errands
from core.types import Target
from fleet.eventstep import STANDS_STILL, EventWorld, RateJob
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
# A checkpoint that is due now is complete after so long; what one node more to change in the same stop costs a job.
SAVE_MS, SWAP_MS = 30_000, 60_000


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
    failure. notices_ms: after how long a part that is slow is found; None = never. hands_off: jobs that somebody else is at."""

    def __init__(self, event: EventWorld, patience_ms: int, notices_ms: int | None) -> None:
        self.event, self.patience_ms, self.notices_ms = event, patience_ms, notices_ms
        self.errands = Errands(event.operations)
        self.hands_off: frozenset[str] = frozenset()
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
        return job in self.hands_off or any(job in op.busy for op in self.event.operations.running())

    def _restart(self, job: Running) -> Steps:
        world = self.event.world
        rows = {row for p in world.plants.current if p.present and hard(p) and "replace" in p.plugin.cured_by
                for row in p.place.rows} | self._also(job)
        bad = [row for row in job.nodes if row in rows or world.nodes[row].state != "in_service"]
        drain = [row for row in bad if world.nodes[row].state == "in_service"]
        return (*(("drain", Target("node", world.nodes[row].name)) for row in drain),
                *(("replace", Target("node", world.nodes[row].name)) for row in bad), ("resume_job", Target("job", job=job.name)))

    def _also(self, job: Running) -> set[int]:
        """Nodes that are changed in the same stop."""
        return set()

    def _notice(self, job: Running, at: int, after_ms: int) -> None:
        for planted in self.event.world.plants.current:
            if at - planted.at >= after_ms and self.mend(planted, job, at):
                return

    def mend(self, planted: Planted, job: Running, at: int) -> bool:
        """What people do about a slow part that they know of; False where there is nothing to do."""
        if not planted.present or planted.severity * planted.level < WORTH_NOTICING or not on_job(planted, job):
            return False
        steps = cure(self.event, planted, job)
        if steps:
            self.errands.begin(job.name, steps, at)
        return bool(steps)

    def next_ms(self, now: int) -> int:
        """When it has something to do at the latest."""
        times = [self.errands.next_ms(), *(at + self.patience_ms for at in self._failed.values())]
        if self.notices_ms is not None:
            times += [p.at + self.notices_ms for p in self.event.world.plants.current if p.present and p.at + self.notices_ms > now]
        return max(now + 1, min(times))


class Oracle(Restarting):
    """Knows each fault from its onset on, what it costs and how long it will last. It acts where that costs less than waiting, at once
    or right after the job's next checkpoint, whichever is cheaper, and in each stop it changes all nodes that will be slow beyond it."""

    def __init__(self, event: EventWorld) -> None:
        super().__init__(event, 0, None)
        self._acted: set[int] = set()

    def step(self, at: int) -> None:
        """Looks at all faults and jobs at `at` (ms). What one attempt did not end is not tried again."""
        super().step(at)
        for job in self.event.world.jobs.values():
            if not job.alive or job.name in self.errands.running or job.phase == "init":
                continue
            for planted in self.event.world.plants.current:
                if id(planted) not in self._acted and self._costs(planted, job) and self._now(planted, job, at):
                    self._acted.add(id(planted))
                    self.errands.begin(job.name, self._with_others(cure(self.event, planted, job), job), at)
                    break

    def next_ms(self, now: int) -> int:
        """When it has something to do at the latest; while a fault is worth acting on, each checkpoint is looked at."""
        times = [super().next_ms(now)]
        for job in self.event.world.jobs.values():
            waits = any(self._costs(p, job) and self._lasts(p, now) > RESTART_MS for p in self.event.world.plants.current)
            if waits and isinstance(job, RateJob) and job.alive and (due := job.store.next_ms(now)) is not None:
                times.append(due + 1)
        return min(times)

    @staticmethod
    def _costs(planted: Planted, job: Running) -> bool:
        return planted.present and planted.cured_at is None and planted.plugin.fault is not None and on_job(planted, job)

    def _lasts(self, planted: Planted, at: int) -> int:
        return (planted.heals_at if planted.heals_at < NEVER else self.event.scenario.end_ms) - at

    def _now(self, planted: Planted, job: Running, at: int) -> bool:
        """Whether acting now costs least: less than waiting for its end, and less than waiting for the next checkpoint."""
        if not cure(self.event, planted, job):
            return False
        slower = STANDS_STILL if hard(planted) else planted.severity
        share, lasts = slower / (1.0 + slower), self._lasts(planted, at)
        saved = job.store.newest() if isinstance(job, RateJob) else None
        unsaved, until = (at - saved.done if saved is not None else 0), None
        if isinstance(job, RateJob) and (due := job.store.next_ms(at)) is not None:
            until = due - at + SAVE_MS
        later = share * lasts if until is None or until >= lasts else share * until + RESTART_MS
        return share * lasts > RESTART_MS + unsaved and (hard(planted) or later >= RESTART_MS + unsaved)

    def _also(self, job: Running) -> set[int]:
        at = self.event.world.now_ms
        return {row for p in self.event.world.plants.current for row in p.place.rows
                if self._costs(p, job) and not hard(p) and "replace" in p.plugin.cured_by and len(p.place.rows) == 1
                and p.severity / (1.0 + p.severity) * (self._lasts(p, at) - RESTART_MS) > SWAP_MS}

    def _with_others(self, steps: Steps, job: Running) -> Steps:
        names = {target.node for verb, target in steps if verb == "replace"}
        more = [Target("node", self.event.world.nodes[row].name) for row in sorted(self._also(job))]
        more = [target for target in more if target.node not in names]
        drains = [step for step in steps if step[0] == "drain"] + [("drain", target) for target in more]
        changes = [step for step in steps if step[0] == "replace"] + [("replace", target) for target in more]
        return (*drains, *changes, *(step for step in steps if step[0] not in ("drain", "replace")))


ARMS: dict[str, Callable[[EventWorld], Restarting]] = {
    "people": lambda event: Restarting(event, PERSON_MS, NOTICED_MS),
    "restart": lambda event: Restarting(event, REQUEUE_MS, NOTICED_MS),
    "oracle": Oracle,
}
