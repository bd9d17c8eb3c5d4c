"""Other kinds of work: sweeps, rollout and training by turns, inference endpoints."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from core.targets import PHASES
from fleet.inference import HISTOGRAMS, Inference
from fleet.jobs import SHAPES
from fleet.running import CAUSES
from tests.fleet.jobhelp import Bench


def _shown(bench: Bench, name: str) -> np.ndarray:
    """One value a node."""
    return bench.job.shown()[name].reshape(bench.nodes, 8)


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_every_kind_has_the_same_life(kind):
    """It starts, works, is killed, starts again on other seats, and stops cleanly; its arrays keep the size of its ranks."""
    bench = Bench(kind, nodes=3, seed=5)
    job = bench.job
    bench.run(120)
    assert job.alive
    assert bench.work.load.max() > 0
    assert bench.work.memory_mib.min() > 0
    job.stop(bench.at, clean=False)
    assert (job.state, job.phase, job.alive) == ("killed", "done", False)
    job.seat([2, 0])
    job.start(bench.at, 10.0)
    bench.run(60)
    assert bench.work.load[1].max() == 0 < bench.work.load[2].max()
    assert all(len(values) == job.ranks == 16 for values in job.shown().values())
    assert set(job.phases().tolist()) <= set(range(len(PHASES)))
    assert job.place(9) == (0, 1)
    assert job.rank_of(0, 1) == 9
    assert job.rank_of(1, 0) is None
    job.stop(bench.at, clean=True)
    assert (job.state, job.clean) == ("stopped", True)


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_the_same_seed_is_the_same_life(kind):
    """Two with one seed show the same; another seed shows another."""
    shown = []
    for seed in (5, 5, 6):
        bench = Bench(kind, nodes=2, seed=seed)
        bench.run(300)
        shown.append((bench.work.load.tolist(), {k: v.tobytes() for k, v in bench.job.shown().items()}, bench.job.log.read()))
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[2][0]


@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_its_time_is_accounted_for(kind):
    """What it books is the time that its processes were there, on each of its nodes."""
    bench = Bench(kind, nodes=2, seed=5)
    bench.run(400)
    bench.job.stop(bench.at, clean=False)
    spent = np.zeros((2, len(CAUSES)), np.int64)
    for entry in bench.job.take_entries():
        spent[entry.rows, entry.cause] += entry.ms
    assert spent.sum(axis=1).tolist() == [400_000, 400_000]
    assert spent.min() >= 0


# --- sweeps -------------------------------------------------------------------------------------------------------------
def test_runs_of_a_sweep_wait_for_nobody():
    """A slow node's run takes longer; the others' step times stay as they were."""
    medians = []
    for factor in (1.0, 2.5):
        bench = Bench("sweep", nodes=4, seed=5, run_steps=[5000, 5000], sizes=[1, 1])
        bench.turn = lambda knobs, f=factor: knobs.compute.__setitem__(slice(8, 16), f)
        bench.run(100)
        seen = []
        for _ in range(40):
            bench.substep()
            seen.append(_shown(bench, "step_seconds")[:, 0])
        medians.append(np.nanmedian(seen, axis=0))
    ratio = medians[1] / medians[0]
    assert ratio[1] == pytest.approx(2.3, abs=0.25)
    assert ratio[[0, 2, 3]] == pytest.approx([1, 1, 1], abs=0.05)


def test_runs_come_and_go_each_in_its_phase():
    """After a while runs have ended and begun, evaluate and load at moments of their own."""
    bench, seen, together = Bench("sweep", nodes=6, seed=5, run_steps=[30, 60]), [set() for _ in range(6)], set()
    for _ in range(120):
        bench.substep()
        phases = [PHASES[p] for p in bench.job.phases().reshape(6, 8)[:, 0]]
        together.add(len(set(phases)))
        for node, phase in enumerate(phases):
            seen[node].add(phase)
    assert all({"init", "warmup", "train", "eval", "done"} <= phases for phases in seen)
    assert max(together) > 2


def test_a_crash_ends_one_run_of_a_sweep():
    """The node's next run begins; the others go on."""
    bench = Bench("sweep", nodes=3, seed=5)
    bench.run(200)
    steps = _shown(bench, "step")[:, 0]
    bench.turn = lambda knobs: (setattr(knobs, "crash", "oom"), setattr(knobs, "crash_rank", 10))
    bench.substep()
    bench.turn = lambda knobs: None
    bench.run(60)
    now = _shown(bench, "step")[:, 0]
    assert bench.job.alive
    assert now[1] < steps[1]
    assert (now[[0, 2]] > steps[[0, 2]]).all()


def test_a_hung_run_stands_alone():
    """Its step time ends, its GPUs hang at little power; the other runs go on."""
    bench = Bench("sweep", nodes=3, seed=5)
    bench.run(200)
    bench.turn = lambda knobs: knobs.hung.__setitem__(9, True)
    bench.substep()
    steps = _shown(bench, "step")[:, 0]
    bench.run(60)
    now = _shown(bench, "step")[:, 0]
    assert now[1] == steps[1]
    assert (now[[0, 2]] > steps[[0, 2]]).all()
    assert bench.work.load[1].max() < 0.25
    assert bench.work.busy[1].max() == 0


# --- rollout and training -------------------------------------------------------------------------------------------------
def test_rollout_and_training_take_turns():
    """Long stretches of little tensor work without traffic, then training steps with it; a step is a round."""
    bench = Bench("rollout", nodes=2, seed=5)
    bench.until(lambda: bench.job.phase == "train" and bench.job.step_seconds < 80, 1200)
    busy, traffic = [], []
    for _ in range(60):
        bench.substep()
        busy.append(float(bench.work.busy.mean()))
        traffic.append(float(bench.work.traffic.mean()))
    busy, traffic = np.array(busy), np.array(traffic)
    assert busy.max() > 0.6
    assert np.median(busy) < 0.35
    assert 0.4 < (traffic == 0).mean() < 0.9
    assert 40 < bench.job.step_seconds < 120


def test_a_slow_rank_lengthens_the_round():
    """Rollout and training both wait for it."""
    seconds = []
    for struck in (False, True):
        bench = Bench("rollout", nodes=2, seed=5)
        factor = bench.job.impact.compute(0.5) if struck else 1.0
        bench.turn = lambda knobs, f=factor: knobs.compute.__setitem__(4, f)
        bench.train().run(200)
        seconds.append(float(np.median(bench.steps(600))))
    # The slow rank's own answers may be short ones: it costs a little less than its slowness.
    assert 0.3 < seconds[1] / seconds[0] - 1 < 0.6


# --- inference ----------------------------------------------------------------------------------------------------------
@cache
def _healthy() -> Inference:
    """Three servers that have served for ten minutes: for looking at."""
    return _served()[1]


def _served(seconds: int = 600, nodes: int = 3, turn=None, **shape) -> tuple[Bench, Inference]:
    bench = Bench("inference", nodes=nodes, seed=5, **shape)
    assert isinstance(bench.job, Inference)
    bench.turn = turn or bench.turn
    bench.run(seconds)
    return bench, bench.job


def test_an_endpoint_answers_within_healthy_times():
    """First tokens within a tenth of a second or so, tokens at tens of milliseconds, little waits, the cache part full."""
    job = _healthy()
    first = job.sums["time_to_first_token"] / job.buckets["time_to_first_token"].sum(axis=1)
    token = job.sums["inter_token_latency"] / job.buckets["inter_token_latency"].sum(axis=1)
    assert (first > 0.03).all()
    assert (first < 0.6).all()
    assert (token > 0.014).all()
    assert (token < 0.06).all()
    assert (job.waiting < 20).all()
    assert (job.cache > 0).all()
    assert (job.cache < 0.6).all()


def test_counters_of_an_endpoint_agree():
    """Each request is counted once in each histogram; tokens are what requests asked for and got."""
    job = _healthy()
    ended = job.totals["success_stop"] + job.totals["success_length"]
    assert (job.buckets["e2e_request_latency"].sum(axis=1) == ended).all()
    assert (job.buckets["time_to_first_token"].sum(axis=1) == ended + job.running).all()
    assert (job.buckets["inter_token_latency"].sum(axis=1) == job.totals["generation_tokens"]).all()
    assert job.totals["generation_tokens"].sum() / ended.sum() == pytest.approx(320, rel=0.1)
    assert job.totals["prompt_tokens"].sum() / ended.sum() == pytest.approx(1100, rel=0.1)
    assert all(job.buckets[name].shape == (3, len(bounds) + 1) for name, bounds in HISTOGRAMS.items())


def test_counters_only_grow():
    """From one sub-step to the next, until a new start."""
    bench, job = _served(200)
    for _ in range(40):
        before = {name: values.copy() for name, values in job.totals.items()}
        bench.substep()
        assert all((job.totals[name] >= before[name]).all() for name in before)


def test_load_comes_in_bursts():
    """Requests a minute vary far more than a constant rate would."""
    bench, job = _served(150, nodes=1)
    arrived = []
    for _ in range(40):
        before = job.buckets["time_to_first_token"].sum()
        bench.run(20)
        arrived.append(job.buckets["time_to_first_token"].sum() - before)
    assert np.var(arrived) > 3 * np.mean(arrived)


def test_a_slow_endpoint_queues():
    """Work that takes four times as long: requests wait, first tokens come late, the cache fills."""
    healthy = _healthy()
    _, slow = _served(turn=lambda knobs: setattr(knobs, "service", 8.0))
    assert (slow.cache > 2 * healthy.cache).all()
    assert slow.waiting.sum() > healthy.waiting.sum() + 20
    assert np.nanmean(slow.first_token_seconds) > 5 * np.nanmean(healthy.first_token_seconds)


def test_one_slow_gpu_slows_its_own_server_only():
    """The other servers' tokens come as fast as before."""
    _, job = _served(300, turn=lambda knobs: knobs.compute.__setitem__(11, 2.0))
    token = job.sums["inter_token_latency"] / job.buckets["inter_token_latency"].sum(axis=1)
    assert token[1] > 1.7 * max(token[0], token[2])


def test_inference_is_no_training():
    """Its nodes exchange nothing, it has no steps, and its GPUs do little tensor work."""
    bench, job = _served(300)
    assert not job.trains
    assert job.serves
    assert not job.linked
    assert bench.work.traffic.max() == 0
    assert not bench.work.rings
    assert bench.work.busy.mean() < 0.45
