"""A slow job is an incident of what makes it slow, where something does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.faults import faults
from core.types import Finding, Target
from pipeline import consequences
from pipeline.consequences import AFTERMATH_MS
from pipeline.incidents import IncidentBook
from tests.pipeline.test_incidents import gpu, nic, rank, seen
from tests.pipeline.worlds import T0, finding, inventory, tick

JOB = Target("job", job="j")
MINUTE = 60_000


def drop(onset: int = T0) -> Finding:
    return finding(JOB, "throughput_drop", severity=0.3, reason="slower_than_before", onset=onset)


def lag(target: Target, onset: int = T0) -> Finding:
    return finding(target, "straggler", reason="works_longest_waits_least", onset=onset)


def waits(target: Target, onset: int = T0) -> Finding:
    return finding(target, "data_stall", reason="waits_for_data", onset=onset)


N1 = Target("node", "n1", job="j")
DISK = finding(Target("disk", "n1", "nvme0n1"), "disk_slow")
STORAGE = finding(Target("storage", device="fsx"), "storage_slow")
CASES = [
    ("a hot GPU slows its job", [finding(gpu(1)), drop(T0 + MINUTE)], ["thermal_throttle"]),
    ("heat that came on slowly is older", [finding(gpu(1), onset=T0 - 20 * MINUTE), drop()], ["thermal_throttle"]),
    ("the cause is seen later than the slowness", [finding(gpu(1), onset=T0 + 10 * MINUTE), drop()], ["thermal_throttle"]),
    ("what was there for hours slows nothing now", [finding(gpu(1), onset=T0 - 120 * MINUTE), drop()],
     ["thermal_throttle", "throughput_drop"]),
    ("a hot GPU of another job", [finding(gpu(6)), drop()], ["thermal_throttle", "throughput_drop"]),
    ("the rank on the hot GPU", [finding(gpu(1, 3)), lag(rank(11, 1, 3))], ["thermal_throttle"]),
    ("a rank on another GPU of the node", [finding(gpu(1, 2)), lag(rank(11, 1, 3))], ["straggler", "thermal_throttle"]),
    ("NVLink errors slow the whole node", [finding(gpu(1, 2), "nvlink_errors"), lag(rank(11, 1, 3))], ["nvlink_errors"]),
    ("a starved node slows its ranks", [finding(Target("node", "n1"), "cpu_starved"), lag(N1)], ["cpu_starved"]),
    ("a node that is starved, another that lags", [finding(Target("node", "n2"), "cpu_starved"), lag(N1)],
     ["cpu_starved", "straggler"]),
    ("a slow GPU is why its rank lags, and that is why the job is slow",
     [finding(gpu(1, 3), "gpu_slow"), lag(rank(11, 1, 3)), drop(T0 + MINUTE)], ["gpu_slow"]),
    ("a rank that lags slows its job", [lag(rank(11, 1, 3)), drop()], ["straggler"]),
    ("a loss of packets slows the job", [finding(nic(2), "packet_loss", reason="loss_seen_here"), drop()], ["packet_loss"]),
    ("waiting for data slows the job", [waits(JOB), drop()], ["data_stall"]),
    ("the node's disk is why it waits", [DISK, waits(N1), drop()], ["disk_slow"]),
    ("another node's disk is not", [replace(DISK, target=Target("disk", "n2", "nvme0n1")), waits(N1)], ["data_stall", "disk_slow"]),
    ("shared storage is why all wait", [STORAGE, waits(JOB), drop()], ["storage_slow"]),
    ("one node's disk is not why all nodes wait", [DISK, waits(JOB)], ["data_stall", "disk_slow"]),
    ("ranks of a node that waits for data", [waits(N1), lag(rank(11, 1, 3))], ["data_stall"]),
    ("two ranks of a node that lag are the node", [lag(rank(9, 1, 1)), lag(rank(11, 1, 3))], ["straggler"]),
    ("ranks that lag on two nodes are two", [lag(rank(9, 1, 1)), lag(rank(17, 2, 1))], ["straggler", "straggler"]),
    ("a node that lags, and one of its ranks", [lag(N1), lag(rank(11, 1, 3))], ["straggler"]),
    ("its governor is why a node waits", [finding(Target("node", "n1"), "config_drift"), waits(N1)], ["config_drift"]),
    ("a node's setting that slows its GPUs, by the one that shows it", [finding(Target("node", "n1"), "config_drift", onset=T0),
     finding(gpu(1, 3), "gpu_slow", onset=T0 + MINUTE)], ["config_drift"]),
    ("a node's setting of long ago", [finding(Target("node", "n1"), "config_drift", onset=T0 - 120 * MINUTE),
     finding(gpu(1, 3), "gpu_slow")], ["config_drift", "gpu_slow"]),
    ("a disk that was full long before", [finding(Target("mount", "n1", "/scratch"), "disk_full", onset=T0 - 20 * MINUTE), drop()],
     ["disk_full", "throughput_drop"]),
    ("what keeps a node's disk busy slows its saves too",
     [waits(N1), finding(JOB, "checkpoint_stale", reason="saves_slow", onset=T0 + 3 * MINUTE)], ["data_stall"]),
    ("of a strong and a weak cause the strong one has it",
     [finding(gpu(1), "ecc_correctable_storm"), finding(gpu(2)), drop(T0 + MINUTE)], ["ecc_correctable_storm", "thermal_throttle"]),
]


def world(i: int) -> object:
    topology = inventory(nodes=[{"name": f"n{i}"} for i in range(8)], storage=[{"name": "fsx", "mounts": ["n0", "n1", "n2", "n3"]}]).topology()
    return seen(i, topology)


@pytest.mark.parametrize(("findings", "faults_left"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("turn", [False, True])
def test_which_incidents_open(findings: list[Finding], faults_left: list[str], turn: bool) -> None:
    """Each cause is one incident, whatever the order of its findings."""
    news = IncidentBook().update(world(4), findings[::-1] if turn else findings, ())
    assert sorted(i.fault for _, i in news) == faults_left


def test_the_strong_cause_has_the_findings() -> None:
    """Errors that memory corrects cost a job little; heat does."""
    book = IncidentBook()
    book.update(world(4), CASES[-1][1], ())
    hot = next(i for i in book.open() if i.fault == "thermal_throttle")
    assert drop(T0 + MINUTE).id in hot.findings


def test_all_names_are_faults() -> None:
    """The tables name nothing that is no fault."""
    named = {*consequences.SLOWED_BY, *consequences.WEAK, *consequences.NODE_WIDE}.union(*consequences.SLOWED_BY.values())
    assert named <= set(faults())


def ended(one: Finding, at: int) -> Finding:
    return replace(one, state="ended", ended_at=at, end_reason="cleared")


def test_a_slowness_that_outlives_its_cause_opens_nothing_and_keeps_nothing_open() -> None:
    """The heat is gone; the job's pace is judged over minutes. The incident ends in its own time, as one incident."""
    book, cause, slow = IncidentBook(quiet_seconds=120), finding(gpu(1)), drop(T0 + MINUTE)
    book.update(world(4), [cause, slow], ())
    news = [book.update(world(i), [slow], [ended(cause, tick(20))] if i == 20 else ()) for i in range(20, 40)]
    assert [(word, i.fault) for row in news for word, i in row] == [("resolved", "thermal_throttle")]


def test_crashes_that_were_a_broken_parts_open_nothing_once_it_is_well() -> None:
    """They are counted for an hour; the part that took the job along was mended before."""
    book, cause = IncidentBook(quiet_seconds=120), finding(gpu(1), "nvlink_errors", reason="fatal_xid")
    crashes = finding(rank(9, 1, 1), "job_crash_loop", reason="follows_part", onset=T0 + MINUTE)
    crashes = replace(crashes, target=replace(gpu(1), job="j", rank=9))
    book.update(world(4), [cause, crashes], ())
    news = [book.update(world(i), [crashes], [ended(cause, tick(20))] if i == 20 else ()) for i in range(20, 40)]
    assert [(word, i.fault) for row in news for word, i in row] == [("resolved", "nvlink_errors")]


def test_a_slowness_that_stays_is_an_incident_of_its_own() -> None:
    """A quarter of an hour after its cause the job is still slow: that has another cause."""
    book, cause, slow = IncidentBook(quiet_seconds=120), finding(gpu(1)), drop(T0 + MINUTE)
    book.update(world(4), [cause, slow], ())
    book.update(world(20), [slow], [ended(cause, tick(20))])
    for i in range(21, 21 + AFTERMATH_MS // 15_000 + 10):
        book.update(world(i), [replace(slow, updated_at=tick(i))], ())
    assert [i.fault for i in book.open()] == ["throughput_drop"]


def test_what_is_not_seen_to_stay_is_no_incident_of_its_own() -> None:
    """A slow PCIe link heals, and soon after the job stands for another cause: that its GPU was busier than its peers is old news,
    however long the finding stands still."""
    book, cause = IncidentBook(quiet_seconds=120), finding(gpu(1), "pcie_degraded")
    busy = replace(finding(gpu(1), "gpu_slow", onset=T0 + MINUTE), updated_at=tick(20))
    book.update(world(4), [cause, busy], ())
    news = [book.update(world(i), [busy], [ended(cause, tick(20))] if i == 20 else ())
            for i in range(20, 30 + 2 * AFTERMATH_MS // 15_000)]
    assert [(word, i.fault) for row in news for word, i in row] == [("resolved", "pcie_degraded")]


def test_the_memory_of_it_survives_a_restart() -> None:
    """What followed from what is part of the book's state."""
    book, cause, slow = IncidentBook(), finding(gpu(1)), drop(T0 + MINUTE)
    book.update(world(4), [cause, slow], ())
    other = IncidentBook()
    other.load(book.dump())
    other.update(world(20), [slow], [ended(cause, tick(20))])
    assert [i.fault for i in other.open()] == ["thermal_throttle"]


def test_what_followed_from_one_cause_does_not_merge_it_into_another() -> None:
    """Two hot GPUs: the first cools down, the job's slowness goes to the second, and both stay two incidents."""
    book, slow = IncidentBook(quiet_seconds=60), drop(T0 + MINUTE)
    first, second = finding(gpu(1), onset=T0 + MINUTE), finding(gpu(2), onset=T0 + 3 * MINUTE)
    book.update(world(20), [first, second, slow], ())
    for i in range(21, 30):
        book.update(world(i), [second, slow], [ended(first, tick(21))] if i == 21 else ())
    states = {i.culprit.node: i.state for i in (e.incident for e in book._entries.values()) if i.culprit is not None}
    assert states == {"n1": "resolved", "n2": "open"}


def test_a_node_that_waits_for_data_names_its_job() -> None:
    """The incident of a node's data stall counts for the job that waits for it."""
    book = IncidentBook()
    book.update(world(4), [waits(N1)], ())
    assert [(i.scope, i.culprit.key, i.jobs) for i in book.open()] == [("node", "node:n1/", ("j",))]
