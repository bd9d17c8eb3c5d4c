"""Training loss and gradient norm: a power law with real noise, spikes that recover, divergence, NaN.

Noise late in training after Megatron's 15B run: the difference over five steps has a standard deviation of 0.037 and a
largest jump of about four of them (signals.md §7); one step says nothing about the next, in all fourteen healthy runs that
docs/realism.md compares with. How large it is depends on the batch: there from 0.014 to 0.2. Healthy runs have a spike now and
then that is gone within some ten steps, with the gradient norm ahead of it.
"""

from __future__ import annotations

import math

import numpy as np

FLOOR, SCALE, POWER = 1.62, 8.4, -0.31
SPIKES_PER_STEP = 0.0012
SPIKE_HEIGHT = 0.07
SPIKE_DECAY = 0.78
GRAD, GRAD_SPREAD = 0.31, 0.13
LEAST_LOSS_SCALE, FIRST_LOSS_SCALE = 1.0, 65_536.0
# The scaler tries a scale twice as large after so many steps without an overflow (PyTorch's and Megatron's default).
SCALE_WINDOW = 1_000
# Overflows of healthy fp16 training: one or two in a thousand steps.
OVERFLOWS_PER_STEP = 0.0015


class LossCurve:
    """State of the loss of one run. loss, grad_norm: of the last step, NaN before it. skipped, nonfinite: counts of the
    run. loss_scale: of the fp16 scaler."""

    def __init__(self, fp16: bool, noise: float) -> None:
        self._fp16, self._noise = fp16, noise
        self.restart()

    def restart(self) -> None:
        """A new run begins from a checkpoint: what had gone wrong with the weights is gone."""
        self.loss = self.grad_norm = math.nan
        self.skipped = self.nonfinite = 0
        self.loss_scale = FIRST_LOSS_SCALE
        self.overflowed: float | None = None
        self._spike = self._drift = 0.0
        self._calm = 0

    @property
    def shown_scale(self) -> float:
        """What the log shows: bf16 needs no scale."""
        return self.loss_scale if self._fp16 or self.skipped else 1.0

    def step(self, rng: np.random.Generator, step: int, bump: float = 0.0, slope: float = 0.0, nonfinite: bool = False,
             overflow_share: float = 0.0, grad: float = 1.0, frozen: bool = False) -> None:
        """Moves on by one step. bump, slope, nonfinite, overflow_share, grad, frozen: JobKnobs' numbers."""
        normal, uniform, high = rng.normal(0, 1, 3), rng.random(2), float(rng.exponential())
        began = self._spike
        self._spike = SPIKE_DECAY * self._spike + (SPIKE_HEIGHT * min(high, 2.0) if uniform[0] < SPIKES_PER_STEP else 0.0)
        self._drift += slope
        smooth = FLOOR + SCALE * (step + 60.0) ** POWER
        wrong = self._spike + self._drift  # what the weights are off by; a bump of the data leaves the gradient as it is
        off = wrong + bump
        self.grad_norm = (GRAD * math.exp(GRAD_SPREAD * float(normal[1])) * grad
                          * (1.0 + 6.0 * max(0.0, self._spike - began) + 2.0 * max(0.0, wrong)))
        if not (frozen and self.loss == self.loss):
            self.loss = max(0.0, smooth + self._noise * float(normal[2]) + off)
        self._scale(uniform[1] < max(overflow_share, OVERFLOWS_PER_STEP if self._fp16 else 0.0))
        if nonfinite:
            self.loss = self.grad_norm = math.nan
            self.nonfinite += 1

    def _scale(self, overflow: bool) -> None:
        """The scaler halves after an overflow and leaves the step out."""
        self.overflowed = None
        self._calm += 1
        if overflow:
            self.overflowed, self._calm = self.loss_scale, 0
            self.skipped += 1
            self.loss_scale = max(LEAST_LOSS_SCALE, self.loss_scale / 2)
            self.grad_norm = math.inf
        elif self._calm >= SCALE_WINDOW and self.loss_scale < FIRST_LOSS_SCALE * 4:
            self.loss_scale, self._calm = self.loss_scale * 2, 0
