"""Tickets of slow drift as people are told of them: each once, until its part is well for days.

A drift is no incident: nothing is broken, nothing acts on it. But somebody has to hear of it before the limit is reached, so it goes
the way of incidents out (routes, silences, storms, the outbox), as a ticket for the infrastructure with the days that are left.
The report is made anew each hour; a ticket that is missing from it has not ended yet: near the edge of what a trend is it comes and
goes, and a part of which nothing is known any more is not well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from core.types import Evidence, Incident
from pipeline.codec import pack, unpack
from pipeline.drift import DriftReport, DriftTicket

DRIFT = "slow_drift"  # in messages, beside the names of faults
REASON = "drift"
GONE_MS = 3 * 86_400_000


@dataclass(slots=True)
class Kept:
    """at: of the newest report that was taken (ms). open: by the ticket's id. seen: when a report last had it."""

    at: int = 0
    open: dict[str, Incident] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)


class DriftBook:
    """What of the drift has been told. Not thread-safe: as the incident book, under the tick's lock."""

    def __init__(self) -> None:
        self._kept = Kept()

    def update(self, at: int, report: DriftReport | None) -> list[tuple[str, Incident]]:
        """(opened | updated | resolved, ticket) of a report that is new, at tick `at` (ms); nothing of one that was taken before."""
        kept = self._kept
        if report is None or report.at <= kept.at:
            return []
        kept.at = report.at
        told = [self._told(at, ticket) for ticket in report.tickets]
        for key in sorted(kept.open):
            if report.at - kept.seen[key] >= GONE_MS:
                one = kept.open.pop(key)
                del kept.seen[key]
                told.append(("resolved", replace(one, state="resolved", reason="quiet", updated_at=at, resolved_at=at)))
        return told

    def _told(self, at: int, ticket: DriftTicket) -> tuple[str, Incident]:
        known = self._kept.open.get(ticket.id)
        one = as_told(at, ticket)
        if known is not None:
            one = replace(one, onset_at=known.onset_at, opened_at=known.opened_at)
        self._kept.open[ticket.id], self._kept.seen[ticket.id] = one, self._kept.at
        return "opened" if known is None else "updated", one

    def open(self) -> tuple[Incident, ...]:
        """The tickets that stand, by id."""
        return tuple(self._kept.open[key] for key in sorted(self._kept.open))

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps(pack(self._kept), separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        self._kept = unpack(Kept, json.loads(text))


def as_told(at: int, ticket: DriftTicket) -> Incident:
    """The ticket in the form that messages are made of. Its first piece of evidence carries the ticket's words, the second the days."""
    rows = (Evidence(ticket.signal, ticket.unit, ticket.value, ticket.peers, "its like", ticket.text),
            Evidence("days_to_go", "d", round(ticket.days_to_go, 1), None, ticket.limit_name))
    scope = "fleet" if ticket.target.kind == "fleet" else "device" if ticket.target.device else "node"
    return Incident(ticket.id, DRIFT, scope, ticket.target, 1.0 - ticket.chance, (), (), (), rows, (), 0.0, "infra", "ticket",
                    "open", REASON, None, at, at, at)
