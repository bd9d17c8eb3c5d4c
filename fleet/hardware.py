"""What a node is made of, as data, and the identities of the parts of each node.

Figures of the H100 node are those of real captures and data sheets: clocks, idle and load power, memory sizes, thermal
margins, PCI addresses of the GPUs, 400 Gb/s ports. Temperatures follow from power through one thermal resistance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class NodeType:
    """One kind of node.

    Watts: board power at rest, what full load adds, and the limit. resistance: °C of core temperature per W over the
    inlet. core_limit, hbm_limit: °C at which the driver slows the part (margin 0). buses: PCI bus of each GPU.
    """

    name: str
    gpu_model: str
    driver: str
    buses: tuple[str, ...]
    memory_mib: int
    reserved_mib: int
    idle_watts: float
    load_watts: float
    limit_watts: float
    max_clock_mhz: int
    idle_clock_mhz: int
    memory_clock_mhz: int
    clock_step_mhz: int
    resistance: float
    core_limit: float
    hbm_limit: float
    nics: int
    nic_bytes_per_second: float
    cpus: int
    host_memory_bytes: float

    @property
    def gpus(self) -> int:
        return len(self.buses)

    @property
    def has(self) -> frozenset[str]:
        """What it is made of, in the words of `FaultPlugin.needs`."""
        return frozenset({"nvidia", "roce", "nvlink", "hbm", "lustre", "trainer"})


H100_ROCE = NodeType(
    name="h100-8x-roce",
    gpu_model="NVIDIA H100 80GB HBM3",
    driver="580.105.08",
    buses=("53", "64", "75", "86", "97", "A8", "B9", "CA"),
    memory_mib=81559,
    reserved_mib=479,
    idle_watts=70.0,
    load_watts=560.0,
    limit_watts=700.0,
    max_clock_mhz=1980,
    idle_clock_mhz=345,
    memory_clock_mhz=2619,
    clock_step_mhz=15,
    resistance=0.0565,
    core_limit=85.0,
    hbm_limit=95.0,
    nics=8,
    nic_bytes_per_second=5e10,
    cpus=4,  # a lean page: the host has more, the page shows as many
    host_memory_bytes=2.164e12,
)

NODE_TYPES = {H100_ROCE.name: H100_ROCE}


@dataclass(slots=True)
class Node:
    """A chassis and its place. state: in_service | spare | draining | drained | rebooting | provisioning.

    held_by: who took it out of service (None = nobody). retired: a spare has taken its place.
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

    def pci(self, gpu: int) -> str:
        """The GPU's PCI address as people write it, `0000:53:00.0`."""
        return f"0000:{self.kind.buses[gpu].lower()}:00.0"

    def nic(self, index: int) -> str:
        """The NIC port's name as people say it, `mlx5_3/1`."""
        return f"mlx5_{index}/1"

    @property
    def up(self) -> bool:
        """Whether its exporters answer."""
        return self.state != "rebooting"


def build_nodes(kind: NodeType, nodes: int, spares: int, start_ms: int, rng: np.random.Generator) -> list[Node]:
    """`nodes` in service and `spares` behind them, over two racks, each with its leaf switch, PDU and cooling loop."""
    total = nodes + spares
    width = max(2, len(str(total)))
    half = -(-total // 2)
    made = []
    for index in range(total):
        # Racks fill in turn, so that each rack holds a part of the job and a part of the spares.
        rack = 1 + index % 2 if total < 4 else 1 + (index >= half)
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
        ))
    return made


def _uuid(rng: np.random.Generator) -> str:
    text = rng.bytes(16).hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
