"""A small cluster on one machine: a network namespace for each node, joined by veth pairs over two bridges.

`eth0` of a node is for management (exporters are read over it), `eth1` is the fabric of the training jobs. The switch is a
namespace of its own; the only thing in the machine's own namespace is one end of the management network. All names carry
the process's id, everything is removed by `Cluster.close`, and what the kernel does not have is told by `Refused`.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


class Refused(Exception):
    """The machine does not allow a part of the lab; the text says which and why."""


def command(*words: str) -> str:
    """The output of a program that ends by itself. Raises Refused with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Refused(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@dataclass(frozen=True)
class Node:
    """name: what Greylag calls it. space: its network namespace. address: management; fabric: what ranks talk over."""

    name: str
    space: str
    address: str
    fabric: str
    number: int

    def inside(self, *words: str) -> tuple[str, ...]:
        """The command line that runs `words` in the namespace; the process keeps its id."""
        return ("ip", "netns", "exec", self.space, *words)


def _free_network(start: int) -> str:
    """Three bytes of an address range of RFC 2544 (tests of networks: nothing real is there) that no other lab uses now."""
    taken = command("ip", "-4", "-o", "address")
    nets = [f"198.18.{(start + i) % 250}" for i in range(250)]
    return next(net for net in nets if f" {net}." not in taken)


class Cluster:
    """`count` nodes n1, n2, ... Raises Refused where the machine allows no namespaces, bridges or veth pairs."""

    def __init__(self, count: int) -> None:
        pid = os.getpid()
        self.stem = f"gl{pid}"
        self.switch = f"{self.stem}sw"
        self._net = _free_network(pid)
        self.nodes = [Node(f"n{i}", f"{self.stem}n{i}", f"{self._net}.{i + 10}", f"198.19.0.{i + 10}", i)
                      for i in range(1, count + 1)]
        self._made: list[str] = []

    def build(self) -> None:
        """Makes all of it; on a refusal what was made is removed."""
        if os.geteuid() != 0:
            raise Refused("network namespaces need root")
        try:
            self._switch()
            for node in self.nodes:
                self._node(node)
        except BaseException:
            self.close()
            raise

    def _space(self, name: str) -> None:
        command("ip", "netns", "add", name)
        self._made.append(name)
        command("ip", "-n", name, "link", "set", "lo", "up")

    def _switch(self) -> None:
        self._space(self.switch)
        for bridge in ("mgmt", "fabric"):
            self._at_switch("link", "add", bridge, "type", "bridge", "forward_delay", "0")
            self._at_switch("link", "set", bridge, "up")
        command("ip", "link", "add", self.stem, "type", "veth", "peer", "name", "up0", "netns", self.switch)
        self._at_switch("link", "set", "up0", "master", "mgmt", "up")
        command("ip", "address", "add", f"{self._net}.1/24", "dev", self.stem)
        command("ip", "link", "set", self.stem, "up")

    def _node(self, node: Node) -> None:
        self._space(node.space)
        for device, port, bridge, address in (("eth0", "m", "mgmt", node.address), ("eth1", "f", "fabric", node.fabric)):
            self._at_switch("link", "add", f"{port}{node.number}", "type", "veth", "peer", "name", device, "netns", node.space)
            self._at_switch("link", "set", f"{port}{node.number}", "master", bridge, "up")
            command("ip", "-n", node.space, "address", "add", f"{address}/24", "dev", device)
            command("ip", "-n", node.space, "link", "set", device, "up")

    def _at_switch(self, *words: str) -> None:
        command("ip", "-n", self.switch, *words)

    def through_taps(self, node: Node, near: str, far: str) -> None:
        """Puts two TAP devices into the cable of the node's `eth1`: only what a relay carries between them gets through."""
        cable = f"cable{node.number}"
        self._at_switch("link", "add", cable, "type", "bridge", "forward_delay", "0")
        self._at_switch("link", "set", cable, "up")
        self._at_switch("link", "set", f"f{node.number}", "nomaster")
        self._at_switch("link", "set", f"f{node.number}", "master", cable)
        for tap, bridge in ((near, cable), (far, "fabric")):
            self._at_switch("link", "set", tap, "master", bridge, "txqueuelen", "10000", "up")

    def close(self) -> None:
        """Removes the namespaces, and with them all their interfaces, addresses and queueing disciplines."""
        with suppress(Refused):
            command("ip", "link", "delete", self.stem)
        for name in self._made:
            with suppress(Refused):
                command("ip", "netns", "delete", name)
        self._made.clear()


# --- control groups ---------------------------------------------------------------------------------------------------
def _mounted(kind: str, option: str = "") -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, fstype, options, *_ = line.split()
        if fstype == kind and (not option or option in options.split(",")):
            return Path(point)
    return None


class Group:
    """The control group of one node's ranks: its pressure is what the node's tasks wait, its quota is what they get.

    Where the machine has the old hierarchy beside the new one, the quota is set in the old and pressure read in the new.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: list[Path] = []
        unified = _mounted("cgroup2")
        self.pressure: Path | None = None
        self._unified = self._make(unified) if unified is not None else None
        if self._unified is not None and (self._unified / "cpu.pressure").exists():
            self.pressure = self._unified / "cpu.pressure"

    def _make(self, parent: Path) -> Path | None:
        path = parent / self._name
        try:
            path.mkdir()
        except OSError:
            return None
        self._made.append(path)
        return path

    def join(self, pid: int) -> None:
        """Puts a process into it."""
        for path in self._made:
            (path / "cgroup.procs").write_text(str(pid))

    def limit(self, share: float, pids: list[int]) -> str:
        """Gives the processes no more than `share` of one CPU; tells what was written. Raises Refused where it cannot."""
        if self._unified is not None and not (self._unified / "cpu.max").exists():
            with suppress(OSError):
                (self._unified.parent / "cgroup.subtree_control").write_text("+cpu")
        if self._unified is not None and (self._unified / "cpu.max").exists():
            (self._unified / "cpu.max").write_text(f"{int(share * 100_000)} 100000")
            return f"cpu.max {int(share * 100_000)} 100000"
        old = _mounted("cgroup", "cpu")
        group = self._make(old) if old is not None else None
        if group is None:
            raise Refused("no control group of this machine limits CPU time")
        (group / "cpu.cfs_quota_us").write_text(str(int(share * 100_000)))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        return f"cpu.cfs_quota_us {int(share * 100_000)}"

    def close(self) -> None:
        """Removes it; its processes must have ended."""
        for path in self._made:
            with suppress(OSError):
                path.rmdir()
