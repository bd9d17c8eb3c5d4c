"""The helper process behind `collectors.disposable`: does, one after the other, what might block for ever.

`python -m collectors.disposable_child`: requests on standard input, answers on standard output, each a 4-byte length (big
endian) and that many bytes of JSON. It ends when its input ends, and by the kernel's hand when its parent dies while it
hangs. Only the standard library is imported: a helper must start fast and stay small.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import signal
import socket
import stat
import struct
import sys
from typing import Any, BinaryIO

from collectors.filetail import FileTail
from collectors.kerneltail import JOURNAL, KMSG, JournalTail, KmsgTail

LENGTH = struct.Struct(">I")
PR_SET_PDEATHSIG = 1
MOST_TAILS = 4096
MOST_PATHS = 10_000


class Child:
    """Answers requests. The tails of files stay open between them, which is how a rotated file is read to its end."""

    def __init__(self) -> None:
        self._tails: dict[str, FileTail | KmsgTail | JournalTail] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; `error` where it failed."""
        try:
            return {"read": self._read, "find": self._find, "resolve": self._resolve, "file": self._file}[request["op"]](request)
        except (OSError, UnicodeError) as error:
            return {"error": getattr(error, "strerror", None) or str(error)}

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        path, place = str(request["path"]), request["place"]
        place = None if place is None else (int(place[0]), int(place[1]))
        tail = self._tails.get(path)
        if tail is not None and place is not None and tail.place != place:
            tail.close()  # an answer of it was lost: the parent knows better
            tail = None
        if tail is None:
            if len(self._tails) >= MOST_TAILS:
                self._tails.pop(next(iter(self._tails))).close()
            tail = self._tails[path] = _tail_of(path, place)
        lines = tail.read()
        known = tail.place if tail.place[0] else place
        return {"lines": lines, "place": known}

    def _find(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"paths": sorted(glob.iglob(str(request["pattern"])))[:MOST_PATHS]}

    def _file(self, request: dict[str, Any]) -> dict[str, Any]:
        """A small file whole, where it is not as it was: `stamp` is [mtime in ns, size]."""
        path, most = str(request["path"]), int(request["most"])
        status = os.stat(path)
        stamp = [status.st_mtime_ns, status.st_size]
        if stamp == request.get("stamp"):
            return {"stamp": stamp}
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return {"error": f"it is no file of at most {most} bytes"}
        with open(path, encoding="utf-8") as file:
            return {"stamp": stamp, "text": file.read(most)}

    def _resolve(self, request: dict[str, Any]) -> dict[str, Any]:
        found = socket.getaddrinfo(str(request["host"]), None, type=socket.SOCK_STREAM)
        return {"addresses": list(dict.fromkeys(str(one[4][0]) for one in found))}


def _tail_of(path: str, place: tuple[int, int] | None) -> FileTail | KmsgTail | JournalTail:
    if path == KMSG:
        return KmsgTail(path, place)
    return JournalTail(path, place) if path == JOURNAL else FileTail(path, place)


def read_message(source: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    body = source.read(LENGTH.unpack(head)[0])
    return dict(json.loads(body))


def message(content: dict[str, Any]) -> bytes:
    """A message as bytes."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def _end_with_parent(parent: int) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # elsewhere than on Linux: the end of the input has to do
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """Answers until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    _end_with_parent(int(sys.argv[1]))
    child, out = Child(), sys.stdout.buffer
    while (request := read_message(sys.stdin.buffer)) is not None:
        out.write(message(child.answer(request)))
        out.flush()


if __name__ == "__main__":
    main()
