"""The hands on a Kubernetes cluster: each action begins with a write on its own object, and goes on from what stands there.

An action's entry is an annotation of the node or job that it is about, written in the same patch as the first change, on
the object as it was just read (its resourceVersion): where another controller was faster the server says 409, and the
object is read and judged anew. `submit` of a known id and `poll` go on from the entry, also after a restart of Greylag.
Nothing waits inside a call: an eviction that a disruption budget blocks is tried again at the next poll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from core.errors import Refused
from core.types import Action, Outcome
from remediation.backends import kubernetes_hold, kubernetes_nodes
from remediation.backends.kubernetes_api import Api, ApiConflict, ApiMissing
from remediation.backends.kubernetes_nodes import Entry, Obj, noting
from remediation.backends.kubernetes_probe import Diagnose, ResetGpu
from remediation.backends.kubernetes_process import RestartProcess
from remediation.backends.kubernetes_restart import Restart
from remediation.backends.kubernetes_setup import Progress, Refuse, Setup
from remediation.backends.kubernetes_shrink import Shrink
from remediation.backends.kubernetes_view import KubernetesView

TRIES = 4     # writes that other hands may spoil one after another before we stand back
ROUNDS = 6    # steps of one action within one call
REMEMBERED = 4096


class Step(Protocol):
    """A kind of action. subject: `node` or `job`."""

    subject: str

    def begin(self, obj: Obj, action: Action, now: int) -> tuple[Obj, dict[str, Any]]:
        """(patch, what the entry remembers); nothing is done yet. Raises Refuse."""
        ...

    def advance(self, obj: Obj, entry: Entry, now: int) -> Progress:
        """One look further. Raises Unavailable, Refused, ApiConflict."""
        ...

    def expire(self, obj: Obj, entry: Entry, reason: str) -> Progress:
        """What to leave behind when the time is up."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where an action's entry stands."""

    kind: str
    namespace: str | None
    name: str


class KubernetesDoor:
    """ControlDoor over the API server. now_ms: the time that deadlines are measured by. Used by one thread."""

    def __init__(self, api: Api, setup: Setup, view: KubernetesView, now_ms: Callable[[], int]) -> None:
        self._api, self._setup, self._view, self._now = api, setup, view, now_ms
        self._steps: dict[str, Step] = {**kubernetes_hold.steps(api, setup, view), "resume_job": Restart(api, setup, view),
                                        "shrink_job": Shrink(api, setup, view), "restart_process": RestartProcess(api, setup, view),
                                        "diagnose": Diagnose(api, setup, view), "reset_gpu": ResetGpu(api, setup, view)}
        self._ends: dict[str, Outcome] = {}
        self._places: dict[str, Place] = {}
        self._held_up: dict[str, str] = {}  # why the last look did not get further

    def submit(self, action: Action) -> Outcome:
        """RUNNING or the end. REFUSED: nothing was done. Raises Unavailable."""
        known = self._ends.get(action.id)
        if known is not None:
            return known
        try:
            return self._begin(action)
        except Refuse as refuse:
            return self._end(Outcome(action.id, "REFUSED", refuse.reason, 0.0, self._now()))
        except Refused as refused:
            return self._end(Outcome(action.id, "REFUSED", _word(refused), 0.0, self._now(),
                                     refused.detail or None))

    def poll(self, action_id: str) -> Outcome:
        """The outcome so far; looks at all nodes and jobs for an id that this process has not seen. Raises Unavailable."""
        known = self._ends.get(action_id)
        if known is not None:
            return known
        place = self._places.get(action_id)
        try:
            obj = self._read(place) if place is not None else self._find(action_id)
            entry = kubernetes_nodes.entry(obj, action_id) if obj is not None else None
            if obj is not None and entry is not None:
                return self._go_on(obj, entry)
        except ApiMissing:
            reason = "node_unknown" if place is not None and place.kind == "Node" else "job_unknown"
            return self._end(Outcome(action_id, "FAILED", reason, 0.0, self._now()))
        except Refused as refused:  # reading was not allowed: whatever runs goes on, and we do not know how far it is
            return Outcome(action_id, "RUNNING", _word(refused), detail=refused.detail or None)
        return Outcome(action_id, "REFUSED", "unknown_operation")

    # --- beginning ----------------------------------------------------------------------------------------------------
    def _begin(self, action: Action) -> Outcome:
        step = self._steps.get(action.kind)
        if step is None:
            raise Refuse("not_supported")
        for _ in range(TRIES):
            obj = self._subject(step, action)
            now = self._now()
            known = kubernetes_nodes.entry(obj, action.id)
            if known is not None:
                return self._go_on(obj, known)
            self._guard(obj, now)
            changes, more = step.begin(obj, action, now)
            entry = Entry(action.id, action.kind, "RUNNING", "policy", now, now + round(action.deadline_seconds * 1000), None, more)
            try:
                obj = self._write(obj, entry, changes)
            except ApiConflict:
                continue
            except ApiMissing:
                raise Refuse("node_unknown" if step.subject == "node" else "job_unknown") from None
            return self._go_on(obj, entry)
        raise Refuse("target_busy")

    def _subject(self, step: Step, action: Action) -> Obj:
        return self._view.node(action.target.node) if step.subject == "node" else self._view.job(action.target.job)

    def _guard(self, obj: Obj, now: int) -> None:
        """Raises Refuse where another hand has the node, or another action of ours is under way on the object."""
        if obj["kind"] == "Node":
            if kubernetes_nodes.maintenance(obj, self._setup.other_hands) is not None:
                raise Refuse("maintenance")
            if kubernetes_nodes.other_hand(obj, self._setup.other_hands) is not None:
                raise Refuse("other_hand")
        if any(e.state == "RUNNING" and now < e.until for e in kubernetes_nodes.entries(obj)):
            raise Refuse("target_busy")

    # --- going on -----------------------------------------------------------------------------------------------------
    def _go_on(self, obj: Obj, entry: Entry) -> Outcome:
        """Brings the action as far as it goes now, and says how far that is."""
        self._remember(entry.id, obj)
        step = self._steps.get(entry.kind)
        for _ in range(ROUNDS if step is not None else 0):
            if entry.state != "RUNNING":
                return self._end(self._outcome(entry, None))
            now = self._now()
            assert step is not None
            try:
                told = self._look(step, obj, entry, now)
                if told.state == "RUNNING" and told.changes is None and told.more is None:
                    self._held_up[entry.id] = told.reason
                    return self._outcome(replace(entry, reason=told.reason), told.detail)
                fresh = replace(entry, more=dict(told.more)) if told.more is not None else entry
                if told.state != "RUNNING":
                    fresh = fresh.ended(told.state, told.reason, now)
                obj, entry = self._write(obj, fresh, told.changes), fresh
            except ApiConflict:
                obj = self._read(_place(obj))
                entry = kubernetes_nodes.entry(obj, entry.id) or entry
                continue
            except Refused as refused:  # it may not even write that it failed: the engine's ledger has it
                return self._end(self._outcome(entry.ended("FAILED", _word(refused), now), refused.detail or None))
            if entry.state != "RUNNING":
                return self._end(self._outcome(entry, told.detail))
            if not told.repeat:
                break
        return self._outcome(entry, None)

    def _look(self, step: Step, obj: Obj, entry: Entry, now: int) -> Progress:
        if now >= entry.until:
            why = self._held_up.get(entry.id, "")
            return step.expire(obj, entry, why if why not in ("", "policy") else "deadline_exceeded")
        try:
            return step.advance(obj, entry, now)
        except Refused as refused:  # something was done already, so this is no refusal of the whole
            return replace(step.expire(obj, entry, _word(refused)), detail=refused.detail or None)
        except ApiMissing as missing:  # what it needs besides its own object: a namespace for its Job
            return replace(step.expire(obj, entry, "backend_failed"), detail=str(missing)[:300])

    def _write(self, obj: Obj, entry: Entry, changes: Obj | None) -> Obj:
        done = self._api.patch(obj, noting(obj, entry, changes))
        self._remember(entry.id, obj)
        return {**done, "kind": obj["kind"]}

    def _read(self, place: Place) -> Obj:
        return {**self._api.get(place.kind, place.name, place.namespace), "kind": place.kind}

    def _find(self, action_id: str) -> Obj | None:
        """The object that the action's entry stands on, wherever that is."""
        for obj in (*self._view.all_nodes(), *self._view.all_jobs()):
            if kubernetes_nodes.entry(obj, action_id) is not None:
                return obj
        return None

    # --- small things -------------------------------------------------------------------------------------------------
    def _outcome(self, entry: Entry, detail: str | None) -> Outcome:
        end = entry.ended_at if entry.ended_at is not None else self._now()
        return Outcome(entry.id, entry.state, entry.reason, max(0.0, (end - entry.at) / 1000), end, detail)

    def _end(self, outcome: Outcome) -> Outcome:
        """Remembers it. What was refused stands on no object, so that it is known to this process alone."""
        self._ends[outcome.action_id] = outcome
        self._places.pop(outcome.action_id, None)
        self._held_up.pop(outcome.action_id, None)
        while len(self._ends) > REMEMBERED:
            self._ends.pop(next(iter(self._ends)))
        return outcome

    def _remember(self, action_id: str, obj: Obj) -> None:
        self._places[action_id] = _place(obj)


def _word(refused: Refused) -> str:
    return "not_permitted" if refused.reason == "forbidden" else refused.reason


def _place(obj: Obj) -> Place:
    meta = obj["metadata"]
    return Place(str(obj["kind"]), meta.get("namespace"), str(meta["name"]))
