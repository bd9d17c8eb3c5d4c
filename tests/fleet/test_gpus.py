"""GPUs as arrays: healthy days within real ranges, and what each knob and event shows and leaves as it was."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fleet import gpus as bank_of
from fleet.chance import arrivals
from fleet.gpus import BRAKE_CLOCK, CORE_LAG_SECONDS, HBM_LAG_SECONDS, GpuBank
from fleet.hardware import NODE_TYPES
from fleet.knobs import GpuKnobs
from fleet.work import Work

H100 = NODE_TYPES["h100-8x-roce"]
AIR = 23.0


def bank(kind=H100, nodes=2, seed=1):
    """A bank with its knobs."""
    return GpuBank(kind, nodes, np.random.default_rng(seed), GpuKnobs(nodes, kind.gpus))


def load(kind=H100, nodes=2, share=0.9, busy=0.8, resident=True):
    """Work of a job on all GPUs."""
    work = Work.idle(nodes, kind.gpus)
    work.load[:], work.busy[:], work.resident[:] = share, busy, resident
    work.memory_mib[:] = 71_500.0 if resident else 0.0
    work.traffic[:] = 3e10 if busy else 0.0
    return work


def run(one, work, seconds=600, air=AIR, **knobs):
    """Steps with knobs that stay turned: name=(index, value)."""
    inlet = np.full(len(one.core), air)
    for _ in range(seconds // 5):
        one.knobs.reset()
        for name, (at, value) in knobs.items():
            getattr(one.knobs, name)[at] = value
        one.step(5, work, inlet)
    return one


def settled(**knobs):
    """An H100 bank ten minutes into training."""
    return run(bank(), load(), **knobs)


GPU = (0, 3)
OTHERS = np.ones((2, 8), bool)
OTHERS[GPU] = False


# --- healthy ranges ---------------------------------------------------------------------------------------------------
# facts/signals.md §2 and §10, in full training: lowest and highest value of any GPU on any hour of a day.
TRAINING = {
    "core": (38, 75), "hbm": (36, 80), "margin": (10, 60), "util": (99, 100), "copy_util": (20, 60), "sm": (0.7, 0.95),
    "occupancy": (0.15, 0.4), "tensor": (0.25, 0.5), "dram": (0.2, 0.5), "graphics": (0.9, 1.0),
}


def _day(kind):
    """A day of training in steps of 10 minutes, the air moving as it does in a hall."""
    one, work = bank(kind, 3), load(kind, 3)
    for step in range(144):
        air = kind.air_celsius + 2.2 * math.sin(2 * math.pi * step / 144)
        one.step(600, work, np.full(3, air))
        if step > 2:
            yield one


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_a_healthy_training_day_stays_in_real_ranges(kind):
    """Each kind's gauges stay in the ranges of real parts, its bits are never thermal, its thermal time does not move."""
    seen, bits, clocks, power = {name: [] for name in TRAINING}, set(), [], []
    for one in _day(kind):
        for name, values in seen.items():
            shown = getattr(one, name)
            values += [shown.min(), shown.max()]
        bits |= set(one.reasons.ravel().astype(int))
        clocks += [one.clock.min(), one.clock.max()]
        power += [one.power.min(), one.power.max()]
    for name, values in seen.items():
        low, high = TRAINING[name]
        assert low <= min(values), name
        assert max(values) <= high, name
    assert bits == {0, 4}
    assert one.thermal_ns.max() == one.hw_thermal_ns.max() == one.brake_ns.max() == 0
    assert max(clocks) == kind.max_clock_mhz
    assert min(clocks) > 0.65 * kind.max_clock_mhz or min(clocks) >= kind.max_clock_mhz - 20 * kind.clock_step_mhz
    assert kind.idle_watts + 0.6 * kind.load_watts < min(power)
    assert max(power) <= kind.limit_watts
    assert one.memory.max() <= kind.memory_mib - kind.reserved_mib


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_counters_of_a_healthy_day_move_as_real_ones(kind):
    """Energy is power over time, a replay a day or so, hardly an ECC error, power-limit time 0-0.15 s/s, NVLink errors none."""
    one, work = bank(kind, 3), load(kind, 3)
    before = {name: getattr(one, name).copy() for name in (*bank_of.COUNTERS, *bank_of.BOARD)}
    for _ in range(144):
        one.step(600, work, np.full(3, kind.air_celsius))
    moved = {name: getattr(one, name) - values for name, values in before.items()}
    day = 86_400
    assert np.allclose(moved["energy_mj"] / day / 1000, kind.idle_watts + 0.9 * kind.load_watts * one.silicon, rtol=0.02)
    assert 0 < moved["power_ns"].min() <= moved["power_ns"].max() < 0.15e9 * day
    assert 0 <= moved["pcie_replays"].max() <= 8
    assert moved["ecc_correctable"].max() <= 1
    for name in ("nvlink_crc", "nvlink_data_crc", "nvlink_replays", "nvlink_recoveries", "ecc_uncorrectable", "remapped_rows",
                 "uncorrectable_rows", "remap_failed", "thermal_ns"):
        assert not moved[name].any(), name
    assert all((values >= 0).all() for values in moved.values())


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_an_idle_gpu_shows_rest(kind):
    """Idle power and clock, cool, bit 1, PCIe generation 1 at full width, no memory held."""
    one = run(bank(kind), load(kind, share=0.0, busy=0.0, resident=False), air=kind.air_celsius)
    assert np.abs(one.power - kind.idle_watts).max() < 5
    assert (one.clock == kind.idle_clock_mhz).all()
    assert (one.reasons == 1).all()
    assert one.core.min() >= 22
    assert one.core.max() <= 40
    assert (one.link_gen == 1).all()
    assert (one.link_width == kind.pcie_width).all()
    assert one.util.max() == one.memory.max() == one.tensor.max() == 0


def test_a_hang_is_full_utilisation_at_little_power():
    """Kernels that spin in a collective: utilisation 100, 120-250 W, no tensor activity (signals.md §11)."""
    one = run(bank(), load(share=0.155, busy=0.0))
    assert one.util.min() >= 99
    assert one.power.min() > 100
    assert one.power.max() < 250
    assert one.tensor.max() == 0


# --- heat -------------------------------------------------------------------------------------------------------------
def test_one_long_step_is_many_short_ones():
    """Temperatures follow the exact solution: 60 s in one step is 12 steps of 5 s."""
    short, long = bank(), bank()
    for one, seconds in ((short, 5), (long, 60)):
        for _ in range(60 // seconds):
            one.step(seconds, load(), np.full(2, AIR))
    assert np.allclose(short.core, long.core, atol=1e-9)
    assert np.allclose(short.hbm, long.hbm, atol=1e-9)


def test_core_and_memory_follow_load_with_their_lags():
    """After one lag the core has gone 63 % of the way; the HBM is behind it."""
    one = run(bank(), load(share=0.0, busy=0.0, resident=False), 1200)
    core, hbm = one.core.copy(), one.hbm.copy()
    one.step(int(CORE_LAG_SECONDS), load(), np.full(2, AIR))
    step = AIR + one.offset + H100.resistance * (H100.idle_watts + 0.9 * H100.load_watts * one.silicon) - core
    assert np.allclose((one.core - core) / step, 1 - math.exp(-1), atol=0.001)
    assert ((one.hbm - hbm) / step < 0.5 * (1 - math.exp(-CORE_LAG_SECONDS / HBM_LAG_SECONDS))).all()


def test_bad_cooling_heats_one_gpu_and_slows_it():
    """Heat past the limit: margin gone, thermal bits and time, a lower clock and speed; neighbours stay as they were."""
    calm, hot = settled(), settled(cooling=(GPU, 2.4))
    assert hot.core[GPU] > 80
    assert hot.margin[GPU] < 1
    assert int(hot.reasons[GPU]) & 0x20
    assert hot.thermal_ns[GPU] > 60e9
    assert hot.sw_thermal_ns[GPU] > 60e9
    assert hot.clock[GPU] < 0.9 * H100.max_clock_mhz
    assert hot.speed[GPU] < 0.9
    assert hot.power[GPU] < calm.power[GPU]
    for name in ("core", "clock", "reasons", "power", "thermal_ns", "speed"):
        assert np.array_equal(getattr(hot, name)[OTHERS], getattr(calm, name)[OTHERS]), name


def test_deep_overheating_is_a_hardware_slowdown():
    """Beyond the slowdown margin the hardware bits come as well."""
    one = settled(cooling=(GPU, 6.0))
    assert one.margin[GPU] < H100.slowdown_margin
    assert int(one.reasons[GPU]) & 0x68 == 0x68
    assert one.hw_thermal_ns[GPU] > 0


def test_a_gpu_cools_down_when_its_cooling_is_well_again():
    """Nothing of the heat is left after a while."""
    one = run(settled(cooling=(GPU, 2.4)), load(), 600)
    assert np.allclose(one.core, settled().core, atol=0.1)
    assert one.thermal[GPU] == one.speed[GPU] == 1.0


# --- power and clocks -------------------------------------------------------------------------------------------------
def test_a_lower_power_limit_pins_the_power_and_lowers_the_clock():
    """Bit 4, nearly all the time at the limit, power within 5 % of it; no thermal bit, and cooler than before."""
    calm, one = settled(), settled(power_limit=(GPU, 0.6))
    assert one.power_limit[GPU] == 0.6 * H100.limit_watts
    assert 0.94 * one.power_limit[GPU] <= one.power[GPU] <= one.power_limit[GPU]
    assert int(one.reasons[GPU]) == 4
    assert one.speed[GPU] < 0.95
    assert one.clock[GPU] < 0.97 * H100.max_clock_mhz
    assert (one.power_ns - calm.power_ns)[GPU] > 0.8 * 600e9
    assert one.core[GPU] < calm.core[GPU]
    assert one.thermal_ns[GPU] == 0


def test_denser_kernels_reach_the_limit_by_themselves():
    """A kernel mix that asks for more than the limit lowers the clock at full power: usual boost behaviour."""
    one = settled(demand=((slice(None), slice(None)), 1.5))
    assert one.power.min() > 0.95 * H100.limit_watts
    assert (one.reasons.astype(int) == 4).all()
    assert 0.7 < one.speed.min() <= one.speed.max() < 1


def test_the_power_brake_halves_the_clock_with_its_bits():
    """Bits 0x88, clock at half or less, power far down, brake time; no heat."""
    calm, one = settled(), settled(brake=(GPU, 1.0))
    assert int(one.reasons[GPU]) == 0x88
    assert one.clock[GPU] <= 0.52 * H100.max_clock_mhz
    assert one.speed[GPU] == BRAKE_CLOCK
    assert one.power[GPU] < 0.5 * calm.power[GPU]
    assert one.brake_ns[GPU] == 600e9
    assert one.thermal_ns[GPU] == 0


def test_a_capped_clock_says_no_reason():
    """Lower clock and power, and all bits clear."""
    one = settled(clock_cap=(GPU, 0.7))
    assert 0.68 < one.clock[GPU] / H100.max_clock_mhz < 0.72
    assert one.speed[GPU] == pytest.approx(0.7)
    assert int(one.reasons[GPU]) & ~4 == 0
    assert one.power[GPU] < 0.7 * H100.limit_watts


# --- memory, links ----------------------------------------------------------------------------------------------------
def test_correctable_errors_come_at_their_rate_under_load_only():
    """Volatile and lifetime counters rise together; memory that is not read shows hardly any."""
    busy = settled(correctable_per_second=(GPU, 50.0))
    idle = run(bank(), load(share=0.0, busy=0.0, resident=False), correctable_per_second=(GPU, 50.0))
    fresh = bank()
    assert busy.ecc_correctable[GPU] == pytest.approx(600 * 50 * 0.804, rel=0.05)
    assert busy.ecc_correctable_ever[GPU] - fresh.ecc_correctable_ever[GPU] == busy.ecc_correctable[GPU]
    assert idle.ecc_correctable[GPU] < 0.05 * busy.ecc_correctable[GPU]
    assert busy.ecc_correctable[OTHERS].max() == 0


def test_leaked_memory_is_held_when_no_job_is_there():
    """Memory in use without work, at most all that there is."""
    one = run(bank(), load(share=0.0, busy=0.0, resident=False), leaked_mib=(GPU, 30_000.0))
    assert one.memory[GPU] == 30_000
    assert one.memory[OTHERS].max() == 0
    assert settled(leaked_mib=(GPU, 30_000.0)).memory[GPU] == H100.memory_mib - H100.reserved_mib


@pytest.mark.parametrize(("knob", "value", "width", "gen", "share"), [
    ("pcie_width", 8.0, 8, 5, 0.5), ("pcie_width", 1.0, 1, 5, 0.0625), ("pcie_gen", 3.0, 16, 3, 0.25)])
def test_a_narrow_pcie_link_shows_and_carries_less(knob, value, width, gen, share):
    """Width or generation under load, and bytes that stop at what the link carries."""
    work = load()
    work.traffic[:] = 5 * 4.5e10
    one = run(bank(), work, 60, **{knob: (GPU, value)})
    assert (one.link_width[GPU], one.link_gen[GPU]) == (width, gen)
    full = 16 * 3.938e9 * bank_of.PCIE_USE
    assert one.pcie_tx[GPU] == pytest.approx(min(4.5e10, share * full), rel=0.02)
    assert (one.link_width[OTHERS] == 16).all()
    assert (one.link_gen[OTHERS] == 5).all()


def test_pcie_replays_come_at_their_rate():
    """The counter of one GPU rises."""
    one, calm = settled(pcie_replays_per_second=(GPU, 0.5)), settled()
    moved = one.pcie_replays - calm.pcie_replays
    assert 200 < moved[GPU] < 400
    assert not moved[OTHERS].any()


def test_nvlink_errors_are_crc_replays_and_a_few_recoveries():
    """Error counters of one GPU rise, each replay for a CRC error; the node's inner exchange slows by what is lost."""
    one = settled(nvlink_errors_per_second=(GPU, 5.0), nvlink=(GPU, 0.5))
    crc = one.nvlink_crc + one.nvlink_data_crc
    assert crc[GPU] == one.nvlink_replays[GPU] == pytest.approx(3000, rel=0.1)
    assert 0 < one.nvlink_recoveries[GPU] < 0.1 * crc[GPU]
    assert crc[OTHERS].max() == 0
    assert list(one.nvlink_factor) == [2.0, 1.0]


def test_a_lost_gpu_is_not_present_and_draws_nothing():
    """Off the bus: no series, no power, and a reboot is what the driver asks for."""
    one = settled(lost=(GPU, 1.0))
    assert not one.present[GPU]
    assert one.present[OTHERS].all()
    assert one.core[GPU] < 30
    assert one.recovery_action[GPU] == bank_of.NODE_REBOOT


def test_a_gpu_whose_firmware_hangs_keeps_its_last_values():
    """All it shows stands still while the others move; it asks for a reset."""
    one = settled()
    before = {name: getattr(one, name).copy() for name in (*bank_of.GAUGES, *bank_of.COUNTERS)}
    run(one, load(), 60, stuck=(GPU, 1.0))
    for name, values in before.items():
        assert getattr(one, name)[GPU] == values[GPU], name
    assert (one.energy_mj > before["energy_mj"])[OTHERS].all()
    assert (one.power != before["power"])[OTHERS].any()
    assert one.recovery_action[GPU] == bank_of.GPU_RESET


@pytest.mark.parametrize("mean", [0.0, 0.01, 0.7, 3.0, 5.9, 6.1, 40.0, 1e5])
def test_counts_from_ready_draws_are_poisson(mean):
    """Whole numbers with the mean and the variance of a Poisson, below and above the change of form."""
    rng = np.random.default_rng(4)
    counts = arrivals(np.full(20_000, mean), rng.random(20_000), rng.normal(0, 1, 20_000))
    assert np.array_equal(counts, np.floor(counts))
    assert counts.min() >= 0
    assert counts.mean() == pytest.approx(mean, rel=0.05, abs=0.004)
    assert counts.var() == pytest.approx(mean, rel=0.06, abs=0.01)


# --- events and resets ------------------------------------------------------------------------------------------------
def struck():
    """A GPU that has met all that can happen to its memory."""
    one = settled(correctable_per_second=(GPU, 5.0), nvlink_errors_per_second=(GPU, 5.0))
    one.uncorrectable(*GPU)
    one.remapped(*GPU, False)
    one.remapped(*GPU, True)
    one.pending_row(*GPU)
    one.failed_row(*GPU)
    one.xid_seen(*GPU, 95)
    one.knobs.reset()
    return one


def test_memory_events_show_in_their_counters():
    """Volatile and lifetime errors, rows by cause, the pending and the failure flag, the XID, the recovery action."""
    one, fresh = struck(), bank()
    assert one.ecc_uncorrectable[GPU] == 1
    assert one.ecc_uncorrectable_ever[GPU] == 1
    assert one.uncorrectable_rows[GPU] == fresh.uncorrectable_rows[GPU] + 1
    assert one.remapped_rows[GPU] == fresh.remapped_rows[GPU] + 1
    assert (one.remap_pending[GPU], one.remap_failure[GPU], one.xid[GPU]) == (1, 1, 95)
    assert one.recovery_action[GPU] == bank_of.GPU_RESET
    assert one.banks()[:, 0, 3].sum() == H100.memory_banks
    assert one.banks()[4, 0, 3] == 1


@pytest.mark.parametrize("gpu", [3, None])
def test_a_reset_clears_what_a_reset_clears(gpu):
    """Volatile counts, pending rows and the XID go, on the GPU alone where one is named; the board keeps the rest."""
    one = struck()
    kept = {name: getattr(one, name).copy() for name in bank_of.BOARD}
    energy = one.energy_mj.copy()
    one.reset(0, gpu)
    for name in (*bank_of.COUNTERS, "xid", "remap_pending"):
        assert getattr(one, name)[GPU] == 0, name
    assert one.recovery_action[GPU] == bank_of.NOTHING
    for name, values in kept.items():
        assert np.array_equal(getattr(one, name), values), name
    assert (one.energy_mj[0, 0] == energy[0, 0]) == (gpu is not None)
    assert np.array_equal(one.energy_mj[1], energy[1])


def test_a_new_board_has_no_past():
    """Lifetime counts and remapped rows go with the old board."""
    one = struck()
    one.new_board(*GPU)
    assert all(getattr(one, name)[GPU] == 0 for name in (*bank_of.BOARD, *bank_of.COUNTERS))


@pytest.mark.parametrize("code", sorted(bank_of.UNSEEN_XIDS))
def test_dcgm_does_not_see_every_xid(code):
    """The field keeps the one before (signals.md §0 fact 2)."""
    one = bank()
    one.xid_seen(*GPU, 31)
    one.xid_seen(*GPU, code)
    assert one.xid[GPU] == 31


def test_a_sticky_xid_stays_after_recovery():
    """The last XID stands until a reset, however long ago it was."""
    one = bank()
    one.xid_seen(*GPU, 31)
    run(one, load(), 600)
    assert one.xid[GPU] == 31


def test_the_greater_recovery_action_stands():
    """An informational XID does not take back what a grave one asked for."""
    one = bank()
    one.xid_seen(*GPU, 94)
    one.xid_seen(*GPU, 63)
    assert one.recovery_action[GPU] == bank_of.DRAIN_AND_RESET


def test_faulty_parts_do_not_change_what_others_draw():
    """Two banks of a seed, one with every kind of fault on one GPU: all others are bit for bit the same."""
    calm = settled()
    turned = {name: (GPU, 0.5 if healthy else 1.0) for name, healthy in GpuKnobs.HEALTHY.items() if name != "stuck"}
    ill = settled(**turned)
    for name in (*bank_of.GAUGES, *bank_of.COUNTERS):
        assert np.array_equal(getattr(ill, name)[OTHERS], getattr(calm, name)[OTHERS]), name
