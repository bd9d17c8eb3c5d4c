"""What the control door tells of the world: inventory, nodes, jobs, truth."""

from __future__ import annotations

import math
from typing import Any

from core.clock import rfc3339
from core.protocols import NodeView
from core.render import plain
from fleet.world import World

# The inventory knows three states; a node between two of them is out of service.
_INVENTORY_STATE = {"in_service": "in_service", "spare": "spare"}


def inventory(world: World) -> dict[str, Any]:
    """The inventory in DESIGN's shape."""
    nodes: list[dict[str, Any]] = []
    for n in world.nodes:
        nodes.append({
            "name": n.name, "instance_type": n.kind.name, "rack": n.rack, "leaf": n.leaf, "pdu": n.pdu,
            "cooling": n.cooling, "state": _INVENTORY_STATE.get(n.state, "drained"), "boot_time": rfc3339(n.boot_ms),
            "gpus": [{"index": i, "uuid": n.uuids[i], "pci": n.pci(i), "serial": n.serials[i]}
                     for i in range(n.kind.gpus)],
            "nics": [{"name": n.nic(i), "rail": i, "leaf": n.leaf} for i in range(n.kind.nics)],
            "labels": {**n.labels, "driver": n.kind.driver},
        })
    jobs = [{
        "id": j.name, "nodes": [world.nodes[i].name for i in j.nodes],
        "start": None if j.started_ms is None else rfc3339(j.started_ms),
        "end": rfc3339(j.phase_since) if j.state == "done" else None,
        "ranks_per_node": j.gpus, "tp": j.gpus, "pp": 1, "dp": len(j.nodes),
    } for j in world.jobs.values()]
    storage = [{"name": "checkpoints", "mounts": [n.name for n in world.nodes]}]
    return {"nodes": nodes, "jobs": jobs, "storage": storage}


def node_views(world: World) -> dict[str, NodeView]:
    """Each node as the guards need it."""
    views = {}
    for n in world.nodes:
        job = world.job_on(n.index)
        views[n.name] = NodeView(n.name, n.state, n.held_by, (job.name,) if job is not None else ())
    return views


def jobs(world: World) -> list[dict[str, Any]]:
    """The jobs as a scheduler and its trainer agent see them. Times in ms; trained_since_ms: start of this run's phase
    train, null before it."""
    return [{
        "id": j.name, "state": j.state, "phase": j.phase, "phase_since_ms": j.phase_since,
        "trained_since_ms": j.trained_since or None, "run": j.run, "step": j.step,
        "step_seconds": None if math.isnan(j.step_seconds) else j.step_seconds,
        "last_checkpoint_step": j.last_checkpoint, "nodes": [world.nodes[i].name for i in j.nodes],
    } for j in world.jobs.values()]


def truth(world: World) -> list[dict[str, Any]]:
    """What was planted: fault, scope, culprit, when, and when it was cured. Only the lab may see it."""
    return [{
        "fault": f.plugin.fault, "scope": f.plugin.scope, "culprit": plain(f.culprit), "at": rfc3339(f.at),
        "cured_at": None if f.cured_at is None else rfc3339(f.cured_at), "severity": f.severity,
    } for f in world.faults if f.plugin.fault is not None]
