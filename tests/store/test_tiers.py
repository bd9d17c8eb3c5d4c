"""Rollups, compaction, a disk that is nearly full, migration from schema 1, and moves between targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pytest

from core.errors import BadInput
from core.protocols import Matcher
from core.types import Layout, Scrape, Series, SignalRef
from pipeline.store.codec import encode
from pipeline.store.duck import DuckStore
from pipeline.store.rollups import Rollup
from tests.store.build import GPU, STEP, T0, batch, layout, record, scrape, tick

HOUR, MINUTE, DAY = 3_600_000, 60_000, 86_400_000
EVER = (0, 2**50)
START = T0 // HOUR * HOUR
KEPT = {"rollup_1m_ms": 1000 * HOUR, "rollup_1h_ms": 1000 * HOUR}
WIDE, TALL = layout(names=["a", "b", "c", "d"]), layout("t2", ["z"])


def readings(store: DuckStore, slots: Sequence[int], first: int = 1) -> None:
    """a counts slots, b is whole only now and then, c has NaN and blanks, d is blank; z is a long series."""
    rows = []
    for n in slots:
        at = START + n * STEP
        rows.append(scrape(WIDE, at, [n, n / 8, None if n % 5 == 0 else float("nan") if n % 7 == 0 else -n, None]))
        rows.append(scrape(TALL, at, [n * 2]))
    store.append([batch(first, *rows, layouts=[WIDE, TALL])])


def expected(slots: Sequence[int], step: int, value: object) -> list[tuple[int, list[float]]]:
    """(bucket's start, [min, max, mean, count, last, sum]) said plainly."""
    buckets: dict[int, list[float]] = {}
    for n in sorted(slots):
        found = value(n)  # type: ignore[operator]
        if found is not None:
            buckets.setdefault((START + n * STEP) // step * step, []).append(found)
    return [(at, [float(x) for x in (min(v), max(v), sum(v) / len(v), len(v), v[-1], sum(v))]) for at, v in sorted(buckets.items())]


def told(one: Rollup) -> list[tuple[int, list[float]]]:
    columns = np.stack([one.min, one.max, one.mean, one.count, one.last, one.sum], axis=1)
    return list(zip(one.at.tolist(), columns.tolist(), strict=True))


def c_of(n: int) -> float | None:
    return None if n % 5 == 0 or n % 7 == 0 else -n


VALUES = {"a": lambda n: n, "b": lambda n: n / 8, "c": c_of, "z": lambda n: n * 2}
SLOTS = list(range(0, 1000, 1))  # four hours and a bit


@pytest.mark.parametrize("step", [MINUTE, 5 * MINUTE, HOUR, 2 * HOUR])
@pytest.mark.parametrize("how", ["open", "sealed", "restarted", "compacted", "late", "raw_gone"])
def test_rollups_are_what_the_samples_say(tmp_path: Path, step: int, how: str) -> None:
    """Sealed or not, with parts of an hour that came late, after compaction, and after the raw samples are gone."""
    store = DuckStore(tmp_path, **KEPT)  # type: ignore[arg-type]
    late = [3, 250, 251, 500] if how == "late" else []
    readings(store, [n for n in SLOTS if n not in late])
    if how != "open":
        assert store.seal() > 0
    if late:
        readings(store, late, 2)
        store.seal()
    if how == "restarted":
        store.close()
        store = DuckStore(tmp_path, **KEPT)  # type: ignore[arg-type]
    if how == "compacted":
        readings(store, [SLOTS[-1] + 4 * 24 * 120 * 2], 3)
        store.seal()
        assert store.compact() > 0
    if how == "raw_gone":
        assert store.shorten(1) > 0
    found = {one.series.name: told(one) for one in store.rollup([], START, START + 5 * HOUR - 1, step)}
    for name, value in VALUES.items():
        # What was sealed outlives the raw samples: here three hours of four.
        count = 3 * HOUR // step if how == "raw_gone" else len(SLOTS)
        assert repr(found[name][:count]) == repr(expected(SLOTS, step, value)[:count]), name
    assert "d" not in found
    store.close()


def test_a_rollups_step_is_whole_minutes(tmp_path: Path) -> None:
    """Anything else is refused in one sentence."""
    store = DuckStore(None)
    with pytest.raises(BadInput, match="multiple of 60000"):
        store.rollup([], 0, 1, 90_000)
    store.close()


def test_compaction_changes_no_answer(tmp_path: Path) -> None:
    """The hours of a day that is over become one file a kind; old files go; a restart finds all in order."""
    store = DuckStore(tmp_path, **KEPT)  # type: ignore[arg-type]
    for n in range(0, 60, 2):
        readings(store, [n * 240, n * 240 + 1], n)
        store.seal()
    before, files = repr(store.select([], *EVER)), len(list((tmp_path / "segments").iterdir()))
    gone = store.compact()
    stats = store.stats()
    assert (repr(store.select([], *EVER)), store.compact()) == (before, 0)
    assert gone > 20
    assert len(list((tmp_path / "segments").iterdir())) == files - gone
    store.close()
    again = DuckStore(tmp_path)
    assert (repr(again.select([], *EVER)), again.stats()["orphans_deleted"], again.stats()["samples"]) == (before, 0, stats["samples"])
    again.close()


def test_a_merge_that_retention_overtook_is_dropped(tmp_path: Path) -> None:
    """Files that expired while they were being put together do not come back."""
    store = DuckStore(tmp_path)
    for n in range(0, 60, 2):
        readings(store, [n * 240], n)
    store.seal()
    merge = store.compact_due()[0]
    made = store.write_merge(merge)
    store.shorten(HOUR)
    left = store.stats()["segments"]
    store.commit_merge(merge, made)
    assert store.stats()["segments"] == left
    store.close()


def test_shortening_frees_the_disk_at_once_and_retention_stays(tmp_path: Path) -> None:
    """Old hours and their files are gone; the newest stay."""
    store = DuckStore(tmp_path)
    for n in range(8):
        readings(store, [n * 240], n)
    store.seal()
    dropped = store.shorten(3 * HOUR)
    left = store.select([Matcher("__name__", "=", "a")], *EVER)[0].at
    assert (dropped > 0, left[0], store.retention_ms) == (True, START + 4 * HOUR, 15 * DAY)
    assert len(list((tmp_path / "segments").iterdir())) == store.stats()["segments"]
    store.close()


def test_paused_samples_are_counted_and_all_else_goes_on(tmp_path: Path) -> None:
    """A full disk: no samples, but events, ticks and hand-over keys; afterwards samples go on."""
    store = DuckStore(tmp_path)
    readings(store, [0], 1)
    store.raw_paused = True
    result = store.append_counted([batch(2, scrape(WIDE, START + STEP, [1, 2, None, 4]), layouts=[WIDE])])
    store.commit_tick(tick(records=(record(1),)))
    store.raw_paused = False
    readings(store, [2], 3)
    (a,) = store.select([Matcher("__name__", "=", "a")], *EVER)
    assert (result.samples, result.counts, list(a.values), store.last_tick()) == (0, {"disk_full": 3}, [0.0, 2.0], T0)
    assert store.append_counted([batch(2)]).repeats == (("w", 1, 2),)
    store.close()


def test_the_journal_and_old_keys_go_with_the_raw_samples(tmp_path: Path) -> None:
    """Records older than the retention are dropped but for the newest; numbers go on; the ledger stays."""
    store = DuckStore(tmp_path, retention_ms=HOUR)
    store.commit_tick(tick(0, records=(record(1), record(2))))
    for n in range(5):
        readings(store, [(T0 - START) // STEP + n * 240], n)
    store.expire()
    store.commit_tick(tick(1, records=(record(3),)))
    assert [number for number, _ in store.records()] == [2, 3]
    store.close()


# --- what lies where --------------------------------------------------------------------------------------------------
def test_places_are_decided_once_and_kept(tmp_path: Path) -> None:
    """Metrics of a key set share a table, pivots are columns, lone metrics and pushes are long rows, also after a restart."""
    cpu = layout("n1", ["node_cpu_seconds_total"])
    cpus = Layout("cpu", "n1", tuple(
        type(cpu.series[0])(cpu.series[0].name, tuple(sorted((("cpu", str(c)), ("instance", "n1"), ("mode", m)))), "counter")
        for c in range(3) for m in ("idle", "user", "nice", "iowait")), ())
    lone, push = layout("n2", ["up"]), Layout("push", "p", layout("p", list("vwxyz")).series, (), partial=True)
    for n in range(2):
        store = DuckStore(tmp_path)
        store.append([batch(n, scrape(cpus, T0 + n, range(12)), scrape(lone, T0 + n, [1]), scrape(push, T0 + n, range(5)),  # type: ignore[arg-type]
                            layouts=[cpus, lone, push])])
        stats = store.stats()
        assert [stats[k] for k in ("kinds", "entities", "series", "open_tables", "open_rows")] == [1, 3, 18, 2, 9 * (n + 1)]
        assert store.label_values("mode") == ["idle", "iowait", "nice", "user"]
        assert [s.values for s in store.select([Matcher("mode", "=~", "n.*"), Matcher("cpu", "!=", "0")], *EVER)] == [
            [6.0] * (n + 1), [10.0] * (n + 1)]
        store.close()


@pytest.mark.parametrize(("queues", "kinds"), [
    pytest.param(lambda metric: range(4), 1, id="every metric of every queue: one table"),
    pytest.param(lambda metric: range(4 * metric, 4 * metric + 4), 0, id="each metric has queues of its own: long rows"),
])
def test_a_table_that_would_be_nearly_empty_is_not_made(tmp_path: Path, queues: Callable[[int], range], kinds: int) -> None:
    """Metrics share a table only where their entities mostly do; either way everything reads back, also after a restart."""
    series = tuple(Series(f"sw_queue_m{m}", (("instance", "s1"), ("queue", str(q))), "gauge") for m in range(9) for q in queues(m))
    one = Layout("q", "s1", series, ())
    for n in range(2):
        store = DuckStore(tmp_path)
        store.append([batch(n, scrape(one, T0 + n * STEP, range(36)), layouts=[one])])  # type: ignore[arg-type]
        found = {(s.series.name, s.series.labels): s.values for s in store.select([Matcher("__name__", "=~", "sw.*")], *EVER)}
        assert found == {(s.name, s.labels): [float(i)] * (n + 1) for i, s in enumerate(series)}
        assert store.stats()["kinds"] == kinds
        store.close()


def test_a_kind_gains_columns_and_is_full_at_256(tmp_path: Path) -> None:
    """New metrics widen the open table; the 257th opens another kind; too many pivot values are long."""
    store = DuckStore(tmp_path)
    for n, names in enumerate((["m_x_1", "m_x_2", "m_x_3"], [f"m_x_{i}" for i in range(1, 9)], [f"m_x_{i}" for i in range(300)])):
        shape = layout("t1", names)
        store.append([batch(n, scrape(shape, T0 + n * STEP, [n] * len(names)), layouts=[shape])])
    one = [s.values for s in store.select([Matcher("__name__", "=", "m_x_1")], *EVER)]
    assert (one, len(store.series([])), store.stats()["kinds"] >= 2) == ([[0.0, 1.0, 2.0]], 300, True)
    buckets = Layout("b", "t9", tuple(type(shape.series[0])("h_bucket", (("le", str(i)),), "histogram") for i in range(200)), ())
    store.append([batch(9, scrape(buckets, T0, range(200)), layouts=[buckets])])  # type: ignore[arg-type]
    assert sum(s.values[0] for s in store.select([Matcher("le", "!=", "")], *EVER)) == sum(range(200))  # type: ignore[misc]
    store.close()


def test_two_targets_that_claim_one_series(tmp_path: Path) -> None:
    """The last to register it owns it; what the other says is a conflict until the owner has been silent for 5 minutes."""
    names = ["a", "b", "c"]
    here = layout("t1", names)
    there = Layout("there", "t2", here.series, ())
    store = DuckStore(tmp_path)
    store.append([batch(1, scrape(here, T0, [1, 1, 1]), layouts=[here])])
    store.append([batch(2, scrape(there, T0 + STEP, [2, 2, 2]), layouts=[there])])
    result = store.append_counted([batch(3, scrape(here, T0 + 2 * STEP, [3, 3, 3]))])
    assert (result.samples, result.counts) == (0, {"conflict": 3})
    store.close()
    store = DuckStore(tmp_path)
    result = store.append_counted([batch(4, scrape(here, T0 + 40 * STEP, [4, 4, 4]))])
    assert (result.samples, result.counts) == (3, {})
    (a,) = store.select([Matcher("__name__", "=", "a")], *EVER)
    assert [v for v in a.values if v is not None] == [1.0, 2.0, 4.0]
    store.close()


# --- schema 1 ---------------------------------------------------------------------------------------------------------
OLD = (
    "CREATE TABLE meta (key VARCHAR, value VARCHAR)", "INSERT INTO meta VALUES ('schema_version', '1')",
    "CREATE TABLE series (id UINTEGER, name VARCHAR, labels VARCHAR, type VARCHAR, target_id VARCHAR,"
    " first_ms BIGINT, last_ms BIGINT, last_value DOUBLE)",
    "CREATE TABLE layouts (id VARCHAR, target_id VARCHAR, node VARCHAR, job VARCHAR, source VARCHAR,"
    " series UINTEGER[], signals VARCHAR)",
    "CREATE TABLE epochs (worker VARCHAR, epoch BIGINT)", "INSERT INTO epochs VALUES ('w', 3)",
    "CREATE TABLE batches (worker VARCHAR, epoch BIGINT, seq BIGINT, watermark_ms BIGINT, samples BIGINT)",
    "INSERT INTO batches VALUES ('w', 3, 7, 0, 3)",
    "CREATE TABLE segments (hour BIGINT, part INTEGER, file VARCHAR, rows BIGINT, bytes BIGINT, first_ms BIGINT, last_ms BIGINT)",
    "CREATE TABLE records (seq BIGINT, at_ms BIGINT, type VARCHAR, line VARCHAR)",
)


def old_store(folder: Path, shape: Layout) -> None:
    """A store as schema 1 wrote it: three series, an open hour and a sealed one."""
    ref = SignalRef(1, "gpu.temperature_celsius", GPU)
    hour = T0 // HOUR
    with duckdb.connect(str(folder / "greylag.duckdb")) as connection:
        for statement in OLD:
            connection.execute(statement)
        for i, one in enumerate(shape.series):
            connection.execute("INSERT INTO series VALUES (?, ?, ?, 'gauge', 't1', ?, ?, 1.0)",
                               [i, one.name, json.dumps(dict(one.labels)), T0, T0])
        connection.execute("INSERT INTO layouts VALUES (?, 't1', 'n1', NULL, NULL, [0, 1, 2], ?)", [shape.id, json.dumps([encode(ref)])])
        for number, at in ((hour, T0), (hour + 1, T0 + HOUR)):
            connection.execute(f'CREATE TABLE "samples_{number}_0" (series_id UINTEGER, at_ms BIGINT, value DOUBLE)')
            connection.execute(f'INSERT INTO "samples_{number}_0" SELECT id, {at}, id FROM series')
        (folder / "segments").mkdir()
        file = folder / "segments" / f"samples-{hour}-0.parquet"
        connection.execute(f"COPY \"samples_{hour}_0\" TO '{file}' (FORMAT parquet)")
        connection.execute("INSERT INTO segments VALUES (?, 0, ?, 3, 100, ?, ?)", [hour, file.name, T0, T0])
        connection.execute(f'DROP TABLE "samples_{hour}_0"')


def test_a_store_of_schema_1_opens_and_goes_on(tmp_path: Path) -> None:
    """Old samples are read, layouts and keys are known, new samples of the same series go to wide tables."""
    shape = layout(names=["a", "b", "c"])
    old_store(tmp_path, shape)
    for n in range(2):
        store = DuckStore(tmp_path)
        times = [T0, T0 + HOUR, *([T0 + HOUR + STEP] if n else [])]
        assert [list(s.at) for s in store.select([], *EVER)] == [times] * 3
        assert store.append_counted([batch(7, epoch=3)]).repeats == (("w", 3, 7),)
        assert [found[2].target for found in store.meanings("gpu.temperature_celsius", *EVER)] == [GPU]
        store.append([batch(8, scrape(shape, T0 + HOUR + STEP, [9, 9, 9]), epoch=3)])
        assert [list(s.values)[-1] for s in store.select([], *EVER)] == [9.0] * 3
        assert [s.name for s in store.series([])] == ["a", "b", "c"]
        store.append([batch(9, Scrape("", "t1", T0 + HOUR + 2 * STEP, np.empty(0), 0.0, "timeout"), epoch=3)])
        assert [list(s.values)[-1] for s in store.select([], *EVER)] == [None] * 3
        store.append([batch(10 + n, scrape(shape, T0 + HOUR + (3 + n) * STEP, [None, None, None]), epoch=3)])
        store.close()
        break
