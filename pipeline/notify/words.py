"""A notice in words, for all notifiers: rendered from the incidents' own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from core.faults import faults
from core.targets import CLOSED_STATES
from core.types import Incident, Notice
from pipeline.drift_told import DRIFT
from pipeline.runbooks import runbook_url

EVIDENCE_SHOWN = 4
MEMBERS_SHOWN = 20
ENDS = frozenset({"resolved", "merged", "storm_ended"})
STORMS = frozenset({"storm", "storm_updated", "storm_ended"})
NEWS = {"opened": "opened", "reopened": "came back", "proposed": "waits for an approval", "escalated": "is handed to a person",
        "acknowledged": "was acknowledged", "notify": "is told as the policy asks", "resolved": "ended",
        "merged": "was absorbed by a wider incident"}


def place(one: Incident) -> str:
    """The part in words; where no single part is known the jobs, else the scope."""
    if one.culprit is not None:
        return str(one.culprit)
    if one.scope == "job" and one.jobs:
        return f"job {', '.join(one.jobs)}"
    return f"no single part (scope {one.scope})"


def short(value: float | None) -> str:
    """Four digits; `none` where it is missing."""
    return "none" if value is None else f"{value:.4g}"


def evidence_of(one: Incident) -> list[str]:
    """A line for each of the first pieces of evidence."""
    return [f"{e.signal} {short(e.observed)} {e.unit}" + (f", expected {short(e.expected)} ({e.compared_with})" if e.expected is not None else "")
            for e in one.evidence[:EVIDENCE_SHOWN]]


def meaning(one: Incident) -> str:
    """What its fault means, in a line; of a slow drift what drifts where, and the days to go."""
    known = faults().get(one.fault)
    own = next((e.text for e in one.evidence if e.text), None) if one.fault == DRIFT else None
    return own or (known.means if known is not None else one.fault)


def ended(one: Incident) -> bool:
    """True where the incident is closed."""
    return one.state in CLOSED_STATES


def summary(notice: Notice) -> str:
    """The notice in one line."""
    if notice.event in STORMS:
        return _storm(notice)
    one = notice.incidents[0]
    tag = {"page": "", "ticket": "[ticket] ", "log": "[log] "}.get(one.klass, "")
    news = NEWS.get(notice.event, notice.event)
    by = f" by {notice.actor}" if notice.actor else ""
    return f"{tag}{one.fault} on {place(one)} {news}{by}: {meaning(one)}"


def _storm(notice: Notice) -> str:
    if notice.event == "storm_ended":
        return f"All {notice.total} incidents that opened at once have ended"
    kinds = Counter(one.fault for one in notice.incidents).most_common(3)
    listed = ", ".join(f"{count} {fault}" for fault, count in kinds)
    if notice.event == "storm":
        return f"{notice.total} incidents opened at once ({listed}): one message tells of them and of those that follow"
    return f"{notice.still_open} of {notice.total} incidents that opened at once are open ({listed})"


def members(notice: Notice) -> list[str]:
    """A storm's members, a line each, the first of them."""
    lines = [f"{one.fault} on {place(one)} ({one.state}, {one.id})" for one in notice.incidents[:MEMBERS_SHOWN]]
    more = len(notice.incidents) - len(lines)
    return [*lines, f"and {more} more"] if more > 0 else lines


def page_link(one: Incident, links: Mapping[str, str]) -> str:
    """The incident's page in the explorer; where there is none its document in the API."""
    if links.get("explorer_url") and one.fault != DRIFT:
        return f"{links['explorer_url'].rstrip('/')}/incident?incident={one.id}"
    return api_link(one, links)


def api_link(one: Incident, links: Mapping[str, str]) -> str:
    """The incident's document in the API; of a drift, which is no incident, the list that it stands in."""
    base = f"{links.get('external_url', '').rstrip('/')}/api/greylag/v1"
    return f"{base}/drift" if one.fault == DRIFT else f"{base}/incidents/{one.id}"


def runbook_link(one: Incident, links: Mapping[str, str]) -> str:
    """The fault's page."""
    return runbook_url(one.fault, links)
