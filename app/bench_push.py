"""The sender of `greylag bench ingest --matrix`'s push row: the pages of the page server as Prometheus' remote write 1.0.

Each target is one scraped page a round, cut into requests of 500 samples as Debian's Prometheus cuts them, with the labels
sorted, zeros left out and snappy around it. A request is made once for each page; for a target and a round only its names
and its time are put in, at places of the same length, so that the sender costs little beside the receiver that is measured.
"""

from __future__ import annotations

import http.client
import math
import re
import struct
import threading
import time
from collections.abc import Sequence

import cramjam

from app.bench_pages import GPU_MARK, PLACEHOLDER, Serving, node_name, node_pages
from collectors.protowire import field, varint
from core.clock import monotonic_seconds, wall_ms
from core.errors import Unavailable

SAMPLES_A_REQUEST = 500
SENDERS = 8  # connections; Prometheus scales its shards by itself
PAUSE_SECONDS = 0.5  # after an answer that says "come again"
_NAN = struct.pack("<Q", 0x7FF8000000000001)  # as Go parses a page's NaN
_LINE = re.compile(rb"^([a-zA-Z_:][^ {]*)(?:\{(.*)\})? ([^ \n]+)$", re.MULTILINE)
_PAIR = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPED = re.compile(rb"\\(.)")
_TIMESTAMP_LENGTH = 6  # of a varint of today's milliseconds: good until the year 2109
_NO_TIME = b"\x10" + b"\xff" * (_TIMESTAMP_LENGTH - 1) + b"\x01"  # field 2; no time of ours looks like it


def series_of(line: tuple[bytes, bytes, bytes]) -> bytes:
    """One line of a page (name, labels, value) as a `TimeSeries` field, with a time that is still to be put in."""
    name, labels, value = line
    pairs = [(key, _ESCAPED.sub(lambda m: b"\n" if m[1] == b"n" else m[1], text)) for key, text in _PAIR.findall(labels)]
    pairs = sorted([*pairs, (b"__name__", name), (b"instance", PLACEHOLDER.encode()), (b"job", b"bench")])
    number = float(value)
    bits = _NAN if math.isnan(number) else struct.pack("<d", number)
    sample = (b"" if number == 0 else b"\x09" + bits) + _NO_TIME
    return field(1, b"".join(field(1, field(1, key) + field(2, text)) for key, text in pairs) + field(2, sample))


def requests_of(page: bytes) -> list[bytes]:
    """A page as requests, not packed, with placeholders for the node, its GPUs and the time."""
    lines = [series_of(line) for line in _LINE.findall(page)]
    return [b"".join(lines[i:i + SAMPLES_A_REQUEST]) for i in range(0, len(lines), SAMPLES_A_REQUEST)]


def filled(request: bytes, target: int, at_ms: int) -> bytes:
    """A request of one target at one time, packed."""
    body = request.replace(PLACEHOLDER.encode(), node_name(target).encode()).replace(b"GPU-" + GPU_MARK.encode(), b"GPU-%08x" % target)
    return bytes(cramjam.snappy.compress_raw(body.replace(_NO_TIME, b"\x10" + varint(at_ms))))


def send(connection: http.client.HTTPConnection, path: str, body: bytes) -> None:
    """Sends until it is taken; a receiver that is not there yet, or says "come again", is asked again after a pause. Raises
    Unavailable for what would be refused again."""
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"}
    while True:
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
        else:
            if answer.status < 300:
                return
            if answer.status not in (429, 503):
                raise Unavailable(f"the receiver refused a request ({answer.status}: {said[:200].decode(errors='replace')})")
        time.sleep(PAUSE_SECONDS)


def push_pages(serving: Serving, interval_seconds: float, address: str, path: str) -> None:
    """Pushes the pages of all targets in turn until it is terminated: each target once an interval, at its own offset."""
    pages = [requests_of(page) for page in node_pages(0, serving.variants, serving.extra, serving.storm)]
    began, wall_began = monotonic_seconds(), wall_ms()

    def one(targets: Sequence[int]) -> None:
        connection, turn = http.client.HTTPConnection(address, timeout=60), 0
        while True:
            for i in targets:
                due = (turn + i / serving.targets) * interval_seconds
                time.sleep(max(0.0, began + due - monotonic_seconds()))
                for request in pages[(i + turn) % len(pages)]:
                    send(connection, path, filled(request, i, wall_began + round(due * 1000)))
            turn = max(turn + 1, int((monotonic_seconds() - began) / interval_seconds))

    threads = [threading.Thread(target=one, args=(range(k, serving.targets, SENDERS),), daemon=True)
               for k in range(min(SENDERS, serving.targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
