"""How likely a planned fault is to be counted in recall, told from the plan alone: nothing is played.

One that costs nothing, or stops its job, or is there at once, counts. A ramp that ends on its way never costs what it was going
to, perhaps less than 5 %; one that comes and goes may never stand for long. What no tier or no fabric of a fleet shows never counts.
The chance is the share of draws, as the fleet makes them (`fleet.plants`), in which the fault counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from core.protocols import FaultPlugin
from core.types import Floats
from fleet.plants import EPISODE_SECONDS, RAMP_SECONDS

COUNTED_IMPACT = 0.05   # from this impact on a fault counts in recall; below, in the curve of recall against impact only
# What comes and goes has to stand for so long once to be seen: exporters read a GPU every half minute, and of fewer than five readings
# nobody can say that they are more than a pause.
BRIEF_SECONDS = 150.0
LARGEST = 2.0           # a step three times as long stands for all that is slower
DRAWS, STREAM = 2000, 8202
# With so many standard deviations to spare, about one in a hundred of the names that can fall short does.
SIGMAS = 2.5


def harms(plugin: FaultPlugin) -> bool:
    """Whether the job's step suffers from it."""
    return plugin.impact[1] > 0.01


def stands(plugin: FaultPlugin) -> bool:
    """Whether the job stands still or dies."""
    return plugin.impact[0] >= 9.0


def sized(plugin: FaultPlugin) -> bool:
    """Whether it can be small or large."""
    return harms(plugin) and not stands(plugin)


def large(plugin: FaultPlugin) -> tuple[float, float]:
    """Between what impacts one that counts is drawn."""
    return min(max(plugin.impact[0], COUNTED_IMPACT), plugin.impact[1]), min(plugin.impact[1], LARGEST)


def counting(plugin: FaultPlugin, lasts: tuple[float, float]) -> float:
    """The chance of a large one, of any onset, that lasts between so many minutes."""
    return float(np.mean([chance(onset, large(plugin), lasts) if sized(plugin) else 1.0 for onset in plugin.onsets]))


@lru_cache(maxsize=1000)
def chance(onset: str, impact: tuple[float, float], lasts: tuple[float, float]) -> float:
    """Of an onset: the chance of one with an impact (log-uniform between) that lasts between so many minutes."""
    rng = np.random.default_rng(STREAM)
    size = np.exp(rng.uniform(np.log(impact[0]), np.log(impact[1]), DRAWS))
    seconds = 60 * rng.uniform(*lasts, DRAWS)
    if onset == "ramp":
        return float(np.mean(size * np.minimum(1.0, seconds / rng.uniform(*RAMP_SECONDS, DRAWS)) >= COUNTED_IMPACT))
    counted = size >= COUNTED_IMPACT
    if onset == "intermittent":
        counted &= _longest(seconds, rng) >= BRIEF_SECONDS
    return float(np.mean(counted))


def _longest(seconds: Floats, rng: np.random.Generator) -> Floats:
    """The longest stretch for which each is there: it begins there, and is gone every other time."""
    most = 1 + int(np.max(seconds) / EPISODE_SECONDS[0])
    ends = np.cumsum(rng.uniform(*EPISODE_SECONDS, (len(seconds), most)), axis=1)
    begins = np.hstack([np.zeros((len(seconds), 1)), ends[:, :-1]])
    there = np.clip(np.minimum(ends, seconds[:, None]) - begins, 0.0, None)
    return np.asarray(there[:, ::2].max(axis=1), np.float64)


def enough(positives: int, chances: Sequence[float]) -> int:
    """How many are to be planted, in turn with these chances, so that `positives` count: by expectation with SIGMAS to spare."""
    number, mean, variance = 0, 0.0, 0.0
    while mean - SIGMAS * variance ** 0.5 < positives - 1e-9 and any(chances):
        one = chances[number % len(chances)]
        number, mean, variance = number + 1, mean + one, variance + one * (1 - one)
    return number
