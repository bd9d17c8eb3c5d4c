"""A person on call who knows the truth: after a delay the right ladder for each fault, and nothing for look-alikes.

For studies of what repair is worth (and of how much of it a policy gets), on the full model and from event to event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.types import Target
from fleet.operations import Operations
from fleet.plants import NEVER, Planted
from fleet.world import World

DEADLINE_SECONDS = 4 * 3600.0
RETRY_SECONDS = 300.0
# What is tried, by the mildest verb that cures the fault.
LADDERS: dict[str, tuple[str, ...]] = {
    "restart_process": ("restart_process",),
    "resume_job": ("resume_job",),
    "reset_gpu": ("drain", "reset_gpu", "undrain", "resume_job"),
    "reboot": ("drain", "reboot", "undrain", "resume_job"),
    "replace": ("replace", "resume_job"),
}


@dataclass(slots=True)
class Responder:
    """A watcher. delay_seconds: from onset to the first step (0 severity faults wait as well). patience_seconds: the same for what
    only slows the job, None = no longer: most of that goes away by itself, and to take a node out stops the whole job. With it,
    what is too small or too young to stop the job for is mended while the job stands anyway.
    retries: how often a step that fails (a spare that is still being set up, a reset that does not take) is tried again,
    RETRY_SECONDS later. done: ladders by fault.
    """

    world: World
    operations: Operations
    delay_seconds: float = 600.0
    least_severity: float = 0.05
    retries: int = 0
    patience_seconds: float | None = None
    done: list[tuple[str, str]] = field(default_factory=list)
    _under_way: dict[int, tuple[tuple[str, ...], int, str]] = field(default_factory=dict)
    _tried: set[int] = field(default_factory=set)
    _again: dict[int, tuple[int, int]] = field(default_factory=dict)  # when the step is tried again, for the how manieth time
    _open: list[int] = field(default_factory=list)
    _seen: int = 0

    def step(self, at: int) -> None:
        """Takes each ladder one step on."""
        faults = self.world.faults
        self._open += range(self._seen, len(faults))
        self._seen = len(faults)
        for number in [*self._under_way, *self._open]:
            planted = faults[number]
            if number in self._under_way:
                self._go_on(number, planted, at)
            elif self._wanted(number, planted, at):
                ladder = LADDERS[next(v for v in LADDERS if v in planted.plugin.cured_by)]
                if self._can_wait(planted, at):
                    # The job is started by whoever is at what stopped it.
                    ladder = tuple(verb for verb in ladder if verb not in ("resume_job", "restart_process"))
                if ladder:
                    self._begin(number, planted, ladder, 0)
        self._open = [n for n in self._open if n not in self._tried and faults[n].present and faults[n].cured_at is None]

    def next_ms(self, now: int) -> int:
        """When the next delay is over."""
        faults = self.world.faults
        times = [faults[n].at + wait for n in self._open for wait in (int(self.delay_seconds * 1000), self._delay_ms(faults[n]))]
        times += [due for due, _ in self._again.values()]
        return min((t for t in times if t > now), default=NEVER)

    def _delay_ms(self, planted: Planted) -> int:
        waits = self.delay_seconds
        if self.patience_seconds is not None and planted.plugin.impact[0] != planted.plugin.impact[1]:
            waits = self.patience_seconds
        return int(waits * 1000)

    def _stands(self, planted: Planted) -> bool:
        """Whether the job on the part does not run now, so that nothing is lost by mending the part meanwhile."""
        down = [job for job in self.world.jobs.values() if not job.alive]
        return self.patience_seconds is not None and planted.plugin.place != "job" and any(
            row in job.nodes for job in down for row in planted.place.rows)

    def _can_wait(self, planted: Planted, at: int) -> bool:
        """Whether it is too small, or not there for long enough, to stop a job for it."""
        return planted.severity < self.least_severity or at - planted.at < self._delay_ms(planted)

    def _wanted(self, number: int, planted: Planted, at: int) -> bool:
        if planted.plugin.fault is None or planted.cured_at is not None or not planted.present or number in self._tried:
            return False
        nobody = not any(verb in LADDERS for verb in planted.plugin.cured_by)
        if nobody or at - planted.at < self.delay_seconds * 1000 or (self._can_wait(planted, at) and not self._stands(planted)):
            return False
        return len(planted.place.rows) == 1 or planted.plugin.place == "job"

    def _begin(self, number: int, planted: Planted, ladder: tuple[str, ...], step: int, again: int = 0) -> None:
        self._tried.add(number)
        verb = ladder[step]
        target = self._target(planted, verb)
        name = f"on-call/{number}/{step}" + (f"/{again}" if again else "")
        self.operations.submit(name, verb, target, {"mode": "full"} if verb == "resume_job" else {}, DEADLINE_SECONDS)
        self._under_way[number] = (ladder, step, name)

    def _target(self, planted: Planted, verb: str) -> Target:
        job = next((j for j in self.world.jobs.values() if set(planted.place.rows) & set(j.nodes)), None)
        name = job.name if job is not None else planted.culprit.job
        if verb in ("resume_job", "restart_process"):
            return Target("job", job=name)
        node = self.world.nodes[planted.place.rows[0]].name
        device = planted.culprit.device if planted.plugin.place in ("gpu", "rank") else None
        return Target("gpu" if device else "node", node, device, job=name)

    def _go_on(self, number: int, planted: Planted, at: int) -> None:
        ladder, step, name = self._under_way[number]
        if number in self._again:
            due, tries = self._again[number]
            if at < due:
                return
            del self._again[number]
            if self._back(planted, ladder, step):
                del self._under_way[number]
                self.done.append((planted.plugin.name, "done"))
            else:
                self._begin(number, planted, ladder, step, tries)
            return
        outcome = self.operations.poll(name)
        if outcome.state == "RUNNING":
            return
        if outcome.state == "DONE" and step + 1 < len(ladder) and not self._back(planted, ladder, step + 1):
            self._begin(number, planted, ladder, step + 1)
            return
        tries = int(name.split("/")[3]) if name.count("/") == 3 else 0
        if outcome.state != "DONE" and tries < self.retries and not self._back(planted, ladder, step):
            self._again[number] = (at + int(RETRY_SECONDS * 1000), tries + 1)
            return
        del self._under_way[number]
        self.done.append((planted.plugin.name, outcome.reason if outcome.state != "DONE" else "done"))

    def _back(self, planted: Planted, ladder: tuple[str, ...], step: int) -> bool:
        """Whether the job is at work again, started for another's sake, so that the start at the end of a ladder would only stop it."""
        job = self.world.jobs.get(self._target(planted, "resume_job").job or "")
        return step > 0 and ladder[step] == "resume_job" and job is not None and job.alive and job.hung_rank is None
