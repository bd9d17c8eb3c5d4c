"""dcgm-exporter: labels in the exporter's own order, integer fields whole, floating ones with six decimals, no time stamps.

A GPU that never met an XID has no XID line; one that is off the bus has no line at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.hardware import Node
from fleet.sheets.base import SIX, WHOLE, Family, Get, Sheet
from fleet.sheets.dcgm_fields import FIELDS, XID, Field
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World


def board_labels(node: Node, gpu: int, driver: str) -> str:
    """The labels of one GPU, without braces, as the exporter prints them."""
    # DCGM writes the domain with eight digits.
    return (f'gpu="{gpu}",UUID="{node.uuids[gpu]}",pci_bus_id="0000{node.kind.pci(gpu).upper()}",'
            f'device="nvidia{gpu}",modelName="{node.kind.gpu_model}",Hostname="{node.name}",'
            f'DCGM_FI_DRIVER_VERSION="{driver}"')


class DcgmSheet(Sheet):
    """The fields of the tier (lean: those that the demo shows), each for all GPUs."""

    name = "dcgm"

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        width = world.kind.gpus
        fields = [one for one in FIELDS if one.shown(telemetry, world.kind)]
        super().__init__(world, [self._family(one, width) for one in fields])
        self._gpu = np.tile(np.arange(width), len(fields))

    def _family(self, one: Field, width: int) -> Family:
        labels: Callable[[Node], Sequence[str]] = self._xid_labels if one.name == XID else self._labels
        get: Get = one.get
        return Family(one.name, one.help, one.type, labels, width, get, WHOLE if one.whole else SIX)

    def _labels(self, node: Node) -> list[str]:
        driver = self._driver(node)
        return [f"{{{board_labels(node, gpu, driver)}}}" for gpu in range(node.kind.gpus)]

    def _driver(self, node: Node) -> str:
        return self.world.knobs.settings.get((node.index, "driver"), node.kind.driver)

    def _xid_labels(self, node: Node) -> list[str]:
        driver, codes = self._driver(node), self.world.gpus.xid[node.index]
        return [f'{{{board_labels(node, gpu, driver)},err_code="{int(code)}",err_msg="XID {int(code)}"}}'
                for gpu, code in enumerate(codes.tolist())]

    def keys(self) -> list[Hashable]:
        """The boards, the XIDs, and the driver where it differs from the fleet's."""
        world = self.world
        keys: list[Hashable] = [node.uuids for node in world.nodes]
        for row in np.flatnonzero(world.gpus.xid.any(axis=1)).tolist():
            keys[row] = (keys[row], world.gpus.xid[row].tobytes())
        for (row, what), value in world.knobs.settings.items():
            if what == "driver":
                keys[row] = (keys[row], value)
        return keys

    def values(self) -> Floats:
        out = super().values()
        present = self.world.gpus.present
        if not present.all():
            out = np.where(present[:, self._gpu], out, np.nan)
        return out
