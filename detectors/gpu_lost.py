"""A GPU that is gone: XID 79, a kernel line without a number, or all its series vanish while its siblings' go on.

A whole exporter that is silent is not a lost GPU, nor is a node that is rebooted or drained. A GPU that answers again is
clear.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.protocols import DetectorPlugin, Hold
from core.types import Event, Evidence, Target, Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared

FAULT = "gpu_lost"
# Series that every exporter has of every GPU that it sees.
_ALIVE = ("gpu.temperature_celsius", "gpu.power_watts", "gpu.sm_clock_hertz", "gpu.utilization_ratio", "gpu.memory_used_bytes")


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml; NVSentinel #155 and dcgm-exporter #348 (a GPU off the bus has no metric of its own).

    xids: the codes that count. worked_seconds: work after which a log line is over; our judgement.
    missed_intervals: scrapes in a row without the GPU: at the third its newest sample is just as old. gone_seconds: at least; two missed cycles of the exporter are 60 s. One that
    is shown so long after its line is well.
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 600.0
    missed_intervals: float = 2.9
    gone_seconds: float = 60.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that is shown now, or was and is not."""
    gpus = window.of_kind("gpu")
    if not len(window.times):
        return []
    out = _never_shown(window)
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds)
    if not gpus:  # only logs are read
        told = met.words | out
        return [told[key] for key in sorted(told)]
    ages = np.min([window.block(s).age_seconds for s in _ALIVE], axis=0)
    known = np.fmin.reduce([window.block(s).interval_seconds for s in _ALIVE])
    interval = np.where(np.isnan(known), float(window.step_seconds), known)
    here = ages <= np.maximum(2.5 * interval, 30.0)
    gone = np.isfinite(ages) & (ages > np.maximum(params.missed_intervals * interval, params.gone_seconds))
    lines = {(e.target.node, e.target.key): e for e in window.events_of("gpu_lost")}
    loud = shared.loud(window, gpus)
    clear = here & loud
    for (node, key), line in lines.items():
        e = shared.by_key(gpus).get(key)
        if e is None or gpus[e].node != node or not loud[e]:
            continue
        # Shown or not: an exporter repeats what it read last for a cycle, and this line is XID 79 without its number.
        if not here[e] or window.end - line.at < params.gone_seconds * 1000:
            out[key] = _told(gpus[e], line)
            clear[e] = False
    missing = np.flatnonzero(loud & gone & ~here).tolist()
    alive_nodes = {gpus[e].node for e in np.flatnonzero(here)} if missing else set()
    for e in missing:
        gpu = gpus[e]
        if gpu.key not in out and gpu.node in alive_nodes:
            age = Evidence("gpu_lost", "count", 1.0, 0.0, "a GPU that its exporter shows",
                           f"its newest sample is {ages[e]:.0f} s old, those of its siblings are fresh")
            out[gpu.key] = Verdict(gpu, FAULT, "faulty", fatal_events.FATAL, (age,), "vanished",
                                   onset_at=int(window.end - ages[e] * 1000))
    said = ~shared.without(gpus, np.ones(len(gpus), bool), out)
    clear |= met.none & ~said
    for key, verdict in met.words.items():
        e = shared.by_key(gpus).get(key)
        if verdict.state == "faulty" or (key not in out and (e is None or not clear[e])):
            out[key] = verdict
            if e is not None:
                clear[e] = False
    return [*out.values(), *shared.clears(gpus, clear, FAULT)]


def _told(gpu: Target, line: Event) -> Verdict:
    text = Evidence("gpu_lost", "count", 1.0, 0.0, "a GPU on the bus", line.line)
    return Verdict(gpu, FAULT, "faulty", fatal_events.FATAL, (text,), "off_the_bus", True, line.at)


def _never_shown(window: Window) -> dict[str, Verdict]:
    """GPUs that only the kernel's log knows: no exporter shows them, so nothing else can tell that they are back."""
    shown = {gpu.key for gpu in window.of_kind("gpu")}
    return {e.target.key: _told(e.target, e) for e in window.events_of("gpu_lost")
            if e.target.key not in shown and e.target.node not in window.silent_nodes
            and fatal_events.booted_at(window, e.target.node) <= e.at}


PLUGIN = DetectorPlugin(
    name="gpu_lost", fault=FAULT, judge=judge, params=Params, needs=(("gpu.temperature_celsius", "xid", "gpu_lost"),),
    hold=Hold(on=1, of=1, off=4),  # how long nothing came is asked by seconds; one reading begins anew
    must_not=("an exporter that is silent for all its GPUs", "one missed scrape", "a node that reboots",
              "a sticky XID 79 of before the last boot"),
)
