"""How much longer than its best a healthy step takes.

Read off two Megatron-LM runs on DGX H100 (signals.md §7): most steps lie within 2 % of the fastest, a good third has a
tail of mean about 7 %, and one step in forty takes 1.3-2.3 times as long; one step says nothing about the next. A job on
one node has no fabric to wait for and few ranks to be late: in twelve such runs (docs/realism.md) half of the steps lie
within 1.4 % of each other, the tail is about 1 % and one step in a hundred is long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleet.shape import JobShape

# Slow wander of the whole job (input lengths, other jobs on the spine): about 0.35 %.
WANDER, WANDER_STEP = 0.985, 0.0006
# Half of the long steps are one rank's doing (a garbage collection, a page cache miss), half everybody's.
ONE_RANK_SHARE = 0.5
# A job on one node beside one on many: how long its tail is, and how many of its steps are long.
ALONE_TAIL, ALONE_LONG = 0.1, 0.4


@dataclass(frozen=True, slots=True)
class Noise:
    """common: factor on everybody's compute. excess: share of a healthy step by which this one is longer. rank: whose
    doing that is; None = everybody's."""

    common: float
    excess: float
    rank: int | None


class StepNoise:
    """Draws the noise of steps, always the same number of draws."""

    def __init__(self, shape: JobShape, nodes: int) -> None:
        self._shape = shape
        self._tail, self._long = (ALONE_TAIL, ALONE_LONG) if nodes == 1 else (1.0, 1.0)
        self._wander = 0.0

    def draw(self, rng: np.random.Generator, ranks: int, step: int = 1) -> Noise:
        """The next step's; step: its number."""
        shape = self._shape
        normal, uniform = rng.normal(0, 1, 2), rng.random(6)
        self._wander = WANDER * self._wander + WANDER_STEP * float(normal[0])
        common = float(np.exp(shape.step_noise * normal[1] - shape.step_noise**2 / 2 + self._wander))
        excess = 0.0
        if uniform[0] < shape.rough_share:
            excess = -self._tail * shape.rough_mean * float(np.log1p(-uniform[1]))
        outlier = uniform[2] < self._long * shape.outlier_share
        if outlier:
            low, high = shape.outlier
            excess = low + (high - low) * float(uniform[3])
        alone = outlier and uniform[4] < ONE_RANK_SHARE
        if shape.heavy_every and step % shape.heavy_every == 0:
            excess, alone = excess + shape.heavy_excess, False
        return Noise(common, excess, int(uniform[5] * ranks) if alone else None)
