"""The series catalogue in memory: ids, entities, places in the wide tables, and when each series was seen.

Pure: no DuckDB here. The writer adds series and moves their times on; readers match. A lock makes one registration or
one match at a time; both are short. A series has one id for its name and labels. The target that registered it last owns
it: when it moves, its column stays and its entity changes, and `former` keeps where its older rows lie.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.protocols import Matcher
from core.types import Layout, Series
from pipeline.store.kinds import LONG, NONE, PIVOTS, Column, Kind, Kinds, Need, split
from pipeline.store.postings import METRIC, NO_IDS, Ids, Labels, Postings, accepts

NEVER = -(2**62)  # before any time
FOREVER = 2**62
NO_ENTITY = -1
UNPLACED = Column(LONG, -1, "", "", ())
Times = NDArray[np.int64]


@dataclass(slots=True)
class Fresh:
    """What a registration added and the database does not hold yet. long: needs without a column. series: new ids.
    placed: ids whose entity or owner changed. moves: (series, entity, newest time there)."""

    kinds: list[Kind] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    long: list[Need] = field(default_factory=list)
    entities: list[int] = field(default_factory=list)
    series: list[Ids] = field(default_factory=list)
    placed: list[Ids] = field(default_factory=list)
    moves: list[tuple[int, int, int]] = field(default_factory=list)


class Catalogue:
    """Arrays by entity id: entity_kind int16, entity_row and entity_target int32. Arrays by series id: entity int32
    (NO_ENTITY for long series), column int16, owner int32 (index into `targets`), first_ms and last_ms int64 (of rows,
    NEVER where there is none), alive bool (it stands in its target's newest layout: last seen when its target was).
    reading_ms: int64 by target, the time of its newest reading."""

    def __init__(self) -> None:
        self.kinds = Kinds()
        self.next_id = 0
        self.next_entity = 0
        self.partial: set[int] = set()  # targets that speak in parts (logs, pushes): none of them owns a series alone
        self.moved = 0  # grows whenever a series changes its owner
        self.targets: list[str] = []
        self.former: dict[int, list[tuple[int, int]]] = {}
        self.fresh = Fresh()
        self.entity_labels: list[Labels] = []
        self.entity_kind, self.entity_row = np.empty(0, np.int16), np.empty(0, np.int32)
        self.entity_target = np.empty(0, np.int32)
        self._shared = np.empty(0, np.bool_)  # entities whose labels another target shows as well
        self.entity, self.column = np.empty(0, np.int32), np.empty(0, np.int16)
        self.owner, self.alive = np.empty(0, np.int32), np.empty(0, np.bool_)
        self.first_ms, self.last_ms = np.empty(0, np.int64), np.empty(0, np.int64)
        self.reading_ms = np.empty(0, np.int64)
        self._target_index: dict[str, int] = {}
        self._entities: dict[tuple[int, Labels], int] = {}
        self._others: dict[tuple[int, Labels], list[int]] = {}  # entities of equal labels, where there are several
        self._long: dict[int, Series] = {}
        self._long_ids: dict[tuple[str, Labels], int] = {}
        self._long_names: set[str] = set()
        self._by_entity, self._by_series = Postings(), Postings()
        self._column_sets: dict[bytes, NDArray[np.int64]] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._count = 0
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return self._count

    # --- adding -------------------------------------------------------------------------------------------------------
    def target(self, target_id: str) -> int:
        """The index of a target, new ones included."""
        found = self._target_index.get(target_id)
        if found is None:
            found = self._target_index[target_id] = len(self.targets)
            self.targets.append(target_id)
            self.reading_ms = _fit(self.reading_ms, len(self.targets), NEVER)
        return found

    def numbers_of(self, target_ids: Sequence[str]) -> NDArray[np.int64]:
        """The index of each target; -2 where it is not known."""
        return np.array([self._target_index.get(one, -2) for one in target_ids], np.int64)

    def intern(self, labels: Labels) -> Labels:
        """Equal label pairs are kept once: a fleet repeats its few hundred pairs in each of its entities."""
        keep = self._pairs.setdefault
        return tuple([keep(pair, pair) for pair in labels])

    def shape(self, labels: Labels) -> tuple[Labels, int]:
        """(labels of the entity, number of the shape): what a set of labels says of places."""
        keys = tuple([key for key, _ in labels])
        if PIVOTS.isdisjoint(keys):
            return labels, self.kinds.shape((keys, ()))
        base, pivot = split(labels)
        return base, self.kinds.shape((tuple([key for key, _ in base]), pivot))

    def add_entity(self, number: int, kind: int, labels: Labels, target: int) -> None:
        """A new entity, or one that the database holds."""
        labels = self.intern(labels)
        if len(self.entity_labels) <= number:
            self.entity_labels.extend([()] * (number + 1 - len(self.entity_labels)))
        self.entity_labels[number] = labels
        self.next_entity = max(self.next_entity, number + 1)
        if len(self.entity_kind) <= number:
            self.entity_kind, self.entity_row = _fit(self.entity_kind, number + 1, -1), _fit(self.entity_row, number + 1, -1)
            self.entity_target = _fit(self.entity_target, number + 1, -1)
            self._shared = _fit(self._shared, number + 1, False)
        self.entity_kind[number], self.entity_target[number] = kind, target
        self.entity_row[number] = self.kinds.all[kind].row(number)
        known = self._entities.get((kind, labels))
        if known is not None:
            self._others.setdefault((kind, labels), [known]).append(number)
            self._shared[[known, number]] = True
        self._entities[(kind, labels)] = number
        self._by_entity.add(number, labels)

    def add_long(self, number: int, series: Series) -> None:
        """Name and labels of a series that stands, or once stood, in no wide table."""
        one = Series(series.name, self.intern(series.labels), series.type)
        self._long[number] = one
        self._long_ids[(one.name, one.labels)] = number
        self._long_names.add(one.name)
        self._by_series.add(number, ((METRIC, one.name), *one.labels))

    def add_series(self, ids: Ids, entity: NDArray[Any], column: NDArray[Any], owner: NDArray[Any]) -> None:
        """Places of series, new or from the database (NO_ENTITY for long ones)."""
        if not len(ids):
            return
        self.grow(int(ids.max()) + 1)
        self._count += int((self.owner[ids] < 0).sum())
        self.entity[ids], self.column[ids], self.owner[ids] = entity, column, owner
        placed = entity >= 0
        self._enter(ids[placed], entity[placed], column[placed])

    def _enter(self, ids: Ids, entity: NDArray[Any], column: NDArray[Any]) -> None:
        of = self.entity_kind[entity]
        for number in np.unique(of).tolist():
            here = of == number
            self.kinds.all[number].sids[self.entity_row[entity[here]], column[here]] = ids[here]

    def grow(self, size: int) -> None:
        """Room for series ids below `size`, which are never given again."""
        self.next_id = max(self.next_id, size)
        self.entity, self.column = _fit(self.entity, size, NO_ENTITY), _fit(self.column, size, -1)
        self.owner, self.alive = _fit(self.owner, size, -1), _fit(self.alive, size, False)
        self.first_ms, self.last_ms = _fit(self.first_ms, size, NEVER), _fit(self.last_ms, size, NEVER)

    # --- registering a layout -----------------------------------------------------------------------------------------
    def register(self, layout: Layout, claim: bool = False) -> Ids:
        """Series ids of a layout's series, in order; new ones are added. All are the layout's target's from now on.

        A partial layout (pushes, logs) makes no kinds: its new series are long ones, and what another target owns stays
        that target's unless it is claimed.
        """
        with self.lock:
            target = self.target(layout.target_id)
            if layout.partial:
                self.partial.add(target)
            bases, shapes, sets = self._sets(layout.series)
            entity, column = self._places(layout, bases, shapes, sets, target)
            ids = np.full(len(sets), NONE, np.uint32)
            wide = np.flatnonzero(entity >= 0)
            for number in np.unique(self.entity_kind[entity[wide]]).tolist():
                at = wide[self.entity_kind[entity[wide]] == number]
                ids[at] = self.kinds.all[number].sids[self.entity_row[entity[at]], column[at]]
            missing = np.flatnonzero(ids == NONE)
            if len(missing):
                self._number(layout, missing, ids, entity, column, target)
            if claim or not layout.partial:
                self._own(ids, target)
            return ids

    def _sets(self, series: Sequence[Series]) -> tuple[list[Labels], list[int], NDArray[np.int64]]:
        """(labels of the entity by set of labels, number of the shape by set, number of the set by series)."""
        seen: dict[int, int] = {}  # a layout shares few tuples of labels: by identity, which costs no hashing
        bases: list[Labels] = []
        shapes: list[int] = []
        numbers: list[int] = []
        for one in series:
            labels = one.labels
            number = seen.get(id(labels))
            if number is None:
                number = seen[id(labels)] = len(bases)
                base, shape = self.shape(labels)
                bases.append(base)
                shapes.append(shape)
            numbers.append(number)
        return bases, shapes, np.array(numbers, np.int64)

    def _places(self, layout: Layout, bases: list[Labels], shapes: list[int], sets: NDArray[np.int64],
                target: int) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """Entity (NO_ENTITY = long) and column of each series."""
        places, series = self.kinds.places, layout.series
        keys = [(one.name, shapes[number]) for one, number in zip(series, sets.tolist(), strict=True)]
        found = [places.get(key, UNPLACED) for key in keys]
        if UNPLACED in found:
            if not layout.partial:
                self._assign(series, keys, [bases[number] for number in sets.tolist()])
            found = [places.get(key) for key in keys]
        kind = np.array([LONG if c is None else c.kind for c in found], np.int64)
        column = np.array([-1 if c is None else c.index for c in found], np.int16)
        entity = np.full(len(found), NO_ENTITY, np.int32)
        wide = np.flatnonzero(kind >= 0)
        pairs, inverse = np.unique(kind[wide] << 32 | sets[wide], return_inverse=True)
        # A partial layout may show series of known entities; it makes none.
        owned = [self._entity(pair >> 32, bases[pair & 0xFFFFFFFF], target, not layout.partial) for pair in pairs.tolist()]
        if len(wide):
            entity[wide] = np.array(owned, np.int32)[inverse]
        return entity, column

    def _assign(self, series: Sequence[Series], keys: Sequence[tuple[str, int]], bases: Sequence[Labels]) -> None:
        """Places for the metrics that have none. keys, bases: name and shape, labels of the entity, of each series."""
        places = self.kinds.places
        types: dict[tuple[str, int], str] = {}
        shown: dict[tuple[str, int], set[int]] = {}
        numbers: dict[Labels, int] = {}
        for one, key, base in zip(series, keys, bases, strict=True):
            if key not in places:
                types[key] = one.type
                shown.setdefault(key, set()).add(numbers.setdefault(base, len(numbers)))
        kinds, columns, long = self.kinds.assign({(key[0], types[key], key[1]): rows for key, rows in shown.items()})
        self.fresh.kinds += kinds
        self.fresh.columns += columns
        self.fresh.long += long

    def _entity(self, kind: int, labels: Labels, target: int, make: bool) -> int:
        key = (kind, labels)
        found = self._entities.get(key)
        if found is not None:
            if self.entity_target[found] == target:
                return found
            for other in self._others.get(key, ()):
                if self.entity_target[other] == target:
                    return other
        if not make:
            return NO_ENTITY
        number = self.next_entity
        self.add_entity(number, kind, labels, target)
        self.fresh.entities.append(number)
        return number

    def _number(self, layout: Layout, missing: NDArray[np.int64], ids: Ids, entity: NDArray[np.int32],
                column: NDArray[np.int16], target: int) -> None:
        """Ids for the series that have none in their place: known ones that move here, and new ones."""
        series, names = layout.series, self._long_names
        place = entity[missing]
        plain = (place >= 0) & ~self._shared[np.maximum(place, 0)] if len(self._shared) else place >= 0
        if names:  # a long series of that name may be the one
            plain &= ~np.array([series[i].name in names for i in missing.tolist()], np.bool_)
        self._new(missing[plain], ids, entity, column, target)
        fresh: list[int] = []
        known: dict[tuple[str, Labels], int] = {}
        for i in missing[~plain].tolist():
            one, e, c = series[i], int(entity[i]), int(column[i])
            key = (one.name, one.labels)
            found = known.get(key, self._long_ids.get(key))
            if found is None:
                found = self._elsewhere(one, e, c)
            if found is None:
                known[key] = found = self.next_id
                self.grow(found + 1)
                fresh.append(i)
            elif key not in known:
                known[key] = found
                if e >= 0:
                    self._move(found, e, c)
            ids[i] = found
        if fresh:
            at = np.array(fresh, np.int64)
            self.add_series(ids[at], entity[at], column[at], np.full(len(at), target, np.int32))
            self.fresh.series.append(ids[at])
            for i in at[entity[at] < 0].tolist():
                self.add_long(int(ids[i]), series[i])

    def _new(self, at: NDArray[np.int64], ids: Ids, entity: NDArray[np.int32], column: NDArray[np.int16], target: int) -> None:
        """New ids for series in wide tables that stand nowhere else; at: their indexes in the layout."""
        if not len(at):
            return
        _, first, inverse = np.unique(entity[at].astype(np.int64) << 16 | column[at], return_index=True, return_inverse=True)
        order = np.empty(len(first), np.int64)  # ids in the layout's order, so that it is stored in few bytes
        order[np.argsort(first, kind="stable")] = np.arange(len(first))
        new = (self.next_id + np.arange(len(first))).astype(np.uint32)
        ids[at] = new[order[inverse]]
        chosen = np.sort(at[first])
        self.add_series(new, entity[chosen], column[chosen], np.full(len(new), target, np.int32))
        self.fresh.series.append(new)

    def _elsewhere(self, series: Series, entity: int, column: int) -> int | None:
        """The id of a series that stands under another target's entity, None where it stands nowhere."""
        if entity < 0:
            return self._wide_id(series.name, series.labels)
        key = (int(self.entity_kind[entity]), self.entity_labels[entity])
        return self._in_entities(key, column)

    def _in_entities(self, key: tuple[int, Labels], column: int) -> int | None:
        newest = self._entities.get(key)
        kind = self.kinds.all[key[0]]
        for one in self._others.get(key, () if newest is None else (newest,)):
            found = int(kind.sids[self.entity_row[one], column])
            if found != NONE:
                return found
        return None

    def _wide_id(self, name: str, labels: Labels) -> int | None:
        base, shape = self.shape(labels)
        place = self.kinds.places.get((name, shape))
        return None if place is None else self._in_entities((place.kind, base), place.index)

    def _move(self, series: int, entity: int, column: int) -> None:
        """A known series stands in another entity from now on."""
        old = int(self.entity[series])
        if old >= 0:
            until = int(self.reading_ms[self.entity_target[old]])
            self.former.setdefault(series, []).append((old, until))
            self.fresh.moves.append((series, old, until))
            self.kinds.all[int(self.entity_kind[old])].sids[self.entity_row[old], self.column[series]] = NONE
        ids = np.array([series], np.uint32)
        self.entity[series], self.column[series] = entity, column
        self._enter(ids, self.entity[ids], self.column[ids])
        self.fresh.placed.append(ids)

    def _own(self, ids: Ids, target: int) -> None:
        moved = np.unique(ids[self.owner[ids] != target])
        if not len(moved):
            return
        self.settle(moved)
        self.owner[moved] = target
        self.moved += 1
        self.fresh.placed.append(moved)

    def column_set(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Equal sets of columns as one array: layouts of one structure are told by identity."""
        return self._column_sets.setdefault(columns.tobytes(), columns)

    # --- times --------------------------------------------------------------------------------------------------------
    def settle(self, ids: Ids) -> None:
        """The series are no longer in their target's newest layout: what was known of their end is written down."""
        self.last_ms[ids] = self.seen_last(ids)
        self.alive[ids] = False

    def seen_last(self, ids: Ids) -> Times:
        """int64[ids]: the time of the newest row of each (NEVER where there is none)."""
        last = self.last_ms[ids]
        live = self.alive[ids] & (self.first_ms[ids] != NEVER)
        return np.where(live, np.maximum(last, self.reading_ms[self.owner[ids]]), last)

    def wide_of(self, ids: Ids) -> Iterator[tuple[Kind, Ids]]:
        """The series that have a place in a wide table, by kind."""
        placed = ids[self.entity[ids] >= 0]
        kinds = self.entity_kind[self.entity[placed]]
        for number in np.unique(kinds).tolist():
            yield self.kinds.all[number], placed[kinds == number]

    # --- reading ------------------------------------------------------------------------------------------------------
    def get(self, series_id: int) -> Series:
        """The series of an id. KeyError where none is known."""
        if series_id >= self.next_id or self.owner[series_id] < 0:
            raise KeyError(series_id)
        entity = int(self.entity[series_id])
        if entity < 0:
            return self._long[series_id]
        labels = self.entity_labels[entity]
        place = self.kinds.all[int(self.entity_kind[entity])].columns[int(self.column[series_id])]
        return Series(place.name, tuple(sorted((*labels, *place.pivot))) if place.pivot else labels, place.type)

    def named(self, ids: Ids) -> Iterator[tuple[str, Labels]]:
        """(name, labels) of each series: `get` without an object for each."""
        entities, columns = self.entity[ids], self.column[ids].tolist()
        kinds = self.entity_kind[np.maximum(entities, 0)].tolist() if len(self.entity_kind) else [0] * len(ids)
        every, labels_of = [kind.columns for kind in self.kinds.all], self.entity_labels
        for number, entity, kind, column in zip(ids.tolist(), entities.tolist(), kinds, columns, strict=True):
            if entity < 0:
                yield self._long[number].name, self._long[number].labels
                continue
            place, labels = every[kind][column], labels_of[entity]
            yield place.name, tuple(sorted((*labels, *place.pivot))) if place.pivot else labels

    def ids_of(self, series: Iterable[Series]) -> Ids:
        """Ids of the series that are known, ascending."""
        with self.lock:
            found = [self._long_ids.get((one.name, one.labels)) for one in series]
            found = [self._wide_id(one.name, one.labels) if number is None else number
                     for number, one in zip(found, series, strict=True)]
        return np.unique(np.array([i for i in found if i is not None], np.uint32))

    def match(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> Ids:
        """Ids of series that all matchers accept and that have samples between start and end (ms), ascending.

        Raises BadInput for a pattern that RE2 refuses or that is longer than 1,000 characters.
        """
        with self.lock:
            found = np.unique(np.concatenate([self._by_series.match(matchers), *self._match_wide(matchers)]))
        if start is not None:
            found = found[self.seen_last(found) >= start]
        if end is not None:
            found = found[(self.first_ms[found] <= end) & (self.first_ms[found] != NEVER)]
        return found

    def _match_wide(self, matchers: Sequence[Matcher]) -> Iterator[Ids]:
        of_column = [m for m in matchers if m.label == METRIC or m.label in PIVOTS]
        entities = self._by_entity.match([m for m in matchers if m.label != METRIC and m.label not in PIVOTS])
        if not len(entities):
            return
        kinds = self.entity_kind[entities]
        for number in np.unique(kinds).tolist():
            kind = self.kinds.all[number]
            rows = self.entity_row[entities[kinds == number]]
            columns = np.ones(len(kind.columns), np.bool_)
            for one in of_column:
                columns &= accepts(one, [_value(c, one.label) for c in kind.columns])
            sids = kind.sids[np.ix_(rows, np.flatnonzero(columns))]
            yield sids[sids != NONE]

    def metric_types(self) -> list[tuple[str, str]]:
        """(metric name, type) of every series that was ever seen, sorted, each pair once."""
        wide = {(column.name, column.type) for kind in self.kinds.all for column in kind.columns}
        return sorted(wide | {(one.name, one.type) for one in list(self._long.values())})

    def label_names(self) -> list[str]:
        """All label names in use, `__name__` included, sorted."""
        with self.lock:
            if not self._count:
                return []
            pivots = {key for kind in self.kinds.all if kind.entities for c in kind.columns for key, _ in c.pivot}
            return sorted({METRIC, *self._by_series.names(), *self._by_entity.names(), *pivots})

    def label_values(self, name: str) -> list[str]:
        """All values of a label, sorted."""
        with self.lock:
            found = set(self._by_series.values(name)) | set(self._by_entity.values(name))
            if name == METRIC or name in PIVOTS:
                for kind in self.kinds.all:
                    used = (kind.all_sids() != NONE).any(axis=0)
                    found |= {_value(c, name) for c, here in zip(kind.columns, used.tolist(), strict=True) if here}
            return sorted(found - {""})


def _value(column: Column, label: str) -> str:
    return column.name if label == METRIC else dict(column.pivot).get(label, "")


def _fit(array: NDArray[Any], size: int, fill: Any) -> NDArray[Any]:
    """The array with room for `size` items; what is added holds `fill`."""
    if len(array) >= size:
        return array
    more = max(size, len(array) + len(array) // 2, 256)
    out = np.full(more, fill, array.dtype)
    out[: len(array)] = array
    return out


__all__ = ["FOREVER", "NEVER", "NO_ENTITY", "NO_IDS", "Catalogue", "Fresh"]
