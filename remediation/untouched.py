"""How incidents end that nobody acts on: what a cure has to be better than.

The clock of one starts when the policy would have acted (its actions were SIMULATED), so that it stands beside an attempt
that did act, which starts at the same point. It ends when the detectors have been quiet, or when nobody can say: then it
is inconclusive, as an attempt would be. One on which somebody acts after all is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from core.targets import CLOSED_STATES
from core.types import Incident

MOST_OF_A_FAULT = 200  # the newest; at a rate of a half that is an interval of 14 points
MOST_WATCHED = 2_000
WATCHED_MS = 30 * 86_400_000
RECOVERED = ("quiet", "recovered")


@dataclass(frozen=True, slots=True)
class Ending:
    """One incident that nobody acted on. at: ms of its end; seconds: from the moment when the policy would have acted."""

    incident: str
    fault: str
    at: int
    seconds: float
    recovered: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """One that goes on. since: ms, when the policy would have acted."""

    incident: str
    fault: str
    since: int


class Untouched:
    """The newest endings of each fault, and the incidents that are watched."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._ended: dict[str, list[Ending]] = {}

    def watch(self, at: int, incident: Incident) -> None:
        """The policy would have acted on it now, and did not."""
        self._watched.setdefault(incident.id, Watched(incident.id, incident.fault, at))

    def acted(self, incident: str) -> None:
        """Somebody acts on it: how it ends says nothing of what it does by itself."""
        self._watched.pop(incident, None)

    def over(self, at: int, incidents: Iterable[Incident]) -> None:
        """Incidents that were closed now; those that were not watched are no news.

        Quiet detectors are a recovery. Expired evidence, an ended job, a mark of a person and a wider incident say nothing
        of the part: only the first two count as inconclusive, for the others were never a fault of this part.
        """
        for one in incidents:
            known = self._watched.pop(one.id, None) if one.state in CLOSED_STATES else None
            if known is None or one.state in ("merged", "abandoned"):
                continue
            rows = self._ended.setdefault(known.fault, [])
            recovered = one.reason in RECOVERED
            if recovered or one.reason in ("evidence_expired", "job_ended"):
                rows.append(Ending(known.incident, known.fault, at, max(0.0, (at - known.since) / 1000), recovered))
            del rows[:-MOST_OF_A_FAULT]

    def prune(self, at: int) -> None:
        """Forgets what has been watched for a month, and the oldest beyond MOST_WATCHED."""
        if len(self._watched) > MOST_WATCHED or any(at - w.since > WATCHED_MS for w in self._watched.values()):
            rows = sorted(self._watched.values(), key=lambda w: (w.since, w.incident))[-MOST_WATCHED:]
            self._watched = {w.incident: w for w in rows if at - w.since <= WATCHED_MS}

    def endings(self) -> tuple[Ending, ...]:
        """All endings, by fault and time."""
        return tuple(e for fault in sorted(self._ended) for e in self._ended[fault])

    def watched(self) -> tuple[Watched, ...]:
        """Those that go on, the longest first."""
        return tuple(sorted(self._watched.values(), key=lambda w: (w.since, w.incident)))

    def within(self, fault: str, seconds: float, at: int) -> tuple[int, int]:
        """(recovered, n): how many incidents of the fault went away by themselves within so many seconds, of those of which
        that is known. One that goes on, or that lasted longer, did not; one that goes on for less long is not counted yet."""
        rows = self._ended.get(fault, [])
        recovered = sum(e.recovered and e.seconds <= seconds for e in rows)
        longer = sum(e.seconds > seconds for e in rows)
        longer += sum(w.fault == fault and at - w.since > seconds * 1000 for w in self._watched.values())
        return recovered, recovered + longer

    # --- state --------------------------------------------------------------------------------------------------------
    def dump(self) -> dict[str, Any]:
        """All of it as JSON types, in a fixed order."""
        return {"watched": [asdict(w) for w in self.watched()], "ended": [asdict(e) for e in self.endings()]}

    def load(self, data: dict[str, Any]) -> None:
        """Adds what `dump` gave."""
        self._watched |= {w.incident: w for w in (Watched(**row) for row in data.get("watched", ()))}
        for row in data.get("ended", ()):
            self._ended.setdefault(row["fault"], []).append(Ending(**row))
