"""The parts of a scorecard, of a few made-up runs: two fleet sizes, two tiers, two scrape intervals and one false incident."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.evaluate import command
from app.evaluate.command import EvaluateOptions, evaluate
from app.evaluate.facts import Part, Ran, Said, Truth
from app.evaluate.plan import Planned
from app.evaluate.rates import base_rates
from app.evaluate.report import table
from app.evaluate.score import scorecard
from fleet.build import all_plugins
from fleet.rates import groups

MINUTE = 60_000
MACRO = {"precision", "recall", "localisation_top1", "localisation_top3", "false_incidents_per_1000_node_days", "node_days",
         "delay_p50_seconds", "delay_p95_seconds"}


def _hot(node: str) -> Truth:
    return Truth("thermal_throttle", "thermal_throttle", "device", Part("gpu", node, "4"), (node,), ("train-1",), 10 * MINUTE, 10 * MINUTE,
                 20 * MINUTE, 0.2, True)


def _said(number: int, truth: Truth, minutes: float = 12, **changed: Any) -> Said:
    one = Said(f"inc-{number}", truth.fault, "device", truth.culprit, int(minutes * MINUTE), "page", confidence=0.9,
               suspects=((truth.culprit, 0.9),), jobs=truth.jobs, nodes=truth.nodes)
    return replace(one, **changed)


HOT, SLOW = _hot("n03"), replace(_hot("n01"), plant="packet_loss", fault="packet_loss", culprit=Part("nic", "n01", "mlx5_0/1"))
STRAY = _said(9, HOT, 30, fault="link_down", culprit=Part("nic", "n07", "mlx5_1/1"), nodes=("n07",), jobs=("train-9",))
ALERT = _said(5, HOT, 11, confidence=None, reason="NvidiaGpuTemperatureHigh")
# A small fleet at tier B: one found after two minutes. A large one at tier A: one found after four, one missed, one false incident.
SMALL = Ran("s-0", "local", "", "B", "h100-8x-roce", 12, 15, 30.0, (HOT,), (_said(1, HOT),), (ALERT,), {}, 1.0, 99.0, 2.0)
LARGE = Ran("s-1", "local", "", "A", "h100-8x-roce", 40, 30, 36.0, (HOT, SLOW), (_said(2, HOT, 14), STRAY),
            (replace(ALERT, fault="clock_loss", reason="OtherRule"),), {}, 0.0, 100.0, 3.0)


def _card() -> dict[str, Any]:
    return scorecard([SMALL, LARGE], {"thermal_throttle": 1e-4, "packet_loss": 2e-4, "gpu_lost": 1e-3})


def test_a_slice_is_of_its_own_runs_and_the_worst_is_named() -> None:
    """By fleet size, scrape interval and tier: recall 1 in the one, a half in the other."""
    slices = _card()["slices"]
    told = {name: ({value: row["recall"] for value, row in slices[name]["values"].items()}, slices[name]["worst"], slices[name]["worst_precision"])
            for name in ("fleet", "scrape_seconds", "tier")}
    assert told == {"fleet": ({"up to 16 nodes": 1.0, "more than 32 nodes": 0.5}, "more than 32 nodes", "more than 32 nodes"),
                    "scrape_seconds": ({"15": 1.0, "30": 0.5}, "30", "30"), "tier": ({"B": 1.0, "A": 0.5}, "A", "A")}


def test_tiers_have_the_figures_of_the_whole() -> None:
    """Also those of which no scenario was run."""
    tiers = _card()["tiers"]
    assert ([tiers[t]["recall"] for t in "ABCD"], all(set(row) >= MACRO for row in tiers.values())) == ([0.5, 1.0, None, None], True)


def test_confusion_says_what_a_fault_was_taken_for() -> None:
    """Itself or nothing; what came where nothing was planted has a row of its own."""
    assert _card()["confusion"] == {"nothing": {"link_down (unfounded)": 1}, "packet_loss": {"nothing": 1}, "thermal_throttle": {"thermal_throttle": 2}}


def test_classes_are_told_apart() -> None:
    """Pages: one false of three; tickets: none was said."""
    classes = _card()["classes"]
    pages, tickets = classes["page"], classes["ticket"]
    assert (pages["precision"]["value"], pages["precision"]["n"], pages["false"]["count"], tickets["precision"]["n"], tickets["false"]["count"]) == (
        0.6667, 3, 1, 0, 0)


def test_the_field_has_fewer_faults_than_the_suite() -> None:
    """Found faults come as often as published, false incidents as often as in the suite; what was not planted is left out."""
    card = _card()
    hours, field = 24 * card["macro"]["node_days"], card["field"]
    assert (hours, set(field["faults"])) == (pytest.approx(30.0), {"thermal_throttle", "packet_loss"})
    assert field["faults"]["thermal_throttle"] == {"faults_per_1000_node_days": 2.4, "precision": 1.0}
    assert field["faults"]["packet_loss"]["precision"] is None
    assert field["precision"] == pytest.approx(1e-4 / (1e-4 + 1 / hours), abs=1e-4)
    assert field["precision_low"] < field["precision"]


def test_base_rates_are_of_faults_that_can_be_planted() -> None:
    """Every published group becomes faults of ours, at rates above zero."""
    rates, ours = base_rates(groups(), all_plugins()), {p.fault for p in all_plugins().values()}
    assert (set(rates) <= ours, min(rates.values()) > 0, rates["gpu_lost"] < 0.01) == (True, True, True)


def test_static_rules_are_scored_as_incidents_are() -> None:
    """The alert that is right finds its fault, the other one is false, and each stands under its rule's name."""
    rules = _card()["baselines"]["static_rules"]
    assert (rules["faults"]["thermal_throttle"]["recall"]["value"], rules["faults"]["clock_loss"]["false"]["count"]) == (0.5, 1)
    assert rules["rules"] == {"NvidiaGpuTemperatureHigh": {"right": 1}, "OtherRule": {"false": 1}}


def test_the_table_says_how_many_were_counted_at_least_and_at_most() -> None:
    """With the names, and those of which none was."""
    card = {**_card(), "settings": {"suite": "made-up", "first_seed": 1, "scenarios": 2, "cpu_seconds": 5.0, "wall_seconds": 5.0,
                                    "detectors": [], "thresholds": "-", "code": "-"}}
    line = next(line for line in table({**card, "cases": command.recorded.section([])}) if line.startswith("counted positives"))
    assert line.startswith("counted positives a fault: at least 1 (packet_loss), at most 2 (thermal_throttle); none of ")


def test_the_file_has_what_is_asked_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`macro` with all its figures by name, `faults`, `tiers` and `baselines`."""
    def play(planned: Planned) -> Ran:
        return replace(SMALL, id=planned.id)

    monkeypatch.setattr(command, "safe_run", play)
    monkeypatch.setattr(command.recorded, "recorded", lambda *_: [])
    out = tmp_path / "card.json"
    assert evaluate(EvaluateOptions("quick", out=str(out), processes=1), lambda _: None, lambda _: None) == 0
    card = json.loads(out.read_text(encoding="utf-8"))
    assert (set(card["macro"]) >= MACRO, {"macro", "faults", "tiers", "baselines"} <= set(card)) == (True, True)
    assert (card["macro"]["recall"], card["macro"]["false_incidents_per_1000_node_days"], card["macro"]["delay_p50_seconds"]) == (1.0, 0.0, 120.0)


def test_each_false_incident_and_each_missed_fault_is_told_with_its_scenario() -> None:
    """So that it can be played again; the table says the same in a line each."""
    wrong = _card()["wrong"]
    assert [(row["scenario"], row["fault"], row["word"]) for row in wrong["false"]] == [("s-1", "link_down", "unfounded")]
    assert [(row["scenario"], row["fault"], row["culprit"]["kind"]) for row in wrong["missed"]] == [("s-1", "packet_loss", SLOW.culprit.kind)]
