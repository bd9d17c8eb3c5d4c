"""Fatal XIDs on several GPUs of one node: the baseboard, a PCIe switch or the power."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.reasons import REMARKS
from core.types import Evidence, Finding, Target
from pipeline.incidents import IncidentBook
from tests.pipeline.test_incidents import gpu, seen, site
from tests.pipeline.worlds import T0, finding, tick

MINUTE = 60_000
WORDS = "baseboard, PCIe switch or power"
XID_OF = {"gpu_lost": 79, "xid_fatal": 119, "ecc_uncorrectable": 48, "row_remap_failure": 64, "nvlink_errors": 74}


def xid(device: int, fault: str, minutes: float = 0, node: int = 1, target: Target | None = None) -> Finding:
    row = Evidence("gpu.xid", "xid", float(XID_OF[fault]), None, "no fatal XID", f"XID {XID_OF[fault]}")
    return replace(finding(target or gpu(node, device), fault, severity=0.9, reason="fatal_xid", onset=T0 + int(minutes * MINUTE)),
                   evidence=(row,))


def gone(device: int) -> Finding:
    return finding(gpu(1, device), "gpu_lost", severity=0.9, reason="vanished")


def at_address(bus: str, fault: str) -> Finding:
    return xid(0, fault, target=Target("gpu", "n1", f"0000:{bus}:00"))


LABELLED = site(labels=lambda i: {"driver": "590.44.01" if i in (0, 3, 6) else "580.95.05"})
ONE, NODE = "device", "node"
CASES = [
    ("two GPUs with one code", [xid(0, "ecc_uncorrectable"), xid(3, "ecc_uncorrectable", 4)], None, [("ecc_uncorrectable", NODE)]),
    ("two that fell off the bus", [xid(0, "gpu_lost"), xid(3, "gpu_lost", 9)], None, [("gpu_lost", NODE)]),
    ("three codes on three GPUs, named by the gravest", [xid(5, "ecc_uncorrectable"), xid(0, "xid_fatal"), xid(3, "gpu_lost", 1)], None,
     [("gpu_lost", NODE)]),
    ("a row that could not be remapped, and a GSP that is gone", [xid(1, "row_remap_failure"), xid(2, "xid_fatal")], None,
     [("xid_fatal", NODE)]),
    ("a third one minutes after the second", [xid(d, "xid_fatal", 8 * d) for d in range(3)], None, [("xid_fatal", NODE)]),
    ("NVLink errors of three GPUs", [xid(d, "nvlink_errors") for d in (1, 2, 6)], None, [("nvlink_errors", NODE)]),
    ("NVLink errors beside a lost GPU", [xid(1, "nvlink_errors"), xid(2, "gpu_lost")], None, [("gpu_lost", NODE)]),
    ("the two ends of an NVLink", [xid(1, "nvlink_errors"), xid(2, "nvlink_errors")], None, [("nvlink_errors", ONE)]),
    ("two faults of one GPU", [xid(1, "gpu_lost"), xid(1, "xid_fatal")], None, [("gpu_lost", ONE)]),
    ("one GPU under its number and its address", [xid(1, "row_remap_failure"), at_address("9b", "ecc_uncorrectable")], None,
     [("ecc_uncorrectable", ONE), ("row_remap_failure", ONE)]),
    ("two addresses", [at_address("9b", "ecc_uncorrectable"), at_address("1a", "gpu_lost")], None, [("gpu_lost", NODE)]),
    ("two slices of one GPU", [xid(0, "xid_fatal", target=Target("gpu", "n1", f"2/{i}")) for i in (1, 2)], None, [("xid_fatal", ONE)] * 2),
    ("GPUs of two nodes", [xid(0, "gpu_lost"), xid(0, "ecc_uncorrectable", node=2)], None, [("ecc_uncorrectable", ONE), ("gpu_lost", ONE)]),
    ("hours apart", [xid(0, "gpu_lost"), xid(3, "gpu_lost", 180)], None, [("gpu_lost", ONE)] * 2),
    ("GPUs that vanish without a word", [gone(1), gone(2)], None, [("gpu_lost", ONE)] * 2),
    ("three nodes with a driver of their own", [xid(d, "xid_fatal", node=n) for n in (0, 3, 6) for d in (1, 5)], LABELLED,
     [("xid_fatal", "fleet")]),
]


@pytest.mark.parametrize(("findings", "topology", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
@pytest.mark.parametrize("turn", [False, True])
def test_which_incidents_open(findings: list[Finding], topology: object, expected: list[tuple[str, str]], turn: bool) -> None:
    """Those of one node within ten minutes are one, and it says what to suspect."""
    news = IncidentBook().update(seen(4, topology), findings[::-1] if turn else findings, ())
    assert sorted((i.fault, i.scope) for _, i in news) == expected
    for _, one in news:
        said = any(WORDS in (row.text or "") for row in one.evidence)
        assert said == (one.scope == NODE) == any("several_gpus" in s.reasons for s in one.suspects)


def test_it_names_the_node_and_its_gpus_suffer() -> None:
    """Culprit, victims, nodes and the words are those of all its GPUs."""
    ((_, one),) = IncidentBook().update(seen(4), [xid(3, "gpu_lost", 1), xid(0, "ecc_uncorrectable"), xid(11, "xid_fatal", 2)], ())
    assert (one.culprit, one.jobs, one.onset_at) == (Target("node", "n1"), ("j",), T0)
    assert {v.device for v in one.victims} == {"0", "3", "11"}
    assert one.evidence[0].text == f"{WORDS}: fatal XIDs on GPUs 0, 3, 11 within 2 min"
    assert WORDS in REMARKS["several_gpus"]


def test_the_incident_of_the_first_gpu_becomes_that_of_the_node_and_stays_it() -> None:
    """One GPU, then two, then the other one alone: the first incident is merged, and the node's goes on under its name."""
    book, first, second = IncidentBook(), xid(0, "gpu_lost"), xid(3, "ecc_uncorrectable", 3)
    book.update(seen(2), [first], ())
    book.update(seen(14), [first, second], ())
    (node,) = book.open()
    assert (node.fault, node.scope, node.opened_at) == ("gpu_lost", "node", tick(14))
    book.update(seen(20), [second], [replace(first, state="ended", ended_at=tick(20), end_reason="cleared")])
    assert [(i.id, i.scope) for i in book.open()] == [(node.id, "node")]


def test_a_gpu_that_dies_hours_later_is_not_the_open_incidents() -> None:
    """The node's incident is still open, and its own GPUs are still ill."""
    book, board = IncidentBook(), [xid(0, "gpu_lost"), xid(3, "gpu_lost")]
    book.update(seen(4), board, ())
    book.update(seen(900), [*board, xid(5, "ecc_uncorrectable", 200)], ())
    assert sorted((i.fault, i.scope) for i in book.open()) == [("ecc_uncorrectable", "device"), ("gpu_lost", "node")]


def test_what_its_gpus_show_besides_belongs_to_it() -> None:
    """Single-bit errors of a GPU of it are its; those of another GPU are not."""
    board = [xid(0, "ecc_uncorrectable"), xid(3, "gpu_lost")]
    news = IncidentBook().update(seen(4), [*board, finding(gpu(1, 0), "ecc_correctable_storm"), finding(gpu(1, 6), "ecc_correctable_storm")], ())
    assert sorted((i.fault, str(i.culprit and i.culprit.device)) for _, i in news) == [("ecc_correctable_storm", "6"), ("gpu_lost", "None")]
