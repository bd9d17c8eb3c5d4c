"""What Greylag has done, as far back as a guard looks: one entry for each attempt that commanded something.

The ledger itself is the store's action rows, written before acting (`PENDING`) and appended with each outcome. This is
the view over them that the guards count on, and that cure rates are made of. It travels in the engine's state, which
commits with the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from core.types import Action, Outcome
from remediation.kinds import FINAL, KINDS, commands, on_node

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEEP_MS = 30 * DAY_MS  # cures of the last month speak; the longest guard looks back 7 days
MOST_ENTRIES = 2_000  # what the largest default budget (4 an hour) allows in three weeks
RESULTS = ("cured", "failed", "inconclusive")
_RANK = {"PENDING": 0, "RUNNING": 1}


@dataclass(frozen=True, slots=True)
class Entry:
    """An attempt: the part it was for, the nodes and jobs it touched, when it started and was last heard of (ms).

    fault: the incident's. kinds: the commands that the world carried out or tried, in their order. result: cured, failed
    or inconclusive (nothing can be said of it: it counts neither as a cure nor as a failure), empty while it goes on;
    why: the named reason of the result. rule: the policy's rule, empty where it is not known.
    """

    incident: str
    attempt: int
    part: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    started_at: int
    last_at: int
    fault: str = ""
    kinds: tuple[str, ...] = ()
    result: str = ""
    why: str = ""
    rule: str = ""


class Ledger:
    """Entries by (incident, attempt)."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], Entry] = {}
        # Sorted start times, of all and by job, and keys by part, made when asked for: a thousand incidents ask in one tick.
        self._news: list[tuple[str, int]] = []
        self._starts: list[int] | None = None
        self._of_job: dict[str, list[int]] = {}
        self._of_part: dict[str, list[tuple[str, int]]] = {}
        self._of_node: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[Entry, ...]:
        """Every attempt, the oldest first."""
        return tuple(sorted(self._entries.values(), key=lambda e: (e.started_at, e.incident, e.attempt)))

    def of(self, incident: str, attempt: int) -> Entry | None:
        """One attempt, None where it commanded nothing or is forgotten."""
        return self._entries.get((incident, attempt))

    def acted(self, incident: str) -> bool:
        """True where an attempt for the incident is known."""
        return any(name == incident for name, _ in self._entries)

    # --- what happens to an attempt -----------------------------------------------------------------------------------
    def note(self, entry: Entry) -> None:
        """Adds an attempt; one known already stays as it is."""
        if (entry.incident, entry.attempt) not in self._entries:
            self._entries[entry.incident, entry.attempt] = entry
            self._starts = None

    def touch(self, incident: str, attempt: int, at: int) -> None:
        """The attempt was heard of at `at`."""
        known = self._entries.get((incident, attempt))
        if known is not None and at > known.last_at:
            self._entries[incident, attempt] = replace(known, last_at=at)

    def did(self, incident: str, attempt: int, kind: str) -> None:
        """A command of the attempt reached the world and ended there."""
        known = self._entries.get((incident, attempt))
        if known is not None and commands(kind):
            self._entries[incident, attempt] = replace(known, kinds=(*known.kinds, kind))

    def end(self, incident: str, attempt: int, result: str, why: str) -> None:
        """The attempt's result, once: a second one is not heard."""
        known = self._entries.get((incident, attempt))
        if known is not None and not known.result:
            self._entries[incident, attempt] = replace(known, result=result, why=why)
            self._news.append((incident, attempt))

    def relapse(self, incident: str) -> None:
        """The incident came back within its reopen time: what counted as its cure was none."""
        for key, known in self._entries.items():
            if known.incident == incident and known.result == "cured":
                self._entries[key] = replace(known, result="failed", why="reopened")
                self._news.append(key)

    def take_results(self) -> tuple[Entry, ...]:
        """The attempts whose result is new since this was asked last."""
        news, self._news = self._news, []
        return tuple(self._entries[k] for k in dict.fromkeys(news) if k in self._entries)

    def forget(self, incident: str, attempt: int) -> None:
        """Takes an attempt back that never reached the world: it costs no budget."""
        if self._entries.pop((incident, attempt), None) is not None:
            self._starts = None

    def prune(self, at: int, rest_seconds: float = 0.0) -> None:
        """Drops entries that nobody looks at any more: of a month ago, or beyond MOST_ENTRIES. rest_seconds: the longest
        time that a guard looks back."""
        before = at - max(KEEP_MS, round(rest_seconds * 1000))
        kept = {k: e for k, e in self._entries.items() if e.last_at >= before}
        if len(kept) > MOST_ENTRIES:
            least = sorted(e.last_at for e in kept.values())[-MOST_ENTRIES]
            recent = at - max(7 * DAY_MS, round(rest_seconds * 1000))  # what a guard counts is never dropped
            kept = {k: e for k, e in kept.items() if e.last_at >= min(least, recent)}
        if len(kept) < len(self._entries):
            self._entries, self._starts = kept, None

    # --- what guards ask ----------------------------------------------------------------------------------------------
    def started_since(self, since: int) -> int:
        """How many attempts started after `since` (ms)."""
        starts = self._sorted()
        return len(starts) - bisect_right(starts, since)

    def job_attempts_since(self, job: str, since: int) -> int:
        """How many attempts that touch the job started after `since` (ms)."""
        self._sorted()
        starts = self._of_job.get(job, [])
        return len(starts) - bisect_right(starts, since)

    def node_attempts_since(self, node: str, since: int) -> int:
        """How many attempts that touch the node started after `since` (ms)."""
        self._sorted()
        starts = self._of_node.get(node, [])
        return len(starts) - bisect_right(starts, since)

    def times_on(self, part: str, but_for: str) -> list[int]:
        """When each attempt on the part was last heard of (ms), those of the incident `but_for` left out."""
        self._sorted()
        return [self._entries[k].last_at for k in self._of_part.get(part, []) if k[0] != but_for]

    def last_on(self, part: str, but_for: str) -> int | None:
        """When an attempt on the part was last heard of, those of the incident `but_for` left out; None = never."""
        self._sorted()
        keys = self._of_part.get(part, [])
        return max((self._entries[k].last_at for k in keys if k[0] != but_for), default=None)

    def _sorted(self) -> list[int]:
        if self._starts is None:
            self._starts, self._of_job, self._of_part, self._of_node = [], {}, {}, {}
            for entry in self.entries():
                self._starts.append(entry.started_at)
                self._of_part.setdefault(entry.part, []).append((entry.incident, entry.attempt))
                for job in entry.jobs:
                    self._of_job.setdefault(job, []).append(entry.started_at)
                for node in entry.nodes:
                    self._of_node.setdefault(node, []).append(entry.started_at)
        return self._starts

    # --- state --------------------------------------------------------------------------------------------------------
    def dump(self) -> list[dict[str, Any]]:
        """The entries as JSON types, in a fixed order."""
        return [{name: getattr(self._entries[k], name) for name in Entry.__dataclass_fields__} for k in sorted(self._entries)]

    def load(self, rows: Iterable[dict[str, Any]]) -> None:
        """Adds what `dump` gave; rows of before a field existed have its default."""
        for row in rows:
            lists = {name: tuple(row.get(name, ())) for name in ("nodes", "jobs", "kinds")}
            self.note(Entry(**{**row, **lists}))

    def add_rows(self, rows: Iterable[tuple[Action, Outcome]]) -> None:
        """Adds attempts that only the store's action rows know. Their part is that of the first step's target, their fault
        is not known; that they failed is, where a step did: no row says that one cured."""
        groups: dict[tuple[str, int], list[tuple[Action, Outcome]]] = {}
        for action, outcome in latest(rows).values():
            if commands(action.kind) and happened(outcome):
                groups.setdefault((action.incident, action.attempt), []).append((action, outcome))
        for (incident, attempt), pairs in groups.items():
            pairs.sort(key=lambda p: p[0].step)
            actions = [a for a, _ in pairs]
            failed = next((o.reason for _, o in pairs if o.state == "FAILED"), "")
            self.note(Entry(
                incident, attempt, actions[0].target.key,
                tuple(sorted({a.target.node for a in actions if on_node(a.kind) and a.target.node})),
                tuple(sorted({a.target.job for a in actions if KINDS[a.kind].subject == "job" and a.target.job})),
                min(a.at for a in actions), max(max(a.at, o.at) for a, o in pairs),
                kinds=tuple(a.kind for a, o in pairs if o.state in ("DONE", "FAILED")),
                result="failed" if failed else "", why=failed,
            ))


def happened(outcome: Outcome) -> bool:
    """False for what was only proposed, simulated or taken back."""
    return outcome.state != "SIMULATED" and outcome.reason not in (
        "awaiting_approval", "approval_expired", "rejected", "not_worth_it", "withdrawn", "frozen", "silenced", "stale_evidence")


def latest(rows: Iterable[tuple[Action, Outcome]]) -> dict[str, tuple[Action, Outcome]]:
    """The newest word on each action, whatever order the rows come in: a final outcome is never undone."""
    out: dict[str, tuple[Action, Outcome]] = {}
    for action, outcome in rows:
        known = out.get(action.id)
        if known is None or _order(*known) <= _order(action, outcome):
            out[action.id] = (action, outcome)
    return out


def _order(action: Action, outcome: Outcome) -> tuple[int, int, bool]:
    # What the door said in the tick that planned the command has that tick's time as well: the plan's own row came first.
    return (2 if outcome.state in FINAL else _RANK.get(outcome.state, 0)), outcome.at, outcome.reason != action.reason
