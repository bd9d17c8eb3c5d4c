"""The pages of a switch: snmp_exporter's module if_mib, and gnmic's output of OpenConfig interfaces.

snmp_exporter sorts families by name and labels by name, prints numbers as Go does, and writes the object's number behind each
HELP. gnmic gives all its families the same HELP and no type; a state is a series of 1 with the state in a label
(`strings-as-labels`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from core.types import Floats
from fleet.sheets.base import Family, Get, Sheet
from fleet.stations import Station
from fleet.switchports import NOBODY, SwitchPorts, places_of
from fleet.telemetry import Telemetry

if TYPE_CHECKING:
    from fleet.world import World

IF, IFX, DOT3 = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1", "1.3.6.1.2.1.10.7.10.1"
MEGABIT, CENTISECOND_MS = 125_000.0, 10.0
UP, DOWN = 1.0, 2.0
# name, help, object, counter of the bank
SNMP_COUNTERS = (
    ("dot3HCInPauseFrames", "Pause frames that arrived at this port", f"{DOT3}.3", "pause_in"),
    ("dot3HCOutPauseFrames", "Pause frames that left this port", f"{DOT3}.4", "pause_out"),
    ("ifHCInOctets", "Octets received on the interface, framing included", f"{IFX}.6", "in_octets"),
    ("ifHCInUcastPkts", "Unicast packets handed up by this sub-layer", f"{IFX}.7", "in_packets"),
    ("ifHCOutOctets", "Octets sent out of the interface, framing included", f"{IFX}.10", "out_octets"),
    ("ifHCOutUcastPkts", "Unicast packets that were to be sent", f"{IFX}.11", "out_packets"),
    ("ifInDiscards", "Packets that arrived whole and were dropped", f"{IF}.13", "in_discards"),
    ("ifInErrors", "Packets that arrived with errors", f"{IF}.14", "in_errors"),
    ("ifOutDiscards", "Packets to be sent that were dropped, though nothing was wrong with them", f"{IF}.19", "out_discards"),
    ("ifOutErrors", "Packets that could not be sent because of errors", f"{IF}.20", "out_errors"),
)
# path behind `interfaces_interface_`, counter of the bank
GNMIC_COUNTERS = (
    ("ethernet_state_counters_in_mac_pause_frames", "pause_in"), ("ethernet_state_counters_out_mac_pause_frames", "pause_out"),
    ("state_counters_carrier_transitions", "transitions"), ("state_counters_in_discards", "in_discards"),
    ("state_counters_in_errors", "in_errors"), ("state_counters_in_octets", "in_octets"),
    ("state_counters_in_unicast_pkts", "in_packets"), ("state_counters_out_discards", "out_discards"),
    ("state_counters_out_errors", "out_errors"), ("state_counters_out_octets", "out_octets"),
    ("state_counters_out_unicast_pkts", "out_packets"),
)
SUBSCRIPTION, GNMI_PORT = "port-stats", 57_400
WALK_SECONDS = 0.4


class SwitchSheet(Sheet):
    """Ports of all switches: a column of a family is a port, in the order of its labels."""

    def __init__(self, world: World, families: Callable[[SwitchSheet], Sequence[Family]]) -> None:
        self.world = world
        self.ports: SwitchPorts = world.watch_switches()
        order = places_of(self.ports)
        self.width = order.shape[1]
        for row, numbers in enumerate(order):
            known = [n for n in numbers.tolist() if n != NOBODY]
            order[row, : len(known)] = sorted(known, key=lambda n: f'{self.sorted_by(n)}"')
        self.order, self._away = order, order == NOBODY
        self._blocks = [[self.block(station, number) for number in self.order[station.index].tolist() if number != NOBODY]
                        for station in self.ports.stations]
        super().__init__(world, families(self), self.ports.stations)

    def sorted_by(self, port: int) -> str:
        """The label by which Go's registry puts the port in its place."""
        return self.ports.names[port]

    def block(self, station: Station, port: int) -> str:
        """The port's labels, as printed."""
        raise LookupError(self.name)

    def labels(self, station: Station) -> Sequence[str]:
        """The labels of all ports of a switch."""
        shown = self._blocks[station.index]
        return [*shown, *[""] * (self.width - len(shown))]

    def of_ports(self, values: Callable[[], Floats]) -> Get:
        """float64[switch, column] of what is float64[port]."""
        def of_all(world: World) -> Floats:
            return np.where(self._away, np.nan, values()[self.order])
        return of_all

    def port_family(self, name: str, text: str, kind: str, values: Callable[[], Floats]) -> Family:
        """A family with a series for each port."""
        return Family(name, text, kind, self.labels, self.width, self.of_ports(values))


class SnmpSheet(SwitchSheet):
    """snmp_exporter, module if_mib; one target a switch."""

    name = "snmp"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        super().__init__(world, lambda sheet: self._families())

    def block(self, station: Station, port: int) -> str:
        name = self.ports.names[port]
        return f'{{ifAlias="{self.ports.peers[port]}",ifDescr="{name}",ifIndex="{name.removeprefix("Ethernet")}",ifName="{name}"}}'

    def sorted_by(self, port: int) -> str:
        return self.ports.peers[port]

    def _families(self) -> list[Family]:
        bank, began = self.ports, self.world.start_ms
        def one(name: str, text: str, get: Get) -> Family:
            return Family(name, text, "gauge", lambda station: ("",), 1, get)
        def since_boot(ms: Floats) -> Floats:
            return np.floor((ms - began) / CENTISECOND_MS)
        return [
            *(self.port_family(name, f"{text} - {oid}", "counter", lambda key=key: bank.counters[key])  # type: ignore[misc]
              for name, text, oid, key in SNMP_COUNTERS),
            self.port_family("ifAdminStatus", f"What state the interface is wanted in - {IF}.7", "gauge", lambda: np.full(len(bank.up), UP)),
            self.port_family("ifHighSpeed", f"The interface's bandwidth in millions of bits a second - {IFX}.15", "gauge",
                             lambda: np.round(bank.rate / MEGABIT)),
            self.port_family("ifLastChange", f"What sysUpTime was when the interface came into its present state - {IF}.9", "gauge",
                             lambda: since_boot(bank.changed_ms)),
            self.port_family("ifOperStatus", f"What state the interface is in - {IF}.8", "gauge", lambda: np.where(bank.up > 0, UP, DOWN)),
            one("snmp_scrape_duration_seconds", "How long the whole scrape took, walk and processing.",
                lambda w: np.full(len(bank.stations), WALK_SECONDS + 0.01)),
            one("snmp_scrape_pdus_returned", "PDUs that the walk returned.",
                lambda w: np.array([14.0 * len(ports) for ports in bank.ports])),
            one("snmp_scrape_walk_duration_seconds", "How long the walk took.", lambda w: np.full(len(bank.stations), WALK_SECONDS)),
            one("sysUpTime", "Hundredths of a second since the switch's management was last started - 1.3.6.1.2.1.1.3",
                lambda w: np.full(len(bank.stations), float(w.now_ms - w.start_ms) // CENTISECOND_MS)),
        ]


class GnmicSheet(SwitchSheet):
    """gnmic's Prometheus output; one page a switch, as a gnmic beside each switch shows it."""

    name = "gnmic"
    sorted = True

    def __init__(self, world: World, telemetry: Telemetry) -> None:
        super().__init__(world, lambda sheet: self._families())

    def block(self, station: Station, port: int) -> str:
        return (f'{{interface_name="{self.ports.names[port]}",source="{station.name}:{GNMI_PORT}",'
                f'subscription_name="{SUBSCRIPTION}"}}')

    def _families(self) -> list[Family]:
        bank = self.ports
        return [
            *(self.port_family(f"interfaces_interface_{path}", "gNMIc generated metric", "untyped",
                               lambda key=key: bank.counters[key]) for path, key in GNMIC_COUNTERS),  # type: ignore[misc]
            Family("interfaces_interface_state_oper_status", "gNMIc generated metric", "untyped", self._states, 2 * self.width,
                   self._state_values),
        ]

    def _states(self, station: Station) -> Sequence[str]:
        """A label block for each port in each of its two states, DOWN first."""
        blocks = self._blocks[station.index]
        shown = [block.replace(",source=", f',oper_status="{state}",source=') for block in blocks for state in ("DOWN", "UP")]
        return [*shown, *[""] * (2 * self.width - len(shown))]

    def _state_values(self, world: World) -> Floats:
        up = np.where(self._away, np.nan, self.ports.up[self.order])
        pairs = np.stack([np.where(up == 0, 1.0, np.nan), np.where(up > 0, 1.0, np.nan)], axis=2)
        return pairs.reshape(len(up), -1)
