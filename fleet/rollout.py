"""Reinforcement learning: the same GPUs alternate between rollout (generating answers) and training steps on them.

While it generates, a GPU is bound by memory: little tensor work, little power, no traffic between nodes; ranks that have
drawn short answers wait for the longest. A step of the trainer is a whole round, so its step time is a minute and more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.job import WAIT, WARMUP, Job, Segment
from fleet.noise import Noise
from fleet.shape import CLOCK_EXPONENT, Impact, JobShape

# Share of full-load power, and of time in compute, of a rank that generates.
GENERATE_LOAD, GENERATE_BUSY = 0.55, 0.3


@dataclass(frozen=True, slots=True)
class RolloutShape(JobShape):
    """rollout_seconds: generating a round's answers takes the median rank so long; tail: sigma of the log-normal of the
    ranks' lengths. train_steps: training steps on each round's answers."""

    rollout_seconds: float = 40.0
    tail: float = 0.05
    train_steps: int = 4
    compute_seconds: float = 2.2
    checkpoint_every_seconds: float = 900.0
    first_step: int = 120
    last_step: int = 5_000
    log_every: int = 1


class Rollout(Job):
    """See `Job`. A step is one round: rollout, then training on it."""

    kind = "rollout"
    shape: RolloutShape

    @property
    def impact(self) -> Impact:
        """What a slower part costs a whole round."""
        shape, rounds = self.shape, self.shape.train_steps
        whole = replace(shape, compute_seconds=shape.rollout_seconds + rounds * shape.compute_seconds,
                        tensor_seconds=rounds * shape.tensor_seconds, collective_seconds=rounds * shape.collective_seconds,
                        hop_seconds=rounds * shape.hop_seconds, loader_seconds=rounds * shape.loader_seconds)
        return Impact(whole, self.groups.pp, self.groups.dp)

    def _time_step(self, kind: str, at: int, noise: Noise, factor: float) -> Segment:
        """The training part of a round; its beginning, the rollout, is put before it by `_begin_step`."""
        segment = super()._time_step(kind, at, noise, factor)
        rounds = self.shape.train_steps
        ms = (segment.end - segment.start) * rounds
        segment.end, segment.healthy_ms = segment.start + ms, segment.healthy_ms * rounds
        segment.timing = {name: rounds * seconds for name, seconds in segment.timing.items()}
        segment.late = None if segment.late is None else rounds * segment.late
        return segment

    def _begin_step(self, at: int) -> None:
        """Generates first; the round's training begins when the last rank has its answers."""
        warm = self._warm < len(WARMUP)
        self._enter("warmup" if warm else "train", at)
        rng, shape, felt, n = self._rng, self.shape, self._felt, self.ranks
        lengths = rng.lognormal(0.0, shape.tail, n)
        common = float(rng.lognormal(0.0, 0.06))
        # Memory-bound work loses less than half of what the clock loses.
        own = (shape.rollout_seconds * common * lengths * felt.numbers.pace * self.slowness * felt.compute
               / self.slow ** (0.4 * CLOCK_EXPONENT))
        total = float(own.max())
        busy = GENERATE_BUSY * own / total
        load = (GENERATE_LOAD * own + WAIT * (total - own)) / total
        healthy = round(1000 * shape.rollout_seconds * common * float(lengths.max()))
        self._segment = Segment("rollout", at, at + max(1, round(total * 1000)), load, busy, 0.0, healthy)

    def _finish(self, segment: Segment) -> None:
        if segment.kind != "rollout":
            super()._finish(segment)
            return
        warm = self._warm < len(WARMUP)
        noise = self._noise.draw(self._rng, self.ranks)
        step = self._time_step("warmup" if warm else "step", segment.end, noise, WARMUP[self._warm] if warm else 1.0)
        self._rollout = (segment.end - segment.start, segment.healthy_ms)
        self._segment = step

    def _clear(self) -> None:
        super()._clear()
        self._rollout = (0, 0)

    def _finish_step(self, segment: Segment) -> None:
        took, healthy = self._rollout
        self._rollout = (0, 0)
        whole = Segment(segment.kind, segment.start - took, segment.end, segment.load, segment.busy, segment.traffic,
                        segment.healthy_ms + healthy, segment.timing, stalled=segment.stalled)
        super()._finish_step(whole)

    def _lost_ms(self, segment: Segment) -> int:
        return super()._lost_ms(segment) + (self._rollout[0] if segment.kind in ("step", "warmup") else 0)
