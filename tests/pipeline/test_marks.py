"""What people say about incidents, in the brain: wrong closes, silence keeps messages back, both survive a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.brain import Brain, NotifyRoute
from core.errors import BadInput
from core.protocols import NodeView
from core.targets import ACTION_KINDS
from core.telemetry import Telemetry
from core.types import Event, Finding, Incident, Target
from pipeline.changes import LabelChanges
from pipeline.detect import Changes
from pipeline.marks import KEPT_MS, Mark, Marks, mark_of
from pipeline.notify.alertmanager_webhook import PLUGIN
from remediation.engine import Engine
from remediation.policy import parse_policy
from tests.pipeline.worlds import T0, batch, finding, inventory, layout, scrape, tick, window

HOT, OTHER = Target("gpu", "n1", "0", "GPU-n1"), Target("gpu", "n2", "0", "GPU-n2")


def brain() -> Brain:
    made = Brain({}, {}, inventory(nodes=[{"name": "n1"}, {"name": "n2"}]), None, Telemetry(), [NotifyRoute("hook/0", PLUGIN)])
    made.loop.run = lambda seen, gaps=(): Changes()  # type: ignore[method-assign]
    return made


def ticks(site: Brain, first: int, last: int, *findings: Finding) -> list[str]:
    """Ticks first to last with these findings held; gives the messages as `word incident`."""
    site.loop.open = lambda: findings  # type: ignore[method-assign]
    sent = []
    for i in range(first, last + 1):
        sent += [message.id.split("/")[1] for message in site.tick(tick(i)).commit.outbox]
    return sent


class Two:
    """A world of two nodes behind one leaf, of which the second is out."""

    def nodes(self) -> dict[str, NodeView]:
        return {"n1": NodeView("n1", "in_service"), "n2": NodeView("n2", "drained", "ada")}


ACTS = """
version: 1
mode: act
rules:
- name: hot
  attempts: [{do: [drain, diagnose, undrain]}]
  finally: escalate
"""


def test_remediation_knows_silences_and_the_inventory() -> None:
    """No action begins on what is silenced; once that ends, none on the last node in service of a rail group."""
    site = brain()
    site.set_inventory(inventory(nodes=[{"name": "n1", "leaf": "leaf-1"}, {"name": "n2", "leaf": "leaf-1"}]))
    site.engine = Engine(parse_policy(ACTS), frozenset(ACTION_KINDS), Two())
    ticks(site, 0, 1, finding(HOT, at=tick(1)))
    assert (only(site).state, only(site).reason) == ("holding", "last_of_rail")
    site.marks.add(mark_of("silence", only(site), tick(1), "anna", {"seconds": 45}))
    ticks(site, 2, 3, finding(HOT, at=tick(3)))
    assert (only(site).state, only(site).reason) == ("holding", "silenced")
    ticks(site, 4, 5, finding(HOT, at=tick(5)))
    assert only(site).reason == "last_of_rail"


def only(site: Brain) -> Incident:
    [one] = site.book.open()
    return one


def test_wrong_closes_it_until_other_evidence_comes() -> None:
    """Abandoned at the next tick for a named reason; the same finding opens nothing; another one does."""
    site = brain()
    ticks(site, 0, 1, finding(HOT))
    one = only(site)
    site.marks.add(mark_of("wrong", one, tick(1), "anna", {"note": "a test"}))
    sent = ticks(site, 2, 5, finding(HOT))
    closed = site.book.get(one.id)
    assert sent == ["resolved"]
    assert closed is not None
    assert (closed.state, closed.reason, closed.resolved_at) == ("abandoned", "marked_wrong", tick(2))
    assert ticks(site, 6, 6, finding(HOT, at=tick(6))) == ["opened"]


def test_a_wrong_one_is_forgotten_once_its_findings_are_gone() -> None:
    """It stays closed for as long as they are held, and takes no memory for ever."""
    site = brain()
    ticks(site, 0, 1, finding(HOT))
    site.marks.add(mark_of("wrong", only(site), tick(1), "anna", {}))
    ticks(site, 2, 3, finding(HOT))
    ticks(site, 4, 4)
    ticks(site, 6000, 6000)
    assert site.book.dump() == "[]"


@pytest.mark.parametrize(("seconds", "target", "sent"), [
    (None, HOT, []), (7200, HOT, []), (0, HOT, ["opened"]), (60, HOT, ["opened"]), (7200, OTHER, ["opened"])])
def test_a_silence_holds_for_the_fault_on_the_part(seconds: float | None, target: Target, sent: list[str]) -> None:
    """It comes back as a new incident: no message while the silence lasts, and the end of the old one was told."""
    site = brain()
    ticks(site, 0, 0, finding(HOT))
    site.marks.add(mark_of("silence", only(site), tick(0), "anna", {} if seconds is None else {"seconds": seconds}))
    ended = ticks(site, 1, 12)
    again = ticks(site, 151, 151, finding(target, at=tick(151)))
    assert (ended, again) == (["resolved"], sent)


def test_marks_survive_a_restart() -> None:
    """What was said before the commit is known after it, a wrong that was not carried out yet as well."""
    marks = Marks()
    site = brain()
    ticks(site, 0, 0, finding(HOT))
    for word in ("acknowledge", "silence", "wrong"):
        marks.add(mark_of(word, only(site), tick(1), "anna", {"note": word}))
    again = Marks()
    again.load(marks.dump())
    assert again.all() == marks.all()
    assert [one.state for one in again.take_wrong(tick(2), site.book.open())] == ["abandoned"]


def test_old_marks_go() -> None:
    """After 30 days nothing is kept of them."""
    marks = Marks()
    marks.add(Mark(T0, "inc-1", "acknowledge", "anna"))
    marks.add(Mark(T0 + KEPT_MS + 1, "inc-2", "acknowledge", "anna"))
    assert [m.incident for m in marks.all()] == ["inc-2"]


@pytest.mark.parametrize("body", [None, [], "x", {"seconds": "1h"}, {"seconds": 1e9}, {"seconds": float("nan")}, {"until": 1}])
def test_a_bad_silence_is_refused(body: object) -> None:
    """One sentence, nothing is silenced."""
    site = brain()
    ticks(site, 0, 0, finding(HOT))
    with pytest.raises(BadInput):
        mark_of("silence", only(site), tick(0), "anna", body)


# --- changes that labels show -----------------------------------------------------------------------------------------
def fact(value: str, node: str = "n1", name: str = "driver") -> Target:
    return Target("label", node, f"{name}={value}")


OLD, NEW = fact("550"), fact("570")


def shown(i: int, *values: Target) -> object:
    parts = (OLD, NEW)
    return window(tick(i), {"label.present": (parts, [[1.0 if part in values else float("nan") for part in parts]])})


def seen(changes: LabelChanges, script: list[tuple[Target, ...]]) -> list[Event]:
    return [event for i, values in enumerate(script) for event in changes.update(shown(i, *values))]  # type: ignore[arg-type]


CHANGES = [
    ("one driver for ever", [(OLD,)] * 9, []),
    ("another one after a minute", [(OLD,)] * 3 + [(NEW,)] * 6, [(tick(3), "550", "570")]),
    ("not before the minute is over", [(OLD,)] * 3 + [(NEW,)] * 3, []),
    ("silence between them", [(OLD,), (), (), (), (NEW,), (NEW,), (NEW,), (NEW,)], [(tick(4), "550", "570")]),
    ("a moment of both", [(OLD,), (OLD, NEW), (OLD, NEW), (OLD,), (OLD,)], []),
    ("both for long", [(OLD,), *[(OLD, NEW)] * 5], [(tick(1), None, "570")]),
    ("the second of two goes", [(OLD, NEW), *[(OLD,)] * 5], [(tick(1), "570", None)]),
    ("gone is silent", [(OLD,), *[()] * 9], []),
]


@pytest.mark.parametrize(("script", "expected"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
@pytest.mark.parametrize("cut", [None, 4])
def test_labels_tell_changes(script: list[tuple[Target, ...]], expected: list, cut: int | None) -> None:
    """One event for a change that lasts, none for silence or a moment; a restart in between changes nothing."""
    changes = LabelChanges()
    events = seen(changes, script[:cut])
    if cut is not None:
        again = LabelChanges()
        again.load(changes.dump())
        events += [e for i, values in enumerate(script[cut:]) for e in again.update(shown(cut + i, *values))]  # type: ignore[arg-type]
    assert [(e.at, e.fields["old"], e.fields["new"]) for e in events] == expected
    assert all((e.kind, e.target, e.fields["what"]) == ("config_change", Target("node", "n1"), "driver") for e in events)


def test_a_change_is_in_the_next_window() -> None:
    """The brain gives it to whoever stores, and sees it itself."""
    site = brain()
    site.loop.open = lambda: ()  # type: ignore[method-assign]
    page = layout([("label.present", OLD, False), ("label.present", NEW, False)])
    given = []
    for i in range(14):
        values = (1.0, float("nan")) if i < 4 else (float("nan"), 1.0)
        site.feed(batch(scrape(page, tick(i), *values), layouts=[page] if not i else []))
        given += site.tick(tick(i)).events
    [event] = given
    assert (event.fields["old"], event.fields["new"]) == ("550", "570")
    assert replace(event) in site.ring.window(tick(14)).events
