"""Which jobs may be stopped: those that said so (or a list did), and that Slurm will start again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from core.errors import Refused
from remediation.backends.slurm_json import Cluster, SlurmJob
from remediation.backends.slurm_site import OptInParams, Site

NO = "greylag=no"
_WORDS = re.compile(r"[\s,;]+")


def opted_in(job: SlurmJob, rules: OptInParams) -> bool:
    """The job's own word, or a list's."""
    words = _WORDS.split(job.comment)
    if NO in words:
        return False
    listed = job.partition in rules.partitions or job.user in rules.users
    return bool(rules.comment and rules.comment in words) or listed or any(fnmatchcase(job.name, one) for one in rules.jobs)


def told(job: SlurmJob, key: str) -> str | None:
    """What the job's comment says for `greylag.<key>=…`; None where it says nothing."""
    start = f"greylag.{key}="
    return next((word.removeprefix(start) for word in _WORDS.split(job.comment) if word.startswith(start)), None)


def may_not_stop(job: SlurmJob, rules: OptInParams) -> str | None:
    """Why the job must not be stopped, requeued or signalled; None where it may be."""
    if not job.clear:
        return "job_unclear"
    if not opted_in(job, rules):
        return "not_opted_in"
    if job.het_id:
        return "het_job"
    if not job.batch:
        return "interactive_job"
    if job.array_id and job.array_task is None:
        return "array_job"
    return None if job.requeue else "not_requeueable"


def find(site: Site, name: str | None, jobs: Sequence[SlurmJob]) -> SlurmJob:
    """The one job that Greylag calls so: `123`, `123_4` for a task of an array, or a name where jobs go by name.

    Raises Refused: job_unknown, job_ended, job_ambiguous, array_job.
    """
    if not name:
        raise Refused("job_unknown")
    if site.params.jobs_by == "name":
        named = [job for job in jobs if job.name == name]
    else:
        named = [job for job in jobs if job.ref == name or str(job.id) == name]
        tasks = [job for job in jobs if job.array_id and str(job.array_id) == name and not job.over]
        if len(tasks) > 1 or any(job.array_task is None for job in tasks):
            raise Refused("array_job")
    if not named:
        raise Refused("job_unknown")
    live = [job for job in named if not job.over]
    if len(live) > 1:
        raise Refused("job_ambiguous")
    if not live:
        raise Refused("job_ended")
    return live[0]


def stoppable(site: Site, node: str, cluster: Cluster) -> tuple[list[SlurmJob], list[tuple[SlurmJob, str]]]:
    """(jobs on the node that may be stopped, the others with the reason why not)."""
    yes: list[SlurmJob] = []
    no: list[tuple[SlurmJob, str]] = []
    for job in cluster.on(node):
        reason = may_not_stop(job, site.params.opt_in)
        if reason is None:
            yes.append(job)
        else:
            no.append((job, reason))
    return yes, no
