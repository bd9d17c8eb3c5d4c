"""How Greylag is set up at a Slurm, and how it reads what it wrote there: whose drain it is, and of which action.

What Greylag does leaves its action's id in Slurm itself: in a node's reason (`greylag: inc-0123456789ab/1/1 drain
stalled_loss`), in a job's administrators' comment, in the comment of a diagnosis' job. A Greylag that starts anew reads
from there what became of what was begun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from core.clock import wall_ms
from core.protocols import NodeView
from remediation.backends.slurm_commands import Scheduler
from remediation.backends.slurm_json import Cluster, SlurmJob, SlurmNode
from remediation.kinds import HANDS

MINE = "greylag-"  # how the names of our reservations begin
KEPT = f"{MINE}job-"  # of the reservations that keep a stopped job's nodes
TEST_JOB = "greylag-diagnose"
TESTING = f"{MINE}diagnose-"  # of the reservations that keep others off nodes under test
_TRACE = re.compile(r"greylag: (?P<id>[^\s|]{1,120}) (?P<word>[a-z_]+)(?: (?P<rest>[^|]*))?")
# Reasons that slurmctld gives by itself (src/slurmctld: node_mgr.c, ping_nodes.c, power_save.c): the node fell out, no hand took it.
_SLURMS_OWN = ("not responding", "node unexpectedly rebooted", "low realmemory", "low cpus", "low tmpdisk", "low socket",
               "gres/", "resumetimeout reached", "reboot timed out", "unknown")
_WORKS = frozenset({"IDLE", "ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING", "BLOCKED", "RESERVED", "PLANNED"})
_BUSY = frozenset({"ALLOCATED", "ALLOC", "MIXED", "MIX", "COMPLETING"})
_REBOOTS = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT", "REBOOT^", "REBOOTING"})
_POWER = frozenset({"POWERING_UP", "POWERING_DOWN", "POWER_DOWN", "POWERED_DOWN", "POWER_UP", "CLOUD_DOWN", "FUTURE", "PLANNED_DOWN"})
_FALLEN = frozenset({"DOWN", "ERROR", "FAIL", "FAILING", "INVAL", "INVALID_REG", "DYNAMIC_DOWN"})
LONGEST_WORDS = 60


@dataclass(frozen=True, slots=True)
class OptInParams:
    """Which jobs may be stopped, requeued or signalled. A job says so itself with the word `comment` in its `--comment`
    (words are separated by blanks, commas or semicolons); or it is in one of the lists. `greylag=no` there always wins."""

    comment: str = "greylag=act"
    partitions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiagnoseParams:
    """How a diagnosis runs as a job. programs: by the name of a test (dcgm, nccl, ib_write_bw, fio, service, exit) its command
    as a list of words; `{level}`, `{device}`, `{node}` and `{partner}` are filled in. pairs: tests that need a second node, a spare:
    their commands run in an allocation of both. need: the least that a test's main number must reach. gpus:
    how many GPUs a node should have; 0 = not told. output: a folder that the nodes and Greylag share; empty: only the
    exit statuses count. partition: empty = the default one. minutes: the longest that one may run."""

    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[str, ...] = ()
    need: Mapping[str, float] = field(default_factory=dict)
    gpus: int = 0
    output: str = ""
    partition: str = ""
    minutes: int = 60


@dataclass(frozen=True, slots=True)
class SlurmParams:
    """folder: where Slurm's programs lie, empty = by PATH. conf: SLURM_CONF. prefix: words before each command that changes something
    (`sudo -n -u slurm`).

    user: as whom Slurm sees Greylag, empty = as it runs (root with a prefix). jobs_by: what names a job in Greylag, `id` or
    `name`: whatever the trainers say. spares: the reservation that holds the spares. reserve_minutes: how long nodes are
    kept for a job that was stopped. restart_after_seconds: before it may start again, more than clocks of nodes and controller may
    be apart. hold_minutes: a job that was stopped for a drain starts by itself after so long. queue_wait: `propose` or `act` where they cannot be kept. restart_signal: what
    restart_process sends to a batch script (`USR2`), empty = not supported. maintenance_ahead_seconds: a maintenance that
    begins within it counts as begun. planned_reasons: a regular expression, searched in the reason of a node that another hand took out;
    where it is found this is planned work, a maintenance; empty = never. checkpoint_wait_seconds: how long a drain waits for a checkpoint at most. reset_gpu: the
    command that resets a GPU, `{device}` is its index; reset_all_gpus: the one for GPUs that cannot be reset alone; empty =
    refused. pause_monitoring, resume_monitoring: commands before and after a reset, which stop what watches the GPUs and
    start it again; empty = nothing is stopped.
    """

    folder: str = ""
    conf: str = ""
    prefix: tuple[str, ...] = ()
    timeout_seconds: float = 10.0
    user: str = ""
    jobs_by: str = "id"
    opt_in: OptInParams = OptInParams()
    spares: str = "spares"
    reserve_minutes: int = 60
    restart_after_seconds: float = 10.0
    hold_minutes: float = 30.0
    queue_wait: str = "propose"
    restart_signal: str = ""
    maintenance_ahead_seconds: float = 3600.0
    planned_reasons: str = r"(?i)maint|\bplanned|upgrade"
    checkpoint_wait_seconds: float = 900.0
    reset_gpu: tuple[str, ...] = ()
    reset_all_gpus: tuple[str, ...] = ()
    pause_monitoring: tuple[str, ...] = ()
    resume_monitoring: tuple[str, ...] = ()
    diagnose: DiagnoseParams = DiagnoseParams()


@dataclass(frozen=True, slots=True)
class Trace:
    """What we wrote of an action: its id, the word for how far it is, and the rest."""

    id: str
    word: str
    rest: str = ""


def read_trace(text: str) -> Trace | None:
    """What we wrote in a reason or a comment; None where it is none of ours."""
    found = _TRACE.match(text)
    return Trace(found["id"], found["word"], (found["rest"] or "").strip()) if found else None


def write_trace(action_id: str, word: str, rest: str = "") -> str:
    """The text for Slurm."""
    return f"greylag: {action_id} {word} {rest}".rstrip()


@dataclass(frozen=True, slots=True)
class Word:
    """What became of an action so far; as `core.types.Outcome`."""

    state: str
    reason: str
    detail: str | None = None


RUNS = Word("RUNNING", "policy")
DONE = Word("DONE", "done")


@dataclass(frozen=True, slots=True)
class Site:
    """params, the scheduler, and who we are there. now: wall-clock ms, which is Slurm's own time."""

    params: SlurmParams
    scheduler: Scheduler
    user: str
    now: Callable[[], int] = wall_ms

    # --- whose is it ----------------------------------------------------------------------------------------------------
    def trace(self, node: SlurmNode) -> Trace | None:
        """What we wrote in the node's reason; None where another user wrote it, or it is another text."""
        if node.reason_user not in ("", self.user):
            return None
        return read_trace(node.reason)

    def ours(self, node: SlurmNode, cluster: Cluster) -> bool:
        """We took it out, and nobody else did."""
        return self.held_by(node, cluster) == HANDS

    def held_by(self, node: SlurmNode, cluster: Cluster) -> str | None:
        """Who took it out; None where nobody did."""
        drained = "DRAIN" in node.flags or node.base in ("DRAIN", "DRAINING", "DRAINED")
        out = drained or node.base in _FALLEN or bool(node.flags & (_REBOOTS | _FALLEN))
        if out and self.trace(node) is not None:
            return HANDS
        if out and (drained or not node.reason.lower().startswith(_SLURMS_OWN)) and (drained or node.reason):
            return " ".join(f"{node.reason_user or 'somebody'}: {node.reason}".split())[:LONGEST_WORDS].rstrip(": ")
        if testing_reservation(node.name) in cluster.reservations:
            return HANDS
        return None

    def state(self, node: SlurmNode, cluster: Cluster) -> str:
        """The node's state in Greylag's words."""
        words = node.flags | {node.base}
        if words & _REBOOTS:
            return "rebooting"
        if words & _FALLEN:
            # One of ours that answers is empty and can be tested: Slurm calls it down because it fell, or was booted, meanwhile.
            answers = node.base == "DOWN" and "NOT_RESPONDING" not in words
            return "drained" if answers and self.trace(node) is not None else "down"
        if words & _POWER:
            return "provisioning"
        if "DRAIN" in words or words & {"DRAINING", "DRAINED"}:
            return "draining" if self.busy(node, cluster) else "drained"
        if testing_reservation(node.name) in cluster.reservations:
            return "drained"
        if "NOT_RESPONDING" in words or node.base not in _WORKS:
            return "unknown"
        kept = self.kept_spare(node.name, cluster) and (node.base == "IDLE" or self.tested(node.name, cluster))
        return "spare" if kept else "in_service"

    def kept_spare(self, node: str, cluster: Cluster) -> bool:
        """It stands in the spares' reservation."""
        spare = cluster.reservations.get(self.params.spares)
        return spare is not None and node in spare.nodes

    def tested(self, node: str, cluster: Cluster) -> bool:
        """A test of ours runs there, or will: as the one that is tested, or as its partner."""
        lent = any(one.name.startswith(TESTING) and node in one.nodes for one in cluster.reservations.values())
        return lent or any(job.name == TEST_JOB and job.user == self.user for job in cluster.on(node))

    def busy(self, node: SlurmNode, cluster: Cluster) -> bool:
        """Something runs there, by the list of jobs or, where PrivateData hides some from us, by the node's own state."""
        return bool(cluster.on(node.name)) or bool({node.base, *node.flags} & _BUSY)

    def planned(self, node: SlurmNode, cluster: Cluster) -> str | None:
        """The reason of another hand's drain where it tells of planned work."""
        other = self.held_by(node, cluster) not in (None, HANDS)
        found = other and self.params.planned_reasons and re.search(self.params.planned_reasons, node.reason)
        return " ".join(node.reason.split())[:LONGEST_WORDS].rstrip() if found else None

    def maintenance(self, node: str, cluster: Cluster) -> str | None:
        """The reservation for maintenance that takes the node out now, or soon, or the planned work that it was drained for. A spare that a test of ours is using is not to
        be had, either, and is a spare all the same."""
        if self.kept_spare(node, cluster) and self.tested(node, cluster):
            return TEST_JOB
        now = self.now()
        soon = now + round(self.params.maintenance_ahead_seconds * 1000)
        for one in cluster.reservations.values():
            other = one.name != self.params.spares and not one.name.startswith(MINE)
            if other and "MAINT" in one.flags and node in one.nodes and one.start_at <= soon and (one.end_at > now or not one.end_at):
                return one.name
        return self.planned(cluster.nodes[node], cluster) if node in cluster.nodes else None

    def view(self, node: SlurmNode, cluster: Cluster) -> NodeView:
        """The node as the guards see it."""
        jobs = tuple(self.called(job) for job in cluster.on(node.name) if job.name != TEST_JOB)
        return NodeView(node.name, self.state(node, cluster), self.held_by(node, cluster), jobs,
                        self.maintenance(node.name, cluster))

    def called(self, job: SlurmJob) -> str:
        """The job's name in Greylag."""
        return job.name if self.params.jobs_by == "name" else job.ref


def testing_reservation(node: str) -> str:
    """The reservation that keeps others off a node while it is tested."""
    return f"{TESTING}{node}"


def job_reservation(job: SlurmJob) -> str:
    """The reservation that keeps a stopped job's nodes."""
    return f"{KEPT}{job.id}"
