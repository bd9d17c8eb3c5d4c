"""The doors over HTTP: a fleet in its own thread, in its own process, and before a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from collectors.fetch import HttpFetch, Request
from core.clock import wall_ms
from core.errors import BadInput, SourceError
from fleet.build import build_world
from fleet.clock import FleetClock
from fleet.control import make_app
from fleet.frames import FleetFrames
from fleet.server import FleetServer
from fleet.telemetry import Telemetry
from tests import needs

TOKEN = {"authorization": "Bearer lab"}


def _serve(**options) -> tuple[FleetServer, httpx.Client, threading.Thread]:
    ready = threading.Event()
    server = FleetServer(nodes=3, spares=1, seed=2, lab_token="lab", ready=lambda url: ready.set(), **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(10)
    return server, httpx.Client(base_url=server.url, timeout=10.0), thread


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[FleetServer, httpx.Client]]:
    """A paced fleet, an hour behind, shared by the tests of this file that do not end it."""
    server, client, thread = _serve(start_behind_seconds=3600)
    yield server, client
    client.close()
    server.stop()
    thread.join(10)
    assert not thread.is_alive()


def _now(client) -> int:
    return client.get("/control/v1/clock").json()["now_ms"]


def _commit(client, slots: int = 1) -> int:
    for _ in range(slots):
        now = client.post("/control/v1/clock/committed", json={"tick_ms": _now(client)}).json()["now_ms"]
    return now


def test_the_schedulers_log_and_books_are_served(fleet):
    """From a byte on, as the other logs; the books are whole each time. Neither is there where logs are not shown."""
    _, client = fleet
    log = client.get("/logs/scheduler/slurm").text
    assert "sched: Allocate JobId=41200 NodeList=n[01-03]" in log
    assert client.get(f"/logs/scheduler/slurm?from={len(log)}").text == ""
    assert client.get("/accounting/sacct").text.splitlines()[1].startswith("41200|greylag|RUNNING|0:0|")


def test_clock_stands_on_a_slot_until_its_tick_is_committed(fleet):
    """Paced: a multiple of 15 s, the same until the commit, then exactly one slot on."""
    _, client = fleet
    state = client.get("/control/v1/clock").json()
    assert state["paced"] is True
    assert state["now_ms"] % 15_000 == 0
    assert _now(client) == state["now_ms"]
    assert _commit(client) == state["now_ms"] + 15_000
    client.post("/control/v1/clock/committed", json={"tick_ms": state["now_ms"]})
    assert _now(client) == state["now_ms"] + 15_000


def test_long_poll_waits_for_the_slot(fleet):
    """`after` answers when the clock gets there, or at the end of `wait` with the time as it is."""
    _, client = fleet
    now = _now(client)
    began = time.monotonic()
    assert client.get("/control/v1/clock", params={"after": now + 15_000, "wait": 0.2}).json()["now_ms"] == now
    assert time.monotonic() - began >= 0.2
    got: list[int] = []
    waiter = threading.Thread(target=lambda: got.append(
        client.get("/control/v1/clock", params={"after": now + 15_000, "wait": 8}).json()["now_ms"]))
    waiter.start()
    time.sleep(0.1)
    _commit(client)
    waiter.join(5)
    assert got == [now + 15_000]


def test_page_and_frame_agree_to_the_last_digit(fleet):
    """The bytes over HTTP are the bytes of virtual time."""
    server, client = fleet
    frames = {(labels["node"], labels["job"]): page for labels, page in FleetFrames(server.world).pages_at(_now(client))}
    for row in client.get("/sd").json():
        labels = row["labels"]
        answer = client.get(labels["__metrics_path__"])
        assert answer.content == frames[(labels["node"], labels["job"])]
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_discovery_names_the_address_that_was_asked(fleet):
    """Targets are reachable where discovery was."""
    server, client = fleet
    assert {t for row in client.get("/sd").json() for t in row["targets"]} == {server.url.removeprefix("http://")}


# One port serves all exporters, so a dead one cannot refuse the connection: it closes it, which is a body cut off.
ILL = [("down", "truncated"), ("error", "http_status"), ("empty", "empty_body"), ("hung", "timeout"), ("half", None)]


@pytest.mark.parametrize(("how", "reason"), ILL)
def test_an_ill_exporter_answers_as_ill_ones_do(fleet, how, reason):
    """Connection closed, status 500, 200 without a body, no answer in time, half a body; afterwards all is well again."""
    server, client = fleet
    path = "/nodes/n02/dcgm"
    whole = client.get(path).content

    async def read() -> bytes:
        fetch = HttpFetch()
        try:
            return (await fetch.get(Request(server.url + path, 0.5, 1 << 20, allow_empty=False))).data
        finally:
            await fetch.aclose()

    server.world.knobs.exporter.answers[1, "dcgm"] = how
    server.world.revision += 1
    try:
        if reason is None:
            assert asyncio.run(read()) == whole[:len(whole) // 2]
        else:
            with pytest.raises(SourceError) as error:
                asyncio.run(read())
            assert error.value.reason == reason
        assert client.get("/nodes/n01/dcgm").status_code == 200
    finally:
        server.world.knobs.exporter.answers.clear()
        server.world.revision += 1
    assert client.get(path).content == whole


def test_a_rebooting_node_closes_the_connection(fleet):
    """Nobody listens on a node that reboots."""
    server, client = fleet
    server.world.nodes[3].state = "rebooting"
    server.world.revision += 1
    try:
        with pytest.raises(httpx.TransportError):
            client.get("/nodes/n04/node")
    finally:
        server.world.nodes[3].state = "spare"
        server.world.revision += 1
    assert client.get("/nodes/n04/node").status_code == 200


def test_a_site_without_logs_serves_none():
    """At tier A there are pages and no logs."""
    world, operations = build_world(1, 0, 1, before_seconds=60, telemetry=Telemetry("A"))
    app = make_app(world, operations, FleetClock(world.now_ms, None, world.advance), None)

    async def read(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://fleet") as client:
            return await client.get(path)

    assert asyncio.run(read("/nodes/n01/node")).status_code == 200
    assert {asyncio.run(read(path)).status_code for path in ("/logs/kernel/n01", "/logs/trainer/train-1")} == {404}
    assert [row["labels"]["job"] for row in asyncio.run(read("/sd")).json()] == ["dcgm", "node"]


@pytest.mark.parametrize("path", ["/nodes/n99/dcgm", "/nodes/n01/efa", "/logs/kernel/n99", "/logs/trainer/none"])
def test_unknown_places_are_404(fleet, path):
    """What is not there is not there."""
    assert fleet[1].get(path).status_code == 404


def test_logs_are_read_from_an_offset(fleet):
    """`from` continues where the last answer ended."""
    _, client = fleet
    whole = client.get("/logs/trainer/train-1").content
    assert len(whole) > 500
    assert client.get("/logs/trainer/train-1", params={"from": 100}).content == whole[100:]
    assert client.get("/logs/kernel/n01", params={"from": 10**9}).content == b""
    assert client.get("/logs/kernel/n01", params={"from": -1}).status_code == 400


def test_an_operation_from_202_to_done_and_409(fleet):
    """Submit, same answer for the same id, poll by an id with slashes, done in cluster time; refusals are 409."""
    _, client = fleet
    body = {"id": "inc-0123456789ab/1/1", "verb": "diagnose", "target": {"kind": "node", "node": "n04"}, "args": {},
            "deadline_seconds": 600}
    first = client.post("/control/v1/operations", json=body)
    assert (first.status_code, first.json()["state"]) == (202, "RUNNING")
    assert client.post("/control/v1/operations", json=body).json()["state"] == "RUNNING"
    _commit(client, 9)
    done = client.get("/control/v1/operations/" + quote(body["id"], safe="")).json()
    assert done == client.get("/control/v1/operations/" + body["id"]).json()
    assert (done["action_id"], done["state"], done["reason"]) == (body["id"], "DONE", "done")
    assert done["took_seconds"] == 120
    assert done["at"].endswith("Z")
    refused = client.post("/control/v1/operations", json=body | {"id": "x/1/1", "verb": "reboot", "target": {
        "kind": "gpu", "node": "n01", "device": "0", "id": None, "job": None, "rank": None, "serial": None}})
    assert (refused.status_code, refused.json()["reason"]) == (409, "not_drained")
    assert client.get("/control/v1/operations/never/1/1").status_code == 404


BAD = [b"", b"[]", b"{", b'{"id":"a"}', b'{"id":"a","verb":"drain"}', b'{"id":"a","verb":"drain","target":{"kind":"node","x":1}}',
       b'{"id":"a","verb":"drain","target":{"kind":"gpu","rank":"1"}}', b'{"id":"","verb":"drain","target":{"kind":"node"}}',
       b'{"id":"a","verb":"drain","target":{"kind":"node"},"deadline_seconds":0}']


@pytest.mark.parametrize("body", BAD)
def test_bad_operations_get_one_sentence(fleet, body):
    """A request that is none is answered with 400 and what is wrong."""
    answer = fleet[1].post("/control/v1/operations", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_the_lab_needs_its_token(fleet):
    """Without the lab's own token the truth stays hidden and nothing can be planted."""
    _, client = fleet
    for method, path in (("GET", "/lab/v1/truth"), ("POST", "/lab/v1/faults"), ("DELETE", "/lab/v1/faults"),
                         ("POST", "/lab/v1/refuse"), ("POST", "/lab/v1/hand")):
        for headers in ({}, {"authorization": "Bearer no"}):
            assert client.request(method, path, headers=headers).status_code == 403


def test_the_lab_plants_refuses_and_clears(fleet):
    """Truth names the culprit as a Target; refuse freezes the control door; a hand takes and gives a node."""
    _, client = fleet
    planted = client.post("/lab/v1/faults", json={"fault": "thermal_throttle", "seed": 3}, headers=TOKEN)
    assert planted.status_code == 201
    truth = client.get("/lab/v1/truth", headers=TOKEN).json()
    assert truth == [planted.json()]
    assert truth[0]["culprit"].keys() == {"kind", "node", "device", "id", "job", "rank", "serial"}
    assert (truth[0]["fault"], truth[0]["scope"], truth[0]["cured_at"]) == ("thermal_throttle", "device", None)
    assert client.post("/lab/v1/faults", json={"fault": "fire"}, headers=TOKEN).status_code == 400
    assert client.post("/lab/v1/faults", json={"fault": "thermal_throttle", "phase": "eval"}, headers=TOKEN).status_code == 409
    assert client.request("DELETE", "/lab/v1/faults", headers=TOKEN).json() == {"cleared": 1}
    client.post("/lab/v1/refuse", json={"refuse": True}, headers=TOKEN)
    answer = client.post("/control/v1/operations", json={"id": "r/1/1", "verb": "notify", "target": {"kind": "node"}})
    assert (answer.status_code, answer.json()["reason"]) == (409, "frozen")
    client.post("/lab/v1/refuse", json={"refuse": False}, headers=TOKEN)
    client.post("/lab/v1/hand", json={"node": "n04", "by": "person"}, headers=TOKEN)
    held = {row["node"]: row["held_by"] for row in client.get("/control/v1/nodes").json()}
    assert held["n04"] == "person"
    client.post("/lab/v1/hand", json={"node": "n04", "by": None}, headers=TOKEN)


def test_the_clock_never_runs_ahead_of_the_wall():
    """Having met the wall clock it stands until the wall gets there, whatever is committed."""
    server, client, thread = _serve(start_behind_seconds=20)
    for _ in range(5):
        _commit(client)
    state = client.get("/control/v1/clock").json()
    assert state["now_ms"] <= wall_ms()
    assert state["speed"] == 1.0
    client.close()
    server.stop()
    thread.join(10)


def test_at_speed_one_time_is_the_wall_clocks():
    """Real time: no commit is needed and nothing is paced."""
    server, client, thread = _serve(speed=1.0)
    state = client.get("/control/v1/clock").json()
    assert (state["paced"], state["speed"]) == (False, 1.0)
    assert abs(state["now_ms"] - wall_ms()) < 2_000
    later = client.get("/control/v1/clock", params={"after": state["now_ms"] + 300, "wait": 5}).json()["now_ms"]
    assert state["now_ms"] + 300 <= later < state["now_ms"] + 3_000
    client.close()
    server.stop()
    thread.join(10)


@pytest.mark.parametrize(("options", "key"), [({"host": "0.0.0.0"}, "host"), ({"speed": 0.0}, "speed"), ({"nodes": 0}, "nodes")])
def test_a_server_that_cannot_be_is_refused(options, key):
    """One sentence, naming the option."""
    with pytest.raises(BadInput, match=key):
        FleetServer(**({"nodes": 1} | options))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_where_it_is_and_ends_cleanly(spawn, how):
    """One JSON line when ready; status 0 on SIGTERM and SIGINT, also with a long poll open."""
    process = spawn(sys.executable, "-m", "fleet.server", "--port", "0", "--nodes", "2", "--spares", "0",
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=needs.ROOT)
    line = json.loads(process.stdout.readline())
    assert line["type"] == "fleet"
    now = httpx.get(f"{line['url']}/control/v1/clock").json()["now_ms"]
    waiter = threading.Thread(target=lambda: httpx.get(
        f"{line['url']}/control/v1/clock", params={"after": now + 15_000, "wait": 10}, timeout=20))
    waiter.start()
    time.sleep(0.2)
    process.send_signal(how)
    assert process.wait(8) == 0
    assert process.stderr.read() == b""
    waiter.join(5)


def test_a_taken_port_is_one_sentence(spawn):
    """Bad input ends with status 2 and no traceback."""
    server, client, thread = _serve(start_behind_seconds=60)
    port = server.url.rsplit(":", 1)[1]
    process = spawn(sys.executable, "-m", "fleet.server", "--port", port, "--nodes", "1", "--spares", "0",
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=needs.ROOT)
    assert process.wait(60) == 2
    assert process.stderr.read().decode().count("\n") == 1
    client.close()
    server.stop()
    thread.join(10)


def test_a_real_prometheus_scrapes_the_fleet(spawn, free_port, tmp_path):
    """Debian's Prometheus finds all targets through `/sd` at speed 1 and calls every one up."""
    binary = needs.program("prometheus")
    server, client, thread = _serve(speed=1.0)
    config = tmp_path / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: fleet\n"
                      f"  honor_labels: true\n  http_sd_configs: [{{url: '{server.url}/sd', refresh_interval: 1s}}]\n")
    port = free_port()
    spawn(binary, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}")
    targets: list[dict] = []
    deadline = time.monotonic() + 25
    while time.monotonic() < deadline:
        try:
            targets = httpx.get(f"http://127.0.0.1:{port}/api/v1/targets").json()["data"]["activeTargets"]
        except (httpx.HTTPError, ValueError):  # it is starting
            targets = []
        if len(targets) == 12 and all(t["health"] == "up" for t in targets):
            break
        time.sleep(0.2)
    assert {t["health"] for t in targets} == {"up"}
    assert len(targets) == 12
    assert {t["labels"]["job"] for t in targets} == {"dcgm", "node", "trainer"}
    answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": "count(DCGM_FI_DEV_GPU_TEMP)"}).json()
    assert answer["data"]["result"][0]["value"][1] == "32"
    client.close()
    server.stop()
    thread.join(10)
