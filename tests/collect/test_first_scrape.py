"""How soon a target's first scrape can be queried, in cluster time: nothing here waits or measures."""

from __future__ import annotations

import asyncio

import pytest

from collectors import rounds, scrape
from collectors.collector import Collector
from collectors.fetch import Body
from core.config import read_config
from core.protocols import Matcher
from core.telemetry import Telemetry
from core.types import Batch
from pipeline.store.duck import DuckStore

T0 = 1_800_000_000_000


class VirtualClock:
    """Cluster and wall time in one: it goes on as soon as nothing is left to do at the present moment."""

    def __init__(self):
        self.at = T0

    def now_ms(self):
        return self.at

    def wall(self):
        return self.at / 1000

    async def sleep_until(self, at_ms):
        for _ in range(60):
            await asyncio.sleep(0)
        self.at = max(self.at, at_ms)


class Pages:
    """Answers every request with the same page."""

    async def get(self, request):
        return Body(b"a 1\nb 2\n", "text/plain; version=0.0.4")


class StoringDoor:
    """Commits each parcel at once, and notes when samples of `up` can be queried for the first time."""

    roomy = True
    learns = True

    def __init__(self, clock, stop):
        self.clock, self.stop, self.store = clock, stop, DuckStore(None)
        self.seq, self.seen = 0, {}

    def knows(self, layout_id):
        return False

    def put(self, parcel):
        self.seq += 1
        self.store.append([Batch("w", 1, self.seq, parcel.watermark, parcel.layouts, parcel.scrapes, parcel.events)])
        for one in self.store.select([Matcher("__name__", "=", "up")], T0, self.clock.at):
            self.seen.setdefault(dict(one.series.labels)["instance"], (one.at[0], self.clock.at))
        if self.clock.at > T0 + 40_000:
            self.stop.set()


@pytest.mark.parametrize(("flush", "interval"), [(1.0, 1), (5.0, 1), (5.0, 15), (10.0, 5)])
def test_a_first_scrape_can_be_queried_by_the_next_flush(tmp_path, monkeypatch, flush, interval):
    """Every new target's first sample is in the store at most a flush interval and a second after its time."""
    file = tmp_path / "greylag.yaml"
    names = [f"n{i}:9100" for i in range(12)]
    file.write_text(f"data_dir: {tmp_path}\nflush_seconds: {flush}\nscrape_configs:\n- job_name: j\n  scrape_interval: {interval}s\n"
                    f"  scrape_timeout: {interval}s\n  static_configs: [{{targets: {names}}}]\n")
    clock = VirtualClock()
    for module in (rounds, scrape):
        monkeypatch.setattr(module, "monotonic_seconds", clock.wall)

    async def act():
        config, stop = read_config(file), asyncio.Event()
        collector = Collector(config, Pages(), "collector-0", Telemetry())
        await collector.first_list()
        collector.start(T0)
        door = StoringDoor(clock, stop)
        await rounds.Slotted(collector, rounds.Outlet(collector, door, T0), clock, flush).run(stop)
        await collector.aclose()
        return door.seen

    seen = asyncio.run(act())
    assert sorted(seen) == sorted(names)
    assert all(T0 < at <= T0 + interval * 1000 for at, _ in seen.values())
    assert max(found - at for at, found in seen.values()) <= flush * 1000 + 1000
