"""The shape of a target's page: its series under the target's labels, cut into sections that have a layout each.

A section is what changes together. The series of GPU exporters take the name of each job that starts, those of the host
never change: a job start costs new layouts for the former only. Which section a series belongs to depends on its name
alone. The series of a section are in the order of name and labels, so a page that shuffles its families keeps its
layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.exposition import Sample
from core.types import Layout, Series

Labels = tuple[tuple[str, str], ...]
Row = tuple[str, Labels, str, int]  # name, merged labels, type, index of its sample in the page

MAIN = ""
GPU = "gpu"
GPU_NAMES = ("DCGM_", "dcgm_", "gpu_", "amd_gpu_")


def section_of(name: str) -> str:
    """The section of a metric."""
    return GPU if name.startswith(GPU_NAMES) else MAIN


def section_target(target_id: str, section: str) -> str:
    """The id under which a section's scrapes are known: the target's, and for all but the main one `#section` behind it."""
    return f"{target_id}#{section}" if section else target_id


def whole_target(target_id: str) -> str:
    """The scrape target that a section's id belongs to."""
    return target_id.removesuffix(f"#{GPU}")


def merge_labels(page: Labels, target: Mapping[str, str], honor: bool) -> Labels:
    """The labels of a series: the page's and the target's, by Prometheus' rule for collisions; sorted.

    Where the page has a label of the target already: honor → the page's stays, else it becomes `exported_<label>`.
    Labels with an empty value are no labels.
    """
    out = dict(page)
    if honor:
        for name, value in target.items():
            out.setdefault(name, value)
    else:
        clashes = [(name, out[name]) for name in target if out.get(name)]
        out.update(target)
        for name, value in sorted(clashes, key=lambda pair: (len(pair[0]), pair[0])):
            free = f"exported_{name}"
            while out.get(free):
                free = f"exported_{free}"
            out[free] = value
    return tuple(sorted((name, value) for name, value in out.items() if value))


@dataclass(slots=True)
class Section:
    """take: which sample of the page stands at each place of the layout (own series at its end have none)."""

    name: str
    layout: Layout
    take: NDArray[np.int32]

    def rows(self) -> list[Row]:
        """What the section was made of."""
        return [(one.name, one.labels, one.type, i)
                for one, i in zip(self.layout.series, self.take.tolist(), strict=False)]


@dataclass(slots=True)
class Shape:
    """A page's sections by name; samples: how many a page of this shape has; repeats: how many of them were left out
    because rules made them equal to an earlier one."""

    samples: int
    sections: dict[str, Section] = field(default_factory=dict)
    repeats: int = 0


class Merger:
    """Page labels into a series' labels; each set of labels of a page is merged once, and equal results are one object.

    Label sets of a page are told apart by identity: the parser gives equal sets as one tuple. Pairs keep their identity
    too: those of the page are shared by all targets of a worker, which saves most of the memory of labels.
    """

    def __init__(self, target: Mapping[str, str], honor: bool) -> None:
        self._target, self._honor = target, honor
        self._own = tuple((name, value) for name, value in target.items() if value)
        self._by_id: dict[int, tuple[Labels, Labels]] = {}
        self._same: dict[Labels, Labels] = {}

    def __call__(self, page: Labels) -> Labels:
        known = self._by_id.get(id(page))
        if known is None:
            if any(name in self._target or not value for name, value in page):
                merged = merge_labels(page, self._target, self._honor)
            else:
                merged = tuple(sorted(page + self._own))
            merged = self._same.setdefault(merged, merged)
            known = self._by_id[id(page)] = (page, merged)  # the page's tuple is kept: its id stays its own
        return known[1]


def rows_of(samples: Sequence[Sample], merge: Callable[[Labels], Labels], taken: Iterable[tuple[str, Labels]]) -> list[Row]:
    """The page's series, each once: of one that stands at several times of its own the last line is the newest.

    taken: names and labels that a page cannot speak for.
    """
    out: dict[tuple[str, int], Row] = {}
    for i, sample in enumerate(samples):
        labels = merge(sample.labels)
        out[sample.name, id(labels)] = (sample.name, labels, sample.type, i)
    names = {name for name, _ in taken}
    own = set(taken)
    if any(name in names for name, _ in out):
        return [row for row in out.values() if row[:2] not in own]
    return list(out.values())


def in_order(rows: list[Row]) -> list[Row]:
    """The rows by name and labels. Names and label sets are sorted once each: comparing sets of labels is what costs."""
    names = {name: i for i, name in enumerate(sorted({row[0] for row in rows}))}
    sets = {id(row[1]): row[1] for row in rows}
    ranks = {key: i for i, key in enumerate(sorted(sets, key=sets.__getitem__))}
    return sorted(rows, key=lambda row: (names[row[0]], ranks[id(row[1])]))


def by_section(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each section; the main section is always there."""
    out: dict[str, list[Row]] = {MAIN: []}
    sections: dict[str, str] = {}
    for row in rows:
        section = sections.get(row[0])
        if section is None:
            section = sections[row[0]] = section_of(row[0])
        out.setdefault(section, []).append(row)
    return out


def series_of(rows: Iterable[Row]) -> list[Series]:
    """Series in the order of the rows."""
    return [Series(name, labels, kind) for name, labels, kind, _ in rows]
