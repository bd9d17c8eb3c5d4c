"""What detectors say and know of whole columns of parts, without a loop over the parts.

Nearly all words of a tick are "clear", the same ones as at the tick before: 1,000 nodes of 8 GPUs have some 250,000 of them.
They are made once for as long as the window shows the same parts, and picked by an array; so is what depends on the parts
and the inventory alone. Nothing here is a detector's memory: it is forgotten and made anew at any time with the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from core.types import Target, Verdict
from core.window import Window
from detectors import stats
from detectors.stats import Bools, Ints

Made = TypeVar("Made")
MOST_KEPT = 2  # of one name, so that windows of two sites may be judged in turn
_kept: dict[Hashable, list[tuple[tuple[object, ...], Any]]] = {}
_same: dict[Hashable, list[Any]] = {}


def kept(name: Hashable, of: tuple[object, ...], make: Callable[[], Made]) -> Made:
    """What `make` gives, kept while the very same objects `of` are asked about. It must depend on them and the name only, and nobody
    may change it, nor may the objects change."""
    rows = _kept.setdefault(name, [])
    for objects, value in rows:
        if len(objects) == len(of) and all(a is b for a, b in zip(objects, of, strict=True)):
            return cast(Made, value)
    made = make()
    rows.append((of, made))
    del rows[:-MOST_KEPT]
    return made


def same(name: Hashable, value: Made) -> Made:
    """An equal object of before where there is one, so that `kept` knows it again. Nobody may change it."""
    rows = _same.setdefault(name, [])
    for known in rows:
        if known == value:
            return cast(Made, known)
    rows.append(value)
    del rows[:-MOST_KEPT]
    return value


def standing(name: Hashable, of: tuple[object, ...], arrays: Sequence[NDArray[Any]], make: Callable[[], Made]) -> Made:
    """As `kept`, for what depends on arrays besides: it is made anew when one of them changed. Of one name and `of` the newest is
    kept."""
    holder: list[tuple[list[NDArray[Any]], Made]] = kept(name, of, list)
    if holder and len(holder[0][0]) == len(arrays) and all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(holder[0][0], arrays, strict=True)):
        return holder[0][1]
    made = make()
    holder[:] = [([np.array(array) for array in arrays], made)]
    return made


def _kind(parts: Sequence[Target]) -> str:
    """What tells the parts of several kinds apart, of which each tick asks."""
    return parts[0].kind if parts else ""


def clears(parts: Sequence[Target], which: Bools | Ints, fault: str, reason: str = "clear") -> list[Verdict]:
    """The word "clear" on the parts that `which` (bool[part], or positions) picks, in their order."""
    def make() -> NDArray[np.object_]:
        words = np.empty(len(parts), object)
        words[:] = [Verdict(part, fault, "clear", reason=reason) for part in parts]
        return words

    return cast("list[Verdict]", kept(("clear", _kind(parts), fault, reason), (parts,), make)[which].tolist())


def keys(parts: Sequence[Target]) -> list[str]:
    """The keys of the parts."""
    return kept(("keys", _kind(parts)), (parts,), lambda: [part.key for part in parts])


def by_key(parts: Sequence[Target]) -> dict[str, int]:
    """The position of each key among the parts."""
    return kept(("by_key", _kind(parts)), (parts,), lambda: {key: e for e, key in enumerate(keys(parts))})


def node_names(parts: Sequence[Target]) -> tuple[list[str | None], Ints]:
    """The names of the parts' nodes in order of appearance, and int[part]: each one's place among them."""
    def make() -> tuple[list[str | None], Ints]:
        names: dict[str | None, int] = {}
        places = np.array([names.setdefault(part.node, len(names)) for part in parts], np.int64)
        places.flags.writeable = False
        return list(names), places

    return kept(("node_names", _kind(parts)), (parts,), make)


def columns_by_node(parts: Sequence[Target]) -> dict[str | None, Ints]:
    """The positions of each node's parts, ascending; nodes in order of appearance."""
    def make() -> dict[str | None, Ints]:
        names, places = node_names(parts)
        order = np.argsort(places, kind="stable")
        return dict(zip(names, np.split(order, np.flatnonzero(np.diff(places[order])) + 1), strict=True)) if len(parts) else {}

    return kept(("columns_by_node", _kind(parts)), (parts,), make)


def columns_by_device(parts: Sequence[Target]) -> dict[str, Ints]:
    """The positions of the parts of each device's name, ascending; names in order."""
    def make() -> dict[str, Ints]:
        found: dict[str, list[int]] = {}
        for e, part in enumerate(parts):
            found.setdefault(part.device or "", []).append(e)
        return {name: np.array(found[name], np.int64) for name in sorted(found)}

    return kept(("columns_by_device", _kind(parts)), (parts,), make)


def rank_numbers(ranks: Sequence[Target]) -> Ints:
    """int64[rank]: the number that each has in its job, -1 where it is not known."""
    return kept("numbers of ranks", (ranks,), lambda: np.array(
        [-1 if rank.rank is None else rank.rank for rank in ranks], np.int64))


def job_of_nodes(window: Window) -> dict[str, str]:
    """As `stats.node_jobs`; the very same object for as long as it does not change."""
    return window.once("the same jobs of nodes", lambda: same("jobs of nodes", stats.node_jobs(window)))


def on_nodes(parts: Sequence[Target], nodes: Iterable[str]) -> Ints:
    """The positions of the parts of these nodes, ascending, without a look at all the others."""
    known = columns_by_node(parts)
    mine = [known[node] for node in dict.fromkeys(nodes) if node in known]
    return np.sort(np.concatenate(mine)) if mine else np.zeros(0, np.int64)


def loud(window: Window, parts: Sequence[Target]) -> Bools:
    """bool[part]: its node is not silent."""
    return ~of_nodes(parts, window.silent_nodes)


def of_nodes(parts: Sequence[Target], nodes: frozenset[str] | set[str]) -> Bools:
    """bool[part]: its node is one of these."""
    names, places = node_names(parts)
    if not nodes or not len(parts):
        return np.zeros(len(parts), bool)
    return np.asarray(np.array([name in nodes for name in names], bool)[places])


def models(window: Window, parts: Sequence[Target]) -> list[str]:
    """The instance type of each part's node, as `stats.model_of`."""
    return kept(("models", _kind(parts)), (parts, window.topology), lambda: [stats.model_of(window, part.node) for part in parts])


def model_codes(window: Window, parts: Sequence[Target], devices: bool = False) -> Ints:
    """int[part]: equal for parts of one instance type (and, with `devices`, of one device's name)."""
    def make() -> Ints:
        names = models(window, parts)
        found = stats.codes(zip(names, (part.device for part in parts), strict=True) if devices else names)
        found.flags.writeable = False
        return found

    return kept(("model_codes", _kind(parts), devices), (parts, window.topology), make)


def without(parts: Sequence[Target], which: Bools, said: Iterable[str]) -> Bools:
    """bool[part]: `which` without the parts of these keys."""
    out = which.copy()
    places = by_key(parts)
    out[[places[key] for key in said if key in places]] = False
    return out


def device_codes(parts: Sequence[Target]) -> Ints:
    """int[part]: equal for parts of one device's name."""
    def make() -> Ints:
        found = stats.codes([part.device or "" for part in parts])
        found.flags.writeable = False
        return found

    return kept(("device_codes", _kind(parts)), (parts,), make)
