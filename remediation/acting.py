"""The steps of an attempt, one after another: each is written before it is done, and awaited to its end."""

from __future__ import annotations

from dataclasses import replace

from core.types import Incident, Outcome
from remediation.ending import Ending
from remediation.guards import NEEDS_APPROVAL
from remediation.hands import BACK_OFF_MS, TEMPORARY
from remediation.kinds import GIVES_BACK, KINDS, TAKES_OUT, commands
from remediation.plan import Planned
from remediation.track import Current, Track, ridden
from remediation.turn import Turn


def _first(track: Track) -> bool:
    """Nothing that touches the world came before the step under way."""
    return not any(commands(s.kind) for s in track.plan[: max(0, track.index - 1)])


def _ours(track: Track) -> bool:
    """The attempt has taken the node of the step under way out of service, and not given it back."""
    node, ours = track.plan[track.index - 1].target.node, False
    for done in track.plan[: track.index - 1]:
        if node is not None and done.target.node == node and done.kind in TAKES_OUT | GIVES_BACK:
            ours = done.kind in TAKES_OUT
    return ours


class Acting(Ending):
    """From the first step to the last."""

    # --- acting -------------------------------------------------------------------------------------------------------
    def _act(self, tick: Turn, incident: Incident, track: Track) -> None:
        current = track.current
        if current is None:  # paused by a freeze, or refused for a reason that passes
            if tick.at >= track.retry_at:
                self._next(tick, incident, track)
            return
        if not current.final:
            self._watch(tick, incident, track, current)
            return
        track.current = None
        self._book_keep(track, current)
        state, reason = current.outcome.state, current.outcome.reason
        if state == "DONE":
            track.tries = 0
            self._next(tick, incident, track)
        elif state == "SIMULATED":
            self._memory.ledger.forget(incident.id, track.attempt)
            self._write_simulated(tick, incident, track, track.plan[track.index:])
        elif state == "REFUSED" and (reason in TEMPORARY or reason == current.withhold) and reason != "mode_observe":
            self._again(tick, incident, track, reason)
        elif state == "REFUSED" and reason in NEEDS_APPROVAL and track.approval is None and _first(track):
            track.asks = reason  # the world would do it, for a price that a person has to agree to
            self._again(tick, incident, track, reason)
        elif reason in ("other_hand", "mode_observe"):  # somebody else's now: stand down
            self._escalate(tick, incident, track, reason)
        else:
            self._failed(tick, incident, track, "step_failed", "door_refused" if state == "REFUSED" else "policy_exhausted")

    def _again(self, tick: Turn, incident: Incident, track: Track, reason: str) -> None:
        """The command did not happen, for a reason that passes. An id that was refused stays so: the next try has a new
        one. Where nothing of the attempt was done it is taken back, costs no budget, and is decided on anew."""
        track.retry_at = tick.at + (BACK_OFF_MS[min(track.tries, len(BACK_OFF_MS) - 1)] if reason in TEMPORARY else 0)
        track.tries += 1
        if _first(track):
            self._memory.ledger.forget(incident.id, track.attempt)
            self._set(tick, track, "holding", reason)
        elif tick.at >= track.command_deadline:
            self._failed(tick, incident, track, "step_failed", "door_refused")
        else:
            track.index -= 1
            self._set(tick, track, "acting", reason)

    def _watch(self, tick: Turn, incident: Incident, track: Track, current: Current) -> None:
        """A command is under way. While it has not reached the world it must stay worth sending."""
        if current.outcome.state != "PENDING":
            return
        if tick.frozen:
            current.deadline_at += tick.at - (self._memory.last_at if self._memory.last_at is not None else tick.at)
        current.withhold = None
        if self.policy.mode == "observe":
            current.withhold = "mode_observe"
        elif _first(track):
            if not track.follows and tick.fresh.isdisjoint(incident.findings):
                current.withhold = "stale_evidence"
            elif tick.frozen:
                current.withhold = "frozen"
            elif tick.site.silenced(incident):
                current.withhold = "silenced"
            elif tick.at > current.action.at:
                # It was not sent in its own tick. What it was decided on (the culprit, budgets, who works on the neighbours) may
                # have changed since, so it is decided on anew.
                current.withhold = current.outcome.reason if current.outcome.reason in TEMPORARY else "not_sent"

    def _in_use(self, tick: Turn, incident: Incident, track: Track, step: Planned) -> bool:
        """A GPU that still computes cannot be reset: it is waited for, no longer than the step's deadline."""
        if tick.facts.gpu_in_use(step.target) is not True:
            return False
        if track.reason != "gpu_in_use":
            track.command_deadline = tick.at + round(step.deadline_seconds * 1000)
        elif tick.at >= track.command_deadline:
            self._failed(tick, incident, track, "step_failed", "gpu_in_use")
            return True
        self._set(tick, track, "acting", "gpu_in_use")
        return True

    def _next(self, tick: Turn, incident: Incident, track: Track) -> None:
        """Writes the next step down as PENDING; notify and escalate are done by writing them."""
        while track.index < len(track.plan):
            step = track.plan[track.index]
            if commands(step.kind) and self.policy.mode == "observe":  # the policy changed while an attempt was under way
                self._escalate(tick, incident, track, "mode_observe")
                return
            if commands(step.kind) and tick.frozen:
                self._set(tick, track, "acting", "frozen")
                return
            if step.kind == "reset_gpu" and self._in_use(tick, incident, track, step):
                return
            if KINDS[step.kind].subject == "job" and ridden(track, self._memory.tracks.values()):
                self._set(tick, track, "acting", "riders_change")
                return
            reason, actor = "policy", "greylag"
            if track.approval is not None:
                reason, actor = "approved", track.approval[0]
            track.index, track.step = track.index + 1, track.step + 1
            action = replace(self._action(tick, incident, track.attempt, track.step, step, reason), actor=actor)
            track.proposal = None
            self._set(tick, track, "acting", "action_planned")
            if commands(step.kind):
                pending = Outcome(action.id, "PENDING", reason, at=tick.at)
                if track.tries == 0 or track.command_deadline == 0:
                    track.command_deadline = tick.at + round(action.deadline_seconds * 1000)
                track.current = Current(action, pending, track.command_deadline, ours=_ours(track))
                tick.actions.append((action, pending))
                return
            done = "escalated" if step.kind == "escalate" else "done"
            tick.actions.append((action, Outcome(action.id, "DONE", done, at=tick.at)))
            if step.kind == "escalate":
                self._end_attempt(tick, track, "")
                track.cordon_told = True
                self._set(tick, track, "escalated", "escalated")
                return
        leader = self._memory.tracks.get(track.rides) if track.rides else None
        if leader is not None and leader.state == "acting" and leader.closed_at is None:
            self._set(tick, track, "acting", "rides_along")  # the job is not back yet
            return
        track.verify_at, track.quiet_since, track.approval = tick.at, None, None
        self._set(tick, track, "verifying", "verify_started")
