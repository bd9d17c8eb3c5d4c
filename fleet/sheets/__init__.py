"""One sheet for each kind of exporter, on nodes and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fleet.sheets.base import Sheet
from fleet.sheets.dcgm import DcgmSheet
from fleet.sheets.efa import EfaSheet
from fleet.sheets.lustre import LustreSheet
from fleet.sheets.neuron import NeuronSheet
from fleet.sheets.node import NodeSheet
from fleet.sheets.schedulers import KubeSheet, SlurmSheet
from fleet.sheets.switches import GnmicSheet, SnmpSheet
from fleet.sheets.trainer import TrainerSheet
from fleet.sheets.vllm import VllmSheet
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

SHEETS: Mapping[str, Callable[[World, Telemetry], Sheet]] = {
    "dcgm": DcgmSheet, "node": NodeSheet, "efa": EfaSheet, "neuron": NeuronSheet, "lustre": LustreSheet,
    "trainer": TrainerSheet, "vllm": VllmSheet, "slurm": SlurmSheet, "kube": KubeSheet, "snmp": SnmpSheet, "gnmic": GnmicSheet,
}
