"""An import that was killed goes on where it ended: nothing is missing, nothing is doubled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.import_command import import_history
from collectors.history import slices
from core.clock import rfc3339
from core.errors import BadInput
from pipeline.store.duck import DuckStore
from tests.history.conftest import Made, imported
from tests.history.servers import differences, stored_past

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import os, signal, sys
import collectors.history.slices as slices
from app.import_command import ImportOptions, import_history
from pipeline.store.duck import DuckStore
slices.FIRST_SLICE_MS = slices.LONGEST_SLICE_MS = 60_000
out, url, start, end, at, when = sys.argv[1:]
real, done = DuckStore.append, 0
def append(self, batches):
    global done
    done += 1
    if done == int(at) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, batches)
    if done == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
DuckStore.append = append
import_history(ImportOptions(out, url, start=start, end=end, match=('{job="odd"}',)))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_import_goes_on(made: Made, prometheus_url: str, tmp_path: Path, when: str) -> None:
    """kill -9 just before and just after a slice is committed; the second run starts behind what is stored."""
    options = made.options(tmp_path / "store", prometheus_url, match=('{job="odd"}',))
    child = subprocess.run([sys.executable, "-c", CHILD, options.out, prometheus_url, str(options.start), str(options.end), "12", when],
                           cwd=ROOT, check=False, capture_output=True, text=True)
    assert child.returncode == -9, child.stderr
    said: list[str] = []
    import_history(options, said.append)
    wanted = {key: points for key, points in made.past.items() if ("job", "odd") in key[1]}
    assert differences(wanted, stored_past(tmp_path / "store")) == []
    first = next(line for line in said if line.startswith("reading"))
    assert f"from {rfc3339(made.start - 60_000)}" not in first, first


def test_small_slices_give_the_same_batches(made: Made, prometheus_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the time is cut, the store holds the same, stale markers included."""
    def rows(folder: Path) -> list[object]:
        store = DuckStore(folder / "greylag.duckdb", retention_ms=2**53)
        found = [(one.series.name, one.series.labels, one.at, one.values) for one in store.select([], 0, 2**53)]
        store.close()
        return [(name, labels, list(at), list(values)) for name, labels, at, values in found]

    whole = imported(made.options(tmp_path / "whole", prometheus_url, match=('{job="odd"}', '{job=~"dcgm.*"}')))
    monkeypatch.setattr(slices, "FIRST_SLICE_MS", 45_000)
    monkeypatch.setattr(slices, "LONGEST_SLICE_MS", 75_000)
    cut = imported(made.options(tmp_path / "cut", prometheus_url, match=('{job="odd"}', '{job=~"dcgm.*"}')))
    assert repr(rows(whole)) == repr(rows(cut))


def test_a_finished_import_without_an_end_goes_on_to_now(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """The second run reads only what is newer; times ago mean what they meant at the first run."""
    middle = made.start + 600_000
    out = tmp_path / "store"
    days = {"start": "1d", "end": None, "match": ("odd_resets_total", "odd_gap")}
    import_history(made.options(out, prometheus_url, **days, now_ms=middle))
    import_history(made.options(out, prometheus_url, **days, now_ms=made.end + 60_000))
    wanted = {key: points for key, points in made.past.items() if key[0] in ("odd_resets_total", "odd_gap")}
    assert differences(wanted, stored_past(out)) == []


def test_nothing_is_left_of_an_import_that_brought_nothing(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """A wrong selector: one sentence, and no store that would be in the way of the next try."""
    out = tmp_path / "store"
    with pytest.raises(BadInput, match="nothing from"):
        import_history(made.options(out, prometheus_url, match=('{job="nobody"}',)))
    assert list(out.iterdir()) == []
