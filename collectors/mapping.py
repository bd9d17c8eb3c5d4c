"""From exporter series to layouts: what each value of a scrape means. Used live and by replay.

The mapper asks each source in turn; a series that no source knows is stored and means nothing. Series that mean the
same signal of the same part are all kept in `Layout.signals`; `core.signals` says how they are combined. Their order
there is the preference: of two spellings that both carry values, the first counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from collectors.exposition import is_blank
from core.derive import COMPANIONS, STALE_NAN
from core.protocols import MapSeries, SourcePlugin, TargetInfo
from core.signals import SIGNALS
from core.types import Floats, Layout, Series, SignalRef

# Labels that say whose work runs on a part. dcgm-exporter repeats a series for each of them, which must not be added up.
OWNERSHIP = frozenset({
    "pod", "namespace", "container", "pod_uid", "hpc_job", "exported_pod", "exported_namespace", "exported_container",
    "exported_job", "vgpu",
})
# Second choices, used where the first is missing.
SECOND_CHOICE = frozenset({
    "DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT_WATTS", "DCGM_FI_DEV_POWER_USAGE_INSTANT",
    "DCGM_FI_DEV_BOARD_POWER_INSTANT_WATTS",
})
SMALLEST_BLANK = 2147483632.0  # INT32_BLANK of dcgm_structs.h; the exact list is `exposition.is_blank`'s
MOST_CACHED = 16_384


class Mapper:
    """Gives layouts for the series of a target. Pure: equal series of an equal target give an equal layout."""

    def __init__(self, sources: Mapping[str, SourcePlugin]) -> None:
        self._sources: list[tuple[str, MapSeries]] = [
            (name, plugin.map_series) for name, plugin in sorted(sources.items()) if plugin.map_series is not None
        ]
        self._blankable: dict[str, NDArray[np.int64]] = {}  # layout id → indexes of DCGM series

    def _meaning(self, series: Series, target: TargetInfo) -> tuple[str, SignalRef] | None:
        for name, map_series in self._sources:
            ref = map_series(series, target)
            if ref is not None:
                return name, ref
        return None

    def layout(self, target: TargetInfo, series: Sequence[Series]) -> Layout:
        """The layout of a scrape whose values stand in the order of `series`.

        node: the one node that all meanings name, else the target's. job: the one job of its ranks, else None. source:
        the source of most of its meanings, None where nothing has one.
        """
        chosen: list[tuple[int, SignalRef]] = []
        votes: Counter[str] = Counter()
        added: set[tuple[str, str, str, tuple[tuple[str, str], ...]]] = set()
        sensors = _sensor_names(series)
        for index, one in enumerate(series):
            found = self._meaning(_named_sensor(one, sensors) if sensors else one, target)
            if found is None:
                continue
            name, ref = found
            if SIGNALS[ref.signal].combine == "sum":
                bare = tuple(pair for pair in one.labels if pair[0] not in OWNERSHIP)
                key = (ref.signal, ref.target.key, one.name, bare)
                if key in added:
                    continue
                added.add(key)
            votes[name] += 1
            rank = 1 if one.name in SECOND_CHOICE or "_legacy_" in one.name else 0
            chosen.append((rank, replace(ref, index=index)))
            chosen += [(rank, replace(ref, index=index, signal=also)) for also in COMPANIONS.get(ref.signal, ())]
        refs = tuple(ref for _, ref in sorted(chosen, key=lambda pair: pair[0]))
        nodes = {ref.target.node for ref in refs}
        jobs = {ref.target.job for ref in refs if ref.target.kind == "rank"}
        rows = tuple(series)
        return Layout(
            Layout.make_id(target.id, rows, refs), target.id, rows, refs,
            node=nodes.pop() if len(nodes) == 1 else target.node,
            job=jobs.pop() if len(jobs) == 1 else None,
            source=votes.most_common(1)[0][0] if votes else None,
        )

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
        blanks = [i for i in suspects if is_blank(float(values[i]))]
        if not blanks:
            return values
        out = values.copy()
        out[blanks] = STALE_NAN
        return out


def _sensor_names(series: Sequence[Series]) -> dict[tuple[str, str], str]:
    """(chip, sensor) → what the board calls it. node_exporter tells it in a series of its own (`temp3` says nothing)."""
    return {(one.label("chip"), one.label("sensor")): one.label("label")
            for one in series if one.name == "node_hwmon_sensor_label"}


def _named_sensor(one: Series, names: Mapping[tuple[str, str], str]) -> Series:
    """A hwmon temperature with the sensor's name as its label `label`, for the source to look at."""
    if one.name != "node_hwmon_temp_celsius":
        return one
    name = names.get((one.label("chip"), one.label("sensor")))
    return one if name is None else replace(one, labels=(*one.labels, ("label", name)))
