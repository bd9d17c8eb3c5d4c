"""The engine: one state machine for each incident, from the first matching rule to proof of recovery.

    open ──▶ holding (a guard's reason) ──▶ acting ──▶ verifying ──▶ resolved
      │          ▲        proposed ──▶──────▲  │           │
      │          └──────── next attempt ◀──────┴───────────┤
      └─ observe: stays open, SIMULATED                    └──▶ escalated

`step` decides and touches nothing but its own state; the owner commits what it returns, then `carry_out` goes to the
door. What was decided is therefore written before it is done. `dump` is the whole state; it commits with the tick.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from core.errors import BadInput, Unavailable
from core.protocols import ControlDoor, WorkFacts
from core.targets import CLOSED_STATES
from core.types import Action, Incident, Outcome
from remediation import verify as proof
from remediation.deciding import FOLLOW_MS, Deciding
from remediation.evidence import slows
from remediation.guards import fresh_ids
from remediation.hands import answer, push, touches
from remediation.kinds import FINAL, HANDS
from remediation.ledger import DAY_MS
from remediation.memory import Memory, read_memory
from remediation.policy import Policy
from remediation.reset import GAPS, GRACE_MS
from remediation.track import Current, Lingering, Track, left
from remediation.turn import Decision, Site, Step, Turn
from remediation.worth import Worth

__all__ = ["FOLLOW_MS", "Decision", "Engine", "Site", "Step"]

KEEP_CLOSED_MS = DAY_MS
LINGER_LEAST_MS = 300_000


def somebody(actor: str) -> str:
    """The name of who decides; the engine's own is nobody's. Raises BadInput."""
    if not actor.strip() or actor == HANDS:
        raise BadInput("actor", "", actor, "the name of a person or of a token is needed")
    return actor


class Engine(Deciding):
    """Decides and acts under a policy. Not thread-safe: the tick thread owns it (calls from people under its lock).

    kinds: what the backend can carry out. view: the world that the guards read. freeze_file_exists: True while the
    freeze file is there. labels_of: a node's inventory labels, for rules that match on labels.
    """

    # --- what people do -----------------------------------------------------------------------------------------------
    @property
    def frozen(self) -> bool:
        """True while no command may start: by call or by file, or where nobody can tell whether the file is there."""
        try:
            return self._memory.frozen or self._file()
        except OSError:
            return True

    def freeze(self) -> None:
        """No command starts from now on; what runs is watched to its end."""
        self._memory.frozen = True

    def resume(self) -> None:
        """Commands may start again (a freeze file goes on to hold)."""
        self._memory.frozen = False

    def approve(self, ref: str, actor: str, at: int) -> None:
        """`actor` lets a proposed attempt start. ref: its first action's id, or the incident's. Raises KeyError for one that
        waits for nobody (any more), BadInput for an actor that is nobody."""
        self._proposed(ref).approval = (somebody(actor), at)

    def reject(self, ref: str, actor: str, at: int) -> None:
        """`actor` refuses a proposed attempt; the incident is then a person's. Raises KeyError and BadInput as `approve`."""
        track = self._proposed(ref)
        assert track.proposal is not None
        track.proposal = replace(track.proposal, actor=somebody(actor), reason="rejected")
        track.approval = None

    def _proposed(self, ref: str) -> Track:
        for track in self._memory.tracks.values():
            if track.proposal is not None and ref in (track.proposal.id, track.incident) and track.state == "proposed":
                return track
        raise KeyError(ref)

    # --- a tick -------------------------------------------------------------------------------------------------------
    def step(self, at: int, incidents: Iterable[Incident], facts: WorkFacts, site: Site | None = None) -> Step:
        """Decides at tick `at` (ms) over the incidents that are open, each by its newest state: an older one, by `updated_at`,
        changes nothing. Commit what it returns, then `carry_out`."""
        tick = Turn(at, facts, fresh_ids(at, facts.open_findings()), self.frozen, site or Site())
        self._memory.pace.tick(at, tick.frozen, self.policy.limits.release_seconds)
        live = self._live(incidents)
        for track in self._memory.tracks.values():
            if track.incident not in live:
                self._gone(tick, track)
        tick.live = tuple(i for i in live.values() if slows(i))
        pages_first = sorted(live.values(), key=lambda i: (i.klass != "page", i.opened_at, i.id))
        for incident in pages_first:
            self._advance(tick, incident)
        tick.actions += self._look_after_spares(tick)
        self._memory.gaps = {k: until for k, until in self._memory.gaps.items() if until > at}
        self._memory.worths = {k: w for k, w in self._memory.worths.items() if k in live}
        kept = {k: t for k, t in self._memory.tracks.items()
                if t.closed_at is None or t.working or at - t.closed_at < KEEP_CLOSED_MS}
        self._memory.tracks = kept
        self._memory.ledger.prune(at, self.policy.limits.cooldown_seconds)
        self._memory.untouched.prune(at)
        self._memory.passing.prune(at)
        self._memory.last_at = at
        return Step(tuple(tick.incidents), tuple(tick.actions), tuple(tick.decisions), tuple(tick.recoveries),
                    self._memory.ledger.take_results())

    def _live(self, incidents: Iterable[Incident]) -> dict[str, Incident]:
        """The newest state of each incident that is open; one that is over is not opened by what came late."""
        newest: dict[str, Incident] = {}
        for one in incidents:
            known = newest.get(one.id)
            if known is None or known.updated_at <= one.updated_at:
                newest[one.id] = one
        tracks = self._memory.tracks
        stale = {k for k, i in newest.items() if k in tracks and tracks[k].closed_at is not None and tracks[k].older(i)}
        return {k: i for k, i in newest.items() if i.state not in CLOSED_STATES and k not in stale}

    def over(self, at: int, incidents: Iterable[Incident]) -> None:
        """Incidents that the book or a person closed in this tick (ms): how those ended that nobody acted on is kept."""
        ended = list(incidents)
        self._memory.untouched.over(at, ended)
        self._memory.passing.over(at, ended)

    @property
    def history(self) -> Memory:
        """The ledger of attempts and how untouched incidents ended, to be read; the tick thread owns it."""
        return self._memory

    def carry_out(self, at: int, door: ControlDoor) -> list[tuple[Action, Outcome]]:
        """Submits what is PENDING and polls what is RUNNING; gives what is new, to be committed with the next tick."""
        out: list[tuple[Action, Outcome]] = []
        if self.frozen:
            self._memory.pace.stop()  # a freeze that comes and goes between two ticks held back what was to be sent here
        for name in sorted(self._memory.tracks):
            track = self._memory.tracks[name]
            current = track.current
            if current is None or current.final:
                continue
            outcome = push(at, current, door, self.view, self.frozen)
            self._plan_gap(at, current)
            if outcome is None:
                continue
            current.outcome = outcome
            self._memory.ledger.touch(track.incident, current.action.attempt, at)
            if outcome.reason == "deadline_exceeded" and current.tried:
                nodes, jobs = touches(current)
                wait = max(LINGER_LEAST_MS, round(current.action.deadline_seconds * 1000))
                self._memory.lingering[current.action.id] = Lingering(track.incident, nodes, jobs, at + wait)
            out.append((current.action, outcome))
        self._ask_after_lingering(at, door)
        out += self._memory.spares.carry_out(at, door, self.view, self.frozen)
        if self._memory.spares.current is not None:
            self._plan_gap(at, self._memory.spares.current)
        return out

    def _plan_gap(self, at: int, current: Current) -> None:
        node = current.action.target.node
        if node is not None and current.action.kind in GAPS and current.tried and current.outcome.state in ("PENDING", "RUNNING"):
            self._memory.gaps[node] = at + GRACE_MS

    def planned_gaps(self, at: int) -> frozenset[str]:
        """Nodes whose exporters may be silent at `at` (ms) because of what is being done there."""
        return frozenset(node for node, until in self._memory.gaps.items() if until > at)

    def _ask_after_lingering(self, at: int, door: ControlDoor) -> None:
        for action_id in sorted(self._memory.lingering):
            one = self._memory.lingering[action_id]
            try:
                outcome = answer(action_id, door.poll(action_id))
            except Unavailable:
                outcome = Outcome(action_id, "RUNNING", "unreachable")
            if outcome.state in FINAL:
                del self._memory.lingering[action_id]
            elif at >= one.until:
                if at - one.until >= DAY_MS:  # as long as the world says that it runs, its targets count as worked on
                    del self._memory.lingering[action_id]
                track = self._memory.tracks.get(one.incident)
                if track is not None and track.state in ("open", "holding"):
                    track.ended = "lost"

    def _look_after_spares(self, tick: Turn) -> list[tuple[Action, Outcome]]:
        """The end of a spare's test, and the next test where one is due; only a policy that acts tests."""
        book, mode = self._memory.spares, self.policy.mode
        rows = book.close(tick.at, mode)
        rules = self.policy.spares
        if mode != "act" or max(rules.diagnose_every_seconds, rules.unchecked_max_seconds) <= 0:
            return rows
        self._look(tick)
        if tick.nodes is None or tick.frozen or "diagnose" not in self.kinds:
            return rows
        working = [t for t in self._memory.tracks.values() if t.working]
        taken: list[Track | Lingering] = [*working, *self._memory.lingering.values()]
        if self._memory.lingering or any(t.current is not None and t.current.action.kind == "replace" for t in working):
            return rows  # which spare a replacement under way takes is the world's choice: a test could begin on that one
        busy = {n for t in taken for n in t.nodes}
        wanted = sum(s.kind == "replace" for t in working for s in left(t))
        node = book.due(tick.at, tick.nodes, rules, tick.unfit, busy, wanted)
        return rows if node is None else [*rows, book.begin(tick.at, node, rules, mode)]

    def worth(self, incident: str) -> Worth | None:
        """What waiting and acting on an open incident were last expected to cost; None where that is not known."""
        return self._memory.worths.get(incident)

    # --- one incident -------------------------------------------------------------------------------------------------
    def _advance(self, tick: Turn, incident: Incident) -> None:
        known = self._memory.tracks.get(incident.id)
        if known is not None and known.older(incident):
            # The newest is not at hand: nothing is decided on what was true once. What has not been sent is not sent on it either.
            if known.state == "acting" and known.current is not None and not known.current.final:
                self._watch(tick, incident, known, known.current)
            return
        track = self._track_of(tick, incident)
        before = (track.state, track.reason)
        if track.state != "acting" and track.current is not None and track.current.final:
            self._book_keep(track, track.current)
            track.current = None
        if track.state == "acting":
            self._act(tick, incident, track)
        if track.state == "verifying":
            self._prove(tick, incident, track)
        if track.state in ("open", "holding", "proposed"):
            self._decide(tick, incident, track)
        if (track.state, track.reason) == before and (incident.state == track.state or not track.reason):
            return
        resolved_at = tick.at if track.state == "resolved" else incident.resolved_at
        tick.incidents.append(replace(incident, state=track.state, reason=track.reason or incident.reason,
                                      attempt=track.attempt, updated_at=tick.at, resolved_at=resolved_at))

    def _track_of(self, tick: Turn, incident: Incident) -> Track:
        track = self._memory.tracks.get(incident.id)
        if track is None:
            track = Track(incident.id, rung=incident.attempt, attempt=incident.attempt)
            if incident.state in ("acting", "verifying"):
                # Our memory of it is lost: what was under way cannot be told, so only the proof goes on.
                track.state, track.reason, track.verify_at = "verifying", "verify_started", tick.at
            elif incident.state == "escalated":
                track.state, track.reason = "escalated", incident.reason
            self._memory.tracks[incident.id] = track
        track.heard_at = incident.updated_at
        if track.closed_at is not None:  # it was over and came back
            track.closed_at, track.state, track.reason = None, "open", ""
            self._memory.ledger.relapse(incident.id)
            track.simulated, track.ended, track.cordon_told = "", "", False
            track.held_since = track.proposal = track.approval = None
            track.lost, track.lost_gpus = ((tick.at, incident.lost_gpu_hours),), None
        if track.state in ("open", "holding", "proposed"):
            proof.remember(track, incident, tick.facts)
        return track

    def _gone(self, tick: Turn, track: Track) -> None:
        """The incident is over for the book, or absorbed: nothing new starts, what runs is watched to its end."""
        if track.closed_at is None:
            track.closed_at = tick.at
            self._memory.ledger.end(track.incident, track.attempt, "inconclusive", "withdrawn")
        self._withdraw(tick, track, "withdrawn")
        current = track.current
        if current is not None:
            if current.final:
                self._book_keep(track, current)
                track.current = None
            elif current.outcome.state == "PENDING":
                current.withhold = "withdrawn"
        if track.current is None:
            self._hand_over_cordons(tick, track)

    # --- what would be done -------------------------------------------------------------------------------------------
    def twin(self, policy: Policy | None = None) -> Engine:
        """A copy of the engine and of all that it remembers, under another policy where one is given: what the copy decides
        changes nothing here."""
        other = copy(self)
        other.policy, other._memory = policy or self.policy, read_memory(self._memory.dump())
        return other

    def labels_of(self, node: str) -> Mapping[str, str]:
        """A node's inventory labels."""
        return self._labels_of(node)

    def track(self, incident: str) -> Track | None:
        """What is remembered of an incident, None where nothing is. Not to be changed."""
        return self._memory.tracks.get(incident)

    # --- state --------------------------------------------------------------------------------------------------------
    def dump(self) -> str:
        """The whole state as text, the same for the same state."""
        return self._memory.dump()

    def load(self, text: str, rows: Sequence[tuple[Action, Outcome]] = ()) -> None:
        """Restores what `dump` gave; an empty text is no state. rows: the store's ledger, in any order.

        What is PENDING may have reached the world before the crash: the world is asked before it is sent again. Commands
        that only the rows know are watched to their end, and no further step follows from them. Raises BadInput.
        """
        self._memory = read_memory(text)
        self._memory.adopt_rows(rows)
