"""A tiny all-reduce over TCP for the sample trainer: rank 0 adds up what all ranks send, and sends the mean back.

It blocks like a real collective: when one rank does not come, all others wait in it.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

HELLO = struct.Struct("<i")
JOIN_SECONDS = 60.0


class AllReduce:
    """Rank `rank` of `world`. address: `host:port` on which rank 0 listens. Raises OSError where the ranks do not meet."""

    def __init__(self, rank: int, world: int, address: str) -> None:
        self.rank, self.world = rank, world
        self._peers: list[socket.socket] = []
        if world == 1:
            return
        host, _, port = address.rpartition(":")
        if rank == 0:
            self._welcome(host, int(port))
        else:
            self._peers.append(self._join(host, int(port)))

    def _welcome(self, host: str, port: int) -> None:
        with socket.create_server((host, port)) as door:
            door.settimeout(JOIN_SECONDS)
            come: dict[int, socket.socket] = {}
            while len(come) < self.world - 1:
                peer, _ = door.accept()
                come[HELLO.unpack(_receive(peer, HELLO.size))[0]] = peer
        self._peers = [come[rank] for rank in sorted(come)]  # a fixed order: the sum is the same in every run
        for peer in self._peers:
            _prepare(peer)

    def _join(self, host: str, port: int) -> socket.socket:
        deadline = time.monotonic() + JOIN_SECONDS
        while True:
            try:
                door = socket.create_connection((host, port), timeout=JOIN_SECONDS)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        _prepare(door)
        door.sendall(HELLO.pack(self.rank))
        return door

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean of all ranks' float64 arrays of one length. Waits for all. Raises OSError when a rank has gone."""
        if self.world == 1:
            return values
        size = values.nbytes
        if self.rank != 0:
            self._peers[0].sendall(values.tobytes())
            return np.frombuffer(_receive(self._peers[0], size))
        total = values.copy()
        for peer in self._peers:
            total += np.frombuffer(_receive(peer, size))
        total /= self.world
        for peer in self._peers:
            peer.sendall(total.tobytes())
        return total

    def close(self) -> None:
        """Leaves the group."""
        for peer in self._peers:
            peer.close()


def _prepare(peer: socket.socket) -> None:
    peer.settimeout(None)  # a collective waits for ever
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _receive(peer: socket.socket, size: int) -> bytes:
    pieces = b""
    while len(pieces) < size:
        piece = peer.recv(size - len(pieces))
        if not piece:
            raise ConnectionError("another rank has left the job")
        pieces += piece
    return pieces
