"""Faults and look-alikes that are a story rather than a level: ill exporters, saves, loops, roll-outs, pauses that end."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest

from fleet.pages import Pages
from fleet.plants import NEVER
from fleet.telemetry import Telemetry
from fleet.world import World
from tests.fleet import faulthelp
from tests.fleet.faulthelp import world_for
from tests.fleet.fleethelp import read, run_until, small

FULL = Telemetry("D", dcgm_cycle_seconds=0)


def _ask(world: World, pages: Pages, row: int, exporter: str) -> tuple[str, bytes]:
    answer = pages.answer(world.nodes[row], exporter)
    return answer.kind, answer.body


def _on(world: World, seconds: int = 15) -> None:
    world.advance(world.now_ms + seconds * 1000)


# --- exporters ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "kind"), [
    ("target_down", "down"), ("exporter_error", "error"), ("exporter_hung", "hung"), ("exporter_empty", "empty")])
def test_an_ill_exporter_answers_as_its_fault_says(name, kind):
    """One exporter of one node; its node's other exporters and all other nodes answer."""
    world = world_for(name)
    pages = Pages(world, FULL)
    planted = world.inject(name, seed=3)
    _on(world)
    ill = planted.memo["exporter"]
    rows = {(n.index, e): _ask(world, pages, n.index, e)[0] for n in world.nodes for e in ("dcgm", "node")}
    assert rows.pop((planted.place.rows[0], ill)) == kind
    assert set(rows.values()) == {"page"}


def test_a_stale_exporter_repeats_its_page():
    """Every value stands, the energy counters too, while other nodes move on."""
    world = world_for("exporter_stale")
    pages = Pages(world, FULL)
    planted = world.inject("exporter_stale", seed=1)
    planted.memo["exporter"] = "dcgm"
    _on(world)
    row = planted.place.rows[0]
    before = [_ask(world, pages, n.index, "dcgm")[1] for n in world.nodes]
    _on(world, 60)
    after = [_ask(world, pages, n.index, "dcgm")[1] for n in world.nodes]
    assert [a == b for a, b in zip(before, after, strict=True)] == [n.index == row for n in world.nodes]


@pytest.mark.parametrize("exporter", ["dcgm", "node"])
def test_a_partial_exporter_lacks_families(exporter):
    """A part is gone, the rest is there, and no other node lacks it."""
    world = world_for("exporter_partial")
    pages = Pages(world, FULL)
    planted = world.inject("exporter_partial", seed=1)
    planted.memo["exporter"] = exporter
    _on(world)
    row = planted.place.rows[0]
    mine, other = (set(read(_ask(world, pages, r, exporter)[1])) for r in (row, (row + 1) % 4))
    assert 4 <= len(other - mine) < len(other) / 2
    assert not mine - other


def test_half_an_answer_breaks_off():
    """The body ends in the middle."""
    world = world_for("exporter_half")
    pages = Pages(world, FULL)
    planted = world.inject("exporter_half", seed=1)
    _on(world)
    whole = len(_ask(world, pages, (planted.place.rows[0] + 1) % 4, planted.memo["exporter"])[1])
    assert len(_ask(world, pages, planted.place.rows[0], planted.memo["exporter"])[1]) < 0.7 * whole


def test_cardinality_explodes():
    """Tens of thousands of series on each node's page within minutes."""
    world = world_for("collector_starved")
    pages = Pages(world, FULL)
    before = _ask(world, pages, 0, "node")[1].count(b"\n")
    planted = world.inject("collector_starved", seed=1)
    planted.at -= 400_000
    _on(world)
    assert all(_ask(world, pages, row, "node")[1].count(b"\n") > before + 15_000 for row in range(2))


def test_an_upgrade_renames_families_on_all_nodes_and_breaks_nothing():
    """Node after node; in the end all speak the new names and none lacks a value."""
    world = world_for("exporter_upgrade")
    pages = Pages(world, FULL)
    old = set(read(_ask(world, pages, 0, "dcgm")[1]))
    planted = world.inject("exporter_upgrade", seed=1)
    planted.at -= 290_000
    _on(world, 40)
    new = [set(read(_ask(world, pages, n.index, "dcgm")[1])) for n in world.nodes]
    assert all(names == new[0] for names in new)
    assert "DCGM_FI_DEV_GPU_TEMP_CELSIUS" in new[0] - old
    assert len(new[0]) == len(old)


def test_a_restarted_exporter_is_silent_for_a_moment():
    """Down, then up again; nothing else."""
    world = world_for("exporter_restart")
    pages = Pages(world, FULL)
    planted = world.inject("exporter_restart", seed=1)
    _on(world, 10)
    row, exporter = planted.place.rows[0], planted.memo["exporter"]
    down = _ask(world, pages, row, exporter)[0]
    _on(world, 30)
    assert (down, _ask(world, pages, row, exporter)[0]) == ("down", "page")


def test_a_broken_upgrade_shows_on_the_nodes_that_have_it():
    """The families are gone exactly where the label stands."""
    world = world_for("exporter_upgrade_broken")
    pages = Pages(world, FULL)
    planted = world.inject("exporter_upgrade_broken", seed=1)
    _on(world)
    lacking = {n.index for n in world.nodes if "DCGM_FI_PROF_GR_ENGINE_ACTIVE" not in read(_ask(world, pages, n.index, "dcgm")[1])}
    labelled = {n.index for n in world.nodes if n.labels.get("dcgm_exporter") == "4.8.2"}
    assert lacking == labelled == set(planted.place.rows)
    assert 2 <= len(lacking) < len(world.nodes)


# --- roll-outs and settings ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "label"), [
    ("firmware_wave", "bmc_firmware=24.09"), ("driver_rollout", "driver=590.44.01"), ("exporter_upgrade_broken", "dcgm_exporter=4.8.2")])
def test_a_roll_out_is_named_by_its_label(name, label):
    """The culprit is the label, it is known before it is planted, and its nodes stand in more than one rack."""
    world = world_for(name)
    told = world.plants.prepare(world, name, None, None, None, 5)
    planted = world.inject(name, seed=5)
    assert planted.culprit == told.culprit
    assert planted.culprit.device == label
    assert planted.place.rows == told.place.rows
    key, _, value = label.partition("=")
    assert [n.labels.get(key) == value for n in world.nodes] == [n.index in planted.place.rows for n in world.nodes]


@pytest.mark.parametrize("name", sorted(n for n in faulthelp.FAULTS if n.startswith("config_drift")))
def test_a_drifted_setting_differs_from_the_group(name):
    """One setting of one node, to a value that its kind has not."""
    world, planted = faulthelp.struck(name, 10, 0.1)
    ((row, key),) = world.knobs.settings
    assert row == planted.place.rows[0]
    assert world.knobs.settings[row, key] != world.kind.settings[key]


# --- jobs ----------------------------------------------------------------------------------------------------------------
def test_failing_saves_leave_the_old_checkpoint():
    """Training goes on, the log says that saves fail, and the newest complete checkpoint grows old."""
    world, _ = small()
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "train")
    world.inject("checkpoint_stale", seed=1)
    before, step = job.last_checkpoint, job.step
    _on(world, 700)
    assert job.last_checkpoint == before
    assert job.step > step + 100
    assert job.store.failures >= 1


def test_slow_saves_lengthen_the_pause():
    """The pause takes many times as long, steps between saves do not."""
    world, _ = small()
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "train")
    planted = world.inject("checkpoint_slow", seed=1)
    run_until(world, lambda: job.phase == "checkpoint")
    pause = run_until(world, lambda: job.phase == "train")
    assert pause > 100
    assert planted.memo["factor"] >= 6


def test_a_poisoned_step_kills_the_job_on_any_node():
    """Software: a new start on other nodes dies at the same step."""
    world = world_for("job_crash_loop")
    job = world.jobs["train-1"]
    planted = world.inject("job_crash_loop", seed=1)
    died = []
    for nodes in ([0, 1, 2, 3], [2, 3, 4, 5]):
        if died:
            job.seat(nodes)
            job.start(world.now_ms, 20.0)
        run_until(world, lambda: job.state == "failed")
        died.append(job.step)
    assert died[1] >= planted.memo["step"]
    assert abs(died[1] - died[0]) <= 3


def test_a_crash_of_hardware_stays_with_the_part():
    """On its node each run dies; without that node the job goes on."""
    world = world_for("crash_loop_hardware")
    job = world.jobs["train-1"]
    planted = world.inject("crash_loop_hardware", seed=1)
    _on(world, 10)
    first = job.state
    job.start(world.now_ms, 20.0)
    run_until(world, lambda: job.state == "failed", 900)
    job.seat([n for n in range(6) if n != planted.place.rows[0]][:4])
    job.start(world.now_ms, 20.0)
    _on(world, 600)
    assert (first, job.state) == ("failed", "running")


def test_a_gpu_with_an_uncontained_error_lets_no_run_start():
    """XID 95: the next run dies in its first moments, with a line of its own; a reset ends it."""
    world = world_for("xid_95")
    job = world.jobs["train-1"]
    planted = world.inject("xid_95", seed=1)
    row, gpu = planted.place.index
    _on(world, 10)
    job.start(world.now_ms, 20.0)
    run_until(world, lambda: job.state == "failed", 120)
    lines = world.kernel.of(row).read().decode().count("): 95,")
    world.gpus.reset(row, gpu)
    world.cure("reset_gpu", node=row, gpu=gpu)
    job.start(world.now_ms, 20.0)
    _on(world, 200)
    assert (lines, job.state, planted.cured_by) == (2, "running", "reset_gpu")


def test_a_frozen_loss_repeats_while_steps_go_on():
    """Steps end, the loss that is reported is one number."""
    world = world_for("stalled_frozen")
    job = world.jobs["train-1"]
    world.inject("stalled_frozen", seed=1)
    _on(world, 10)
    losses, steps = set(), job.step
    for _ in range(8):
        _on(world, 5)
        losses.add(job.loss)
    assert len(losses) == 1
    assert job.step > steps + 8


def test_nan_is_no_missing_value():
    """The loss is NaN on the page of every rank, and the count of such steps grows."""
    world = world_for("nonfinite_loss")
    pages = Pages(world, FULL)
    world.inject("nonfinite_loss", seed=1)
    _on(world, 30)
    shown = read(_ask(world, pages, 0, "trainer")[1])
    assert all(math.isnan(v) for v in shown["greylag_train_loss"].values())
    assert min(shown["greylag_train_nonfinite_total"].values()) > 3


def test_a_hung_mount_leaves_all_ranks_of_its_node_behind():
    """Not one rank: every loader of the node stands in the same call."""
    world = world_for("mount_hung")
    job = world.jobs["train-1"]
    planted = world.inject("mount_hung", seed=1)
    _on(world, 30)
    behind = np.flatnonzero(job.seq < job.seq.max())
    assert {job.place(int(r))[0] for r in behind} == set(planted.place.rows)
    assert len(behind) == world.kind.gpus


def test_a_stuck_processor_freezes_what_the_exporter_shows():
    """XID 119: the job goes on for a while, but the page of the node's GPUs is always the same."""
    world = world_for("xid_119")
    pages = Pages(world, FULL)
    planted = world.inject("xid_119", seed=1)
    job, step = world.jobs["train-1"], world.jobs["train-1"].step
    _on(world)
    before = _ask(world, pages, planted.place.rows[0], "dcgm")[1]
    _on(world, 45)
    assert _ask(world, pages, planted.place.rows[0], "dcgm")[1] == before
    assert job.step > step + 8


def test_a_lost_gpu_takes_its_series_with_it():
    """XID 79: seven GPUs are on the page, the eighth has no line."""
    world = world_for("xid_79")
    pages = Pages(world, FULL)
    planted = world.inject("xid_79", seed=1)
    _on(world)
    shown = read(_ask(world, pages, planted.place.rows[0], "dcgm")[1])["DCGM_FI_DEV_GPU_TEMP"]
    assert sorted(int(dict(labels)["gpu"]) for labels in shown) == [g for g in range(8) if g != planted.place.index[1]]


# --- nothing to do: it ends by itself ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "phase", "most"), [
    ("checkpoint_pause", "checkpoint", 60), ("evaluation_pause", "eval", 60), ("compile_pause", "warmup", 120)])
def test_a_pause_is_told_and_ends(name, phase, most):
    """The job says which phase it is in, goes on by itself, and does not do it again."""
    world = world_for(name)
    job = world.jobs["train-1"]
    world.inject(name, seed=1)
    run_until(world, lambda: job.phase == phase, 30)
    run_until(world, lambda: job.phase == "train", most)
    phases = set()
    for _ in range(24):
        _on(world, 5)
        phases.add(job.phase)
    assert phases == {"train"}


@pytest.mark.parametrize("name", ["job_start_end", "xid45_echo", "planned_drain", "reboot_wave", "switch_reboot"])
def test_what_was_stopped_for_good_reason_starts_again(name):
    """The job trains again, on the same nodes, and nobody holds one any more."""
    world = world_for(name)
    job = world.jobs["train-1"]
    world.inject(name, seed=1).heals_at = NEVER
    _on(world, 10)
    stopped = job.state
    run_until(world, lambda: job.phase == "train" and job.alive, 2400)
    assert stopped in ("stopped", "killed")
    assert [n.state for n in world.nodes[:4]] == ["in_service"] * 4
    assert all(n.held_by is None for n in world.nodes)


def test_a_wave_of_reboots_is_seen_as_such():
    """Boot times of one rack change one after the other; the other racks' do not."""
    world = world_for("reboot_wave")
    before = [n.boot_ms for n in world.nodes]
    planted = world.inject("reboot_wave", seed=1)
    down: set[int] = set()
    for _ in range(110):
        _on(world, 5)
        down |= {n.index for n in world.nodes if not n.up}
    rows = set(planted.place.rows)
    assert down == rows
    assert {n.index for n, boot in zip(world.nodes, before, strict=True) if n.boot_ms != boot} == rows


def test_a_hash_collision_goes_away_when_the_job_connects_anew():
    """Two sound ports share a path until the next start."""
    world = world_for("hash_collision")
    job = world.jobs["train-1"]
    planted = world.inject("hash_collision", seed=1)
    _on(world, 30)
    ports = [world.network.endpoint[port] for port in planted.memo["ports"]]
    job.stop(world.now_ms, clean=True)
    job.start(world.now_ms, 20.0)
    _on(world, 60)
    assert min(ports) > 1.5
    assert max(world.network.endpoint[port] for port in planted.memo["ports"]) < 1.2


def test_a_clock_step_is_over_at_once():
    """Seen for some seconds, then the clock is right, and it was synchronised all the time."""
    world = world_for("clock_step")
    planted = world.inject("clock_step", seed=1)
    row = planted.place.rows[0]
    _on(world, 5)
    seen = abs(world.hosts.clock_offset[row])
    _on(world, 25)
    assert seen > 0.05
    assert abs(world.hosts.clock_offset[row]) < 0.001
    assert world.hosts.synchronised[row] == 1


def test_capping_at_the_usual_limit_is_everybodys():
    """All GPUs of the job run at the limit with a lower clock; none is hot or below its peers."""
    world, _ = faulthelp.struck("usual_power_cap", 60)
    gpus = world.gpus
    assert (gpus.power[:4] > 0.95 * gpus.power_limit[:4]).mean() > 0.9
    assert np.ptp(gpus.clock[:4]) < 0.1 * gpus.clock[:4].mean()
    assert gpus.core[:4].max() < 80


def test_hot_experts_wander():
    """Other ranks are the slow ones some minutes later."""
    world = deepcopy(world_for("hot_experts"))
    planted = world.inject("hot_experts", severity=0.3, seed=1)
    slow = []
    for _ in range(2):
        _on(world, 30)
        slow.append({int(r) for r in np.flatnonzero(world.knobs.jobs["train-1"].compute > 1)})
        planted.memo["shift"] = world.now_ms
    assert slow[0]
    assert slow[0] != slow[1]
