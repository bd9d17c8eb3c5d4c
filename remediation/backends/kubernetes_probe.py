"""diagnose and reset_gpu: Jobs of our own that run on one node that is out of service, and what their output says.

One Job for each test, one after another, named after the action and the test, so that a repeated ask finds the first one.
The pods tolerate the cordon and our taint, carry no service account token unless one is named, and are left to be looked at
for a day.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

from core.clock import rfc3339
from core.types import Action
from remediation.backends import kubernetes_nodes as nodes_
from remediation.backends import kubernetes_work as work_
from remediation.backends.kubernetes_api import Api, ApiConflict, ApiMissing
from remediation.backends.kubernetes_nodes import Entry, Obj
from remediation.backends.kubernetes_pair import Partner, avoided
from remediation.backends.kubernetes_setup import Probe, Progress, Refuse, Setup
from remediation.backends.kubernetes_view import KubernetesView
from remediation.diagnose import conclude
from remediation.diagnose_output import TestResult, read_output

KEEP_SECONDS = 86_400
EARLIER_SECONDS = 60  # a Job ends itself before the action's deadline, so that its end can still be read
GPU_COUNT = "nvidia.com/gpu.count"  # label of GPU feature discovery
FILLED = ("level", "device", "gpus", "pause_monitoring")
SERVES = "-peer"  # of the name of the Job on the other node of a test
RESET_WORDS = ("gpu_in_use", "reset_needs_all")  # what a reset's last line may say


class OnNode:
    """What both kinds share: the node is empty, and a Job runs on it."""

    subject = "node"

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        self.api, self.setup, self.view = api, setup, view

    @property
    def probe(self) -> Probe:
        """How its Jobs look."""
        return self.setup.diagnose

    def empty(self, node: Obj) -> None:
        """Raises Refuse where jobs are on the node, or could come while the test runs."""
        spare = self.setup.spare_label in nodes_.labels(node)
        if not (nodes_.ours(node) or spare) or self.view.busy_pods(node):
            raise Refuse("not_drained")

    def taken_over(self, node: Obj) -> bool:
        """True where another hand has come to the node meanwhile."""
        return nodes_.other_hand(node, self.setup.other_hands) is not None

    def begin_test(self, node: Obj, entry: Entry, test: str, name: str, now: int) -> str:
        """Makes the Job of a test; why that cannot be."""
        command, left = tuple(self.probe.commands[test]), _left(entry, now)
        with suppress(ApiConflict):  # it is there by now
            self.api.create("Job", self.probe.namespace, self.job(node, entry, test, command, name, left))
        return ""

    def run(self, node: Obj, entry: Entry, test: str, now: int) -> tuple[str | None, int | None, str]:
        """(output, exit status, why it did not run) of a test; output None while it runs. Starts it where it has not been."""
        name, space = job_name(entry, test), self.probe.namespace
        try:
            job = {**self.api.get("Job", name, space), "kind": "Job"}
        except ApiMissing:
            why = self.begin_test(node, entry, test, name, now)
            return ("" if why else None), None, why
        if not work_.finished(job):
            return None, None, ""
        pods = self.api.list("Pod", space, {work_.JOB_LABELS[1]: name})
        ended = [p for p in pods if work_.ended(p)]
        if not ended:
            return "", None, _why(job)
        pod = max(ended, key=lambda p: str(p["metadata"].get("creationTimestamp", "")))
        return self.api.log(space, pod["metadata"]["name"]), _exit(pod), ""

    def job(self, node: Obj, entry: Entry, test: str, words: tuple[str, ...], name: str, seconds: int) -> Obj:
        """A Job on the node. words: its command; seconds: the longest that it may run."""
        probe, node_name, command = self.probe, node["metadata"]["name"], list(words)
        for word in FILLED:
            command = [w.replace(f"{{{word}}}", str(entry.more.get(word) or "")) for w in command]
        gpus = probe.gpus if probe.gpus >= 0 else int((node.get("status") or {}).get("allocatable", {}).get(probe.gpu_resource) or 0)
        marks = {work_.DIAGNOSE_LABEL: test}
        keys = ("node.kubernetes.io/unschedulable", self.setup.taint, self.setup.spare_label, probe.gpu_resource, nodes_.HYPERPOD,
                *probe.tolerate)
        container: Obj = {"name": "test", "image": probe.image, "command": command,
                          "resources": {"limits": {probe.gpu_resource: str(gpus)}} if gpus else {},
                          "securityContext": {"privileged": True} if probe.privileged else {"allowPrivilegeEscalation": False}}
        match = [{"key": "metadata.name", "operator": "In", "values": [node_name]}]  # as daemon sets pin their pods
        pod: Obj = {"restartPolicy": "Never", "automountServiceAccountToken": probe.service_account is not None,
                    "containers": [container], "tolerations": [{"key": k, "operator": "Exists"} for k in keys],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": match}]}}}}
        if probe.service_account is not None:
            pod["serviceAccountName"] = probe.service_account
        if probe.host_network:
            pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
        notes = {"greylag.io/action": entry.id, "greylag.io/node": node_name}
        return {"metadata": {"name": name, "labels": marks, "annotations": notes},
                "spec": {"backoffLimit": 0, "completions": 1, "parallelism": 1, "activeDeadlineSeconds": seconds,
                         "ttlSecondsAfterFinished": KEEP_SECONDS,
                         "template": {"metadata": {"labels": marks, "annotations": notes}, "spec": pod}}}

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        """The Job ends itself by its own deadline; the node stays out."""
        return Progress("FAILED", reason)


class Diagnose(OnNode):
    """diagnose: the tests that the action names, read and concluded as everywhere. Argument `avoid`: spares that must not be the
    other node of a test between two."""

    def __init__(self, api: Api, setup: Setup, view: KubernetesView) -> None:
        super().__init__(api, setup, view)
        self.partner = Partner(api, setup, view, self.job)

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        asked = [t.strip() for t in str(action.args.get("tests") or "").split(",") if t.strip()] or list(self.probe.commands)
        if not self.probe.image or not any(t in self.probe.commands for t in asked):
            raise Refuse("not_supported")
        self.empty(node)
        asked, partner = self.partner.choose(node["metadata"]["name"], asked, avoided(action.args), not nodes_.ours(node))
        more = {"tests": asked, "level": action.args.get("level"), "device": action.args.get("device"), "fault": action.args.get("fault")}
        return {}, {**more, "partner": partner} if partner else more

    def begin_test(self, node: Obj, entry: Entry, test: str, name: str, now: int) -> str:
        """One between two nodes begins when the other one serves it."""
        if not entry.more.get("partner") or test not in self.probe.servers:
            return super().begin_test(node, entry, test, name, now)
        address, why = self.partner.address(entry, test, name + SERVES, _left(entry, now))
        if address is not None:
            command = tuple(word.replace("{partner}", address) for word in self.probe.commands[test])
            with suppress(ApiConflict):
                self.api.create("Job", self.probe.namespace, self.job(node, entry, test, command, name, _left(entry, now)))
        return why

    def serving(self, entry: Entry) -> list[str]:
        """Names of the Jobs that serve on the other node."""
        return [job_name(entry, one) + SERVES for one in entry.more.get("tests") or () if one in self.probe.servers]

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        """Runs the next test; when all have ended, the conclusion. A pass is written on the node, with its time."""
        if self.taken_over(node) or not (nodes_.ours(node) or self.setup.spare_label in nodes_.labels(node)):
            self.partner.try_release(entry, self.serving(entry))
            return Progress("FAILED", "other_hand")
        results: list[TestResult] = []
        for test in entry.more.get("tests") or ():
            if test not in self.probe.commands:
                results.append(TestResult(str(test), problem="the backend has no command for it"))
                continue
            output, code, why = self.run(node, entry, test, now)
            if output is None:
                return Progress("RUNNING", "policy", detail=f"{test} runs")
            text = output if test != "exit" else "" if code is None else str(code)
            results.append(TestResult(str(test), problem=why) if why else read_output(test, text, self.probe.need.get(test)))
        self.partner.release(entry, self.serving(entry))
        count = nodes_.labels(node).get(GPU_COUNT, "")
        told = conclude(entry.more.get("fault"), entry.more.get("device"), results, int(count) if count.isdigit() else None)
        passed = {"metadata": {"annotations": {nodes_.CHECKED_AT: rfc3339(now)}}} if told.state == "DONE" else None
        beside = f"; with {entry.more['partner']}" if entry.more.get("partner") else ""
        return Progress(told.state, told.reason, passed, detail=told.detail + beside)

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        """The Jobs end themselves by their own deadlines; the node stays out, the spare is free again."""
        self.partner.try_release(entry, self.serving(entry))
        return super().expire(node, entry, reason)


class ResetGpu(OnNode):
    """reset_gpu: a privileged Job that resets the GPU; its command checks what it must and says why it did not."""

    @property
    def probe(self) -> Probe:
        return self.setup.reset

    def begin(self, node: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        if not self.probe.image or "reset" not in self.probe.commands or not (action.target.device or action.target.id):
            raise Refuse("not_supported")
        every = action.args.get("gpus", "one")
        if every == "all" and not any("{gpus}" in word for word in self.probe.commands["reset"]):
            raise Refuse("reset_needs_all")  # the command knows of one GPU only
        self.empty(node)
        pause = bool(action.args.get("pause_monitoring", True))
        hold = nodes_.held(node)
        marks = nodes_.label_changes(node, hold, self.setup.monitoring_labels) if pause and hold is not None and self.setup.monitoring_labels else {}
        return marks, {"device": action.target.id or action.target.device, "gpus": every, "pause_monitoring": "true" if pause else "false"}

    def advance(self, node: Obj, entry: Entry, now: int) -> Progress:
        """Waits until what watches the GPUs has gone, where labels send it away; then the reset; then the labels go back."""
        if self.taken_over(node) or not nodes_.ours(node):
            return Progress("FAILED", "other_hand", self._watched_again(node))
        there = self._watching(node) if entry.more.get("pause_monitoring") == "true" else []
        if there:
            return Progress("RUNNING", "gpu_in_use", detail=f"{', '.join(there[:3])} still watches the GPUs")
        output, code, why = self.run(node, entry, "reset", now)
        if output is None:
            return Progress("RUNNING", "policy")
        if code == 0:
            return Progress("DONE", "done", self._watched_again(node))
        last = output.strip().splitlines()[-1].strip() if output.strip() else why
        return Progress("FAILED", last if last in RESET_WORDS else "backend_failed", self._watched_again(node), detail=last[:300] or None)

    def expire(self, node: Obj, entry: Entry, reason: str) -> Progress:
        """What was sent away comes back, whatever became of the reset."""
        return Progress("FAILED", reason, self._watched_again(node))

    def _watching(self, node: Obj) -> list[str]:
        """Pods of daemon sets that our labels have sent off the node and that are still there."""
        keys, own = self.setup.monitoring_labels, nodes_.labels(node)
        return [p["metadata"]["name"] for p in self.view.pods(node["metadata"]["name"]) if keys and work_.owner_kind(p) == "DaemonSet" and any(
            key in keys and own.get(key) != value for key, value in (p.get("spec", {}).get("nodeSelector") or {}).items())]

    def _watched_again(self, node: Obj) -> Obj | None:
        hold = nodes_.held(node)
        if hold is None or not any(name in self.setup.monitoring_labels for name in hold.labels):
            return None
        return nodes_.restore_changes(node, hold, self.setup.monitoring_labels)


def job_name(entry: Entry, test: str) -> str:
    """The name of a test's Job: the same for the same action and test."""
    return f"greylag-{hashlib.sha256(entry.id.encode()).hexdigest()[:12]}-{test.replace('_', '-')}"[: 63 - len(SERVES)]


def _left(entry: Entry, now: int) -> int:
    """Seconds that a Job may run, so that its end can still be read."""
    return max(60, (entry.until - now) // 1000 - EARLIER_SECONDS)


def _exit(pod: Obj) -> int | None:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if "exitCode" in ended:
            return int(ended["exitCode"])
    return None


def _why(job: Obj) -> str:
    for one in (job.get("status") or {}).get("conditions") or ():
        if one.get("type") == "Failed":
            return f"its pod did not run: {one.get('reason') or 'failed'}"
    return "its pod is gone"


