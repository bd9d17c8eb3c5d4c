"""XIDs and what hangs on them: each counts once, echoes and stale gauges never."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Baseline, Event, Target
from core.xids import XidPolicy
from tests.contract.windows import START, Cluster, gauge_xid, vanish

PLUGINS = load_plugins("detectors")
GPU = Target("gpu", "n001", "3", id="GPU-n001-3")


def at(tick: int) -> int:
    return START + 15_000 * tick


def line(code: int, tick: int, fatal: bool | None = None, gpu: Target = GPU) -> Event:
    fields = {"xid": code, "pci": "0000:86:00.0"} | ({} if fatal is None else {"fatal": fatal})
    return Event(at(tick), gpu, "xid", fields, f"NVRM: Xid (PCI:0000:86:00): {code}, pid=1, name=python")


def faulty(cluster: Cluster, detector: str, **params: object) -> list[str]:
    plugin = PLUGINS[detector]
    return [v.target.key for v in plugin.judge(cluster.window(), plugin.params(**params)) if v.state == "faulty"]


@pytest.mark.parametrize(("code", "detector"), [
    (48, "ecc_uncorrectable"), (94, "ecc_uncorrectable"), (95, "ecc_uncorrectable"), (64, "row_remap_failure"),
    (79, "gpu_lost"), (119, "xid_fatal"), (62, "xid_fatal"), (109, "xid_fatal"),
])
def test_a_fatal_line_is_its_own_fault_and_no_other(code: int, detector: str) -> None:
    """A kernel line of a fatal code opens exactly one fault, on the GPU that it names."""
    cluster = Cluster()
    cluster.events.append(line(code, 90))
    if code == 79:
        vanish(cluster, 11, 90)
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    found = {name: faulty(cluster, name) for name in ("xid_fatal", "ecc_uncorrectable", "row_remap_failure", "gpu_lost")}
    assert {name: keys for name, keys in found.items() if keys} == {detector: ["gpu:GPU-n001-3"]}


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 154, 999])
@pytest.mark.parametrize("detector", ["xid_fatal", "ecc_uncorrectable", "row_remap_failure", "gpu_lost"])
def test_programs_echoes_and_information_are_no_fault(code: int, detector: str) -> None:
    """Codes that NVIDIA calls ignorable, or faults of programs, and codes that nobody knows, are events only."""
    cluster = Cluster()
    cluster.events += [line(code, tick) for tick in range(80, 100)]
    assert faulty(cluster, detector) == []


@pytest.mark.parametrize(("vendor", "counts"), [("nvidia", False), ("eks", True), ("azure", False), ("aznhc", True)])
def test_the_site_chooses_whose_word_counts(vendor: str, counts: bool) -> None:
    """XID 63 is fatal for some vendors only."""
    cluster = Cluster()
    cluster.events.append(line(63, 90))
    assert bool(faulty(cluster, "ecc_uncorrectable", xids=XidPolicy(vendor))) is counts


def test_a_sticky_gauge_is_no_event() -> None:
    """A gauge that stands at 119 since before Greylag looked says nothing of now."""
    assert faulty(gauge_xid(Cluster(), 11, 0, 119), "xid_fatal") == []


def test_the_line_and_the_gauge_are_one_event() -> None:
    """The exporter shows a minute later what the kernel said: its evidence counts one."""
    cluster = gauge_xid(Cluster(), 11, 94, 119)
    cluster.events.append(line(119, 91))
    verdict = next(v for v in PLUGINS["xid_fatal"].judge(cluster.window(), PLUGINS["xid_fatal"].params())
                   if v.state == "faulty")
    assert (verdict.onset_at, "in the window" in (verdict.evidence[0].text or "")) == (at(91), False)


def test_a_boot_ends_it() -> None:
    """What was before the newest boot is over."""
    cluster = Cluster()
    cluster.events += [line(119, 60), Event(at(80), Target("node", "n001"), "boot", {})]
    cluster.put("gpu.utilization_ratio", 0.0, 60, None, [11])
    assert faulty(cluster, "xid_fatal") == []


def test_a_gpu_that_works_on_is_well() -> None:
    """Ten minutes of work after the event, and it is over."""
    cluster = Cluster()
    cluster.events.append(line(94, 50))
    assert faulty(cluster, "ecc_uncorrectable") == []


def test_a_gpu_that_rests_later_was_well() -> None:
    """It worked for ten minutes after the event; that its job has ended since says nothing more about it."""
    cluster = Cluster()
    cluster.events.append(line(94, 20))
    cluster.put("gpu.utilization_ratio", 0.0, 80, None, [11])
    assert faulty(cluster, "ecc_uncorrectable") == []


@pytest.mark.parametrize(("minutes", "found"), [(0.0, ["gpu:GPU-n001-3"]), (10.0, [])], ids=["found-and-open", "over"])
def test_an_event_that_is_older_than_the_window(minutes: float, found: list[str]) -> None:
    """It goes on where a finding is open on the GPU (its last minutes are no past), and does not come back where none is."""
    cluster = Cluster()
    cluster.events.append(line(119, -200))
    cluster.put("gpu.utilization_ratio", 0.0, 0, None, [11])
    n = np.full(cluster.width("gpu"), minutes)
    seen = replace(cluster.window(), baseline_of=lambda *_: Baseline(n, n, n, n))
    plugin = PLUGINS["xid_fatal"]
    assert [v.target.key for v in plugin.judge(seen, plugin.params()) if v.state == "faulty"] == found


@pytest.mark.parametrize(("rows", "found"), [(1.0, ["gpu:GPU-n001-3"]), (9.0, [])], ids=["one", "a-board-was-swapped"])
def test_a_row_that_the_driver_gives_up_met_an_error(rows: float, found: list[str]) -> None:
    """Exporters that count no errors show the rows: one more is one error that was not corrected."""
    cluster = Cluster(without=("gpu.ecc_uncorrectable_per_second",)).put("gpu.uncorrectable_rows", rows, 95, None, [11])
    assert faulty(cluster.put("gpu.utilization_ratio", 0.0, 95, None, [11]), "ecc_uncorrectable") == found


@pytest.mark.parametrize(("since", "until", "booted", "found"), [(20, 80, None, []), (20, 50, None, ["gpu:GPU-n001-3"]), (95, 90, 92, [])],
                         ids=["worked-since", "worked-too-little", "seen-after-a-boot"])
def test_a_row_is_past_once_the_gpu_worked_or_its_node_booted(since: int, until: int, booted: int | None, found: list[str]) -> None:
    """That its job rests or hangs later makes no new error of it, and a reset is all that a row waits for."""
    cluster = Cluster(without=("gpu.ecc_uncorrectable_per_second",)).put("gpu.uncorrectable_rows", 1.0, since, None, [11])
    cluster.put("gpu.utilization_ratio", 0.0, until, None, [11])
    if booted is not None:
        cluster.put("gpu.uncorrectable_rows", np.nan, booted - 2, since, [11])
        cluster.put("node.boot_time_seconds", at(booted) / 1000, booted, None, [1])
    assert faulty(cluster, "ecc_uncorrectable") == found


@pytest.mark.parametrize(("fatal", "expected"), [(True, 1), (False, 0), (None, 0)])
def test_nvlink_codes_follow_the_lines_own_word(fatal: bool | None, expected: int) -> None:
    """144-150 count when the line says Fatal."""
    from detectors import fatal_events

    cluster = Cluster()
    cluster.events.append(line(149, 90, fatal))
    assert len(fatal_events.of_fault(cluster.window(), "nvlink_errors", XidPolicy())) == expected


def test_an_exporter_that_is_gone_lost_no_gpu() -> None:
    """All eight GPUs of a node vanish together: the exporter is silent, no GPU is lost."""
    cluster = Cluster()
    for column in range(8, 16):
        vanish(cluster, column, 60)
    assert faulty(cluster, "gpu_lost") == []


@pytest.mark.parametrize(("row", "shown", "expected"), [
    (97, False, ["gpu:GPU-n001-3"]),
    (98, True, ["gpu:GPU-n001-3"]),  # its exporter repeats what it read last
    (90, True, []),                  # and a GPU that is still shown minutes later is well
])
def test_a_kernel_line_without_a_number_is_a_lost_gpu(row: int, shown: bool, expected: list[str]) -> None:
    """ "Fallen off the bus" alone is enough, as the number 79 is, for as long as pages may repeat themselves."""
    cluster = Cluster() if shown else vanish(Cluster(), 11, row)
    cluster.events.append(Event(at(row), GPU, "gpu_lost", {"pci": "0000:86:00.0"}, "NVRM: GPU at 0000:86:00.0 has fallen off the bus."))
    assert faulty(cluster, "gpu_lost") == expected


def test_xid_79_of_a_node_of_which_only_the_log_is_read_is_a_lost_gpu() -> None:
    """No exporter shows any GPU; with the line that has no number it is still one lost GPU."""
    gone = Target("gpu", "n001", "0000:86:00.0")
    events = (line(79, 90, gpu=gone), Event(at(90), gone, "gpu_lost", {"pci": "0000:86:00.0"}, "NVRM: fallen off the bus"))
    window = replace(Cluster().window(), entities={}, blocks={})
    found = [[v.target.key for v in PLUGINS["gpu_lost"].judge(replace(window, events=told), PLUGINS["gpu_lost"].params())]
             for told in (events[:1], events)]
    assert found == [[gone.key], [gone.key]]


def test_a_volatile_count_that_grows_is_an_error() -> None:
    """One double-bit error in one sample counts, and it is dated by that sample."""
    cluster = Cluster()
    cluster.put("gpu.ecc_uncorrectable_per_second", 1 / 15, 95, 96, [11])
    cluster.put("gpu.utilization_ratio", 0.0, 95, None, [11])
    assert faulty(cluster, "ecc_uncorrectable") == ["gpu:GPU-n001-3"]


def test_a_line_that_names_a_pci_address_names_the_gpu() -> None:
    """The kernel knows the GPU by its address and identity; people know it by its index."""
    cluster = Cluster()
    cluster.events.append(line(119, 95, gpu=Target("gpu", "n001", "0000:86:00.0", id="GPU-n001-3")))
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    plugin = PLUGINS["xid_fatal"]
    found = [v.target.device for v in plugin.judge(cluster.window(), plugin.params()) if v.state == "faulty"]
    assert found == ["3"]
