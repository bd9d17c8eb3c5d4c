"""A file system that is full, or became read-only.

Many file systems are full or read-only by design (images, firmware partitions), so one counts only when it was not so
before, or when the same mount of other nodes is not. Partitions that hold nothing but what the machine boots from are left
out: a kernel that is kept fills them, and no work needs them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Evidence, Floats, Verdict
from core.window import Window
from detectors import shared, stats

FAULT = "disk_full"
_BOOT = re.compile(r"/(boot|efi)(/.*)?")
_READ_ONLY = re.compile(r"[Rr]emounting filesystem read-only|[Ss]hutting down filesystem")


@dataclass(frozen=True)
class Params:
    """Sources: signals.md §4 and §11; limits are our judgement (checkpoints need far more than 2 %).

    left: share of bytes or inodes below which it is full. size_bytes: smaller file systems are not looked at (configuration
    drives); a tmpfs of some megabytes that is full fails what writes to it as a large disk does.
    past_seconds: the own past. peers_min: other nodes with the same mount. line_seconds: the most that lies between the kernel's
    line and the first reading of a mount that is read-only.
    """

    left: float = 0.02
    size_bytes: float = 1.6e7
    past_seconds: int = 86400
    peers_min: int = 3
    line_seconds: float = 120.0


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """One of the three things that can be wrong with a mount. now, before: its level; bad: it is wrong now and was not."""

    signal: str
    now: Floats
    usual: Floats
    bad: stats.Bools
    rows: stats.Bools


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each mount that shows its size or its state."""
    mounts = window.of_kind("mount")
    if not mounts or not len(window.times):
        return []
    size = window.last("mount.size_bytes")
    levels = [_share(window, params, "mount.available_bytes", "mount.size_bytes", stats.above(size, params.size_bytes)),
              _share(window, params, "mount.inodes_free", "mount.inodes_total", stats.above(size, params.size_bytes)),
              _read_only(window, params)]
    fresh = window.block("mount.available_bytes").fresh() | window.block("mount.readonly").fresh()
    known = fresh & (~np.isnan(levels[0].now) | ~np.isnan(levels[2].now))
    known &= shared.loud(window, mounts) & ~shared.kept("boot", (mounts,), lambda: np.array(
        [_BOOT.fullmatch(mount.device or "") is not None for mount in mounts], bool))
    bad = np.logical_or.reduce([level.bad for level in levels])
    said = _remounted(window) if bad.any() else {}
    out = shared.clears(mounts, known & ~bad, FAULT)
    for e in np.flatnonzero(known & bad):
        wrong = [level for level in levels if level.bad[e]]
        rows = tuple(Evidence(w.signal, "ratio", round(float(w.now[e]), 4), round(float(w.usual[e]), 4),
                              "its own past, else the same mount of other nodes") for w in wrong)
        onset = min(int(stats.run_start(w.rows[:, [e]], window.times, 4)[0]) for w in wrong)
        reason = "read_only" if wrong[-1].signal == "mount.readonly" else "full"
        # The state that two sources tell of, the kernel and the mount itself, needs no third reading.
        sure = reason == "read_only" and abs(said.get(mounts[e].node, 0) - onset) <= 1000 * params.line_seconds
        out.append(Verdict(mounts[e], FAULT, "faulty", 0.6, rows, reason, discrete=sure, onset_at=onset))
    return out


def _remounted(window: Window) -> dict[str | None, int]:
    """When (ms) the kernel of each node last said that it mounts a file system read-only."""
    return {event.target.node: event.at for event in window.events_of("kernel_error")
            if event.fields.get("subsystem") == "filesystem" and _READ_ONLY.search(str(event.fields.get("message") or ""))}


def _share(window: Window, p: Params, part: str, whole: str, large: stats.Bools) -> _Level:
    share = window.values(part) / np.where(window.values(whole) > 0, window.values(whole), np.nan)
    now = share[-1]
    usual = _usual(window, p, share, now)
    past = window.baseline(part, p.past_seconds).median / window.baseline(whole, p.past_seconds).median
    usual = np.fmax(usual, past)
    return _Level(part, now, usual, stats.below(now, p.left) & stats.above(usual, 2 * p.left) & large,
                  stats.below(share, p.left))


def _read_only(window: Window, p: Params) -> _Level:
    state = window.values("mount.readonly")
    writable = 1 - state
    usual = np.fmax(_usual(window, p, writable, writable[-1]), 1 - window.baseline("mount.readonly", p.past_seconds).median)
    return _Level("mount.readonly", state[-1], 1 - usual, stats.above(state[-1], 1) & stats.above(usual, 1),
                  stats.above(state, 1))


def _usual(window: Window, p: Params, share: Floats, now: Floats) -> Floats:
    """The best of the window, or what most other nodes have at the same mount."""
    peers = stats.peers(now, shared.device_codes(window.of_kind("mount")))
    return np.fmax(stats.quantile(share, 0.9), np.where(peers.n >= p.peers_min, peers.middle, np.nan))


PLUGIN = DetectorPlugin(
    name="disk_full", fault=FAULT, judge=judge, params=Params, needs=(("mount.available_bytes", "mount.readonly"),),
    hold=Hold(on=3, of=4, off=4), must_not=("an image that is full by design", "a partition mounted read-only",
                                            "a partition to boot from", "a configuration drive"),
)
