"""dcgm-exporter's gauge of the last XID: when it came to a code. It keeps its last value until its exporter starts again, so what stands
in it, and its fall to 0, tell nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from core.types import Target
from core.window import Window

# The log and the gauge tell of one event at different times: the exporter's cycle is 30 s, a slow scrape 60 s more.
SAME_MS = 120_000


def changes(window: Window) -> tuple[tuple[int, Target, int], ...]:
    """(ms, GPU, code) of each change of the gauge to a code, by GPU and time. It is absent until the first XID, so a first value
    counts where the GPU was seen before it."""
    return window.once("changes of the XID gauge", lambda: tuple(_changes(window)))


def _changes(window: Window) -> Iterator[tuple[int, Target, int]]:
    block = window.block("gpu.xid")
    if not len(window.times) or not np.nan_to_num(block.values).any():
        return
    seen = window.block("gpu.temperature_celsius").first_at
    for e in np.flatnonzero(np.nan_to_num(block.values).any(axis=0)):
        rows = np.flatnonzero(~np.isnan(block.values[:, e]))
        values = block.values[rows, e]
        before = np.concatenate([[np.nan], values[:-1]])
        for i in np.flatnonzero((values > 0) & ~(values == before)):
            at = int(window.times[rows[i]])
            # A first value may have stood there for days when Greylag first looked, unless the GPU was watched before it.
            if np.isnan(before[i]) and not (seen[e] < block.first_at[e] and at - block.first_at[e] <= SAME_MS):
                continue
            yield at, block.entities[e], int(values[i])
