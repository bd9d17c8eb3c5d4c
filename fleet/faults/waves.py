"""Something new on a part of the fleet: which nodes have it, and the label by which one can tell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from core.errors import BadInput
from core.types import Target
from fleet.places import Place
from fleet.plants import Planted
from fleet.world import World


def wave(key: str, value: str, share: float) -> Callable[[World, Target | None, np.random.Generator], Place]:
    """How FaultPlugin.locate chooses the nodes that have `key=value`: two at least, one fewer than all at most."""
    return partial(_locate, f"{key}={value}", share)


def _locate(label: str, share: float, world: World, target: Target | None, rng: np.random.Generator) -> Place:
    if target is not None and target.device not in (None, label):
        raise BadInput("fault", "target.device", target.device, f"the label is {label}")
    total = len(world.nodes)
    size = max(1, min(total - 1, max(2, round(share * total))))
    return Place(Target("label", device=label), (), tuple(sorted(int(row) for row in rng.permutation(total)[:size])))


def begin_wave(world: World, planted: Planted) -> None:
    """The nodes have the label from now on."""
    key, _, value = str(planted.culprit.device).partition("=")
    planted.memo["labels"] = {row: world.nodes[row].labels.get(key) for row in planted.place.rows}
    for row in planted.place.rows:
        world.nodes[row].labels[key] = value


def end_wave(world: World, planted: Planted) -> None:
    """The nodes have what they had."""
    key = str(planted.culprit.device).partition("=")[0]
    for row, before in planted.memo.get("labels", {}).items():
        if before is None:
            world.nodes[row].labels.pop(key, None)
        else:
            world.nodes[row].labels[key] = before
