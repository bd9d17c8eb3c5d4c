"""First readings in turn."""

from __future__ import annotations

import asyncio

import pytest

from collectors import rounds, scrape
from collectors.admission import AT_ONCE, Admission
from collectors.collector import Collector
from collectors.fetch import Body
from core.config import read_config
from core.errors import SourceError
from core.reasons import SHED_REASONS
from core.telemetry import Telemetry
from tests.collect.test_first_scrape import T0, VirtualClock


def admitted(cost: float, slots: int, busy: float = 0.0) -> list[int]:
    """How many first readings of this cost begin in each slot of 0.5 s, one after the other, after `busy` s of others."""
    admission, out, now = Admission(), [], 0.0
    for i in range(slots):
        admission.slot(0.5 * (i + 1))
        now, n = max(now, 0.5 * i) + busy, 0
        while ticket := admission.admits(now):
            now, n = now + max(cost, 0.001), n + 1
            admission.took(ticket, cost)
        out.append(n)
    return out


@pytest.mark.parametrize(("cost", "busy", "wanted"), [
    (0.05, 0.0, 10), (0.05, 0.25, 5), (0.05, 0.6, 1), (0.2, 0.0, 2), (2.0, 0.0, 1), (0.0, 0.1, 400)])
def test_first_readings_take_what_a_slot_leaves(cost, busy, wanted):
    """Up to the next slot, no further; one in each slot, however dear it is or busy the worker."""
    found = admitted(cost, 60, busy)
    assert max(found[20:]) <= wanted
    assert min(found) >= 1
    assert sum(found[20:]) >= 0.7 * wanted * 40


def test_what_does_not_answer_takes_no_place_for_long():
    """Some hang: in the next slot there is as much room as before."""
    admission = Admission()
    for i in range(3):
        admission.slot(10.0 * (i + 1))
        assert [bool(admission.admits(10.0 * i)) for _ in range(AT_ONCE + 2)] == [True] * AT_ONCE + [False] * 2
    admission.took(1, 0.0)
    assert not admission.admits(20.0)
    admission.took(3, 0.0)
    assert admission.admits(20.0)


class Pages:
    """Pages that cost 0.2 s of the virtual clock each when they are read for the first time; one target is down."""

    def __init__(self, clock):
        self.clock, self.read = clock, []

    async def get(self, request):
        self.read.append((request.url.split("/")[2], self.clock.at))
        if "down" in request.url:
            raise SourceError("connect_failed")
        return Body(b"a 1\nb 2\n", "text/plain; version=0.0.4")


class NoDoor:
    """Takes what is handed over, for some seconds of cluster time."""

    roomy = True

    def __init__(self, clock, stop, seconds, behind_seconds=0):
        self.clock, self.stop, self.until, self.watermarks = clock, stop, T0 + seconds * 1000, []
        self.behind_until = T0 + behind_seconds * 1000

    @property
    def learns(self):
        return self.clock.at >= self.behind_until

    def knows(self, layout_id):
        return True

    def put(self, parcel):
        assert all(s.at > self.watermarks[-1] for s in parcel.scrapes) if self.watermarks else True
        self.watermarks.append(parcel.watermark)
        if self.clock.at > self.until:
            self.stop.set()


def read_anew(tmp_path, monkeypatch, seconds, behind_seconds=0):
    """40 targets of which each costs 0.2 s at first, and one that is down: (what was read at which times, telemetry)."""
    file = tmp_path / "greylag.yaml"
    names = [f"n{i}:1" for i in range(40)]
    file.write_text(f"data_dir: {tmp_path}\nscrape_configs:\n- job_name: j\n  scrape_interval: 1s\n  scrape_timeout: 1s\n"
                    f"  static_configs: [{{targets: {[*names, 'down:1']}}}]\n")
    clock, telemetry = VirtualClock(), Telemetry()
    for module in (rounds, scrape):
        monkeypatch.setattr(module, "monotonic_seconds", clock.wall)
    plain = scrape.TargetScraper._parsed

    def parsed(self, body, slot_ms):
        clock.at += 200
        return plain(self, body, slot_ms)

    monkeypatch.setattr(scrape.TargetScraper, "_parsed", parsed)

    async def act():
        stop = asyncio.Event()
        collector = Collector(read_config(file), pages := Pages(clock), "collector-0", telemetry)
        await collector.first_list()
        collector.start(T0)
        door = NoDoor(clock, stop, seconds, behind_seconds)
        await rounds.Slotted(collector, rounds.Outlet(collector, door, T0), clock, 1.0).run(stop)
        await collector.aclose()
        return pages.read

    return asyncio.run(act()), telemetry


def test_a_start_costs_those_that_were_read_before_nothing(tmp_path, monkeypatch):
    """40 targets of which each costs 0.2 s at first: all get their turn, from then on none misses a slot, what waits is
    counted by name, and a target that is down takes nobody's place."""
    read, telemetry = read_anew(tmp_path, monkeypatch, 40)
    firsts = {name: min(at for one, at in read if one == name) for name, _ in read if name.startswith("n")}
    assert len(firsts) == 40
    assert max(firsts.values()) - T0 <= 2 * 40 * 200
    waits = telemetry.get("greylag_collector_dropped_total", worker="collector-0", reason="first_reading_waits")
    missed = telemetry.get("greylag_collector_dropped_total", worker="collector-0", reason="missed_slot")
    print(waits, missed, max(firsts.values()) - T0)
    assert waits > 100
    assert missed <= 0.02 * waits
    assert sum(1 for name, _ in read if name.startswith("down")) >= 38
    assert "first_reading_waits" in SHED_REASONS


def test_an_owner_that_is_behind_is_shown_no_new_targets(tmp_path, monkeypatch):
    """No first reading begins while what was read waits for the owner; then all get their turn."""
    read, _ = read_anew(tmp_path, monkeypatch, 40, behind_seconds=10)
    firsts = {name: min(at for one, at in read if one == name) for name, _ in read}
    assert min(firsts.values()) >= T0 + 10_000
    assert len(firsts) == 41
