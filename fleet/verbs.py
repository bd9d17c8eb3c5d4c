"""What the control door can do to a node or a job, with the time that it takes and the ways in which it can fail.

Each verb raises Refused, gives the reason of an outcome that is DONE at once, or begins Work. Times and failures are
data (`fleet/times.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.clock import parse_rfc3339
from core.errors import Refused
from fleet import health
from fleet.hardware import Node
from fleet.lifecycle import US
from fleet.operations import Operation, Operations, Work
from fleet.recovery import WAYS
from fleet.running import Running

FAILED = ("FAILED", "backend_failed")
NO_SPARE = ("FAILED", "no_spare")


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


def _job(ops: Operations, op: Operation) -> Running:
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


def _after(ops: Operations, op: Operation, what: str, finish: Callable[[int], tuple[str, ...]],
           undo: Callable[[int], None] = lambda at: None) -> Work:
    """Work that takes the time of `what`, and fails as often as the verb does: then it is undone."""
    end = op.started + int(ops.times.draw(what, op.rng) * 1000)
    fails = ops.times.fail(op.verb, op.rng)

    def over(at: int) -> tuple[str, ...]:
        if not fails:
            return finish(at)
        undo(at)
        return FAILED

    return Work(lambda at: at >= end, over, undo, lambda: end)


def _at_once(outcome: tuple[str, str]) -> Work:
    return Work(lambda at: True, lambda at: outcome, due=lambda: 0)


def _take_out(node: Node, state: str) -> None:
    node.state, node.held_by = state, US


def drain(ops: Operations, op: Operation) -> Work | str:
    """Takes the node out of service. `wait_for: checkpoint`: only once the job's next checkpoint is complete; then the
    job stops cleanly. Without it the job is killed at once."""
    node = _node(ops, op)
    if node.state in ("drained", "spare", "down"):
        node.state, node.held_by = ("down" if node.state == "down" else "drained"), US
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
        return _after(ops, op, "drain", finish, undo)
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

    return _after(ops, op, "undrain", finish)


def _lost(ops: Operations, node: Node, memory_only: bool) -> None:
    """What lay in the node's memory (or on its disks) is gone for its job."""
    job = ops.world.job_on(node.index)
    if job is not None:
        job.node_lost(node.index, memory_only)


def _need_drained(node: Node, *more: str) -> None:
    if node.state not in ("drained", "spare", *more):
        raise Refused("not_drained")


def reset_gpu(ops: Operations, op: Operation) -> Work | str:
    """Resets one GPU (all of the node's where none is named, or with `gpus: all`); the node has to be drained.

    `pause_monitoring`: the GPU exporter is stopped for as long as that takes, since it keeps a GPU in use."""
    node = _node(ops, op)
    _need_drained(node)
    device = op.target.device if op.target.kind in ("gpu", "rank") and op.args.get("gpus") != "all" else None
    gpu = int(device) if device is not None and device.isdigit() else None
    if op.args.get("pause_monitoring"):
        ops.world.paused.add(node.index)

    def finish(at: int) -> tuple[str, str]:
        ops.world.paused.discard(node.index)
        ops.world.gpus.reset(node.index, gpu)
        ops.world.cure("reset_gpu", node=node.index, gpu=gpu)
        return "DONE", "done"

    return _after(ops, op, "reset_gpu", finish, lambda at: ops.world.paused.discard(node.index))


def reboot(ops: Operations, op: Operation) -> Work | str:
    """Reboots a drained node: its exporters do not answer meanwhile and its counters begin anew. A node that does not come
    back is down; it may be rebooted again."""
    node = _node(ops, op)
    _need_drained(node, "down")
    before = "drained" if node.state == "down" else node.state
    node.state = "rebooting"

    def finish(at: int) -> tuple[str, str]:
        node.state = before
        ops.life.restart(node, at)
        _lost(ops, node, memory_only=True)
        ops.world.cure("reboot", node=node.index)
        return "DONE", "done"

    def undo(at: int) -> None:
        _take_out(node, "down")
        ops.life.send_to_repair(node, at)

    return _after(ops, op, "reboot", finish, undo)


def diagnose(ops: Operations, op: Operation) -> Work | str:
    """Tests a drained node's parts under load (`level` 1-4, as DCGM's); what each test found is kept in the reports.

    `fault` and `device`: what is accused of what; then the reason says whether the tests confirm or refute that."""
    node = _node(ops, op)
    _need_drained(node)
    level = op.args.get("level", health.USUAL)
    if level not in (1, 2, 3, health.DEEP):
        raise Refused("not_supported")

    testing = ops.world.testing
    testing.add(node.index)
    accused = op.target.device if op.target.kind == "gpu" else None

    def finish(at: int) -> tuple[str, ...]:
        testing.discard(node.index)
        results = ops.life.check(node, at, level)
        fault, device = op.args.get("fault"), op.args.get("device", accused)
        return health.answer(results, None if fault is None else str(fault), None if device is None else str(device))

    return _after(ops, op, f"diagnose_{level}", finish, lambda at: testing.discard(node.index))


@dataclass
class _Exchange:
    """A replacement under way: spare after spare is set up and checked until one passes."""

    ops: Operations
    op: Operation
    node: Node
    job: Running | None
    spare: Node | None = None
    end: int = 0
    outcome: tuple[str, str] | None = None

    def next_spare(self, at: int) -> bool:
        """Takes the next free spare; False = there is none."""
        taken = {key for other in self.ops.running() for key in other.busy} | set(self.op.busy)
        taken |= {name.strip() for name in str(self.op.args.get("avoid") or "").split(",")}
        self.spare = next((n for n in self.ops.world.nodes
                           if n.state == "spare" and n.name not in taken and n is not self.node), None)
        if self.spare is None:
            return False
        self.op.busy = (*self.op.busy, self.spare.name)
        self.spare.state = "provisioning"
        self.end = at + int(self.ops.times.draw("replace", self.op.rng) * 1000)
        return True

    def ready(self, at: int) -> bool:
        """Whether it is over. A spare that fails its check goes to repair and the next one is tried."""
        if at < self.end or self.spare is None:
            return False
        if self.ops.times.fail("replace", self.op.rng):
            self.outcome = FAILED
        elif not health.failed(self.ops.life.check(self.spare, at)):
            self.outcome = ("DONE", "done")
        else:
            _take_out(self.spare, "drained")
            self.ops.life.send_to_repair(self.spare, at)
            if self.next_spare(at):
                return False
            self.outcome = ("FAILED", "diagnose_failed")
        return True

    def finish(self, at: int) -> tuple[str, str]:
        if self.outcome == ("DONE", "done") and self.spare is not None:
            spare, world, node = self.spare, self.ops.world, self.node
            # Where no job has lost a node, none has gained one: the checked one stays a spare.
            spare.state, node.retired = ("in_service" if self.job is not None else "spare"), True
            world.cure("replace", node=node.index)
            world.returned(spare.index)
            if self.job is not None:
                self.job.node_lost(node.index, memory_only=False)
                self.job.seat([spare.index if n == node.index else n for n in self.job.nodes])
            self.ops.life.send_to_repair(node, at)
        else:
            self.undo(at)
        return self.outcome or FAILED

    def undo(self, at: int) -> None:
        """The spare that was being set up is a spare again."""
        if self.spare is not None and self.spare.state == "provisioning":
            self.spare.state = "spare"


def replace(ops: Operations, op: Operation) -> Work | str:
    """A warm spare is set up, checked and takes the node's place in its job; the node stays drained, for repair.

    `avoid`: spares that are not to be taken, with commas between them."""
    world = ops.world
    node = _node(ops, op)
    if node.retired:
        return "already_so"
    if node.state in ("rebooting", "provisioning"):
        raise Refused("target_busy")
    work = _Exchange(ops, op, node, world.job_on(node.index))
    if not work.next_spare(world.now_ms):
        return _at_once(NO_SPARE)
    if work.job is not None:
        work.job.stop(world.now_ms, clean=False)
    _take_out(node, "drained")
    return Work(work.ready, work.finish, work.undo, lambda: work.end)


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
            job.node_lost(node.index, memory_only=False)
            job.seat([n for n in job.nodes if n != node.index])
        node.retired = True
        _take_out(node, "drained")
        ops.life.send_to_repair(node, at)
        return "DONE", "done"

    return _after(ops, op, "exclude_node", finish)


def _start_again(ops: Operations, op: Operation, job: Running, nodes: list[int], way: str) -> Work:
    """Stops the job and starts it on the nodes once the scheduler has them free; over when its ranks have loaded.

    way: of `fleet.recovery.WAYS`; where times are short, the job's own quickest or slowest start stands for it.
    """
    world, run = ops.world, -1
    low, high = job.shape.load_seconds
    begin_at = op.started + int(ops.times.draw("queue", op.rng) * 1000)
    fails = ops.times.fail("resume_job", op.rng)
    if job.alive:
        job.stop(world.now_ms, clean=False)

    def begin(at: int) -> None:
        nonlocal run
        if nodes != job.nodes:
            job.seat(nodes)
        if ops.times.ways:
            job.start(at, mode=way)
        else:
            job.start(at, high if way in ("full", "shrink", "grow") else low)
        for verb in ("resume_job", "restart_process"):
            world.cure(verb, job=job)
        run = job.run

    def ready(at: int) -> bool:
        if run < 0:
            if at < begin_at:
                return False
            begin(at)
        return job.run != run or not job.alive or job.phase != "init"

    def finish(at: int) -> tuple[str, str]:
        if job.run != run or not job.alive:
            return "FAILED", "previous_failed"
        if fails:
            job.stop(at, clean=False)
            return FAILED
        return "DONE", "done"

    if begin_at <= op.started:
        begin(world.now_ms)
    return Work(ready, finish)


def _distrust(op: Operation, job: Running) -> None:
    """`before`: nothing that was saved later is loaded any more. Raises Refused."""
    before = op.args.get("before")
    if before is None:
        return
    try:
        since = parse_rfc3339(str(before))
    except ValueError:
        raise Refused("not_supported") from None
    if not job.distrust(since):
        raise Refused("no_checkpoint")


def _all_serve(ops: Operations, job: Running) -> bool:
    return all(ops.world.nodes[n].state == "in_service" for n in job.nodes)


def resume_job(ops: Operations, op: Operation) -> Work | str:
    """Starts the job again from its newest checkpoint. `mode`: a way of `fleet.recovery.WAYS`, partial unless said.
    `wait_for: nodes`: where nodes of it are out, it waits until others are free, `nodes` in all (as many as it has).
    `before` (RFC 3339): from the newest that was complete by then."""
    job = _job(ops, op)
    ops.claim(op, job.name)
    way = str(op.args.get("mode", "partial"))
    if way not in WAYS:
        raise Refused("not_supported")
    _distrust(op, job)
    wanted = op.args.get("nodes", len(job.nodes))
    if op.args.get("wait_for") == "nodes" and isinstance(wanted, int) and 1 <= wanted <= len(ops.world.nodes):
        return _wait_for_nodes(ops, op, job, wanted, way)
    if not _all_serve(ops, job):
        return _at_once(NO_SPARE)
    return _start_again(ops, op, job, job.nodes, way)


def _wait_for_nodes(ops: Operations, op: Operation, job: Running, nodes: int, way: str) -> Work:
    ops.queue.wait(job, nodes, op.started, way if ops.times.ways else None)
    for verb in ("resume_job", "restart_process"):
        ops.world.cure(verb, job=job)

    def finish(at: int) -> tuple[str, str]:
        return ("DONE", "done") if job.alive else ("FAILED", "previous_failed")

    return Work(lambda at: job.state != "queued" and (not job.alive or job.phase != "init"), finish,
                lambda at: ops.queue.drop(job))


def restart_process(ops: Operations, op: Operation) -> Work | str:
    """Starts the ranks' processes again where they are; with `process`, a service of the node instead."""
    if op.args.get("process") not in (None, "trainer"):
        node = _node(ops, op)

        def finish(at: int) -> tuple[str, str]:
            ops.world.cure("restart_process", node=node.index, services=True)
            return "DONE", "done"

        return _after(ops, op, "undrain", finish)
    job = _job(ops, op)
    ops.claim(op, job.name)
    if not _all_serve(ops, job):
        raise Refused("not_supported")
    _distrust(op, job)
    return _start_again(ops, op, job, job.nodes, "in_process")


def shrink_job(ops: Operations, op: Operation) -> Work | str:
    """Starts the job again on those of its nodes that are in service."""
    job = _job(ops, op)
    ops.claim(op, job.name)
    left = [n for n in job.nodes if ops.world.nodes[n].state == "in_service"]
    if not left:
        return _at_once(NO_SPARE)
    _distrust(op, job)
    return _start_again(ops, op, job, left, "shrink")


def _said(ops: Operations, op: Operation) -> str:
    return "escalated" if op.verb == "escalate" else "done"


VERBS: dict[str, Callable[[Operations, Operation], Work | str]] = {
    "notify": _said, "escalate": _said, "drain": drain, "undrain": undrain, "reset_gpu": reset_gpu, "reboot": reboot,
    "diagnose": diagnose, "replace": replace, "exclude_node": exclude_node, "resume_job": resume_job,
    "restart_process": restart_process, "shrink_job": shrink_job,
}
