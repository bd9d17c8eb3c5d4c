"""Checkpoints in their tiers, ways of recovery, and the queue for freed nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadInput
from fleet import recovery
from fleet.checkpoints import TIERS, CheckpointStore
from fleet.job import Job
from fleet.recovery import WAYS, Queue
from tests.fleet.fleethelp import run_until, small
from tests.fleet.jobhelp import Bench

NODES = (0, 1, 2, 3)


def _store(*tiers: str, step: int = 100) -> CheckpointStore:
    """A store with one complete checkpoint in each tier, a step apart, the first tier's the newest."""
    store = CheckpointStore.of("lustre", 300.0, ())
    for index, name in enumerate(tiers):
        store.begin(TIERS[name], step - index, 0, 10.0, NODES)
    store.plan(0)
    store._due.update(dict.fromkeys(TIERS, 0))
    store.extra = tuple((TIERS[name], 60.0) for name in TIERS if name != "lustre")
    store.settle(10_000, False)
    return store


# lost: (node, memory only) in order; what a start on the given nodes can use then.
LOSSES = [
    ("nothing is lost", (), NODES, {"peer", "nvme", "lustre", "object"}),
    ("a reboot takes a node's memory, its neighbour has a copy", ((1, True),), NODES, {"peer", "nvme", "lustre", "object"}),
    ("two neighbours' memory", ((1, True), (2, True)), NODES, {"nvme", "lustre", "object"}),
    ("two that are no neighbours", ((0, True), (2, True)), NODES, {"peer", "nvme", "lustre", "object"}),
    ("a node leaves with its disks", ((1, False),), (0, 9, 2, 3), {"peer", "lustre", "object"}),
    ("a node is only not there", (), (0, 9, 2, 3), {"peer", "lustre", "object"}),
    ("two neighbours leave", ((1, False), (2, False)), (0, 9, 8, 3), {"lustre", "object"}),
    ("all leave", tuple((n, False) for n in NODES), (5, 6, 7, 8), {"lustre", "object"}),
]


@pytest.mark.parametrize(("name", "lost", "nodes", "left"), LOSSES, ids=[row[0] for row in LOSSES])
def test_what_a_loss_leaves(name, lost, nodes, left):
    """Memory goes with a reboot, disks with the node; a neighbour's copy bridges one loss; shared storage stays."""
    store = _store("peer", "nvme", "lustre", "object")
    for node, memory_only in lost:
        store.node_lost(node, memory_only)
    assert {saved.tier.name for saved in store.usable(nodes)} == left


def test_the_newest_usable_one_comes_first_and_the_quickest_of_equals():
    """A restart takes the newest step it can read."""
    store = _store("object", "nvme", "lustre", "peer")
    assert [s.tier.name for s in store.usable(NODES)] == ["object", "nvme", "lustre", "peer"]
    equal = _store("object", "lustre")
    equal.complete[1].step = equal.complete[0].step
    assert equal.usable(NODES)[0].tier.name == "lustre"


def test_what_is_under_way_is_no_checkpoint():
    """An aborted save leaves nothing; a failed one is counted."""
    store = CheckpointStore.of("lustre", 300.0, ())
    store.plan(0)
    store.begin(TIERS["lustre"], 7, 0, 10.0, NODES)
    store.abort()
    assert (store.newest(), store.lost) == (None, 1)
    store.plan(0)
    store.begin(TIERS["lustre"], 8, 0, 10.0, NODES)
    store.settle(10_000, True)
    assert (store.newest(), store.failures) == (None, 1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_each_tier_keeps_its_number(gaps):
    """However many are saved, the newest `keeps` stay."""
    store, at = CheckpointStore.of("nvme", 60.0, ()), 0
    store.plan(0)
    for step, gap in enumerate(gaps):
        store.begin(TIERS["nvme"], step, at, float(gap), NODES)
        at += gap * 1000
        store.settle(at, False)
    assert [s.step for s in store.complete] == list(range(len(gaps)))[-TIERS["nvme"].keeps:]


# --- in a job -----------------------------------------------------------------------------------------------------------
def test_tiers_save_on_plans_of_their_own():
    """Peers each minute, local disks, the shared file system and the object store: each tier has its own newest one."""
    bench = Bench(seed=3, extra_tiers=[["peer", 60], ["nvme", 120], ["object", 400]]).train()
    bench.run(900)
    job = bench.job
    steps = {name: job.store.newest(name).step for name in TIERS}
    assert job.last_checkpoint == max(steps.values())
    assert min(steps.values()) > 18_000
    assert job.step - steps["peer"] < 30
    assert steps["peer"] > steps["nvme"] > steps["lustre"]
    assert job.checkpoints == 2


def test_only_the_shared_tier_stops_the_training_for_long():
    """A save to peers' memory blocks for a moment, one to the file system for half a minute."""
    longest = {}
    for tier in ("peer", "lustre"):
        bench = Bench(seed=3, checkpoint_tier=tier, checkpoint_every_seconds=120).train()
        bench.run(600)
        spent = sum(e.ms for e in bench.job.take_entries() if e.cause == 4)
        longest[tier] = spent / bench.job.checkpoints / 1000
    assert longest["peer"] < 0.5
    assert 20 <= longest["lustre"] <= 30


def test_a_crash_during_a_save_loses_it():
    """The restart begins at the checkpoint before, and the steps since are done again."""
    bench = Bench(seed=3, checkpoint_every_seconds=100).train()
    job = bench.job
    bench.until(lambda: job.checkpoints == 1)
    complete = job.last_checkpoint
    bench.until(lambda: job.phase == "checkpoint")
    bench.turn = lambda knobs: setattr(knobs, "crash", "nccl")
    bench.substep()
    bench.turn = lambda knobs: None
    reached = job.step
    job.start(bench.at, 20.0)
    assert (job.step, job.last_checkpoint) == (complete, complete)
    assert reached > complete
    assert job.store.lost == 1


def test_a_save_that_fails_says_so_and_training_goes_on():
    """The newest checkpoint grows old; the log names the rank and the error."""
    bench = Bench(seed=3, checkpoint_every_seconds=60)
    bench.turn = lambda knobs: setattr(knobs, "saves_fail", True)
    bench.train().run(300)
    job = bench.job
    assert (job.alive, job.checkpoints, job.last_checkpoint) == (True, 0, 18_000)
    assert job.store.failures >= 2
    assert "CheckpointException ranks:dict_keys([31])" in job.log.read().decode()


def test_slow_storage_lengthens_saves():
    """A save takes as many times as long."""
    bench = Bench(seed=3, checkpoint_every_seconds=60).train()
    bench.turn = lambda knobs: setattr(knobs, "save_slowness", 4.0)
    bench.until(lambda: bench.job.phase == "checkpoint")
    began = bench.at
    bench.until(lambda: bench.job.phase == "train")
    assert 75 <= (bench.at - began) / 1000 <= 125


# --- ways back ----------------------------------------------------------------------------------------------------------
def _mean(way: str, tier: str | None = "lustre", ranks: int = 1024) -> float:
    rng = np.random.default_rng(1)
    return float(np.mean([recovery.seconds(WAYS[way], ranks, 5.6e10, TIERS[tier] if tier else None, 1.0, rng) for _ in range(200)]))


def test_smaller_ways_back_cost_less():
    """In-process before peers before partial before full; shrinking is quicker than a full restart."""
    assert _mean("in_process") < _mean("peers") < _mean("partial") < _mean("full")
    assert _mean("shrink") < _mean("full")


@pytest.mark.parametrize(("tier", "other"), [("nvme", "lustre"), ("lustre", "object")])
def test_where_the_checkpoint_lies_counts(tier, other):
    """Local disks are read before the shared file system, that before the object store."""
    assert _mean("partial", tier) < _mean("partial", other)


def test_a_partial_restart_keeps_the_healthy_ranks_memory():
    """While one exchanged node loads, the others hold what they had."""
    bench = Bench(nodes=5, seed=3, start=False)
    job = bench.job
    job.seat([0, 1, 2, 3])
    job.start(0, 20.0)
    bench.train()
    job.stop(bench.at, clean=False)
    job.seat([0, 1, 4, 3])
    job.start(bench.at, 60.0, mode="partial")
    bench.run(10)
    memory = bench.work.memory_mib.max(axis=1)
    assert memory[[0, 1, 3]].min() == job.shape.memory_mib
    assert memory[4] < 0.6 * job.shape.memory_mib
    assert memory[2] == 0


@pytest.mark.parametrize(("tiers", "tier", "quick"), [([["peer", 30]], "peer", True), ([], "lustre", False)])
def test_resuming_from_peers_needs_their_memory(tiers, tier, quick):
    """With a copy in the peers' memory the restart reads that; without one it reads the newest there is, and takes longer."""
    bench = Bench(nodes=4, seed=3, extra_tiers=tiers, checkpoint_every_seconds=60).train()
    job = bench.job
    bench.run(150)
    job.stop(bench.at, clean=False)
    job.seat([0, 1, 2, 3])
    job.start(bench.at, mode="peers")
    assert job.step == job.store.newest(tier).step
    began = bench.at
    bench.until(lambda: job.phase != "init")
    assert ((bench.at - began) / 1000 < 62) == quick


def test_shrinking_and_growing_change_the_replicas():
    """Fewer nodes are fewer replicas, from the same checkpoint; more nodes are more again."""
    bench = Bench(nodes=8, seed=3, pp=2, checkpoint_every_seconds=60).train()
    job = bench.job
    bench.until(lambda: job.checkpoints == 1)
    for nodes, mode in ((list(range(6)), "shrink"), (list(range(8)), "grow")):
        step = job.last_checkpoint
        job.stop(bench.at, clean=False)
        job.seat(nodes)
        job.start(bench.at, mode=mode)
        assert (job.groups.dp, job.step) == (len(nodes) // 2, step)
        bench.until(lambda: job.phase == "train")


def test_an_unknown_way_is_refused():
    """The allowed ones are named."""
    with pytest.raises(BadInput, match="in_process"):
        Bench(start=False).job.start(0, mode="magic")


# --- the queue ----------------------------------------------------------------------------------------------------------
def test_a_job_waits_for_a_freed_node():
    """One node short: it starts once a spare is free, on it."""
    world, _ = small(nodes=4, spares=0)
    job, queue = world.jobs["train-1"], Queue(world)
    world.watchers.append(queue)
    world.nodes[3].state = "drained"
    queue.wait(job, 4, world.now_ms)
    world.advance(world.now_ms + 60_000)
    assert (job.state, queue.waiting) == ("queued", ["train-1"])
    assert world.goodput.gpu_seconds("train-1")["queue_wait"] == pytest.approx(3 * 8 * 60, abs=8 * 4 * 5)
    world.nodes[3].state = "spare"
    run_until(world, lambda: job.state == "running", 10)
    assert (job.nodes, queue.waiting, world.nodes[3].state) == ([0, 1, 2, 3], [], "in_service")


def test_an_elastic_job_starts_on_fewer():
    """With `least` it takes what is there."""
    world, _ = small(nodes=4, spares=0)
    job, queue = world.jobs["train-1"], Queue(world)
    world.nodes[3].state = "drained"
    queue.wait(job, 4, world.now_ms, mode="shrink", least=2)
    queue.step(world.now_ms)
    assert isinstance(job, Job)
    assert (job.state, job.nodes, job.groups.dp) == ("running", [0, 1, 2], 3)


@pytest.mark.parametrize(("nodes", "least"), [(0, None), (99, None), (2, 3)])
def test_what_can_never_start_is_refused(nodes, least):
    """A number of nodes that the fleet has not."""
    world, _ = small(nodes=4, spares=0)
    with pytest.raises(BadInput):
        Queue(world).wait(world.jobs["train-1"], nodes, world.now_ms, least=least)
