"""The fleet through pages and through frames: the same batches to the last digit, the same incidents."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.virtual import FleetSource, VirtualSite
from core.types import Batch, Layout
from core.yamlfile import parse_yaml
from fleet.build import all_plugins, build_scenario
from fleet.hardware import NODE_TYPES
from fleet.jobs import make_job, shape_of
from fleet.scenario import scenario_from
from fleet.telemetry import DEMO, Telemetry
from fleet.world import World

START = 1_767_225_600_000
SLOT_MS = 15_000


def _world(telemetry: Telemetry, kind: str = "h100-8x-roce") -> World:
    world = World(4, 1, 5, START, None, NODE_TYPES[kind], telemetry=telemetry)
    names = [n.name for n in world.nodes]
    world.add_job(make_job("training", "train-1", shape_of("training", {}), [0, 1, 2], world.kind.gpus, np.random.default_rng(1), names))
    if "inference" in world.has:
        shape = shape_of("inference", {"load_seconds": [20, 30]})
        world.add_job(make_job("inference", "chat", shape, [3], world.kind.gpus, np.random.default_rng(2), names))
    return world


def _ill(world: World, slot: int) -> None:
    """A plot in which everything that an exporter can do happens, slot by slot."""
    knobs = world.knobs.exporter
    if 2 <= slot < 4:
        knobs.answers.update({(0, "dcgm"): "down", (1, "dcgm"): "hung", (2, "node"): "error", (3, "trainer"): "empty"})
    if 3 <= slot < 7:
        knobs.answers.update({(1, "node"): "frozen", (2, "dcgm"): "frozen", (0, "trainer"): "half"})
    if 5 <= slot < 9:
        knobs.missing[0, "dcgm"] = frozenset({"DCGM_FI_DEV_GPU_TEMP"})
        knobs.renamed.update({(1, "dcgm"), (1, "node")})
        knobs.extra_series[3, "node"] = 50
    if slot >= 8:
        knobs.restarted.update({(0, "node"): 8, (1, "dcgm"): 8})
        world.knobs.settings.update({(1, "driver"): "590.1", (0, "firmware"): "28.99"})
        world.knobs.gpu.lost[2, 3] = 1
        world.gpus.xid[0, 1] = 48
    if 10 <= slot < 12:
        world.knobs.host.mount_hung[1] = 1
        world.knobs.nic.up[2, 2] = 0
        world.knobs.gpu.lost[3, :] = 1


def _batches(world: World, frames: bool, slots: int, plot=None) -> list[Batch]:
    source, turn, now = FleetSource(world, frames), world.plants.apply, [0]

    def apply(of: World, to: int) -> None:
        turn(of, to)
        if plot is not None:
            plot(of, now[0])
    world.plants.apply = apply  # type: ignore[method-assign]
    out: list[Batch] = []
    for now[0] in range(slots):
        if plot is not None:
            world.nodes[2].state = "rebooting" if now[0] in (6, 7) else "in_service"
        out += source.advance(world.now_ms // SLOT_MS * SLOT_MS + SLOT_MS)
    return out


def _layouts(batches: list[Batch]) -> dict[str, Layout]:
    return {layout.id: layout for batch in batches for layout in batch.layouts}


def _same(first: list[Batch], second: list[Batch]) -> int:
    """Asserts that both say the same; gives how many numbers they hold."""
    known = _layouts(first)
    assert known == _layouts(second)
    numbers = 0
    for one, other in zip(first, second, strict=True):
        rows = [{(s.target_id, s.at, s.layout_id): s for s in batch.scrapes} for batch in (one, other)]
        assert rows[0].keys() == rows[1].keys()
        for key, scrape in rows[0].items():
            twin = rows[1][key]
            assert (scrape.error, scrape.took_seconds) == (twin.error, twin.took_seconds)
            assert np.array_equal(scrape.values, twin.values, equal_nan=True), known[key[2]].target_id
            numbers += len(scrape.values)
        assert (one.events, one.watermark, one.seq) == (other.events, other.watermark, other.seq)
    return numbers


TELEMETRY = {
    "demo": DEMO, "A": Telemetry("A"), "B at 10 s": Telemetry("B", scrape_seconds=10), "C at 60 s": Telemetry("C", scrape_seconds=60),
    "D": Telemetry("D"),
}


@pytest.mark.parametrize("name", TELEMETRY)
def test_pages_and_frames_give_the_same_batches(name):
    """Layouts, values, errors and events of both ways are equal, at every tier and interval."""
    first, second = (_batches(_world(TELEMETRY[name]), frames, 10) for frames in (True, False))
    assert _same(first, second) > 5_000


@pytest.mark.parametrize("kind", ["p5.48xlarge", "trn2.48xlarge"])
def test_on_other_hardware_too(kind):
    """EFA and Neuron exporters as well."""
    telemetry = Telemetry("D", dcgm_cycle_seconds=0)
    first, second = (_batches(_world(telemetry, kind), frames, 3) for frames in (True, False))
    assert _same(first, second) > 10_000


@pytest.mark.parametrize("cycle", [pytest.param(0, marks=pytest.mark.evaluate), 30])
def test_ill_exporters_are_the_same_both_ways(cycle):
    """Down, hung, error, empty, half, frozen, renamed, missing, restarted, lost GPUs, a hung mount, a reboot."""
    telemetry = Telemetry("D", dcgm_cycle_seconds=cycle)
    first, second = (_batches(_world(telemetry), frames, 14, _ill) for frames in (True, False))
    assert _same(first, second) > 50_000
    errors = {scrape.error for batch in first for scrape in batch.scrapes}
    assert {"connect_failed", "timeout", "http_status", "empty_body"} <= errors
    assert errors & {"truncated", "bad_syntax"}


def test_no_logs_at_tier_a():
    """Tier A has no events from logs; tier B has the job's."""
    found = {tier: sum(len(b.events) for b in _batches(_world(Telemetry(tier)), True, 20)) for tier in "AB"}
    assert found["A"] == 0 < found["B"]


def _story(frames: bool, seed: int, fault: str) -> tuple[list[str], str]:
    site = VirtualSite(nodes=2, spares=1, seed=seed, act=False, frames=frames, options={"telemetry": Telemetry("D")})
    site.run_until(site.world.now_ms + 240_000)
    site.world.inject(fault, None, 0.3, seed)
    site.run_until(site.world.now_ms + 420_000)
    return _told(site)


def _told(site: VirtualSite) -> tuple[list[str], str]:
    """(what was said of incidents, findings and actions, faults of the incidents)."""
    rows = [json.loads(line) for line in site.lines]
    kept = [json.dumps(row, sort_keys=True) for row in rows if row["type"] in ("incident", "finding", "action")]
    return kept, ",".join(sorted({row["incident"]["fault"] for row in rows if row["type"] == "incident"}))


@pytest.mark.evaluate
@pytest.mark.parametrize("fault", ["thermal_throttle", "packet_loss"])
def test_pages_and_frames_give_the_same_incidents(fault):
    """The same scenario through pages and through frames: the same story, record by record."""
    by_frames, opened = _story(True, 7, fault)
    by_pages, _ = _story(False, 7, fault)
    assert fault in opened
    assert by_frames == by_pages


SCENARIO = """
name: both-ways
seed: 12
duration: 16m
fleet: {{nodes: 3, spares: 1, tier: {tier}, scrape_seconds: {scrape}}}
jobs:
- {{name: train-1, restart: 3m}}
schedule:
- {{fault: exporter_stale, at: 2m, node: n01}}
- {{fault: thermal_throttle, at: 3m, node: n02, device: "4", severity: 0.4, onset: ramp}}
- {{look_alike: exporter_restart, at: 4m, node: n03}}
- {{fault: packet_loss, at: 5m, node: n03, device: mlx5_2/1, severity: 0.3, onset: step}}
- {{hand: ann, node: n04, at: 6m, for: 5m}}
- {{fault: xid_79, at: 11m, node: n01, device: "2"}}
"""


@pytest.mark.evaluate
@pytest.mark.parametrize(("tier", "scrape"), [("A", 30), ("B", 10), ("D", 15)])
def test_a_whole_scenario_gives_the_same_incidents_both_ways(tier, scrape):
    """Two faults at once, a look-alike beside them, an ill exporter, a lost GPU and another hand: the same story, record by record."""
    text = SCENARIO.format(tier=tier, scrape=scrape)
    told = []
    for frames in (True, False):
        scenario = scenario_from(parse_yaml(text, "both-ways"), "both-ways", all_plugins())
        world, operations, _ = build_scenario(scenario)
        site = VirtualSite(act=False, frames=frames, built=(world, operations))
        site.run_until(scenario.end_ms)
        told.append(_told(site))
    assert told[0] == told[1]
    assert {"thermal_throttle", "gpu_lost", "exporter_stale"} <= set(told[0][1].split(","))
