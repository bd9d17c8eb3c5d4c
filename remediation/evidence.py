"""Whether what is known of a part that is slow, of a kind that mostly heals by itself, is enough to stop its job and take its node out.

One finding without a dead part behind it is weak evidence. Published: of a hundred parts that get slow 95 are well again, most of
them within minutes (Greyhound, USENIX ATC 2025: 10 and 24 minutes on average), and a monitor's page may be unfounded: at the end
of it the part is as it was, too. Where the loss was measured, `remediation.waiting` says when acting costs least. Where it was not,
a page costs a ticket and not a node:

- A job that stands, for whatever reason, tells nothing of a slow part (`being_weighed`), except where such a fault kills jobs. What
  it loses meanwhile is not charged to such a part.
- A node is changed beside another attempt, for which its job stands anyhow, only where its own loss was measured before, and where
  by its age and by how sure the incident is the fault is likelier than not one that stays (`likely_passing`): there the stop costs next
  to nothing, so that the cost alone would change each node that anybody pages about.
- A part of which the world says that no job is on its node slows nobody (`not_worth_it`).
- What several such incidents of one job cost together is dealt out in the order of their onsets: each is charged what the job got
  slower by from its own onset to the next one's. Without that a page about a well part is charged with what another part does.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.types import Incident
from remediation.cures import numbers
from remediation.plan import Plan, jobs_of
from remediation.track import Track
from remediation.turn import Turn
from remediation.waiting import Lasting
from remediation.worth import STOPS, Worth

LIKELIER = 0.5  # than not
MOSTLY = 0.5  # of such faults go away by themselves
NOTHING = 0.005  # of a job's pace is within what two minutes of its steps differ by
STANDS = 0.95  # of its pace: a job that loses more is not slow, it stands
AT_WORK = frozenset({"train", "eval", "checkpoint", "unknown"})


def soft(fault: str) -> bool:
    """Whether such faults mostly go away by themselves, and kill no job meanwhile."""
    rows = numbers()["heals"]
    return float(rows.get(fault, rows["usual"])["share"]) >= MOSTLY and fault not in numbers()["kills"]


def unproven(tick: Turn, incident: Incident, track: Track, plan: Plan, worth: Worth | None, beside: bool, heals: tuple[float, float],
             ) -> str | None:
    """The reason why the attempt has to wait for more evidence, None where there is enough or the fault is of another kind. beside:
    its job stands for another attempt; heals: (share, mean seconds) of such faults that go away by themselves."""
    if not soft(incident.fault) or not any(step.kind in STOPS for step in plan.steps):
        return None
    jobs = jobs_of(incident)
    if not jobs and _idle(tick, plan):
        return "not_worth_it"
    if (beside or at_rest(tick, incident, track)) and (worth is None or not track.lost_gpus):
        return "being_weighed"
    if worth is not None and not beside and worth.lost_gpus >= STANDS * worth.job_gpus:
        return "being_weighed"
    if track.lost_gpus is None and not track.attempt and any(tick.facts.step_seconds(job, tick.at - 60_000, tick.at) is not None for job in jobs):
        return "being_weighed"  # it makes steps again, and in a minute it is known how fast
    if not beside:
        return None
    if worth is not None and worth.lost_gpus <= NOTHING * worth.job_gpus:
        return "not_worth_it"
    lasting = Lasting(*heals, float(numbers()["heal_sigma"]), max(0, tick.at - incident.onset_at) / 1000)
    return "likely_passing" if incident.confidence * (1.0 - lasting.heals) < LIKELIER else None


def at_rest(tick: Turn, incident: Incident, track: Track) -> bool:
    """A job of the incident makes no steps now: it is down, loads or hangs."""
    paced = {one.job for one in track.before if one.seconds}
    for job in jobs_of(incident):
        state = tick.facts.job(job)
        if state is None or state.end is not None:
            continue
        if state.phase not in AT_WORK or (job in paced and tick.facts.step_seconds(job, tick.at - 60_000, tick.at) is None):
            return True
    return False


def _idle(tick: Turn, plan: Plan) -> bool:
    """The world knows which jobs are where, and has none on the plan's nodes."""
    nodes = tick.nodes or {}
    return bool(tick.job_nodes) and all(name in nodes and not nodes[name].jobs for name in plan.nodes)


def own_share(tick: Turn, incident: Incident, track: Track, job: str, others: Iterable[tuple[Incident, Track]]) -> float | None:
    """What the incident made the job lose of its pace, 0-1: from its onset to that of the next incident that slows the same job.
    None where no other does, or a pace is not known: then all of the job's loss is its own."""
    mine = _pace(track, job)
    rest = [(other.onset_at, other.id, _pace(its, job)) for other, its in others if other.id != incident.id and job in jobs_of(other)]
    if not rest or mine is None:
        return None
    later = min((row for row in rest if row[:2] > (incident.onset_at, incident.id)), default=None)
    then = later[2] if later is not None else tick.facts.step_seconds(job, tick.at - 60_000, tick.at)
    return None if then is None else max(0.0, 1.0 - mine / then)


def _pace(track: Track, job: str) -> float | None:
    """Seconds a step before the incident's onset."""
    return next((one.seconds for one in track.before if one.job == job and one.seconds), None)
