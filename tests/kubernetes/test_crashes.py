"""Greylag dies, or an answer is lost, at each single request of each kind of action: it ends as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.errors import Unavailable
from tests.kubernetes.fake import Answer, Request
from tests.kubernetes.site import Site, action
from tests.kubernetes.test_pairs import diagnose as measure
from tests.kubernetes.test_pairs import made as bandwidth
from tests.kubernetes.test_probe import dcgm


class Cut:
    """Cuts the wire at the n-th request: before the server acts, or after."""

    def __init__(self, site: Site, at: int, after: bool) -> None:
        self.site, self.at, self.after, self.count = site, at, after, 0
        self.inner, site.cluster.handle = site.cluster.handle, self.handle  # type: ignore[method-assign]

    def handle(self, request: Request) -> Answer:
        self.count += 1
        if self.count == self.at:
            if self.after:
                self.inner(request)
            raise ConnectionError("cut")
        return self.inner(request)


def prepared(kind: str) -> Site:
    """A cluster in which the action can begin."""
    if kind == "diagnose_pair":
        return paired()
    if kind == "restart_process":
        site = Site(nodes=5)
        site.jobset()
        site.listens("JobSet")
        return site
    watched = {"monitoring_labels": {"nvidia.com/gpu.deploy.dcgm-exporter": "false"}} if kind == "reset_gpu" else {}
    site = Site(nodes=5, behaviour=lambda p: (0, dcgm()) if "greylag.io/diagnosis" in p["metadata"].get("labels", {}) else None, **watched)
    if watched:
        site.watcher()
    queue = {"kueue.x-k8s.io__queue_name": "q"} if kind == "resume_queued" else {}
    if kind == "shrink_job":
        site.pytorch(pods=5, elastic={"minReplicas": 2})
        site.do(action("exclude_node", name="inc-0/1/1"))
        return site
    site.jobset(**queue)
    if kind not in ("drain", "exclude_node", "resume_job", "resume_queued"):
        site.do(action("drain", name="inc-0/1/1"))
    if kind == "undrain":
        site.do(action("diagnose", name="inc-0/1/2", tests="dcgm", level=3, fault=None, device=None))
    return site


def paired() -> Site:
    """n1 is ours, and its test has a spare as the other node."""
    site = bandwidth(391.2)
    site.jobset(pods=3)
    return site


def asked(kind: str) -> Any:
    if kind == "diagnose_pair":
        return measure(name="inc-1/1/1")
    if kind in ("shrink_job", "restart_process"):
        return action(kind, job="train")
    if kind.startswith("resume"):
        return action("resume_job", job="train")
    if kind == "diagnose":
        return action("diagnose", tests="dcgm", level=3, fault=None, device=None)
    return action(kind, device="3" if kind == "reset_gpu" else None)


def ends(site: Site, what: Any) -> str:
    """As the engine does: submit, poll, ask again after what was lost, in a new process each time."""
    tried = False
    for _ in range(60):
        try:
            told = site.door.poll(what.id) if tried else site.door.submit(what)
            if tried and told.reason == "unknown_operation":
                told = site.door.submit(what)
        except Unavailable:
            site.restart()
            tried = True
            continue
        tried = True
        if told.state != "RUNNING":
            return f"{told.state} {told.reason}"
        site.pass_time(15)
        if what.kind == "reboot":
            site.reboots("n1")
    return "never"


def traces(site: Site) -> Any:
    """What was done to the cluster: holds, spares, restarts of the job, Jobs that ran, evictions."""
    node, job = site.get(), site.cluster.get("JobSet", "train", "ml") or site.cluster.get("PyTorchJob", "train", "ml")
    assert job is not None
    return {"spec": node["spec"], "labels": node["metadata"]["labels"], "job": job["spec"], "job_generation": job["metadata"]["generation"],
            "spare": site.get("s1")["spec"], "lent": (site.get("s1")["metadata"].get("annotations") or {}).get("greylag.io/partner-of"), "probes": len([j for j in site.cluster.all("Job") if j["metadata"]["namespace"] == "greylag"]),
            "failed": sum(j["status"].get("failed", 0) for j in site.cluster.all("Job")), "where": site.where()}


def walk(kind: str, step: Callable[[int], bool]) -> tuple[int, list[str]]:
    """(points, what differed) over all requests of the action, cut before and after."""
    undisturbed = prepared(kind)
    counter = Cut(undisturbed, -1, after=False)
    wanted = ends(undisturbed, asked(kind))
    assert wanted.startswith("DONE"), wanted
    expected, wrong, points = traces(undisturbed), [], 0
    for at in range(1, counter.count + 1):
        for after in (False, True):
            if not step(at):
                continue
            points += 1
            site = prepared(kind)
            Cut(site, at, after)
            told = ends(site, asked(kind))
            if told != wanted or traces(site) != expected:
                wrong.append(f"request {at} cut {'after' if after else 'before'}: {told} {traces(site)}")
    return points, wrong


KINDS = ("drain", "exclude_node", "undrain", "replace", "reboot", "diagnose", "diagnose_pair", "reset_gpu", "resume_job", "resume_queued", "shrink_job",
         "restart_process")


@pytest.mark.chaos
@pytest.mark.parametrize("kind", KINDS)
def test_each_request_may_be_the_last(kind):
    """All of them, before and after the server acted."""
    points, wrong = walk(kind, lambda at: True)
    print(f"{kind}: {points} points")
    assert not wrong


@pytest.mark.parametrize("kind", ["drain", "replace", "resume_job"])
def test_some_requests_may_be_the_last(kind):
    """Every fourth of them."""
    _, wrong = walk(kind, lambda at: at % 4 == 0)
    assert not wrong
