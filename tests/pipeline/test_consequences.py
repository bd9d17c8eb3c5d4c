"""What follows from another fault is no incident of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.types import Evidence, Finding, Target
from pipeline.confidence import chances
from pipeline.incidents import IncidentBook
from tests.pipeline.test_incidents import gpu, nic, rank, seen, stall
from tests.pipeline.worlds import T0, finding, tick

JOB = Target("job", job="j")
MINUTE = 60_000


def fatal(target: Target, fault: str, onset: int = T0) -> Finding:
    return finding(target, fault, severity=0.9, reason="fatal_xid", onset=onset)


def hang(onset: int = T0, target: Target = JOB, reason: str = "no_step") -> Finding:
    return stall(target, reason=reason, onset=onset, severity=0.9)


def down(node: int) -> Finding:
    return finding(Target("node", f"n{node}"), "target_down", severity=0.3, reason="exporter_down")


def unit(name: str) -> Finding:
    row = Evidence("service.active", "bool", 0.0, 1.0, "a unit that ran", f"{name} does not run")
    return replace(finding(Target("node", "n1"), "service_down", severity=0.3, reason="unit_down"), evidence=(row,))


def stale(node: int, signal: str = "gpu.power_watts") -> Finding:
    row = Evidence(signal, "W", 300.0, None, "a value that flickers")
    return replace(finding(Target("node", f"n{node}"), "exporter_stale", severity=0.3, reason="values_stand"), evidence=(row,))


def drift(*signals: str) -> Finding:
    rows = tuple(Evidence(s, "bool", 0.0, 1.0, "7 of 8 nodes", "it is 0, and 1 on 7 of 8 nodes") for s in signals)
    return replace(finding(Target("node", "n1"), "config_drift", severity=0.3, reason="differs", onset=T0 + MINUTE), evidence=rows)


CASES = [
    ("a lost GPU stops its job", [fatal(gpu(1), "gpu_lost"), hang(T0 + MINUTE)], ["gpu_lost"]),
    ("the job is seen to stop before the line", [fatal(gpu(1), "xid_fatal", T0 + 2 * MINUTE), hang(T0)], ["xid_fatal"]),
    ("a port that is down stops its job", [fatal(nic(2), "link_down"), hang(T0 + MINUTE)], ["link_down"]),
    ("a rank on the same node is behind", [fatal(gpu(1), "ecc_uncorrectable"), hang(T0, rank(9, 1, 1))], ["ecc_uncorrectable"]),
    ("a rank on another node is behind", [fatal(gpu(1), "ecc_uncorrectable"), hang(T0, rank(17, 2, 1))],
     ["ecc_uncorrectable", "stalled_loss"]),
    ("what was survived explains nothing", [fatal(gpu(1), "xid_fatal", T0 - 40 * MINUTE), hang(T0)], ["stalled_loss", "xid_fatal"]),
    ("a node of no job stops none", [fatal(gpu(6), "gpu_lost"), hang(T0)], ["gpu_lost", "stalled_loss"]),
    ("heat does not stop a job", [finding(gpu(1)), hang(T0)], ["stalled_loss", "thermal_throttle"]),
    ("of two causes the first one has it", [fatal(gpu(1), "gpu_lost", T0), fatal(gpu(2), "gpu_lost", T0 + MINUTE), hang(T0)],
     ["gpu_lost", "gpu_lost"]),
    ("a rank that stands still serves no page", [hang(T0, rank(9, 1, 1), "answers_no_more"), down(1)], ["stalled_loss"]),
    ("another node's exporter is down", [hang(T0, rank(9, 1, 1), "answers_no_more"), down(2)], ["stalled_loss", "target_down"]),
    ("a rank that answers and is behind", [hang(T0, rank(9, 1, 1)), down(1)], ["stalled_loss", "target_down"]),
    ("a GPU that is lost shows other XIDs", [fatal(gpu(1), "gpu_lost"), fatal(gpu(1), "xid_fatal"), hang(T0)], ["gpu_lost"]),
    ("another GPU's XID stays", [fatal(gpu(1), "gpu_lost"), fatal(gpu(2), "xid_fatal")], ["gpu_lost", "xid_fatal"]),
    ("both ends of an NVLink count", [finding(gpu(1, 2), "nvlink_errors"), fatal(gpu(1, 5), "nvlink_errors")], ["nvlink_errors"]),
    ("NVLinks of two nodes are two", [finding(gpu(1), "nvlink_errors"), finding(gpu(2), "nvlink_errors")], ["nvlink_errors"] * 2),
    ("the daemon that holds persistence mode died", [unit("nvidia-persistenced.service"), drift("gpu.persistence_enabled")], ["service_down"]),
    ("another unit died", [unit("nvidia-dcgm.service"), drift("gpu.persistence_enabled")], ["config_drift", "service_down"]),
    ("more than persistence mode differs", [unit("nvidia-persistenced.service"), drift("gpu.persistence_enabled", "label.present")],
     ["config_drift", "service_down"]),
    ("a GPU that answers no more holds up its exporter", [fatal(gpu(1), "xid_fatal"), stale(1)], ["xid_fatal"]),
    ("another node's exporter stands still", [fatal(gpu(1), "xid_fatal"), stale(2)], ["exporter_stale", "xid_fatal"]),
    ("a clock that stands is no GPU's", [fatal(gpu(1), "xid_fatal"), stale(1, "node.time_seconds")], ["exporter_stale", "xid_fatal"]),
    ("a leak ends each run, however old it is", [finding(gpu(1), "gpu_memory_leaked"), hang(T0 + 40 * MINUTE)], ["gpu_memory_leaked"]),
    ("a link that flaps loses packets", [finding(nic(1), "link_flap"), finding(nic(1), "packet_loss", reason="loss_seen_here")],
     ["link_flap"]),
]


@pytest.mark.parametrize(("findings", "faults"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("turn", [False, True])
def test_which_incidents_open(findings: list[Finding], faults: list[str], turn: bool) -> None:
    """Each cause is one incident, whatever the order of its findings."""
    news = IncidentBook().update(seen(4), findings[::-1] if turn else findings, ())
    assert sorted(i.fault for _, i in news) == faults


def test_the_cause_has_all_the_findings() -> None:
    """The incident is over only when the job runs again."""
    book = IncidentBook(quiet_seconds=0)
    cause, follower = fatal(gpu(1), "gpu_lost"), hang(T0 + MINUTE)
    book.update(seen(4), [cause, follower], ())
    book.update(seen(5), [cause, follower], ())
    (incident,) = book.open()
    assert set(incident.findings) == {cause.id, follower.id}


def test_an_incident_that_opened_first_is_merged_into_its_cause() -> None:
    """The job is seen to stop before the GPU is seen to be gone: one incident is left, the other one points to it."""
    book = IncidentBook()
    book.update(seen(2), [hang(T0)], ())
    news = book.update(seen(6), [hang(T0), fatal(gpu(1), "gpu_lost", T0 + MINUTE)], ())
    ended = next(i for _, i in news if i.fault == "stalled_loss")
    (left,) = book.open()
    assert (ended.state, ended.merged_into, left.fault) == ("merged", left.id, "gpu_lost")


def test_once_the_job_runs_again_the_cause_alone_keeps_it_open() -> None:
    """The consequence's finding ends; the incident stays that of the cause."""
    book = IncidentBook()
    cause, follower = fatal(gpu(1), "gpu_lost"), hang(T0 + MINUTE)
    book.update(seen(4), [cause, follower], ())
    ended = replace(follower, state="ended", ended_at=tick(9), end_reason="cleared")
    book.update(seen(9), [cause], [ended])
    assert [i.fault for i in book.open()] == ["gpu_lost"]


@pytest.mark.parametrize("state", ["acting", "verifying"])
def test_an_incident_that_is_acted_on_keeps_its_evidence(state: str) -> None:
    """The proof that an action helped must not move to another incident."""
    book = IncidentBook()
    book.update(seen(2), [hang(T0)], ())
    book.adopt(tick(2), replace(book.open()[0], state=state))
    book.update(seen(6), [hang(T0), fatal(gpu(1), "gpu_lost", T0 + MINUTE)], ())
    assert sorted((i.fault, i.state) for i in book.open()) == [("gpu_lost", "open"), ("stalled_loss", state)]


OVER_AT = 40
LINGERING = [
    ("its work is read over minutes", "pcie_degraded", gpu(1), gpu(1), 20, 44, []),
    ("heat and then slow", "thermal_throttle", gpu(1), gpu(1), 20, 44, []),
    ("it stays", "pcie_degraded", gpu(1), gpu(1), 20, 110, ["gpu_slow"]),
    ("it began after the cause was over", "pcie_degraded", gpu(1), gpu(1), 42, 44, ["gpu_slow"]),
    ("another GPU", "pcie_degraded", gpu(1), gpu(1, 3), 20, 44, ["gpu_slow"]),
    ("what explains no slowness", "gpu_memory_leaked", gpu(1), gpu(1), 20, 44, ["gpu_slow"]),
]


@pytest.mark.parametrize(("fault", "part", "slow", "onset", "at", "opened"), [c[1:] for c in LINGERING], ids=[c[0] for c in LINGERING])
def test_what_is_seen_after_its_cause_is_over(fault: str, part: Target, slow: Target, onset: int, at: int, opened: list[str]) -> None:
    """A slowness that began under a cause of the same part belongs to it for a while, also where it is found later."""
    book = IncidentBook()
    book.update(seen(10), [finding(part, fault)], ())
    book.update(seen(OVER_AT), [], ())
    book.update(seen(OVER_AT + 1), [], ())
    news = book.update(seen(at), [finding(slow, "gpu_slow", tick(at), onset=tick(onset))], ())
    assert [i.fault for word, i in news if word == "opened"] == opened


def test_the_tick_in_which_a_cause_ends_opens_nothing() -> None:
    """The slowness that followed is left alone at once: it is no incident of its own."""
    book = IncidentBook()
    slow = finding(gpu(1), "gpu_slow", onset=tick(3))
    for i in (4, 5):
        book.update(seen(i), [finding(gpu(1), "pcie_degraded"), slow], ())
    news = book.update(seen(6), [slow], ())
    assert [i.fault for word, i in news if word == "opened"] == []


def counted(device: int, rate: float, severity: float = 0.6) -> Finding:
    row = Evidence("gpu.nvlink_errors_per_second", "1/s", rate, 0.0, "a link without errors")
    return replace(finding(gpu(1, device), "nvlink_errors", severity=severity, reason="link_errors"), evidence=(row,))


OWN = chances()["own"]
HALF = round(OWN / 2, 3)
ENDS = [
    ("both count alike", [counted(1, 2.0), counted(2, 2.2)], {1: HALF, 2: HALF}),
    ("few errors, by chance more here", [counted(1, 0.07), counted(2, 0.12)], {1: HALF, 2: HALF}),
    ("ill on several links", [counted(1, 2.0), counted(4, 6.1), counted(7, 2.1)], {4: OWN}),
    ("only one of them met a fatal error", [counted(1, 9.0), counted(2, 2.0, 0.9)], {2: OWN}),
    ("a single end", [counted(5, 2.0)], {5: OWN}),
]


@pytest.mark.parametrize(("findings", "suspects"), [c[1:] for c in ENDS], ids=[c[0] for c in ENDS])
def test_which_end_of_an_nvlink(findings: list[Finding], suspects: dict[int, float]) -> None:
    """The end that is clearly worse, else both with equal chances."""
    ((_, incident),) = IncidentBook().update(seen(4), findings, ())
    assert {int(s.target.device or ""): s.probability for s in incident.suspects} == suspects


def test_an_nvlink_stays_one_incident_whichever_end_counts_more() -> None:
    """The worse end changes: the same incident names it."""
    book = IncidentBook()
    book.update(seen(4), [counted(1, 9.0), counted(2, 2.0)], ())
    book.update(seen(8), [counted(1, 2.0), counted(2, 9.0)], ())
    (incident,) = book.open()
    assert (incident.culprit, incident.opened_at) == (gpu(1, 2), tick(4))
