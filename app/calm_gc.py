"""How often the processes that hold millions of small objects look for reference cycles.

Labels and layouts are plain objects without cycles, but Python's collector walks all of them each time that enough new
ones were made: registering 257,000 series took three times as long with its usual thresholds. Cycles are still found,
after more allocations.
"""

from __future__ import annotations

import gc

YOUNG, MIDDLE, OLD = 50_000, 10, 10


def calm_gc() -> None:
    """For a process of its own; what exists by now (modules, classes) is never walked again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
