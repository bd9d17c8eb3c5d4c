"""A sheet: what one kind of exporter prints, for all nodes at once.

A sheet has families in the order of the page; a family has a fixed number of series (columns) on every node. `values`
gives float64[node, column] rounded as the page prints them, so a page and a frame hold the same numbers; `labels` gives
the label blocks of a node's family as printed, and may change with the node's `key`. A column of a node that is absent
(`core.derive.absent`, or NaN where the family cannot hold one) has no line on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from prometheus_client.utils import floatToGoString

from core.derive import STALE_NAN, absent
from core.types import Floats
from fleet.hardware import Node
from fleet.numbers import go_float
from fleet.stations import Station

if TYPE_CHECKING:
    from fleet.world import World

Get = Callable[["World"], "Floats | float"]
Labels = Callable[[Any], Sequence[str]]  # of a node, or of a station

# How numbers are printed: as Go does, whole, with six decimals, as prometheus-client does.
GO, WHOLE, SIX, PYTHON = "go", "whole", "six", "python"
_FORMATS: dict[str, Callable[[float], str]] = {
    GO: go_float, WHOLE: "{:.0f}".format, SIX: "{:.6f}".format, PYTHON: floatToGoString}


@dataclass(frozen=True, slots=True)
class Family:
    """labels: the blocks `{…}` of a node's series, as printed (an empty text: no labels). width: how many there are. get:
    the values, [node, width] or [node]; one number is the same for ever. nan: NaN is a value that is shown; only the stale
    marker is absent."""

    name: str
    help: str
    type: str
    labels: Labels
    width: int
    get: Get
    style: str = GO
    nan: bool = False


def family(name: str, text: str, kind: str, get: Get, labels: Sequence[str] = ("",), style: str = GO) -> Family:
    """A family whose labels are the same on all nodes. The series are put into the order of their labels, as Go's
    registry does."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    shown = tuple(labels[i] for i in order)
    if order == list(range(len(labels))):
        return Family(name, text, kind, lambda node: shown, len(shown), get, style)
    take = np.array(order)

    def sorted_get(world: World) -> Floats | float:
        found = get(world)
        return found if isinstance(found, float) or found.ndim < 2 else found[:, take]

    return Family(name, text, kind, lambda node: shown, len(shown), sorted_get, style)


def counted(get: Callable[[World], Floats]) -> Get:
    """The values as whole numbers."""
    return lambda w: np.rint(get(w))


class Sheet:
    """One exporter. name: as in the path of its door. sorted: its families stand in the order of their names. nothing: how who
    asks is met where no series is there (`fleet.exporters.FAILURES`). places: who has such a page, in the order of the rows of
    `values`: the nodes, or the stations (switches, the head node) of an exporter that is on none."""

    name = ""
    sorted = False
    clock: int | None = None  # the column that shows the node's time of day
    nothing = "empty"

    def __init__(self, world: World, families: Sequence[Family], places: Sequence[Node | Station] | None = None) -> None:
        self.world, self.families = world, tuple(families)
        self.places: Sequence[Node | Station] = world.nodes if places is None else places
        widths = [one.width for one in self.families]
        ends = np.cumsum(widths)
        self.spans = [(int(end) - width, int(end)) for end, width in zip(ends, widths, strict=True)]
        self.columns = int(ends[-1])
        self.counter = np.repeat([one.type in ("counter", "histogram") for one in self.families], widths)
        self._six, self._whole = self._runs(SIX), self._runs(WHOLE)
        self._nan = np.flatnonzero(np.repeat([one.nan for one in self.families], widths))
        self._fixed: Floats | None = None  # values that never change, and room for the others
        self._moving: list[tuple[Callable[[World], Floats], int, int]] = []

    def _runs(self, style: str) -> list[tuple[int, int]]:
        """The columns printed so, as ranges."""
        runs: list[tuple[int, int]] = []
        for one, (start, end) in zip(self.families, self.spans, strict=True):
            if one.style == style:
                runs.append((runs.pop()[0] if runs and runs[-1][1] == start else start, end))
        return runs

    def rows(self) -> list[int]:
        """The places that have such an exporter at all."""
        return list(range(len(self.places)))

    def keys(self) -> list[Hashable]:
        """Of each place what its labels depend on beside the place itself: equal keys, equal labels."""
        return [None] * len(self.places)

    def values(self) -> Floats:
        """float64[node, column] as of now, as printed."""
        world = self.world
        if self._fixed is None:
            self._fixed = self._constants()
        out = self._fixed.copy()
        for get, start, end in self._moving:
            found = get(world)
            out[:, start:end] = found if found.ndim == 2 else found[:, None]
        for start, end in self._whole:
            part = out[:, start:end]
            np.rint(part, out=part)
        for start, end in self._six:
            part = out[:, start:end]
            part *= 1e6
            np.rint(part, out=part)
            part /= 1e6
        out += 0.0  # no negative zeros
        return out

    def _constants(self) -> Floats:
        out = np.zeros((len(self.places), self.columns))
        for one, (start, end) in zip(self.families, self.spans, strict=True):
            found = one.get(self.world)
            if isinstance(found, float):
                out[:, start:end] = found
            else:
                self._moving.append((cast("Callable[[World], Floats]", one.get), start, end))
        return out

    def absent(self, values: Floats) -> NDArray[np.bool_]:
        """bool[node, column]: which series are not there."""
        gone = np.isnan(values)
        if len(self._nan) and gone.any():
            gone[:, self._nan] = absent(values[:, self._nan])
        return gone

    def template(self, node: Any, there: NDArray[np.bool_], rename: Callable[[str], str]) -> Template:
        """How the node's page looks now. there: bool[column]. Families without series have no head."""
        pieces, styles, columns = [], [], []
        text = ""
        rows = [(rename(one.name), one, start, end) for one, (start, end) in zip(self.families, self.spans, strict=True)]
        for name, one, start, end in sorted(rows, key=lambda row: row[0]) if self.sorted else rows:
            shown = np.flatnonzero(there[start:end])
            if not len(shown):
                continue
            labels, style = one.labels(node), _FORMATS[one.style]
            text += self.head(name, one)
            for i in shown.tolist():
                pieces.append(f"{text}{name}{labels[i]} ")
                text = "\n"
                styles.append(style)
                columns.append(start + i)
        return Template(pieces, text if pieces else "", tuple(styles), np.array(columns, np.int64))

    def head(self, name: str, one: Family) -> str:
        """The lines before a family's series."""
        return f"# HELP {name} {one.help}\n# TYPE {name} {one.type}\n"


class Template:
    """The text of a page around its values. columns: which column of the sheet stands at each place. What did not change
    since the page was last made is not printed anew."""

    __slots__ = ("_last", "_shown", "_styles", "_text", "columns")

    def __init__(self, pieces: Sequence[str], end: str, styles: tuple[Callable[[float], str], ...],
                 columns: NDArray[np.int64]) -> None:
        self._styles, self.columns = styles, columns
        self._text = "%s".join([*(piece.replace("%", "%%") for piece in pieces), end.replace("%", "%%")])
        self._last: list[float] = []
        self._shown: list[str] = []

    def page(self, row: Floats) -> bytes:
        """The page of these values, float64[column of the sheet]."""
        values = row[self.columns].tolist()
        if self._last:
            shown = [text if new == old else style(new)
                     for new, old, text, style in zip(values, self._last, self._shown, self._styles, strict=True)]
        else:
            shown = [style(value) for value, style in zip(values, self._styles, strict=True)]
        self._last, self._shown = values, shown
        return (self._text % tuple(shown)).encode()


def blank(shape: tuple[int, ...]) -> Floats:
    """float64 of that shape, all absent."""
    return np.full(shape, STALE_NAN)
