"""The backend that only watches: every command is SIMULATED, never DONE, and it claims to see no node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.protocols import BackendPlugin, ControlDoor, NodeView, WorldView
from core.targets import ACTION_KINDS
from core.types import Action, Outcome


@dataclass(frozen=True, slots=True)
class ObserveParams:
    """It takes no keys."""


class ObserveDoor:
    """Says SIMULATED to everything it was given, and knows nothing else."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def submit(self, action: Action) -> Outcome:
        """SIMULATED, at the action's own time."""
        self._seen.add(action.id)
        return Outcome(action.id, "SIMULATED", "simulated", 0.0, action.at)

    def poll(self, action_id: str) -> Outcome:
        """SIMULATED for what was submitted, else REFUSED `unknown_operation`."""
        if action_id in self._seen:
            return Outcome(action_id, "SIMULATED", "simulated")
        return Outcome(action_id, "REFUSED", "unknown_operation")


class ObserveView:
    """No world to look at."""

    def nodes(self) -> Mapping[str, NodeView]:
        """Empty: an engine that may act finds no node to act on."""
        return {}


def build(params: ObserveParams) -> tuple[ControlDoor, WorldView]:
    """Door and view."""
    return ObserveDoor(), ObserveView()


PLUGIN = BackendPlugin("observe", ObserveParams, ACTION_KINDS, build)
