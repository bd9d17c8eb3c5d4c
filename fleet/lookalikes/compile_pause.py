"""A job compiles anew (a new shape, a recompile): its next steps take up to ten times as long, then it is as fast as before."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import asks_for, while_training

PLUGIN = FaultPlugin(
    name="compile_pause", fault=None, scope="job", place="job", apply=asks_for("compile", "warmup"), begin=while_training,
    impact=HARMLESS, heals_seconds=300.0,
)
