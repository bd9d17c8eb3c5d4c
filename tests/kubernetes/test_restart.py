"""resume_job: Jobs, JobSets and PyTorchJobs stop and start again by their own controllers, and only those that opted in."""

from __future__ import annotations

import pytest

from core.errors import Unavailable
from remediation.backends import kubernetes_work as work
from tests.kubernetes.site import Site, action

KINDS = {"Job": "job", "JobSet": "jobset", "PyTorchJob": "pytorch"}


def made(kind: str, **more) -> Site:
    """A job of four pods on n1..n4."""
    site = Site(spares=0, nodes=5, **more.pop("params", {}))
    getattr(site, KINDS[kind])(**more)
    return site


def resume(name: str = "inc-1/1/1", job: str = "train", **args):
    return action("resume_job", name=name, job=job, **args)


def uids(site: Site) -> set[str]:
    return {p["metadata"]["uid"] for p in site.cluster.all("Pod")}


def suspend_of(site: Site, kind: str):
    spec = site.cluster.get(kind, "train", "ml")["spec"]
    return spec["runPolicy"].get("suspend") if kind == "PyTorchJob" else spec.get("suspend")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_stops_whole_and_starts_whole(kind):
    """suspend, all pods gone, resume, all pods there: all of them new, off the node that is out, no failure counted."""
    site = made(kind)
    before = uids(site)
    site.do(action("exclude_node", name="inc-1/1/1"))
    told = site.door.submit(resume("inc-1/1/2"))
    assert (told.state, suspend_of(site, kind)) == ("RUNNING", True)
    told = site.do(resume("inc-1/1/2"))
    assert (told.state, told.reason, told.detail) == ("DONE", "done", "4 of 4 pods run")
    assert suspend_of(site, kind) is False
    assert before.isdisjoint(uids(site))
    assert site.where() == {"n2", "n3", "n4", "n5"}
    assert sum(j["status"].get("failed", 0) for j in site.cluster.all("Job")) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_process_goes_on(kind):
    """Greylag dies between suspend and resume: the next one finds the entry on the job and resumes it."""
    site = made(kind)
    site.door.submit(resume())
    site.restart()
    assert site.door.poll("inc-1/1/1").state == "RUNNING"
    site.pass_time(30)
    site.restart()
    site.door.poll("inc-1/1/1")
    assert suspend_of(site, kind) is False
    site.pass_time(15)
    site.restart()
    assert site.door.poll("inc-1/1/1").state == "DONE"


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_did_not_opt_in_is_not_touched(kind):
    """Refused by name, and not a field of it is changed."""
    site = made(kind, opted=False)
    before = site.cluster.get(kind, "train", "ml")
    assert site.door.submit(resume()).reason == "not_opted_in"
    assert site.cluster.get(kind, "train", "ml") == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_somebody_suspended_stays_so(kind):
    """Another hand holds it."""
    site = made(kind)
    job = site.cluster.get(kind, "train", "ml")
    site.cluster.change(job, lambda o: (o["spec"]["runPolicy"] if kind == "PyTorchJob" else o["spec"]).update(suspend=True))
    site.pass_time(30)
    assert site.door.submit(resume()).reason == "job_held"
    assert suspend_of(site, kind) is True


def test_another_hand_that_resumes_or_suspends_in_the_middle():
    """Stand down, in both halves of the restart."""
    site = made("Job")
    site.door.submit(resume())
    site.cluster.change(site.cluster.get("Job", "train", "ml"), lambda o: o["spec"].update(suspend=False))
    assert site.door.poll("inc-1/1/1").reason == "job_held"
    site = made("Job")
    site.door.submit(resume())
    site.pass_time(30)
    site.cordon("n4")
    site.cordon("n5")
    site.door.poll("inc-1/1/1")
    site.cluster.change(site.cluster.get("Job", "train", "ml"), lambda o: o["spec"].update(suspend=True))
    told = site.door.poll("inc-1/1/1")
    assert (told.state, told.reason) == ("FAILED", "job_held")
    assert suspend_of(site, "Job") is True


def test_a_job_is_never_left_suspended():
    """A pod that does not stop in time: the restart fails, and the job is resumed as it was."""
    site = made("JobSet")
    site.controllers.stopped.add("kubelet")
    told = site.do(resume(deadline=60.0), seconds=200)
    assert (told.state, told.reason) == ("FAILED", "deadline_exceeded")
    assert suspend_of(site, "JobSet") is False


@pytest.mark.parametrize(("kind", "end"), [("Job", "DONE"), ("JobSet", "DONE"), ("PyTorchJob", "FAILED")])
def test_a_pod_on_a_dead_node_holds_up_only_what_cannot_do_without_its_name(kind, end):
    """n1 is silent: its pod never says that it stopped. Job and JobSet start another; the training operator cannot."""
    site = made(kind)
    site.ready("n1", "Unknown")
    site.do(action("exclude_node"))
    assert site.do(resume("inc-1/1/2", deadline=300.0), seconds=600).state == end
    assert suspend_of(site, kind) is False


def test_parts_that_have_succeeded_are_not_waited_for():
    """An initializer that ran before the trainer starts no more; an index of a Job that is done neither."""
    jobset = {"kind": "JobSet", "spec": {"replicatedJobs": [
        {"name": "init", "replicas": 1, "template": {"spec": {"parallelism": 1}}},
        {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3}}}]},
        "status": {"replicatedJobsStatus": [{"name": "init", "succeeded": 1}]}}
    assert work.wanted_pods(jobset) == 6
    assert work.wanted_pods({"kind": "Job", "spec": {"parallelism": 4, "completions": 5}, "status": {"succeeded": 3}}) == 2


IGNORES = {"rules": [{"action": "FailJob", "onExitCodes": {}}, {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


@pytest.mark.parametrize(("spec", "failed", "most", "restarts", "ends"), [
    ({}, 0, None, 0, False), ({}, 6, None, 0, True), ({"backoffLimit": 0}, 0, None, 0, True), ({"backoffLimit": 3}, 2, None, 0, False),
    ({"backoffLimit": 0, "podFailurePolicy": IGNORES}, 0, None, 0, False),
    ({"backoffLimitPerIndex": 0, "backoffLimit": 2147483647}, 0, None, 0, True), ({"backoffLimitPerIndex": 1}, 9, None, 0, False),
    ({"backoffLimit": 0}, 0, 3, 2, False), ({"backoffLimit": 0}, 0, 3, 3, True), ({"backoffLimit": 0}, 0, 0, 0, True),
])
def test_when_losing_a_pod_ends_the_job(spec, failed, most, restarts, ends):
    """No retries left, and the Job counts a disruption as a failure; of a JobSet also no restarts left. most None = a plain Job."""
    job = {"kind": "Job", "spec": spec, "status": {"failed": failed}}
    if most is None:
        assert work.would_end(job, None) is ends
    else:
        owner = {"kind": "JobSet", "spec": {"failurePolicy": {"maxRestarts": most}}, "status": {"restarts": restarts}}
        assert work.would_end(owner, job) is ends


def test_a_job_that_waits_in_the_queue_says_so():
    """No room for its pods: RUNNING in_queue, and at the deadline it fails by that name."""
    site = made("Job")
    for name in ("n1", "n5"):
        site.cordon(name)
    site.door.submit(resume(deadline=300.0))
    site.pass_time(30)
    site.door.poll("inc-1/1/1")
    site.pass_time(15)
    told = site.door.poll("inc-1/1/1")
    assert (told.state, told.reason, told.detail) == ("RUNNING", "in_queue", "3 of 4 pods run")
    site.pass_time(300)
    assert site.door.poll("inc-1/1/1").reason == "in_queue"
    assert site.door.poll("inc-1/1/1").state == "FAILED"


@pytest.mark.parametrize("kind", KINDS)
def test_where_kueue_queues_the_job_its_suspend_is_left_alone(kind):
    """The pods, or a JobSet's child jobs, are deleted, and the controller makes them anew."""
    site = made(kind, **{"kueue.x-k8s.io__queue_name": "gpu"})
    before = uids(site)
    told = site.do(resume())
    assert (told.state, suspend_of(site, kind) or False) == ("DONE", False)
    assert before.isdisjoint(uids(site))
    patched = {row[1] for row in site.cluster.log if row[0] == "patch"}
    assert patched == {{"Job": "jobs", "JobSet": "jobsets", "PyTorchJob": "pytorchjobs"}[kind]}


def test_a_job_that_another_controller_made_is_restarted_by_its_parts():
    """A TrainJob owns the JobSet and its suspend; the JobSet's child jobs are deleted."""
    site = made("JobSet")
    site.cluster.get("JobSet", "train", "ml")["metadata"]["ownerReferences"] = [
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "train", "uid": "t", "controller": True}]
    before = uids(site)
    assert site.do(resume()).state == "DONE"
    assert before.isdisjoint(uids(site))
    assert site.cluster.get("JobSet", "train", "ml")["metadata"]["generation"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_partial_moves_only_what_stands_on_nodes_that_are_out(kind):
    """Three pods keep running; the fourth starts elsewhere."""
    site = made(kind)
    site.do(action("exclude_node"))
    before = uids(site)
    assert site.do(resume("inc-1/1/2", mode="partial")).state == "DONE"
    assert len(before & uids(site)) == 3
    assert site.where() == {"n2", "n3", "n4", "n5"}


def test_partial_of_a_job_that_is_whole_is_done_at_once():
    """Nothing to move."""
    site = made("JobSet")
    before = uids(site)
    assert site.door.submit(resume(mode="partial")).state == "DONE"
    assert uids(site) == before


@pytest.mark.parametrize(("asked", "reason"), [("nosuch", "job_unknown"), ("", "job_unknown"), ("other/train", "job_unknown"),
                                               ("train", "job_ambiguous"), ("ml/train", None), ("llama", None), ("greylag/llama", None)])
def test_a_job_is_named_by_name_namespace_or_label(asked, reason):
    """A name that two jobs have is nobody's; children of a JobSet are no jobs of their own."""
    site = Site(nodes=6, spares=0)
    site.jobset(pods=1)
    site.job(pods=1, namespace="default")
    site.pytorch("long-name-1", pods=1, namespace="greylag", **{"greylag.io__job": "llama"})
    told = site.door.submit(resume(job=asked)) if asked else site.door.submit(action("resume_job"))
    assert (told.reason if told.state == "REFUSED" else None) == reason
    assert site.door.submit(resume("inc-1/1/3", job="train-w-0")).reason == "job_unknown"


def test_without_the_crds_there_are_only_jobs():
    """A cluster without JobSet and the training operator answers their paths with a plain 404."""
    site = made("Job")
    site.cluster.absent = {"jobsets", "pytorchjobs"}
    assert site.do(resume()).state == "DONE"
    assert site.door.poll("inc-9/1/1").reason == "unknown_operation"


def test_a_job_that_has_ended_is_not_started_again():
    """Refused before, and failed in the middle."""
    site = made("Job")
    for pod in site.cluster.all("Pod"):
        site.controllers.end_pod(pod, 0)
    site.controllers.run()
    assert site.door.submit(resume()).reason == "job_ended"
    site = made("JobSet")
    site.door.submit(resume())
    site.cluster.change(site.cluster.get("JobSet", "train", "ml"),
                        lambda o: o["status"].update(conditions=[{"type": "Failed", "status": "True"}]))
    told = site.door.poll("inc-1/1/1")
    assert (told.state, told.reason) == ("FAILED", "job_ended")


def test_a_job_that_was_deleted():
    """Named."""
    site = made("JobSet")
    site.door.submit(resume())
    site.cluster.remove(site.cluster.get("JobSet", "train", "ml"))
    assert site.door.poll("inc-1/1/1").reason == "job_unknown"


@pytest.mark.parametrize("mode", ["fast", 3, None])
def test_a_mode_that_is_none_is_refused(mode):
    """full and partial are known."""
    assert made("Job").door.submit(resume(mode=mode)).reason == "not_supported"


def test_a_job_is_told_to_load_an_older_save_where_it_listens():
    """`before` is an annotation that comes with the restart and goes with the next one; else it is refused."""
    when = "2027-01-15T07:00:00.000Z"
    assert made("JobSet").door.submit(resume(before=when)).reason == "not_supported"
    site = made("JobSet")
    job = site.cluster.get("JobSet", "train", "ml")
    site.cluster.change(job, lambda o: o["metadata"].update(annotations={"greylag.io/resumes-before": "true"}))
    assert site.do(resume(before=when)).state == "DONE"
    assert site.cluster.get("JobSet", "train", "ml")["metadata"]["annotations"]["greylag.io/resume-before"] == when
    assert site.do(resume("inc-1/2/1")).state == "DONE"
    assert "greylag.io/resume-before" not in site.cluster.get("JobSet", "train", "ml")["metadata"]["annotations"]


def test_a_lost_answer_does_not_restart_twice():
    """The suspend arrived, its answer did not."""
    site = made("JobSet")
    site.wire.lose = 1
    with pytest.raises(Unavailable):
        site.door.submit(resume())
    assert site.do(resume()).state == "DONE"
    assert site.cluster.get("JobSet", "train", "ml")["metadata"]["generation"] == 3  # made, suspended, resumed


def test_only_the_namespaces_that_are_configured():
    """A job elsewhere is not known."""
    site = made("JobSet", params={"namespaces": ("default",)})
    assert site.door.submit(resume()).reason == "job_unknown"
    assert site.door.submit(resume("inc-1/1/2", job="ml/train")).reason == "job_unknown"
