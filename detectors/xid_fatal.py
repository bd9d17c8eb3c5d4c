"""A fatal XID: the driver gave a GPU up, or wants it reset.

Counted once for each event. Which codes are fatal is data (`core/xids.yaml`): vendors disagree, and the site chooses whose
word counts. Codes with a fault of their own (memory, NVLink, off the bus) are their detectors'.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocols import DetectorPlugin, Hold
from core.types import Verdict
from core.window import Window
from core.xids import OURS, XidPolicy
from detectors import fatal_events

FAULT = "xid_fatal"


@dataclass(frozen=True)
class Params:
    """Sources: core/xids.yaml (by default NVIDIA's catalogue, and XID 94).

    xids: the codes that count. worked_seconds: work without another
    fatal code after which an event is over; our judgement (a wedged GPU takes no work at all).
    """

    xids: XidPolicy = OURS
    worked_seconds: float = 600.0


def judge(window: Window, params: Params) -> list[Verdict]:
    """A verdict for each GPU that met a fatal XID."""
    return fatal_events.judge(window, FAULT, params.xids, params.worked_seconds)


PLUGIN = DetectorPlugin(
    name="xid_fatal", fault=FAULT, judge=judge, params=Params, needs=(("gpu.xid", "xid"),), hold=Hold(on=1, of=1, off=4),
    must_not=("a gauge that keeps its last XID", "XID 43 and 45, the echoes of a killed process",
              "XID 13 and 31, faults of programs", "an XID before the last boot"),
)
