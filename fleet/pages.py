"""The exporter pages of the fleet and what service discovery says of them."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.exporters import Answer, Exporters, exporters_of
from fleet.hardware import Node
from fleet.telemetry import PORTS, Telemetry
from fleet.world import World

__all__ = ["CONTENT_TYPE", "PORTS", "Pages", "discovery", "exporters_of", "labels_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """Pages as of the world's present moment; asking twice at one moment gives the same bytes.

    telemetry: what the site shows; not given, what the world was built with.
    """

    def __init__(self, world: World, telemetry: Telemetry | None = None) -> None:
        self.exporters = Exporters(world, telemetry)

    @property
    def names(self) -> tuple[str, ...]:
        """The exporters that each node has."""
        return self.exporters.names

    def answer(self, node: Node, exporter: str) -> Answer:
        """What who asks gets, a page or how there is none. Raises KeyError for an exporter that the nodes have not."""
        return self.exporters.answer(node, exporter)

    def page(self, node: Node, exporter: str) -> bytes | None:
        """The page, or None where no page comes (the node reboots, the exporter is ill). Raises KeyError as `answer`."""
        found = self.answer(node, exporter)
        return found.body if found.kind == "page" else None


def labels_of(node: Node, exporter: str, scrape_seconds: int = 15) -> dict[str, str]:
    """The target labels of an exporter of a node. The interval is told where it is not the usual one."""
    labels = {
        "__metrics_path__": f"/nodes/{node.name}/{exporter}",
        "instance": f"{node.name}:{PORTS[exporter]}",
        "job": exporter,
        "node": node.name,
    }
    if scrape_seconds != 15:
        labels["__scrape_interval__"] = f"{scrape_seconds}s"
    return labels


def discovery(world: World, address: str, telemetry: Telemetry | None = None) -> list[Mapping[str, object]]:
    """HTTP service discovery's JSON: all targets behind `address` (host:port)."""
    shown = telemetry or world.telemetry
    endpoints = {row for job in world.jobs.values() if job.serves for row in job.nodes}
    return [{"targets": [address], "labels": labels_of(node, exporter, shown.scrape_seconds)}
            for node in world.nodes for exporter in exporters_of(world, shown)
            if exporter != "vllm" or node.index in endpoints]
