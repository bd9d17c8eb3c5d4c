"""From exporter series to layouts: what each value of a scrape means. Used live and by replay.

The mapper asks each source in turn; a series that no source knows is stored and means nothing. Series that mean the
same signal of the same part are all kept in `Layout.signals`; `core.signals` says how they are combined. Their order
there is the preference: of two spellings that both carry values, the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collectors.exposition_values import blank
from collectors.meaning import node_of
from core.derive import COMPANIONS, STALE_NAN
from core.protocols import Join, MapSeries, SourcePlugin, TargetInfo
from core.signals import SIGNALS
from core.types import Floats, Layout, Series, SignalRef, Target

# Labels that say whose work runs on a part. dcgm-exporter repeats a series for each of them, which must not be added up.
OWNERSHIP = frozenset({
    "pod", "namespace", "container", "pod_uid", "hpc_job", "exported_pod", "exported_namespace", "exported_container",
    "exported_job", "vgpu",
    # What each MIG instance repeats of its board must not be added up either; what is an instance's own is its own part.
    "GPU_I_ID", "GPU_I_PROFILE",
})
SMALLEST_BLANK = 2147483632.0  # INT32_BLANK of dcgm_structs.h; the exact list is `exposition.is_blank`'s
MOST_CACHED = 16_384
FACT = "label.present"
_Told = dict[Join, dict[tuple[str, ...], tuple[tuple[str, str], ...]]]  # labels to add, by the labels that both have


class Mapper:
    """Gives layouts for the series of a target. Pure: equal series of an equal target give an equal layout."""

    def __init__(self, sources: Mapping[str, SourcePlugin]) -> None:
        self._sources: list[tuple[str, MapSeries, tuple[str, ...]]] = [
            (name, plugin.map_series, plugin.prefixes)
            for name, plugin in sorted(sources.items()) if plugin.map_series is not None
        ]
        self._joins = tuple(join for _, plugin in sorted(sources.items()) for join in plugin.joins)
        self._infos = frozenset(join.info for join in self._joins)
        self._facts = tuple((plugin.prefixes, plugin.identity, plugin.facts)
                            for _, plugin in sorted(sources.items()) if plugin.facts and plugin.prefixes)
        self._second = frozenset(name for plugin in sources.values() for name in plugin.second_choice)
        self._asked: dict[str, tuple[list[tuple[str, MapSeries]], list[Join]]] = {}  # by metric name
        self._blankable: dict[str, NDArray[np.int64]] = {}  # layout id → indexes of DCGM series

    def _who(self, name: str) -> tuple[list[tuple[str, MapSeries]], list[Join]]:
        """The sources that may know a metric, and the joins that its series are shown with."""
        known = self._asked.get(name)
        if known is None:
            if len(self._asked) >= MOST_CACHED:
                self._asked.clear()
            known = self._asked[name] = (
                [(source, map_series) for source, map_series, prefixes in self._sources
                 if not prefixes or name.startswith(prefixes)],
                [join for join in self._joins if name.startswith(join.metrics) and name != join.info])
        return known

    def _meaning(self, one: Series, target: TargetInfo, told: _Told) -> tuple[str, SignalRef] | None:
        sources, joins = self._who(one.name)
        if joins and told:
            one = _joined(one, joins, told)
        for name, map_series in sources:
            ref = map_series(one, target)
            if ref is not None:
                return name, ref
        return None

    def knows(self, series: Series, target: TargetInfo) -> bool:
        """Whether a series means something, or tells labels that others need. Looked at by itself: what has a meaning only
        together with another series of its page is not known here."""
        return series.name in self._infos or self._meaning(series, target, {}) is not None

    def layout(self, target: TargetInfo, series: Sequence[Series]) -> Layout:
        """The layout of a scrape whose values stand in the order of `series`.

        node: the one node that all meanings name, else the target's. job: the one job of its ranks, else None. source:
        the source of most of its meanings, None where nothing has one.
        """
        chosen: list[tuple[int, SignalRef]] = []
        votes: Counter[str] = Counter()
        parts: dict[Target, Target] = {}
        added: set[tuple[str, str, str, tuple[tuple[str, str], ...]]] = set()
        told = _told(series, self._joins, self._infos)
        sets = {id(one.labels): one.labels for one in series}
        owned = not OWNERSHIP.isdisjoint([key for labels in sets.values() for key, _ in labels])
        for index, one in enumerate(series):
            found = self._meaning(one, target, told)
            if found is None:
                continue
            name, ref = found
            if owned and SIGNALS[ref.signal].combine == "sum" and ref.target.kind != "job":  # a job's pods do add up
                bare = tuple(pair for pair in one.labels if pair[0] not in OWNERSHIP)
                key = (ref.signal, ref.target.key, one.name, bare)
                if key in added:
                    continue
                added.add(key)
            if ref.target.kind != "exporter":  # what a scraper says of the page is not what the page says
                votes[name] += 1
            rank = 1 if one.name in self._second or "_legacy_" in one.name else 0
            for signal in (ref.signal, *COMPANIONS.get(ref.signal, ())):
                part = parts.setdefault(ref.target, ref.target)  # one object a part, not one a series
                chosen.append((rank, SignalRef(index, signal, part, ref.scale, ref.counter)))
        refs = _preferred(chosen)
        if self._facts:
            refs += tuple(self._facts_told(series, target))
        nodes = {ref.target.node for ref in refs}
        jobs = {ref.target.job for ref in refs if ref.target.kind == "rank"}
        rows = tuple(series)
        return Layout(
            Layout.make_id(target.id, rows, refs), target.id, rows, refs,
            node=nodes.pop() if len(nodes) == 1 else target.node,
            job=jobs.pop() if len(jobs) == 1 else None,
            source=votes.most_common(1)[0][0] if votes else None,
        )

    def _facts_told(self, series: Sequence[Series], target: TargetInfo) -> Iterator[SignalRef]:
        """What labels say of how the node is set up: once for each set of labels, for a GPU may go and others stay."""
        looked: set[int] = set()
        for index, one in enumerate(series):
            if id(one.labels) in looked:
                continue
            for prefixes, identity, facts in self._facts:
                if not one.name.startswith(prefixes):
                    continue
                looked.add(id(one.labels))
                labels = dict(one.labels)
                node = node_of(labels, target, identity)
                yield from (SignalRef(index, FACT, Target("label", node, f"{what}={labels[label]}"))
                            for label, what in facts if labels.get(label) and node)

    def clean(self, layout: Layout, values: Floats) -> Floats:
        """The values with blanks of the exporter made absent (stale marker): DCGM's sentinels, on DCGM series only.

        values: float64[len(layout.series)]; returned as it is where nothing is blank, else a copy.
        """
        blankable = self._blankable.get(layout.id)
        if blankable is None:
            if len(self._blankable) >= MOST_CACHED:
                self._blankable.clear()
            found = [i for i, s in enumerate(layout.series) if s.name.startswith(("DCGM_", "dcgm_"))]
            blankable = self._blankable[layout.id] = np.array(found, np.int64)
        if not len(blankable):
            return values
        suspects = blankable[values[blankable] >= SMALLEST_BLANK]
        blanks = suspects[blank(values[suspects])] if len(suspects) else suspects
        if not len(blanks):
            return values
        out = values.copy()
        out[blanks] = STALE_NAN
        return out


def _preferred(chosen: list[tuple[int, SignalRef]]) -> tuple[SignalRef, ...]:
    """The references, first choices first. Of what is added up, a second choice counts only where there is no first:
    both say the same, and the sum would hold it twice."""
    if not any(rank for rank, _ in chosen):
        return tuple([ref for _, ref in chosen])
    added = {(ref.signal, ref.target.key) for rank, ref in chosen if not rank and SIGNALS[ref.signal].combine == "sum"}
    return tuple(ref for rank, ref in sorted(chosen, key=lambda pair: pair[0])
                 if not rank or (ref.signal, ref.target.key) not in added)


def _told(series: Sequence[Series], joins: Sequence[Join], infos: frozenset[str]) -> _Told:
    """What the page tells for each join."""
    out: _Told = {}
    for one in series:
        if one.name in infos:
            for join in joins:
                if join.info == one.name:
                    added = tuple((name, value) for name in join.take if (value := one.label(name)))
                    out.setdefault(join, {})[tuple(one.label(name) for name in join.on)] = added
    return out


def _joined(one: Series, joins: Sequence[Join], told: _Told) -> Series:
    """The series with the labels that its page tells in another one, for the source to look at."""
    for join in joins:
        added = told.get(join, {}).get(tuple(one.label(name) for name in join.on))
        if added:
            return replace(one, labels=(*one.labels, *added))
    return one
