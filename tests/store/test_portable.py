"""Export, import and verify: samples leave a store and come back, and what is broken is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from app.cli import app
from pipeline.store.duck import DuckStore
from pipeline.store.verify import verify
from tests.store.build import STEP, batch, layout, scrape

HOUR = 3_600_000
START = 1_800_000_000_000 // HOUR * HOUR
EVER = (0, 2**50)
SHAPE, OTHER = layout(names=["a", "b", "c"], job="j"), layout("t2", ["z"], job="k")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two sealed hours, an open one, late samples and a series that ends."""
    store = DuckStore(tmp_path / "one", rollup_1m_ms=1000 * HOUR, rollup_1h_ms=1000 * HOUR)
    for n in range(0, 640, 20):
        rows = [scrape(SHAPE, START + n * STEP, [n, n / 8, None if n > 300 else 1]), scrape(OTHER, START + n * STEP, [n])]
        store.append([batch(n, *rows, layouts=[SHAPE, OTHER])])
    store.append([batch(999, scrape(SHAPE, START + STEP, [1, 2, 3]))])
    store.seal()
    store.close()
    return tmp_path


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    return done.exit_code, done.output


def content(folder: Path) -> object:
    store = DuckStore(folder)
    try:
        return repr(store.select([], *EVER))
    finally:
        store.close()


def test_what_is_exported_can_be_imported(folder: Path) -> None:
    """All samples and stale markers are the same in the second store; a second import changes nothing."""
    assert run("store", "export", folder / "one", "--out", folder / "all.parquet")[0] == 0
    for _ in range(2):
        code, said = run("store", "import", folder / "two", folder / "all.parquet")
        assert code == 0, said
    ours, theirs = DuckStore(folder / "one"), DuckStore(folder / "two")
    pairs = zip(ours.select([], *EVER), theirs.select([], *EVER), strict=True)
    assert all((a.series.name, a.series.labels, list(a.at), list(a.values)) == (b.series.name, b.series.labels, list(b.at), list(b.values))
               for a, b in pairs)
    ours.close()
    theirs.close()
    assert run("store", "verify", folder / "two") == (0, "")


def test_an_export_is_in_time_order_and_within_its_bounds(folder: Path) -> None:
    """A selector and two times choose the rows."""
    low, high = "2027-01-15T08:10:00Z", "2027-01-15T09:00:00Z"
    code, said = run("store", "export", folder / "one", "--out", folder / "some.parquet", "--match", '{job="j",__name__=~"a|b"}',
                     "--start", low, "--end", high)
    rows = pq.read_table(folder / "some.parquet")
    times = rows.column("timestamp").to_pylist()
    assert (code, set(rows.column("metric").to_pylist()), times == sorted(times)) == (0, {"a", "b"}, True), said
    assert (times[0].isoformat(), times[-1].isoformat()) == ("2027-01-15T08:10:00+00:00", "2027-01-15T09:00:00+00:00")


@pytest.mark.parametrize(("arguments", "words"), [
    (["--out", "x.csv"], ".parquet"), (["--out", "x.parquet", "--match", "rate(a[5m])"], "selector"),
    (["--out", "x.parquet", "--start", "noon"], "RFC 3339"), (["--out", "x.parquet", "--match", "nowhere"], "no samples"),
])
def test_a_bad_export_is_one_sentence(folder: Path, arguments: list[str], words: str) -> None:
    """What was given and what is allowed."""
    done = CliRunner().invoke(app, ["store", "export", str(folder / "one"), *arguments])
    assert done.exit_code != 0
    assert words in done.output + str(done.exception)


def test_a_whole_store_has_no_problem(folder: Path) -> None:
    """Open and sealed hours, rollups, late parts."""
    assert verify(folder / "one") == []


def _sql(statement: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with duckdb.connect(str(folder / "greylag.duckdb")) as connection:
            connection.execute(statement)
    return change


def _unlink(folder: Path) -> None:
    sorted((folder / "segments").iterdir())[0].unlink()


@pytest.mark.parametrize(("damage", "words"), [
    (_unlink, "is not there"),
    (lambda folder: (folder / "segments" / "x.parquet").write_bytes(b"?"), "does not name"),
    (lambda folder: sorted((folder / "segments").iterdir())[0].write_bytes(b"?"), "cannot be read"),
    (_sql("UPDATE segments SET rows = rows + 1"), "the manifest says"),
    (_sql("UPDATE segments SET last_ms = last_ms + 1 WHERE tier = 'raw'"), "samples from"),
    (_sql("DELETE FROM entities"), "does not exist"),
    (_sql("DELETE FROM kind_columns WHERE kind >= 0"), "column"),
    (_sql("INSERT INTO series SELECT * FROM series"), "id of another"),
    (_sql("DELETE FROM series"), "layouts with series"),
])
def test_what_is_broken_is_named(folder: Path, damage: Callable[[Path], object], words: str) -> None:
    """Exit 1 and one line for each problem."""
    damage(folder / "one")
    code, said = run("store", "verify", folder / "one")
    assert (code, words in said) == (1, True), said


def test_compact_and_stats_say_what_there_is(folder: Path) -> None:
    """Figures, and the same answers afterwards."""
    before = content(folder / "one")
    code, said = run("store", "compact", folder / "one")
    assert (code, '"segments"' in said) == (0, True)
    assert "kinds: 1" in run("store", "stats", folder / "one")[1]
    assert content(folder / "one") == before


