"""The table of XIDs against what each of them publishes, written down here a second time."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import wiring
from core.config import read_config
from core.errors import ConfigError
from core.faults import faults
from core.plugins import load_plugins
from core.xids import DEFAULT, POLICIES, VENDORS, XidPolicy, xid_of, xids
from tests.contract.windows import Cluster, crash_at_one_step
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
    assert faulty(cluster, DETECTOR[code], xids=XidPolicy(policy)) == (["gpu:GPU-n001-3"] if policy in fatal_to else [])


@pytest.mark.parametrize("code", [43, 45])
def test_the_echoes_of_a_kill_are_nothing_by_default(code: int) -> None:
    """Each GPU of a node writes them when its job is killed, and no detector says anything."""
    cluster = Cluster()
    cluster.events += [line(code, 90 + i % 8) for i in range(64)]
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    names = [name for name, plugin in load_plugins("detectors").items() if "worked_seconds" in plugin.params.__dataclass_fields__]
    assert len(names) >= 6
    assert [name for name in names if faulty(cluster, name)] == []


@pytest.mark.parametrize(("xids", "code", "told", "counts"), [
    (XidPolicy("eks"), 63, None, True), (XidPolicy("eks", not_fatal=(63,)), 63, None, False), (XidPolicy(fatal=(63,)), 63, None, True),
    (XidPolicy("meta", not_fatal=(999,)), 999, None, False), (XidPolicy("meta"), 999, None, True),
    (XidPolicy(), 145, True, True), (XidPolicy("azure"), 145, False, False), (XidPolicy("azure"), 145, None, True),
    (XidPolicy(not_fatal=(145,)), 145, True, False), (XidPolicy(fatal=(145,)), 145, False, True),
])
def test_the_sites_word_on_a_code_comes_before_the_line_and_the_list(xids: XidPolicy, code: int, told: bool | None, counts: bool) -> None:
    """The site's exceptions first, then what the line says of itself, then the list."""
    assert xids.counts(code, told) is counts


def test_one_setting_reaches_every_detector_that_reads_xids(tmp_path: Path) -> None:
    """All that look at fatal codes get the same choice from greylag.yaml, with what else is set of them."""
    file = tmp_path / "greylag.yaml"
    file.write_text("scrape_configs: []\nxids: {policy: eks, fatal: [92], not_fatal: [94]}\ndetectors: {gpu_lost: {gone_seconds: 70}}\n")
    config = read_config(file)
    _, params = wiring.detectors(config.detectors, config.file, config.xids)
    readers = {name for name, one in params.items() if getattr(one, "xids", None) == XidPolicy("eks", (92,), (94,))}
    assert readers == {"ecc_correctable_storm", "ecc_uncorrectable", "gpu_lost", "job_crash_loop", "nvlink_errors", "row_remap_failure", "xid_fatal"}
    assert params["gpu_lost"].gone_seconds == 70


@pytest.mark.parametrize(("text", "words"), [
    ("xids: {policy: esk}", "xids.policy: got 'esk', allowed are: greylag, nvidia, eks, azure, aznhc, meta"),
    ("xids: {fatal: [x]}", "xids.fatal[0]: got 'x', a whole number is needed"),
    ("xids: {fatal: [0]}", "xids.fatal[0]: got 0, the number of an XID is needed"),
    ("xids: {fatal: [63], not_fatal: [63]}", "63 as fatal and as not fatal"),
    ("xids: {ignore: [63]}", "xids.ignore: got an unknown key"),
    ("detectors: {xid_fatal: {fatal_by: eks}}", "detectors.xid_fatal.fatal_by: got 'eks', it is set once for all detectors"),
    ("detectors: {gpu_lost: {xids: {policy: eks}}}", "detectors.gpu_lost.xids"),
])
def test_a_choice_that_cannot_be_meant_is_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    """File, key, what was given and what is allowed."""
    file = tmp_path / "greylag.yaml"
    file.write_text(f"scrape_configs: []\n{text}\n")
    with pytest.raises(ConfigError) as refused:
        wiring.detectors(read_config(file).detectors, str(file))
    assert str(file) in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize(("code", "xids", "found"), [
    (45, XidPolicy("azure"), ["job:llm/"]), (63, XidPolicy(), ["job:llm/"]), (63, XidPolicy("eks"), []), (119, XidPolicy(), []),
    (119, XidPolicy(not_fatal=(119,)), ["job:llm/"]),
])
def test_crashes_are_explained_by_the_codes_that_are_fatal_here(code: int, xids: XidPolicy, found: list[str]) -> None:
    """A loop beside a fatal code belongs to that GPU; the clean-up after a crash explains none, whoever calls it fatal."""
    cluster = crash_at_one_step(Cluster(), 60)
    cluster.events.append(line(code, 60))
    assert faulty(cluster, "job_crash_loop", xids=xids) == found
