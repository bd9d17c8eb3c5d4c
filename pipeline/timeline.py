"""An incident's timeline: what changed before it on its nodes and jobs, what was seen, what was decided and done, in order.

Pure: records in, rows out. A change is what people or software did (driver, image, firmware, job configuration, a boot, a
drain, a job's start); an event is what the cluster said by itself (an XID, a link that fell). Changes count from
`CHANGES_BEFORE_MS` before the onset on, events from shortly before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.events import KINDS
from core.reasons import ACTION_REASONS, INCIDENT_REASONS
from core.types import Action, Event, Incident, Outcome, Target
from core.window import Topology
from pipeline.marks import Mark

CHANGES_BEFORE_MS = 12 * 3_600_000
EVENTS_BEFORE_MS = 15 * 60_000
ONSET_MS = 2 * 60_000  # an onset is known to some intervals: what changed just after it may be before it
AFTER_MS = 5 * 60_000
CHANGES = ("config_change", "boot", "drain", "undrain", "service_started", "service_stopped", "job_phase")
JOB_CHANGES = ("start", "restart", "end")
NO_NEWS = ("action", "collector_shed", "checkpoint", "exporter_restart")
MOST_NODES = 512
TOGETHER_MS = 60_000
MOST_CHANGES, MOST_EVENTS = 40, 60
READ = tuple(kind for kind in KINDS if kind not in NO_NEWS)  # the kinds that a timeline reads


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a timeline. kind: change, event, onset, opened, decision, action, mark, ended. target: whom it is about.

    seconds_from_onset: negative = before the first evidence. actor: who did it, None where nobody is known.
    """

    at: int
    kind: str
    text: str
    target: Target | None
    seconds_from_onset: float
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """Where an incident plays: nodes (at most 512) and jobs; everywhere: it is the whole fleet's."""

    nodes: frozenset[str]
    jobs: frozenset[str]
    everywhere: bool = False

    def holds(self, target: Target) -> bool:
        """Whether what happened to `target` may matter to the incident."""
        if target.kind == "fleet" or (target.node is None and target.job is None):
            return True
        if target.job is not None and target.job in self.jobs:
            return True
        return target.node is not None and (self.everywhere or target.node in self.nodes)


def ground(incident: Incident, topology: Topology, nodes_of: Mapping[str, Sequence[str]]) -> Ground:
    """The nodes and jobs of an incident: its parts, the nodes under a shared cause, those of a job without a culprit.

    nodes_of: the nodes of each job.
    """
    culprit = incident.culprit
    parts = [culprit, *(s.target for s in incident.suspects)] if culprit is None else [culprit]
    nodes = [p.node for p in parts if p is not None and p.node]
    if culprit is not None and culprit.kind in ("switch", "rack", "pdu", "cooling", "storage", "label"):
        nodes += _under(culprit, topology)
        nodes += [v.node for v in incident.victims if v.node]
    if incident.scope == "fleet":
        nodes += [v.node for v in incident.victims if v.node]
    if not nodes:
        nodes = [node for job in incident.jobs for node in nodes_of.get(job, ())]
    return Ground(frozenset(list(dict.fromkeys(nodes))[:MOST_NODES]), frozenset(incident.jobs), incident.scope == "fleet")


def _under(culprit: Target, topology: Topology) -> list[str]:
    """The nodes that share a switch, rack, PDU, cooling loop, storage or label."""
    name = culprit.device or culprit.node or culprit.id or ""
    if culprit.kind == "storage":
        return list(topology.mounts.get(name, ()))
    if culprit.kind == "label":
        key, _, value = name.partition("=")
        return [node for node, place in topology.places.items() if (key, value) in place.labels]
    keys = ("leaf", "spine") if culprit.kind == "switch" else (culprit.kind,)
    found = [node for node, place in topology.places.items() if name in [getattr(place, key) for key in keys]]
    return found + [nic.node for nic in topology.nics.values() if culprit.kind == "switch" and nic.leaf == name]


def changes(incident: Incident, where: Ground, events: Iterable[Event]) -> list[Row]:
    """What changed in the hours before the onset on the incident's nodes and jobs, the newest first."""
    first, last = incident.onset_at - CHANGES_BEFORE_MS, incident.onset_at + ONSET_MS
    found = [e for e in events if is_change(e) and first <= e.at <= last and where.holds(e.target)]
    rows = [_row(e, "change", incident) for e in sorted(found, key=lambda e: (-e.at, e.kind, e.target.key))]
    return _together(rows)[:MOST_CHANGES]


def timeline(incident: Incident, where: Ground, events: Sequence[Event],
             actions: Sequence[tuple[int, Action, Outcome]] = (), marks: Sequence[Mark] = ()) -> list[Row]:
    """All rows by time. actions: (tick in ms, action, outcome) as the ledger has them."""
    until = (incident.resolved_at or incident.updated_at) + AFTER_MS
    rows = changes(incident, where, events)
    near = [e for e in events if not is_change(e) and e.kind not in (*NO_NEWS, "job_phase") and where.holds(e.target)
            and incident.onset_at - EVENTS_BEFORE_MS <= e.at <= until]
    rows += _together([_row(e, "event", incident) for e in sorted(near, key=lambda e: (e.at, e.kind, e.target.key))])[:MOST_EVENTS]
    rows.append(_own(incident, incident.onset_at, "onset", "first evidence"))
    rows.append(_own(incident, incident.opened_at, "opened",
                     f"opened {(incident.opened_at - incident.onset_at) / 1000:.0f} s after the onset"))
    for at, action, outcome in actions:
        if outcome.state != "RUNNING":
            rows.append(Row(at, "action", _action_words(action, outcome), action.target, _since(incident, at), action.actor))
    rows += [Row(m.at, "mark", m.words(), None, _since(incident, m.at), m.actor) for m in marks]
    if incident.resolved_at is not None:
        rows.append(_own(incident, incident.resolved_at, "ended",
                         f"{incident.state}: {INCIDENT_REASONS.get(incident.reason) or ACTION_REASONS.get(incident.reason) or incident.reason}"))
    order = {"change": 0, "event": 1, "onset": 2, "opened": 3, "action": 4, "mark": 5, "ended": 6}
    return sorted(rows, key=lambda r: (r.at, order[r.kind]))


def is_change(event: Event) -> bool:
    """Whether an event is something that people or software did."""
    return event.kind in CHANGES and (event.kind != "job_phase" or event.fields.get("phase") in JOB_CHANGES)


def event_words(event: Event) -> str:
    """An event in a few words, from its fields."""
    fields = event.fields
    if event.kind == "config_change":
        old, new = fields.get("old"), fields.get("new")
        what = str(fields.get("what") or "configuration")
        return f"{what} {old} → {new}" if old and new else f"{what} is {new}" if new else f"{what} {old} is gone" if old else what
    if event.kind == "job_phase":
        why = fields.get("state")  # as what a scheduler says that it ended
        return f"job {event.target.job}: {fields.get('phase')}" + (f" ({why})" if why else "")
    if event.kind == "xid":
        return f"XID {fields.get('xid')}"
    shown = [f"{key} {value}" for key, value in fields.items() if value not in (None, "") and key not in ("source", "message", "boot_time_seconds")]
    return f"{event.kind.replace('_', ' ')}" + (f" ({', '.join(shown[:3])})" if shown else "")


def _row(event: Event, kind: str, incident: Incident) -> Row:
    by = event.fields.get("by")
    return Row(event.at, kind, event_words(event), event.target, _since(incident, event.at), str(by) if by else None)


def _own(incident: Incident, at: int, kind: str, text: str) -> Row:
    return Row(at, kind, text, incident.culprit, _since(incident, at))


def _since(incident: Incident, at: int) -> float:
    return (at - incident.onset_at) / 1000


def _together(rows: Sequence[Row]) -> list[Row]:
    """Rows of the same words within a minute of each other are one row that says of how many parts it is: a rollout is
    one line."""
    groups: dict[str, list[list[Row]]] = {}
    for row in rows:
        known = groups.setdefault(row.text, [])
        if known and abs(known[-1][-1].at - row.at) <= TOGETHER_MS:
            known[-1].append(row)
        else:
            known.append([row])
    out = {id(group[0]): group for of_text in groups.values() for group in of_text}
    return [_one(out[id(row)]) for row in rows if id(row) in out]


def _one(group: Sequence[Row]) -> Row:
    parts = {row.target.key for row in group if row.target is not None}
    return group[0] if len(parts) < 2 else replace(group[0], text=f"{group[0].text} (on {len(parts)} parts)")


def _action_words(action: Action, outcome: Outcome) -> str:
    if outcome.state == "PENDING":
        return f"{action.kind} is decided: {ACTION_REASONS.get(action.reason, action.reason)}"
    why = "" if outcome.reason in ("", "done", "simulated") else f": {ACTION_REASONS.get(outcome.reason, outcome.reason)}"
    return f"{action.kind} {outcome.state}{why}"


def span_of(incident: Incident) -> tuple[int, int]:
    """The span of events (ms) that a timeline needs: from, to."""
    return incident.onset_at - CHANGES_BEFORE_MS, (incident.resolved_at or incident.updated_at) + AFTER_MS
