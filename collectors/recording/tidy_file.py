"""A tidy table as a recording: Parquet or CSV with `metric`, label columns or a `labels` map, `timestamp` and `value`.

`labels` may be a map, a struct or text: a JSON object, or `{a="b",c="d"}`. A value that is null is absent. Times: dates
(no zone = UTC), ISO text, float seconds, or whole numbers of ms; whole numbers whose size says otherwise (seconds of
the years 2001 to 5138, microseconds, nanoseconds) are taken for what they are. Read in batches; types are unknown.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from collectors.exposition_grammar import read_labels
from collectors.meaning import host_of
from collectors.recording.frames import Block, Scan
from collectors.recording.inputs import InputFile
from collectors.recording.series import Ints, Labels, SeriesTable, node_label
from core.clock import parse_rfc3339
from core.derive import STALE_NAN
from core.errors import BadInput, SourceError
from core.types import Floats

ROWS = 65_536
CSV_BLOCK_BYTES = 4 << 20
COLUMNS = ("metric", "timestamp", "value")
BOOT_METRIC = "node_boot_time_seconds"
SEPARATOR, NULL = "\x1f", "\x1e"  # between the texts that make a row's key; no label holds these
NEEDS = "a tidy recording has the columns metric, timestamp, value, and label columns or a labels map"
NEEDS_TIME = "a date, ISO text, whole milliseconds or float seconds are needed"


@dataclass(slots=True)
class TidyFile:
    """One file. tolerated: always empty, as of the other kinds of files."""

    file: InputFile
    tolerated: dict[str, int] = field(default_factory=dict)
    _unit_ms: float = 0.0  # what one of a number column's units is in ms; learned from its first value
    _row: int = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def _batches(self, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
        path = str(self.file.path)
        self._row = 0
        if self.file.path.stat().st_size == 0:
            return
        try:
            yield from self._parquet(path, columns) if self.file.kind == "parquet" else self._csv(path, columns)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            what = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInput(path, "", what, f"a readable {self.file.kind} file is needed") from None

    def _parquet(self, path: str, columns: list[str] | None) -> Iterator[pl.DataFrame]:
        with pq.ParquetFile(path) as table:
            self._check(table.schema_arrow.names)
            for batch in table.iter_batches(ROWS, columns=columns):
                frame = pl.from_arrow(pa.Table.from_batches([batch]))
                assert isinstance(frame, pl.DataFrame)
                yield frame
                self._row += len(frame)

    def _csv(self, path: str, columns: list[str] | None) -> Iterator[pl.DataFrame]:
        with open(path, "rb") as file:
            head = file.readline(1 << 20).decode("utf-8-sig", "replace").strip()
        if not head:
            return
        names = next(csv.reader([head]))
        self._check(names)
        reader = pacsv.open_csv(
            path,
            read_options=pacsv.ReadOptions(block_size=CSV_BLOCK_BYTES),
            convert_options=pacsv.ConvertOptions(
                column_types={n: pa.string() for n in names}, include_columns=columns or None,
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=True,
            ),
        )
        for batch in reader:
            frame = pl.from_arrow(pa.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame)
            yield frame
            self._row += len(frame)

    def _check(self, names: list[str]) -> None:
        for column in COLUMNS:
            if column not in names:
                raise BadInput(str(self.file.path), column, f"the columns {', '.join(names)[:60]}", NEEDS)

    def _bad(self, row: int, column: str, given: object, allowed: str) -> BadInput:
        return BadInput(f"{self.file.path}: row {self._row + row + 1}", column, given, allowed)

    # -- columns ---------------------------------------------------------------------------------------------------

    def _times(self, column: pl.Series) -> Ints:
        """int64 ms."""
        if column.null_count():
            raise self._bad(int(column.is_null().arg_max() or 0), "timestamp", None, NEEDS_TIME)
        if column.dtype.is_temporal():
            if column.dtype not in (pl.Date, pl.Datetime):
                raise self._bad(0, "timestamp", str(column.dtype), NEEDS_TIME)
            return np.asarray(column.cast(pl.Datetime("ms")).cast(pl.Int64).to_numpy(), np.int64)
        if column.dtype.is_integer():
            return self._scaled(np.asarray(column.to_numpy(), np.int64), whole=True)
        if column.dtype.is_float():
            return self._scaled(np.asarray(column.to_numpy(), np.float64), whole=False)
        if column.dtype == pl.String:
            return self._texts(column)
        raise self._bad(0, "timestamp", str(column.dtype), NEEDS_TIME)

    def _scaled(self, numbers: Any, whole: bool) -> Ints:
        if not len(numbers):
            return np.empty(0, np.int64)
        if not np.isfinite(numbers).all():
            raise self._bad(int(np.argmin(np.isfinite(numbers))), "timestamp", "a number that is not finite", NEEDS_TIME)
        if not self._unit_ms:
            self._unit_ms = _unit(float(abs(numbers[0])), whole)
        if self._unit_ms == 1.0 and whole:
            return np.asarray(numbers, np.int64)
        if self._unit_ms < 1.0 and whole:
            return np.asarray(numbers // round(1 / self._unit_ms), np.int64)
        scaled = np.asarray(numbers, np.float64) * self._unit_ms
        if (np.abs(scaled) > 9e15).any():
            raise self._bad(int(np.argmax(np.abs(scaled))), "timestamp", float(numbers[np.argmax(np.abs(scaled))]), NEEDS_TIME)
        return np.asarray(np.rint(scaled), np.int64)

    def _texts(self, column: pl.Series) -> Ints:
        text = column.str.strip_chars()
        whole = text.cast(pl.Int64, strict=False)
        if not whole.null_count():
            return self._scaled(whole.to_numpy(), whole=True)
        real = text.cast(pl.Float64, strict=False)
        if not real.null_count():
            return self._scaled(real.to_numpy(), whole=False)
        known: dict[str, int] = {}
        out = []
        for row, one in enumerate(text.to_list()):
            at = known.get(one)
            if at is None:
                try:
                    at = known[one] = parse_rfc3339(one)
                except ValueError:
                    raise self._bad(row, "timestamp", one, NEEDS_TIME) from None
            out.append(at)
        return np.array(out, np.int64)

    def _values(self, column: pl.Series) -> Floats:
        """float64, the stale marker where null. NaN bits of the file are kept."""
        if column.dtype == pl.String:
            text = column.str.strip_chars().str.to_lowercase().str.replace("^\\+", "")
            real = text.cast(pl.Float64, strict=False)
            wrong = real.is_null() & column.is_not_null()
            if wrong.any():
                raise self._bad(int(wrong.arg_max() or 0), "value", column[int(wrong.arg_max() or 0)], "a number is needed")
        elif column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
            real = column if column.dtype == pl.Float64 else column.cast(pl.Float64)
        else:
            raise self._bad(0, "value", str(column.dtype), "a number is needed")
        nulls = real.is_null().to_numpy()
        values = np.array(real.fill_null(0.0).to_numpy(), np.float64)
        values[nulls] = STALE_NAN
        return values

    def _numbers(self, frame: pl.DataFrame, table: SeriesTable, known: dict[str, int]) -> Ints:
        """int64: the number of each row's series."""
        if frame["metric"].null_count():
            raise self._bad(int(frame["metric"].is_null().arg_max() or 0), "metric", None, "a metric's name is needed")
        names = [c for c in frame.columns if c not in COLUMNS]
        texts = frame.select(pl.col("metric").cast(pl.String), *(_as_text(frame[c]).alias(c) for c in names))
        keys = texts.select(pl.concat_str([pl.col(c).fill_null(NULL) for c in texts.columns], separator=SEPARATOR).alias("k"))["k"]
        fresh = pl.DataFrame({"k": keys, "row": np.arange(len(keys))}).unique("k", keep="first", maintain_order=True)
        new = fresh.filter(~pl.col("k").is_in(list(known))) if known else fresh
        for key, row in new.iter_rows():
            known[key] = table.number(texts["metric"][row], self._labels(texts, names, row), "untyped", self.file.subject)
        wanted = fresh["k"].to_list()
        found = keys.replace_strict(wanted, [known[k] for k in wanted], return_dtype=pl.Int64)
        return np.asarray(found.to_numpy(), np.int64)

    def _labels(self, texts: pl.DataFrame, names: list[str], row: int) -> Labels:
        labels: dict[str, str] = {}
        for name in names:
            text = texts[name][row]
            if text is None or not text:
                continue
            if name != "labels":
                labels[name] = text
                continue
            try:
                labels.update(_parse_labels(text))
            except (ValueError, SourceError):
                raise self._bad(row, "labels", text, 'a map, a JSON object or {name="value"} is needed') from None
        return tuple(sorted(labels.items()))

    # -- the two passes --------------------------------------------------------------------------------------------

    def scan(self, table: SeriesTable) -> Scan:
        """The first pass: times, and boot times where the table has them."""
        found = Scan()
        for frame in self._batches(["metric", "timestamp", "value"]):
            found.add_all(self._times(frame["timestamp"]))
            self._values(frame["value"])  # what is wrong is said before anything is replayed
            if (frame["metric"].cast(pl.String) == BOOT_METRIC).any():
                found.boots.setdefault("", set())
        if found.boots.pop("", None) is not None:
            self._find_boots(found, table)
        return found

    def _find_boots(self, found: Scan, table: SeriesTable) -> None:
        known: dict[str, int] = {}
        for frame in self._batches():
            boots = frame.filter(pl.col("metric").cast(pl.String) == BOOT_METRIC)
            if not len(boots):
                continue
            for number, value in zip(self._numbers(boots, table, known), self._values(boots["value"]), strict=True):
                labels = dict(table.series[number].labels)
                node = node_label(labels) or host_of(labels.get("instance")) or self.file.subject
                if 0 < value < 1e11:
                    found.boots.setdefault(node, set()).add(round(float(value)) * 1000)

    def blocks(self, table: SeriesTable) -> Iterator[Block]:
        """The second pass: all samples in the order of the file, nulls left out."""
        known: dict[str, int] = {}
        for frame in self._batches():
            present = frame.filter(pl.col("value").is_not_null())
            if len(present):
                values = self._values(present["value"])
                yield Block(self._times(present["timestamp"]), self._numbers(present, table, known), values)


def _unit(size: float, whole: bool) -> float:
    """ms in one unit of a time of this size."""
    if size >= 1e17:
        return 1e-6
    if size >= 1e14:
        return 1e-3
    if size >= 1e11:
        return 1.0
    if whole:
        return 1000.0 if size >= 1e9 else 1.0
    return 1000.0


def _as_text(column: pl.Series) -> pl.Series:
    """Labels as text: whole floats without a point (pandas makes floats of whole numbers with gaps), maps as JSON."""
    if column.dtype.is_float():
        whole = column.fill_nan(None)
        if whole.drop_nulls().is_empty() or bool((whole.drop_nulls() % 1 == 0).all()):
            return whole.cast(pl.Int64, strict=False).cast(pl.String)
        return whole.cast(pl.String)
    if column.dtype == pl.Boolean:
        return column.cast(pl.String)
    if column.dtype.is_nested():
        return pl.Series(column.name, [_map_text(v) for v in column.to_list()], pl.String)
    return column.cast(pl.String)


def _map_text(value: Any) -> str | None:
    """A map (polars: a list of key-value structs) or a struct as JSON text."""
    if value is None:
        return None
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = [tuple(p.values()) if isinstance(p, dict) else tuple(p) for p in value]
    return json.dumps({str(k): str(v) for k, v in sorted(pairs) if v is not None}, sort_keys=True)


def _parse_labels(text: str) -> dict[str, str]:
    """Labels of `{"a": "b"}` or `{a="b"}`. ValueError or SourceError for anything else."""
    stripped = text.strip()
    if not stripped:
        return {}
    if not stripped.startswith("{"):
        stripped = "{" + stripped + "}"
    try:
        found = json.loads(stripped)
    except ValueError:
        pairs = read_labels(stripped.encode(), 128, 64 << 10)
        if not pairs and stripped.strip("{} "):
            raise ValueError("no labels") from None
        return dict(pairs)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in found.items() if v is not None}
