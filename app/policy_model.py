"""What `policy simulate` takes a recording's world for: commands that are done after their usual time, and what is then
assumed of the part.

A recording shows what happened while nobody did what the policy would have done, so what would have come of it is not in it.
What is assumed, and nothing else, is written here and printed with each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.inventory import Inventory
from core.protocols import NodeView, WorkFacts
from core.types import Action, Finding, JobState, Outcome
from remediation.usual import usual_seconds

# Until the next checkpoint where the job's interval is not known: jobs write one each 5 to 15 minutes.
CHECKPOINT_WAIT_SECONDS = 600.0
OURS = "greylag"
HANDS = frozenset({"drain", "exclude_node", "reset_gpu", "reboot", "replace"})  # what is done to a node; diagnose and undrain follow from them


class SimulatedWorld:
    """Door and view. Nodes are those of the inventory, else those that the recording speaks of; a command is done after its
    usual time and changes the node as it says. wait_seconds: until the next checkpoint of a job."""

    def __init__(self, inventory: Inventory, wait_seconds: Callable[[str], float | None] = lambda job: None) -> None:
        jobs: dict[str, list[str]] = {}
        for job in inventory.jobs:
            for node in job.nodes:
                jobs.setdefault(node, []).append(job.id)
        self._nodes = {n.name: NodeView(n.name, n.state, None, tuple(jobs.get(n.name, ()))) for n in inventory.nodes}
        self._closed = bool(self._nodes)
        self._wait = wait_seconds
        self._running: dict[str, tuple[Action, int]] = {}
        self._over: dict[str, Outcome] = {}
        self.now = 0

    def heard_of(self, nodes: Collection[str]) -> None:
        """Nodes that the recording speaks of: without an inventory there are no others."""
        if not self._closed:
            for name in nodes:
                self._nodes.setdefault(name, NodeView(name, "in_service"))

    def run_on(self, jobs: Sequence[JobState]) -> None:
        """Which jobs are on which nodes now."""
        on: dict[str, list[str]] = {}
        for job in jobs:
            for node in job.nodes if job.running else ():
                on.setdefault(node, []).append(job.id)
        self._nodes = {name: view if view.jobs == (now := tuple(on.get(name, ()))) else replace(view, jobs=now)
                       for name, view in self._nodes.items()}

    def nodes(self) -> Mapping[str, NodeView]:
        """As they are now."""
        return self._nodes

    def is_out(self, node: str | None) -> bool:
        """True while a command of ours has taken the node out."""
        view = self._nodes.get(node or "")
        return view is not None and view.held_by == OURS

    def submit(self, action: Action) -> Outcome:
        """RUNNING for its usual time; the same id gives the same answer."""
        if action.id not in self._running and action.id not in self._over:
            seconds = usual_seconds(action.kind, action.args, action.fault or "")
            if action.kind == "drain" and action.args.get("wait_for") == "checkpoint":
                view = self._nodes.get(action.target.node or "")
                waits = [w for job in (view.jobs if view else ()) if (w := self._wait(job)) is not None]
                seconds += max(waits, default=CHECKPOINT_WAIT_SECONDS)
            # Longer than the step may take is no failure that a recording can tell: it is done at its deadline.
            self._running[action.id] = (action, self.now + round(min(seconds, 0.95 * action.deadline_seconds) * 1000))
            self._begin(action)
        return self.poll(action.id)

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far."""
        if action_id in self._over:
            return self._over[action_id]
        if action_id not in self._running:
            return Outcome(action_id, "REFUSED", "unknown_operation", at=self.now)
        action, due = self._running[action_id]
        if self.now < due:
            return Outcome(action_id, "RUNNING", "policy", at=self.now)
        del self._running[action_id]
        took = (self.now - action.at) / 1000
        state, reason = ("DONE", "done") if self._end(action) else ("FAILED", "no_spare")
        self._over[action_id] = Outcome(action_id, state, reason, took, self.now)
        return self._over[action_id]

    def _begin(self, action: Action) -> None:
        if action.kind in ("drain", "exclude_node"):
            self._set(action.target.node, state="draining", held_by=OURS)
        elif action.kind == "reboot":
            self._set(action.target.node, state="rebooting", held_by=OURS)

    def _end(self, action: Action) -> bool:
        """What is so when it is done; False where no spare was left."""
        node = action.target.node
        if action.kind in ("drain", "exclude_node", "reboot"):
            self._set(node, state="drained", held_by=OURS)
        elif action.kind == "undrain":
            self._set(node, state="in_service", held_by=None)
        elif action.kind == "replace":
            spare = next((n for n, v in sorted(self._nodes.items()) if v.state == "spare" and v.held_by is None), None)
            if spare is None:
                return False
            self._set(spare, state="in_service")
            self._set(node, state="drained", held_by=OURS)
        return True

    def _set(self, node: str | None, **changes: Any) -> None:
        if node in self._nodes:
            self._nodes[node] = replace(self._nodes[node], **changes)


@dataclass(slots=True)
class Healed:
    """What is assumed since a cure: findings that are gone, and jobs that are as fast as before the fault. at: ms."""

    findings: set[str]
    jobs: dict[str, tuple[float | None, float | None, int | None]]
    at: int


class SimulatedFacts:
    """What the engine would have known: the recording's own facts, but for what was cured and for nodes that are out. tried:
    findings of what attempts did not cure; they go on as they were recorded, wherever their node is."""

    def __init__(self, facts: WorkFacts, world: SimulatedWorld, healed: Sequence[Healed], tried: Collection[str] = ()) -> None:
        self._facts, self._world, self._tried = facts, world, frozenset(tried)
        self._gone = {f for one in healed for f in one.findings}
        self._jobs = {job: (one.at, *rest) for one in healed for job, rest in one.jobs.items()}

    def open_findings(self) -> Sequence[Finding]:
        """Without those of cured faults and of nodes that are out."""
        return [f for f in self._facts.open_findings()
                if f.id not in self._gone and (f.id in self._tried or not self._world.is_out(f.target.node))]

    def _told(self, job: str, start: int, which: int) -> tuple[bool, Any]:
        known = self._jobs.get(job)
        return (True, known[which]) if known is not None and start >= known[0] else (False, None)

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        """That of before the fault, once it is cured."""
        cured, value = self._told(job, start, 1)
        return value if cured else self._facts.step_seconds(job, start, end)

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        """As step_seconds."""
        cured, value = self._told(job, start, 2)
        return value if cured else self._facts.tokens_per_second(job, start, end)

    def ranks(self, job: str, start: int, end: int) -> int | None:
        """As step_seconds."""
        cured, value = self._told(job, start, 3)
        return value if cured else self._facts.ranks(job, start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)  # the rest is as it was recorded
