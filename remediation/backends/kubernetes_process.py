"""restart_process: a job's launchers end their processes and start them again, in the pods that they have.

Nothing is run in anybody's pod: that would take `pods/exec`, the right to run anything in every pod. Greylag writes one key of one
ConfigMap in the job's namespace, which the pods mount as a volume; the kubelet brings the new text into the running pods by itself
(Kubernetes: "mounted ConfigMaps are updated automatically", within a minute or two), and the job's launcher looks at the file. A job says that it has such a
launcher by an annotation; `sample_data/kubernetes/launcher.sh` is one.
"""

from __future__ import annotations

from typing import Any

from core.types import Action
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiMissing
from remediation.backends.kubernetes_nodes import Entry, Obj
from remediation.backends.kubernetes_setup import Progress, Refuse, Setup
from remediation.backends.kubernetes_view import KubernetesView

RESTARTS = "greylag.io/restarts-processes"  # annotation of a job, `true`: its launchers read ...
CONFIG_MAP = "greylag-restarts"             # ... this ConfigMap of its namespace, the key of its name: another text there = start anew


class RestartProcess:
    """restart_process. DONE when it is written down where the launchers look: that they heard it, the job's own speed shows."""

    subject = "job"

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        self.api, self.setup, self.view = api, setup, view

    def begin(self, job: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        """Nothing is changed yet. Raises Refuse for a job that may not be touched, or that would not listen."""
        if nodes_.notes(job).get(RESTARTS, "").strip().lower() != "true":
            raise Refuse("not_supported")
        if action.args.get("before") is not None:
            raise Refuse("not_supported")  # what is told goes on to save meanwhile: from before a NaN it takes resume_job
        self.view.see_touchable(job)
        if not work_.running(self.view.pods_of(job)):
            raise Refuse("target_busy")  # it starts anyhow
        try:
            self._map(job)
        except ApiMissing:
            raise Refuse("not_supported") from None
        return {}, {}

    def advance(self, job: Obj, entry: Entry, now: int) -> Progress:
        """Writes the action's id; the same text twice is one word."""
        if work_.finished(job):
            return Progress("FAILED", "job_ended")
        found, name = self._map(job), str(job["metadata"]["name"])
        if (found.get("data") or {}).get(name) != entry.id:
            self.api.patch(found, {"data": {name: entry.id}})
        return Progress("DONE", "done", detail=f"{work_.running(self.view.pods_of(job))} pods are told within two minutes")

    def expire(self, job: Obj, entry: Entry, reason: str) -> Progress:
        """Nothing was told, or it was and nobody knows."""
        return Progress("FAILED", reason)

    def _map(self, job: Obj) -> Obj:
        return {**self.api.get("ConfigMap", CONFIG_MAP, job["metadata"]["namespace"]), "kind": "ConfigMap"}
