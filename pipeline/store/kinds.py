"""Which table and column a series belongs to: decided from names and labels when first seen, then never changed.

An *entity* is a scrape target's set of labels without the pivot labels; a *kind* of entity has a set of label keys and a
domain (the first two tokens of the metric's name), and is one wide table: a row for each entity and time, a column for
each metric and pivot value. What fits no kind is LONG: it goes to the long table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.store.postings import Ids, Labels

PIVOTS = frozenset(("mode", "le", "quantile"))
REST = "rest"
LONG = -1
NONE = 0xFFFFFFFF  # no series in this place
MOST_COLUMNS = 256
# A domain of fewer columns shares the rest kind of its key set; fewer than three in all are cheaper as long rows
# (a row of a wide table repeats entity and time for its columns together).
LEAST_OF_DOMAIN = 8
LEAST_OF_KIND = 3
MOST_PIVOT_VALUES = 64
MOST_KINDS = 1_000
# Of a table whose rows and columns hardly meet (each metric has entities of its own) every cell is written all the same. A
# cell costs about a third of a long row (measured: 2.7 us a sample where one cell in 51 is filled, 0.4 as long rows).
LEAST_FILLED = 1 / 3

Keys = tuple[str, ...]
Shape = tuple[Keys, Labels]  # label keys without pivots, and the pivot labels with their values
Need = tuple[str, str, int]  # metric name, type, number of the shape


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A metric (and pivot value) in its kind's table; index counts from 0 and names the column `c<index>`."""

    kind: int
    index: int
    name: str
    type: str
    pivot: Labels


@dataclass(slots=True)
class Kind:
    """A wide table. sids: uint32[entity row, column] of series ids, NONE where there is no series."""

    id: int
    domain: str
    keys: Keys
    columns: list[Column] = field(default_factory=list)
    sids: NDArray[np.uint32] = field(default_factory=lambda: np.full((0, 0), NONE, np.uint32))
    entities: list[int] = field(default_factory=list)

    def row(self, entity: int) -> int:
        """A row for one more entity."""
        self.entities.append(entity)
        count = len(self.entities)
        if count > len(self.sids):
            self._fit(count, len(self.columns))
        return count - 1

    def fit(self) -> None:
        """Makes room for the columns that there are now."""
        self._fit(len(self.entities), len(self.columns))

    def _fit(self, rows: int, columns: int) -> None:
        have = self.sids.shape
        if rows <= have[0] and columns <= have[1]:
            return
        room = (max(rows + rows // 4, 8) if rows > have[0] else have[0],
                min(MOST_COLUMNS, -(-columns // 8) * 8) if columns > have[1] else have[1])
        wider = np.full(room, NONE, np.uint32)
        wider[: have[0], : have[1]] = self.sids
        self.sids = wider

    def all_sids(self) -> Ids:
        """uint32[entities, columns]: the part that is in use."""
        return self.sids[: len(self.entities), : len(self.columns)]


def split(labels: Labels) -> tuple[Labels, Labels]:
    """(labels of the entity, pivot labels)."""
    return tuple([p for p in labels if p[0] not in PIVOTS]), tuple([p for p in labels if p[0] in PIVOTS])


def domain_of(name: str) -> str:
    """`node_network` for `node_network_receive_bytes_total`, `DCGM_FI` for `DCGM_FI_DEV_GPU_TEMP`."""
    return "_".join(name.split("_", 2)[:2])


def filled(entities: Sequence[set[int]]) -> float:
    """The share of cells with a value in a table with a column for each of `entities`, which show it (0 to 1)."""
    cells = len(set().union(*entities)) * len(entities)
    return sum(map(len, entities)) / cells if cells else 1.0


class Kinds:
    """All kinds and columns. shapes: by number. places: (metric name, shape's number) → Column, or None where it is LONG."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self._shape_numbers: dict[Shape, int] = {}
        self.all: list[Kind] = []
        self.places: dict[tuple[str, int], Column | None] = {}
        self._open: dict[tuple[str, Keys], int] = {}  # the newest kind of a domain and key set
        self._pivots: Counter[tuple[str, Keys]] = Counter()

    def shape(self, shape: Shape) -> int:
        """The number of a shape, new ones included. Numbers hold for this process only."""
        found = self._shape_numbers.get(shape)
        if found is None:
            found = self._shape_numbers[shape] = len(self.shapes)
            self.shapes.append(shape)
        return found

    def restore_kind(self, number: int, domain: str, keys: Keys) -> None:
        """A kind that the catalogue holds; in order of number."""
        self.all.append(Kind(number, domain, keys))
        self._open[(domain, keys)] = number

    def restore_column(self, kind: int, name: str, type_: str, shape: int) -> None:
        """A column (in order of index), or a LONG place, that the catalogue holds."""
        if kind == LONG:
            self.places[(name, shape)] = None
        else:
            self._add(self.all[kind], name, type_, shape)

    def assign(self, needs: Mapping[Need, set[int]]) -> tuple[list[Kind], list[Column], list[Need]]:
        """Gives each need that has no place yet one: (new kinds, new columns, those that are LONG).

        needs: with the numbers of the entities (any numbers) that show each of them.
        """
        groups: dict[tuple[str, Keys], list[Need]] = {}
        for one in needs:
            groups.setdefault((domain_of(one[0]), self.shapes[one[2]][0]), []).append(one)
        long: list[Need] = []
        rest: dict[Keys, list[Need]] = {}
        chosen: list[tuple[str, Keys, list[Need]]] = []
        for (domain, keys), many in groups.items():
            if (domain, keys) in self._open:
                chosen.append((domain, keys, many))
            elif len(many) >= LEAST_OF_DOMAIN:
                if filled([needs[one] for one in many]) < LEAST_FILLED:
                    long += many
                else:
                    chosen.append((domain, keys, many))
            else:
                rest.setdefault(keys, []).extend(many)
        for keys, many in rest.items():
            if (REST, keys) in self._open or len(many) >= LEAST_OF_KIND:
                chosen.append((REST, keys, many))
            else:
                long += many
        kinds: list[Kind] = []
        columns: list[Column] = []
        for domain, keys, many in chosen:
            long += self._place(domain, keys, many, kinds, columns)
        for name, _, shape in long:
            self.places[(name, shape)] = None
        return kinds, columns, long

    def _place(self, domain: str, keys: Keys, needs: Sequence[Need], kinds: list[Kind], columns: list[Column]) -> list[Need]:
        """Columns for the needs; gives those for which there is no room."""
        long: list[Need] = []
        for one in needs:
            name, type_, shape = one
            number = self._open.get((domain, keys))
            kind = None if number is None else self.all[number]
            if self.shapes[shape][1] and self._pivots[(name, keys)] >= MOST_PIVOT_VALUES:
                long.append(one)
                continue
            if kind is None or len(kind.columns) >= MOST_COLUMNS:
                if len(self.all) >= MOST_KINDS:
                    long.append(one)
                    continue
                kind = Kind(len(self.all), domain, keys)
                self.all.append(kind)
                self._open[(domain, keys)] = kind.id
                kinds.append(kind)
            columns.append(self._add(kind, name, type_, shape))
        return long

    def _add(self, kind: Kind, name: str, type_: str, shape: int) -> Column:
        keys, pivot = self.shapes[shape]
        column = Column(kind.id, len(kind.columns), name, type_, pivot)
        kind.columns.append(column)
        kind.fit()
        self.places[(name, shape)] = column
        if pivot:
            self._pivots[(name, keys)] += 1
        return column
