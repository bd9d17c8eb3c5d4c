"""The alert rules that sites run today, as a small table over canonical signals: the baseline that Greylag has to beat.

Rules and thresholds are those of two public collections, in our own words: samber/awesome-prometheus-alerts (APA: host rules
and Prometheus' own) and utkuozdemir/nvidia_gpu_exporter (NGE: GPU rules; its temperature rule takes the usual 85 °C). A rule
knows nothing of our faults; which fault its alert would be taken for stands beside it. An alert fires when its condition has
held for its time, and fires again only after it has been false for five minutes (Alertmanager's usual resolve time).
Alerts are grouped by rule and node, as Alertmanager does. The seven InfiniBand alerts of treydock's collection are about its exporter
(errors, time-outs, old data) and about fans and power of switches: none is about a link, whose counters it only records, so link faults
have APA's receive errors and nothing else. The other baseline, a silent detector, says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.evaluate.facts import Part, Said
from core.faults import faults
from core.types import Floats
from core.window import Window

# Alertmanager's usual times: resolved when false for so long, and one message for a group (alert, node) in so long.
RESOLVE_MS = GROUP_MS = 300_000
GONE_SECONDS = 75.0     # a minute of `up == 0`, and the scrape before it
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """fault: what its alert is taken for. above: fires when the value is greater (else less) than `limit`. over: the value
    is divided by this signal. hold: seconds for which it has to hold. source: whose rule it is."""

    name: str
    fault: str
    signal: str
    limit: float
    hold: float
    source: str
    above: bool = True
    over: str = ""


RULES = (
    Rule("HostOutOfMemory", "memory_pressure", "node.memory_available_bytes", 0.10, 120, "APA", False, "node.memory_total_bytes"),
    Rule("HostMemoryUnderMemoryPressure", "memory_pressure", "node.major_faults_per_second", 1000, 0, "APA"),
    Rule("HostOomKillDetected", "memory_pressure", "node.oom_kills_per_second", 0, 0, "APA"),
    Rule("HostOutOfDiskSpace", "disk_full", "mount.available_bytes", 0.10, 120, "APA", False, "mount.size_bytes"),
    Rule("HostOutOfInodes", "disk_full", "mount.inodes_free", 0.10, 120, "APA", False, "mount.inodes_total"),
    Rule("HostFilesystemDeviceError", "disk_full", "mount.device_error", 0, 120, "APA"),
    Rule("HostUnusualDiskReadLatency", "disk_slow", "disk.read_time_ratio", 0.1, 120, "APA", True, "disk.reads_per_second"),
    Rule("HostUnusualDiskWriteLatency", "disk_slow", "disk.write_time_ratio", 0.1, 120, "APA", True, "disk.writes_per_second"),
    Rule("HostUnusualDiskIo", "disk_slow", "disk.busy_ratio", 0.8, 300, "APA"),
    Rule("HostClockSkew", "clock_skew", "node.clock_offset_seconds", 0.05, 600, "APA"),
    Rule("HostClockNotSynchronising", "clock_skew", "node.clock_synced", 1, 120, "APA", False),
    Rule("HostNetworkReceiveErrors", "packet_loss", "nic.packets_lost_per_second", 0.01, 120, "APA", True,
         "nic.received_packets_per_second"),
    Rule("NvidiaGpuTemperatureHigh", "thermal_throttle", "gpu.temperature_celsius", 85, 300, "NGE"),
    Rule("NvidiaGpuThermalSlowdown", "thermal_throttle", "gpu.hw_thermal_ratio", 0, 60, "NGE"),
    Rule("NvidiaGpuSoftwareThermalSlowdown", "thermal_throttle", "gpu.sw_thermal_ratio", 0, 300, "NGE"),
    Rule("NvidiaGpuPowerBrake", "power_brake", "gpu.power_brake_ratio", 0, 60, "NGE"),
    Rule("NvidiaGpuUncorrectableEccErrors", "ecc_uncorrectable", "gpu.ecc_uncorrectable_per_second", 0, 0, "NGE"),
    Rule("NvidiaGpuRowRemapFailure", "row_remap_failure", "gpu.row_remap_failed", 0, 0, "NGE"),
    Rule("NvidiaGpuRecoveryActionNeeded", "xid_fatal", "gpu.recovery_action", 0, 0, "NGE"),
)
CPU_RULE, CPU_BUSY = Rule("HostHighCpuLoad", "cpu_starved", "node.cpu_busy_ratio", 0.8, 600, "APA"), "node.cpu_idle_ratio"
XID_RULE = Rule("NvidiaGpuXidCritical", "xid_fatal", "gpu.xid", 0, 0, "NGE")
TARGET_RULE = Rule("PrometheusTargetMissing", "target_down", "up", 1, 60, "APA", False)
GPU_MISSING_RULE = Rule("NvidiaGpuMissing", "gpu_lost", "gpu.temperature_celsius", 0, 60, "NGE")
ALL_RULES = (*RULES, CPU_RULE, XID_RULE, TARGET_RULE, GPU_MISSING_RULE)
# What the number of an XID is taken for. Those of programs and of what follows a kill alert nobody.
HARMLESS_XIDS = (13, 31, 43, 45, 63, 66, 68, 92)
XID_FAULTS: Mapping[int, str] = {48: "ecc_uncorrectable", 64: "row_remap_failure", 74: "nvlink_errors", 79: "gpu_lost",
                                 94: "ecc_uncorrectable", 95: "ecc_uncorrectable"}


@dataclass(slots=True)
class _Pending:
    """since: when it became true; last: when it last was; fired: whether its alert is out."""

    since: int
    last: int
    fired: bool = False


class StaticRules:
    """Give it each window in turn; `said` are the alerts that fired."""

    def __init__(self) -> None:
        self._state: dict[tuple[str, Part, str], _Pending] = {}
        self._said: list[Said] = []

    def judge(self, window: Window) -> None:
        """One tick."""
        for rule in RULES:
            value = window.last(rule.signal)
            if rule.over:
                value = _share(value, window.last(rule.over))
            self._true(rule, window, rule.signal.partition(".")[0], value > rule.limit if rule.above else value < rule.limit)
        busy, idle = window.last(CPU_RULE.signal), window.last(CPU_BUSY)
        self._true(CPU_RULE, window, "node", _share(busy, busy + idle) > CPU_RULE.limit)
        self._xid(window)
        self._missing(window)

    def said(self) -> list[Said]:
        """The notifications so far, in order of time: alerts of one rule on one node within the group interval are one, and
        it is about the node when they are about several parts."""
        out: list[Said] = []
        for one in self._said:
            same = next((i for i, o in enumerate(out) if (o.reason, o.fault, o.nodes) == (one.reason, one.fault, one.nodes)
                         and o.nodes and one.opened - o.opened <= GROUP_MS), None)
            if same is None:
                out.append(one)
            elif out[same].culprit != one.culprit:
                node = Part("node", one.nodes[0])
                out[same] = replace(out[same], culprit=node, scope="node")
        return out

    def _xid(self, window: Window) -> None:
        last = window.last(XID_RULE.signal)
        for number in sorted(set(np.unique(last[last > 0]).astype(int).tolist()) - set(HARMLESS_XIDS)):
            self._true(XID_RULE, window, "gpu", last == number, XID_FAULTS.get(number, XID_RULE.fault))

    def _missing(self, window: Window) -> None:
        """`up == 0` of a node's exporters, and GPUs that are gone while the others of their node are there."""
        host = window.block("node.time_seconds")
        self._true(TARGET_RULE, window, "node", _gone(host.age_seconds))
        block = window.block(GPU_MISSING_RULE.signal)
        gone, nodes = _gone(block.age_seconds), [t.node for t in block.entities]
        some = {node for node, lost in zip(nodes, gone.tolist(), strict=True) if not lost}
        alone = np.array([lost and node in some for node, lost in zip(nodes, gone.tolist(), strict=True)], np.bool_)
        self._true(GPU_MISSING_RULE, window, "gpu", alone)

    def _true(self, rule: Rule, window: Window, kind: str, holds: Mask, fault: str = "") -> None:
        parts = window.of_kind(kind)
        for index in np.flatnonzero(holds).tolist():
            part = Part.of(parts[index])
            if part is not None:
                self._hold(rule, part, window.end, fault or rule.fault)

    def _hold(self, rule: Rule, part: Part, at: int, fault: str) -> None:
        key = (rule.name, Part(part.kind, part.node, part.device, part.job, part.rank), fault)
        state = self._state.get(key)
        if state is None or at - state.last > (RESOLVE_MS if state.fired else 15_000):
            state = self._state[key] = _Pending(at, at)
        state.last = at
        if not state.fired and at - state.since >= rule.hold * 1000:
            state.fired = True
            jobs = (part.job,) if part.job else ()
            self._said.append(Said(f"{rule.name}/{len(self._said)}", fault, "node" if part.kind == "node" else "device", part, at,
                                   faults()[fault].klass, jobs=jobs, nodes=(part.node,) if part.node else (), reason=rule.name))


def _share(value: Floats, whole: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, value / whole, np.nan)


def _gone(age: Floats) -> Mask:
    """Seen once, and not for more than a minute."""
    return np.isfinite(age) & (age > GONE_SECONDS)
