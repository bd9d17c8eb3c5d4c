"""The HTTP API: Prometheus-compatible reads, Greylag's own documents, and the calls that people make.

Built over the `House` protocol, so that it knows neither DuckDB nor the tick thread. Reads are bounded: lists take
`since`, `limit` and `cursor`; a list answers `{"items": [...], "next": cursor or null}`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from core.errors import GreylagError, Unavailable
from pipeline.answering import (
    PIECE_POINTS,
    NotKnown,
    actor_of,
    described,
    json_answer,
    limit_of,
    params_of,
    pieces,
    time_of,
)
from pipeline.api_alerts import add_alerts
from pipeline.api_people import add_people
from pipeline.api_plan import add_plan
from pipeline.api_runbooks import add_runbooks

__all__ = ["PIECE_POINTS", "House", "create_api", "limit_of", "pieces", "time_of"]

VERSION = "0.1.0"
PROMETHEUS_VERSION = "2.42.0"  # the version whose answers ours are compared with in the tests


class House(Protocol):
    """What the API asks of the owner. All methods may be called from several threads."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The `/metrics` page and its content type."""
        ...

    def prometheus(self, what: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """A Prometheus answer (with `status`) for query, query_range, series, labels, values, metadata, targets, rules, alerts."""
        ...

    def read(self, what: str, params: Mapping[str, Any]) -> Any:
        """A document of Greylag's own: a name of `LISTS`, or `incident` with its `id`.

        Raises KeyError for an id that is not known, BadInput for a parameter that is wrong.
        """
        ...

    def command(self, what: str, params: Mapping[str, Any]) -> Any:
        """freeze, resume, approve, reject; acknowledge, silence, wrong with id and body; change with body; alerts with body; resend
        with id; outcome with id, headers and raw. actor: who asks. Raises KeyError for an id that is not known, BadInput for a
        body that is wrong, Refused."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether ticks are being judged, and in words why not."""
        ...


def create_api(house: House) -> FastAPI:
    """The application; `/docs` shows its OpenAPI."""
    app = FastAPI(title="Greylag", version=VERSION, description="Finds grey failures in GPU training clusters.")
    _errors(app)
    _plain(app, house)
    _prometheus(app, house)
    _own(app, house)
    add_people(app, house)
    add_alerts(app, house)
    add_plan(app, house)
    add_runbooks(app)
    return app


def _error(status: int, kind: str, text: str) -> JSONResponse:
    return JSONResponse({"status": "error", "errorType": kind, "error": text}, status)


def _errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, Unavailable):
            return _error(503, "unavailable", str(error))
        return _error(400, "bad_data", str(error))

    async def missing(request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, NotKnown):
            return _error(404, "not_found", f"{error.what} {error.name} is not known")
        return _error(404, "not_found", f"there is no {request.url.path}; /docs lists what there is")

    async def failed(request: Request, error: Exception) -> JSONResponse:
        return _error(500, "internal", f"Greylag failed on this request ({type(error).__name__}); its log says more")

    app.add_exception_handler(GreylagError, refused)
    app.add_exception_handler(NotKnown, missing)
    app.add_exception_handler(404, missing)
    app.add_exception_handler(Exception, failed)


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


PROMETHEUS: dict[str, tuple[str, tuple[str, ...]]] = {
    "query": ("The value of a selector at one time.", ("query", "time")),
    "query_range": ("The values of a selector from start to end.", ("query", "start", "end", "step")),
    "series": ("Label sets of the series that match.", ("match[]", "start", "end")),
    "labels": ("Label names.", ("match[]", "start", "end")),
}
# What a Prometheus says of itself: GET only, as there.
ITSELF: dict[str, tuple[str, tuple[str, ...]]] = {
    "metadata": ("Types of metrics; help and unit are not kept.", ("metric", "limit")),
    "targets": ("Scrape targets whose `up` is stored, with their health.", ("state",)),
    "rules": ("A rule for each fault that a detector judges, with the alerts that fire.", ("type", "rule_name[]")),
    "alerts": ("An alert for each open incident.", ()),
}
PAGED = ("since", "limit", "cursor")
LISTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "inventory": ("Nodes, jobs and storage as they are now.", ()),
    "coverage": ("What is known of each node and signal now, and of each node in a word.", ("node", "limit", "cursor")),
    "findings": ("What detectors hold or held, the newest first.", PAGED),
    "incidents": ("Incidents, the newest first.", PAGED),
    "actions": ("Rows of the action ledger, the newest first.", PAGED),
    "ledger": ("The audit: one item an action, the newest first, with who, what, why, evidence, outcome and what its attempt came to;"
               " seal: one hash over the whole ledger.", (*PAGED, "incident")),
    "cures": ("What cured each fault, beside how often it goes away when nobody acts; with n and 95 % intervals.", ("fault",)),
    "diagnoses": ("How diagnoses of accused parts came out, by fault: the detectors' scores.", ("fault",)),
    "parts": ("Parts that were at fault, by what they are and not by where they stand: places, incidents, actions, diagnoses;"
              " the newest changed first.", (*PAGED, "node")),
    "losses": ("GPU-hours that open incidents and those of the last day cost each job, the worst on top.", ()),
    "jobs": ("Jobs as the last tick saw them: phase, nodes, ranks.", ()),
    "doctor": ("Which faults can be judged on this site now, what each other one lacks, and what adding that would cost.", ()),
    "drift": ("Parts that get worse over days, with days to go to a named limit; made anew each hour.", ()),
    "odd": ("Parts that the trained model finds odd among the others of their node; nothing acts on them.", ()),
    "workers": ("Collector workers with their load and leases, and the scaler's last decisions.", ()),
    "outbox": ("Messages that wait or were given up (dead letters), the newest first; pages of the week that are left to each notifier.",
               ("limit",)),
    "silences": ("Silences of an Alertmanager that Greylag knows, and whether each holds now.", ()),
    "policies": ("The policy, its mode, and whether actions are frozen.", ()),
    "windows": ("A canonical signal by part: the last window, or the stored past where start or end is given.",
                ("signal", "start", "end", "node", "device", "job")),
    "events": ("Events, the newest first; of the last day where `since` is not given.", PAGED),
    "scorecard": ("What `greylag evaluate --out <data_dir>/scorecard.json` found; null where there is none.", ()),
    "records": ("The story in order, one line of `replay --json` each, after the cursor.", ("limit", "cursor")),
}


def _prometheus(app: FastAPI, house: House) -> None:
    async def ask(what: str, params: Mapping[str, Any]) -> Response:
        answer = await asyncio.to_thread(house.prometheus, what, params)
        return json_answer(answer, 200 if answer.get("status") == "success" else int(answer.pop("code", 400)))

    def door(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await ask(name, await params_of(request))

        return handle

    for name, (words, parameters) in PROMETHEUS.items():
        for method in ("GET", "POST"):  # one route each: OpenAPI wants one name for one operation
            app.add_api_route(f"/api/v1/{name}", door(name), methods=[method], tags=["Prometheus"], description=words,
                              name=f"{name}_{method.lower()}", response_model=None, openapi_extra=described(*parameters))

    for name, (words, parameters) in ITSELF.items():
        app.add_api_route(f"/api/v1/{name}", door(name), methods=["GET"], tags=["Prometheus"], description=words, name=name,
                          response_model=None, openapi_extra=described(*parameters))

    @app.get("/api/v1/label/{label}/values", tags=["Prometheus"], openapi_extra=described("match[]", "start", "end"))
    async def values(label: str, request: Request) -> Response:
        """Values of a label."""
        return await ask("values", {**await params_of(request), "label": label})

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
                          description=words, response_model=None, openapi_extra=described(*parameters))

    @app.get("/api/greylag/v1/incidents/{incident}", tags=["Greylag"])
    async def incident(incident: str) -> Response:
        """One incident, with the rows of its actions from the oldest on."""
        try:
            return json_answer(await asyncio.to_thread(house.read, "incident", {"id": incident}))
        except KeyError:
            raise NotKnown("the incident", incident) from None

    @app.post("/api/greylag/v1/freeze", tags=["Greylag"])
    async def freeze(request: Request) -> Any:
        """No action starts until resume."""
        return await asyncio.to_thread(house.command, "freeze", {"actor": actor_of(request)})

    @app.post("/api/greylag/v1/resume", tags=["Greylag"])
    async def resume(request: Request) -> Any:
        """Actions may start again."""
        return await asyncio.to_thread(house.command, "resume", {"actor": actor_of(request)})

    def decision(word: str) -> Callable[[str, Request], Awaitable[Any]]:
        async def decide(action: str, request: Request) -> Any:
            try:
                return await asyncio.to_thread(house.command, word, {"id": action, "actor": actor_of(request)})
            except KeyError:
                raise NotKnown("a proposal of", action) from None

        return decide

    for word, words in (("approve", "A proposed action may be carried out."), ("reject", "A proposed action is not carried out.")):
        app.add_api_route(f"/api/greylag/v1/actions/{{action:path}}/{word}", decision(word), methods=["POST"], name=word,
                          tags=["Greylag"], description=words, response_model=None)
