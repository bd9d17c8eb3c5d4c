"""The inventory from Kubernetes: nodes, places, GPUs, jobs."""

from __future__ import annotations

import pytest
import yaml

from app import wiring
from app.kubernetes_inventory import KubernetesInventory, KubernetesInventoryParams, kubernetes_inventory
from core.config import read_config
from core.errors import ConfigError, Unavailable
from core.inventory import JobEntry
from remediation.backends.kubernetes_api import Api
from tests.kubernetes.site import T0, Site, client, config

AWS = {f"topology.k8s.aws/network-node-layer-{n}": f"nn-{n}" for n in (1, 2, 3)}


def reader(site: Site, **params) -> KubernetesInventory:
    """A reader over the fake server."""
    made, _ = client(site.cluster)
    site.now = 0.0
    return KubernetesInventory(Api(made), KubernetesInventoryParams(**params), lambda: site.now)


def one(own: dict[str, str], **params):
    """The entry of a node with these labels."""
    site = Site(nodes=0, spares=0)
    site.node("x", own)
    return reader(site, **params)().nodes[0]


@pytest.mark.parametrize(("labels", "place"), [
    ({}, (None, None, None, None)),
    (AWS, (None, "nn-3", "nn-2", None)),
    ({**AWS, "topology.k8s.aws/network-node-layer-4": "nn-4"}, (None, "nn-4", "nn-3", None)),
    ({"topology.k8s.aws/network-node-layer-1": "nn-1"}, (None, "nn-1", None, None)),
    ({"network.topology.nvidia.com/leaf": "l", "network.topology.nvidia.com/spine": "s",
      "network.topology.nvidia.com/accelerator": "a"}, (None, "l", "s", "a")),
    ({"fabric.topograph.run/tier-0": "l", "fabric.topograph.run/tier-1": "s", "accelerator.topograph.run/domain": "a"}, (None, "l", "s", "a")),
    ({"cloud.google.com/gce-topology-subblock": "l", "cloud.google.com/gce-topology-block": "s"}, (None, "l", "s", None)),
    ({"topology.kubernetes.io/rack": "r7", "nvidia.com/gpu.clique": "c"}, ("r7", None, None, "c")),
    ({"site/rack": "r9", "topology.kubernetes.io/rack": "r7"}, ("r9", None, None, None)),
])
def test_labels_say_where_a_node_stands(labels, place):
    """(rack, leaf, spine, nvlink domain): the bottom layer that AWS tells is the leaf; a site's own label wins."""
    node = one(labels, labels={"rack": "site/rack"})
    assert (node.rack, node.leaf, node.spine, node.nvlink_domain) == place


@pytest.mark.parametrize(("labels", "count"), [({}, 8), ({"nvidia.com/gpu.count": "4"}, 4), ({"amd.com/gpu.count": "16"}, 16),
                                               ({"nvidia.com/gpu.count": "many"}, 8)])
def test_the_number_of_gpus(labels, count):
    """Feature discovery's label, else what the device plug-in offers."""
    assert [g.index for g in one(labels).gpus] == list(range(count))


def test_states_type_and_labels():
    """Spares by their label, cordoned nodes as drained; all labels for policies to match on."""
    site = Site(nodes=2)
    site.cordon("n2")
    site.patch("n1", lambda o: o["metadata"]["labels"].update({"node.kubernetes.io/instance-type": "p5.48xlarge"}))
    found = {n.name: n for n in reader(site)().nodes}
    assert {n: e.state for n, e in found.items()} == {"n1": "in_service", "n2": "drained", "s1": "spare"}
    assert found["n1"].instance_type == found["n1"].labels["node.kubernetes.io/instance-type"] == "p5.48xlarge"


def test_jobs_have_their_nodes_in_the_order_of_ranks():
    """The master first, then by index; GPUs of a node are its ranks."""
    site = Site(nodes=5, spares=0)
    site.cordon("n1")
    site.pytorch(pods=4)
    site.cordon("n1", False)
    site.jobset("other", pods=1)
    assert reader(site)().jobs == (
        JobEntry("other", ("n1",), "2027-01-15T08:00:00Z", None, 8),
        JobEntry("train", ("n2", "n3", "n4", "n5"), "2027-01-15T08:00:00Z", None, 8))
    assert reader(site)().job_states()[0].start == T0


def test_pods_of_many_indexes_are_ordered_as_numbers():
    """Rank 10 comes after rank 9."""
    site = Site(nodes=12, spares=0)
    site.job(pods=12)
    by_index = {int(p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]): p["spec"]["nodeName"] for p in site.cluster.all("Pod")}
    assert reader(site)().jobs[0].nodes == tuple(by_index[i] for i in range(12))


def test_jobs_on_nodes_outside_the_selector_are_left_out():
    """A job whose nodes are not all known is none of this inventory."""
    site = Site(nodes=4)
    site.jobset()
    found = reader(site, node_selector={"kubernetes.io/hostname": "n1"})()
    assert ([n.name for n in found.nodes], found.jobs) == (["n1"], ())


def test_it_is_read_again_after_a_while_and_never_in_the_way():
    """The first reading is waited for; later ones run beside, and what they raise is told at the next ask."""
    site = Site(nodes=1, spares=0)
    read = reader(site, every_seconds=60.0)
    assert len(read().nodes) == 1
    site.node("n2")
    assert len(read().nodes) == 1
    site.now = 61.0
    read()
    read.wait()
    assert len(read().nodes) == 2
    site.cluster.down, site.now = True, 122.0
    read()
    read.wait()
    with pytest.raises(Unavailable):
        read()
    assert len(read().nodes) == 2


def test_a_cluster_that_does_not_answer_at_the_start():
    """There is no inventory to begin with: it says so."""
    site = Site()
    site.cluster.down = True
    with pytest.raises(Unavailable):
        reader(site)()


def written(tmp_path, section: str, backend: str = ""):
    """A configuration beside a kubeconfig."""
    (tmp_path / "kube.yaml").write_text(yaml.safe_dump(config()))
    file = tmp_path / "greylag.yaml"
    file.write_text(f"inventory:\n  kubernetes: {section}\n{backend}")
    return read_config(file)


def test_the_configuration_leads_to_a_reader(tmp_path):
    """`inventory: {kubernetes: ...}`; paths are relative to the file."""
    made = wiring.inventory_reader(written(tmp_path, "{kubeconfig_file: kube.yaml, namespaces: [ml]}"))
    assert isinstance(made, KubernetesInventory)


@pytest.mark.parametrize(("section", "words"), [
    ("{kubeconfig_file: missing.yaml}", "it cannot be used"),
    ("{kubeconfig_file: kube.yaml, context: other}", "it cannot be used"),
    ("{}", "a kubeconfig file is needed outside of a cluster"),
    ("{kubeconfig_file: kube.yaml, labels: {shelf: x}}", "an unknown place"),
    ("{kubeconfig: kube.yaml}", "an unknown key"),
    ("{kubeconfig_file: kube.yaml, timeout_seconds: 0}", "a number above 0"),
])
def test_a_configuration_that_cannot_be_used_is_one_sentence(tmp_path, section, words):
    """Where, which key, what was given, what is allowed."""
    with pytest.raises(ConfigError, match=words):
        wiring.inventory_reader(written(tmp_path, section))


def test_a_kubeconfig_without_a_user(tmp_path):
    """Nobody to log in as."""
    loaded = written(tmp_path, "{kubeconfig_file: kube.yaml}")
    broken = config()
    broken["contexts"][0]["context"].pop("user")
    (tmp_path / "kube.yaml").write_text(yaml.safe_dump(broken))
    with pytest.raises(ConfigError, match="a context with a user"):
        kubernetes_inventory(loaded.inventory.kubernetes or {}, loaded)
