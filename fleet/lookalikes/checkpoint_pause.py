"""A job saves a checkpoint out of turn: all its ranks pause, power falls, the storage is written to, then it goes on."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.sizes import HARMLESS
from fleet.lookalikes.pauses import asks_for, while_training

PLUGIN = FaultPlugin(
    name="checkpoint_pause", fault=None, scope="job", place="job", apply=asks_for("checkpoint", "checkpoint"), begin=while_training,
    impact=HARMLESS, heals_seconds=300.0,
)
