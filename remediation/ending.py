"""How an attempt ends, and with it perhaps the incident: proved, failed, handed to a person."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from core.protocols import WorldView
from core.types import Action, Incident, Outcome, Target
from core.window import Topology
from remediation import verify as proof
from remediation.fabric import Fabric
from remediation.kinds import GIVES_BACK, KINDS, TAKES_OUT, commands
from remediation.matching import LabelsOf
from remediation.memory import Memory
from remediation.plan import Planned, subject
from remediation.policy import Policy, Rule
from remediation.track import Current, Track
from remediation.turn import Decision, Turn


class Ending:
    """What the engine is made of, and the ends of its attempts. `Engine` says what the arguments are."""

    def __init__(self, policy: Policy, kinds: Collection[str], view: WorldView, *,
                 freeze_file_exists: Callable[[], bool] | None = None, labels_of: LabelsOf | None = None) -> None:
        self.policy = policy
        self.kinds = frozenset(kinds)
        self.view = view
        self._file = freeze_file_exists or (lambda: False)
        self._labels_of = labels_of or (lambda node: {})
        self._memory = Memory()
        self._cabled: tuple[Topology, Fabric] | None = None

    # --- small things -------------------------------------------------------------------------------------------------
    def _set(self, tick: Turn, track: Track, state: str, reason: str) -> None:
        if (track.state, track.reason) == (state, reason):
            return
        if state != "holding":
            track.held_since = None
        elif track.held_since is None:
            track.held_since = tick.at
        if state != "holding" or track.state == "acting":  # one hold after another changes nobody's work
            tick.working = None
        track.state, track.reason = state, reason
        tick.decisions.append(Decision(tick.at, track.incident, state, reason, track.rule, track.attempt))

    def _action(self, tick: Turn, incident: Incident, attempt: int, step: int, planned: Planned, reason: str) -> Action:
        return Action(Action.make_id(incident.id, attempt, step), planned.kind, planned.target, dict(planned.args),
                      planned.deadline_seconds, self.policy.mode, incident.id, attempt, step, tick.at, reason,
                      fault=incident.fault)

    def _book_keep(self, track: Track, current: Current) -> None:
        """Which nodes we hold: one that may have been taken out counts until it was surely given back."""
        action, state = current.action, current.outcome.state
        if state in ("DONE", "FAILED"):
            self._memory.ledger.did(track.incident, action.attempt, action.kind)
        node = action.target.node
        if node is None or state in ("REFUSED", "SIMULATED"):
            return
        if action.kind in TAKES_OUT and (state == "DONE" or current.tried):
            track.cordoned = tuple(sorted({*track.cordoned, node}))
        if action.kind in GIVES_BACK and state == "DONE":
            track.cordoned = tuple(n for n in track.cordoned if n != node)

    def _withdraw(self, tick: Turn, track: Track, reason: str) -> None:
        if track.proposal is not None:
            tick.actions.append((track.proposal, Outcome(track.proposal.id, "REFUSED", reason, at=tick.at)))
        track.proposal = track.approval = None

    # --- ending -------------------------------------------------------------------------------------------------------
    def _prove(self, tick: Turn, incident: Incident, track: Track) -> None:
        rule = self.policy.rule(track.rule) or Rule("", finally_="escalate")
        judged = proof.judge(tick.at, incident, track, rule.verify, tick.facts)
        if judged.result == "wait":
            return
        tick.recoveries.append(judged.told(tick.at, incident.id, track.attempt))
        self._memory.ledger.end(incident.id, track.attempt, judged.result, judged.reason)
        if judged.result == "failed":
            if not tick.fresh.isdisjoint(incident.findings):
                self._failed(tick, incident, track, "verify_failed", "policy_exhausted")
            else:  # the part is quiet, and still the job is not back: more action on this part would be a guess
                self._escalate(tick, incident, track, "verify_failed")
            return
        if not judged.resolves:
            self._escalate(tick, incident, track, judged.reason)
            return
        self._end_attempt(tick, track, "resolved")
        self._set(tick, track, "resolved", judged.reason)
        track.closed_at = tick.at
        self._hand_over_cordons(tick, track)

    def _failed(self, tick: Turn, incident: Incident, track: Track, how: str, last_reason: str) -> None:
        """The attempt did not work: the next one is decided on anew, or a person takes over."""
        self._memory.ledger.end(incident.id, track.attempt, "failed", how)
        self._end_attempt(tick, track, how)
        rule = self.policy.rule(track.rule)
        if rule is None or track.rung >= len(rule.attempts):
            self._escalate(tick, incident, track, last_reason)
        else:
            self._set(tick, track, "holding", "verify_failed" if how == "verify_failed" else "previous_failed")

    def _end_attempt(self, tick: Turn, track: Track, how: str) -> None:
        self._memory.ledger.touch(track.incident, track.attempt, tick.at)
        track.rung, track.tries, track.retry_at = track.rung + 1, 0, 0
        track.ended_at, track.ended = tick.at, how
        track.approval = track.verify_at = track.quiet_since = None
        track.asks = ""

    def _escalate(self, tick: Turn, incident: Incident, track: Track, reason: str) -> None:
        self._withdraw(tick, track, "withdrawn")
        self._memory.ledger.end(incident.id, track.attempt, "inconclusive", reason)  # a result that stands already stays
        self._write_escalation(tick, track, subject(incident), reason)
        self._set(tick, track, "escalated", reason)

    def _write_escalation(self, tick: Turn, track: Track, target: Target, reason: str) -> None:
        """Hands the incident, and each node that we hold for it, to a person; the row in the ledger says so."""
        track.attempt, track.step = max(1, track.attempt), track.step + 1
        args: dict[str, object] = {"nodes": ",".join(track.cordoned)} if track.cordoned else {}
        action = Action(Action.make_id(track.incident, track.attempt, track.step), "escalate", target, args,
                        KINDS["escalate"].deadline_seconds, self.policy.mode, track.incident, track.attempt, track.step,
                        tick.at, reason)
        tick.actions.append((action, Outcome(action.id, "DONE", "escalated", at=tick.at)))
        track.cordon_told = True

    def _hand_over_cordons(self, tick: Turn, track: Track) -> None:
        if track.cordoned and not track.cordon_told:
            self._write_escalation(tick, track, Target("node", track.cordoned[0]), "escalated")

    def _write_simulated(self, tick: Turn, incident: Incident, track: Track, steps: Sequence[Planned]) -> None:
        for step in steps:
            track.step += 1
            action = self._action(tick, incident, track.attempt, track.step, step, "mode_observe")
            tick.actions.append((action, Outcome(action.id, "SIMULATED", "simulated", at=tick.at)))
        track.simulated = self.policy.mode
        if any(commands(s.kind) for s in steps):
            self._memory.untouched.watch(tick.at, incident)
        self._set(tick, track, "open", "mode_observe")
