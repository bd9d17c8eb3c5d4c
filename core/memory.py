"""How much memory this process holds, and giving back what it has freed: the C library does so only when it is told to."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any


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


def resident_bytes() -> int:
    """The resident set of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
