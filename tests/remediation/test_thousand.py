"""A thousand at once: planned within the second, a lost rack as one incident, budgets held."""

from __future__ import annotations

from app.bench_incidents import GPUS_A_NODE, NODES_A_RACK, rack_lost, thousand_apart

SECOND = 1.0  # of CPU: what issue 6 allows on a machine that has nothing else to do


def test_a_lost_rack_is_one_incident_and_touches_nothing():
    """A thousand findings in one tick: one incident at scope rack, planned within the second, no node is acted on."""
    row = rack_lost()
    assert row["findings"] == NODES_A_RACK * GPUS_A_NODE == 1000
    assert (row["incidents"], row["scope"], row["culprit"], row["commands"]) == (1, "rack", "r3", 0)
    assert row["state"] == ["holding: shared_cause"]
    assert row["cpu_seconds"] <= SECOND


def test_a_thousand_incidents_apart_are_planned_in_a_second():
    """Each on a node of its own, with a ledger that is full: the budgets hold in each tick."""
    row = thousand_apart(4)
    assert row["incidents"] == 1000
    assert row["slowest_tick_cpu_seconds"] <= SECOND
    assert row["acting_at_once"] <= 2
    assert row["attempts_in_the_hour"] <= 4
