"""Which parts there are: one number for each part for as long as anything is known of it.

A part is found by its id, else by its place (kind, node, device; job and rank for ranks). A part that was first seen
without an id takes the id that its place later shows. A GPU that moves to another index keeps its number: its past
goes with the id. Another id at the same place is another part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.types import Floats, Target

Numbers = NDArray[np.int64]
_DIGITS = re.compile(r"(\d+)")


# The names of a site come again with each of its parts, at each change of an axis.
@lru_cache(maxsize=1 << 17)
def natural(text: str | None) -> tuple[Any, ...]:
    """A sort key in which `n2` comes before `n10`; None comes first."""
    if text is None:
        return ()
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _DIGITS.split(text) if p)


def order_of(target: Target) -> tuple[Any, ...]:
    """Where a part stands on its kind's axis: by node and device, ranks by job and rank; ids part equal places."""
    if target.kind in ("rank", "job"):
        return natural(target.job), -1 if target.rank is None else target.rank, (), ""
    return natural(target.node), 0, natural(target.device), target.id or ""


def place_of(target: Target) -> tuple[str, str | None, Any]:
    """The identity of a part whose id is not known."""
    if target.kind in ("rank", "job"):
        return target.kind, target.job, target.rank
    return target.kind, target.node, target.device


class Parts:
    """Numbers for parts. `seen`: float64[number], ms of the newest sample, -inf where none yet. `node`: int64[number],
    an index into `nodes`, -1 where the part has no node. Numbers of forgotten parts are used again."""

    def __init__(self) -> None:
        self.targets: list[Target | None] = []
        self.seen: Floats = np.full(64, -np.inf)
        self.node: Numbers = np.full(64, -1, np.int64)
        self.nodes: list[str] = []
        self.version = 0
        self._node_index: dict[str, int] = {}
        self._by_id: dict[tuple[str, str], int] = {}
        self._by_place: dict[tuple[str, str | None, Any], int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.targets)

    def find(self, target: Target) -> int | None:
        """The part's number, None where it is not known."""
        if target.id and target.kind not in ("rank", "job"):
            found = self._by_id.get((target.kind, target.id))
            if found is not None:
                return found
        at_place = self._by_place.get(place_of(target))
        if at_place is None:
            return None
        known = self.targets[at_place]
        if known is None or (target.id and known.id and known.id != target.id and target.kind not in ("rank", "job")):
            return None
        return at_place

    def resolve(self, target: Target) -> int:
        """The part's number; a new part gets one. Its node, device, id, job and rank are brought up to date."""
        number = self.find(target)
        if number is None:
            return self._add(target)
        known = self.targets[number]
        if known is not None and known != target:
            self._update(number, known, target)
        return number

    def _add(self, target: Target) -> int:
        number = self._free.pop() if self._free else len(self.targets)
        if number == len(self.targets):
            self.targets.append(None)
            if number >= len(self.seen):
                self.seen = np.concatenate([self.seen, np.full(len(self.seen), -np.inf)])
                self.node = np.concatenate([self.node, np.full(len(self.node), -1, np.int64)])
        self.seen[number] = -np.inf
        self._place(number, target)
        return number

    def _update(self, number: int, known: Target, target: Target) -> None:
        same_node = known.node == target.node or target.node is None
        fresh = replace(
            target,
            id=target.id or known.id,
            serial=target.serial or known.serial,
            node=target.node or known.node,
            device=target.device if target.device is not None or not same_node else known.device,
            job=target.job or known.job,
            rank=known.rank if target.rank is None else target.rank,
        )
        if fresh != known:
            place = place_of(known)
            if self._by_place.get(place) == number:
                del self._by_place[place]
            self._place(number, fresh)

    def _place(self, number: int, target: Target) -> None:
        self.targets[number] = target
        self._by_place[place_of(target)] = number
        if target.id and target.kind not in ("rank", "job"):
            self._by_id[target.kind, target.id] = number
        self.node[number] = -1 if target.node is None else self.node_number(target.node)
        self.version += 1

    def node_number(self, name: str) -> int:
        """The index of a node's name in `nodes`."""
        found = self._node_index.get(name)
        if found is None:
            found = self._node_index[name] = len(self.nodes)
            self.nodes.append(name)
        return found

    def of_node(self, name: str | None) -> list[int]:
        """The parts of a node (None = those without one), by number."""
        number = -1 if name is None else self._node_index.get(name)
        if number is None:
            return []
        found = np.flatnonzero(self.node[:len(self.targets)] == number).tolist()
        return [i for i in found if self.targets[i] is not None]

    def forget(self, numbers: Iterable[int]) -> None:
        """Drops parts; the caller holds nothing that still uses their numbers."""
        for number in numbers:
            known = self.targets[number]
            if known is None:
                continue
            if self._by_place.get(place_of(known)) == number:
                del self._by_place[place_of(known)]
            if known.id and self._by_id.get((known.kind, known.id)) == number:
                del self._by_id[known.kind, known.id]
            self.targets[number] = None
            self.seen[number] = -np.inf
            self.node[number] = -1
            self._free.append(number)
            self.version += 1


class Axes:
    """The entity axis of each kind: `columns[kind]` holds part numbers in column order; `column`: int64[number], -1
    where the part stands on no axis."""

    def __init__(self) -> None:
        self.columns: dict[str, Numbers] = {}
        self.column: Numbers = np.full(64, -1, np.int64)
        self.entities: dict[str, tuple[Target, ...]] = {}
        self._member: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._version = -1

    def refresh(self, parts: Parts, oldest: float) -> dict[str, Numbers]:
        """Brings the axes up to date: parts seen at or after `oldest` (ms). Gives, for each kind whose columns changed,
        int64[column] with the former column of each entity, -1 for one that is new."""
        member = parts.seen[: len(parts)] >= oldest
        if parts.version == self._version and len(member) == len(self._member) and bool((member == self._member).all()):
            return {}
        by_kind: dict[str, list[tuple[tuple[Any, ...], int]]] = {kind: [] for kind in self.columns}
        for number in np.flatnonzero(member).tolist():
            target = parts.targets[number]
            if target is not None:
                by_kind.setdefault(target.kind, []).append((order_of(target), number))
        changed: dict[str, Numbers] = {}
        former = self.column
        self.column = np.full(max(64, len(parts)), -1, np.int64)
        for kind, rows in by_kind.items():
            rows.sort()
            fresh = np.fromiter((number for _, number in rows), np.int64, len(rows))
            old = self.columns.get(kind)
            if old is None or len(old) != len(fresh) or bool((old != fresh).any()):
                changed[kind] = _former_columns(fresh, former, old)
            self.columns[kind] = fresh
            self.column[fresh] = np.arange(len(fresh))
            self.entities[kind] = tuple(t for _, n in rows if (t := parts.targets[n]) is not None)
        self._member, self._version = member, parts.version
        return changed


def _former_columns(fresh: Numbers, former: Numbers, old: Numbers | None) -> Numbers:
    """The column that each part had before, -1 where it had none (a number used again for another part included:
    forgetting a part takes it off its axis one refresh before its number can come back)."""
    out = np.full(len(fresh), -1, np.int64)
    if old is None or not len(old):
        return out
    known = fresh < len(former)
    out[known] = former[fresh[known]]
    return out
