"""The exporter pages of the fleet and what service discovery says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.exporters import Answer, Exporters, exporters_of, site_exporters
from fleet.hardware import Node
from fleet.stations import HEAD, Station
from fleet.telemetry import PORTS, SWITCHES, Telemetry
from fleet.world import World

__all__ = ["CONTENT_TYPE", "PORTS", "Pages", "discovery", "exporters_of", "labels_of", "stations_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """Pages as of the world's present moment; asking twice at one moment gives the same bytes.

    telemetry: what the site shows; not given, what the world was built with.
    """

    def __init__(self, world: World, telemetry: Telemetry | None = None) -> None:
        self.exporters = Exporters(world, telemetry)

    @property
    def names(self) -> tuple[str, ...]:
        """The exporters that each node has, and those of the stations."""
        return self.exporters.names

    def find(self, name: str, exporter: str) -> Node | Station | None:
        """The node or station of that name that may have such a page."""
        if exporter not in self.names:
            return None
        if exporter not in site_exporters(self.exporters.world, self.exporters.telemetry):
            return self.exporters.world.find(name)
        return next((place for place in self.exporters.places(exporter) if place.name == name), None)

    def answer(self, node: Node | Station, exporter: str) -> Answer:
        """What who asks gets, a page or how there is none. Raises KeyError for an exporter that the nodes have not."""
        return self.exporters.answer(node, exporter)

    def page(self, node: Node | Station, exporter: str) -> bytes | None:
        """The page, or None where no page comes (the node reboots, the exporter is ill). Raises KeyError as `answer`."""
        found = self.answer(node, exporter)
        return found.body if found.kind == "page" else None


def labels_of(node: Node | Station, exporter: str, scrape_seconds: int = 15) -> dict[str, str]:
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
    elsewhere = site_exporters(world, shown)
    found: list[tuple[Node | Station, str]] = [
        (node, exporter) for node in world.nodes for exporter in exporters_of(world, shown)
        if exporter not in elsewhere and (exporter != "vllm" or node.index in endpoints)]
    found += [(station, exporter) for exporter in exporters_of(world, shown) if exporter in elsewhere
              for station in stations_of(world, exporter)]
    return [{"targets": [address], "labels": labels_of(place, exporter, shown.scrape_seconds)} for place, exporter in found]


def stations_of(world: World, exporter: str) -> Sequence[Station]:
    """What has the page of an exporter that is on no node."""
    return world.watch_switches().stations if exporter in SWITCHES else (Station(0, HEAD),)
