"""Tidy Parquet and CSV as recordings."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recordings import T0, MemorySorter, batches, opened, scrapes, write

from core.clock import rfc3339
from core.derive import STALE_NAN
from core.errors import BadInput

LABELS = {"job": "j", "instance": "n1:1"}


def table(times, values=(1.0, 2.0), **labels) -> pl.DataFrame:
    """Rows of metric a with job and instance."""
    rows = {"metric": ["a"] * len(times), **{k: [v] * len(times) for k, v in LABELS.items()}, "timestamp": times, "value": values}
    return pl.DataFrame({**rows, **labels}, strict=False)


@pytest.mark.parametrize(
    "times",
    [
        [T0, T0 + 15000],
        [T0 / 1000, T0 / 1000 + 15],
        [T0 // 1000, T0 // 1000 + 15],
        [T0 * 1000, (T0 + 15000) * 1000],
        [float(T0), float(T0 + 15000)],
        [rfc3339(T0), rfc3339(T0 + 15000)],
        [rfc3339(T0)[:-1].replace("T", " "), rfc3339(T0 + 15000)[:-1].replace("T", " ")],
        [datetime.fromtimestamp(T0 / 1000, UTC), datetime.fromtimestamp(T0 / 1000 + 15, UTC)],
        [datetime.fromtimestamp(T0 / 1000, UTC).replace(tzinfo=None), datetime.fromtimestamp(T0 / 1000 + 15, UTC).replace(tzinfo=None)],
    ],
    ids=["ms", "float seconds", "seconds", "microseconds", "float ms", "iso", "iso without zone", "dates", "dates without zone"],
)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_times_of_all_kinds(tmp_path, kind: str, times) -> None:
    """ms, s, ISO and dates; no zone is UTC."""
    frame = table(times)
    frame.write_parquet(tmp_path / "x.parquet") if kind == "parquet" else frame.write_csv(tmp_path / "x.csv")
    recording = opened(tmp_path)
    assert scrapes(recording) == [(0, "j/n1:1", {"a": 1}), (15000, "j/n1:1", {"a": 2})]
    assert (recording.first_at, recording.last_at, recording.counts.samples) == (T0, T0 + 15000, 2)


def test_small_milliseconds_stay_milliseconds(tmp_path) -> None:
    """A recording whose clock begins at 0."""
    table([0, 15000]).write_parquet(tmp_path / "x.parquet")
    assert (opened(tmp_path).first_at, opened(tmp_path).last_at) == (0, 15000)


def test_null_and_missing_values(tmp_path) -> None:
    """A null is absent and does not count; a NaN is a value; a stale marker in the file is absent."""
    frame = pl.DataFrame({
        "metric": ["a", "b", "c", "d", "a", "b"], "instance": ["n1"] * 6, "job": ["j"] * 6, "timestamp": [T0] * 4 + [T0 + 15000] * 2,
        "value": [1.0, 2.0, float("nan"), STALE_NAN, 1.0, None]})
    frame.write_parquet(tmp_path / "x.parquet")
    recording = opened(tmp_path)
    rows = [row for _, _, row in scrapes(recording)]
    assert [rows[0]["a"], rows[0]["b"], rows[0]["d"], rows[1]["b"]] == [1, 2, None, None]
    assert rows[0]["c"] is not None
    assert np.isnan(rows[0]["c"])
    assert recording.counts.samples == 5


@pytest.mark.parametrize("form", ["map", "struct", "json", "selector"])
def test_labels_in_one_column(tmp_path, form: str) -> None:
    """A map, a struct, a JSON object or `{a="b"}`."""
    labels = {**LABELS, "gpu": "3"}
    if form == "map":
        column = pa.array([list(labels.items())], pa.map_(pa.string(), pa.string()))
    elif form == "struct":
        column = pa.array([labels])
    elif form == "json":
        column = pa.array([json.dumps(labels)])
    else:
        column = pa.array(['{job="j",instance="n1:1",gpu="3"}'])
    pq.write_table(pa.table({"metric": ["a"], "labels": column, "timestamp": [T0], "value": [1.0]}), tmp_path / "x.parquet")
    assert scrapes(opened(tmp_path)) == [(0, "j/n1:1", {"a{gpu=3}": 1})]


def test_label_columns_of_other_types(tmp_path) -> None:
    """Whole numbers that a data frame made floats of, and gaps, are what they were."""
    table([T0, T0], gpu=[0.0, None], ok=[True, None], share=[0.5, None], metric=["a", "b"]).write_parquet(tmp_path / "x.parquet")
    assert scrapes(opened(tmp_path)) == [(0, "j/n1:1", {"a{gpu=0,ok=true,share=0.5}": 1, "b": 2})]


def test_an_unsorted_table_goes_through_the_sorter(tmp_path) -> None:
    """And gives what the sorted one gives; the file still names the instance."""
    frame = pl.DataFrame({"metric": ["a", "b"] * 100, "timestamp": [T0 + 15000 * (i // 2) for i in range(200)], "value": [float(i) for i in range(200)]})
    for name in ("s", "u"):
        (tmp_path / name).mkdir()
    frame.write_parquet(tmp_path / "s" / "n5.parquet")
    frame.reverse().write_csv(tmp_path / "u" / "n5.csv")
    before = MemorySorter.made
    assert scrapes(opened(tmp_path / "s")) == scrapes(opened(tmp_path / "u"))
    assert MemorySorter.made == before + 1
    assert {one.node for b in batches(opened(tmp_path / "u")) for one in b.layouts} == {"n5"}


def test_types_are_unknown(tmp_path) -> None:
    """A table does not say what is a counter."""
    table([T0, T0 + 1]).write_parquet(tmp_path / "x.parquet")
    assert [s.type for b in batches(opened(tmp_path)) for one in b.layouts for s in one.series] == ["untyped"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metric,value\na,1\n", r"x\.csv: timestamp: got .*columns metric, timestamp, value"),
        (f"metric,timestamp,value\na,{T0},one\n", r"x\.csv: row 1: value: got 'one'"),
        ("metric,timestamp,value\na,yesterday,1\n", r"x\.csv: row 1: timestamp: got 'yesterday'"),
        ("metric,timestamp,value\na,,1\n", r"x\.csv: row 1: timestamp: got None"),
        (f"metric,labels,timestamp,value\na,nonsense,{T0},1\n", r"x\.csv: row 1: labels: got 'nonsense'"),
        (f"metric,timestamp,value\n,{T0},1\n", r"x\.csv: row 1: metric"),
        (f"metric,timestamp,value\na,{T0},1,2,3\n", r"x\.csv"),
    ],
)
def test_a_bad_table_is_named(tmp_path, text: str, words: str) -> None:
    """File, row, column, what was given and what is allowed."""
    with pytest.raises(BadInput, match=words):
        batches(opened(write(tmp_path, x__csv=text)))


def test_a_file_that_is_no_parquet(tmp_path) -> None:
    """One sentence."""
    with pytest.raises(BadInput, match=r"x\.parquet: got .* a readable parquet file"):
        opened(write(tmp_path, x__parquet=b"PAR1 no"))


def test_a_table_with_only_a_header(tmp_path) -> None:
    """Is an empty input."""
    assert opened(write(tmp_path, x__csv="metric,timestamp,value\n")).first_at is None
