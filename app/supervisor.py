"""`greylag run` in role `all`: the owner and as many collectors as it wants as child processes, restarted when they die.

The supervisor holds no data. A child that dies is started again after a pause that doubles up to 30 s; a collector that is
not wanted any more is ended once the owner has given its targets to others. Children end with the supervisor, the
collectors first, by pid: SIGTERM, after 10 s SIGKILL. Children of a supervisor that was killed notice it and end by
themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from core.clock import monotonic_seconds

LONGEST_PAUSE_SECONDS = 30.0
GRACE_SECONDS = 10.0
CONFIG_ERROR = 2
PARENT_VARIABLE = "GREYLAG_SUPERVISOR"
PARENT_LOOK_SECONDS = 0.5
LOOK_SECONDS = 0.2


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
    """One supervised command and what is known of its life. ending: wall second of its SIGKILL, once it has to end."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    pause: float = 0.5
    start_at: float = 0.0
    started: float = field(default=0.0)
    ending: float | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Supervisor:
    """Starts children and keeps them running until `stop`.

    children: those that always run, started first and ended last. make, wanted: workers `collector-0` and so on, as many as
    `wanted` says. tell: called with name → pid of the workers that run, whenever that has changed.
    """

    def __init__(self, children: Sequence[Child], make: Callable[[str], Child] | None = None,
                 wanted: Callable[[], int] = lambda: 0,
                 tell: Callable[[Mapping[str, int]], None] = lambda processes: None) -> None:
        self._children = list(children)
        self._make, self._wanted, self._tell = make, wanted, tell
        self._workers: list[Child] = []
        self._told: dict[str, int] | None = None
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
                self._tend_workers()
                self._stop.wait(LOOK_SECONDS)
        finally:
            self._end()
        return self.exit_code

    def _tend_workers(self) -> None:
        if self._make is None:
            return
        wanted = self._wanted()
        for child in self._workers:
            number = int(child.name.rpartition("-")[2])
            if child.ending is None and number < wanted:
                self._tend(child)
            elif child.ending is None and child.process is not None:
                child.ending = monotonic_seconds() + GRACE_SECONDS
                child.process.terminate()
            elif child.ending is not None and child.alive and monotonic_seconds() > child.ending:
                assert child.process is not None
                child.process.kill()
        gone = [c for c in self._workers if not c.alive and (c.ending is not None or int(c.name.rpartition("-")[2]) >= wanted)]
        self._workers = [c for c in self._workers if c not in gone]
        names = {child.name for child in self._workers}
        for name in (f"collector-{i}" for i in range(wanted)):
            if name not in names and not self._stop.is_set():
                self._workers.append(self._make(name))
                self._tend(self._workers[-1])
        running = {c.name: c.process.pid for c in self._workers if c.process is not None and c.alive}
        if running != self._told:
            self._tell(running)
            self._told = running

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
        """The workers together, then the others one after the other: what a collector still holds needs the owner."""
        for group in (self._workers, *([child] for child in reversed(self._children))):
            running = [c.process for c in group if c.process is not None and c.alive]
            for process in running:
                process.terminate()
            until = monotonic_seconds() + GRACE_SECONDS
            for process in running:
                try:
                    process.wait(max(0.0, until - monotonic_seconds()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
