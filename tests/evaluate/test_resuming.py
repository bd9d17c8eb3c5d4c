"""A suite that was broken off goes on from its rows, and only where suite, seed and code are the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.evaluate import command
from app.evaluate.command import EvaluateOptions, evaluate, settings_of
from app.evaluate.facts import Ran
from app.evaluate.plan import Planned
from core.errors import BadInput


def _safe_run(planned: Planned) -> Ran:
    spec = planned.scenario.fleet
    return Ran(planned.id, planned.kind, planned.stress, spec.tier, spec.type, spec.nodes, spec.scrape_seconds, planned.minutes, (), (),
               (), {}, 0.0, 1.0, 1.0)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EvaluateOptions, list[str]]:
    """A run of `quick` that plays nothing, and the ids of what it was asked to play."""
    played: list[str] = []

    def play(planned: Planned) -> Ran:
        played.append(planned.id)
        return _safe_run(planned)

    monkeypatch.setattr(command, "safe_run", play)
    monkeypatch.setattr(command.recorded, "recorded", lambda *_: [])
    return EvaluateOptions("quick", out=str(tmp_path / "card.json"), processes=1), played


def _run(options: EvaluateOptions) -> int:
    return evaluate(options, lambda _: None, lambda _: None)


def _rows(options: EvaluateOptions) -> Path:
    return Path(f"{options.out}.rows.jsonl")


def test_what_is_there_is_not_played_again(suite: tuple[EvaluateOptions, list[str]]) -> None:
    """Only the scenarios after the break are, and the scorecard is of all of them."""
    options, played = suite
    _run(options)
    whole, lines = json.loads(Path(str(options.out)).read_text(encoding="utf-8")), _rows(options).read_text(encoding="utf-8").splitlines()
    every = played.copy()
    _rows(options).write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
    played.clear()
    _run(replace(options, resume=True))
    again = json.loads(Path(str(options.out)).read_text(encoding="utf-8"))
    assert (played, again["macro"]) == (every[2:], whole["macro"])


def test_a_broken_last_line_is_played_again(suite: tuple[EvaluateOptions, list[str]]) -> None:
    """The row that was being written when the run was killed is no row, and what is written next stands on a line of its own."""
    options, played = suite
    _run(options)
    text, last = _rows(options).read_text(encoding="utf-8"), played[-1]
    _rows(options).write_text(text[:-20], encoding="utf-8")
    again = []
    for _ in range(2):
        played.clear()
        _run(replace(options, resume=True))
        again.append(played.copy())
    assert again == [[last], []]


def test_a_scenario_that_failed_is_played_again(suite: tuple[EvaluateOptions, list[str]]) -> None:
    """What broke once may have been the machine's."""
    options, played = suite
    _run(options)
    head, first, *rest = _rows(options).read_text(encoding="utf-8").splitlines()
    broken = json.dumps({**json.loads(first), "error": "OSError: no space"})
    _rows(options).write_text("\n".join([head, broken, *rest]) + "\n", encoding="utf-8")
    played.clear()
    _run(replace(options, resume=True))
    assert played == [json.loads(first)["id"]]


@pytest.mark.parametrize("change", ["code", "first_seed", "suite"])
def test_rows_of_another_suite_seed_or_code_are_refused(suite: tuple[EvaluateOptions, list[str]], change: str) -> None:
    """Nothing is mixed, and nothing is removed."""
    options, _ = suite
    _run(options)
    head, *rest = _rows(options).read_text(encoding="utf-8").splitlines()
    settings = json.loads(head)["settings"]
    text = "\n".join([json.dumps({"settings": {**settings, change: "other"}}), *rest]) + "\n"
    _rows(options).write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match="state of the code"):
        _run(replace(options, resume=True))
    assert _rows(options).read_text(encoding="utf-8") == text


def test_without_resume_all_begins_anew(suite: tuple[EvaluateOptions, list[str]]) -> None:
    """Rows that are there are written over."""
    options, played = suite
    _run(options)
    every = played.copy()
    played.clear()
    _run(options)
    assert (played, len(_rows(options).read_text(encoding="utf-8").splitlines())) == (every, len(every) + 1)


@pytest.mark.parametrize("package", ["app", "collectors", "core", "detectors", "fleet", "pipeline", "remediation"])
def test_the_codes_hash_is_of_every_package_of_the_path(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving one out gives another hash."""
    whole = settings_of("quick", 0)["code"]
    monkeypatch.setattr(command, "CODE", tuple(one for one in command.CODE if one != package))
    assert settings_of("quick", 0)["code"] != whole
