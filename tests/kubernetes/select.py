"""Label and field selectors as the API server reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PART = re.compile(r"""\s*(?:
    (?P<absent>!)\s*(?P<key1>[^\s,=!()]+) |
    (?P<key2>[^\s,=!()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\) |
    (?P<key3>[^\s,=!()]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[^\s,]*) |
    (?P<key4>[^\s,=!()]+)
)\s*(?:,|$)""", re.VERBOSE)


def label_matches(selector: str, labels: Mapping[str, str], problem: Any) -> bool:
    """True where the labels fit `a=b,c!=d,e in (x,y),!f,g`. Raises a 400 for nonsense."""
    at = 0
    ok = True
    while at < len(selector):
        found = _PART.match(selector, at)
        if found is None or found.end() == at:
            raise problem(400, "BadRequest", f"unable to parse requirement: {selector}")
        at = found.end()
        if found["absent"]:
            ok &= found["key1"] not in labels
        elif found["op"]:
            values = [v.strip() for v in found["values"].split(",")]
            inside = labels.get(found["key2"]) in values
            ok &= inside if found["op"] == "in" else not inside
        elif found["sign"]:
            same = labels.get(found["key3"]) == found["value"]
            ok &= not same if found["sign"] == "!=" else same
        else:
            ok &= found["key4"] in labels
    return ok


def field_matches(selector: str, obj: Mapping[str, Any], allowed: Sequence[str], problem: Any) -> bool:
    """True where the fields fit `spec.nodeName=n1,status.phase!=Failed`. Raises a 400 for a field that is not indexed."""
    for part in filter(None, selector.split(",")):
        name, sign, value = next(((*part.split(s, 1)[:1], s, part.split(s, 1)[1]) for s in ("!=", "==", "=") if s in part),
                                 (part, "", ""))
        if name not in allowed:
            raise problem(400, "BadRequest", f"field label not supported: {name}")
        found: Any = obj
        for step in name.split("."):
            found = (found or {}).get(step)
        text = "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)
        if name == "spec.unschedulable" and found is None:
            text = "false"
        if (text == value) == (sign == "!="):
            return False
    return True
