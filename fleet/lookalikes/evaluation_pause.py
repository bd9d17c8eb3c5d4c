"""A job evaluates: no step ends and no gradient norm is reported while its GPUs work on, then it goes on."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import asks_for, while_training

PLUGIN = FaultPlugin(
    name="evaluation_pause", fault=None, scope="job", place="job", apply=asks_for("eval", "eval"), begin=while_training,
    impact=HARMLESS, heals_seconds=300.0,
)
