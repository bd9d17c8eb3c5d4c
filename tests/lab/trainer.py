"""One rank of a real, small training job: logistic regression, gradients averaged by a ring all-reduce over TCP.

    python -m tests.lab.trainer --job a --rank 0 --node n1 --ring 198.19.0.11,198.19.0.12,198.19.0.13 --host 198.18.7.11

As in a collective library, a message has two halves that go round the ring in opposite directions, everybody sends and
receives at once, and a rank whose neighbour does not come waits for ever. It exposes the trainer metrics of `sample_data`.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import sys
import time

import numpy as np

from sample_data.trainer.metrics import TrainerMetrics
from sample_data.trainer.train import COLUMNS, batch, dataset, gradient

PORT, JOIN_SECONDS = 29500, 60.0


class Ring:
    """The neighbours of rank `rank` among `hosts` (fabric addresses in rank order)."""

    def __init__(self, rank: int, hosts: list[str], port: int) -> None:
        self.rank, self.world = rank, len(hosts)
        with socket.create_server((hosts[rank], port)) as door:
            self.next = self._reach(hosts[(rank + 1) % self.world], port)
            door.settimeout(JOIN_SECONDS)
            self.prev, _ = door.accept()
        for peer in (self.next, self.prev):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setblocking(False)

    @staticmethod
    def _reach(host: str, port: int) -> socket.socket:
        deadline = time.monotonic() + JOIN_SECONDS
        while True:
            try:
                return socket.create_connection((host, port), timeout=2.0)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over all ranks of float32 arrays whose length is a multiple of twice their number."""
        ahead, back = (half.reshape(self.world, -1) for half in np.split(values.copy(), 2))
        for reducing in (True, False):
            for turn in range(self.world - 1):
                # Of the half that goes ahead, rank r sends piece r - turn and gets the one before; the other mirrors it.
                first = self.rank - turn + (0 if reducing else 1)
                last = self.rank + turn - (0 if reducing else 1)
                got, other = self._swap(ahead[first % self.world].tobytes(), back[last % self.world].tobytes())
                to, too = (first - 1) % self.world, (last + 1) % self.world
                ahead[to] = ahead[to] + got if reducing else got
                back[too] = back[too] + other if reducing else other
        return np.concatenate([ahead.ravel(), back.ravel()]) / self.world

    def _swap(self, to_next: bytes, to_prev: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Sends to both neighbours while it receives as much from both: (from the one before, from the one after)."""
        out = {self.next: memoryview(to_next), self.prev: memoryview(to_prev)}
        into = {self.prev: bytearray(), self.next: bytearray()}
        wanted = {self.prev: len(to_next), self.next: len(to_prev)}
        with selectors.DefaultSelector() as doors:
            for peer in (self.next, self.prev):
                doors.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while doors.get_map():
                for key, ready in doors.select():
                    peer = key.fileobj
                    assert isinstance(peer, socket.socket)
                    if ready & selectors.EVENT_WRITE and out[peer]:
                        out[peer] = out[peer][peer.send(out[peer]):]
                    if ready & selectors.EVENT_READ and len(into[peer]) < wanted[peer]:
                        piece = peer.recv(wanted[peer] - len(into[peer]))
                        if not piece:
                            raise ConnectionError("another rank has left the job")
                        into[peer] += piece
                    waits = (selectors.EVENT_WRITE if out[peer] else 0) | (
                        selectors.EVENT_READ if len(into[peer]) < wanted[peer] else 0)
                    if not waits:
                        doors.unregister(peer)
                    elif waits != key.events:
                        doors.modify(peer, waits)
        return np.frombuffer(into[self.prev], np.float32), np.frombuffer(into[self.next], np.float32)


def work(seconds: float) -> None:
    """Uses so much CPU time: under a quota it takes longer."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(2000))


def train(args: argparse.Namespace, metrics: TrainerMetrics) -> None:
    """Trains until it is ended. Raises OSError where another rank has gone."""
    metrics.phase("init")
    features, labels = dataset(1)
    hosts = args.ring.split(",")
    ring = Ring(args.rank, hosts, args.ring_port)
    # The gradient of a model that is as large as the message: this one's, over and over.
    length = args.kilobytes * 256 // (2 * len(hosts) * COLUMNS) * 2 * len(hosts) * COLUMNS
    weights, step = np.zeros(COLUMNS), 0
    metrics.phase("train")
    while True:
        began = time.monotonic()
        rows = batch(1, args.rank, step)
        x, y = features[rows], labels[rows]
        loaded = time.monotonic()
        loss, mine = gradient(weights, x, y)
        work(args.work)
        computed = time.monotonic()
        metrics.collective(step + 1)
        mean = ring.mean(np.resize(mine, length).astype(np.float32))[:COLUMNS]
        reduced = time.monotonic()
        weights = weights - args.rate * mean
        step += 1
        time.sleep(args.pause)
        seconds = time.monotonic() - began
        metrics.step(step, loss, seconds, loaded - began, grad_norm=float(np.linalg.norm(mean)),
                     compute_seconds=computed - loaded + args.pause, comm_wait_seconds=reduced - computed,
                     tokens_per_second=len(rows) / seconds)


def main() -> int:
    """1 when another rank left."""
    words = argparse.ArgumentParser()
    words.add_argument("--job", required=True)
    words.add_argument("--rank", type=int, required=True)
    words.add_argument("--node", required=True)
    words.add_argument("--ring", required=True, help="the ranks' fabric addresses, in rank order")
    words.add_argument("--ring-port", type=int, default=PORT)
    words.add_argument("--host", required=True, help="where the metrics are served")
    words.add_argument("--port", type=int, default=9401)
    words.add_argument("--kilobytes", type=int, default=96, help="size of the message that is averaged in a step")
    words.add_argument("--work", type=float, default=0.004, help="CPU seconds of a step")
    words.add_argument("--pause", type=float, default=0.3, help="seconds of a step in which the accelerator would compute")
    words.add_argument("--rate", type=float, default=0.5)
    args = words.parse_args()
    metrics = TrainerMetrics(args.job, args.rank, args.node, 0, args.port, args.host)
    print("ready", flush=True)
    try:
        train(args, metrics)
    except OSError as error:
        print(f"rank {args.rank} stopped: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
