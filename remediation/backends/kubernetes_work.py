"""The work on a Kubernetes cluster: which pods belong to which job, who opted in, and how each kind of job is restarted.

Pure functions over objects. A job is the outermost thing that a person made: a JobSet, a PyTorchJob or a Job; its pods are
known by the labels that the controllers put on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.clock import parse_rfc3339
from remediation.backends.kubernetes_nodes import Obj, labels, notes

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
PYTORCH_LABEL = "training.kubeflow.org/job-name"
PYTORCH_OPERATOR = ("training.kubeflow.org/operator-name", "pytorchjob-controller")
JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")  # since 1.27, and before
JOB_NAME = "greylag.io/job"  # label of pods, label or annotation of jobs: the name that the trainer's metrics have
DIAGNOSE_LABEL = "greylag.io/diagnosis"
CHECKPOINT_AT = "greylag.io/checkpoint-at"    # annotation of a job that its trainer keeps: when it last saved, RFC 3339
RESUMES_BEFORE = "greylag.io/resumes-before"  # annotation of a job, `true`: it loads only what was saved before the time in …
RESUME_BEFORE = "greylag.io/resume-before"    # … this annotation, which Greylag writes
# A job that Kueue queues: `suspend` is Kueue's word there, so it is restarted by its pods or child jobs.
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
FINISHED_PODS = ("Succeeded", "Failed")
MIRROR = "kubernetes.io/config.mirror"
KINDS = ("JobSet", "PyTorchJob", "Job")


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """A job by its kind and place."""

    kind: str
    namespace: str
    name: str


def work_of(pod: Obj) -> Work | None:
    """The job that a pod belongs to; None for a pod of no job (a service, a daemon, a diagnosis of ours)."""
    own, namespace = labels(pod), str(pod["metadata"].get("namespace", ""))
    if DIAGNOSE_LABEL in own:
        return None
    if own.get(JOBSET_LABEL):
        return Work("JobSet", namespace, own[JOBSET_LABEL])
    if own.get(PYTORCH_LABEL) and own.get(PYTORCH_OPERATOR[0], PYTORCH_OPERATOR[1]) == PYTORCH_OPERATOR[1]:
        return Work("PyTorchJob", namespace, own[PYTORCH_LABEL])
    name = next((own[label] for label in JOB_LABELS if own.get(label)), None)
    return Work("Job", namespace, name) if name else None


def pod_selector(work: Work) -> dict[str, str]:
    """The label that finds all pods of a job."""
    return {{"JobSet": JOBSET_LABEL, "PyTorchJob": PYTORCH_LABEL}.get(work.kind, JOB_LABELS[1]): work.name}


def owner_kind(obj: Obj) -> str | None:
    """The kind of the object's controller."""
    for one in obj["metadata"].get("ownerReferences") or ():
        if one.get("controller"):
            return str(one.get("kind"))
    return None


def ended(pod: Obj) -> bool:
    """True for a pod that will not run again."""
    return (pod.get("status") or {}).get("phase") in FINISHED_PODS


def leaving(pod: Obj) -> bool:
    """True for a pod that is being stopped."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def stays(pod: Obj) -> bool:
    """True for a pod that no drain moves: ended, static, a daemon's, or a diagnosis of ours."""
    return ended(pod) or MIRROR in notes(pod) or owner_kind(pod) == "DaemonSet" or DIAGNOSE_LABEL in labels(pod)


def says_yes(obj: Obj, opt_in: str) -> bool | None:
    """What the opt-in label (or annotation of the same name) says: True, False, or None where there is none."""
    value = labels(obj).get(opt_in, notes(obj).get(opt_in))
    return None if value is None else value.strip().lower() == "true"


def job_ids(works: Iterable[Work], named: Mapping[Work, str] | None = None) -> dict[Work, str]:
    """The job's name as people and trainers say it: its `greylag.io/job`, else its own name; with its namespace in front
    where two jobs would be called the same."""
    plain = {w: (named or {}).get(w) or w.name for w in works}
    often: dict[str, int] = {}
    for name in plain.values():
        often[name] = often.get(name, 0) + 1
    return {w: name if often[name] == 1 else f"{w.namespace}/{name}" for w, name in plain.items()}


def names_of(pods: Iterable[Obj]) -> dict[Work, str]:
    """The jobs of the pods, with the name that the pods' own `greylag.io/job` gives ('' = none)."""
    out: dict[Work, str] = {}
    for pod in pods:
        work = work_of(pod)
        if work is not None:
            out[work] = out.get(work) or labels(pod).get(JOB_NAME, "")
    return out


def called(work: Work, obj: Obj, asked: str) -> bool:
    """True where `asked` names this job."""
    own = labels(obj).get(JOB_NAME) or notes(obj).get(JOB_NAME)
    return asked in (own or work.name, f"{work.namespace}/{work.name}", f"{work.namespace}/{own or work.name}")


def checkpoint_at(obj: Obj) -> int | None:
    """When the job says that it last saved, ms; None where it does not say."""
    try:
        return parse_rfc3339(notes(obj)[CHECKPOINT_AT])
    except (KeyError, ValueError):
        return None


# --- a job's own state -------------------------------------------------------------------------------------------------
def suspended(obj: Obj) -> bool:
    """What the job's suspend field says."""
    spec = obj.get("spec") or {}
    return bool((spec.get("runPolicy") or {}).get("suspend") if obj["kind"] == "PyTorchJob" else spec.get("suspend"))


def suspend_changes(obj: Obj, value: bool) -> Obj:
    """A merge patch of the suspend field."""
    return {"spec": {"runPolicy": {"suspend": value}}} if obj["kind"] == "PyTorchJob" else {"spec": {"suspend": value}}


def finished(obj: Obj) -> bool:
    """True for a job that has succeeded or failed for good."""
    good = {"Job": ("Complete", "Failed"), "JobSet": ("Completed", "Failed"), "PyTorchJob": ("Succeeded", "Failed")}[str(obj["kind"])]
    return any(c.get("type") in good and c.get("status") == "True" for c in (obj.get("status") or {}).get("conditions") or ())


def is_job(obj: Obj) -> bool:
    """True for a job of its own: no part of another one, and no diagnosis of ours."""
    return owner_kind(obj) not in KINDS and DIAGNOSE_LABEL not in labels(obj)


def queued_by_other(obj: Obj) -> bool:
    """True where another controller rules the suspend field: Kueue, or one that made the job (a TrainJob, a workflow)."""
    return KUEUE_LABEL in labels(obj) or owner_kind(obj) is not None


def wanted_pods(obj: Obj) -> int:
    """How many pods the job runs at once; parts that have succeeded (an initializer before the trainer) start no more."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if obj["kind"] == "JobSet":
        done = {str(s.get("name")): int(s.get("succeeded") or 0) for s in status.get("replicatedJobsStatus") or ()}
        return sum(max(0, int(one.get("replicas", 1)) - done.get(str(one.get("name")), 0))
                   * _parallelism((one.get("template") or {}).get("spec") or {}, 0) for one in spec.get("replicatedJobs") or ())
    if obj["kind"] == "PyTorchJob":
        return sum(int(one.get("replicas", 1)) for one in (spec.get("pytorchReplicaSpecs") or {}).values())
    return _parallelism(spec, int(status.get("succeeded") or 0))


def _parallelism(spec: Mapping[str, Any], succeeded: int) -> int:
    at_once, in_all = int(spec.get("parallelism", 1)), spec.get("completions")
    return at_once if in_all is None else max(0, min(at_once, int(in_all) - succeeded))


def running(pods: Iterable[Obj], not_these: Collection[str] = ()) -> int:
    """Pods that run and were not there before (by uid)."""
    return sum((p.get("status") or {}).get("phase") == "Running" and not leaving(p) and p["metadata"]["uid"] not in not_these
               for p in pods)


def would_end(job: Obj, child: Obj | None) -> bool:
    """True where losing one pod would end the job for good, so that an eviction is no move but a kill.

    A pod that is evicted counts as failed, unless the Job's podFailurePolicy ignores the condition DisruptionTarget. A Job
    with no retries left fails with it; a JobSet fails with its Job unless its failure policy has restarts left.
    """
    one = child if child is not None else job
    if one["kind"] != "Job":
        return False  # PyTorchJob: the operator makes a deleted pod anew, whatever its restart policy
    spec, status = one.get("spec") or {}, one.get("status") or {}
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        wanted = [c.get("type") for c in rule.get("onPodConditions") or ()]
        if rule.get("action") == "Ignore" and "DisruptionTarget" in wanted:
            return False
    per_index = spec.get("backoffLimitPerIndex")
    if per_index is not None:
        if int(per_index) > 0:
            return False
    elif int(status.get("failed") or 0) < int(spec.get("backoffLimit", 6)):
        return False
    if job["kind"] != "JobSet":
        return True
    most = int(((job.get("spec") or {}).get("failurePolicy") or {}).get("maxRestarts") or 0)
    return int((job.get("status") or {}).get("restarts") or 0) >= most
