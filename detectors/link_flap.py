"""A link that goes down and comes back, again and again.

One flap is life: an optic settles, a switch restarts. What counts is repetition, by whatever tells of it: the port's own
counter of downs, carrier changes, kernel lines, or the state that was seen to fall. An EFA device shows neither: it is gone
and comes back (`detectors.ports`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Floats, Verdict
from core.window import Window
from detectors import ports, shared, stats
from detectors.stats import Ints

FAULT = "link_flap"


@dataclass(frozen=True)
class Params:
    """Sources: Azure's health agent (3 more downs in 3 h), gpud (3 cycles in 12 h); ByteRobust (NICs flap and recover: an
    alert only when seen again).

    downs: how many in `window_seconds`. quiet_seconds: without one for so long it is over.
    """

    downs: float = 3.0
    window_seconds: float = 1800.0
    quiet_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port that shows its state or its downs."""
    nics = window.of_kind("nic")
    if not nics or not len(window.times):
        return []
    state = ports.state(window)
    some, counts = _downs(window, state, params)
    total, recent = np.zeros(len(nics)), np.zeros(len(nics))
    total[some], recent[some] = counts.sum(axis=0), counts[-window.ticks(params.quiet_seconds):].sum(axis=0)
    known = ~np.isnan(stats.quantile(state[-window.ticks(60.0):], 1.0))
    for signal in ("nic.link_downed_per_second", "nic.carrier_changes_per_second"):
        if signal in window.blocks:
            known |= window.block(signal).fresh() & ~np.isnan(stats.quantile(window.tail(signal, 60.0), 1.0))
    known &= shared.loud(window, nics)
    flaps = ~((total < params.downs) | (recent <= 0))
    out = shared.clears(nics, known & ~flaps, FAULT)
    for e in np.flatnonzero(known & flaps):
        first = int(window.times[np.flatnonzero(counts[:, np.searchsorted(some, e)])[0]])
        rows = (stats.evidence("nic.link_downed_per_second", total[e] / params.window_seconds, 0.0,
                               "a link that stays up", f"{total[e]:.0f} times down in {params.window_seconds / 60:.0f} minutes"),)
        out.append(Verdict(nics[e], FAULT, "faulty", 0.5, rows, "flaps", onset_at=first))
    return out


def _downs(window: Window, state: Floats, p: Params) -> tuple[Ints, Floats]:
    """The ports of which any source tells that they went down, ascending, and float64[tick, port]: how often each did, by the
    source that tells of most."""
    ticks = window.ticks(p.window_seconds)
    told = _told(window, len(state[-ticks:]))
    any_down = stats.below(state[-ticks:], 0.5).any(axis=0) | told.any(axis=0)
    for signal in ("nic.link_downed_per_second", "nic.carrier_changes_per_second"):
        if signal in window.blocks:
            any_down |= (window.values(signal)[-ticks:] > 0.0).any(axis=0)
    some = stats.columns_where(np.asarray(any_down))

    def tail(signal: str) -> Floats:
        return window.values(signal)[-ticks:, some]

    step = window.step_seconds
    downs = np.round(np.nan_to_num(tail("nic.link_downed_per_second")) * step, 3)
    # A down and an up are two changes of the carrier.
    downs = np.maximum(downs, np.nan_to_num(tail("nic.carrier_changes_per_second")) * step / 2)
    state = stats.filled(state[-ticks:, some])
    fell = np.zeros_like(downs)
    if len(state) > 1:
        fell[1:] = stats.above(state[:-1], 0.5) & stats.below(state[1:], 0.5)
    best = np.stack([downs, fell, told[:, some]])
    # Sources see the same flap a tick apart, so the whole source is taken, not the larger of each tick.
    which = best.sum(axis=1).argmax(axis=0)
    return some, np.take_along_axis(best, which[None, None, :], 0)[0]


def _told(window: Window, ticks: int) -> Floats:
    """Kernel lines of links that go down, by tick and port."""
    nics = window.of_kind("nic")
    told = np.zeros((ticks, len(nics)))
    columns = shared.by_key(nics)
    times = window.times[-ticks:]
    for event in window.events_of("link_down", since=int(times[0]) - window.step_seconds * 1000 + 1):
        e = columns.get(event.target.key)
        if e is not None:
            told[min(int(np.searchsorted(times, event.at)), ticks - 1), e] += 1
    return told


PLUGIN = DetectorPlugin(
    name="link_flap", fault=FAULT, judge=judge, params=Params,
    needs=(("nic.link_downed_per_second", "nic.carrier_changes_per_second", "nic.link_up", "link_down",
            "nic.rate_bytes_per_second", "nic.received_bytes_per_second"),),
    hold=Hold(on=2, of=3, off=8), must_not=("one flap", "a link that goes down and stays down", "a counter that begins anew"),
)
