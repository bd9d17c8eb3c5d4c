"""What the fleet's health check answers to who accused a part, and what a reset does to what watches the GPU."""

import pytest

from core.reasons import ACTION_REASONS
from core.types import Action, Target
from fleet import health
from fleet.build import build_world
from fleet.frames import FleetDoor
from fleet.health import SHOWS, answer

CLEAN = tuple(health.TestResult(name) for name in SHOWS)


def found(test, *words):
    return tuple(health.TestResult(name, words if name == test else ()) for name in SHOWS)


ANSWERS = [
    (found("gpu_pressure", "throttled by heat on GPU 3"), "thermal_throttle", "3", ("FAILED", "diagnose_confirmed")),
    (found("gpu_pressure", "throttled by heat on GPU 5"), "thermal_throttle", "3", ("FAILED", "diagnose_failed")),
    (found("gpu_pressure", "throttled by heat on GPU 5"), "thermal_throttle", None, ("FAILED", "diagnose_confirmed")),
    (found("memory", "correctable errors on GPU 3"), "thermal_throttle", "3", ("FAILED", "diagnose_failed")),
    (found("bandwidth", "a slow or lossy port on NIC 4"), "packet_loss", "mlx5_4/1", ("FAILED", "diagnose_confirmed")),
    (CLEAN, "thermal_throttle", "3", ("DONE", "diagnose_refuted")), (CLEAN, "link_flap", "mlx5_4/1", ("DONE", "no_fault_found")),
    (CLEAN, "silent_corruption", "3", ("DONE", "no_fault_found")), (CLEAN[:2], "thermal_throttle", "3", ("DONE", "no_fault_found")),
    (CLEAN, None, None, ("DONE", "done")), (found("cpu", "a fan is slow"), None, None, ("FAILED", "diagnose_failed")),
]


@pytest.mark.parametrize(("results", "fault", "device", "said"), ANSWERS)
def test_the_answer_is_about_the_accusation(results, fault, device, said):
    """Confirmed where a test of the fault failed on the accused part, refuted where it passed there."""
    state, reason, detail = answer(results, fault, device)
    assert (state, reason) == said
    assert reason in ACTION_REASONS
    assert detail


def act(door, number, kind, target, **args):
    action = Action(f"inc-0/1/{number}", kind, target, args, 3600.0, "act", "inc-0", 1, number, 0, "policy")
    return door.submit(action)


def done(world, door, number, seconds=900):
    for _ in range(seconds // 5):
        world.advance(world.now_ms + 5_000)
        if door.poll(f"inc-0/1/{number}").state != "RUNNING":
            break
    return door.poll(f"inc-0/1/{number}")


@pytest.fixture
def fleet():
    """Four nodes and a spare, and the door to them."""
    world, operations = build_world(4, 1, 3)
    return world, FleetDoor(operations)


@pytest.mark.parametrize(("planted", "accused", "reason"), [
    ("thermal_throttle", "thermal_throttle", "diagnose_confirmed"), (None, "thermal_throttle", "diagnose_refuted"),
    ("packet_loss", "thermal_throttle", "diagnose_failed")])
def test_a_diagnosis_of_a_node_answers_with_reason_and_detail(fleet, planted, accused, reason):
    """Through the door, on a drained node; a node that passed is known as checked."""
    world, door = fleet
    if planted:
        where = Target("gpu", "n02", "2") if planted == "thermal_throttle" else Target("nic", "n02", "mlx5_2/1")
        world.inject(planted, where, 0.4)
    act(door, 1, "drain", Target("node", "n02"))
    done(world, door, 1)
    act(door, 2, "diagnose", Target("node", "n02"), fault=accused, device="2", level=3)
    outcome = done(world, door, 2)
    assert outcome.reason == reason
    assert outcome.detail
    assert (door.nodes()["n02"].checked_at is not None) == (reason == "diagnose_refuted")


def test_a_replacement_takes_no_spare_that_it_is_told_to_avoid(fleet):
    """With none left there is none."""
    world, door = fleet
    act(door, 1, "replace", Target("node", "n02"), avoid="n05")
    outcome = done(world, door, 1)
    assert (outcome.state, outcome.reason) == ("FAILED", "no_spare")


def test_monitoring_pauses_for_a_reset_and_comes_back(fleet):
    """The GPU exporter is the process that would keep the GPU in use."""
    world, door = fleet
    act(door, 1, "drain", Target("node", "n02"))
    done(world, door, 1)
    act(door, 2, "reset_gpu", Target("gpu", "n02", "2"), pause_monitoring=True, gpus="one")
    world.advance(world.now_ms + 10_000)
    assert world.knobs.exporter.answers[1, "dcgm"] == "down"
    assert done(world, door, 2).state == "DONE"
    world.advance(world.now_ms + 10_000)
    assert (1, "dcgm") not in world.knobs.exporter.answers
