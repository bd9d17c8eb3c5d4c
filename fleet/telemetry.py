"""What a site's exporters and logs show: the tier of telemetry, its cadence, and which exporters a node has.

A site may show more: its scheduler's exporter (with the logs, from tier B on), and what its switches count (from tier C on).

Tiers: A dcgm-exporter's default fields and node_exporter (with the EFA collector or the Neuron monitor where the hardware
has them); B also kernel and scheduler logs (a job's own log is the scheduler's); C also the recommended DCGM fields,
ethtool, PCI devices, services and the Lustre client; D also the metrics of each training rank and of inference servers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from core.errors import BadInput

TIERS = ("A", "B", "C", "D")
PORTS = {"dcgm": 9400, "node": 9100, "efa": 9109, "neuron": 8000, "lustre": 9169, "trainer": 9401, "vllm": 8080,
         "slurm": 9341, "kube": 8080, "snmp": 9116, "gnmic": 9804}
# The lowest tier at which an exporter is there.
FROM_TIER = {"dcgm": "A", "node": "A", "efa": "A", "neuron": "A", "lustre": "C", "trainer": "D", "vllm": "D",
             "slurm": "B", "kube": "B", "snmp": "C", "gnmic": "C"}
# The exporter of each scheduler, and those that a site may watch its switches with.
SCHEDULERS = {"slurm": "slurm", "kubernetes": "kube"}
SWITCHES = ("snmp", "gnmic")
SHORTEST_SCRAPE_SECONDS, LONGEST_SCRAPE_SECONDS = 10, 60


@dataclass(frozen=True, slots=True)
class Telemetry:
    """tier: A–D. scrape_seconds: 10–60. dcgm_cycle_seconds: dcgm-exporter reads the GPUs so often and repeats itself
    between, each node at moments of its own; 0 = at each scrape. scheduler, switches: which exporters show them, None = none
    does. lean: the demo's short pages (at most 800 series a node):
    no exporters but dcgm, node and trainer, and of those the families that the demo needs."""

    tier: str = "D"
    dcgm_cycle_seconds: int = 30
    scrape_seconds: int = 15
    lean: bool = False
    scheduler: str | None = None
    switches: str | None = None

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise BadInput("telemetry", "tier", self.tier, f"allowed are: {', '.join(TIERS)}")
        for key, given, allowed in (("scheduler", self.scheduler, SCHEDULERS), ("switches", self.switches, SWITCHES)):
            if given is not None and given not in allowed:
                raise BadInput("telemetry", key, given, f"allowed are: {', '.join(allowed)}")
        if not SHORTEST_SCRAPE_SECONDS <= self.scrape_seconds <= LONGEST_SCRAPE_SECONDS:
            raise BadInput("telemetry", "scrape_seconds", self.scrape_seconds,
                           f"{SHORTEST_SCRAPE_SECONDS} to {LONGEST_SCRAPE_SECONDS} seconds are allowed")
        if self.dcgm_cycle_seconds < 0:
            raise BadInput("telemetry", "dcgm_cycle_seconds", self.dcgm_cycle_seconds, "0 or more seconds are needed")

    def at_least(self, tier: str) -> bool:
        """Whether the tier is this one or a higher one."""
        return TIERS.index(self.tier) >= TIERS.index(tier)

    @property
    def logs(self) -> bool:
        """Whether logs are served at all."""
        return self.at_least("B")

    def exporters(self, offered: Collection[str]) -> tuple[str, ...]:
        """Of the exporters that the hardware offers, those that the tier shows, in the order of PORTS."""
        if self.lean:
            offered = [name for name in offered if name in ("dcgm", "node", "trainer")]
        return tuple(name for name in PORTS if name in offered and self.at_least(FROM_TIER[name]))


# The demo's: lean pages, values as of the scrape.
DEMO = Telemetry("D", dcgm_cycle_seconds=0, lean=True)
