"""A port that loses or corrupts packets: RoCE, InfiniBand, EFA and plain Ethernet.

Loss leaves two traces. The receiving side counts it (arrivals out of sequence, drops, receive errors, bad checksums);
the sending side repairs it (retransmits, NAKs, timeouts). A bad port has one trace in full, its many peers share the
other one thinly. So the culprits are the ports of the side that is *concentrated*; at a tie the receiving side is
named, because it saw the loss. Peers are victims, and clear. Where all ports of a leaf switch lose alike, each of them is
named, and the leaf they share is the culprit (`leaf_loss`).

On plain Ethernet no counter of a port tells of frames that never came: there TCP's repair is read, by node (`tcp_repair`).

Congestion (CNP, ECN, waiting for credits) without loss is clear. What coincides with a link going down or up is another
fault: those moments are left out, and while a link is down nobody is blamed for timeouts towards it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Verdict
from core.window import Window
from detectors import leaf_loss, ports, shared, stats, tcp_repair
from detectors.stats import Bools, Ints, Peers, Span
from detectors.tcp_repair import Repair

FAULT = "packet_loss"
RDMA, ETHERNET = 0, 1
RDMA_SIGNALS = ("retransmits", "peer_loss", "timeouts", "remote_impaired", "wait_ticks", "congestion_marks")


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §3.2–§3.4 and §10, rules.md §3f; where no source is named, our judgement on recorded pages.

    window_seconds: how far back evidence is averaged, at least three scrapes.
    lost: packets lost a second that a healthy RDMA port never holds (healthy: out of sequence < 0.1/s).
    corrupt: corrupt packets a second (healthy: symbol errors < 1/min, PAM4 links more; NVSentinel warns at 10/s).
    corrupt_alone: the rate from which corruption needs no other trace. discards: NVSentinel's 100/s.
    resent: retransmits or NAKs a second (NVSentinel warns at 1/s of timeouts). resent_ratio: share of packets sent
    again that EFA never reaches in health (1e-6; degraded from 1e-4).
    ethernet_lost, ethernet_ratio: drops a second and per received packet after a change (a slow constant background of
    drops is normal); ethernet_alone, ethernet_alone_ratio: without a known past.
    times_peers, sigmas: above the peers' median by this factor and these robust sigmas. times_past: above its own past.
    tie: how much less concentrated the receiving side may be and still be named. thin: share of the largest below which
    a port's trace is its peers' doing. lone_share: share of all repair that the named ports
    must have, where nobody saw the loss arrive.
    leaf_most, leaf_nodes_min: share of a leaf's working ports that lose, and on how many nodes at least. leaf_lone: of the others'
    traces, from which one port may account for them (a bad port has about as much as its peers together, one of three alike has
    half of that). leaf_even: how far from the middle one each is at most, as a factor.
    packet_bytes: bytes of a packet where only bytes are counted (RoCE and InfiniBand MTU). idle_bytes: traffic a second
    below which a port shows nothing. peers_min: others needed to compare.
    tcp_times_past: as times_past, for a node's repair. tcp_rate, tcp_share: segments sent again a second and as a share of all (healthy below 1e-4 inside a data centre, signals.md
    §3.1; below 4e-3 on hosts that are short of CPU, as measured between namespaces of a busy machine). tcp_ahead: how far the
    culprit's repair is ahead of the next node's. tcp_mirror_least, tcp_mirror_most: what the job's other nodes repair, as a share
    of what it does. tcp_share_alone, tcp_wait_grew: share (the 1 % of published alerts on packet errors) and growth of the
    step time where the loss has no mirror.
    """

    window_seconds: float = 120.0
    lost: float = 0.5
    corrupt: float = 1.0
    corrupt_alone: float = 10.0
    discards: float = 100.0
    resent: float = 1.0
    resent_ratio: float = 1e-5
    ethernet_lost: float = 2.0
    ethernet_ratio: float = 1e-5
    ethernet_alone: float = 10.0
    ethernet_alone_ratio: float = 1e-3
    times_peers: float = 8.0
    sigmas: float = 8.0
    times_past: float = 5.0
    tie: float = 1.6
    thin: float = 0.3
    lone_share: float = 0.4
    leaf_most: float = 0.75
    leaf_nodes_min: int = 3
    leaf_lone: float = 0.65
    leaf_even: float = 1.6
    packet_bytes: float = 4096.0
    idle_bytes: float = 1000.0
    peers_min: int = 3
    tcp_times_past: float = 3.0
    tcp_rate: float = 1.0
    tcp_share: float = 5e-3
    tcp_ahead: float = 1.2
    tcp_mirror_least: float = 0.4
    tcp_mirror_most: float = 2.5
    tcp_share_alone: float = 1e-2
    tcp_wait_grew: float = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """What the last minutes show, by NIC; moments around a link change left out.

    unsettled: its link changed or was down in the span. lost_link: the same of a port that had a link in the window: an
    unused port is down for ever and excuses nothing. newest: ms of the newest sample, -inf where there is none.
    """

    lost: Span
    corrupt: Span
    discards: Span
    resent: Span
    peer_loss: Span
    timeouts: Span
    marks: Floats
    received: Floats
    sent: Floats
    traffic: Floats
    fresh: Bools
    unsettled: Bools
    lost_link: Bools
    kind: Ints
    intervals: Ints
    hide: Bools
    newest: Floats


def _link_moments(window: Window, intervals: Ints) -> Bools:
    """bool[tick, entity]: moments in which a port's link was down or changed, and two scrapes after them."""
    def of(name: str) -> Floats:
        return window.values(f"nic.{name}")

    up = ports.state(window)
    moments = (stats.above(of("carrier_changes_per_second"), 1e-9) | stats.above(of("link_downed_per_second"), 1e-9)
               | stats.below(up, 0.5))
    numbers = shared.by_key(window.of_kind("nic"))
    for event in window.events_of("link_up", "link_down", since=int(window.times[0])):
        e = numbers.get(event.target.key)
        if e is not None:
            moments[min(int(np.searchsorted(window.times, event.at)), len(window.times) - 1), e] = True
    out = moments.copy()
    columns = np.flatnonzero(moments.any(axis=0))
    if not len(columns):
        return out
    part, spread = moments[:, columns], moments[:, columns].copy()
    before = int(intervals.max(initial=1))
    for shift in range(1, 2 * before + 1):
        spread[shift:] |= part[:-shift]
    for shift in range(1, before + 1):
        spread[:-shift] |= part[shift:]
    out[:, columns] = spread
    return out


def _packets(window: Window, way: str, p: Params) -> Floats:
    """Packets a second over the span: counted, else from bytes."""
    packets = stats.span_of(window, f"nic.{way}_packets_per_second", p.window_seconds).mean
    of_bytes = stats.span_of(window, f"nic.{way}_bytes_per_second", p.window_seconds).mean
    return np.where(np.isnan(packets), of_bytes / p.packet_bytes, packets)


def _view(window: Window, p: Params) -> _View:
    nics = window.of_kind("nic")
    n = len(nics)
    speaks = ("packets_lost_per_second", "corrupt_packets_per_second", "retransmits_per_second",
              "peer_loss_per_second", "timeouts_per_second", "discards_per_second")
    intervals, fresh, age = np.ones(n, np.int64), np.zeros(n, bool), np.full(n, np.inf)
    for name in speaks:
        block = window.block(f"nic.{name}")
        age = np.minimum(age, block.age_seconds)
        intervals = np.maximum(intervals, stats.intervals_of(window, f"nic.{name}"))
        fresh |= block.fresh()
    hide = _link_moments(window, intervals)
    ticks = window.ticks(p.window_seconds)
    unsettled = np.asarray(hide[-ticks - 4:].any(axis=0), bool)
    was_up = ~stats.below(stats.quantile(window.values("nic.link_up"), 1.0), 0.5)

    def of(name: str) -> Span:
        values = window.values(f"nic.{name}")
        return stats.span(np.where(hide, np.nan, values) if unsettled.any() else values, intervals, ticks)

    rdma = np.zeros(n, bool)
    for name in RDMA_SIGNALS:
        # A port that never had the family does not speak RDMA; one that has it may be silent now.
        rdma |= ~np.isnan(window.block(f"nic.{name}_per_second").first_at)
    traffic = (np.nan_to_num(stats.span_of(window, "nic.received_bytes_per_second", p.window_seconds).mean, nan=np.inf)
               + np.nan_to_num(stats.span_of(window, "nic.transmitted_bytes_per_second", p.window_seconds).mean,
                               nan=np.inf))
    return _View(
        of("packets_lost_per_second"), of("corrupt_packets_per_second"), of("discards_per_second"),
        of("retransmits_per_second"), of("peer_loss_per_second"), of("timeouts_per_second"),
        of("congestion_marks_per_second").mean, _packets(window, "received", p), _packets(window, "transmitted", p),
        traffic, fresh, unsettled, unsettled & was_up, np.where(rdma, RDMA, ETHERNET), intervals, hide,
        window.end - 1000.0 * age,
    )


def _stands_out(rate: Span, groups: Ints, floor: float, p: Params) -> tuple[Bools, Peers]:
    """Ports whose rate holds over the whole span above the floor and far above their peers."""
    peers = stats.peers(rate.mean, groups)
    compared = peers.n >= p.peers_min
    bar = np.maximum(np.nan_to_num(peers.middle) * p.times_peers,
                     np.nan_to_num(peers.middle) + p.sigmas * np.nan_to_num(peers.spread))
    # A fault on several ports widens the spread; far above the median is enough then.
    bar = np.minimum(bar, np.maximum(np.nan_to_num(peers.middle) * 4 * p.times_peers, 20 * floor))
    return stats.above(rate.low, floor) & (~compared | stats.above(rate.mean, bar)), peers


def _past(window: Window, signal: str, columns: Ints, view: _View) -> Floats:
    """float64[entity]: the port's usual rate before the span, for the given columns; NaN elsewhere and where unknown."""
    out = np.full(len(view.kind), np.nan)
    if len(columns):
        skip = window.ticks(120) + 2 * int(view.intervals.max(initial=1)) + 2
        near = stats.own_past(window, signal, columns, skip, 0.25)
        far = stats.long_past(window, signal, 6 * 3600, columns)
        out[columns] = np.where(np.isnan(far), near, np.fmin(far, near))
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Traces:
    """The two traces by NIC, packets a second above the usual, 0 where they do not stand out. *_all: every port's."""

    seen: Floats
    seen_all: Floats
    repaired: Floats
    repaired_all: Floats
    lost_peers: Peers
    resent_peers: Peers
    lost_past: Floats
    corrupt: Bools


def _excess(rate: Floats, peers: Peers) -> Floats:
    usual = np.nan_to_num(peers.middle) + 3.0 * np.nan_to_num(peers.spread)
    return np.maximum(np.nan_to_num(rate) - usual, 0.0)


def _ethernet_lost(view: _View, past: Floats, p: Params) -> Bools:
    """Drops on Ethernet have a harmless constant background: they must have grown, or be a real share of the packets."""
    share = stats.ratio(view.lost.mean, view.received)
    some = np.isnan(share)
    grown = (stats.above(view.lost.low, np.maximum(p.ethernet_lost, past * p.times_past + 1.0))
             & (some | stats.above(share, p.ethernet_ratio)))
    alone = (np.isnan(past) & stats.above(view.lost.low, p.ethernet_alone)
             & stats.above(share, p.ethernet_alone_ratio))
    return grown | alone


def _traces(window: Window, view: _View, p: Params) -> _Traces:
    ethernet = view.kind == ETHERNET
    floor = p.lost
    lost, lost_peers = _stands_out(view.lost, view.kind, floor, p)
    past = _past(window, "nic.packets_lost_per_second", stats.columns_where(lost), view)
    alone = lost_peers.n < p.peers_min
    # Without peers the port must have changed, or lose far more than any healthy one.
    changed = np.isnan(past) | stats.above(view.lost.low, past * p.times_past)
    lost &= np.where(ethernet, _ethernet_lost(view, past, p), ~alone | changed)

    corrupt, corrupt_peers = _stands_out(view.corrupt, view.kind, p.corrupt, p)
    corrupt_past = _past(window, "nic.corrupt_packets_per_second", stats.columns_where(corrupt), view)
    grown = stats.above(view.corrupt.low, np.maximum(p.corrupt, corrupt_past * p.times_past))
    supported = stats.above(view.lost.mean, p.lost) | stats.above(view.peer_loss.mean + view.resent.mean, p.resent)
    # Symbol errors ahead of error correction are normal on PAM4 links: a constant rate alone is no loss.
    corrupt &= np.where(np.isnan(corrupt_past), supported, grown & (supported | stats.above(
        view.corrupt.low, p.corrupt_alone)))
    discards, _ = _stands_out(view.discards, view.kind, p.discards, p)
    discard_past = _past(window, "nic.discards_per_second", stats.columns_where(discards), view)
    discards &= stats.above(view.discards.low, discard_past * p.times_past)

    resent, resent_peers = _resent(window, view, p)
    judged = view.fresh
    seen_all = _excess(view.lost.mean, lost_peers) + _excess(view.corrupt.mean, corrupt_peers)
    seen = np.where((lost | corrupt) & judged, seen_all, 0.0) + np.where(
        discards & judged, np.nan_to_num(view.discards.mean), 0.0)
    repaired_all = _excess(stats.highest(view.resent.mean, view.peer_loss.mean), resent_peers)
    repaired = np.where(resent & judged & ~ethernet, repaired_all, 0.0)
    return _Traces(seen, seen_all, repaired, repaired_all, lost_peers, resent_peers, past, corrupt & judged)


def _resent(window: Window, view: _View, p: Params) -> tuple[Bools, Peers]:
    """Ports whose repair of loss stands out. Timeouts alone name nobody: they point at whoever does not answer."""
    rate = Span(stats.highest(view.resent.mean, view.peer_loss.mean), stats.highest(view.resent.low, view.peer_loss.low),
                stats.highest(view.resent.high, view.peer_loss.high), view.resent.known + view.peer_loss.known)
    out, peers = _stands_out(rate, view.kind, p.resent, p)
    columns = stats.columns_where(out)
    past = np.fmax(_past(window, "nic.retransmits_per_second", columns, view),
                   _past(window, "nic.peer_loss_per_second", columns, view))
    share = stats.ratio(rate.mean, view.sent)
    by_ratio = stats.above(share, p.resent_ratio) | np.isnan(share)
    by_past = stats.above(rate.low, past * p.times_past)
    # A large change against its own past or a large share: a fixed small background is neither.
    return out & (by_past | (np.isnan(past) & by_ratio) | stats.above(share, 10 * p.resent_ratio)), peers


def _concentration(trace: Floats) -> float:
    """The effective number of ports that share a trace: 1 = one port has it all; infinity where there is none."""
    total = float(trace.sum())
    return float("inf") if total <= 0 else total * total / float((trace * trace).sum())


def _receiving_side(seen: Floats, repaired: Floats, seen_all: Floats, repaired_all: Floats, p: Params) -> bool:
    """True where the ports that saw the loss are fewer, or as few, as those that repaired it."""
    if not seen.any():
        return False
    n_seen = _concentration(np.where(seen > 0, seen_all, 0.0))
    n_repaired = _concentration(np.where(repaired > 0, repaired_all, 0.0))
    # One port that repairs what several peers lost of its packets must repair about as much as they lost.
    explains = repaired.sum() >= 0.25 * seen.sum()
    return bool(not explains or n_seen <= p.tie * n_repaired or n_repaired > 2 * p.tie)


def _culprits(window: Window, view: _View, t: _Traces, group: Ints, p: Params) -> Bools:
    """bool[len(group)]: the ports of one fabric that the traces name.

    Ports are read at different moments, and the first that is read after the onset shows its end of the loss alone.
    So nobody is named before all ports that still report were read since, nor while the traces that have begun to show
    point at the other side than those that have held.
    """
    seen, repaired = t.seen[group], t.repaired[group]
    none = np.zeros(len(group), bool)
    if not seen.any() and not repaired.any():
        return none
    seen_all, repaired_all = t.seen_all[group], t.repaired_all[group]
    receiving = _receiving_side(seen, repaired, seen_all, repaired_all, p)
    begun = (np.where(seen_all >= p.lost, seen_all, 0.0), np.where(repaired_all >= p.resent, repaired_all, 0.0))
    if _receiving_side(*begun, *begun, p) != receiving and begun[0].any():
        return none
    if receiving:
        chosen = _of_receiving_side(window, t, group, p)
    elif view.lost_link[group].any():
        return none  # the peers of a port that is down repair loss as well
    else:
        chosen = _of_sending_side(window, t, group, p)
    if not chosen.any():
        return none
    onset = int(_onsets(window, group[chosen], view, t).min())
    unheard = view.fresh[group] & ~chosen & (view.newest[group] < onset)
    return none if unheard.any() else chosen


def _of_receiving_side(window: Window, t: _Traces, group: Ints, p: Params) -> Bools:
    """The ports that saw most of the loss. Small shares beside a large one are its peers' view of the same loss."""
    seen, repaired = t.seen[group], t.repaired[group]
    nics = window.of_kind("nic")
    # Corruption at a port is its own: it breaks a tie between the two ends.
    top = int(np.argmax(np.where(t.corrupt[group], 1.5, 1.0) * seen))
    both_ways = repaired[top] > 0
    chosen = (seen > 0) & ((seen >= p.thin * seen[top]) | (seen >= 20 * p.lost) & (not both_ways))
    if both_ways:
        # What peers lose of its packets is its doing, however much; only ports of its own node can share its fault.
        chosen &= np.array([nics[e].node == nics[group[top]].node for e in group])
    return np.asarray(chosen, bool)


def _of_sending_side(window: Window, t: _Traces, group: Ints, p: Params) -> Bools:
    """The ports that repair most of the loss: one alone, or those of one node or leaf together."""
    repaired, everyone = t.repaired[group], t.repaired_all[group]
    chosen = np.asarray((repaired > 0) & (repaired >= p.thin * repaired.max(initial=0.0)), bool)
    if not chosen.any():
        return chosen
    nics = window.of_kind("nic")
    places = {nics[e].node for e in group[chosen]}
    leaves = {window.topology.leaf_of(nics[e]) for e in group[chosen]}
    together = len(places) == 1 or (len(leaves) == 1 and None not in leaves and chosen.sum() >= 4)
    share = float(everyone[chosen].sum() / max(float(everyone.sum()), 1e-12))
    return chosen if share >= p.lone_share and together else np.zeros_like(chosen)


def _evidence(e: int, view: _View, t: _Traces) -> tuple[Evidence, ...]:
    out: list[Evidence] = []
    add = stats.evidence
    peers = f"median of {t.lost_peers.n[e]} ports of the same kind"
    if view.lost.mean[e] > 0:
        out.append(add("nic.packets_lost_per_second", view.lost.mean[e], t.lost_peers.middle[e], peers))
        if not np.isnan(t.lost_past[e]):
            out.append(add("nic.packets_lost_per_second", view.lost.mean[e], t.lost_past[e], "its own past"))
    if view.corrupt.mean[e] > 0:
        out.append(add("nic.corrupt_packets_per_second", view.corrupt.mean[e], 0.0, "no corruption"))
    if view.resent.mean[e] > 0:
        out.append(add("nic.retransmits_per_second", view.resent.mean[e], t.resent_peers.middle[e], peers))
    if view.peer_loss.mean[e] > 0:
        out.append(add("nic.peer_loss_per_second", view.peer_loss.mean[e], t.resent_peers.middle[e], peers))
    if view.timeouts.mean[e] > 0:
        out.append(add("nic.timeouts_per_second", view.timeouts.mean[e], 0.01, "healthy ports stay below"))
    if view.received[e] > 0:
        out.append(add("nic.received_packets_per_second", view.received[e], None, "packets that arrived"))
    if view.marks[e] > 0:
        out.append(add("nic.congestion_marks_per_second", view.marks[e], None, "congestion, no evidence of loss"))
    return tuple(out)


def _reason(e: int, view: _View, t: _Traces) -> str:
    if t.corrupt[e] and not view.lost.mean[e] > view.corrupt.mean[e]:
        return "errors_stand_out"
    return "loss_seen_here" if t.seen[e] > 0 else "retransmits_stand_out"


def _severity(e: int, view: _View, t: _Traces) -> float:
    """From the share of packets: 1e-6 is a ticket, 1e-4 degrades a job, 1e-2 stops it."""
    packets = max(float(np.nan_to_num(view.received[e])), float(np.nan_to_num(view.sent[e])), 1.0)
    share = max(t.seen[e], t.repaired[e]) / packets
    return round(float(np.clip(0.6 + 0.1 * (np.log10(max(share, 1e-12)) + 4.0), 0.4, 0.85)), 3)


def _onsets(window: Window, columns: Ints, view: _View, t: _Traces) -> Ints:
    def of(name: str) -> Floats:
        return np.where(view.hide[:, columns], np.nan, window.values(f"nic.{name}_per_second")[:, columns])

    # A tenth of today's rate: below that it had not begun.
    bar = np.maximum(0.1 * np.fmax(t.seen[columns], t.repaired[columns]), 0.2)
    symptom = stats.above(of("packets_lost"), bar) | stats.above(of("corrupt_packets"), bar)
    symptom |= stats.above(of("retransmits"), bar) | stats.above(of("peer_loss"), bar)
    return stats.run_start(symptom, window.times, 2 * int(view.intervals.max(initial=1)) + 1)


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each port with fresh counters; ports without traffic or with an unsettled link are unknown."""
    nics = window.of_kind("nic")
    if not nics or not len(window.times):
        return []
    view = _view(window, params)
    traces = _traces(window, view, params)
    heard = shared.loud(window, nics)
    leaves = _leaves(window, view, traces, heard, params)
    faulty = leaves.named.copy()
    # What a leaf loses would be taken for the fault of one of its ports, or of one of their peers elsewhere.
    apart = ~_of_jobs_under(window, leaves.begun)
    for kind in (RDMA, ETHERNET):
        group = stats.columns_where((view.kind == kind) & apart)
        if len(group):
            faulty[group] = _culprits(window, view, traces, group, params)
    known = np.maximum.reduce([view.lost.known, view.resent.known, view.corrupt.known]) > 0
    clear = heard & view.fresh & known & ~faulty & ~view.unsettled & (view.traffic > params.idle_bytes)
    # Loss that holds and that nobody is named for is neither good news nor a culprit.
    clear &= ~(stats.above(view.lost.low, params.lost) & (view.kind == RDMA) & ~_spread_thin(view, traces, params))
    faulty &= heard
    repairs = _by_tcp(window, view, params)
    # What a node sends again beyond its usual is lost somewhere: its port is not seen to be well.
    clear &= ~((view.kind == ETHERNET) & shared.of_nodes(nics, repairs.nodes))
    victim = traces.repaired > 0
    out = [*shared.clears(nics, clear & victim, FAULT, "victim"), *shared.clears(nics, clear & ~victim, FAULT)]
    columns = stats.columns_where(faulty)
    onsets = _onsets(window, columns, view, traces) if len(columns) else columns
    for e, onset in zip(columns.tolist(), onsets.tolist(), strict=True):
        out.append(Verdict(nics[e], FAULT, "faulty", _severity(e, view, traces), _evidence(e, view, traces),
                           "leaf_loses" if leaves.named[e] else _reason(e, view, traces), onset_at=int(onset)))
    known_keys = {nics[e].key for e in np.flatnonzero(faulty)}
    return [*out, *(v for v in repairs.verdicts if v.target.key not in known_keys)]


def _leaves(window: Window, view: _View, t: _Traces, heard: Bools, p: Params) -> leaf_loss.Leaves:
    """The ports of leaves that lose, by the share of packets that each lost or repaired."""
    rdma = (view.kind == RDMA) & heard & view.fresh & ~view.unsettled
    begun = rdma & ((t.seen_all >= p.lost) | (t.repaired_all >= p.resent))
    seen = np.nan_to_num(t.seen_all / np.maximum(view.received, 1.0))
    share = seen + np.nan_to_num(t.repaired_all / np.maximum(view.sent, 1.0))
    working = rdma & (view.traffic > p.idle_bytes) & ~np.isinf(view.traffic)
    holds = stats.above(view.lost.low, p.lost) | stats.above(stats.highest(view.resent.low, view.peer_loss.low), p.resent)
    found = leaf_loss.judge(window, leaf_loss.Shown(working, share, seen, begun & holds, begun & working),
                            leaf_loss.Limits(p.leaf_most, p.leaf_nodes_min, p.leaf_lone, p.leaf_even))
    if not found.named.any():
        return found
    # A bad port is as quiet as any until its own page was read, and its rate is known only when the span holds nothing of before:
    # until then its peers show what it does to all of them alike.
    onset = int(_onsets(window, np.flatnonzero(found.named), view, t).min())
    early = window.end - onset < 1000 * p.window_seconds or (working & (view.newest <= onset)).any()
    return replace(found, named=np.zeros_like(found.named)) if early else found


def _of_jobs_under(window: Window, ports: Bools) -> Bools:
    """bool[nic]: of the nodes of these ports, and of all nodes of the jobs that run there."""
    nics = window.of_kind("nic")
    if not ports.any():
        return np.zeros(len(nics), bool)
    nodes = {nics[e].node or "" for e in np.flatnonzero(ports).tolist()}
    nodes |= {node for job in window.jobs if job.running and nodes & set(job.nodes) for node in job.nodes}
    return shared.of_nodes(nics, nodes)


@dataclass(frozen=True, slots=True)
class _Repairs:
    """verdicts: of culprits by TCP's repair. nodes: those whose repair stands out."""

    verdicts: tuple[Verdict, ...]
    nodes: frozenset[str]


def _by_tcp(window: Window, view: _View, p: Params) -> _Repairs:
    """The culprits that TCP's repair names, one at most in each running job."""
    nodes = window.of_kind("node")
    limits = tcp_repair.Limits(p.window_seconds, p.tcp_rate, p.tcp_share, p.tcp_times_past, p.tcp_ahead,
                               (p.tcp_mirror_least, p.tcp_mirror_most), p.tcp_share_alone, p.tcp_wait_grew)
    repair = tcp_repair.read(window, limits)
    places = frozenset(nodes[e].node or "" for e in np.flatnonzero(repair.stands_out))
    # While a link of the job is down its peers repair as well.
    down = {window.of_kind("nic")[e].node for e in np.flatnonzero(view.lost_link)}
    found = {column for job in window.jobs if job.running and places & set(job.nodes) and not down & set(job.nodes)
             if (column := tcp_repair.culprit(window, job, repair, limits)) is not None
             and nodes[column].node not in window.silent_nodes}
    return _Repairs(tuple(_of_node(window, column, view, repair) for column in sorted(found)), places)


def _of_node(window: Window, column: int, view: _View, repair: Repair) -> Verdict:
    node = window.of_kind("node")[column]
    sent = stats.ratio(repair.rate, repair.share)
    share = max(float(repair.share[column]), 1e-6)
    severity = round(float(np.clip(0.6 + 0.1 * (np.log10(share) + 4.0), 0.4, 0.85)), 3)
    return Verdict(tcp_repair.port(window, node, (view.kind == ETHERNET) & ~view.unsettled), FAULT, "faulty", severity,
                   tcp_repair.evidence(column, repair, sent), "retransmits_stand_out",
                   onset_at=tcp_repair.onset(window, column, repair))


def _spread_thin(view: _View, t: _Traces, p: Params) -> Bools:
    """Ports whose loss is a thin share of the largest: victims of a culprit that is named."""
    largest = np.zeros(len(view.kind))
    for kind in (RDMA, ETHERNET):
        group = view.kind == kind
        largest[group] = np.fmax(t.seen, t.repaired)[group].max(initial=0.0)
    return np.asarray((largest > 0) & (t.seen_all < p.thin * largest))


PLUGIN = DetectorPlugin(
    name="packet_loss",
    fault=FAULT,
    judge=judge,
    params=Params,
    needs=(("nic.packets_lost_per_second", "nic.retransmits_per_second", "nic.peer_loss_per_second",
            "nic.corrupt_packets_per_second", "node.tcp_retransmits_per_second"),),
    # The span is two minutes long already; three of four ticks more make it open two to three minutes after onset.
    hold=Hold(on=3, of=4, off=8, expire=40),
    must_not=(
        "congestion marks and waiting without loss", "a burst of loss in one sample", "a link that flaps or is down",
        "healthy counters that are not zero", "symbol errors ahead of error correction",
        "a constant background of drops on Ethernet", "peers that repair the culprit's loss", "a counter reset",
        "a far end that is reached over a bad line", "nodes that repair alike",
    ),
)
