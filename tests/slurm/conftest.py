"""One real Slurm for all tests that only need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Slurm, slurm


@pytest.fixture(scope="session")
def running() -> Iterator[Slurm]:
    """Four nodes and two spares."""
    with slurm() as one:
        yield one


@pytest.fixture
def real(running: Slurm) -> Slurm:
    """The same, with nothing running, drained or reserved."""
    running.clean()
    return running
