"""Loki's push API: JSON, or `logproto.PushRequest` in snappy. A line's labels are its stream's and its structured metadata.

JSON: {"streams": [{"stream": {labels}, "values": [["<ns>", "line", {metadata}?], …]}]}; the older form
{"labels": "{a=\\"b\\"}", "entries": [{"ts": RFC 3339, "line": …}]} is read as well.
Protobuf: streams = 1 {labels = 1, entries = 2 {timestamp = 1 {seconds = 1, nanos = 2}, line = 2, metadata = 3 {1, 2}}}.
"""

from __future__ import annotations

import json
import re
from typing import Any

from collectors.push.parts import LogLine, Parsed, PushRefused, bad
from collectors.push.protowire import LENGTH, VARINT, WireError, fields, signed, text
from core.clock import parse_rfc3339
from core.errors import quote

MOST_LINES = 200_000
_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*+)"\s*(,|$)')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")


def read_json(body: bytes) -> Parsed:
    """A JSON push. Raises PushRefused(400)."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad("bad_json", f"the body is no JSON: {str(error)[:200]}.") from None
    streams = found.get("streams") if isinstance(found, dict) else None
    if not isinstance(streams, list):
        raise bad("bad_json", "the body needs a list under `streams`.")
    out = Parsed()
    for stream in streams:
        if not isinstance(stream, dict):
            raise bad("bad_json", f"a stream is a mapping, got {quote(stream)}.")
        if "entries" in stream:
            labels = label_text(str(stream.get("labels", "")))
            rows = [_entry(one) for one in _list(stream["entries"], "entries")]
        else:
            labels = _text_map(stream.get("stream", {}))
            rows = [_value(one) for one in _list(stream.get("values"), "values")]
        for at, line, more in rows:
            _add(out, LogLine(line, at, {**labels, **more}))
    return out


def read_protobuf(data: bytes) -> Parsed:
    """A protobuf push, already unpacked. Raises PushRefused(400)."""
    out = Parsed()
    try:
        for number, wire, start, stop in fields(data, 0, len(data)):
            if number == 1 and wire == LENGTH:
                _stream(data, start, stop, out)
    except WireError as error:
        raise bad("bad_protobuf", f"the body is no Loki push request: {error}.") from None
    return out


def label_text(shown: str) -> dict[str, str]:
    """Labels as LogQL writes them: `{job="kernel", host="n17"}`. Raises PushRefused(400)."""
    inner = shown.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise bad("bad_labels", f"{quote(shown)} is no set of stream labels.")
    inner = inner[1:-1].strip()
    out: dict[str, str] = {}
    pos = 0
    while pos < len(inner):
        match = _PAIR.match(inner, pos)
        if match is None or match[1] in out:
            raise bad("bad_labels", f"{quote(shown)} is no set of stream labels.")
        out[match[1]] = _ESCAPE.sub(lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), match[2])
        pos = match.end()
    return out


def _stream(data: bytes, pos: int, end: int, out: Parsed) -> None:
    labels: dict[str, str] = {}
    entries: list[tuple[int, int]] = []
    for number, wire, start, stop in fields(data, pos, end):
        if number == 1 and wire == LENGTH:
            labels = label_text(text(data, start, stop))
        elif number == 2 and wire == LENGTH:
            entries.append((start, stop))
    for start, stop in entries:
        at, line, more = 0, "", {}
        for number, wire, a, b in fields(data, start, stop):
            if number == 1 and wire == LENGTH:
                at = _timestamp(data, a, b)
            elif number == 2 and wire == LENGTH:
                line = data[a:b].decode("utf-8", "replace")
            elif number == 3 and wire == LENGTH:
                pair = {n: text(data, c, d) for n, w, c, d in fields(data, a, b) if w == LENGTH}
                more[pair.get(1, "")] = pair.get(2, "")
        _add(out, LogLine(line, at or None, {**labels, **more}))


def _timestamp(data: bytes, pos: int, end: int) -> int:
    seconds = nanos = 0
    for number, wire, value, _ in fields(data, pos, end):
        if wire == VARINT and number == 1:
            seconds = signed(value)
        elif wire == VARINT and number == 2:
            nanos = signed(value)
    return seconds * 1000 + nanos // 1_000_000


def _add(out: Parsed, line: LogLine) -> None:
    out.lines.append(line)
    if len(out.lines) > MOST_LINES:
        raise PushRefused(413, "body_too_large", f"the request has more than {MOST_LINES} lines: send smaller ones.")


def _list(found: Any, key: str) -> list[Any]:
    if not isinstance(found, list):
        raise bad("bad_json", f"a stream needs a list under `{key}`.")
    return found


def _text_map(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise bad("bad_json", f"a mapping of texts is needed for labels, got {quote(found)}.")
    return found


def _value(row: Any) -> tuple[int, str, dict[str, str]]:
    if not isinstance(row, list) or len(row) not in (2, 3) or not isinstance(row[1], str):
        raise bad("bad_json", f'a value is ["<nanoseconds>", "line"], got {quote(row)}.')
    stamp = str(row[0])
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 20):
        raise bad("bad_json", f"a value's time is nanoseconds as a text of digits, got {quote(row[0])}.")
    return int(stamp) // 1_000_000, row[1], _text_map(row[2]) if len(row) == 3 else {}


def _entry(row: Any) -> tuple[int, str, dict[str, str]]:
    if not isinstance(row, dict) or not isinstance(row.get("line"), str):
        raise bad("bad_json", f"an entry has ts and line, got {quote(row)}.")
    try:
        return parse_rfc3339(_LONG_FRACTION.sub(r"\1", str(row.get("ts")))), row["line"], {}
    except ValueError:
        raise bad("bad_json", f"an entry's ts is an RFC 3339 time, got {quote(row.get('ts'))}.") from None
