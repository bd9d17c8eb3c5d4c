"""Actions in words for people, rendered from the records alone."""

from __future__ import annotations

from core.reasons import ACTION_REASONS, INCIDENT_REASONS
from core.types import Action, Outcome

_VERBS = {
    "notify": "tell people about", "restart_process": "restart the processes of", "reset_gpu": "reset", "drain": "drain",
    "undrain": "return to service", "reboot": "reboot", "replace": "replace with a spare", "diagnose": "diagnose",
    "exclude_node": "exclude", "resume_job": "resume", "shrink_job": "shrink", "escalate": "hand to a person",
}
_STATES = {"PENDING": "decided", "RUNNING": "under way", "DONE": "done", "FAILED": "failed", "REFUSED": "refused",
           "SIMULATED": "simulated, nothing was done"}


def why(reason: str) -> str:
    """A named reason in words; the name itself where the closed lists do not have it."""
    return ACTION_REASONS.get(reason) or INCIDENT_REASONS.get(reason) or reason


def say(action: Action, outcome: Outcome) -> str:
    """One line: `drain n7 (wait_for=checkpoint): done after 312 s`; a reason follows where it adds something."""
    args = ", ".join(f"{k}={v}" for k, v in action.args.items() if k != "attempts")  # a proposal's lines are too long for one
    text = f"{_VERBS.get(action.kind, action.kind)} {action.target}" + (f" ({args})" if args else "")
    text += f": {_STATES.get(outcome.state, outcome.state)}"
    if outcome.took_seconds > 0:
        text += f" after {outcome.took_seconds:.0f} s"
    if outcome.state == "PENDING" and outcome.reason == action.reason == "approved":
        return f"{text}, approved by {action.actor}"
    if outcome.reason in ("done", "policy", "simulated") and outcome.state != "PENDING":
        return text
    return f"{text}, {why(outcome.reason)}"
