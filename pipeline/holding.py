"""The memory between a verdict and a finding: one small state machine for each (detector, part).

It opens after `on` faulty of the last `of` ticks that said anything (a discrete verdict at once), ends after `off` clear
ticks in a row, stands still while nothing is known, and ends as expired when that lasts for `expire` ticks in a row.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace

from core.protocols import Hold
from core.types import Evidence, Finding, Target, Verdict

SEVERITY_STEP = 0.1   # a smaller change of severity is no news
OBSERVED_SHARE = 0.2  # nor is a smaller change of an observed value


@dataclass(slots=True)
class HoldState:
    """history: (tick, faulty) of the last ticks that said anything. clear, unknown: how many in a row. counted: onset of
    the last discrete event that opened a finding: it opens no second one. held: a discrete verdict that waits for the
    end of a boot grace."""

    target: Target
    history: list[tuple[int, bool]] = field(default_factory=list)
    clear: int = 0
    unknown: int = 0
    counted: int | None = None
    held: Verdict | None = None
    finding: Finding | None = None

    @property
    def idle(self) -> bool:
        """Nothing is worth remembering."""
        return (self.finding is None and self.held is None and self.counted is None
                and not any(faulty for _, faulty in self.history))

    @property
    def first_faulty(self) -> int | None:
        """The first faulty tick in the history."""
        return next((at for at, faulty in self.history if faulty), None)


def finding_id(detector: str, key: str, opened_at: int) -> str:
    """`fnd-` and 12 hex digits of SHA-256 of detector, part and opening time."""
    digest = hashlib.sha256("\x00".join((detector, key, str(opened_at))).encode()).hexdigest()
    return f"fnd-{digest[:12]}"


def step(state: HoldState, verdict: Verdict | None, tick: int, hold: Hold, detector: str, grace: bool) -> str | None:
    """Moves the state by one tick; verdict None = unknown. Gives opened | updated | ended, None for no news.

    grace: the part's node has just booted; nothing opens.
    """
    if verdict is not None and verdict.keeps and state.finding is None:
        verdict = None  # there is nothing to keep
    word = "unknown" if verdict is None else verdict.state
    if verdict is None or word == "unknown":
        return _unknown(state, tick, hold, detector, grace)
    state.unknown = 0
    faulty = word == "faulty"
    state.history = [*state.history, (tick, faulty)][-hold.of:]
    state.clear = 0 if faulty else state.clear + 1
    if state.finding is not None:
        if faulty and not _news(state.finding, verdict):
            # No news for people, but the evidence is of now: what acts on it asks how old it is.
            state.finding = replace(state.finding, updated_at=tick)
            return None
        return _judge_open(state, verdict, tick, hold)
    if not faulty:
        state.held = None
        if state.clear >= hold.off:
            state.history = []
        return None
    state.target = verdict.target
    if verdict.discrete and _counts(state, verdict):
        state.held = verdict
    if grace:
        return None
    enough = sum(f for _, f in state.history) >= hold.on and (not verdict.discrete or _counts(state, verdict))
    if state.held is not None or enough:
        return _open(state, verdict, tick, detector)
    return None


def _counts(state: HoldState, verdict: Verdict) -> bool:
    """False for a discrete event that has opened a finding before."""
    return state.counted is None or verdict.onset_at is None or verdict.onset_at > state.counted


def _unknown(state: HoldState, tick: int, hold: Hold, detector: str, grace: bool) -> str | None:
    state.unknown += 1
    if state.held is not None and not grace and state.finding is None:
        return _open(state, state.held, tick, detector)
    if state.unknown < hold.expire:
        return None
    state.history, state.held, state.clear = [], None, 0
    if state.finding is None:
        return None
    state.finding = replace(state.finding, state="ended", updated_at=tick, ended_at=tick, end_reason="expired")
    return "ended"


def _judge_open(state: HoldState, verdict: Verdict, tick: int, hold: Hold) -> str | None:
    finding = state.finding
    if finding is None:
        return None
    if verdict.state == "faulty":
        state.finding = replace(
            finding, target=verdict.target, severity=verdict.severity, evidence=tidy(verdict.evidence),
            reason=verdict.reason, suspects=verdict.suspects, updated_at=tick)
        return "updated"
    if state.clear < hold.off:
        return None
    state.finding = replace(finding, state="ended", updated_at=tick, ended_at=tick, end_reason="cleared")
    state.history, state.held = [], None
    return "ended"


def _open(state: HoldState, verdict: Verdict, tick: int, detector: str) -> str:
    onset = verdict.onset_at if verdict.onset_at is not None else state.first_faulty
    onset = tick if onset is None else min(onset, tick)
    if verdict.discrete:
        state.counted = onset
    state.held, state.clear = None, 0
    state.finding = Finding(
        finding_id(detector, verdict.target.key, tick), detector, verdict.fault, verdict.target, "open", verdict.severity,
        tidy(verdict.evidence), verdict.reason, onset, tick, tick, suspects=verdict.suspects)
    return "opened"


def tidy(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Evidence whose numbers are finite or None, as records have it."""
    return tuple(replace(e, observed=_finite(e.observed), expected=_finite(e.expected)) for e in evidence)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _news(finding: Finding, verdict: Verdict) -> bool:
    """True where a verdict changes what people would be told."""
    if abs(finding.severity - verdict.severity) >= SEVERITY_STEP - 1e-9 or finding.reason != verdict.reason:
        return True
    if [(t.key, why) for t, _, why in finding.suspects] != [(t.key, why) for t, _, why in verdict.suspects]:
        return True
    if finding.target != verdict.target:
        return True
    before = {(e.signal, e.compared_with): e.observed for e in finding.evidence}
    after = {(e.signal, e.compared_with): _finite(e.observed) for e in verdict.evidence}
    return {k[0] for k in before} != {k[0] for k in after} or any(
        _moved(before[k], after[k]) for k in before.keys() & after.keys())


def _moved(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) > OBSERVED_SHARE * max(abs(before), abs(after), 1e-9)
