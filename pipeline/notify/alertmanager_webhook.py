"""Incidents as Alertmanager's webhook, version 4: what receivers that people already have understand.

One message for each opening, reopening and end of an incident. Labels are identity (they do not change while the incident
lives), annotations are text. `groupKey` and the message's id are stable, so a receiver can drop repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from core.clock import rfc3339
from core.errors import Refused, Unavailable
from core.faults import faults
from core.protocols import NotifierPlugin
from core.render import dumps
from core.targets import CLOSED_STATES
from core.types import Incident, Outbound
from pipeline.runbooks import runbook_url

NOT_ENDED = "0001-01-01T00:00:00Z"  # what Alertmanager writes while an alert fires


@dataclass(frozen=True, slots=True)
class Params:
    """url: where to POST. timeout_seconds: wall time for one try."""

    url: str
    timeout_seconds: float = 10.0


def labels_of(one: Incident) -> dict[str, str]:
    """Identity labels; parts that are not known are left out, as Alertmanager does with empty labels."""
    culprit = one.culprit
    found = {
        "alertname": one.fault,
        "incident": one.id,
        "scope": one.scope,
        "owner": one.owner,
        "class": one.klass,
        "node": (culprit.node if culprit else None) or "",
        "device": (culprit.device if culprit else None) or "",
        "job": ",".join(one.jobs),
    }
    return {k: v for k, v in sorted(found.items()) if v}


def annotations_of(one: Incident, links: Mapping[str, str]) -> dict[str, str]:
    """Text for people, rendered from the incident's own numbers."""
    where = str(one.culprit) if one.culprit else f"no single part (scope {one.scope})"
    known = faults().get(one.fault)
    evidence = "; ".join(
        f"{e.signal} {_short(e.observed)} {e.unit}" + (f", expected {_short(e.expected)}" if e.expected is not None else "")
        for e in one.evidence[:4]
    )
    found = {
        "summary": f"{one.fault} on {where}: {known.means if known else one.fault}",
        "description": evidence,
        "confidence": f"{one.confidence:.2f}",
        "state": one.state,
        "reason": one.reason,
        "lost_gpu_hours": f"{one.lost_gpu_hours:.2f}",
    }
    if known is not None:
        found["runbook_url"] = runbook_url(one.fault, links)
    if links.get("explorer_url"):
        found["explorer"] = f"{links['explorer_url'].rstrip('/')}/incident?incident={one.id}"
    return found


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def render(incidents: Sequence[Incident], at: int, links: Mapping[str, str]) -> str | None:
    """The webhook's body; None when there is nothing to say (merged incidents say nothing of their own)."""
    told = [one for one in incidents if one.state != "merged"]
    if not told:
        return None
    base = links.get("external_url", "").rstrip("/")
    labels, texts = [labels_of(one) for one in told], [annotations_of(one, links) for one in told]
    alerts = []
    for one, own, text in zip(told, labels, texts, strict=True):
        ended = one.state in CLOSED_STATES
        alerts.append({
            "status": "resolved" if ended else "firing",
            "labels": own,
            "annotations": text,
            "startsAt": rfc3339(one.onset_at),
            "endsAt": rfc3339(one.resolved_at or at) if ended else NOT_ENDED,
            "generatorURL": f"{base}/api/greylag/v1/incidents/{one.id}",
            "fingerprint": hashlib.sha256(dumps(own).encode()).hexdigest()[:16],
        })
    firing = any(one.state not in CLOSED_STATES for one in told)
    return dumps({
        "version": "4",
        "groupKey": "{}:{incident=\"" + ",".join(one.id for one in told) + "\"}",
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": "greylag",
        "groupLabels": {"incident": told[0].id} if len(told) == 1 else {},
        "commonLabels": _common(labels),
        "commonAnnotations": _common(texts),
        "externalURL": base,
        "alerts": alerts,
    })


def _common(many: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The pairs that all of them have, by key."""
    return dict(sorted(set.intersection(*(set(one.items()) for one in many))))


class Webhook:
    """POSTs bodies to one URL. 2xx is taken; 429 and 5xx are worth another try; other answers are final."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._http = httpx.Client(timeout=params.timeout_seconds, follow_redirects=False)

    def deliver(self, message: Outbound) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": message.id}
        try:
            answer = self._http.post(self._params.url, content=message.body.encode(), headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._params.url}: {error}") from None
        if answer.status_code == 429 or answer.status_code >= 500:
            raise Unavailable(f"{self._params.url}: HTTP {answer.status_code}")
        if answer.status_code >= 300:
            raise Refused("receiver_refused", f"{self._params.url}: HTTP {answer.status_code}")


PLUGIN = NotifierPlugin("alertmanager_webhook", Params, Webhook, render)
