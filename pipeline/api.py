"""The HTTP API: Prometheus-compatible reads, Greylag's own documents, and the calls that people make.

Built over the `House` protocol, so that it knows neither DuckDB nor the tick thread. Reads are bounded: lists take
`since`, `limit` and `cursor`; a list answers `{"items": [...], "next": cursor or null}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from core.clock import parse_rfc3339
from core.errors import BadInput, GreylagError, Unavailable
from core.render import dumps

PIECE_POINTS = 5000
MOST_ROWS = 1000
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
        """A document of Greylag's own: inventory, incidents, findings, actions, records, coverage, windows, …

        Raises KeyError for an id that is not known.
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
    if not text.isdigit() or not 1 <= int(text) <= MOST_ROWS:
        raise BadInput("limit", "", text, f"a whole number from 1 to {MOST_ROWS} is needed")
    return int(text)


def time_of(params: Mapping[str, Any], key: str, default: int) -> int:
    """A time parameter in RFC 3339 or seconds since the epoch, as ms. Raises BadInput."""
    text = params.get(key)
    if text is None:
        return default
    try:
        return round(float(text) * 1000)
    except (ValueError, OverflowError):
        pass
    try:
        return parse_rfc3339(str(text).replace(" ", "+"))
    except ValueError:
        raise BadInput(key, "", text, "a time in RFC 3339 or in seconds since the epoch is needed") from None


def pieces(answer: Mapping[str, Any]) -> Iterator[bytes]:
    """A query_range answer as JSON in pieces of at most 5,000 points, so that no encoding holds the loop for long."""
    data = answer.get("data")
    if not isinstance(data, Mapping) or data.get("resultType") != "matrix":
        yield dumps(answer).encode()
        return
    yield b'{"status":"success","data":{"resultType":"matrix","result":['
    for i, row in enumerate(data["result"]):
        yield (b"," if i else b"") + b'{"metric":' + dumps(row["metric"]).encode() + b',"values":['
        points = row["values"]
        for at in range(0, len(points), PIECE_POINTS):
            yield (b"," if at else b"") + dumps(points[at : at + PIECE_POINTS]).encode()[1:-1]
        yield b"]}"
    yield b"]}}"


def create_api(house: House) -> FastAPI:
    """The application; `/docs` shows its OpenAPI."""
    app = FastAPI(title="Greylag", version=VERSION, description="Finds grey failures in GPU training clusters.")
    _errors(app)
    _plain(app, house)
    _prometheus(app, house)
    _own(app, house)
    return app


def _errors(app: FastAPI) -> None:
    async def bad(request: Request, error: Exception) -> JSONResponse:
        status = 503 if isinstance(error, Unavailable) else 400
        return JSONResponse({"status": "error", "errorType": "bad_data" if status == 400 else "unavailable",
                             "error": str(error)}, status)

    async def missing(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"status": "error", "errorType": "not_found", "error": f"not known: {error}"}, 404)

    app.add_exception_handler(GreylagError, bad)
    app.add_exception_handler(KeyError, missing)


def _plain(app: FastAPI, house: House) -> None:
    @app.get("/metrics", tags=["own"])
    async def metrics(request: Request) -> Response:
        """Greylag's own series."""
        body, content_type = house.metrics(request.headers.get("accept", ""))
        return Response(body, media_type=content_type)

    @app.get("/healthz", tags=["own"])
    async def healthz() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["own"])
    async def readyz() -> JSONResponse:
        """Ticks are being judged."""
        ok, words = house.ready()
        return JSONResponse({"status": "ready" if ok else "not ready", "reason": words}, 200 if ok else 503)


async def _params(request: Request) -> dict[str, Any]:
    out: dict[str, Any] = dict(request.query_params)
    matches = request.query_params.getlist("match[]")
    if request.method == "POST":
        form = await request.form()
        out.update({k: str(v) for k, v in form.items()})
        matches += [str(v) for v in form.getlist("match[]")]
    out.pop("match[]", None)
    out["match"] = matches
    return out


def _prometheus(app: FastAPI, house: House) -> None:
    async def ask(what: str, params: Mapping[str, Any]) -> Response:
        answer = await asyncio.to_thread(house.prometheus, what, params)
        status = 200 if answer.get("status") == "success" else int(answer.pop("code", 400))
        if what == "query_range" and status == 200:
            return StreamingResponse(pieces(answer), media_type="application/json")
        return JSONResponse(answer, status)

    for name in ("query", "query_range", "series", "labels"):
        def door(name: str = name) -> Callable[[Request], Any]:
            async def handle(request: Request) -> Response:
                return await ask(name, await _params(request))

            return handle

        app.add_api_route(f"/api/v1/{name}", door(), methods=["GET", "POST"], tags=["Prometheus"], name=name,
                          response_model=None)

    @app.get("/api/v1/label/{label}/values", tags=["Prometheus"])
    async def values(label: str, request: Request) -> Response:
        """Values of a label."""
        return await ask("values", {**await _params(request), "label": label})

    @app.get("/api/v1/status/buildinfo", tags=["Prometheus"])
    async def buildinfo() -> dict[str, Any]:
        """Who answers; the version is that of the Prometheus whose answers ours equal."""
        return {"status": "success", "data": {"version": PROMETHEUS_VERSION, "revision": f"greylag-{VERSION}",
                                              "branch": "", "buildUser": "", "buildDate": "", "goVersion": ""}}


def _own(app: FastAPI, house: House) -> None:
    lists = ("inventory", "coverage", "findings", "incidents", "actions", "policies", "windows", "events", "records")
    for name in lists:
        def door(name: str = name) -> Callable[[Request], Any]:
            async def handle(request: Request) -> Any:
                return JSONResponse(await asyncio.to_thread(house.read, name, dict(request.query_params)))

            return handle

        app.add_api_route(f"/api/greylag/v1/{name}", door(), methods=["GET"], tags=["Greylag"], name=name,
                          response_model=None)

    @app.get("/api/greylag/v1/incidents/{incident}", tags=["Greylag"])
    async def incident(incident: str) -> JSONResponse:
        """One incident with its actions."""
        return JSONResponse(await asyncio.to_thread(house.read, "incident", {"id": incident}))

    @app.post("/api/greylag/v1/freeze", tags=["Greylag"])
    async def freeze() -> Any:
        """No action starts until resume."""
        return await asyncio.to_thread(house.command, "freeze", {})

    @app.post("/api/greylag/v1/resume", tags=["Greylag"])
    async def resume() -> Any:
        """Actions may start again."""
        return await asyncio.to_thread(house.command, "resume", {})

    @app.post("/api/greylag/v1/actions/{action:path}/{word}", tags=["Greylag"])
    async def decide(action: str, word: str) -> Any:
        """approve or reject a proposed action."""
        if word not in ("approve", "reject"):
            raise KeyError(word)
        return await asyncio.to_thread(house.command, word, {"id": action})
