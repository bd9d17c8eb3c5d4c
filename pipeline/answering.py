"""What the doors of the API share: parameters as they are given, answers as JSON in pieces, what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from core.access import LOCAL
from core.clock import parse_rfc3339
from core.errors import BadInput
from core.render import dumps

PIECE_POINTS = 5000
SMALL_POINTS = 250  # a value of at most so many is encoded in one go
MOST_ROWS = 1000
LARGEST_FORM_BYTES = 1024 * 1024
LATEST_MS = 253_402_300_799_999  # the end of the year 9999: what RFC 3339 can write


class NotKnown(Exception):
    """A name that nothing has: 404. what: its kind in words."""

    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(name)


def actor_of(request: Request) -> str:
    """Who asks: the name of the token that the gate let in, `local` where there are no tokens."""
    return str(getattr(request.state, "actor", LOCAL))


def limit_of(params: Mapping[str, Any]) -> int:
    """The `limit` parameter, at most 1,000. Raises BadInput."""
    text = str(params.get("limit", 100))
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MOST_ROWS:
        raise BadInput("limit", "", text, f"a whole number from 1 to {MOST_ROWS} is needed")
    return int(text)


def time_of(params: Mapping[str, Any], key: str, default: int) -> int:
    """A time parameter in RFC 3339 or seconds since the epoch, as ms. Raises BadInput."""
    text = params.get(key)
    if text is None:
        return default
    try:
        at = round(float(text) * 1000)
    except (ValueError, OverflowError):
        try:
            at = parse_rfc3339(str(text).replace(" ", "+"))  # an unescaped + of a zone arrives as a space
        except ValueError:
            at = -1
    if not 0 <= at <= LATEST_MS:
        raise BadInput(key, "", text, "a time in RFC 3339 or in seconds since the epoch is needed")
    return at


def pieces(answer: Any) -> Iterator[bytes]:
    """An answer as JSON in pieces of at most 5,000 points, so that no encoding holds the interpreter for long.

    A point is a number, a text or a [time, value] pair. The pieces together are what `core.render.dumps` gives.
    """
    held: list[str] = []
    points = 0
    for text, many in _tokens(answer):
        if points + many > PIECE_POINTS and held:
            yield "".join(held).encode()
            held, points = [], 0
        held.append(text)
        points += many
    yield "".join(held).encode()


def _tokens(value: Any) -> Iterator[tuple[str, int]]:
    many = _points(value)
    if many <= SMALL_POINTS or not isinstance(value, (Mapping, list)):
        yield dumps(value), many
    elif isinstance(value, Mapping):
        for i, (key, inner) in enumerate(value.items()):
            yield ("," if i else "{") + dumps(key) + ":", 0
            yield from _tokens(inner)
        yield "}", 0
    elif isinstance(value[0], Mapping):
        for i, inner in enumerate(value):
            yield "," if i else "[", 0
            yield from _tokens(inner)
        yield "]", 0
    else:
        for at in range(0, len(value), PIECE_POINTS):
            chunk = value[at : at + PIECE_POINTS]
            yield ("," if at else "[") + dumps(chunk)[1:-1], len(chunk)
        yield "]", 0


def _points(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(_points(inner) for inner in value.values())
    if isinstance(value, list):
        return sum(_points(inner) for inner in value) if value and isinstance(value[0], Mapping) else len(value)
    return 1


def json_answer(answer: Any, status: int = 200) -> Response:
    """The answer, in pieces where it is long."""
    if _points(answer) <= PIECE_POINTS:
        return Response(dumps(answer).encode(), status, media_type="application/json")
    return StreamingResponse(pieces(answer), status, media_type="application/json")


async def params_of(request: Request) -> dict[str, Any]:
    """Query parameters, and those of a form that was POSTed, which win; `match` holds all `match[]`."""
    pairs = request.query_params.multi_items()
    if request.method == "POST":
        body = await request.body()
        if len(body) > LARGEST_FORM_BYTES:
            raise BadInput("the form", "", f"{len(body)} bytes", f"at most {LARGEST_FORM_BYTES} are allowed")
        pairs += parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    out: dict[str, Any] = {key: value for key, value in pairs if key not in ("match[]", "rule_name[]")}
    out["match"] = [value for key, value in pairs if key == "match[]"]
    out["rule_name"] = [value for key, value in pairs if key == "rule_name[]"]
    return out


def described(*names: str) -> dict[str, Any]:
    """OpenAPI's words for query parameters."""
    return {"parameters": [{"name": name, "in": "query", "required": False, "description": PARAMETERS[name],
                            "schema": {"type": "string"}} for name in names]}


PARAMETERS = {
    "query": "a plain selector, such as up{job=\"dcgm\"}, or a number",
    "time": "RFC 3339 or seconds since the epoch; default: now",
    "start": "RFC 3339 or seconds since the epoch; default: an hour before the end",
    "end": "RFC 3339 or seconds since the epoch; default: now",
    "step": "seconds, or a duration such as 15s; at most 11,000 points a series",
    "match[]": "a selector; may be given several times",
    "since": "RFC 3339 or seconds since the epoch: only what changed at or after it",
    "limit": "1 to 1000 rows; default 100",
    "cursor": "the `next` of the last answer",
    "metric": "only this metric", "state": "active, dropped or any", "type": "alert or record", "rule_name[]": "only this rule; several times",
    "signal": "a canonical signal, such as gpu.temperature_celsius",
    "node": "only parts of this node", "device": "only this device", "job": "only ranks of this job",
    "incident": "only this incident", "fault": "only this fault",
}
