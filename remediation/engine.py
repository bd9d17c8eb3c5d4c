"""The engine: one state machine for each incident, from the first matching rule to proof of recovery.

    open ──▶ holding (a guard's reason) ──▶ acting ──▶ verifying ──▶ resolved
      │          ▲        proposed ──▶──────▲  │           │
      │          └──────── next attempt ◀──────┴───────────┤
      └─ observe: stays open, SIMULATED                    └──▶ escalated

`step` decides and touches nothing but its own state; the owner commits what it returns, then `carry_out` goes to the
door. What was decided is therefore written before it is done. `dump` is the whole state; it commits with the tick.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.errors import Unavailable
from core.protocols import ControlDoor, Facts, NodeView, WorldView
from core.targets import CLOSED_STATES
from core.types import Action, Incident, Outcome, Target
from remediation import verify as proof
from remediation.guards import Ask, World, first_reason, fresh_ids
from remediation.hands import BACK_OFF_MS, TEMPORARY, push, touches
from remediation.kinds import FINAL, GIVES_BACK, KINDS, TAKES_OUT, commands
from remediation.ledger import DAY_MS, Entry
from remediation.matching import LabelsOf, choose, unmet
from remediation.memory import Memory, read_memory
from remediation.plan import Plan, Planned, jobs_of, make_plan, part_of, subject
from remediation.policy import Policy, Rule
from remediation.track import Current, Lingering, Track, left
from remediation.verify import Recovery

# A failed step leaves its part idle, where it shows no evidence: the next attempt may follow within this time without.
FOLLOW_MS = 600_000
KEEP_CLOSED_MS = DAY_MS
LINGER_LEAST_MS = 300_000


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about an incident, and why. decision: the incident's state from now on."""

    at: int
    incident: str
    decision: str
    reason: str
    rule: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a tick decided: changed incidents, actions with their outcomes (PENDING = to do), decisions, proofs."""

    incidents: tuple[Incident, ...] = ()
    actions: tuple[tuple[Action, Outcome], ...] = ()
    decisions: tuple[Decision, ...] = ()
    recoveries: tuple[Recovery, ...] = ()


def _first(track: Track) -> bool:
    """Nothing that touches the world came before the step under way."""
    return not any(commands(s.kind) for s in track.plan[: max(0, track.index - 1)])


def _same(proposal: Action, first: Planned) -> bool:
    return proposal.kind == first.kind and proposal.target.same_part(first.target)


@dataclass(slots=True)
class _Tick:
    """One call of `step`. nodes: the world, read once and only when an attempt may start; None = it did not answer.

    working: the tracks at work, kept until one changes: a thousand incidents must not each look at a thousand.
    """

    at: int
    facts: Facts
    fresh: frozenset[str]
    frozen: bool
    incidents: list[Incident] = field(default_factory=list)
    actions: list[tuple[Action, Outcome]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    nodes: Mapping[str, NodeView] | None = None
    looked: bool = False
    working: list[Track] | None = None


class Engine:
    """Decides and acts under a policy. Not thread-safe: the tick thread owns it (calls from people under its lock).

    kinds: what the backend can carry out. view: the world that the guards read. freeze_file_exists: True while the
    freeze file is there. labels_of: a node's inventory labels, for rules that match on labels.
    """

    def __init__(self, policy: Policy, kinds: Collection[str], view: WorldView, *,
                 freeze_file_exists: Callable[[], bool] | None = None, labels_of: LabelsOf | None = None) -> None:
        self.policy = policy
        self.kinds = frozenset(kinds)
        self.view = view
        self._file = freeze_file_exists or (lambda: False)
        self._labels_of = labels_of or (lambda node: {})
        self._memory = Memory()

    # --- what people do -----------------------------------------------------------------------------------------------
    @property
    def frozen(self) -> bool:
        """True while no command may start: by call or by file."""
        return self._memory.frozen or self._file()

    def freeze(self) -> None:
        """No command starts from now on; what runs is watched to its end."""
        self._memory.frozen = True

    def resume(self) -> None:
        """Commands may start again (a freeze file goes on to hold)."""
        self._memory.frozen = False

    def approve(self, ref: str, actor: str, at: int) -> None:
        """`actor` lets a proposed attempt start. ref: its first action's id, or the incident's. Raises KeyError."""
        self._proposed(ref).approval = (actor, at)

    def reject(self, ref: str, actor: str, at: int) -> None:
        """`actor` refuses a proposed attempt; the incident is then a person's. Raises KeyError."""
        track = self._proposed(ref)
        assert track.proposal is not None
        track.proposal = replace(track.proposal, actor=actor, reason="rejected")
        track.approval = None

    def _proposed(self, ref: str) -> Track:
        for track in self._memory.tracks.values():
            if track.proposal is not None and ref in (track.proposal.id, track.incident) and track.state == "proposed":
                return track
        raise KeyError(ref)

    # --- a tick -------------------------------------------------------------------------------------------------------
    def step(self, at: int, incidents: Iterable[Incident], facts: Facts) -> Step:
        """Decides at tick `at` (ms) over the incidents that are open. Commit what it returns, then `carry_out`."""
        tick = _Tick(at, facts, fresh_ids(at, facts.open_findings()), self.frozen)
        live = {i.id: i for i in incidents if i.state not in CLOSED_STATES}
        for track in self._memory.tracks.values():
            if track.incident not in live:
                self._gone(tick, track)
        pages_first = sorted(live.values(), key=lambda i: (i.klass != "page", i.opened_at, i.id))
        for incident in pages_first:
            self._advance(tick, incident)
        kept = {k: t for k, t in self._memory.tracks.items()
                if t.closed_at is None or t.working or at - t.closed_at < KEEP_CLOSED_MS}
        self._memory.tracks = kept
        self._memory.ledger.prune(at - max(DAY_MS, round(self.policy.limits.cooldown_seconds * 1000)))
        self._memory.last_at = at
        return Step(tuple(tick.incidents), tuple(tick.actions), tuple(tick.decisions), tuple(tick.recoveries))

    def carry_out(self, at: int, door: ControlDoor) -> list[tuple[Action, Outcome]]:
        """Submits what is PENDING and polls what is RUNNING; gives what is new, to be committed with the next tick."""
        out: list[tuple[Action, Outcome]] = []
        for name in sorted(self._memory.tracks):
            track = self._memory.tracks[name]
            current = track.current
            if current is None or current.final:
                continue
            outcome = push(at, current, door, self.view, self.frozen)
            if outcome is None:
                continue
            current.outcome = outcome
            self._memory.ledger.touch(track.incident, current.action.attempt, at)
            if outcome.reason == "deadline_exceeded" and current.tried:
                nodes, jobs = touches(current)
                wait = max(LINGER_LEAST_MS, round(current.action.deadline_seconds * 1000))
                self._memory.lingering[current.action.id] = Lingering(track.incident, nodes, jobs, at + wait)
            out.append((current.action, outcome))
        self._ask_after_lingering(at, door)
        return out

    def _ask_after_lingering(self, at: int, door: ControlDoor) -> None:
        for action_id in sorted(self._memory.lingering):
            one = self._memory.lingering[action_id]
            try:
                outcome = door.poll(action_id)
            except Unavailable:
                outcome = Outcome(action_id, "RUNNING", "unreachable")
            if outcome.state in FINAL:
                del self._memory.lingering[action_id]
            elif at >= one.until:
                del self._memory.lingering[action_id]
                track = self._memory.tracks.get(one.incident)
                if track is not None and track.state in ("open", "holding"):
                    track.ended = "lost"

    # --- one incident -------------------------------------------------------------------------------------------------
    def _advance(self, tick: _Tick, incident: Incident) -> None:
        track = self._track_of(tick, incident)
        before = (track.state, track.reason)
        if track.state != "acting" and track.current is not None and track.current.final:
            self._book_keep(track, track.current)
            track.current = None
        if track.state == "acting":
            self._act(tick, incident, track)
        if track.state == "verifying":
            self._prove(tick, incident, track)
        if track.state in ("open", "holding", "proposed"):
            self._decide(tick, incident, track)
        if (track.state, track.reason) == before and (incident.state == track.state or not track.reason):
            return
        resolved_at = tick.at if track.state == "resolved" else incident.resolved_at
        tick.incidents.append(replace(incident, state=track.state, reason=track.reason or incident.reason,
                                      attempt=track.attempt, updated_at=tick.at, resolved_at=resolved_at))

    def _track_of(self, tick: _Tick, incident: Incident) -> Track:
        track = self._memory.tracks.get(incident.id)
        if track is None:
            track = Track(incident.id, rung=incident.attempt, attempt=incident.attempt)
            if incident.state in ("acting", "verifying"):
                # Our memory of it is lost: what was under way cannot be told, so only the proof goes on.
                track.state, track.reason, track.verify_at = "verifying", "verify_started", tick.at
            elif incident.state == "escalated":
                track.state, track.reason = "escalated", incident.reason
            self._memory.tracks[incident.id] = track
        if track.closed_at is not None:  # it was over and came back
            track.closed_at, track.state, track.reason = None, "open", ""
            track.simulated, track.ended, track.cordon_told = "", "", False
            track.held_since = track.proposal = track.approval = None
        if track.before_seconds is None and track.state in ("open", "holding", "proposed"):
            jobs = jobs_of(incident)
            track.before_job = jobs[0] if jobs else None
            if jobs:
                onset = incident.onset_at
                track.before_seconds = tick.facts.step_seconds(jobs[0], onset - proof.BEFORE_MS, onset)
        return track

    def _gone(self, tick: _Tick, track: Track) -> None:
        """The incident is over for the book, or absorbed: nothing new starts, what runs is watched to its end."""
        if track.closed_at is None:
            track.closed_at = tick.at
        self._withdraw(tick, track, "withdrawn")
        current = track.current
        if current is not None:
            if current.final:
                self._book_keep(track, current)
                track.current = None
            elif current.outcome.state == "PENDING":
                current.withhold = "withdrawn"
        if track.current is None:
            self._hand_over_cordons(tick, track)

    # --- deciding -----------------------------------------------------------------------------------------------------
    def _decide(self, tick: _Tick, incident: Incident, track: Track) -> None:
        if track.simulated == self.policy.mode:
            return
        if track.proposal is not None and track.proposal.reason == "rejected":
            self._withdraw(tick, track, "rejected")
            self._set(tick, track, "escalated", "rejected")
            return
        rule, reason = self._rule(tick, incident, track)
        if rule is None:
            self._set(tick, track, "open", "no_rule")
            return
        observing = self.policy.mode == "observe"
        if reason is not None:
            if not observing:
                self._hold(tick, incident, track, rule, reason)
            return
        track.rule = rule.name
        if track.rung >= len(rule.attempts) or track.ended == "lost":
            reason = "deadline_exceeded" if track.ended == "lost" else "policy_exhausted"
            if observing:
                self._simulate(tick, incident, track, Plan())
            else:
                self._escalate(tick, incident, track, reason)
            return
        plan = make_plan(rule.attempts[track.rung], incident)
        reason = plan.reason or self._stale(tick, incident, track, plan)
        if observing:
            if reason is None:
                self._simulate(tick, incident, track, plan)
            else:
                self._set(tick, track, "open", reason)
            return
        if any(commands(s.kind) and s.kind not in self.kinds for s in plan.steps):
            self._escalate(tick, incident, track, "not_supported")
            return
        self._decide_plan(tick, incident, track, rule, plan, reason)

    def _decide_plan(self, tick: _Tick, incident: Incident, track: Track, rule: Rule, plan: Plan, reason: str | None) -> None:
        """The plan is known: propose it, hold it back, or start it."""
        if self.policy.mode == "propose" and plan.commands:
            if track.proposal is not None and plan.steps and not _same(track.proposal, plan.steps[0]):
                self._withdraw(tick, track, "withdrawn")  # the culprit changed: nobody said yes to this one
            if track.approval is None and reason is None:
                self._propose(tick, incident, track, plan)
                return
        if reason is None and plan.commands:
            reason = "frozen" if tick.frozen else self._guarded(tick, incident, track, plan)
        if reason is not None:
            self._hold(tick, incident, track, rule, reason)
            return
        self._start(tick, incident, track, plan)

    def _rule(self, tick: _Tick, incident: Incident, track: Track) -> tuple[Rule | None, str | None]:
        """The rule that speaks; once an attempt was made its ladder stays, as long as the policy has it."""
        kept = self.policy.rule(track.rule) if track.attempt else None
        if kept is None:
            return choose(self.policy, incident, tick.at, self._labels_of)
        if track.ended in ("step_failed", "verify_failed", "lost"):
            return kept, None
        reason = unmet(kept.match, incident, tick.at, self._labels_of)
        return choose(self.policy, incident, tick.at, self._labels_of) if reason == "no_rule" else (kept, reason)

    def _stale(self, tick: _Tick, incident: Incident, track: Track, plan: Plan) -> str | None:
        if not plan.commands or not tick.fresh.isdisjoint(incident.findings):
            return None
        follows = track.ended == "step_failed" and track.ended_at is not None and tick.at - track.ended_at <= FOLLOW_MS
        return None if follows else "stale_evidence"

    def _guarded(self, tick: _Tick, incident: Incident, track: Track, plan: Plan) -> str | None:
        if not tick.looked:
            tick.looked = True
            try:
                tick.nodes = self.view.nodes()
            except Unavailable:
                tick.nodes = None
        if (track.current is not None and not track.current.final) or tick.at < track.retry_at:
            return "target_busy"
        if tick.nodes is None:
            return "unreachable"
        if tick.working is None:
            tick.working = [t for t in self._memory.tracks.values() if t.working]
        others = [t for t in tick.working if t is not track]
        taken: list[Track | Lingering] = [*others, *self._memory.lingering.values()]
        nodes, jobs = {n for t in taken for n in t.nodes}, {j for t in taken for j in t.jobs}
        promised = sum(s.kind == "replace" for t in others for s in left(t))
        world = World(self.policy.limits, self._memory.ledger, tick.nodes, frozenset(nodes), frozenset(jobs), promised)
        kinds = frozenset(s.kind for s in plan.steps)
        return first_reason(Ask(tick.at, incident.id, part_of(incident), plan.nodes, plan.jobs, kinds), world)

    def _hold(self, tick: _Tick, incident: Incident, track: Track, rule: Rule, reason: str) -> None:
        self._set(tick, track, "holding", reason)
        since = track.held_since if track.held_since is not None else tick.at
        half_done = track.ended in ("step_failed", "verify_failed", "lost")
        if half_done and tick.at - since >= rule.verify.deadline_seconds * 1000:
            # A repair that stands half done goes to a person; it does not wait for ever.
            self._escalate(tick, incident, track, "policy_exhausted")

    # --- starting -----------------------------------------------------------------------------------------------------
    def _propose(self, tick: _Tick, incident: Incident, track: Track, plan: Plan) -> None:
        if track.proposal is None:
            action = self._action(tick, incident, track.attempt + 1, 1, plan.steps[0], "awaiting_approval")
            track.attempt, track.step, track.proposal = action.attempt, 1, action
            tick.actions.append((action, Outcome(action.id, "PENDING", "awaiting_approval", at=tick.at)))
        self._set(tick, track, "proposed", "awaiting_approval")

    def _withdraw(self, tick: _Tick, track: Track, reason: str) -> None:
        if track.proposal is not None:
            tick.actions.append((track.proposal, Outcome(track.proposal.id, "REFUSED", reason, at=tick.at)))
        track.proposal = track.approval = None

    def _start(self, tick: _Tick, incident: Incident, track: Track, plan: Plan) -> None:
        if track.proposal is None:
            track.attempt += 1
        track.plan, track.index, track.step, track.current = plan.steps, 0, 0, None
        track.nodes, track.jobs = plan.nodes, plan.jobs
        track.verify_at = track.quiet_since = None
        track.command_deadline = 0
        track.follows, track.ended = track.ended == "step_failed", ""
        if plan.commands:
            self._memory.ledger.note(Entry(incident.id, track.attempt, part_of(incident), plan.nodes, plan.jobs, tick.at, tick.at))
        self._set(tick, track, "acting", "action_planned")
        self._next(tick, incident, track)

    def _simulate(self, tick: _Tick, incident: Incident, track: Track, plan: Plan) -> None:
        """Says what would be done, once: SIMULATED is never DONE."""
        steps = plan.steps or (Planned("escalate", subject(incident), {}, 60.0),)
        track.attempt, track.step = track.attempt + 1, 0
        self._write_simulated(tick, incident, track, steps)

    def _write_simulated(self, tick: _Tick, incident: Incident, track: Track, steps: Sequence[Planned]) -> None:
        for step in steps:
            track.step += 1
            action = self._action(tick, incident, track.attempt, track.step, step, "mode_observe")
            tick.actions.append((action, Outcome(action.id, "SIMULATED", "simulated", at=tick.at)))
        track.simulated = self.policy.mode
        self._set(tick, track, "open", "mode_observe")

    # --- acting -------------------------------------------------------------------------------------------------------
    def _act(self, tick: _Tick, incident: Incident, track: Track) -> None:
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
        elif reason in ("other_hand", "mode_observe"):  # somebody else's now: stand down
            self._escalate(tick, incident, track, reason)
        else:
            self._failed(tick, incident, track, "step_failed", "door_refused" if state == "REFUSED" else "policy_exhausted")

    def _again(self, tick: _Tick, incident: Incident, track: Track, reason: str) -> None:
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

    def _watch(self, tick: _Tick, incident: Incident, track: Track, current: Current) -> None:
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

    def _next(self, tick: _Tick, incident: Incident, track: Track) -> None:
        """Writes the next step down as PENDING; notify and escalate are done by writing them."""
        while track.index < len(track.plan):
            step = track.plan[track.index]
            if commands(step.kind) and self.policy.mode == "observe":  # the policy changed while an attempt was under way
                self._escalate(tick, incident, track, "mode_observe")
                return
            if commands(step.kind) and tick.frozen:
                self._set(tick, track, "acting", "frozen")
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
                track.current = Current(action, pending, track.command_deadline)
                tick.actions.append((action, pending))
                return
            done = "escalated" if step.kind == "escalate" else "done"
            tick.actions.append((action, Outcome(action.id, "DONE", done, at=tick.at)))
            if step.kind == "escalate":
                self._end_attempt(tick, track, "")
                track.cordon_told = True
                self._set(tick, track, "escalated", "escalated")
                return
        track.verify_at, track.quiet_since, track.approval = tick.at, None, None
        self._set(tick, track, "verifying", "verify_started")

    def _book_keep(self, track: Track, current: Current) -> None:
        """Which nodes we hold: one that may have been taken out counts until it was surely given back."""
        action, state = current.action, current.outcome.state
        node = action.target.node
        if node is None or state in ("REFUSED", "SIMULATED"):
            return
        if action.kind in TAKES_OUT and (state == "DONE" or current.tried):
            track.cordoned = tuple(sorted({*track.cordoned, node}))
        if action.kind in GIVES_BACK and state == "DONE":
            track.cordoned = tuple(n for n in track.cordoned if n != node)

    # --- ending -------------------------------------------------------------------------------------------------------
    def _prove(self, tick: _Tick, incident: Incident, track: Track) -> None:
        rule = self.policy.rule(track.rule) or Rule("", finally_="escalate")
        judged = proof.judge(tick.at, incident, track, rule.verify, tick.facts)
        if judged.result == "wait":
            return
        if judged.result == "failed":
            if not tick.fresh.isdisjoint(incident.findings):
                self._failed(tick, incident, track, "verify_failed", "policy_exhausted")
            else:  # the part is quiet, and still the job is not back: more action on this part would be a guess
                self._escalate(tick, incident, track, "verify_failed")
            return
        self._end_attempt(tick, track, "resolved")
        self._set(tick, track, "resolved", judged.result)
        if judged.result == "recovered":
            tick.recoveries.append(Recovery(tick.at, incident.id, track.before_job, track.before_seconds,
                                            judged.after_seconds))
        track.closed_at = tick.at
        self._hand_over_cordons(tick, track)

    def _failed(self, tick: _Tick, incident: Incident, track: Track, how: str, last_reason: str) -> None:
        """The attempt did not work: the next one is decided on anew, or a person takes over."""
        self._end_attempt(tick, track, how)
        rule = self.policy.rule(track.rule)
        if rule is None or track.rung >= len(rule.attempts):
            self._escalate(tick, incident, track, last_reason)
        else:
            self._set(tick, track, "holding", "verify_failed" if how == "verify_failed" else "previous_failed")

    def _end_attempt(self, tick: _Tick, track: Track, how: str) -> None:
        self._memory.ledger.touch(track.incident, track.attempt, tick.at)
        track.rung, track.tries, track.retry_at = track.rung + 1, 0, 0
        track.ended_at, track.ended = tick.at, how
        track.approval = track.verify_at = track.quiet_since = None

    def _escalate(self, tick: _Tick, incident: Incident, track: Track, reason: str) -> None:
        self._withdraw(tick, track, "withdrawn")
        self._write_escalation(tick, track, subject(incident), reason)
        self._set(tick, track, "escalated", reason)

    def _write_escalation(self, tick: _Tick, track: Track, target: Target, reason: str) -> None:
        """Hands the incident, and each node that we hold for it, to a person; the row in the ledger says so."""
        track.attempt, track.step = max(1, track.attempt), track.step + 1
        args: dict[str, object] = {"nodes": ",".join(track.cordoned)} if track.cordoned else {}
        action = Action(Action.make_id(track.incident, track.attempt, track.step), "escalate", target, args,
                        KINDS["escalate"].deadline_seconds, self.policy.mode, track.incident, track.attempt, track.step,
                        tick.at, reason)
        tick.actions.append((action, Outcome(action.id, "DONE", "escalated", at=tick.at)))
        track.cordon_told = True

    def _hand_over_cordons(self, tick: _Tick, track: Track) -> None:
        if track.cordoned and not track.cordon_told:
            self._write_escalation(tick, track, Target("node", track.cordoned[0]), "escalated")

    # --- small things -------------------------------------------------------------------------------------------------
    def _set(self, tick: _Tick, track: Track, state: str, reason: str) -> None:
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

    def _action(self, tick: _Tick, incident: Incident, attempt: int, step: int, planned: Planned, reason: str) -> Action:
        return Action(Action.make_id(incident.id, attempt, step), planned.kind, planned.target, dict(planned.args),
                      planned.deadline_seconds, self.policy.mode, incident.id, attempt, step, tick.at, reason)

    # --- state --------------------------------------------------------------------------------------------------------
    def dump(self) -> str:
        """The whole state as text, the same for the same state."""
        return self._memory.dump()

    def load(self, text: str, rows: Sequence[tuple[Action, Outcome]] = ()) -> None:
        """Restores what `dump` gave; an empty text is no state. rows: the store's ledger, in any order.

        What is PENDING may have reached the world before the crash: the world is asked before it is sent again. Commands
        that only the rows know are watched to their end, and no further step follows from them. Raises BadInput.
        """
        self._memory = read_memory(text)
        self._memory.adopt_rows(rows)
