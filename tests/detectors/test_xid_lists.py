"""The table of XIDs against what each of them publishes, written down here a second time."""

from __future__ import annotations

import pytest

from core.faults import faults
from core.plugins import load_plugins
from core.xids import DEFAULT, POLICIES, VENDORS, xid_of, xids
from tests.contract.windows import Cluster
from tests.detectors.test_fatal_events import faulty, line

SOME_CODES = range(1, 200)
BY_LINE = frozenset(range(144, 151))
RESET = {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}
CALLED = {
    # NVIDIA: reset, power cycle, restart of the VM, mechanicals, support, and the workflows of 48 and 74
    "nvidia": RESET | {79, 151, 54, 142, 48, 74},
    "eks": {46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158},
    "azure": set(SOME_CODES) - {43, 63, 13, 31, 66, 94, 154},
    "aznhc": {48, 56, 57, 58, 62, 63, 64, 65, 68, 69, 73, 74, 79, 80, 81, 92, 119, 120},
    "meta": set(SOME_CODES) - {13, 31, 43, 45, 63, 68, 92, 109},
}
DETECTOR = {45: "xid_fatal", 92: "ecc_correctable_storm", 154: "xid_fatal"}


@pytest.mark.parametrize("vendor", VENDORS)
def test_each_list_is_what_its_owner_publishes(vendor: str) -> None:
    """Of all codes below 200, exactly those of the published list are fatal."""
    assert {code for code in SOME_CODES if xid_of(code).fatal(vendor)} == CALLED[vendor]


def test_the_default_is_nvidias_word_and_one_code_more() -> None:
    """94 needs no reset, and what the job computed last is not to be trusted."""
    assert {code for code in SOME_CODES if xid_of(code).fatal(DEFAULT)} == CALLED["nvidia"] | {94}


def test_every_code_of_a_list_has_a_row() -> None:
    """What somebody names, to call it fatal or to except it, has a meaning and a known fault."""
    named = {code for vendor in VENDORS for code in CALLED[vendor] if len(CALLED[vendor]) < 100}
    excepted = {code for vendor in ("azure", "meta") for code in SOME_CODES if code not in CALLED[vendor]}
    assert named | excepted | BY_LINE == set(xids())
    assert all(row.fault in faults() and set(row.fatal_by) <= set(POLICIES) for row in xids().values())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("code", "fatal_to"), [(45, {"azure"}), (92, {"azure", "aznhc"}), (154, {"meta"})])
def test_whether_a_line_is_a_fault_follows_the_chosen_list(policy: str, code: int, fatal_to: set[str]) -> None:
    """45, 92 and 154 are faults to some and events to the others."""
    cluster = Cluster()
    cluster.events.append(line(code, 90))
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    assert faulty(cluster, DETECTOR[code], fatal_by=policy) == (["gpu:GPU-n001-3"] if policy in fatal_to else [])


@pytest.mark.parametrize("code", [43, 45])
def test_the_echoes_of_a_kill_are_nothing_by_default(code: int) -> None:
    """Each GPU of a node writes them when its job is killed, and no detector says anything."""
    cluster = Cluster()
    cluster.events += [line(code, 90 + i % 8) for i in range(64)]
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    names = [name for name, plugin in load_plugins("detectors").items() if "worked_seconds" in plugin.params.__dataclass_fields__]
    assert len(names) >= 6
    assert [name for name in names if faulty(cluster, name)] == []
