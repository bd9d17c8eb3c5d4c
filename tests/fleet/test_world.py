"""The healthy world: deterministic, within real ranges, a job that lives as jobs do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.errors import BadInput
from fleet.build import build_world
from fleet.frames import FleetFrames
from fleet.job import JobShape
from tests.fleet.fleethelp import START, pages, read, run_until, small


def _all_pages(seed: int, stops: list[int]) -> bytes:
    world, _ = small(seed)
    frames = FleetFrames(world)
    for stop in stops:
        world.advance(START + stop * 1000)
    return b"".join(page or b"" for _, page in frames.pages_at(START + 120_000))


def test_same_seed_same_bytes_however_time_is_advanced():
    """A seed gives the same pages whether time is moved on in one go or in odd pieces."""
    assert _all_pages(5, []) == _all_pages(5, [1, 7, 33, 34, 90])


def test_another_seed_gives_other_pages():
    """Two seeds are two fleets."""
    assert _all_pages(5, []) != _all_pages(6, [])


def test_a_fault_does_not_change_what_other_parts_draw():
    """Before a fault has any effect the rest of the world is bit for bit what it would have been."""
    calm, _ = small(2)
    struck, _ = small(2)
    struck.inject("thermal_throttle", severity=0.3, seed=1)
    for world in (calm, struck):
        world.advance(START + 20_000)
    node = struck.find(struck.faults[0].culprit.node)
    others = [n.index for n in struck.nodes if n is not node]
    assert np.array_equal(calm.gpus.power[others], struck.gpus.power[others])
    assert np.array_equal(calm.nics.counters["sent_bytes"], struck.nics.counters["sent_bytes"])


RANGES = [
    # signals.md §2 and §10: an 8×H100 node in training
    ("core", 40, 75), ("hbm", 38, 80), ("margin", 10, 60), ("power", 250, 700), ("util", 95, 100), ("tensor", 0.2, 0.6),
    ("clock", 1300, 1980), ("dram", 0.15, 0.6), ("link_gen", 5, 5), ("memory", 60000, 80000), ("thermal_ns", 0, 0),
]


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_values_of_training_gpus_stay_in_real_ranges(name, low, high):
    """A healthy training GPU shows values of real captures."""
    world, _ = small()
    run_until(world, lambda: world.jobs["train-1"].phase == "train")
    world.advance(world.now_ms + 60_000)
    values = getattr(world.gpus, name)[:4]
    assert values.min() >= low
    assert values.max() <= high


def test_reasons_of_a_healthy_fleet_are_never_thermal():
    """Idle and power cap are the only clock event reasons of healthy GPUs."""
    world, _ = small()
    seen = set()
    for _ in range(60):
        world.advance(world.now_ms + 15_000)
        seen |= set(world.gpus.reasons.ravel().astype(int))
    assert seen <= {0, 1, 4}
    assert 4 in seen


def _step_times(seed: int, seconds: int) -> list[float]:
    world, _ = small(seed)
    job, seen = world.jobs["train-1"], {}
    for _ in range(seconds // 5):
        world.advance(world.now_ms + 5_000)
        if job.phase == "train":
            seen[job.step] = job.step_seconds
    return list(seen.values())


def test_step_time_noise_is_as_rough_as_megatrons():
    """The CV of step times without outliers lies about the 3–5 % of the real runs, and outliers are rare."""
    times = np.array(_step_times(3, 1800))
    median = np.median(times)
    usual = times[times < 1.25 * median]
    assert 0.02 < usual.std() / usual.mean() < 0.06
    assert 2.0 < median < 5.0
    assert len(usual) / len(times) > 0.97


def test_phases_follow_each_other_and_checkpoints_come_each_five_minutes():
    """init, warm-up with a long first step, train, checkpoint; the newest checkpoint's step is shown."""
    world, _ = build_world(2, 0, 4, START, before_seconds=0)
    job, order, longest = world.jobs["train-1"], [], 0.0
    for _ in range(900 // 5):
        world.advance(world.now_ms + 5_000)
        if not order or order[-1] != job.phase:
            order.append(job.phase)
        if job.phase == "warmup" and not np.isnan(job.step_seconds):
            longest = max(longest, job.step_seconds)
    assert order[:5] == ["init", "warmup", "train", "checkpoint", "train"]
    assert longest > 20
    assert job.checkpoints == 2
    assert job.last_checkpoint > 18_000


def test_checkpoint_is_a_pause_with_little_power_and_disk_writes():
    """A checkpoint lasts 20–30 s, power falls, the nodes write."""
    world, _ = small()
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "checkpoint")
    before = world.hosts.disk["written_bytes"][:4, 1].copy()
    world.advance(world.now_ms + 15_000)
    assert job.phase == "checkpoint"
    assert world.gpus.power[:4].max() < 200
    assert (world.hosts.disk["written_bytes"][:4, 1] - before > 1e10).all()
    assert 20 <= run_until(world, lambda: job.phase == "train") + 20 <= 40


def test_evaluation_is_a_phase_when_asked_for():
    """With evaluation configured the job shows the phase and comes back from it."""
    shape = JobShape(eval_every_seconds=60.0)
    world, _ = build_world(2, 0, 4, START, shape=shape, before_seconds=300)
    job = world.jobs["train-1"]
    assert run_until(world, lambda: job.phase == "eval", 300) <= 300
    assert run_until(world, lambda: job.phase == "train", 60) <= 60


def test_a_finished_job_says_done():
    """After its last step the job shows phase done and computes no more."""
    shape = JobShape(last_step=18_010)
    world, _ = build_world(2, 0, 4, START, shape=shape, before_seconds=300)
    page = pages(FleetFrames(world), START + 30_000)[("n01", "trainer")]
    phases = {dict(k)["phase"]: v for k, v in read(page or b"")["greylag_train_phase"].items() if dict(k)["rank"] == "0"}
    assert phases["done"] == 1
    assert world.gpus.power[:2].max() < 110


def test_loss_falls_with_noise():
    """The loss trends down and is not smooth."""
    world, _ = build_world(2, 0, 4, START, shape=JobShape(first_step=100), before_seconds=200)
    job, losses = world.jobs["train-1"], []
    for _ in range(240):
        world.advance(world.now_ms + 5_000)
        losses.append(job.loss)
    first, last = np.mean(losses[:60]), np.mean(losses[-60:])
    assert last < first
    assert 0.005 < np.diff(losses).std() < 0.15


@pytest.mark.parametrize(("nodes", "spares"), [(0, 1), (2, -1)])
def test_a_fleet_needs_nodes(nodes, spares):
    """A fleet without nodes is refused in one sentence."""
    with pytest.raises(BadInput, match="at least 1 node"):
        build_world(nodes, spares)


HASH = """
import hashlib
from dataclasses import replace
from fleet.build import build_scenario, load_scenario
from fleet.frames import FleetFrames
scenario = replace(load_scenario("sample_data/scenarios/two-at-once.yaml"), duration="10m")
frames = FleetFrames(build_scenario(scenario)[0])
found = hashlib.sha256()
for slot in frames.slots(scenario.end_ms):
    for frame in frames.frames_at(slot):
        found.update(frame.values.tobytes())
    for _, _, log in frames.logs():
        found.update(log)
for _, page in frames.pages_at(scenario.end_ms):
    found.update(page or b"-")
print(found.hexdigest())
"""


@pytest.mark.evaluate
def test_a_scenario_is_the_same_in_another_process():
    """Numbers, logs and pages of a scenario with two faults hang on its seed alone, not on how Python hashes its texts there."""
    root = Path(__file__).parents[2]
    found = {subprocess.run([sys.executable, "-c", HASH], cwd=root, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True,
                            text=True).stdout for seed in ("1", "2")}
    assert len(found) == 1
