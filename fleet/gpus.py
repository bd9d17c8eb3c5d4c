"""All GPUs of the fleet as arrays: power, heat, the driver's thermal control, clocks and counters.

Healthy parts differ: silicon (power and speed at equal work), slot (rear GPUs run hotter), HBM stack. A fault turns
only the knobs (`fleet/knobs.py`); everything else follows from them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import NodeType
from fleet.knobs import GpuKnobs
from fleet.work import Work

CORE_LAG_SECONDS = 24.0
HBM_LAG_SECONDS = 60.0
# Dynamic power falls with clock and voltage together.
POWER_EXPONENT = 2.2
# The driver takes this share of the clock for each °C that a part is beyond its limit: with it a throttled GPU settles
# a degree or two beyond the limit, and one that is deep in it reaches the hardware slowdown two degrees further.
CLOCK_PER_DEGREE = 0.12
LEAST_CLOCK = 0.3
HW_SLOWDOWN_MARGIN = -2.0

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL = 0x1, 0x4, 0x8, 0x20, 0x40


class GpuBank:
    """State of every GPU, float64[node, gpu]. `step` moves it on; pages read the sampled arrays."""

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator, knobs: GpuKnobs) -> None:
        shape = (nodes, kind.gpus)
        self.kind, self._rng, self.knobs = kind, rng, knobs
        self.silicon = 1.0 + np.clip(rng.normal(0, 0.012, shape), -0.03, 0.03)
        self.slowness = 1.0 + np.clip(rng.normal(0, 0.005, shape), -0.012, 0.012)
        slot = np.linspace(-3.2, 3.4, kind.gpus)
        self.offset = slot + np.clip(rng.normal(0, 0.7, shape), -1.5, 1.5)
        self.hbm_offset = rng.uniform(-4.0, 4.5, shape)
        self.cap_share = rng.beta(2.0, 24.0, shape)
        self.thermal = np.ones(shape)
        self.core = 24.0 + self.offset + kind.resistance * kind.idle_watts
        self.hbm = self.core + self.hbm_offset
        self._wobble = np.zeros(shape)
        self._init_samples(shape)
        self._init_counters(shape, rng)

    def _init_samples(self, shape: tuple[int, int]) -> None:
        kind = self.kind
        self.clock = np.full(shape, float(kind.idle_clock_mhz))
        self.power = np.full(shape, kind.idle_watts)
        self.margin = np.full(shape, 50.0)
        self.reasons = np.full(shape, float(IDLE))
        self.util = np.zeros(shape)
        self.copy_util = np.zeros(shape)
        self.memory = np.zeros(shape)
        self.graphics = np.zeros(shape)
        self.sm = np.zeros(shape)
        self.tensor = np.zeros(shape)
        self.dram = np.zeros(shape)
        self.link_gen = np.ones(shape)

    def _init_counters(self, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self.energy_mj = rng.uniform(4e11, 9e11, shape)
        self.power_ns = rng.uniform(1e13, 5e13, shape)
        self.thermal_ns = np.zeros(shape)
        self.nvlink_mb = rng.uniform(1e9, 2e9, shape)
        self.pcie_replays = np.floor(rng.uniform(0, 12.99, shape))
        self.ecc_correctable = np.zeros(shape)
        self.ecc_correctable_ever = np.floor(rng.exponential(0.6, shape))
        self.remapped_rows = np.where(rng.random(shape) < 0.04, 1.0, 0.0)
        self.xid = np.zeros(shape)

    def reset(self, rows: NDArray[np.int64] | int, gpu: int | None = None) -> None:
        """Zeroes what a driver reload zeroes; aggregate ECC counts and remapped rows stay with the board."""
        at = (rows, slice(None)) if gpu is None else (rows, slice(gpu, gpu + 1))
        for counter in (self.energy_mj, self.power_ns, self.thermal_ns, self.nvlink_mb, self.pcie_replays,
                        self.ecc_correctable, self.xid):
            counter[at] = 0.0

    def step(self, seconds: int, work: Work, inlet: Floats) -> None:
        """Moves all GPUs on by whole seconds. inlet: air temperature, float64[node]."""
        watts = self._heat(seconds, work, inlet[:, None] + self.offset)
        self._sample(work, watts)
        self._count(seconds, work, watts)

    def _heat(self, seconds: int, work: Work, air: Floats) -> Floats:
        kind = self.kind
        core_gain, hbm_gain = 1 - math.exp(-1 / CORE_LAG_SECONDS), 1 - math.exp(-1 / HBM_LAG_SECONDS)
        asked = kind.load_watts * work.load * self.silicon
        resistance = kind.resistance * self.knobs.cooling
        total = np.zeros_like(asked)
        for _ in range(seconds):
            watts = kind.idle_watts + asked * self.thermal**POWER_EXPONENT
            self.core += core_gain * (air + resistance * watts - self.core)
            self.hbm += hbm_gain * (self.core + self.hbm_offset - self.hbm)
            beyond = np.maximum(0.0, np.maximum(self.core - kind.core_limit, self.hbm - kind.hbm_limit))
            self.thermal = np.maximum(LEAST_CLOCK, 1.0 - CLOCK_PER_DEGREE * beyond)
            total += watts
        return total / seconds

    def _sample(self, work: Work, watts: Floats) -> None:
        kind, rng, shape = self.kind, self._rng, self.core.shape
        normal = rng.normal(0, 1, (5, *shape))
        uniform = rng.random((3, *shape))
        active = work.load > 0.02
        training = work.busy > 0.3
        hot = self.thermal < 0.995
        capped = training & ~hot & (uniform[0] < self.cap_share)
        self.margin = np.minimum(kind.core_limit - self.core, kind.hbm_limit - self.hbm) - 0.4 * np.abs(normal[0])
        lost = np.where(capped, np.floor(1 + 19 * uniform[1]), 0.0)
        jitter = np.where(hot, np.round(normal[1]), 0.0)
        steps = np.round(kind.max_clock_mhz * self.thermal / kind.clock_step_mhz) - lost + jitter
        fast = np.clip(steps * kind.clock_step_mhz, kind.idle_clock_mhz, kind.max_clock_mhz)
        self.clock = np.where(active | work.resident, fast, kind.idle_clock_mhz)
        self._wobble = 0.7 * self._wobble + np.where(active, 8.5, 0.35) * normal[2]
        measured = watts + self._wobble
        at_cap = kind.limit_watts * (0.958 + 0.04 * uniform[2])
        self.power = np.clip(np.where(capped, at_cap, measured), 55.0, kind.limit_watts)
        deep = self.margin < HW_SLOWDOWN_MARGIN
        thermal_bits = np.where(hot, SW_THERMAL + np.where(deep, HW_THERMAL + HW_SLOWDOWN, 0), 0)
        rest = np.where(active | work.resident, 0, IDLE)
        self.reasons = (thermal_bits + np.where(capped, POWER_CAP, 0) + rest).astype(float)
        self.util = np.where(work.resident, 100.0 - (uniform[1] < 0.15), np.where(active, 3.0, 0.0))
        self.copy_util = np.round(35 * work.busy * (1 + 0.05 * normal[3]))
        self.memory = work.memory_mib
        noise = 1 + 0.02 * normal[4]
        self.graphics = np.clip(np.where(work.resident, 0.965 + 0.01 * normal[3], 0.0), 0, 1)
        self.sm = np.clip(0.94 * work.busy * noise + np.where(work.resident, 0.04, 0.0), 0, 1)
        self.tensor = np.clip(np.where(work.busy > 0, 0.46 * work.busy + 0.02 * normal[3], 0.0), 0, 1)
        self.dram = np.clip(0.42 * work.busy * (1 + 0.03 * normal[0]) + 0.012 * (work.load > 0), 0, 1)
        self.link_gen = np.where(active | work.resident, 5.0, 1.0)

    def _count(self, seconds: int, work: Work, watts: Floats) -> None:
        rng = self._rng
        self.energy_mj += np.round(watts * seconds * 1000)
        self.thermal_ns += np.round(np.clip((1 - self.thermal) / 0.05, 0, 1) * seconds * 1e9)
        held = np.where((work.busy > 0.3) & (self.thermal > 0.995), self.cap_share * rng.uniform(0.6, 1.4), 0.0)
        self.power_ns += np.round(held * seconds * 1e9)
        # Inside the node each GPU moves about nine times what its NIC sends.
        self.nvlink_mb += np.round(work.traffic * 9 / 1e6)
        self.pcie_replays += rng.random(self.core.shape) < seconds / 90_000
        errors = (rng.random(self.core.shape) < seconds * 1e-7).astype(float)
        self.ecc_correctable += errors
        self.ecc_correctable_ever += errors
