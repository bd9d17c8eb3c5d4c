"""The time accounts: every GPU-millisecond has one cause, whatever happens."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.jobs import make_job, shape_of
from fleet.running import CAUSES
from fleet.world import World
from tests.fleet.fleethelp import small
from tests.fleet.jobhelp import Bench

KINDS = ("training", "sweep", "rollout", "inference")
STATES = ("spare", "drained", "draining", "rebooting", "provisioning", "down", "in_service")


def _mixed(seed: int) -> World:
    """Two nodes for each kind of work, and two spares."""
    world = World(8, 2, seed, job=None)
    for index, kind in enumerate(KINDS):
        rng = np.random.default_rng([seed, index])
        world.add_job(make_job(kind, kind, shape_of(kind, {}), (2 * index, 2 * index + 1), 8, rng))
    return world


STEPS = st.lists(st.tuples(
    st.sampled_from(["wait", "stop", "kill", "start", "hang", "release", "crash", "seat", "state", "test"]),
    st.integers(0, 3), st.integers(0, 7), st.integers(1, 120_000)), min_size=1, max_size=10)


def _do(world: World, what: str, which: int, node: int, hung: dict[str, bool]) -> None:
    job = world.jobs[KINDS[which]]
    if what in ("stop", "kill"):
        job.stop(world.now_ms, clean=what == "stop")
    elif what == "start" and not job.alive:
        job.start(world.now_ms, 15.0)
    elif what in ("hang", "release"):
        hung[job.name] = what == "hang"
    elif what == "crash" and hasattr(job, "crash") and job.alive:
        job.crash("ecc", 1, world.now_ms)
    elif what == "seat" and not job.alive:
        job.seat(list(reversed(job.nodes)))
    elif what == "state":
        world.nodes[node].state = STATES[node % len(STATES)]
    elif what == "test":
        world.testing ^= {node}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 3), STEPS)
def test_the_causes_add_up_to_all_gpu_time(seed, steps):
    """Exactly, for the fleet and for each node, at every moment, whatever is done to jobs and nodes in between."""
    world, hung = _mixed(seed), dict.fromkeys(KINDS, False)
    apply = world.plants.apply

    def struck(of, at):
        apply(of, at)
        for name, yes in hung.items():
            of.knobs.jobs[name].hung[0] = yes
    world.plants.apply = struck
    for what, which, node, ms in steps:
        _do(world, what, which, node, hung)
        world.advance(world.now_ms + ms)
        booked = world.goodput.nodes
        assert (booked.sum(axis=1) == world.goodput._at - world.start_ms).all()
        assert (booked >= 0).all()
    total = sum(world.goodput.gpu_seconds().values())
    assert total == pytest.approx(world.goodput.elapsed_gpu_seconds(), abs=1e-6)


def test_a_job_that_only_trains_is_productive():
    """A quarter of an hour: loading, warm-up and checkpoints are known to the second, the rest is productive."""
    world, _ = small(before_seconds=0)
    world.advance(world.now_ms + 900_000)
    spent = world.goodput.gpu_seconds("train-1")
    assert sum(spent.values()) == pytest.approx(4 * 8 * 900)
    assert 40 <= spent["init"] / 32 <= 60
    assert 40 <= spent["checkpoint"] / 32 <= 60
    assert 25 <= spent["warmup"] / 32 <= 45
    assert spent["slow"] < 0.01 * sum(spent.values())
    assert spent["lost_work"] == spent["hung"] == spent["restart"] == 0
    assert world.goodput.gpu_seconds()["spare"] == 8 * 900


def _spent(bench: Bench) -> dict[str, int]:
    out = dict.fromkeys(CAUSES, 0)
    for entry in bench.job.take_entries():
        out[CAUSES[entry.cause]] += int(np.broadcast_to(entry.ms, entry.rows.shape).sum())
    return {name: ms for name, ms in out.items() if ms}


def test_a_slow_rank_costs_what_it_adds():
    """A step 40 % longer: of 100 seconds about 29 are slow."""
    bench = Bench(nodes=2, seed=4, checkpoint_every_seconds=1e9).train()
    factor = bench.job.impact.compute(0.4)
    bench.turn = lambda knobs: knobs.compute.__setitem__(3, factor)
    bench.run(30)
    bench.job.take_entries()
    bench.run(900)
    spent = _spent(bench)
    assert spent["slow"] / sum(spent.values()) == pytest.approx(0.4 / 1.4, abs=0.03)


def test_steps_done_again_are_lost_work():
    """After a crash the steps since the checkpoint are done twice, and the step under way was for nothing."""
    bench = Bench(nodes=2, seed=4, checkpoint_every_seconds=1e9).train()
    bench.run(300)
    job = bench.job
    done, first = job.step - 18_000, _spent(bench)
    bench.turn = lambda knobs: setattr(knobs, "crash", "segfault")
    bench.substep()
    bench.turn = lambda knobs: None
    job.start(bench.at, 30.0)
    bench.until(lambda: job.step > 18_000 + done)
    spent = _spent(bench)
    assert spent["restart"] == 2 * 30_000
    assert spent["lost_work"] == pytest.approx(first["productive"] + first["warmup"], rel=0.15)


def test_a_hang_is_hung_until_somebody_ends_it():
    """From the first moment to the stop."""
    bench = Bench(nodes=2, seed=4).train()
    bench.job.take_entries()
    bench.turn = lambda knobs: knobs.hung.__setitem__(3, True)
    bench.run(200)
    bench.job.stop(bench.at, clean=False)
    assert _spent(bench)["hung"] == 2 * 200_000


def test_a_watchdog_ends_a_hang_after_ten_minutes():
    """The job fails; its nodes then wait for somebody to start it."""
    world, _ = small()
    job = world.jobs["train-1"]
    job.hang(3, world.now_ms)
    world.knobs.jobs["train-1"].hung[3] = True
    job.suffer = lambda knobs, at: None
    world.advance(world.now_ms + 700_000)
    spent = world.goodput.gpu_seconds("train-1")
    assert job.state == "failed"
    assert (spent["hung"], spent["restart"]) == (32 * 600, 32 * 100)


def test_nodes_outside_jobs_have_causes_too():
    """Spares, drained nodes and tests are in the denominator."""
    world, _ = small(spares=2)
    before = world.goodput.gpu_seconds()
    world.nodes[4].state = "drained"
    world.testing.add(5)
    world.advance(world.now_ms + 50_000)
    now = world.goodput.gpu_seconds()
    assert {k: now[k] - before[k] for k in ("drained", "diagnosing", "spare")} == {"drained": 400, "diagnosing": 400, "spare": 0}


def test_the_view_is_json_and_adds_up():
    """Fleet and jobs with their ratio."""
    world, _ = small()
    view = json.loads(json.dumps(world.goodput.view()))
    assert sum(view["fleet"]["gpu_seconds"].values()) == pytest.approx(view["gpu_seconds_elapsed"])
    assert 0.4 < view["jobs"]["train-1"]["goodput_ratio"] < 1
    assert view["fleet"]["goodput_ratio"] < view["jobs"]["train-1"]["goodput_ratio"]
