"""All series of a recording, each with a number, and the instance that each belongs to.

An instance is (job, instance) where a series has both labels. Else it is what names the node (`instance`, `Hostname`,
`hostname`, `kubernetes_node`, a `node` label that is no NUMA node's number), else the file; and because such recordings
mix exporters that are read at different times, each known exporter's metrics are then an instance of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.meaning import host_of
from core.types import Series

Ints = NDArray[np.int64]
Labels = tuple[tuple[str, str], ...]
FILE_MARK = "__file__"  # the label that keeps a series' file through a sorter; no exporter may use such a name
IDENTITY = ("Hostname", "hostname", "kubernetes_node", "node")
_EXPORTERS = (
    ("DCGM_", "dcgm"), ("dcgm_", "dcgm"), ("node_", "node"), ("greylag_train_", "trainer"), ("greylag_", "greylag"),
    ("amd_", "amd"), ("gpu_", "amd"), ("neuron", "neuron"), ("infiniband_", "infiniband"), ("lustre_", "lustre"),
    ("nvidia_smi_", "nvidia_smi"), ("slurm_", "slurm"), ("kube_", "kube"), ("vllm:", "vllm"), ("tgi_", "tgi"),
    ("nv_", "triton"), ("habanalabs_", "habanalabs"),
)


class InstanceKey(NamedTuple):
    """job and instance as labelled; host: of an identity label, else of `instance`; stem: set where nothing else names it."""

    job: str
    instance: str
    host: str
    exporter: str
    stem: str

    def name(self) -> str:
        """The target's id: what people would call it."""
        parts = (self.job, self.instance or self.host or self.stem, self.exporter)
        return "/".join(part for part in parts if part)


def exporter_of(name: str) -> str:
    """The exporter that a metric's name gives away, or an empty string."""
    for prefix, exporter in _EXPORTERS:
        if name.startswith(prefix):
            return exporter
    return ""


def node_label(labels: Mapping[str, str]) -> str | None:
    """The `node` label, unless it is a number: node_exporter's NUMA nodes."""
    found = labels.get("node")
    return found if found and not found.isdigit() else None


def instance_of(name: str, labels: Mapping[str, str], stem: str) -> InstanceKey:
    """The instance that a series belongs to."""
    job, instance = labels.get("job", ""), labels.get("instance", "")
    if job and instance:
        return InstanceKey(job, instance, host_of(instance) or "", "", "")
    exporter = exporter_of(name)
    if instance:
        return InstanceKey("", instance, host_of(instance) or "", exporter, "")
    host = next((v for k in IDENTITY if (v := node_label(labels) if k == "node" else labels.get(k))), "")
    return InstanceKey(job, "", host, exporter, "" if host else stem)


class SeriesTable:
    """Series by number. Labels without a value are no labels. Grows with the distinct series of a recording only."""

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.owner: list[InstanceKey] = []
        self._numbers: dict[tuple[str, Labels, str], int] = {}
        self._owners: dict[InstanceKey, InstanceKey] = {}

    def number(self, name: str, labels: Labels, kind: str, stem: str) -> int:
        """The number of a series as read from the file `stem`; new ones get the next. The first type told counts."""
        if any(not value for _, value in labels):
            labels = tuple(pair for pair in labels if pair[1])
        key = instance_of(name, dict(labels), stem)
        place = (name, labels, key.stem)
        found = self._numbers.get(place)
        if found is None:
            found = self._numbers[place] = len(self.series)
            self.series.append(Series(name, labels, kind))
            self.owner.append(self._owners.setdefault(key, key))
        return found

    def marked(self, number: int) -> Series:
        """The series with its file as a label, where only the file names its instance."""
        series, stem = self.series[number], self.owner[number].stem
        if not stem:
            return series
        return Series(series.name, tuple(sorted((*series.labels, (FILE_MARK, stem)))), series.type)

    def number_of_marked(self, series: Series) -> int:
        """The number of what `marked` gave."""
        stem = series.label(FILE_MARK)
        labels = tuple(pair for pair in series.labels if pair[0] != FILE_MARK) if stem else series.labels
        return self.number(series.name, labels, series.type, stem)
