"""Which rule speaks about an incident.

The first rule whose whole match holds wins. A rule whose fault and place fit, but whose confidence or duration is not
reached yet, lets later rules speak; where none does, its reason says what is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from core.types import Incident
from remediation.plan import jobs_of
from remediation.policy import Match, Policy, Rule

LabelsOf = Callable[[str], Mapping[str, str]]


def choose(policy: Policy, incident: Incident, at: int, labels_of: LabelsOf) -> tuple[Rule | None, str | None]:
    """(rule, None) where one matches; (rule, reason) where the first that fits waits; (None, `no_rule`) where none fits."""
    waiting: tuple[Rule | None, str | None] = (None, "no_rule")
    for rule in policy.rules:
        reason = unmet(rule.match, incident, at, labels_of)
        if reason is None:
            return rule, None
        if reason != "no_rule" and waiting[0] is None:
            waiting = (rule, reason)
    return waiting


def unmet(match: Match, incident: Incident, at: int, labels_of: LabelsOf) -> str | None:
    """Why the match does not hold: no_rule, confidence_too_low, too_young; None where it holds."""
    lists = ((match.fault, incident.fault), (match.scope, incident.scope), (match.klass, incident.klass),
             (match.owner, incident.owner))
    if any(allowed and value not in allowed for allowed, value in lists):
        return "no_rule"
    if match.job and not any(fnmatchcase(job, pattern) for job in jobs_of(incident) for pattern in match.job):
        return "no_rule"
    if match.labels:
        # A part whose labels nobody knows is not one that carries them.
        known = labels_of(incident.culprit.node) if incident.culprit and incident.culprit.node else {}
        if any(known.get(k) != v for k, v in match.labels.items()):
            return "no_rule"
    if not incident.confidence >= match.confidence_min:
        return "confidence_too_low"
    if at - incident.onset_at < match.duration_seconds_min * 1000:
        return "too_young"
    return None
