"""What a node's marks say: its state, who holds it, and that nobody's cordon but our own is ours."""

from __future__ import annotations

import json

import pytest

from core.errors import Unavailable
from remediation.backends import kubernetes_nodes as nodes
from tests.kubernetes.fake import Rule
from tests.kubernetes.site import T0, Site, action


def seen(site: Site, name: str = "n1"):
    """(state, held_by, maintenance) of a node."""
    view = site.view.nodes()[name]
    return view.state, view.held_by, view.maintenance


def taint(key: str, effect: str = "NoSchedule"):
    return lambda o: o["spec"].update(taints=[{"key": key, "effect": effect}])


def label(key: str, value: str):
    return lambda o: o["metadata"]["labels"].update({key: value})


def note(key: str, value: str = "x"):
    return lambda o: o["metadata"].setdefault("annotations", {}).update({key: value})


def condition(name: str):
    return lambda o: o["status"]["conditions"].append({"type": name, "status": "True"})


def test_a_node_in_service_and_a_spare():
    """Jobs come from the pods that run there; a spare is told by its label."""
    site = Site()
    site.jobset()
    found = site.view.nodes()
    assert found["n1"] == nodes.NodeView("n1", "in_service", None, ("train",))
    assert found["s1"] == nodes.NodeView("s1", "spare")


@pytest.mark.parametrize(("mark", "who"), [
    (taint("ToBeDeletedByClusterAutoscaler"), "cluster-autoscaler"),
    (taint("karpenter.sh/disrupted"), "karpenter"),
    (taint("karpenter.sh/disruption"), "karpenter"),
    (taint("aws-node-termination-handler/scheduled-maintenance"), "aws-node-termination-handler"),
    (taint("cloud.google.com/impending-node-termination"), "gke"),
    (taint("medik8s.io/drain"), "node-maintenance-operator"),
    (note("weave.works/kured-reboot-in-progress"), "kured"),
    (note("quarantineHealthEvent"), "nvsentinel"),
    (label("nvidia.com/gpu-driver-upgrade-state", "drain-required"), "gpu-operator"),
    (label("nvidia.com/ofed-driver-upgrade-state", "cordon-required"), "network-operator"),
    (condition("DrainScheduled"), "draino"),
    (note("greylag.io/maintenance", "PSU swap, ticket 4711"), "PSU swap, ticket 4711"),
    (taint("our.site/repair"), "night shift"),
])
def test_other_controllers_are_known_by_their_marks(mark, who):
    """Their work is a maintenance, and nothing is begun on the node."""
    site = Site(other_hands={"our.site/repair": "night shift"})
    site.patch("n1", mark)
    assert seen(site) == ("in_service", None, who)
    assert site.door.submit(action("drain")).reason == "maintenance"
    assert "greylag.io/held" not in site.taints()


@pytest.mark.parametrize("mark", [
    label("nvidia.com/gpu-driver-upgrade-state", "upgrade-done"),
    label("nvidia.com/gpu-driver-upgrade-state", "upgrade-required"),
    label("sagemaker.amazonaws.com/node-health-status", "Schedulable"),
    taint("nvidia.com/gpu"),
    taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
])
def test_marks_that_take_nothing_out(mark):
    """A GPU pool's own taint, or an upgrade that is done, is no other hand."""
    site = Site()
    site.patch("n1", mark)
    assert seen(site) == ("in_service", None, None)


def test_a_persons_cordon_is_theirs():
    """managedFields name who set it; where they are not kept, it is an unknown hand."""
    site = Site()
    site.cordon("n1")
    assert seen(site) == ("drained", "kubectl-cordon", None)
    site.get()["metadata"].pop("managedFields")
    assert seen(site) == ("drained", "unknown hand", None)


def test_hyperpods_own_word_is_another_hand():
    """A node that HyperPod checks or replaces is HyperPod's, until we wrote the value ourselves."""
    site = Site()
    site.patch("n1", label("sagemaker.amazonaws.com/node-health-status", "UnschedulablePendingReplacement"))
    assert seen(site) == ("in_service", "hyperpod", None)
    assert site.door.submit(action("drain")).reason == "other_hand"


def test_a_cordon_of_ours_that_somebody_took_over_is_theirs():
    """A person uncordons our node and cordons it anew: our annotation stands, and the cordon is not ours any more."""
    site = Site()
    site.do(action("exclude_node"))
    assert seen(site) == ("drained", "greylag", None)
    site.cordon("n1", False)
    assert seen(site) == ("in_service", None, None)
    site.cordon("n1")
    assert seen(site) == ("drained", "kubectl-cordon", None)


@pytest.mark.parametrize("first", [True, False])
def test_a_cordon_of_ours_that_another_hand_owns_as_well_is_theirs(first):
    """A controller applied `unschedulable: true` on the server while it stood already: managedFields name both, in any order."""
    site = Site()
    site.do(action("exclude_node"))
    applied = {"manager": "cluster-api", "operation": "Apply", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    rows = site.get()["metadata"]["managedFields"]
    rows.insert(0 if first else len(rows), applied)
    assert seen(site) == ("drained", "cluster-api", None)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"by": "greylag"}', '{"action": 1}'])
def test_an_annotation_that_cannot_be_read_proves_nothing(text):
    """A cordon with a broken proof is an unknown hand's."""
    site = Site()
    site.cordon("n1")
    site.patch("n1", note("greylag.io/held-by", text))
    site.get()["metadata"].pop("managedFields")
    assert seen(site) == ("drained", "unknown hand", None)


@pytest.mark.parametrize(("ready", "state"), [("False", "down"), ("Unknown", "unknown")])
def test_a_node_that_is_not_ready(ready, state):
    """Down, or silent: unknown is never in service."""
    site = Site()
    site.ready("n1", ready)
    assert seen(site)[0] == state


def test_a_new_node_is_being_provisioned():
    """Without a Ready condition, or with the cloud's taint."""
    site = Site()
    site.patch("n1", lambda o: o["status"].update(conditions=[]))
    site.patch("n2", taint("node.cloudprovider.kubernetes.io/uninitialized"))
    assert [site.view.nodes()[n].state for n in ("n1", "n2")] == ["provisioning", "provisioning"]


def test_a_cordoned_node_with_work_on_it_drains():
    """Drained only when no pod of a job and none with a GPU is left; a daemon's pod does not count."""
    site = Site()
    site.jobset(opted=False)
    site.daemon("n1")
    site.do(action("exclude_node"))
    assert seen(site) == ("draining", "greylag", None)
    assert site.view.nodes()["n1"].jobs == ("train",)


def test_a_pod_with_a_gpu_and_no_job_keeps_a_node_busy():
    """A notebook with a GPU is work that a person sees; a web server without one is none."""
    site = Site()
    site.cluster.make("Pod", "web", "ml", spec={"nodeName": "n1", "containers": [{"name": "c"}]}, status={"phase": "Running"})
    site.do(action("exclude_node"))
    assert seen(site)[0] == "drained"
    site.cluster.make("Pod", "notebook", "ml", spec={"nodeName": "n1", "containers": [
        {"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]}, status={"phase": "Running"})
    assert seen(site)[0] == "draining"


def test_jobs_of_the_same_name_are_told_apart():
    """Two namespaces, one name: both get their namespace; a pod's greylag.io/job gives another name."""
    site = Site()
    site.jobset(pods=1)
    site.jobset(pods=1, namespace="default")
    site.cluster.make("Pod", "p", "ml", metadata={"labels": {"job-name": "odd", "greylag.io/job": "llama"}},
                      spec={"nodeName": "n4", "containers": []}, status={"phase": "Running"})
    jobs = {job for view in site.view.nodes().values() for job in view.jobs}
    assert jobs == {"ml/train", "default/train", "llama"}


def test_only_the_selected_nodes_are_known():
    """A node outside of the selector is none of ours."""
    site = Site(node_selector={"kubernetes.io/hostname": "n2"})
    assert list(site.view.nodes()) == ["n2"]
    assert site.door.submit(action("drain")).reason == "node_unknown"


def test_many_nodes_come_in_pages():
    """A list of more objects than a page is read to its end."""
    site = Site(nodes=1)
    for i in range(510):
        site.node(f"x{i}")
    assert len(site.view.nodes()) == 512


@pytest.mark.parametrize("rules", [(), (Rule(("",), ("nodes",), ("list",)),)])
def test_a_view_without_permission_is_unavailable(rules):
    """A list that may not be read is no list of no nodes."""
    site = Site(token="watcher")
    site.cluster.users["watcher"] = ("watcher", rules)
    with pytest.raises(Unavailable, match="does not let Greylag read"):
        site.view.nodes()


def test_the_last_diagnosis_is_on_the_node():
    """checked_at is an annotation; one that is no time is not known."""
    site = Site()
    site.patch("n1", note(nodes.CHECKED_AT, "2027-01-15T08:00:00.000Z"))
    site.patch("n2", note(nodes.CHECKED_AT, "yesterday"))
    assert [site.view.nodes()[n].checked_at for n in ("n1", "n2", "n3")] == [T0, None, None]


@pytest.mark.parametrize(("incident", "value"), [("inc-0123456789ab", "inc-0123456789ab"), ("", "held"), ("a b/c:", "a-b-c"), ("x" * 99, "x" * 63)])
def test_the_taint_has_a_value_that_kubernetes_takes(incident, value):
    """At most 63 letters, digits, dots, dashes and underscores."""
    node = {"metadata": {"name": "n1"}, "spec": {}}
    changes = nodes.hold_changes(node, nodes.Held("a", incident, "t"), "greylag.io/held")
    assert changes["spec"]["taints"][0]["value"] == value


def test_the_oldest_ended_actions_make_room():
    """The annotation holds the newest, and whatever still runs."""
    site = Site()
    site.door.submit(action("reboot", name="inc-0/1/1"))
    node = site.get()
    running = nodes.Entry("inc-0/1/1", "drain", "RUNNING", "policy", 1, 2)
    text = nodes.write_entry({"metadata": {}}, running)
    for i in range(20):
        node = {"metadata": {"annotations": {nodes.ACTIONS: text}}}
        text = nodes.write_entry(node, nodes.Entry(f"inc-{i}/1/2", "drain", "DONE", "done", 1, 2, 3))
    kept = [e["id"] for e in json.loads(text)]
    assert kept[0] == "inc-0/1/1"
    assert kept[-1] == "inc-19/1/2"
    assert len(kept) == nodes.KEPT_ACTIONS
