"""From scrapes to Arrow tables: one gather for each kind over the values of all scrapes of a flush.

The values of all scrapes are laid end to end, each behind one absent value; an index matrix then picks each cell of a
kind's table at once (0.01–0.02 µs a sample, performance.md §8), and each row of the result is a column for DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.derive import QUIET_STALE_BITS, STALE_BITS, absent, stale_array
from core.types import Floats
from pipeline.store.catalogue import Catalogue
from pipeline.store.ingest import Hour, Rows
from pipeline.store.layouts import Indexes, KnownLayout
from pipeline.store.postings import Ids

MOST_CELLS = 4_000_000  # of one gather: bounds the memory of a flush to some 100 MB
NO_COLUMNS: Indexes = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Filled:
    """Rows for a kind's table. columns: indexes of the value columns, after `entity` and `at_ms`; samples: cells with
    a value."""

    kind: int
    columns: Sequence[int]
    rows: pa.Table
    samples: int


@dataclass(slots=True)
class _Group:
    """What goes into one kind: (columns, index matrix, entities, time, offset of the scrape's values)."""

    items: list[tuple[Indexes, NDArray[np.int32], Ids, int, int]] = field(default_factory=list)
    cells: int = 0


def fill(hour: Hour, book: Catalogue) -> Iterator[Filled]:
    """The rows of an hour's pieces, kind by kind."""
    values, offsets = _laid(hour.pieces)
    groups: dict[int, _Group] = {}
    for (known, at, _), offset in zip(hour.pieces, offsets, strict=True):
        for block in known.blocks:
            group = groups.setdefault(block.kind, _Group())
            group.items.append((block.columns, block.take, block.entities, at, offset))
            group.cells += block.take.size
            if group.cells > MOST_CELLS:
                yield _filled(block.kind, groups.pop(block.kind), values)
    for entities, at in hour.gone:
        kinds = book.entity_kind[entities]
        for kind in np.unique(kinds).tolist():
            these = entities[kinds == kind]
            nothing = np.zeros((0, len(these)), np.int32)
            groups.setdefault(kind, _Group()).items.append((NO_COLUMNS, nothing, these, at, 0))
    for kind, group in groups.items():
        yield _filled(kind, group, values)


def _laid(pieces: Sequence[tuple[KnownLayout, int, Floats]]) -> tuple[Floats, list[int]]:
    """(all values, each piece behind an absent one; where that one stands, for each piece)."""
    nothing = stale_array(1)
    parts: list[Floats] = [nothing]
    offsets, offset = [], 1
    for _, _, values in pieces:
        parts += (nothing, values)
        offsets.append(offset)
        offset += 1 + len(values)
    values = np.concatenate(parts)
    bits = values.view(np.uint64)
    quiet = bits == QUIET_STALE_BITS
    if quiet.any():
        bits[quiet] = STALE_BITS
    return values, offsets


def _filled(kind: int, group: _Group, values: Floats) -> Filled:
    items = group.items
    columns = items[0][0]
    if any(one[0] is not columns for one in items):
        columns = np.unique(np.concatenate([one[0] for one in items]))
    width = [one[1].shape[1] for one in items]
    take = np.zeros((len(columns), sum(width)), np.intp)
    at = 0
    for (mine, matrix, _, _, offset), n in zip(items, width, strict=True):
        if len(mine) == len(columns):
            np.add(matrix, offset, out=take[:, at : at + n])
        else:
            take[np.searchsorted(columns, mine), at : at + n] = matrix + offset
        at += n
    cells = values.take(take)
    gone = cells.view(np.uint64) == STALE_BITS
    missing = np.count_nonzero(gone, axis=1).tolist()
    arrays = [pa.array(np.concatenate([one[2] for one in items]), pa.uint32()),
              pa.array(np.repeat(np.array([one[3] for one in items], np.int64), width), pa.int64())]
    arrays += [pa.array(cells[i], mask=gone[i]) if n else pa.array(cells[i]) for i, n in enumerate(missing)]
    chosen = columns.tolist()
    rows = pa.Table.from_arrays(arrays, ["entity", "at_ms", *(f"c{i}" for i in chosen)])
    return Filled(kind, chosen, rows, cells.size - sum(missing))


def long_rows(rows: Rows) -> pa.Table:
    """Rows for the long table."""
    ids, at, values = rows.arrays()
    gone = absent(values)
    column = pa.array(values, mask=gone) if gone.any() else pa.array(values)
    return pa.table({"series_id": pa.array(ids, pa.uint32()), "at_ms": pa.array(at, pa.int64()), "value": column})
