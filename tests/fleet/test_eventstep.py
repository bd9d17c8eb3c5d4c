"""From event to event: the same truth and accounts as the full model within stated bounds, in a fraction of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.clock import process_cpu_seconds
from fleet.build import build_scenario
from fleet.eventstep import EventWorld
from fleet.places import ON_NODE
from fleet.programme import records
from fleet.responder import Responder
from fleet.scenario import Entry, FleetSpec, JobSpec, RatesSpec, Scenario

# How far apart the two may be, in shares of all GPU time: the causes that an account may differ in.
BOUNDS = {"productive": 0.05, "lost_work": 0.06, "slow": 0.03, "hung": 0.02, "restart": 0.03}
OTHERS = 0.03
MOST_CPU_SECONDS = 20.0

SHORT = Scenario(
    "short", FleetSpec(4, 1, times="fast", before="5m"), (JobSpec("train-1", restart="3m"),), duration="45m", seed=6,
    schedule=(
        Entry(fault="packet_loss", at="3m", for_="8m", node="n02", device="mlx5_1/1", severity=0.5, onset="step"),
        Entry(fault="gpu_slow", at="14m", node="n03", device="2", severity=0.4, onset="step", for_="2h"),
        Entry(fault="stalled_loss", at="29m", node="n01", device="0"),
        Entry(look_alike="hot_day", at="5m", for_="10m"),
    ))


def _event(scenario: Scenario, delay: float | None = None) -> EventWorld:
    watchers = [] if delay is None else [lambda w: Responder(w.world, w.operations, delay)]
    return EventWorld(scenario, watchers)


def _shares(world) -> dict[str, float]:
    spent = world.goodput.gpu_seconds()
    total = sum(spent.values())
    assert total == pytest.approx(world.goodput.elapsed_gpu_seconds())
    return {cause: seconds / total for cause, seconds in spent.items()}


def test_it_agrees_with_the_full_model_on_a_short_scenario():
    """Same truth, same ends, every cause of the account within its bound, steps within 6 %."""
    quick = _event(SHORT, 240.0)
    quick.advance(SHORT.end_ms)
    world, ops, programme = build_scenario(SHORT)
    world.watchers.append(Responder(world, ops, 240.0))
    world.advance(SHORT.end_ms)
    rows = [[r for r in records(w, o, p) if r["type"] == "truth"]
            for w, o, p in ((world, ops, programme), (quick.world, quick.operations, quick.programme))]
    for full, fast in zip(*rows, strict=True):
        assert {k: full[k] for k in ("plant", "culprit", "at", "severity", "until", "cured_by")} \
            == {k: fast[k] for k in ("plant", "culprit", "at", "severity", "until", "cured_by")}
    full, fast = _shares(world), _shares(quick.world)
    assert {c: round(fast[c] - full[c], 3) for c in full if abs(fast[c] - full[c]) > BOUNDS.get(c, OTHERS)} == {}
    steps = [w.jobs["train-1"].step - 18_000 for w in (world, quick.world)]
    assert steps[1] == pytest.approx(steps[0], rel=0.06)


def test_the_same_seed_gives_the_same_run():
    """Records are equal, wall time is in none of them."""
    one, two = list(_event(SHORT, 300.0).run()), list(_event(SHORT, 300.0).run())
    assert one == two
    assert one[-1]["type"] == "summary"
    assert one[-1]["events"] < 400


def test_a_port_that_flaps_slows_its_job_and_kills_it_not():
    """It is down for seconds at a time: from one event to the next, minutes later, it must not count as down all the while."""
    flap = Entry(fault="link_flap", at="3m", severity=0.2, onset="step", seed=4)
    event = _event(replace(SHORT, schedule=(flap,)), 4e6)
    event.advance(SHORT.end_ms)
    job = event.world.jobs["train-1"]
    assert (job.run, job.alive) == (1, True)
    assert job.factor == pytest.approx(1.2)


def test_a_fault_on_a_node_turns_knobs_of_that_node_alone():
    """Between two events only the nodes are made healthy again that had a fault."""
    event = _event(replace(SHORT, schedule=()))
    event.advance(SHORT.start_ms + 600_000)
    world, far = event.world, []
    for name, plugin in sorted(world.plants.plugins.items()):
        if plugin.fault is None or plugin.place not in ON_NODE or not set(plugin.needs) <= world.has:
            continue
        world.knobs.reset()
        planted = world.plants.plant(world, name, None, None, "step", 1)
        world.plants.apply(world, world.now_ms + 3_600_000)
        rows = [n for n in range(len(world.nodes)) if n not in planted.place.rows]
        for group in (world.knobs.gpu, world.knobs.nic, world.knobs.host):
            far += [(name, one) for one, value in group.HEALTHY.items() if (getattr(group, one)[rows] != value).any()]
        world.plants.end(world, planted, world.now_ms, "lab")
    assert far == []


@pytest.mark.evaluate
def test_a_month_takes_seconds_and_repair_pays():
    """Thirty days of four nodes at 25 times the published rates; somebody on call wins back goodput."""
    month = Scenario("month", FleetSpec(4, 2), (JobSpec("train-1", restart="60m", shape={"last_step": 5_000_000}),),
                     duration="30d", seed=3, rates=RatesSpec(25.0, ("llama3_405b",)))
    began = process_cpu_seconds()
    alone, cared = _event(month), _event(month, 600.0)
    alone.advance(month.end_ms)
    cared.advance(month.end_ms)
    assert process_cpu_seconds() - began < MOST_CPU_SECONDS
    assert len(cared.world.faults) >= 5
    assert cared.world.goodput.ratio("train-1") > alone.world.goodput.ratio("train-1") + 0.05
    assert cared.world.goodput.ratio("train-1") > 0.7
    for world in (alone.world, cared.world):
        _shares(world)


def test_slowness_of_one_kind_of_part_does_not_add_up():
    """Two slow GPUs cost what the slower costs; a slow GPU and a lossy port cost both."""
    both = {"gpu_slow": ("n02", "3"), "packet_loss": ("n03", "mlx5_2/1")}
    for others, factor in ((("gpu_slow", "gpu_slow"), 1.3), (("gpu_slow", "packet_loss"), 1.5)):
        lines = [Entry(fault=name, at="1m", severity=size, node=f"n0{i + 1}", device=both[name][1], onset="step", for_="1h")
                 for i, (name, size) in enumerate(zip(others, (0.3, 0.2), strict=True))]
        world = _event(Scenario("x", FleetSpec(4, 0), duration="30m", schedule=tuple(lines)))
        world.advance(world.scenario.start_ms + 600_000)
        assert world.world.jobs["train-1"].factor == pytest.approx(factor)


def test_the_responder_leaves_look_alikes_and_shared_causes_alone():
    """Nothing is done to a node for a hot day or for a leaf that loses packets."""
    scenario = Scenario("x", FleetSpec(4, 2, times="fast"), duration="40m", schedule=(
        Entry(look_alike="hot_day", at="2m"), Entry(fault="leaf_loss", at="4m", severity=0.4, onset="step")))
    world = _event(scenario, 120.0)
    world.advance(scenario.end_ms)
    assert world.watchers[0].done == []
    assert {n.state for n in world.world.nodes} == {"in_service", "spare"}
