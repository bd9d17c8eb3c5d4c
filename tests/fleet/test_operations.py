"""The control door: idempotent, refusing by name, taking cluster time, healing what it should and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import rfc3339
from core.reasons import ACTION_REASONS
from core.targets import ACTION_KINDS
from core.types import Target
from fleet.frames import FleetDoor
from fleet.times import times
from fleet.verbs import VERBS
from tests.fleet.fleethelp import act, run_until, small

GPU = Target("gpu", "n03", "4", job="train-1", rank=20)
NODE = Target("node", "n03")
JOB = Target("job", job="train-1")


def _ready():
    world, ops = small(9)
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "train")
    return world, ops, FleetDoor(ops), job


def _finish(world, door, op_id: str, seconds: int = 1200):
    run_until(world, lambda: door.poll(op_id).state != "RUNNING", seconds)
    return door.poll(op_id)


def _drain(world, door, op_id: str = "i/1/1"):
    act(door, op_id, "drain", NODE)
    assert _finish(world, door, op_id).state == "DONE"


def test_same_id_same_answer_whatever_else_is_asked():
    """A repeated id gives the known outcome and starts nothing."""
    world, ops, door, _ = _ready()
    first = act(door, "i/1/1", "drain", NODE)
    again = act(door, "i/1/1", "reboot", Target("node", "n01"))
    assert first == again
    assert len(ops.running()) == 1
    done = _finish(world, door, "i/1/1")
    assert act(door, "i/1/1", "drain", NODE) == done


def test_unknown_operation_is_named():
    """Polling an id that was never asked for is no error, it is an answer."""
    _, _, door, _ = _ready()
    outcome = door.poll("i/9/9")
    assert (outcome.state, outcome.reason) == ("REFUSED", "unknown_operation")


def test_drain_with_checkpoint_waits_for_it_and_loses_no_step():
    """The job stops at the end of its next checkpoint, with phase done, and the node is ours."""
    world, _, door, job = _ready()
    act(door, "i/1/1", "drain", NODE, wait_for="checkpoint")
    assert door.nodes()["n03"].state == "draining"
    outcome = _finish(world, door, "i/1/1", 400)
    assert (outcome.state, outcome.reason) == ("DONE", "done")
    assert outcome.took_seconds > 10
    assert (job.state, job.phase) == ("stopped", "done")
    assert job.last_checkpoint == job.step
    view = door.nodes()["n03"]
    assert (view.state, view.held_by, view.jobs) == ("drained", "greylag", ("train-1",))


def test_drain_without_waiting_kills_the_job():
    """Steps since the checkpoint are lost and the ranks are gone."""
    world, _, door, job = _ready()
    world.advance(world.now_ms + 60_000)
    act(door, "i/1/1", "drain", NODE)
    assert _finish(world, door, "i/1/1").took_seconds <= 15
    assert job.state == "killed"
    assert job.last_checkpoint < job.step


DURATIONS = [("reset_gpu", 60), ("reboot", 300), ("diagnose", 120), ("undrain", 5), ("replace", 90)]


@pytest.mark.parametrize(("kind", "seconds"), DURATIONS)
def test_verbs_take_cluster_time(kind, seconds):
    """Each verb takes its time and says so."""
    world, _, door, _ = _ready()
    _drain(world, door)
    assert act(door, "i/1/2", kind, GPU).state == "RUNNING"
    outcome = _finish(world, door, "i/1/2")
    assert (outcome.state, outcome.reason) == ("DONE", "done")
    assert seconds <= outcome.took_seconds <= seconds + 5


@pytest.mark.parametrize("kind", ["notify", "escalate"])
def test_words_are_done_at_once(kind):
    """Telling a person takes no time."""
    _, _, door, _ = _ready()
    assert act(door, "i/1/1", kind, NODE).state == "DONE"


REFUSALS = [
    ("drain", Target("node", "n99"), "node_unknown"), ("drain", JOB, "node_unknown"),
    ("reset_gpu", GPU, "not_drained"), ("reboot", NODE, "not_drained"), ("diagnose", NODE, "not_drained"),
    ("resume_job", Target("job", job="other"), "job_unknown"), ("dance", NODE, "not_supported"),
]


@pytest.mark.parametrize(("kind", "target", "reason"), REFUSALS)
def test_refusals_are_named(kind, target, reason):
    """What cannot be done is refused at once, by a reason of the closed list."""
    _world, ops, door, _ = _ready()
    outcome = act(door, "i/1/1", kind, target)
    assert (outcome.state, outcome.reason) == ("REFUSED", reason)
    assert reason in ACTION_REASONS
    assert door.poll("i/1/1") == outcome
    assert ops.running() == []


def test_a_node_in_work_is_busy():
    """Two operations never touch one node at a time; another node is free."""
    _world, _, door, _ = _ready()
    act(door, "i/1/1", "drain", NODE)
    assert act(door, "i/1/2", "drain", GPU).reason == "target_busy"
    assert act(door, "i/1/3", "drain", Target("node", "n01")).state == "RUNNING"


def test_another_hands_node_is_left_alone():
    """A node that a person drained is neither undrained nor reset."""
    world, _, door, _ = _ready()
    world.other_hand("n03", "person")
    for i, kind in enumerate(("drain", "undrain", "reset_gpu", "replace", "reboot", "diagnose", "exclude_node")):
        assert act(door, f"i/1/{i}", kind, NODE).reason == "other_hand"
    assert door.nodes()["n03"].held_by == "person"


@pytest.mark.parametrize(("by", "window"), [("maintenance", "maintenance"), ("person", None), (None, None)])
def test_a_planned_drain_is_a_maintenance_in_the_view(by, window):
    """The fleet's own maintenance is, a person's drain is another hand's and no more; it ends when the node is given back."""
    world, _, door, _ = _ready()
    world.other_hand("n03", "maintenance")
    world.other_hand("n03", by)
    assert (door.nodes()["n03"].held_by, door.nodes()["n03"].maintenance) == (by, window)


def test_another_hand_may_give_back_what_we_hold():
    """A person resumes a node that we drained: it serves again and is nobody's; the next operation finds it so."""
    world, _, door, _ = _ready()
    _drain(world, door)
    assert door.nodes()["n03"].held_by == "greylag"
    world.other_hand("n03", None)
    assert (door.nodes()["n03"].state, door.nodes()["n03"].held_by) == ("in_service", None)
    assert act(door, "i/1/2", "reboot", NODE).reason == "not_drained"


def test_the_doors_verbs_are_the_kinds_of_actions():
    """No more and no less than DESIGN §7's list."""
    assert set(VERBS) == set(ACTION_KINDS)


@pytest.mark.parametrize("kind", ["drain", "undrain", "reset_gpu", "reboot", "replace", "exclude_node", "resume_job"])
def test_what_does_not_come_off_is_undone(kind):
    """An operation that fails for no reason of its own says so and leaves no node half done."""
    world, ops, door, job = _ready()
    if kind not in ("drain", "replace", "exclude_node", "resume_job"):
        _drain(world, door)
    before = (world.nodes[2].state, list(job.nodes))
    ops.times = replace(ops.times, fails={kind: 1.0})
    act(door, "i/2/1", kind, JOB if kind == "resume_job" else NODE)
    outcome = _finish(world, door, "i/2/1")
    assert (outcome.state, outcome.reason) == ("FAILED", "backend_failed")
    after = {"reboot": "down", "replace": "drained"}.get(kind, before[0])
    assert (world.nodes[2].state, list(job.nodes)) == (after, before[1])
    assert {n.state for n in world.nodes} <= {"in_service", "spare", "drained", "down"}
    assert ops.running() == []


def test_refusing_control_refuses_everything():
    """With the door frozen nothing starts."""
    _world, ops, door, _ = _ready()
    ops.refuse = True
    for i, kind in enumerate(ACTION_KINDS):
        outcome = act(door, f"i/1/{i}", kind, GPU)
        assert (outcome.state, outcome.reason) == ("REFUSED", "frozen")
    assert ops.running() == []


def test_already_so_is_done():
    """Draining what is drained and undraining what serves succeeds without doing anything."""
    world, _, door, _ = _ready()
    assert (act(door, "i/1/1", "undrain", NODE).state, door.poll("i/1/1").reason) == ("DONE", "already_so")
    _drain(world, door, "i/1/2")
    assert act(door, "i/1/3", "drain", NODE).reason == "already_so"


def test_deadline_fails_and_undoes():
    """A drain that waits for a checkpoint beyond its deadline fails, and the node serves on."""
    world, _, door, job = _ready()
    run_until(world, lambda: job.phase == "checkpoint")
    run_until(world, lambda: job.phase == "train")
    act(door, "i/1/1", "drain", NODE, 60.0, wait_for="checkpoint")
    outcome = _finish(world, door, "i/1/1")
    assert (outcome.state, outcome.reason) == ("FAILED", "deadline_exceeded")
    assert door.nodes()["n03"].state == "in_service"
    assert job.alive


def test_no_spare_is_a_named_failure():
    """The second replacement finds no spare."""
    world, _, door, _ = _ready()
    act(door, "i/1/1", "replace", NODE)
    _finish(world, door, "i/1/1")
    act(door, "i/1/2", "replace", Target("node", "n01"))
    outcome = _finish(world, door, "i/1/2")
    assert (outcome.state, outcome.reason) == ("FAILED", "no_spare")


def test_resume_needs_all_its_nodes_and_shrink_does_not():
    """With a node out, resuming fails by name; shrinking goes on without it."""
    world, _, door, job = _ready()
    _drain(world, door)
    act(door, "i/1/2", "resume_job", JOB, mode="full")
    assert _finish(world, door, "i/1/2").reason == "no_spare"
    act(door, "i/1/3", "shrink_job", JOB)
    assert _finish(world, door, "i/1/3").state == "DONE"
    assert job.ranks == 24
    run_until(world, lambda: job.phase == "train")


def test_reboot_resets_counters_and_is_silent_meanwhile():
    """Counters begin anew, boot time is new, persistent counts stay, the exporters do not answer meanwhile."""
    world, _, door, _ = _ready()
    _drain(world, door)
    boot = world.nodes[2].boot_ms
    act(door, "i/1/2", "reboot", NODE)
    world.advance(world.now_ms + 60_000)
    assert not world.nodes[2].up
    ever = world.gpus.ecc_correctable_ever[2].copy()
    _finish(world, door, "i/1/2")
    assert world.nodes[2].boot_ms > boot
    assert world.nics.counters["sent_bytes"][2].max() == 0
    assert world.gpus.energy_mj[2].max() < 1e7
    assert np.array_equal(world.gpus.ecc_correctable_ever[2], ever)


def _step_time(world, job, seconds: int = 240) -> float:
    seen = {}
    for _ in range(seconds // 5):
        world.advance(world.now_ms + 5_000)
        if job.phase == "train":
            seen[job.step] = job.step_seconds
    return float(np.median(list(seen.values())))


HEALS = [
    ("thermal_throttle", GPU, ["drain", "replace", "resume_job"]),
    ("packet_loss", Target("nic", "n03", "mlx5_4/1"), ["drain", "replace", "resume_job"]),
    ("stalled_loss", GPU, ["restart_process"]),
    ("stalled_loss", GPU, ["resume_job"]),
    ("stalled_loss", GPU, ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]),
]


@pytest.mark.parametrize(("fault", "target", "ladder"), HEALS)
def test_the_right_ladder_heals_and_the_step_time_is_back(fault, target, ladder):
    """After the ladder the job trains again, goes back to its checkpoint, and steps within 5 % of before."""
    world, _, door, job = _ready()
    before = _step_time(world, job)
    run_until(world, lambda: job.phase == "train")
    world.inject(fault, target, 0.3)
    world.advance(world.now_ms + 120_000)
    reached, saved = job.step, job.last_checkpoint
    for i, kind in enumerate(ladder):
        act(door, f"i/1/{i}", kind, target, **({"mode": "full"} if kind == "resume_job" else {}))
        assert _finish(world, door, f"i/1/{i}").state == "DONE"
    run_until(world, lambda: job.phase == "warmup", 120)
    assert saved <= job.step <= reached
    run_until(world, lambda: job.phase == "train", 300)
    world.advance(world.now_ms + 60_000)
    assert _step_time(world, job) <= 1.05 * before
    assert world.faults[0].cured_at is not None


@pytest.mark.parametrize(("fault", "target"), [("thermal_throttle", GPU), ("packet_loss", Target("nic", "n03", "mlx5_4/1"))])
def test_a_reset_or_reboot_cures_no_hardware(fault, target):
    """The defect stays, the diagnosis finds it, and the job is slow again."""
    world, _, door, job = _ready()
    before = _step_time(world, job, 120)
    world.inject(fault, target, 0.35)
    world.advance(world.now_ms + 60_000)
    outcomes = {}
    for i, kind in enumerate(["drain", "reset_gpu", "reboot", "diagnose", "undrain", "resume_job"]):
        act(door, f"i/1/{i}", kind, target)
        outcomes[kind] = _finish(world, door, f"i/1/{i}")
    assert (outcomes["diagnose"].state, outcomes["diagnose"].reason) == ("FAILED", "diagnose_failed")
    run_until(world, lambda: job.phase == "train", 300)
    world.advance(world.now_ms + 120_000)
    assert _step_time(world, job) > 1.15 * before
    assert world.faults[0].cured_at is None


def test_a_replaced_part_keeps_its_defect_and_leaves():
    """The bad node stays drained with its fault; the job runs on the spare in its place and rank order."""
    world, _, door, job = _ready()
    world.inject("packet_loss", Target("nic", "n03", "mlx5_4/1"), 0.3)
    act(door, "i/1/1", "replace", NODE)
    _finish(world, door, "i/1/1")
    assert [world.nodes[n].name for n in job.nodes] == ["n01", "n02", "n05", "n04"]
    assert door.nodes()["n05"].state == "in_service"
    assert (door.nodes()["n03"].state, world.nodes[2].retired) == ("drained", True)
    assert world.defects(2)
    act(door, "i/1/2", "diagnose", NODE)
    assert _finish(world, door, "i/1/2").reason == "diagnose_failed"
    act(door, "i/1/3", "undrain", NODE)
    _finish(world, door, "i/1/3")
    assert door.nodes()["n03"].state == "spare"


def test_exclude_takes_the_node_out_of_its_job():
    """The job goes on without the node once it is started again."""
    world, _, door, job = _ready()
    act(door, "i/1/1", "exclude_node", GPU)
    _finish(world, door, "i/1/1")
    assert job.ranks == 24
    act(door, "i/1/2", "resume_job", JOB)
    assert _finish(world, door, "i/1/2").state == "DONE"


VERB = st.sampled_from([*ACTION_KINDS, "dance"])
PLACE = st.sampled_from(["n01", "n02", "n03", "n05", "n99"])


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["fast", "real"]), st.lists(st.tuples(VERB, PLACE, st.booleans(), st.integers(0, 12)), max_size=12))
def test_any_order_of_operations_keeps_the_world_whole(durations, plan):
    """Whatever is asked, at whatever times: nothing raises, outcomes are final once, every node has one state, no job shares
    a node twice."""
    world, ops = small(4, before_seconds=120)
    ops.times = ops.life.times = times(durations)
    door = FleetDoor(ops)
    final: dict[str, object] = {}
    for i, (kind, node, wait, pause) in enumerate(plan):
        args = {"wait_for": "checkpoint"} if wait else {}
        act(door, f"i/1/{i}", kind, Target("node", node), 200.0, **args)
        world.advance(world.now_ms + pause * 15_000)
        for k in range(i + 1):
            outcome = door.poll(f"i/1/{k}")
            assert outcome.state in ("RUNNING", "DONE", "FAILED", "REFUSED")
            if outcome.state != "RUNNING":
                assert outcome.reason in ACTION_REASONS
                assert final.setdefault(outcome.action_id, outcome) == outcome
    job = world.jobs["train-1"]
    assert len(set(job.nodes)) == len(job.nodes)
    assert job.nodes
    assert {v.state for v in door.nodes().values()} <= {
        "in_service", "spare", "draining", "drained", "rebooting", "provisioning", "down"}


def test_a_job_waits_for_nodes_and_starts_when_they_are_free():
    """`wait_for: nodes`: with a node out and no spare the job is queued; it starts once another node is a spare."""
    world, _, door, job = _ready()
    act(door, "i/1/1", "drain", Target("node", "n05"))
    _drain(world, door, "i/1/2")
    act(door, "i/1/3", "resume_job", JOB, 3000.0, wait_for="nodes")
    world.advance(world.now_ms + 120_000)
    assert (job.state, door.poll("i/1/3").state) == ("queued", "RUNNING")
    act(door, "i/1/4", "undrain", Target("node", "n05"))
    assert _finish(world, door, "i/1/3").state == "DONE"
    assert [world.nodes[n].name for n in job.nodes] == ["n01", "n02", "n04", "n05"]


def test_ways_of_recovery_cost_what_they_cost():
    """With real times a full start takes longer than one that keeps the processes; an unknown way is refused."""
    took = {}
    for way in ("full", "in_process"):
        world, ops, door, _ = _ready()
        ops.times = times("real")
        act(door, "i/1/1", "resume_job", JOB, 3000.0, mode=way)
        took[way] = _finish(world, door, "i/1/1").took_seconds
        assert act(door, "i/1/2", "resume_job", JOB, mode="magic").reason == "not_supported"
    assert took["full"] > took["in_process"]


@pytest.mark.parametrize("verb", ["resume_job", "restart_process", "shrink_job"])
def test_a_start_from_before_a_moment_loads_nothing_newer(verb):
    """`before`: the newest checkpoint that was complete by then, now and at every later start."""
    world, _, door, job = _ready()
    run_until(world, lambda: len(job.store.complete) >= 2, 3600)
    old = job.store.complete[-2]
    act(door, "i/1/1", verb, JOB, before=rfc3339(old.done + 1000))
    assert _finish(world, door, "i/1/1").state == "DONE"
    assert job.last_checkpoint == old.step


@pytest.mark.parametrize(("before", "reason"), [("2020-01-01T00:00:00Z", "no_checkpoint"), ("yesterday", "not_supported")])
def test_where_nothing_is_old_enough_the_start_is_refused(before, reason):
    """The job goes on as it is, and no checkpoint is thrown away."""
    world, _, door, job = _ready()
    run_until(world, lambda: len(job.store.complete) >= 1, 3600)
    outcome = act(door, "i/1/1", "resume_job", JOB, before=before)
    assert (outcome.state, outcome.reason) == ("REFUSED", reason)
    assert (job.alive, len(job.store.complete)) == (True, 1)
