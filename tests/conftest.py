"""Fixtures for all tests: the repository root on the path, free ports, and processes that end with the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A gate gives the same answer twice, on a machine of any speed; `--hypothesis-profile=explore` looks for what is new.
settings.register_profile("gate", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("gate")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# Files that wait long for real processes go first: at the end they would leave the other workers with nothing to do.
WAIT_LONGEST = ("scale/test_scaling.py", "scale/test_kills.py", "live/test_kill.py", "push/test_prometheus.py", "exposition/test_real_prometheus.py", "collect/test_one_file.py",
                "history/test_forms.py", "history/test_servers.py", "live/test_demo.py", "push/test_verdicts.py",
                "fleet/test_server.py", "live/test_real_exporter.py", "store/test_kill.py", "views/test_explorer.py",
                "live/test_prometheus_sees_us.py", "live/test_secure_targets.py", "live/test_roles.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest waiting files first, the rest as it was."""
    tests = Path(__file__).resolve().parent
    place = {tests / name: i for i, name in enumerate(WAIT_LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A function that gives a free loopback port."""
    from app.processes import free_port as pick

    return pick


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts a process; all of them are ended, by pid, when the test is over."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **kwargs: object) -> subprocess.Popen[bytes]:
        kwargs.setdefault("stdout", subprocess.DEVNULL)
        kwargs.setdefault("stderr", subprocess.DEVNULL)
        process = subprocess.Popen(args, **kwargs)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
