"""kill -9 of every process of a running Greylag while a fleet breaks and is being healed.

What must hold whatever is killed when: a sample that was acknowledged is in the store once, no slot is missing, no action
is carried out twice, the incident ends resolved, and its messages reach the webhook.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from app.processes import free_port
from core.clock import TICK_MS
from fleet.server import FleetServer
from tests import needs
from tests.live.site import Greylag, named, wait_for

POLICY = needs.ROOT / "sample_data" / "policies" / "demo.yaml"
FAULT = "thermal_throttle"
ROLES = ("owner", "collector", "supervisor")


class Receiver(ThreadingHTTPServer):
    """Takes Alertmanager's webhook messages; every third request is answered with an error."""

    daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        server: Receiver

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.server.asked += 1
            failed = self.server.asked % 3 == 0
            if not failed:
                self.server.taken.append(body)
            self.send_response(503 if failed else 200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.asked, self.taken = 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class World:
    """A fleet in this process (so that its ledger can be looked at) and a Greylag in processes of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        ready = threading.Event()
        # The test stands for the lab: it plants by the world's own call, on the server's thread.
        self.fleet = FleetServer(nodes=3, spares=1, seed=seed, lab_token="lab", ready=lambda url: ready.set())
        self._thread = threading.Thread(target=self.fleet.run, daemon=True)
        self._thread.start()
        assert ready.wait(20)
        self.receiver = Receiver()
        url = self.fleet.url
        self.greylag = Greylag(folder, free_port(), clock=url, inventory={"fleet": url}, policy=str(POLICY),
            backend={"name": "fleet", "url": url}, scrape_configs=[
                {"job_name": "fleet", "scrape_interval": "15s", "honor_labels": True,
                 "http_sd_configs": [{"url": f"{url}/sd", "refresh_interval": "15s"}]}],
            logs=[{"kind": "kernel", "url": f"{url}/logs/kernel/{{node}}"},
                  {"kind": "trainer", "url": f"{url}/logs/trainer/{{job}}"}],
            notify=[{"name": "alertmanager_webhook", "url": f"http://127.0.0.1:{self.receiver.server_address[1]}/hook"}])

    @property
    def now(self) -> int:
        return self.fleet.world.now_ms

    def after(self, slots: int) -> None:
        """Waits for this many slots of cluster time."""
        until = self.now + slots * TICK_MS
        wait_for(lambda: self.now >= until, 90, f"{slots} slots of cluster time (log: {self.greylag.folder})")

    def plant(self, seed: int) -> Any:
        """A fault while the job trains; gives it."""
        return wait_for(lambda: self._inject(seed), 60, "a fault that can be planted")

    def _inject(self, seed: int) -> Any:
        answer = self.greylag.http.post(f"{self.fleet.url}/lab/v1/faults", headers={"authorization": "Bearer lab"},
                                        json={"fault": FAULT, "seed": seed, "phase": "train"})
        return answer.json() if answer.status_code == 201 else None

    def state(self) -> str:
        """The state of the newest incident, or an empty text."""
        rows = self.greylag.items("incidents")
        return rows[0]["state"] if rows else ""

    def reaches(self, *states: str) -> None:
        wait_for(lambda: self.state() in states, 120, f"an incident that is {' or '.join(states)} (log: {self.greylag.folder})")

    def kill(self, role: str) -> None:
        """kill -9; the supervisor is started again as a person would, its children end by themselves."""
        if role != "supervisor":
            self.greylag.kill(role)
            return
        assert self.greylag.process is not None
        self.greylag.process.kill()
        self.greylag.process.wait(5)
        self.greylag.start()

    def close(self) -> None:
        self.greylag.close()
        self.fleet.stop()
        self._thread.join(10)
        self.receiver.shutdown()
        self.receiver.server_close()


@pytest.fixture
def world_of(tmp_path: Path) -> Iterator[Any]:
    """A function that builds a World; it ends with the test."""
    made: list[World] = []

    def build(seed: int) -> World:
        made.append(World(tmp_path, seed))
        return made[-1]

    yield build
    for one in made:
        one.close()


def live_through(world: World, rng: random.Random, kills: int) -> dict[str, Any]:
    """Starts, kills before the fault, plants, kills while it is found and healed; gives the truth. Ends Greylag."""
    # Every role once, the rest drawn; some before the fault, one in each stage of the repair.
    roles = [*ROLES, *rng.choices(ROLES[:2], k=max(0, kills - 3))]
    rng.shuffle(roles)
    stages = ["acting", "acting", "verifying"]
    world.greylag.start()
    world.after(3)
    for role in roles[len(stages):]:
        world.kill(role)
        world.after(rng.randrange(1, 4))
    world.after(12)  # a past to compare with: windows begin anew with the owner
    truth = world.plant(rng.randrange(1 << 31))
    for role, stage in zip(roles, stages, strict=False):
        world.reaches(stage, "resolved")
        world.after(rng.randrange(0, 3))
        world.kill(role)
        world.after(1)
    world.reaches("resolved", "escalated")
    world.after(2)
    assert world.greylag.stop() == 0
    return truth


def right(truth: dict[str, Any]) -> dict[str, Any]:
    """What `seen` must tell after the kills."""
    return {
        "incidents": [(FAULT, "resolved", truth["culprit"]["id"])], "told": {"opened": 1, "resolved": 1, "reopened": 0},
        "open findings": [], "actions that the fleet does not know, or does alone": set(), "times done": {1},
        "operations": {"drain": 1, "replace": 1, "resume_job": 1}, "their states": {"DONE"}, "messages waiting": [],
        "grid": [], "events that are there twice": [], "messages missing": set()}


def seen(world: World) -> dict[str, Any]:
    """What the store, the fleet and the receiver of messages hold after it all."""
    operations = world.fleet.operations._all
    with world.greylag.store() as store:
        incidents = [i for i in store.incidents() if i["state"] != "merged"]
        told = [json.loads(line) for _, line in store.records(0, 100_000)]
        events = Counter(r["event"] for r in told if r["type"] == "incident")
        outcomes: dict[str, list[str]] = {}
        for action, outcome in store.ledger():
            outcomes.setdefault(action.id, []).append(outcome.state)
        repeats = Counter((e.at, e.kind, e.target.key, e.line) for e in store.events(0, 2**62, limit=100_000))
        return {
            "incidents": [(i["fault"], i["state"], i["culprit"]["id"]) for i in incidents],
            "told": {name: events[name] for name in ("opened", "resolved", "reopened")},
            "open findings": store.findings(open_only=True),
            "actions that the fleet does not know, or does alone": set(outcomes) ^ set(operations),
            "times done": {states.count("DONE") for states in outcomes.values()},
            "operations": dict(Counter(op.verb for op in operations.values())),
            "their states": {op.outcome.state for op in operations.values()},
            "messages waiting": store.outbox_pending(),
            "grid": list(grid_problems(store, {i["culprit"]["node"] for i in incidents})),
            "events that are there twice": [key for key, n in repeats.items() if n > 1],
            "messages missing": {"firing", "resolved"} - {body["status"] for body in world.receiver.taken}}


def grid_problems(store: Any, taken_out: set[str]) -> Iterator[str]:
    """Every slot from the first to the last must have one scrape of each node that was never taken out; nothing doubled."""
    last = store.last_tick() or 0
    steady = [node for node in ("n01", "n02", "n03") if node not in taken_out]
    if len(steady) != 2:
        yield f"{steady} were not taken out"
    for node in ("n01", "n02", "n03"):
        ups = store.select(named("up", node=node, job="node"), 0, 2**62)
        if len(ups) != 1 or not ascending(ups[0].at):
            yield f"up of {node} is there {len(ups)} times, or a slot twice"
        elif node in steady:
            at = list(ups[0].at)
            if at != list(range(at[0], at[-1] + 1, TICK_MS)) or at[-1] < last or set(ups[0].values) != {1.0}:
                yield f"{node} misses slots: {sorted(set(range(at[0], last + 1, TICK_MS)) - set(at))}"
    yield from ("a step is there twice" for one in store.select(named("greylag_train_step"), 0, 2**62) if not ascending(one.at))
    (ticks,) = store.select(named("greylag_tick_timestamp_seconds"), 0, 2**62)
    yield from (f"tick {at} says that it is {value}" for at, value in zip(ticks.at, ticks.values, strict=True)
                if value is not None and round(value * 1000) != at)


def ascending(at: Sequence[int]) -> bool:
    """Each time is later than the one before it."""
    return all(b > a for a, b in pairwise(at))


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_done_twice(seed, world_of):
    """Owner, collector and supervisor are each killed once, at seeded moments."""
    rng = random.Random(seed)
    world = world_of(seed)
    truth = live_through(world, rng, kills=3)
    assert seen(world) == right(truth)


def test_an_owner_that_comes_back_unnoticed_knows_the_layouts(world_of):
    """The collector sleeps through the owner's restart and sends no layout again: the window is filled all the same."""
    world = world_of(3)
    greylag = world.greylag
    greylag.start()
    world.after(3)
    collector = greylag.child("collector")
    os.kill(collector, signal.SIGSTOP)
    old = greylag.child("owner")
    greylag.kill("owner")
    wait_for(lambda: greylag.child("owner") != old and greylag.healthy(), 60, "the new owner")
    os.kill(collector, signal.SIGCONT)
    world.after(3)
    window = greylag.http.get("/api/greylag/v1/windows", params={"signal": "gpu.temperature_celsius", "node": "n01"}).json()
    assert len(window["series"]) == 8
    assert all(row["values"][-1] is not None for row in window["series"])


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(101, 113))
def test_many_kills(seed, world_of):
    """The same with six kills a round."""
    rng = random.Random(seed)
    world = world_of(seed)
    truth = live_through(world, rng, kills=6)
    assert seen(world) == right(truth)
