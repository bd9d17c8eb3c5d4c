"""kube-state-metrics: what Kubernetes thinks of nodes, and the pods of training jobs (signals.md §6).

A node is cordoned where `kube_node_spec_unschedulable` is 1, and down or silent where its condition Ready is false or
unknown: of these the worst counts. The other conditions are the verdicts of other watchers.

A pod is no part. Pods whose names are those of a training operator's (`<job>-worker-3`, `<job>-master-0`, JobSet's
`<job>-node-0-1-x7k2p`) are counted for their job; no other pod is looked at. Names that the scrape kept as `exported_…`,
because its own labels took theirs, come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collectors.meaning import Meaning, Row, counter, gauge, labels_of
from core.protocols import SourcePlugin, TargetInfo
from core.types import Series, SignalRef, Target

IDENTITY = ("exported_node", "node")
DOWN = 2.0  # of node.scheduler_state

_UNSCHEDULABLE, _CONDITION = "kube_node_spec_unschedulable", "kube_node_status_condition"
_PHASE, _RESTARTS = "kube_pod_status_phase", "kube_pod_container_status_restarts_total"
CORDONED, NOT_READY = gauge("node.scheduler_state"), gauge("node.scheduler_state", DOWN)
PHASES: dict[str, Meaning] = {
    "Running": gauge("job.pods_running"), "Pending": gauge("job.pods_pending"), "Failed": gauge("job.pods_failed"),
}
RESTARTS = counter("job.restarts_per_second")
_TRAINING_POD = re.compile(r"(.+)-(?:worker|master|launcher|chief|ps)-(?:\d+|[a-z0-9]{5})|"
                           r"(.+)-(?:node|workers?)-\d+-\d+-[a-z0-9]{5}")


def _of_node(series: Series, labels: dict[str, str]) -> SignalRef | None:
    node = labels.get("exported_node") or labels.get("node")
    if not node:
        return None
    if series.name == _UNSCHEDULABLE:
        return CORDONED.ref(Target("node", node))
    wanted = labels.get("condition") == "Ready" and labels.get("status") in ("false", "unknown")
    return NOT_READY.ref(Target("node", node)) if wanted else None


def map_series(series: Series, target: TargetInfo) -> SignalRef | None:
    """The canonical signal of a kube-state-metrics series."""
    if series.name in (_UNSCHEDULABLE, _CONDITION):
        return _of_node(series, labels_of(series))
    if series.name not in (_PHASE, _RESTARTS):
        return None
    labels = labels_of(series)
    pod = _TRAINING_POD.fullmatch(labels.get("exported_pod") or labels.get("pod", ""))
    meaning = RESTARTS if series.name == _RESTARTS else PHASES.get(labels.get("phase", ""))
    return meaning.ref(Target("job", job=pod[2] or pod[1])) if pod and meaning else None


def described() -> Iterator[Row]:
    """The rows for the docs."""
    yield Row(_UNSCHEDULABLE, CORDONED, "node (`node`)")
    yield Row(f'{_CONDITION}{{condition="Ready",status="false|unknown"}}', NOT_READY, "node (`node`)")
    yield from (Row(f'{_PHASE}{{phase="{phase}"}}', meaning, "job (of the training pod's name)")
                for phase, meaning in PHASES.items())
    yield Row(_RESTARTS, RESTARTS, "job (of the training pod's name)")


PLUGIN = SourcePlugin("kube_state_metrics", map_series=map_series, identity=IDENTITY,
                      prefixes=("kube_node_", "kube_pod_"))
