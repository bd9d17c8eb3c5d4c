"""Each fault's signature, and what it must not show (signals.md §11)."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import BadInput, Refused
from core.faults import faults
from core.plugins import load_plugins
from core.protocols import FaultPlugin
from core.targets import ACTION_KINDS, KINDS, SCOPES
from core.types import Target
from tests.fleet.fleethelp import run_until, settled, small

PLUGINS: dict[str, FaultPlugin] = load_plugins("fleet.faults")


def _train(seed: int = 7):
    world, ops = settled(seed, nodes=6)
    return world, ops, world.jobs["train-1"]


def _follow(world, seconds: int, names) -> dict[str, np.ndarray]:
    """Samples each 5 s, stacked on the first axis."""
    rows: dict[str, list[np.ndarray]] = {n: [] for n in names}
    for _ in range(seconds // 5):
        world.advance(world.now_ms + 5_000)
        for n in names:
            rows[n].append(getattr(world.gpus, n).copy())
    return {n: np.array(v) for n, v in rows.items()}


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_plugins_use_the_closed_lists(name):
    """Fault, scope, target kind and cures are names that Greylag knows."""
    plugin = PLUGINS[name]
    assert plugin.fault is None or plugin.fault in faults()
    assert plugin.scope in SCOPES
    assert plugin.place in (*KINDS, "rank")
    assert set(plugin.cured_by) <= set(ACTION_KINDS)


@pytest.mark.parametrize("severity", [0.12, 0.4])
@pytest.mark.parametrize("gpu", ["0", "7"])
def test_thermal_throttle_shows_on_the_culprit_only(severity, gpu):
    """Heat, thermal bits, violation time and a lower clock on the culprit; neighbours and inlet as before."""
    world, _, _ = _train()
    inlet = world.hosts.inlet.copy()
    planted = world.inject("thermal_throttle", Target("gpu", "n03", gpu), severity)
    seen = _follow(world, 200, ("core", "margin", "reasons", "clock", "thermal_ns", "power"))
    node, index = 2, int(gpu)
    late = slice(-8, None)
    assert seen["core"][late, node, index].min() > 80
    assert seen["margin"][late, node, index].max() < 1
    assert (seen["reasons"][late, node, index].astype(int) & 0x20).all()
    loss = 1 - seen["clock"][late, node, index].mean() / 1980
    assert 0.10 < loss < 0.46
    assert seen["thermal_ns"][-1, node, index] - seen["thermal_ns"][-9, node, index] > 0.9 * 40e9
    rest = np.ones(world.gpus.core.shape, bool)
    rest[node, index] = False
    assert seen["core"][:, rest].max() < 78
    assert not (seen["reasons"][:, rest].astype(int) & 0x60).any()
    assert seen["margin"][:, rest].min() > 8
    assert np.abs(world.hosts.inlet - inlet).max() < 2
    assert planted.culprit.rank == 2 * 8 + index
    assert world.knobs.nic.loss_per_million.max() == 0


def test_thermal_throttle_takes_a_minute_or_two_to_its_limit():
    """The temperature climbs; it does not jump."""
    world, _, _ = _train()
    world.inject("thermal_throttle", Target("gpu", "n03", "4"), 0.3)
    seen = _follow(world, 180, ("core",))["core"][:, 2, 4]
    reached = 5 * int(np.argmax(seen > 84))
    assert 15 < reached <= 120
    assert np.diff(seen).max() < 12


def _mean_step(world, job, seconds: int) -> float:
    seen = {}
    for _ in range(seconds // 5):
        world.advance(world.now_ms + 5_000)
        if job.phase == "train":
            seen[job.step] = job.step_seconds
    return float(np.median(list(seen.values())))


@pytest.mark.parametrize(("name", "target"), [
    ("thermal_throttle", Target("gpu", "n03", "4")), ("packet_loss", Target("nic", "n03", "mlx5_4/1"))])
@pytest.mark.parametrize("severity", [0.15, 0.38])
def test_severity_is_the_growth_of_the_step_time(name, target, severity):
    """The job's step time grows by about the severity."""
    world, _, job = _train()
    before = _mean_step(world, job, 150)
    world.inject(name, target, severity)
    world.advance(world.now_ms + 150_000)
    after = _mean_step(world, job, 240)
    assert after / before - 1 == pytest.approx(severity, abs=0.06)


def test_the_culprit_of_a_slow_step_does_not_wait_and_its_victims_do():
    """With a throttled GPU every other rank's waiting grows, the culprit's does not; victims draw less power."""
    world, _, job = _train()
    world.advance(world.now_ms + 5_000)
    power_before = np.median(world.gpus.power[:6])
    world.inject("thermal_throttle", Target("gpu", "n03", "4"), 0.35)
    world.advance(world.now_ms + 150_000)
    rank = 2 * 8 + 4
    others = np.delete(job.comm_wait, rank)
    assert job.comm_wait[rank] < others.min()
    assert job.compute[rank] > np.delete(job.compute, rank).max()
    assert np.median(world.gpus.power[:6]) < power_before - 20


def test_packet_loss_shows_gaps_here_and_naks_at_the_peers():
    """Out-of-sequence and timeouts at the culprit; its rail's peers share the NAKs; no congestion, link and rate as before."""
    world, _, _ = _train()
    world.inject("packet_loss", Target("nic", "n03", "mlx5_4/1"), 0.25)
    before = {k: v.copy() for k, v in world.nics.counters.items()}
    world.advance(world.now_ms + 120_000)
    grown = {k: world.nics.counters[k] - before[k] for k in before}
    gaps = grown["out_of_sequence"]
    assert gaps[2, 4] > 120 * 20
    rest = gaps.copy()
    rest[2, 4] = 0
    assert rest.max() < 60
    naks = grown["sequence_errors"]
    peers = [0, 1, 3, 4, 5]
    assert naks[peers, 4].min() > 100
    assert naks[2, 4] < 30
    assert np.delete(naks, 4, axis=1).max() < 30
    assert grown["ack_timeouts"][2, 4] > 100
    assert grown["retransmits"][2, 4] > 300
    assert grown["cnp_sent"][2, 4] < 20 * np.median(grown["cnp_sent"][:6]) + 2000
    assert grown["downed"].max() == 0
    assert world.knobs.nic.up.min() == 1
    assert world.gpus.thermal_ns.max() == 0


def test_packet_loss_slows_the_rail_evenly():
    """Everybody's share of communication grows and nobody computes longer."""
    world, _, job = _train()
    compute = np.median(job.compute)
    wait = np.median(job.comm_wait)
    world.inject("packet_loss", Target("nic", "n03", "mlx5_4/1"), 0.3)
    world.advance(world.now_ms + 60_000)
    assert np.median(job.comm_wait) > wait + 0.5
    assert np.median(job.compute) < 1.2 * compute


def test_hang_stops_all_ranks_and_leaves_one_behind():
    """No step ends; utilisation full, power low, tensor and network idle; one rank's collective is behind."""
    world, _, job = _train()
    step, phase = job.step, job.phase
    world.inject("stalled_loss", Target("gpu", "n03", "4"))
    world.advance(world.now_ms + 15_000)
    sent = world.nics.counters["sent_bytes"].copy()
    seq = job.seq.copy()
    world.advance(world.now_ms + 60_000)
    assert (job.step, job.phase, phase) == (step, "train", "train")
    assert np.array_equal(seq, job.seq)
    assert int(np.argmin(job.seq)) == 2 * 8 + 4
    assert (np.delete(job.seq, 20) == job.seq[20] + 1).all()
    assert world.gpus.util[:6].min() >= 99
    assert 100 < world.gpus.power[:6].min() < world.gpus.power[:6].max() < 220
    assert world.gpus.tensor[:6].max() < 0.02
    assert np.array_equal(sent, world.nics.counters["sent_bytes"])
    assert world.gpus.memory[:6].min() > 60_000


def test_watchdog_ends_a_hang_after_ten_minutes():
    """Nobody acts: the watchdog's lines come from every rank but the culprit, and the job fails."""
    world, _, job = _train()
    world.inject("stalled_loss", Target("gpu", "n03", "4"))
    world.advance(world.now_ms + 630_000)
    text = job.log.read().decode()
    assert job.state == "failed"
    assert text.count("Watchdog caught collective operation timeout") == job.ranks - 1
    assert "[Rank 20] Watchdog" not in text
    assert world.gpus.power[:6].max() < 110


def test_a_rank_hangs_only_while_it_trains():
    """A hang during a checkpoint is refused by name: it would not be the fault that it is called."""
    world, _ = small()
    run_until(world, lambda: world.jobs["train-1"].phase == "checkpoint")
    with pytest.raises(Refused, match="not_training"):
        world.inject("stalled_loss")


def test_place_and_size_come_from_the_seed():
    """One seed, one place; many seeds, many places."""
    def place(seed: int):
        world, _ = small()
        planted = world.inject("thermal_throttle", seed=seed)
        return planted.culprit.node, planted.culprit.device, planted.severity

    assert place(3) == place(3)
    assert len({place(s)[:2] for s in range(6)}) > 2


@pytest.mark.parametrize(("name", "target"), [
    ("fire", None), ("thermal_throttle", Target("gpu", "n99", "1")), ("thermal_throttle", Target("gpu", "n01", "8")),
    ("packet_loss", Target("nic", "n01", "eth9"))])
def test_bad_places_are_refused_in_one_sentence(name, target):
    """Unknown faults, nodes and devices are named."""
    world, _ = small()
    with pytest.raises(BadInput):
        world.inject(name, target, 0.2)
    assert world.faults == []


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_clearing_a_fault_leaves_nothing_behind(name):
    """The lab can take every fault away again."""
    world, _, job = _train()
    world.inject(name, seed=2)
    world.advance(world.now_ms + 60_000)
    assert world.clear(name) == 1
    world.advance(world.now_ms + 240_000)
    world.advance(world.now_ms + 5_000)
    assert world.knobs.nic.loss_per_million.max() == 0
    assert world.knobs.nic.slowness.max() == 1
    assert world.knobs.gpu.cooling.max() == 1
    assert job.hung_rank is None
    assert job.alive
