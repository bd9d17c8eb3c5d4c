"""What is done by hand or by a plain script: steps on the fleet one after another, tried again until they come off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.types import Target
from fleet.operations import Operations
from fleet.plants import NEVER

RETRY_MS, LOOK_MS, TRIES = 60_000, 15_000, 240
DEADLINE_SECONDS = 7200.0
# How everybody starts a job again: all processes anew, as a scheduler's requeue does, and as the shipped policies say.
ARGS: dict[str, dict[str, object]] = {"resume_job": {"mode": "full"}}


@dataclass(slots=True)
class Errand:
    """steps: (verb, target), in order; neighbours with the same verb are done at one time. A step that fails or is refused is tried
    again after a minute, TRIES times in all. asked: the operations under way, by step. counts: how often each was asked for of a node
    or job, whoever's errand it was: by that the operation is named, and from its name it draws how long it takes, so that changing
    the same node takes as long in all arms. stranded: the job that was started died again while it started, of a
    node more: who did it has to look anew what it died of, for the same start would fail as often as it is tried."""

    counts: dict[str, int]
    steps: Sequence[tuple[str, Target]]
    next_at: int = 0
    done: int = 0
    tries: int = 0
    stranded: bool = False
    asked: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """It is done, or given up."""
        return self.stranded or self.done >= len(self.steps) or self.tries >= TRIES

    def _stage(self) -> range:
        """The steps that are done at one time now."""
        end = self.done
        while end < len(self.steps) and self.steps[end][0] == self.steps[self.done][0]:
            end += 1
        return range(self.done, end)

    def step(self, at: int, operations: Operations) -> None:
        """Goes on as far as it goes at `at` (ms)."""
        while not self.over and at >= self.next_at:
            stage = self._stage()
            words = [self._one(i, operations) for i in stage if i not in self.finished]
            if "RUNNING" in words:
                self.next_at = at + LOOK_MS
            elif all(word == "DONE" for word in words):
                self.done, self.finished = stage.stop, set()
            else:
                self.next_at = at + RETRY_MS
                self.stranded = any(self._died(self.steps[i], operations) for i in stage)

    def _died(self, step: tuple[str, Target], operations: Operations) -> bool:
        job = operations.world.jobs.get(step[1].job or "")
        return step[0] == "resume_job" and job is not None and not job.alive and job.state not in ("done", "queued")

    def _one(self, index: int, operations: Operations) -> str:
        """Asks for a step, or after it; its state."""
        if index not in self.asked:
            self.tries += 1
            verb, target = self.steps[index]
            key = f"errand/{verb}/{target.node or target.job}"
            self.counts[key] = self.counts.get(key, 0) + 1
            self.asked[index] = f"{key}/{self.counts[key]}"
            operations.submit(self.asked[index], verb, target, ARGS.get(verb, {}), DEADLINE_SECONDS)
        state = operations.poll(self.asked[index]).state
        if state != "RUNNING":
            del self.asked[index]
        if state == "DONE":
            self.finished.add(index)
        return state


@dataclass(slots=True)
class Errands:
    """Those under way; one for a job at a time. stranded: by job, when whoever started it in vain has looked what it died of (ms)."""

    operations: Operations
    running: dict[str, Errand] = field(default_factory=dict)
    stranded: dict[str, int] = field(default_factory=dict)
    count: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def begin(self, job: str, steps: Sequence[tuple[str, Target]], at: int) -> None:
        """Begins one for the job where none is under way."""
        if job not in self.running:
            self.stranded.pop(job, None)
            self.count += 1
            self.running[job] = Errand(self.counts, steps, at)

    def step(self, at: int) -> None:
        """All of them, at `at` (ms)."""
        for job in list(self.running):
            self.running[job].step(at, self.operations)
            if self.running[job].over and self.running.pop(job).stranded:
                self.stranded[job] = at + RETRY_MS

    def next_ms(self) -> int:
        """When the next of them wants to look."""
        return min((*(e.next_at for e in self.running.values()), *self.stranded.values()), default=NEVER)
