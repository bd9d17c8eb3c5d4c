"""What people say about incidents: seen (acknowledge), be quiet (silence), this is no fault (wrong).

A mark changes no evidence. Acknowledging says who looks after it. Silencing keeps back the messages of an opening or
reopening until it ends, and no action begins meanwhile; the end of an incident is told whatever was silenced, so that no
alert fires for ever elsewhere.
Wrong closes the incident as `abandoned`: it does not open again while the same findings stay, no new action begins, and
the mark stays as a judgement of the detector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from core.clock import rfc3339
from core.errors import BadInput
from core.targets import CLOSED_STATES
from core.types import Incident
from pipeline.codec import pack, unpack

WORDS = ("acknowledge", "silence", "wrong")
KEPT_MS = 30 * 86_400_000
MOST_MARKS = 5_000
LONGEST_NOTE = 500
SILENCE_MS = 4 * 3_600_000
LONGEST_SILENCE_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class Mark:
    """One word of one person. until: ms, of a silence only. fault, part: the incident's, part as `Target.key` of its culprit:
    a silence holds for what comes back on the same part, and a detector is scored by them."""

    at: int
    incident: str
    word: str
    actor: str
    note: str = ""
    until: int | None = None
    fault: str = ""
    part: str | None = None

    def words(self) -> str:
        """The mark as a line of a timeline."""
        said = {"acknowledge": "acknowledged", "silence": f"silenced until {rfc3339(self.until or self.at)[:19]}Z",
                "wrong": "marked as wrong"}[self.word]
        return f"{said} by {self.actor}" + (f": {self.note}" if self.note else "")


class Marks:
    """The marks of the last 30 days. Not thread-safe: as the incident book, under the tick's lock."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._wrong: list[str] = []

    def add(self, mark: Mark) -> None:
        """Takes a mark; `wrong` closes its incident at the next tick."""
        self._marks = [m for m in self._marks if mark.at - m.at <= KEPT_MS][-MOST_MARKS + 1 :]
        self._marks.append(mark)
        if mark.word == "wrong":
            self._wrong.append(mark.incident)

    def of(self, incident: str) -> tuple[Mark, ...]:
        """The marks of one incident, the oldest first."""
        return tuple(m for m in self._marks if m.incident == incident)

    def all(self) -> Sequence[Mark]:
        """Every mark, the oldest first."""
        return tuple(self._marks)

    def silenced(self, incident: Incident, at: int) -> bool:
        """Whether messages of the incident are kept back at `at` (ms): it was silenced, or the same fault on the same part
        was. The last silence counts, so one of 0 seconds ends it."""
        return self.silences(at)(incident)

    def silences(self, at: int) -> Callable[[Incident], bool]:
        """`silenced` at `at` (ms), made once for many incidents."""
        newest: dict[object, tuple[int, Mark]] = {}
        for place, mark in enumerate(self._marks):
            if mark.word == "silence":
                newest[mark.incident] = (place, mark)
                if mark.part is not None:
                    newest[mark.fault, mark.part] = (place, mark)

        def holds(incident: Incident) -> bool:
            found = [newest[key] for key in (incident.id, (incident.fault, _part(incident))) if key in newest]
            last = max(found, key=lambda one: one[0])[1] if found else None
            return last is not None and last.until is not None and last.at <= at < last.until

        return holds

    def take_wrong(self, at: int, incidents: Sequence[Incident]) -> list[Incident]:
        """The open incidents that were marked as wrong since the last tick, as they are now: abandoned."""
        wrong, self._wrong = set(self._wrong), []
        return [replace(one, state="abandoned", reason="marked_wrong", updated_at=at, resolved_at=at)
                for one in incidents if one.id in wrong and one.state not in CLOSED_STATES]

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps({"marks": [pack(m) for m in self._marks], "wrong": self._wrong}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        data = json.loads(text)
        self._marks = [unpack(Mark, row) for row in data["marks"]]
        self._wrong = [str(one) for one in data["wrong"]]


def mark_of(word: str, incident: Incident, at: int, actor: str, body: object) -> Mark:
    """A mark from what was POSTed: {note, seconds | until_seconds}. Raises BadInput in one sentence."""
    if not isinstance(body, dict):
        raise BadInput("the body", "", body, "a JSON object is needed, such as {\"note\": \"...\"}")
    allowed = ("note", "seconds") if word == "silence" else ("note",)
    for key in body:
        if key not in allowed:
            raise BadInput(str(key), "", "an unknown key", f"allowed are: {', '.join(allowed)}")
    note = body.get("note", "")
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise BadInput("note", "", note, f"a text of at most {LONGEST_NOTE} characters is needed")
    until = None
    if word == "silence":
        seconds = body.get("seconds", SILENCE_MS / 1000)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_SILENCE_MS / 1000:
            raise BadInput("seconds", "", seconds, f"0 (ends a silence) to {LONGEST_SILENCE_MS // 1000} is allowed")
        until = at + round(seconds * 1000)
    return Mark(at, incident.id, word, actor, " ".join(note.split()), until, incident.fault, _part(incident))


def _part(incident: Incident) -> str | None:
    return incident.culprit.key if incident.culprit is not None else None
