"""Incidents as alerts of an Alertmanager, over its API v2.

Labels say what and where and whose it is: alertname, fault, target, node, owner, class. The incident's id is an annotation,
so a silence that was made for one incident holds for the next one on the same part, and for every change of it. While an
incident is open its alert is posted again each `resend_seconds`, without an end: should Greylag die, Alertmanager ends it
after its own `resolve_timeout` (5 minutes unless configured), which must be longer than `resend_seconds`. When the incident
ends, its alert is posted with its end. Beside them stands `GreylagWatchdog`, which fires for as long as Greylag is well.

What fires is a state and not a message: where a storm opens, all its alerts go in one request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.clock import rfc3339, wall_ms
from core.errors import ConfigError, Unavailable
from core.protocols import NotifierPlugin
from core.render import dumps
from core.signing import read_secret
from core.types import Incident, Notice, Outbound
from pipeline.notify import words
from pipeline.notify.posting import Poster, checked, cut

ALERTS, SILENCES = "/api/v2/alerts", "/api/v2/silences"
MOST_ALERTS = 200  # in one request: Alertmanager takes any number, proxies before it often no more than 1 MB
LONGEST_TEXT = 2_000
WATCHDOG = {"alertname": "GreylagWatchdog", "fault": "none", "owner": "infra", "class": "none", "severity": "none"}


@dataclass(frozen=True, slots=True)
class Params:
    """url: of the Alertmanager. token_file: a bearer token. resend_seconds: how often what fires is posted again; less than half of
    its resolve_timeout. poll_silences: its silences count as silences here, read each `poll_seconds`. watchdog: the alert that
    always fires is posted too."""

    url: str
    token_file: str | None = None
    resend_seconds: float = 60.0
    poll_silences: bool = True
    poll_seconds: float = 15.0
    watchdog: bool = True
    timeout_seconds: float = 10.0


def labels_of(one: Incident) -> dict[str, str]:
    """The alert's identity: the same for the same fault on the same part, whatever else changes."""
    node = one.culprit.node if one.culprit is not None else None
    found = {"alertname": one.fault, "fault": one.fault, "target": words.place(one), "node": node or "", "owner": one.owner,
             "class": one.klass}
    return {key: value for key, value in found.items() if value}


def annotations_of(one: Incident, links: Mapping[str, str], note: str = "") -> dict[str, str]:
    """Text for people, with the incident's id and links to its page and the fault's."""
    found = {"incident": one.id, "summary": f"{one.fault} on {words.place(one)}: {words.meaning(one)}",
             "description": "; ".join(words.evidence_of(one)), "confidence": f"{one.confidence:.2f}", "scope": one.scope,
             "state": one.state, "reason": one.reason, "jobs": ",".join(one.jobs), "note": note,
             "link": words.page_link(one, links), "runbook_url": words.runbook_link(one, links)}
    return {key: cut(value, LONGEST_TEXT) for key, value in found.items() if value}


def render(notice: Notice, links: Mapping[str, str]) -> str | None:
    """The alerts as JSON; None where nothing changes for Alertmanager (an acknowledgement is no state of an alert)."""
    if not notice.incidents or notice.event == "acknowledged":
        return None
    rows = []
    for one in notice.incidents:
        row = {"labels": labels_of(one), "annotations": annotations_of(one, links, notice.note), "startsAt": rfc3339(one.onset_at),
               "generatorURL": words.api_link(one, links)}
        if words.ended(one):
            row["endsAt"] = rfc3339(max(one.resolved_at or notice.at, one.onset_at))
        rows.append(row)
    return dumps(rows)


def in_their_time(row: dict[str, Any], now: str) -> dict[str, Any]:
    """The alert with no time ahead of `now` (RFC 3339, UTC, milliseconds): Alertmanager refuses a start beyond its own end, and
    goes on firing until an end that is still to come, where a cluster's clock is ahead of its own."""
    ends = {key: min(str(row[key]), now) for key in ("endsAt",) if key in row}
    starts = {key: min(str(row[key]), now, *ends.values()) for key in ("startsAt",) if key in row}
    return {**row, **starts, **ends}


class Alertmanager:
    """Posts alerts, and reads silences."""

    def __init__(self, params: Params) -> None:
        if not params.url.startswith(("http://", "https://")):
            raise ConfigError("notify", "url", params.url, "an http:// or https:// address is needed")
        if not 1 <= params.resend_seconds <= 150:
            raise ConfigError("notify", "resend_seconds", params.resend_seconds, "1 to 150 (half of the usual resolve_timeout) is allowed")
        self._params, self._url = params, params.url.rstrip("/")
        self._poster = Poster("alertmanager", params.timeout_seconds)
        self.resend_seconds, self.poll_seconds = params.resend_seconds, params.poll_seconds
        self.polls_silences = params.poll_silences

    def deliver(self, message: Outbound) -> None:
        """Raises Unavailable, or Refused for good."""
        self._post(json.loads(message.body))

    def stand(self, body: str | None, watchdog: bool) -> None:
        """Posts what fires now again, and the alert that always fires while Greylag is well."""
        rows = json.loads(body) if body else []
        if watchdog and self._params.watchdog:
            rows = [*rows, {"labels": WATCHDOG, "annotations": {
                "summary": "This alert always fires. When it does not, Greylag is not well or not there: page somebody."}}]
        self._post(rows)

    def silences(self) -> Any:
        """The answer to `GET /api/v2/silences`, as JSON. Raises Unavailable, Refused."""
        answer = checked("alertmanager", self._poster.ask("GET", self._url + SILENCES, None, self._headers()))
        try:
            return answer.json()
        except ValueError:
            raise Unavailable("alertmanager: the answer is no JSON") from None

    def _post(self, rows: list[dict[str, Any]]) -> None:
        now = rfc3339(wall_ms())
        for start in range(0, len(rows), MOST_ALERTS):
            batch = [in_their_time(row, now) for row in rows[start : start + MOST_ALERTS]]
            self._poster.post(self._url + ALERTS, dumps(batch).encode(), self._headers())

    def _headers(self) -> dict[str, str]:
        token = {"Authorization": f"Bearer {read_secret(self._params.token_file)}"} if self._params.token_file else {}
        return {"Content-Type": "application/json", **token}


PLUGIN = NotifierPlugin("alertmanager", Params, Alertmanager, render, standing=True)
