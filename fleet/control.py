"""The fleet's doors as an ASGI application: discovery, pages, logs, control, and the lab's own behind its token."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from core.errors import BadInput, Refused
from core.render import plain
from core.types import Target
from fleet import state
from fleet.answers import respond
from fleet.clock import FleetClock
from fleet.operations import Operations
from fleet.pages import Pages, discovery
from fleet.programme import Programme
from fleet.world import World

_TARGET = ("kind", "node", "device", "id", "job", "rank", "serial")


def make_app(world: World, operations: Operations, clock: FleetClock, lab_token: str | None,
             programme: Programme | None = None) -> FastAPI:
    """The application. Every handler runs on the event loop, so none of them sees the world half moved on."""
    app = FastAPI(title="Greylag fleet", openapi_url=None, docs_url=None, redoc_url=None)

    @app.exception_handler(BadInput)
    async def bad_input(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"reason": getattr(error, "reason", ""), "error": str(error)}, 409)

    _add_exporters(app, world, clock)
    _add_control(app, world, operations, clock)
    _add_lab(app, world, clock, lab_token, programme)
    _add_hands(app, world, operations, lab_token)
    return app


def _add_exporters(app: FastAPI, world: World, clock: FleetClock) -> None:
    """Plain routes, without FastAPI's handling of parameters: they are most of all requests."""
    pages = Pages(world)

    async def service_discovery(request: Request) -> Response:
        return JSONResponse(discovery(world, request.headers.get("host") or request.url.netloc))

    async def exporter_page(request: Request) -> Response:
        name, exporter = request.path_params["name"], request.path_params["exporter"]
        node = pages.find(name, exporter)
        if node is None:
            return _nothing(f"no exporter {exporter!r} on a node {name!r}")
        clock.now_ms()
        return respond(pages.answer(node, exporter))

    async def kernel_log(request: Request) -> Response:
        name = request.path_params["name"]
        node = world.find(name)
        if node is None or not world.telemetry.logs:
            return _nothing(f"no log of a node {name!r}")
        clock.now_ms()
        return _log(world.kernel.of(node.index).read(_start(request)))

    async def trainer_log(request: Request) -> Response:
        name = request.path_params["name"]
        job = world.jobs.get(name)
        if job is None or not world.telemetry.logs:
            return _nothing(f"no log of a job {name!r}")
        clock.now_ms()
        return _log(job.log.read(_start(request)))

    app.add_route("/nodes/{name}/{exporter}", exporter_page)
    app.add_route("/logs/kernel/{name}", kernel_log)
    async def scheduler_log(request: Request) -> Response:
        if not world.telemetry.logs:
            return _nothing("no log of a scheduler")
        clock.now_ms()
        return _log(world.watch_scheduler().log.read(_start(request)))

    async def accounting(request: Request) -> Response:
        if not world.telemetry.logs:
            return _nothing("no books of a scheduler")
        clock.now_ms()
        return _log(world.watch_scheduler().accounting())

    app.add_route("/logs/trainer/{name}", trainer_log)
    app.add_route("/logs/scheduler/slurm", scheduler_log)
    app.add_route("/accounting/sacct", accounting)
    app.add_route("/sd", service_discovery)


def _add_control(app: FastAPI, world: World, operations: Operations, clock: FleetClock) -> None:
    @app.get("/control/v1/clock")
    async def read_clock(request: Request) -> JSONResponse:
        after = _number(request, "after")
        if after is not None:
            wait = _number(request, "wait")
            await clock.wait(int(after), 10.0 if wait is None else wait)
        return JSONResponse(clock.state())

    @app.post("/control/v1/clock/committed")
    async def committed(request: Request) -> JSONResponse:
        body = await _body(request)
        tick = body.get("tick_ms")
        if not isinstance(tick, int) or isinstance(tick, bool):
            raise BadInput("committed", "tick_ms", tick, "whole milliseconds are needed")
        await clock.committed(tick)
        return JSONResponse(clock.state())

    @app.get("/control/v1/inventory")
    async def inventory() -> JSONResponse:
        return JSONResponse(state.inventory(world))

    @app.get("/control/v1/nodes")
    async def nodes() -> JSONResponse:
        return JSONResponse([plain(view) for view in state.node_views(world).values()])

    @app.get("/control/v1/jobs")
    async def jobs() -> JSONResponse:
        clock.now_ms()
        return JSONResponse(state.jobs(world))

    @app.get("/control/v1/checks")
    async def checks() -> JSONResponse:
        clock.now_ms()
        return JSONResponse(state.node_reports(world, operations.life))

    @app.post("/control/v1/operations")
    async def submit(request: Request) -> JSONResponse:
        body = await _body(request)
        clock.now_ms()
        op_id, verb, args, deadline = _operation(body)
        outcome = operations.submit(op_id, verb, target_from(body.get("target")), args, deadline)
        return JSONResponse(plain(outcome), 409 if outcome.state == "REFUSED" else 202)

    @app.get("/control/v1/operations/{op_id:path}")
    async def poll(op_id: str) -> JSONResponse:
        clock.now_ms()
        outcome = operations.poll(op_id)
        return JSONResponse(plain(outcome), 404 if outcome.reason == "unknown_operation" else 200)


def _guard(token: str | None) -> Callable[[Request], JSONResponse | None]:
    """Gives the answer to who comes without the lab's token, None to who has it."""
    def forbidden(request: Request) -> JSONResponse | None:
        given = request.headers.get("authorization", "")
        if token and hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return None
        return JSONResponse({"error": "the lab's token is needed"}, 403)

    return forbidden


def _add_lab(app: FastAPI, world: World, clock: FleetClock, token: str | None, programme: Programme | None) -> None:
    """Faults, truth and goodput."""
    forbidden = _guard(token)

    @app.post("/lab/v1/faults")
    async def inject(request: Request) -> JSONResponse:
        if (no := forbidden(request)) is not None:
            return no
        body = await _body(request)
        clock.now_ms()
        if body.get("phase") and all(job.phase != body["phase"] for job in world.jobs.values()):
            raise Refused("other_phase", f"no job is in the phase {body['phase']}")
        target = body.get("target")
        planted = world.inject(str(body.get("fault")), None if target is None else target_from(target),
                               _size(body.get("severity"), "severity"), _seed(body.get("seed")), _text(body, "onset"),
                               _size(body.get("for_seconds"), "for_seconds"))
        return JSONResponse(state.truth_row(world, planted), 201)

    @app.delete("/lab/v1/faults")
    async def clear(request: Request) -> JSONResponse:
        if (no := forbidden(request)) is not None:
            return no
        return JSONResponse({"cleared": world.clear(request.query_params.get("fault"))})

    @app.get("/lab/v1/truth")
    async def truth(request: Request) -> JSONResponse:
        """What was planted so far; with `planned=1` the lines of the scenario that are still to come, instead."""
        if (no := forbidden(request)) is not None:
            return no
        clock.now_ms()
        if request.query_params.get("planned"):
            return JSONResponse([] if programme is None else programme.truth())
        return JSONResponse(state.truth(world))

    @app.get("/lab/v1/goodput")
    async def account(request: Request) -> JSONResponse:
        """GPU-seconds by cause since the fleet began, of the fleet and of each job."""
        if (no := forbidden(request)) is not None:
            return no
        clock.now_ms()
        return JSONResponse(state.goodput(world))


def _add_hands(app: FastAPI, world: World, operations: Operations, token: str | None) -> None:
    """What the lab does beside faults: it freezes the control door, and takes nodes as another hand."""
    forbidden = _guard(token)

    @app.post("/lab/v1/refuse")
    async def refuse(request: Request) -> JSONResponse:
        if (no := forbidden(request)) is not None:
            return no
        operations.refuse = bool((await _body(request)).get("refuse", True))
        return JSONResponse({"refuse": operations.refuse})

    @app.post("/lab/v1/hand")
    async def hand(request: Request) -> JSONResponse:
        """Another hand takes a node out (`by`: its name) or gives it back (`by`: null)."""
        if (no := forbidden(request)) is not None:
            return no
        body = await _body(request)
        world.other_hand(str(body.get("node")), body.get("by"))
        return JSONResponse({"node": body.get("node"), "held_by": body.get("by")})


def _size(value: Any, key: str) -> float | None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9):
        raise BadInput("fault", key, value, "a number of at least 0 is needed")
    return None if value is None else float(value)


def _seed(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62):
        raise BadInput("fault", "seed", value, "a whole number of at least 0 is needed")
    return value


def _text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise BadInput("fault", key, value, "a text is needed")
    return value


def _nothing(what: str) -> Response:
    return JSONResponse({"error": what}, 404)


def _log(body: bytes) -> Response:
    return Response(body, media_type="text/plain; charset=utf-8")


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise BadInput(request.url.path, name, text, "a number of at least 0 is needed")
    return value


def _start(request: Request) -> int:
    return int(_number(request, "from") or 0)


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        body = None
    if not isinstance(body, Mapping):
        raise BadInput(request.url.path, "body", "something else", "a JSON object is needed")
    return body


def _operation(body: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any], float]:
    op_id, verb, args, deadline = body.get("id"), body.get("verb"), body.get("args"), body.get("deadline_seconds", 3600)
    if not isinstance(op_id, str) or not op_id:
        raise BadInput("operation", "id", op_id, "a text is needed")
    if not isinstance(verb, str):
        raise BadInput("operation", "verb", verb, "a text is needed")
    if args is not None and not isinstance(args, Mapping):
        raise BadInput("operation", "args", args, "an object is needed")
    if not isinstance(deadline, (int, float)) or isinstance(deadline, bool) or deadline <= 0:
        raise BadInput("operation", "deadline_seconds", deadline, "a number above 0 is needed")
    return op_id, verb, args or {}, float(deadline)


def target_from(data: Any) -> Target:
    """A Target from JSON. Raises BadInput for anything that is none."""
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise BadInput("target", "kind", data, "an object with a kind is needed")
    for key, value in data.items():
        if key not in _TARGET:
            raise BadInput("target", str(key), value, f"allowed are: {', '.join(_TARGET)}")
        wanted: type = int if key == "rank" else str
        if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
            raise BadInput("target", str(key), value, "a whole number is needed" if key == "rank" else "a text is needed")
    return Target(**{key: data.get(key) for key in _TARGET})  # type: ignore[arg-type]
