"""shrink_job: an elastic PyTorchJob goes on with fewer workers.

The only kind of job that is made for it: its `elasticPolicy` says how few workers it may have, and its launcher (torchrun) takes
in whoever is there. The number of its workers is lowered to those that have a place on nodes in service, as the autoscaler of
that operator does it; the operator ends the pods of the highest indexes, and those that stand on nodes that are out are
deleted, so that their indexes start anew in the room that this leaves. Nothing makes the job larger again: what it was before
stands in an annotation, for people.
"""

from __future__ import annotations

from typing import Any

from core.types import Action
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api
from remediation.backends.kubernetes_nodes import Entry, Obj
from remediation.backends.kubernetes_restart import from_before, out_of_service
from remediation.backends.kubernetes_setup import Progress, Refuse, Setup
from remediation.backends.kubernetes_view import KubernetesView

SHRUNK_FROM = "greylag.io/shrunk-from"  # annotation of a job: how many workers it had


class Shrink:
    """shrink_job. Argument `before`: as of resume_job."""

    subject = "job"

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        self.api, self.setup, self.view = api, setup, view

    def begin(self, job: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        """Lowers the number of workers. Raises Refuse for a job that may not be touched, or could not go on with so few."""
        if not _elastic(job):
            raise Refuse("not_supported")
        self.view.see_touchable(job)
        if work_.queued_by_other(job) or _elastic(job).get("metrics"):
            raise Refuse("job_held")  # Kueue or an autoscaler rules the number of workers
        told = from_before(job, action.args.get("before"))
        have = workers(job)
        fits = min(have, len(self._well(job)) - (work_.wanted_pods(job) - have))
        if fits == have:
            return told, {"to": have}
        if fits < max(1, int(_elastic(job).get("minReplicas") or 1)):
            raise Refuse("no_spare")
        notes = {**((told.get("metadata") or {}).get("annotations") or {})}
        if SHRUNK_FROM not in nodes_.notes(job):
            notes[SHRUNK_FROM] = str(have)
        return {"metadata": {"annotations": notes}, "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": fits}}}}, {"to": fits}

    def advance(self, job: Obj, entry: Entry, now: int) -> Progress:
        """DONE when so many pods run as the job has now, all of them on nodes in service."""
        if work_.finished(job):
            return Progress("FAILED", "job_ended")
        if work_.suspended(job) or workers(job) != entry.more.get("to"):
            return Progress("FAILED", "job_held", detail="another hand suspended it, or changed its number of workers")
        out, pods = out_of_service(self.view), self.view.pods_of(job)
        there = [p for p in pods if p.get("spec", {}).get("nodeName") in out]
        for pod in there:
            if not work_.leaving(pod):
                self.api.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        new, whole = len(self._well(job)), work_.wanted_pods(job)
        if not there and new == whole == len(pods):
            return Progress("DONE", "done", detail=f"{new} of {whole} pods run")
        return Progress("RUNNING", "policy" if there else "in_queue", detail=f"{new} of {whole} pods run")

    def expire(self, job: Obj, entry: Entry, reason: str) -> Progress:
        """The smaller number stays: with the larger one the job would wait for a place."""
        return Progress("FAILED", reason)

    def _well(self, job: Obj) -> list[Obj]:
        """The job's pods that run on nodes in service."""
        out = out_of_service(self.view)
        return [p for p in self.view.pods_of(job) if p.get("spec", {}).get("nodeName") not in out and work_.running([p])]


def _elastic(job: Obj) -> Obj:
    """What a PyTorchJob says of its size; empty for a job that is not elastic."""
    return dict((job.get("spec") or {}).get("elasticPolicy") or {}) if job["kind"] == "PyTorchJob" else {}


def workers(job: Obj) -> int:
    """How many workers a PyTorchJob wants."""
    return int((((job.get("spec") or {}).get("pytorchReplicaSpecs") or {}).get("Worker") or {}).get("replicas", 1))
