"""Recorded cases and stores with their truth are judged in the scorecard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cases import CaseOptions, add
from app.evaluate.command import EvaluateOptions, below_floor, evaluate
from app.evaluate.recorded import SHIPPED, Known, Recorded, compared, lines, recorded, section
from app.replay import ReplayOptions, replay
from core.clock import rfc3339
from core.errors import BadInput

T0 = 1_764_000_000_000
LOST = {"fault": "gpu_lost", "culprit": {"node": "n1"}}
SLOW = {"fault": "throughput_drop", "culprit": {"job": "train"}}


def told(fault: str, minute: float = 5.0, name: str = "inc-1", **more: Any) -> dict[str, Any]:
    culprit = more.pop("culprit", {"kind": "gpu", "node": "n1", "device": "3"})
    return {"id": name, "fault": fault, "scope": "device", "culprit": culprit, "jobs": [], "opened_at": rfc3339(T0 + round(minute * 60_000)), **more}


def at(first: float, last: float, truth: dict[str, Any] = LOST) -> Known:
    return Known(truth, T0 + first * 60_000, T0 + last * 60_000, ("train",))


@pytest.mark.parametrize(("known", "must_not", "said", "verdict", "counts"), [
    ([Known(LOST)], (), [told("gpu_lost")], "right", (1, 1, 0)),
    ([], (), [], "right", (0, 0, 0)),
    ([], (), [told("gpu_lost")], "wrong", (0, 0, 1)),
    ([Known(LOST)], (), [], "wrong", (1, 0, 0)),
    ([Known(LOST)], (), [told("gpu_lost", culprit={"node": "n2"})], "wrong", (1, 0, 1)),
    ([Known(LOST)], (LOST,), [told("gpu_lost")], "must_not", (1, 1, 0)),
    ([], ({"fault": "gpu_slow"},), [told("gpu_lost")], "wrong", (0, 0, 1)),
    ([at(4, 10)], (), [told("gpu_lost")], "right", (1, 1, 0)),
    ([at(20, 30)], (), [told("gpu_lost")], "wrong", (1, 0, 1)),                          # long before it was there
    ([at(4, 10)], (), [told("gpu_lost"), told("gpu_lost", 9, "inc-2")], "right", (1, 1, 0)),   # the same again
    ([at(4, 10)], (), [told("gpu_lost"), told("stalled_loss", 6, "inc-2", culprit=None, jobs=["train"])], "right", (1, 1, 0)),
    ([at(4, 10)], (), [told("gpu_lost"), told("stalled_loss", 6, "inc-2", culprit=None, jobs=["other"])], "wrong", (1, 1, 1)),
    ([at(4, 10)], (), [told("gpu_lost"), told("stalled_loss", 6, "inc-2", culprit={"node": "n7"}, jobs=["train"])], "wrong", (1, 1, 1)),
    ([at(4, 10), at(14, 20)], (), [told("gpu_lost", 15, "inc-2"), told("gpu_lost")], "right", (2, 2, 0)),
    ([Known(SLOW)], (), [told("throughput_drop", culprit=None, jobs=["train"])], "right", (1, 1, 0)),
])
def test_a_case_has_one_verdict(known: list[Known], must_not: tuple[dict[str, Any], ...], said: list[dict[str, Any]], verdict: str,
                                counts: tuple[int, int, int]) -> None:
    """All that is true and nothing else is right; what must not be said outweighs all; consequences at the time are no false alarms."""
    judged = compared(Recorded("x", (), tuple(known), must_not), said)
    assert (judged.verdict, judged.expected, judged.found, judged.false) == (verdict, *counts)


def test_the_section_counts_and_names() -> None:
    """How many were right, recall and precision over all, and each one that was not in words."""
    rows = [compared(Recorded("good", (), (at(4, 10),)), [told("gpu_lost")]),
            compared(Recorded("bad", (), (Known(LOST),), ({"fault": "gpu_slow"},)), [told("gpu_slow")])]
    part = section(rows)
    assert (part["n"], part["right"], part["must_not"], part["recall"]["value"], part["precision"]["value"]) == (2, 1, 1, 0.5, 0.5)
    assert part["cases"][0]["delays"] == [60.0]
    assert list(lines(part))[-1] == "  bad  must not  missing: gpu_lost@n1  too much: gpu_slow@n1/3  must not be said: gpu_slow@n1/3"
    card = {"settings": {"scenarios": 0}, "macro": {}, "cases": part}
    assert (below_floor(card, 0.9), below_floor(card, None)) == (["below the floor: the recorded case bad is not right"], [])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ten minutes in which a GPU has an error in the fifth that nobody contained."""
    tmp_path = tmp_path_factory.mktemp("recorded")
    (tmp_path / "logs").mkdir()
    text = [f"{rfc3339(T0 + i * 30_000)} n1 kernel: usb 1-1: device {i}" for i in range(20)]
    text.insert(10, f"{rfc3339(T0 + 290_000)} n1 kernel: NVRM: Xid (PCI:0000:9b:00): 95, pid=1, name=python, Uncontained ECC error")
    (tmp_path / "logs" / "kernel.n1.log").write_text("\n".join(text) + "\n")
    replay(ReplayOptions((str(tmp_path / "logs"),), keep=str(tmp_path / "store")), lambda _: None)
    return tmp_path / "store"


def test_a_store_with_its_truth_is_evaluated(tmp_path: Path, store: Path) -> None:
    """What `import` or `replay --keep` left, a file of labels, and the scorecard of it; its exit status says whether it was right."""
    truth = tmp_path / "truth.yaml"
    truth.write_text(f"- {{fault: ecc_uncorrectable, node: n1, start: '{rfc3339(T0 + 280_000)}'}}\n")
    options = EvaluateOptions("recorded", None, str(tmp_path / "card.json"), cases=(str(store),), truth=str(truth), floor=0.9, processes=1)
    shown: list[str] = []
    assert evaluate(options, lambda _: None, shown.append) == 0
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["cases"]["right"], card["cases"]["recall"]["value"], card["settings"]["suite"]) == (1, 1.0, "recorded")
    assert "recorded cases: 1 of 1 right, 0 wrong, 0 said what they must not, 0 failed" in shown


def test_all_forms_of_truth_are_read(tmp_path: Path, store: Path) -> None:
    """Cases in a folder of cases, labels beside a store, a mapping in a file; the shipped recording is one."""
    add(CaseOptions("lost", (str(store),), str(tmp_path / "cases"), expect=("ecc_uncorrectable@n1",), must_not=("gpu_slow",)))
    (store / "labels.yaml").write_text("[]\n")
    given = tmp_path / "truth.json"
    given.write_text(json.dumps({"incidents": [LOST], "must_not": [SLOW]}))
    found = [*recorded([str(tmp_path / "cases"), str(store), str(SHIPPED)]), *recorded([str(store)], str(given))]
    assert [(one.name, len(one.known), len(one.must_not)) for one in found] == [
        ("lost", 1, 1), ("store", 0, 0), ("h200", 2, 3), ("store", 1, 1)]


@pytest.mark.parametrize(("paths", "truth", "sentence"), [
    (["."], None, "nothing that says what is true"), (["nowhere"], None, "nothing that says what is true"),
    (["a", "b"], "t.yaml", "one --cases is needed"), ([], "t.yaml", "one --cases is needed"), (["."], "bad.json", "a file that is no case"),
])
def test_what_cannot_be_judged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], truth: str | None,
                                          sentence: str) -> None:
    """Without a truth there is no verdict."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"incidents": [{"fault": "gpu_loss"}]}')
    with pytest.raises(BadInput, match=sentence):
        recorded(paths, truth)
