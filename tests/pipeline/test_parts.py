"""The ledger of parts: who a part is, what counts for it, what it tells, and that it outlives a move and a restart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from app.brain import Brain
from app.owner import Owner
from app.part_store import parts_of
from core.clock import ManualClock
from core.config import read_config
from core.inventory import Inventory
from core.protocols import DetectorPlugin, Hold
from core.types import (
    Action,
    Batch,
    Incident,
    Layout,
    Outcome,
    Scrape,
    Series,
    SignalRef,
    Suspect,
    Target,
    Verdict,
)
from core.window import Window
from pipeline.parts import PartsBook, count, nth
from pipeline.store.duck import DuckStore
from tests.store import build

DAY = 86_400_000
T0 = build.T0
GPU = Target("gpu", "n03", "5", "GPU-a")


def incident(n: int, part: Target | None = GPU, day: float = 0, **changes: object) -> Incident:
    at = T0 + round(day * DAY)
    suspects = (Suspect(part, 0.9, ("hot",)),) if part else ()
    return build.incident(f"inc-{n}", at, culprit=part, suspects=suspects, **changes)


def done(n: int, kind: str, state: str = "DONE", reason: str = "done") -> tuple[Action, Outcome]:
    action = Action(f"inc-{n}/1/{kind}", kind, Target("node", "n03"), {}, 60.0, "act", f"inc-{n}", 1, 1, T0, "policy")
    return action, Outcome(action.id, state, reason, 1.0, T0)


def window(*parts: Target) -> Window:
    entities: dict[str, tuple[Target, ...]] = {}
    for part in parts:
        entities[part.kind] = (*entities.get(part.kind, ()), part)
    return Window(T0, 15, np.array([T0]), entities, {})


# --- what is told -----------------------------------------------------------------------------------------------------
def test_the_third_incident_says_so_with_nodes_and_moves() -> None:
    """A GPU that failed twice on n03, was moved to n17 and fails there: the words name count, time, nodes, move, diagnoses."""
    book = PartsBook()
    book.update(T0, [incident(1)], [])
    book.update(T0 + DAY, [incident(2, day=1)], [done(2, "diagnose", "FAILED", "diagnose_failed"), done(2, "replace")])
    moved = replace(GPU, node="n17", device="2")
    book.update(T0 + 5 * DAY, [], [], window(moved))
    third = incident(3, moved, day=9)
    book.update(T0 + 9 * DAY, [third], [])
    told = book.remark(third)
    assert told.evidence[-1].text == ("third incident of this GPU in 30 days, on two nodes (n03, n17); moved from n03 to n17;"
                                      " diagnoses: 1 found a fault, 0 found none")
    assert (told.evidence[-1].observed, told.suspects[0].reasons) == (3.0, ("hot", "repeat_offender"))


@pytest.mark.parametrize("days", [[0], [0, 31], [0, 40, 80]])
def test_a_lone_incident_within_thirty_days_is_told_as_it_is(days: list[int]) -> None:
    """One incident, or others long ago, add no words."""
    book = PartsBook()
    for n, day in enumerate(days):
        last = incident(n, day=day)
        book.update(T0 + day * DAY, [last], [])
    assert book.remark(last) == last


def test_an_incident_counts_once_however_often_it_is_told() -> None:
    """Updates, the end and a reopening of one incident are one incident."""
    book = PartsBook()
    for state in ("open", "acting", "resolved", "open", "resolved"):
        book.update(T0, [incident(1, state=state)], [])
    past = book.past(GPU)
    assert past is not None
    assert (past.incident_count, past.incidents[0].state) == (1, "resolved")


@pytest.mark.parametrize("end", [{"state": "merged", "merged_into": "inc-9"}, {"state": "abandoned", "reason": "marked_wrong"}])
def test_an_incident_that_was_none_of_the_part_is_taken_back(end: dict[str, str]) -> None:
    """What a wider incident absorbed, or a person called wrong, does not count; the entry goes when nothing is left."""
    book = PartsBook()
    book.update(T0, [incident(1)], [])
    news = book.update(T0, [incident(1, **end)], [])
    assert (book.past(GPU), [(p.key, p.incidents) for p in news]) == (None, [("gpu:GPU-a", ())])


def test_a_culprit_that_changes_moves_the_incident() -> None:
    """When another part turns out to be the culprit, the incident counts for that one only."""
    book, other = PartsBook(), Target("nic", "n03", "mlx5_0/1", "0xabc")
    book.update(T0, [incident(1)], [])
    book.update(T0, [incident(1, other)], [])
    past = book.past(other)
    assert (book.past(GPU), past and past.incident_count) == (None, 1)


@pytest.mark.parametrize("part", [None, Target("job", job="j1"), Target("rank", "n1", "0", job="j1", rank=3), Target("fleet"),
                                  Target("label", device="bmc_firmware=24.09"), Target("collector", device="collector-0")])
def test_what_is_no_part_has_no_entry(part: Target | None) -> None:
    """Jobs, ranks, labels, collectors and incidents without a culprit leave the ledger empty."""
    assert PartsBook().update(T0, [incident(1, part)], []) == ()


def test_refused_and_running_actions() -> None:
    """Only ends of actions count, each once, by kind and state; diagnoses by what they found."""
    book = PartsBook()
    book.update(T0, [incident(1)], [done(1, "drain", "RUNNING"), done(1, "drain"), done(1, "drain"), done(1, "reboot", "REFUSED"),
                                    done(1, "diagnose"), done(1, "notify", "SIMULATED"), done(7, "drain")])
    past = book.past(GPU)
    assert past is not None
    assert (dict(past.action_counts), past.diagnosed_good, past.diagnosed_bad) == (
        {"drain/DONE": 1, "reboot/REFUSED": 1, "diagnose/DONE": 1}, 1, 0)


# --- who a part is ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "second", "same"), [
    (GPU, replace(GPU, node="n9", device="0"), True),
    (GPU, replace(GPU, id="GPU-b"), False),
    (Target("disk", "n1", "nvme0", serial="S1"), Target("disk", "n2", "nvme3", serial="S1"), True),
    (Target("disk", "n1", "nvme0"), Target("disk", "n2", "nvme0"), False),
    (Target("nic", "n1", "mlx5_0/1", "0x1", serial="S"), Target("nic", "n4", "mlx5_2/1", "0x1"), True),
    (Target("node", "n1"), Target("node", "n1"), True),
    (Target("gpu", "n1", "0"), Target("gpu", "n1", "0"), True),
    (Target("gpu", "n1", "0", serial="S"), Target("nic", "n1", "0", serial="S"), False)])
def test_identity(first: Target, second: Target, same: bool) -> None:
    """A part is its id, else its serial number, else its place."""
    book = PartsBook()
    book.update(T0, [incident(1, first)], [])
    book.update(T0, [incident(2, second)], [])
    past = book.past(second)
    assert past is not None
    assert past.incident_count == (2 if same else 1)


def test_a_serial_number_that_two_parts_show_is_no_identity() -> None:
    """Virtual disks share their serial number: each is known by its place."""
    book, disks = PartsBook(), [Target("disk", n, "vda", serial="QM00001") for n in ("n1", "n2")]
    book.update(T0, [], [], window(*disks))
    for n, disk in enumerate(disks):
        book.update(T0, [incident(n, disk)], [])
    assert [past.incident_count for disk in disks if (past := book.past(disk))] == [1, 1]


def test_an_id_that_comes_to_be_known_keeps_the_entry() -> None:
    """A culprit first known by its place takes its entry along when its id is seen; the old row is let go."""
    book, bare = PartsBook(), replace(GPU, id=None)
    book.update(T0, [incident(1, bare)], [])
    news = book.update(T0, [incident(1)], [])
    past = book.past(GPU)
    assert past is not None
    assert (past.incident_count, [(p.key, len(p.incidents)) for p in news]) == (1, [("gpu:GPU-a", 1), ("gpu:n03/5", 0)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.booleans()), min_size=1, max_size=20))
def test_moves_and_incidents_of_one_part_never_get_lost(steps: list[tuple[str, bool]]) -> None:
    """Wherever a part goes and fails, its entry stands where it is, with all its incidents and no place twice in a row."""
    book, fails = PartsBook(), 0
    for n, (node, fail) in enumerate([("n1", True), *steps]):
        part = replace(GPU, node=node)
        news = [incident(n, part, n)] if fail else []
        fails += fail
        book.update(T0 + n * DAY, news, [], window(part))
    past = book.past(GPU)
    assert past is not None
    nodes = [stay.node for stay in past.stays]
    assert (past.incident_count, past.target.node, nodes[-1]) == (fails, node, node)
    assert all(a != b for a, b in itertools.pairwise(nodes))


@pytest.mark.parametrize(("n", "words"), [(1, "first"), (10, "tenth"), (11, "11th"), (12, "12th"), (21, "21st"), (22, "22nd"),
                                          (33, "33rd"), (111, "111th")])
def test_numbers_in_words(n: int, words: str) -> None:
    """Ordinals as people write them."""
    assert nth(n) == words
    assert count(2) == "two"
    assert count(12) == "12"


# --- through the brain, the store and the API -------------------------------------------------------------------------
@dataclass(frozen=True)
class NoParams:
    """None."""


def hot(seen: Window, params: object) -> list[Verdict]:
    """A detector for tests: a GPU over 90 °C is faulty."""
    last = seen.last("gpu.temperature_celsius")
    return [Verdict(g, "thermal_throttle", "faulty" if t > 90 else "clear", 0.9, (), "hot")
            for g, t in zip(seen.of_kind("gpu"), last, strict=True) if not np.isnan(t)]


PLUGIN = DetectorPlugin("hot", "thermal_throttle", hot, NoParams, (("gpu.temperature_celsius",),), Hold(1, 1, 1, 4))


def feed(brain: Brain, node: str, at: int, celsius: float) -> None:
    series = (Series("temp", (("gpu", "0"), ("instance", node)), "gauge"),)
    one = Layout(Layout.make_id(node, series), node, series,
                 (SignalRef(0, "gpu.temperature_celsius", Target("gpu", node, "0", "GPU-a")),), node)
    brain.feed(Batch("w", 1, at, at, (one,), (Scrape(one.id, node, at, np.array([celsius])),)))


def fails(brain: Brain, store: DuckStore, node: str, start: int) -> Incident:
    """The GPU on `node` gets hot at `start` and cool again; the story goes to the store. Gives the incident as it opened."""
    opened = None
    for n in range(14):
        at = start + n * 15_000
        feed(brain, node, at, 99.0 if n < 2 else 40.0)
        commit = brain.tick(at).commit
        store.commit_tick(commit)
        opened = opened or next(iter(commit.incidents), None)
    assert opened is not None
    return opened


def test_the_past_outlives_a_move_and_a_restart(tmp_path: Path) -> None:
    """Two incidents on n03, a restart of the owner's parts from the store, a move, and the third one on n17 tells all."""
    store = DuckStore(tmp_path / "greylag.duckdb")
    first = Brain({"hot": PLUGIN}, {}, Inventory())
    start = T0 // 15_000 * 15_000
    for n in range(2):
        fails(first, store, "n03", start + n * 3_600_000)
    second = Brain({"hot": PLUGIN}, {}, Inventory())
    second.load(store.state, store.ledger(), parts_of(store), store.last_tick() or 0)
    last = fails(second, store, "n17", start + DAY)
    assert "third incident of this GPU in 30 days, on two nodes (n03, n17); moved from n03 to n17" in str(last.evidence)
    kept = store.part_records()
    store.close()
    assert [(p.key, p.incident_count, [s.node for s in p.stays]) for p in kept] == [("gpu:GPU-a", 3, ["n03", "n17"])]


def test_a_store_from_before_the_ledger_gets_one(tmp_path: Path) -> None:
    """Incidents and actions that an older program committed are counted at the first look, and kept."""
    store = DuckStore(tmp_path / "greylag.duckdb")
    store.commit_tick(build.tick(1, incidents=[incident(1), incident(2, day=2)], actions=[done(2, "drain")]))
    made = parts_of(store)
    again = store.part_records()
    store.close()
    assert [(p.incident_count, dict(p.action_counts)) for p in made] == [(2, {"drain/DONE": 1})]
    assert list(made) == again


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("owner")
    (folder / "greylag.yaml").write_text("data_dir: data\nlisten: 127.0.0.1:0\nbackend: {name: observe}\n")
    owner = Owner(read_config(folder / "greylag.yaml"))
    owner.clock = ManualClock(T0)
    book, parts = PartsBook(), []
    for n in range(5):
        parts += book.update(T0 + n, [incident(n, Target("gpu", f"n{n % 2}", str(n), f"GPU-{n}"))], [])
    owner.store.commit_tick(build.tick(1, parts=tuple(parts)))
    yield TestClient(owner.app())
    owner.writer.close()
    owner.store.close()
    owner.loop.close()


@pytest.mark.parametrize(("query", "ids"), [
    ({}, [4, 3, 2, 1, 0]), ({"node": "n1"}, [3, 1]), ({"node": "n9"}, []), ({"since": str((T0 + 3) / 1000)}, [4, 3])])
def test_the_api_lists_parts(api: TestClient, query: dict[str, str], ids: list[int]) -> None:
    """Newest change first, by node and time."""
    answer = api.get("/api/greylag/v1/parts", params=query)
    assert [row["target"]["id"] for row in answer.json()["items"]] == [f"GPU-{n}" for n in ids]


@pytest.mark.parametrize("name", ["drift", "odd"])
def test_the_slow_lists_answer_before_their_first_look(api: TestClient, name: str) -> None:
    """Nothing was looked at yet, and the answer says so."""
    answer = api.get(f"/api/greylag/v1/{name}").json()
    assert (answer["at"], answer["items"]) == (None, [])


def test_the_api_gives_parts_in_pages(api: TestClient) -> None:
    """The cursor goes through all of them, each once."""
    seen, cursor = [], None
    while True:
        page = api.get("/api/greylag/v1/parts", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [row["key"] for row in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"gpu:GPU-{n}" for n in (4, 3, 2, 1, 0)]
