"""What the control door tells of the world: inventory, nodes, jobs, truth."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from core.clock import rfc3339
from core.protocols import NodeView
from core.render import plain, tidy
from core.types import Target
from fleet.lifecycle import Lifecycle
from fleet.plants import NEVER, Planted
from fleet.rates import HAND
from fleet.world import World

# The inventory knows three states; a node between two of them is out of service.
_INVENTORY_STATE = {"in_service": "in_service", "spare": "spare"}


def inventory(world: World) -> dict[str, Any]:
    """The inventory in DESIGN's shape."""
    nodes: list[dict[str, Any]] = []
    for n in world.nodes:
        nodes.append({
            "name": n.name, "instance_type": n.kind.name, "rack": n.rack, "leaf": n.leaf or None, "pdu": n.pdu,
            "cooling": n.cooling, "nvlink_domain": n.nvlink_domain,
            "state": _INVENTORY_STATE.get(n.state, "drained"), "boot_time": rfc3339(n.boot_ms),
            "gpus": [{"index": i, "uuid": n.uuids[i], "pci": n.pci(i), "serial": n.serials[i]}
                     for i in range(n.kind.gpus)],
            "nics": [{"name": n.nic(i), "rail": i, "leaf": world.topology.leaf_name(n.index, i)} for i in range(n.kind.nics)],
            "labels": {"driver": n.kind.driver, **n.labels},
        })
    jobs = [{
        "id": j.name, "nodes": [world.nodes[i].name for i in j.nodes],
        "start": None if j.started_ms is None else rfc3339(j.started_ms),
        "end": rfc3339(j.phase_since) if j.state == "done" else None,
        "ranks_per_node": j.gpus, "tp": j.groups.tp, "pp": j.groups.pp, "dp": j.groups.dp,
    } for j in world.jobs.values()]
    storage = [{"name": world.topology.storage, "mounts": [n.name for n in world.nodes]}]
    return {"nodes": nodes, "jobs": jobs, "storage": storage}


def node_views(world: World, names: Iterable[str] | None = None) -> dict[str, NodeView]:
    """Each node as the guards need it. names: of these alone."""
    views = {}
    on = {index: job for job in reversed(world.jobs.values()) for index in job.nodes}
    for n in world.nodes if names is None else [one for name in names if (one := world.find(name)) is not None]:
        job = on.get(n.index)
        views[n.name] = NodeView(n.name, n.state, n.held_by, (job.name,) if job is not None else (),
                                 n.held_by if n.held_by == HAND else None, checked_at=world.checked.get(n.index))
    return views


def jobs(world: World) -> list[dict[str, Any]]:
    """The jobs as a scheduler and its trainer agent see them. Times in ms; trained_since_ms: start of this run's phase
    train, null before it."""
    return [{
        "id": j.name, "kind": j.kind, "state": j.state, "phase": j.phase, "phase_since_ms": j.phase_since,
        "trained_since_ms": j.trained_since or None, "run": j.run, "step": j.step,
        "step_seconds": None if math.isnan(j.step_seconds) else j.step_seconds,
        "last_checkpoint_step": j.last_checkpoint, "nodes": [world.nodes[i].name for i in j.nodes],
    } for j in world.jobs.values()]


# Faults of what watches the work: the work itself goes on as before.
WITHOUT_VICTIMS = ("exporter_stale", "exporter_partial", "target_down", "collector_starved", "config_drift", "clock_skew")


def truth_row(world: World, planted: Planted) -> dict[str, Any]:
    """All that is true of one plant, look-alikes included (fault null, nothing_to_do true).

    until: when it goes away by itself, null = it does not. cures: action kinds that end it. cured_at, cured_by: when and by
    what it ended for those who watch; null while it is there.
    """
    plugin, nothing = planted.plugin, planted.plugin.fault is None
    return {
        "fault": plugin.fault, "look_alike": plugin.name if nothing else None, "plant": plugin.name, "scope": plugin.scope,
        "culprit": plain(planted.culprit), "victims": [plain(t) for t in victims(world, planted)],
        "at": rfc3339(planted.at), "until": None if planted.heals_at >= NEVER else rfc3339(planted.heals_at),
        "severity": tidy(planted.severity), "onset": planted.onset, "cures": list(plugin.cured_by), "nothing_to_do": nothing,
        "cured_at": None if planted.cured_at is None else rfc3339(planted.cured_at), "cured_by": planted.cured_by,
    }


def victims(world: World, planted: Planted) -> list[Target]:
    """The jobs that suffer from a fault, and the nodes where it covers more than one."""
    if planted.plugin.fault is None or planted.plugin.fault in WITHOUT_VICTIMS:
        return []
    rows = set(planted.place.rows)
    jobs = [Target("job", job=j.name) for j in world.jobs.values() if rows & set(j.nodes)]
    shared = planted.plugin.scope not in ("device", "node", "job") and len(rows) > 1
    return [*jobs, *(Target("node", world.nodes[r].name) for r in sorted(rows) if shared)]


def truth(world: World) -> list[dict[str, Any]]:
    """What was ever planted, in order, look-alikes flagged. Only the lab may see it."""
    return [truth_row(world, planted) for planted in world.faults]


def goodput(world: World) -> dict[str, Any]:
    """Where all GPU time went: GPU-seconds by cause and the goodput ratio, of the fleet and of each job."""
    view = world.goodput.view()
    return {"at": rfc3339(view.pop("at_ms")), **view}


def node_reports(world: World, life: Lifecycle) -> list[dict[str, Any]]:
    """Every health check so far: when, on which node, and what each test found."""
    return [{"at": rfc3339(at), "node": node,
             "tests": [{"test": r.test, "passed": r.passed, "found": list(r.found)} for r in results]}
            for at, node, results in life.reports]
