"""What is done to jobs: stopped and held, their nodes kept for them, let go again; a signal to the batch script.

    RUNNING ──keep nodes──note──requeuehold──▶ held ──exclude──reservation──release──▶ in the queue ──▶ RUNNING again

After a drain the hold becomes a begin time: a job whose attempt fails, or whose Greylag dies, starts by itself. Each command is preceded by a note in the job's administrators' comment with the action's id, so that a Greylag that starts
anew goes on from what Slurm shows. All of it may be done again without harm.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from core.clock import parse_rfc3339, rfc3339
from core.errors import Refused
from core.types import Action
from remediation.backends.slurm_hosts import join
from remediation.backends.slurm_json import Cluster, SlurmJob
from remediation.backends.slurm_rules import find, may_not_stop, told
from remediation.backends.slurm_site import (
    DONE,
    KEPT,
    MINE,
    RUNS,
    Site,
    Trace,
    Word,
    job_reservation,
    read_trace,
    write_trace,
)

# `flex`: the job may also run elsewhere, and longer than the reservation lasts; `ignore_jobs`: the job itself runs there now;
# `no_hold_jobs_after`: a job that still waits when the reservation ends goes on waiting without it, and is not held.
KEEP_FLAGS = "ignore_jobs,flex,no_hold_jobs_after"
STOPPED = frozenset({"drain", "resume"})  # words of a note from the stop on until the job is let go
_NUMBER = re.compile(r"(\w+)=(\d+)")
# A word of a job's comment that we write: the job loads no checkpoint that was saved within these times. The oldest make room.
DISTRUSTS = "greylag.distrusts"
_DISTRUSTED = re.compile(rf"[\s,;]*{re.escape(DISTRUSTS)}=([^\s,;]*)")
MOST_DISTRUSTED = 4


# --- which nodes ------------------------------------------------------------------------------------------------------
def usable(site: Site, names: Iterable[str], cluster: Cluster) -> list[str]:
    """Those of the nodes that are in service and in nobody's hands."""
    return [name for name in names if (node := cluster.nodes.get(name)) is not None
            and site.held_by(node, cluster) is None and site.state(node, cluster) in ("in_service", "spare")]


def idle(site: Site, job: SlurmJob, cluster: Cluster) -> list[str]:
    """Nodes of the job's partition that nothing runs on and nobody else has reserved."""
    mine = job_reservation(job)
    reserved = {name for one in cluster.reservations.values() if one.name != mine for name in one.nodes}
    busy = {name for one in cluster.jobs if one.on_nodes for name in one.nodes}
    names = [name for name, node in cluster.nodes.items() if job.partition in node.partitions and node.base == "IDLE"
             and name not in reserved and name not in busy and name not in job.excluded and not site.kept_spare(name, cluster)]
    return [name for name in usable(site, names, cluster) if site.maintenance(name, cluster) is None]


def spares(site: Site, cluster: Cluster, mine: Collection[str] = ()) -> list[str]:
    """The spares that can be had now, those first that are kept in one of the reservations `mine`. Those that are kept for another
    job are none."""
    kept = {name for one in mine if one in cluster.reservations for name in cluster.reservations[one].nodes}
    others = {name for one in cluster.reservations.values() if one.name.startswith(KEPT) and one.name not in mine for name in one.nodes}
    free = [name for name in usable(site, cluster.nodes, cluster) if site.state(cluster.nodes[name], cluster) == "spare"
            and site.maintenance(name, cluster) is None and name not in others]
    return sorted(free, key=lambda name: name not in kept)


def reservations_of(incident: str, cluster: Cluster) -> list[str]:
    """What is kept for jobs that were stopped for the incident."""
    return [job_reservation(job) for job in cluster.jobs
            if (trace := read_trace(job.admin_comment)) is not None and trace.id.partition("/")[0] == incident]


def goes_on_with(site: Site, job: SlurmJob, cluster: Cluster, without: str | None, taken: Collection[str] = ()) -> list[str]:
    """The nodes that the job goes on with, at most as many as it needs: its own that are left, then spares, then idle ones. A spare
    takes the place of a node that is out, and comes by `replace` alone: a job that loses none (`without` None) counts on none.
    taken: nodes that other jobs have been given since the cluster was read."""
    stay = [name for name in usable(site, job.nodes, cluster) if name != without]
    new = [*(spares(site, cluster, (job_reservation(job),)) if without is not None else ()), *idle(site, job, cluster)]
    return [*stay, *(name for name in new if name not in stay and name != without and name not in taken)][: needed(job)]


def needed(job: SlurmJob) -> int:
    """How many nodes it runs on; of one that waits, how many it ran on when it was stopped."""
    trace = read_trace(job.admin_comment) if job.waits else None
    return (numbers_of(trace) if trace is not None else {}).get("nodes", job.node_count or len(job.nodes))


def _elsewhere_reserved(job: SlurmJob) -> bool:
    """It stands in a reservation of somebody else, which keeps its nodes and is not ours to change."""
    return bool(job.reservation) and not job.reservation.startswith(MINE)


# --- keeping nodes ------------------------------------------------------------------------------------------------------
def keep(site: Site, job: SlurmJob, nodes: Iterable[str], cluster: Cluster) -> None:
    """Reserves exactly these nodes for the job. One command, so that nothing is left half done. Raises Refused `queue_wait`.

    A spare stays in the spares' reservation meanwhile (Slurm lets one with the flag `maint` overlap with others): it is kept
    from all other work, this job too, until `replace` takes it out of there. So it is a spare again as soon as ours goes."""
    wanted = list(dict.fromkeys(nodes))
    if _elsewhere_reserved(job) or not wanted:
        return
    name, minutes = job_reservation(job), max(1, site.params.reserve_minutes)
    try:
        if name not in cluster.reservations:
            site.scheduler.reserve(name, join(wanted), job.user, KEEP_FLAGS, str(minutes))
        else:
            site.scheduler.set_reservation(name, f"nodes={join(wanted)}", f"endtime=now+{minutes}minutes")
    except Refused as refused:
        raise Refused("queue_wait", f"its nodes cannot be reserved: {refused.detail or refused.reason}") from None


def keep_or_ask(site: Site, job: SlurmJob, cluster: Cluster, without: str | None, approved: bool, taken: Collection[str] = ()) -> list[str]:
    """Keeps the nodes that the job goes on with, and names them. Raises Refused `queue_wait` where it would have to wait in the
    queue, and neither a person nor the configuration has said that it may."""
    may_wait = approved or site.params.queue_wait == "act"
    if _elsewhere_reserved(job):
        if without in job.nodes and not may_wait:
            raise Refused("queue_wait", f"job {job.ref} has to stay in reservation {job.reservation}")
        return []
    wanted = goes_on_with(site, job, cluster, without, taken)
    if len(wanted) < needed(job) and not may_wait:
        raise Refused("queue_wait", f"job {job.ref} needs {needed(job)} nodes, and so many are not to be had")
    firm = [name for name in wanted if not site.kept_spare(name, cluster)]
    for nodes in (wanted, firm):  # where the spares' reservation has no flag `maint`, a spare can be in no other one
        try:
            keep(site, job, nodes, cluster)
            return wanted
        except Refused:
            if nodes == firm and not may_wait:
                raise
    return wanted


def take_spare(site: Site, job: SlurmJob, spare: str, cluster: Cluster) -> None:
    """The spare has left the spares, for the job that waits: it is among the nodes that are kept, and no more than it needs are."""
    kept = cluster.reservations.get(job_reservation(job))
    others = [name for name in (kept.nodes if kept is not None else ()) if name != spare]
    wanted = [spare, *sorted(others, key=lambda name: site.kept_spare(name, cluster))][: max(1, needed(job))]
    if kept is None or set(wanted) != set(kept.nodes):
        keep(site, job, wanted, cluster)


def clear_away(site: Site, cluster: Cluster) -> Cluster:
    """Lets go of what is kept for jobs that have ended or run again: a Greylag that died, or a person, left it behind. It would end
    by itself, but others may need it now. The cluster without it."""
    jobs = {job_reservation(job): job for job in cluster.jobs}
    left = [name for name in sorted(cluster.reservations) if name.removeprefix(KEPT).isdigit()
            and (name not in jobs or jobs[name].over or _runs_again(jobs[name], cluster))]
    for name in left:
        let_nodes_go(site, jobs.get(name, SlurmJob(int(name.removeprefix(KEPT)))), cluster)
    return replace(cluster, reservations={name: one for name, one in cluster.reservations.items() if name not in left})


def _runs_again(job: SlurmJob, cluster: Cluster) -> bool:
    """It was stopped and has started; on a node that is out it may be about to be stopped once more."""
    trace = read_trace(job.admin_comment)
    runs = "RUNNING" in job.states and "COMPLETING" not in job.states
    again = runs and trace is not None and job.restarts > numbers_of(trace).get("restarts", job.restarts)
    return again and not any("DRAIN" in cluster.nodes[name].flags for name in job.nodes if name in cluster.nodes)


def let_nodes_go(site: Site, job: SlurmJob, cluster: Cluster | None) -> None:
    """The job runs again, or has ended: nothing is kept for it any more. cluster None: a reservation was made just now. What
    Slurm refuses here ends by itself in time."""
    name = job_reservation(job)
    if cluster is None or name in cluster.reservations:
        with contextlib.suppress(Refused):
            if job.reservation == name and not job.over:
                site.scheduler.set_job(job.id, "reservationname=")  # else the reservation would count as in use
            site.scheduler.free_reservation(name)


# --- stopping -----------------------------------------------------------------------------------------------------------
def stop(site: Site, job: SlurmJob, action_id: str, word: str, since: int | None = None) -> None:
    """Notes why, then puts the job back into the queue, held. since: as `write_note`."""
    before = read_trace(job.admin_comment)
    known = numbers_of(before) if before is not None and before.id == action_id else {}
    write_note(site, job, action_id, word, known.get("restarts", job.restarts), known.get("nodes", job.node_count),
               known.get("before", since))
    site.scheduler.stop(job.id)


def write_note(site: Site, job: SlurmJob, action_id: str, word: str, restarts: int, nodes: int, since: int | None = None,
               to: int | None = None) -> None:
    """Our part of the administrators' comment; what others wrote there stays behind it. since: what was saved after it (ms) is
    not to be loaded. to: how many nodes it is to have."""
    ours, _, others = job.admin_comment.partition(" | ") if read_trace(job.admin_comment) else ("", "", job.admin_comment)
    rest = [f"restarts={restarts}", f"nodes={nodes}"] + [f"{k}={v}" for k, v in (("before", since), ("to", to)) if v is not None]
    text = write_trace(action_id, word, " ".join(rest))
    if ours != text:
        site.scheduler.note(job.id, f"{text} | {others}" if others else text)


def numbers_of(trace: Trace) -> dict[str, int]:
    return {key: int(value) for key, value in _NUMBER.findall(trace.rest)}


# --- from before a NaN -------------------------------------------------------------------------------------------------
def _distrusted_since(action: Action, job: SlurmJob) -> int | None:
    """Since when (ms) the job's saves are not to be loaded; None where all may be. Raises Refused where the job would not listen."""
    before = action.args.get("before")
    if before is None:
        return None
    if told(job, "resumes") != "before":
        raise Refused("not_supported", f"job {job.ref} does not say greylag.resumes=before: it would load the newest checkpoint")
    try:
        return parse_rfc3339(str(before))
    except ValueError:
        raise Refused("not_supported", f"{before} is no time") from None


def _knows(job: SlurmJob, since: int | None) -> bool:
    """The job's comment says what it must not load."""
    return since is None or any(word.partition("/")[0] == rfc3339(since) for word in _DISTRUSTED.findall(job.comment))


def _comment(site: Site, job: SlurmJob, since: int) -> str:
    """The job's own comment, and that what it saved since then, until it was stopped, is not to be loaded."""
    rest = [word for word in _DISTRUSTED.findall(job.comment) if word.partition("/")[0] != rfc3339(since)]
    words = [*rest, f"{rfc3339(since)}/{rfc3339(site.now())}"][-MOST_DISTRUSTED:]
    return " ".join((_DISTRUSTED.sub("", job.comment), *(f"{DISTRUSTS}={word}" for word in words))).strip()


def set_aside(site: Site, trace: Trace, cluster: Cluster) -> bool:
    """Turns our hold on the jobs that were stopped for this action into a begin time: whatever becomes of Greylag and of the
    attempt, they start by themselves after hold_minutes. False while one of them has not stopped yet."""
    stopped = [job for job in cluster.jobs if (mine := read_trace(job.admin_comment)) is not None and mine.id == trace.id and job.held]
    if any(job.on_nodes for job in stopped):
        return False
    for job in stopped:
        name = job_reservation(job)
        mine_too = [f"reservationname={name}"] if name in cluster.reservations and job.reservation != name else []
        site.scheduler.set_job(job.id, *mine_too, f"starttime=now+{max(1, round(site.params.hold_minutes * 60))}")
        site.scheduler.release(job.id)
    return True


# --- resume_job -----------------------------------------------------------------------------------------------------------
def begin_resume(site: Site, action: Action, cluster: Cluster) -> Word:
    """Requeues the job, or lets go one that we stopped. Raises Refused."""
    job = find(site, action.target.job, cluster.jobs)
    cluster = clear_away(site, cluster)
    trace = read_trace(job.admin_comment)
    known = numbers_of(trace) if trace is not None else {}
    before, nodes = known.get("restarts", job.restarts), known.get("nodes", job.node_count)
    stopped = trace is not None and trace.word in STOPPED and trace.id.partition("/")[0] == action.incident and job.restarts == before + 1
    since = _distrusted_since(action, job)
    if stopped and "RUNNING" in job.states and not job.held and _knows(job, since):
        return Word("DONE", "already_so", f"job {job.ref} started again by itself")
    if stopped:
        return _go_on(site, action.id, job, cluster, before, nodes, since)
    if job.held:
        raise Refused("job_held", f"job {job.ref} is held ({job.reason})")
    reason = may_not_stop(job, site.params.opt_in)
    if reason is not None:
        raise Refused(reason, f"job {job.ref}")
    if job.waits and since is not None:
        return _go_on(site, action.id, job, cluster, job.restarts - 1, job.node_count, since)
    if job.waits:  # Slurm requeued it by itself: it is only watched
        write_note(site, job, action.id, "released", job.restarts - 1, job.node_count)
        return Word("RUNNING", "in_queue", f"job {job.ref} waits: {job.reason}")
    keep_or_ask(site, job, cluster, None, action.reason == "approved")
    stop(site, job, action.id, "resume", since)
    return RUNS


def _go_on(site: Site, action_id: str, job: SlurmJob, cluster: Cluster, restarts: int, nodes: int, since: int | None) -> Word:
    """Takes over a job that was stopped before."""
    write_note(site, job, action_id, "resume", restarts, nodes, since)
    text = f"restarts={restarts} nodes={nodes}" + ("" if since is None else f" before={since}")
    return go_on_resume(site, Trace(action_id, "resume", text), job, cluster)


def go_on_resume(site: Site, trace: Trace, job: SlurmJob, cluster: Cluster) -> Word:
    """One step further towards the job running again."""
    known = numbers_of(trace)
    before = known.get("restarts", job.restarts)
    if trace.word == "resumed":
        return DONE
    if job.over:
        let_nodes_go(site, job, cluster)
        return Word("FAILED", "job_ended", f"job {job.ref} is {job.state.lower()}")
    if job.states & {"COMPLETING", "STAGE_OUT"}:
        return RUNS
    if job.waits and trace.word == "resume":
        return _let_go(site, trace, job, cluster, known.get("nodes", job.node_count))
    if job.held:
        raise Refused("job_held", f"job {job.ref} is held ({job.reason})")
    if job.waits:
        if job.reservation.startswith(MINE) and job.reservation not in cluster.reservations:
            site.scheduler.set_job(job.id, "reservationname=")  # it has run out: the job must not wait for it
        return Word("RUNNING", "in_queue", f"job {job.ref} waits: {job.reason}")
    since = known.get("before")
    if job.restarts > before and not _knows(job, since):  # it started by itself, from whatever it found
        stop(site, job, trace.id, "resume", since)
        return RUNS
    if job.restarts > before:
        if "RUNNING" not in job.states:
            return RUNS
        let_nodes_go(site, job, cluster)
        write_note(site, job, trace.id, "resumed", before, known.get("nodes", job.node_count), since)
        return Word("DONE", "done", f"job {job.ref} runs on {join(job.nodes)}")
    stop(site, job, trace.id, trace.word)  # noted and not stopped yet
    return RUNS


def _let_go(site: Site, trace: Trace, job: SlurmJob, cluster: Cluster, needs: int) -> Word:
    """Excludes what we hold for the incident, fills the reservation up, and releases the job."""
    incident = trace.id.partition("/")[0]
    bad = [name for name, node in cluster.nodes.items() if site.ours(node, cluster)
           and (mine := site.trace(node)) is not None and mine.id.partition("/")[0] == incident]
    kept = cluster.reservations.get(job_reservation(job))
    # A spare that is among the spares still was not needed. With `ignore_jobs` a node is kept that another job got just before.
    have = [name for name in usable(site, kept.nodes if kept is not None else (), cluster)
            if not site.kept_spare(name, cluster) and not cluster.on(name)][:needs]
    more = [name for name in idle(site, job, cluster) if name not in have][: needs - len(have)]
    words = [f"excnodelist={join((*job.excluded, *bad))}"] if bad else []
    known = numbers_of(trace)
    if "before" in known:
        words.append(f"comment={_comment(site, job, known['before'])}")
    if not _elsewhere_reserved(job):
        name = job_reservation(job) if kept is not None else ""
        if kept is not None and not have and not more:
            let_nodes_go(site, job, cluster)
            name = ""
        with contextlib.suppress(Refused):
            keep(site, job, (*have, *more), cluster)
            name = job_reservation(job) if have or more else ""
        if name != job.reservation:
            words.append(f"reservationname={name}")
    # Slurm itself would wait two minutes (the life of a credential). A node refuses a credential that is not younger than the
    # end of the job's last run there ("Job credential revoked"), and Slurm then gives the job up: clocks must not be that far apart.
    site.scheduler.set_job(job.id, *words, f"starttime=now+{max(2, round(site.params.restart_after_seconds))}")
    site.scheduler.release(job.id)
    write_note(site, job, trace.id, "released", known.get("restarts", job.restarts - 1), needs, known.get("before"))
    missing = needs - len(have) - len(more)
    return Word("RUNNING", "in_queue", f"job {job.ref} waits for {missing} more nodes" if missing > 0 else None)


# --- restart_process ------------------------------------------------------------------------------------------------------
def begin_restart(site: Site, action: Action, cluster: Cluster) -> Word:
    """Sends the configured signal to the job's batch script, which starts its processes anew. Raises Refused."""
    if not site.params.restart_signal:
        raise Refused("not_supported", "restart_signal is not configured")
    if action.args.get("before") is not None:
        raise Refused("not_supported", "what is signalled goes on to save meanwhile: from before a NaN it takes resume_job")
    job = find(site, action.target.job, cluster.jobs)
    reason = may_not_stop(job, site.params.opt_in)
    if reason is not None:
        raise Refused(reason, f"job {job.ref}")
    if "RUNNING" not in job.states:
        raise Refused("target_busy", f"job {job.ref} is {job.state.lower()}")
    write_note(site, job, action.id, "signalling", job.restarts, job.node_count)
    site.scheduler.signal(job.id, site.params.restart_signal)
    write_note(site, job, action.id, "signalled", job.restarts, job.node_count)
    return DONE


def go_on_restart(trace: Trace) -> Word:
    """A signal is not sent twice: where nobody knows whether it was sent, that is the answer."""
    return DONE if trace.word == "signalled" else Word("FAILED", "outcome_unknown")
