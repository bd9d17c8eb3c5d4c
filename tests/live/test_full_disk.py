"""A disk that fills up under a whole running Greylag: samples stop, ticks and findings go on, and all comes back with room."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.processes import free_port
from core.clock import TICK_MS, wall_ms
from pipeline.store.duck import DuckStore
from tests import needs
from tests.live.site import Greylag, named, wait_for
from tests.pages import Pages

SIZE_MB, LEAST = 96, 0.4  # of the small file system, and the share of it that Greylag wants free


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; skips where this user may mount none."""
    with needs.small_file_system(tmp_path / "small", SIZE_MB) as place:
        yield place


@pytest.fixture
def exporters() -> Iterator[list[Pages]]:
    """Two exporters of one node, a series each."""
    made = [Pages(lambda path: (200, b"node_load1 1\n")) for _ in range(2)]
    yield made
    for one in made:
        one.close()


def fill(disk: Path, free: float) -> None:
    """Writes ballast until only this share of the disk is free."""
    with (disk / "ballast").open("ab") as file:
        while True:
            found = os.statvfs(disk)
            if found.f_bavail / found.f_blocks <= free:
                return
            file.write(b"x" * (1 << 18))
            file.flush()


def steps(greylag: Greylag, reason: str) -> float:
    """How often /metrics says that the disk made Greylag take this step."""
    found = re.search(rf'^greylag_disk_steps_total{{reason="{reason}"}} (\S+)$', greylag.http.get("/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.chaos
def test_samples_stop_and_findings_go_on(small_disk, tmp_path, exporters):
    """First the retention tightens, then raw samples are left out and a target that goes down is found all the same; with
    room samples come again."""
    greylag = Greylag(tmp_path, free_port(), budgets={"process": {"disk_free_ratio_min": LEAST}}, scrape_configs=[
        {"job_name": name, "scrape_interval": "5s", "scrape_timeout": "5s", "static_configs": [
            {"targets": [one.address], "labels": {"node": "n1"}}]}
        for name, one in zip("ab", exporters, strict=True)])
    greylag.file.write_text(greylag.file.read_text().replace("data_dir: data", f"data_dir: {small_disk}"))
    try:
        greylag.start()
        wait_for(lambda: len(greylag.query("node_load1")) == 2, 60, "both targets")
        fill(small_disk, LEAST * 0.75)
        wait_for(lambda: steps(greylag, "disk_low"), 60, "a shorter retention")
        fill(small_disk, LEAST * 0.25)
        wait_for(lambda: steps(greylag, "disk_full"), 60, "the end of raw samples")
        full = wall_ms()
        exporters[1].close()
        [found] = wait_for(lambda: [one for one in greylag.items("findings") if one["fault"] == "target_down"], 240, "the finding")
        over = wall_ms()
        (small_disk / "ballast").unlink()
        wait_for(lambda: steps(greylag, "disk_recovered"), 60, "room")
        again = wall_ms()
        wait_for(lambda: wall_ms() > again + 2 * TICK_MS, 60, "two more ticks")
        assert greylag.stop() == 0
        store = DuckStore(small_disk / "greylag.duckdb")
        at = sorted({t for one in store.select(named("node_load1", job="a"), 0, 2**62) for t in one.at})
        last, kept = store.last_tick(), store.finding_records()
        store.close()
    finally:
        greylag.close()
    assert [t for t in at if full + 6000 < t < over] == []
    assert [t for t in at if t < full]
    assert [t for t in at if t > again]
    assert last is not None
    assert last >= again
    assert [(one.id, one.target.node) for one in kept if one.fault == "target_down"] == [(found["id"], "n1")]
    assert all(full < one.opened_at <= over for one in kept if one.fault == "target_down")
