"""The contract of `core.protocols.Store` and of the readers, over each implementation."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import BadInput, GreylagError, Refused, Unavailable
from core.protocols import Matcher
from core.types import Event, Scrape, SignalRef, Target
from pipeline.store.duck import DuckStore
from tests.store.build import (
    GPU,
    STEP,
    T0,
    action,
    batch,
    finding,
    incident,
    layout,
    message,
    record,
    scrape,
    series,
    tick,
)

IMPLEMENTATIONS: dict[str, Callable[[Path], DuckStore]] = {
    "file": lambda folder: DuckStore(folder / "store" / "greylag.duckdb"),
    "memory": lambda folder: DuckStore(None),
}
EVER = (0, 2**50)


@pytest.fixture(params=list(IMPLEMENTATIONS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DuckStore]:
    made = IMPLEMENTATIONS[request.param](tmp_path)
    yield made
    made.close()


def rows(store: DuckStore, *matchers: Matcher) -> dict[str, list[tuple[int, float | None]]]:
    """Samples by series name: (slot number, value)."""
    found = store.select(matchers or (Matcher("__name__", "!=", ""),), *EVER)
    return {s.series.name: [((at - T0) // STEP, v) for at, v in zip(s.at, s.values, strict=True)] for s in found}


# --- samples ----------------------------------------------------------------------------------------------------------
def test_what_is_appended_can_be_selected(store: DuckStore) -> None:
    """Values come back under their own names, in time order."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), scrape(shape, T0 + STEP, [4, 5, 6]), layouts=[shape])])
    assert rows(store) == {"a": [(0, 1.0), (1, 4.0)], "b": [(0, 2.0), (1, 5.0)], "c": [(0, 3.0), (1, 6.0)]}


def test_series_are_sorted_by_labels(store: DuckStore) -> None:
    """Series come by name, then labels, whatever the order of arrival."""
    late, early = layout("t2", ["a"]), layout("t1", ["b", "a"])
    store.append([batch(1, scrape(late, T0, [1]), scrape(early, T0, [2, 3]), layouts=[late, early])])
    found = [(s.series.name, s.series.label("instance")) for s in store.select([], *EVER)]
    assert found == [("a", "t1"), ("a", "t2"), ("b", "t1")]


def test_a_repeated_batch_is_skipped_and_counted(store: DuckStore) -> None:
    """(worker, epoch, seq) is stored once, within one call and across calls."""
    shape = layout()
    one = batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape], events=[Event(T0, GPU, "oom")])
    store.append([one, one])
    result = store.append_counted([one])
    assert (result.repeats, result.samples, len(store.events(*EVER))) == ((("w", 1, 1),), 0, 1)


def test_an_old_epoch_is_refused_and_counted(store: DuckStore) -> None:
    """Once a worker has a new epoch, batches of the one before are not stored."""
    shape = layout()
    first = store.epoch("w")
    second = store.epoch("w")
    result = store.append_counted([batch(7, scrape(shape, T0, [1, 2, 3]), layouts=[shape], epoch=first)])
    assert (second, result.refused, result.counts, rows(store)) == (first + 1, (("w", first, 7),), {"old_epoch": 1}, {})


@pytest.mark.parametrize(("again", "counts"), [
    ([1, 2, 3], {"duplicate": 3}),
    ([1, 9, 3], {"duplicate": 2, "conflict": 1}),
    ([math.nan, 2, 3], {"duplicate": 2, "conflict": 1}),
])
@pytest.mark.parametrize("newer", [0, 1])
def test_of_the_same_series_and_time_the_first_wins(
    store: DuckStore, again: list[float], counts: dict[str, int], newer: int,
) -> None:
    """A second sample of a time is counted, also when newer ones have come since."""
    shape = layout()
    store.append([batch(1, *[scrape(shape, T0 + n * STEP, [1, 2, 3]) for n in range(newer + 1)], layouts=[shape])])
    result = store.append_counted([batch(2, scrape(shape, T0, again))])
    assert (result.counts, result.samples, rows(store)["b"][0]) == (counts, 0, (0, 2.0))


def test_a_late_sample_is_stored_in_its_place(store: DuckStore) -> None:
    """A sample older than the newest, of a time that has none, is stored."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0 + 2 * STEP, [1, 2, 3]), layouts=[shape])])
    store.append([batch(2, scrape(shape, T0 + STEP, [7, 8, 9]))])
    assert rows(store)["a"] == [(1, 7.0), (2, 1.0)]


def test_a_real_nan_is_kept_and_an_absent_value_is_not(store: DuckStore) -> None:
    """An exporter's NaN is a value; the stale marker's bits are none."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0, [math.nan, None, 3]), layouts=[shape])])
    found = rows(store)
    assert (math.isnan(found["a"][0][1] or 0), found["c"], "b" in found) == (True, [(0, 3.0)], False)


@pytest.mark.parametrize("gone", ["absent", "other_layout", "failed", "empty"])
def test_a_series_that_vanishes_gets_one_stale_marker(store: DuckStore, gone: str) -> None:
    """Absent from the page, from the layout, or with its target down: one None, not one at each scrape."""
    shape, smaller, own = layout(), layout(names=["a", "c"]), layout(names=["up"])

    def reading(n: int) -> Scrape:
        at = T0 + n * STEP
        return {"absent": scrape(shape, at, [1, None, 3]), "other_layout": scrape(smaller, at, [1, 3]),
                "failed": scrape(own, at, [0], "timeout"), "empty": Scrape("", "t1", at, np.empty(0), 0.0, "timeout")}[gone]

    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape, smaller, own])])
    store.append([batch(2, reading(1))])
    store.append([batch(3, reading(2), reading(3))])
    assert rows(store)["b"] == [(0, 2.0), (1, None)]


def test_a_series_that_comes_back_goes_on(store: DuckStore) -> None:
    """After the stale marker the series has values again."""
    shape = layout()
    store.append([batch(1, *[scrape(shape, T0 + n * STEP, [1, v, 3]) for n, v in enumerate([2, None, None, 5])],
                        layouts=[shape])])
    assert rows(store)["b"] == [(0, 2.0), (1, None), (3, 5.0)]


def test_pieces_of_one_reading_do_not_end_each_other(store: DuckStore) -> None:
    """Two scrapes of one target and time are one reading, in one batch and in two."""
    page, own = layout(), layout(names=["up"])
    store.append([batch(1, scrape(page, T0, [1, 2, 3]), scrape(own, T0, [1]), layouts=[page, own])])
    store.append([batch(2, scrape(page, T0 + STEP, [1, 2, 3]), scrape(own, T0 + STEP, [1]))])
    assert rows(store)["up"] == [(0, 1.0), (1, 1.0)]


def test_a_series_that_moves_to_another_target_is_not_ended_by_the_first(store: DuckStore) -> None:
    """The target that showed a series last owns it."""
    here = layout("t1", ["a"])
    there = type(here)("moved", "t2", here.series, (), "t2")
    store.append([batch(1, scrape(here, T0, [1]), layouts=[here])])
    store.append([batch(2, scrape(there, T0 + STEP, [2]), layouts=[there])])
    store.append([batch(3, Scrape("", "t1", T0 + 2 * STEP, np.empty(0), 0.0, "timeout"))])
    assert rows(store) == {"a": [(0, 1.0), (1, 2.0)]}


def test_a_series_twice_in_a_layout_counts_once(store: DuckStore) -> None:
    """Of two values of one series in a scrape the first is stored."""
    shape = layout(names=["a", "a"])
    result = store.append_counted([batch(1, scrape(shape, T0, [1, 2]), layouts=[shape])])
    assert (rows(store), result.counts) == ({"a": [(0, 1.0)]}, {"duplicate": 1})


@pytest.mark.parametrize(("values", "known", "reason"), [([1, 2, 3], False, "unknown_layout"), ([1, 2], True, "bad_batch")])
def test_a_scrape_that_cannot_be_understood_refuses_its_append(
    store: DuckStore, values: list[float], known: bool, reason: str,
) -> None:
    """Nothing is acknowledged that could not be stored, and nothing of the call is kept."""
    shape = layout()
    good = layout("t9", ["z"])
    with pytest.raises(Refused) as refused:
        store.append([batch(1, scrape(good, T0, [1]), layouts=[good]),
                      batch(2, scrape(shape, T0, values), layouts=[shape] if known else [])])
    assert (refused.value.reason, rows(store)) == (reason, {})


def test_a_failing_transaction_leaves_everything_as_it_was(store: DuckStore) -> None:
    """A batch that cannot be written is not there, and the same batch can be stored afterwards."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])])
    more = layout("t2")
    bad = Event(2**80, GPU, "oom")  # a time that no BIGINT holds
    with pytest.raises(GreylagError):
        store.append([batch(2, scrape(shape, T0 + STEP, [4, 5, 6]), scrape(more, T0, [7, 8, 9]), layouts=[more], events=[bad])])
    result = store.append_counted([batch(2, scrape(shape, T0 + STEP, [4, 5, 6]), scrape(more, T0, [7, 8, 9]), layouts=[more])])
    assert (result.samples, result.counts, len(store.series([]))) == (6, {}, 6)


def test_events_come_in_time_order_within_their_bounds(store: DuckStore) -> None:
    """Start and end are included, kinds are chosen, and a limit keeps the newest."""
    many = [Event(T0 + n * STEP, Target("gpu", "n1", str(n)), "xid" if n % 2 else "oom", {"xid": n}, f"line {n}")
            for n in (3, 1, 2, 0)]
    store.append([batch(1, events=many)])
    inside = [e.fields["xid"] for e in store.events(T0 + STEP, T0 + 3 * STEP)]
    chosen = [e.fields["xid"] for e in store.events(*EVER, ["xid"], 1)]
    assert (inside, chosen, store.events(T0, T0)[0].line) == ([1, 2, 3], [3], "line 0")


# --- matchers ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module", params=list(IMPLEMENTATIONS))
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckStore]:
    """A store that is only read: five series, each with its place in MANY as its value."""
    made = IMPLEMENTATIONS[request.param](tmp_path_factory.mktemp("many"))
    shape = type(layout())("many", "t1", tuple(MANY), ())
    made.append([batch(1, scrape(shape, T0, [0, 1, 2, 3, 4]), layouts=[shape])])
    yield made
    made.close()


MANY = [series("up", job="dcgm", node="n1"), series("up", job="node", node="n2"), series("temp", gpu="0"),
        series("temp", gpu="10"), series("temp", gpu="1", job="x\ny")]


@pytest.mark.parametrize(("matchers", "expected"), [
    ([("__name__", "=", "up")], [0, 1]),
    ([("__name__", "=~", "u.|temp"), ("gpu", "=~", "1")], [4]),
    ([("gpu", "=~", "1.*")], [3, 4]),
    ([("__name__", "=", "temp"), ("gpu", "!=", "0")], [3, 4]),
    ([("__name__", "=", "temp"), ("gpu", "!~", "1|0")], [3]),
    ([("job", "=", "")], [2, 3]),
    ([("job", "!=", "")], [0, 1, 4]),
    ([("job", "=~", ".*"), ("__name__", "=", "up")], [0, 1]),
    ([("job", "=~", ".+")], [0, 1]),  # a dot is no newline
    ([("job", "!~", "dcgm"), ("__name__", "=", "up")], [1]),
    ([("nowhere", "=", "")], [0, 1, 2, 3, 4]),
    ([("nowhere", "!=", "")], []),
    ([("job", "=~", "(?i)DCGM")], [0]),
    ([("job", "=~", "DCGM")], []),
    ([("job", "=~", "dcg")], []),
    ([], [0, 1, 2, 3, 4]),
])
def test_matchers_mean_what_they_mean_in_prometheus(
    many: DuckStore, matchers: list[tuple[str, str, str]], expected: list[int],
) -> None:
    """Anchored patterns, and an absent label is an empty one."""
    found = many.select([Matcher(*m) for m in matchers], *EVER)
    assert sorted(s.values[0] for s in found) == expected


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", r"(a)\1", "a" * 1001])
def test_a_bad_pattern_is_refused(many: DuckStore, pattern: str) -> None:
    """What RE2 does not understand, and what is too long, is one sentence."""
    with pytest.raises(BadInput):
        many.select([Matcher("a", "=~", pattern)], *EVER)


def test_series_and_labels_are_listed_by_time(store: DuckStore) -> None:
    """A series is listed for times between its first and last sample."""
    early, late = layout("t1", ["a"], gpu="0"), layout("t2", ["b"])
    store.append([batch(1, scrape(early, T0, [1]), scrape(late, T0 + 9 * STEP, [1]), layouts=[early, late])])
    after = T0 + STEP
    assert [s.name for s in store.series([], after, None)] == ["b"]
    assert (store.label_names(), store.label_names((), after)) == (["__name__", "gpu", "instance"], ["__name__", "instance"])
    assert (store.label_values("__name__"), store.label_values("instance", (), None, T0)) == (["a", "b"], ["t1"])


# --- what a tick commits ----------------------------------------------------------------------------------------------
def everything() -> dict[str, Any]:
    return {"findings": (finding(),), "incidents": (incident(),), "actions": (action(),), "outbox": (message(),),
                "records": (record(1), record(2)), "state": {"holds": "h1", "book": "b1"}}


def test_a_tick_commits_all_of_its_parts(store: DuckStore) -> None:
    """Everything that a tick said is there afterwards, without loss."""
    store.commit_tick(tick(**everything()))
    assert store.last_tick() == T0
    assert store.finding_records() == [finding()]
    assert store.incident_records() == [incident()]
    assert store.ledger() == [action()]
    assert store.outbox_pending("hook") == [message()]
    assert store.records() == [(1, '{"n":1}'), (2, '{"n":2}')]
    assert (store.state("holds"), store.state("book"), store.state("other")) == ("h1", "b1", None)


def test_a_tick_that_fails_commits_nothing(store: DuckStore) -> None:
    """One bad part, and none of the others is there."""
    store.commit_tick(tick(0, state={"holds": "before"}))
    bad = incident(opened_at=2**80)
    with pytest.raises(GreylagError):
        store.commit_tick(tick(1, **{**everything(), "incidents": (bad,)}))
    assert (store.last_tick(), store.state("holds"), store.ledger(), store.records()) == (T0, "before", [], [])
    assert (store.finding_records(), store.outbox_pending()) == ([], [])


@pytest.mark.parametrize("number", [3, 2])
def test_a_tick_is_committed_once(store: DuckStore, number: int) -> None:
    """A tick that is not newer than the last one is refused."""
    store.commit_tick(tick(3))
    with pytest.raises(GreylagError):
        store.commit_tick(tick(number, records=(record(1),)))
    assert store.records() == []


def test_findings_incidents_and_state_are_replaced_and_the_ledger_grows(store: DuckStore) -> None:
    """The newest state of a record counts; each outcome of an action stays."""
    store.commit_tick(tick(0, findings=(finding(),), incidents=(incident(),), actions=(action(state="PENDING"),),
                           state={"book": "1"}))
    store.commit_tick(tick(1, findings=(finding(ended_at=T0),), incidents=(incident(state="acting", updated_at=T0 + STEP),),
                           actions=(action(state="DONE"),), state={"book": "2"}))
    assert [f.ended_at for f in store.finding_records()] == [T0]
    assert [i.state for i in store.incident_records()] == ["acting"]
    assert [o.state for _, o in store.ledger()] == ["PENDING", "DONE"]
    assert store.state("book") == "2"


def test_incidents_are_filtered(store: DuckStore) -> None:
    """By id, state and time of the last change, the newest opened first."""
    many = tuple(incident(f"inc-{n}", T0 + n, state="open" if n else "resolved") for n in range(3))
    store.commit_tick(tick(incidents=many))
    assert [i["id"] for i in store.incidents(limit=2)] == ["inc-2", "inc-1"]
    assert [i["id"] for i in store.incidents(id="inc-1")] == ["inc-1"]
    assert [i["id"] for i in store.incidents(state="resolved")] == ["inc-0"]
    assert [i["id"] for i in store.incidents(since=T0 + 2)] == ["inc-2"]


def test_readers_for_people_show_json(store: DuckStore) -> None:
    """Times are RFC 3339, `klass` is `class`, an action stands with its outcome."""
    store.commit_tick(tick(**everything()))
    shown = (store.incidents()[0]["class"], store.findings()[0]["opened_at"], store.actions(incident="inc-1")[0])
    assert shown[:2] == ("page", "2027-01-15T08:00:00.000Z")
    assert (shown[2]["at"], shown[2]["action"]["id"], shown[2]["outcome"]["state"]) == (
        "2027-01-15T08:00:00.000Z", "inc-1/1/1", "DONE")


def test_the_outbox_keeps_a_message_until_it_is_done(store: DuckStore) -> None:
    """A message of a known id is not put in again, and leaves once it is delivered."""
    store.commit_tick(tick(0, outbox=(message("m1"), message("m2"), message("m3", "mail"))))
    store.outbox_done("m1", "delivered")
    store.commit_tick(tick(1, outbox=(message("m1"), message("m2"))))
    assert [m.id for m in store.outbox_pending("hook")] == ["m2"]
    assert [m.id for m in store.outbox_pending()] == ["m2", "m3"]


def test_the_journal_is_read_on_from_a_number(store: DuckStore) -> None:
    """Numbers grow by one across ticks; a reader goes on after the last it has."""
    store.commit_tick(tick(0, records=(record(1), record(2))))
    store.commit_tick(tick(1, records=(record(3),)))
    assert [n for n, _ in store.records(1, 1)] == [2]
    assert [n for n, _ in store.records(2)] == [3]


# --- readers beside the writer ----------------------------------------------------------------------------------------
def test_readers_in_other_threads_see_whole_batches(store: DuckStore) -> None:
    """While one thread appends, others never see part of a batch."""
    shape = layout(names=["a", "b"])
    store.append([batch(0, scrape(shape, T0, [0, 0]), layouts=[shape])])
    done, odd = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            found = rows(store)
            if len(found["a"]) != len(found["b"]) or store.last_tick() is not None:
                odd.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for n in range(1, 30):
        store.append([batch(n, scrape(shape, T0 + n * STEP, [n, n]))])
    done.set()
    for one in readers:
        one.join()
    assert (odd, len(rows(store)["a"])) == ([], 30)


def test_a_read_past_its_deadline_is_ended(store: DuckStore) -> None:
    """A query that takes too long raises Unavailable, and the store goes on."""
    store.deadline_seconds = 0.1
    with pytest.raises(Unavailable):
        store.rows("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = 7")
    assert store.rows("SELECT 1") == [(1,)]


def test_a_query_for_too_many_samples_is_refused(store: DuckStore) -> None:
    """The bound on samples of one query is named."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])])
    with pytest.raises(Refused, match="too_many_samples"):
        store.arrays([], *EVER, most=2)


def test_a_layout_can_be_read_back(store: DuckStore) -> None:
    """Series and signals of a layout are as they were handed over."""
    plain = layout()
    shape = type(plain)("full", "t1", plain.series, (SignalRef(1, "gpu.temperature_celsius", GPU, 0.5, True),), "n1", "j", "dcgm")
    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape])])
    assert (store.layout("full"), store.layout("other")) == (shape, None)


def test_statistics_count_what_is_there(store: DuckStore) -> None:
    """Series, samples, events and ticks."""
    shape = layout()
    store.append([batch(1, scrape(shape, T0, [1, 2, 3]), layouts=[shape], events=[Event(T0, GPU, "oom")])])
    store.commit_tick(tick(**everything()))
    stats = store.stats()
    assert [stats[k] for k in ("series", "samples", "events", "ledger", "last_tick")] == [3, 3, 1, 1, T0]
