"""resume_job: a Job, JobSet or PyTorchJob is stopped and started again, each by its own controller's way.

`suspend` is the way that all three document: while it is true their controllers delete the pods with their grace and count
no failure; set to false again, all ranks start together. Where Kueue queues the job, `suspend` is Kueue's word: then a
JobSet's child jobs, or the pods, are deleted and their controller makes them anew. Only jobs that opted in are touched, and
none that somebody else has suspended.
"""

from __future__ import annotations

from typing import Any

from core.types import Action
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiMissing
from remediation.backends.kubernetes_nodes import Entry, Obj
from remediation.backends.kubernetes_setup import Progress, Refuse, Setup, with_more
from remediation.backends.kubernetes_view import KubernetesView

UID_CHARS = 8  # of a pod's uid: 2,048 of them stay well below the limit of 256 KiB for annotations
SUSPENDING, DELETING, STARTING = "suspending", "deleting", "starting"


class Restart:
    """resume_job. Arguments: `mode`: full (default) restarts all ranks; partial moves only pods that stand on nodes that are
    out of service, and waits until the job is whole again. `before`: a time (RFC 3339); the job is to load what was saved
    before it, and is told so by an annotation, where it says that it reads that."""

    subject = "job"

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        self.api, self.setup, self.view = api, setup, view

    def begin(self, job: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        """Stops it. Raises Refuse for a job that may not be touched."""
        mode = action.args.get("mode", "full")
        if mode not in ("full", "partial"):
            raise Refuse("not_supported")
        self.view.see_touchable(job)
        told = from_before(job, action.args.get("before"))
        pods = self.view.pods_of(job)
        if mode == "partial":
            out = out_of_service(self.view)
            old = [_uid(p) for p in pods if p.get("spec", {}).get("nodeName") in out]
            return told, {"phase": DELETING, "old": old, "way": "pods"}
        old = [_uid(p) for p in pods]
        if not work_.queued_by_other(job):
            return {**work_.suspend_changes(job, True), **told}, {"phase": SUSPENDING, "old": old}
        if job["kind"] == "JobSet":
            return told, {"phase": DELETING, "old": old, "way": "children", "jobs": [j["metadata"]["uid"] for j in self._children(job)]}
        return told, {"phase": DELETING, "old": old, "way": "pods"}

    def advance(self, job: Obj, entry: Entry, now: int) -> Progress:
        """One look: stopped, started, all there."""
        if work_.finished(job):
            return Progress("FAILED", "job_ended")
        phase, old = entry.more.get("phase"), set(entry.more.get("old") or ())
        if phase == SUSPENDING and not work_.suspended(job):
            return Progress("FAILED", "job_held", detail="another hand resumed it while it was being stopped")
        if phase == SUSPENDING:
            left = self._stopping(job)
            if left:
                return Progress("RUNNING", "policy", detail=f"{len(left)} pods still stop")
            return Progress("RUNNING", "policy", work_.suspend_changes(job, False), with_more(entry, phase=STARTING), repeat=True)
        if work_.suspended(job) and not work_.queued_by_other(job):
            return Progress("FAILED", "job_held", detail="another hand suspended it")
        pods = self._stopping(job)
        there = [p for p in pods if _uid(p) in old]
        if phase == DELETING:
            self._delete(job, entry, there)
        whole, new = work_.wanted_pods(job), work_.running(pods) - work_.running(there)
        if entry.more.get("way") == "pods":  # of a partial restart the others went on
            new = work_.running(pods)
        if not there and new >= whole:
            return Progress("DONE", "done", detail=f"{new} of {whole} pods run")
        return Progress("RUNNING", "in_queue" if not there else "policy", detail=f"{new} of {whole} pods run")

    def expire(self, job: Obj, entry: Entry, reason: str) -> Progress:
        """A job is never left suspended by us."""
        back = entry.more.get("phase") == SUSPENDING and work_.suspended(job)
        return Progress("FAILED", reason, work_.suspend_changes(job, False) if back else None)

    def _stopping(self, job: Obj) -> list[Obj]:
        """The job's pods, without those that were told to stop on a node that does not answer: Job and JobSet start others
        in their place. A PyTorchJob cannot: its pods have fixed names."""
        pods = self.view.pods_of(job)
        if job["kind"] == "PyTorchJob" or not any(work_.leaving(p) for p in pods):
            return pods
        silent = self.view.silent_nodes()
        return [p for p in pods if not (work_.leaving(p) and p.get("spec", {}).get("nodeName") in silent)]

    def _delete(self, job: Obj, entry: Entry, there: list[Obj]) -> None:
        """Asks again for what still has to go: deleting twice does no harm."""
        if entry.more.get("way") == "children":
            first = set(entry.more.get("jobs") or ())
            for child in self._children(job):
                if child["metadata"]["uid"] in first and not work_.leaving(child):
                    self.api.delete("Job", child["metadata"]["namespace"], child["metadata"]["name"])
            return
        for pod in there:
            if not work_.leaving(pod):
                self.api.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _children(self, job: Obj) -> list[Obj]:
        try:
            return self.api.list("Job", job["metadata"]["namespace"], {work_.JOBSET_LABEL: job["metadata"]["name"]})
        except ApiMissing:
            return []


def out_of_service(view: KubernetesView) -> set[str]:
    """Names of the nodes on which nothing new starts, or that do not answer."""
    return {n["metadata"]["name"] for n in view.all_nodes() if nodes_.cordoned(n) or nodes_.ready(n) != "True"}


def from_before(job: Obj, before: object) -> Obj:
    """What tells the job to load an older save; an earlier word of this kind goes. Raises Refuse where it would not listen."""
    listens = nodes_.notes(job).get(work_.RESUMES_BEFORE, "").strip().lower() == "true"
    if before is not None and not listens:
        raise Refuse("not_supported")
    if before is None and work_.RESUME_BEFORE not in nodes_.notes(job):
        return {}
    return {"metadata": {"annotations": {work_.RESUME_BEFORE: None if before is None else str(before)}}}


def _uid(pod: Obj) -> str:
    return str(pod["metadata"]["uid"])[:UID_CHARS]
