"""Sorts a recording that is out of time order, through a temporary DuckDB file, within a bound of memory.

Series are kept once and numbered; what is staged is (time, number, value), 20 bytes a sample before compression.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from core.errors import GreylagError
from core.protocols import RawSample
from core.types import Series
from pipeline.store.schema import first_line

MEMORY_LIMIT = "300MB"
# Staged in pieces of about four DuckDB row groups: smaller ones cost more a row (performance.md §4).
PIECE_ROWS = 500_000
CHUNK_ROWS = 100_000
MOST_REMEMBERED = 200_000


class DuckSorter:
    """Implements `core.protocols.SampleSorter`. folder: where the temporary file goes (None = the system's place).

    Equal times come in the order of their series (name, then labels); equal times of one series in the order in which
    they were added. The file is removed when all has been drained, or by `close`.
    """

    def __init__(self, folder: Path | None = None, memory_limit: str = MEMORY_LIMIT) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="greylag-sort-", dir=folder))
        try:
            config: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": memory_limit, "threads": 2, "temp_directory": str(self._folder / "tmp"),
                "autoinstall_known_extensions": False, "autoload_known_extensions": False}
            self._connection = duckdb.connect(str(self._folder / "sort.duckdb"), config=config)
            self._connection.execute("CREATE TABLE staged (at_ms BIGINT, series UINTEGER, value DOUBLE)")
        except duckdb.Error as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise GreylagError(f"the recording cannot be sorted ({first_line(error)})") from None
        self._series: list[Series] = []
        self._numbers: dict[Series, int] = {}
        # By identity first: readers give the same object for each sample of a series, and hashing one costs 1 µs.
        self._seen: dict[int, tuple[Series, int]] = {}
        self._at: list[int] = []
        self._number: list[int] = []
        self._value: list[float] = []
        self._closed = False

    def add(self, samples: Sequence[RawSample]) -> None:
        """Takes samples in any order."""
        self._at.extend([s.at for s in samples])
        self._value.extend([s.value for s in samples])
        seen, numbers = self._seen, self._number
        for sample in samples:
            series = sample.series
            found = seen.get(id(series))
            numbers.append(found[1] if found is not None else self._intern(series))
        if len(self._at) >= PIECE_ROWS:
            self._stage()

    def _intern(self, series: Series) -> int:
        number = self._numbers.get(series)
        if number is None:
            number = self._numbers[series] = len(self._series)
            self._series.append(series)
        if len(self._seen) >= MOST_REMEMBERED:
            self._seen.clear()
        self._seen[id(series)] = (series, number)  # holds the object, so that its id stays its own
        return number

    def _stage(self) -> None:
        if not self._at:
            return
        rows = pa.table({"at_ms": pa.array(np.array(self._at, np.int64)),
                         "series": pa.array(np.array(self._number, np.uint32)),
                         "value": pa.array(np.array(self._value, np.float64))})
        self._at, self._number, self._value = [], [], []
        self._run("INSERT INTO staged SELECT * FROM piece", piece=rows)

    def _run(self, sql: str, **tables: pa.Table) -> None:
        try:
            for name, table in tables.items():
                self._connection.register(name, table)
            self._connection.execute(sql)
            for name in tables:
                self._connection.unregister(name)
        except duckdb.Error as error:
            self.close()
            raise GreylagError(f"the recording cannot be sorted ({first_line(error)})") from None

    def drain(self) -> Iterator[RawSample]:
        """All samples by time, equal times in the order of their series' labels; once."""
        if self._closed:
            return
        try:
            self._stage()
            order = sorted(range(len(self._series)), key=lambda i: _key(self._series[i]))
            rank = np.empty(len(order), np.uint32)
            rank[order] = np.arange(len(order), dtype=np.uint32)
            ranks = pa.table({"series": pa.array(np.arange(len(order), dtype=np.uint32)), "rank": pa.array(rank)})
            self._run("CREATE TEMP TABLE ranks AS SELECT * FROM given", given=ranks)
            by_rank = [self._series[i] for i in order]
            for batch in self._sorted():
                at, numbers, values = (batch.column(i).to_numpy() for i in range(3))
                for moment, number, value in zip(at.tolist(), numbers.tolist(), values.tolist(), strict=True):
                    yield RawSample(moment, by_rank[number], value)
        finally:
            self.close()

    def _sorted(self) -> Iterator[Any]:
        try:
            query = self._connection.sql(
                "SELECT s.at_ms, r.rank, s.value FROM staged s JOIN ranks r ON s.series = r.series"
                " ORDER BY s.at_ms, r.rank, s.rowid")
            yield from query.to_arrow_reader(CHUNK_ROWS)
        except duckdb.Error as error:
            raise GreylagError(f"the recording cannot be sorted ({first_line(error)})") from None

    def close(self) -> None:
        """Removes the temporary file. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._connection.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()


def _key(series: Series) -> tuple[str, tuple[tuple[str, str], ...], str]:
    return series.name, series.labels, series.type
