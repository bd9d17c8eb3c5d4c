"""The store on disk: restarts, sealing, retention, orphans, and files that cannot be opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from core.errors import BadInput, GreylagError
from core.types import Layout
from pipeline.store.duck import DuckStore
from pipeline.store.segments import SEAL_GRACE_MS
from tests.needs import ROOT
from tests.store.build import (
    STEP,
    T0,
    action,
    batch,
    finding,
    incident,
    layout,
    message,
    record,
    scrape,
    tick,
)

HOUR = 3_600_000
EVER = (0, 2**50)


def values(store: DuckStore, name: str = "a") -> list[float | None]:
    return [v for s in store.select([], *EVER) if s.series.name == name for v in s.values]


def fill(store: DuckStore, shape: Layout, hours: int, first: int = 1) -> None:
    for n in range(hours):
        one = batch(first + n, scrape(shape, T0 + n * HOUR, [n, 2, 3]), layouts=[shape])
        store.append([one])


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Samples, records, state and what repeats and epochs are known of."""
    shape = layout()
    with_parts = tick(findings=(finding(),), incidents=(incident(),), actions=(action(),), outbox=(message(),),
                      records=(record(1),), state={"book": "b"})
    store = DuckStore(tmp_path)
    epoch = store.epoch("w")
    one = batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape], epoch=epoch)
    store.append([one])
    store.commit_tick(with_parts)
    store.close()
    again = DuckStore(tmp_path)
    result = again.append_counted([one])
    assert (values(again), result.repeats, again.state("book"), again.ledger()) == (
        [1.0], (("w", epoch, 1),), "b", [action()])
    assert (again.layout(shape.id), again.epoch("w"), again.watermarks()) == (shape, epoch + 1, {})
    again.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_the_first_reading_after_a_restart_ends_what_is_gone(tmp_path: Path, sealed: bool) -> None:
    """A series that vanished while the owner was away gets its stale marker; a repeated sample is known."""
    shape, smaller = layout(), layout(names=["a"])
    store = DuckStore(tmp_path)
    store.append([batch(1, scrape(shape, T0, [1, 2, None]), layouts=[shape, smaller])])
    store.append([batch(2, scrape(layout("other"), T0 + 3 * HOUR, [0, 0, 0]), layouts=[layout("other")])])
    assert bool(store.seal()) if sealed else True
    store.close()
    again = DuckStore(tmp_path)
    again.append([batch(3, scrape(shape, T0, [1, 9, None]))])
    again.append([batch(4, scrape(smaller, T0 + STEP, [5]))])
    found = {s.series.name: s.values for s in again.select([], T0, T0 + HOUR)}
    assert found == {"a": [1.0, 5.0], "b": [2.0, None]}
    again.close()


def test_sealing_moves_hours_into_files_and_changes_no_answer(tmp_path: Path) -> None:
    """Hours that are over by the grace are in Parquet, sorted; the newest stay open."""
    store = DuckStore(tmp_path)
    fill(store, layout(), 5)
    before = store.select([], *EVER)
    sealed = store.seal()
    stats = store.stats()
    assert (sealed, stats["segments"], stats["open_hours"]) == (4 if SEAL_GRACE_MS <= 0 else 3, 3, 2)
    assert store.select([], *EVER) == before
    store.close()
    again = DuckStore(tmp_path)
    assert again.select([], *EVER) == before
    again.close()


def test_a_late_sample_of_a_sealed_hour_becomes_a_second_part(tmp_path: Path) -> None:
    """Nothing that comes after sealing is lost, and the sealed samples still win."""
    shape = layout()
    store = DuckStore(tmp_path)
    fill(store, shape, 4)
    store.seal()
    result = store.append_counted([batch(50, scrape(shape, T0, [9, 9, 9]), scrape(shape, T0 + STEP, [7, 7, 7]))])
    store.seal()
    assert (result.counts, values(store), store.stats()["segments"]) == ({"conflict": 3}, [0.0, 7.0, 1.0, 2.0, 3.0], 3)
    store.close()


def test_samples_that_come_while_an_hour_is_sealed_are_kept(tmp_path: Path) -> None:
    """A frozen part takes nothing any more: late samples open the next part."""
    shape = layout()
    store = DuckStore(tmp_path)
    fill(store, shape, 4)
    parts = store.seal_due()
    segments = [store.write_part(p) for p in parts]
    store.append([batch(50, scrape(shape, T0 + STEP, [7, 7, 7]))])
    for part, segment in zip(parts, segments, strict=True):
        store.seal_part(part, segment)
    assert values(store) == [0.0, 7.0, 1.0, 2.0, 3.0]
    store.close()


def test_orphans_are_deleted_at_the_start(tmp_path: Path) -> None:
    """A crash between the rename and the commit leaves a file that means nothing."""
    store = DuckStore(tmp_path)
    fill(store, layout(), 4)
    parts = store.seal_due()
    store.write_part(parts[0])
    (tmp_path / "segments" / "samples-1-0.parquet.tmp").write_bytes(b"half")
    store.close()
    again = DuckStore(tmp_path)
    left = list((tmp_path / "segments").iterdir())
    assert (left, values(again), again.stats()["orphans_deleted"]) == ([], [0.0, 1.0, 2.0, 3.0], 2)
    again.close()


def test_a_segment_that_is_gone_is_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    """Somebody deleted a file: the other hours answer."""
    store = DuckStore(tmp_path)
    fill(store, layout(), 4)
    store.seal()
    store.close()
    next(iter(sorted((tmp_path / "segments").iterdir()))).unlink()
    again = DuckStore(tmp_path)
    assert (values(again), again.stats()["missing_segments"]) == ([1.0, 2.0, 3.0], 1)
    again.close()


def test_retention_drops_whole_hours(tmp_path: Path) -> None:
    """Old hours go, sealed or not; their files one round later; series without samples are forgotten at a restart."""
    gone = layout("gone", ["z"])
    store = DuckStore(tmp_path, retention_ms=2 * HOUR)
    store.append([batch(0, scrape(gone, T0, [1]), layouts=[gone])])
    fill(store, layout(), 6)
    store.seal()
    dropped = store.expire()
    assert (dropped, values(store)) == (4, [3.0, 4.0, 5.0])
    store.close()
    again = DuckStore(tmp_path, retention_ms=2 * HOUR)
    assert ([s.name for s in again.series([])], again.layout(gone.id)) == (["a", "b", "c"], None)
    result = again.append_counted([batch(90, scrape(gone, T0 + 6 * HOUR, [2]), layouts=[gone])])
    assert (result.samples, values(again, "z")) == (1, [2.0])
    again.close()


def test_an_answer_that_meets_sealing_is_asked_again(tmp_path: Path) -> None:
    """A query that named an hour's table just before it was sealed reads the segment instead."""
    store = DuckStore(tmp_path)
    fill(store, layout(), 4)
    before = store.select([], *EVER)
    stale = store._segments.sources(0, *EVER)
    store.seal()
    current, asked = store._segments.sources, []

    def sources(kind: int, start: int, end: int) -> object:
        asked.append(kind)
        return stale if len(asked) == 1 else current(kind, start, end)

    store._segments.sources = sources  # type: ignore[method-assign]
    assert (store.select([], *EVER), asked) == (before, [0, 0, -1])
    store.close()


def test_a_checkpoint_beside_an_open_reader_is_put_off(tmp_path: Path) -> None:
    """CHECKPOINT fails while a reader sees a dropped table, is never forced, and works afterwards."""
    store = DuckStore(tmp_path)
    fill(store, layout(), 4)
    part = store.seal_due()[0]
    with store.reading() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT count(*) FROM {part.table}").fetchall()
        store.seal_part(part, store.write_part(part))
        during = store.checkpoint()
    assert (during, store.checkpoint()) == (False, True)
    store.close()


def test_a_second_process_gets_one_kind_sentence(tmp_path: Path) -> None:
    """Which file, who holds it, what to do."""
    store = DuckStore(tmp_path)
    code = ("import sys; from pipeline.store.duck import DuckStore\nfrom core.errors import BadInput\n"
            "try: DuckStore(sys.argv[1])\nexcept BadInput as error: print(error)")
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False)
    store.close()
    assert "greylag.duckdb: got a store that process" in said.stdout, said.stderr
    assert "stop that process or give another data_dir" in said.stdout
    assert len(said.stdout.splitlines()) == 1


def _newer(file: Path) -> None:
    DuckStore(file).close()
    with duckdb.connect(str(file)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")


def _foreign(file: Path) -> None:
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")


@pytest.mark.parametrize(("prepare", "words"), [
    (_newer, "install a newer Greylag"),
    (_foreign, "a path of its own"),
    (lambda file: file.write_bytes(b"no database" * 1000), "a DuckDB file that Greylag wrote"),
    (lambda file: file.with_suffix(".duckdb").mkdir(), ""),
])
def test_a_file_that_is_no_store_of_ours_is_refused(tmp_path: Path, prepare: object, words: str) -> None:
    """One sentence, and the file stays as it was."""
    file = tmp_path / "x.duckdb"
    prepare(file)  # type: ignore[operator]
    if file.is_dir():
        DuckStore(file).close()
        assert (file / "greylag.duckdb").is_file()
        return
    with pytest.raises(BadInput, match=words):
        DuckStore(file)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Calls after close raise GreylagError; closing twice is fine."""
    store = DuckStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(GreylagError):
        store.last_tick()
    with pytest.raises(GreylagError):
        store.commit_tick(tick())
