"""A test between two nodes: the accused one and a spare that is lent for as long as it takes."""

from __future__ import annotations

import pytest

from core.errors import ConfigError
from remediation.backends.kubernetes import KubernetesParams, setup_of
from remediation.backends.kubernetes_setup import Probe
from tests.kubernetes.fake import Problem
from tests.kubernetes.site import Site, action

PAIRS = Probe("registry.example/diagnose:1", "greylag",
              {"exit": ("check",), "ib_write_bw": ("ib_write_bw", "--report_gbits", "{partner}")}, {"ib_write_bw": 380.0},
              {"ib_write_bw": ("ib_write_bw", "--report_gbits")}, host_network=True, privileged=True)
BANDWIDTH = """ #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             {0}               {0}             0.7
"""
TEST = "inc-1/1/2"


def diagnose(node: str = "n1", name: str = TEST, tests: str = "ib_write_bw", **args: object):
    return action("diagnose", node=node, name=name, **{"fault": "link_slow", "device": None, "tests": tests, "level": 2, **args})


def made(gbits: float | None = 391.2, **params: object) -> Site:
    """n1 is drained by us. On a spare `ib_write_bw` serves until it is ended; on n1 it measures and ends."""
    def behaves(pod):
        alone = pod["spec"]["containers"][0].get("command") == ["check"]
        client = "10.0.0." in " ".join(pod["spec"]["containers"][0].get("command") or [])
        return (0, "") if alone else (0, BANDWIDTH.format(gbits)) if client and gbits is not None else None

    site = Site(spares=2, behaviour=lambda pod: behaves(pod) if "greylag.io/diagnosis" in pod["metadata"].get("labels", {}) else None,
                **{"diagnose": PAIRS, **params})
    site.do(action("drain", name="inc-0/1/1"))
    return site


def places(site: Site) -> dict[str, str]:
    """Where each of our Jobs' pods runs, by the words of its command."""
    return {" ".join(p["spec"]["containers"][0]["command"]): p["spec"]["nodeName"] for p in site.cluster.all("Pod")
            if "greylag.io/diagnosis" in p["metadata"].get("labels", {})}


@pytest.mark.parametrize(("gbits", "state", "reason"), [(391.2, "DONE", "diagnose_refuted"), (94.1, "FAILED", "diagnose_confirmed")])
def test_the_other_node_is_a_spare(gbits, state, reason):
    """It serves first, then the accused node measures against its address; the detail names it; nothing is left behind."""
    site = made(gbits)
    told = site.do(diagnose(avoid="s1"))
    assert (told.state, told.reason) == (state, reason)
    assert told.detail.endswith("; with s2")
    site.pass_time(60)
    client, = places(site)
    assert client.startswith("ib_write_bw --report_gbits 10.0.0.")
    assert [j["metadata"]["name"] for j in site.cluster.all("Job") if j["metadata"]["name"].endswith("-peer")] == []
    seen = site.view.nodes()
    assert (seen["s2"].state, seen["s2"].held_by, seen["s2"].maintenance) == ("spare", None, None)


def test_while_it_runs_the_spare_is_not_to_be_had():
    """Neither a replacement nor another test takes it; it is a spare all the same, and no job's pod comes to it."""
    site = made(gbits=None)
    site.door.submit(diagnose(avoid="s1"))
    site.pass_time(15)
    site.door.poll(TEST)
    assert places(site) == {"ib_write_bw --report_gbits": "s2", **{k: "n1" for k in places(site) if "10.0.0." in k}}
    seen = site.view.nodes()
    assert [(seen[n].state, seen[n].maintenance) for n in ("s1", "s2")] == [("spare", None), ("spare", "a test of Greylag's")]
    site.do(action("drain", node="n2", name="inc-2/1/1"))
    assert site.door.submit(action("replace", node="n2", name="inc-2/1/2", avoid="s1")).reason == "no_spare"
    assert site.door.submit(diagnose("n2", "inc-2/1/3", avoid="s1")).reason == "target_busy"
    assert site.door.submit(diagnose("s2", "spare-s2-1/1/1")).reason == "maintenance"


def test_without_a_partner_a_spare_is_tested_alone():
    """The tests of one node still say something; a node that is out waits for a partner (`target_busy` passes by itself)."""
    site = made()
    told = site.do(diagnose("s1", "spare-s1-1/1/1", tests="exit,ib_write_bw", fault=None, avoid="s2"))
    assert (told.state, told.reason, told.detail) == ("DONE", "no_fault_found", "exit.status passed (exit status 0)")
    assert site.door.submit(diagnose(avoid="s1, s2")).reason == "target_busy"


def test_a_new_process_goes_on():
    """From the entry on the node and the mark on the spare: no second Job, and the spare is free in the end."""
    site = made()
    told = site.door.submit(diagnose(avoid="s1"))
    while told.state == "RUNNING":
        site.restart()
        site.pass_time(15)
        told = site.door.poll(TEST)
    assert (told.state, site.view.nodes()["s2"].maintenance) == ("DONE", None)
    assert len([j for j in site.cluster.all("Job") if j["metadata"]["namespace"] == "greylag"]) == 1


@pytest.mark.parametrize("what", ["deadline", "hand"])
def test_a_test_that_comes_to_no_end_gives_the_spare_back(what):
    """At the deadline, and where a person takes the accused node over."""
    site = made(gbits=None)
    site.door.submit(diagnose(avoid="s1", deadline=300.0))
    site.pass_time(15)
    site.door.poll(TEST)
    assert site.view.nodes()["s2"].maintenance is not None
    if what == "hand":
        site.cordon("n1", False)
    told = site.do(diagnose(avoid="s1", deadline=300.0))
    assert told.state == "FAILED"
    assert site.view.nodes()["s2"].maintenance is None
    assert not any(j["metadata"]["name"].endswith("-peer") for j in site.cluster.all("Job"))


def test_a_partner_that_another_hand_takes_is_no_partner():
    """A person cordons the spare between the choice and the test: nothing runs on it, and nothing is proved."""
    site = made()
    site.cluster.fail["get", "jobs"] = [Problem(503, "ServiceUnavailable", "later")]
    with pytest.raises(Exception, match="503"):
        site.door.submit(diagnose(avoid="s1"))
    site.cordon("s2")
    told = site.do(diagnose(avoid="s1"))
    assert (told.state, told.reason) == ("FAILED", "diagnose_inconclusive")
    assert "s2 was taken by another hand" in told.detail
    assert places(site) == {}


def test_its_pods_can_stand_in_the_nodes_network():
    """RDMA ports are the node's own."""
    site = made(gbits=None)
    site.door.submit(diagnose(avoid="s1"))
    site.pass_time(0)
    pod, = [p for p in site.cluster.all("Pod") if "greylag.io/diagnosis" in p["metadata"].get("labels", {})]
    assert (pod["spec"]["hostNetwork"], pod["spec"]["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


@pytest.mark.parametrize("commands", [{"exit": ("check",)}, {"ib_write_bw": ("ib_write_bw",)}])
def test_a_server_that_nobody_meets_is_refused(commands):
    """At the start, in one sentence."""
    with pytest.raises(ConfigError, match=r"diagnose\.servers\.ib_write_bw"):
        setup_of(KubernetesParams(diagnose=Probe("i", commands=commands, servers={"ib_write_bw": ("ib_write_bw",)})))
