"""An exporter has lost a part of its families (a field group that failed) and answers with the rest."""

from __future__ import annotations

from core.protocols import FaultPlugin
from fleet.faults.acts import exporter_of
from fleet.faults.sizes import HARMLESS
from fleet.plants import Planted
from fleet.world import World

LOST = {
    "dcgm": frozenset({
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_DEV_POWER_USAGE",
    }),
    "node": frozenset({
        "node_infiniband_port_data_received_bytes_total", "node_infiniband_port_data_transmitted_bytes_total",
        "node_infiniband_out_of_sequence_packets_received_total", "node_infiniband_packet_sequence_errors_total",
        "node_infiniband_state_id", "node_infiniband_physical_state_id", "node_pressure_cpu_waiting_seconds_total",
        "node_pressure_io_waiting_seconds_total", "node_pressure_io_stalled_seconds_total",
        "node_pressure_memory_waiting_seconds_total", "node_pressure_memory_stalled_seconds_total",
    }),
}


def apply(world: World, planted: Planted) -> None:
    """The exporter is drawn once."""
    key = (planted.place.index[0], exporter_of(world, planted))
    world.knobs.exporter.missing[key] = LOST.get(key[1], frozenset())


PLUGIN = FaultPlugin(
    name="exporter_partial", fault="exporter_partial", scope="node", place="node", apply=apply, cured_by=("restart_process", "reboot"), impact=HARMLESS,
)
