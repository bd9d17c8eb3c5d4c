"""Where a job's checkpoints lie: tiers with their cost, what each survives, and which one a restart can use.

A save is complete only at its end: what a crash finds under way is lost. A checkpoint of a tier that lies on the nodes is
lost with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from core.errors import BadInput
from fleet.waits import gone, moved


@dataclass(frozen=True, slots=True)
class Tier:
    """write, read: bytes a second and node. blocks: the share of the writing for which the training stands still (the rest
    goes on behind it). on_nodes: the shards lie on the job's nodes. peers: each node also holds its neighbour's shard.
    in_memory: a reboot loses it. keeps: how many complete ones stay."""

    name: str
    write: float
    read: float
    blocks: float
    on_nodes: bool = False
    peers: bool = False
    in_memory: bool = False
    keeps: int = 3


# Rates a node. peer: one 400 Gb/s NIC's half, into host memory of the next node, behind the training (Gemini, SOSP 2023:
# every iteration, copies on two nodes). nvme: eight local drives, staged through host memory. lustre: what a client of a
# busy shared file system gets; the training waits (torch_dist without async). object: parallel uploads of one host, some
# GB/s at best, behind the training after a copy to host memory.
TIERS = {tier.name: tier for tier in (
    Tier("peer", write=2.5e10, read=2.5e10, blocks=0.12, on_nodes=True, peers=True, in_memory=True, keeps=1),
    Tier("nvme", write=1.2e10, read=2.0e10, blocks=0.25, on_nodes=True, keeps=2),
    Tier("lustre", write=2.2e9, read=3.5e9, blocks=1.0),
    Tier("object", write=1.5e9, read=1.2e9, blocks=0.02, keeps=10),
)}
# Two jobs' worth of luck: how much longer or shorter than its rate says a save or load takes.
SPREAD = (0.8, 1.25)


def tier_named(name: str) -> Tier:
    """The tier of that name. Raises BadInput for another."""
    found = TIERS.get(name)
    if found is None:
        raise BadInput("job", "checkpoint tier", name, f"allowed are: {', '.join(TIERS)}")
    return found


@dataclass(slots=True)
class Saved:
    """One checkpoint. done: when it was (or will be) complete. nodes: where the shards lie, in rank order. slowed: the
    factor on writing that `done` was reckoned with. left: the share that is still to be written."""

    tier: Tier
    step: int
    began: int
    done: int
    nodes: tuple[int, ...]
    slowed: float = 1.0
    left: float = 1.0

    def write(self, begins: int, until: int) -> float:
        """The share that is written between the two moments (ms); nothing while what it writes to is gone."""
        begins, until = max(begins, self.began), min(until, self.done)
        if until <= begins or gone(self.slowed):
            return 0.0
        part = self.left * (until - begins) / (self.done - begins)
        self.left -= part
        return part

    def pace(self, since: int, at: int, now: float) -> None:
        """From `at` on (ms) its writing is slowed by the factor `now`; until then, from `since`, it was by what it was."""
        self.done, _ = moved(self.done, self.done - self.began, max(since, self.began), at, self.slowed, now)
        self.slowed = now


@dataclass(slots=True)
class CheckpointStore:
    """A job's checkpoints. main: the tier at which the training saves on its plan. extra: (tier, every seconds) more. on_clock: a
    save is due at the next whole multiple of its interval."""

    main: Tier
    every_seconds: float
    extra: tuple[tuple[Tier, float], ...] = ()
    complete: list[Saved] = field(default_factory=list)
    under_way: list[Saved] = field(default_factory=list)
    failures: int = 0
    lost: int = 0
    on_clock: bool = False
    _due: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(main: str, every_seconds: float, extra: tuple[tuple[str, float], ...]) -> CheckpointStore:
        """From names. Raises BadInput for an unknown tier or an interval that is none."""
        for name, seconds in ((main, every_seconds), *extra):
            if seconds <= 0:
                raise BadInput("job", f"interval of {name}", seconds, "more than 0 seconds are needed")
        return CheckpointStore(tier_named(main), every_seconds, tuple((tier_named(n), s) for n, s in extra))

    # --- saving --------------------------------------------------------------------------------------------------------
    def plan(self, at: int) -> None:
        """The training begins: each tier's first save is one interval away."""
        self._due = {tier.name: self._next(at, seconds) for tier, seconds in self._plan()}

    def _next(self, at: int, seconds: float) -> int:
        every = int(seconds * 1000)
        return at // every * every + every if self.on_clock else at + every

    def _plan(self) -> tuple[tuple[Tier, float], ...]:
        return ((self.main, self.every_seconds), *self.extra)

    @property
    def planned(self) -> bool:
        return bool(self._due)

    def due(self, at: int) -> Tier | None:
        """The tier whose save is due and that is not writing still; the main one first."""
        busy = {saved.tier.name for saved in self.under_way}
        return next((t for t, _ in self._plan() if at >= self._due[t.name] and t.name not in busy), None)

    def next_ms(self, at: int) -> int | None:
        """When after `at` a save is due or one that is under way ends, the soonest; None = nothing is planned."""
        return min((t for t in (*self._due.values(), *(saved.done for saved in self.under_way)) if t > at), default=None)

    def begin(self, tier: Tier, step: int, at: int, seconds: float, nodes: Collection[int], slowed: float = 1.0) -> Saved:
        """A save begins that takes `seconds`, which the factor `slowed` is already part of."""
        saved = Saved(tier, step, at, at + max(1, int(seconds * 1000)), tuple(nodes), slowed)
        self.under_way.append(saved)
        return saved

    def settle(self, at: int, fails: bool) -> list[Saved]:
        """The saves that end by `at`, now complete (or, if they fail, gone); the tier's next one is an interval away."""
        ended = [saved for saved in self.under_way if saved.done <= at]
        every = {tier.name: seconds for tier, seconds in self._plan()}
        for saved in ended:
            self.under_way.remove(saved)
            self._due[saved.tier.name] = self._next(saved.done, every[saved.tier.name])
            if fails:
                self.failures += 1
                continue
            self.complete.append(saved)
            same = [other for other in self.complete if other.tier is saved.tier]
            for old in same[: max(0, len(same) - saved.tier.keeps)]:
                self.complete.remove(old)
        return ended

    def abort(self) -> None:
        """The processes end: what was being written never becomes complete."""
        self.lost += len(self.under_way)
        self.under_way.clear()
        self._due.clear()

    # --- loss ----------------------------------------------------------------------------------------------------------
    def node_lost(self, node: int, memory_only: bool) -> None:
        """A node rebooted (its memory is gone) or left for good (its disks are gone too)."""
        self.complete = [saved for saved in self.complete
                         if not (saved.tier.on_nodes and node in saved.nodes and (saved.tier.in_memory or not memory_only)
                                 and not self._copied(saved, node))]

    @staticmethod
    def _copied(saved: Saved, node: int) -> bool:
        """Whether the lost node's shard is on its neighbour; that copy is then the only one."""
        if not saved.tier.peers or len(saved.nodes) < 2:
            return False
        at = saved.nodes.index(node)
        if saved.nodes[(at + 1) % len(saved.nodes)] < 0 or saved.nodes[at - 1] < 0:
            return False  # the neighbour's copy, or the one that it held for the other, is gone already
        saved.nodes = (*saved.nodes[:at], -1, *saved.nodes[at + 1:])
        return True

    def distrust(self, since: int) -> bool:
        """What was complete after `since` (ms) is loaded no more: it holds what had gone wrong by then. False, and nothing is
        thrown away, where nothing would be left."""
        left = [saved for saved in self.complete if saved.done <= since]
        if left:
            self.complete = left
        return bool(left)

    # --- restart -------------------------------------------------------------------------------------------------------
    def usable(self, nodes: Collection[int]) -> list[Saved]:
        """The complete ones that a start on these nodes can read, the best first: the newest step, then the quickest."""
        here = set(nodes)

        def reads(saved: Saved) -> bool:
            gone = [n for n in saved.nodes if n >= 0 and n not in here]
            if not saved.tier.on_nodes:
                return True
            if not saved.tier.peers:
                return not gone
            missing = {i for i, n in enumerate(saved.nodes) if n < 0 or n not in here}
            return all((i + 1) % len(saved.nodes) not in missing for i in missing) and len(missing) < len(saved.nodes)

        return sorted(filter(reads, self.complete), key=lambda s: (-s.step, -s.tier.read))

    def newest(self, tier: str | None = None) -> Saved | None:
        """The newest complete checkpoint, of a tier or of any."""
        found = [saved for saved in self.complete if tier in (None, saved.tier.name)]
        return max(found, key=lambda s: (s.step, s.done), default=None)
