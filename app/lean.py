"""What the owner and the collectors do at their start to stay small for months.

Labels and layouts are plain objects without cycles, but Python's collector walks all of them each time that enough new
ones were made: registering 257,000 series took three times as long with its usual thresholds. Cycles are still found,
after more allocations.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from core.memory import calm_heap

YOUNG, MIDDLE, OLD = 50_000, 10, 10


def lean() -> None:
    """For a process of its own, after its imports; what exists by now (modules, classes) is never walked again."""
    calm_heap()
    without_pandas()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Says of pandas that it is not there, and nothing of all others."""
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def without_pandas() -> None:
    """Lets pyarrow find out that it has no pandas. Where pandas is installed (the explorer needs it) pyarrow's first array
    loads it, to see whether it was given one of its columns: 43 MB and 0.4 s of CPU in each process (measured).

    It asks once in a process: whoever wants pandas afterwards, a plug-in for one, gets it.
    """
    if "pandas" in sys.modules:
        return
    import numpy as np
    import pyarrow as pa

    hiding = _NoPandas()
    sys.meta_path.insert(0, hiding)
    try:
        pa.array(np.zeros(1))
    finally:
        sys.meta_path.remove(hiding)
