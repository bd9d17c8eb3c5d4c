"""Child processes of the demo and of tests: started with loopback ports, read line by line, ended by pid."""

from __future__ import annotations

import queue
import random
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from core.errors import Unavailable

# Ports that no system gives to outgoing connections by itself (Linux begins at 32768, others at 49152). A port from the
# system's own range can be taken by any connection between the moment it is picked and the moment it is listened on.
LISTEN_PORTS = range(12_000, 32_000)


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket that is bound, also to a port whose last connections are still being forgotten. Raises OSError."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one


def free_port() -> int:
    """A loopback port that is free now and that no outgoing connection is given. Raises Unavailable."""
    for port in random.SystemRandom().sample(LISTEN_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Unavailable("of 200 loopback ports none was free")


class Process:
    """A child whose standard output can be read without blocking; its errors go to `log` or to ours."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None,
                 log: IO[bytes] | None = None) -> None:
        self.name = name
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which then ends its children in order.
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=env, start_new_session=True)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"{name}-out")
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            self._lines.put(raw.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def first_line(self, timeout_seconds: float) -> str:
        """The first line of output. Raises Unavailable when none comes in time, or when the child ends before."""
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise Unavailable(f"the {self.name} did not start within {timeout_seconds:g} s") from None
        if line is None:
            raise Unavailable(f"the {self.name} ended with status {self._child.wait()} at its start")
        return line

    def lines(self) -> Iterator[str]:
        """The lines that have come since the last call."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return
            if line is None:
                return
            yield line

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    @property
    def pid(self) -> int:
        return self._child.pid

    def end(self, grace_seconds: float = 12.0) -> None:
        """SIGTERM, and SIGKILL when it has not ended in time."""
        if self._child.poll() is not None:
            return
        self._child.terminate()
        try:
            self._child.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
