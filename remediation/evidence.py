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
- A part of which the world says that no job is on its node slows nobody (`not_worth_it`), nor does a spare hurry that is said to be dead.
- What slows nothing and kills at once (`marks` in worth.yaml: a dead GPU, memory errors), or leaves marks alone, is no reason to stop a
  job that makes steps minutes after it: nothing is lost by it now, and the job's next stop changes the node for next to nothing.
  By then it must have stayed for two hours (`STAYS_MS`): a page that is over by itself was none. A stop is that in which a node is changed
  anyhow, or one of half an hour (`STOOD_MS`): a job that failed of its own is back in minutes, and would stand a quarter of an hour for it.
  A job that stood before such a page was opened, or that is on its way back, did not die of it either; where it still stands half an hour
  later (`STOOD_MS`), it may not start for that part.
  With a GPU that is off the bus (`bars` in worth.yaml) no job starts: where the job stands, for whatever reason, that node is changed at once.
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
SURVIVED_MS = 120_000  # a job that still makes steps so long after what kills at once did not die of it
MAKES_MS, MAKES_STEPS = 30_000, 3.0  # a job makes steps where the last one was so long ago at most, or so many of its steps
STAYS_MS = 7_200_000
PAUSE_MS = 300_000  # a job that runs makes no step for so long at most: it saves, or evaluates
STOOD_MS = 1_800_000  # a job that stood before the page was opened makes steps again by then, or it stands for that part
ON_ITS_WAY = frozenset({"init", "warmup"})
AT_WORK = frozenset({"train", "eval", "checkpoint", "unknown"})


def passes(fault: str) -> bool:
    """Whether such faults mostly go away by themselves."""
    rows = numbers()["heals"]
    return float(rows.get(fault, rows["usual"])["share"]) >= MOSTLY


def slows(incident: Incident) -> bool:
    """Whether it is about a part that may slow its job: such ones share what the job loses."""
    part = incident.culprit is not None and incident.culprit.node is not None
    return incident.fault not in numbers()["marks"] and (part or passes(incident.fault))


def soft(fault: str) -> bool:
    """Whether such faults mostly go away by themselves, and kill no job meanwhile."""
    return passes(fault) and fault not in numbers()["kills"]


def unproven(tick: Turn, incident: Incident, track: Track, plan: Plan, worth: Worth | None, beside: bool, heals: tuple[float, float],
             ) -> str | None:
    """The reason why the attempt has to wait for more evidence, None where there is enough or the fault is of another kind. beside:
    its job stands for another attempt; heals: (share, mean seconds) of such faults that go away by themselves."""
    if not any(step.kind in STOPS for step in plan.steps):
        return None
    if incident.fault in numbers()["marks"]:
        return survived(tick, incident, track, plan, beside)
    if not soft(incident.fault):
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
    lasting = Lasting(*heals, float(numbers()["heal_sigma"]), max(0, tick.at - incident.onset_at) / 1000)  # it stands: no stop counts
    return "likely_passing" if incident.confidence * (1.0 - lasting.heals) < LIKELIER else None


def survived(tick: Turn, incident: Incident, track: Track, plan: Plan, beside: bool) -> str | None:
    """The reason why a part that kills at once or leaves marks alone is left in its job: the job made steps long after it. None where
    the job may have died of it, or where nobody knows when it made its last step. beside: it stands for another attempt."""
    jobs = jobs_of(incident)
    nodes = tick.nodes or {}
    if not jobs and _idle(tick, plan) and all(nodes[name].state != "in_service" for name in plan.nodes):
        # A spare with an open finding is not used, so nothing hurries; a node in service would get the next job.
        return "not_worth_it" if tick.at - incident.onset_at < STAYS_MS else None
    last = [at for job in jobs if (at := tick.facts.checkpoint(job).progress_at) is not None]
    if not jobs or len(last) < len(jobs):
        return None
    rests, comes, after = at_rest(tick, incident, track), starts(tick, jobs, incident), max(last) - incident.onset_at
    if incident.fault in numbers()["bars"] and (beside or (rests and not comes and after <= SURVIVED_MS)):
        return None
    if after > SURVIVED_MS:
        # Alone it would make a short stop long: a job that crashed of its own data is back within minutes.
        stands = beside or (rests and tick.at - max(last) >= STOOD_MS)
        return None if stands and tick.at - incident.onset_at >= STAYS_MS else "not_worth_it"
    # Of a job that stands for a known cause, what came later is not another one.
    before, age = -after > (MAKES_MS if beside else PAUSE_MS), tick.at - incident.onset_at
    if (before and age < (STAYS_MS if beside else STOOD_MS)) or comes:
        return "being_weighed"
    paces = {job: tick.facts.step_seconds(job, tick.at - 60_000, tick.at) for job in jobs}
    makes = all(pace is not None and tick.at - at <= max(MAKES_MS, MAKES_STEPS * 1000 * pace) for at, pace in zip(last, paces.values(), strict=True))
    return "being_weighed" if makes and not rests else None


def starts(tick: Turn, jobs: Iterable[str], incident: Incident) -> bool:
    """One of the jobs is on its way back and makes no steps yet: since less than STOOD_MS, or since the incident's onset where nobody
    knows when it was started. To stop it for a mark would make two stops of one."""
    known = (tick.facts.job(job) for job in jobs)
    return any(state is not None and state.end is None and state.phase in ON_ITS_WAY
               and tick.at - (incident.onset_at if state.start is None else state.start) < STOOD_MS for state in known)


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
