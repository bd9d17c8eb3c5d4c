"""Changes of the gauge of XIDs are events, each once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.types import Event, Target
from pipeline.gauge_xids import gauge_xids
from tests.contract.windows import START, Cluster

GPU = "gpu:GPU-n001-3"


def told(c: Cluster) -> list[tuple[int, str, int]]:
    """(tick, part, code) of all events of a run tick by tick."""
    return [((e.at - START) // 15_000, e.target.key, e.fields["xid"]) for upto in range(1, c.ticks + 1) for e in gauge_xids(c.window(upto))]


def line(c: Cluster) -> None:
    c.put("gpu.xid", 31.0, 20, None, [11])
    c.events.append(Event(START + 18 * 15_000, Target("gpu", "n001", "0000:b3:00.0"), "xid", {"xid": 31}))


def missed(c: Cluster) -> None:
    c.put("gpu.xid", 31.0, 20, None, [11]).put("gpu.xid", np.nan, 25, 27, [11])


CASES: list[tuple[str, Callable[[Cluster], object], list[tuple[int, str, int]]]] = [
    ("it stands", lambda c: c.put("gpu.xid", 31.0, 20, None, [11]), [(20, GPU, 31)]),
    ("it falls to zero", lambda c: c.put("gpu.xid", 31.0, 20, 30, [11]), [(20, GPU, 31)]),
    ("another one follows", lambda c: c.put("gpu.xid", 31.0, 20, None, [11]).put("gpu.xid", 43.0, 30, None, [11]), [(20, GPU, 31), (30, GPU, 43)]),
    ("a page is missed", missed, [(20, GPU, 31)]),
    ("the series begins with it", lambda c: c.put("gpu.xid", np.nan, 0, 5, [11]).put("gpu.xid", 31.0, 5, None, [11]), [(5, GPU, 31)]),
    ("it stood there before", lambda c: c.put("gpu.xid", 31.0, 0, None, [11]), []),
    ("the kernel has told it", line, []),
]


@pytest.mark.parametrize(("plant", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_each_change_to_a_code_is_one_event(plant: Callable[[Cluster], object], expected: list[tuple[int, str, int]]) -> None:
    """What stands in the gauge, its fall to zero and what a line told are none."""
    c = Cluster(nodes=2, ticks=36)
    plant(c)
    assert told(c) == expected
