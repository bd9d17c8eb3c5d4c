"""Incidents as Alertmanager's webhook, version 4: what receivers that people already have understand.

One message for each opening, reopening, change of hands and end of an incident. Labels are identity (they do not change while
the incident lives), annotations are text. `groupKey` and the message's id are stable, so a receiver can drop repeats. A
storm is one message with an alert for each member, up to `MOST_ALERTS`; `truncatedAlerts` counts the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.clock import rfc3339
from core.protocols import NotifierPlugin
from core.render import dumps
from core.types import Incident, Notice, Outbound
from pipeline.notify import words
from pipeline.notify.posting import Poster

NOT_ENDED = "0001-01-01T00:00:00Z"  # what Alertmanager writes while an alert fires
MOST_ALERTS = 100


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


def annotations_of(one: Incident, links: Mapping[str, str], note: str = "") -> dict[str, str]:
    """Text for people, rendered from the incident's own numbers."""
    found = {
        "summary": f"{one.fault} on {words.place(one)}: {words.meaning(one)}",
        "description": "; ".join(words.evidence_of(one)),
        "confidence": f"{one.confidence:.2f}",
        "state": one.state,
        "reason": one.reason,
        "lost_gpu_hours": f"{one.lost_gpu_hours:.2f}",
        "runbook_url": words.runbook_link(one, links),
    }
    if links.get("explorer_url"):
        found["explorer"] = words.page_link(one, links)
    if note:
        found["note"] = note
    return found


def render(notice: Notice, links: Mapping[str, str]) -> str | None:
    """The webhook's body; None when there is nothing to say."""
    told = notice.incidents[:MOST_ALERTS]
    if not told:
        return None
    base = links.get("external_url", "").rstrip("/")
    labels, texts = [labels_of(one) for one in told], [annotations_of(one, links, notice.note) for one in told]
    alerts = []
    for one, own, text in zip(told, labels, texts, strict=True):
        over = words.ended(one)
        alerts.append({
            "status": "resolved" if over else "firing",
            "labels": own,
            "annotations": text,
            "startsAt": rfc3339(one.onset_at),
            "endsAt": rfc3339(one.resolved_at or notice.at) if over else NOT_ENDED,
            "generatorURL": words.api_link(one, links),
            "fingerprint": hashlib.sha256(dumps(own).encode()).hexdigest()[:16],
        })
    single = len(notice.incidents) == 1 and notice.event not in words.STORMS
    return dumps({
        "version": "4",
        "groupKey": "{}:{incident=\"" + notice.key + "\"}",
        "truncatedAlerts": len(notice.incidents) - len(told),
        "status": "resolved" if all(words.ended(one) for one in told) else "firing",
        "receiver": "greylag",
        "groupLabels": {"incident": told[0].id} if single else {},
        "commonLabels": _common(labels),
        "commonAnnotations": _common(texts),
        "externalURL": base,
        "alerts": alerts,
    })


def _common(many: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The pairs that all of them have, by key."""
    return dict(sorted(set.intersection(*(set(one.items()) for one in many))))


class Webhook:
    """POSTs bodies to one URL."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._poster = Poster("alertmanager_webhook", params.timeout_seconds)

    def deliver(self, message: Outbound) -> None:
        """Raises Unavailable, or Refused for good."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": message.id}
        self._poster.post(self._params.url, message.body.encode(), headers)


PLUGIN = NotifierPlugin("alertmanager_webhook", Params, Webhook, render)
