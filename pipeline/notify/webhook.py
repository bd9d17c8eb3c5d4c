"""Incidents as JSON, signed by the Standard Webhooks specification 1.0.

Body: `{"type": "incident.opened", "timestamp": ..., "data": {"key", "note", "actor", "total", "still_open", "links", "incidents"}}`,
an incident as the API shows it. Headers: `webhook-id` (the same at each try), `webhook-timestamp`, `webhook-signature`. The
specification asks for small payloads: a body is kept within 256 KB by leaving incidents out, and says how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from core.clock import rfc3339, wall_ms
from core.errors import ConfigError
from core.protocols import NotifierPlugin
from core.render import dumps, plain
from core.signing import key_of, read_secret, signed_headers
from core.types import Incident, Notice, Outbound
from pipeline.notify import words
from pipeline.notify.posting import Poster

LARGEST_BODY = 256 * 1024
MOST_INCIDENTS = 200
MOST_OF_EACH = 20  # suspects, victims, findings of an incident: all of them are behind its link


@dataclass(frozen=True, slots=True)
class Params:
    """url: where to POST. secret_file: `whsec_` and the base64 of 24 to 64 random bytes."""

    url: str
    secret_file: str
    timeout_seconds: float = 15.0


def _shown(one: Incident) -> Incident:
    return replace(one, suspects=one.suspects[:MOST_OF_EACH], victims=one.victims[:MOST_OF_EACH], findings=one.findings[:MOST_OF_EACH],
                   jobs=one.jobs[:MOST_OF_EACH])


def render(notice: Notice, links: Mapping[str, str]) -> str | None:
    """The body."""
    if not notice.incidents and notice.event not in words.ENDS:
        return None
    group = "incidents" if notice.event in words.STORMS else "incident"
    most = MOST_INCIDENTS
    while True:
        shown = notice.incidents[:most]
        rows = [{**plain(_shown(one)), "link": words.page_link(one, links), "runbook_url": words.runbook_link(one, links)} for one in shown]
        body = dumps({"type": f"{group}.{notice.event}", "timestamp": rfc3339(notice.at), "data": {
            "key": notice.key, "summary": words.summary(notice) if notice.incidents or group == "incidents" else "", "note": notice.note or None,
            "actor": notice.actor, "total": notice.total, "still_open": notice.still_open,
            "left_out": len(notice.incidents) - len(shown), "incidents": rows}})
        if len(body.encode()) <= LARGEST_BODY or most == 1:
            return body
        most = max(1, min(most, len(shown)) // 2)


class Webhook:
    """Signs and POSTs. The time of a signature is the machine's: receivers compare it with theirs."""

    def __init__(self, params: Params) -> None:
        if not params.url.startswith(("http://", "https://")):
            raise ConfigError("notify", "url", params.url, "an http:// or https:// address is needed")
        self._params = params
        self._poster = Poster("webhook", params.timeout_seconds)

    def deliver(self, message: Outbound) -> None:
        """Raises Unavailable, or Refused for good; ConfigError where the secret has another form."""
        key = key_of(read_secret(self._params.secret_file), self._params.secret_file)
        body = message.body.encode()
        # A dot would end the id in what is signed.
        signed = signed_headers(key, message.id.replace(".", "_"), wall_ms() // 1000, body)
        self._poster.post(self._params.url, body, {"Content-Type": "application/json", **signed})


PLUGIN = NotifierPlugin("webhook", Params, Webhook, render)
