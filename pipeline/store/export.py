"""Samples out of a store as a tidy recording: Parquet with `metric`, `labels`, `timestamp` and `value`, in time order."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from core.protocols import Matcher
from core.types import Series
from pipeline.store.reading import SeriesArrays

# Samples of one slice of time: bounds the memory to some hundred megabytes.
SLICE_SAMPLES = 2_000_000
LONGEST_SLICE_MS, SHORTEST_SLICE_MS, FIRST_SLICE_MS = 3_600_000, 1_000, 60_000
SCHEMA = pa.schema([("metric", pa.dictionary(pa.int32(), pa.string())),
                    ("labels", pa.dictionary(pa.int32(), pa.string())),
                    ("timestamp", pa.timestamp("ms", "UTC")), ("value", pa.float64())])


class Source(Protocol):
    """What is asked of the store."""

    def series(self, matchers: Sequence[Matcher], start: int | None = None, end: int | None = None) -> list[Series]: ...

    def arrays(self, matchers: Sequence[Matcher], start: int, end: int) -> list[SeriesArrays]: ...


def export(store: Source, file: Path, matchers: Sequence[Matcher], start: int, end: int) -> int:
    """Writes the samples with start <= at <= end (ms) to `file`, whole or not at all; gives their number.

    labels: a JSON object. A stale marker is a value of its own, with its bits. Samples come by time, then by series.
    """
    temporary = file.with_name(file.name + ".tmp")
    written, at, span = 0, start, FIRST_SLICE_MS
    try:
        with pq.ParquetWriter(temporary, SCHEMA, compression="zstd", use_dictionary=["metric", "labels"]) as writer:
            while at <= end:
                stop = min(end, at + span - 1)
                found = store.arrays(matchers, at, stop)
                rows = sum(len(one.at) for one in found)
                if rows:
                    writer.write_table(_table(found, [json.dumps(dict(one.series.labels), ensure_ascii=False) for one in found]))
                written, at = written + rows, stop + 1
                # As long a slice as fits: half full or less, it grows; too full, it shrinks.
                if rows < SLICE_SAMPLES // 2:
                    span = min(LONGEST_SLICE_MS, span * 2)
                elif rows > SLICE_SAMPLES:
                    span = max(SHORTEST_SLICE_MS, span // 2)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return written


def _table(found: Sequence[SeriesArrays], labels: Sequence[str]) -> pa.Table:
    number = np.repeat(np.arange(len(found), dtype=np.int32), [len(one.at) for one in found])
    at = np.concatenate([one.at for one in found])
    values = np.concatenate([one.values for one in found])
    order = np.lexsort((number, at))
    index = pa.array(number[order])
    return pa.Table.from_arrays([
        pa.DictionaryArray.from_arrays(index, pa.array([one.series.name for one in found], pa.string())),
        pa.DictionaryArray.from_arrays(index, pa.array(labels, pa.string())),
        pa.array(at[order]).cast(pa.timestamp("ms", "UTC")), pa.array(values[order])], schema=SCHEMA)
