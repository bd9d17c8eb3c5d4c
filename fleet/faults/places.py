"""Where a fault's target stands in the arrays of the world."""

from __future__ import annotations

from core.errors import BadInput
from core.types import Target
from fleet.world import World


def gpu_place(world: World, target: Target) -> tuple[int, int]:
    """(node index, GPU index) of a GPU target. Raises BadInput where there is none."""
    node = _node(world, target)
    device = target.device or ""
    if not device.isdigit() or int(device) >= world.kind.gpus:
        raise BadInput("fault", "target.device", target.device, f"a GPU index from 0 to {world.kind.gpus - 1} is needed")
    return node, int(device)


def nic_place(world: World, target: Target) -> tuple[int, int]:
    """(node index, NIC index) of a NIC target such as `mlx5_3/1`. Raises BadInput where there is none."""
    node = _node(world, target)
    names = [world.nodes[node].nic(i) for i in range(world.kind.nics)]
    if target.device not in names:
        raise BadInput("fault", "target.device", target.device, f"allowed are: {', '.join(names)}")
    return node, names.index(target.device)


def _node(world: World, target: Target) -> int:
    found = world.find(target.node)
    if found is None:
        raise BadInput("fault", "target.node", target.node, "a node of the fleet is needed")
    return found.index
