"""From what a worker says of itself to a finding: through the own series, the ring and the detector."""

from __future__ import annotations

import pytest

from app.brain import Brain
from app.own_series import OwnSeries, meaning
from collectors.restraint import Restrainer
from core.config import BudgetsConfig, ProcessBudget, TargetBudget
from core.inventory import Inventory
from core.plugins import load_plugins
from core.telemetry import Telemetry
from core.types import Batch, Series

T0 = 1_800_000_000_000
WORKERS = ("collector-0", "collector-1")


def site(ticks, shape):
    """Ticks of a site with two workers; shape(i, telemetry) sets what collector-1 says at tick i, and may give its lag and
    events. Gives the findings that opened, those that ended and all that was said."""
    telemetry = Telemetry()
    plugin = load_plugins("detectors")["collector_starved"]
    brain = Brain({"collector_starved": plugin}, {"collector_starved": plugin.params()}, Inventory(), telemetry=telemetry)
    own = OwnSeries(telemetry, 1)
    opened, ended, said_of = [], [], []
    for i in range(ticks):
        at = T0 + 15_000 * i
        for worker in WORKERS:
            telemetry.set("greylag_collector_targets", 100, worker=worker)
        said = shape(i, telemetry) or {}
        brain.feed(Batch("collector-1", 1, i, at, events=tuple(said.get("events", ()))))
        brain.feed(own.collectors(at, {"collector-0": 3.0, "collector-1": said.get("lag", 4.0)}))
        commit = brain.tick(at).commit
        said_of += commit.findings
        opened += [f for f in commit.findings if f.opened_at == at]
        ended += [f for f in commit.findings if f.ended_at == at]
    return opened, ended, said_of


def miss(i, telemetry, count):
    telemetry.add("greylag_collector_dropped_total", count, worker="collector-1", reason="missed_slot")


@pytest.mark.parametrize(("shape", "reason"), [
    (lambda i, t: None, None),
    (lambda i, t: miss(i, t, 1) if i == 20 else None, None),
    (lambda i, t: miss(i, t, 30) if i == 20 else None, None),
    (lambda i, t: miss(i, t, 5) if i > 10 else None, "misses_slots"),
    (lambda i, t: {"lag": 90.0} if i > 10 else None, "lags"),
    (lambda i, t: {"lag": 90.0} if i == 12 else None, None),
    (lambda i, t: t.set("greylag_collector_shed_level", i > 10, worker="collector-1"), "sheds_load"),
    (lambda i, t: t.set("greylag_collector_shed_targets", 2 * (i > 10), worker="collector-1"), "targets_over_budget"),
    (lambda i, t: t.add("greylag_collector_dropped_total", 50, worker="collector-1", reason="repeat_batch"), None),
])
def test_a_worker_that_starves_is_found_and_no_other(shape, reason):
    """What lasts opens one finding on that worker; one missed slot, one late report or other counts open none."""
    opened, _, _ = site(30, shape)
    assert [(f.target.kind, f.target.device, f.reason) for f in opened] == (
        [("collector", "collector-1", reason)] if reason else [])


def test_it_says_what_was_shed_and_recovers():
    """A worker over its CPU budget sheds and tells which targets and what; when it has recovered the finding ends."""
    restrainer = None

    def shape(i, telemetry):
        nonlocal restrainer
        if restrainer is None:
            restrainer = Restrainer(BudgetsConfig(TargetBudget(series=3), ProcessBudget(cpu_ratio=0.5)), "collector-1", telemetry)
        for second in range(0, 15, 5):
            wall = 15.0 * i + second
            used = wall if wall < 400 else 400 + 0.1 * (wall - 400)
            many = 10 if 100 < wall < 400 else 2
            restrainer.keeper.admit("node/n7:9100", [Series(f"m{n}", ()) for n in range(many)], range(many), T0)
            restrainer.look(wall, T0 + 15_000 * i, used, lambda: 1 << 28)
        return {"events": restrainer.events()}

    opened, ended, every = site(130, shape)
    assert [f.target.device for f in opened] == ["collector-1"]
    words = {f.evidence[0].text for f in every if f.evidence}
    assert "reason shed_cpu; targets node/n7:9100; left out shed_series_budget 7" in words
    assert [f.end_reason for f in ended] == ["cleared"]
    assert restrainer.level.number == 0


def test_only_missed_slots_of_what_was_dropped_mean_starvation():
    """Other reasons of the same counter carry no signal."""
    assert meaning("greylag_collector_dropped_total", (("reason", "missed_slot"), ("worker", "w"))) is not None
    assert meaning("greylag_collector_dropped_total", (("reason", "late"), ("worker", "w"))) is None
    assert meaning("greylag_tick_seconds", ()) is None
