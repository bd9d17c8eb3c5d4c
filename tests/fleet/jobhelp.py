"""Jobs without a world around them: driven as the world drives them, in sub-steps of five seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fleet.jobs import make_job, shape_of
from fleet.knobs import JobKnobs
from fleet.running import Running
from fleet.work import Work

SUBSTEP_MS = 5_000


class Bench:
    """A job on nodes of its own. turn: what is done to its knobs in each sub-step."""

    def __init__(self, kind: str = "training", nodes: int = 4, seed: int = 1, start: bool = True, **shape: object) -> None:
        self.nodes = nodes
        self.job: Running = make_job(kind, "j1", shape_of(kind, shape), range(nodes), 8, np.random.default_rng(seed),
                                     [f"n{i + 1:02d}" for i in range(nodes)])
        self.knobs = JobKnobs(self.job.ranks)
        self.at = 0
        self.work = Work.idle(nodes, 8)
        self.turn: Callable[[JobKnobs], None] = lambda knobs: None
        if start:
            self.job.start(0, 20.0)

    def substep(self) -> None:
        """One of them."""
        job, knobs = self.job, self.knobs
        if len(knobs.compute) != job.ranks:
            knobs.resize(job.ranks)
        knobs.reset()
        self.turn(knobs)
        job.suffer(knobs, self.at)
        self.at += SUBSTEP_MS
        job.advance(self.at)
        self.work = Work.idle(self.nodes, 8)
        job.collect(self.work, SUBSTEP_MS, job.loaded_share)

    def run(self, seconds: int) -> None:
        """Moves on by so many seconds."""
        for _ in range(seconds // 5):
            self.substep()

    def until(self, condition: Callable[[], bool], seconds: int = 3600) -> None:
        """Moves on until the condition holds."""
        for _ in range(seconds // 5):
            if condition():
                return
            self.substep()
        raise AssertionError("it did not happen in time")

    def train(self) -> Bench:
        """Moves on to the training."""
        self.until(lambda: self.job.phase == "train" and self.job.step_seconds == self.job.step_seconds)
        return self

    def steps(self, seconds: int) -> np.ndarray:
        """Step seconds of all steps that end in the phase train within so many seconds."""
        seen: dict[int, float] = {}
        for _ in range(seconds // 5):
            self.substep()
            if self.job.phase == "train":
                seen[self.job.step] = self.job.step_seconds
        return np.array(list(seen.values()))
