"""Records as JSON: absent = null with the key present, times RFC 3339 UTC with milliseconds and `Z`, floats finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from core.clock import rfc3339
from core.types import Action, Event, Finding, Incident, Outcome

_TIMES = {"at", "onset_at", "opened_at", "updated_at", "ended_at", "resolved_at", "start", "end", "started_at", "boot_time",
          "first_at", "since", "until"}
_NAMES = {"klass": "class"}


def plain(value: Any, key: str = "") -> Any:
    """`value` as JSON types. Integers under a key that is a time become RFC 3339 text; NaN and ±Inf become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_NAMES.get(f.name, f.name): plain(getattr(value, f.name), f.name) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v, str(k)) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return rfc3339(value) if key in _TIMES else value
    if isinstance(value, float):
        return tidy(value)
    return str(value)


def tidy(value: float) -> float | None:
    """A float for people and for byte-equal replays: 6 significant digits, None where not finite."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return rounded if rounded != 0 else 0.0


def dumps(value: Any) -> str:
    """One line of JSON, keys in the record's order, no spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def incident_line(event: str, at: int, incident: Incident) -> str:
    return dumps({"type": "incident", "event": event, "at": rfc3339(at), "incident": plain(incident)})


def finding_line(event: str, at: int, finding: Finding) -> str:
    return dumps({"type": "finding", "event": event, "at": rfc3339(at), "finding": plain(finding)})


def action_line(at: int, action: Action, outcome: Outcome) -> str:
    """An action with its outcome so far; event = the outcome's state in lower case (pending, running, done, ...)."""
    return dumps({"type": "action", "event": outcome.state.lower(), "at": rfc3339(at),
                  "action": {**plain(action), "state": outcome.state}, "outcome": plain(outcome)})


def event_line(event: Event) -> str:
    return dumps({"type": "event", "at": rfc3339(event.at), "event": plain(event)})
