"""What runs in the lab's namespaces: exporters, ranks, relays; and the Greylag that reads them all."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.processes import free_port
from tests import needs
from tests.lab.namespaces import Cluster, Group, Node, Refused
from tests.live.site import Greylag

SCRATCH_MEGABYTES = 48
PRESSURE = Path("/proc/pressure")


@dataclass(frozen=True)
class Rank:
    """A rank of a job on a node."""

    job: str
    number: int
    node: Node
    process: subprocess.Popen[bytes]


class Relay:
    """The process that carries a node's frames between two TAP devices of the switch."""

    def __init__(self, site: Site, node: Node) -> None:
        near, far = f"tapn{node.number}", f"tapf{node.number}"
        words = ("ip", "netns", "exec", site.cluster.switch, sys.executable, "-m", "tests.lab.relay",
                 "--near", near, "--far", far, "--seed", str(node.number))
        self.process = site.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self._line()
        except Refused as error:
            raise Refused("this machine has no TAP devices") from error
        site.cluster.through_taps(node, near, far)

    def lose(self, share: float) -> dict[str, Any]:
        """From now on it drops this share of frames; what it had carried and dropped before."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{share}\n".encode())
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], 20)[0]:
            raise Refused("the relay does not answer")
        line = self.process.stdout.readline()
        if not line:
            raise Refused("the relay ended")
        return dict(json.loads(line))


class Site:
    """`count` nodes with an exporter each. Jobs, relays and Greylag are added before `run`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.cluster = folder, Cluster(count)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._exporters: dict[str, subprocess.Popen[bytes]] = {}
        self._groups: dict[str, Group] = {}
        self._relays: dict[str, Relay] = {}
        self._ranks: list[Rank] = []
        self.greylag: Greylag | None = None

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a process that the site ends; what it writes to its error output is kept in the folder.

        In a session of its own and a little before others: what else the machine does must not look like a fault here.
        """
        with (self.folder / "processes.log").open("ab") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": needs.ROOT,
                       "start_new_session": True, **options}
            process = subprocess.Popen(("nice", "-n", "-5", *words), **options)
        self.processes.append(process)
        return process

    def build(self) -> None:
        """Namespaces, control groups and exporters."""
        program = needs.program("node_exporter")
        self.cluster.build()
        for node in self.nodes:
            self._groups[node.name] = Group(f"{self.cluster.stem}-{node.name}")
            self._exporters[node.name] = self._exporter(node, program)

    def _exporter(self, node: Node, program: str) -> subprocess.Popen[bytes]:
        """A node_exporter that sees the node's own network, tmpfs and pressure; disks, memory and CPUs are the machine's."""
        tmpfs = f"size={SCRATCH_MEGABYTES}m,mode=700"
        # `ip netns exec` gives it mounts of its own: the tmpfs is seen by this exporter alone and goes with it.
        words = ("sh", "-c", f'mount -t tmpfs -o {tmpfs} scratch "$0" && exec "$@"', str(self.scratch), program,
                 f"--web.listen-address={node.address}:9100", f"--path.procfs={self._proc(node)}",
                 # It tells the boot time of the machine: after a boot Greylag waits for minutes before it judges a node.
                 "--no-collector.stat")
        return self.start(*node.inside(*words))

    def _proc(self, node: Node) -> Path:
        """The machine's /proc with the node's own pressure, as containers get it. Without `1`: mounts are read from `self`."""
        place = self.folder / f"proc-{node.name}"
        place.mkdir()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() and entry.name != "pressure":
                (place / entry.name).symlink_to(entry)
        own = self.group(node).pressure
        (place / "pressure").mkdir()
        for one in PRESSURE.iterdir() if PRESSURE.exists() else ():
            # `ip netns exec` mounts another /sys over control groups: they are reached through this process's own root.
            ours = Path(f"/proc/{os.getpid()}/root{own.with_name(one.name + '.pressure')}") if own else one
            (place / "pressure" / one.name).symlink_to(ours)
        return place

    # --- parts ----------------------------------------------------------------------------------------------------------
    def exporter(self, node: Node) -> subprocess.Popen[bytes]:
        return self._exporters[node.name]

    def group(self, node: Node) -> Group:
        return self._groups[node.name]

    def relay(self, node: Node) -> Relay:
        return self._relays[node.name]

    def rank(self, job: str, number: int) -> Rank:
        return next(r for r in self._ranks if (r.job, r.number) == (job, number))

    def scratch_of(self, node: Node) -> Path:
        """The node's tmpfs, from outside."""
        place = Path(f"/proc/{self.exporter(node).pid}/root{self.scratch}")
        if not os.path.ismount(place):
            raise Refused("a tmpfs cannot be mounted")
        return place

    def relayed(self, node: Node) -> None:
        """Puts a relay into the cable of the node's fabric port. Raises Refused where there are no TAP devices."""
        self._relays[node.name] = Relay(self, node)

    def train(self, job: str, nodes: list[Node], *more: str) -> None:
        """A job with one rank on each of the nodes."""
        ring = ",".join(node.fabric for node in nodes)
        for rank, node in enumerate(nodes):
            words = (sys.executable, "-m", "tests.lab.trainer", "--job", job, "--rank", str(rank), "--node", node.name,
                     "--ring", ring, "--host", node.address, *more)
            # One thread: the machine has few CPUs, and numpy would take them all for a matrix of a few kilobytes.
            process = self.start(*node.inside(*words), env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
            self.group(node).join(process.pid)
            self._ranks.append(Rank(job, rank, node, process))

    def run(self, interval: str = "5s") -> Greylag:
        """Starts Greylag over all exporters and ranks."""
        often = {"scrape_interval": interval, "scrape_timeout": interval}

        def groups(port: int, nodes: list[Node]) -> list[dict[str, Any]]:
            return [{"targets": [f"{node.address}:{port}"], "labels": {"node": node.name}} for node in nodes]

        self.greylag = Greylag(self.folder, free_port(), scrape_configs=[
            {"job_name": "node", **often, "static_configs": groups(9100, self.nodes)},
            {"job_name": "trainer", **often, "honor_labels": True,
             "static_configs": groups(9401, [rank.node for rank in self._ranks])},
        ])
        self.greylag.start()
        return self.greylag

    def close(self) -> None:
        """Ends every process by its id, then removes groups and namespaces; one that resists keeps nothing else."""
        with ExitStack() as steps:  # last in, first out
            steps.callback(self.cluster.close)
            steps.callback(self._close_groups)
            for process in self.processes:
                steps.callback(_end, process)
            if self.greylag is not None:
                steps.callback(self.greylag.close)

    def _close_groups(self) -> None:
        time.sleep(0.05)  # the kernel empties a control group a moment after its processes have ended
        for group in self._groups.values():
            group.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL: a process that was stopped hears nothing else."""
    if process.poll() is None:
        process.kill()
    process.wait(10)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
