"""Programs and folders that some tests need: a test that lacks one skips and names it.

With GREYLAG_REQUIRE (a comma list) such a skip is a failure: CI cannot go green by missing a program.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
BINARIES = {
    "prometheus": ("prometheus",),
    "promtool": ("promtool",),
    "alertmanager": ("prometheus-alertmanager", "alertmanager"),
    "node_exporter": ("prometheus-node-exporter", "node_exporter"),
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
}


def required() -> set[str]:
    """The names that GREYLAG_REQUIRE lists."""
    return {name.strip() for name in os.environ.get("GREYLAG_REQUIRE", "").split(",") if name.strip()}


def program(name: str) -> str:
    """The program's path; skips the test where it is missing (fails where GREYLAG_REQUIRE lists it)."""
    for binary in BINARIES.get(name, (name,)):
        found = shutil.which(binary)
        if found:
            return found
    message = f"the program {name} is not installed"
    if name in required():
        pytest.fail(f"{message}, and GREYLAG_REQUIRE lists it")
    pytest.skip(message)


def shared(path: str) -> Path:
    """A file or folder of the shared samples and data; skips the test where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"the shared folder has no {path}")
    return found


@contextlib.contextmanager
def small_file_system(place: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own in the new folder `place`; skips where this user may mount none."""
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)
