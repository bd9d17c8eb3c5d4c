"""The baseline of static alert rules: when a rule fires, on which part, and when it is silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.evaluate.baselines import StaticRules
from app.evaluate.facts import Said
from tests.contract.windows import Cluster, throttle, vanish

AT, TICKS = 40, 100
Plant = Callable[[Cluster], object]


def _alerts(plant: Plant, nodes: int = 2) -> list[Said]:
    cluster, rules = Cluster(nodes=nodes, ticks=TICKS), StaticRules()
    plant(cluster)
    for tick in range(AT - 4, TICKS + 1):
        rules.judge(cluster.window(tick))
    return rules.said()


def _memory(share: float) -> Plant:
    return lambda c: c.put("node.memory_total_bytes", 1e12, 0).put("node.memory_available_bytes", 1e12 * share, AT, None, [1])


@pytest.mark.parametrize(("plant", "rule", "fault", "node"), [
    (lambda c: c.put("gpu.temperature_celsius", 88, AT, None, [9]), "NvidiaGpuTemperatureHigh", "thermal_throttle", "n001"),
    (lambda c: c.put("gpu.hw_thermal_ratio", 0.5, AT, None, [9]), "NvidiaGpuThermalSlowdown", "thermal_throttle", "n001"),
    (lambda c: c.put("gpu.ecc_uncorrectable_per_second", 0.1, AT, None, [9]), "NvidiaGpuUncorrectableEccErrors", "ecc_uncorrectable", "n001"),
    (lambda c: c.put("gpu.row_remap_failed", 1, AT, None, [9]), "NvidiaGpuRowRemapFailure", "row_remap_failure", "n001"),
    (lambda c: c.put("gpu.xid", 79, AT, None, [9]), "NvidiaGpuXidCritical", "gpu_lost", "n001"),
    (lambda c: c.put("gpu.xid", 119, AT, None, [9]), "NvidiaGpuXidCritical", "xid_fatal", "n001"),
    (_memory(0.05), "HostOutOfMemory", "memory_pressure", "n001"),
    (lambda c: c.put("nic.packets_lost_per_second", 5e4, AT, None, [9]).put("nic.received_packets_per_second", 1e6, 0),
     "HostNetworkReceiveErrors", "packet_loss", "n001"),
    (lambda c: vanish(c, 9, AT), "NvidiaGpuMissing", "gpu_lost", "n001"),
])
def test_a_rule_fires_on_the_part(plant: Plant, rule: str, fault: str, node: str) -> None:
    """Once, after its condition has held for its time, and under the name that its alert is taken for."""
    said = [(one.reason, one.fault, one.nodes) for one in _alerts(plant) if one.reason == rule]
    assert said == [(rule, fault, (node,))]


@pytest.mark.parametrize(("plant", "rule"), [
    (lambda c: c.put("gpu.temperature_celsius", 84, AT, None, [9]), "NvidiaGpuTemperatureHigh"),
    (lambda c: c.put("gpu.temperature_celsius", 88, AT, AT + 12, [9]), "NvidiaGpuTemperatureHigh"),  # three of five minutes
    (lambda c: c.put("gpu.xid", 43, AT, None, [9]), "NvidiaGpuXidCritical"),                         # what follows a kill
    (_memory(0.2), "HostOutOfMemory"),
    (lambda c: c.put("nic.packets_lost_per_second", 1e3, AT, None, [9]).put("nic.received_packets_per_second", 1e6, 0),
     "HostNetworkReceiveErrors"),
    (lambda c: [vanish(c, column, AT) for column in range(8, 16)], "NvidiaGpuMissing"),              # the whole exporter is away
])
def test_a_rule_is_silent(plant: Plant, rule: str) -> None:
    """Below its limit, before its time, or where it is about something else."""
    assert [one for one in _alerts(plant) if one.reason == rule] == []


def test_alerts_of_one_rule_on_one_node_are_one() -> None:
    """Two hot GPUs of a node are one notification, which is about the node; a third on another node is one more."""
    def hot(cluster: Cluster) -> None:
        for column in (1, 2, 9):
            throttle(cluster, column, AT)
    said = [(one.scope, one.nodes) for one in _alerts(hot) if one.reason == "NvidiaGpuTemperatureHigh"]
    assert sorted(said) == [("device", ("n001",)), ("node", ("n000",))]


def test_a_healthy_cluster_fires_no_gpu_rule() -> None:
    """Noise alone passes no limit."""
    assert [one.reason for one in _alerts(lambda _: None) if one.reason.startswith("Nvidia")] == []


@pytest.mark.parametrize(("away", "rules"), [(20, 2), (4, 1)])
def test_an_alert_fires_again_after_it_was_resolved(away: int, rules: int) -> None:
    """False for five minutes resolves it; a shorter pause is the same alert."""
    def twice(cluster: Cluster) -> None:
        cluster.put("gpu.row_remap_failed", 1, AT, AT + 5, [9]).put("gpu.row_remap_failed", 1, AT + 5 + away + 2, None, [9])
    assert len([one for one in _alerts(twice) if one.reason == "NvidiaGpuRowRemapFailure"]) == rules
