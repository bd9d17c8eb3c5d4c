"""How the engine weighs an incident: its loss now, its job's unsaved work, the spares that are left, and what the ledger says.

Everything here reads; what changes is the track's short memory of the incident's loss, from which the rate comes. The
arithmetic is `remediation.worth`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from core.protocols import WorkFacts
from core.types import Incident, JobState
from remediation.cures import Cures, numbers
from remediation.kinds import KINDS
from remediation.matching import LabelsOf
from remediation.memory import Memory
from remediation.plan import Plan, Planned, jobs_of
from remediation.policy import Rule
from remediation.reset import reset_args
from remediation.spares import usable
from remediation.track import Track
from remediation.turn import Turn
from remediation.worth import BY_COST, Situation, Worth, saved, weigh

USUAL_GPUS = 8.0          # of a node of which nobody knows the number
RATE_MS = 600_000         # the rate now is of the last ten minutes,
RATE_LEAST_MS = 60_000    # and of a minute at least
MARK_MS = 60_000
# A drain that waits for a checkpoint waits until the next one is surely there, unless the policy says how long: half an interval more
# than the job's saves keep, and two hours at most.
WAIT_INTERVALS, WAIT_MOST_SECONDS = 1.5, 7200.0
BEFORE_STATES = frozenset({"open", "holding", "proposed"})


def note_loss(track: Track, incident: Incident, at: int) -> None:
    """Keeps the incident's rate of loss (GPU-hours in an hour) up to date, as long as no attempt has stopped its job."""
    if track.state not in BEFORE_STATES or track.ended:
        return
    marks = track.lost or ((min(at, incident.onset_at), 0.0),)
    if at - marks[-1][0] >= MARK_MS or incident.lost_gpu_hours < marks[-1][1]:
        marks = (*(m for m in marks if m[1] <= incident.lost_gpu_hours), (at, incident.lost_gpu_hours))
    kept = [m for m in marks if at - m[0] <= RATE_MS]
    older = [m for m in marks if at - m[0] > RATE_MS]
    track.lost = (*older[-1:], *kept)
    first = track.lost[0]
    if at - first[0] >= RATE_LEAST_MS:
        track.lost_gpus = max(0.0, (incident.lost_gpu_hours - first[1]) * 3_600_000 / (at - first[0]))


def worth_now(tick: Turn, incident: Incident, track: Track, rule: Rule, memory: Memory) -> Worth | None:
    """What waiting and the rule's attempts from the track's rung on are expected to cost; None where that is not known."""
    now = situation(tick, incident, track, memory)
    if now is None:
        return None
    if tick.cures is None:
        tick.cures = Cures(memory.ledger.entries())
    return weigh(tick.at, rule.attempts, track.rung, now, tick.cures, rule.verify.deadline_seconds)


def situation(tick: Turn, incident: Incident, track: Track, memory: Memory) -> Situation | None:
    """The incident as `remediation.worth` needs it; None where its rate of loss or its job's size is not known."""
    jobs = {job: gpus for job in jobs_of(incident) if (gpus := _gpus(tick.facts, job)) is not None}
    if not jobs or track.lost_gpus is None or track.lost_gpus <= 0:
        return None
    share, seconds = _heals(tick, incident, memory)
    largest = max(sorted(jobs), key=lambda job: jobs[job])
    node = float(_per_node(tick.facts.job(largest)))
    now = Situation(incident.fault, min(track.lost_gpus, sum(jobs.values())), sum(jobs.values()),
                    spares=_spares(tick, memory), node_gpus=node, heal_share=share, heal_seconds=seconds)
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
    return float(job.ranks_per_node or max(1.0, len(job.ranks) / len(job.nodes)))


def _heals(tick: Turn, incident: Incident, memory: Memory) -> tuple[float, float]:
    """(share, mean seconds) of such faults that go away by themselves: published, moved by those that nobody acted on; the
    longer this one lasts, the less likely it is one of them."""
    rows = numbers()["heals"]
    row = rows.get(incident.fault, rows["usual"])
    seconds, weight = float(row["seconds"]), float(numbers()["prior_weight"])
    if incident.fault not in tick.heals:
        recovered, n = memory.untouched.within(incident.fault, float(numbers()["horizon"]), tick.at)
        tick.heals[incident.fault] = (float(row["share"]) * weight + recovered) / (weight + n)
    share = tick.heals[incident.fault]
    left = share * math.exp(-max(0, tick.at - incident.onset_at) / 1000 / seconds)
    return left / (left + 1.0 - share) if left + 1.0 - share > 0 else 1.0, seconds


def _spares(tick: Turn, memory: Memory) -> int:
    if tick.nodes is None:
        return 0
    return len(usable(tick.nodes, tick.unfit))


def settled(plan: Plan, worth: Worth | None, tick: Turn, labels_of: LabelsOf) -> Plan:
    """The plan with what is decided by cost, by the spares that are fit and by the model of the GPU: whether the drain waits for
    a checkpoint (`wait_for` absent or `cheapest`; `nothing` never waits), the spares that a replacement must not take
    (`avoid`), and whether a GPU is reset alone."""
    nodes, unfit = tick.nodes or {}, tick.unfit
    reasons: list[str] = []
    avoid = ",".join(sorted(name for name in unfit if name in nodes and nodes[name].state == "spare"))

    def one(step: Planned) -> Planned:
        if step.kind == "drain" and step.args.get("wait_for") in (*BY_COST, "nothing"):
            args = {k: v for k, v in step.args.items() if k != "wait_for"}
            said = step.args.get("wait_for")
            waits = worth.wait_for == "checkpoint" if worth is not None and worth.wait_for is not None else said == "cheapest"
            step = replace(step, args={**args, "wait_for": "checkpoint"} if waits and said != "nothing" else args)
        if step.kind == "drain" and step.args.get("wait_for") == "checkpoint":
            return _patient(step, plan, tick.facts)
        if step.kind == "replace" and avoid and "avoid" not in step.args:
            return replace(step, args={**step.args, "avoid": avoid})
        if step.kind == "reset_gpu":
            args, reason = reset_args(step.args, _model(tick, step.target.node, labels_of), tick.facts.open_findings(), step.target.node)
            reasons.extend([reason] if reason is not None else [])
            return replace(step, args=args)
        return step

    steps = tuple(map(one, plan.steps))
    return replace(plan, steps=steps, reason=plan.reason or next(iter(reasons), None))


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
