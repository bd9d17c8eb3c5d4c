"""Before a GPU is reset: alone or not, in use or not, and the silence of its exporters is planned."""

from dataclasses import replace

import pytest

from core.types import Target
from core.window import Place, Topology
from remediation.engine import Site
from remediation.reset import GRACE_MS, alone, family_of
from tests.remediation.worlds import T0, TICK, Fault, Owner, cluster, finding, incident, policy

ONLY_RESET = """
version: 1
mode: act
limits: {concurrent_nodes: 1, pool_nodes: 3, spare_floor: 0}
rules:
- name: hot
  match: {fault: [thermal_throttle]}
  attempts:
  - do: [drain, %s, diagnose, undrain, resume_job]
  - do: [drain, replace, resume_job]
  finally: escalate
"""


@pytest.mark.parametrize(("model", "family", "is_alone"), [
    ("p3dn.24xlarge", "pre-ampere", False), ("Tesla V100-SXM2-32GB", "pre-ampere", False), ("NVIDIA A100-SXM4-80GB", "ampere", True),
    ("p4d.24xlarge", "ampere", True), ("NVIDIA H100 80GB HBM3", "hopper and later", True), ("p5.48xlarge", "hopper and later", True),
    ("gb200-nvl72", "hopper and later", True), ("AMD Instinct MI300X", "amd xgmi", False), ("some-box", None, None), ("", None, None)])
def test_the_model_says_whether_a_gpu_is_reset_alone(model, family, is_alone):
    """As the vendors' manuals do; what nobody knows is left to the driver, which refuses by itself."""
    assert (family_of(model), alone(model)) == (family, is_alone)


def test_an_ampere_without_its_fabric_manager_is_not_reset_alone():
    """The manual makes it depend on the service."""
    assert alone("A100", fabric_manager_down=True) is False
    assert alone("H100", fabric_manager_down=True) is True


def owner(step="reset_gpu", labels=None):
    one = Owner(policy(ONLY_RESET % step), cluster())
    one.engine._labels_of = lambda node: labels or {}
    one.open(incident())
    return one, Fault(one, ("replace",))


@pytest.mark.parametrize(("labels", "gpus"), [({"gpu": "H100"}, "one"), ({"gpu": "V100"}, "all"), ({}, "one")])
def test_the_command_says_which_gpus_and_that_monitoring_is_to_pause(labels, gpus):
    """From the inventory's labels; the backend stops what watches the GPU and starts it again."""
    one, fault = owner(labels=labels)
    fault.run(6)
    reset = next(a for a, _ in one.rows if a.kind == "reset_gpu")
    assert (reset.args["gpus"], reset.args["pause_monitoring"]) == (gpus, True)


def test_the_instance_type_says_the_model_too():
    """Where the inventory has no label for it."""
    one, _ = owner()
    site = Site(Topology({"n1": Place("n1", "p3dn.24xlarge")}))
    for _ in range(6):
        one.facts.findings = [finding(one.at)]
        step = one.engine.step(one.at, one.incidents.values(), one.facts, site)
        one.incidents |= {i.id: i for i in step.incidents}
        one.rows += step.actions
        one.carry()
        one.at += TICK
    assert next(a for a, _ in one.rows if a.kind == "reset_gpu").args["gpus"] == "all"


def test_a_policy_that_asks_for_what_the_model_cannot_do_goes_to_a_person():
    """Nothing is begun."""
    one, fault = owner("{reset_gpu: {gpus: one}}", {"gpu": "V100"})
    fault.run(4)
    assert one.state() == ("escalated", "reset_needs_all")
    assert one.did() == []


def test_a_gpu_that_still_computes_is_waited_for():
    """After the drain its processes may need a moment; the reset follows when they are gone."""
    one, fault = owner()
    one.facts.in_use = {"n1": True}
    fault.run(8)
    assert (one.state(), one.did()) == (("acting", "gpu_in_use"), ["drain"])
    one.facts.in_use = {"n1": False}
    fault.run(2)
    assert one.did()[:2] == ["drain", "reset_gpu"]


def test_a_gpu_that_never_stops_computing_is_not_reset():
    """No longer than the step's deadline; then the next attempt."""
    one, fault = owner()
    one.facts.in_use = {"n1": True}
    fault.until("verifying")
    assert "reset_gpu" not in one.did()
    assert "replace" in one.did()


def test_the_silence_of_a_reset_is_planned_and_ends():
    """While the command runs and for a grace after it; it survives a restart; a drain alone plans none."""
    one, fault = owner()
    one.world.lasts = {"reset_gpu": 60}
    fault.run(4)
    assert one.did()[-1] == "reset_gpu"
    assert one.engine.planned_gaps(one.at) == {"n1"}
    one.die()
    assert one.engine.planned_gaps(one.at) == {"n1"}
    assert one.engine.planned_gaps(one.at + GRACE_MS) == frozenset()
    assert one.world.nodes()["n1"].node == "n1"


def test_no_gap_is_planned_for_what_was_never_sent():
    """A frozen engine plans nothing."""
    one, fault = owner()
    fault.run(1)
    assert one.engine.planned_gaps(one.at) == frozenset()
    assert replace(incident(), culprit=Target("node", "n2")).opened_at == T0
