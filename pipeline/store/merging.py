"""From fetched rows to samples of one series: pure.

A wide row is written at each reading of its entity, so a series that ended has NULL in all later rows: the first one after
a value is its stale marker, and those before any value say nothing. Rows of the long table come later or beside: where
both have a time, a value counts before a marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from core.derive import absent
from core.types import Floats
from pipeline.store.catalogue import Times
from pipeline.store.postings import Ids

Piece = tuple[Times, Floats]


def wide_pieces(entities: Ids, at: Times, values: Floats, wanted: Ids) -> Iterator[Piece]:
    """The samples of one column for each wanted entity. entities, at, values: rows sorted by entity and time; wanted:
    ascending."""
    gone = absent(values)
    if gone.any():
        before_is_mine = np.zeros(len(values), np.bool_)
        before_is_mine[1:] = (entities[1:] == entities[:-1]) & ~gone[:-1]
        keep = np.flatnonzero(~gone | before_is_mine)
        entities, at, values = entities[keep], at[keep], values[keep]
    low, high = np.searchsorted(entities, wanted, "left"), np.searchsorted(entities, wanted, "right")
    for first, last in zip(low.tolist(), high.tolist(), strict=True):
        yield at[first:last], values[first:last]


def merged(pieces: Sequence[Piece]) -> Piece:
    """The samples of one series from its pieces, each sorted by time; of equal times a value counts, the first of them."""
    if len(pieces) == 1:
        at, values = pieces[0]
        if not absent(values).any():
            return at, values
    at, values = np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces])
    gone = absent(values)
    order = np.lexsort((gone, at))
    at, values, gone = at[order], values[order], gone[order]
    keep = np.ones(len(at), np.bool_)
    keep[1:] = at[1:] != at[:-1]
    at, values, gone = at[keep], values[keep], gone[keep]
    before: NDArray[np.bool_] = np.ones(len(at), np.bool_)
    before[1:] = gone[:-1]
    keep = ~(gone & before)
    return at[keep], values[keep]
