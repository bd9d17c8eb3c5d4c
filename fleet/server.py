"""The fleet as a process: its doors over HTTP on loopback.

`python -m fleet.server --port 0 ...` prints one JSON line with the address when it is ready, and ends on SIGTERM and
SIGINT. The lab's token comes from the environment (GREYLAG_LAB_TOKEN), so that no process list shows it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn

from core.clock import rfc3339, tick_at_or_before, wall_ms
from core.errors import BadInput
from fleet.build import build_scenario, build_world, load_scenario
from fleet.clock import FleetClock
from fleet.control import make_app
from fleet.job import JobShape
from fleet.scenario import Scenario

BEHIND_SECONDS = 6 * 3600
TOKEN_VARIABLE = "GREYLAG_LAB_TOKEN"


class FleetServer(uvicorn.Server):
    """One fleet behind one port. `run()` blocks; `stop()` may be called from any thread."""

    def __init__(
        self,
        nodes: int = 16,
        spares: int = 2,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        lab_token: str | None = None,
        start_behind_seconds: int = BEHIND_SECONDS,
        speed: float | None = None,
        refuse: bool = False,
        ready: Callable[[str], None] | None = None,
        shape: JobShape | None = None,
        scenario: Scenario | None = None,
    ) -> None:
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise BadInput("fleet", "host", host, "only loopback is allowed: the control door has no tokens")
        if speed is not None and speed <= 0:
            raise BadInput("fleet", "speed", speed, "a number above 0 is needed")
        self._ready, self._bind = ready, (host, port)
        behind = 0 if speed == 1 else start_behind_seconds
        start = tick_at_or_before(wall_ms() - behind * 1000)
        programme = None
        if scenario is None:
            self.world, self.operations = build_world(nodes, spares, seed, start, shape=shape)
        else:
            # A served scenario begins where its clock does.
            self.world, self.operations, programme = build_scenario(replace(scenario, start=rfc3339(start)))
        self.operations.refuse = refuse
        self.clock = FleetClock(start, speed, self.world.advance)
        app = make_app(self.world, self.operations, self.clock, lab_token, programme)
        # Connections are kept longer than any scrape interval, so that a collector's pool never meets a closed one.
        super().__init__(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off",
                                        timeout_keep_alive=75, timeout_graceful_shutdown=2))

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until it is stopped. Raises BadInput when the port cannot be had."""
        host, port = self._bind
        # asyncio turns Nagle's delay off only where the socket names its protocol; without, each answer waits 40 ms.
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError as error:
            bound.close()
            raise BadInput("fleet", "port", port, f"a free port is needed ({error.strerror})") from None
        self.url = f"http://{host}:{bound.getsockname()[1]}"
        super().run(sockets=[bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None:
            self._ready(self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.clock.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT end the server with exit status 0; uvicorn's own would be raised again afterwards."""
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(name, self.stop)
        yield

    def stop(self) -> None:
        """Asks the server to end."""
        self.should_exit = True


def serve(
    nodes: int = 16,
    spares: int = 2,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    lab_token: str | None = None,
    start_behind_seconds: int = BEHIND_SECONDS,
    speed: float | None = None,
    refuse: bool = False,
    ready: Callable[[str], None] | None = None,
    scenario: Scenario | None = None,
) -> None:
    """Builds a fleet and serves it until SIGTERM or SIGINT. speed None = paced by committed ticks.

    ready: called with the base URL once requests are answered. scenario: says what the fleet is, in place of nodes, spares
    and seed. Raises BadInput for values that make no fleet.
    """
    FleetServer(nodes, spares, seed, host, port, lab_token, start_behind_seconds, speed, refuse, ready, scenario=scenario).run()


def announce(url: str) -> None:
    """The line by which a parent process learns the address."""
    sys.stdout.write(json.dumps({"type": "fleet", "url": url, "port": int(url.rsplit(":", 1)[1])}) + "\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """The command line; exit status 2 and one sentence on bad input."""
    parser = argparse.ArgumentParser(prog="fleet.server", description="Serves the emulated fleet.")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--start-behind", type=int, default=BEHIND_SECONDS, help="seconds before now at which to start")
    parser.add_argument("--speed", type=float, default=None, help="fixed speed; without it, paced by committed ticks")
    parser.add_argument("--lab-token-env", default=TOKEN_VARIABLE, help="environment variable that holds the lab's token")
    parser.add_argument("--refuse-control", action="store_true", help="refuse every operation")
    parser.add_argument("--scenario", default=None, help="a scenario file; it says what the fleet is and what happens")
    args = parser.parse_args(argv)
    try:
        scenario = None if args.scenario is None else load_scenario(args.scenario)
        serve(args.nodes, args.spares, args.seed, args.host, args.port, os.environ.get(args.lab_token_env),
              args.start_behind, args.speed, args.refuse_control, announce, scenario)
    except BadInput as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
