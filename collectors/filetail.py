"""New lines of a growing local file.

An unfinished last line waits for its end. A file that was rotated is read to its end before the new one begins; a file
that was cut short begins again at 0. Nothing but the standard library is needed here: helper processes start with it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 4 * 1024 * 1024  # of one log in one slot; the rest comes with the next slots
LONGEST_LINE = 64 * 1024
FIRST_LOOK_BACK = 1024 * 1024  # how much of a file that is met for the first time is read


@dataclass(slots=True)
class Lines:
    """Cuts bytes into lines. start: offset of the first byte that has not been given out as a line."""

    start: int = 0
    too_long: int = 0
    _rest: bytearray = field(default_factory=bytearray)
    _skipping: bool = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes, without their ends; a line over 64 KiB is dropped and counted."""
        self._rest += data
        *whole, rest = self._rest.split(b"\n")
        out = []
        for line in whole:
            self.start += len(line) + 1
            if self._skipping or len(line) > LONGEST_LINE:
                self.too_long += 1
                self._skipping = False
                continue
            out.append(line.decode("utf-8", "replace").rstrip("\r"))
        self._rest = bytearray(rest)
        if len(self._rest) > LONGEST_LINE:
            self.start += len(self._rest)
            self._rest.clear()
            self._skipping = True
        return out

    @property
    def end(self) -> int:
        """Offset of the next byte to read."""
        return self.start + len(self._rest)

    def last(self) -> list[str]:
        """The unfinished line, for a file that will not grow any more."""
        rest, self._rest = bytes(self._rest), bytearray()
        self.start += len(rest)
        return [rest.decode("utf-8", "replace")] if rest and not self._skipping else []


class FileTail:
    """One local file. place: (inode, offset) where an earlier run stopped, None for a file not met before."""

    def __init__(self, path: str, place: tuple[int, int] | None = None) -> None:
        self.path = path
        self._place = place
        self._file: BinaryIO | None = None
        self._inode = 0
        self._lines = Lines()

    @property
    def place(self) -> tuple[int, int]:
        """(inode, offset) of the first byte that has not been given out."""
        return self._inode, self._lines.start

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> list[str]:
        """New complete lines; an empty list where the file is missing or unreadable."""
        out: list[str] = []
        if self._file is None and not self._open():
            return out
        out += self._take()
        if self._replaced():
            out += self._lines.last()
            self.close()
            if self._open():
                out += self._take()
        return out

    def _open(self) -> bool:
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - it stays open between the slots, to survive a rotation
        except OSError:
            return False
        status = os.fstat(file.fileno())
        start = 0
        if self._place is not None and self._place[0] == status.st_ino and self._place[1] <= status.st_size:
            start = self._place[1]
        elif self._place is None and status.st_size > FIRST_LOOK_BACK:
            file.seek(status.st_size - FIRST_LOOK_BACK)
            start = file.tell() + len(file.readline())
        file.seek(start)
        self._file, self._inode, self._lines = file, status.st_ino, Lines(start)
        self._place = (self._inode, start)
        return True

    def _take(self) -> list[str]:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._lines.end:
            self._lines = Lines(0)
        self._file.seek(self._lines.end)
        return self._lines.feed(self._file.read(MOST_BYTES))

    def _replaced(self) -> bool:
        """True where the path is another file by now and the old one is read to its end."""
        assert self._file is not None
        try:
            status = Path(self.path).stat()
        except OSError:
            return False
        at_end = os.fstat(self._file.fileno()).st_size <= self._lines.end
        return status.st_ino != self._inode and at_end
