"""Memory that a process has freed goes back to the system only when the C library is told to look for it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import lru_cache
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
