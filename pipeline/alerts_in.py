"""Alerts of others, as their Alertmanager's webhook (version 4) hands them in: events, and evidence for incidents.

An alert that names a node of the inventory becomes an event of kind `alert` on that node (or its device). What it means here
is its label `fault`, else what `MEANS` says of its name. While an incident on that part is open, an alert that fires and means
the same fault (or of which nothing is known) is shown in its evidence.

An alert never opens an incident, never changes a confidence and never lets an action begin: rules of others are judged by
their authors, not here, and what fired long ago may be stale. Actions rest on findings of Greylag's own detectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.clock import parse_rfc3339
from core.errors import BadInput
from core.faults import faults
from core.types import Event, Evidence, Incident, Target

MOST_ALERTS = 1_000
LONGEST_NAME, LONGEST_TEXT = 200, 500
BEFORE_ONSET_MS = 15 * 60_000
MOST_EVIDENCE = 4
OLDEST_MS = 86_400_000
NODE_LABELS = ("node", "Hostname", "hostname", "kubernetes_node", "nodename", "host", "instance")
DEVICE_LABELS = (("gpu", "gpu"), ("GPU", "gpu"), ("nic", "nic"), ("interface", "nic"), ("device", "nic"), ("disk", "disk"), ("mountpoint", "mount"))
# Names of alerts that are usual with node_exporter's, kube-prometheus' and dcgm-exporter's rules.
MEANS: dict[str, str] = {
    "NodeClockSkewDetected": "clock_skew", "NodeClockNotSynchronising": "clock_skew", "NodeFilesystemAlmostOutOfSpace": "disk_full",
    "NodeFilesystemSpaceFillingUp": "disk_full", "NodeFilesystemFilesFillingUp": "disk_full", "NodeFilesystemAlmostOutOfFiles": "disk_full",
    "NodeDiskIOSaturation": "disk_slow", "NodeMemoryHighUtilization": "memory_pressure", "NodeMemoryMajorPagesFaults": "memory_pressure",
    "NodeCPUHighUsage": "cpu_starved", "NodeSystemSaturation": "cpu_starved", "NodeNetworkReceiveErrs": "packet_loss",
    "NodeNetworkTransmitErrs": "packet_loss", "NodeNetworkInterfaceFlapping": "link_flap", "NodeSystemdServiceFailed": "service_down",
    "TargetDown": "target_down", "GpuXidError": "xid_fatal", "GPUXidErrorDetected": "xid_fatal", "DCGMXidError": "xid_fatal",
    "GpuHighTemperature": "thermal_throttle", "GPUHighTemperature": "thermal_throttle", "GpuDoubleBitEccErrors": "ecc_uncorrectable",
    "GpuRowRemapFailure": "row_remap_failure", "KubeNodeNotReady": "target_down", "KubeNodeUnreachable": "target_down",
}
OWN_PATH = "/api/greylag/v1/incidents/inc-"


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of what was handed in. reasons: of `core.reasons.ALERT_REASONS`, how many each."""

    events: tuple[Event, ...]
    reasons: Mapping[str, int]


def read_alerts(body: Any, now: int, nodes: Collection[str], actor: str) -> Taken:
    """The events of a webhook's body. nodes: names of the inventory. Raises BadInput in one sentence."""
    if not isinstance(body, Mapping):
        raise BadInput("the body", "", body, "what Alertmanager's webhook posts is needed: a JSON object with `alerts`")
    if str(body.get("version")) != "4":
        raise BadInput("version", "", body.get("version"), "version 4 of Alertmanager's webhook is needed")
    alerts = body.get("alerts")
    if not isinstance(alerts, Sequence) or isinstance(alerts, str) or len(alerts) > MOST_ALERTS:
        raise BadInput("alerts", "", alerts, f"a list of at most {MOST_ALERTS} alerts is needed")
    events, reasons = [], dict.fromkeys(("stored", "own_alert", "unknown_part"), 0)
    for i, alert in enumerate(alerts):
        labels = _texts(alert, "labels", i)
        if OWN_PATH in str(alert.get("generatorURL", "")) or labels["alertname"].startswith("GreylagWatchdog"):
            reasons["own_alert"] += 1
            continue
        target = _part(labels, nodes)
        reasons["unknown_part" if target is None else "stored"] += 1
        events.append(_event(alert, labels, target or Target("fleet"), now, actor, i))
    return Taken(tuple(events), reasons)


def _texts(alert: Any, key: str, i: int) -> dict[str, str]:
    found = alert.get(key) if isinstance(alert, Mapping) else None
    if not isinstance(found, Mapping) or not all(isinstance(v, str) for v in found.values()) or not found.get("alertname"):
        raise BadInput(f"alerts[{i}].{key}", "", found, "labels as texts, `alertname` among them, are needed")
    return {str(name): value[:LONGEST_TEXT] for name, value in found.items()}


def _part(labels: Mapping[str, str], nodes: Collection[str]) -> Target | None:
    """The part that the labels name, None where no node of the inventory is named."""
    for name in NODE_LABELS:
        value = labels.get(name, "")
        for node in (value, value.rpartition(":")[0], value.partition(".")[0], value.rpartition(":")[0].partition(".")[0]):
            if node and node in nodes:
                device = next(((kind, labels[label]) for label, kind in DEVICE_LABELS if labels.get(label)), None)
                return Target("node", node) if device is None else Target(device[0], node, device[1])
    return None


def _event(alert: Mapping[str, Any], labels: Mapping[str, str], target: Target, now: int, actor: str, i: int) -> Event:
    status = alert.get("status")
    if status not in ("firing", "resolved"):
        raise BadInput(f"alerts[{i}].status", "", status, "allowed are: firing, resolved")
    try:
        at = parse_rfc3339(str(alert.get("startsAt" if status == "firing" else "endsAt")))
    except (ValueError, OverflowError):
        raise BadInput(f"alerts[{i}]", "", alert.get("startsAt"), "startsAt and endsAt in RFC 3339 are needed") from None
    notes = alert.get("annotations")
    said = str(notes.get("summary") or notes.get("description") or "") if isinstance(notes, Mapping) else ""
    name = labels["alertname"][:LONGEST_NAME]
    known = labels.get("fault") or MEANS.get(name)
    # What fires for weeks fires now: an event of that time would lie outside of every window.
    return Event(at if now - OLDEST_MS <= at <= now else now, target, "alert", {
        "alertname": name, "status": status, "severity": labels.get("severity") or None, "fault": known if known in faults() else None,
        "fingerprint": str(alert.get("fingerprint") or "")[:LONGEST_NAME], "summary": " ".join(said.split())[:LONGEST_TEXT] or None, "by": actor})


def evidence_for(incident: Incident, events: Sequence[Event], now: int) -> tuple[Evidence, ...]:
    """The alerts that bear an incident out at `now` (ms), the newest first: on its part or node, not over before its onset, and
    of its fault where they mean one."""
    culprit = incident.culprit
    if culprit is None or culprit.node is None:
        return ()
    last: dict[str, Event] = {}
    for event in events:
        if event.kind == "alert" and event.target.node == culprit.node and event.at <= now:
            last[str(event.fields.get("fingerprint") or event.fields["alertname"])] = event
    found = []
    for event in sorted(last.values(), key=lambda e: (-e.at, str(e.fields["alertname"]))):
        over = event.fields["status"] == "resolved" and event.at < incident.onset_at - BEFORE_ONSET_MS
        other = event.fields.get("fault") not in (None, incident.fault)
        elsewhere = event.target.device is not None and culprit.device is not None and not _same_device(event.target, culprit)
        if not (over or other or elsewhere):
            words = f"{event.fields['alertname']} {event.fields['status']}" + (f": {event.fields['summary']}" if event.fields.get("summary") else "")
            found.append(Evidence("alert", "count", 1.0, None, f"an alert of {event.fields.get('by')}", words))
    return tuple(found[:MOST_EVIDENCE])


def _same_device(one: Target, culprit: Target) -> bool:
    return one.device == culprit.device or (culprit.device or "").startswith(f"{one.device}/")
