"""How much memory this process holds, and giving back what it has freed: the C library does so only when it is told to."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

LARGE_BYTES = 1024 * 1024
MOST_ARENAS = 2
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # malloc.h of glibc


@lru_cache(maxsize=1)
def _trim() -> Any:
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def give_back() -> None:
    """Returns free pages of the heap to the system; where the C library has no such call it does nothing.

    Costs milliseconds. A start leaves holes behind (texts of layouts, rows of registrations) that nothing fills again.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


def calm_heap() -> None:
    """For a process of its own that moves buffers of megabytes and lives for months: these come from the system and go
    back to it when they are freed, and threads share the heap. Where the C library has no such call it does nothing.

    glibc raises the size from which it asks the system for each buffer up to 32 MB as soon as one such was freed; from
    then on batches of 10 MB lie in the heap among small objects, and leave holes that nothing fills.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_ARENA_MAX, MOST_ARENAS)


def resident_bytes() -> int:
    """The resident set of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
