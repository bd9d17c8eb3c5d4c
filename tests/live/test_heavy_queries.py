"""Four clients that ask for 11,000 points a series, again and again, beside scrapes of each second and ticks."""

from __future__ import annotations

import threading
import time

import httpx
import numpy as np
import pytest

from core.clock import TICK_MS, wall_ms
from core.types import Batch, Layout, Scrape, Series
from pipeline.store.duck import DuckStore
from tests.live.site import Greylag, named, wait_for

CLIENTS, SECONDS = 4, 35
POINTS, SERIES = 11_000, 12
PAST_MS = POINTS * 1000


def past(folder) -> int:
    """A store with three hours of some series, as an earlier run would have left it; gives the end of it (ms)."""
    end = wall_ms() // TICK_MS * TICK_MS - 60_000
    series = tuple(Series("old", (("i", str(i)), ("instance", "gone")), "gauge") for i in range(SERIES))
    layout = Layout("past", "past", series, ())
    store = DuckStore(folder / "data" / "greylag.duckdb")
    times = range(end - PAST_MS, end, TICK_MS)
    store.append([Batch("past", store.epoch("past"), 1, end, (layout,), tuple(
        Scrape("past", "past", at, np.full(SERIES, float(n))) for n, at in enumerate(times)))])
    store.close()
    return end


def ask(url: str, end: int, stop: threading.Event, sizes: list[int]) -> None:
    """One client: the same range query until it is told to stop."""
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as http:
        while not stop.is_set():
            answer = http.get("/api/v1/query_range", params={
                "query": "old", "start": (end - PAST_MS) / 1000, "end": end / 1000 - 1, "step": "1s"}).raise_for_status().json()
            sizes.append(max(len(one["values"]) for one in answer["data"]["result"]))


def missed(greylag: Greylag) -> float:
    """How many slots /metrics says were missed."""
    lines = greylag.http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if 'reason="missed_slot"' in line)


@pytest.mark.chaos
def test_no_slot_and_no_tick_is_missed_beside_heavy_queries(tmp_path, free_port, exporter_address):
    """Each second's sample and each tick is there, and the event loop's lag is exported."""
    end = past(tmp_path)
    greylag = Greylag(tmp_path, free_port(), scrape_configs=[
        {"job_name": "node", "scrape_interval": "1s", "scrape_timeout": "1s",
         "static_configs": [{"targets": [exporter_address]}]}])
    stop, sizes = threading.Event(), []
    try:
        greylag.start()
        wait_for(lambda: greylag.query("greylag_tick_timestamp_seconds"), 60, "the first tick")
        began, before = wall_ms(), missed(greylag)
        clients = [threading.Thread(target=ask, args=(greylag.url, end, stop, sizes)) for _ in range(CLIENTS)]
        for one in clients:
            one.start()
        time.sleep(SECONDS)
        over = wall_ms()
        stop.set()
        for one in clients:
            one.join(90)
        metrics, after = greylag.http.get("/metrics").text, missed(greylag)
        wait_for(lambda: float(greylag.query("greylag_tick_timestamp_seconds")[0]["value"][1]) * 1000 >= over - TICK_MS, 60,
                 "the tick of the last query")
        greylag.stop()
    finally:
        stop.set()
        greylag.close()
    assert len(sizes) >= 2 * CLIENTS
    assert min(sizes) > 10_000
    assert "greylag_event_loop_lag_seconds " in metrics
    assert after == before
    with greylag.store() as store:
        [samples] = store.arrays(named("node_load1"), began + 1000, over - 1000)
        [ticks] = store.arrays(named("greylag_tick_timestamp_seconds"), began - 2 * TICK_MS, over)
    assert set(np.diff(samples.at).tolist()) == {1000}
    assert set(np.diff(ticks.at).tolist()) == {TICK_MS}
