"""What each kind of action acts on, and how long it may take.

subject: `node` (the culprit's node), `gpu` (the culprit itself), `job` (each job of the incident), `people`
(carried out by Greylag itself: the message leaves through the outbox, no backend is asked).
"""

from __future__ import annotations

from dataclasses import dataclass

from core.targets import ACTION_KINDS


@dataclass(frozen=True, slots=True)
class Kind:
    """deadline_seconds: cluster time from the decision to the last moment at which its outcome is awaited."""

    subject: str
    deadline_seconds: float


# Deadlines: a drain waits for a checkpoint, and jobs write one each 5 to 15 minutes; DCGM's level 3 takes about 15
# minutes and a server's power cycle up to 30 (facts: rules.md §3g and §4, row 17). A step's `deadline_seconds` overrides.
KINDS: dict[str, Kind] = {
    "notify": Kind("people", 60.0),
    "restart_process": Kind("job", 300.0),
    "reset_gpu": Kind("gpu", 300.0),
    "drain": Kind("node", 1200.0),
    "undrain": Kind("node", 120.0),
    "reboot": Kind("node", 1800.0),
    "replace": Kind("node", 900.0),
    "diagnose": Kind("node", 1800.0),
    "exclude_node": Kind("node", 120.0),
    "resume_job": Kind("job", 900.0),
    "shrink_job": Kind("job", 900.0),
    "escalate": Kind("people", 60.0),
}
assert set(KINDS) == set(ACTION_KINDS)

TAKES_OUT = frozenset({"drain", "exclude_node"})
GIVES_BACK = frozenset({"undrain", "replace"})
SHARED_SCOPES = frozenset({"switch", "rack", "fleet", "storage", "collector"})
NODE_PARTS = frozenset({"gpu", "nic", "link", "disk", "node", "rank"})  # kinds of culprit that one node holds
FINAL = frozenset({"DONE", "FAILED", "REFUSED", "SIMULATED"})
HANDS = "greylag"  # how the backends name us in `held_by`


def on_node(kind: str) -> bool:
    """True where the kind touches a node or a part of it."""
    return KINDS[kind].subject in ("node", "gpu")


def commands(kind: str) -> bool:
    """True where a backend is asked; notify and escalate are Greylag's own."""
    return KINDS[kind].subject != "people"
