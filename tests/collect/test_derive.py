"""Raw values into canonical ones, where the value decides."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from core.derive import COMPANIONS, DERIVED, STALE_NAN, absent, derive, stale_array
from core.signals import SIGNALS

NAN, INF = math.nan, math.inf
CASES = [
    ("nic.link_up", 0.25, [4.0, 1.0, 2.0, 5.0, NAN], [1.0, 0.0, 0.0, 1.0, NAN]),
    ("nic.link_up", 1.0, [1.0, 0.0, STALE_NAN], [1.0, 0.0, NAN]),
    ("gpu.memory_temperature_celsius", 1.0, [0.0, 41.0], [NAN, 41.0]),
    ("nic.rate_bytes_per_second", 1.0, [-125000.0, 5e10], [NAN, 5e10]),
    ("rank.loss", 1.0, [2.5, NAN, INF, STALE_NAN], [2.5, NAN, NAN, NAN]),
    ("rank.loss_nonfinite", 1.0, [2.5, NAN, INF, -INF, STALE_NAN], [0.0, 1.0, 1.0, 1.0, NAN]),
    ("gpu.sm_clock_hertz", 1e6, [1980.0, STALE_NAN], [1.98e9, NAN]),
]


@pytest.mark.parametrize(("signal", "scale", "raw", "wanted"), CASES)
def test_derive(signal, scale, raw, wanted):
    """Each rule on each kind of value."""
    np.testing.assert_array_equal(derive(signal, np.array(raw), scale), wanted)


def test_stale_marker_survives_arithmetic():
    """The marker is known by its bits, quiet or signalling; other NaNs are values."""
    marker = stale_array(3)
    assert struct.pack(">d", STALE_NAN).hex() == "7ff0000000000002"
    assert absent(marker).all()
    with np.errstate(invalid="ignore"):
        assert absent(marker * 2.0).all()
    assert not absent(np.array([NAN, 1.0, INF])).any()


def test_rules_name_signals():
    """Every rule and companion is of a signal that exists."""
    assert set(SIGNALS) >= DERIVED | set(COMPANIONS) | {s for row in COMPANIONS.values() for s in row}
