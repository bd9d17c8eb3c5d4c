"""Batches and records for the store's tests, from a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from core.derive import STALE_NAN
from core.protocols import TickCommit
from core.types import (
    Action,
    Batch,
    Event,
    Finding,
    Incident,
    Layout,
    Outbound,
    Outcome,
    Record,
    Scrape,
    Series,
    Target,
)

T0 = 1_800_000_000_000
STEP = 15_000
GPU = Target("gpu", "n1", "3", id="GPU-1")


def series(name: str, **labels: str) -> Series:
    return Series(name, tuple(sorted(labels.items())), "gauge")


def layout(target: str = "t1", names: Sequence[str] = ("a", "b", "c"), **labels: str) -> Layout:
    many = tuple(series(name, instance=target, **labels) for name in names)
    return Layout(Layout.make_id(target, many), target, many, (), node=target)


def scrape(shape: Layout, at: int, values: Sequence[float | None], error: str | None = None) -> Scrape:
    filled = np.array([STALE_NAN if v is None else v for v in values], np.float64)
    return Scrape(shape.id, shape.target_id, at, filled, 0.01, error)


def batch(seq: int, *scrapes: Scrape, layouts: Sequence[Layout] = (), epoch: int = 1, worker: str = "w",
          events: Sequence[Event] = ()) -> Batch:
    at = max((s.at for s in scrapes), default=0)
    return Batch(worker, epoch, seq, at, tuple(layouts), tuple(scrapes), tuple(events))


def finding(name: str = "f1", at: int = T0, **changes: object) -> Finding:
    values: dict[str, object] = {
        "id": name, "detector": "thermal_throttle", "fault": "thermal_throttle", "target": GPU, "state": "open", "severity": 0.6, "evidence": (),
        "reason": "hot", "onset_at": at, "opened_at": at, "updated_at": at, "suspects": ((GPU, 0.5, "alone"),)}
    return Finding(**{**values, **changes})  # type: ignore[arg-type]


def incident(name: str = "inc-1", at: int = T0, **changes: object) -> Incident:
    values: dict[str, object] = {
        "id": name, "fault": "thermal_throttle", "scope": "device", "culprit": GPU, "confidence": 0.9, "suspects": (), "victims": (),
        "findings": ("f1",), "evidence": (), "jobs": ("j1",), "lost_gpu_hours": 0.5, "owner": "infra", "klass": "page", "state": "open",
        "reason": "opened_by_finding", "merged_into": None, "onset_at": at, "opened_at": at, "updated_at": at}
    return Incident(**{**values, **changes})  # type: ignore[arg-type]


def action(step: int = 1, state: str = "DONE", args: Mapping[str, object] | None = None) -> tuple[Action, Outcome]:
    made = Action(f"inc-1/1/{step}", "drain", GPU, args or {"wait_for": "checkpoint"}, 60.0, "act", "inc-1", 1, step, T0,
                  "policy")
    return made, Outcome(made.id, state, "done", 1.5, T0)


def message(name: str = "m1", notifier: str = "hook") -> Outbound:
    return Outbound(name, notifier, "inc-1", T0, "{}")


def tick(number: int = 0, **parts: object) -> TickCommit:
    return TickCommit(T0 + number * STEP, **parts)  # type: ignore[arg-type]


def record(n: int) -> Record:
    return Record(T0, "event", f'{{"n":{n}}}')
