"""What the hardware of a job shows while no step is finished: a hang, work of another kind, a save, or nothing running.

In a hang of a collective all GPUs stay 100 % utilised (a kernel waits), draw little power, their tensor cores and their
network stand still. A checkpoint looks alike but moves bytes to storage; an evaluation keeps the tensor cores at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from core.types import Floats, JobState, Target
from core.window import Window
from detectors import shared, stats
from detectors.stats import Ints

COMPLETE, PARTIAL, WORKING, SAVING, IDLE, UNKNOWN = "complete", "partial", "working", "saving", "idle", "unknown"
# The GPUs' memory was given back: the processes have ended, so nothing of them can hang (a crash is another fault).
GONE = "gone"
GONE_SHARE = 0.1  # of the memory that was in use; what a driver holds by itself is below a hundredth
# A storage or disk write above this and above three times the usual is a save (bytes a second of the whole job).
SAVING_BYTES = 20e6


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The columns of a job's GPUs, NICs, disks and nodes in their blocks."""

    gpus: Ints
    nics: Ints
    disks: Ints
    nodes: Ints


class Places:
    """Finds the parts of a job. Built once for a window."""

    def __init__(self, window: Window) -> None:
        self._by_node = {kind: shared.kept(("by node", kind), (parts := window.of_kind(kind),), partial(_by_node, parts)) for kind in ("gpu", "nic", "disk", "node")}
        self._gpus = window.of_kind("gpu")
        self._ranks = window.of_kind("rank")
        self._utilization = window.values("gpu.utilization_ratio")
        self._shared: dict[str, int] = {}
        for job in window.jobs:
            for node in job.nodes if job.running else ():
                self._shared[node] = self._shared.get(node, 0) + 1

    def of(self, job: JobState) -> Parts:
        """The job's parts; on a node that several jobs share only the GPUs that are known to be its own. GPUs that did
        nothing in the window, beside others that did, are not the job's: it was given a part of the node."""
        own = {(self._ranks[c].node, self._ranks[c].device) for c in job.ranks if self._ranks[c].device is not None}
        gpus = []
        for node in job.nodes:
            for column in self._by_node["gpu"].get(node, ()):
                gpu = self._gpus[column]
                if self._shared.get(node, 0) <= 1 or gpu.job == job.id or (node, gpu.device) in own:
                    gpus.append(column)
        mine = np.array(gpus, np.int64)
        used = self._utilization[:, mine]
        worked = np.asarray(stats.above(used, 0.5).any(axis=0) | np.isnan(used).all(axis=0), bool)
        return Parts(mine[worked] if worked.any() else mine, *(
            np.array([c for node in job.nodes for c in self._by_node[kind].get(node, ())], np.int64)
            for kind in ("nic", "disk", "node")))


def _by_node(targets: Sequence[Target]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for column, target in enumerate(targets):
        out.setdefault(target.node or "", []).append(column)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """kind: one of the constants above. Shares are of the job's own past, medians over its GPUs; NaN = not known.

    utilization: float64[gpu], now. power: watts now and before. tensor: now. bytes_share: network traffic now.
    """

    kind: str
    utilization: Floats
    power_now: float
    power_past: float
    power_share: float
    tensor: float
    bytes_share: float


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _total(window: Window, signals: Sequence[str], columns: Ints, rows: slice) -> float:
    """The mean over the rows of the sum over signals and parts; NaN where nothing is known."""
    sums = []
    for signal in signals:
        values = stats.mean(window.values(signal)[rows][:, columns])
        if not np.isnan(values).all():
            sums.append(float(np.nansum(values)))
    return sum(sums) if sums else float("nan")


def _saves(window: Window, parts: Parts, before: slice, now: slice) -> bool:
    """Storage or disks take far more than before: a checkpoint is being written (or read)."""
    for signals, columns in ((("node.storage_bytes_per_second",), parts.nodes),
                             (("disk.written_bytes_per_second",), parts.disks)):
        present, past = _total(window, signals, columns, now), _total(window, signals, columns, before)
        if present > SAVING_BYTES and not present < 3.0 * past:
            return True
    return False


def read(window: Window, parts: Parts, stop_row: int) -> Signature:
    """What the job's hardware shows now, against the rows up to and including `stop_row` (the last progress)."""
    n = len(window.times)
    now = slice(max(stop_row + 1, n - max(1, window.ticks(60))), n)
    before = slice(0, stop_row + 1)
    gpus = parts.gpus
    none = Signature(UNKNOWN, np.full(len(gpus), np.nan), *(float("nan"),) * 5)
    if not len(gpus) or now.start >= n:
        return none

    def of(signal: str, rows: slice) -> Floats:
        return window.values(signal)[rows][:, gpus]

    utilization = stats.mean(of("gpu.utilization_ratio", now))
    power = stats.mean(of("gpu.power_watts", now))
    # The driver's energy counter says what the power gauge says, and is exposed where that is not.
    past_power = stats.quantile(of("gpu.power_watts", before), 0.9)
    share = _median(stats.ratio(power, past_power))
    if np.isnan(share):
        share = _median(stats.ratio(power, stats.mean(of("gpu.power_limit_watts", now))))
    tensor = stats.mean(of("gpu.tensor_active_ratio", now))
    last = slice(n - 1, n)  # work that has just begun again, too short ago to show in a mean or as a step
    busy_tensor = np.fmax(_median(tensor), _median(stats.mean(of("gpu.tensor_active_ratio", last))))
    drawn = np.fmax(share, _median(stats.ratio(stats.mean(of("gpu.power_watts", last)), past_power)))
    # A save that has just ended excuses the wait as well: the step after it is under way.
    saves = any(_saves(window, parts, before, rows) for rows in (now, slice(2 * now.start - n, now.start))
                if rows.start > stop_row)
    tensor_past = _median(stats.quantile(of("gpu.tensor_active_ratio", before), 0.75))
    traffic = ("nic.received_bytes_per_second", "nic.transmitted_bytes_per_second")
    bytes_share = float(stats.ratio(np.array(_total(window, traffic, parts.nics, now)),
                                    np.array(_total(window, traffic, parts.nics, before))))
    memory = _median(stats.ratio(stats.mean(of("gpu.memory_used_bytes", now)),
                                 stats.quantile(of("gpu.memory_used_bytes", before), 0.9)))
    kind = GONE if memory < GONE_SHARE else _kind(
        utilization, float(drawn), float(busy_tensor), tensor_past, bytes_share, saves,
        _flat(of("gpu.power_watts", slice(max(0, n - 8), n))))
    return Signature(kind, utilization, _median(power), _median(past_power), share, _median(tensor), bytes_share)


def _flat(power: Floats) -> bool:
    """Power stands still: the spread of each GPU over two minutes is within its noise."""
    known = np.where(np.isnan(power).all(axis=0), np.nan, stats.quantile(power, 1.0) - stats.quantile(power, 0.0))
    spread = _median(known)
    return not spread > 0.25 * max(_median(stats.mean(power)), 100.0)


def _kind(utilization: Floats, power: float, tensor: float, tensor_past: float, traffic: float, saves: bool,
          flat: bool) -> str:
    known = utilization[~np.isnan(utilization)]
    busy = float((known >= 0.9).mean()) if len(known) else float("nan")
    if np.isnan(busy) and np.isnan(power):
        return UNKNOWN
    if saves:
        return SAVING
    if tensor > 0.02 and tensor >= 0.3 * (0.0 if np.isnan(tensor_past) else tensor_past):
        return WORKING
    if np.isnan(tensor) and power >= 0.6:
        return WORKING
    if len(known) and float((known <= 0.1).mean()) >= 0.9:
        return IDLE
    if busy >= 0.9 and flat and not power > 0.6:
        still = tensor <= 0.01 and traffic <= 0.05
        return COMPLETE if still and not np.isnan(power) else PARTIAL
    # Most of the GPUs of a hang wait in a kernel. Little power and little use is a start, a restart or a pause as well.
    waiting = not len(known) or bool(np.median(known) >= 0.9)
    return PARTIAL if power <= 0.5 and waiting else UNKNOWN


def idle_during(window: Window, parts: Parts, rows: slice) -> bool:
    """True where most of the GPUs are known to have done nothing in the rows: the job was stopped."""
    used = stats.mean(window.values("gpu.utilization_ratio")[rows][:, parts.gpus])
    return bool(_median(used) <= 0.1)


def standstill_since(window: Window, parts: Parts) -> tuple[int, str] | None:
    """For a job without a trainer's word: the row since which all its GPUs show a hang, and how complete the picture is.

    None where they do not, or where they never worked in the window.
    """
    gpus = parts.gpus
    if not len(gpus):
        return None
    utilization = window.values("gpu.utilization_ratio")[:, gpus]
    if not stats.above(utilization[-1], 0.9).all():
        return None
    power, tensor = window.values("gpu.power_watts")[:, gpus], window.values("gpu.tensor_active_ratio")[:, gpus]
    usual = stats.quantile(power, 0.9)
    # 40 % of what it drew at work: far above what waiting draws, far below any work.
    low = stats.below(power, 0.4 * usual)
    still = stats.above(utilization, 0.9) & low & ~stats.above(tensor, 0.02)
    missing = np.isnan(utilization) & np.isnan(power)
    rows = np.asarray((still | missing).all(axis=1), bool)
    if not rows[-1] or missing[-1].any():
        return None
    first = len(rows) - int(np.argmin(rows[::-1])) if not rows.all() else 0
    if first == 0 or not stats.above(power[:first], 0.7 * usual).any():
        return None
    signature = read(window, parts, first - 1)
    return (first, signature.kind) if signature.kind in (COMPLETE, PARTIAL) else None
