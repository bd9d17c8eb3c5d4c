"""Kernel logs of the nodes, as rsyslog writes them: ISO time, host, `kernel:`, message."""

from __future__ import annotations

import numpy as np

from core.clock import rfc3339
from fleet.hardware import Node
from fleet.joblog import ByteLog

_CHATTER = (
    "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "audit: type=1400 audit: apparmor=\"STATUS\" operation=\"profile_replace\" profile=\"unconfined\" name=\"lsb_release\"",
    "nvme nvme1: 128/0/0 default/read/poll queues",
    "workqueue: blk_mq_timeout_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:29400. Sending cookies.",
)


class KernelLogs:
    """One log a node, with what a boot writes and rare harmless lines after it."""

    def __init__(self, nodes: list[Node], rng: np.random.Generator) -> None:
        self._rng = rng
        self._logs = [ByteLog() for _ in nodes]
        for node in nodes:
            self.boot(node, node.boot_ms)

    def of(self, index: int) -> ByteLog:
        return self._logs[index]

    def write(self, node: Node, at: int, message: str) -> None:
        """One line of the node's kernel at `at` (ms)."""
        stamp = rfc3339(at)[:-1] + f"{int(self._rng.integers(0, 1000)):03d}+00:00"
        self._logs[node.index].write(f"{stamp} {node.name} kernel: {message}")

    def boot(self, node: Node, at: int) -> None:
        self.write(node, at, "Linux version 6.8.0-1021-hpc (buildd@lcy02) #23-Ubuntu SMP x86_64")
        self.write(node, at + 9_000, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {node.kind.driver}")
        for index in range(node.kind.nics):
            self.write(node, at + 11_000, f"mlx5_core 0000:{0x18 + 0x10 * index:02x}:00.0: firmware version: 28.42.1000")

    def step(self, nodes: list[Node], seconds: int, at: int) -> None:
        """Now and then a node's kernel says something that means nothing."""
        chatty = np.flatnonzero(self._rng.random(len(nodes)) < seconds / 7200)
        for index in chatty:
            node = nodes[int(index)]
            if node.up:
                self.write(node, at, _CHATTER[int(self._rng.integers(0, len(_CHATTER)))])
