"""shrink_job: a running job goes on with those of its nodes that are in service.

Slurm gives up nodes of a running job by `scontrol update jobid=… nodelist=…` and kills what ran on them. What happens then is the job's own
affair: its batch script has to start a step anew on the nodes that are left. So a job says that it can, and with how few:
`greylag.shrinks=MIN` in its comment. The node of the batch script cannot be given up. Nothing makes the job larger again.

One note is written, before the command, with the number of nodes that are to be left: without an accounting database Slurm 22.05
takes no change of a job that was resized ("waited 5 seconds for a db_index").
"""

from __future__ import annotations

from core.errors import Refused
from core.types import Action
from remediation.backends.slurm_hosts import join
from remediation.backends.slurm_jobs import numbers_of, usable, write_note
from remediation.backends.slurm_json import Cluster, SlurmJob
from remediation.backends.slurm_rules import find, may_not_stop, told
from remediation.backends.slurm_site import RUNS, Site, Trace, Word

SHRINKS = "shrinks"


def begin(site: Site, action: Action, cluster: Cluster) -> Word:
    """Gives the nodes up that are out. Raises Refused for a job that may not be touched, or could not go on."""
    job = find(site, action.target.job, cluster.jobs)
    reason = may_not_stop(job, site.params.opt_in)
    if reason is not None:
        raise Refused(reason, f"job {job.ref}")
    if action.args.get("before") is not None:
        raise Refused("not_supported", "what runs goes on to save meanwhile: from before a NaN it takes resume_job")
    least = told(job, SHRINKS) or ""
    if not least.isdigit() or not int(least):
        raise Refused("not_supported", f"job {job.ref} does not say greylag.{SHRINKS}=MIN: nothing in it goes on with fewer nodes")
    if "RUNNING" not in job.states:
        raise Refused("target_busy", f"job {job.ref} is {job.state.lower()}")
    stay = usable(site, job.nodes, cluster)
    if len(stay) == len(job.nodes):
        return Word("DONE", "already_so", f"all nodes of job {job.ref} are in service")
    host = job.batch_host or (job.nodes[0] if job.nodes else "")
    if host not in stay:
        raise Refused("not_supported", f"the batch script of job {job.ref} runs on {host}, which is out: it takes resume_job")
    if len(stay) < int(least):
        raise Refused("no_spare", f"job {job.ref} needs {int(least)} nodes, and {len(stay)} are in service")
    write_note(site, job, action.id, "shrinking", job.restarts, job.node_count, to=len(stay))
    site.scheduler.shrink(job.id, join(stay))
    return RUNS


def go_on(site: Site, trace: Trace, job: SlurmJob, cluster: Cluster) -> Word:
    """DONE when it runs on as few nodes; asked again where the command was lost: a list of nodes may be set twice."""
    if job.over or job.waits:
        return Word("FAILED", "job_ended", f"job {job.ref} is {job.state.lower()}: nothing in it went on")
    if "RUNNING" not in job.states:
        return RUNS
    known, stay = numbers_of(trace), usable(site, job.nodes, cluster)
    if len(job.nodes) <= known.get("to", len(stay)):
        return Word("DONE", "done", f"job {job.ref} runs on {join(job.nodes)}, {len(job.nodes)} of {known.get('nodes')} nodes")
    if (job.batch_host or job.nodes[0]) not in stay:
        return Word("FAILED", "not_supported", f"the node of the batch script of job {job.ref} is out by now")
    site.scheduler.shrink(job.id, join(stay))
    return RUNS
