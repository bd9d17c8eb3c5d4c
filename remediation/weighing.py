"""How the engine weighs an incident: its loss now, its job's unsaved work, the spares that are left, and what the ledger says.

Everything here reads; what changes is the track's short memory of the incident's loss, from which the rate comes. The
arithmetic is `remediation.worth`.
"""

from __future__ import annotations

from dataclasses import replace

from core.protocols import WorkFacts
from core.types import Incident, JobState
from remediation.cures import Cures, numbers
from remediation.evidence import MOSTLY, own_share, passes, slows, soft
from remediation.kinds import KINDS
from remediation.matching import LabelsOf
from remediation.memory import Memory
from remediation.plan import Plan, Planned, jobs_of
from remediation.policy import Attempt, Rule, Step
from remediation.reset import reset_args
from remediation.spares import usable
from remediation.track import Track, left
from remediation.turn import Turn
from remediation.worth import BY_COST, USES_SPARE, Situation, Worth, saved, step_seconds, weigh

HALF = 0.5
LEAST_SHARE = 1e-3        # of a job's pace is what an incident that cost nothing is charged: it has a worth, and is not worth a stop
USUAL_GPUS = 8.0          # of a node of which nobody knows the number
RATE_MS = 600_000         # the rate now is of the last ten minutes,
RATE_LEAST_MS = 60_000    # and of a minute at least
MARK_MS = 60_000
AS_BEFORE = 1.01  # a step that takes no longer than so many times the old one
# A drain that waits for a checkpoint waits until the next one is surely there, unless the policy says how long: half an interval more
# than the job's saves keep, and two hours at most.
WAIT_INTERVALS, WAIT_MOST_SECONDS = 1.5, 7200.0
BEFORE_STATES = frozenset({"open", "holding", "proposed"})


def note_loss(track: Track, incident: Incident, at: int) -> None:
    """Keeps the incident's rate of loss (GPU-hours in an hour) up to date, as long as no attempt has stopped its job."""
    if track.state not in BEFORE_STATES or track.ended:
        return
    # Losses are counted from the incident's opening on, not from its onset.
    marks = track.lost or ((min(at, incident.opened_at), 0.0),)
    if at - marks[-1][0] >= MARK_MS or incident.lost_gpu_hours < marks[-1][1]:
        marks = (*(m for m in marks if m[1] <= incident.lost_gpu_hours), (at, incident.lost_gpu_hours))
    kept = [m for m in marks if at - m[0] <= RATE_MS]
    older = [m for m in marks if at - m[0] > RATE_MS]
    track.lost = (*older[-1:], *kept)
    first = track.lost[0]
    if at - first[0] >= RATE_LEAST_MS:
        track.lost_gpus = max(0.0, (incident.lost_gpu_hours - first[1]) * 3_600_000 / (at - first[0]))


def uses_spare(attempt: Attempt) -> bool:
    """The attempt takes a spare."""
    return any(step.kind in USES_SPARE for step in attempt.do)


def passed_over(rule: Rule, track: Track, spare: bool) -> frozenset[int]:
    """The attempts from the track's rung on that are not made now. spare: one may be used. Those `when: no_spare` are not while one
    may, nor for a node that another has replaced; one that takes a spare is not while there is none and such ones are left."""
    left = range(track.rung, len(rule.attempts))
    gone = 0 < track.rung <= len(rule.attempts) and track.ended == "verify_failed" and uses_spare(rule.attempts[track.rung - 1])
    ladder = {i for i in left if rule.attempts[i].when == "no_spare"}
    if spare or gone:
        return frozenset(ladder)
    return frozenset(i for i in left if uses_spare(rule.attempts[i]) and any(j > i for j in ladder))


def start_anew(track: Track, incident: Incident, at: int) -> None:
    """The job stands for another attempt: what it loses meanwhile is none of this incident's rate."""
    track.lost = ((at, incident.lost_gpu_hours),)


def longer_seconds(at: int, fault: str, leader: Track) -> float:
    """For how much longer the leader's job stands where one more node is replaced beside its attempt, from now (ms) on."""
    rows = numbers()["seconds"]
    rest = [s for s in left(leader) if KINDS[s.kind].subject != "job"]
    there = sum(step_seconds(Step(s.kind, s.args), fault) for s in rest)
    gone = (at - leader.current.action.at) / 1000 if leader.current is not None else 0.0
    return max(0.0, float(rows["drain"]) + float(rows["replace"]) - max(0.0, there - gone))


def worth_now(tick: Turn, incident: Incident, track: Track, rule: Rule, memory: Memory, passed: frozenset[int] = frozenset(),
              leader: Track | None = None, queued: bool = False, skipped: list[int] | None = None) -> Worth | None:
    """What waiting and the rule's attempts from the track's rung on are expected to cost; None where that is not known. leader: the
    attempt for which the job stands already. queued: the job would wait in the queue. skipped: see `weigh`."""
    now = situation(tick, incident, track, memory)
    if now is None:
        return None
    down = any(is_dead(tick.facts.job(job)) for job in jobs_of(incident))
    # Its processes are gone and it has not ended: it stands, whatever it lost before. A part that is slow for a while did not do that.
    if leader is None and down and not soft(incident.fault):
        now = replace(now, lost_gpus=now.job_gpus)
    if leader is not None:
        now = replace(now, stands_seconds=longer_seconds(tick.at, incident.fault, leader))
    if tick.cures is None:
        tick.cures = Cures(memory.ledger.entries())
    now = replace(now, queued=queued)
    return weigh(tick.at, rule.attempts, track.rung, now, tick.cures, rule.verify.deadline_seconds, passed, skipped)


def with_queue(worth: Worth, tick: Turn, incident: Incident, track: Track, rule: Rule, memory: Memory, passed: frozenset[int],
               leader: Track | None) -> Worth:
    """What a person is shown who is asked because the job would have to wait in the queue: the costs with that wait. What is decided, that
    a person is asked too, is as without it: else nobody would hear of a job that its queue alone keeps from being repaired."""
    if track.asks != "queue_wait":
        return worth
    skipped = [one.place for one in worth.options if one.skip]
    shown = worth_now(tick, incident, track, rule, memory, passed, leader, queued=True, skipped=skipped)
    return worth if shown is None else replace(shown, hold=worth.hold, wait_seconds=worth.wait_seconds, wait_for=worth.wait_for)


def situation(tick: Turn, incident: Incident, track: Track, memory: Memory) -> Situation | None:
    """The incident as `remediation.worth` needs it; None where its rate of loss or its job's size is not known."""
    jobs = {job: gpus for job in jobs_of(incident) if (gpus := _gpus(tick.facts, job)) is not None}
    if not jobs or track.lost_gpus is None or track.lost_gpus <= 0:
        return None
    share, seconds = heals(tick, incident, memory)
    largest = max(sorted(jobs), key=lambda job: jobs[job])
    node = float(_per_node(tick.facts.job(largest)))
    lost = min(track.lost_gpus, sum(jobs.values()))
    if slows(incident):
        rest = [(one, memory.tracks[one.id]) for one in tick.live if one.id in memory.tracks]
        own = own_share(tick, incident, track, largest, rest)
        lost = lost if own is None else min(lost, max(LEAST_SHARE, own) * sum(jobs.values()))
    now = Situation(incident.fault, lost, sum(jobs.values()),
                    spares=_spares(tick, memory), node_gpus=node, heal_share=share, heal_seconds=seconds,
                    age_seconds=max(0, tick.at - incident.onset_at) / 1000)
    return saved(now, tick.at, incident.onset_at, tick.facts.checkpoint(largest))


def _gpus(facts: WorkFacts, name: str) -> float | None:
    job = facts.job(name)
    if job is None:
        return None
    if job.ranks_per_node is not None and job.nodes:
        return float(job.ranks_per_node * len(job.nodes))
    return float(len(job.ranks)) or USUAL_GPUS * len(job.nodes) or None


def _per_node(job: JobState | None) -> float:
    if job is None or not job.nodes:
        return USUAL_GPUS
    return float(job.ranks_per_node or (max(1.0, len(job.ranks) / len(job.nodes)) if job.ranks else USUAL_GPUS))


def is_dead(job: JobState | None) -> bool:
    """Its processes are gone, and it has not ended."""
    return job is not None and job.phase == "done" and job.end is None


def heals(tick: Turn, incident: Incident, memory: Memory) -> tuple[float, float]:
    """(share, mean seconds) of such faults that go away by themselves: published, moved by those that nobody acted on. Of those that
    were held back while acting was not worth it, half of the ones that lasted until it was count as not having gone away: acting is
    worth it about when the chances of that are even."""
    rows = numbers()["heals"]
    row = rows.get(incident.fault, rows["usual"])
    seconds = float(row["seconds"])
    weight = float(numbers()["heal_weight" if soft(incident.fault) else "prior_weight"])
    if incident.fault not in tick.heals:
        recovered, n = memory.untouched.within(incident.fault, float(numbers()["horizon"]), tick.at)
        passed, m = memory.passing.within(incident.fault, float(numbers()["horizon"]), tick.at)
        lasted = HALF * sum(one.fault == incident.fault for one in memory.ledger.entries()) if m else 0.0
        tick.heals[incident.fault] = (float(row["share"]) * weight + recovered + passed) / (weight + n + m + lasted)
    return tick.heals[incident.fault], seconds


def _spares(tick: Turn, memory: Memory) -> int:
    if tick.nodes is None:
        return 0
    return len(usable(tick.nodes, tick.unfit))


def unweighed(tick: Turn, incident: Incident, track: Track, plan: Plan, memory: Memory) -> str | None:
    """Why a job that goes on is not stopped for a fault of which no worth is known: in its first minute, and of what mostly
    passes for ten after a stop until a loss is measured (a save is none), what it costs is not known yet (`being_weighed`), or the job is as fast as before it and such faults mostly go away (`not_worth_it`). None where the policy
    decides."""
    now = {job: pace(tick, job) for job in plan.jobs}
    if not now or None in now.values():
        return None
    unmeasured = bool(track.lost) and not track.lost_gpus and incident.opened_at < track.lost[0][0] > tick.at - RATE_MS
    if tick.at - incident.opened_at < RATE_LEAST_MS or (unmeasured and passes(incident.fault)):
        return "being_weighed"
    before = {one.job: one.seconds for one in track.before}
    same = all(seconds <= AS_BEFORE * (before.get(job) or 0.0) for job, seconds in now.items() if seconds is not None)
    return "not_worth_it" if same and not track.lost_gpus and heals(tick, incident, memory)[0] >= MOSTLY else None


def pace(tick: Turn, name: str) -> float | None:
    """What a step of the job takes now, None where it makes none or nobody knows."""
    job = tick.facts.job(name)
    return tick.facts.step_seconds(name, tick.at - RATE_LEAST_MS, tick.at) if job is not None and job.running else None


def settled(plan: Plan, worth: Worth | None, tick: Turn, labels_of: LabelsOf) -> Plan:
    """The plan with what is decided by cost, by the spares that are fit and by the model of the GPU: whether the drain waits for
    a checkpoint (`wait_for` absent or `cheapest`; `nothing` never waits), the spares that a replacement must not take
    (`avoid`), and whether a GPU is reset alone."""
    reasons: list[str] = []

    def one(step: Planned) -> Planned:
        if step.kind == "drain" and step.args.get("wait_for") in (*BY_COST, "nothing"):
            args = {k: v for k, v in step.args.items() if k != "wait_for"}
            said = step.args.get("wait_for")
            waits = worth.wait_for == "checkpoint" if worth is not None and worth.wait_for is not None else said == "cheapest"
            step = replace(step, args={**args, "wait_for": "checkpoint"} if waits and said != "nothing" else args)
        if step.kind == "drain" and step.args.get("wait_for") == "checkpoint":
            return _patient(step, plan, tick.facts)
        if step.kind == "replace" and "avoid" not in step.args:
            return avoiding(step, tick)
        if step.kind == "reset_gpu":
            args, reason = reset_args(step.args, _model(tick, step.target.node, labels_of), tick.facts.open_findings(), step.target.node)
            reasons.extend([reason] if reason is not None else [])
            return replace(step, args=args)
        return step

    steps = tuple(map(one, plan.steps))
    return replace(plan, steps=steps, reason=plan.reason or next(iter(reasons), None))


def avoiding(step: Planned, tick: Turn) -> Planned:
    """A replacement, or a test with a partner, that takes none of the spares that must not be used now, whatever it was told before."""
    args = {k: v for k, v in step.args.items() if k != "avoid"}
    nodes = tick.nodes or {}
    avoid = ",".join(sorted(name for name in tick.unfit if name in nodes and nodes[name].state == "spare"))
    return replace(step, args={**args, "avoid": avoid} if avoid else args)


def _patient(step: Planned, plan: Plan, facts: WorkFacts) -> Planned:
    """The drain with a deadline that a slow rhythm of saves fits into; as the policy says where it says something."""
    if step.deadline_seconds != KINDS["drain"].deadline_seconds:
        return step
    longest = max((facts.checkpoint(job).interval_seconds or 0.0 for job in plan.jobs), default=0.0)
    return replace(step, deadline_seconds=max(step.deadline_seconds, min(WAIT_MOST_SECONDS, WAIT_INTERVALS * longest)))


def _model(tick: Turn, node: str | None, labels_of: LabelsOf) -> str:
    """What the inventory says of a node's hardware, as one text."""
    place = tick.site.topology.places.get(node or "")
    kind = place.instance_type if place is not None else None
    return " ".join((kind or "", *(str(v) for _, v in sorted(labels_of(node).items())))) if node else ""
