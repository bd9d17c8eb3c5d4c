"""Replays a recording and says whether it says what was planted: exactly that incident, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.replay import ReplayOptions, replay
from tests.evaluate.recordings import Truth


@dataclass(frozen=True)
class Answer:
    """word: right, miss, false (an incident that was not planted) or wrong (the fault on the wrong part or scope)."""

    word: str
    said: tuple[str, ...]
    delay_seconds: float | None = None


def incidents_of(folder: Path) -> list[dict[str, Any]]:
    """The last state of each incident of the recording, merged ones left out."""
    lines: list[str] = []
    replay(ReplayOptions((str(folder),)), lines.append)
    newest: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line.startswith('{"type":"incident"'):
            one = json.loads(line)["incident"]
            newest[one["id"]] = one
    return [i for i in newest.values() if i["state"] != "merged"]


def words(incident: dict[str, Any]) -> str:
    c = incident["culprit"] or {}
    return (f"{incident['fault']}/{incident['scope']} {c.get('kind')} {c.get('node')} {c.get('device')} rank={c.get('rank')} "
            f"job={c.get('job')} {incident['state']} onset={incident['onset_at']} opened={incident['opened_at']}")


def _same(truth: Truth, one: dict[str, Any]) -> bool:
    c = one["culprit"]
    if one["fault"] != truth.fault or one["scope"] not in truth.scope:
        return False
    if one["scope"] == "job":
        return truth.job in one["jobs"] and (c is None or (truth.rank is not None and c["rank"] == truth.rank))
    if c is None:
        return False
    if truth.node is None:
        return truth.rank is not None and c["rank"] == truth.rank
    return (c["node"], c["device"]) == (truth.node, truth.device) and (truth.id is None or c["id"] == truth.id)


def judged(truth: Truth | None, found: list[dict[str, Any]]) -> Answer:
    """The verdict on a replay."""
    said = tuple(words(i) for i in found)
    if truth is None:
        return Answer("false" if found else "right", said)
    if not found:
        return Answer("miss", said)
    right = [i for i in found if _same(truth, i)]
    if len(right) == 1 and len(found) == 1:
        from core.clock import parse_rfc3339

        return Answer("right", said, (parse_rfc3339(right[0]["opened_at"]) - truth.at_ms) / 1000)
    return Answer("false" if right or all(i["fault"] != truth.fault for i in found) else "wrong", said)
