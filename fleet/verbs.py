"""What the control door can do to a node or a job, with the time that it takes in a real cluster, shortened.

Each verb raises Refused, gives the reason of an outcome that is DONE at once, or begins Work.
"""

from __future__ import annotations

from collections.abc import Callable

from core.errors import Refused
from fleet.hardware import Node
from fleet.job import Job
from fleet.operations import Operation, Operations, Work

US = "greylag"
SECONDS = {
    "drain": 10, "undrain": 5, "reset_gpu": 60, "reboot": 300, "diagnose": 120, "replace": 90, "exclude_node": 5,
}


def _node(ops: Operations, op: Operation, claim: bool = True) -> Node:
    """The operation's node, free to be worked on. Raises Refused."""
    world = ops.world
    node = world.find(op.target.node)
    if node is None and op.target.rank is not None:
        job = world.jobs.get(op.target.job or "")
        if job is not None and 0 <= op.target.rank < job.ranks:
            node = world.nodes[job.place(op.target.rank)[0]]
    if node is None:
        raise Refused("node_unknown")
    if node.held_by not in (None, US):
        raise Refused("other_hand")
    if claim:
        ops.claim(op, node.name)
    return node


def _job(ops: Operations, op: Operation) -> Job:
    """The operation's job: as named, else the one on its node, else the only one. Raises Refused."""
    world, target = ops.world, op.target
    if target.job:
        found = world.jobs.get(target.job)
        if found is None:
            raise Refused("job_unknown")
        return found
    node = world.find(target.node)
    on_node = world.job_on(node.index) if node is not None else None
    if on_node is not None:
        return on_node
    if len(world.jobs) == 1:
        return next(iter(world.jobs.values()))
    raise Refused("job_unknown")


def _after(op: Operation, seconds: float, finish: Callable[[int], tuple[str, str]],
           undo: Callable[[int], None] = lambda at: None) -> Work:
    end = op.started + int(seconds * 1000)
    return Work(lambda at: at >= end, finish, undo)


def _take_out(node: Node, state: str) -> None:
    node.state, node.held_by = state, US


def drain(ops: Operations, op: Operation) -> Work | str:
    """Takes the node out of service. `wait_for: checkpoint`: only once the job's next checkpoint is complete; then the
    job stops cleanly. Without it the job is killed at once."""
    node = _node(ops, op)
    if node.state in ("drained", "spare"):
        node.state, node.held_by = "drained", US
        return "already_so"
    if node.state != "in_service":
        raise Refused("target_busy")
    job = ops.world.job_on(node.index)
    node.state, node.held_by = "draining", US

    def undo(at: int) -> None:
        node.state, node.held_by = "in_service", None

    def finish(at: int) -> tuple[str, str]:
        if job is not None:
            job.stop(at, clean=waits)
        _take_out(node, "drained")
        return "DONE", "done"

    waits = op.args.get("wait_for") == "checkpoint" and job is not None and job.alive
    if not waits or job is None:
        return _after(op, SECONDS["drain"], finish, undo)
    before = job.checkpoints
    return Work(lambda at: job.checkpoints > before or not job.alive, finish, undo)


def undrain(ops: Operations, op: Operation) -> Work | str:
    """Puts a drained node back: into its place, or among the spares where another node has its place."""
    node = _node(ops, op)
    if node.state in ("in_service", "spare"):
        return "already_so"
    if node.state != "drained":
        raise Refused("target_busy")

    def finish(at: int) -> tuple[str, str]:
        mine = ops.world.job_on(node.index) is not None
        node.state, node.held_by, node.retired = ("in_service" if mine else "spare"), None, False
        if mine:
            ops.world.returned(node.index)
        return "DONE", "done"

    return _after(op, SECONDS["undrain"], finish)


def _need_drained(node: Node) -> None:
    if node.state not in ("drained", "spare"):
        raise Refused("not_drained")


def reset_gpu(ops: Operations, op: Operation) -> Work | str:
    """Resets one GPU (all of the node's where none is named); the node has to be drained."""
    node = _node(ops, op)
    _need_drained(node)
    device = op.target.device if op.target.kind in ("gpu", "rank") else None
    gpu = int(device) if device is not None and device.isdigit() else None

    def finish(at: int) -> tuple[str, str]:
        ops.world.gpus.reset(node.index, gpu)
        ops.world.cure("reset_gpu", node=node.index)
        return "DONE", "done"

    return _after(op, SECONDS["reset_gpu"], finish)


def reboot(ops: Operations, op: Operation) -> Work | str:
    """Reboots a drained node: its exporters do not answer meanwhile and its counters begin anew."""
    node = _node(ops, op)
    _need_drained(node)
    before = node.state
    node.state = "rebooting"

    def finish(at: int) -> tuple[str, str]:
        world = ops.world
        node.state, node.boot_ms = before, at - 40_000
        world.gpus.reset(node.index)
        world.nics.reset(node.index)
        world.hosts.reset(node.index)
        world.kernel.boot(node, node.boot_ms)
        world.cure("reboot", node=node.index)
        return "DONE", "done"

    return _after(op, SECONDS["reboot"], finish)


def diagnose(ops: Operations, op: Operation) -> Work | str:
    """Tests a drained node's parts under load; finds the defects that sit in them."""
    node = _node(ops, op)
    _need_drained(node)

    def finish(at: int) -> tuple[str, str]:
        return ("FAILED", "diagnose_failed") if ops.world.defects(node.index) else ("DONE", "done")

    return _after(op, SECONDS["diagnose"], finish)


def replace(ops: Operations, op: Operation) -> Work | str:
    """A warm spare takes the node's place in its job; the node stays drained."""
    world = ops.world
    node = _node(ops, op)
    if node.retired:
        return "already_so"
    claimed = set(op.busy)
    taken = {key for other in ops.running() for key in other.busy}
    spare = next((n for n in world.nodes if n.state == "spare" and n.name not in taken and n is not node), None)
    if spare is None:
        return Work(lambda at: True, lambda at: ("FAILED", "no_spare"))
    op.busy = (*claimed, spare.name)
    job = world.job_on(node.index)
    if job is not None:
        job.stop(world.now_ms, clean=False)
    _take_out(node, "drained")
    spare.state = "provisioning"

    def finish(at: int) -> tuple[str, str]:
        spare.state = "in_service"
        node.retired = True
        world.cure("replace", node=node.index)
        world.returned(spare.index)
        if job is not None:
            job.seat([spare.index if n == node.index else n for n in job.nodes])
        return "DONE", "done"

    def undo(at: int) -> None:
        spare.state = "spare"

    return _after(op, SECONDS["replace"], finish, undo)


def exclude_node(ops: Operations, op: Operation) -> Work | str:
    """The node leaves its job without another in its place; the job has to be started again."""
    node = _node(ops, op)
    job = ops.world.job_on(node.index)
    if job is None and node.state == "drained":
        return "already_so"
    if job is not None and len(job.nodes) < 2:
        raise Refused("no_spare")

    def finish(at: int) -> tuple[str, str]:
        if job is not None:
            job.stop(at, clean=False)
            ops.world.cure("replace", node=node.index)
            job.seat([n for n in job.nodes if n != node.index])
        node.retired = True
        _take_out(node, "drained")
        return "DONE", "done"

    return _after(op, SECONDS["exclude_node"], finish)


def _start_again(ops: Operations, op: Operation, job: Job, nodes: list[int], quick: bool) -> Work:
    world = ops.world
    low, high = job.shape.load_seconds
    if job.alive:
        job.stop(world.now_ms, clean=False)
    if nodes != job.nodes:
        job.seat(nodes)
    job.start(world.now_ms, low if quick else high)
    for verb in ("resume_job", "restart_process"):
        world.cure(verb, job=job)
    run = job.run

    def ready(at: int) -> bool:
        return job.run != run or not job.alive or job.phase != "init"

    def finish(at: int) -> tuple[str, str]:
        return ("DONE", "done") if job.run == run and job.alive else ("FAILED", "previous_failed")

    return Work(ready, finish)


def resume_job(ops: Operations, op: Operation) -> Work | str:
    """Starts the job again from its newest checkpoint. `mode: partial` keeps what the healthy ranks have loaded."""
    job = _job(ops, op)
    ops.claim(op, job.name)
    if any(ops.world.nodes[n].state != "in_service" for n in job.nodes):
        return Work(lambda at: True, lambda at: ("FAILED", "no_spare"))
    return _start_again(ops, op, job, job.nodes, op.args.get("mode") != "full")


def restart_process(ops: Operations, op: Operation) -> Work | str:
    """Starts the ranks' processes again where they are."""
    job = _job(ops, op)
    ops.claim(op, job.name)
    if any(ops.world.nodes[n].state != "in_service" for n in job.nodes):
        raise Refused("not_supported")
    return _start_again(ops, op, job, job.nodes, quick=True)


def shrink_job(ops: Operations, op: Operation) -> Work | str:
    """Starts the job again on those of its nodes that are in service."""
    job = _job(ops, op)
    ops.claim(op, job.name)
    left = [n for n in job.nodes if ops.world.nodes[n].state == "in_service"]
    if not left:
        return Work(lambda at: True, lambda at: ("FAILED", "no_spare"))
    return _start_again(ops, op, job, left, quick=False)


def _said(ops: Operations, op: Operation) -> str:
    return "escalated" if op.verb == "escalate" else "done"


VERBS: dict[str, Callable[[Operations, Operation], Work | str]] = {
    "notify": _said, "escalate": _said, "drain": drain, "undrain": undrain, "reset_gpu": reset_gpu, "reboot": reboot,
    "diagnose": diagnose, "replace": replace, "exclude_node": exclude_node, "resume_job": resume_job,
    "restart_process": restart_process, "shrink_job": shrink_job,
}
