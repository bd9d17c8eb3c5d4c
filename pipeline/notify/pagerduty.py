"""Incidents as events of PagerDuty (Events API v2): trigger, acknowledge, resolve.

The deduplication key is the incident's id, or the storm's, so that repeats and changes belong to one PagerDuty incident.
The routing key is a secret: it is read from its file and put in when the message leaves, never into the store. An event is
at most 512 KB, a summary 1,024 characters, a key 255.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from core.clock import rfc3339
from core.errors import ConfigError, Unavailable
from core.protocols import NotifierPlugin
from core.render import dumps, tidy
from core.signing import read_secret
from core.types import Notice, Outbound
from pipeline.notify import words
from pipeline.notify.posting import Poster, cut

URL = "https://events.pagerduty.com/v2/enqueue"
KEY_CHARACTERS = 32
LONGEST_SUMMARY, LONGEST_KEY, LONGEST_SOURCE, LONGEST_LINE = 1024, 255, 255, 500
LARGEST_EVENT = 512 * 1024
SEVERITY = {"page": "critical", "ticket": "warning", "log": "info"}


@dataclass(frozen=True, slots=True)
class Params:
    """routing_key_file: the integration's key. url: another region's, such as https://events.eu.pagerduty.com/v2/enqueue."""

    routing_key_file: str
    url: str = URL
    timeout_seconds: float = 10.0


def render(notice: Notice, links: Mapping[str, str]) -> str | None:
    """The event without its routing key."""
    if not notice.incidents and notice.event not in words.ENDS:
        return None
    event: dict[str, object] = {"event_action": "trigger", "dedup_key": cut(notice.key, LONGEST_KEY)}
    if notice.event in words.ENDS:
        return dumps({**event, "event_action": "resolve"})
    if notice.event == "acknowledged":
        return dumps({**event, "event_action": "acknowledge"})
    first = notice.incidents[0]
    storm = notice.event in words.STORMS
    details: dict[str, object] = {"incidents": words.members(notice)} if storm else {
        "evidence": [cut(line, LONGEST_LINE) for line in words.evidence_of(first)], "confidence": tidy(first.confidence),
        "jobs": list(first.jobs)[:50], "state": first.state, "reason": first.reason, "lost_gpu_hours": tidy(first.lost_gpu_hours)}
    if notice.note:
        details["note"] = notice.note
    source = f"{notice.total} parts" if storm else words.place(first)
    event["payload"] = {"summary": cut(words.summary(notice), LONGEST_SUMMARY), "source": cut(source, LONGEST_SOURCE),
                        "severity": SEVERITY.get(first.klass, "warning"), "timestamp": rfc3339(notice.at),
                        "component": first.culprit.kind if first.culprit is not None and not storm else first.scope,
                        "group": cut(first.owner, LONGEST_SOURCE), "class": first.fault, "custom_details": details}
    event["client"], event["client_url"] = "Greylag", words.page_link(first, links)
    event["links"] = [{"href": words.runbook_link(first, links), "text": f"What to do about {first.fault}"}]
    return dumps(event)


class PagerDuty:
    """Sends events. Raises ConfigError at the start for an address that is none."""

    def __init__(self, params: Params) -> None:
        if not params.url.startswith(("http://", "https://")):
            raise ConfigError("notify", "url", params.url, "an http:// or https:// address is needed")
        self._params = params
        self._poster = Poster("pagerduty", params.timeout_seconds)

    def deliver(self, message: Outbound) -> None:
        """Raises Unavailable (also while the key's file cannot be used), or Refused for good."""
        key = read_secret(self._params.routing_key_file)
        if len(key) != KEY_CHARACTERS:
            raise Unavailable(f"pagerduty: the key in {self._params.routing_key_file} has not {KEY_CHARACTERS} characters")
        body = dumps({"routing_key": key, **json.loads(message.body)}).encode()
        self._poster.post(self._params.url, body, {"Content-Type": "application/json"})


PLUGIN = NotifierPlugin("pagerduty", Params, PagerDuty, render)
