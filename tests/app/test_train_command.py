"""`greylag train` as people run it: the file that it writes, and the history that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.odd import MODEL_FILE
from app.stored import FILE_NAME
from core.clock import rfc3339
from pipeline.unknown_file import read_model
from tests import needs
from tests.pipeline.fleet_of_gpus import store_of

HOUR = 3_600_000
T0 = 1_790_000_000_000 // HOUR * HOUR
NODES, HOURS = 3, 7.4  # just enough: 24 quarter hours apart, and 24 GPUs in each


def trained(folder: Path, *more: str, changes: Mapping[float, float] | None = None, hours: float = HOURS) -> subprocess.CompletedProcess[str]:
    """What the command says of a store with such a history."""
    store_of(NODES, hours, T0, changes=changes, path=folder / FILE_NAME).close()
    return subprocess.run([sys.executable, "-m", "app.cli", "train", "--data-dir", str(folder), *more], cwd=needs.ROOT,
                          capture_output=True, text=True, check=False)


def test_a_healthy_history_gives_a_file_with_its_hash_and_span(tmp_path: Path) -> None:
    """The summary, the file's own words and what a running Greylag reads of it agree."""
    done = trained(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    said, written = json.loads(done.stdout), json.loads((tmp_path / MODEL_FILE).read_text())
    model = read_model(tmp_path / MODEL_FILE)
    assert said["model"] == str(tmp_path / MODEL_FILE)
    assert said["hash"] == written["hash"] == model.hash
    assert (said["start"], said["end"]) == (rfc3339(model.start), rfc3339(model.end)) == (rfc3339(T0), rfc3339(T0 + int(HOURS * HOUR) - 15_000))
    assert said["windows"] == model.windows == 24
    assert said["kinds"]["gpu"]["rows"] == 24 * 8 * NODES


def test_a_fleet_that_changed_is_refused(tmp_path: Path) -> None:
    """From the fifth hour on all GPUs are 40 degrees warmer: exit status 2, one sentence that names the signal, and no file."""
    done = trained(tmp_path, changes={5: 40.0})
    assert done.returncode == 2
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("greylag: ")]
    assert "a fleet that changed about" in last
    assert "gpu.temperature_celsius" in last
    assert not (tmp_path / MODEL_FILE).exists()


@pytest.mark.parametrize("more", [("--start", "yesterday"), ("-c", "greylag.yaml")], ids=["no time", "two stores"])
def test_a_mistake_is_told_in_one_sentence(tmp_path: Path, more: tuple[str, str]) -> None:
    """A span that is no time, and a configuration beside a folder."""
    done = trained(tmp_path, *more, hours=0.1)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
