"""A fatal XID: the driver gave a GPU up, or wants it reset.

Counted once for each event. Which codes are fatal is data (`core/xids.yaml`): vendors disagree, and the site chooses whose
word counts. Codes with a fault of their own (memory, NVLink, off the bus) are their detectors'.

XID 13 and 31 are faults of programs, and no fatal ones. Where they come back on one GPU under different jobs the GPU is suspected,
with little confidence; on several GPUs of one job they are its software's.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events, shared, xid_repeats

FAULT = "xid_fatal"


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml (by default NVIDIA's catalogue, and XID 94).

    xids: the codes that count. worked_seconds: work without another
    fatal code after which an event is over; our judgement (a wedged GPU takes no work at all). repeat_jobs: under so many jobs of the
    last seven days XID 13 or 31 came on one GPU; repeat_hours: for so long after the newest it is suspected.
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 600.0
    repeat_jobs: int = 2
    repeat_hours: float = 6.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met a fatal XID, or those of programs again and again."""
    met = fatal_events.met_by(window, FAULT, params.xids, params.worked_seconds)
    words = dict(met.words)
    for key, verdict in xid_repeats.suspected(window, FAULT, params.repeat_jobs, 3600 * params.repeat_hours).items():
        if key not in words or (words[key].state != "faulty" and verdict.state == "faulty"):
            words[key] = verdict
    gpus = window.of_kind("gpu")
    return [*words.values(), *shared.clears(gpus, shared.without(gpus, met.none, words), FAULT)]


PLUGIN = DetectorPlugin(
    name="xid_fatal", fault=FAULT, judge=judge, params=Params, needs=(("gpu.xid", "xid"),), hold=Hold(on=1, of=1, off=4),
    must_not=("a gauge that keeps its last XID", "XID 43 and 45, the echoes of a killed process",
              "XID 13 and 31, faults of programs, of one job or on several of its GPUs", "an XID before the last boot"),
)
