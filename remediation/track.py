"""What the engine remembers of an incident, and how that becomes text and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.types import Action, Incident, Outcome, Target
from remediation.kinds import FINAL, KINDS, TAKES_OUT
from remediation.plan import Planned


@dataclass(slots=True)
class Current:
    """The step under way.

    tried: it may have reached the world, so the world is asked before it is submitted (again). withhold: why it must not
    be submitted any more, should the world not know it. deadline_at, next_try_at: ms. ours: the attempt took its node out.
    """

    action: Action
    outcome: Outcome
    deadline_at: int
    tried: bool = False
    withhold: str | None = None
    next_try_at: int = 0
    tries: int = 0
    ours: bool = False

    @property
    def final(self) -> bool:
        return self.outcome.state in FINAL


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a job was: seconds a step, tokens a second per GPU, ranks that were heard; None = not known."""

    job: str
    seconds: float | None = None
    tokens: float | None = None
    ranks: int | None = None

    @property
    def known(self) -> bool:
        """True where there is a speed to compare with."""
        return bool(self.seconds) or bool(self.tokens)


@dataclass(slots=True)
class Track:
    """One incident through its attempts. Times are ms.

    state, reason: the engine's word on the incident. rung: index of the rule's next attempt. attempt: number of the
    newest attempt, never used twice. index: how many of the plan's steps have been decided on. step: how many actions of
    the attempt have been written. command_deadline, retry_at, tries: of the step under way, over all its tries. ended_at, ended: when and
    how the last attempt ended (step_failed, verify_failed, resolved). cordoned: nodes that we took out and have not
    given back. simulated: the policy mode in which it was simulated. follows: the attempt follows a failed step, whose
    idle part need not show evidence. proposal: what waits for a person; approval: who said yes and when. asks: why the
    world wants a person's yes. lost: (ms, GPU-hours)
    marks of what the incident had cost by then; lost_gpus: what it costs in an hour, None = not known yet. before: how fast the
    incident's jobs were before its onset. rides: the incident for whose attempt the job stands already: this one only changes its
    node meanwhile, and that one starts the job again. heard_at: of when the newest state of the incident is that was heard.
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
    before: tuple[Speed, ...] = ()
    ended_at: int | None = None
    ended: str = ""
    verify_at: int | None = None
    quiet_since: int | None = None
    held_since: int | None = None
    proposal: Action | None = None
    approval: tuple[str, int] | None = None
    asks: str = ""
    simulated: str = ""
    follows: bool = False
    cordoned: tuple[str, ...] = ()
    cordon_told: bool = False
    closed_at: int | None = None
    lost: tuple[tuple[int, float], ...] = ()
    lost_gpus: float | None = None
    rides: str = ""
    heard_at: int | None = None

    def older(self, incident: Incident) -> bool:
        """A state of the incident of before what was heard of it, or of before it was over: it came late, and cancels nothing."""
        before = self.heard_at is not None and incident.updated_at < self.heard_at
        return before or (self.closed_at is not None and incident.updated_at <= self.closed_at)

    @property
    def working(self) -> bool:
        """An attempt is under way, or a command of it still is."""
        return (self.state == "acting" and self.closed_at is None) or (self.current is not None and not self.current.final)


def left(track: Track) -> tuple[Planned, ...]:
    """The steps that are not done yet, the current one included."""
    under_way = track.current is not None and not track.current.final
    return track.plan[max(0, track.index - under_way):]


def stands(track: Track) -> bool:
    """The attempt has stopped its job and not begun to start it again."""
    rest = left(track)
    begun = track.current is not None and rest[:1] and KINDS[rest[0].kind].subject == "job"
    return (track.state == "acting" and track.closed_at is None and not begun and not any(s.kind in TAKES_OUT for s in rest)
            and any(KINDS[s.kind].subject == "job" for s in rest))


def ridden(track: Track, tracks: Iterable[Track]) -> bool:
    """Others still change their nodes while the attempt's job stands."""
    return any(t.rides == track.incident and t.working and (t.current is not None or t.index < len(t.plan)) for t in tracks)


@dataclass(slots=True)
class Lingering:
    """A command past its deadline whose end the world has not told: its targets stay taken until `until` (ms)."""

    incident: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    until: int


def track_out(track: Track) -> dict[str, Any]:
    """A track as JSON types."""
    out: dict[str, Any] = plain(track)
    return out


_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:
    """A record as JSON types: as `dataclasses.asdict`, which copies each value and takes six times as long."""
    if type(value) in _SCALARS:
        return value
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


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
    out["lost"] = tuple((int(at), float(hours)) for at, hours in row.get("lost", ()))
    out["approval"] = None if row["approval"] is None else (str(row["approval"][0]), int(row["approval"][1]))
    old = (out.pop("before_job", None), out.pop("before_seconds", None))  # of a state that only knew step times
    before = row.get("before", () if old[0] is None else ({"job": old[0], "seconds": old[1]},))
    out["before"] = tuple(Speed(**one) for one in before)
    for name in ("nodes", "jobs", "cordoned"):
        out[name] = tuple(row[name])
    return Track(**out)


def action_in(row: dict[str, Any]) -> Action:
    """An action from its JSON types."""
    return Action(**{**row, "target": Target(**row["target"]), "args": dict(row["args"])})
