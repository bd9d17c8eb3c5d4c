"""diagnose and reset_gpu: Jobs of our own on a node that is out, and what their output says."""

from __future__ import annotations

import json

import pytest

from remediation.backends.kubernetes_setup import Probe
from tests.kubernetes.fake import Problem
from tests.kubernetes.site import DIAGNOSE, Site, action


def dcgm(**bad: str) -> str:
    """What `dcgmi diag -j` prints, with a log line before it."""
    tests = [{"name": name, "results": [{"entity_group": "GPU", "entity_id": i, "status": bad.get(name, "Pass") if i == 3 else "Pass"}
                                        for i in range(8)]} for name in ("memory", "diagnostic", "targeted_stress", "targeted_power")]
    return "starting\n" + json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "all", "tests": tests}]}})


def made(behaviour, **params) -> Site:
    """n1 is drained by us and empty."""
    site = Site(behaviour=behaviour, **params)
    site.do(action("drain"))
    return site


def diagnose(name: str = "inc-1/1/2", tests: str = "dcgm", **args):
    return action("diagnose", name=name, **{"fault": "thermal_throttle", "device": "3", "tests": tests, "level": 3, "after": None, **args})


@pytest.mark.parametrize(("output", "state", "reason"), [
    (dcgm(), "DONE", "diagnose_refuted"),
    (dcgm(targeted_stress="Fail"), "FAILED", "diagnose_confirmed"),
    (dcgm(memory="Fail"), "FAILED", "diagnose_failed"),
    ("dcgmi: not found", "FAILED", "diagnose_inconclusive"),
    ("", "FAILED", "diagnose_inconclusive"),
])
def test_a_diagnosis_is_read_as_everywhere(output, state, reason):
    """The conclusion is that of remediation.diagnose; a pass is written on the node with its time."""
    site = made(lambda pod: (0, output))
    told = site.do(diagnose())
    assert (told.state, told.reason) == (state, reason)
    assert (site.view.nodes()["n1"].checked_at is not None) == (state == "DONE")


def test_the_job_runs_on_that_node_and_only_there():
    """Pinned as a daemon is, with the cordon tolerated, all GPUs, no token, an end of its own, in Greylag's namespace."""
    site = made(lambda pod: None)
    site.door.submit(diagnose())
    site.controllers.run()
    job, = site.cluster.all("Job")
    pod, = site.cluster.all("Pod")
    assert (job["metadata"]["namespace"], pod["spec"]["nodeName"]) == ("greylag", "n1")
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 1140)
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert pod["spec"]["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}


def test_tests_run_one_after_another_and_all_count():
    """A test that the backend has no command for leaves the diagnosis open, it is no pass."""
    site = made(lambda pod: (0, dcgm()) if pod["metadata"]["labels"]["greylag.io/diagnosis"] == "dcgm" else (0, ""))
    assert site.do(diagnose(tests="dcgm,exit")).reason == "diagnose_refuted"
    assert sorted(j["metadata"]["labels"]["greylag.io/diagnosis"] for j in site.cluster.all("Job")) == ["dcgm", "exit"]
    told = site.do(diagnose("inc-1/1/3", tests="dcgm,nccl"))
    assert (told.reason, told.detail) == ("diagnose_inconclusive", "nccl: the backend has no command for it")


@pytest.mark.parametrize(("code", "reason"), [(0, "no_fault_found"), (1, "diagnose_failed")])
def test_a_check_of_ones_own_counts_by_its_exit_status(code, reason):
    """The tool `exit`."""
    site = made(lambda pod: (code, "whatever"))
    assert site.do(diagnose(tests="exit")).reason == reason


def test_the_level_reaches_the_command():
    """`{level}` is filled in."""
    site = made(lambda pod: (0, ""))
    site.do(diagnose(tests="exit"))
    pod, = site.cluster.all("Pod")
    assert pod["spec"]["containers"][0]["command"] == ["check", "--level", "3"]


def test_a_pod_that_never_runs_is_inconclusive():
    """No image, no room: the Job's own deadline ends it, or ours does; the node stays out."""
    site = made(lambda pod: None)
    site.controllers.stopped.add("scheduler")
    told = site.do(diagnose(), seconds=1500)
    assert (told.state, told.reason) == ("FAILED", "diagnose_inconclusive")
    assert "DeadlineExceeded" in told.detail
    assert site.view.nodes()["n1"].held_by == "greylag"


def test_a_new_process_finds_the_job_that_runs():
    """The same action starts no second one."""
    site = made(lambda pod: None)
    site.door.submit(diagnose())
    site.restart()
    site.door.submit(diagnose())
    site.restart()
    assert site.door.poll("inc-1/1/2").state == "RUNNING"
    assert len(site.cluster.all("Job")) == 1


def test_a_lost_answer_to_the_create_is_no_second_job():
    """The name is that of the action and the test."""
    site = made(lambda pod: None)
    site.cluster.fail["get", "jobs"] = [Problem(404, "NotFound", "not yet")] * 3
    site.door.submit(diagnose())
    site.door.poll("inc-1/1/2")
    assert len(site.cluster.all("Job")) == 1


def test_a_diagnosis_is_no_work():
    """Its pods keep no node busy and are no job of anybody's."""
    site = made(lambda pod: None)
    site.door.submit(diagnose())
    site.controllers.run()
    view = site.view.nodes()["n1"]
    assert (view.state, view.jobs) == ("drained", ())


def test_a_spare_is_diagnosed_where_it_stands():
    """Without a cordon: nothing but what tolerates its taint comes there."""
    site = Site(behaviour=lambda pod: (0, dcgm()))
    told = site.do(action("diagnose", node="s1", tests="dcgm", level=3, fault=None, device=None))
    assert told.state == "DONE"
    assert site.view.nodes()["s1"].checked_at is not None


def test_fewer_gpus_than_the_label_says_is_a_fault():
    """GPU feature discovery's count against DCGM's report."""
    site = made(lambda pod: (0, dcgm()))
    site.patch("n1", lambda o: o["metadata"]["labels"].update({"nvidia.com/gpu.count": "9"}))
    told = site.do(diagnose())
    assert told.state == "FAILED"
    assert "8 of 9 GPUs" in told.detail


@pytest.mark.parametrize(("probe", "tests"), [(Probe(), "dcgm"), (DIAGNOSE, "fio"), (Probe("i", commands={"dcgm": ("x",)}), "exit")])
def test_what_is_not_configured_is_refused(probe, tests):
    """No image, or none of the tests that are asked for."""
    assert made(lambda pod: None, diagnose=probe).do(diagnose(tests=tests)).reason == "not_supported"


def test_a_namespace_that_is_missing_is_the_backends_failure():
    """It says which."""
    site = made(lambda pod: None, diagnose=Probe("i", "nowhere", {"dcgm": ("x",)}))
    told = site.do(diagnose())
    assert (told.state, told.reason) == ("FAILED", "backend_failed")
    assert "nowhere" in told.detail


def test_a_diagnosis_stops_when_the_node_is_not_ours_any_more():
    """A person takes it over."""
    site = made(lambda pod: None)
    site.door.submit(diagnose())
    site.cordon("n1", False)
    assert site.door.poll("inc-1/1/2").reason == "other_hand"


@pytest.mark.parametrize(("code", "log", "state", "reason"), [
    (0, "", "DONE", "done"), (3, "checking\ngpu_in_use", "FAILED", "gpu_in_use"), (4, "reset_needs_all", "FAILED", "reset_needs_all"),
    (1, "boom", "FAILED", "backend_failed")])
def test_a_reset_says_why_it_did_not_happen(code, log, state, reason):
    """The last line of its command, where that is a known word."""
    site = made(lambda pod: (code, log))
    told = site.do(action("reset_gpu", device="3", name="inc-1/1/2"))
    assert (told.state, told.reason) == (state, reason)
    pod, = site.cluster.all("Pod")
    container = pod["spec"]["containers"][0]
    assert (container["command"], container["securityContext"]) == (["reset-gpu", "3", "one", "true"], {"privileged": True})


WATCH = "nvidia.com/gpu.deploy.dcgm-exporter"
SENT_AWAY = {"monitoring_labels": {WATCH: "false"}}


def watched(behaviour) -> Site:
    """n1 is ours, and an exporter that keeps its GPUs in use runs on each node."""
    site = Site(behaviour=lambda pod: behaviour(pod) if "greylag.io/diagnosis" in pod["metadata"].get("labels", {}) else None, **SENT_AWAY)
    site.watcher()
    site.do(action("drain"))
    return site


@pytest.mark.parametrize(("code", "state"), [(0, "DONE"), (1, "FAILED")])
def test_what_watches_the_gpus_is_sent_away_for_a_reset_and_comes_back(code, state):
    """Its label says `false` while the reset runs, and `true` again however it ended; the reset begins when its pod has gone."""
    seen = []

    def resets(pod):
        seen.append([p["metadata"]["name"] for p in site.cluster.all("Pod")
                     if p["spec"].get("nodeName") == "n1" and p["metadata"]["name"].startswith("exporter")])
        return code, ""

    site = watched(resets)
    reset = action("reset_gpu", device="3", name="inc-1/1/2")
    told = site.door.submit(reset)
    assert (told.state, told.reason, told.detail) == ("RUNNING", "gpu_in_use", "exporter-gpu-n1 still watches the GPUs")
    assert site.get()["metadata"]["labels"][WATCH] == "false"
    site.restart()
    assert site.do(reset).state == state
    assert seen == [[]]
    site.pass_time(0)
    assert site.get()["metadata"]["labels"][WATCH] == "true"
    assert site.cluster.get("Pod", "exporter-gpu-n1", "gpu-operator")
    assert site.view.nodes()["n1"].held_by == "greylag"


def test_a_reset_that_comes_to_no_end_leaves_nothing_unwatched():
    """At its deadline the label goes back; without `pause_monitoring` it is not touched."""
    site = watched(lambda pod: None)
    told = site.do(action("reset_gpu", device="3", name="inc-1/1/2", deadline=120.0))
    assert (told.state, site.get()["metadata"]["labels"][WATCH]) == ("FAILED", "true")
    site.door.submit(action("reset_gpu", device="3", name="inc-1/1/3", pause_monitoring=False))
    assert site.get()["metadata"]["labels"][WATCH] == "true"


def test_gpus_that_cannot_be_reset_alone_need_a_command_that_knows_it():
    """`gpus: all` is never done as a reset of one."""
    alone = Probe("i", commands={"reset": ("nvidia-smi", "--gpu-reset", "-i", "{device}")})
    site = made(lambda pod: (0, ""), reset=alone)
    assert site.do(action("reset_gpu", device="3", name="inc-1/1/2", gpus="all")).reason == "reset_needs_all"
    assert site.do(action("reset_gpu", device="3", name="inc-1/1/3", gpus="one")).state == "DONE"


def test_a_reset_needs_a_gpu_and_an_empty_node():
    """not_supported without a device, not_drained with work on the node."""
    site = Site()
    site.jobset()
    assert site.do(action("reset_gpu", name="inc-1/1/2")).reason == "not_supported"
    assert site.do(action("reset_gpu", device="3", name="inc-1/1/3")).reason == "not_drained"
