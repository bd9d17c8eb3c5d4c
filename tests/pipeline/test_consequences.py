"""What follows from another fault is no incident of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.types import Finding, Target
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
