"""An incident through the whole engine, on a cluster: cordon, taint, evict, diagnose, replace, restart, proof."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.wiring import hands, inventory_reader
from core.config import read_config
from core.errors import ConfigError
from core.protocols import NodeView
from core.types import Outcome
from remediation.backends.kubernetes import KINDS, PLUGIN, KubernetesDoor
from remediation.policy import parse_policy
from tests import needs
from tests.kubernetes.fake import Problem
from tests.kubernetes.site import T0, Site, config
from tests.kubernetes.test_probe import dcgm
from tests.remediation.worlds import Fault, Owner, World, incident

POLICY = """
version: 1
mode: act
limits: {concurrent_nodes: 1, pool_nodes: 2, pool_ratio: 0.1, per_hour: 20, per_job_per_day: 20, spare_floor: 0, cooldown_seconds: 600}
rules:
- name: hot
  match: {fault: [thermal_throttle], scope: [device], confidence_min: 0.7, duration_seconds_min: 60}
  attempts:
  - do: [drain, diagnose, undrain, {resume_job: {mode: full}}]
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 60, step_time_ratio_max: 1.05, deadline_seconds: 300}
  finally: escalate
"""


class Cluster(World):
    """The world that the owner's loop knows, which is a Kubernetes cluster here; a process of Greylag can die and start again."""

    def __init__(self, **more: Any) -> None:
        super().__init__()
        self.hurt = True  # GPU 3 of n1 fails its test
        self.kube = Site(behaviour=self._ends, **more)
        self.kube.jobset()
        self.kube.daemon("n1")

    def _ends(self, pod: Any) -> tuple[int, str] | None:
        on = pod["metadata"].get("annotations", {}).get("greylag.io/node")
        if on is None:
            return None
        return (1, dcgm(targeted_stress="Fail")) if self.hurt and on == "n1" else (0, dcgm())

    def submit(self, action: Any) -> Outcome:
        self._now()
        told = self.kube.door.submit(action)
        if told.state != "REFUSED" and action.id not in {a.id for a in self.order}:
            self.order.append(action)
        return told

    def poll(self, action_id: str) -> Outcome:
        self._now()
        return self.kube.door.poll(action_id)

    def nodes(self) -> dict[str, NodeView]:
        self._now()
        return dict(self.kube.view.nodes())

    def _now(self) -> None:
        self.kube.cluster.clock = max(T0, self.now)
        self.kube.controllers.run()


def owner_of(world: Cluster, text: str = POLICY) -> tuple[Owner, Fault]:
    """The owner's loop over the cluster, with an incident about GPU 3 of n1, used by the job `train`."""
    owner = Owner(parse_policy(text), world, kinds=KINDS)
    owner.open(incident())
    fault = Fault(owner, ("replace",))
    return owner, fault


def test_a_bad_gpu_is_replaced_by_a_spare_and_the_job_runs_again():
    """First the budget blocks the eviction; then the node is empty, its test fails, a spare comes, the JobSet starts again
    on four nodes without n1, and the step time proves it."""
    world = Cluster()
    budget = world.kube.budget(least=4)
    owner, fault = owner_of(world)
    fault.run(6)
    assert owner.did() == ["drain"]
    assert owner.last("inc-1/1/1").reason == "disruption_budget"
    assert world.kube.where() == {"n1", "n2", "n3", "n4"}, "not a pod was touched"
    world.kube.cluster.change(budget, lambda o: o["spec"].update(minAvailable=3))
    fault.until("resolved", 200)
    assert owner.did() == ["drain", "diagnose", "drain", "replace", "resume_job"]
    assert owner.last("inc-1/1/2").reason == "diagnose_confirmed"
    assert owner.state() == ("resolved", "recovered")
    assert world.kube.where() == {"n2", "n3", "n4", "s1"}
    labels = world.kube.get()["metadata"]["labels"]
    assert labels["greylag.io/wanted"] == "replacement"
    assert world.kube.view.nodes()["n1"].held_by == "greylag"
    assert world.kube.cluster.get("JobSet", "train", "ml")["status"].get("restarts", 0) == 0


def test_a_node_that_passes_its_test_returns():
    """The diagnosis refutes: undrain, restart, the same four nodes."""
    world = Cluster()
    world.hurt = False
    owner, fault = owner_of(world)
    fault.cured_by = ("diagnose",)
    fault.until("resolved", 200)
    assert owner.did() == ["drain", "diagnose", "undrain", "resume_job"]
    assert world.kube.where() == {"n1", "n2", "n3", "n4"}
    assert world.kube.taints() == []


def test_greylag_dies_again_and_again_and_nothing_is_done_twice():
    """A new engine at every other tick, a new door at each: one eviction, one restart."""
    world = Cluster()
    owner, fault = owner_of(world)
    for i in range(200):
        if owner.incidents["inc-1"].state == "resolved":
            break
        fault.run(1)
        if i % 2:
            owner.die()
        world.kube.restart()
    assert owner.state() == ("resolved", "recovered")
    assert owner.did() == ["drain", "diagnose", "drain", "replace", "resume_job"]
    log = world.kube.cluster.log
    assert sum(row[:2] == ("create", "pods/eviction") for row in log) == 1
    assert world.kube.cluster.get("JobSet", "train", "ml")["metadata"]["generation"] == 3


def test_a_persons_cordon_is_left_alone():
    """The incident waits for other_hand and touches nothing, for as long as the person keeps the node."""
    world = Cluster()
    world.kube.cordon("n1")
    world.kube.controllers.run()
    before = [dict(n["metadata"]) for n in world.kube.cluster.all("Node")]
    owner, fault = owner_of(world)
    fault.run(30)
    assert owner.state() == ("holding", "other_hand")
    assert owner.did() == []
    assert [n["metadata"] for n in world.kube.cluster.all("Node")] == before


def test_a_persons_hand_in_the_middle_ends_it():
    """While the eviction waits for a budget a person uncordons the node: the incident is theirs."""
    world = Cluster()
    world.kube.budget(least=4)
    owner, fault = owner_of(world)
    fault.run(6)
    world.kube.cordon("n1", False)
    fault.until("escalated", 60)
    assert owner.state()[1] == "other_hand"
    assert owner.did() == ["drain"]
    assert world.kube.where() == {"n1", "n2", "n3", "n4"}


def test_a_refused_command_is_escalated():
    """403 on the cordon: both attempts are refused by name, and nothing is changed."""
    world = Cluster()
    world.kube.cluster.fail["patch", "nodes"] = [Problem(403, "Forbidden", 'User "greylag" cannot patch resource "nodes"')] * 99
    owner, fault = owner_of(world)
    fault.until("escalated", 100)
    refused = [o for _, o in owner.rows if o.state == "REFUSED"]
    assert {o.reason for o in refused} == {"not_permitted"}
    assert "cannot patch" in (refused[0].detail or "")
    assert world.kube.taints() == []


def test_a_job_that_did_not_opt_in_is_never_stopped():
    """Its node is cordoned for the future; the drain waits, fails by name, and a person decides."""
    world = Cluster()
    job = world.kube.cluster.get("JobSet", "train", "ml")
    assert job is not None
    world.kube.cluster.change(job, lambda o: o["metadata"].update(labels={}))
    owner, fault = owner_of(world, POLICY.replace("[drain,", "[{drain: {deadline_seconds: 240}},"))
    fault.until("escalated", 400)
    assert {o.reason for a, o in owner.rows if a.kind == "drain" and o.state == "FAILED"} <= {"waits_for_job", "deadline_exceeded"}
    assert world.kube.where() == {"n1", "n2", "n3", "n4"}
    assert world.kube.cluster.get("JobSet", "train", "ml")["metadata"]["generation"] == 1


def test_observe_touches_nothing():
    """The same rules in mode observe: no request but reading ones."""
    world = Cluster()
    owner, fault = owner_of(world)
    owner.rules = replace(owner.rules, mode="observe")
    owner.engine = owner.new()
    fault.run(20)
    assert {row[0] for row in world.kube.cluster.log} <= {"get", "list"}
    assert all(o.state == "SIMULATED" for _, o in owner.rows)


# --- the configuration -------------------------------------------------------------------------------------------------
def configured(tmp_path, text: str):
    """greylag.yaml beside a kubeconfig."""
    (tmp_path / "kube.yaml").write_text(yaml.safe_dump(config()))
    file = tmp_path / "greylag.yaml"
    file.write_text(f"backend: {{name: kubernetes, {text}}}\n")
    return read_config(file)


def test_the_backend_is_asked_for_by_name(tmp_path):
    """Paths are relative to the configuration file."""
    made = hands(configured(tmp_path, "kubeconfig_file: kube.yaml, diagnose: {image: i, commands: {dcgm: [dcgmi, diag, -j]}}"))
    assert (made.backend, isinstance(made.door, KubernetesDoor)) == ("kubernetes", True)


def test_the_configuration_of_the_page_is_one(tmp_path):
    """The example of docs/kubernetes.md, word for word."""
    page = (needs.ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    text = next(b.split("```")[0] for b in page.split("```yaml\n")[1:] if "backend:" in b)
    (tmp_path / "kube.yaml").write_text(yaml.safe_dump(config()))
    (tmp_path / "act.yaml").write_text(POLICY)
    (tmp_path / "greylag.yaml").write_text(text)
    read = read_config(tmp_path / "greylag.yaml")
    assert hands(read).backend == "kubernetes"
    assert inventory_reader(read) is not None


@pytest.mark.parametrize(("text", "words"), [
    ("kubeconfig_file: missing.yaml", "it cannot be used"),
    ("context: x", "a kubeconfig file is needed outside of a cluster"),
    ("kubeconfig_file: kube.yaml, hyperpod: maybe", "allowed are: auto, always, never"),
    ("kubeconfig_file: kube.yaml, taint: ''", "a label key is needed"),
    ("kubeconfig_file: kube.yaml, diagnose: {image: i}", "what the image runs is needed"),
    ("kubeconfig_file: kube.yaml, diagnose: {image: i, commands: {nmap: [x]}}", "an unknown test"),
    ("kubeconfig_file: kube.yaml, reset: {image: i, commands: {dcgm: [x]}}", "allowed are: reset"),
    ("kubeconfig_file: kube.yaml, timeout_seconds: 0", "a number above 0"),
])
def test_a_backend_that_cannot_be_used_is_one_sentence(tmp_path, text, words):
    """Where, which key, what was given, what is allowed."""
    with pytest.raises(ConfigError, match=words):
        hands(configured(tmp_path, text))


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    """One sentence, and only when it is asked for."""
    monkeypatch.setitem(sys.modules, "lightkube", None)
    with pytest.raises(ConfigError, match=r"pip install 'greylag\[k8s\]'"):
        PLUGIN.build(PLUGIN.params(kubeconfig_file="x"))


def test_the_plug_in_loads_without_its_client():
    """No file of the backend imports lightkube, or what it brings, at its top."""
    for file in Path(str(files("remediation.backends"))).glob("kubernetes*.py"):
        top = ast.parse(file.read_text(encoding="utf-8")).body
        names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names} \
            | {str(node.module) for node in top if isinstance(node, ast.ImportFrom)}
        assert not any(n.split(".")[0] in ("lightkube", "httpx2", "msgspec") for n in names), file.name
