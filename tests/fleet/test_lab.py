"""The lab plants fault after fault, each while the job trains, and waits until the owner has resolved the last."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import httpx
import pytest

from core.errors import GreylagError
from fleet.lab import Lab, LabPlan, main
from fleet.server import FleetServer


class _Owner(BaseHTTPRequestHandler):
    """An owner that knows of one incident for each planted fault; `heals` says whether it gets resolved."""

    server: _Site

    def do_GET(self) -> None:
        body = json.dumps({"items": [{"state": s} for s in self.server.states], "next": None}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


class _Site(ThreadingHTTPServer):
    daemon_threads = True
    states: list[str]


@pytest.fixture
def site():
    """A fleet whose clock is driven as fast as it goes, and an owner that restarts the job 5 slots after a fault."""
    ready, over = threading.Event(), threading.Event()
    fleet = FleetServer(nodes=2, spares=2, seed=1, lab_token="lab", ready=lambda url: ready.set())
    server = threading.Thread(target=fleet.run, daemon=True)
    server.start()
    assert ready.wait(10)
    owner = _Site(("127.0.0.1", 0), _Owner)
    owner.states, owner.heals = [], True
    threading.Thread(target=owner.serve_forever, daemon=True).start()

    def drive() -> None:
        opened: list[int] = []
        with httpx.Client(base_url=fleet.url, headers={"authorization": "Bearer lab"}) as client:
            while not over.wait(0.002):
                now = client.get("/control/v1/clock").json()["now_ms"]
                truth = client.get("/lab/v1/truth").json()
                if len(truth) > len(opened):
                    opened.append(now)
                    owner.states.append("open")
                if opened and owner.states[-1] == "open" and now - opened[-1] > 75_000 and owner.heals:
                    node = truth[-1]["culprit"]["node"]
                    for step, (verb, kind) in enumerate((("replace", "node"), ("resume_job", "job"))):
                        if truth[-1]["fault"] == "stalled_loss" and verb == "replace":
                            continue
                        op = f"i{len(opened)}/1/{step}"
                        if client.get(f"/control/v1/operations/{op}").status_code == 404:
                            client.post("/control/v1/operations", json={
                                "id": op, "verb": verb, "target": {"kind": kind, "node": node, "job": "train-1"}})
                        if client.get(f"/control/v1/operations/{op}").json()["state"] == "RUNNING":
                            break
                    else:
                        owner.states[-1] = "resolved"
                client.post("/control/v1/clock/committed", json={"tick_ms": now})

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    yield fleet, owner, f"http://127.0.0.1:{owner.server_address[1]}"
    over.set()
    driver.join(5)
    owner.shutdown()
    owner.server_close()
    fleet.stop()
    server.join(10)


def test_all_faults_are_planted_in_turn_and_healed(site):
    """Three truths, in the seed's order, each only after the one before is resolved."""
    fleet, owner, url = site
    told: list[dict] = []
    plan = LabPlan(("thermal_throttle", "packet_loss", "stalled_loss"), seed=4, settle_seconds=60.0)
    Lab(fleet.url, url, "lab", told.append).run(plan)
    assert sorted(t["truth"]["fault"] for t in told) == sorted(plan.faults)
    assert all(t["type"] == "truth" and t["truth"].keys() == {"fault", "scope", "culprit"} for t in told)
    assert owner.states == ["resolved"] * 3
    assert all(f.cured_at is not None for f in fleet.world.faults)
    ats = [f.at for f in fleet.world.faults]
    assert all(b >= a + 75_000 for a, b in pairwise(ats))


def test_a_fault_that_is_not_healed_fails_the_lab(site):
    """Without an owner that heals, the lab ends by cluster time and says what was not healed."""
    fleet, owner, url = site
    owner.heals = False
    with pytest.raises(GreylagError, match="packet_loss: it was not healed"):
        Lab(fleet.url, url, "lab", lambda record: None).run(LabPlan(("packet_loss",), 1, 30.0, 600.0))


def test_the_command_needs_token_and_faults(monkeypatch, capsys):
    """Bad input is one sentence and status 2."""
    monkeypatch.delenv("GREYLAG_LAB_TOKEN", raising=False)
    assert main(["--fleet", "http://127.0.0.1:1", "--owner", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
