"""Frames into scrapes: samples of one instance at one time are one scrape.

Rule. A series that its instance's next scrape lacks is stale: it stands in the scrape's layout, its value is the stale
marker. Metrics that never shared a time are no scrape of each other: an exporter that stamps its families some ms
apart, or a recording that joins readers of different rhythm under one instance, gives targets of their own, so nothing
flaps. The first time that two metrics share joins them for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from collectors.loglines import normalise_pci
from collectors.mapping import Mapper
from collectors.recording.frames import Frame
from collectors.recording.series import InstanceKey, Ints, SeriesTable, node_label
from core.derive import stale_array
from core.protocols import TargetInfo
from core.types import Layout, Scrape, Series, Target

MOST_PLANNED = 4_000_000  # series numbers in all remembered plans together
KEEP_SHARE = 2  # a layout is made anew when it has grown to twice what a scrape holds


@dataclass(slots=True, eq=False)
class Page:
    """The metrics of an instance that are read together: one target.

    order: the series of its layout; place: where each stands in it. epoch: counts up when the order is made anew, so
    that older plans are not used. fresh: the layout has not been handed out.
    """

    info: TargetInfo
    order: list[int] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    layout: Layout | None = None
    fresh: bool = False
    epoch: int = 0


@dataclass(slots=True, eq=False)
class Instance:
    """What one InstanceKey has: its pages by metric, its own labels and its node."""

    name: str
    labels: dict[str, str]
    node: str | None
    pages: list[Page] = field(default_factory=list)
    page_of: dict[str, Page] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One scrape of a plan. take: positions in the frame; put: places in the layout, None = exactly 0..n-1."""

    page: Page
    epoch: int
    take: Ints
    put: Ints | None


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How a frame of certain series becomes scrapes. repeats: (first, later) positions of series that stand twice."""

    parts: tuple[_Part, ...]
    repeats: Ints
    size: int

    def holds(self) -> bool:
        return all(part.page.epoch == part.epoch for part in self.parts)


def common_node(labels: Iterable[dict[str, str]]) -> str | None:
    """The `node` label that all samples share, NUMA numbers aside; None where one lacks it or two differ."""
    found: set[str] = set()
    for one in labels:
        node = node_label(one)
        if node is None and not one.get("node"):
            return None
        if node is not None:
            found.add(node)
    return found.pop() if len(found) == 1 else None


class Grouper:
    """Makes scrapes of frames. gpus: GPUs by (node, PCI address) as far as the samples have told."""

    def __init__(self, table: SeriesTable, mapper: Mapper) -> None:
        self._table, self._mapper = table, mapper
        self._instances: dict[InstanceKey, Instance] = {}
        self._names: set[str] = set()
        self._plans: dict[bytes, _Plan] = {}
        self._planned = 0
        self.gpus: dict[tuple[str | None, str], Target] = {}
        self.nodes: set[str] = set()
        self.tolerated: Counter[str] = Counter()

    def scrapes(self, frame: Frame) -> tuple[list[Layout], list[Scrape]]:
        """The frame's scrapes, and the layouts that have not been handed out before."""
        key = frame.ids.tobytes()
        plan = self._plans.get(key)
        if plan is None or not plan.holds():
            plan = self._plan(key, frame.ids)
        if len(plan.repeats):
            first, later = frame.values[plan.repeats[:, 0]], frame.values[plan.repeats[:, 1]]
            same = int(((first == later) | (np.isnan(first) & np.isnan(later))).sum())
            self.tolerated["duplicate"] += same
            self.tolerated["conflict"] += len(first) - same
        layouts: list[Layout] = []
        scrapes: list[Scrape] = []
        for part in plan.parts:
            page = part.page
            if page.layout is None:
                page.layout = self._layout(page)
                page.fresh = True
            if page.fresh:
                layouts.append(page.layout)
                page.fresh = False
            values = frame.values[part.take]
            if part.put is not None or len(values) != len(page.order):
                whole = stale_array(len(page.order))
                whole[part.put if part.put is not None else slice(len(values))] = values
                values = whole
            clean = self._mapper.clean(page.layout, values)
            scrapes.append(Scrape(page.layout.id, page.info.id, frame.at, clean))
        return layouts, scrapes

    def _layout(self, page: Page) -> Layout:
        series = [self._named(n) for n in page.order]
        layout = self._mapper.layout(page.info, series)
        for ref in layout.signals:
            if ref.target.kind != "gpu":
                continue
            pci = normalise_pci(series[ref.index].label("pci_bus_id"))
            if pci:
                self.gpus[ref.target.node, pci] = ref.target
        if layout.node:
            self.nodes.add(layout.node)
        return layout

    def _named(self, number: int) -> Series:
        """The series; where only its file says whose it is, the file's stem is its `instance`: files of many nodes hold
        series of the same name and labels, and a store tells series apart by nothing else."""
        series, stem = self._table.series[number], self._table.owner[number].stem
        if not stem:
            return series
        return Series(series.name, tuple(sorted((*series.labels, ("instance", stem)))), series.type)

    def _plan(self, key: bytes, ids: Ints) -> _Plan:
        seen: dict[int, int] = {}
        repeats: list[tuple[int, int]] = []
        by_instance: dict[InstanceKey, list[int]] = {}
        owner = self._table.owner
        for position, number in enumerate(ids.tolist()):
            if number in seen:
                repeats.append((seen[number], position))
                continue
            seen[number] = position
            by_instance.setdefault(owner[number], []).append(number)
        parts = []
        for instance_key in sorted(by_instance):
            numbers = by_instance[instance_key]
            page = self._page(instance_key, numbers)
            self._grow(page, numbers)
            take = np.array([seen[n] for n in numbers], np.int64)
            put = np.array([page.place[n] for n in numbers], np.int64)
            plain = bool((put == np.arange(len(put))).all())
            parts.append(_Part(page, page.epoch, take, None if plain else put))
        plan = _Plan(tuple(parts), np.array(repeats, np.int64).reshape(-1, 2), len(ids))
        old = self._plans.pop(key, None)
        self._planned += plan.size - (old.size if old else 0)
        self._plans[key] = plan
        while self._planned > MOST_PLANNED and len(self._plans) > 1:
            self._planned -= self._plans.pop(next(iter(self._plans))).size
        return plan

    def _page(self, key: InstanceKey, numbers: list[int]) -> Page:
        """The page of these metrics; pages that share a time for the first time become one."""
        rows = [self._table.series[n] for n in numbers]
        instance = self._instances.get(key)
        if instance is None:
            instance = self._instances[key] = self._instance(key, rows)
        names = {one.name for one in rows}
        pages = [p for p in instance.pages if any(instance.page_of.get(name) is p for name in names)]
        if not pages:
            page = Page(TargetInfo(self._free(instance.name), instance.labels, instance.node))
            instance.pages.append(page)
        else:
            page = pages[0]
            for other in pages[1:]:
                self._join(instance, page, other)
        for name in names:
            instance.page_of[name] = page
        return page

    def _join(self, instance: Instance, page: Page, other: Page) -> None:
        for number in other.order:
            if number not in page.place:
                page.place[number] = len(page.order)
                page.order.append(number)
        page.layout = None
        other.epoch += 1
        instance.pages.remove(other)
        for name, held in instance.page_of.items():
            if held is other:
                instance.page_of[name] = page

    def _grow(self, page: Page, numbers: list[int]) -> None:
        new = [n for n in numbers if n not in page.place]
        if not new:
            return
        if len(page.order) + len(new) > KEEP_SHARE * len(numbers) + 16:
            page.order, page.place = [], {}
            page.epoch += 1
            new = numbers
        for number in new:
            page.place[number] = len(page.order)
            page.order.append(number)
        page.layout = None

    def _instance(self, key: InstanceKey, rows: list[Series]) -> Instance:
        labels = {name: value for name, value in (("job", key.job), ("instance", key.instance)) if value}
        node = common_node(dict(one.labels) for one in rows)
        if node is not None:
            labels["node"] = node
        return Instance(key.name() or "unnamed", labels, node or key.host or key.stem or None)

    def _free(self, name: str) -> str:
        """The name, with a number behind it where another target has it."""
        found, n = name, 1
        while found in self._names:
            n += 1
            found = f"{name}#{n}"
        self._names.add(found)
        return found
