"""Timelines, blind spots and goodput: pure pieces, cases as data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.protocols import DetectorPlugin
from core.types import Action, Event, Incident, JobState, Outcome, Target
from core.window import NicPlace, Place, Topology, Window
from pipeline.blind import blind_spots
from pipeline.goodput import Goodput
from pipeline.marks import Mark
from pipeline.timeline import (
    CHANGES_BEFORE_MS,
    MOST_CHANGES,
    changes,
    event_words,
    ground,
    is_change,
    timeline,
)
from tests.pipeline.worlds import T0, tick, window

ONSET = T0 + 3_600_000
HOT = Target("gpu", "n1", "3", "GPU-1-3")
INCIDENT = Incident("inc-1", "thermal_throttle", "device", HOT, 0.9, (), (), (), (), ("j",), 1.0, "infra", "page", "open", "", None,
                    ONSET, ONSET + 60_000, ONSET + 120_000)
PLACES = {f"n{i}": Place(f"n{i}", rack=f"r{i // 4}", leaf=f"leaf{i // 4}", cooling="loop", labels=(("fw", "1" if i else "2"),))
          for i in range(8)}
TOPOLOGY = Topology(PLACES, {("n7", "mlx5_0/1"): NicPlace("n7", "mlx5_0/1", leaf="leaf0")}, {"lustre": ("n2", "n3")})
JOBS = {"j": ("n0", "n1", "n2")}


def change(node: str | None, at: int = ONSET - 60_000, what: str = "driver", new: str = "570", **more: object) -> Event:
    target = Target("node", node) if node else Target("fleet")
    return Event(at, target, "config_change", {"what": what, "old": "550", "new": new, **more})


def culprit(kind: str, device: str | None = None, node: str | None = None, scope: str = "rack", **more: object) -> Incident:
    return replace(INCIDENT, culprit=Target(kind, node, device), scope=scope, **more)  # type: ignore[arg-type]


GROUNDS = [
    ("a part", INCIDENT, {"n1"}),
    ("a rack", culprit("rack", "r1"), {"n4", "n5", "n6", "n7"}),
    ("a switch and ports that hang on it", culprit("switch", "leaf0", scope="switch"), {"n0", "n1", "n2", "n3", "n7"}),
    ("a storage", culprit("storage", "lustre", scope="storage"), {"n2", "n3"}),
    ("a firmware", culprit("label", "fw=2", scope="fleet"), {"n0"}),
    ("a job without a culprit", replace(INCIDENT, culprit=None, scope="job"), {"n0", "n1", "n2"}),
    ("the fleet, by its victims", replace(INCIDENT, culprit=None, scope="fleet", jobs=(), victims=(HOT,)), {"n1"}),
    ("a job that nobody knows", replace(INCIDENT, culprit=None, scope="job", jobs=("x",)), set()),
]


@pytest.mark.parametrize(("incident", "nodes"), [c[1:] for c in GROUNDS], ids=[c[0] for c in GROUNDS])
def test_where_an_incident_plays(incident: Incident, nodes: set[str]) -> None:
    """Its part's node, the nodes under a shared cause, those of its job."""
    assert ground(incident, TOPOLOGY, JOBS).nodes == nodes


def told(*events: Event, incident: Incident = INCIDENT) -> list[str]:
    return [row.text for row in changes(incident, ground(incident, TOPOLOGY, JOBS), events)]


CHANGES = [
    ("on its node", [change("n1")], ["driver 550 → 570"]),
    ("elsewhere", [change("n4")], []),
    ("everywhere", [change(None)], ["driver 550 → 570"]),
    ("its job's configuration", [Event(ONSET - 1000, Target("job", job="j"), "config_change", {"what": "batch size", "new": "64"})],
     ["batch size is 64"]),
    ("another job's", [Event(ONSET - 1000, Target("job", job="k"), "config_change", {"what": "batch size", "new": "64"})], []),
    ("too long ago", [change("n1", ONSET - CHANGES_BEFORE_MS - 1)], []),
    ("after it began", [change("n1", ONSET + 600_000)], []),
    ("an XID is no change", [Event(ONSET - 1, HOT, "xid", {"xid": 62})], []),
    ("a step is no change", [Event(ONSET - 1, Target("job", job="j"), "job_phase", {"phase": "train"})], []),
    ("a start is", [Event(ONSET - 1, Target("job", job="j"), "job_phase", {"phase": "start"})], ["job j: start"]),
    ("the newest first", [change("n1", ONSET - 9000, new="a"), change("n1", ONSET - 1000, new="b")], ["driver 550 → b", "driver 550 → a"]),
]


@pytest.mark.parametrize(("events", "expected"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_what_changed_before(events: list[Event], expected: list[str]) -> None:
    """On its nodes and jobs, in the hours before the onset."""
    assert told(*events) == expected


def test_a_rollout_is_one_line() -> None:
    """The same change on many nodes within a minute says on how many; an hour later it is another line."""
    rack = culprit("rack", "r1")
    first = [change(f"n{i}", ONSET - 3_600_000 + i * 1000) for i in range(4, 8)]
    assert told(*first, change("n4"), incident=rack) == ["driver 550 → 570", "driver 550 → 570 (on 4 parts)"]


def test_changes_are_bounded() -> None:
    """A node that flaps all day does not fill the page."""
    assert len(told(*[change("n1", ONSET - i * 120_000, new=str(i)) for i in range(200)])) == MOST_CHANGES


def test_the_whole_timeline_is_in_order() -> None:
    """Change, event, onset, opening, action, mark, end; who acted is named."""
    action = Action("inc-1/1/1", "drain", Target("node", "n1"), {}, 60.0, "act", "inc-1", 1, 1, ONSET + 90_000, "policy")
    over = replace(INCIDENT, state="resolved", reason="quiet", resolved_at=ONSET + 300_000)
    rows = timeline(over, ground(over, TOPOLOGY, JOBS), [change("n1", by="anna"), Event(ONSET - 1, HOT, "xid", {"xid": 62}),
                                                       Event(ONSET - 1, Target("gpu", "n4", "0"), "xid", {"xid": 48})],
                    [(ONSET + 90_000, action, Outcome(action.id, "PENDING", "")), (ONSET + 100_000, action, Outcome(action.id, "RUNNING", "")),
                     (ONSET + 120_000, action, Outcome(action.id, "DONE", "done"))], [Mark(ONSET + 150_000, "inc-1", "acknowledge", "ben")])
    assert [(row.kind, row.text, row.actor) for row in rows] == [
        ("change", "driver 550 → 570", "anna"), ("event", "XID 62", None), ("onset", "first evidence", None),
        ("opened", "opened 60 s after the onset", None), ("action", "drain is decided: the matching rule's next step", "greylag"),
        ("action", "drain DONE", "greylag"), ("mark", "acknowledged by ben", "ben"),
        ("ended", "resolved: the detectors have been quiet for the policy's time", None)]


@pytest.mark.parametrize(("event", "words", "a_change"), [
    (change("n1"), "driver 550 → 570", True), (Event(0, HOT, "config_change", {"what": "image", "old": "a"}), "image a is gone", True),
    (Event(0, HOT, "boot", {"boot_time_seconds": 1}), "boot", True), (Event(0, HOT, "link_down"), "link down", False),
    (Event(0, HOT, "oom", {"process": "python"}), "oom (process python)", False)])
def test_events_in_words(event: Event, words: str, a_change: bool) -> None:
    """From fields alone, whatever is missing."""
    assert (event_words(event), is_change(event)) == (words, a_change)


# --- blind spots ------------------------------------------------------------------------------------------------------
def plugin(fault: str, *needs: tuple[str, ...]) -> DetectorPlugin:
    return DetectorPlugin(fault, fault, lambda seen, params: (), object, needs)


def row(node: str, signal: str, state: str) -> dict[str, object]:
    return {"node": node, "signal": signal, "state": state, "ratio": None}


T, P, L = "gpu.temperature_celsius", "gpu.power_watts", "nic.link_up"
SPOTS = [
    ("all is there", [row("a", T, "fresh"), row("a", P, "partial")], []),
    ("one of a group is enough", [row("a", T, "fresh"), row("a", P, "not_configured")], []),
    ("never there", [row("a", T, "not_configured"), row("a", P, "not_configured")], [("hot", "not_configured", ["a"], 1)]),
    ("lost comes first", [row("a", T, "not_configured"), row("a", P, "not_configured"), row("b", T, "lost"), row("b", P, "not_configured")],
     [("hot", "lost", ["b"], 1), ("hot", "not_configured", ["a"], 1)]),
    ("no such part", [row("a", T, "not_applicable"), row("a", P, "not_applicable")], []),
    ("nothing is known", [], [(None, "unknown", ["a", "b"], 2)]),
]


@pytest.mark.parametrize(("rows", "expected"), [c[1:] for c in SPOTS], ids=[c[0] for c in SPOTS])
def test_blind_spots(rows: list[dict[str, object]], expected: list[tuple]) -> None:
    """By fault and by why; a log that may tell is no blind spot; a node of which nothing is known is one."""
    nodes = {str(one["node"]) for one in rows} or {"a", "b"}
    found = blind_spots({"hot": plugin("hot", (T, P)), "xid": plugin("xid", (L, "xid"))}, rows, nodes)
    assert [(one["fault"], one["state"], one["nodes"], one["count"]) for one in found] == expected


# --- goodput ----------------------------------------------------------------------------------------------------------
RANKS = [Target("rank", "n0", str(i), job="j", rank=i) for i in range(2)]


def work(i: int, steps: list[float], seconds: list[float], **job: object) -> Window:
    state = JobState("j", "train", ("n0",), (0, 1), 8)
    return window(tick(i), {"rank.step": (RANKS, [[s, s] for s in steps]), "rank.step_seconds": (RANKS, [[s, s] for s in seconds])},
                  jobs=(replace(state, **job),))  # type: ignore[arg-type]


def goodput(steps: list[float], seconds: float = 5.0, cut: int | None = None, **job: object) -> float | None:
    """The ratio after a life of one step count a tick. cut: a restart in between."""
    book, ratio = Goodput(), None
    for i in range(40, len(steps)):
        ratio = book.update(work(i, steps[i - 39 : i + 1], [seconds] * 40, **job)).get("j")
        if i == cut:
            text, book = book.dump(), Goodput()
            book.load(text)
    return ratio


STEADY = [3.0 * i for i in range(240)]  # 15 s a tick, 5 s a step
GOODPUTS = [
    ("at its best pace all the time", STEADY, {}, 1.0),
    ("half of the time it stands", STEADY[:140] + [STEADY[139]] * 100, {}, 0.5),
    ("what is computed again counts for nothing", STEADY[:140] + [s - 300.0 for s in STEADY[140:]], {}, 0.5),
    ("silent", STEADY, {"silent": True}, None),
    ("over", STEADY, {"phase": "done"}, None),
    ("it never steps", [0.0] * 100, {}, None),
]


@pytest.mark.parametrize(("steps", "job", "expected"), [c[1:] for c in GOODPUTS], ids=[c[0] for c in GOODPUTS])
@pytest.mark.parametrize("cut", [None, 90])
def test_goodput(steps: list[float], job: dict[str, object], expected: float | None, cut: int | None) -> None:
    """New steps at the best pace over the time since the job was first seen; a restart of Greylag changes nothing."""
    ratio = goodput(steps, cut=cut, **job)
    assert ratio == (None if expected is None else pytest.approx(expected, abs=0.02))


def test_a_job_that_got_slower_has_less() -> None:
    """Half of its life at half the pace: three quarters."""
    steps = [*[3.0 * i for i in range(140)], *[3.0 * 139 + 1.5 * (i + 1) for i in range(100)]]
    book, ratio = Goodput(), 0.0
    for i in range(40, len(steps)):
        took = np.where(np.arange(i - 39, i + 1) < 140, 5.0, 10.0).tolist()
        ratio = book.update(work(i, steps[i - 39 : i + 1], took)).get("j", ratio)
    assert ratio == pytest.approx(0.75, abs=0.02)
