"""A fake Greylag API for the explorer: a few nodes, one open and one resolved incident, and a signal around them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from core.clock import parse_rfc3339, rfc3339
from core.render import plain
from core.signals import unit_of
from core.types import Action, Evidence, Incident, Outcome, Suspect, Target

AT = 1_795_000_005_000 // 15_000 * 15_000
HOT = Target("gpu", "n2", "3", "GPU-n2-3")
LOSSY = Target("nic", "n3", "mlx5_0/1")


def incident(name: str, fault: str, culprit: Target | None, state: str, signal: str, **changes: Any) -> dict[str, Any]:
    evidence = (Evidence(signal, unit_of(signal), 91.0, 61.0, "median of 7 peers"), Evidence("xid", "count", 2.0, None, "events"))
    made = Incident(
        id=name, fault=fault, scope="device", culprit=culprit, confidence=0.94, suspects=(Suspect(HOT, 0.9, ("hot",)),), victims=(),
        findings=("f",), evidence=evidence, jobs=("train-1",), lost_gpu_hours=1.5, owner="infra", klass="page", state=state,
        reason="recovered", merged_into=None, onset_at=AT - 120_000, opened_at=AT, updated_at=AT + 300_000, **changes)
    return dict(plain(made))


INCIDENTS = [incident("inc-open", "thermal_throttle", HOT, "acting", "gpu.temperature_celsius"),
             incident("inc-done", "packet_loss", LOSSY, "resolved", "nic.packets_lost_per_second", resolved_at=AT + 300_000)]
ACTION = Action("inc-done/1/1", "drain", LOSSY, {}, 60.0, "act", "inc-done", 1, 1, AT, "policy")
BESIDES = {  # what an incident's document has besides
    "timeline": [{"at": rfc3339(AT - 600_000), "kind": "change", "text": "driver 550 → 570", "target": plain(Target("node", "n2")),
                  "seconds_from_onset": -480.0, "actor": "anna"}],
    "changes": [], "marks": [], "runbook_url": "http://greylag:9470/runbooks/thermal_throttle",
    "blind_spots": [{"fault": "power_brake", "state": "lost", "any_of": ["gpu.throttle_reasons_bits"], "nodes": ["n2"], "count": 1}]}
NODES = [{"name": f"n{i}", "state": state, "rack": f"rack-{i % 2}", "leaf": None} for i, state in
         enumerate(["in_service", "in_service", "in_service", "drained", "spare"])]


def windows(params: dict[str, str]) -> dict[str, Any]:
    times = list(range(parse_rfc3339(params["start"]), parse_rfc3339(params["end"]) + 1, 15_000))
    culprit = HOT if params["signal"].startswith("gpu") else LOSSY
    values = [91.0 if abs(t - AT) < 120_000 else None if abs(t - AT) > 600_000 else 60.0 for t in times]
    return {"signal": params["signal"], "unit": unit_of(params["signal"]), "step_seconds": 15, "times": [rfc3339(t) for t in times],
            "parts": 8, "median": [60.0] * len(times), "series": [{"target": plain(culprit), "values": values}], "cut": None}


class FakeApi:
    """Answers on `url` until `close`. empty: a Greylag that just began; nodes and incidents are none."""

    def __init__(self, empty: bool = False) -> None:
        api = self
        self.empty, self.late, self.asked = empty, False, []  # type: ignore[var-annotated]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                api.asked.append(parts.path)
                found = api.answer(parts.path.removeprefix("/api/greylag/v1/"), {k: v[0] for k, v in parse_qs(parts.query).items()})
                body = json.dumps(found if found is not None else {"error": "not known"}).encode()
                self.send_response(200 if found is not None else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, name: str, params: dict[str, str]) -> Any:
        rows = [] if self.empty else INCIDENTS
        if name.startswith("incidents/"):
            one = [row for row in rows if row["id"] == name.partition("/")[2]]
            done = plain(Outcome(ACTION.id, "DONE", "done", 90.0, AT))
            actions = [{"at": rfc3339(AT), "action": plain(ACTION), "outcome": done}] if name.endswith("done") else []
            return {"incident": one[0], "actions": actions, **BESIDES} if one else None
        return {
            "incidents": {"items": rows, "next": None}, "inventory": {"nodes": [] if self.empty else NODES},
            "coverage": {"items": [], "next": None, "nodes": {} if self.empty else {"n0": "fresh", "n1": "lost", "n2": "fresh"}},
            "records": {"items": [], "next": 0, "tick": None if self.empty else rfc3339(AT)},
            "windows": windows(params) if name == "windows" else None,
            "/readyz": {"status": "ready", "reason": "the last tick is 15 s old"} if not self.late else None,
        }.get(name)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
