"""Who looks after the fleet: nobody but people, a script that restarts what fails, and one who knows each fault at its onset.

All of them find out what a failed job died of (its own last words and the scheduler's health check say so), replace that node
and start the job again, by the same operations. They differ in how soon, and in what they know of parts that are slow and not dead.
What only hands put right (a full disk on which no checkpoint is saved any more) takes a person as long in all arms; what no node is
to blame for (a crash loop in software, a hung loader) is met with a new start alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from app.goodput.errands import Errands
from core.types import Target
from fleet.eventstep import EventWorld, RateJob, part_of
from fleet.job import Job
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
# What a stop costs a job beside the work since its checkpoint: a spare is set up (10 to 15 minutes), the job queued, started, warmed up.
STOP_MS = 18 * 60_000
# A checkpoint that is due now is complete after so long; what one node more to change in the same stop costs a job.
SAVE_MS, SWAP_MS = 30_000, 60_000
# Faults for which a job's saves fail although nothing is slow: its own log says so at each save, and somebody makes room.
BY_HAND = ("disk_full",)


def hard(planted: Planted) -> bool:
    """Whether its job fails of it."""
    low, high = planted.plugin.impact
    return planted.plugin.fault is not None and low == high and high >= 1.0


def struck(planted: Planted, job: Running) -> bool:
    """Whether the job's last run died of it, as the kernel's log says: a slow part, too, may kill (a node short of memory)."""
    return planted.memo.get("run") == job.run and planted.plugin.fault is not None


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
        self._saves: dict[str, tuple[int, int | None]] = {}  # by job: failed saves that were seen, when a person comes for them

    def step(self, at: int) -> None:
        """Looks at all jobs at `at` (ms)."""
        self.errands.step(at)
        for name, job in self.event.world.jobs.items():
            self._room(job, at)
            if job.alive or job.state in ("done", "queued") or name in self.errands.running:
                self._failed.pop(name, None)
                self.errands.stranded.pop(name, None)
            elif at >= min(self._failed.setdefault(name, at) + self.patience_ms, self.errands.stranded.get(name, NEVER)) and not self._busy(name):
                self.errands.begin(name, self._restart(job), at)
            if job.alive and self.notices_ms is not None:
                self._notice(job, at, self.notices_ms)

    def _busy(self, job: str) -> bool:
        return job in self.hands_off or any(job in op.busy for op in self.event.operations.running())

    def _room(self, job: Running, at: int) -> None:
        """A save that failed is an error in the job's log: a person comes for it and makes room."""
        if not isinstance(job, Job):
            return
        seen, due = self._saves.get(job.name, (0, None))
        if job.store.failures > seen and due is None:
            due = at + PERSON_MS
        if due is not None and at >= due:
            for planted in self.event.world.plants.current:
                if planted.present and planted.plugin.fault in BY_HAND and on_job(planted, job):
                    make_room(self.event, planted)
            due = None
        self._saves[job.name] = (job.store.failures, due)

    def _restart(self, job: Running) -> Steps:
        world = self.event.world
        rows = {row for p in world.plants.current if p.present and (hard(p) or struck(p, job)) and "replace" in p.plugin.cured_by
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
        times += [due for _, due in self._saves.values() if due is not None]
        if self.notices_ms is not None:
            times += [p.at + self.notices_ms for p in self.event.world.plants.current if p.present and p.at + self.notices_ms > now]
        return max(now + 1, min(times))


def make_room(event: EventWorld, planted: Planted) -> None:
    """A person removes what fills the disk; no node is touched."""
    event.world.plants.end(event.world, planted, event.world.now_ms, "hand")
    event.world.revision += 1


class Oracle(Restarting):
    """Knows each fault from its onset on, what it costs and how long it will last. It stops a job for slow nodes where that wins more
    work than it costs, at once or right after the job's next checkpoint, whichever wins more, and changes all nodes in that stop, or in
    one that a failure makes, that are worth it together: faults of one kind of part do not add up, the slowest sets the pace."""

    def __init__(self, event: EventWorld) -> None:
        super().__init__(event, 0, None)
        self._acted: set[int] = set()

    def step(self, at: int) -> None:
        """Looks at all faults and jobs at `at` (ms). What one attempt did not end is not tried again."""
        super().step(at)
        for planted in self.event.world.plants.current:
            if planted.present and planted.plugin.fault in BY_HAND and at >= planted.at + PERSON_MS:
                make_room(self.event, planted)
        for job in self.event.world.jobs.values():
            if not job.alive or job.name in self.errands.running or job.phase == "init":
                continue
            hung = next((p for p in self._on(job) if hard(p) and id(p) not in self._acted and cure(self.event, p, job)), None)
            chosen = [hung] if hung is not None else self._worth(job, at)
            if chosen:
                self._acted |= {id(p) for p in chosen}
                self.errands.begin(job.name, self._steps(chosen, job), at)

    def next_ms(self, now: int) -> int:
        """When it has something to do at the latest; while a fault is worth acting on, each checkpoint is looked at."""
        times = [super().next_ms(now)]
        times += [p.at + PERSON_MS for p in self.event.world.plants.current
                  if p.present and p.plugin.fault in BY_HAND and p.at + PERSON_MS > now]
        for job in self.event.world.jobs.values():
            if isinstance(job, RateJob) and job.alive and self._candidates(job, now) and (due := job.store.next_ms(now)) is not None:
                times.append(due + 1)
        return min(times)

    def _on(self, job: Running) -> list[Planted]:
        return [p for p in self.event.world.plants.current if p.present and p.cured_at is None and p.plugin.fault is not None and on_job(p, job)]

    def _candidates(self, job: Running, at: int) -> list[Planted]:
        """Slow parts that a change of their node ends before they end by themselves, those that last longest first."""
        found = [p for p in self._on(job) if slower(p) > 0 and not hard(p) and len(p.place.rows) == 1 and id(p) not in self._acted
                 and "replace" in p.plugin.cured_by and p.heals_at - at > STOP_MS]
        return sorted(found, key=lambda p: (-p.heals_at, p.at))

    def _worth(self, job: Running, at: int) -> list[Planted]:
        """The slow parts for which the job is stopped now; none where waiting wins more, for ever or until the next checkpoint."""
        found = self._candidates(job, at)
        if not found or not isinstance(job, RateJob):
            return []
        slow, saved = [p for p in self._on(job) if slower(p) > 0], job.store.newest()
        unsaved = (at - saved.done) / job.factor if saved is not None else 0.0
        due = job.store.next_ms(at)
        until = None if due is None else due + SAVE_MS
        best, chosen = 0.0, []
        for count in range(1, self._spares(found) + 1):
            wins = self._wins(slow, found[:count], at, at) - unsaved
            later = self._wins(slow, found[:count], at, until) if until is not None and until < self.event.scenario.end_ms else 0.0
            if max(wins, later) > best:
                best, chosen = max(wins, later), found[:count] if wins >= later else []
        return chosen

    def _spares(self, found: Sequence[Planted]) -> int:
        """How many nodes may be changed: the last spare is left for one that dies."""
        return min(len(found), max(0, sum(node.state == "spare" for node in self.event.world.nodes) - 1))

    def _wins(self, slow: Sequence[Planted], chosen: Sequence[Planted], at: int, stop: int) -> float:
        """Healthy ms of work that a stop at `stop` wins over doing nothing, from `at` on."""
        end = max(stop + STOP_MS, min(self.event.scenario.end_ms, max(p.heals_at for p in slow)))
        rest = [p for p in slow if p not in chosen]
        return work(slow, at, stop) + work(rest, stop + STOP_MS, end) - work(slow, at, end) - SWAP_MS * (len(chosen) - 1)

    def _also(self, job: Running) -> set[int]:
        at, found, slow = self.event.world.now_ms, self._candidates(job, self.event.world.now_ms), [p for p in self._on(job) if slower(p) > 0]
        best, chosen = 0.0, found[:0]
        for count in range(1, self._spares(found) + 1):
            end = max(at + STOP_MS, min(self.event.scenario.end_ms, found[0].heals_at))
            rest = [p for p in slow if p not in found[:count]]
            wins = work(rest, at + STOP_MS, end) - work(slow, at + STOP_MS, end) - SWAP_MS * count
            if wins > best:
                best, chosen = wins, found[:count]
        return {row for p in chosen for row in p.place.rows}

    def _steps(self, chosen: Sequence[Planted], job: Running) -> Steps:
        """One stop for all of them, and for what is changed beside."""
        again = ("resume_job", Target("job", job=job.name))
        rows = {row for p in chosen if "resume_job" not in p.plugin.cured_by for row in p.place.rows}
        if any(hard(p) for p in chosen):
            rows |= self._also(job)
        nodes = [Target("node", self.event.world.nodes[row].name) for row in sorted(rows)]
        return (*(("drain", node) for node in nodes), *(("replace", node) for node in nodes), again)


def slower(planted: Planted) -> float:
    """By how much the job's step is longer while the fault is there, on average; 0 for what leaves marks alone or kills."""
    low, high = planted.plugin.impact
    return 0.0 if low == high else planted.severity * (0.5 if planted.onset == "intermittent" else 1.0)


def work(slow: Sequence[Planted], start: int, end: int) -> float:
    """Healthy ms of work that a job does from `start` to `end` (ms) under these faults, each until it goes away by itself."""
    times = sorted({start, end, *(p.heals_at for p in slow if start < p.heals_at < end)})
    done = 0.0
    for begins, ends in itertools.pairwise(times):
        worst: dict[str, float] = {}
        for planted in slow:
            if planted.heals_at > begins:
                kind = part_of(planted)
                worst[kind] = max(worst.get(kind, 0.0), slower(planted))
        done += (ends - begins) / (1.0 + sum(worst.values()))
    return done


ARMS: dict[str, Callable[[EventWorld], Restarting]] = {
    "people": lambda event: Restarting(event, PERSON_MS, NOTICED_MS),
    "restart": lambda event: Restarting(event, REQUEUE_MS, NOTICED_MS),
    "oracle": Oracle,
}
