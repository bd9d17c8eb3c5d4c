"""The HTTP API: Prometheus-compatible reads, Greylag's own documents, and the calls that people make.

Built over the `House` protocol, so that it knows neither DuckDB nor the tick thread. Reads are bounded: lists take
`since`, `limit` and `cursor`; a list answers `{"items": [...], "next": cursor or null}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from core.clock import parse_rfc3339
from core.errors import BadInput, GreylagError, Unavailable
from core.render import dumps

PIECE_POINTS = 5000
SMALL_POINTS = 250  # a value of at most so many is encoded in one go
MOST_ROWS = 1000
LARGEST_FORM_BYTES = 1024 * 1024
LATEST_MS = 253_402_300_799_999  # the end of the year 9999: what RFC 3339 can write
VERSION = "0.1.0"
PROMETHEUS_VERSION = "2.42.0"  # the version whose answers ours are compared with in the tests


class House(Protocol):
    """What the API asks of the owner. All methods may be called from several threads."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The `/metrics` page and its content type."""
        ...

    def prometheus(self, what: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """A Prometheus answer (with `status`) for query, query_range, series, labels, values."""
        ...

    def read(self, what: str, params: Mapping[str, Any]) -> Any:
        """A document of Greylag's own: a name of `LISTS`, or `incident` with its `id`.

        Raises KeyError for an id that is not known, BadInput for a parameter that is wrong.
        """
        ...

    def command(self, what: str, params: Mapping[str, Any]) -> Any:
        """freeze, resume, approve, reject. Raises KeyError for an id that is not known."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether ticks are being judged, and in words why not."""
        ...


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


def create_api(house: House) -> FastAPI:
    """The application; `/docs` shows its OpenAPI."""
    app = FastAPI(title="Greylag", version=VERSION, description="Finds grey failures in GPU training clusters.")
    _errors(app)
    _plain(app, house)
    _prometheus(app, house)
    _own(app, house)
    return app


def _error(status: int, kind: str, text: str) -> JSONResponse:
    return JSONResponse({"status": "error", "errorType": kind, "error": text}, status)


def _errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, Unavailable):
            return _error(503, "unavailable", str(error))
        return _error(400, "bad_data", str(error))

    async def missing(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, _NotKnown):
            return _error(404, "not_found", f"{error.what} {error.name} is not known")
        return _error(404, "not_found", f"there is no {request.url.path}; /docs lists what there is")

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return _error(500, "internal", f"Greylag failed on this request ({type(error).__name__}); its log says more")

    app.add_exception_handler(GreylagError, refused)
    app.add_exception_handler(_NotKnown, missing)
    app.add_exception_handler(404, missing)
    app.add_exception_handler(Exception, failed)


class _NotKnown(Exception):
    def __init__(self, what: str, name: str) -> None:
        self.what, self.name = what, name
        super().__init__(name)


def _plain(app: FastAPI, house: House) -> None:
    @app.get("/metrics", tags=["own"])
    async def metrics(request: Request) -> Response:
        """Greylag's own series, in the text format or in OpenMetrics as the scraper accepts."""
        body, content_type = await asyncio.to_thread(house.metrics, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    @app.get("/healthz", tags=["own"])
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["own"])
    async def readyz() -> JSONResponse:
        """Ticks are being judged; 503 with the reason where they are not."""
        ok, words = await asyncio.to_thread(house.ready)
        return JSONResponse({"status": "ready" if ok else "not ready", "reason": words}, 200 if ok else 503)


async def _params(request: Request) -> dict[str, Any]:
    """Query parameters, and those of a form that was POSTed, which win; `match` holds all `match[]`."""
    pairs = request.query_params.multi_items()
    if request.method == "POST":
        body = await request.body()
        if len(body) > LARGEST_FORM_BYTES:
            raise BadInput("the form", "", f"{len(body)} bytes", f"at most {LARGEST_FORM_BYTES} are allowed")
        pairs += parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    out: dict[str, Any] = {key: value for key, value in pairs if key != "match[]"}
    out["match"] = [value for key, value in pairs if key == "match[]"]
    return out


def _described(*names: str) -> dict[str, Any]:
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
    "signal": "a canonical signal, such as gpu.temperature_celsius",
    "node": "only parts of this node", "device": "only this device", "job": "only ranks of this job",
}
PROMETHEUS: dict[str, tuple[str, tuple[str, ...]]] = {
    "query": ("The value of a selector at one time.", ("query", "time")),
    "query_range": ("The values of a selector from start to end.", ("query", "start", "end", "step")),
    "series": ("Label sets of the series that match.", ("match[]", "start", "end")),
    "labels": ("Label names.", ("match[]", "start", "end")),
}
PAGED = ("since", "limit", "cursor")
LISTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "inventory": ("Nodes, jobs and storage as they are now.", ()),
    "coverage": ("What is known of each node and signal now, and of each node in a word.", ("node", "limit", "cursor")),
    "findings": ("What detectors hold or held, the newest first.", PAGED),
    "incidents": ("Incidents, the newest first.", PAGED),
    "actions": ("Rows of the action ledger, the newest first.", PAGED),
    "workers": ("Collector workers with their load and leases, and the scaler's last decisions.", ()),
    "policies": ("The policy, its mode, and whether actions are frozen.", ()),
    "windows": ("A canonical signal by part: the last window, or the stored past where start or end is given.",
                ("signal", "start", "end", "node", "device", "job")),
    "events": ("Events, the newest first; of the last day where `since` is not given.", PAGED),
    "records": ("The story in order, one line of `replay --json` each, after the cursor.", ("limit", "cursor")),
}


def _prometheus(app: FastAPI, house: House) -> None:
    async def ask(what: str, params: Mapping[str, Any]) -> Response:
        answer = await asyncio.to_thread(house.prometheus, what, params)
        return json_answer(answer, 200 if answer.get("status") == "success" else int(answer.pop("code", 400)))

    def door(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await ask(name, await _params(request))

        return handle

    for name, (words, parameters) in PROMETHEUS.items():
        for method in ("GET", "POST"):  # one route each: OpenAPI wants one name for one operation
            app.add_api_route(f"/api/v1/{name}", door(name), methods=[method], tags=["Prometheus"], description=words,
                              name=f"{name}_{method.lower()}", response_model=None, openapi_extra=_described(*parameters))

    @app.get("/api/v1/label/{label}/values", tags=["Prometheus"], openapi_extra=_described("match[]", "start", "end"))
    async def values(label: str, request: Request) -> Response:
        """Values of a label."""
        return await ask("values", {**await _params(request), "label": label})

    @app.get("/api/v1/status/buildinfo", tags=["Prometheus"])
    async def buildinfo() -> dict[str, Any]:
        """Who answers; the version is that of the Prometheus whose answers ours equal."""
        return {"status": "success", "data": {"version": PROMETHEUS_VERSION, "revision": f"greylag-{VERSION}",
                                              "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""}}


def _own(app: FastAPI, house: House) -> None:
    def door(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return json_answer(await asyncio.to_thread(house.read, name, dict(request.query_params)))

        return handle

    for name, (words, parameters) in LISTS.items():
        app.add_api_route(f"/api/greylag/v1/{name}", door(name), methods=["GET"], tags=["Greylag"], name=name,
                          description=words, response_model=None, openapi_extra=_described(*parameters))

    @app.get("/api/greylag/v1/incidents/{incident}", tags=["Greylag"])
    async def incident(incident: str) -> Response:
        """One incident, with the rows of its actions from the oldest on."""
        try:
            return json_answer(await asyncio.to_thread(house.read, "incident", {"id": incident}))
        except KeyError:
            raise _NotKnown("the incident", incident) from None

    @app.post("/api/greylag/v1/freeze", tags=["Greylag"])
    async def freeze() -> Any:
        """No action starts until resume."""
        return await asyncio.to_thread(house.command, "freeze", {})

    @app.post("/api/greylag/v1/resume", tags=["Greylag"])
    async def resume() -> Any:
        """Actions may start again."""
        return await asyncio.to_thread(house.command, "resume", {})

    def decision(word: str) -> Callable[[str], Awaitable[Any]]:
        async def decide(action: str) -> Any:
            try:
                return await asyncio.to_thread(house.command, word, {"id": action})
            except KeyError:
                raise _NotKnown("the action", action) from None

        return decide

    for word, words in (("approve", "A proposed action may be carried out."), ("reject", "A proposed action is not carried out.")):
        app.add_api_route(f"/api/greylag/v1/actions/{{action:path}}/{word}", decision(word), methods=["POST"], name=word,
                          tags=["Greylag"], description=words, response_model=None)
