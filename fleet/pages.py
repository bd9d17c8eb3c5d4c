"""The exporter pages of the fleet and what service discovery says of them."""

from __future__ import annotations

from typing import Protocol

from fleet.hardware import Node
from fleet.page_dcgm import DcgmPages
from fleet.page_node import NodePages
from fleet.page_trainer import TrainerPages
from fleet.world import World

PORTS = {"dcgm": 9400, "node": 9100, "trainer": 9401}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Maker(Protocol):
    """Makes the page of one exporter of a node."""

    def page(self, node: Node) -> bytes: ...


class Pages:
    """Pages as of the world's present moment; asking twice at one moment gives the same bytes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._makers: dict[str, Maker] = {"dcgm": DcgmPages(world), "node": NodePages(world), "trainer": TrainerPages(world)}

    def page(self, node: Node, exporter: str) -> bytes | None:
        """The page, or None where nothing answers (the node reboots). Raises KeyError for an unknown exporter."""
        maker = self._makers[exporter]
        return maker.page(node) if node.up else None


def labels_of(node: Node, exporter: str) -> dict[str, str]:
    """The target labels of an exporter of a node."""
    return {
        "__metrics_path__": f"/nodes/{node.name}/{exporter}",
        "instance": f"{node.name}:{PORTS[exporter]}",
        "job": exporter,
        "node": node.name,
    }


def discovery(world: World, address: str) -> list[dict[str, object]]:
    """HTTP service discovery's JSON: all targets behind `address` (host:port)."""
    return [{"targets": [address], "labels": labels_of(node, exporter)} for node in world.nodes for exporter in PORTS]
