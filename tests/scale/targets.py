"""`python -m tests.scale.targets`: one process that plays many cheap targets, and lists them for HTTP service discovery.

`/sd` lists so many targets as `/count/<n>` last said; `/t/<i>` is the page of target i, whose counter climbs. Prints its port.
"""

from __future__ import annotations

import asyncio
import json
import os

SERIES = int(os.environ.get("SERIES", "40"))


class Targets:
    """The state: how many are listed, and how often each was read."""

    def __init__(self) -> None:
        self.count = 0
        self.reads = 0

    def answer(self, path: str, host: str) -> bytes:
        if path.startswith("/t/"):
            self.reads += 1
            i = path.rpartition("/")[2]
            lines = ["# TYPE work_total counter", *(f'work_total{{part="{k}"}} {self.reads + k}' for k in range(SERIES)),
                     f"target_number {i}", ""]
            return "\n".join(lines).encode()
        if path.startswith("/count/"):
            self.count = int(path.rpartition("/")[2])
            return b"{}"
        return json.dumps([{"targets": [host], "labels": {"__metrics_path__": f"/t/{i}", "instance": f"t{i:03d}"}}
                           for i in range(self.count)]).encode()


class Door(asyncio.Protocol):
    """HTTP/1.1 with kept connections, GET only; one request at a time."""

    def __init__(self, targets: Targets) -> None:
        self._targets, self._rest = targets, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head, self._rest = self._rest[:end].decode(), self._rest[end + 4:]
            host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
            body = self._targets.answer(head.split(" ")[1], host)
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def main() -> None:
    """Serves until it is ended."""
    targets = Targets()
    server = await asyncio.get_running_loop().create_server(lambda: Door(targets), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
