"""The owner's crew by itself: joins, deaths, leaves and what it tells the supervisor, with time as an argument."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from app.crew import LEAD_MS, Crew
from app.gate import TickGate
from app.workerfiles import RUNNING_FILE, WANTED_FILE, publish_wanted, running, wanted
from collectors.shards import LeaseAnswer, owner_of
from core.clock import ManualClock
from core.config import WorkersConfig
from core.errors import BadInput
from core.telemetry import Telemetry
from core.types import Batch, Scrape

T = 1_800_000_000_000


class World:
    """A crew in a folder; `go` passes time with heartbeats of those who live."""

    def __init__(self, folder, config=None, paced=False, marks=None) -> None:
        self.folder, self.clock, self.telemetry = folder, ManualClock(T), Telemetry()
        self.crew = Crew(config or WorkersConfig(1, 4, look_seconds=1.0, quiet_seconds=3.0), folder, self.clock, self.telemetry,
                         TickGate(None), paced, dict(marks or {}), 0.0)
        self.wall = 0.0
        self.cpu: dict[str, float] = {}
        self.used: dict[str, float] = {}

    def beat(self, name: str, pid: int = 1, **more) -> LeaseAnswer:
        self.used[name] = self.used.get(name, 0.0) + self.cpu.get(name, 0.0)
        return LeaseAnswer.of_json(self.crew.beat({"worker": name, "pid": pid, "targets": 50, "cpu_seconds": self.used[name], **more}, self.wall))

    def go(self, seconds: int, *living: str) -> None:
        for _ in range(seconds * 2):
            self.wall += 0.5
            self.clock.advance_to(self.clock.now_ms() + 500)
            if self.wall == int(self.wall):
                for name in living:
                    self.beat(name)
                    self.crew.committed(name, self.clock.now_ms())
            self.crew.look(self.wall)

    def supervised(self, **pids: int) -> None:
        names = {name.replace("_", "-"): pid for name, pid in pids.items()}
        (self.folder / RUNNING_FILE).write_text(json.dumps({"supervisor": os.getppid(), "workers": names}))

    @property
    def wanted(self) -> int:
        return json.loads((self.folder / WANTED_FILE).read_text())["workers"]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.crew.leases.workers


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_the_first_worker_starts_at_once_and_the_next_a_little_later(world):
    """Nobody waits at the first start; who joins takes over when all have heard of it."""
    assert world.beat("collector-0", starting=True).table.at(T).workers == ("collector-0",)
    world.crew.scaler = type(world.crew.scaler)(2)
    table = world.beat("collector-1", starting=True).table
    assert table.at(T + LEAD_MS - 1).workers == ("collector-0",)
    assert table.at(T + LEAD_MS).workers == ("collector-0", "collector-1")


def test_who_is_not_wanted_gets_no_leases(world):
    """A name beyond the wanted number stays out; a name without a number is nobody's business and joins."""
    world.beat("collector-0")
    world.beat("collector-3")
    world.beat("by-hand")
    assert world.workers == ("by-hand", "collector-0")


def test_load_calls_for_more_and_quiet_for_fewer(world):
    """A busy worker: two are wanted after two looks. Both idle: one again, and the other is told to end only when its last
    lease is over and reported."""
    world.beat("collector-0")
    world.cpu["collector-0"] = 0.9
    world.go(4, "collector-0")
    assert (world.wanted, world.workers) == (2, ("collector-0",))
    world.cpu.update({"collector-0": 0.05, "collector-1": 0.05})
    world.go(5, "collector-0", "collector-1")
    assert world.workers == ("collector-0", "collector-1")
    world.go(4, "collector-0", "collector-1")
    assert (world.crew.scaler.wanted, world.workers, world.wanted) == (1, ("collector-0",), 2)
    world.go(4, "collector-0", "collector-1")
    assert world.wanted == 1
    assert [(d["direction"], d["reason"]) for d in world.crew.decisions if d["direction"] != "hold"] == [
        ("up", "cpu_high"), ("down", "quiet")]
    assert world.telemetry.get("greylag_scale_decisions_total", direction="up", reason="cpu_high") == 1
    assert world.telemetry.get("greylag_collector_workers_wanted") == 1


def two(world) -> None:
    """Two workers that share since long."""
    world.crew.scaler = type(world.crew.scaler)(2)
    world.cpu.update({"collector-0": 0.4, "collector-1": 0.4})
    world.beat("collector-0")
    world.go(8, "collector-0", "collector-1")
    assert world.workers == ("collector-0", "collector-1")


def test_silence_takes_a_worker_out_from_its_last_word_on(world):
    """Three seconds without a heartbeat and without a supervisor: its leases go to the others, back to its last report."""
    two(world)
    word = world.crew.marks["collector-1"]
    world.go(3, "collector-0")
    assert world.workers == ("collector-0", "collector-1")
    world.go(1, "collector-0")
    assert world.workers == ("collector-0",)
    assert world.crew.leases.table.at(word + 1).workers == ("collector-0",)
    assert world.crew.leases.table.at(word).workers == ("collector-0", "collector-1")


@pytest.mark.parametrize(("pids", "seconds", "out"), [
    ({"collector_0": 1, "collector_1": 7}, 2, True),  # started anew as another process
    ({"collector_0": 1}, 2, True),  # not running
    ({"collector_0": 1, "collector_1": 1}, 6, False),  # its process runs: it may only be busy
    ({"collector_0": 1, "collector_1": 1}, 11, True),
])
def test_the_supervisor_knows_who_runs(world, pids, seconds, out):
    """A process that is gone is taken out at once, one that runs and is silent only after ten seconds."""
    two(world)
    world.supervised(**pids)
    world.go(seconds, "collector-0")
    assert (world.workers == ("collector-0",)) is out


def test_the_only_worker_keeps_its_leases(world):
    """Nobody could take over; its restart resumes where it stopped."""
    world.beat("collector-0", starting=True)
    world.go(5, "collector-0")
    word = world.crew.marks["collector-0"]
    world.go(10)
    assert world.workers == ("collector-0",)
    assert world.beat("collector-0", pid=2, starting=True).resume_ms == word


def test_a_worker_that_was_long_away_starts_anew(world):
    """After a quarter of an hour nobody speaks of missed slots."""
    world.beat("collector-0", starting=True)
    world.go(1, "collector-0")
    world.clock.advance_to(world.clock.now_ms() + 1_000_000)
    assert world.beat("collector-0", pid=2, starting=True).resume_ms is None


def test_an_owner_that_stood_still_buries_nobody(world):
    """Its own pause is no silence of the workers: their heartbeats lie unread."""
    two(world)
    world.wall += 60
    world.crew.look(world.wall)
    assert world.workers == ("collector-0", "collector-1")


def test_a_restart_of_the_owner_changes_nothing(tmp_path):
    """Leases and number of workers are those of before; who does not come back is taken out after a while."""
    before = World(tmp_path)
    two(before)
    after = World(tmp_path, marks=before.crew.marks)
    assert (after.workers, after.wanted) == (before.workers, 2)
    assert after.crew.leases.generation == before.crew.leases.generation
    after.go(7, "collector-0")
    assert after.workers == ("collector-0", "collector-1")
    after.go(3, "collector-0")
    assert after.workers == ("collector-0",)


def test_on_a_paced_clock_the_number_is_fixed(tmp_path):
    """Load in wall time says nothing of a clock that runs as it can."""
    world = World(tmp_path, paced=True)
    world.cpu["collector-0"] = 1.0
    world.go(10, "collector-0")
    assert world.wanted == 1
    assert {d["reason"] for d in world.crew.decisions} == {"paced_clock"}


def test_what_others_learn_of_jobs_reaches_the_one_that_follows_logs(world):
    """Jobs and boots from any worker's pages come to collector-0, once."""
    two(world)
    world.beat("collector-1", jobs=["train-1"], boots={"n1": 5})
    told = world.beat("collector-0", version=0)
    assert (told.jobs, told.boots) == (("train-1",), {"n1": 5})
    assert world.beat("collector-0", version=told.version).jobs == ()
    assert world.beat("collector-1", version=0).jobs == ()


def test_refused_scrapes_are_counted(world):
    """What another worker holds does not come in."""
    two(world)
    target = next(f"t{i}" for i in range(99) if owner_of(f"t{i}", world.workers) == "collector-1")
    batch = Batch("collector-0", 1, 1, T, (), (Scrape("l", target, world.clock.now_ms(), np.ones(1), generation=1),))
    assert world.crew.check(batch).scrapes == ()
    assert world.telemetry.get("greylag_collector_dropped_total", worker="collector-0", reason="stale_generation") == 1


def test_the_document(world):
    """Each worker with its load and generation; gauges of one that is gone are gone."""
    two(world)
    rows = {row["worker"]: row for row in world.crew.document(world.wall)["items"]}
    assert [rows[w]["state"] for w in sorted(rows)] == ["active", "active"]
    assert rows["collector-1"]["generation"] == world.crew.leases.generation
    assert rows["collector-1"]["cpu_ratio"] == 0.4
    world.go(5, "collector-0")
    assert [row["worker"] for row in world.crew.document(world.wall)["items"]] == ["collector-0"]
    assert not [k for k in world.telemetry.snapshot() if ("worker", "collector-1") in k[1] and k[0].startswith("greylag_collector_t")]


@pytest.mark.parametrize("body", [{}, {"worker": "w"}, {"worker": "w", "pid": "x"}, {"worker": "w", "pid": 1, "targets": []}])
def test_what_is_no_heartbeat_is_refused(world, body):
    """One sentence, and nothing is changed."""
    with pytest.raises(BadInput):
        world.crew.beat(body, 0.0)
    assert world.workers == ()


@pytest.mark.parametrize(("text", "expected"), [('{"workers": 3}', 3), ('{"workers": 99}', 4), ('{"workers": "x"}', 1), ("[", 1)])
def test_the_file_of_the_wanted_number(tmp_path, text, expected):
    """Within the bounds; the least where it says nothing."""
    (tmp_path / WANTED_FILE).write_text(text)
    assert wanted(tmp_path, 1, 4) == expected


def test_the_files_of_another_supervisor_are_not_ours(tmp_path):
    """Pids of an earlier run say nothing about this one."""
    publish_wanted(tmp_path, 2)
    (tmp_path / RUNNING_FILE).write_text(json.dumps({"supervisor": 1, "workers": {"collector-0": 2}}))
    assert running(tmp_path) is None
    assert running(tmp_path / "nowhere") is None
