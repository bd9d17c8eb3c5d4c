"""Operations on the world: asked for once by id, done in cluster time, with a deadline and a named reason.

What each verb does is in `fleet.verbs`; here are idempotency, refusal, the running ones and their ends.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import Refused
from core.targets import ACTION_KINDS
from core.types import Outcome, Target
from fleet.lifecycle import Lifecycle
from fleet.recovery import Queue
from fleet.times import Times, times

if TYPE_CHECKING:
    from fleet.world import World


@dataclass(slots=True)
class Work:
    """What a verb has begun: it is over when `ready` says so; `finish` gives (state, reason) and, where there is more to say, a
    detail; `undo` after a deadline.

    due: the earliest time at which it can be ready; None = that hangs on something else than time.
    """

    ready: Callable[[int], bool]
    finish: Callable[[int], tuple[str, ...]]
    undo: Callable[[int], None] = lambda at: None
    due: Callable[[], int] | None = None


@dataclass(slots=True)
class Operation:
    """An operation as asked for. busy: the keys (node or job names) that no second operation may touch meanwhile."""

    id: str
    verb: str
    target: Target
    args: Mapping[str, Any]
    deadline_seconds: float
    started: int
    rng: np.random.Generator
    busy: tuple[str, ...] = ()
    work: Work | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome("", "RUNNING", ""))


class Operations:
    """All operations that were ever asked for. refuse: every new one is refused as `frozen`.

    times: how long each takes. life: the nodes' lives that go on by themselves. queue: jobs that wait for nodes.
    """

    def __init__(self, world: World, durations: Times | None = None) -> None:
        self.world = world
        self.times = durations or times()
        self.life = Lifecycle(world, self.times)
        self.queue = Queue(world)
        self.refuse = False
        self._all: dict[str, Operation] = {}
        self._running: list[Operation] = []

    def submit(self, op_id: str, verb: str, target: Target, args: Mapping[str, Any], deadline_seconds: float) -> Outcome:
        """The outcome so far. The same id gives the same answer, whatever else is asked. Never raises."""
        known = self._all.get(op_id)
        if known is not None:
            return known.outcome
        from fleet.verbs import VERBS  # the verbs know the operations, not the other way round

        at = self.world.now_ms
        # Each operation draws from a stream of its own, so that one more of them changes no other.
        rng = np.random.default_rng([self.world.seed, zlib.crc32(op_id.encode())])
        op = Operation(op_id, verb, target, args, deadline_seconds, at, rng)
        self._all[op_id] = op
        try:
            if self.refuse:
                raise Refused("frozen")
            if verb not in VERBS or verb not in ACTION_KINDS:
                raise Refused("not_supported")
            done = VERBS[verb](self, op)
        except Refused as error:
            op.outcome = Outcome(op_id, "REFUSED", error.reason, 0.0, at)
            return op.outcome
        if isinstance(done, Work):
            op.work = done
            op.outcome = Outcome(op_id, "RUNNING", "", 0.0, at)
            self._running.append(op)
        else:
            op.outcome = Outcome(op_id, "DONE", done, 0.0, at)
        self.world.revision += 1
        return op.outcome

    def poll(self, op_id: str) -> Outcome:
        """The outcome so far; REFUSED `unknown_operation` for an id that was never asked for."""
        op = self._all.get(op_id)
        if op is None:
            return Outcome(op_id, "REFUSED", "unknown_operation", 0.0, self.world.now_ms)
        if op.work is not None and op.outcome.state == "RUNNING":
            return Outcome(op_id, "RUNNING", "", (self.world.now_ms - op.started) / 1000, self.world.now_ms)
        return op.outcome

    def claim(self, op: Operation, *keys: str) -> None:
        """Reserves nodes or jobs for the operation. Raises Refused `target_busy`."""
        taken = {key for other in self._running for key in other.busy}
        if taken & set(keys):
            raise Refused("target_busy")
        op.busy = keys

    def running(self) -> list[Operation]:
        """The operations under way."""
        return list(self._running)

    def step(self, at: int) -> None:
        """Ends what is ready at `at` (ms), and what is beyond its deadline; then what the nodes' lives bring."""
        for op in list(self._running):
            work = op.work
            if work is None:
                continue
            if work.ready(at):
                state, reason, *detail = work.finish(at)
            elif at - op.started >= op.deadline_seconds * 1000:
                work.undo(at)
                state, reason, *detail = "FAILED", "deadline_exceeded"
            else:
                continue
            self._running.remove(op)
            op.outcome = Outcome(op.id, state, reason, (at - op.started) / 1000, at, detail[0] if detail else None)
        self.life.step(at)
        self.queue.step(at)
