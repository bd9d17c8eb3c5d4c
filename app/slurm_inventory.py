"""The inventory from Slurm: nodes with their states and switches, and the jobs that run now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from core.clock import monotonic_seconds, rfc3339
from core.config import GreylagConfig
from core.errors import GreylagError
from core.inventory import Inventory, JobEntry, NodeEntry
from core.yamlfile import build
from remediation.backends.slurm import site_of
from remediation.backends.slurm_commands import Scheduler
from remediation.backends.slurm_json import Cluster, SlurmNode, switches_of_text
from remediation.backends.slurm_site import TEST_JOB, Site, SlurmParams

KEPT_JOBS = 300_000  # ms: a job that ended is told for so long, so that its end is seen


@dataclass(frozen=True, slots=True)
class SlurmInventoryParams:
    """`inventory: {slurm: {...}}`; `slurm: true` takes what the backend `slurm` says, else the defaults.

    folder, conf, prefix, user, timeout_seconds, jobs_by, spares: as in the backend. every_seconds: wall time between two
    questions; slurmctld answers them under its own locks.
    """

    folder: str = ""
    conf: str = ""
    prefix: tuple[str, ...] = ()
    user: str = ""
    timeout_seconds: float = 10.0
    jobs_by: str = "id"
    spares: str = "spares"
    every_seconds: float = 30.0


class SlurmInventory:
    """Callable as the owner wants it; between two questions it gives the last answer."""

    def __init__(self, params: SlurmInventoryParams) -> None:
        shared = {f.name: getattr(params, f.name) for f in fields(params) if f.name != "every_seconds"}
        self._site = site_of(SlurmParams(**shared))
        self._every = params.every_seconds
        self._known: Inventory | None = None
        self._asked_at = 0.0
        self._switches: Mapping[str, tuple[str | None, str | None]] | None = None

    def __call__(self) -> Inventory:
        """The inventory as it is now. Raises Unavailable."""
        now = monotonic_seconds()
        if self._known is None or now - self._asked_at >= self._every:
            self._asked_at = now
            cluster = self._site.scheduler.cluster()
            if self._switches is None:
                self._switches = switches(self._site.scheduler)
            self._known = inventory(self._site, cluster, self._switches)
        return self._known


def switches(scheduler: Scheduler) -> dict[str, tuple[str | None, str | None]]:
    """(leaf, spine) of each node, as far as the topology plug-in tells; empty where there is none."""
    try:
        rows = switches_of_text(scheduler.runner.look("scontrol", "show", "topology"))
    except (GreylagError, ValueError):
        return {}
    above = {below: name for name, level, _, lower in rows if level == 1 for below in lower}
    return {node: (name, above.get(name)) for name, level, nodes, _ in rows if level == 0 for node in nodes}


def inventory(site: Site, cluster: Cluster, places: Mapping[str, tuple[str | None, str | None]]) -> Inventory:
    """The records of what Slurm shows. A job's start is known, its end only once it has ended."""
    nodes = tuple(_node(site, cluster.nodes[name], cluster, places.get(name, (None, None))) for name in sorted(cluster.nodes))
    now = site.now()
    jobs: dict[str, JobEntry] = {}
    for job in sorted(cluster.jobs, key=lambda one: (one.on_nodes, one.start_at, one.id)):  # the one that runs counts last
        fresh = job.on_nodes or (job.over and job.end_at and now - job.end_at < KEPT_JOBS)
        if job.name != TEST_JOB and job.nodes and fresh:
            name = site.called(job)
            ended = rfc3339(job.end_at) if job.over else None
            jobs[name] = JobEntry(name, job.nodes, rfc3339(job.start_at) if job.start_at else None, ended)
    return Inventory(nodes, tuple(jobs[name] for name in sorted(jobs)))


def _node(site: Site, node: SlurmNode, cluster: Cluster, place: tuple[str | None, str | None]) -> NodeEntry:
    labels = {"slurm_partitions": ",".join(node.partitions), "slurm_features": ",".join(node.features), "slurm_gres": node.gres}
    return NodeEntry(node.name, leaf=place[0], spine=place[1], state=_state(site, node, cluster),
                     boot_time=rfc3339(node.boot_at) if node.boot_at else None,
                     labels={key: value for key, value in labels.items() if value})


def _state(site: Site, node: SlurmNode, cluster: Cluster) -> str:
    """A node that fell out and that nobody took out ought to be in service: its silence is a fault."""
    state = site.state(node, cluster)
    if state == "spare":
        return "spare"
    maintained = bool({"MAINTENANCE", "MAINT"} & node.flags) and site.maintenance(node.name, cluster) is not None
    out = maintained or state in ("provisioning", "rebooting") or site.held_by(node, cluster) is not None
    return "drained" if out else "in_service"


def slurm_inventory(config: GreylagConfig) -> SlurmInventory:
    """The reader that `inventory.slurm` asks for. Raises ConfigError."""
    given = config.inventory.slurm
    known = {f.name for f in fields(SlurmInventoryParams)}
    own: Any = {}
    if given is True:
        if config.backend.get("name") == "slurm":
            own = {key: value for key, value in config.backend.items() if key in known}
    else:
        own = given
    return SlurmInventory(build(SlurmInventoryParams, own, config.file, "inventory.slurm"))
