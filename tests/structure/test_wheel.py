"""The wheel holds the folders that the project is made of, and its command runs outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"core", "collectors", "pipeline", "detectors", "remediation", "fleet", "dashboards", "app", "sample_data"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, check=True,
                   capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_holds_the_nine_folders_and_no_tests(wheel: Path) -> None:
    """Top-level names of the wheel are the listed folders and its metadata."""
    names = {n.partition("/")[0] for n in zipfile.ZipFile(wheel).namelist()}
    assert {n for n in names if not n.endswith(".dist-info")} == FOLDERS


@pytest.mark.parametrize("name", ["core/faults.yaml", "sample_data/policies/demo.yaml", "sample_data/policies/observe.yaml",
                                  "app/explorer.py", "core/contracts.md", "pipeline/fault_pages/thermal_throttle.md"])
def test_the_wheel_holds_the_data_that_the_product_reads(wheel: Path, name: str) -> None:
    """Data files travel with the code."""
    assert name in zipfile.ZipFile(wheel).namelist()


def test_the_command_runs_from_the_wheel_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, `greylag replay` of an empty recording gives its summary."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "empty.prom").write_text("")
    code = "import sys; from app.cli import main; sys.argv[1:] = ['replay', '--json', 'empty.prom']; main()"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count('"type":"summary"')) == (0, 1), done.stderr
