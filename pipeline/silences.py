"""Silences that people made in an Alertmanager, as silences of our incidents.

A silence matches an incident as Alertmanager matches it with the incident's alert: by the labels of `pipeline.notify.
alertmanager`. A silence that matches becomes a mark of the incident (`pipeline.marks`), with its maker and comment: messages
are kept back and no action begins until it ends. One that is ended early there ends here. Where an Alertmanager does not
answer, what it last said holds until its own end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.clock import parse_rfc3339
from core.errors import SourceError
from core.types import Incident
from pipeline.codec import pack, unpack
from pipeline.marks import LONGEST_NOTE, Mark
from pipeline.notify.alertmanager import labels_of

MOST_SILENCES = 2_000
LONGEST_PATTERN = 1_000
ACTOR = "alertmanager:"


@dataclass(frozen=True, slots=True)
class LabelMatch:
    """One matcher: the label's value (missing = empty) is, or is not, the value or fully matches the pattern."""

    name: str
    value: str
    regex: bool = False
    equal: bool = True

    def holds(self, labels: Mapping[str, str]) -> bool:
        """As Alertmanager judges it; a pattern that cannot be read here matches nothing."""
        own = labels.get(self.name, "")
        if not self.regex:
            return (own == self.value) == self.equal
        try:
            return (re.fullmatch(self.value, own) is not None) == self.equal
        except re.error:
            return False


@dataclass(frozen=True, slots=True)
class Silence:
    """start, end: ms; start is 0 where it holds already, whatever the clocks say. source: the notifier behind which its
    Alertmanager stands."""

    id: str
    source: str
    start: int
    end: int
    by: str
    comment: str
    matchers: tuple[LabelMatch, ...]

    def holds(self, labels: Mapping[str, str], at: int) -> bool:
        """True where it silences an alert with these labels at `at` (ms)."""
        return self.start <= at < self.end and bool(self.matchers) and all(one.holds(labels) for one in self.matchers)


def read_silences(answer: Any, source: str) -> tuple[Silence, ...]:
    """The active and pending silences of an answer of `GET /api/v2/silences`. Raises SourceError where it is none."""
    try:
        rows = [row for row in answer if row["status"]["state"] != "expired"][:MOST_SILENCES]
        return tuple(Silence(
            str(row["id"]), source, 0 if row["status"]["state"] == "active" else parse_rfc3339(row["startsAt"]), parse_rfc3339(row["endsAt"]), str(row.get("createdBy") or "somebody"),
            str(row.get("comment") or ""), tuple(LabelMatch(
                str(one["name"]), str(one["value"])[:LONGEST_PATTERN], bool(one.get("isRegex")), bool(one.get("isEqual", True)))
                for one in row["matchers"])) for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError("bad_syntax", f"the silences cannot be read ({type(error).__name__})") from None


class SilenceBook:
    """The silences of all Alertmanagers. `replace` may be called from another thread."""

    def __init__(self) -> None:
        self._silences: dict[str, tuple[Silence, ...]] = {}

    def replace(self, source: str, silences: Iterable[Silence]) -> None:
        """What one Alertmanager has now."""
        self._silences[source] = tuple(silences)

    def all(self) -> tuple[Silence, ...]:
        """Every silence that is known."""
        return tuple(one for many in tuple(self._silences.values()) for one in many)

    def holds(self, incident: Incident, at: int) -> bool:
        """True where an Alertmanager silences the incident's alert now."""
        return self._longest(incident, at) is not None

    def _longest(self, incident: Incident, at: int) -> Silence | None:
        silences = self.all()
        if not silences:
            return None
        labels = labels_of(incident)
        return max((one for one in silences if one.holds(labels, at)), key=lambda one: (one.end, one.id), default=None)

    def marks(self, at: int, incidents: Sequence[Incident], marks: Sequence[Mark]) -> list[Mark]:
        """The marks that bring the incidents' own silences into line with the Alertmanagers' at `at` (ms).

        A person's later word at Greylag wins: what `silence --seconds 0` ended stays ended until another silence is made there.
        """
        last: dict[str, Mark] = {}
        told = {(mark.incident, mark.note, mark.until) for mark in marks if mark.word == "silence"}
        for mark in marks:
            if mark.word == "silence":
                last[mark.incident] = mark
        out = []
        for incident in incidents:
            before, silence = last.get(incident.id), self._longest(incident, at)
            theirs = before is not None and before.actor.startswith(ACTOR)
            if silence is not None:
                actor = f"{ACTOR}{silence.by}"
                note = f"silence {silence.id}: {' '.join(silence.comment.split())}"[:LONGEST_NOTE]
                if (incident.id, note, silence.end) not in told:
                    out.append(_mark(incident, at, actor, note, silence.end))
            elif theirs and before is not None and before.until is not None and before.until > at:
                out.append(_mark(incident, at, before.actor, "the silence was ended there", at))
        return out

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps({source: pack(many) for source, many in self._silences.items()}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        self._silences = {source: tuple(unpack(Silence, row) for row in many) for source, many in json.loads(text).items()}


def _mark(incident: Incident, at: int, actor: str, note: str, until: int) -> Mark:
    part = incident.culprit.key if incident.culprit is not None else None
    return Mark(at, incident.id, "silence", actor, note, until, incident.fault, part)
