"""The freeze, made to hold when everything else is down.

A freeze by call sets a flag that the hands read before each command; it waits for no tick, no store and no door. It also
writes the freeze file, so that a restart before the next commit does not lift it. A file that a person put there is a
person's: only they take it away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from core.clock import rfc3339
from remediation.engine import Engine

OURS = "frozen by call: "
LOCK_SECONDS = 0.5


class Freezer:
    """file: the freeze file. engine: whose commands it holds back."""

    def __init__(self, file: Path, engine: Engine) -> None:
        self._file, self._engine = file, engine

    def freeze(self, actor: str, at: int) -> bool:
        """No command starts from now on. Gives whether the file could be written; it holds until the process ends anyway."""
        self._engine.freeze()
        with contextlib.suppress(OSError):
            if not self._file.exists():
                self._file.write_text(f"{OURS}{actor} at {rfc3339(at)}\n", encoding="utf-8")
            return True
        return False

    def resume(self) -> None:
        """Lifts a freeze by call, its file included; a file of a person goes on to hold. Raises OSError where the file is ours
        and cannot be removed: it would hold after the next restart."""
        if self._ours():
            self._file.unlink(missing_ok=True)
        self._engine.resume()

    def _ours(self) -> bool:
        try:
            return self._file.read_text(encoding="utf-8", errors="replace").startswith(OURS)
        except OSError:
            return False


@contextlib.contextmanager
def held_briefly(lock: Lock) -> Iterator[None]:
    """The lock where it is free soon, else without: a tick that waits for a full disk holds it for as long as that takes."""
    taken = lock.acquire(timeout=LOCK_SECONDS)
    try:
        yield
    finally:
        if taken:
            lock.release()
