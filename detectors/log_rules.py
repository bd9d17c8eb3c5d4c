"""What the user's own rules over a job's log say now (`collectors.log_rules`), for the detectors of hangs and of slowness.

A rule's word stands until the next one of the same rule; a job that has ended, or of which nothing goes on any more, has none.
"""

from __future__ import annotations

from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Window

OVERDUE, SLOW, FAULT = "overdue", "slow", "fault"
OPERATORS = {"gt": "over", "gteq": "at or over", "lt": "under", "lteq": "at or under", "eq": "exactly"}


def newest(window: Window) -> dict[str, dict[str, Event]]:
    """By job and rule: the rule's last word. A run that began anew (start or restart) takes back what was said before."""
    out: dict[str, dict[str, Event]] = {}
    for event in window.events:
        if event.at > window.end or event.target.job is None:
            continue
        if event.kind == "log_rule":
            out.setdefault(event.target.job, {})[str(event.fields.get("rule"))] = event
        elif event.kind == "job_phase" and event.fields.get("phase") in ("start", "restart"):
            out.pop(event.target.job, None)
    return out


def added(found: list[Verdict], window: Window, fault: str, state: str, severity: float) -> list[Verdict]:
    """A detector's verdicts, and those of the user's rules: faulty for a running job of which a rule is in `state`; clear for one
    whose rules are content, where the detector has said nothing of it. A line that a rule calls a fault is a word on neither: what
    comes of it, a hang or a crash, is judged by what happens."""
    said = newest(window)
    out = list(found)
    spoken = {v.target.job for v in found}
    for job in window.jobs if said else ():
        rules = said.get(job.id)
        if not rules or not _goes_on(job):
            continue
        bad = sorted((e for e in rules.values() if e.fields.get("state") == state), key=lambda e: (e.at, str(e.fields.get("rule"))))
        target = Target("job", job=job.id)
        if bad:
            rows = tuple(_evidence(event) for event in bad)
            out.append(Verdict(target, fault, "faulty", severity, rows, f"log_rule_{state}", onset_at=bad[0].at))
        elif job.id not in spoken and not any(e.fields.get("state") == FAULT for e in rules.values()):
            out.append(Verdict(target, fault, "clear", reason="clear"))
    return out


def _goes_on(job: JobState) -> bool:
    return job.running and not job.silent and job.phase != "done"


def _evidence(event: Event) -> Evidence:
    """The rule by its name, with what it asked for."""
    told = event.fields
    rule = f"rule {told.get('rule')}"
    if told.get("state") == "overdue":
        limit = told.get("limit_seconds")
        what = "no first line that it names" if told.get("what") == "start" else "no line that it names"
        return Evidence("log_rule", "s", _number(limit), None, rule, f"{what} within {_shown(limit)} s")
    words = f"{told.get('points')} in a row {OPERATORS.get(str(told.get('operator')), '')} {_shown(told.get('threshold'))}"
    return Evidence("log_rule", "1", _number(told.get("value")), _number(told.get("threshold")), rule, words)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _shown(value: object) -> str:
    number = _number(value)
    return "?" if number is None else f"{number:g}"
