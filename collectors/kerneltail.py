"""New lines of this machine's own kernel: `/dev/kmsg`, and the journal by way of journalctl.

Both are read in a disposable helper process, as files are. A place is two numbers, as a file's is: which boot (or that it is a
journal), and where in it. Nothing but the standard library is needed here.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

KMSG, JOURNAL = "/dev/kmsg", "journal:"
MOST_RECORDS = 50_000  # in one slot; the rest comes with the next slots
RECORD_BYTES = 8192    # the kernel's own bound of a record
LOOK_BACK = "-10min"
JOURNAL_SECONDS = 20
BOOT_ID = "/proc/sys/kernel/random/boot_id"
JOURNAL_PLACE = 2


def boot_number() -> int:
    """A number of this boot, never 0."""
    try:
        return int(Path(BOOT_ID).read_text(encoding="ascii").replace("-", "")[:12], 16) or 1
    except (OSError, ValueError):
        return 1


class KmsgTail:
    """The kernel's ring of records. place: (boot, number of the next record); records of another boot are all new."""

    def __init__(self, path: str = KMSG, place: tuple[int, int] | None = None) -> None:
        self._path = path
        self._boot = boot_number()
        self._next = place[1] if place is not None and place[0] == self._boot else 0
        self._descriptor: int | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self._boot, self._next

    def close(self) -> None:
        """Closes the device."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self) -> list[str]:
        """New records, each as its first line. Raises OSError where the device may not be read."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        out: list[str] = []
        while len(out) < MOST_RECORDS:
            try:
                record = os.read(self._descriptor, RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the ring overtook the reader: it goes on at the oldest that is left
                    continue
                if error.errno in (errno.EAGAIN, errno.EINVAL):
                    break
                raise
            if not record:
                break
            line = record.partition(b"\n")[0].decode("utf-8", "replace")
            number = line.partition(";")[0].split(",")[1:2]
            if number and number[0].isdigit():
                if int(number[0]) < self._next:
                    continue
                self._next = int(number[0]) + 1
            out.append(line)
        return out


class JournalTail:
    """The kernel's lines in systemd's journal, all boots. place: (2, microseconds of the newest line)."""

    def __init__(self, path: str = JOURNAL, place: tuple[int, int] | None = None) -> None:
        self._newest = place[1] if place is not None and place[0] == JOURNAL_PLACE else 0

    @property
    def place(self) -> tuple[int, int]:
        return JOURNAL_PLACE, self._newest

    def close(self) -> None:
        """Nothing stays open."""

    def read(self) -> list[str]:
        """New lines in JSON. Raises OSError where there is no journalctl, or it may not read."""
        since = f"@{self._newest // 1_000_000}" if self._newest else LOOK_BACK
        words = ["journalctl", "_TRANSPORT=kernel", "--output=json", "--no-pager", "--quiet", f"--since={since}", f"--lines={MOST_RECORDS}",
                 "--output-fields=MESSAGE,_HOSTNAME,_TRANSPORT"]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=JOURNAL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"journalctl took over {JOURNAL_SECONDS} s") from None
        if done.returncode and not done.stdout:
            raise OSError(errno.EIO, done.stderr.decode("utf-8", "replace").strip()[:200] or "journalctl failed")
        out, newest = [], self._newest
        for line in done.stdout.splitlines():
            try:
                at = int(json.loads(line)["__REALTIME_TIMESTAMP"])
            except (ValueError, KeyError, TypeError):
                continue
            if at > self._newest:
                out.append(line.decode("utf-8", "replace"))
                newest = max(newest, at)
        self._newest = newest
        return out
