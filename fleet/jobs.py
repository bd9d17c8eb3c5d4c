"""The kinds of work that a scenario can name, with their shapes, and how each is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from core.errors import BadInput
from fleet.groups import Groups
from fleet.inference import Inference, ServingShape
from fleet.job import Job, JobShape
from fleet.joblog import ServerLog, SweepLog, log_of
from fleet.rollout import Rollout, RolloutShape
from fleet.running import Running
from fleet.sweep import Sweep, SweepShape

SHAPES: dict[str, type[JobShape]] = {
    "training": JobShape, "sweep": SweepShape, "rollout": RolloutShape, "inference": ServingShape,
}
TRAINERS = ("megatron", "torchtitan")


def shape_of(kind: str, given: Mapping[str, Any]) -> JobShape:
    """The shape of a kind of work with what a scenario gives. Raises BadInput for an unknown kind, key or value."""
    if kind not in SHAPES:
        raise BadInput("job", "kind", kind, f"allowed are: {', '.join(SHAPES)}")
    usual = SHAPES[kind]()
    known = {one.name: getattr(usual, one.name) for one in fields(usual)}
    values = {}
    for key, value in given.items():
        if key not in known:
            raise BadInput("shape", str(key), value, f"allowed are: {', '.join(sorted(known))}")
        values[key] = _like(key, value, known[key])
    shape = SHAPES[kind](**values)
    if shape.trainer not in TRAINERS:
        raise BadInput("shape", "trainer", shape.trainer, f"allowed are: {', '.join(TRAINERS)}")
    return shape


def _like(key: str, value: Any, usual: Any) -> Any:
    """The value in the form of the usual one. Raises BadInput for another form, or a negative number."""
    if key == "extra_tiers":
        if not isinstance(value, list | tuple) or any(not isinstance(row, list | tuple) or len(row) != 2 for row in value):
            raise BadInput("shape", key, value, "a list of [tier, every seconds] is needed")
        return tuple((str(tier), _number(key, every)) for tier, every in value)
    if isinstance(usual, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(usual):
            raise BadInput("shape", key, value, f"a list of {len(usual)} numbers is needed")
        return tuple(type(one)(_number(key, given)) for one, given in zip(usual, value, strict=True))
    if isinstance(usual, bool | str):
        if not isinstance(value, type(usual)):
            raise BadInput("shape", key, value, "true or false is needed" if isinstance(usual, bool) else "a text is needed")
        return value
    if usual is None and value is None:
        return None
    number = _number(key, value)
    whole = isinstance(usual, int) or key == "tp"
    if whole and number != int(number):
        raise BadInput("shape", key, value, "a whole number is needed")
    return int(number) if whole else number


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadInput("shape", key, value, "a number of at least 0 is needed")
    return float(value)


def check_groups(shape: JobShape, nodes: int, gpus: int) -> Groups:
    """The job's groups. Raises BadInput where its tensor and pipeline groups do not fit on so many nodes."""
    ranks, tp = nodes * gpus, shape.tp or min(8, gpus)
    if shape.pp < 1 or tp < 1 or ranks % tp or ranks // tp < shape.pp:
        raise BadInput("shape", "tp, pp", (tp, shape.pp), f"they have to fit on {ranks} GPUs")
    return Groups.fit(ranks, gpus, shape.tp, shape.pp)


def make_job(kind: str, name: str, shape: JobShape, nodes: Sequence[int], gpus: int, rng: np.random.Generator,
             names: Sequence[str] = ()) -> Running:
    """Work of that kind on these nodes (indexes), not started. names: of the nodes, for logs. Raises BadInput where the shape
    is another kind's, or its groups do not fit."""
    if not isinstance(shape, SHAPES.get(kind, ())):
        raise BadInput("job", "kind", kind, f"its shape is that of another kind ({type(shape).__name__})")
    rows = list(nodes)
    if isinstance(shape, SweepShape):
        return Sweep(name, shape, rows, gpus, SweepLog(), rng, names)
    if isinstance(shape, ServingShape):
        return Inference(name, shape, rows, gpus, ServerLog(), rng, names)
    check_groups(shape, len(rows), gpus)
    if isinstance(shape, RolloutShape):
        return Rollout(name, shape, rows, gpus, log_of(shape.trainer), rng)
    return Job(name, shape, rows, gpus, log_of(shape.trainer), rng)
