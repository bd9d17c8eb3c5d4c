"""What the benches of ingest and store say, and that their loads are what their names promise; nothing is timed here."""

from __future__ import annotations

from typing import Any

import cramjam
import numpy as np
import pytest

from app.bench_fleet import DAY_MARKS, _day, bench_fleet
from app.bench_ingest import Load, loads, rows
from app.bench_pages import PLACEHOLDER, PageServer, Serving, node_name, node_pages
from app.bench_push import SAMPLES_A_REQUEST, filled, requests_of
from collectors.discovery import ScrapeTarget
from collectors.exposition import parse_exposition
from collectors.fetch import Body
from collectors.mapping import Mapper
from collectors.push.remote_write import Decoder
from collectors.push.series import SeriesBook
from collectors.scrape import TargetScraper
from core.clock import wall_ms
from core.config import TargetBudget
from core.protocols import TargetInfo

KEYS = {"system", "targets", "workers", "cpu_us_per_sample", "rss_bytes", "times_cheaper_than_prometheus"}  # that users rely on
T0 = 1_800_000_000_000


def measured(cost: float) -> dict[str, Any]:
    return {"cpu_us_per_sample": cost, "rss_bytes": 700e6, "samples_per_second": 246_000.0, "first_queryable_seconds": 2.0}


def test_a_row_a_system_with_its_ratio_to_prometheus():
    """The median of the rounds, and Prometheus' CPU a sample over the system's own; without Prometheus there is no ratio."""
    systems: list[tuple[str, dict[str, Any]]] = [("greylag", {"workers": 2}), ("prometheus", {})]
    ours, theirs = rows(Load(Serving(targets=200)), systems, {0: [measured(1.0), measured(2.0)], 1: [measured(3.0), measured(3.0)]})
    [alone] = rows(Load(), systems[:1], {0: [measured(1.0)]})
    assert set(ours) >= KEYS
    assert (ours["system"], ours["targets"], ours["workers"], ours["cpu_us_per_sample"]) == ("greylag", 200, 2, 1.5)
    assert (ours["times_cheaper_than_prometheus"], theirs["times_cheaper_than_prometheus"]) == (2.0, 1.0)
    assert alone["times_cheaper_than_prometheus"] is None


def test_the_matrix_has_every_load_that_is_asked_for():
    """50 to 400 targets, workers, layouts that all differ, the strict path, the push path; each beside Prometheus."""
    found = list(loads([("prometheus", {}), ("victoriametrics", {})]))
    assert {load.serving.targets for load, _ in found} == {50, 100, 200, 400}
    assert {options.get("workers", 1) for _, systems in found for _, options in systems} == {1, 2}
    assert any(load.serving.structures == load.serving.targets for load, _ in found)
    assert {load.path for load, _ in found} == {"fast", "strict", "push"}
    assert all("prometheus" in dict(systems) for _, systems in found)


class Wire:
    """A transport that keeps what is written."""

    def writelines(self, parts: list[bytes]) -> None:
        self.body = b"".join(parts).split(b"\r\n\r\n", 1)[1]


@pytest.fixture
def served(monkeypatch):
    """Two pages of one target, one after the other, as the page server answers them. stamped: with a time on one sample."""

    def pages(stamped: bool) -> list[bytes]:
        made = node_pages(0, 2)
        cut = [page.index(b"# HELP node_cpu_seconds_total") for page in made]
        monkeypatch.setattr(PageServer, "serving", Serving(targets=1, variants=2, stamped=stamped))
        monkeypatch.setattr(PageServer, "rest", [[page[at:] for page, at in zip(made, cut, strict=True)]])
        monkeypatch.setattr(PageServer, "gpus", [[page[:at] for page, at in zip(made, cut, strict=True)]])
        monkeypatch.setattr(PageServer, "turns", [0])
        door, out = PageServer(), []
        door.transport = Wire()
        for _ in range(2):
            door.answer(0)
            out.append(door.transport.body)
        return out

    return pages


@pytest.mark.parametrize(("stamped", "strict"), [(False, 1), (True, 2)])
def test_the_strict_row_is_read_by_the_strict_parser(served, monkeypatch, stamped, strict):
    """A page with a sample of its own time is read by the strict parser each time, any other only at first; all its series
    arrive."""
    calls = []
    monkeypatch.setattr("collectors.scrape.parse_exposition", lambda *a, **k: calls.append(1) or parse_exposition(*a, **k))
    scraper = TargetScraper(ScrapeTarget(TargetInfo("bench/0", {"instance": "0"}, "n"), "http://n/", 1000, 1.0), Mapper({}))
    for page in served(stamped):
        found = scraper.page(Body(page, None), wall_ms(), 0.0)
    assert len(calls) == strict
    assert sum(len(scrape.values) for _, scrape in found) == Serving(stamped=stamped).series + 3  # up, duration, count


def test_the_push_row_sends_what_the_page_shows():
    """Every sample of a page comes out of our own reader of remote write with its labels and bits, at the time put in."""
    page = node_pages(0, 1)[0]
    book = SeriesBook(TargetBudget())
    decoder, found = Decoder(book, "bench"), {}
    sizes = []
    for request in requests_of(page):
        parsed = decoder.read(bytes(cramjam.snappy.decompress_raw(filled(request, 7, T0))))
        assert not parsed.refused
        sizes.append(parsed.size)
        for number, at, value in zip(parsed.samples.ids, parsed.samples.at, parsed.samples.values, strict=True):
            series = book.series[number]
            assert series is not None
            found[series.name, series.labels] = (int(at), np.float64(value).tobytes())
    node = node_name(7)
    wanted = {}
    for one in parse_exposition(page.replace(PLACEHOLDER.encode(), node.encode()).replace(b"GPU-ffffffff", b"GPU-%08x" % 7)).samples:
        labels = tuple(sorted([*one.labels, ("instance", node), ("job", "bench")]))
        wanted[one.name, labels] = (T0, np.float64(one.value).tobytes())
    assert found == wanted
    assert max(sizes) == SAMPLES_A_REQUEST


@pytest.mark.evaluate
def test_the_fleets_bench_has_a_row_for_each_use_of_it():
    """The model alone, its numbers, layouts, pages, Greylag behind it; many nodes by number, as text, and over HTTP."""
    found = {row["measure"]: row for row in bench_fleet(nodes=4, slots=2, many=4)}
    assert [*found] == ["world", "frames", "batches", "pages", "whole_path", "many_frames", "many_pages", "many_http"]
    assert found["many_http"]["pages_per_slot"] == 4 * 4
    assert all(found[f"many_{name}"]["share_of_a_core_at_15_s"] < 1 for name in ("frames", "pages", "http"))


class Door:
    """Keeps what is sent through it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, row: Any) -> None:
        self.sent.append(row)


def test_a_day_of_the_fleet_tells_some_of_its_hours(monkeypatch):
    """CPU, log and memory so far, after each of the hours that are told; then None, the end. Hours of two slots stand for real ones."""
    monkeypatch.setattr("app.bench_fleet.HOUR_SLOTS", 2)
    door = Door()
    _day(door, 2)
    rows, end = door.sent[:-1], door.sent[-1]
    assert end is None
    assert [row["hours"] for row in rows] == list(DAY_MARKS)
    assert all(row["peak_rss_bytes"] >= row["rss_bytes"] > 0 for row in rows)
    assert rows[-1]["log_bytes"] >= rows[0]["log_bytes"] > 0
