"""The spool: what was acknowledged to a sender, on disk until the owner has committed it.

Append-only segment files `<number of the first record>.seg`. A record is length (u32), CRC-32 of the payload (u32) and
payload. Records are numbered from 1 on; the file `place` holds the number before which everything is committed.

- Group commit: `append` returns once an fsync that covers the record is done; all records that came while the last fsync
  ran share the next one.
- After a crash the last segment may end in the middle of a record: that tail was acknowledged to nobody and is cut off.
- The size is bounded: beyond the budget `append` raises SpoolFull, nothing older is dropped for something newer.
- After a failed write or fsync nothing of its group counts as written: the segment is cut back to what was known to be
  on disk and given up, and the next group starts a new one.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

log = logging.getLogger("greylag.push")
SEGMENT_BYTES = 16 * 1024 * 1024
MOST_RECORD_BYTES = 256 * 1024 * 1024  # a length beyond this is damage, not a record
_HEAD = struct.Struct("<II")
PLACE, LOCK = "place", "lock"


class SpoolFull(Exception):
    """The spool's budget is used up: the owner has not committed for long."""


class SpoolFailed(Exception):
    """The disk did not take the record."""


@dataclass(slots=True)
class _Segment:
    """first: number of its first record; records: how many it holds; size: bytes that are known to be on disk."""

    path: Path
    first: int
    records: int = 0
    size: int = 0

    @property
    def next(self) -> int:
        return self.first + self.records


@dataclass(slots=True)
class _Waiting:
    payload: bytes
    item: Any
    done: asyncio.Future[int]


class Spool:
    """See the module. written: called in the event loop with (number, item) of each record that is on disk, in order,
    before its `append` returns. budget: bytes. One process and one event loop own a spool: BlockingIOError where another
    has it open."""

    def __init__(self, folder: Path, budget: int, written: Callable[[int, Any], None] | None = None,
                 segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder, self._budget, self._written, self._segment_bytes = folder, budget, written, segment_bytes
        self._segments: list[_Segment] = []
        self._file: BinaryIO | None = None
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, "greylag-spool")
        self.place = 1
        self.fsyncs = 0
        self.damaged = 0
        self._open()

    # --- state --------------------------------------------------------------------------------------------------------
    @property
    def next(self) -> int:
        """The number that the next record gets."""
        return self._segments[-1].next if self._segments else self.place

    @property
    def size(self) -> int:
        """Bytes on disk, and those that wait to be written."""
        return sum(one.size for one in self._segments) + self._queued_bytes

    @property
    def busy(self) -> bool:
        """Whether anything waits to be written."""
        return self._queued_bytes > 0

    def spans(self) -> list[tuple[int, int]]:
        """(first record, the one behind the last) of each segment."""
        return [(one.first, one.next) for one in self._segments if one.records]

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # A worker that is not quite dead must not find its segments cut by the one that follows it.
        self._lock = open(self._folder / LOCK, "w")  # noqa: SIM115 - held as long as the spool is open
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError, ValueError):
            self.place = max(1, int((self._folder / PLACE).read_text("ascii")))
        for path in sorted(self._folder.glob("*.seg")):
            segment = _Segment(path, int(path.stem, 16))
            whole = path.stat().st_size
            for _, payload in _records(path):
                segment.records += 1
                segment.size += _HEAD.size + len(payload)
            if segment.size < whole:
                self.damaged += 1
                log.warning("%s: %d bytes behind its last whole record were cut off", path.name, whole - segment.size)
                os.truncate(path, segment.size)
            self._segments.append(segment)
        # A segment that is not full goes on; numbers never go back, also where `place` is ahead of what was found.
        if self._segments and self.place > self.next:
            self._segments.append(_Segment(self._path(self.place), self.place))
        self.cut(self.place)

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:016x}.seg"

    # --- writing ------------------------------------------------------------------------------------------------------
    async def append(self, payload: bytes, item: Any = None) -> int:
        """Writes a record; returns its number once it is on disk. Raises SpoolFull and SpoolFailed."""
        size = _HEAD.size + len(payload)
        if self.size + size > self._budget:
            raise SpoolFull(f"{self.size} of {self._budget} bytes are used")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        one = _Waiting(payload, item, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._queued_bytes += size
        self._wake.set()
        # The sender may go away: the record is written all the same, so it must not be cancelled half way.
        return await asyncio.shield(one.done)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            group, self._queue = self._queue, []
            if not group:
                continue
            data = b"".join(_HEAD.pack(len(one.payload), zlib.crc32(one.payload)) + one.payload for one in group)
            segment = self._segment_for_next()
            try:
                await loop.run_in_executor(self._disk, self._write, segment, data)
            except OSError as error:
                self._failed(group, error)
            else:
                first = segment.next
                segment.records += len(group)
                segment.size += len(data)
                for number, one in enumerate(group, first):
                    if self._written is not None:
                        self._written(number, one.item)
                    if not one.done.done():
                        one.done.set_result(number)
            self._queued_bytes -= len(data)

    def _segment_for_next(self) -> _Segment:
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._close_file()
            self._segments.append(_Segment(self._path(self.next), self.next))
        return self._segments[-1]

    def _write(self, segment: _Segment, data: bytes) -> None:
        """In the disk thread: the group's bytes at the segment's end, and one fsync."""
        if self._file is None:
            new = not segment.path.exists()
            self._file = open(segment.path, "r+b" if not new else "w+b", buffering=0)  # noqa: SIM115 - kept open
            self._file.seek(segment.size)
            if new:
                sync_folder(self._folder)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view):]
        os.fdatasync(self._file.fileno())
        self.fsyncs += 1

    def _failed(self, group: list[_Waiting], error: OSError) -> None:
        log.error("the spool could not be written: %s", error)
        self._close_file()
        segment = self._segments[-1]
        with suppress(OSError):
            os.truncate(segment.path, segment.size)
        if segment.records:
            self._segments.append(_Segment(self._path(segment.next), segment.next))
        for one in group:
            if not one.done.done():
                one.done.set_exception(SpoolFailed(str(error)))

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    # --- reading and cutting ------------------------------------------------------------------------------------------
    def read(self, start: int, most_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(number, payload) of the records on disk from `start` on, in order; ends after `most_bytes` of payload."""
        total = 0
        for segment in list(self._segments):
            if segment.next <= start:
                continue
            for number, (_, payload) in enumerate(_records(segment.path, segment.size), segment.first):
                if number < start:
                    continue
                yield number, payload
                total += len(payload)
                if most_bytes is not None and total >= most_bytes:
                    return

    def cut(self, place: int) -> None:
        """Everything before record `place` is committed by the owner: whole segments of it are removed."""
        if place > self.place or not (self._folder / PLACE).exists():
            self.place = max(place, self.place)
            fresh = self._folder / f"{PLACE}.tmp"
            fresh.write_text(str(self.place), "ascii")
            fresh.replace(self._folder / PLACE)
        while self._segments and self._segments[0].next <= self.place and self._segments[0].records:
            if len(self._segments) == 1:
                if self._queue or self._queued_bytes:
                    return  # it is being written to
                self._close_file()
                self._segments.append(_Segment(self._path(self.next), self.next))
            with suppress(OSError):
                self._segments[0].path.unlink()
            del self._segments[0]

    async def stop(self) -> None:
        """Writes what waits, then closes."""
        while self._queued_bytes and self._task is not None and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._disk.shutdown(wait=True)
        self._close_file()
        self._lock.close()


def _records(path: Path, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of the whole records of a segment, up to the first that is none."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    with file:
        offset = 0
        while size is None or offset < size:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, crc = _HEAD.unpack(head)
            if length > MOST_RECORD_BYTES:
                return
            payload = file.read(length)
            if len(payload) < length or zlib.crc32(payload) != crc:
                return
            yield offset, payload
            offset += _HEAD.size + length


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
