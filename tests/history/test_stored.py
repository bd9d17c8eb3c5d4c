"""A store can be replayed: what a replay kept tells the same story again, line by line."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import cramjam
import numpy as np
import pytest

from app.import_command import import_history
from app.processes import free_port
from app.stored import StoreFrames, open_stored
from collectors.history.pieces import Piece
from collectors.history.protobuf import write_response
from collectors.protowire import field
from core.clock import TICK_MS, tick_at_or_after, wall_ms
from core.derive import STALE_NAN, absent
from core.errors import BadInput
from core.protocols import Matcher
from core.types import Batch, Layout, Scrape, Series
from pipeline.store.duck import DuckStore
from tests.evaluate.plan import draw
from tests.evaluate.recordings import write
from tests.history.conftest import Made, imported, judged_lines, story
from tests.history.servers import prometheus

# Files that alone name their node, logs of one job and of two, log lines that tell different things of one rank.
STUDY = [(1143, "stalled_loss"), (2315, "thermal_throttle"), (1582, "packet_loss"), (22, "packet_loss"), (25, "packet_loss"),
         (46, "packet_loss"), (75, "stalled_loss"), (80, "thermal_throttle"), (135, "stalled_loss")]


def told_twice(recording: Path, kept: Path) -> list[str]:
    """The story of a recording, which is the story of the store kept from it, every line but the count of samples: blanks
    of an exporter are read but not kept."""
    first = story(recording, keep=str(kept))
    again = story(kept)
    assert again[:-1] == first[:-1]
    one, two = json.loads(first[-1]), json.loads(again[-1])
    assert {k: v for k, v in one.items() if k != "samples"} == {k: v for k, v in two.items() if k != "samples"}
    return first


@pytest.mark.evaluate
@pytest.mark.parametrize(("seed", "kind"), STUDY)
def test_what_a_replay_kept_is_replayed_alike(tmp_path: Path, seed: int, kind: str) -> None:
    """Recordings of all forms, with a fault in each."""
    write(draw(seed, kind), tmp_path / "recording")
    assert judged_lines(told_twice(tmp_path / "recording", tmp_path / "kept"))


def test_files_that_alone_name_their_node(tmp_path: Path) -> None:
    """Series of equal names and labels in the files of two nodes stay two series, and a trainer's log comes back."""
    folder = tmp_path / "recording"
    folder.mkdir()
    t0 = 1_780_000_005_000
    for node, load in (("n1", 1), ("n2", 2)):
        rows = [f"node_load1 {load} {t0 + i * 15_000}\nnode_boot_time_seconds {1_700_000_000 + load} {t0 + i * 15_000}" for i in range(6)]
        (folder / f"{node}.prom").write_text("\n".join(rows) + "\n")
    lines = [f"[titan] 2026-05-28 20:{27 + i}:00,000 - root - INFO - step: {40 * i}  loss:  2.5  grad_norm:  0.5  memory: 4.20GiB(5.1%)  tps: 7,012"
             for i in range(3)]
    (folder / "trainer.j1.log").write_text("\n".join(lines) + "\n")
    told_twice(folder, tmp_path / "kept")
    store = open_stored(tmp_path / "kept")
    loads = {dict(one.series.labels)["instance"]: set(one.values) for one in store.select([Matcher("__name__", "=", "node_load1")], 0, 2**53)}
    steps = [list(one.values) for one in store.select([Matcher("__name__", "=", "greylag_train_step")], 0, 2**53)]
    store.close()
    assert loads == {"n1": {1.0}, "n2": {2.0}}
    assert steps == [[0.0, 40.0, 80.0]]


def test_the_kept_store_of_a_recording_with_odd_times(told: list[str], kept: Path) -> None:
    """Scrapes off the grid, resets, gaps and a silent target: every line is the same."""
    assert story(kept) == told


def test_an_import_beside_logs_and_an_inventory(made: Made, prometheus_url: str, tmp_path: Path) -> None:
    """Logs that are put into the folder are read with the store, and so is its inventory; segments are not."""
    (tmp_path / "inventory.yaml").write_text("nodes:\n- {name: worker-14.cluster.local, rack: r7}\n")
    out = imported(made.options(tmp_path / "store", prometheus_url, match=("odd_gap",), inventory=str(tmp_path / "inventory.yaml")))
    from core.clock import rfc3339

    line = f"{rfc3339(made.start + 400_000)} worker-14 kernel: NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus."
    (out / "kernel.worker-14.cluster.local.log").write_text(line + "\n")
    events = [json.loads(row)["event"] for row in story(out) if row.startswith('{"type":"event"')]
    assert [(e["kind"], e["target"]["node"]) for e in events] == [("xid", "worker-14.cluster.local")]


def test_times_off_the_grid_and_failed_scrapes_are_kept(tmp_path: Path) -> None:
    """A scrape has its own time again; one that failed has an error again, and no values."""
    store = DuckStore(tmp_path / "greylag.duckdb")
    own = [Series(name, (("job", "j"),), "gauge") for name in ("up", "scrape_duration_seconds", "scrape_samples_scraped")]
    good = Layout("l1", "t", (Series("a", (("job", "j"),)), *own), (), node="n")
    failed = Layout("l2", "t", tuple(own), (), node="n")
    t0 = 1_780_000_000_123
    store.append([Batch("w", 1, 1, t0, (good, failed), (
        Scrape("l1", "t", t0, np.array([5.0, 1, 0.1, 1])), Scrape("l2", "t", t0 + 14_001, np.array([0.0, 0.2, 0]), 0.2, "timeout"),
        Scrape("l1", "t", t0 + 30_002, np.array([6.0, 1, 0.1, 1]))))])
    store.close()
    opened = open_stored(tmp_path)
    frames = StoreFrames(opened)
    assert (frames.first_at, frames.last_at) == (t0, t0 + 30_002)
    got = [(s.at, s.error is not None, [None if gone else v for v, gone in zip(s.values.tolist(), absent(s.values), strict=True)][:1])
           for at in range(tick_at_or_after(t0), t0 + 60_000, TICK_MS) for b in frames.advance(at) for s in b.scrapes]
    opened.close()
    assert got == [(t0, False, [5.0]), (t0 + 14_001, True, []), (t0 + 30_002, False, [6.0])]


def test_an_empty_store_is_an_empty_input(tmp_path: Path) -> None:
    """Nothing to tell, and no error."""
    DuckStore(tmp_path / "greylag.duckdb").close()
    assert len(story(tmp_path)) == 1


def test_keeping_into_the_store_that_is_read(tmp_path: Path) -> None:
    """Two stories must not mix."""
    DuckStore(tmp_path / "greylag.duckdb").close()
    with pytest.raises(BadInput, match=r"--keep: got .*a folder without a greylag\.duckdb is needed"):
        story(tmp_path, keep=str(tmp_path))


def test_stale_markers_of_a_real_prometheus(tmp_path: Path) -> None:
    """Written to its remote write receiver, read by remote read: a series has ended at the time of its marker."""
    now = wall_ms() // TICK_MS * TICK_MS - 120_000
    times = np.array([now, now + 15_000, now + 30_000], np.int64)
    place = (("instance", "i:1"), ("job", "j"))
    pieces = [Piece("ends", place, times, np.array([1.0, STALE_NAN, 3.0])), Piece("goes_on", place, times, np.array([0.0, 0.0, 2.0]))]
    with prometheus(tmp_path / "p", free_port(), None, "--web.enable-remote-write-receiver") as url:
        body = write_response(pieces)
        request = urllib.request.Request(f"{url}/api/v1/write", bytes(cramjam.snappy.compress_raw(_inner(body))), {
            "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Write-Version": "0.1.0"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 204
        from app.import_command import ImportOptions

        import_history(ImportOptions(str(tmp_path / "store"), url, start="1h", match=('{job="j"}',)))
    store = open_stored(tmp_path / "store")
    found = {one.series.name: list(one.values) for one in store.select([], 0, 2**53)}
    store.close()
    assert found == {"ends": [1.0, None, 3.0], "goes_on": [0.0, 0.0, 2.0]}


def _inner(response: bytes) -> bytes:
    """A write request: the time series of a read response's one result."""
    from collectors.history.protobuf import _fields

    view = memoryview(response)
    _, _, start, end = next(_fields(view, 0, len(view)))
    assert field(1, bytes(view[start:end])) == response
    return response[start:end]
