"""shrink_job: an elastic PyTorchJob goes on with the workers that have a place, and no other job is touched."""

from __future__ import annotations

import pytest

from tests.kubernetes.site import Site, action

ELASTIC = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
JOB = "inc-1/1/2"


def made(elastic: dict | None = ELASTIC, **more) -> Site:
    """Four workers on n1..n4, no spare; n1 is out."""
    site = Site(spares=0)
    site.pytorch(elastic=elastic, **more)
    site.do(action("exclude_node"))
    return site


def shrink(name: str = JOB, **args):
    return action("shrink_job", name=name, job="train", **args)


def job(site: Site):
    return site.cluster.get("PyTorchJob", "train", "ml")


def workers(site: Site) -> int:
    return job(site)["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]


def test_it_goes_on_without_the_worker_of_the_node_that_is_out():
    """Three workers on the three nodes that are left, also the one whose index was on the bad node; what it was is written down."""
    site = made()
    told = site.do(shrink())
    assert (told.state, told.detail, workers(site), site.where()) == ("DONE", "3 of 3 pods run", 3, {"n2", "n3", "n4"})
    assert job(site)["metadata"]["annotations"]["greylag.io/shrunk-from"] == "4"
    assert {p["metadata"]["name"] for p in site.cluster.all("Pod")} == {f"train-worker-{i}" for i in range(3)}


def test_workers_that_wait_for_a_place_are_let_go():
    """After a drain the evicted one finds no node: the job goes on with those that run."""
    site = Site(spares=0)
    site.pytorch(elastic=ELASTIC)
    site.do(action("drain"))
    assert site.do(shrink()).state == "DONE"
    assert (workers(site), site.where()) == (3, {"n2", "n3", "n4"})


def test_where_all_have_a_place_nothing_changes():
    """It is as wanted already."""
    site = Site()
    site.pytorch(elastic=ELASTIC)
    before = job(site)["spec"]
    assert (site.do(shrink()).state, job(site)["spec"]) == ("DONE", before)


def test_a_second_loss_keeps_the_first_size_in_mind():
    """What people have to put back is what the job had at first."""
    site = made()
    site.do(shrink())
    site.do(action("exclude_node", node="n2", name="inc-2/1/1"))
    assert site.do(shrink("inc-2/1/2")).state == "DONE"
    assert (workers(site), job(site)["metadata"]["annotations"]["greylag.io/shrunk-from"]) == (2, "4")
    site.do(action("exclude_node", node="n3", name="inc-3/1/1"))
    assert site.do(shrink("inc-3/1/2")).reason == "no_spare"
    assert workers(site) == 2


@pytest.mark.parametrize(("kind", "more", "reason"), [
    ("pytorch", {}, "not_supported"), ("job", {}, "not_supported"), ("jobset", {}, "not_supported"),
    ("pytorch", {"elastic": ELASTIC, "opted": False}, "not_opted_in"),
    ("pytorch", {"elastic": {**ELASTIC, "metrics": [{"type": "Resource"}]}}, "job_held"),
    ("pytorch", {"elastic": ELASTIC, "kueue.x-k8s.io__queue_name": "q"}, "job_held"),
    ("pytorch", {"elastic": {**ELASTIC, "minReplicas": 4}}, "no_spare")])
def test_what_may_not_shrink_is_left_alone(kind, more, reason):
    """Not made for it, not opted in, ruled by another controller, or too few would be left."""
    site = Site(spares=0)
    getattr(site, kind)(**more)
    site.do(action("exclude_node"))
    name = {"pytorch": "PyTorchJob", "job": "Job", "jobset": "JobSet"}[kind]
    before = site.cluster.get(name, "train", "ml")
    assert site.door.submit(shrink()).reason == reason
    assert site.cluster.get(name, "train", "ml") == before


def test_another_hand_that_changes_the_size_has_it():
    """Greylag stands down."""
    site = made()
    site.door.submit(shrink())
    site.cluster.change(job(site), lambda o: o["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=4), "ada")
    assert (site.door.poll(JOB).state, site.door.poll(JOB).reason, workers(site)) == ("FAILED", "job_held", 4)


def test_a_new_process_goes_on():
    """From the entry on the job."""
    site = made()
    site.door.submit(shrink())
    site.restart()
    assert site.do(shrink()).state == "DONE"
    site.restart()
    assert site.door.poll(JOB).state == "DONE"


def test_from_before_a_nan_only_where_the_job_listens():
    """As a restart is."""
    site = made()
    assert site.door.submit(shrink(before="2027-01-15T08:00:00Z")).reason == "not_supported"
    site.cluster.change(job(site), lambda o: o["metadata"].setdefault("annotations", {}).update({"greylag.io/resumes-before": "true"}))
    assert site.do(shrink("inc-1/1/3", before="2027-01-15T08:00:00Z")).state == "DONE"
    assert job(site)["metadata"]["annotations"]["greylag.io/resume-before"] == "2027-01-15T08:00:00Z"
