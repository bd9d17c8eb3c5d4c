"""Kernel logs of the nodes, as rsyslog writes them: ISO time, host, `kernel:`, message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.clock import rfc3339
from fleet.hardware import Node
from fleet.joblog import ByteLog

if TYPE_CHECKING:
    from fleet.gpus import GpuBank

_CHATTER = (
    "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "audit: type=1400 audit: apparmor=\"STATUS\" operation=\"profile_replace\" profile=\"unconfined\" name=\"lsb_release\"",
    "nvme nvme1: 128/0/0 default/read/poll queues",
    "workqueue: blk_mq_timeout_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:29400. Sending cookies.",
    "pcieport 0000:50:00.0: AER: Corrected error message received from 0000:50:00.0",
)
NOBODY = "pid='<unknown>', name=<unknown>, "
# What the driver writes behind the number where nobody says more. `{gpu}`: the GPU's index.
DETAILS = {
    13: NOBODY + "Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address",
    31: "pid=41207, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f3c_5e200000. "
        "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "pid=41207, name=python3, Ch 00000008",
    45: "pid=41207, name=python3, Ch 00000010",
    48: NOBODY + "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 1.",
    62: NOBODY + "1f21(3b88) 00000000 00000000",
    63: NOBODY + "Row Remapper: New row (0x00000000004a91c3) marked for remapping, reset gpu to activate.",
    64: NOBODY + "Row Remapper: Failed to remap row, no spare row is left in the bank",
    74: NOBODY + "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: NOBODY + "GPU has fallen off the bus.",
    92: NOBODY + "High single-bit ECC error rate",
    94: NOBODY + "Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: NOBODY + "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "pid=2871, name=nv-hostengine, Timeout after 6s of waiting for RPC response from GPU{gpu} GSP! Expected function 76 "
         "(GSP_RM_CONTROL) (0x20800a6a 0x98).",
    120: NOBODY + "GSP task exception: Page fault (cause:0xf) @ pc:0x3c40d7a, partition:4#0, task:3",
    140: NOBODY + "Unrecovered ECC Error",
    145: "RLW_REMAP Fatal XC0 i0 Link 06 (0x00000004 0x00000040 0x00000000 0x00000000 0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}
RECOVERY_CHANGED = 154
_ACTIONS = ("None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset")


class KernelLogs:
    """One log a node, with what a boot writes and rare harmless lines after it.

    gpus: whose XID fields follow the lines. now_ms: the moment of lines that name none; `step` moves it on.
    """

    def __init__(self, nodes: list[Node], rng: np.random.Generator, gpus: GpuBank | None = None, now_ms: int = 0) -> None:
        self._nodes, self._rng, self._gpus, self.now_ms = nodes, rng, gpus, now_ms
        self._logs = [ByteLog() for _ in nodes]
        self._first_boot = [node.boot_ms for node in nodes]
        self._last: list[tuple[int, int]] = [(0, 0) for _ in nodes]
        self._named: set[tuple[int, int]] = set()
        # What a node's first boot wrote is written when somebody first reads its log or adds to it: most are never read where
        # months of thousands of nodes are stepped from event to event.
        self._unwritten = {node.index for node in nodes}

    def of(self, index: int) -> ByteLog:
        self._begun(index)
        return self._logs[index]

    def _begun(self, index: int) -> None:
        if index in self._unwritten:
            self._unwritten.discard(index)
            self.boot(self._nodes[index], self._first_boot[index])

    def write(self, node: Node, at: int, message: str) -> None:
        """One line of the node's kernel at `at` (ms)."""
        self._line(node, at, f"kernel: {message}")

    def _line(self, node: Node, at: int, text: str) -> None:
        self._begun(node.index)
        # Microseconds that no draw decides: a fault's lines must not change anybody's draws.
        log, (then, micro) = self._logs[node.index], self._last[node.index]
        mix = (at // 1000 * 7919 + node.index * 104_729 + len(log) * 31) % 1000
        micro = min(999, micro + 1 + mix % 7) if at == then else mix % 700
        self._last[node.index] = (at, micro)
        log.write(f"{rfc3339(at)[:-1]}{micro:03d}+00:00 {node.name} {text}")

    def boot(self, node: Node, at: int) -> None:
        """What a boot writes. at: when it began (ms)."""
        kind = node.kind
        self._begun(node.index)
        self._named -= {(node.index, gpu) for gpu in range(kind.gpus)}
        self.write(node, at, f"Linux version {kind.kernel} (buildd@lcy02) #23-Ubuntu SMP {kind.architecture}")
        self.write(node, at + 4_000, "nvme nvme1: 128/0/0 default/read/poll queues")
        if kind.vendor == "nvidia":
            self.write(node, at + 9_000,
                       f"NVRM: loading NVIDIA UNIX Open Kernel Module for {kind.architecture}  {kind.driver}")
        else:
            self.write(node, at + 9_000, f"neuron: Neuron Driver Started with Version:{kind.driver}")
        for index in range(kind.nics):
            if kind.fabric == "efa":
                self.write(node, at + 11_000, f"efa {kind.nic_pci(index)}: Setup irq:efa-mgmnt@pci:{kind.nic_pci(index)}")
            else:
                self.write(node, at + 11_000, f"mlx5_core {kind.nic_pci(index)}: firmware version: {kind.nic_firmware}")

    def xid(self, node: int, gpu: int, code: int, detail: str | None = None, at: int | None = None) -> None:
        """The driver reports an XID for a GPU: its line (behind the GPU's identity, the first time since boot), DCGM's field,
        and the recovery action where that changes with it. detail: what stands behind the number; None = the usual text.
        at: ms, None = now."""
        one, moment = self._nodes[node], self.now_ms if at is None else at
        self._begun(node)
        address = one.pci(gpu)[:-2]
        if (node, gpu) not in self._named:
            self._named.add((node, gpu))
            self.write(one, moment, f"NVRM: GPU at PCI:{address}: {one.uuids[gpu]}")
            self.write(one, moment, f"NVRM: GPU Board Serial Number: {one.serials[gpu]}")
        text = detail if detail is not None else DETAILS.get(code, NOBODY + "unknown error").format(gpu=gpu)
        self.write(one, moment, f"NVRM: Xid (PCI:{address}): {code}, {text}")
        if self._gpus is None:
            return
        before = int(self._gpus.asked(node, gpu))
        self._gpus.xid_seen(node, gpu, code)
        after = int(self._gpus.asked(node, gpu))
        if after != before:
            self.write(one, moment, f"NVRM: Xid (PCI:{address}): {RECOVERY_CHANGED}, GPU recovery action changed from "
                                    f"0x{before:x} ({_ACTIONS[before]}) to 0x{after:x} ({_ACTIONS[after]})")

    def service(self, node: int, unit: str, running: bool, at: int | None = None) -> None:
        """What systemd says of a unit that has died, or runs again."""
        one, moment = self._nodes[node], self.now_ms if at is None else at
        if running:
            self._line(one, moment, f"systemd[1]: Started {unit}.")
            return
        self._line(one, moment, f"systemd[1]: {unit}: Main process exited, code=exited, status=1/FAILURE")
        self._line(one, moment, f"systemd[1]: {unit}: Failed with result 'exit-code'.")

    def step(self, nodes: list[Node], seconds: int, at: int) -> None:
        """Now and then a node's kernel says something that means nothing."""
        self.now_ms = at
        chatty = self._rng.random(len(nodes)) < seconds / 7200
        which = self._rng.integers(0, len(_CHATTER), len(nodes))
        for index in np.flatnonzero(chatty):
            node = nodes[int(index)]
            if node.up:
                self.write(node, at, _CHATTER[int(which[index])])
