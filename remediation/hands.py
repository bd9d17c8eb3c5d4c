"""One command at the door: submit it, ask after it, give it up.

A command that may have reached the world is asked after before it is submitted again, so that a crash or a lost answer
repeats nothing. One that the world acknowledged and then forgot is given up, never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.errors import Refused, Unavailable
from core.protocols import ControlDoor, NodeView, WorldView
from core.reasons import ACTION_REASONS
from core.types import Outcome
from remediation.guards import BEFORE_COMMAND, Ask, World, first_reason
from remediation.kinds import FINAL, KINDS, on_node
from remediation.ledger import Ledger
from remediation.policy import Limits
from remediation.track import Current

# What passes by itself: these are tried again within the deadline.
TEMPORARY = frozenset({"target_busy", "unreachable", "maintenance"})
NEVER_SENT = frozenset({"target_busy", "maintenance"})
LONGEST_DETAIL = 300
BACK_OFF_MS = (15_000, 30_000, 60_000, 120_000)
_FALLBACK = {"DONE": "done", "FAILED": "backend_failed", "REFUSED": "backend_refused", "RUNNING": "policy",
             "SIMULATED": "simulated"}


def push(at: int, current: Current, door: ControlDoor, view: WorldView, frozen: bool) -> Outcome | None:
    """Brings the command one step further; its new outcome, or None where nothing is new. Marks `current` as tried."""
    try:
        outcome = _ask(at, current, door, view, frozen)
    except Unavailable:
        outcome = replace(current.outcome, reason="unreachable", at=at) if current.outcome.state == "PENDING" else None
    if outcome is not None and outcome.state in FINAL:
        return outcome
    pending = (outcome or current.outcome).state == "PENDING"
    if at >= current.deadline_at and not (frozen and pending):
        reason = (outcome or current.outcome).reason
        if pending and reason in NEVER_SENT:
            return Outcome(current.action.id, "REFUSED", reason, at=at)
        return Outcome(current.action.id, "FAILED", "deadline_exceeded", _took(at, current), at)
    same = outcome is not None and (outcome.state, outcome.reason) == (current.outcome.state, current.outcome.reason)
    return None if same else outcome


def _ask(at: int, current: Current, door: ControlDoor, view: WorldView, frozen: bool) -> Outcome | None:
    """The world's word; PENDING while a guard holds the command back for now; None where nothing was asked."""
    if current.outcome.state == "RUNNING":
        told = _told(at, current, _poll(door, current))
        if told.reason == "unknown_operation":
            return replace(told, state="FAILED", took_seconds=_took(at, current))
        return told
    if current.tried:
        told = _told(at, current, _poll(door, current))
        if told.reason != "unknown_operation":
            return told
    if current.withhold is not None:
        return Outcome(current.action.id, "REFUSED", current.withhold, at=at)
    if frozen or at < current.next_try_at:
        return None
    reason = _guarded(at, current, view)
    if reason in TEMPORARY:
        current.next_try_at = at + BACK_OFF_MS[min(current.tries, len(BACK_OFF_MS) - 1)]
        current.tries += 1
        return Outcome(current.action.id, "PENDING", str(reason), at=at)
    if reason is not None:
        return Outcome(current.action.id, "REFUSED", reason, at=at)
    current.tried = True
    try:
        return _told(at, current, answer(current.action.id, door.submit(current.action)))
    except Refused as refused:
        return _told(at, current, Outcome(current.action.id, "REFUSED", refused.reason))


def _poll(door: ControlDoor, current: Current) -> Outcome:
    try:
        return answer(current.action.id, door.poll(current.action.id))
    except Refused as refused:
        return Outcome(current.action.id, "REFUSED", refused.reason)


def answer(action_id: str, outcome: Outcome) -> Outcome:
    """The door's word on the command. Raises Unavailable where it is one on another: that came late, and says nothing of this one."""
    if outcome.action_id != action_id:
        raise Unavailable(f"asked after {action_id}, told of {outcome.action_id}")
    return outcome


def _guarded(at: int, current: Current, view: WorldView) -> str | None:
    """The guards that are asked again over the world as it is at this moment. Raises Unavailable."""
    action, nodes = current.action, view.nodes()
    kinds = frozenset((action.kind,))
    if on_node(action.kind):
        ask = Ask(at, action.incident, action.target.key, (action.target.node or "",), (), kinds, ours=current.ours)
    else:
        ask = Ask(at, action.incident, action.target.key, (), (action.target.job or "",), kinds)
    return first_reason(ask, World(Limits(), Ledger(), nodes, job_nodes=nodes_of_jobs(nodes)), BEFORE_COMMAND)


def nodes_of_jobs(nodes: Mapping[str, NodeView]) -> dict[str, list[str]]:
    """Where each job runs, as the world sees it."""
    out: dict[str, list[str]] = {}
    for view in nodes.values():
        for job in view.jobs:
            out.setdefault(job, []).append(view.node)
    return out


def _told(at: int, current: Current, outcome: Outcome) -> Outcome:
    """The door's word with the action's id, a time and a reason of the closed list."""
    state = outcome.state if outcome.state in FINAL or outcome.state == "RUNNING" else "RUNNING"
    reason = outcome.reason if outcome.reason in ACTION_REASONS else _FALLBACK[state]
    detail = outcome.detail[:LONGEST_DETAIL] if outcome.detail else None
    return Outcome(current.action.id, state, reason, max(0.0, outcome.took_seconds), outcome.at or at, detail)


def _took(at: int, current: Current) -> float:
    return max(0.0, (at - current.action.at) / 1000)


def touches(current: Current) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(nodes, jobs) that the command acts on."""
    target = current.action.target
    if KINDS[current.action.kind].subject == "job":
        return (), (target.job,) if target.job else ()
    return ((target.node,) if target.node else ()), ()
