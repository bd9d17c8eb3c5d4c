"""A layout as the store needs it: where each value of a scrape goes, as index matrices over the scrape's values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.derive import absent
from core.types import Floats
from pipeline.store.catalogue import Catalogue
from pipeline.store.postings import Ids

Indexes = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A layout's part in one kind. columns: int64[C] ascending; entities: uint32[E]; take: int32[C, E], 1 + the index of
    the value of each cell, 0 where there is none."""

    kind: int
    columns: Indexes
    entities: Ids
    take: NDArray[np.int32]


@dataclass(slots=True, eq=False)
class KnownLayout:
    """ids: uint32[values]. blocks: what goes to wide tables. long: indexes of what goes to the long table. foreign:
    indexes of values whose series another target owns. counted: indexes of the values that count at all (a series that
    stands twice counts once), None = all. version: of the catalogue's owners when this was made."""

    id: str
    target_id: str
    target: int
    ids: Ids
    partial: bool
    blocks: tuple[Block, ...] = ()
    long: Indexes | None = None
    foreign: Indexes | None = None
    counted: Indexes | None = None
    version: int = 0
    used_ms: int = 0

    @property
    def size(self) -> int:
        return len(self.ids)

    def shown(self, values: Floats) -> tuple[Ids, Floats]:
        """(ids, values) of a scrape's values that are there and count, other targets' left out."""
        ids = self.ids
        if self.counted is not None:
            ids, values = ids[self.counted], values[self.counted]
        gone = absent(values)
        return (ids[~gone], values[~gone]) if gone.any() else (ids, values)

    def build(self, book: Catalogue) -> None:
        """Makes the indexes from the places that the catalogue has now."""
        ids = self.ids
        _, first = np.unique(ids, return_index=True)
        mine = book.owner[ids] == self.target
        if self.partial:  # two of a rank's log lines may tell one series at different times: each sample counts by itself
            mine |= np.isin(book.owner[ids], list(book.partial))
        taken = np.zeros(len(ids), np.bool_)
        taken[first] = True
        everything = bool(mine.all()) and len(first) == len(ids)
        self.counted = None if everything else np.flatnonzero(taken & mine)
        self.foreign = np.flatnonzero(taken & ~mine)
        chosen = np.arange(len(ids)) if self.counted is None else self.counted
        entity = book.entity[ids[chosen]] if not self.partial else np.full(len(chosen), -1, np.int32)
        self.long = chosen[entity < 0]
        wide, entity = chosen[entity >= 0], entity[entity >= 0]
        kinds, columns = book.entity_kind[entity], book.column[ids[wide]]
        blocks = []
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            used, c = np.unique(columns[here], return_inverse=True)
            entities, e = np.unique(entity[here], return_inverse=True)
            take = np.zeros((len(used), len(entities)), np.int32)
            take[c, e] = wide[here] + 1
            blocks.append(Block(kind, book.column_set(used.astype(np.int64)), entities.astype(np.uint32), take))
        self.blocks = tuple(blocks)
        self.version = book.moved
