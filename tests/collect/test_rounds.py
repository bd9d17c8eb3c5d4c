"""The worker on a wall clock: offsets, flushes, ticks, slow targets, leases, pushes; the clock runs at twelve times the wall's."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import numpy as np
import pytest

from collectors import worker as module
from collectors.exposition_template import warm_up
from collectors.schedule import offset_of
from collectors.shards import owner_of
from collectors.worker import run_worker
from core.config import read_config
from core.telemetry import Telemetry
from core.types import Event, Layout, Scrape, Series, Target
from tests.collect.doors import FakeOwner, reply, serve

T0 = 1_800_000_000_000
SPEED = 12
PAGE = b"a 1\nb 2\n"


@pytest.fixture(autouse=True, scope="module")
def libraries():
    """What the first page of a process loads is no part of the wall seconds that a test gives its worker."""
    warm_up()


class FastClock:
    """Cluster time from T0 on, twelve times as fast as the wall; one jump ahead where it is told to."""

    def __init__(self, at_ms: int = T0, jump: tuple[int, int] = (1 << 60, 0)) -> None:
        self._start, self._at, self._jump = time.monotonic(), at_ms, jump

    def now_ms(self) -> int:
        at = self._at + int((time.monotonic() - self._start) * 1000 * SPEED)
        return at + self._jump[1] if at >= self._jump[0] else at

    async def sleep_until(self, at_ms: int) -> None:
        while self.now_ms() < at_ms:
            await asyncio.sleep(0.002)

    async def committed(self, tick_ms: int) -> None:
        return None


def work(tmp_path, targets: dict[str, object], seconds: float, owner=None, text="", clock=None, name="collector-0", interval="5s"):
    """Runs a worker for so many wall seconds; targets: path → page, or None for one that hangs. Gives owner and telemetry."""
    owner, telemetry = owner or FakeOwner(), Telemetry()

    async def act():
        def answer(path, body):
            return (None if targets[path] is None else reply(targets[path])) if path in targets else owner(path, body)

        async with serve(answer) as url:
            host = url.removeprefix("http://")
            groups = "".join(f"\n  - {{targets: ['{host}'], labels: {{__metrics_path__: '{p}', instance: '{p[1:]}'}}}}" for p in targets)
            file = tmp_path / "greylag.yaml"
            file.write_text(f"data_dir: {tmp_path}/data\nflush_seconds: 0.3\n{text}\nscrape_configs:\n- job_name: j\n  scrape_interval: {interval}\n"
                            f"  scrape_timeout: {interval}\n  static_configs:{groups or ' []'}\n")
            stop = asyncio.Event()
            asyncio.get_running_loop().call_later(seconds, stop.set)
            await asyncio.wait_for(run_worker(read_config(file), clock or FastClock(), url, name, stop, telemetry), 20)

    asyncio.run(act())
    return owner, telemetry


def times(owner, target: str) -> list[int]:
    return [s.at for b in owner.batches for s in b.scrapes if s.target_id == target]


def on_grid(found: list[int], target: str, interval: int) -> bool:
    """Ascending, none twice, all on the target's own grid."""
    return found == sorted(set(found)) and all((at - offset_of(target, interval)) % interval == 0 for at in found)


def holes(found: list[int], interval: int) -> int:
    """Due times that are missing between the first and the last."""
    return (found[-1] - found[0]) // interval + 1 - len(found)


def missed(telemetry: Telemetry) -> float:
    """What the worker counted as missed: a machine that stood still for a moment may cost a few."""
    return telemetry.get("greylag_collector_dropped_total", worker="collector-0", reason="missed_slot")


def test_every_target_is_read_on_its_own_grid(tmp_path):
    """Scheduled times with the target's offset, each once; watermarks never go back and never run ahead of what came."""
    owner, telemetry = work(tmp_path, {f"/t{i}": PAGE for i in range(12)}, 1.6)
    assert all(on_grid(times(owner, f"j/t{i}"), f"j/t{i}", 5000) for i in range(12))
    assert sum(holes(times(owner, f"j/t{i}"), 5000) for i in range(12)) <= missed(telemetry)
    assert len({at % 5000 for i in range(12) for at in times(owner, f"j/t{i}")}) > 3
    marks = [b.watermark for b in owner.batches]
    assert marks == sorted(marks)
    for i, batch in enumerate(owner.batches):
        assert all(s.at > batch.watermark for later in owner.batches[i + 1:] for s in later.scrapes)


def test_slots_are_handed_over_together_and_ticks_at_once(tmp_path):
    """Far fewer batches than slots; a tick's slot is reported as soon as it is complete."""
    owner, _ = work(tmp_path, {f"/t{i}": PAGE for i in range(30)}, 2.8)
    slots = {s.at // 500 for b in owner.batches for s in b.scrapes}
    assert len(owner.batches) < len(slots) / 2
    assert {T0 + 15_000, T0 + 30_000} <= {b.watermark for b in owner.batches}


def test_a_target_that_hangs_holds_back_only_the_watermark(tmp_path):
    """The others' values come in time; it is reported as a time-out at its deadline, and then the watermark goes on."""
    owner, telemetry = work(tmp_path, {"/slow": None, "/fast": PAGE}, 1.8, interval="1s")
    assert len(times(owner, "j/fast")) + missed(telemetry) >= 15
    slow = [s for b in owner.batches for s in b.scrapes if s.target_id == "j/slow"]
    assert slow
    assert {s.error for s in slow} == {"timeout"}
    for i, batch in enumerate(owner.batches):
        assert all(s.at > batch.watermark for later in owner.batches[i + 1:] for s in later.scrapes)
    assert telemetry.get("greylag_scrapes_total", result="timeout") == len(slow)


def test_a_clock_that_jumps_ahead_costs_what_it_skipped(tmp_path):
    """An hour is gone: its due times are counted as missed, the reading goes on at the new time."""
    owner, telemetry = work(tmp_path, {"/t": PAGE}, 2.0, clock=FastClock(jump=(T0 + 10_000, 3_600_000)))
    found = times(owner, "j/t")
    assert on_grid(found, "j/t", 5000)
    assert 700 <= holes(found, 5000) == missed(telemetry)


def test_a_restart_counts_what_the_crash_cost(tmp_path):
    """The owner knows up to when this worker had reported: what it can no longer read is missed, the rest is read late."""
    owner = FakeOwner()
    owner.leases = {"segments": [[1, 0, ["collector-0"]]], "resume_ms": T0 - 60_000}
    _, telemetry = work(tmp_path, {"/t": PAGE}, 1.5, owner)
    found = times(owner, "j/t")
    assert on_grid(found, "j/t", 5000)
    assert 10 <= (found[0] - (T0 - 60_000) - 1) // 5000 + holes(found, 5000) == missed(telemetry)


def test_only_leased_targets_are_read_and_generations_travel(tmp_path):
    """Of two workers each reads its share, by scheduled time: from the next segment on all is the other's."""
    owner = FakeOwner()
    owner.leases = {"segments": [[3, 0, ["collector-0", "collector-1"]], [4, T0 + 15_000, ["collector-1"]]]}
    work(tmp_path, {f"/t{i}": PAGE for i in range(10)}, 2.2, owner)
    ours = {f"j/t{i}" for i in range(10) if owner_of(f"j/t{i}", ("collector-0", "collector-1")) == "collector-0"}
    scrapes = [s for b in owner.batches for s in b.scrapes]
    assert {s.target_id for s in scrapes} == ours
    assert {s.generation for s in scrapes} == {3}
    assert max(s.at for s in scrapes) < T0 + 15_000
    assert max(b.watermark for b in owner.batches) > T0 + 17_000
    assert owner.beats[0]["starting"]
    assert owner.beats[-1]["generation"] == 4


def test_newer_leases_are_asked_for_at_once(tmp_path):
    """An answer to a batch that names a newer generation brings the next heartbeat forward."""
    class Owner(FakeOwner):
        def __call__(self, path, body):
            if path.endswith("/batch"):
                super().__call__(path, body)
                return reply(b'{"committed": 1, "generation": 9}')
            return super().__call__(path, body)

    owner = Owner()
    owner.leases = {"segments": [[1, 0, ["collector-0"]]]}
    work(tmp_path, {"/t": PAGE}, 1.5, owner)
    assert len(owner.beats) >= 4


@pytest.mark.parametrize("name", ["collector-0", "collector-1"])
def test_one_worker_follows_logs_and_takes_pushes(tmp_path, name, monkeypatch):
    """collector-0 does, no other; what was pushed is committed to the receiver only after the owner took it."""
    made = []

    class Receiver:
        def __init__(self) -> None:
            self.told, self.started = [], False
            made.append(self)

        async def start(self):
            self.started = True

        async def stop(self):
            self.started = False

        def take(self, now_ms):
            n = len(self.told)
            layout = Layout("push", "push", (Series("p", ()),), (), partial=True)
            event = Event(now_ms, Target("node", "n1"), "oom")
            return ([(layout, Scrape("push", "push", now_ms, np.array([float(n)])))], [event], n) if n < 2 else ([], [], n)

        def committed(self, mark):
            self.told.append(mark)

        def watermark(self, at_ms, now_ms):
            return at_ms if at_ms < T0 + 5000 else min(at_ms, now_ms - 3000)

    real = module.push_receiver
    monkeypatch.setattr(module, "push_receiver", lambda config, collector, clock: Receiver() if collector.reads_logs else real(config, collector, clock))
    log = tmp_path / "kernel.n1.log"
    log.write_text("2027-01-15T08:00:01.000Z n1 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, gone\n")
    owner, _ = work(tmp_path, {"/t": PAGE}, 1.5, text=f"logs: [{{kind: kernel, path: {log}}}]", name=name)
    kinds = {e.kind for b in owner.batches for e in b.events}
    if name == "collector-0":
        assert {"xid", "oom"} <= kinds
        assert [float(s.values[0]) for b in owner.batches for s in b.scrapes if s.target_id == "push"] == made[0].told
        assert str(log.stat().st_size) in (tmp_path / "data/follow-collector-0.json").read_text()
    else:
        assert kinds == set()
        assert made == []


def test_a_budget_widens_and_leaves_out(tmp_path, monkeypatch):
    """The one place where a budget speaks: a widened target is read every other time, a left-out reading is counted."""
    real = module.Collector

    def frugal(*args, **kwargs):
        one = real(*args, **kwargs)
        one.calendar._factor = lambda target_id: 2 if target_id == "j/wide" else 1
        one.restraint.skip = lambda target, at_ms: "over_budget" if target.info.id == "j/out" else None
        return one

    monkeypatch.setattr(module, "Collector", frugal)
    owner, telemetry = work(tmp_path, {"/wide": PAGE, "/out": PAGE, "/t": PAGE}, 2.8)
    wide = times(owner, "j/wide")
    assert on_grid(wide, "j/wide", 5000)
    assert {(b - a) % 10_000 for a, b in pairwise(wide[1:])} == {0}
    assert times(owner, "j/out") == []
    assert telemetry.get("greylag_collector_dropped_total", worker="collector-0", reason="over_budget") >= 2


def test_what_the_worker_counts_reaches_the_owner_once(tmp_path):
    """The increments of all batches add up to the worker's own counters; a batch that is tried again carries the same."""
    owner = FakeOwner(("503 Busy", {}), ("503 Busy", {}))
    _, telemetry = work(tmp_path, {f"/t{i}": PAGE for i in range(4)}, 1.5, owner)
    summed = Telemetry()
    for batch in owner.batches:
        summed.merge(batch.telemetry)
    key = ("greylag_scrapes_total", (("result", "ok"),))
    assert summed.snapshot()[key] == telemetry.snapshot()[key] == sum(len(b.scrapes) for b in owner.batches)


def test_an_owner_that_is_away_at_the_start_is_waited_for(tmp_path):
    """Nothing is read without leases: another worker may hold them."""
    class Late(FakeOwner):
        def __call__(self, path, body):
            if path.endswith("/leases") and len(self.beats) < 3:
                self.beats.append({})
                return reply(b"{}", "503 Busy")
            return super().__call__(path, body)

    owner = Late()
    owner.leases = {"segments": [[1, 0, ["collector-0"]]]}
    work(tmp_path, {"/t": PAGE}, 1.8, owner)
    assert times(owner, "j/t")[0] >= T0 + 5000


def test_pushes_that_are_still_to_come_hold_the_watermark(tmp_path, monkeypatch):
    """A tick waits a little for what is pushed; meanwhile what was scraped is handed over as ever, in few batches."""
    class Receiver:
        async def start(self):
            return None

        async def stop(self):
            return None

        def take(self, now_ms):
            return [], [], None

        def watermark(self, at_ms, now_ms):
            return min(at_ms, now_ms - 6000)

    monkeypatch.setattr(module, "push_receiver", lambda config, collector, clock: Receiver())
    owner, _ = work(tmp_path, {f"/t{i}": PAGE for i in range(10)}, 2.5)
    newest = 0
    for batch in owner.batches:
        newest = max([newest, *(s.at for s in batch.scrapes)])
        assert batch.watermark <= max(T0, newest)
    assert owner.batches[-1].watermark > T0 + 15_000
    assert len(owner.batches) < 20
