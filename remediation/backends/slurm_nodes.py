"""What is done to nodes: drain, exclude, reboot, replace, undrain. Each begins with Slurm's state as it is at that moment."""

from __future__ import annotations

import posixpath

from core.errors import Refused, Unavailable
from core.types import Action
from remediation.backends import slurm_jobs as jobs
from remediation.backends.slurm_commands import call
from remediation.backends.slurm_hosts import join
from remediation.backends.slurm_json import Cluster, SlurmJob, SlurmNode
from remediation.backends.slurm_rules import stoppable, told
from remediation.backends.slurm_site import (
    DONE,
    RUNS,
    Site,
    Trace,
    Word,
    job_reservation,
    read_trace,
    write_trace,
)

PASSED = "diagnosed_passed"
LOOK_SECONDS = 3.0  # for the time of a checkpoint's file, on a file system that may hang


def find(action: Action, cluster: Cluster) -> SlurmNode:
    """The node. Only names that Slurm lists are ever handed to it: `ALL` or `n[1-9]` is none. Raises Refused node_unknown."""
    node = cluster.nodes.get(action.target.node or "")
    if node is None:
        raise Refused("node_unknown", str(action.target.node))
    return node


def _free(site: Site, node: SlurmNode, cluster: Cluster) -> None:
    """Raises Refused where another hand holds the node, or it boots."""
    if site.held_by(node, cluster) is not None and not site.ours(node, cluster):
        raise Refused("other_hand", site.held_by(node, cluster) or "")
    if site.state(node, cluster) in ("rebooting", "provisioning"):
        raise Refused("target_busy", site.state(node, cluster))


def _out(site: Site, node: SlurmNode, cluster: Cluster) -> None:
    """Raises Refused where the node is not ours and empty."""
    _free(site, node, cluster)
    if not site.ours(node, cluster) or site.state(node, cluster) not in ("drained", "down"):
        raise Refused("not_drained", site.state(node, cluster))


# --- drain, exclude_node --------------------------------------------------------------------------------------------------
def begin_drain(site: Site, action: Action, cluster: Cluster) -> Word:
    """Takes the node out. Jobs on it that opted in are stopped and held, their other nodes kept for them; all others are
    waited for. `wait_for: checkpoint`: first the file that the job names as `greylag.checkpoint=/path` has to be written
    anew. Raises Refused before anything is done."""
    node = find(action, cluster)
    _free(site, node, cluster)
    if site.ours(node, cluster) and site.state(node, cluster) == "drained":
        return Word("DONE", "already_so")
    word = "drain_at_checkpoint" if action.args.get("wait_for") == "checkpoint" else "drain"
    word = "drain_waiting" if action.args.get("jobs") == "wait" else word
    cluster = jobs.clear_away(site, cluster)
    stops = stoppable(site, node.name, cluster)[0] if word != "drain_waiting" else []
    taken: set[str] = set()
    try:
        for job in stops:
            taken.update(jobs.keep_or_ask(site, job, cluster, node.name, action.reason == "approved", taken))
        site.scheduler.drain(node.name, write_trace(action.id, word, action.fault or ""))
    except Refused:
        for job in stops:
            if job_reservation(job) not in cluster.reservations:
                jobs.let_nodes_go(site, job, None)
        raise
    if word == "drain":
        for job in stops:
            jobs.stop(site, job, action.id, "drain")
    return RUNS


def go_on_drain(site: Site, trace: Trace, node: SlurmNode, cluster: Cluster) -> Word:
    """DONE when nothing runs on the node any more."""
    if "DRAIN" not in node.flags:
        return Word("FAILED", "other_hand", "somebody took the node back")
    if not site.busy(node, cluster):
        if not jobs.set_aside(site, trace, cluster):
            return RUNS
        jobs.clear_away(site, cluster)  # of jobs that ended before they were stopped
        return DONE
    busy = [job for job in cluster.on(node.name) if not job.held]
    may, may_not = stoppable(site, node.name, cluster)
    if trace.word == "drain_waiting":
        return Word("RUNNING", "waits_for_job", f"job {join(job.ref for job in busy)}") if busy else RUNS
    for job in may:
        if job.held or "COMPLETING" in job.states:
            continue
        if trace.word == "drain_at_checkpoint" and not _saved(site, job, node.reason_at):
            return Word("RUNNING", "waits_for_checkpoint", f"job {job.ref}")
        jobs.stop(site, job, trace.id, "drain")
    waiting = [(job, reason) for job, reason in may_not if "COMPLETING" not in job.states]
    if waiting:
        return Word("RUNNING", "waits_for_job", "; ".join(f"job {job.ref}: {reason}" for job, reason in waiting))
    return RUNS


def _saved(site: Site, job: SlurmJob, since: int) -> bool:
    """The job's checkpoint is newer than the drain, or it is not to be waited for any longer."""
    path = told(job, "checkpoint")
    if path is None or not posixpath.isabs(path) or site.now() - since >= site.params.checkpoint_wait_seconds * 1000:
        return True
    try:
        code, out, _ = call(("stat", "-L", "-c", "%Y", "--", path), {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, LOOK_SECONDS)
    except Unavailable:
        return False
    return code == 0 and out.strip().isdigit() and int(out.strip()) * 1000 > since


def begin_exclude(site: Site, action: Action, cluster: Cluster) -> Word:
    """No new work for the node from now on; what runs there is left alone. Raises Refused."""
    node = find(action, cluster)
    _free(site, node, cluster)
    if site.ours(node, cluster):
        return Word("DONE", "already_so")
    site.scheduler.drain(node.name, write_trace(action.id, "exclude_node", action.fault or ""))
    return DONE


# --- undrain ----------------------------------------------------------------------------------------------------------
def begin_undrain(site: Site, action: Action, cluster: Cluster) -> Word:
    """Gives back what we took out, once a diagnosis has passed. Raises Refused."""
    node = find(action, cluster)
    _free(site, node, cluster)
    if not site.ours(node, cluster):
        return Word("DONE", "already_so")
    trace = site.trace(node)
    if trace is None or trace.word != PASSED:
        raise Refused("not_diagnosed", node.reason)
    if site.state(node, cluster) not in ("drained", "down"):
        raise Refused("target_busy", site.state(node, cluster))
    site.scheduler.resume(node.name)
    return DONE


# --- reboot -----------------------------------------------------------------------------------------------------------
def begin_reboot(site: Site, action: Action, cluster: Cluster) -> Word:
    """Boots an empty node of ours; it comes back down, not in service. Raises Refused."""
    node = find(action, cluster)
    _out(site, node, cluster)
    site.scheduler.reboot(node.name, write_trace(action.id, "reboot", action.fault or ""))
    return RUNS


def go_on_reboot(site: Site, trace: Trace, node: SlurmNode, cluster: Cluster) -> Word:
    """After the boot the node is drained again, so that nothing that Slurm does by itself brings it back."""
    state = site.state(node, cluster)
    if state == "rebooting":
        return RUNS
    if trace.word == "rebooted":
        return DONE
    if "timed out" in node.reason.lower():
        return Word("FAILED", "backend_failed", node.reason)
    if "reboot complete" not in node.reason:
        # Requested and dropped again: by a person, who then holds it, or by a Slurm that was started anew.
        return Word("FAILED", "backend_failed", f"the node is {state} and was not booted")
    if "NOT_RESPONDING" in node.flags:
        return RUNS
    site.scheduler.drain(node.name, write_trace(trace.id, "rebooted"))
    return DONE


# --- replace ----------------------------------------------------------------------------------------------------------
def begin_replace(site: Site, action: Action, cluster: Cluster) -> Word:
    """A spare takes the place of a node that is out: it leaves the spares' reservation, for the job that was stopped where
    there is one. Raises Refused."""
    node = find(action, cluster)
    _out(site, node, cluster)
    cluster = jobs.clear_away(site, cluster)
    free = jobs.spares(site, cluster, jobs.reservations_of(action.incident, cluster))
    avoid = {name.strip() for name in str(action.args.get("avoid") or "").split(",")}  # unchecked, drifted, or under test
    free = [name for name in free if name not in avoid]
    wanted = action.args.get("spare")
    if wanted is not None:
        free = [name for name in free if name == wanted]
    if not free:
        raise Refused("no_spare")
    site.scheduler.drain(node.name, write_trace(action.id, "replace", free[0]))
    return go_on_replace(site, Trace(action.id, "replace", free[0]), node, cluster)


def go_on_replace(site: Site, trace: Trace, node: SlurmNode, cluster: Cluster) -> Word:
    """Takes the spare that was written down, once."""
    spare = trace.rest.split()[0] if trace.rest else ""
    pool = cluster.reservations.get(site.params.spares)
    incident = trace.id.partition("/")[0]
    if pool is not None and spare in pool.nodes:
        rest = [name for name in pool.nodes if name != spare]
        if rest:
            site.scheduler.set_reservation(pool.name, f"nodes={join(rest)}")
        else:
            site.scheduler.free_reservation(pool.name)  # Slurm has no reservation of no nodes
    elif spare not in cluster.nodes:
        return Word("FAILED", "node_unknown", spare)
    for job in cluster.jobs:
        mine = read_trace(job.admin_comment)
        if job.waits and mine is not None and mine.word in jobs.STOPPED and mine.id.partition("/")[0] == incident:
            jobs.take_spare(site, job, spare, cluster)
            break
    return Word("DONE", "done", f"{spare} takes the place of {node.name}")
