"""`greylag demo`: an emulated fleet breaks, Greylag finds the part, repairs it and proves that the job recovered.

Four kinds of processes, as at a real site: the fleet (exporters and control API), the lab that plants faults and alone
knows the truth, Greylag's owner and its collector. The demo itself only starts them, reads the story from the API and
compares it with the truth at the end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from app.client import Client
from app.display import Display
from app.processes import Process, free_port
from app.verdict import Checker, counted
from core.clock import monotonic_seconds
from core.errors import GreylagError, Unavailable

FAULTS = ("thermal_throttle", "packet_loss", "stalled_loss")
HEAL_LIMIT_SECONDS = 240.0
START_SECONDS = 90.0  # it takes seconds; a machine that is busy with other things takes longer
POLL_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command was asked for. seconds: a bound of wall time, None = until healed or Ctrl-C."""

    nodes: int = 16
    spares: int = 2
    seed: int = 1
    fault: str | None = None
    seconds: float | None = None
    headless: bool = False
    as_json: bool = False
    exit_when_healed: bool = False
    refuse_control: bool = False

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that the lab plants."""
        if self.fault == "none":
            return ()
        return FAULTS if self.fault is None else (self.fault,)


@dataclass
class Site:
    """The addresses of a running demo."""

    folder: Path
    owner_url: str
    fleet_url: str = ""
    explorer_url: str = ""
    lab_token: str = field(default_factory=lambda: secrets.token_hex(16))


def demo_config(site: Site, owner_port: int, policy: Path) -> dict[str, Any]:
    """The configuration that the demo writes for Greylag: the same keys that a real site would use."""
    return {
        "data_dir": str(site.folder / "data"),
        "listen": f"127.0.0.1:{owner_port}",
        "explorer_url": site.explorer_url or None,
        "clock": site.fleet_url,
        "inventory": {"fleet": site.fleet_url},
        "scrape_configs": [{
            "job_name": "fleet", "scrape_interval": "15s", "scrape_timeout": "10s", "honor_labels": True,
            "http_sd_configs": [{"url": f"{site.fleet_url}/sd", "refresh_interval": "15s"}],
        }],
        "logs": [
            {"kind": "kernel", "url": f"{site.fleet_url}/logs/kernel/{{node}}"},
            {"kind": "trainer", "url": f"{site.fleet_url}/logs/trainer/{{job}}"},
        ],
        "policy": str(policy),
        "backend": {"name": "fleet", "url": site.fleet_url},
    }


class Demo:
    """One run. `run` returns the exit status."""

    def __init__(self, options: DemoOptions) -> None:
        self.options = options
        self.display = Display(options.as_json)
        self.checker = Checker()
        self._stop = threading.Event()
        self._cursor = 0
        self._held: list[dict[str, Any]] = []
        self._out_of_time = False
        self._processes: list[Process] = []

    def run(self) -> int:
        """Starts everything, tells the story, ends everything."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop.set())
        folder = Path(tempfile.mkdtemp(prefix="greylag-demo-"))
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(self._end)
            log = stack.enter_context((folder / "demo.log").open("wb"))
            site = self._start(folder, log)
            lab = self._start_lab(site, log)
            with self.display:
                status = self._follow(site, lab)
            if status not in (0, None):
                self._show_log(folder / "demo.log")
            return status or 0

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.end()

    def _spawn(self, name: str, command: list[str], log: Any, env: dict[str, str] | None = None) -> Process:
        process = Process(name, command, env, log)
        self._processes.append(process)
        return process

    def _start(self, folder: Path, log: Any) -> Site:
        o, owner_port = self.options, free_port()
        site = Site(folder, f"http://127.0.0.1:{owner_port}")
        self.display.note(f"starting a fleet of {o.nodes} nodes and {o.spares} spares, seed {o.seed}")
        command = [sys.executable, "-m", "fleet.server", "--port", "0", "--nodes", str(o.nodes), "--spares", str(o.spares),
                   "--seed", str(o.seed)]
        if o.refuse_control:
            command.append("--refuse-control")
        fleet = self._spawn("fleet", command, log, {**os.environ, "GREYLAG_LAB_TOKEN": site.lab_token})
        site.fleet_url = f"http://127.0.0.1:{json.loads(fleet.first_line(START_SECONDS))['port']}"
        if not o.headless:
            port = free_port()
            site.explorer_url = f"http://127.0.0.1:{port}"
            self._spawn("explorer", explorer_command(port), log, {**os.environ, "GREYLAG_URL": site.owner_url})
        self.display.begin(int(Client(site.fleet_url).get("/control/v1/clock")["now_ms"]))
        policy = policy_path()
        config = folder / "greylag.yaml"
        config.write_text(yaml.safe_dump(demo_config(site, owner_port, policy), sort_keys=False), encoding="utf-8")
        self._wait_ready(site, self._spawn("greylag", [sys.executable, "-m", "app.cli", "run", "-c", str(config)], log))
        self.display.note(f"Greylag watches at {site.owner_url}" + (f", the explorer is at {site.explorer_url}" if site.explorer_url else ""))
        self.display.note(self._announced())
        return site

    def _announced(self) -> str:
        """What is about to happen, before the first minute in which nothing does."""
        faults = self.options.faults
        if not faults:
            return "nothing is planted: no incident should open"
        one = len(faults) == 1
        return (f"while a job trains on it the lab plants {counted(len(faults), 'fault')}{'' if one else ', one after the other,'}"
                f" in {'a place' if one else 'places'} that Greylag is not told")

    def _wait_ready(self, site: Site, greylag: Process) -> None:
        client, deadline = Client(site.owner_url, 2.0), monotonic_seconds() + START_SECONDS
        while not self._stop.is_set():
            with suppress(GreylagError):
                client.get("/healthz")
                return
            ended = greylag.exit_code
            if ended is not None or monotonic_seconds() > deadline:
                self._show_log(site.folder / "demo.log")
                raise Unavailable(f"Greylag ended with status {ended} at its start" if ended is not None else
                                  f"Greylag did not start within {START_SECONDS:g} s")
            self._stop.wait(0.1)

    def _start_lab(self, site: Site, log: Any) -> Process | None:
        if not self.options.faults:
            return None
        return self._spawn("lab", [
            sys.executable, "-m", "fleet.lab", "--fleet", site.fleet_url, "--owner", site.owner_url,
            "--seed", str(self.options.seed), "--faults", ",".join(self.options.faults),
        ], log, {**os.environ, "GREYLAG_LAB_TOKEN": site.lab_token})

    def _follow(self, site: Site, lab: Process | None) -> int | None:
        client, began = Client(site.owner_url), monotonic_seconds()
        limit = self.options.seconds or (HEAL_LIMIT_SECONDS if self.options.exit_when_healed else None)
        announced = False
        while not self._stop.is_set():
            for record in self._news(client, lab):
                self._tell(record)
            self.display.status(client, monotonic_seconds() - began)
            healed = lab is not None and lab.exit_code is not None and self.checker.settled
            failed = lab is not None and lab.exit_code not in (None, 0)
            if self.options.exit_when_healed and (healed or failed):
                break
            if (healed or failed) and not announced:
                announced = True
                self.display.note(self.checker.summary())
                self._addresses(site)
            if limit is not None and monotonic_seconds() - began > limit:
                self._out_of_time = self.options.exit_when_healed
                break
            self._stop.wait(POLL_SECONDS)
        if self._stop.is_set() and not self.options.exit_when_healed:
            return None
        for record in (*self._news(client, lab), *self._held):
            self._tell(record)
        return self._judge()

    def _judge(self) -> int:
        if self.options.fault == "none":
            problems = self.checker.quiet_problems()
        elif self.options.exit_when_healed:
            problems = self.checker.problems(len(self.options.faults))
        else:
            return 0
        if not problems:
            self.display.note(self.checker.summary())
        elif self._out_of_time:
            print(f"greylag demo: not healed within {self.options.seconds or HEAL_LIMIT_SECONDS:g} s of wall time; on a slow or busy"
                  " machine --seconds gives it longer", file=sys.stderr)
        for problem in problems:
            print(f"greylag demo: {problem}", file=sys.stderr)
        return 1 if problems else 0

    def _news(self, client: Client, lab: Process | None) -> Iterator[dict[str, Any]]:
        """What is new, in the order of time: what others than Greylag say is told once its ticks have come to that moment."""
        for line in lab.lines() if lab is not None else ():
            with suppress(ValueError):
                self._held.append(json.loads(line))
        with suppress(Unavailable):
            self._held += self.checker.recoveries(client, [r["incident"] for r in self._held if r["type"] == "recovery"])
        with suppress(Unavailable):
            answer = client.get("/api/greylag/v1/records", cursor=self._cursor, limit=1000)
            self._cursor = answer["next"]
            for record in answer["items"]:
                yield from self._due(record["at"])
                yield record
            if len(answer["items"]) < 1000:
                yield from self._due(answer["tick"] or "")

    def _due(self, at: str) -> Iterator[dict[str, Any]]:
        self._held.sort(key=lambda record: str(record["at"]))
        while self._held and self._held[0]["at"] <= at:
            yield self._held.pop(0)

    def _tell(self, record: dict[str, Any]) -> None:
        self.checker.take(record)
        self.display.record(record)

    def _addresses(self, site: Site) -> None:
        folder = build_dashboards(site.folder / "grafana", site.owner_url)
        self.display.note(f"API         {site.owner_url}/docs")
        if site.explorer_url:
            self.display.note(f"Explorer    {site.explorer_url}")
        self.display.note(f"Dashboards  {folder}")
        self.display.note("Ctrl-C ends everything")

    def _show_log(self, path: Path) -> None:
        text = path.read_text(errors="replace").splitlines()[-40:]
        if text:
            print("greylag demo: the last lines of its processes:", *text, sep="\n  ", file=sys.stderr)


def policy_path() -> Path:
    """The policy that the demo ships: it acts."""
    return Path(str(files("sample_data").joinpath("policies", "demo.yaml")))


def explorer_command(port: int) -> list[str]:
    """The Streamlit explorer on a loopback port."""
    return [sys.executable, "-m", "streamlit", "run", str(files("app").joinpath("explorer.py")), "--server.port", str(port),
            "--server.address", "127.0.0.1", "--server.headless", "true", "--browser.gatherUsageStats", "false",
            "--client.toolbarMode", "minimal"]


def build_dashboards(folder: Path, owner_url: str) -> Path:
    """Writes the Grafana dashboards and their provisioning for this owner; gives the folder."""
    from dashboards.build import write_all

    write_all(folder, owner_url)
    return folder


def run_demo(options: DemoOptions) -> int:
    """The command."""
    return Demo(options).run()


