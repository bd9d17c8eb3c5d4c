"""The fake API server is what three independent clients take for one: lightkube, the official client, and kubectl."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Node, Pod, PodEviction
from lightkube.types import PatchType

from core.errors import Unavailable
from remediation.backends.kubernetes_api import Access, connect
from tests import needs
from tests.kubernetes.fake import Rule
from tests.kubernetes.server import certificate, kubeconfig, serving
from tests.kubernetes.site import Site, action, client


@pytest.fixture(scope="session")
def pem(tmp_path_factory) -> Path:
    """The server's certificate."""
    return certificate(tmp_path_factory.mktemp("tls"))


@dataclass
class Live:
    """A served cluster on the wall's time."""

    site: Site
    url: str
    pem: Path
    folder: Path

    def config(self, token: str = "admin") -> Path:
        file = self.folder / f"{token}.yaml"
        file.write_text(yaml.safe_dump(kubeconfig(self.url, self.pem, token)))
        return file

    def kubectl(self, *words: str, token: str = "admin") -> subprocess.CompletedProcess[str]:
        return subprocess.run([needs.program("kubectl"), f"--kubeconfig={self.config(token)}", f"--cache-dir={self.folder / 'cache'}", *words],
                              capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def live(pem, tmp_path) -> Iterator[Live]:
    """Four nodes, a JobSet, a daemon."""
    site = Site()
    site.cluster.clock = None
    site.cluster.make("DaemonSet", "exporter", "default", metadata={"uid": "ds-1"}, spec={})
    site.daemon("n1")
    site.jobset()
    for pod in site.cluster.all("Pod"):
        pod["spec"]["terminationGracePeriodSeconds"] = 0
    with serving(site.cluster, pem) as url:
        yield Live(site, url, pem, tmp_path)


# --- kubectl, the strictest judge --------------------------------------------------------------------------------------
def test_kubectl_reads(live):
    """version, get as a table, with selectors, as YAML, of custom resources, and a kind that is none."""
    assert "Server Version: v1.32.4" in live.kubectl("version").stdout
    table = live.kubectl("get", "nodes").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert table[1].split()[:2] == ["n1", "Ready"]
    names = live.kubectl("get", "pods", "-n", "ml", "-l", "app in (train)", "--field-selector", "spec.nodeName=n1", "-o", "name").stdout
    assert names.split() == [f"pod/{live.site.pods('n1')[0]}"]
    assert yaml.safe_load(live.kubectl("get", "jobset", "train", "-n", "ml", "-o", "yaml").stdout)["kind"] == "JobSet"
    assert "doesn't have a resource type" in live.kubectl("get", "nosuch").stderr


def test_kubectl_cordons_drains_and_uncordons(live):
    """As on a real cluster, word for word; the backend then sees a person's hand."""
    assert live.kubectl("cordon", "n1").stdout == "node/n1 cordoned\n"
    assert "Ready,SchedulingDisabled" in live.kubectl("get", "node", "n1").stdout
    assert live.site.view.nodes()["n1"].held_by == "kubectl"
    drained = live.kubectl("drain", "n1", "--ignore-daemonsets", "--timeout=30s")
    assert (drained.returncode, "node/n1 drained" in drained.stdout) == (0, True), drained.stderr
    assert live.site.pods("n1") == []
    assert live.kubectl("uncordon", "n1").stdout == "node/n1 uncordoned\n"
    assert live.site.view.nodes()["n1"].state == "in_service"


@pytest.mark.evaluate
def test_kubectl_cordons_no_node_that_is_cordoned(live):
    """It sends nothing, so that nobody can see it; uncordon and cordon are seen, and are a person's."""
    live.site.door.submit(action("exclude_node"))
    before = live.site.get()["metadata"]["resourceVersion"]
    assert live.kubectl("cordon", "n1").stdout == "node/n1 already cordoned\n"
    assert live.site.get()["metadata"]["resourceVersion"] == before
    live.kubectl("uncordon", "n1")
    live.kubectl("cordon", "n1")
    assert live.site.view.nodes()["n1"].held_by == "kubectl"


def test_kubectl_drain_meets_a_disruption_budget(live):
    """It says why, and gives up at its timeout."""
    live.site.budget(least=4)
    told = live.kubectl("drain", "n1", "--ignore-daemonsets", "--timeout=1s")
    assert told.returncode == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget" in told.stderr
    assert len(live.site.pods("n1")) == 1


def test_kubectl_without_a_permission_or_a_token(live):
    """403 names who may not do what; 401 asks to log in."""
    live.site.cluster.users["viewer"] = ("ada", (Rule(("",), ("nodes",), ("get", "list")),))
    assert live.kubectl("get", "nodes", token="viewer").returncode == 0
    assert 'User "ada" cannot patch resource "nodes"' in live.kubectl("cordon", "n1", token="viewer").stderr
    assert "Unauthorized" in live.kubectl("get", "--raw", "/api/v1/nodes", token="stranger").stderr \
        or "logged in" in live.kubectl("get", "--raw", "/api/v1/nodes", token="stranger").stderr


@pytest.mark.evaluate
def test_the_commands_of_the_page_work(live):
    """Each kubectl command that docs/kubernetes.md shows, in its order."""
    del live.site.cluster.objects["Namespace"]["", "greylag"]
    page = (needs.ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    blocks = page.split("```sh\n")[1:]
    lines = [line for block in blocks for line in block.split("```")[0].splitlines() if line.startswith("kubectl ")]
    assert len(lines) >= 10
    for line in lines:
        told = live.kubectl(*shlex.split(line.replace("sample_data", str(needs.ROOT / "sample_data")))[1:])
        assert told.returncode == 0, f"{line}: {told.stderr}"
    assert live.site.cluster.get("ClusterRole", "greylag") is not None


# --- the official client -----------------------------------------------------------------------------------------------
@pytest.fixture
def official(live):
    """The official Python client, where it is installed."""
    kubernetes = pytest.importorskip("kubernetes", reason="the official client `kubernetes` is not installed")
    config = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(live.config()), client_configuration=config)
    with kubernetes.client.ApiClient(config) as api:
        yield kubernetes, api


@pytest.mark.evaluate
def test_the_official_client_reads_writes_and_evicts(live, official):
    """Lists in pages, cordon, taints, 409 on a stale write, eviction, JSON patch, custom objects."""
    kubernetes, api = official
    core = kubernetes.client.CoreV1Api(api)
    page = core.list_node(limit=2)
    assert ([n.metadata.name for n in page.items], page.metadata.remaining_item_count) == (["n1", "n2"], 3)
    rest = core.list_node(limit=9, _continue=page.metadata._continue)
    assert [n.metadata.name for n in rest.items] == ["n3", "n4", "s1"]
    core.patch_node("n1", {"spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoSchedule"}]}})
    node = core.read_node("n1")
    assert (node.spec.unschedulable, node.spec.taints[0].key) == (True, "a")
    stale = core.read_node("n2")
    core.patch_node("n2", {"metadata": {"labels": {"x": "y"}}})
    with pytest.raises(kubernetes.client.ApiException) as caught:
        core.replace_node("n2", stale)
    assert caught.value.status == 409
    name = live.site.pods("n1")[0]
    core.create_namespaced_pod_eviction(name, "ml", kubernetes.client.V1Eviction(metadata=kubernetes.client.V1ObjectMeta(name=name)))
    assert name not in live.site.pods("n1")
    custom = kubernetes.client.CustomObjectsApi(api)
    changed = custom.patch_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", "ml", "jobsets", "train",
                                                    {"spec": {"suspend": True}})
    assert changed["spec"]["suspend"] is True


@pytest.mark.evaluate
def test_the_official_client_watches(live, official):
    """Changes as they come, an end by the server's clock, and 410 for a version that is too old."""
    kubernetes, api = official
    core = kubernetes.client.CoreV1Api(api)
    version = core.list_node().metadata.resource_version
    live.site.cordon("n1")
    seen = [(e["type"], e["object"].metadata.name) for e in kubernetes.watch.Watch().stream(
        core.list_node, resource_version=version, timeout_seconds=1)]
    assert set(seen) == {("MODIFIED", "n1")}  # the cordon, and the taint that the node controller adds
    live.site.cluster.compact()
    live.site.cordon("n2")
    with pytest.raises(kubernetes.client.ApiException) as caught:
        list(kubernetes.watch.Watch().stream(core.list_node, resource_version=version, timeout_seconds=1))
    assert caught.value.status == 410


# --- lightkube ---------------------------------------------------------------------------------------------------------
def test_lightkube_over_a_socket(live):
    """TLS, token, typed objects, three kinds of patch."""
    made = Client(KubeConfig.from_file(live.config()).get(), trust_env=False)
    assert [n.metadata.name for n in made.list(Node, labels={"greylag.io/spare": "true"})] == ["s1"]
    for kind, patch in ((PatchType.MERGE, {"metadata": {"labels": {"m": "1"}}}), (PatchType.STRATEGIC, {"metadata": {"labels": {"s": "1"}}}),
                        (PatchType.JSON, [{"op": "add", "path": "/metadata/labels/j", "value": "1"}])):
        made.patch(Node, "n1", patch, patch_type=kind)
    labels = made.get(Node, "n1").metadata.labels
    assert {k: labels.get(k) for k in "msj"} == {"m": "1", "s": "1", "j": "1"}
    made.close()


def test_in_a_pod_the_service_account_is_enough(live, tmp_path, monkeypatch):
    """Token, certificate and address as a pod finds them; a new token is read when the old one is refused."""
    host, port = live.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    text = live.pem.read_text()
    for name, words in (("token", "admin"), ("namespace", "greylag"), ("ca.crt", text[text.index("-----BEGIN CERT"):])):
        (tmp_path / name).write_text(words)
    api = connect(Access(account_dir=str(tmp_path)), "backend")
    assert len(api.list("Node")) == 5
    live.site.cluster.users = {"rotated": ("admin", None)}
    with pytest.raises(Unavailable):
        api.list("Node")
    (tmp_path / "token").write_text("rotated")
    assert len(api.list("Node")) == 5


def test_lightkube_watches_with_bookmarks_and_starts_again_after_410():
    """A watch ends by timeoutSeconds with a bookmark; an old version is an ERROR event with code 410."""
    site = Site()
    made, _ = client(site.cluster)
    nodes = made.list(Node)
    assert len(list(nodes)) == 5
    site.cordon("n3")
    events = made.watch(Node, resource_version=nodes.resourceVersion, server_timeout=0)
    assert [(kind, n.metadata.name) for kind, n in [next(iter(events))]] == [("MODIFIED", "n3")]
    site.cluster.compact()
    site.cordon("n4")
    with pytest.raises(ApiError) as caught:
        next(iter(made.watch(Node, resource_version="1", server_timeout=0)))
    assert caught.value.status.code == 410


@pytest.mark.parametrize(("act", "code"), [
    (lambda c: c.get(Node, "nosuch"), 404),
    (lambda c: c.create(Job(metadata=ObjectMeta(name="train-w-0", namespace="ml"))), 409),
    (lambda c: c.create(PodEviction(metadata=ObjectMeta(name="nosuch")), "nosuch", namespace="ml"), 404),
    (lambda c: list(c.list(Pod, namespace="*", fields={"spec.containers": "x"})), 400),
    (lambda c: c.patch(Node, "n1", [{"op": "test", "path": "/spec", "value": 1}], patch_type=PatchType.JSON), 422),
    (lambda c: c.patch(Node, "n1", {"a": 1}, patch_type=PatchType.APPLY, field_manager="x"), 415),
    (lambda c: c.patch(Node, "n1", {"metadata": {"resourceVersion": "1"}}, patch_type=PatchType.MERGE), 409),
])
def test_what_is_wrong_has_its_status(act, code):
    """404, 409, 400, 415, 422 as the real server gives them."""
    site = Site()
    site.jobset()
    made, _ = client(site.cluster)
    with pytest.raises(ApiError) as caught:
        act(made)
    assert caught.value.status.code == code


def test_a_pod_stops_with_grace():
    """deletionTimestamp first; gone when its time is up; at once with grace 0."""
    site = Site()
    site.jobset()
    made, _ = client(site.cluster)
    first, second = site.pods("n1")[0], site.pods("n2")[0]
    made.delete(Pod, first, namespace="ml", grace_period=60)
    made.delete(Pod, second, namespace="ml", grace_period=0)
    assert (site.cluster.get("Pod", second, "ml"), site.cluster.get("Pod", first, "ml")["metadata"]["deletionGracePeriodSeconds"]) == (None, 60)
    site.pass_time(59)
    assert site.cluster.get("Pod", first, "ml") is not None
    site.pass_time(2)
    assert site.cluster.get("Pod", first, "ml") is None


def test_pages_are_of_one_moment_and_grow_old():
    """What changes between two pages is not mixed in; a token that is too old is 410."""
    site = Site()
    made, _ = client(site.cluster)
    rows = iter(made.list(Node, chunk_size=2))
    first = next(rows).metadata.name
    site.cluster.remove(site.get("n4"))
    assert [first, *[n.metadata.name for n in rows]] == ["n1", "n2", "n3", "n4", "s1"]
    rows = iter(made.list(Node, chunk_size=2))
    next(rows)
    site.cluster.compact()
    with pytest.raises(ApiError) as caught:
        list(rows)
    assert caught.value.status.code == 410


def test_dry_run_changes_nothing():
    """The answer says what it would be."""
    site = Site()
    made, _ = client(site.cluster)
    told = made.patch(Node, "n1", {"spec": {"unschedulable": True}}, dry_run=True)
    assert (told.spec.unschedulable, site.get()["spec"]) == (True, {})


def test_a_watch_ends_by_itself_with_a_bookmark():
    """At timeoutSeconds, not later."""
    from tests.kubernetes.fake import Request

    site = Site()
    began = time.monotonic()
    told = site.cluster.handle(Request("GET", "/api/v1/nodes", {"watch": "1", "timeoutSeconds": "1", "allowWatchBookmarks": "true",
                                                                "resourceVersion": str(site.cluster.version)}, {"authorization": "Bearer admin"}))
    lines = list(told.stream or ())
    assert 0.9 <= time.monotonic() - began < 5
    assert [b"BOOKMARK" in line for line in lines] == [True]
