"""What the inference sources share: the part that a server's metrics speak of.

An endpoint is the job `<model>@<where>`, where = the pod, else the instance: replicas of one model are parts of their own,
to be compared with each other. Of a histogram or summary its sum and its count are signals; their rates' ratio is the mean
of the interval, and no detector needs the buckets.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.protocols import TargetInfo
from core.types import Target


def endpoint(labels: Mapping[str, str], target: TargetInfo, model: str | None) -> Target:
    """The endpoint that a series' labels name; model: None where the server serves one model and does not name it."""
    where = labels.get("pod") or labels.get("instance") or target.labels.get("instance") or target.id
    return Target("job", target.node, job=f"{model}@{where}" if model else where)
