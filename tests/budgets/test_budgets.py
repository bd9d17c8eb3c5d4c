"""Budgets of a target: what is left out of a page that has too many, too new or too large series, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.budgets import TargetBudgetKeeper
from core.config import TargetBudget
from core.types import Series

T0 = 1_800_000_000_000
MINUTE = 60_000


def series(name, n=1, start=0):
    return [Series(name, (("id", str(i)),)) for i in range(start, start + n)]


def is_health(one):
    return one.name.startswith("h")


def names(page, admission):
    return [page[i].name for i in admission.kept]


def test_a_page_within_its_budget_is_kept_whole_and_nobody_is_asked():
    """Nothing is shed, and no meaning is looked up."""
    keeper = TargetBudgetKeeper(TargetBudget(series=10, new_series_per_hour=10))
    admission = keeper.admit("t", series("a", 10), lambda one: pytest.fail("asked"), T0)
    assert list(admission.kept) == list(range(10))
    assert admission.shed == {}


def test_health_signals_go_last():
    """Over the budget series with a canonical signal stay, then the scraper's own, then small families before large ones."""
    keeper = TargetBudgetKeeper(TargetBudget(series=7))
    page = [*series("explodes", 100), *series("small", 2), *series("up"), *series("h1", 3)]
    admission = keeper.admit("t", page, is_health, T0)
    assert names(page, admission) == ["explodes", "small", "small", "up", "h1", "h1", "h1"]
    assert admission.shed == {"shed_series_budget": 99}
    assert keeper.shedding() == {"t": {"shed_series_budget": 99}}


def test_health_signals_are_bounded_too():
    """A family with a signal that explodes is cut at the budget, and what was kept before stays."""
    keeper = TargetBudgetKeeper(TargetBudget(series=5))
    before = keeper.admit("t", series("h", 3, start=50), is_health, T0)
    page = series("h", 100)
    after = keeper.admit("t", page, is_health, T0)
    assert len(before.kept) == 3
    assert len(after.kept) == 5
    assert {50, 51, 52} <= set(after.kept)


def test_what_was_kept_stays_while_the_page_is_over_its_budget():
    """The same series are kept at each look, so none of them comes and goes."""
    keeper = TargetBudgetKeeper(TargetBudget(series=10))
    page = series("x", 30)
    first = keeper.admit("t", page, is_health, T0).kept
    mixed = [*series("x", 15, start=100), *page]
    second = keeper.admit("t", mixed, is_health, T0 + MINUTE)
    assert [mixed[i] for i in second.kept] == [page[i] for i in first]


@pytest.mark.parametrize(("labels", "fits"), [
    ({}, True),
    ({"a": "1", "b": "2"}, True),
    ({"a": "1", "b": "2", "c": "3"}, False),
    ({"abcde": "1"}, True),
    ({"abcdef": "1"}, False),
    ({"a": "x" * 8}, True),
    ({"a": "x" * 9}, False),
    ({"a": "é" * 4}, True),
    ({"a": "é" * 5}, False),
])
def test_labels_are_bounded_in_number_and_length(labels, fits):
    """A series with too many labels, or too long ones (in bytes of UTF-8), is left out by name; the page goes on."""
    keeper = TargetBudgetKeeper(TargetBudget(labels=2, label_name_bytes=5, label_value_bytes=8))
    page = [Series("x", tuple(sorted(labels.items()))), Series("y", ())]
    admission = keeper.admit("t", page, is_health, T0)
    assert list(admission.kept) == ([0, 1] if fits else [1])
    assert admission.shed == ({} if fits else {"shed_labels": 1})


def test_new_series_are_bounded_by_the_hour():
    """The first page is what is known; what comes then counts, is left out beyond the budget, and comes in an hour later."""
    keeper = TargetBudgetKeeper(TargetBudget(new_series_per_hour=10))
    kept = []
    for minute, page in [(0, series("x", 50)), (1, series("x", 56)), (2, series("x", 70)), (30, series("x", 70)),
                         (62, series("x", 70)), (63, series("x", 70))]:
        admission = keeper.admit("t", page, is_health, T0 + minute * MINUTE)
        kept.append((len(admission.kept), dict(admission.shed)))
    assert kept == [(50, {}), (56, {}), (60, {"shed_churn_budget": 10}), (60, {"shed_churn_budget": 10}),
                    (70, {}), (70, {})]


def test_new_health_signals_and_known_series_go_on():
    """With the hour used up a new series with a signal is taken, and a series that was away for a while is not new."""
    keeper = TargetBudgetKeeper(TargetBudget(new_series_per_hour=3))
    keeper.admit("t", series("x", 10), is_health, T0)
    keeper.admit("t", series("x", 4, start=10), is_health, T0 + MINUTE)
    page = [*series("x", 10), *series("h", 5), *series("y", 2)]
    admission = keeper.admit("t", page, is_health, T0 + 2 * MINUTE)
    assert names(page, admission) == ["x"] * 10 + ["h"] * 5
    assert admission.shed == {"shed_churn_budget": 2}
    assert keeper.room("t", T0 + 2 * MINUTE) == 0


@pytest.mark.parametrize(("come", "taken"), [
    pytest.param(series("y", 5), True, id="within the hour's budget"),
    pytest.param(series("x", 5), True, id="none of them new"),
    pytest.param(series("y", 7), False, id="more than the hour has room for"),
    pytest.param(series("h", 7), True, id="health signals come whatever the hour has room for"),
    pytest.param([Series("y", (("id", "v" * 600),))], False, id="a label over its budget"),
])
def test_series_that_get_other_labels_count_as_the_whole_page_would(come, taken):
    """Looking at what changed alone leaves the same budget behind as looking at all of the page; else nothing is noted."""
    one, other = (TargetBudgetKeeper(TargetBudget(new_series_per_hour=6, label_value_bytes=512)) for _ in range(2))
    page, gone = series("x", 20), series("x", len(come))
    for keeper in (one, other):
        keeper.admit("t", page, is_health, T0)
    assert one.exchange("t", gone, come, is_health, T0 + MINUTE) == taken
    if taken:
        other.admit("t", [*come, *page[len(come):]], is_health, T0 + MINUTE)
    assert one.room("t", T0 + 2 * MINUTE) == other.room("t", T0 + 2 * MINUTE)
    later = series("z", 9)
    kept = [len(k.admit("t", [*page, *come, *later], is_health, T0 + 3 * MINUTE).kept) for k in (one, other)]
    assert kept[0] == kept[1]


def test_each_target_has_its_own_budget():
    """What one target brings takes nothing from another."""
    keeper = TargetBudgetKeeper(TargetBudget(series=10, new_series_per_hour=5))
    keeper.admit("a", series("x", 1000), is_health, T0)
    keeper.admit("a", series("y", 1000), is_health, T0)
    assert len(keeper.admit("b", series("x", 10), is_health, T0).kept) == 10
    assert list(keeper.shedding()) == ["a"]


def test_no_limit_is_no_limit():
    """Zero means that nothing of that kind is bounded."""
    keeper = TargetBudgetKeeper(TargetBudget(0, 0, 0, 0, 0, 0))
    for start in range(0, 5000, 1000):
        assert len(keeper.admit("t", series("x", 1000, start), is_health, T0).kept) == 1000


def test_a_process_over_its_budget_keeps_health_signals_only():
    """While the process asks for it only signals and the scraper's own stay; each change is a new stamp."""
    keeper = TargetBudgetKeeper(TargetBudget())
    page = [*series("x", 5), *series("h", 2), *series("up")]
    keeper.set_health_only(True, "shed_memory")
    less = keeper.admit("t", page, is_health, T0)
    keeper.set_health_only(True, "shed_memory")
    keeper.set_health_only(False)
    assert names(page, less) == ["h", "h", "up"]
    assert less.shed == {"shed_memory": 5}
    assert len(keeper.admit("t", page, is_health, T0).kept) == 8
    assert keeper.stamp == 2


def test_targets_that_are_gone_are_forgotten():
    """Nothing of them is kept in memory."""
    keeper = TargetBudgetKeeper(TargetBudget(series=1))
    for target in ("a", "b"):
        keeper.admit(target, series("x", 3), is_health, T0)
    keeper.forget({"b"})
    assert list(keeper.shedding()) == ["b"]
    assert keeper.room("a", T0) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 60), max_size=40)), max_size=12),
       st.integers(1, 20), st.integers(1, 20))
def test_budgets_hold_whatever_comes(pages, most, new):
    """At most `most` series are kept, in no hour more than `new` plain ones come in that were never seen, and the counts
    add up."""
    keeper = TargetBudgetKeeper(TargetBudget(series=most, new_series_per_hour=new))
    seen, came, minute = set(), [], 0
    for i, (pause, ids) in enumerate(pages):
        minute += pause
        page = [Series("x", (("id", str(n)),)) for n in sorted(set(ids))]
        admission = keeper.admit("t", page, lambda one: False, T0 + minute * MINUTE)
        kept = [page[n] for n in admission.kept]
        assert len(kept) <= most
        assert len(kept) + sum(admission.shed.values()) == len(page)
        fresh = [one for one in kept if one not in seen]
        if i:
            came += [minute] * len(fresh)
        seen |= set(kept)
        assert sum(at > minute - 60 for at in came) <= new
