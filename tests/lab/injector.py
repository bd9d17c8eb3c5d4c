"""Does real harm to one part, and writes what it did, to which part and when: the truth that verdicts are held against."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab.namespaces import Node, Refused, command

if TYPE_CHECKING:
    from tests.lab.site import Site

LOSS, RATE, QUOTA = 0.05, "4mbit", 0.02


class Injector:
    """The faults of one lab. truth: the rows as written, each with `kind`, `at` (ms), the part and the means."""

    def __init__(self, site: Site, file: Path) -> None:
        self._site, self._file = site, file
        self.truth: list[dict[str, Any]] = []

    def _tell(self, kind: str, node: Node, how: str, **part: Any) -> dict[str, Any]:
        row = {"kind": kind, "at": int(time.time() * 1000), "node": node.name, "how": how, **part}
        self.truth.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def interface_down(self, node: Node) -> dict[str, Any]:
        """Takes the node's fabric port down."""
        command("ip", "-n", node.space, "link", "set", "eth1", "down")
        return self._tell("interface_down", node, "ip link set eth1 down", device="eth1")

    def interface_up(self, node: Node) -> dict[str, Any]:
        """Brings it up again."""
        command("ip", "-n", node.space, "link", "set", "eth1", "up")
        return self._tell("interface_up", node, "ip link set eth1 up", device="eth1")

    def rate_limit(self, node: Node) -> dict[str, Any]:
        """Lets only a trickle leave the node's fabric port; what waits too long is dropped."""
        words = ("qdisc", "add", "dev", "eth1", "root", "tbf", "rate", RATE, "burst", "16kb", "latency", "50ms")
        command("tc", "-n", node.space, *words)
        return self._tell("rate_limit", node, " ".join(("tc", *words)), device="eth1")

    def drop(self, node: Node) -> dict[str, Any]:
        """Lets the relay in the node's cable drop frames."""
        told = self._site.relay(node).lose(LOSS)
        return self._tell("packets_dropped", node, f"a relay between two TAP devices drops {LOSS:.0%}: {told}", device="eth1")

    def stop_rank(self, job: str, rank: int) -> dict[str, Any]:
        """SIGSTOP to a rank: the process is there and does nothing any more."""
        one = self._site.rank(job, rank)
        os.kill(one.process.pid, signal.SIGSTOP)
        return self._tell("rank_stopped", one.node, "SIGSTOP", job=job, rank=rank)

    def stop_exporter(self, node: Node) -> dict[str, Any]:
        """SIGSTOP to a node's exporter: connections are taken, and never answered."""
        os.kill(self._site.exporter(node).pid, signal.SIGSTOP)
        return self._tell("exporter_stopped", node, "SIGSTOP")

    def fill(self, node: Node) -> dict[str, Any]:
        """Fills the node's own tmpfs to the last byte."""
        place = self._site.scratch_of(node)
        with suppress(OSError), (place / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        left = os.statvfs(place)
        if left.f_bavail * left.f_frsize > 0.01 * left.f_blocks * left.f_frsize:
            raise Refused(f"the tmpfs of {node.name} did not get full")
        return self._tell("tmpfs_full", node, "write until ENOSPC", device=str(self._site.scratch))

    def starve(self, job: str, rank: int) -> dict[str, Any]:
        """Gives a rank's processes a small part of one CPU."""
        one = self._site.rank(job, rank)
        how = self._site.group(one.node).limit(QUOTA, [one.process.pid])
        return self._tell("cpu_quota", one.node, how, job=job, rank=rank)
