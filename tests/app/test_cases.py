"""Recorded cases: a span is kept with what is true of it, and judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cases import CaseOptions, add, check, differences, expected
from app.replay import ReplayOptions, replay
from app.rules_test import test_rules as try_rules
from core.clock import rfc3339
from core.errors import BadInput, ConfigError

T0 = 1_764_000_000_000
H200 = Path(__file__).resolve().parents[2] / "sample_data" / "recordings" / "h200"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A kernel log of ten minutes in which a GPU falls off the bus."""
    folder = tmp_path / "recording"
    folder.mkdir()
    lines = [f"{rfc3339(T0 + i * 30_000)} n1 kernel: usb 1-1: device {i}" for i in range(20)]
    lines.insert(10, f"{rfc3339(T0 + 290_000)} n1 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.")
    (folder / "kernel.n1.log").write_text("\n".join(lines) + "\n")
    return folder


def test_a_case_is_judged_again(tmp_path: Path) -> None:
    """What was told of a real hang and a NaN is right; another truth is missing, and what is told is too much."""
    cases = str(tmp_path / "cases")
    made = add(CaseOptions("hang", (str(H200),), cases, as_told=True, note="seen by hand"))
    assert ([one["fault"] for one in made["incidents"]], made["note"]) == (["stalled_loss", "nonfinite_loss"], "seen by hand")
    file = tmp_path / "cases" / "hang" / "case.json"
    file.write_text(json.dumps({**made, "incidents": [expected("straggler@n2/3"), expected("nonfinite_loss@job=lab-train")]}))
    assert check([cases]) == [{"name": "hang", "right": False, "differences": ["missing: straggler@n2/3", "too much: stalled_loss"]}]


def test_an_incident_of_a_store_becomes_a_case(tmp_path: Path) -> None:
    """Its time and its part are taken from the store."""
    lines: list[str] = []
    replay(ReplayOptions((str(H200),), keep=str(tmp_path / "kept")), lines.append)
    told = next(json.loads(line)["incident"] for line in lines if line.startswith('{"type":"incident"'))
    made = add(CaseOptions("hang", (str(tmp_path / "kept"),), str(tmp_path / "cases"), incident=told["id"]))
    assert made["incidents"] == [{"fault": "stalled_loss", "scope": "job", "culprit": None}]


def test_a_span_is_cut_out(tmp_path: Path, recording: Path) -> None:
    """Nothing of before and after it is in the case."""
    span = {"start": rfc3339(T0 + 280_000), "end": rfc3339(T0 + 300_000)}
    made = add(CaseOptions("short", (str(recording),), str(tmp_path / "cases"), expect=("gpu_lost@n1",), **span))
    assert {key: made[key] for key in ("start", "end", "events")} == {**span, "events": 1}
    with pytest.raises(BadInput, match="nothing from"):
        add(CaseOptions("calm", (str(recording),), str(tmp_path / "cases"), expect=("nothing",), end=rfc3339(T0 + 280_000)))


BAD = [
    ("no truth", {}, "one of --expect, --incident and --as-told is needed"),
    ("two truths", {"expect": ("nothing",), "as_told": True}, "more than one word"),
    ("nothing and something", {"expect": ("nothing", "gpu_lost")}, "it is allowed alone only"),
    ("no fault", {"expect": ("gpu_loss",)}, "did you mean 'gpu_lost'"),
    ("no place", {"expect": ("gpu_lost@",)}, "FAULT@NODE"),
    ("a bad name", {"name": "../x", "as_told": True}, "letters, digits"),
    ("a time that is none", {"start": "yesterday", "as_told": True}, "an RFC 3339 time"),
    ("another time", {"start": "2031-01-01T00:00:00Z", "as_told": True}, "a time within 2025"),
    ("no such incident", {"incident": "inc-0"}, "an incident of the store"),
]


@pytest.mark.parametrize(("more", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_cases_get_one_sentence(tmp_path: Path, recording: Path, more: dict, sentence: str) -> None:
    """What is wrong and what is allowed; nothing is left."""
    with pytest.raises(BadInput, match=sentence):
        add(CaseOptions(**{"name": "x", "paths": (str(recording),), "folder": str(tmp_path / "cases"), **more}))
    assert not (tmp_path / "cases" / "x").exists()


def told(fault: str, scope: str = "device", **culprit: str) -> dict:
    return {"fault": fault, "scope": scope, "culprit": {"kind": "gpu", **culprit} if culprit else None, "jobs": ["j"]}


SAME = [
    ("the same part", [expected("gpu_lost@n1/3")], [told("gpu_lost", node="n1", device="3")], []),
    ("any part", [expected("gpu_lost")], [told("gpu_lost", node="n1", device="3")], []),
    ("the job", [expected("stalled_loss@job=j")], [told("stalled_loss", "job")], []),
    ("no part may be named", [{"fault": "gpu_lost", "scope": "device", "culprit": None}], [told("gpu_lost", node="n1")],
     ["missing: gpu_lost", "too much: gpu_lost@n1"]),
    ("another part", [expected("gpu_lost@n2")], [told("gpu_lost", node="n1")], ["missing: gpu_lost@n2", "too much: gpu_lost@n1"]),
    ("nothing", [], [], []),
]


@pytest.mark.parametrize(("truth", "said", "wanted"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_what_is_the_same(truth: list, said: list, wanted: list[str]) -> None:
    """What the truth leaves open may be anything."""
    assert differences(truth, said) == wanted


RULES = "- name: steps\n  logPattern: '.*iteration +(\\d+)'\n  expectedRecurringFrequencyInSeconds: 60\n- name: never\n  logPattern: '.*no such line'\n" \
        "  expectedStartCutOffInSeconds: 30\n"


def test_rules_are_tried_on_a_log(tmp_path: Path) -> None:
    """What each rule would have said, and which never matched."""
    (tmp_path / "rules.yaml").write_text(RULES)
    steps = [f"[2025-11-24 16:{i:02d}:00] iteration {i}/ 100 | lm loss: 3.0" for i in (0, 1, 5, 6)]
    (tmp_path / "trainer.j.log").write_text("\n".join(steps) + "\n")
    said, silent = try_rules(str(tmp_path / "rules.yaml"), [str(tmp_path / "trainer.j.log")])
    assert silent == ["never"]
    assert [row["state"] for row in said if row["rule"] == "steps"][:2] == ["matching", "overdue"]
    with pytest.raises((BadInput, ConfigError)):
        try_rules(str(tmp_path / "rules.yaml"), [str(tmp_path)[:-1]])
