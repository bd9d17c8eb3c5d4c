"""A link that goes down and comes back, again and again.

One flap is life: an optic settles, a switch restarts. What counts is repetition: three times in half an hour, or twice in
five minutes of one port alone under a job (works on a switch or a node meet many ports). By whatever tells of it: the port's own
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
from detectors.stats import Bools, Ints

FAULT = "link_flap"


@dataclass(frozen=True)
class Params:
    """Sources: Azure's health agent (3 more downs in 3 h), gpud (3 cycles in 12 h); ByteRobust (NICs flap and recover: an
    alert only when seen twice in 5 minutes).

    downs: how many in `window_seconds`. quiet_seconds: without one for so long it is over. again, again_seconds: how many in how
    short a time are enough for a port that flaps alone under a job; apart_seconds: what is closer together is one flap.
    """

    downs: float = 3.0
    window_seconds: float = 1800.0
    quiet_seconds: float = 600.0
    again: float = 2.0
    again_seconds: float = 300.0
    apart_seconds: float = 60.0


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
    flaps[some] |= _again(window, some, counts, params)
    out = shared.clears(nics, known & ~flaps, FAULT)
    for e in np.flatnonzero(known & flaps):
        first = int(window.times[np.flatnonzero(counts[:, np.searchsorted(some, e)])[0]])
        rows = (stats.evidence("nic.link_downed_per_second", total[e] / params.window_seconds, 0.0,
                               "a link that stays up", f"{total[e]:.0f} times down in {params.window_seconds / 60:.0f} minutes"),)
        out.append(Verdict(nics[e], FAULT, "faulty", 0.5, rows, "flaps", onset_at=first))
    return out


def _again(window: Window, some: Ints, counts: Floats, p: Params) -> Bools:
    """bool[len(some)]: the port went down again soon (and has been quiet for no longer than counts), its node is in a job, and no other
    port of the node or of its leaf went down in the window. A device that is only seen to be gone may be its page's doing."""
    nics, out = window.of_kind("nic"), np.zeros(len(some), bool)
    ticks, apart = window.ticks(p.again_seconds), window.ticks(p.apart_seconds)
    jobs, mute = stats.node_jobs(window), ports.silent_about_link(window)
    # A port and the Ethernet interface over it are one: each is held against those of its own family.
    family = ["/" in (nics[e].device or "") for e in some.tolist()]
    places = [{nics[e].node, window.topology.leaf_of(nics[e])} - {None} for e in some.tolist()]
    went = counts.sum(axis=0) > 0.5
    for i in np.flatnonzero(counts.sum(axis=0) >= p.again - 0.1).tolist():
        at = np.flatnonzero(counts[:, i] > 0)
        at = at[at >= len(counts) - window.ticks(p.quiet_seconds)]
        soon = any(((at > t) & (at - t <= ticks) & (at - t >= apart)).any() for t in at.tolist())
        alone = not any(went[k] and family[k] == family[i] and places[k] & places[i] for k in range(len(some)) if k != i)
        out[i] = soon and alone and nics[some[i]].node in jobs and not mute[some[i]]
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
