"""What the ledger says besides its action rows: why an attempt was begun, and what was found out about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from core.clock import rfc3339
from core.render import dumps, plain
from core.types import Action, Finding, Incident, Note, Outcome
from remediation.engine import Step

MOST_EVIDENCE = 12
MOST_FINDINGS = 20
BEGINS = ("PENDING", "SIMULATED")


def notes(at: int, step: Step, incident_of: Callable[[str], Incident | None], findings: Sequence[Finding]) -> list[Note]:
    """The notes of one tick. incident_of: the book's incident as it is now. findings: those that are open."""
    open_now = {f.id: f for f in findings}
    rules = {(d.incident, d.attempt): d.rule for d in step.decisions}
    out: list[Note] = []
    seen: set[tuple[str, int]] = set()
    for action, outcome in step.actions:
        key = (action.incident, action.attempt)
        if key in seen or not _first(action, outcome):
            continue
        seen.add(key)
        incident = incident_of(action.incident)
        if incident is not None:
            body = _why(incident, rules.get(key), open_now)
            out.append(Note(at, action.incident, action.attempt, "why", dumps(body)))
    proofs = {(r.incident, r.attempt): r for r in step.recoveries}
    for entry in step.results:
        body = {"result": entry.result, "reason": entry.why, "fault": entry.fault, "kinds": list(entry.kinds)}
        told = proofs.pop((entry.incident, entry.attempt), None)
        if told is not None:
            body |= {"job": told.job, "before_step_seconds": told.before_seconds, "after_step_seconds": told.after_seconds,
                     "before_tokens_per_second": told.before_tokens, "after_tokens_per_second": told.after_tokens}
        out.append(Note(at, entry.incident, entry.attempt, "proof", dumps(plain(body))))
    return out


def person(at: int, what: str, actor: str, incident: str = "", **more: object) -> Note:
    """A word of a person that changes what Greylag may do: freeze, resume, approve, reject."""
    return Note(at, incident, 0, what, dumps(plain(more)), actor)


def _first(action: Action, outcome: Outcome) -> bool:
    """The attempt's first row, or the row of a hand-over to a person, which may come later."""
    return (action.step == 1 and outcome.state in BEGINS) or action.kind == "escalate"


def _why(incident: Incident, rule: str | None, open_now: dict[str, Finding]) -> dict[str, Any]:
    held = [open_now[name] for name in incident.findings if name in open_now][:MOST_FINDINGS]
    return {
        "rule": rule, "fault": incident.fault, "scope": incident.scope, "confidence": plain(incident.confidence),
        "culprit": plain(incident.culprit), "jobs": list(incident.jobs), "lost_gpu_hours": plain(incident.lost_gpu_hours),
        "onset_at": rfc3339(incident.onset_at),
        "suspects": [{"target": plain(s.target), "probability": plain(s.probability)} for s in incident.suspects[:3]],
        "findings": [{"id": f.id, "detector": f.detector, "severity": plain(f.severity), "updated_at": rfc3339(f.updated_at)}
                     for f in held],
        "evidence": plain(incident.evidence[:MOST_EVIDENCE]),
    }
