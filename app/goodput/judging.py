"""Which attempts began on a node that had nothing: one rule for the months and for the whole path."""

from __future__ import annotations

from core.types import Action
from remediation.kinds import on_node

# A node is healthy where nothing was wrong with it for so long: longer than evidence may be old.
HEALTHY_AFTER_MS = 900_000


class Judge:
    """Judges an attempt once, when it begins: by the time that it puts its node back it has cured it."""

    def __init__(self) -> None:
        self._ill: dict[str, int] = {}
        self._began: set[tuple[str, int]] = set()

    def ill(self, node: str, at: int) -> None:
        """The node has something at `at` (ms)."""
        self._ill[node] = at

    def began_on_healthy(self, action: Action, state: str, at: int) -> bool:
        """Whether an attempt begins with this action on a node that has nothing and had nothing lately. state: of its outcome."""
        node, attempt = action.target.node, (action.incident, action.attempt)
        if state != "PENDING" or node is None or not on_node(action.kind) or attempt in self._began:
            return False
        self._began.add(attempt)
        return at - self._ill.get(node, -HEALTHY_AFTER_MS) > HEALTHY_AFTER_MS
