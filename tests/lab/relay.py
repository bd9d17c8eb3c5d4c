"""A cable that loses packets: carries Ethernet frames between two TAP devices, and leaves some out.

    python -m tests.lab.relay --near tapa --far tapb --seed 1

A line `0.05` on the standard input sets the share of frames that are dropped from then on; it answers with the frames
carried and dropped so far. It ends with its input.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import selectors
import struct
import sys

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 65536


def tap(name: str) -> int:
    """A descriptor of the TAP device `name` of this network namespace, made anew. Raises OSError."""
    door = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(door, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return door


def carry(source: int, sink: int, keep: random.Random, loss: float) -> tuple[int, int]:
    """Moves what waits; (carried, dropped)."""
    carried = dropped = 0
    for _ in range(256):
        try:
            frame = os.read(source, FRAME)
        except (BlockingIOError, OSError):
            break
        if keep.random() < loss:
            dropped += 1
            continue
        try:
            os.write(sink, frame)
            carried += 1
        except OSError:
            dropped += 1
    return carried, dropped


def main() -> int:
    """Relays until the input ends."""
    words = argparse.ArgumentParser()
    words.add_argument("--near", required=True)
    words.add_argument("--far", required=True)
    words.add_argument("--seed", type=int, default=1)
    args = words.parse_args()
    near, far = tap(args.near), tap(args.far)
    keep = random.Random(args.seed)
    loss, carried, dropped = 0.0, 0, 0
    doors = selectors.DefaultSelector()
    for door, other in ((near, far), (far, near)):
        doors.register(door, selectors.EVENT_READ, other)
    doors.register(sys.stdin.fileno(), selectors.EVENT_READ)
    print(json.dumps({"ready": True}), flush=True)
    while True:
        for key, _ in doors.select():
            if key.data is None:
                line = os.read(sys.stdin.fileno(), 64)
                if not line:
                    return 0
                loss = float(line)
                print(json.dumps({"carried": carried, "dropped": dropped, "loss": loss}), flush=True)
                continue
            moved, lost = carry(int(key.fd), int(key.data), keep, loss)
            carried, dropped = carried + moved, dropped + lost


if __name__ == "__main__":
    sys.exit(main())
