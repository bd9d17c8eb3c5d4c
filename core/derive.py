"""Raw exporter values into canonical ones: the scale of the source, and the few signals whose meaning depends on the value.

`Scrape.values` are what the exporter said. Whoever turns them into signals (the ring, live and in a replay) calls
`derive`, so both worlds read a value the same way.

Two kinds of NaN stand in `Scrape.values`. The stale marker (`STALE_NAN`) means *absent*: the series was not on this
page, or held a blank of its exporter. Any other NaN is what the exporter said, and for a training loss that is
evidence. `absent` tells them apart; it must see the raw values, because arithmetic turns the marker's signalling NaN
into a quiet one (which `absent` knows as well).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from core.types import Floats

STALE_BITS = 0x7FF0000000000002
QUIET_STALE_BITS = 0x7FF8000000000002
STALE_NAN = float(np.array([STALE_BITS], np.uint64).view(np.float64)[0])


def stale_array(n: int) -> Floats:
    """float64[n], every value the stale marker."""
    return np.full(n, STALE_BITS, np.uint64).view(np.float64)


def absent(values: Floats) -> NDArray[np.bool_]:
    """bool like `values`: True where the value is the stale marker (any other NaN is a value)."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    return np.asarray((bits == STALE_BITS) | (bits == QUIET_STALE_BITS))


def _link_up(raw: Floats, scaled: Floats) -> Floats:
    # InfiniBand state_id arrives with scale 1/4 (4 = active, 5 = active, deferring), a carrier with scale 1.
    return np.where(np.isnan(scaled), np.nan, np.where(scaled >= 1.0, 1.0, 0.0))


def _port_up(raw: Floats, scaled: Floats) -> Floats:
    # SNMP's ifOperStatus is 1 for up and 2 to 7 for the rest; it arrives with scale -1, all others with 1 for up.
    return np.where(np.isnan(scaled), np.nan, np.where((scaled == -1.0) | (scaled >= 1.0), 1.0, 0.0))


def _finite(raw: Floats, scaled: Floats) -> Floats:
    return np.where(np.isfinite(scaled), scaled, np.nan)


def _nonfinite(raw: Floats, scaled: Floats) -> Floats:
    return np.where(absent(raw), np.nan, np.where(np.isfinite(raw), 0.0, 1.0))


def _positive(raw: Floats, scaled: Floats) -> Floats:
    # 0 = no such sensor (HBM temperature), negative = link down (speed of an interface).
    return np.where(scaled > 0, scaled, np.nan)


def _present(raw: Floats, scaled: Floats) -> Floats:
    # A label is there whatever the value of the series that carries it.
    return np.where(np.isnan(raw), np.nan, 1.0)


def _chosen(raw: Floats, scaled: Floats) -> Floats:
    # One series for each value that there could be: 1 for the one that is, 0 for the others.
    return np.where(scaled >= 0.5, 1.0, np.nan)


def _target_state(raw: Floats, scaled: Floats) -> Floats:
    # `up`: 1 is a target that answers (state 0), 0 one that does not (state 2).
    return np.where(np.isnan(scaled), np.nan, np.where(scaled >= 0.5, 0.0, 2.0))


_RULES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "nic.link_up": _link_up,
    "link.up": _port_up,
    "link.rate_bytes_per_second": _positive,
    "nic.rate_bytes_per_second": _positive,
    "gpu.memory_temperature_celsius": _positive,
    "gpu.slowdown_temperature_celsius": _positive,
    "gpu.power_limit_watts": _positive,
    "exporter.state": _target_state,
    "label.present": _present,
    "label.chosen": _chosen,
    "rank.loss": _finite,
    "rank.loss_nonfinite": _nonfinite,
}
DERIVED = frozenset(_RULES)

# A series that means the first signal means the others too: the mapper adds a reference for each, with the same index.
COMPANIONS: dict[str, tuple[str, ...]] = {"rank.loss": ("rank.loss_nonfinite",)}


def derive(signal: str, raw: Floats, scale: float | Floats = 1.0) -> Floats:
    """Canonical values of `signal` from raw ones: raw * scale, and the signal's own rule where it has one.

    raw: float64[...] as in `Scrape.values` (unscaled, NaN bits kept). Returns an array of the same shape; missing is an
    ordinary NaN. For counters pass the scale here and take the rate of the result: no counter has a rule of its own.
    """
    raw = np.asarray(raw, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = raw * scale
        rule = _RULES.get(signal)
        return np.asarray(scaled if rule is None else rule(raw, scaled), np.float64)
