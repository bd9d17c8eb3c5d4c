"""Hosts, shared storage and kernel logs: healthy days within real ranges, and what each knob and event shows."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.sources.kernel_log import parse_line
from core.protocols import TargetInfo
from fleet.gpus import UNSEEN_XIDS, GpuBank
from fleet.hardware import NODE_TYPES, build_nodes
from fleet.hosts import DISKS, HUNG_FACTOR, MODES, HostBank
from fleet.knobs import GpuKnobs, HostKnobs, StorageKnobs
from fleet.logs import DETAILS, KernelLogs
from fleet.storage import READ_STRIPES, StorageBank
from fleet.work import Work

H100 = NODE_TYPES["h100-8x-roce"]
START = 1_767_225_600_000
NODES, TARGETS = 3, 8


class Rig:
    """Hosts and storage of a few nodes under one work, with knobs that stay turned."""

    def __init__(self, kind=H100, seed=2, writing=0.0, trains=True):
        self.knobs, self.targets, self.down = HostKnobs(NODES), StorageKnobs(TARGETS), set()
        self.hosts = HostBank(kind, NODES, np.random.default_rng(seed), self.knobs, self.down)
        self.storage = StorageBank(kind, NODES, TARGETS, np.random.default_rng(seed), self.targets, self.knobs)
        self.work = Work.idle(NODES, kind.gpus)
        if trains:
            self.work.load[:], self.work.busy[:], self.work.resident[:], self.work.memory_mib[:] = 0.9, 0.8, True, 71_500.0
        self.work.writing[:] = writing
        self.at = START

    def run(self, seconds=600, step=20, **turned):
        """Moves on; turned: name=(index, value)."""
        for _ in range(seconds // step):
            self.knobs.reset()
            for name, (at, value) in turned.items():
                getattr(self.knobs, name)[at] = value
            self.at += step * 1000
            self.storage.step(step, self.work)
            self.hosts.step(step, self.work, self.at, self.storage.stalled)
        return self

    def rates(self, seconds=600, **turned):
        """Per second over a span: totals, disk counters, CPU modes as shares."""
        hosts = self.hosts
        totals, disk = {k: v.copy() for k, v in hosts.totals.items()}, {k: v.copy() for k, v in hosts.disk.items()}
        cpu = hosts.cpu.copy()
        self.run(seconds, **turned)
        out = {name: (values - totals[name]) / seconds for name, values in hosts.totals.items()}
        out |= {f"disk_{name}": (values - disk[name]) / seconds for name, values in hosts.disk.items()}
        share = ((hosts.cpu - cpu) / seconds).mean(axis=1)
        return out | {mode: share[:, i] for i, mode in enumerate(MODES)}


# --- healthy ranges ---------------------------------------------------------------------------------------------------
# facts/signals.md §4: pressure below 0.05, I/O 0.05-1 ms, steal and iowait below 10 %, offsets far below 0.05 s.
@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_a_healthy_training_day_stays_in_real_ranges(kind):
    """Air, fans, CPU, pressure, disks, memory and clock of each kind of node over a day in coarse steps."""
    rig, inlets, offsets = Rig(kind), [], []
    hosts = rig.hosts
    totals, disk, cpu = {k: v.copy() for k, v in hosts.totals.items()}, {k: v.copy() for k, v in hosts.disk.items()}, hosts.cpu.copy()
    for _ in range(144):
        rig.run(600, step=600)
        inlets += [hosts.inlet.min(), hosts.inlet.max()]
        offsets.append(np.abs(hosts.clock_offset).max())
        assert (hosts.exhaust > hosts.inlet + 3).all()
        assert hosts.fan_rpm.min() > 3000
        assert hosts.fan_rpm.max() < 14_000
        assert (hosts.available > 0.5 * kind.host_memory_bytes).all()
        assert (hosts.cpu_hertz > 0.9 * kind.cpu_hertz).all()
        assert hosts.clock_error.max() < 0.02
        assert (hosts.scratch_free > 0.4 * kind.scratch_bytes).all()
    day = 86_400
    moved = {name: (values - totals[name]) / day for name, values in hosts.totals.items()}
    assert min(inlets) > kind.air_celsius - 4
    assert max(inlets) < kind.air_celsius + 4
    assert max(offsets) < 2e-4
    for name in ("cpu_waiting", "io_waiting", "io_stalled", "memory_waiting", "memory_stalled"):
        assert moved[name].max() < 0.05, name
    for name in ("oom_kills", "package_throttles", "edac_uncorrected", "hung_tasks"):
        assert moved[name].max() == 0, name
    for way in ("read", "write"):
        done = hosts.disk[f"{way}s"] - disk[f"{way}s"]
        each = (hosts.disk[f"{way}_time"] - disk[f"{way}_time"])[done > 0] / done[done > 0]
        assert 0.05e-3 <= each.min() <= each.max() <= 1e-3, way
    share = (hosts.cpu - cpu).mean(axis=(0, 1)) / day
    assert share[MODES.index("steal")] == 0
    assert share[MODES.index("iowait")] < 0.1
    assert share.sum() == pytest.approx(1.0, abs=0.01)
    assert moved["tcp_again"].max() < 1e-4 * moved["tcp_out"].max()


def test_cpu_modes_add_up_whatever_is_turned():
    """A second of a CPU is a second in one mode or another."""
    rates = Rig().rates(cpu=(0, 0.3), steal=(1, 0.4), memory_pressure=(2, 0.5), mount_slowness=(2, 60.0))
    total = sum(rates[mode] for mode in MODES)
    assert np.allclose(total, 1.0, atol=0.01)
    assert all((rates[mode] >= 0).all() for mode in MODES)


def test_a_checkpoint_is_written_and_waited_for():
    """Bytes go to the scratch disk and to the shared file system; I/O pressure rises and is not alarming."""
    rig = Rig(writing=20 * 1.5e9)
    before = rig.storage.counters["written_bytes"].copy()
    rates = rig.rates(60)
    assert np.allclose(rates["disk_written_bytes"][:, 1], 1.5e9)
    assert np.allclose((rig.storage.counters["written_bytes"] - before) / 60, 1.5e9)
    assert (rates["io_waiting"] > 0.05).all()
    assert (rates["io_waiting"] < 0.5).all()
    assert 0.1 < rates["disk_io_time"][0, 1] < 0.6


# --- CPU and memory ---------------------------------------------------------------------------------------------------
CALM = Rig().run().rates()


def _others_calm(rates, *names):
    for name in names:
        assert np.allclose(rates[name][1:], CALM[name][1:], rtol=0.5, atol=0.02), name


def test_a_starved_cpu_waits_and_is_busy():
    """Others' processes: CPU pressure, load and busy time on one node; loaders get what is left."""
    rig = Rig().run()
    rates = rig.rates(cpu=(0, 0.25))
    assert rates["cpu_waiting"][0] > 0.5
    assert rates["user"][0] > 2 * CALM["user"][0]
    assert rig.hosts.load1[0] > 3 * rig.hosts.load1[1]
    assert rig.hosts.data_factor[0] == pytest.approx(4.0)
    assert rig.hosts.launch_factor[0] == 1.0
    _others_calm(rates, "cpu_waiting", "user")


def test_steal_is_its_own_mode():
    """Stolen time shows as steal and slows the host's threads."""
    rig = Rig().run()
    rates = rig.rates(steal=(0, 0.5))
    assert rates["steal"][0] == pytest.approx(0.5, abs=0.02)
    assert rates["steal"][1] == 0
    assert rig.hosts.data_factor[0] == pytest.approx(2.0)


def test_a_slow_cpu_clock_shows_in_its_frequency():
    """Frequency falls, throttle events only where they are a part of it."""
    rig = Rig().run()
    rates = rig.rates(frequency=(0, 0.4), throttles_per_second=(0, 10.0))
    assert rig.hosts.cpu_hertz[0] < 0.45 * H100.cpu_hertz
    assert rates["package_throttles"][0] == pytest.approx(10, rel=0.2)
    assert Rig().rates(frequency=(0, 0.4))["package_throttles"].max() == 0
    assert rig.hosts.data_factor[0] == pytest.approx(2.5)


def test_hardly_any_cpu_left_holds_up_the_launches():
    """Below a fifth of the host the GPUs wait for their kernels."""
    assert Rig().run(cpu=(0, 0.1)).hosts.launch_factor[0] == pytest.approx(2.0)


def test_memory_pressure_stalls_and_eats_what_is_available():
    """Stalls at the share, major faults, less than a tenth of the memory left; a kill is counted when it happens."""
    rig = Rig().run()
    rates = rig.rates(memory_pressure=(0, 0.4), memory_held=(0, 0.66))
    rig.hosts.oom_kill(0)
    assert rates["memory_stalled"][0] == pytest.approx(0.3, abs=0.01)
    assert rates["major_faults"][0] > 100 * CALM["major_faults"][0]
    assert rig.hosts.available[0] < 0.1 * H100.host_memory_bytes
    assert list(rig.hosts.totals["oom_kills"]) == [1, 0, 0]
    assert rates["memory_stalled"][1] == 0


# --- disks ------------------------------------------------------------------------------------------------------------
def _await(rates, way):
    return rates[f"disk_{way}_time"] / rates[f"disk_{way}s"]


def test_a_slow_disk_takes_long_at_the_load_of_its_peers():
    """Service time many times its peers', busy all the time, the same bytes; root disk and neighbours as before."""
    rig = Rig().run()
    rates = rig.rates(disk_slowness=(0, 40.0))
    assert _await(rates, "read")[0, 1] == pytest.approx(40 * _await(rates, "read")[1, 1], rel=0.05)
    assert rates["disk_io_time"][0, 1] > 0.9
    assert rates["disk_read_bytes"][0, 1] == rates["disk_read_bytes"][1, 1]
    assert _await(rates, "read")[0, 0] == pytest.approx(_await(rates, "read")[1, 0], rel=0.2)
    assert (rig.hosts.data_factor[0], rig.hosts.save_factor[0]) == (40.0, 40.0)
    assert rates["io_waiting"][0] > 10 * rates["io_waiting"][1]


def test_a_loaded_disk_is_busy_at_high_throughput():
    """Others' reads: bytes and busy time high, waits by the queue."""
    rates = Rig().run().rates(disk_load=(0, 0.8))
    assert rates["disk_read_bytes"][0, 1] > 100 * rates["disk_read_bytes"][1, 1]
    assert rates["disk_io_time"][0, 1] > 0.75
    assert _await(rates, "read")[0, 1] == pytest.approx(5 * _await(rates, "read")[1, 1], rel=0.1)


def test_a_full_disk_has_no_room_and_a_read_only_one_takes_nothing():
    """Free bytes fall to nothing; a read-only file system is written no more."""
    rig = Rig(writing=1e9).run()
    rates = rig.rates(disk_fill=(0, 1.0), read_only=(1, 1.0))
    assert rig.hosts.scratch_free[0] == 0
    assert list(rig.hosts.read_only) == [0, 1, 0]
    assert rates["disk_written_bytes"][1, 1] == 0
    assert rates["disk_written_bytes"][2, 1] > 0


def test_the_scratch_disk_is_cleaned_of_old_checkpoints():
    """Weeks of checkpoints do not fill a healthy disk."""
    rig = Rig(writing=300 * 2e8)
    rig.run(14 * 86_400, step=3600)
    assert (rig.hosts.scratch_free > 0.5 * H100.scratch_bytes).all()


# --- clock, air, services ---------------------------------------------------------------------------------------------
def test_a_lost_time_source_lets_the_clock_drift_until_it_is_back():
    """Not synchronised, offset and error bound grow; with the source the daemon steps the clock."""
    rig = Rig().run(600, synchronised=(0, 0.0), clock_drift=(0, 1e-4))
    hosts = rig.hosts
    assert list(hosts.synchronised) == [0, 1, 1]
    assert hosts.clock_offset[0] == pytest.approx(0.06, rel=0.05)
    assert hosts.clock_error[0] > 0.2
    assert np.abs(hosts.clock_offset[1:]).max() < 1e-3
    rig.run(30)
    assert abs(hosts.clock_offset[0]) < 1e-3


def test_hot_air_and_weak_fans_are_told_apart():
    """Hot air raises inlet and exhaust; fans that move less air raise the exhaust alone and turn slower."""
    calm = Rig().run()
    hot, weak = Rig().run(inlet_celsius=(0, 12.0)), Rig().run(airflow=(0, 0.5))
    assert hot.hosts.inlet[0] - calm.hosts.inlet[0] == pytest.approx(12, abs=0.01)
    assert hot.hosts.exhaust[0] - calm.hosts.exhaust[0] == pytest.approx(12, abs=0.2)
    assert weak.hosts.inlet[0] == calm.hosts.inlet[0]
    assert weak.hosts.exhaust[0] > calm.hosts.exhaust[0] + 10
    assert weak.hosts.fan_rpm[0].max() < 0.8 * calm.hosts.fan_rpm[0].min()


def test_a_stopped_service_is_not_active():
    """The unit of one node is down, all others run."""
    rig = Rig()
    rig.down.add((1, "slurmd.service"))
    active = rig.hosts.service_active
    assert active.sum() == active.size - 1
    assert active[1, H100.services.index("slurmd.service")] == 0


def test_a_reboot_clears_the_counters_of_its_node_only():
    """Counters begin at 0 and the clock is right; other nodes and the scratch disk's content stay."""
    rig = Rig().run(600, synchronised=(0, 0.0), clock_drift=(0, 1e-3))
    used, other = rig.hosts.scratch_used.copy(), rig.hosts.totals["eth_in"][1]
    rig.hosts.reset(0)
    rig.storage.reset(0)
    assert all(values[0] == 0 for values in rig.hosts.totals.values())
    assert all((values[0] == 0).all() for values in rig.hosts.disk.values())
    assert all(values[0] == 0 for values in rig.storage.counters.values())
    assert rig.hosts.totals["eth_in"][1] == other
    assert np.array_equal(rig.hosts.scratch_used, used)
    assert abs(rig.hosts.clock_offset[0]) < 1e-3


def test_faulty_hosts_do_not_change_what_others_draw():
    """All knobs of one node turned: the others are bit for bit what they were."""
    calm = Rig().run()
    turned = dict.fromkeys(HostKnobs.HEALTHY, (0, 0.5))
    ill = Rig().run(**turned)
    for name in calm.hosts.totals:
        assert np.array_equal(calm.hosts.totals[name][1:], ill.hosts.totals[name][1:]), name
    for name in calm.hosts.disk:
        assert np.array_equal(calm.hosts.disk[name][1:], ill.hosts.disk[name][1:]), name
    for name in ("inlet", "exhaust", "load1", "available", "clock_offset", "fan_rpm", "cpu_hertz", "cpu"):
        assert np.array_equal(getattr(calm.hosts, name)[1:], getattr(ill.hosts, name)[1:]), name


# --- shared storage ---------------------------------------------------------------------------------------------------
def test_healthy_clients_wait_as_real_ones():
    """Under checkpoint writes a call takes some milliseconds (a real client: 6,054 µs) with few calls in flight."""
    rig = Rig(writing=20 * 1.5e9).run(120)
    assert 2000 < rig.storage.wait_usec.max() < 9000
    assert rig.storage.in_flight.max() <= 8
    assert (rig.storage.connected == 1).all()
    assert (rig.storage.healthy == 1).all()
    assert rig.storage.timeouts.max() == 0
    assert (rig.storage.read_factor == 1).all()


def test_one_slow_target_slows_the_nodes_whose_files_are_on_it():
    """Its wait alone grows, on every client; nodes with stripes on it feel it, I/O pressure rises there."""
    rig = Rig().run()
    rig.targets.slowness[2] = 30.0
    slow = rig.run(300).storage
    assert (slow.wait_usec[:, 2] > 15 * slow.wait_usec[:, 3]).all()
    assert set(slow.read_factor) <= {1.0, 30.0}
    assert (slow.read_factor == 30).sum() >= 1
    assert (slow.stalled[slow.read_factor > 1] > 0.05).all()


def test_a_lost_target_stops_the_calls_that_need_it():
    """Not connected, calls time out, factors as of calls that never return; well again without a trace but the count."""
    rig = Rig().run()
    rig.targets.up[2] = 0.0
    lost = rig.run(600).storage
    assert (lost.connected[:, 2] == 0).all()
    assert lost.connected[:, 3].min() == 1
    assert lost.timeouts[:, 2].sum() > 0
    assert lost.timeouts[:, 3].sum() == 0
    assert lost.read_factor.max() == HUNG_FACTOR
    rig.targets.reset()
    assert rig.run(60).storage.read_factor.max() == 1


def test_a_hung_mount_stops_one_client():
    """It reads and writes nothing, is not healthy, its tasks hang; other clients go on."""
    rig = Rig().run()
    before = rig.storage.counters["read_bytes"].copy()
    rig.run(1200, mount_hung=(0, 1.0))
    moved = rig.storage.counters["read_bytes"] - before
    assert moved[0] == 0
    assert moved[1] > 0
    assert list(rig.storage.healthy) == [0, 1, 1]
    assert list(rig.hosts.data_factor) == [HUNG_FACTOR, 1, 1]
    assert rig.hosts.totals["hung_tasks"][0] > rig.hosts.totals["hung_tasks"][1] == 0


def test_a_slow_client_is_slow_by_itself():
    """All targets are slow for one node, for the others none."""
    rig = Rig().run(300, mount_slowness=(0, 10.0))
    wait = rig.storage.wait_usec
    assert (wait[0] > 4 * wait[1]).all()
    assert list(rig.hosts.data_factor) == [10, 1, 1]
    assert (rig.storage.read_factor == 1).all()


def test_reads_follow_the_pace_of_the_job():
    """Half the compute time is half the reads."""
    full, half = Rig(), Rig()
    half.work.busy[:] = 0.4
    moved = []
    for rig in (full, half):
        before = rig.storage.counters["reads"].copy()
        moved.append((rig.run().storage.counters["reads"] - before).sum())
    assert moved[1] == pytest.approx(0.5 * moved[0], rel=0.05)


def test_files_are_spread_over_the_targets():
    """Each node reads from as many targets, every target serves somebody."""
    storage = Rig().storage
    assert (storage._reads_from.sum(axis=1) == READ_STRIPES).all()
    assert storage._reads_from.any(axis=0).all()


# --- kernel logs ------------------------------------------------------------------------------------------------------
def _logs(kind=H100):
    nodes = build_nodes(kind, 2, 0, START, np.random.default_rng(1))
    gpus = GpuBank(kind, 2, np.random.default_rng(2), GpuKnobs(2, kind.gpus))
    return nodes, gpus, KernelLogs(nodes, np.random.default_rng(3), gpus, START)


def _events(logs, index, start=0):
    """What Greylag's own reader finds in the log from a byte on."""
    state, found = {}, []
    for line in logs.of(index).read(start).decode().splitlines():
        found += parse_line(line, START, state, TargetInfo("kernel", {})).events
    return found


@pytest.mark.parametrize("code", sorted(DETAILS))
def test_an_xid_line_is_read_as_the_xid_of_its_gpu(code):
    """Each XID's line names the GPU by address and UUID, and DCGM's field follows unless DCGM does not see it."""
    nodes, gpus, logs = _logs()
    start = len(logs.of(1))
    logs.xid(1, 5, code, at=START + 70_000)
    first = next(e for e in _events(logs, 1, start) if e.kind == "xid")
    assert (first.fields["xid"], first.at) == (code, START + 70_000)
    assert (first.target.node, first.target.device, first.target.id) == ("n02", nodes[1].pci(5), nodes[1].uuids[5])
    assert gpus.xid[1, 5] == (0 if code in UNSEEN_XIDS else code)
    assert gpus.xid.sum() == gpus.xid[1, 5]


def test_the_recovery_action_is_told_once():
    """A grave XID is followed by one line of XID 154; the same again changes nothing."""
    _, gpus, logs = _logs()
    for _ in range(2):
        logs.xid(0, 1, 95)
    codes = [e.fields["xid"] for e in _events(logs, 0) if e.kind == "xid"]
    assert codes == [95, 154, 95]
    assert gpus.xid[0, 1] == 95


def test_the_identity_stands_before_the_first_xid_after_a_boot():
    """The driver names the GPU once, and again after a reboot."""
    nodes, _, logs = _logs()
    logs.xid(0, 1, 31)
    logs.xid(0, 1, 31)
    logs.boot(nodes[0], START + 600_000)
    logs.xid(0, 1, 31, at=START + 700_000)
    text = logs.of(0).read().decode()
    assert text.count(f"NVRM: GPU at PCI:{nodes[0].pci(1)[:-2]}: {nodes[0].uuids[1]}") == 2
    assert text.count(": 31, ") == 3


@pytest.mark.parametrize("kind", NODE_TYPES.values(), ids=lambda k: k.name)
def test_a_boot_is_read_as_a_boot_and_nothing_else(kind):
    """The lines of a healthy boot and of idle chatter hold one boot and no fault."""
    nodes, _, logs = _logs(kind)
    for step in range(2000):
        logs.step(nodes, 60, START + step * 60_000)
    events = [e for index in (0, 1) for e in _events(logs, index)]
    assert [e.kind for e in events] == ["boot", "boot"]
    assert logs.of(0).read().count(b"\n") > 10


def test_lines_do_not_change_who_says_something_next():
    """A fault's lines take no draw: the chatter of all nodes stays what it was."""
    texts = []
    for strikes in (False, True):
        nodes, _, logs = _logs()
        if strikes:
            logs.xid(0, 0, 79)
        for step in range(300):
            logs.step(nodes, 60, START + step * 60_000)
        texts.append(logs.of(1).read())
    assert texts[0] == texts[1]


def test_times_of_a_log_never_go_back():
    """Several lines of one moment stand in order."""
    nodes, _, logs = _logs()
    for step in range(40):
        logs.write(nodes[0], START + step // 20, "audit: type=1400")
    stamps = [line.split()[0] for line in logs.of(0).read().decode().splitlines()]
    assert stamps == sorted(stamps)


def test_a_service_that_dies_is_systemds_line():
    """The unit's end is said by systemd, not by the kernel."""
    _, _, logs = _logs()
    logs.service(0, "slurmd.service", running=False, at=START)
    logs.service(0, "slurmd.service", running=True, at=START + 60_000)
    text = logs.of(0).read().decode()
    assert "systemd[1]: slurmd.service: Failed with result 'exit-code'." in text
    assert "systemd[1]: Started slurmd.service." in text


def test_disks_are_root_and_scratch():
    """The names under which pages show them."""
    assert DISKS == ("nvme0n1", "nvme1n1")
