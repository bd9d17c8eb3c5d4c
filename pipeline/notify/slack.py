"""Incidents as messages of a Slack channel, over an incoming webhook, in blocks.

The webhook's address is the secret: it is read from its file at each message and stands in no log. Slack takes 50 blocks,
150 characters in a header, 3,000 in a section; of the text of all blocks it takes some 13,000 in practice, so 12,000 is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.errors import Unavailable
from core.protocols import NotifierPlugin
from core.render import dumps
from core.signing import read_secret
from core.types import Notice, Outbound
from pipeline.notify import words
from pipeline.notify.posting import Poster, cut

LONGEST_HEADER, LONGEST_SECTION, LONGEST_URL, MOST_TEXT = 150, 3000, 3000, 12_000
MARKS = {"opened": ":red_circle:", "reopened": ":red_circle:", "storm": ":red_circle:", "resolved": ":white_check_mark:",
         "merged": ":white_check_mark:", "storm_ended": ":white_check_mark:", "escalated": ":sos:", "proposed": ":raised_hand:"}


@dataclass(frozen=True, slots=True)
class Params:
    """url_file: holds the address of the incoming webhook. mention: what stands before a page, such as <!here> or <!subteam^ID>."""

    url_file: str
    mention: str = ""
    timeout_seconds: float = 10.0


def escaped(text: str) -> str:
    """Text in which Slack sees no markup: what exporters and logs say must not mention or link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": cut(text, LONGEST_SECTION)}}


def render(notice: Notice, links: Mapping[str, str]) -> str | None:
    """The message's text and blocks, and whether it is a page: then the mention is put before it when it leaves."""
    if not notice.incidents and notice.event not in words.ENDS:
        return None
    line = words.summary(notice)
    page = notice.event in ("opened", "reopened", "storm", "escalated") and any(one.klass == "page" for one in notice.incidents)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": cut(line, LONGEST_HEADER), "emoji": False}},
        _section(f"{MARKS.get(notice.event, ':information_source:')} {escaped(line)}")]
    if notice.event in words.STORMS:
        if notice.event != "storm_ended":
            blocks.append(_section("\n".join(f"• {escaped(cut(one, 200))}" for one in words.members(notice))))
    elif notice.event not in words.ENDS:
        one = notice.incidents[0]
        facts = [escaped(text) for text in words.evidence_of(one)] + ([f"jobs: {escaped(', '.join(one.jobs))}"] if one.jobs else [])
        facts.append(f"confidence {one.confidence:.2f}, for {escaped(one.owner)}, {escaped(one.state)}: {escaped(one.reason)}")
        blocks.append(_section("\n".join(f"• {text}" for text in facts)))
    if notice.note:
        blocks.append(_section(f":warning: {escaped(notice.note)}"))
    if notice.incidents:
        first = notice.incidents[0]
        targets = [("Incident", words.page_link(first, links)), ("What to do", words.runbook_link(first, links))]
        buttons = [{"type": "button", "text": {"type": "plain_text", "text": name}, "url": url} for name, url in targets
                   if url.startswith(("http://", "https://")) and len(url) <= LONGEST_URL]
        blocks += [{"type": "actions", "elements": buttons}] if buttons else []
        blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": escaped(cut(notice.key, 100))}]})
    while len(dumps(blocks)) > MOST_TEXT and len(blocks) > 3:
        del blocks[2]
    return dumps({"text": cut(escaped(line), LONGEST_SECTION), "page": page, "blocks": blocks})


class Slack:
    """Posts messages."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._poster = Poster("slack", params.timeout_seconds)

    def deliver(self, message: Outbound) -> None:
        """Raises Unavailable (also while the address' file cannot be used), or Refused for good."""
        url = read_secret(self._params.url_file)
        if not url.startswith(("http://", "https://")):
            raise Unavailable(f"slack: {self._params.url_file} holds no http:// or https:// address")
        body = json.loads(message.body)
        if body.pop("page", False) and self._params.mention:
            body["blocks"].insert(0, _section(self._params.mention))
            body["text"] = f"{self._params.mention} {body['text']}"
        self._poster.post(url, dumps(body).encode(), {"Content-Type": "application/json"})


PLUGIN = NotifierPlugin("slack", Params, Slack, render)
