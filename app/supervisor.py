"""`greylag run` in role `all`: the owner and one collector as child processes, restarted when they die.

The supervisor holds no data. A child that dies is started again after a pause that doubles up to 30 s; children end with
the supervisor, the collector first, by pid: SIGTERM, after 10 s SIGKILL. Children of a supervisor that was killed notice
it and end by themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from core.clock import monotonic_seconds

LONGEST_PAUSE_SECONDS = 30.0
GRACE_SECONDS = 10.0
CONFIG_ERROR = 2
PARENT_VARIABLE = "GREYLAG_SUPERVISOR"
PARENT_LOOK_SECONDS = 0.5


def end_with_parent() -> None:
    """In a supervised child: ends this process when its supervisor is gone. Without a supervisor it does nothing."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if parent.isdigit():
        threading.Thread(target=_watch_parent, args=(int(parent),), daemon=True, name="parent").start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_SECONDS)
    print("greylag: the supervisor is gone, this process ends", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


@dataclass
class Child:
    """One supervised command and what is known of its life."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    pause: float = 0.5
    start_at: float = 0.0
    started: float = field(default=0.0)


class Supervisor:
    """Starts children and keeps them running until `stop`."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = list(children)
        self._stop = threading.Event()
        self.exit_code = 0

    def stop(self, *_: object) -> None:
        """Ends the supervision; `run` then ends the children and returns."""
        self._stop.set()

    def run(self) -> int:
        """Runs until stopped. Returns 2 when a child found its configuration wrong, else 0."""
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        try:
            while not self._stop.is_set():
                for child in self._children:
                    self._tend(child)
                self._stop.wait(0.2)
        finally:
            self._end()
        return self.exit_code

    def _tend(self, child: Child) -> None:
        now = monotonic_seconds()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                if now - child.started > 60:
                    child.pause = 0.5
                return
            if code == CONFIG_ERROR:
                self.exit_code = CONFIG_ERROR
                self._stop.set()
                return
            print(f"greylag: the {child.name} ended with status {code}; it is started again in {child.pause:g} s",
                  file=sys.stderr, flush=True)
            child.process, child.restarts = None, child.restarts + 1
            child.start_at, child.pause = now + child.pause, min(child.pause * 2, LONGEST_PAUSE_SECONDS)
        if now >= child.start_at and not self._stop.is_set():
            child.process = subprocess.Popen(child.command, env={**os.environ, PARENT_VARIABLE: str(os.getpid())})
            child.started = now

    def _end(self) -> None:
        running = [c.process for c in reversed(self._children) if c.process and c.process.poll() is None]
        for process in running:  # one after the other: the collector hands over what it holds while the owner listens
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
