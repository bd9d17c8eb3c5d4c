"""What a node is made of, as data (`catalogue.yaml`), and the identities of the parts of each node.

Figures of the H100 node are those of real captures and data sheets: clocks, idle and load power, memory sizes, thermal
margins, PCI addresses of the GPUs, 400 Gb/s ports. Temperatures follow from power through one thermal resistance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from core.errors import BadInput, nearest
from core.yamlfile import Node as Block
from core.yamlfile import build, read_yaml, require

CATALOGUE = Path(__file__).parent / "catalogue.yaml"
VENDORS = ("nvidia", "neuron")
FABRICS = ("roce", "infiniband", "efa")
DEFAULT_KIND = "h100-8x-roce"


@dataclass(frozen=True)
class NodeType:
    """One kind of node; keys, units and sources stand in `catalogue.yaml`.

    Watts: board power at rest, what full load adds, and the limit. resistance: °C of core temperature per W over the
    inlet. core_limit, hbm_limit: °C at which the driver slows the part (margin 0). buses: PCI bus of each GPU (slots and
    domains where they are not 00 and 0000). A Neuron device counts as a GPU here: `cores` NeuronCores each.
    """

    name: str
    vendor: str
    gpu_model: str
    driver: str
    vbios: str
    kernel: str
    architecture: str
    buses: tuple[str, ...]
    memory_mib: int
    reserved_mib: int
    memory_banks: int
    cores: int
    idle_watts: float
    load_watts: float
    limit_watts: float
    least_watts: float
    max_clock_mhz: int
    idle_clock_mhz: int
    memory_clock_mhz: int
    clock_step_mhz: int
    resistance: float
    core_limit: float
    hbm_limit: float
    slowdown_margin: float
    shutdown_margin: float
    margin_shown: bool
    air_celsius: float
    pcie_gen: int
    pcie_width: int
    nvlinks: int
    nvlink_bytes_per_second: float
    nvlink_version: int
    nvlink_nodes: int
    fabric: str
    nic_names: tuple[str, ...]
    nic_buses: tuple[str, ...]
    nic_bytes_per_second: float
    nic_model: str
    nic_firmware: str
    cpus: int
    vcpus: int
    cpu_hertz: float
    host_memory_bytes: float
    root_bytes: float
    scratch_bytes: float
    fans: int
    nodes_per_rack: int
    parts: tuple[str, ...]
    exporters: tuple[str, ...]
    services: tuple[str, ...]
    slots: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    nic_slots: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs (or Neuron devices) of a node."""
        return len(self.buses)

    @property
    def nics(self) -> int:
        """NICs of a node; their number need not be that of the GPUs."""
        return len(self.nic_names)

    @cached_property
    def has(self) -> frozenset[str]:
        """What it is made of, in the words of `FaultPlugin.needs`."""
        version = {f"nvlink{self.nvlink_version}"} if "nvlink" in self.parts else set()
        return frozenset({self.vendor, self.fabric, *self.parts, *version})

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """How a node of this kind is set up when nothing differs: the keys of `WorldKnobs.settings`."""
        mtu = {"roce": "4200", "infiniband": "4092", "efa": "8928"}[self.fabric]
        return {
            "driver": self.driver, "vbios": self.vbios, "firmware": self.nic_firmware, "kernel": self.kernel, "mtu": mtu,
            "governor": "performance", "ecc": "enabled", "persistence": "enabled",
            "power_limit_watts": f"{self.limit_watts:g}", "locked_clock_mhz": "", "nccl": "2.27.7",
        }

    def pci(self, gpu: int) -> str:
        """The GPU's PCI address as people write it, `0000:53:00.0`."""
        domain = self.domains[gpu] if self.domains else "0000"
        return f"{domain}:{self.buses[gpu].lower()}:{(self.slots[gpu] if self.slots else '00').lower()}.0"

    def nic_pci(self, nic: int) -> str:
        """The NIC's PCI address."""
        return f"0000:{self.nic_buses[nic].lower()}:{(self.nic_slots[nic] if self.nic_slots else '00').lower()}.0"


def load_catalogue(path: str | Path = CATALOGUE) -> dict[str, NodeType]:
    """Kinds of node by name. Raises ConfigError: file, line, key, what was given and what is allowed."""
    file = Path(path)
    blocks = read_yaml(file)
    require(isinstance(blocks, Block) and bool(blocks), str(path), "", blocks, "a mapping of kinds of node is needed")
    full: dict[str, Block] = {}
    for name, block in blocks.items():
        where = blocks.where(name)
        require(isinstance(block, Block), where, name, block, "a mapping is needed")
        base = block.get("like")
        require(base is None or base in full, where, f"{name}.like", base, f"kinds above it are: {', '.join(full)}")
        inherited = dict(full[base]) if base is not None else {}
        own = {key: value for key, value in block.items() if key != "like"}
        # Addresses go with the parts that they are of: other parts do not inherit the slots of those of the base.
        for parts, addresses in (("buses", ("slots", "domains")), ("nic_names", ("nic_slots",))):
            if parts in own:
                inherited = {key: value for key, value in inherited.items() if key not in addresses}
        full[name] = block.holding({**inherited, **own, "name": name})
    return {name: _checked(build(NodeType, block, str(path), name), block) for name, block in full.items()}


def _checked(kind: NodeType, block: Block) -> NodeType:
    """What types cannot say. Raises ConfigError."""
    name = kind.name
    for key, given, allowed in (("vendor", kind.vendor, VENDORS), ("fabric", kind.fabric, FABRICS)):
        require(given in allowed, block.where(key), f"{name}.{key}", given, f"allowed are: {', '.join(allowed)}")
    for key in ("buses", "nic_names", "exporters"):
        require(bool(getattr(kind, key)), block.where(key), f"{name}.{key}", getattr(kind, key), "at least one is needed")
    for key, of in (("nic_buses", "nic_names"), ("slots", "buses"), ("domains", "buses"), ("nic_slots", "nic_names")):
        there, wanted = len(getattr(kind, key)), len(getattr(kind, of))
        optional = there == 0 and key != "nic_buses"
        require(optional or there == wanted, block.where(key), f"{name}.{key}", there, f"{wanted} are needed, as many as {of}")
    addresses = {*(kind.pci(g) for g in range(kind.gpus)), *(kind.nic_pci(n) for n in range(kind.nics))}
    require(len(addresses) == kind.gpus + kind.nics, block.where("buses"), f"{name}.buses", kind.buses,
            "each GPU and NIC needs an address of its own")
    require(len(set(kind.nic_names)) == kind.nics, block.where("nic_names"), f"{name}.nic_names", kind.nic_names,
            "each NIC needs a name of its own")
    for key in ("memory_mib", "cores", "idle_watts", "load_watts", "max_clock_mhz", "idle_clock_mhz", "clock_step_mhz",
                "resistance", "pcie_gen", "pcie_width", "nic_bytes_per_second", "cpus", "vcpus", "cpu_hertz", "host_memory_bytes",
                "root_bytes", "scratch_bytes", "fans", "nvlink_nodes", "nodes_per_rack"):
        require(getattr(kind, key) > 0, block.where(key), f"{name}.{key}", getattr(kind, key), "a number above 0 is needed")
    require(kind.idle_watts < kind.least_watts < kind.limit_watts, block.where("least_watts"), f"{name}.least_watts",
            kind.least_watts, "a number between idle_watts and limit_watts is needed")
    require(kind.idle_clock_mhz < kind.max_clock_mhz, block.where("idle_clock_mhz"), f"{name}.idle_clock_mhz",
            kind.idle_clock_mhz, "a number below max_clock_mhz is needed")
    return kind


NODE_TYPES = load_catalogue()
H100_ROCE = NODE_TYPES[DEFAULT_KIND]


def kind_named(name: str) -> NodeType:
    """The kind of node of that name. Raises BadInput."""
    found = NODE_TYPES.get(name)
    if found is None:
        raise BadInput("fleet", "kind", name, f"allowed are: {', '.join(NODE_TYPES)}{nearest(name, NODE_TYPES)}")
    return found


@dataclass(slots=True)
class Node:
    """A chassis and its place. state: in_service | spare | draining | drained | rebooting | provisioning | down.

    held_by: who took it out of service (None = nobody). retired: a spare has taken its place. uuids, serials: of the GPUs'
    boards, in slot order. nic_guids, disk_serials (root, scratch), serial (of the chassis): of its other parts.
    nvlink_domain: the name of the domain that its GPUs share with other nodes', None where they share none.
    """

    index: int
    name: str
    kind: NodeType
    rack: str
    leaf: str
    pdu: str
    cooling: str
    uuids: tuple[str, ...]
    serials: tuple[str, ...]
    state: str
    boot_ms: int
    held_by: str | None = None
    retired: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    nic_guids: tuple[str, ...] = ()
    disk_serials: tuple[str, ...] = ()
    serial: str = ""
    nvlink_domain: str | None = None

    def pci(self, gpu: int) -> str:
        """The GPU's PCI address as people write it, `0000:53:00.0`."""
        return self.kind.pci(gpu)

    def nic(self, index: int) -> str:
        """The NIC port's name as people say it, `mlx5_3/1`."""
        return f"{self.kind.nic_names[index]}/1"

    @property
    def up(self) -> bool:
        """Whether its exporters answer."""
        return self.state not in ("rebooting", "down")


def build_nodes(kind: NodeType, nodes: int, spares: int, start_ms: int, rng: np.random.Generator) -> list[Node]:
    """`nodes` in service and `spares` behind them, over racks, each with its leaf switch, PDUs and cooling loop."""
    total = nodes + spares
    width = max(2, len(str(total)))
    made = []
    for index in range(total):
        rack = _rack(kind, index, total)
        uuids = tuple(_uuid(rng) for _ in range(kind.gpus))
        serials = tuple(str(165_000_0000000 + int(rng.integers(0, 9_999_999_999))) for _ in range(kind.gpus))
        days_up = float(rng.uniform(6.0, 40.0))
        made.append(Node(
            index=index,
            name=f"n{index + 1:0{width}d}",
            kind=kind,
            rack=f"rack-{rack}",
            leaf=f"leaf-{rack}",
            pdu=f"pdu-{rack}{'ab'[index % 2]}",
            cooling=f"loop-{rack}",
            uuids=uuids,
            serials=serials,
            state="in_service" if index < nodes else "spare",
            boot_ms=start_ms - int(days_up * 24 * 3600 * 1000),
            nvlink_domain=f"nvl-{rack}" if kind.nvlink_nodes > 1 else None,
        ))
    for node in made:
        node.nic_guids = tuple(f"{int(rng.integers(1 << 40)):016x}" for _ in range(kind.nics))
        node.disk_serials = tuple(f"S6CKNE0{int(rng.integers(1_000_000)):06d}" for _ in range(2))
        node.serial = f"J{int(rng.integers(10_000_000)):07d}"
    return made


def _rack(kind: NodeType, index: int, total: int) -> int:
    """The number of the node's rack, from 1. Nodes that share an NVLink domain fill their rack; others are spread."""
    if kind.nvlink_nodes > 1:
        return 1 + index // kind.nvlink_nodes
    if total < 4:
        # Few nodes are in turn in two racks, so that each rack holds a part of the job and a part of the spares.
        return 1 + index % 2
    racks = max(2, -(-total // kind.nodes_per_rack))
    return 1 + index // -(-total // racks)


def _uuid(rng: np.random.Generator) -> str:
    text = rng.bytes(16).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
