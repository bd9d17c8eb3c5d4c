"""All GPUs of the fleet as arrays: power, heat, the driver's thermal control, clocks, links, memory errors and counters.

Healthy parts differ: silicon (power and speed at equal work), slot (rear GPUs run hotter), HBM stack. A fault turns
only the knobs (`fleet/knobs.py`) or reports an event (the methods below `# --- events`); everything else follows.
Neuron devices are read from the same arrays: utilisation, memory, ECC errors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.chance import arrivals
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
# Hardware slowdown cuts the clock by a factor of two or more (facts/signals.md §2).
BRAKE_CLOCK = 0.5
# Healthy GPUs are at their power limit for at most about this share of a training step (signals.md §10: 0-0.15 s/s).
MOST_AT_CAP = 0.105
# A clock below this share of what was asked for counts as held back.
HELD_BACK = 0.995
# Bytes a second of one PCIe lane, by generation, and the share of it that data gets.
LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
PCIE_USE = 0.85
# Inside the node each GPU moves about nine times what its NIC sends.
INSIDE_TIMES = 9.0
MIB_OF_JOB = 0.93  # of the usable memory, a job leaves so much to the framework at most

# Clock event bits, signals.md §2.1.
IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 1 << 0, 1 << 2, 1 << 3, 1 << 5, 1 << 6, 1 << 7
# What the driver asks for after an XID (facts/signals.md §2: enumeration; §2.2: immediate actions).
NOTHING, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET = range(5)
RECOVERY = {
    48: DRAIN_AND_RESET, 64: GPU_RESET, 74: GPU_RESET, 79: NODE_REBOOT, 94: DRAIN_AND_RESET, 95: GPU_RESET, 119: GPU_RESET,
    120: GPU_RESET, 140: GPU_RESET, 143: GPU_RESET, 155: GPU_RESET, 156: GPU_RESET, 158: GPU_RESET,
}
# XIDs that DCGM's field does not show (facts/signals.md §0 fact 2): the kernel's log does.
UNSEEN_XIDS = frozenset({62, 79, 119, 120})

# Gauges as shown (a GPU whose firmware hangs keeps its last ones), counters that a driver reload zeroes, and what stays
# with the board.
GAUGES = ("clock", "power", "core", "hbm", "margin", "reasons", "util", "copy_util", "memory", "graphics", "sm", "occupancy",
          "tensor", "dram", "link_gen", "link_width", "power_limit", "pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx")
COUNTERS = ("energy_mj", "power_ns", "thermal_ns", "sw_thermal_ns", "hw_thermal_ns", "brake_ns", "nvlink_mb", "nvlink_crc",
            "nvlink_data_crc", "nvlink_replays", "nvlink_recoveries", "pcie_replays", "ecc_correctable", "ecc_uncorrectable")
BOARD = ("ecc_correctable_ever", "ecc_uncorrectable_ever", "remapped_rows", "uncorrectable_rows", "remap_failed")


class GpuBank:
    """State of every GPU, float64[node, gpu]. `step` moves it on; pages read the arrays named in GAUGES (rates in bytes a
    second), COUNTERS (ns, mJ, MB, counts), BOARD, and `xid` (the last one, 0 = none), `remap_pending`, `present` (False =
    off the bus: it has no series).

    For the jobs: `speed`, share of the full clock that computing gets (heat, power limit, brake, cap); `thermal`, the part
    of it that heat takes; `nvlink_factor` float64[node], at least 1: how much longer exchange inside the node takes.
    """

    clock: Floats
    power: Floats
    margin: Floats
    reasons: Floats
    util: Floats
    copy_util: Floats
    memory: Floats
    graphics: Floats
    sm: Floats
    occupancy: Floats
    tensor: Floats
    dram: Floats
    link_gen: Floats
    link_width: Floats
    power_limit: Floats
    pcie_tx: Floats
    pcie_rx: Floats
    nvlink_tx: Floats
    nvlink_rx: Floats
    sw_thermal_ns: Floats
    hw_thermal_ns: Floats
    brake_ns: Floats
    thermal_ns: Floats
    nvlink_crc: Floats
    nvlink_data_crc: Floats
    nvlink_replays: Floats
    nvlink_recoveries: Floats
    ecc_correctable: Floats
    ecc_uncorrectable: Floats

    def __init__(self, kind: NodeType, nodes: int, rng: np.random.Generator, knobs: GpuKnobs) -> None:
        shape = (nodes, kind.gpus)
        self.kind, self._rng, self.knobs = kind, rng, knobs
        self.silicon = 1.0 + np.clip(rng.normal(0, 0.012, shape), -0.03, 0.03)
        self.slowness = 1.0 + np.clip(rng.normal(0, 0.005, shape), -0.012, 0.012)
        slot = np.linspace(-3.2, 3.4, kind.gpus)
        self.offset = slot + np.clip(rng.normal(0, 0.7, shape), -1.5, 1.5)
        self.hbm_offset = rng.uniform(-4.0, 4.5, shape)
        self.cap_share = np.minimum(MOST_AT_CAP, rng.beta(2.0, 24.0, shape))
        self.thermal, self.speed = np.ones(shape), np.ones(shape)
        self.nvlink_factor = np.ones(nodes)
        self._core = kind.air_celsius + 1.0 + self.offset + kind.resistance * kind.idle_watts
        self._hbm = self._core + self.hbm_offset
        self._wobble = np.zeros(shape)
        self._seed, self._steps = int(rng.integers(1 << 62)), 0
        self._limited: NDArray[np.bool_] = np.zeros(shape, bool)
        self.present: NDArray[np.bool_] = np.ones(shape, bool)
        self._init_samples(shape)
        self._init_counters(shape, rng)

    def _init_samples(self, shape: tuple[int, int]) -> None:
        kind = self.kind
        for name in GAUGES:
            setattr(self, name, np.zeros(shape))
        self.core, self.hbm = self._core.copy(), self._hbm.copy()
        self.clock = np.full(shape, float(kind.idle_clock_mhz))
        self.power = np.full(shape, kind.idle_watts)
        self.power_limit = np.full(shape, kind.limit_watts)
        self.margin = np.full(shape, 50.0)
        self.reasons = np.full(shape, float(IDLE))
        self.link_gen = np.ones(shape)
        self.link_width = np.full(shape, float(kind.pcie_width))

    def _init_counters(self, shape: tuple[int, int], rng: np.random.Generator) -> None:
        for name in (*COUNTERS, *BOARD):
            setattr(self, name, np.zeros(shape))
        self.energy_mj = rng.uniform(4e11, 9e11, shape)
        self.power_ns = rng.uniform(1e13, 5e13, shape)
        self.nvlink_mb = rng.uniform(1e9, 2e9, shape)
        self.pcie_replays = np.floor(rng.uniform(0, 12.99, shape))
        self.ecc_correctable_ever = np.floor(rng.exponential(0.6, shape))
        self.remapped_rows = np.where(rng.random(shape) < 0.04, 1.0, 0.0)
        self.ecc_uncorrectable_ever = np.zeros(shape)
        self.uncorrectable_rows = np.where(rng.random(shape) < 0.01, 1.0, 0.0)
        self.xid, self.remap_pending, self.remap_failed = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._asked = np.zeros(shape)

    # --- events ------------------------------------------------------------------------------------------------------
    def uncorrectable(self, node: int, gpu: int) -> None:
        """A double-bit error: the volatile and the lifetime counter. Rows are counted by `remapped`."""
        self.ecc_uncorrectable[node, gpu] += 1
        self.ecc_uncorrectable_ever[node, gpu] += 1

    def pending_row(self, node: int, gpu: int) -> None:
        """A row waits for a reset to be remapped."""
        self.remap_pending[node, gpu] = 1.0
        self.ask(node, gpu, GPU_RESET)

    def failed_row(self, node: int, gpu: int) -> None:
        """No spare row was left for a bad one. Stays with the board."""
        self.remap_failed[node, gpu] = 1.0

    def remapped(self, node: int, gpu: int, correctable: bool) -> None:
        """The driver has recorded a row for remapping, after correctable errors or after one that was not."""
        rows = self.remapped_rows if correctable else self.uncorrectable_rows
        rows[node, gpu] += 1

    def xid_seen(self, node: int, gpu: int, code: int) -> None:
        """The driver reported an XID: DCGM's field keeps it (unless it is one that DCGM does not show), and the driver asks
        for what cures it. Lines are written by `KernelLogs.xid`, which calls this."""
        if code not in UNSEEN_XIDS:
            self.xid[node, gpu] = code
        self.ask(node, gpu, RECOVERY.get(code, NOTHING))

    def ask(self, node: int, gpu: int, action: int) -> None:
        """The driver wants this recovery action, unless it wants a greater one already. A reset ends it."""
        self._asked[node, gpu] = max(self._asked[node, gpu], action)

    def asked(self, node: int, gpu: int) -> int:
        """The recovery action that the driver wants of a GPU since its last reset."""
        return int(self._asked[node, gpu])

    @property
    def remap_failure(self) -> Floats:
        """1 where no spare row was left for a bad one."""
        return np.maximum(self.remap_failed, self.knobs.remap_failed)

    @property
    def recovery_action(self) -> Floats:
        """What the driver asks for: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset."""
        return np.where(self.knobs.lost > 0, float(NODE_REBOOT), np.where(self.knobs.stuck > 0, float(GPU_RESET), self._asked))

    def banks(self) -> Floats:
        """Memory banks by how many spare rows they have left, float64[5, node, gpu]: all, most, some, few, none."""
        used = self.remapped_rows + self.uncorrectable_rows
        none = self.remap_failure
        zero = np.zeros(used.shape)
        return np.stack([self.kind.memory_banks - used - none, used, zero, zero, none])

    def reset(self, rows: NDArray[np.int64] | int, gpu: int | None = None) -> None:
        """Zeroes what a driver reload zeroes, and remaps pending rows; lifetime ECC counts and remapped rows stay with the
        board."""
        at = (rows, slice(None)) if gpu is None else (rows, slice(gpu, gpu + 1))
        for name in (*COUNTERS, "xid", "remap_pending", "_asked"):
            getattr(self, name)[at] = 0.0

    def new_board(self, node: int, gpu: int) -> None:
        """Another board in the slot: nothing that it counts has happened yet."""
        self.reset(node, gpu)
        for name in BOARD:
            getattr(self, name)[node, gpu] = 0.0

    # --- time --------------------------------------------------------------------------------------------------------
    def step(self, seconds: int, work: Work, inlet: Floats) -> None:
        """Moves all GPUs on by whole seconds. inlet: air temperature, float64[node]."""
        stuck = self.knobs.stuck > 0
        frozen = stuck.any()
        before = {name: getattr(self, name).copy() for name in (*GAUGES, *COUNTERS)} if frozen else {}
        self.present = self.knobs.lost < 1
        self._steps += 1
        watts = self._heat(seconds, work, inlet[:, None] + self.offset)
        self._sample(work, watts)
        self._links(seconds, work)
        self._count(seconds, work, watts)
        for name, values in before.items():
            now = getattr(self, name)
            now[stuck] = values[stuck]

    def _heat(self, seconds: int, work: Work, air: Floats) -> Floats:
        """Mean power of the span; moves temperatures and the driver's control of the clock on."""
        kind, knobs = self.kind, self.knobs
        idle: Floats = np.where(self.present, kind.idle_watts, 0.0)
        asked: Floats = np.where(self.present, kind.load_watts * work.load * self.silicon * knobs.demand, 0.0)
        self.power_limit = kind.limit_watts * knobs.power_limit
        room = np.maximum(self.power_limit - idle, 1.0)
        ceiling = np.where(knobs.brake > 0, np.minimum(BRAKE_CLOCK, knobs.clock_cap), knobs.clock_cap)
        # The clock gives way where full clock would take more than the board's limit.
        self._limited = asked * ceiling**POWER_EXPONENT > room if (asked > room).any() else np.zeros(asked.shape, bool)
        drive: Floats = ceiling.copy()
        drive[self._limited] = (room[self._limited] / asked[self._limited]) ** (1 / POWER_EXPONENT)
        resistance = kind.resistance * knobs.cooling
        clock = np.minimum(self.thermal, drive)
        # Most of the time nothing is held back: powers and heat loops are for those that are.
        watts = idle + (asked if clock.min() == 1 else asked * clock**POWER_EXPONENT)
        core, hbm = self._cooled(seconds, air + resistance * watts)
        beyond = np.maximum(core - kind.core_limit, hbm - kind.hbm_limit)
        warm = (beyond > 0) | (self.thermal < 1)
        if warm.any():
            found = self._throttled(seconds, warm, (air[warm], resistance[warm], idle[warm], asked[warm], drive[warm]))
            core[warm], hbm[warm], self.thermal[warm], watts[warm] = found
        self._core, self._hbm = core, hbm
        self.speed = np.minimum(self.thermal, drive)
        self._limited &= self.speed < HELD_BACK * ceiling
        return watts

    def _cooled(self, seconds: float, target: Floats) -> tuple[Floats, Floats]:
        """Core and HBM after a span at constant power: the exact solution of two lags in a row."""
        a, b = 1 / CORE_LAG_SECONDS, 1 / HBM_LAG_SECONDS
        fast, slow = math.exp(-a * seconds), math.exp(-b * seconds)
        away = self._core - target
        follows = away * (b / (b - a))
        end = target + self.hbm_offset
        return target + away * fast, end + follows * fast + (self._hbm - end - follows) * slow

    def _throttled(self, seconds: int, at: NDArray[np.bool_], inputs: tuple[Floats, Floats, Floats, Floats, Floats]
                   ) -> tuple[Floats, Floats, Floats, Floats]:
        """The same for GPUs at their limit, second by second, as heat and clock act on each other. inputs: air, thermal
        resistance, idle power, power asked for, greatest clock. Gives core, HBM, the thermal share of the clock, mean power."""
        kind, (air, resistance, idle, asked, drive) = self.kind, inputs
        core, hbm, thermal = self._core[at], self._hbm[at], self.thermal[at]
        core_gain, hbm_gain = 1 - math.exp(-1 / CORE_LAG_SECONDS), 1 - math.exp(-1 / HBM_LAG_SECONDS)
        total = np.zeros(core.shape)
        for _ in range(seconds):
            watts = idle + asked * np.minimum(thermal, drive) ** POWER_EXPONENT
            core = core + core_gain * (air + resistance * watts - core)
            hbm = hbm + hbm_gain * (core + self.hbm_offset[at] - hbm)
            beyond = np.maximum(0.0, np.maximum(core - kind.core_limit, hbm - kind.hbm_limit))
            thermal = np.maximum(LEAST_CLOCK, 1.0 - CLOCK_PER_DEGREE * beyond)
            total += watts
        return core, hbm, thermal, total / seconds

    def _sample(self, work: Work, watts: Floats) -> None:
        kind, rng, shape = self.kind, self._rng, self._core.shape
        normal = rng.normal(0, 1, (5, *shape))
        uniform = rng.random((3, *shape))
        active = work.load > 0.02
        there = active | work.resident
        hot, braked = self.thermal < HELD_BACK, self.knobs.brake > 0
        # A kernel mix that runs into the limit for a moment is usual for a GPU in boost; one that is held back cannot.
        self._boosts = (work.busy > 0.3) & (self.speed >= HELD_BACK)
        dips = self._boosts & (uniform[0] < self.cap_share)
        self.core, self.hbm = self._core.copy(), self._hbm.copy()
        self.margin = np.minimum(kind.core_limit - self.core, kind.hbm_limit - self.hbm) - 0.4 * np.abs(normal[0])
        down = np.where(dips, np.floor(1 + 19 * uniform[1]), 0.0)
        self._slowed = bool(self.speed.min() < 1) or bool(braked.any())
        if self._slowed:
            jitter = np.where(hot | self._limited, np.rint(normal[1]), 0.0)
            down += np.rint((1 - self.speed) * kind.max_clock_mhz / kind.clock_step_mhz) - jitter
        fast = np.minimum(np.maximum(kind.max_clock_mhz - down * kind.clock_step_mhz, kind.idle_clock_mhz), kind.max_clock_mhz)
        self.clock = np.where(there, fast, kind.idle_clock_mhz)
        self._wobble = 0.7 * self._wobble + np.where(active, 8.5, 0.35) * normal[2]
        at_cap = self.power_limit * (0.958 + 0.04 * uniform[2])
        measured = np.where(dips | self._limited, at_cap, watts + self._wobble)
        self.power = np.minimum(np.maximum(measured, 0.79 * kind.idle_watts), self.power_limit)
        bits = np.where(dips | self._limited, POWER_CAP, 0) + np.where(there, 0, IDLE)
        if self._slowed:
            self._deep = hot & (self.margin < kind.slowdown_margin)
            bits += np.where(hot, SW_THERMAL, 0) + np.where(self._deep, HW_THERMAL, 0) + np.where(braked, POWER_BRAKE, 0)
            bits += np.where(self._deep | braked, HW_SLOWDOWN, 0)
        self.reasons = bits.astype(np.float64)
        self._activity(work, there, active, normal, uniform)

    def _activity(self, work: Work, there: NDArray[np.bool_], active: NDArray[np.bool_], normal: Floats, uniform: Floats) -> None:
        usable = float(self.kind.memory_mib - self.kind.reserved_mib)
        self.util = np.where(work.resident, 100.0 - (uniform[1] < 0.15), np.where(active, 3.0, 0.0))
        self.copy_util = np.rint(35 * work.busy * (1 + 0.05 * normal[3]))
        self.memory = np.minimum(np.minimum(work.memory_mib, MIB_OF_JOB * usable) + self.knobs.leaked_mib, usable)
        self.graphics = np.where(work.resident, np.minimum(0.965 + 0.01 * normal[3], 1.0), 0.0)
        self.sm = np.minimum(0.94 * work.busy * (1 + 0.02 * normal[4]) + 0.04 * work.resident, 1.0)
        self.occupancy = 0.3 * self.sm * (1 + 0.02 * normal[1])
        # Kernels that take longer for the same work keep their warps on the SMs, and give the tensor pipe no more to do.
        self.tensor = np.where(work.busy > 0, np.maximum(0.46 * (work.busy - work.stalled) + 0.02 * normal[3], 0.0), 0.0)
        self.dram = 0.42 * work.busy * (1 + 0.03 * normal[0]) + 0.012 * (work.load > 0)
        most = np.where(self.knobs.pcie_gen > 0, np.minimum(self.knobs.pcie_gen, self.kind.pcie_gen), self.kind.pcie_gen)
        self._gen = most
        self.link_gen = np.where(there, most, 1.0)
        self.link_width = np.minimum(self.knobs.pcie_width, self.kind.pcie_width)

    def _links(self, seconds: int, work: Work) -> None:
        """Rates of PCIe and NVLink: PCIe up to what its lanes and generation carry."""
        kind = self.kind
        full = LANE_BYTES[kind.pcie_gen] * kind.pcie_width * PCIE_USE
        share = self.link_width / kind.pcie_width
        if (self._gen != kind.pcie_gen).any():
            share = share * np.interp(self._gen, list(LANE_BYTES), list(LANE_BYTES.values())) / LANE_BYTES[kind.pcie_gen]
        capacity = full * share
        sent = work.traffic / seconds
        # Data from the host beside what passes between GPU and NIC.
        self.pcie_tx = np.minimum(capacity, sent + 2.5e6 + 4e7 * work.busy)
        self.pcie_rx = np.minimum(capacity, sent + 3.5e6 + 2.6e8 * work.busy)
        self.nvlink_tx = np.minimum(kind.nvlinks * kind.nvlink_bytes_per_second * self.knobs.nvlink, INSIDE_TIMES * sent)
        self.nvlink_rx = self.nvlink_tx.copy()
        self.nvlink_factor = 1.0 / np.maximum(0.01, self.knobs.nvlink.min(axis=1))

    def _count(self, seconds: int, work: Work, watts: Floats) -> None:
        knobs, uniform, span = self.knobs, self._rng.random((2, *self._core.shape)), seconds * 1e9
        self.energy_mj += np.rint(watts * seconds * 1000)
        if self._slowed:
            self.thermal_ns += np.rint(np.minimum((1 - self.thermal) / 0.05, 1.0) * span)
            self.sw_thermal_ns += np.where(self.thermal < HELD_BACK, span, 0.0)
            self.hw_thermal_ns += np.where(self._deep, span, 0.0)
            self.brake_ns += np.where(knobs.brake > 0, span, 0.0)
        dips = np.where(self._boosts, self.cap_share * (0.6 + 0.8 * uniform[0]), 0.0)
        self.power_ns += np.rint(np.where(self._limited, 0.97 + 0.03 * uniform[0], dips) * span)
        self.nvlink_mb += np.rint(work.traffic * INSIDE_TIMES / 1e6)
        # A replay a day, and a correctable error in a hundred days and more, are usual.
        errors = (uniform[1] > 1 - seconds * 1e-7).astype(float)
        self.pcie_replays += uniform[1] < seconds / 90_000
        if (knobs.pcie_replays_per_second + knobs.correctable_per_second + knobs.nvlink_errors_per_second).any():
            errors += self._faulty(seconds, work)
        self.ecc_correctable += errors
        self.ecc_correctable_ever += errors

    def _faulty(self, seconds: int, work: Work) -> Floats:
        """Counts what faults bring about; gives the correctable memory errors. Draws of its own for each moment, so that
        nothing else draws otherwise because of it."""
        knobs, shape = self.knobs, self._core.shape
        rng = np.random.default_rng((self._seed, self._steps))
        uniform, normal = rng.random((4, *shape)), rng.normal(0, 1, (3, *shape))
        self.pcie_replays += arrivals(knobs.pcie_replays_per_second * seconds, uniform[0], normal[0])
        bad = arrivals(knobs.nvlink_errors_per_second * seconds, uniform[1], normal[1])
        # A link that fails a check replays the packet; of replays a few end in a retrained link.
        data = np.floor(0.3 * bad)
        self.nvlink_crc += bad - data
        self.nvlink_data_crc += data
        self.nvlink_replays += bad
        self.nvlink_recoveries += np.where(bad > 0, np.floor(0.02 * bad + uniform[3]), 0.0)
        # Memory that is not read shows no errors.
        mean = knobs.correctable_per_second * seconds * (0.02 + 0.98 * work.busy)
        return arrivals(mean, uniform[2], normal[2])
