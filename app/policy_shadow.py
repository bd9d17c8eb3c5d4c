"""An engine under a policy that follows a recording: it decides tick by tick, its commands are done in a simulated world.

The recording's incidents are as they were; what the policy makes of them is kept here, so that several policies, and several
assumptions about what an attempt does, follow one reading of the recording side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.policy_model import CHECKPOINT_WAIT_SECONDS, HANDS, Healed, SimulatedFacts, SimulatedWorld
from app.policy_truth import NOTHING_KNOWN, Known, TrueFault
from core.inventory import Inventory
from core.protocols import WorkFacts
from core.targets import ACTION_KINDS, CLOSED_STATES
from core.types import Action, Incident, Outcome
from core.window import Window
from remediation.cures import strongest
from remediation.engine import Engine, Site, Step
from remediation.kinds import KINDS, commands
from remediation.policy import Policy

HELPS, FAILS, TRUTH = "every attempt helps", "no attempt helps", "as the truth says"
JOB_STANDS = frozenset({"stalled_loss", "gpu_lost", "xid_fatal", "ecc_uncorrectable", "nonfinite_loss", "job_crash_loop"})


@dataclass(slots=True)
class Did:
    """A command that was carried out. node, job: its target's. at, until: ms; until None = it was not done by the end."""

    kind: str
    node: str | None
    job: str | None
    at: int
    waited: bool
    until: int | None = None


@dataclass(slots=True)
class Try:
    """One attempt. helped: None = the recording ended before it was over, or nobody knows. stop_at: ms since when the job
    stood because of it. lost_at: GPU-hours that the incident had cost by then. gpus: of its jobs, None = not known.
    work_seconds: of work that was lost, None = not known."""

    number: int
    did: list[Did] = field(default_factory=list)
    helped: bool | None = None
    stop_at: int | None = None
    lost_at: float = 0.0
    lost_after: float = 0.0
    ended_at: int | None = None
    gpus: int | None = None
    work_seconds: float | None = 0.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that were acted on."""
        return tuple(sorted({d.node for d in self.did if d.node and d.kind in HANDS}))

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that were commanded."""
        return tuple(sorted({d.job for d in self.did if d.job and KINDS[d.kind].subject == "job"}))


@dataclass(slots=True)
class Case:
    """An incident as the policy saw it. state, reason: the last; told: a person had to take it. skipped: why it was not
    decided on at all."""

    incident: Incident
    state: str = "open"
    reason: str = ""
    rule: str | None = None
    tries: list[Try] = field(default_factory=list)
    told: bool = False
    skipped: str | None = None


class Shadow:
    """One policy under one assumption. cases: by incident, in the order of opening."""

    def __init__(self, policy: Policy, inventory: Inventory, assumption: str, truths: Sequence[TrueFault] = (),
                 labels_of: Callable[[str], dict[str, str]] | None = None, known: Known = NOTHING_KNOWN) -> None:
        # truths: all that there is to know; known: a part of it, and the assumption stands for the rest.
        self.known = Known(tuple(truths), (), True, True) if assumption == TRUTH else known
        self.policy, self.assumption, self.truths = policy, assumption, self.known.faults
        self._facts: WorkFacts | None = None
        self.world = SimulatedWorld(inventory, self._checkpoint_wait)
        self.engine = Engine(replace(policy, mode="act"), frozenset(ACTION_KINDS), self.world, labels_of=labels_of)
        self.cases: dict[str, Case] = {}
        self._healed: dict[str, Healed] = {}
        self._running: dict[str, tuple[str, Did]] = {}
        self._window: Window | None = None

    # --- a tick -------------------------------------------------------------------------------------------------------
    def tick(self, at: int, incidents: Iterable[Incident], facts: WorkFacts, window: Window) -> None:
        """Decides over the incidents that are open in the recording now, and lets the commands go on."""
        self._facts, self._window, self.world.now = facts, window, at
        self.world.run_on(window.jobs)
        seen = list(incidents)
        self.world.heard_of({t.node for i in seen for t in (i.culprit, *i.victims) if t is not None and t.node})
        shown = [self._shown(one) for one in seen]
        tried = {f for one in seen if self.cases[one.id].tries and one.id not in self._healed for f in one.findings}
        simulated = SimulatedFacts(facts, self.world, tuple(self._healed.values()), tried)
        step = self.engine.step(at, [one for one in shown if one is not None], simulated, Site(window.topology))
        self._take(at, step)
        for action, outcome in self.engine.carry_out(at, self.world):
            self._ended(action, outcome, at)
        for one in seen:
            case = self.cases[one.id]
            for each in case.tries:
                if each.ended_at is None or each.ended_at == at:
                    each.lost_after = one.lost_gpu_hours

    def close(self, last: Callable[[str], Incident | None]) -> None:
        """The recording is over: each incident as it ended in it."""
        for name, case in self.cases.items():
            case.incident = last(name) or case.incident

    def _shown(self, incident: Incident) -> Incident | None:
        """The incident as it would be under the policy; None where it would not be there."""
        case = self.cases.get(incident.id)
        if case is None:
            case = self.cases[incident.id] = Case(incident)
        case.incident = incident
        healed = self._healed.get(incident.id)
        if healed is not None:
            healed.findings |= set(incident.findings)
        if not case.tries:
            case.skipped = self._not_there(incident)
            if case.skipped is not None:
                return None
        # One that was not there for a while comes back as news, whenever the recording told of it last.
        return replace(incident, state=case.state, reason=case.reason or incident.reason, attempt=len(case.tries), updated_at=self.world.now)

    def _not_there(self, incident: Incident) -> str | None:
        culprit = incident.culprit
        if culprit is None or culprit.node is None:
            return None
        if self.world.is_out(culprit.node):
            return "its node was out of service already"
        for name in self._healed:
            known = self.cases[name].incident
            if known.fault == incident.fault and known.culprit is not None and known.culprit.same_part(culprit):
                return "its part was cured already"
        return None

    def _take(self, at: int, step: Step) -> None:
        for decision in step.decisions:
            case = self.cases.get(decision.incident)
            if case is not None:
                case.state, case.reason, case.rule = decision.decision, decision.reason, decision.rule or case.rule
                case.told = case.told or decision.decision == "escalated"
        for action, outcome in step.actions:
            case = self.cases.get(action.incident)
            if case is None or not commands(action.kind):
                continue
            if outcome.state == "PENDING":
                self._begun(case, action, at)
        for decision in step.decisions:
            if decision.decision == "verifying" and decision.incident in self.cases:
                self._judge(self.cases[decision.incident], at)
        for decision in step.decisions:
            if decision.decision in ("holding", "escalated", *CLOSED_STATES) and decision.incident in self.cases:
                self._over(self.cases[decision.incident], at)

    # --- attempts -----------------------------------------------------------------------------------------------------
    def _begun(self, case: Case, action: Action, at: int) -> None:
        if not case.tries or case.tries[-1].number != action.attempt:
            case.tries.append(Try(action.attempt, gpus=self._gpus(case.incident.jobs)))
        did = Did(action.kind, action.target.node, action.target.job, at, action.args.get("wait_for") == "checkpoint")
        case.tries[-1].did.append(did)
        self._running[action.id] = (case.incident.id, did)
        if not did.waited:
            self._stops(case, did, at)

    def _ended(self, action: Action, outcome: Outcome, at: int) -> None:
        name, did = self._running.get(action.id, ("", None))
        if did is None:
            return
        if outcome.state == "REFUSED":  # a guard, just before it: it did not happen
            self.cases[name].tries[-1].did.remove(did)
            del self._running[action.id]
        elif outcome.state in ("DONE", "FAILED"):
            did.until = at
            del self._running[action.id]
            if did.waited:
                self._stops(self.cases[name], did, at)

    def _stops(self, case: Case, did: Did, at: int) -> None:
        """From now on the incident's jobs stand because of us."""
        last = case.tries[-1]
        if last.stop_at is not None or did.kind in ("undrain", "diagnose"):
            return
        last.stop_at, last.lost_at = at, case.incident.lost_gpu_hours
        last.work_seconds = 0.0 if did.waited or case.incident.fault in JOB_STANDS else self._since_checkpoint(case, at)

    def _over(self, case: Case, at: int) -> None:
        if case.tries and case.tries[-1].ended_at is None and not any(d.until is None for d in case.tries[-1].did):
            case.tries[-1].ended_at = at
            case.tries[-1].helped = bool(case.tries[-1].helped)

    def _judge(self, case: Case, at: int) -> None:
        """The last command is done: whether the attempt helped, as far as it can be said."""
        if not case.tries:
            return
        last = case.tries[-1]
        last.ended_at = at
        told = self.cures(case.incident, last)
        last.helped = told if told is not None else self.assumption == HELPS
        track = self.engine.track(case.incident.id)
        if last.helped and track is not None:
            jobs = {one.job: (one.seconds, one.tokens, one.ranks) for one in track.before}
            self._healed[case.incident.id] = Healed(set(case.incident.findings), jobs, at)

    def cures(self, incident: Incident, attempt: Try) -> bool | None:
        """Whether what was done ends a fault that was there; None where that is not known."""
        kinds = {d.kind for d in attempt.did}
        if kinds & {"drain", "exclude_node"} and kinds & {"resume_job", "restart_process"} and "undrain" not in kinds:
            kinds.add("replace")  # the job goes on without the node
        since = min((d.at for d in attempt.did), default=0)
        jobs = set(attempt.jobs) | set(incident.jobs)
        there = [t for t in self.truths if t.now(since)
                 and (t.node in attempt.nodes if t.node else not attempt.nodes and bool(jobs & set(t.jobs)))]
        if any(kinds & t.cures for t in there):
            return True
        nothing = self.known.complete and not there
        sound = bool(attempt.nodes) and all(any(s.node == n and s.now(since) for s in self.known.sound) for n in attempt.nodes)
        seen = bool(there) and all(strongest(sorted(kinds)) in t.fails for t in there)
        return False if self.known.cures or nothing or sound or seen else None

    def healthy(self, did: Did) -> bool | None:
        """Whether nothing was wrong where the command went; None where that is not known, or it went to no node or job."""
        there = [t for t in self.truths if t.now(did.at)]
        if did.kind in HANDS:
            if any(t.node == did.node for t in there):
                return False
            return True if self.known.complete or any(s.node == did.node and s.now(did.at) for s in self.known.sound) else None
        if KINDS[did.kind].subject != "job":
            return None
        if any(did.job in t.jobs for t in there):
            return False
        return True if self.known.complete else None

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def _gpus(self, jobs: Sequence[str]) -> int | None:
        """GPUs of the jobs: a rank is a GPU."""
        assert self._window is not None
        known = [len(job.ranks) or len(job.nodes) * (job.ranks_per_node or 0) for job in self._window.jobs if job.id in jobs]
        return sum(known) if known and all(known) else None if jobs else 0

    def _since_checkpoint(self, case: Case, at: int) -> float | None:
        assert self._facts is not None
        lost = []
        for job in case.incident.jobs:
            known = self._facts.checkpoint(job)
            if known.saved_at is not None:
                lost.append((at - known.saved_at) / 1000)
            elif known.interval_seconds is not None:
                lost.append(known.interval_seconds / 2)
            else:
                return None
        return max(lost, default=0.0)

    def _checkpoint_wait(self, job: str) -> float | None:
        known = self._facts.checkpoint(job) if self._facts is not None else None
        if known is None or known.interval_seconds is None:
            return None
        if known.saved_at is None:
            return known.interval_seconds / 2
        return max(0.0, known.interval_seconds - (self.world.now - known.saved_at) / 1000) or CHECKPOINT_WAIT_SECONDS
