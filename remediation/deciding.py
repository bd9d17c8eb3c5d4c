"""What is to be done about an incident: which rule speaks, what holds it back, whether it is proposed, simulated or begun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from core.errors import Unavailable
from core.protocols import NodeView
from core.types import Action, Incident, Outcome
from core.window import Topology
from remediation.acting import Acting
from remediation.cures import strongest
from remediation.evidence import at_rest, soft, unproven
from remediation.fabric import Fabric
from remediation.guards import FOR_PEOPLE, NEEDS_APPROVAL, Ask, Save, World, first_reason
from remediation.hands import nodes_of_jobs
from remediation.kinds import commands
from remediation.ledger import Entry
from remediation.matching import choose, unmet
from remediation.periods import place
from remediation.plan import Plan, Planned, from_before, jobs_of, make_plan, part_of, riding, subject
from remediation.policy import Rule
from remediation.spares import usable
from remediation.track import Lingering, Track, left, stands
from remediation.turn import Turn
from remediation.weighing import (
    avoiding,
    heals,
    note_loss,
    passed_over,
    settled,
    start_anew,
    unweighed,
    with_queue,
    worth_now,
)
from remediation.worth import Worth, proposal_args, told

# A failed step leaves its part idle, where it shows no evidence: the next attempt may follow within this time without.
FOLLOW_MS = 600_000
PATIENT = ("not_worth_it", "likely_passing")  # the policy would act; what is known of such faults says to wait


def _same(proposal: Action, first: Planned) -> bool:
    return proposal.kind == first.kind and proposal.target.same_part(first.target)


def _healed(plan: Plan, incident: Incident, tick: Turn) -> Plan:
    """A job whose loss is no number begins again before it stopped being one: what was saved since is not trusted."""
    since = {job: at for job in plan.jobs if (at := tick.facts.nonfinite_since(job)) is not None}
    if incident.fault == "nonfinite_loss":
        since = {job: min(incident.onset_at, since.get(job, incident.onset_at)) for job in plan.jobs}
    return from_before(plan, since)


def _saves(tick: Turn, jobs: Iterable[str]) -> dict[str, Save]:
    """What is saved of the jobs that run."""
    running = (job for job in jobs if (known := tick.facts.job(job)) is None or known.running)
    return {job: Save(tick.facts.checkpoint(job), tick.facts.nonfinite_since(job)) for job in running}


def _with_places(tick: Turn, jobs: Iterable[str]) -> dict[str, Sequence[str]]:
    """Where the jobs run: as the world sees it, else as the window does."""
    out: dict[str, Sequence[str]] = {}
    for job in jobs:
        known = tick.facts.job(job)
        out[job] = tick.job_nodes.get(job) or (known.nodes if known is not None else ())
    return out


class Deciding(Acting):
    """From an open incident to the first step."""

    # --- deciding -----------------------------------------------------------------------------------------------------
    def _decide(self, tick: Turn, incident: Incident, track: Track) -> None:
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
        if observing:  # what was proposed under another mode waits for nobody now, and what is out for it is a person's
            self._withdraw(tick, track, "mode_observe")
            if track.cordoned and not track.cordon_told:
                self._escalate(tick, incident, track, "mode_observe")
                return
        if reason is not None:
            if not observing:
                self._hold(tick, incident, track, rule, reason)
            return
        track.rule = rule.name
        if rule.period_seconds > 0 and track.proposal is None:  # one ladder for all of the job's incidents
            track.rung = max(track.rung, place(self._memory.ledger.entries(), rule, jobs_of(incident), tick.at))
        passed = self._passed(tick, track, rule)
        while track.rung in passed:
            track.rung += 1
        leader = self._leader(track, rule, incident)
        worth = self._weighed(tick, incident, track, rule, passed, leader)
        if track.rung >= len(rule.attempts) or track.ended == "lost":
            reason = "deadline_exceeded" if track.ended == "lost" else "policy_exhausted" if rule.attempts else "left_to_people"
            if observing:
                self._simulate(tick, incident, track, Plan())
            else:
                self._escalate(tick, incident, track, reason)
            return
        plan = _healed(make_plan(rule.attempts[track.rung], incident), incident, tick)
        plan = settled(plan, worth, tick, self._labels_of)
        if leader is not None and (beside := riding(plan)) is not None:
            plan = beside
        else:
            leader = None
        reason = plan.reason or self._stale(tick, incident, track, plan)
        if reason is None and rule.weigh and self.policy.mode == "act" and not track.ended:
            reason = self._patience(tick, incident, track, plan, worth, leader is not None)
        if observing:
            if reason is None:
                self._simulate(tick, incident, track, plan)
            else:
                self._set(tick, track, "open", reason)
            return
        if any(commands(s.kind) and s.kind not in self.kinds for s in plan.steps):
            self._escalate(tick, incident, track, "not_supported")
            return
        self._decide_plan(tick, incident, track, rule, plan, reason, leader)

    def _patience(self, tick: Turn, incident: Incident, track: Track, plan: Plan, worth: Worth | None, beside: bool) -> str | None:
        """Why acting now is not worth it, or not shown to be. beside: the job stands for another attempt."""
        reason = None
        if worth is not None and worth.hold and plan.commands:
            reason = "not_worth_it"
        elif worth is None and not beside and not track.attempt:
            reason = unweighed(tick, incident, track, plan, self._memory)
        reason = reason or unproven(tick, incident, track, plan, worth, beside, heals(tick, incident, self._memory))
        if reason in PATIENT and not track.attempt:  # how it ends without us is learnt
            self._memory.passing.watch(tick.at, incident)
        return reason

    def _leader(self, track: Track, rule: Rule, incident: Incident) -> Track | None:
        """The attempt of another incident for which the one job of this one's next attempt stands already, None where there is none."""
        if self.policy.mode != "act" or track.rung >= len(rule.attempts) or track.ended:
            return None
        plan = make_plan(rule.attempts[track.rung], incident)
        if riding(plan) is None:
            return None
        return next((t for t in self._memory.tracks.values() if t is not track and plan.jobs[0] in t.jobs and stands(t)), None)

    def _decide_plan(self, tick: Turn, incident: Incident, track: Track, rule: Rule, plan: Plan, reason: str | None,
                     leader: Track | None = None) -> None:
        """The plan is known: propose it, hold it back, or start it. leader: the attempt beside which it would run."""
        if track.proposal is not None and plan.steps and not _same(track.proposal, plan.steps[0]):
            self._withdraw(tick, track, "withdrawn")  # the culprit changed: nobody said yes to this one
        if track.proposal is not None and self._expired(tick, track):
            self._withdraw(tick, track, "approval_expired")
            if track.cordoned:  # a node that is out for it must not wait for ever to be asked about again
                self._escalate(tick, incident, track, "approval_expired")
                return
        if reason is None and plan.commands:
            ask = self._ask(tick, incident, track, plan)
            if ask.silenced:
                reason = "silenced"
            elif self.policy.mode == "propose" and not ask.approved:
                reason = "awaiting_approval"
            else:
                reason = "frozen" if tick.frozen else self._guarded(tick, track, ask, plan)
            if reason is None and track.asks and not ask.approved:
                reason = track.asks
        if reason is not None and reason in NEEDS_APPROVAL:
            self._propose(tick, incident, track, plan, reason)
            return
        if reason is not None and reason in FOR_PEOPLE:
            self._escalate(tick, incident, track, reason)
            return
        if reason is not None:
            self._hold(tick, incident, track, rule, reason)
            return
        self._start(tick, incident, track, plan, leader)

    def _passed(self, tick: Turn, track: Track, rule: Rule) -> frozenset[int]:
        """Attempts that the spares decide against now (`remediation.weighing.passed_over`); none where nobody knows the spares."""
        if track.proposal is not None or not any(one.when for one in rule.attempts):
            return frozenset()
        self._look(tick)
        if tick.nodes is None:
            return frozenset()
        free = len(usable(tick.nodes, tick.unfit)) - self._promised(track)
        return passed_over(rule, track, free - 1 >= self.policy.limits.spare_floor)

    def _promised(self, track: Track) -> int:
        """Spares that other attempts have still to take."""
        return sum(s.kind == "replace" for t in self._memory.tracks.values() if t.working and t is not track for s in left(t))

    def _weighed(self, tick: Turn, incident: Incident, track: Track, rule: Rule, passed: frozenset[int] = frozenset(),
                 leader: Track | None = None) -> Worth | None:
        """What waiting and acting cost now; an attempt that is not worth it is passed over, in a row of the ledger."""
        stopped = any(t is not track and t.working and not set(t.jobs).isdisjoint(incident.jobs) for t in self._memory.tracks.values())
        if stopped or (soft(incident.fault) and at_rest(tick, incident, track)):
            start_anew(track, incident, tick.at)
        else:
            note_loss(track, incident, tick.at)
        if track.rung >= len(rule.attempts) or track.ended == "lost":
            return None
        self._look(tick)
        worth = worth_now(tick, incident, track, rule, self._memory, passed, leader)
        self._memory.worths.pop(incident.id, None)
        if worth is None:
            return None
        self._memory.worths[incident.id] = with_queue(worth, tick, incident, track, rule, self._memory, passed, leader)
        for option in worth.options:
            if not option.skip or option.place != track.rung:
                break
            if track.proposal is not None:
                if self.policy.mode != "act" or track.approval is not None or track.asks:
                    break
                self._withdraw(tick, track, "withdrawn")  # of a mode that asked: nobody answered, and now nobody is asked
            track.rung += 1
            plan = make_plan(rule.attempts[option.place], incident)
            step = next((s for s in plan.steps if s.kind == strongest(option.kinds)), None)
            if step is None:
                continue
            track.attempt, track.step = track.attempt + 1, 1
            action = self._action(tick, incident, track.attempt, 1, step, "not_worth_it")
            tick.actions.append((action, Outcome(action.id, "REFUSED", "not_worth_it", at=tick.at, detail=told(worth, option))))
        return worth

    def _rule(self, tick: Turn, incident: Incident, track: Track) -> tuple[Rule | None, str | None]:
        """The rule that speaks; once an attempt was made its ladder stays, as long as the policy has it."""
        kept = self.policy.rule(track.rule) if track.attempt else None
        if kept is None:
            return choose(self.policy, incident, tick.at, self._labels_of)
        if track.ended in ("step_failed", "verify_failed", "lost"):
            return kept, None
        reason = unmet(kept.match, incident, tick.at, self._labels_of)
        return choose(self.policy, incident, tick.at, self._labels_of) if reason == "no_rule" else (kept, reason)

    def _stale(self, tick: Turn, incident: Incident, track: Track, plan: Plan) -> str | None:
        if not plan.commands or not tick.fresh.isdisjoint(incident.findings):
            return None
        follows = track.ended == "step_failed" and track.ended_at is not None and tick.at - track.ended_at <= FOLLOW_MS
        return None if follows else "stale_evidence"

    def _expired(self, tick: Turn, track: Track) -> bool:
        """Nobody answered the proposal in time, or what was approved could not start for so long."""
        asked_at = track.proposal.at if track.proposal is not None else tick.at
        asked_at = track.approval[1] if track.approval is not None else asked_at
        return tick.at - asked_at > self.policy.limits.approval_seconds * 1000

    def _ask(self, tick: Turn, incident: Incident, track: Track, plan: Plan) -> Ask:
        return Ask(tick.at, incident.id, part_of(incident), plan.nodes, plan.jobs, frozenset(s.kind for s in plan.steps),
                   silenced=tick.site.silenced(incident), approved=track.approval is not None)

    def _look(self, tick: Turn) -> None:
        """Reads the world, once a tick."""
        if tick.looked:
            return
        tick.looked = True
        try:
            tick.nodes = self.view.nodes()
            tick.job_nodes = nodes_of_jobs(tick.nodes)
        except Unavailable:
            tick.nodes = None
            self._memory.pace.stop()
        else:
            self._memory.spares.look(tick.at, tick.nodes)
            tick.unfit = self._memory.spares.unfit(tick.at, tick.nodes, self.policy.spares, tick.facts.open_findings())

    def _guarded(self, tick: Turn, track: Track, ask: Ask, plan: Plan) -> str | None:
        self._look(tick)
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
        limits, pace = self.policy.limits, self._memory.pace
        stops = self._stopped(tick, plan, tick.nodes)
        world = World(limits, self._memory.ledger, tick.nodes, frozenset(nodes), frozenset(jobs), promised,
                      _with_places(tick, ask.jobs), self._fabric(tick.site.topology), _saves(tick, stops),
                      pace.too_soon(tick.at, limits.release_seconds), tick.unfit)
        reason = first_reason(replace(ask, stops=stops), world)
        pace.waits = pace.waits or reason == "paced"
        return reason

    def _fabric(self, topology: Topology) -> Fabric:
        """Made anew only when the inventory changed."""
        if self._cabled is None or self._cabled[0] is not topology:
            self._cabled = topology, Fabric.of(topology)
        return self._cabled[1]

    def _stopped(self, tick: Turn, plan: Plan, nodes: Mapping[str, NodeView]) -> tuple[str, ...]:
        """The jobs that the plan stops, by name: its own and all on its nodes. A drain that waits for a checkpoint stops them as
        well: a job that saves no more would be waited for in vain, and a world may wait for so long only."""
        return tuple(sorted({*plan.jobs, *(job for n in plan.nodes if n in nodes for job in nodes[n].jobs)}))

    def _hold(self, tick: Turn, incident: Incident, track: Track, rule: Rule, reason: str) -> None:
        self._set(tick, track, "holding", reason)
        since = track.held_since if track.held_since is not None else tick.at
        half_done = track.ended in ("step_failed", "verify_failed", "lost")
        if half_done and tick.at - since >= rule.verify.deadline_seconds * 1000:
            # A repair that stands half done goes to a person; it does not wait for ever.
            self._escalate(tick, incident, track, "policy_exhausted")

    # --- starting -----------------------------------------------------------------------------------------------------
    def _next(self, tick: Turn, incident: Incident, track: Track) -> None:
        """A replacement may come long after its plan was made: a spare that is under test by now, or unfit, is not taken, nor is
        it the other node of a test between two."""
        rule = self.policy.rule(track.rule)
        given = {s.kind for one in rule.attempts for s in one.do if "avoid" in s.args} if rule is not None else set()
        takes = {"replace", "diagnose"} - given
        if any(s.kind in takes for s in track.plan[track.index:]):
            self._look(tick)
            if tick.nodes is not None:
                track.plan = tuple(avoiding(s, tick) if s.kind in takes else s for s in track.plan)
        super()._next(tick, incident, track)

    def _propose(self, tick: Turn, incident: Incident, track: Track, plan: Plan, reason: str) -> None:
        """Asks a person. reason: awaiting_approval, or of a guard that only a person may overrule."""
        if track.proposal is None:
            action = self._action(tick, incident, track.attempt + 1, 1, plan.steps[0], reason)
            action = replace(action, args={**action.args, **proposal_args(self._memory.worths.get(incident.id))})
            track.attempt, track.step, track.proposal = action.attempt, 1, action
            tick.actions.append((action, Outcome(action.id, "PENDING", "awaiting_approval", at=tick.at)))
        self._set(tick, track, "proposed", reason)

    def _start(self, tick: Turn, incident: Incident, track: Track, plan: Plan, leader: Track | None = None) -> None:
        if track.proposal is None:
            track.attempt += 1
        track.plan, track.index, track.step, track.current = plan.steps, 0, 0, None
        track.nodes, track.jobs, track.rides = plan.nodes, plan.jobs, leader.incident if leader is not None else ""
        track.verify_at = track.quiet_since = None
        track.command_deadline = 0
        track.follows, track.ended = track.ended == "step_failed", ""
        if plan.commands:
            self._memory.ledger.note(Entry(incident.id, track.attempt, part_of(incident), plan.nodes, plan.jobs, tick.at, tick.at,
                                           fault=incident.fault, rule=track.rule or ""))
            self._memory.untouched.acted(incident.id)
            self._memory.passing.acted(incident.id)
            self._memory.pace.started(tick.at)
        self._set(tick, track, "acting", "action_planned")
        self._next(tick, incident, track)

    def _simulate(self, tick: Turn, incident: Incident, track: Track, plan: Plan) -> None:
        """Says what would be done, once: SIMULATED is never DONE."""
        steps = plan.steps or (Planned("escalate", subject(incident), {}, 60.0),)
        track.attempt, track.step = track.attempt + 1, 0
        self._write_simulated(tick, incident, track, steps)
