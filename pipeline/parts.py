"""The ledger of parts: incidents, actions and diagnoses of a part, kept by what the part is and not by where it stands.

A GPU that was repaired and put into another node brings its past along: it is known by its UUID, a NIC by its GUID, a part
without either by its serial number, and only what has none of them by its place. A serial number that two parts show at once
(virtual disks share theirs) is no identity.

The book holds parts that were the culprit of an incident; a part that never was has no entry. What changed in a tick is
committed with it. The ledger informs people and reasons; it opens no incident.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.types import (
    Action,
    Evidence,
    Incident,
    Outcome,
    PartAction,
    PartIncident,
    PartPast,
    PartStay,
    Suspect,
    Target,
)
from core.window import Window

PARTS = ("gpu", "nic", "link", "disk", "node", "switch")
BY_SERIAL = ("gpu", "nic", "disk")
NAMES = {"gpu": "GPU", "nic": "NIC", "link": "link", "disk": "disk", "node": "node", "switch": "switch"}
DAY_MS = 86_400_000
FINAL = ("DONE", "FAILED", "REFUSED")
MOST_STAYS, MOST_INCIDENTS, MOST_ACTIONS = 16, 64, 64
FOUND_BAD = ("diagnose_confirmed", "diagnose_failed")
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NTH = ("", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True, slots=True)
class Params:
    """repeat_days: incidents of so many days are counted together: our choice, a month, within which a repaired part that
    fails again was not repaired (NVSentinel looks back 24 hours to 7 days, facts of its analyser). forget_days: a part of
    which nothing was heard for so long is dropped from memory; the store keeps its row."""

    repeat_days: int = 30
    forget_days: int = 400


class PartsBook:
    """update() at each tick, then remark() on what is told. Not thread-safe: the tick thread owns it."""

    def __init__(self, params: Params | None = None) -> None:
        self.params = params or Params()
        self._pasts: dict[str, PartPast] = {}
        self._of: dict[str, str] = {}  # incident → key of the part that it counts for
        self._gone: dict[str, PartPast] = {}  # entries that this tick emptied: the store lets them go
        self._seen: dict[str, tuple[Target, ...]] = {}
        self._shared: frozenset[tuple[str, str]] = frozenset()

    # --- the tick -----------------------------------------------------------------------------------------------------
    def update(self, at: int, told: Iterable[Incident], actions: Iterable[tuple[Action, Outcome]],
               window: Window | None = None) -> tuple[PartPast, ...]:
        """Takes the tick's news and what the window shows of known parts; gives the entries that changed, sorted by key.
        An entry without incidents is over: whoever keeps them lets it go."""
        changed: set[str] = set()
        self._gone = {}
        if window is not None:
            changed |= self._look(at, window)
        for incident in told:
            changed |= self._incident(at, incident)
        for action, outcome in actions:
            key = self._of.get(action.incident)
            if key is not None and outcome.state in FINAL:
                self._pasts[key] = _acted(self._pasts[key], action, outcome, at)
                changed.add(key)
        for key in [key for key in changed if key in self._pasts and not self._pasts[key].incidents]:
            self._gone[key] = self._pasts.pop(key)
        told_now = {**self._gone, **{key: self._pasts[key] for key in changed if key in self._pasts}}
        return tuple(told_now[key] for key in sorted(told_now))

    def _incident(self, at: int, incident: Incident) -> set[str]:
        """Counts an incident for its culprit; one that was merged into another, that a person called wrong, or whose culprit is
        another part now, is taken back."""
        counts = incident.state != "merged" and incident.reason != "marked_wrong"
        part = incident.culprit if counts else None
        key = None if part is None or part.kind not in PARTS else self._key(part)
        before = self._of.get(incident.id)
        changed: set[str] = set()
        if before is not None and before != key and before in self._pasts:
            if key is not None and part is not None and self._same(before, key, part):
                self._rename(before, key, part)
                changed.add(key)
            else:
                self._pasts[before] = _without(self._pasts[before], incident.id, at)
                changed.add(before)
            self._of.pop(incident.id, None)
        if key is None or part is None:
            self._of.pop(incident.id, None)
            return changed
        known = self._pasts.get(key) or PartPast(key, part, at, at, (PartStay(part.node, part.device, at),))
        fresh = _with_incident(_moved(known, part, at), incident, part, at)
        self._of[incident.id] = key
        if fresh != known or key not in self._pasts:
            self._pasts[key] = replace(fresh, updated_at=at)
            changed.add(key)
        return changed

    def _same(self, before: str, key: str, part: Target) -> bool:
        """True where the part of an incident only came to be known by its id since: the entry goes on under the new key."""
        past = self._pasts[before]
        return key not in self._pasts and past.target.id is None and past.target.same_part(part)

    def _rename(self, before: str, key: str, part: Target) -> None:
        past = self._pasts.pop(before)
        self._gone[before] = replace(past, incidents=(), incident_count=0)
        self._pasts[key] = replace(past, key=key, target=_merged(past.target, part))
        self._of = {incident: key if of == before else of for incident, of in self._of.items()}

    def _look(self, at: int, window: Window) -> set[str]:
        """Known parts that stand elsewhere now. Only axes that changed since the last window are gone through."""
        changed: set[str] = set()
        if any(window.of_kind(kind) is not self._seen.get(kind) for kind in BY_SERIAL):
            self._shared = _shared_serials(window)
        for kind in PARTS:
            parts = window.of_kind(kind)
            if parts is self._seen.get(kind):
                continue
            self._seen[kind] = parts
            for part in parts if self._pasts else ():
                known = self._pasts.get(self._key(part))
                if known is not None and (fresh := _moved(known, part, at)) is not known:
                    self._pasts[known.key] = fresh
                    changed.add(known.key)
        return changed

    def _key(self, part: Target) -> str:
        if part.id:
            return f"{part.kind}:{part.id}"
        if part.serial and part.kind in BY_SERIAL and (part.kind, part.serial) not in self._shared:
            return f"{part.kind}:serial:{part.serial}"
        return part.key

    # --- what it tells ------------------------------------------------------------------------------------------------
    def past(self, part: Target) -> PartPast | None:
        """What is remembered of a part, None where it was never at fault."""
        return self._pasts.get(self._key(part))

    def remark(self, incident: Incident) -> Incident:
        """The incident with the part's past among evidence and reasons where the part had others; else as it is."""
        key = self._of.get(incident.id)
        past = self._pasts.get(key) if key is not None else None
        if past is None or incident.culprit is None:
            return incident
        lately = [i for i in past.incidents if incident.opened_at - self.params.repeat_days * DAY_MS <= i.opened_at <= incident.opened_at]
        if len(lately) < 2:
            return incident
        text = self._words(past, lately)
        row = Evidence("incidents", "count", float(len(lately)), None, f"the part's last {self.params.repeat_days} days", text)
        suspects = tuple(_reasoned(s, "repeat_offender") if s.target.same_part(incident.culprit) else s for s in incident.suspects)
        return replace(incident, evidence=(*incident.evidence, row), suspects=suspects)

    def _words(self, past: PartPast, lately: Sequence[PartIncident]) -> str:
        """`third incident of this GPU in 30 days, on two nodes (n03, n17); moved from n03 to n17; a diagnosis found a fault`."""
        nodes = list(dict.fromkeys(i.node for i in lately if i.node))
        text = f"{nth(len(lately))} incident of this {NAMES[past.target.kind]} in {self.params.repeat_days} days"
        if len(nodes) > 1:
            text += f", on {count(len(nodes))} nodes ({', '.join(nodes)})"
        since = lately[0].opened_at
        moves = [(a.node, b.node) for a, b in zip(past.stays, past.stays[1:], strict=False)
                 if b.since >= since and a.node != b.node and a.node and b.node]
        text += "".join(f"; moved from {a} to {b}" for a, b in moves[-3:])
        if past.diagnosed_bad or past.diagnosed_good:
            text += f"; diagnoses: {past.diagnosed_bad} found a fault, {past.diagnosed_good} found none"
        return text

    def load(self, pasts: Iterable[PartPast], now: int) -> None:
        """Replaces the memory by what the store has (ms `now`: what is older than forget_days stays there)."""
        oldest = now - self.params.forget_days * DAY_MS
        self._pasts = {p.key: p for p in pasts if p.updated_at >= oldest}
        self._of = {i.id: p.key for p in self._pasts.values() for i in p.incidents}
        self._seen, self._shared = {}, frozenset()

    def rebuild(self, incidents: Sequence[Incident], ledger: Sequence[tuple[Action, Outcome]]) -> tuple[PartPast, ...]:
        """The book from a store that was written before there was one: all that its incidents and its ledger tell."""
        for incident in sorted(incidents, key=lambda i: (i.opened_at, i.id)):
            self.update(incident.opened_at, [incident], ())
        for action, outcome in ledger:
            self.update(outcome.at or action.at, (), [(action, outcome)])
        return tuple(self._pasts[key] for key in sorted(self._pasts))


# --- pure pieces ------------------------------------------------------------------------------------------------------
def nth(n: int) -> str:
    """third, 11th, 22nd."""
    if n < len(NTH):
        return NTH[n]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(n % 10 if n % 100 not in (11, 12, 13) else 0, "th")
    return f"{n}{ending}"


def count(n: int) -> str:
    """A number as people write it: two, 11."""
    return WORDS[n] if n < len(WORDS) else str(n)


def _shared_serials(window: Window) -> frozenset[tuple[str, str]]:
    """(kind, serial) that several parts show at once."""
    seen: dict[tuple[str, str], tuple[str | None, str | None]] = {}
    shared = set()
    for kind in BY_SERIAL:
        for part in window.of_kind(kind):
            if part.serial and seen.setdefault((kind, part.serial), (part.node, part.device)) != (part.node, part.device):
                shared.add((kind, part.serial))
    return frozenset(shared)


def _moved(past: PartPast, part: Target, at: int) -> PartPast:
    """The entry with the part where it stands now; the same object where nothing changed."""
    here = past.stays[-1] if past.stays else None
    if part.node is None or (here is not None and (here.node, here.device) == (part.node, part.device)):
        target = _merged(past.target, part)
        return past if target == past.target else replace(past, target=target, updated_at=at)
    left = (*past.stays[:-1], replace(here, until=at)) if here is not None else ()
    stays = (*left, PartStay(part.node, part.device, at))[-MOST_STAYS:]
    return replace(past, target=_merged(past.target, part), stays=stays, updated_at=at)


def _merged(known: Target, part: Target) -> Target:
    """The part as it is now, without ownership, its identity kept where it is not shown."""
    return Target(part.kind, part.node or known.node, part.device or known.device, part.id or known.id,
                  serial=part.serial or known.serial)


def _with_incident(past: PartPast, incident: Incident, part: Target, at: int) -> PartPast:
    row = next((i for i in past.incidents if i.id == incident.id), None)
    if row is not None:
        fresh = replace(row, state=incident.state)
        return replace(past, incidents=tuple(fresh if i.id == row.id else i for i in past.incidents))
    fresh = PartIncident(incident.id, incident.fault, part.node, part.device, incident.opened_at, incident.state)
    return replace(past, incidents=(*past.incidents, fresh)[-MOST_INCIDENTS:], incident_count=past.incident_count + 1)


def _without(past: PartPast, incident: str, at: int) -> PartPast:
    kept = tuple(i for i in past.incidents if i.id != incident)
    gone = len(past.incidents) - len(kept)
    return replace(past, incidents=kept, incident_count=past.incident_count - gone, updated_at=at)


def _acted(past: PartPast, action: Action, outcome: Outcome, at: int) -> PartPast:
    """Counts the end of an action, once."""
    if any(one.id == action.id and one.state == outcome.state for one in past.actions):
        return past
    row = PartAction(action.id, action.kind, str(action.target), outcome.state, outcome.reason, outcome.at or at)
    counts = dict(past.action_counts)
    name = f"{action.kind}/{outcome.state}"
    counts[name] = counts.get(name, 0) + 1
    bad = action.kind == "diagnose" and outcome.state == "FAILED" and outcome.reason in FOUND_BAD
    good = action.kind == "diagnose" and outcome.state == "DONE"
    return replace(past, actions=(*past.actions, row)[-MOST_ACTIONS:], action_counts=counts, updated_at=at,
                   diagnosed_bad=past.diagnosed_bad + bad, diagnosed_good=past.diagnosed_good + good)


def _reasoned(suspect: Suspect, reason: str) -> Suspect:
    return suspect if reason in suspect.reasons else replace(suspect, reasons=(*suspect.reasons, reason))


def moves(past: PartPast) -> list[Mapping[str, str | int | None]]:
    """From where to where the part went, oldest first."""
    return [{"from": a.node, "to": b.node, "at": b.since} for a, b in zip(past.stays, past.stays[1:], strict=False)
            if a.node != b.node]


def odd_suspects(incident: Incident, odd: Mapping[str, str]) -> Incident:
    """The incident with a word at suspects that the trained model finds odd; their order and probabilities stay."""
    if not odd or not any(s.target.key in odd for s in incident.suspects):
        return incident
    return replace(incident, suspects=tuple(_reasoned(s, "odd_among_peers") if s.target.key in odd else s for s in incident.suspects))
