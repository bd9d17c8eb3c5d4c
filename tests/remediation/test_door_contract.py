"""One contract for every control door: the fake world, the fleet's HTTP API, and the backend that only watches."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from core.errors import ConfigError, Unavailable
from core.plugins import load_plugins
from core.protocols import BackendPlugin, NodeView
from core.targets import ACTION_KINDS
from core.types import Action, Target
from remediation.backends.fleet import FleetDoor, FleetParams, FleetView
from remediation.backends.fleet import build as build_fleet
from remediation.backends.observe import ObserveDoor, ObserveParams, ObserveView
from tests.remediation import door_promises as promises
from tests.remediation.worlds import T0, Fault, Owner, World, cluster, incident, policy


def action(name: str = "inc-1/1/1", kind: str = "drain") -> Action:
    return Action(name, kind, Target("node", "n1"), {"wait_for": "checkpoint"}, 600.0, "act", "inc-1", 1, 1, T0, "policy")


def control_api(world: World) -> httpx.MockTransport:
    """The control API of the fleet over a fake world, as its documentation has it."""

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        if world.down:
            raise httpx.ConnectError("refused")
        if path == "/control/v1/nodes":
            return httpx.Response(200, json=[{"node": v.node, "state": v.state, "held_by": v.held_by, "jobs": list(v.jobs)}
                                             for v in world.nodes().values()])
        if request.method == "POST":
            body = json.loads(request.content)
            told = world.submit(Action(body["id"], body["verb"], Target(**body["target"]), body["args"],
                                       body["deadline_seconds"], "act", "", 0, 0, world.now, ""))
            if told.state == "REFUSED":
                return httpx.Response(409, json={"reason": told.reason, "detail": "why"})
        else:
            name = path.removeprefix("/control/v1/operations/")
            assert "/" not in name, "an id is one piece of the path"
            told = world.poll(unquote(name))
            if told.reason == "unknown_operation":
                return httpx.Response(404, json={"reason": told.reason})
        return httpx.Response(202, json={"action_id": told.action_id, "state": told.state, "reason": told.reason,
                                         "took_seconds": told.took_seconds, "at": "2027-01-15T08:00:00.000Z"})

    return httpx.MockTransport(answer)


def over_http(world: World) -> tuple[FleetDoor, FleetView]:
    client = httpx.Client(base_url="http://fleet", transport=control_api(world))
    return FleetDoor(client), FleetView(client)


def over_kubernetes(world: World) -> tuple[Any, Any]:
    pytest.importorskip("lightkube", reason="the Kubernetes client lightkube (extra k8s) is not installed")
    from tests.kubernetes.mirror import KubernetesMirror

    door = KubernetesMirror(world)
    return door, door


SECRETS = tempfile.TemporaryDirectory()  # goes with the process


def over_webhook(world: World) -> tuple[Any, Any]:
    from tests.remediation.test_webhook import over

    return over(world, Path(SECRETS.name))


def called_back(world: World) -> tuple[Any, Any]:
    """A receiver that answers 202 to all and calls back; outcomes cannot be asked for."""
    from tests.remediation.test_webhook import CalledBack, over

    door, view = over(world, Path(SECRETS.name), poll=False)
    return CalledBack(door, world), view


DOORS = {"world": lambda world: (world, world), "http": over_http, "kubernetes": over_kubernetes,
         "webhook": over_webhook, "webhook called back": called_back}


@pytest.fixture(params=DOORS)
def doors(request):
    """A world, and the door and view that lead to it."""
    world = cluster()
    return (world, *DOORS[request.param](world))


def test_an_unknown_operation_is_named(doors):
    """poll of an id that was never submitted: REFUSED unknown_operation."""
    _, door, _ = doors
    promises.names_the_unknown(door)


def test_a_command_runs_and_ends(doors):
    """RUNNING until it is done, then DONE with the time it took."""
    world, door, _ = doors
    world.lasts["drain"] = 30
    assert door.submit(action()).state == "RUNNING"
    assert door.poll("inc-1/1/1").state == "RUNNING"
    world.now += 30_000
    told = door.poll("inc-1/1/1")
    assert (told.action_id, told.state, told.reason, told.took_seconds) == ("inc-1/1/1", "DONE", "done", 30.0)


def test_the_same_id_gives_the_same_answer(doors):
    """Submitted twice, carried out once."""
    world, door, _ = doors
    promises.answers_alike(door, action(), lambda: world.executed["inc-1/1/1"])


@pytest.mark.parametrize("reason", ["target_busy", "other_hand", "not_supported"])
def test_a_refusal_carries_its_reason(doors, reason):
    """The door's own named reason reaches the engine."""
    world, door, _ = doors
    world.refuse["drain"] = reason
    promises.refuses(door, action(), reason)


def test_a_failure_carries_its_reason(doors):
    """FAILED with the reason that the world gave."""
    world, door, _ = doors
    world.fail["diagnose"] = "diagnose_failed"
    told = door.submit(action(kind="diagnose"))
    told = door.poll("inc-1/1/1") if told.state == "RUNNING" else told
    assert (told.state, told.reason) == ("FAILED", "diagnose_failed")


def test_a_world_that_does_not_answer_is_unavailable(doors):
    """submit, poll and nodes raise Unavailable."""
    world, door, view = doors
    world.down = True
    promises.says_when_nothing_is_known(door, view, action())


def test_the_view_shows_each_node(doors):
    """State, who holds it and which jobs run there."""
    world, _, view = doors
    world.states["n2"] = NodeView("n2", "drained", "ada", ())
    assert view.nodes() == world.states


def test_a_repair_over_the_door(doors):
    """A whole repair through door and view."""
    world, door, view = doors
    owner = Owner(policy(), world)
    owner.engine.view = view
    owner.carry = lambda: owner.carried.extend(owner.engine.carry_out(owner.at, door))
    owner.open(incident())
    Fault(owner, ("reset_gpu",)).until("resolved")
    assert owner.did() == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]


def fleet(handler) -> tuple[FleetDoor, FleetView]:
    client = httpx.Client(base_url="http://fleet", transport=httpx.MockTransport(handler))
    return FleetDoor(client), FleetView(client)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_server_in_trouble_is_worth_another_try(status):
    """5xx and the temporary 4xx are Unavailable."""
    door, view = fleet(lambda r: httpx.Response(status))
    for ask in (lambda: door.submit(action()), lambda: door.poll("x"), view.nodes):
        with pytest.raises(Unavailable):
            ask()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b'{"state":"GREAT"}', b'{"state":"DONE","at":"noon"}'])
def test_nonsense_for_an_outcome_is_unavailable(body):
    """An answer that cannot be read says nothing about the command."""
    door, _ = fleet(lambda r: httpx.Response(200, content=body))
    with pytest.raises(Unavailable):
        door.poll("x")


@pytest.mark.parametrize("body", [b"", b"3", b'[{"state":"spare"}]', b'["n1"]'])
def test_nonsense_for_the_nodes_is_unavailable(body):
    """A list that cannot be read is no list of no nodes."""
    _, view = fleet(lambda r: httpx.Response(200, content=body))
    with pytest.raises(Unavailable):
        view.nodes()


def test_a_bad_request_is_final():
    """400: the fleet will not like it better next time."""
    door, _ = fleet(lambda r: httpx.Response(400))
    assert (door.submit(action()).state, door.submit(action()).reason) == ("REFUSED", "backend_refused")


def test_an_accepted_command_without_a_body_word_runs():
    """202 with another object than an Outcome."""
    door, _ = fleet(lambda r: httpx.Response(202, json={}))
    assert door.submit(action()).state == "RUNNING"


@pytest.mark.parametrize("at", ["2027-01-15T08:00:00.000Z", 1_800_000_000_000])
def test_times_come_as_text_or_milliseconds(at):
    """Both forms of a time are read."""
    door, _ = fleet(lambda r: httpx.Response(200, json={"state": "DONE", "reason": "done", "took_seconds": None, "at": at}))
    assert door.poll("x").at == 1_800_000_000_000


def test_what_is_sent_is_what_the_design_names():
    """id, verb, target, args, deadline_seconds; nothing else."""
    seen = []
    door, _ = fleet(lambda r: seen.append(json.loads(r.content)) or httpx.Response(202, json={}))
    door.submit(action())
    assert seen == [{"id": "inc-1/1/1", "verb": "drain", "args": {"wait_for": "checkpoint"}, "deadline_seconds": 600.0,
                     "target": {"kind": "node", "node": "n1", "device": None, "id": None, "job": None, "rank": None,
                                "serial": None}}]


@pytest.mark.parametrize("url", ["", "fleet:9480", "ftp://x"])
def test_an_address_that_is_none_is_refused(url):
    """The backend section names its key."""
    with pytest.raises(ConfigError):
        build_fleet(FleetParams(url))


def test_observe_is_never_done():
    """SIMULATED for everything, and no node to act on."""
    door = ObserveDoor()
    assert door.submit(action()).state == door.poll("inc-1/1/1").state == "SIMULATED"
    assert door.poll("inc-2/1/1").reason == "unknown_operation"
    assert ObserveView().nodes() == {}


def test_the_backends_are_found():
    """Each backend file is a plug-in whose kinds are of the closed list."""
    plugins: dict[str, BackendPlugin] = load_plugins("remediation.backends")
    assert set(plugins) >= {"fleet", "observe"}
    for plugin in plugins.values():
        assert set(plugin.kinds) <= set(ACTION_KINDS)
    assert plugins["observe"].build(ObserveParams())[1].nodes() == {}
    door, view = plugins["fleet"].build(FleetParams("http://127.0.0.1:9"))
    assert isinstance(door, FleetDoor)
    assert isinstance(view, FleetView)
