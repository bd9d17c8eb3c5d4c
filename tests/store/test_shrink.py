"""The database written anew: smaller, and nothing in it is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.store_commands import compact
from core.errors import BadInput, GreylagError
from pipeline.store import shrink as module
from pipeline.store.duck import DuckStore
from pipeline.store.shrink import shrink
from pipeline.store.verify import verify
from tests.store.build import T0, batch, incident, layout, scrape, tick


def filled(folder: Path) -> Path:
    """A small store with samples and a tick."""
    store = DuckStore(folder, retention_ms=2**53)
    shape = layout()
    store.append([batch(1, *(scrape(shape, T0 + i * 15_000, [i, None, 2.5]) for i in range(40)), layouts=[shape])])
    store.commit_tick(tick(1, incidents=(incident(),)))
    store.close()
    return folder / "greylag.duckdb"


def held(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, in their order."""
    store = DuckStore(file, retention_ms=2**53)
    names = [str(row[0]) for row in store.rows("SELECT table_name FROM duckdb_tables() ORDER BY 1")]
    out = {name: [tuple(map(repr, row)) for row in store.rows(f'SELECT * FROM "{name}" ORDER BY rowid')] for name in names}
    store.close()
    return out


def test_a_small_store_becomes_smaller_and_stays_the_same(tmp_path: Path) -> None:
    """Every row of every table, in its order; a second time nothing is won."""
    file = filled(tmp_path)
    before, size = held(file), file.stat().st_size
    answer = compact(file)
    assert held(file) == before
    assert (verify(file), answer["file_bytes_before"], answer["file_bytes"] < size / 4) == ([], size, True)
    assert not list(tmp_path.glob("*rewritten*"))


def test_it_goes_on_after_it(tmp_path: Path) -> None:
    """A rewritten store takes samples; a batch that it had is a repeat."""
    file = filled(tmp_path)
    shrink(file)
    store = DuckStore(file, retention_ms=2**53)
    shape = layout()
    again = batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])
    new = batch(2, scrape(shape, T0 + 600_000, [1, 2, 3]), layouts=[shape])
    result = store.append_counted([again, new])
    store.close()
    assert result.samples == 3


@pytest.mark.parametrize("fault", ["counts", "copy"])
def test_a_copy_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """One sentence; nothing is lost and nothing is left beside it."""
    file = filled(tmp_path)
    bytes_before = held(file)
    if fault == "counts":
        monkeypatch.setattr(module, "_counts", lambda connection, database: {database: 1})
    else:
        monkeypatch.setattr(module, "STORAGE_VERSION", "none")
    with pytest.raises(GreylagError, match="it stays as it was"):
        shrink(file)
    assert held(file) == bytes_before
    assert not list(tmp_path.glob("*rewritten*"))


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file that is no store of DuckDB's, in one sentence."""
    file = tmp_path / "greylag.duckdb"
    file.write_bytes(b"x" * 5000)
    with pytest.raises(BadInput):
        shrink(file)
    assert file.read_bytes() == b"x" * 5000
