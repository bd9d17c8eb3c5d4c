"""The contract of all fault and look-alike plug-ins, and that severity is the growth of the job's step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from core.errors import BadInput, Refused
from core.faults import faults
from core.plugins import load_plugins
from core.targets import ACTION_KINDS, KINDS, SCOPES
from core.types import Target
from fleet.faults.sizes import HARMLESS, STANDS
from fleet.plants import MOST, NEVER, ONSETS, Planted
from fleet.state import truth_row
from fleet.world import World
from tests.fleet import faulthelp
from tests.fleet.faulthelp import FAULTS, LOOK_ALIKES, PLUGINS, kind_for, turned, world_for
from tests.fleet.fleethelp import run_until, small

ALL = sorted(PLUGINS)
NEEDS = {"roce", "efa", "nvlink", "nvlink5", "lustre", "hbm", "nvidia", "neuron", "trainer", "inference"}
# What issue 4 lists beside the names of the faults: shared causes, and the things that need no action.
SHARED = ("leaf_loss", "leaf_slow", "spine_path_lost", "pdu_brake", "rack_power_cap", "cooling_fault", "hot_rack",
          "storage_slow", "mount_slow", "mount_hung", "firmware_wave", "driver_rollout", "exporter_upgrade_broken",
          "collector_starved", "network_slow_fleet", "clock_skew_fleet")
NOTHING_TO_DO = (
    "checkpoint_pause", "evaluation_pause", "compile_pause", "job_start_end", "planned_drain", "reboot_wave", "hot_day",
    "congestion", "usual_power_cap", "data_mix_jump", "amp_overflow", "sticky_xid", "xid45_echo", "pcie_gen1_idle",
    "counter_reset", "exporter_restart", "exporter_upgrade", "clock_step", "cluster_slow", "last_stage_uneven",
    "sequence_variance", "gc_pauses", "hot_experts", "batch_ramp", "user_profiler")
WATCHED_SECONDS = 25


@cache
def _struck(name: str) -> tuple[World, Planted]:
    """Not to be changed by tests."""
    return faulthelp.struck(name, WATCHED_SECONDS)


# --- the lists ---------------------------------------------------------------------------------------------------------
def test_every_fault_has_a_plugin_of_its_name():
    """The closed list of faults, one file each at least."""
    named = load_plugins("fleet.faults")
    assert set(faults()) <= {n for n, p in named.items() if p.fault == n}


def test_every_shared_cause_and_every_look_alike_has_a_plugin():
    """Issue 4's lists."""
    assert set(SHARED) <= set(FAULTS)
    assert set(NOTHING_TO_DO) <= set(LOOK_ALIKES)


def test_look_alikes_are_apart_from_faults():
    """No name stands in both rooms, and the room says which it is."""
    one, other = load_plugins("fleet.faults"), load_plugins("fleet.lookalikes")
    assert not set(one) & set(other)
    assert all(p.fault is not None for p in one.values())
    assert all(p.fault is None for p in other.values())


@pytest.mark.parametrize("name", ALL)
def test_plugins_use_the_closed_lists(name):
    """Fault, scope, place, cures, onsets, tier and needs are names that Greylag and the fleet know."""
    plugin = PLUGINS[name]
    assert plugin.fault is None or plugin.fault in faults()
    assert plugin.scope in SCOPES
    assert plugin.place in (*KINDS, "spine")
    assert set(plugin.cured_by) <= set(ACTION_KINDS)
    assert plugin.onsets
    assert set(plugin.onsets) <= set(ONSETS)
    assert plugin.tier in ("A", "B", "C", "D")
    assert set(plugin.needs) <= NEEDS
    low, high = plugin.impact
    assert 0.01 <= low <= high <= MOST
    assert plugin.heals_seconds is None or plugin.heals_seconds >= 60


@pytest.mark.parametrize("name", ALL)
def test_plugins_say_what_they_are(name):
    """The module's words become the docs; a look-alike is cured by nothing, as nothing is broken."""
    module = __import__(PLUGINS[name].apply.__module__, fromlist=["x"])
    assert module.__doc__
    assert module.__doc__.strip().split("\n")[0].endswith((".", ",", ":"))
    assert PLUGINS[name].fault is not None or not PLUGINS[name].cured_by


def test_what_is_shared_is_cured_by_no_action_on_a_node():
    """No node is replaced for a switch, a rack, a storage or a roll-out."""
    wrong = [n for n, p in PLUGINS.items() if p.scope in ("switch", "rack", "storage", "fleet", "collector") and p.cured_by]
    assert not wrong


# --- planting ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ALL)
def test_the_truth_is_complete(name):
    """Fault, scope, culprit with all that names it, time, severity within the impact, cures."""
    world, planted = _struck(name)
    row, plugin, target = truth_row(world, planted), PLUGINS[name], planted.culprit
    assert row["fault"] == plugin.fault
    assert row["nothing_to_do"] == (plugin.fault is None)
    assert row["scope"] == plugin.scope
    assert plugin.impact[0] * 0.999 <= planted.severity <= plugin.impact[1] * 1.001
    kind = {"rank": "gpu", "spine": "switch"}.get(plugin.place, plugin.place)
    assert target.kind == ("collector" if plugin.scope == "collector" else kind)
    if plugin.place in ("gpu", "rank", "nic", "disk", "mount", "node"):
        assert target.node in {n.name for n in world.nodes}
    if plugin.place in ("gpu", "rank", "nic", "disk", "mount", "switch", "spine", "rack", "pdu", "cooling", "storage", "label"):
        assert target.device
    if plugin.place == "job":
        assert target.job in world.jobs
    assert planted.place.rows


@pytest.mark.parametrize("name", ALL)
def test_planting_the_same_twice_gives_the_same(name):
    """On two copies of one world the same seed turns the same knobs and leaves the same world."""
    one, planted = _struck(name)
    other, again = faulthelp.struck(name, WATCHED_SECONDS)
    assert again.culprit == planted.culprit
    assert turned(one) == turned(other)
    assert np.array_equal(one.gpus.power, other.gpus.power)
    assert np.array_equal(one.hosts.clock_offset, other.hosts.clock_offset)
    assert all(one.kernel.of(n.index).read() == other.kernel.of(n.index).read() for n in one.nodes)


@pytest.mark.parametrize("name", ALL)
def test_clearing_leaves_all_knobs_healthy(name):
    """The lab can take everything away again; labels and nodes are as they were."""
    world = deepcopy(_struck(name)[0])
    labels = [dict(n.labels) for n in world_for(name).nodes]
    assert world.clear(name) == 1
    world.advance(world.now_ms + 10_000)
    assert turned(world) == {}
    assert [dict(n.labels) for n in world.nodes] == labels
    assert all(n.held_by is None for n in world.nodes)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", [11])
def test_a_drawn_place_can_be_named(name, seed):
    """What is drawn is named again as a person would, and is the same place."""
    world = world_for(name)
    drawn = world.plants.prepare(world, name, None, None, None, seed)
    named = world.inject(name, drawn.culprit, 0.2, seed, PLUGINS[name].onsets[0])
    assert (named.culprit.kind, named.culprit.device) == (drawn.culprit.kind, drawn.culprit.device)
    assert named.place.index == drawn.place.index or PLUGINS[name].place == "storage"


BAD_PLACES = {
    "gpu": Target("gpu", "n01", "99"), "rank": Target("gpu", "n99", "1"), "nic": Target("nic", "n01", "eth9"),
    "disk": Target("disk", "n99"), "mount": Target("mount", "n99"), "node": Target("node", "n99"),
    "switch": Target("switch", None, "leaf-99"), "spine": Target("switch", None, "spine-99"), "rack": Target("rack", None, "rack-99"),
    "pdu": Target("pdu", None, "pdu-99z"), "cooling": Target("cooling", None, "loop-99"), "storage": Target("storage", None, "OST99"),
    "job": Target("job", job="nobody"), "label": Target("label", device="bmc_firmware=1.0"),
}


@pytest.mark.parametrize("name", [n for n in ALL if PLUGINS[n].place in BAD_PLACES])
def test_an_impossible_place_is_refused_in_a_sentence(name):
    """The key, what was given, what is allowed."""
    world = world_for(name)
    with pytest.raises(BadInput, match=r"(needed|allowed|label)"):
        world.inject(name, BAD_PLACES[PLUGINS[name].place], 0.2)
    assert world.faults == []


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, n in (
    ("h100-8x-roce", "srd_loss"), ("h100-8x-roce", "xid_145"), ("p5.48xlarge", "packet_loss"), ("trn2.48xlarge", "xid_79"),
    ("trn2.48xlarge", "nvlink_errors"))])
def test_a_fault_that_the_hardware_cannot_have_is_refused(kind, name):
    """`needs` names what is missing."""
    world = deepcopy(faulthelp._built(kind, "training"))
    with pytest.raises(BadInput, match="this fleet has no"):
        world.inject(name)


@pytest.mark.parametrize(("name", "reason"), [
    ("stalled_loss", "not_training"), ("stalled_nic", "not_training"), ("mount_hung", "not_training"),
    ("evaluation_pause", "not_training")])
def test_what_needs_a_training_job_is_refused_in_a_checkpoint(name, reason):
    """A hang in a pause would not be the fault that it is called."""
    world, _ = small()
    run_until(world, lambda: world.jobs["train-1"].phase == "checkpoint")
    with pytest.raises(Refused, match=reason):
        world.inject(name)


@pytest.mark.parametrize("name", ["inference_slow", "last_stage_uneven"])
def test_what_needs_another_kind_of_job_is_refused(name):
    """A training job does not serve; one without a pipeline has no last stage."""
    world = deepcopy(faulthelp._built("h100-8x-roce", "training"))
    with pytest.raises(Refused, match="not_supported"):
        world.inject(name)


ON_A_SPARE = {"gpu": Target("gpu", "n05", "3"), "nic": Target("nic", "n05", "mlx5_3/1"), "node": Target("node", "n05"),
              "disk": Target("disk", "n05"), "mount": Target("mount", "n05")}


@pytest.mark.parametrize("name", [n for n in FAULTS if PLUGINS[n].place in ON_A_SPARE and kind_for(n) == "h100-8x-roce"
                                  and n not in ("stalled_nic", "mount_hung")])
def test_a_spare_can_be_ill(name):
    """Nobody notices: the job goes on as it was, and the defect waits for whoever takes the node."""
    world = world_for(name)
    job = world.jobs["train-1"]
    planted = world.inject(name, ON_A_SPARE[PLUGINS[name].place], seed=1)
    step = job.step
    world.advance(world.now_ms + 20_000)
    assert job.alive
    assert job.step >= step + 5
    assert world.defects(4) == [planted]


def test_no_knob_is_left_unturned():
    """Every way in which a part can be unwell is used by a plug-in."""
    seen = {key for name in ALL for key in turned(_struck(name)[0])}
    known = {f"{group}.{knob}" for group, knobs in faulthelp.knob_groups(world_for("gpu_slow")).items() for knob in knobs.HEALTHY}
    # A brake comes and goes: whether it is on at the moment of looking is chance.
    assert known - seen <= {"gpu.brake"}


def test_place_and_size_come_from_the_seed():
    """One seed, one place; many seeds, many places and sizes over decades."""
    world = world_for("gpu_slow")

    def draw(seed: int) -> Planted:
        return world.plants.prepare(world, "gpu_slow", None, None, None, seed)

    drawn = [draw(s) for s in range(60)]
    assert draw(3).culprit == draw(3).culprit
    assert len({(p.culprit.node, p.culprit.device) for p in drawn}) > 15
    sizes = np.log([p.severity for p in drawn])
    low, high = np.log(PLUGINS["gpu_slow"].impact)
    assert abs(sizes.mean() - (low + high) / 2) < 0.2 * (high - low)


def test_sizes_are_drawn_log_uniform_and_every_onset_comes():
    """Of each plug-in over its own range (furthest from the even spread: 0.2 of 60 draws); all ranges together are 1 % to 10 times."""
    for name in ALL:
        plugin = PLUGINS[name]
        world = faulthelp.shared_world_for(name)
        drawn = [world.plants.prepare(world, name, None, None, None, seed) for seed in range(60)]
        assert {p.onset for p in drawn} == set(plugin.onsets), name
        low, high = np.log(plugin.impact)
        if high > low:
            at = (np.sort(np.log([p.severity for p in drawn])) - low) / (high - low)
            even = np.arange(61) / 60
            assert max((at - even[:-1]).max(), (even[1:] - at).max()) < 0.2, name
    assert (min(p.impact[0] for p in PLUGINS.values()), max(p.impact[1] for p in PLUGINS.values())) == (0.01, 10.0)
    assert {onset for p in PLUGINS.values() for onset in p.onsets} == set(ONSETS)


def test_most_slowness_heals_within_an_hour():
    """Medians of minutes, as published; what is broken for good stays."""
    healing = {n: PLUGINS[n].heals_seconds for n in FAULTS if PLUGINS[n].heals_seconds is not None}
    assert {"gpu_slow", "straggler", "cpu_starved", "storage_slow", "leaf_slow"} <= set(healing)
    assert max(healing.values()) <= 3600
    assert not {"thermal_throttle", "xid_79", "row_remap_failure", "link_down"} & set(healing)


def test_what_heals_by_itself_is_gone_and_says_so():
    """At its time the fault ends, cured by itself."""
    world = world_for("gpu_slow")
    planted = world.inject("gpu_slow", severity=0.5, seed=1)
    planted.heals_at = world.now_ms + 60_000
    world.advance(world.now_ms + 90_000)
    assert (planted.present, planted.cured_by) == (False, "itself")
    assert turned(world) == {}


# --- severity ----------------------------------------------------------------------------------------------------------
# Heat needs some minutes to settle, behind a cooling that got worse long ago. Flaps and kills by memory have tests of their own.
BUILDS_UP = ("thermal_throttle", "thermal_node", "cooling_fault", "hot_rack", "firmware_wave")
NOT_STEADY = {"link_flap", "memory_pressure", "inference_slow"}
SLOWING = sorted(n for n in FAULTS if PLUGINS[n].impact not in (HARMLESS, STANDS) and n not in NOT_STEADY)


@cache
def _base(kind: str) -> tuple[World, float]:
    world = deepcopy(faulthelp._built(kind, "training"))
    run_until(world, lambda: world.jobs["train-1"].phase == "train")
    base = deepcopy(world)
    return world, _mean_step(base, 90)


def _mean_step(world: World, seconds: int) -> float:
    """Seconds a step on the mean of those that end within the time."""
    job = next(iter(world.jobs.values()))
    step, at = job.step, job.last_step_ms
    world.advance(world.now_ms + seconds * 1000)
    return (job.last_step_ms - at) / 1000 / (job.step - step)


def _growth(name: str, severity: float) -> float:
    start, base = _base(kind_for(name))
    world = deepcopy(start)
    planted = world.inject(name, severity=severity, seed=3, onset="step")
    planted.heals_at = NEVER
    if name in BUILDS_UP:
        planted.at -= 600_000
    world.advance(world.now_ms + (125 if name in BUILDS_UP else 10) * 1000)
    return _mean_step(world, 90) / base - 1


@pytest.mark.parametrize("severity", [pytest.param(0.05, marks=pytest.mark.evaluate), 0.2,
                                      pytest.param(0.6, marks=pytest.mark.evaluate)])
@pytest.mark.parametrize("name", SLOWING)
def test_severity_is_the_growth_of_the_step(name, severity):
    """A fault of size 0.2 makes the job's step 20 % longer, whatever it is."""
    assert _growth(name, severity) == pytest.approx(severity, rel=0.1, abs=0.012)


def test_flaps_cost_about_their_severity():
    """On the mean over many: single flaps fall as they fall."""
    start, base = _base("h100-8x-roce")
    world = deepcopy(start)
    world.inject("link_flap", severity=0.3, seed=3, onset="step")
    assert _mean_step(world, 900) / base - 1 == pytest.approx(0.3, rel=0.35)


def test_memory_pressure_slows_before_it_kills():
    """The step grows by the severity; after some minutes the kernel kills a rank."""
    start, base = _base("h100-8x-roce")
    world = deepcopy(start)
    world.inject("memory_pressure", severity=0.4, seed=3, onset="step")
    world.advance(world.now_ms + 10_000)
    assert _mean_step(world, 70) / base - 1 == pytest.approx(0.4, abs=0.06)
    world.advance(world.now_ms + 400_000)
    assert world.jobs["train-1"].state == "failed"


def test_an_inference_endpoint_takes_as_much_longer_as_severity_says():
    """Time for a token grows by the severity, and the queue with it."""
    world = world_for("inference_slow")
    job = world.jobs["serve-1"]
    before = []
    for _ in range(24):
        world.advance(world.now_ms + 5_000)
        before.append(np.nanmean(job.token_seconds))
    world.inject("inference_slow", severity=1.0, seed=3, onset="step")
    after = []
    for _ in range(24):
        world.advance(world.now_ms + 5_000)
        after.append(np.nanmean(job.token_seconds))
    assert np.mean(after) / np.mean(before) > 1.7


def test_batches_of_differing_length_make_steps_rough():
    """The severity is the usual growth; single steps differ by far more than without, and no replica stays the slowest."""
    start, base = _base("h100-8x-roce")
    world, calm = deepcopy(start), deepcopy(start)
    world.inject("sequence_variance", severity=0.3, seed=3).heals_at = NEVER
    took: dict[bool, list[float]] = {True: [], False: []}
    slowest = set()
    for _ in range(50):
        for one in (world, calm):
            one.advance(one.now_ms + 5_000)
            took[one is world].append(one.jobs["train-1"].step_seconds)
        slowest.add(int(world.jobs["train-1"].compute.argmax()) // 8)
    assert np.median(took[True][2:]) / base - 1 == pytest.approx(0.3, abs=0.08)
    assert np.std(took[True][2:]) > 3 * np.std(took[False])
    assert slowest == {0, 1, 2, 3}


def test_two_faults_on_one_part_compose():
    """Factors multiply: the slowest part sets the pace, and both causes show."""
    start, base = _base("h100-8x-roce")
    world, target = deepcopy(start), Target("gpu", "n02", "3")
    for name in ("gpu_slow", "clock_loss"):
        world.inject(name, target, 0.2, 1, "step").heals_at = NEVER
    world.advance(world.now_ms + 15_000)
    assert _mean_step(world, 90) / base - 1 > 0.38


@pytest.mark.parametrize("onset", ["ramp", "intermittent"])
def test_onsets_other_than_a_step(onset):
    """A ramp climbs to its size; episodes come and go."""
    world = deepcopy(_base("h100-8x-roce")[0])
    planted = world.inject("clock_loss" if onset == "intermittent" else "gpu_slow", severity=0.5, seed=2, onset=onset)
    planted.heals_at = NEVER
    levels = []
    for _ in range(40):
        world.advance(world.now_ms + 25_000)
        levels.append(planted.level)
    steps = np.diff(levels)
    if onset == "ramp":
        assert (steps >= 0).all()
        assert levels[0] < 0.2
        assert levels[-1] > 0.99
    else:
        assert {0.0, 1.0} == set(levels)
        assert np.count_nonzero(steps) >= 3


def test_severity_keeps_its_meaning_in_a_pipeline():
    """With two pipeline stages the same fault still costs its size."""
    world = deepcopy(faulthelp._built("h100-8x-roce", "pipeline"))
    base = _mean_step(deepcopy(world), 90)
    world.inject("gpu_slow", severity=0.3, seed=3, onset="step").heals_at = NEVER
    world.advance(world.now_ms + 15_000)
    assert replace(world.jobs["train-1"].shape).pp == 2
    assert _mean_step(world, 90) / base - 1 == pytest.approx(0.3, abs=0.05)
