"""One incident with all that belongs to it: actions, timeline, what changed before it, blind spots, marks and its page.

The same document from a running owner and from a kept store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.protocols import DetectorPlugin
from core.render import plain
from core.types import Event, Incident
from core.window import Topology
from pipeline.blind import blind_spots
from pipeline.marks import Mark
from pipeline.runbooks import runbook_url
from pipeline.store.duck import DuckStore
from pipeline.timeline import READ, changes, ground, span_of, timeline

MOST_EVENTS = 20_000
MOST_ACTIONS = 1000


def case_document(incident: Incident, store: DuckStore, topology: Topology, nodes_of: Mapping[str, Sequence[str]],
                  plugins: Mapping[str, DetectorPlugin], coverage: Sequence[Mapping[str, Any]], marks: Sequence[Mark],
                  links: Mapping[str, str], held: Sequence[Event] = ()) -> dict[str, Any]:
    """The document, as JSON types. nodes_of: the nodes of each job. coverage: rows of what is known now. held: events of the
    last days that are in memory, some of which no store has (boots that were derived)."""
    where = ground(incident, topology, nodes_of)
    first, last = span_of(incident)
    nodes = None if where.everywhere or not where.nodes else sorted(where.nodes)
    stored = store.events(first, last, READ, MOST_EVENTS, nodes)
    known = {_key(e) for e in stored}
    events = [*stored, *(e for e in held if first <= e.at <= last and e.kind in READ and _key(e) not in known)]
    ledger = store.actions(incident=incident.id, limit=MOST_ACTIONS)
    steps = store.ledger_rows(incident.id, MOST_ACTIONS)
    spots = blind_spots(plugins, coverage, where.nodes) if where.nodes and coverage else []
    shown = [plain(one) for one in timeline(incident, where, events, steps, marks)]
    return {"incident": plain(incident), "actions": ledger, "timeline": shown,
            "changes": [plain(one) for one in changes(incident, where, events)], "blind_spots": spots,
            "marks": [plain(one) for one in marks], "runbook_url": runbook_url(incident.fault, links)}


def _key(event: Event) -> tuple[int, str, str, str]:
    return event.at, event.kind, event.target.key, str(event.fields.get("xid") or event.fields.get("what") or "")
