"""What waits for storage ends when the storage lets it: saves, loading, batches, in the full model and from event to event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.eventstep import EventWorld
from fleet.hosts import HUNG_FACTOR
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario
from fleet.waits import moved
from tests.fleet.fleethelp import run_until, small
from tests.fleet.jobhelp import Bench

AWAY_SECONDS = 600


def _saving(seed: int = 3, **shape: object) -> Bench:
    bench = Bench(seed=seed, checkpoint_every_seconds=120, **shape).train()
    bench.until(lambda: bench.job.phase == "checkpoint")
    return bench


def _seconds_until(bench: Bench, condition) -> int:
    began = bench.at
    bench.until(condition)
    return (bench.at - began) // 1000


# --- saves --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", [True, False], ids=["storage goes before the save begins", "in the middle of it"])
def test_a_save_waits_for_storage_that_is_gone_and_ends_once_it_is_back(before):
    """Nothing is complete while the storage is away; half a minute after it is back the training goes on."""
    bench = Bench(seed=3, checkpoint_every_seconds=120).train()
    job = bench.job
    if not before:
        bench.until(lambda: job.phase == "checkpoint")
    job.storing = HUNG_FACTOR
    bench.until(lambda: job.phase == "checkpoint")
    step = job.step
    bench.run(AWAY_SECONDS)
    assert (job.step, job.phase, job.checkpoints, len(job.store.under_way)) == (step, "checkpoint", 0, 1)
    job.storing = 1.0
    assert _seconds_until(bench, lambda: job.phase == "train") <= 35
    assert job.checkpoints == 1


def test_a_save_takes_longer_while_its_storage_is_slow_only():
    """Ten seconds at a tenth of the pace write what one second does."""
    calm, slowed = _saving(), _saving()
    slowed.job.storing = 10.0
    slowed.run(50)
    slowed.job.storing = 1.0
    for bench in (calm, slowed):
        bench.until(lambda bench=bench: bench.job.phase == "train")
    assert slowed.at - calm.at == pytest.approx(45_000, abs=5_000)


def test_a_save_to_the_nodes_disks_needs_no_shared_storage():
    """The file system is gone and the save to local disks ends as ever."""
    bench = _saving(checkpoint_tier="nvme")
    bench.job.storing = HUNG_FACTOR
    assert _seconds_until(bench, lambda: bench.job.phase == "train") <= 10


def test_a_save_writes_all_its_bytes_however_long_it_takes():
    """What the nodes write adds up to the checkpoint; nothing is written while the storage is gone."""
    bench = _saving()
    job, written = bench.job, bench.work.writing[0]
    for factor, seconds in ((3.0, 30), (HUNG_FACTOR, 60), (1.0, 60)):
        job.storing = factor
        bench.substep()
        written += bench.work.writing[0]
        for _ in range(seconds // 5):
            bench.substep()
            written += bench.work.writing[0]
            assert (bench.work.writing[0] == 0) or factor < HUNG_FACTOR
    assert written == pytest.approx(job.shape.checkpoint_bytes_per_node, rel=1e-9)


# --- loading and batches --------------------------------------------------------------------------------------------------
def test_loading_waits_for_storage_and_goes_on():
    """A restart while the storage is gone reads its checkpoint once that is back."""
    bench = _saving()
    job = bench.job
    bench.until(lambda: job.checkpoints == 1)
    job.stop(bench.at, clean=False)
    job.start(bench.at, mode="full")
    job.storing = HUNG_FACTOR
    bench.run(AWAY_SECONDS)
    assert job.phase == "init"
    job.storing = 1.0
    assert _seconds_until(bench, lambda: job.phase == "warmup") <= 45


@pytest.mark.parametrize("kind", ["training", "sweep", "rollout"])
def test_a_step_without_its_batch_waits_and_goes_on(kind):
    """Some nodes' files are gone for ten minutes: no step of theirs ends; then the next ends within its time."""
    bench = Bench(kind, seed=3, checkpoint_every_seconds=1e6).train() if kind != "sweep" else Bench(kind, seed=3)
    job = bench.job
    bench.run(60)
    job.loader[:8] = HUNG_FACTOR
    bench.run(120)
    shown = job.shown()["step"][0]
    bench.run(AWAY_SECONDS)
    assert job.shown()["step"][0] == shown
    job.loader[:8] = 1.0
    assert _seconds_until(bench, lambda: job.shown()["step"][0] > shown) <= 60
    # A run of a sweep has ended its next, short steps by the time that anybody looks.
    assert kind == "sweep" or job.shown()["data_wait_seconds"][0] > AWAY_SECONDS
    assert np.nanmin(job.shown()["comm_wait_seconds"]) >= 0


def test_a_lost_target_stands_still_and_comes_back():
    """The world's own fault: steps stop while the target is gone, and a minute after it is back they go on."""
    world, _ = small(nodes=8)
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "checkpoint")
    world.inject("storage_lost", for_seconds=float(AWAY_SECONDS), seed=1)
    step = job.step
    world.advance(world.now_ms + (AWAY_SECONDS - 10) * 1000)
    assert job.step - step <= 2
    world.advance(world.now_ms + 100_000)
    assert job.step - step > 10


def test_from_event_to_event_a_save_waits_too():
    """The storage goes a minute before a save and comes back: the save is complete soon after, not before."""
    scenario = Scenario("x", FleetSpec(4, 0, before="0s"), (JobSpec("train-1", shape={"checkpoint_every_seconds": 600}),), duration="1h",
                        schedule=(Entry(fault="storage_lost", at="5m", for_="20m", seed=1),))
    event = EventWorld(scenario)
    job = event.world.jobs["train-1"]
    for minutes, saved in ((24, 0), (32, 1)):
        event.advance(scenario.start_ms + minutes * 60_000)
        assert job.checkpoints == saved


# --- the arithmetic --------------------------------------------------------------------------------------------------------
@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1.0, 2.0, 7.5, HUNG_FACTOR])), min_size=1, max_size=20),
       st.integers(0, 30_000), st.integers(1, 60_000))
def test_however_the_pace_changes_the_same_is_read(turns, before, tail):
    """The work of a wait is the sum of its time over its factor, whatever turns the pace takes; gone is no progress."""
    at, then, end, left = 0, 1.0, before + tail, tail
    work = 0.0
    for seconds, factor in [*turns, (10_000, 1.0)]:
        end, left = moved(end, left, at, at, then, factor)
        then, until = factor, at + seconds * 1000
        begins = max(at, before) if factor < HUNG_FACTOR else until
        work += max(0, min(until, end) - begins) / factor
        end, left = moved(end, left, at, until, then, then)
        at = until
        if end <= at:
            break
    assert work == pytest.approx(tail, abs=25)
