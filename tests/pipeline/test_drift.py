"""Slow drift: what grows towards a limit is told with days to go, what is healthy is not; from arrays, and through a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli import app
from app.drift import Reader, drift_report
from app.slow_jobs import SlowDrift
from core.errors import GreylagError
from core.inventory import Inventory
from core.telemetry import Telemetry
from core.types import Batch, Floats, Layout, Scrape, Series, SignalRef, Target
from pipeline.drift import MARGIN, WATCHES, DriftReport, Params, Watch, judge
from pipeline.drift_days import DAY_MS, HOUR_MS, Days, growth, margins, rates
from pipeline.store.duck import DuckStore
from pipeline.trend import trend

WATCH = {w.signal: w for w in WATCHES}
REPLAYS = WATCH["gpu.pcie_replays_per_second"]
DAYS = 30
PER_DAY = 86_400
END = 1_790_000_000_000 // HOUR_MS * HOUR_MS


def gpus(n: int) -> tuple[Target, ...]:
    return tuple(Target("gpu", f"n{i // 8}", str(i % 8), f"GPU-{i}") for i in range(n))


def told(values: Floats, watch: Watch = REPLAYS, params: Params | None = None, models: list[str] | None = None,
         a_node: int = 8) -> DriftReport:
    parts = tuple(Target("gpu", f"n{i // a_node}", str(i % a_node), f"GPU-{i}") for i in range(values.shape[1]))
    return judge([(watch, Days(watch.signal, parts, values))], [models or ["m"] * len(parts)], END, params or Params())


def counted(rate: Floats, rng: np.random.Generator) -> Floats:
    """What a counter shows of a rate per second: whole events by day."""
    return rng.poisson(rate * PER_DAY) / PER_DAY


# --- trends -----------------------------------------------------------------------------------------------------------
@settings(max_examples=60, deadline=None)
@given(st.floats(-5, 5), st.floats(-100, 100), st.integers(4, 30), st.integers(0, 2**31))
def test_a_line_is_found_whatever_is_missing(slope: float, start: float, days: int, seed: int) -> None:
    """A straight line with gaps, and with one value that is far off, has its own slope within the interval."""
    rng = np.random.default_rng(seed)
    when = np.arange(days, dtype=np.float64)
    values = np.repeat((start + slope * when)[:, None], 2, axis=1)
    values[rng.integers(0, days), 1] += 1e6
    values[rng.random(days) < 0.2, 0] = np.nan
    found = trend(when, values)
    known = found.n >= 3
    assert np.allclose(found.slope[0], slope, atol=1e-6) or not known[0]
    assert found.low[1] - 1e-9 <= slope <= found.high[1] + 1e-9


def test_the_test_is_as_sure_as_it_says() -> None:
    """Without a trend, one in a hundred series has a chance below 0.01, no more; of days that resemble the day before
    (correlation 0.5) no more than three in a hundred."""
    rng = np.random.default_rng(5)
    when, noise = np.arange(20.0), rng.normal(size=(20, 3000))
    alike = noise.copy()
    for i in range(1, 20):
        alike[i] = 0.5 * alike[i - 1] + noise[i]
    assert (trend(when, noise).rising < 0.01).mean() < 0.012
    assert (trend(when, alike).rising < 0.01).mean() < 0.032


# --- counters ---------------------------------------------------------------------------------------------------------
def test_growth_leaves_out_resets_and_gaps() -> None:
    """An hour in which the counter began anew, or after a gap of more than three hours, is not known; the rest is counted."""
    at = END - DAY_MS + HOUR_MS * np.array([0, 1, 2, 3, 9, 10, 11])
    last = np.array([100.0, 110, 5, 15, 900, 910, 8])
    high = np.array([100.0, 110, 112, 15, 900, 910, 915])
    total, hours = growth(at, last, high, END, 2)
    assert (total.tolist(), hours.tolist()) == ([0, 30], [0, 3])


def test_half_a_day_is_needed() -> None:
    """A day of which eleven hours are known has no rate; one of twelve has."""
    assert np.isnan(rates(np.array([5.0]), np.array([11.0])))[0]
    assert rates(np.array([43_200.0]), np.array([12.0]))[0] == 1.0


# --- tickets ----------------------------------------------------------------------------------------------------------
def towards(days: int, go: float, doubling: float) -> Floats:
    """A rate that doubles every so many days and reaches the limit `go` days after the last one: float64[day, 1]."""
    when = np.arange(DAYS, dtype=np.float64) - (DAYS - 1)
    rate = REPLAYS.limit * 2.0 ** ((when - go) / doubling)
    return np.where(when > -days, rate, np.nan)[:, None]


@pytest.mark.parametrize(("doubling", "days"), [(4, 20), (5, 30), (7, 30)])
def test_a_growing_counter_is_told_with_its_days(doubling: float, days: int) -> None:
    """Replays that double: most are told, and the true day lies in the interval in most of them."""
    rng = np.random.default_rng(int(doubling))
    rate = towards(days, 20, doubling) * rng.lognormal(0, 0.15, (DAYS, 40))
    found = told(counted(np.nan_to_num(rate), rng) + np.where(np.isnan(rate), np.nan, 0), params=Params(shared=2), a_node=1).tickets
    held = [t for t in found if t.days_low <= 20 <= (t.days_high or 1e9)]
    assert len(found) >= 28
    assert len(held) >= 0.8 * len(found)
    assert {t.growth for t in found} <= {"linear", "exponential"}


def test_the_words_name_the_part_the_limit_and_the_days() -> None:
    """A ticket says what grows, from where to where, whose limit it nears and when."""
    rng = np.random.default_rng(1)
    values = counted(np.concatenate([np.full((DAYS, 7), 1 / PER_DAY), towards(30, 12, 5)], axis=1), rng)
    (ticket,) = told(values).tickets
    assert (ticket.target.id, ticket.parts, ticket.days) == ("GPU-7", 1, 30)
    assert ticket.text.startswith("gpu.pcie_replays_per_second of n0 GPU 7 went from ")
    assert "DCGM's PCIe health watch (8 replays a minute) in 1" in ticket.text
    assert "its like stand at" in ticket.text


@pytest.mark.parametrize("days", [3, 9])
def test_too_few_days_are_unknown_not_healthy(days: int) -> None:
    """However steep it is: before ten days nothing is said, and the part counts as unknown."""
    report = told(towards(days, 5, 2))
    assert (report.tickets, report.looked[REPLAYS.signal], report.blind[REPLAYS.signal]) == ((), 0, 1)


def test_a_part_that_is_gone_is_not_told() -> None:
    """A part of which the last days are missing left service."""
    values = towards(30, 12, 5)
    values[-3:] = np.nan
    assert told(values).tickets == ()


def test_what_a_model_does_together_is_one_ticket_of_the_fleet() -> None:
    """When all parts of a model grow, it is no part's fault: one ticket, with how many."""
    rng = np.random.default_rng(2)
    values = counted(np.repeat(towards(30, 15, 5), 40, axis=1) * rng.lognormal(0, 0.1, (DAYS, 40)), rng)
    report = told(values, models=["p5"] * 20 + ["p4"] * 20, a_node=1)
    assert sorted((t.target.kind, t.target.device, t.parts > 10) for t in report.tickets) == [("fleet", "p4", True), ("fleet", "p5", True)]


def test_what_a_node_does_together_is_its_job() -> None:
    """When all ports of a node grow as one, more of them is being asked: nothing is said of the part."""
    rng = np.random.default_rng(2)
    values = counted(np.repeat(towards(30, 15, 5), 8, axis=1) * rng.lognormal(0, 0.1, (DAYS, 8)), rng)
    assert told(values).tickets == ()


def test_a_limit_that_is_reached_has_no_days_left() -> None:
    """What has passed its limit says so."""
    ticket = told(counted(towards(30, -3, 5), np.random.default_rng(3))).tickets[0]
    assert ticket.days_to_go == 0
    assert "has reached" in ticket.text


N = 480
HEALTHY: dict[str, Callable[[np.random.Generator], Floats]] = {
    "rare events": lambda r: r.poisson(1, (DAYS, N)) / PER_DAY,
    "many events": lambda r: r.poisson(np.exp(r.normal(4, 1, (1, N))), (DAYS, N)) / PER_DAY,
    "bursts": lambda r: r.poisson(r.gamma(0.5, 200, (DAYS, N))) / PER_DAY,
    "a week's rhythm": lambda r: (1 + 0.8 * np.sin((np.arange(DAYS)[:, None] + r.integers(0, 7, (1, N))) * 0.9)) * 1e-2
    * r.lognormal(0, 0.3, (DAYS, N)),
    "other jobs": lambda r: np.repeat(np.repeat(r.lognormal(-5, 1, (6, N // 8 + 1)), 5, axis=0), 8, axis=1)[:, :N]
    * r.lognormal(0, 0.2, (DAYS, N)),
    "one step up": lambda r: np.where(np.arange(DAYS)[:, None] < r.integers(3, 27, (1, N)), 0.01, 0.04) * r.lognormal(0, 0.3, (DAYS, N)),
    "falling": lambda r: 0.01 * 2.0 ** (-np.arange(DAYS)[:, None] / 5) * r.lognormal(0, 0.2, (DAYS, N)),
    "half of it missing": lambda r: np.where(r.random((DAYS, N)) < 0.5, np.nan, r.lognormal(-5, 0.5, (DAYS, N))),
    "nothing": lambda r: np.zeros((DAYS, N)),
    "never seen": lambda r: np.full((DAYS, N), np.nan),
}


@pytest.mark.parametrize("kind", sorted(HEALTHY))
def test_healthy_parts_get_no_ticket(kind: str) -> None:
    """480 parts of each healthy kind over a month: no ticket."""
    report = told(HEALTHY[kind](np.random.default_rng(11)), params=Params(shared=2))
    assert report.tickets == ()


def cooled(parts: int, rng: np.random.Generator, hot: float = 0.0, worse: float = 0.0) -> tuple[Floats, Floats]:
    """(power, margin) by hour of GPUs under jobs that come and go; hot: °C that the hall warms over the month; worse: °C a day
    that GPU 0 loses at full power. Physics of its own: temperature = inlet + resistance · power."""
    hours = np.arange(DAYS * 24)
    power = np.zeros((len(hours), parts))
    for node in range(parts // 8):
        at = 0
        while at < len(hours):
            lasts = int(rng.integers(24, 96))
            power[at : at + lasts, node * 8 : node * 8 + 8] = rng.choice([70, 420, 520, 600], p=[0.1, 0.2, 0.35, 0.35])
            at += lasts
    power += rng.normal(0, 8, power.shape)
    inlet = 25 + 2 * np.sin(hours / 24 * 2 * np.pi) + hot * hours / len(hours)
    heat = rng.normal(0.055, 0.003, (1, parts)) + 0.001 * (np.arange(parts) % 8)
    extra = np.zeros((len(hours), parts))
    extra[:, 0] = worse * hours / 24 / 600
    return power, 85 - (inlet[:, None] + (heat + extra) * power + rng.normal(0, 0.4, power.shape))


def heat(power: Floats, margin: Floats) -> DriftReport:
    parts = gpus(power.shape[1])
    days = margins(parts, margin, power, DAYS * 24)
    return judge([(WATCH[MARGIN], days)], [["m"] * len(parts)], END, Params())


@pytest.mark.parametrize("hot", [0.0, 8.0])
def test_jobs_and_a_hot_month_are_no_drift(hot: float) -> None:
    """GPUs under changing load, in a hall that warms: nothing is told of them."""
    assert heat(*cooled(128, np.random.default_rng(3), hot=hot)).tickets == ()


def test_a_gpu_whose_cooling_fades_is_told() -> None:
    """0.6 °C a day at full power: the margin under load ends within weeks, and its like stand far above."""
    report = heat(*cooled(64, np.random.default_rng(4), hot=5.0, worse=0.6))
    assert [t.target.id for t in report.tickets] == ["GPU-0"]
    ticket = report.tickets[0]
    assert 0 < ticket.days_to_go < 40
    assert -0.9 < ticket.per_day < -0.3
    assert (ticket.peers or 0) > ticket.value + 8


# --- through a store --------------------------------------------------------------------------------------------------
def month(store: DuckStore, moved: bool = False) -> None:
    """A month of four GPUs' replay counters, a reading an hour: GPU-3 doubles every four days; driver reloads begin counters
    anew; with `moved` GPU-3 is put into another node in the middle."""
    held: list[Batch] = []
    rng = np.random.default_rng(9)
    totals, seq, sent = np.zeros(4), 0, set()
    for hour in range(DAYS * 24):
        rate = np.array([1.0, 1.0, 2.0, 1.5 * 2.0 ** (hour / 96)]) / 24
        totals = totals + rng.poisson(rate)
        if hour in (100, 400):
            totals[:] = 0
        node = "n2" if moved and hour >= 360 else "n1"
        rows: list[tuple[Layout, Scrape]] = []
        for name, which in (("n1", [0, 1, 2] + ([] if node == "n2" else [3])), ("n2", [3] if node == "n2" else [])):
            if not which:
                continue
            series = tuple(Series("replays", (("UUID", f"GPU-{i}"), ("instance", name)), "counter") for i in which)
            refs = tuple(SignalRef(k, REPLAYS.signal, Target("gpu", name, str(i), f"GPU-{i}"), 1.0, True) for k, i in enumerate(which))
            layout = Layout(Layout.make_id(name, series, refs), name, series, refs, name)
            at = END - DAYS * DAY_MS + hour * HOUR_MS + 1_800_000
            rows.append((layout, Scrape(layout.id, name, at, totals[which])))
        seq += 1
        fresh = tuple(layout for layout, _ in rows if layout.id not in sent)
        sent |= {layout.id for layout in fresh}
        held.append(Batch("w", 1, seq, at, fresh, tuple(s for _, s in rows)))
        if len(held) == 60:
            store.append(held)
            held = []


def test_a_day_in_a_store_becomes_rates() -> None:
    """Readings every two hours of a port's corrected bits and its rate become errors per bit of the day; a second reader of the same port adds nothing."""
    store, rate = DuckStore(None, retention_ms=2**53), 5e10
    nic = Target("nic", "n1", "mlx5_0/1", "0xa")
    for n, instance in enumerate(("n1:9100", "copy:9100")):
        series = (Series("bits", (("instance", instance),), "counter"), Series("rate", (("instance", instance),), "gauge"))
        refs = (SignalRef(0, "nic.corrected_bits_per_second", nic, 1.0, True), SignalRef(1, "nic.rate_bytes_per_second", nic))
        layout = Layout(Layout.make_id(instance, series, refs), instance, series, refs, "n1")
        scrapes = [Scrape(layout.id, instance, END - DAY_MS + h * HOUR_MS + 60_000, np.array([h * 3600.0 * 8e5, rate])) for h in range(0, 24, 2)]
        store.append([Batch(f"w{n}", 1, 1, END, (layout,), tuple(scrapes))])
    days = Reader(store, END, 1).watched(WATCH["nic.corrected_bits_per_second"])
    store.close()
    assert days.parts == (nic,)
    assert np.allclose(days.values, [[8e5 / (rate * 8)]])


@pytest.mark.evaluate
@pytest.mark.parametrize("moved", [False, True])
def test_a_month_in_a_store_becomes_a_ticket(tmp_path: Path, moved: bool) -> None:
    """From readings over hours and rollups to one ticket of GPU-3, where it stands now, resets and a move notwithstanding."""
    store = DuckStore(tmp_path / "greylag.duckdb", retention_ms=2**53)
    month(store, moved)
    store.seal()
    report = drift_report(store, END + 60_000, Inventory())
    store.close()
    assert [(t.target.id, t.target.node) for t in report.tickets] == [("GPU-3", "n2" if moved else "n1")]
    assert report.looked[REPLAYS.signal] == 4
    answer = json.loads(CliRunner().invoke(app, ["drift", "--data-dir", str(tmp_path), "--json"]).stdout)
    assert [one["target"]["id"] for one in answer["items"]] == ["GPU-3"]
    assert "GPU 3 went from" in CliRunner().invoke(app, ["drift", "--data-dir", str(tmp_path)]).stdout


def test_the_slow_job_works_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing before the first tick, once for each hour of cluster time, and a failure is told and keeps the last report."""
    from tests.store import build

    store, now, telemetry = DuckStore(tmp_path / "greylag.duckdb"), [END], Telemetry()
    slow = SlowDrift(store, lambda: now[0], Inventory, telemetry)
    assert (slow.look(), slow.document()["at"]) == (False, None)
    store.commit_tick(build.tick(1))
    looks = []
    for minutes in (0, 10, 59, 61, 70):
        now[0] = END + minutes * 60_000
        looks.append(slow.look())
    assert looks == [True, False, False, True, False]

    def broken(*args: object, **kwargs: object) -> DriftReport:
        raise GreylagError("the store is away")

    monkeypatch.setattr("app.slow_jobs.drift_report", broken)
    now[0] += HOUR_MS
    assert slow.look()
    assert slow.document()["failed"] == "the store is away"
    assert slow.document()["at"] is not None
    store.close()
