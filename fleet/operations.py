"""Operations on the world: asked for once by id, done in cluster time, with a deadline and a named reason.

What each verb does is in `fleet.verbs`; here are idempotency, refusal, the running ones and their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.errors import Refused
from core.targets import ACTION_KINDS
from core.types import Outcome, Target

if TYPE_CHECKING:
    from fleet.world import World


@dataclass(slots=True)
class Work:
    """What a verb has begun: it is over when `ready` says so; `finish` gives (state, reason); `undo` after a deadline."""

    ready: Callable[[int], bool]
    finish: Callable[[int], tuple[str, str]]
    undo: Callable[[int], None] = lambda at: None


@dataclass(slots=True)
class Operation:
    """An operation as asked for. busy: the keys (node or job names) that no second operation may touch meanwhile."""

    id: str
    verb: str
    target: Target
    args: Mapping[str, Any]
    deadline_seconds: float
    started: int
    busy: tuple[str, ...] = ()
    work: Work | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome("", "RUNNING", ""))


class Operations:
    """All operations that were ever asked for. refuse: every new one is refused as `frozen`."""

    def __init__(self, world: World) -> None:
        self.world = world
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
        op = Operation(op_id, verb, target, args, deadline_seconds, at)
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
        """Ends what is ready at `at` (ms), and what is beyond its deadline."""
        for op in list(self._running):
            work = op.work
            if work is None:
                continue
            if work.ready(at):
                state, reason = work.finish(at)
            elif at - op.started >= op.deadline_seconds * 1000:
                work.undo(at)
                state, reason = "FAILED", "deadline_exceeded"
            else:
                continue
            self._running.remove(op)
            op.outcome = Outcome(op.id, state, reason, (at - op.started) / 1000, at)
