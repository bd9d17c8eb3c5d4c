"""What the exporter sources share: a row of their tables, and how a series' own labels name the node.

A source may have a function `described()` that gives its rows for the docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from core.protocols import TargetInfo
from core.types import Series, SignalRef, Target


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `docs/sources.md`. metric: as the exporter spells it, with the labels that decide; part: whose it is."""

    metric: str
    meaning: Meaning
    part: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """A row of a source's table: canonical signal, factor from the exporter's unit to the signal's, counter or gauge."""

    signal: str
    scale: float = 1.0
    counter: bool = False

    def ref(self, target: Target) -> SignalRef:
        """The reference for `target`; the mapper fills in the index."""
        return SignalRef(-1, self.signal, target, self.scale, self.counter)


def counter(signal: str, scale: float = 1.0) -> Meaning:
    """A raw value that only grows; the window holds its rate."""
    return Meaning(signal, scale, True)


def gauge(signal: str, scale: float = 1.0) -> Meaning:
    """A raw value as it is."""
    return Meaning(signal, scale)


def node_of(labels: Mapping[str, str], target: TargetInfo, identity: tuple[str, ...]) -> str | None:
    """The node that a series is about: the first of the source's identity labels, else what discovery knows."""
    for name in identity:
        if found := labels.get(name):
            return found
    return target.node


def labels_of(series: Series) -> dict[str, str]:
    """The labels as a mapping, empty ones left out."""
    return {name: value for name, value in series.labels if value}


def host_of(instance: str | None) -> str | None:
    """The host part of an `instance`: `n17:9400` → `n17`, `[::1]:9100` → `::1`."""
    if not instance:
        return None
    if instance.startswith("["):
        return instance[1:].partition("]")[0] or None
    host, colon, port = instance.rpartition(":")
    return (host if colon and port.isdigit() else instance) or None
