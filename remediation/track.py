"""What the engine remembers of an incident, and how that becomes text and back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from core.types import Action, Outcome, Target
from remediation.kinds import FINAL
from remediation.plan import Planned


@dataclass(slots=True)
class Current:
    """The step under way.

    tried: it may have reached the world, so the world is asked before it is submitted (again). withhold: why it must not
    be submitted any more, should the world not know it. deadline_at, next_try_at: ms.
    """

    action: Action
    outcome: Outcome
    deadline_at: int
    tried: bool = False
    withhold: str | None = None
    next_try_at: int = 0
    tries: int = 0

    @property
    def final(self) -> bool:
        return self.outcome.state in FINAL


@dataclass(slots=True)
class Track:
    """One incident through its attempts. Times are ms.

    state, reason: the engine's word on the incident. rung: index of the rule's next attempt. attempt: number of the
    newest attempt, never used twice. index: how many of the plan's steps have been decided on. step: how many actions of
    the attempt have been written. command_deadline, retry_at, tries: of the step under way, over all its tries. ended_at, ended: when and
    how the last attempt ended (step_failed, verify_failed, resolved). cordoned: nodes that we took out and have not
    given back. simulated: the policy mode in which it was simulated. follows: the attempt follows a failed step, whose
    idle part need not show evidence. proposal: what waits for a person; approval: who said yes and when.
    """

    incident: str
    state: str = "open"
    reason: str = ""
    rule: str | None = None
    rung: int = 0
    attempt: int = 0
    plan: tuple[Planned, ...] = ()
    index: int = 0
    step: int = 0
    command_deadline: int = 0
    retry_at: int = 0
    tries: int = 0
    current: Current | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    before_job: str | None = None
    before_seconds: float | None = None
    ended_at: int | None = None
    ended: str = ""
    verify_at: int | None = None
    quiet_since: int | None = None
    held_since: int | None = None
    proposal: Action | None = None
    approval: tuple[str, int] | None = None
    simulated: str = ""
    follows: bool = False
    cordoned: tuple[str, ...] = ()
    cordon_told: bool = False
    closed_at: int | None = None

    @property
    def working(self) -> bool:
        """An attempt is under way, or a command of it still is."""
        return (self.state == "acting" and self.closed_at is None) or (self.current is not None and not self.current.final)


def left(track: Track) -> tuple[Planned, ...]:
    """The steps that are not done yet, the current one included."""
    under_way = track.current is not None and not track.current.final
    return track.plan[max(0, track.index - under_way):]


@dataclass(slots=True)
class Lingering:
    """A command past its deadline whose end the world has not told: its targets stay taken until `until` (ms)."""

    incident: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    until: int


def track_out(track: Track) -> dict[str, Any]:
    """A track as JSON types."""
    return asdict(track)


def track_in(row: dict[str, Any]) -> Track:
    """A track from its JSON types. Raises KeyError, TypeError, ValueError on anything else."""
    out = dict(row)
    out["plan"] = tuple(Planned(p["kind"], Target(**p["target"]), dict(p["args"]), p["deadline_seconds"])
                        for p in row["plan"])
    current = row["current"]
    if current is not None:
        out["current"] = Current(**{**current, "action": action_in(current["action"]),
                                    "outcome": Outcome(**current["outcome"])})
    out["proposal"] = None if row["proposal"] is None else action_in(row["proposal"])
    out["approval"] = None if row["approval"] is None else (str(row["approval"][0]), int(row["approval"][1]))
    for name in ("nodes", "jobs", "cordoned"):
        out[name] = tuple(row[name])
    return Track(**out)


def action_in(row: dict[str, Any]) -> Action:
    """An action from its JSON types."""
    return Action(**{**row, "target": Target(**row["target"]), "args": dict(row["args"])})
