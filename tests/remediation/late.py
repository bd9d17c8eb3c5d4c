"""What comes late or twice in a story: older states of incidents, older answers of the world, findings and rows that are there twice.

Each is delivered once, as soon as there is one to deliver. Nothing may come of it: an engine that hears it beside the newest decides
what one does that hears the newest alone, and one that hears it in its place decides nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from core.targets import CLOSED_STATES
from core.types import Action, Finding, Incident, Outcome
from remediation.engine import Step
from remediation.kinds import FINAL
from tests.remediation.worlds import Owner

Op = tuple
WAYS = ("before", "after", "alone", "over")  # the newest, or in its place; or once there is none any more


class Late:
    """The part of a story that delivers such things, and checks that nothing comes of them.

    given: all that the engine was handed of each incident; heard: which of it the engine as it lives has heard last, by its time (ms);
    lates, doubles, answers, mixed: what is still to be delivered. came: what was delivered.
    """

    owner: Owner

    def __init__(self) -> None:
        self.given: dict[str, list[Incident]] = {}
        self.heard: dict[str, int] = {}
        self.heard_saved: dict[str, int] = {}
        self.lates: dict[str, tuple[int, str]] = {}
        self.doubles: dict[str, int] = {}
        self.answers: list[str] = []
        self.mixed: int | None = None
        self.came: list[str] = []

    # --- what happens -------------------------------------------------------------------------------------------------
    def late(self, n: int, back: int, way: str) -> None:
        """An older state of an incident comes once more: the `back`th before the newest, or the first there was."""
        self.lates[f"inc-{n}"] = (back, way)

    def double(self, n: int, ticks: int) -> None:
        """A finding comes twice, once as it was so many ticks ago."""
        self.doubles[f"fnd-{n}"] = ticks

    def answer(self, what: str) -> None:
        """The world answers with an older word: that what has ended still runs, or how another command ended."""
        self.answers.append(what)

    def mix(self, seed: int) -> None:
        """At the next restart the rows come in any order, some of them twice or late."""
        self.mixed = seed

    # --- the tick -----------------------------------------------------------------------------------------------------
    def decide(self) -> Step:
        """The tick's decisions, with what is to come late."""
        owner = self.owner
        newest = [i for i in owner.incidents.values() if i.state not in CLOSED_STATES]
        before, after, missing = self._older_states()
        shown = [*before, *(i for i in newest if i.id not in missing), *after]
        findings, doubled = owner.facts.findings, self._doubled(owner.facts.findings)
        if (before or after or doubled != findings) and not missing:
            self._compare(newest, findings, shown, doubled)
        tracks = {name: self._where(name) for name in missing}
        was = dict(owner.incidents)
        owner.facts.findings = doubled
        step = owner.decide(shown)
        owner.facts.findings = findings
        for one in step.incidents:
            assert was[one.id].state not in CLOSED_STATES, "an older state opened it again"
        for name, where in tracks.items():
            assert self._where(name) == where, "an older state moved it"
            assert not any(a.incident == name for a, _ in step.actions), "an action came of an older state"
        self._remember([i for i in newest if i.id not in missing])
        return step

    def commit(self, step: Step) -> None:
        """As the owner's."""
        self.owner.commit(step)
        if self.owner.mortal:
            self.heard_saved = dict(self.heard)

    def die(self) -> None:
        """As the owner's; the rows may come in another order."""
        owner = self.owner
        self.heard = dict(self.heard_saved) if owner.saved[0] else {}
        rows, seed = list(owner.rows), self.mixed
        if seed is None or not owner.saved[0] or not rows:
            owner.die()
            return
        self.mixed, chance = None, random.Random(seed)
        ended = {a.id for a, o in rows if o.state in FINAL}
        again = chance.sample(rows, min(len(rows), 8))
        again += [(a, replace(o, at=owner.at)) for a, o in again if o.state not in FINAL and a.id in ended]
        mixed = [*rows, *again]
        chance.shuffle(mixed)
        for text in (owner.saved[0], owner.new().dump()):  # what was committed, and where only the rows are left
            told = []
            for one in (rows, mixed):
                engine = owner.new()
                engine.load(text, one)
                told.append(engine.dump())
            assert told[0] == told[1], "rows that came twice changed what is remembered"
        owner.die(mixed)
        self.came.append("mix")

    def told(self, outcome: Outcome, known: dict[str, tuple[Action, Outcome, int]]) -> Outcome:
        """The world's answer, or an older one."""
        what = self.answers[0] if self.answers else ""
        if what == "running" and outcome.state in ("DONE", "FAILED"):
            older = Outcome(outcome.action_id, "RUNNING", "policy")
        elif what == "other" and (ends := [o for i, (_, o, _) in known.items() if i != outcome.action_id and o.state in FINAL]):
            same = [o for o in ends if o.action_id.partition("/")[0] == outcome.action_id.partition("/")[0]]
            older = (same or ends)[-1]
        else:
            return outcome
        self.answers.pop(0)
        self.came.append(what)
        return older

    def be_punctual(self) -> None:
        """Nothing comes late any more, but for what comes once all is over."""
        self.lates = {name: one for name, one in self.lates.items() if one[1] == "over"}
        self.doubles, self.answers, self.mixed = {}, [], None

    # --- how ----------------------------------------------------------------------------------------------------------
    def _older_states(self) -> tuple[list[Incident], list[Incident], set[str]]:
        """(those that come before the newest, after it, names of open ones in whose place an older state comes)."""
        before: list[Incident] = []
        after: list[Incident] = []
        missing: set[str] = set()
        for name, (back, way) in sorted(self.lates.items()):
            newest = self.owner.incidents[name] if name in self.given else None
            known = [i for i in self.given.get(name, ()) if newest is not None and i.updated_at < newest.updated_at]
            over = newest is not None and newest.state in CLOSED_STATES
            told = over and newest is not None and self.heard.get(name, 0) > newest.updated_at  # the engine knows that it is over
            if newest is None or not known or (way == "over" and not told):
                continue
            older = known[-min(back, len(known))]
            place = before if way == "before" else after
            alone = way in ("alone", "over") and older.updated_at < self.heard.get(name, 0)
            if alone and not told:
                missing.add(name)
            elif over and not alone:  # the end comes with it: nobody else has told the engine of it yet
                (after if way == "before" else before).append(newest)
            place.append(older)
            del self.lates[name]
            self.came.append(way if way == "over" or not alone else "in its place")
        return before, after, missing

    def _doubled(self, findings: list[Finding]) -> list[Finding]:
        out = list(findings)
        for name, ticks in list(self.doubles.items()):
            for one in [f for f in findings if f.id == name]:
                older = replace(one, updated_at=one.updated_at - ticks * 15_000)
                out = [older, *out] if ticks % 2 else [*out, older]
                del self.doubles[name]
                self.came.append("double")
        return out

    def _compare(self, newest: Sequence[Incident], findings: list[Finding], shown: Sequence[Incident], doubled: list[Finding]) -> None:
        """Two copies of the engine: one hears the newest alone."""
        owner, told = self.owner, []
        owner.world.now = owner.at
        for incidents, found in ((newest, findings), (shown, doubled)):
            twin = owner.engine.twin()
            told.append((twin.step(owner.at, incidents, replace(owner.facts, findings=found), owner.site), twin.dump()))
        assert told[0] == told[1], "an older word beside the newest changed what was decided"

    def _where(self, name: str) -> tuple[object, ...]:
        track = self.owner.engine.track(name)
        return () if track is None else (track.state, track.attempt, track.rung, track.index, track.step, track.plan, track.closed_at,
                                         track.cordoned)

    def _remember(self, handed: Sequence[Incident]) -> None:
        for one in handed:
            self.given.setdefault(one.id, []).append(one)
            self.heard[one.id] = one.updated_at
        for one in self.owner.incidents.values():
            if one.state in CLOSED_STATES and one.id in self.heard:
                self.heard[one.id] = self.owner.at + 1  # it decided so, or was not shown it any more


# --- drawing ------------------------------------------------------------------------------------------------------------
def put_in(seed: int, ops: list[Op]) -> list[Op]:
    """The story with things that come late or twice, from a stream of their own: what else happens is the same with and without."""
    chance, out = random.Random(f"late {seed}"), list(ops)
    there = [op[1] for op in ops if op[0] == "appear"] or [1]
    for _ in range(chance.randint(0, 5)):
        n = chance.choice(there)
        what: Op = chance.choice((
            ("late", n, chance.choice((1, 1, 2, 3, 9)), chance.choice(WAYS)), ("late", n, chance.choice((1, 2, 5, 20)), chance.choice(WAYS[2:])),
            ("double", n, chance.choice((0, 1, 4, 9, 10))), ("answer", chance.choice(("running", "other"))), ("mix", chance.randrange(1000))))
        ends: list[Op] = [chance.choice((("shine", n, False), ("book", n, "resolved")))] if what[-1] == "over" else []
        place = chance.randint(1, len(out))
        out[place:place] = [*ends, what]
    return out
