"""What Greylag has done, as far back as a guard looks: one entry for each attempt that commanded something.

The ledger itself is the store's action rows, written before acting (`PENDING`) and appended with each outcome. This is
the view over them that the guards count on. It travels in the engine's state, which commits with the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.types import Action, Outcome
from remediation.kinds import FINAL, KINDS, commands, on_node

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_RANK = {"PENDING": 0, "RUNNING": 1}


@dataclass(frozen=True, slots=True)
class Entry:
    """An attempt: the part it was for, the nodes and jobs it touched, when it started and was last heard of (ms)."""

    incident: str
    attempt: int
    part: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    started_at: int
    last_at: int


class Ledger:
    """Entries by (incident, attempt)."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, int], Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, entry: Entry) -> None:
        """Adds an attempt; one known already stays as it is."""
        self._entries.setdefault((entry.incident, entry.attempt), entry)

    def touch(self, incident: str, attempt: int, at: int) -> None:
        """The attempt was heard of at `at`."""
        known = self._entries.get((incident, attempt))
        if known is not None and at > known.last_at:
            self._entries[incident, attempt] = replace(known, last_at=at)

    def forget(self, incident: str, attempt: int) -> None:
        """Takes an attempt back that never reached the world: it costs no budget."""
        self._entries.pop((incident, attempt), None)

    def started_since(self, since: int) -> int:
        """How many attempts started after `since` (ms)."""
        return sum(e.started_at > since for e in self._entries.values())

    def job_attempts_since(self, job: str, since: int) -> int:
        """How many attempts that touch the job started after `since` (ms)."""
        return sum(e.started_at > since and job in e.jobs for e in self._entries.values())

    def last_on(self, part: str, but_for: str) -> int | None:
        """When an attempt on the part was last heard of, those of the incident `but_for` left out; None = never."""
        times = [e.last_at for e in self._entries.values() if e.part == part and e.incident != but_for]
        return max(times, default=None)

    def prune(self, before: int) -> None:
        """Drops entries last heard of before `before` (ms)."""
        self._entries = {k: e for k, e in self._entries.items() if e.last_at >= before}

    def dump(self) -> list[dict[str, Any]]:
        """The entries as JSON types, in a fixed order."""
        return [asdict(self._entries[k]) for k in sorted(self._entries)]

    def load(self, rows: Iterable[dict[str, Any]]) -> None:
        """Adds what `dump` gave."""
        for row in rows:
            self.note(Entry(**{**row, "nodes": tuple(row["nodes"]), "jobs": tuple(row["jobs"])}))

    def add_rows(self, rows: Iterable[tuple[Action, Outcome]]) -> None:
        """Adds attempts that only the store's action rows know. Their part is that of the first step's target."""
        groups: dict[tuple[str, int], list[tuple[Action, Outcome]]] = {}
        for action, outcome in latest(rows).values():
            if commands(action.kind) and happened(outcome):
                groups.setdefault((action.incident, action.attempt), []).append((action, outcome))
        for (incident, attempt), pairs in groups.items():
            pairs.sort(key=lambda p: p[0].step)
            actions = [a for a, _ in pairs]
            self.note(Entry(
                incident, attempt, actions[0].target.key,
                tuple(sorted({a.target.node for a in actions if on_node(a.kind) and a.target.node})),
                tuple(sorted({a.target.job for a in actions if KINDS[a.kind].subject == "job" and a.target.job})),
                min(a.at for a in actions), max(max(a.at, o.at) for a, o in pairs),
            ))


def happened(outcome: Outcome) -> bool:
    """False for what was only proposed, simulated or taken back."""
    return outcome.state != "SIMULATED" and outcome.reason not in (
        "awaiting_approval", "rejected", "withdrawn", "frozen", "stale_evidence")


def latest(rows: Iterable[tuple[Action, Outcome]]) -> dict[str, tuple[Action, Outcome]]:
    """The newest word on each action, whatever order the rows come in: a final outcome is never undone."""
    out: dict[str, tuple[Action, Outcome]] = {}
    for action, outcome in rows:
        known = out.get(action.id)
        if known is None or _order(known[1]) <= _order(outcome):
            out[action.id] = (action, outcome)
    return out


def _order(outcome: Outcome) -> tuple[int, int]:
    return (2 if outcome.state in FINAL else _RANK.get(outcome.state, 0)), outcome.at
