"""The shared file system (Lustre) as its clients see it: object storage targets, waits, calls in flight, client counters.

Files are striped: a node's input data lies on some of the targets, its checkpoints on some, so that one slow target slows
those nodes whose files are on it, and a node's calls wait for the slowest of their stripes. Lustre itself exports no latency
(facts/signals.md §5): `wait_usec` and `in_flight` are what each client's `osc/*/import` says.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from core.types import Floats
from fleet.hardware import NodeType
from fleet.hosts import HUNG_FACTOR
from fleet.knobs import HostKnobs, StorageKnobs
from fleet.work import Work

# Of the targets, on so many of them each node's input data and checkpoints lie.
READ_STRIPES, WRITE_STRIPES = 6, 6
RPC_BYTES, CALL_BYTES = 4194304.0, 1048576.0
# What a node reads for its loaders while it computes, bytes a second; and the time that healthy calls take.
READ_BYTES_PER_SECOND = 6.0e7
IDLE_USEC, LOADED_USEC = 900.0, 6000.0  # a real client's average under writes: 6,054
RPCS_IN_FLIGHT = 8.0
# Share of time with a task that waits for the mount: while it reads, while it writes.
READ_WAIT, WRITE_WAIT = 0.004, 0.09
# Of what reading takes longer, the share of time in which some loader stands in it.
LOADERS_WAIT = 0.7
TIMEOUT_SECONDS = 100.0
# The client's own average follows with this lag.
AVERAGES_SECONDS = 14.0
COUNTERS = ("read_bytes", "written_bytes", "reads", "writes", "opens", "closes", "getattrs", "statfs", "lnet_sent", "lnet_received",
            "lnet_sent_bytes", "lnet_received_bytes", "lnet_drops", "lnet_errors")


class StorageBank:
    """Client counters float64[node] by the names in COUNTERS; of each client and target float64[node, target]: `wait_usec`,
    `in_flight`, `timeouts`, `connected`; of each target float64[target]: `target_read`, `target_written` (bytes),
    `target_busy_ms`, `target_free` (bytes).

    For the jobs, float64[node], 1 = healthy: `read_factor`, `write_factor`. For the host: `stalled`, share of time with a task
    that waits for the mount. `healthy`: what the client's health check says.
    """

    def __init__(self, kind: NodeType, nodes: int, targets: int, rng: np.random.Generator, knobs: StorageKnobs,
                 host: HostKnobs) -> None:
        shape = (nodes, targets)
        self.kind, self._rng, self.knobs, self._host = kind, rng, knobs, host
        self.counters: dict[str, Floats] = {name: np.zeros(nodes) for name in COUNTERS}
        for name, size in (("read_bytes", 6e13), ("written_bytes", 9e13), ("opens", 2e5), ("getattrs", 9e5), ("statfs", 4e4)):
            self.counters[name] = np.floor(rng.uniform(0.4, 1.6, nodes) * size)
        self.counters["reads"] = np.floor(self.counters["read_bytes"] / CALL_BYTES)
        self.counters["writes"] = np.floor(self.counters["written_bytes"] / CALL_BYTES)
        self.counters["closes"] = self.counters["opens"].copy()
        first = np.arange(nodes)[:, None] + np.arange(targets)[None, :]
        self._reads_from: NDArray[np.bool_] = first % targets < min(READ_STRIPES, targets)
        self._writes_to: NDArray[np.bool_] = (first * 3 + 1) % targets < min(WRITE_STRIPES, targets)
        self._read_stripes, self._write_stripes = self._reads_from.sum(axis=1), self._writes_to.sum(axis=1)
        self._ill = False
        self._speed = rng.uniform(0.9, 1.15, targets)
        self.wait_usec = np.full(shape, IDLE_USEC) * self._speed
        self.in_flight, self.timeouts, self.connected = np.zeros(shape), np.zeros(shape), np.ones(shape)
        self.target_read = np.floor(rng.uniform(0.8, 1.2, targets) * 6e13 * max(1, nodes) / targets)
        self.target_written = np.floor(rng.uniform(0.8, 1.2, targets) * 9e13 * max(1, nodes) / targets)
        self.target_busy_ms = np.floor(rng.uniform(0.8, 1.2, targets) * 2e8)
        self.target_bytes = 3.6e13
        self.target_free = self.target_bytes * rng.uniform(0.42, 0.48, targets)
        self.read_factor, self.write_factor = np.ones(nodes), np.ones(nodes)
        self.stalled, self.healthy = np.zeros(nodes), np.ones(nodes)

    @property
    def target_up(self) -> Floats:
        """1 where a target answers, float64[target]."""
        return (self.knobs.up > 0).astype(np.float64)

    def reset(self, row: int) -> None:
        """A reboot mounts anew: the client's counters begin at 0."""
        for values in self.counters.values():
            values[row] = 0.0
        self.timeouts[row] = 0.0

    def feel(self) -> Floats:
        """Sets what the jobs feel from the knobs as they are turned now; gives the factor on each target's service time."""
        self._ill = bool(self.knobs.turned().any())
        if not self._ill:
            self.read_factor, self.write_factor = np.ones(len(self._reads_from)), np.ones(len(self._reads_from))
            return np.ones(len(self._speed))
        slow = np.where(self.knobs.up > 0, np.minimum(self.knobs.slowness, HUNG_FACTOR), HUNG_FACTOR)
        self.read_factor = np.where(self._reads_from, slow, 1.0).max(axis=1)
        self.write_factor = np.where(self._writes_to, slow, 1.0).max(axis=1)
        return slow

    def step(self, seconds: int, work: Work) -> None:
        """Moves all clients and targets on by `seconds`."""
        slow = self.feel()
        hung = self._host.mount_hung > 0
        active = work.memory_mib.max(axis=1) > 0
        own = np.where(hung, HUNG_FACTOR, self._host.mount_slowness)
        pace = np.minimum(1.0, work.busy.sum(axis=1) / work.busy.shape[1] / 0.8)
        uniform = self._rng.uniform(0.85, 1.15, (3, len(own)))
        read = np.where(hung, 0.0, np.rint(seconds * READ_BYTES_PER_SECOND * pace * uniform[0]))
        written = np.where(hung, 0.0, np.rint(work.writing))
        self._count(seconds, read, written, active, uniform[1])
        slower = own * self.read_factor
        reading = np.where(active, READ_WAIT * uniform[2] + LOADERS_WAIT * (1.0 - 1.0 / slower), 0.0)
        writing = np.where(work.writing > 0, WRITE_WAIT * own * self.write_factor * uniform[2], 0.0)
        self.stalled = np.minimum(0.95, reading + writing)
        self.healthy = np.where(hung, 0.0, 1.0)
        self._targets(seconds, read, written, slow, own)

    def _count(self, seconds: int, read: Floats, written: Floats, active: NDArray[np.bool_], uniform: Floats) -> None:
        count = self.counters
        count["read_bytes"] += read
        count["written_bytes"] += written
        count["reads"] += np.rint(read / CALL_BYTES)
        count["writes"] += np.rint(written / CALL_BYTES)
        opened = np.floor(seconds * np.where(active, 0.3, 0.02) + 0.8 * uniform)
        count["opens"] += opened
        count["closes"] += opened
        count["getattrs"] += np.floor(seconds * np.where(active, 1.4, 0.1) + uniform)
        count["statfs"] += np.floor(seconds / 15 + 0.5 * uniform)
        calls = np.rint((read + written) / RPC_BYTES) + np.floor(seconds * 0.5 + uniform)
        count["lnet_sent"] += calls
        count["lnet_received"] += calls
        count["lnet_sent_bytes"] += np.rint(written + 600 * calls)
        count["lnet_received_bytes"] += np.rint(read + 500 * calls)

    def _targets(self, seconds: int, read: Floats, written: Floats, slow: Floats, own: Floats) -> None:
        """Spreads what each node reads and writes over its targets, and what each target makes it wait."""
        noise = self._rng.uniform(0.85, 1.15, self.wait_usec.shape)
        per_read = self._reads_from * (read / self._read_stripes)[:, None]
        per_write = self._writes_to * (written / self._write_stripes)[:, None]
        rate = (per_read + per_write) / seconds
        # Calls queue behind each other once a client moves a few hundred MB a second over a target.
        queue = IDLE_USEC + (LOADED_USEC - IDLE_USEC) * np.minimum(1.0, rate / 2.5e8)
        now = queue * self._speed * slow * own[:, None] * noise
        self.wait_usec += (1 - math.exp(-seconds / AVERAGES_SECONDS)) * (now - self.wait_usec)
        there = self.knobs.up > 0
        waiting = (rate > 0) | ~there
        self.in_flight = np.where(waiting, np.minimum(RPCS_IN_FLIGHT, np.ceil(rate / RPC_BYTES * now * 1e-6 + (slow > 2))), 0.0)
        self.connected = np.ones(self.wait_usec.shape)
        if self._ill:
            self.connected[:, ~there] = 0.0
        late = (now > 0.5 * IDLE_USEC * HUNG_FACTOR) & waiting
        self.timeouts += late & (noise < 0.85 + 0.3 * seconds / TIMEOUT_SECONDS)
        moved_in, moved_out = per_read.sum(axis=0), per_write.sum(axis=0)
        self.target_read += np.rint(moved_in)
        self.target_written += np.rint(moved_out)
        self.target_busy_ms += np.rint(np.minimum(seconds, (moved_in + moved_out) / 6e9 * slow) * 1000)
        self.target_free = np.maximum(0.05 * self.target_bytes, self.target_free - 2e-4 * moved_out)
