"""All that the engine remembers, as one text that commits with the tick."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from core.errors import BadInput
from core.types import Action, Outcome
from remediation.hands import touches
from remediation.kinds import FINAL
from remediation.ledger import Ledger, latest
from remediation.pacing import Pace
from remediation.plan import Planned
from remediation.spares import SpareBook, is_check
from remediation.track import Current, Lingering, Track, track_in, track_out
from remediation.untouched import Untouched
from remediation.worth import Worth

STATE_VERSION = 1


@dataclass(slots=True)
class Memory:
    """frozen: by call. last_at: the last tick (ms). tracks: by incident. lingering: by action id."""

    frozen: bool = False
    last_at: int | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    lingering: dict[str, Lingering] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    untouched: Untouched = field(default_factory=Untouched)
    passing: Untouched = field(default_factory=Untouched)  # of those that an acting policy held back: not worth it, or likely to pass
    pace: Pace = field(default_factory=Pace)
    spares: SpareBook = field(default_factory=SpareBook)
    gaps: dict[str, int] = field(default_factory=dict)  # nodes whose exporters may be silent by our doing, until when (ms)
    worths: dict[str, Worth] = field(default_factory=dict)  # by incident, as last weighed; made anew each tick, not kept

    def dump(self) -> str:
        """The same text for the same memory."""
        state = {
            "version": STATE_VERSION, "frozen": self.frozen, "last_at": self.last_at,
            "tracks": [track_out(self.tracks[k]) for k in sorted(self.tracks)],
            "lingering": {k: asdict(self.lingering[k]) for k in sorted(self.lingering)},
            "ledger": self.ledger.dump(), "untouched": self.untouched.dump(), "passing": self.passing.dump(),
            "pace": asdict(self.pace), "spares": self.spares.dump(),
            "gaps": {k: self.gaps[k] for k in sorted(self.gaps)},
        }
        return json.dumps(state, separators=(",", ":"), ensure_ascii=False)

    def adopt_rows(self, rows: Sequence[tuple[Action, Outcome]]) -> None:
        """Adds what only the store's action rows know: a newer word on a command, or commands of a forgotten incident."""
        rows = [row for row in rows if not is_check(row[0].incident)]  # a spare's test is no attempt on an incident
        self.ledger.add_rows(rows)
        for action, outcome in latest(rows).values():
            track = self.tracks.get(action.incident)
            if track is None:
                if outcome.state not in FINAL and outcome.reason != "awaiting_approval":
                    self.tracks[action.incident] = _orphan(action, outcome)
                continue
            current = track.current
            if current is not None and current.action.id == action.id and outcome.state in FINAL and not current.final:
                current.outcome = outcome


def read_memory(text: str) -> Memory:
    """The memory that `dump` wrote; an empty text is an empty one. Raises BadInput on anything else.

    What is PENDING may have reached the world before a crash, so each such command counts as tried.
    """
    try:
        state: dict[str, Any] = json.loads(text) if text else {"version": STATE_VERSION}
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"version {state.get('version')!r}")
        memory = Memory(bool(state.get("frozen")), state.get("last_at"))
        memory.tracks = {t.incident: t for t in map(track_in, state.get("tracks", ()))}
        memory.lingering = {str(k): Lingering(v["incident"], tuple(v["nodes"]), tuple(v["jobs"]), int(v["until"]))
                            for k, v in state.get("lingering", {}).items()}
        memory.ledger.load(state.get("ledger", ()))
        memory.pace = Pace(**state.get("pace", {}))
        memory.untouched.load(state.get("untouched", {}))
        memory.passing.load(state.get("passing", {}))
        memory.spares.load(state.get("spares", {}))
        memory.gaps = {str(k): int(v) for k, v in state.get("gaps", {}).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput("engine state", "", str(error), "what Engine.dump wrote is needed") from None
    for track in memory.tracks.values():
        if track.current is not None and not track.current.final:
            track.current.tried = True
    return memory


def _orphan(action: Action, outcome: Outcome) -> Track:
    """A command whose attempt is forgotten: it is watched to its end, and no further step follows from it."""
    planned = Planned(action.kind, action.target, action.args, action.deadline_seconds)
    current = Current(action, outcome, action.at + round(action.deadline_seconds * 1000), tried=True)
    nodes, jobs = touches(current)
    return Track(action.incident, "acting", "action_planned", rung=action.attempt - 1, attempt=action.attempt,
                 plan=(planned,), index=1, step=action.step, current=current, nodes=nodes, jobs=jobs,
                 command_deadline=current.deadline_at)
