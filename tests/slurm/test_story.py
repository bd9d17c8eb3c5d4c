"""The whole story on a real Slurm: a rank hangs, `greylag run` sees it in the metrics, takes its node out, and the job goes on
elsewhere from its checkpoint.

The job and Greylag keep one clock that runs SPEED times faster than the wall (the trainer's --time-scale; a clock server as
the bundled fleet has one); Slurm and everything that is done to it run on the wall's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.processes import free_port
from sample_data.trainer.train import Model
from tests import needs
from tests.live.site import Greylag, wait_for
from tests.slurm.cluster import Slurm, slurm

pytestmark = pytest.mark.lab
SPEED = 3.0
BAD, HANG_AT, EVERY = "n2", 130, 50
POLICY = """
version: 1
mode: act
limits: {concurrent_nodes: 1, pool_ratio: 0.25, pool_nodes: 1, per_hour: 4, per_job_per_day: 3, spare_floor: 1, cooldown_seconds: 3600}
rules:
- name: hung-rank
  match: {fault: [stalled_loss], scope: [device, node], confidence_min: 0.5}
  attempts:
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 15, step_time_ratio_max: 3, deadline_seconds: 600}
  finally: escalate
"""
RANK = """
import os, sys
node, rank, again = os.environ["SLURMD_NODENAME"], os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
place = os.environ["STORY"]
hang = [] if again or node != {bad!r} else ["--hang-at", "{hang_at}"]
words = [sys.executable, "-m", "sample_data.trainer.train", "--job", os.environ["SLURM_JOB_ID"], "--rank", rank, "--world", "4",
         "--rendezvous", "127.0.0.1:" + os.environ["MEET"], "--node", node, "--port", open(f"{{place}}/port-{{node}}").read(),
         "--steps", "100000", "--pause", "0.15", "--time-scale", os.environ["SCALE"], "--time-origin", os.environ["ORIGIN"],
         "--checkpoint", f"{{place}}/ck-{{rank}}.npz", "--checkpoint-every", "{every}", *hang]
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.execv(sys.executable, words)
"""


class FastClock:
    """The clock's door of a fleet: time that runs SPEED times faster from `origin` (seconds since the epoch) on."""

    def __init__(self, origin: float, speed: float) -> None:
        def now() -> int:
            return int((origin + (time.time() - origin) * speed) * 1000)

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = parse_qs(urlsplit(self.path).query)
                after, wait = int(asked.get("after", ["0"])[0]), float(asked.get("wait", ["0"])[0])
                time.sleep(max(0.0, min(wait, (after - now()) / 1000 / speed)))
                self._say()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._say()

            def _say(self) -> None:
                body = json.dumps({"now_ms": now(), "speed": speed, "paced": False}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                with suppress(BrokenPipeError):  # Greylag ends while it asks
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Story:
    """What happened. job, row: of Slurm at the end; incidents, actions: Greylag's own lists."""

    job: str = ""
    row: dict[str, str] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    inventory: dict[str, Any] = field(default_factory=dict)
    saved_before: int = 0
    steps: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def told(self) -> list[str]:
        """`kind state` of each action's last word, in the order of the steps."""
        last = {one["action"]["id"]: one for one in reversed(self.actions)}  # the newest row comes first
        return [f"{one['action']['kind']} {one['outcome']['state']}" for one in last.values()]


def greylag_over(cluster: Slurm, folder: Path, clock: str, ports: dict[str, int]) -> Greylag:
    """`greylag run` that reads the ranks' pages and acts by Slurm's programs."""
    (folder / "policy.yaml").write_text(POLICY)
    groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {"node": node}} for node, port in ports.items()]
    often = {"scrape_interval": "5s", "scrape_timeout": "4s"}
    return Greylag(folder, free_port(), clock=clock, policy="policy.yaml",
                   backend={"name": "slurm", "conf": str(cluster.conf), "timeout_seconds": 8},
                   inventory={"slurm": {"conf": str(cluster.conf), "every_seconds": 3}},
                   detectors={"stalled_loss": {"stall_seconds": 45}},
                   scrape_configs=[{"job_name": "trainer", **often, "honor_labels": True, "static_configs": groups}])


def start_job(cluster: Slurm, folder: Path, origin: float, ports: dict[str, int]) -> str:
    """The trainer under sbatch on the four nodes; the rank on BAD hangs in the first run."""
    for node, port in ports.items():
        (folder / f"port-{node}").write_text(str(port))
    (folder / "rank.py").write_text(RANK.format(bad=BAD, hang_at=HANG_AT, every=EVERY))
    env = {"STORY": str(folder), "MEET": str(free_port()), "SCALE": str(SPEED), "ORIGIN": repr(origin), "PYTHONPATH": str(needs.ROOT)}
    return cluster.sbatch("--nodes=4", "--ntasks-per-node=1", "--comment=greylag=act", f"--chdir={needs.ROOT}", "--job-name=llm-7b",
                          script=f"exec srun --mpi=none {sys.executable} {folder}/rank.py", env=env)


def tell(cluster: Slurm, folder: Path) -> Story:
    """Runs it from the submission to the resolved incident."""
    began, origin = time.monotonic(), time.time()
    ports = {node: free_port() for node in (*cluster.nodes, *cluster.spares)}
    clock = FastClock(origin, SPEED)
    greylag = greylag_over(cluster, folder, clock.url, ports)
    story = Story(start_job(cluster, folder, origin, ports))
    try:
        greylag.start()

        def over() -> bool:
            story.incidents = greylag.items("incidents")
            return any(one["state"] in ("resolved", "escalated") for one in story.incidents if one["fault"] == "stalled_loss")

        wait_for(over, 200, f"the end of the incident (see {folder})")
        story.saved_before = HANG_AT // EVERY * EVERY
        story.actions, story.row, story.bad = greylag.items("actions"), cluster.job(story.job), cluster.node(BAD)
        story.others = {n: cluster.node(n)["State"] for n in (*cluster.nodes, *cluster.spares)}
        story.inventory = greylag.http.get("/api/greylag/v1/inventory").json()
        story.steps = {row["metric"]["node"]: float(row["value"][1]) for row in greylag.query("greylag_train_step")}
    finally:
        greylag.close()
        clock.close()
        story.seconds = time.monotonic() - began
        (folder / "story.json").write_text(json.dumps(story.__dict__, indent=1))
    return story


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """One run for all questions."""
    folder = tmp_path_factory.mktemp("story")
    with slurm() as cluster:
        one = tell(cluster, folder)
        one.saved_before = max(one.saved_before, 0)
        one.steps["resumed"] = float(Model.load(folder / "ck-0.npz").step)
        yield one
    if os.environ.get("GREYLAG_KEEP_SLURM"):
        print(folder)


def test_the_hang_is_seen_on_its_node(story: Story) -> None:
    """One incident of that fault, on the node whose rank hung, resolved."""
    [one] = [i for i in story.incidents if i["fault"] == "stalled_loss"]
    assert (one["culprit"]["node"], one["jobs"], one["state"]) == (BAD, [story.job], "resolved")


def test_drained_replaced_and_requeued(story: Story) -> None:
    """In this order, each of them once, all of them done."""
    assert story.told() == ["drain DONE", "replace DONE", "resume_job DONE"]


def test_the_node_stays_out_with_incident_and_fault_as_its_reason(story: Story) -> None:
    """Nothing returns it untested; no other node was touched."""
    [one] = [i for i in story.incidents if i["fault"] == "stalled_loss"]
    assert story.bad["Reason"].startswith(f"greylag: {one['id']}/1/2 replace spare1")
    assert "DRAIN" in story.bad["State"]
    assert [n for n, state in story.others.items() if "DRAIN" in state or "DOWN" in state] == [BAD]


def test_the_job_runs_elsewhere_from_its_checkpoint(story: Story) -> None:
    """Restarted once, without the bad node and with a spare; the ranks went on from the last checkpoint and saved newer ones."""
    assert (story.row["Restarts"], story.row["ExcNodeList"], story.row["NodeList"]) == ("1", BAD, "n[1,3-4],spare1")
    assert story.steps["resumed"] > HANG_AT
    assert story.steps["spare1"] > HANG_AT


def test_the_inventory_is_slurms(story: Story) -> None:
    """Nodes with their state and leaf, and the job on its new nodes."""
    nodes = {one["name"]: (one["state"], one["leaf"]) for one in story.inventory["nodes"]}
    assert (nodes[BAD], nodes["spare2"], nodes["n1"]) == (("drained", "leaf1"), ("spare", "leaf2"), ("in_service", "leaf1"))
    [job] = story.inventory["jobs"]
    assert (job["id"], job["nodes"]) == (story.job, ["n1", "n3", "n4", "spare1"])


def test_within_the_time_of_the_lab(story: Story) -> None:
    """From the submission to the proof."""
    assert story.seconds < 180
