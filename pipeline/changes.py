"""Changes of how a node is set up, as events: those that people report, and those that its own labels show.

Exporters show versions and settings as labels of info series; the sources make a part of kind `label` of each value
(`driver=550.90.07` of node n07). When a node has shown another value for a minute than it showed before, that is a
`config_change`. A node that is silent, boots or loses its exporter changes nothing: it is compared with what it showed last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.clock import parse_rfc3339
from core.errors import BadInput
from core.types import Event, Target
from core.window import Window

SIGNALS = ("label.present", "label.chosen")
STEADY_TICKS = 4
LONGEST_WHAT, LONGEST_VALUE = 120, 300
MOST_NODES = 10_000
PAST_MS, FUTURE_MS = 30 * 86_400_000, 5 * 60_000
KEYS = ("what", "old", "new", "nodes", "job", "at", "by")
Values = frozenset[str]
Key = tuple[str, str]  # node, name of the fact


class LabelChanges:
    """Remembers what each node showed last, and gives the events of what it shows now."""

    def __init__(self) -> None:
        self._known: dict[Key, Values] = {}
        self._new: dict[Key, tuple[Values, int, int]] = {}  # what is shown instead, since when (ms), for how many ticks
        self._seen: tuple[tuple[Target, ...], tuple[bytes, ...]] | None = None
        self._text: str | None = None  # of `dump`: at nearly all ticks as it was

    def update(self, window: Window) -> list[Event]:
        """The changes that are certain at the window's end, each at the tick at which it was first seen."""
        parts = window.of_kind("label")
        fresh = [window.block(name).fresh() & (window.last(name) > 0) for name in SIGNALS]
        mask = (tuple(parts), tuple(one.tobytes() for one in fresh))
        if mask == self._seen and not self._new:
            return []
        self._seen, self._text = mask, None
        shown = _shown(parts, fresh[0] | fresh[1])
        events = [event for key, values in shown.items() if (event := self._judge(key, values, window.end)) is not None]
        for key in [key for key in self._new if key not in shown]:
            del self._new[key]
        return events

    def _judge(self, key: Key, values: Values, at: int) -> Event | None:
        known = self._known.get(key)
        if known is None or values == known:
            self._known[key] = values
            self._new.pop(key, None)
            return None
        before = self._new.get(key)
        since, ticks = (before[1], before[2] + 1) if before is not None and before[0] == values else (at, 1)
        if ticks < STEADY_TICKS:
            self._new[key] = (values, since, ticks)
            return None
        self._new.pop(key, None)
        self._known[key] = values
        node, name = key
        return Event(since, Target("node", node), "config_change", {
            "what": name, "old": _list(known - values), "new": _list(values - known), "by": None})

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        if self._text is None:
            self._text = json.dumps({
                "known": [[*key, sorted(values)] for key, values in self._known.items()],
                "new": [[*key, sorted(values), since, ticks] for key, (values, since, ticks) in self._new.items()],
            }, separators=(",", ":"))
        return self._text

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        data = json.loads(text)
        self._known = {(node, name): frozenset(values) for node, name, values in data["known"]}
        self._new = {(node, name): (frozenset(values), since, ticks) for node, name, values, since, ticks in data["new"]}
        self._seen = self._text = None


def _shown(parts: tuple[Target, ...], fresh: NDArray[np.bool_]) -> dict[Key, Values]:
    found: dict[Key, set[str]] = {}
    for i in np.flatnonzero(fresh):
        part = parts[i]
        name, equals, value = (part.device or "").partition("=")
        if equals and part.node is not None:
            found.setdefault((part.node, name), set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}


def _list(values: Values) -> str | None:
    return ", ".join(sorted(values))[:LONGEST_VALUE] or None


def change_events(body: object, now: int, actor: str) -> list[Event]:
    """The events of a change that was POSTed: {what, old, new, nodes, job, at, by}, all but `what` optional; neither nodes nor
    job = the whole fleet. Raises BadInput in one sentence."""
    if not isinstance(body, Mapping):
        raise BadInput("the body", "", body, "a JSON object is needed, such as {\"what\": \"driver\", \"new\": \"570\", \"nodes\": [\"n1\"]}")
    for key in body:
        if key not in KEYS:
            raise BadInput(str(key), "", "an unknown key", f"allowed are: {', '.join(KEYS)}")
    what = _text(body, "what", LONGEST_WHAT)
    if not what:
        raise BadInput("what", "", body.get("what"), "a name is needed, such as driver, image, firmware or job configuration")
    fields = {"what": what, "old": _text(body, "old", LONGEST_VALUE), "new": _text(body, "new", LONGEST_VALUE),
              "by": _text(body, "by", LONGEST_WHAT) or actor}
    at = _time(body.get("at"), now)
    job = _text(body, "job", LONGEST_VALUE)
    nodes = body.get("nodes") or []
    if not isinstance(nodes, list) or len(nodes) > MOST_NODES or not all(isinstance(n, str) and 0 < len(n) <= LONGEST_VALUE for n in nodes):
        raise BadInput("nodes", "", nodes, f"a list of at most {MOST_NODES} node names is needed")
    targets = [Target("node", node, job=job) for node in dict.fromkeys(nodes)]
    targets = targets or [Target("job", job=job) if job else Target("fleet")]
    return [Event(at, target, "config_change", fields) for target in targets]


def _text(body: Mapping[Any, Any], key: str, longest: int) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or len(str(value)) > longest:
        raise BadInput(key, "", value, f"a text of at most {longest} characters is needed")
    return " ".join(str(value).split()) or None


def _time(value: object, now: int) -> int:
    if value is None:
        return now
    try:
        at = round(float(value) * 1000) if isinstance(value, (int, float)) and not isinstance(value, bool) else parse_rfc3339(str(value))
    except (ValueError, OverflowError):
        raise BadInput("at", "", value, "a time in RFC 3339 or in seconds since the epoch is needed") from None
    if not now - PAST_MS <= at <= now + FUTURE_MS:
        raise BadInput("at", "", value, "a time of the last 30 days is needed")
    return at
