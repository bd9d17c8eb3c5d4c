"""Frames: the same numbers as the pages, to the last digit, for every exporter, kind of node, tier and ill exporter."""

from __future__ import annotations

import re
import time
from functools import cache

import numpy as np
import pytest

from core.errors import BadInput
from fleet.frames import FleetFrames
from fleet.hardware import NODE_TYPES
from fleet.jobs import make_job, shape_of
from fleet.telemetry import DEMO, Telemetry
from fleet.world import World
from tests.fleet.fleethelp import START

WARM_MS = 150_000
EVERYTHING = Telemetry("D", dcgm_cycle_seconds=0)
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")


def _world(kind: str = "h100-8x-roce", nodes: int = 3, telemetry: Telemetry = EVERYTHING, serve: bool = False) -> World:
    world = World(nodes, 1, 3, START, None, NODE_TYPES[kind], telemetry=telemetry)
    names = [n.name for n in world.nodes]
    train = list(range(nodes - serve))
    world.add_job(make_job("training", "train-1", shape_of("training", {}), train, world.kind.gpus, np.random.default_rng(1), names))
    if serve:
        shape = shape_of("inference", {"load_seconds": [20, 30]})
        world.add_job(make_job("inference", "chat", shape, [nodes - 1], world.kind.gpus, np.random.default_rng(2), names))
    world.advance(START + WARM_MS)
    return world


@cache
def _read_only(kind: str, tier: str) -> FleetFrames:
    return FleetFrames(_world(kind, telemetry=Telemetry(tier, dcgm_cycle_seconds=0), serve=kind == "h100-8x-roce"))


def _samples(page: bytes) -> list[tuple[str, str, float]]:
    """(name, labels, value) of each sample, in page order, read without the fleet's own means."""
    rows = [SAMPLE.fullmatch(line) for line in page.decode().splitlines() if not line.startswith("#")]
    return [(row[1], row[2] or "", float(row[3])) for row in rows]


def _families(page: bytes) -> list[tuple[str, str]]:
    return re.findall(r"^# TYPE (\S+) (\S+)", page.decode(), re.M)


def _check(frames: FleetFrames, at: int) -> int:
    """Compares all pages with the frames at a moment; gives how many numbers were compared."""
    compared = 0
    world = frames.world
    for frame in frames.frames_at(at):
        for row in frame.rows:
            node = world.nodes[row]
            if row in frame.odd:
                continue
            answer = frames.answer(node, frame.exporter)
            if answer.kind != "page":
                assert frame.samples[row] == 0
                continue
            page = [value for _, _, value in _samples(answer.body)]
            numbers = frame.values[row][frames.pages.exporters.columns(node, frame.exporter)]
            assert np.array_equal(np.array(page), numbers, equal_nan=True), (node.name, frame.exporter)
            assert len(page) == frame.samples[row]
            compared += len(page)
    return compared


@pytest.mark.parametrize("tier", ["A", "D"])
@pytest.mark.parametrize("kind", sorted(NODE_TYPES))
def test_page_and_frame_agree(kind, tier):
    """Every number of every page is the frame's, to the last digit, at two moments."""
    frames = _read_only(kind, tier)
    for _ in range(2):
        assert _check(frames, frames.world.now_ms + 15_000) > 500


def test_every_exporter_of_the_catalogue_is_shown():
    """Each kind has what its exporter set says; an endpoint has vLLM's."""
    shown = {kind: _read_only(kind, "D").pages.names for kind in NODE_TYPES}
    assert shown["h100-8x-roce"] == ("dcgm", "node", "lustre", "trainer", "vllm")
    assert shown["p5.48xlarge"][:3] == ("dcgm", "node", "efa")
    assert shown["trn2.48xlarge"][:3] == ("node", "efa", "neuron")


@pytest.mark.parametrize("exporter", ["dcgm", "node", "lustre", "trainer", "vllm"])
def test_equal_shapes_have_equal_text(exporter):
    """Between two slots of the same shape only the numbers of a page change."""
    frames = FleetFrames(_world(serve=True))
    node = frames.world.nodes[2 if exporter == "vllm" else 0]
    seen: dict[int, list[tuple[str, str]]] = {}
    for slot in frames.slots(START + WARM_MS + 120_000):
        frame = next(f for f in frames.frames_at(slot) if f.exporter == exporter)
        text = [(name, labels) for name, labels, _ in _samples(frames.answer(node, exporter).body)]
        assert seen.setdefault(frame.shapes[node.index], text) == text
    assert len(seen) == 1


# --- tiers -----------------------------------------------------------------------------------------------------------
def test_tiers_add_up():
    """Each tier shows all that the one below it shows, and more; logs come with B."""
    shown = []
    for tier in "ABCD":
        frames = _read_only("h100-8x-roce", tier)
        node = frames.world.nodes[0]
        shown.append({name for e in frames.pages.names for name, _ in _families(frames.answer(node, e).body)})
        assert bool(frames.logs()) == (tier != "A")
    assert shown[0] == shown[1] < shown[2] < shown[3]
    assert "DCGM_FI_DEV_THERMAL_VIOLATION" not in shown[0]
    assert {"DCGM_FI_DEV_THERMAL_VIOLATION", "node_ethtool_received_corrected_bits_phy", "lustre_read_bytes_total"} <= shown[2]
    assert "greylag_train_step" in shown[3] - shown[2]


def test_values_repeat_over_the_exporters_cycle():
    """Scraped each 15 s, a cycle of 30 s shows every value twice, energy included; other exporters go on."""
    frames = FleetFrames(_world(telemetry=Telemetry("C", dcgm_cycle_seconds=30)))
    seen: dict[str, list[float]] = {"dcgm": [], "node": []}
    for slot in frames.slots(START + WARM_MS + 120_000):
        for frame in frames.frames_at(slot):
            if frame.exporter in seen:
                seen[frame.exporter].append(float(np.nansum(frame.values[0])))
    repeats = [a == b for a, b in zip(seen["dcgm"], seen["dcgm"][1:], strict=False)]
    assert repeats in ([True, False] * 3 + [True], [False, True] * 3 + [False])
    assert len(set(seen["node"])) == len(seen["node"])


def test_a_scrape_interval_of_its_own():
    """Slots lie on multiples of the interval."""
    frames = FleetFrames(_world(telemetry=Telemetry("A", scrape_seconds=20)))
    assert [slot - START for slot in frames.slots(START + 200_000)] == [160_000, 180_000, 200_000]


def test_the_time_of_day_goes_on_between_sub_steps():
    """Asked within a sub-step, a page differs in the node's clock alone, and page and frame still agree."""
    frames = FleetFrames(_world())
    node, now = frames.world.nodes[0], frames.world.now_ms
    shown = []
    for at in (now, now + 1_234):
        _check(frames, at)
        shown.append({row[:2]: row[2] for row in _samples(frames.answer(node, "node").body)})
    assert {key[0] for key in shown[0] if shown[0][key] != shown[1][key]} == {"node_time_seconds"}
    assert shown[1]["node_time_seconds", ""] - shown[0]["node_time_seconds", ""] == pytest.approx(1.234)


@pytest.mark.parametrize(("given", "key"), [({"tier": "E"}, "tier"), ({"scrape_seconds": 5}, "scrape_seconds"),
                                            ({"scrape_seconds": 90}, "scrape_seconds"), ({"dcgm_cycle_seconds": -1}, "dcgm_cycle")])
def test_telemetry_that_cannot_be_is_refused(given, key):
    """One sentence that names the key."""
    with pytest.raises(BadInput, match=key):
        Telemetry(**given)


# --- ill exporters ---------------------------------------------------------------------------------------------------
def _with(ill) -> FleetFrames:
    """A world in which `ill(knobs.exporter, world)` turns the knobs in every sub-step."""
    world = _world()
    turn = world.plants.apply

    def apply(of: World, to: int) -> None:
        turn(of, to)
        ill(of.knobs.exporter, of)
    world.plants.apply = apply  # type: ignore[method-assign]
    frames = FleetFrames(world)
    frames.frames_at(world.now_ms)
    return frames


@pytest.mark.parametrize(("how", "kind"), [("down", "down"), ("error", "error"), ("empty", "empty"), ("hung", "hung"),
                                           ("half", "page")])
def test_an_exporter_that_does_not_answer(how, kind):
    """The node is odd in the frame, its answer says how; its other exporters and the other nodes go on."""
    frames = _with(lambda knobs, world: knobs.answers.update({(1, "dcgm"): how}))
    at = frames.world.now_ms + 15_000
    odd = {frame.exporter: frame.odd for frame in frames.frames_at(at)}
    assert odd["dcgm"] == {1}
    assert not odd["node"]
    assert frames.answer(frames.world.nodes[1], "dcgm").kind == kind
    assert _check(frames, at) > 2000


def test_half_a_body_ends_within_a_line():
    """It has about half of the bytes, and no newline at its end."""
    frames = _with(lambda knobs, world: knobs.answers.update({(1, "node"): "half"}))
    frames.world.advance(frames.world.now_ms + 15_000)
    half, whole = (len(frames.answer(frames.world.nodes[i], "node").body) for i in (1, 0))
    assert 0.45 * whole < half < 0.55 * whole


def test_a_frozen_exporter_shows_its_last_page():
    """The page stays as it was, byte for byte, while others change."""
    frames = _with(lambda knobs, world: knobs.answers.update({(1, "dcgm"): "frozen"}))
    nodes = frames.world.nodes
    before = [frames.answer(nodes[i], "dcgm").body for i in (0, 1)]
    assert _check(frames, frames.world.now_ms + 15_000)
    assert frames.answer(nodes[1], "dcgm").body == before[1]
    assert frames.answer(nodes[0], "dcgm").body != before[0]


def test_missing_and_renamed_families():
    """Families that are gone have no head either; renamed ones carry the upgrade's names; the frame has the numbers."""
    def ill(knobs, world):
        knobs.missing[0, "dcgm"] = frozenset({"DCGM_FI_DEV_GPU_TEMP"})
        knobs.renamed.update({(1, "dcgm"), (2, "node")})
    frames = _with(ill)
    assert _check(frames, frames.world.now_ms + 15_000)
    names = [dict(_families(frames.answer(frames.world.nodes[i], e).body)) for i, e in ((0, "dcgm"), (1, "dcgm"), (2, "node"))]
    assert "DCGM_FI_DEV_GPU_TEMP" not in names[0]
    assert "DCGM_FI_DEV_POWER_USAGE" in names[0]
    assert "DCGM_FI_DEV_GPU_TEMP_CELSIUS" in names[1]
    assert "DCGM_FI_DEV_GPU_TEMP" not in names[1]
    assert "node_infiniband_legacy_data_received_bytes_total" in names[2]
    assert list(names[2]) == sorted(names[2])


def test_series_beyond_the_exporters_own():
    """So many more series, and others at the next slot."""
    frames = _with(lambda knobs, world: knobs.extra_series.update({(0, "node"): 40}))
    node, seen = frames.world.nodes[0], []
    for _ in range(2):
        frames.world.advance(frames.world.now_ms + 15_000)
        rows = _samples(frames.answer(node, "node").body)
        seen.append({labels for name, labels, _ in rows if name.startswith("node_request")})
    assert [len(one) for one in seen] == [40, 40]
    assert not seen[0] & seen[1]


def test_counters_of_a_restarted_exporter_begin_anew():
    """Counters are 0 at first and grow from there; gauges stay."""
    frames = _with(lambda knobs, world: knobs.restarted.update({(0, "node"): 1}))
    node, values = frames.world.nodes[0], []
    for _ in range(3):
        assert _check(frames, frames.world.now_ms + 15_000)
        values.append({(n, labels): v for n, labels, v in _samples(frames.answer(node, "node").body)})
    key = ("node_vmstat_pgmajfault", "")
    sent = next(k for k in values[0] if k[0] == "node_infiniband_port_data_transmitted_bytes_total")
    assert values[0][sent] == 0
    assert values[0][sent] <= values[1][sent] < values[2][sent]
    assert values[0][key] > 0  # untyped: not a counter of its own
    assert values[2]["node_memory_MemTotal_bytes", ""] > 1e12


def test_a_lost_gpu_has_no_series():
    """All series of the GPU vanish, the others stay; with all of them gone the page is empty."""
    def ill(knobs, world):
        world.knobs.gpu.lost[0, 3] = 1
        world.knobs.gpu.lost[1, :] = 1
    frames = _with(ill)
    assert _check(frames, frames.world.now_ms + 15_000)
    page = frames.answer(frames.world.nodes[0], "dcgm").body.decode()
    assert {int(g) for g in re.findall(r'gpu="(\d)"', page)} == {0, 1, 2, 4, 5, 6, 7}
    assert frames.answer(frames.world.nodes[1], "dcgm").kind == "empty"


def test_settings_that_differ_stand_in_labels():
    """Driver, firmware, kernel and the rest show on the node's pages, and only there."""
    def ill(knobs, world):
        world.knobs.settings.update({(0, "driver"): "590.1", (0, "firmware"): "28.99", (0, "kernel"): "6.9.1", (0, "nccl"): "2.1"})
    frames = _with(ill)
    assert _check(frames, frames.world.now_ms + 15_000)
    both = [frames.answer(node, "dcgm").body.decode() + frames.answer(node, "node").body.decode() for node in frames.world.nodes[:2]]
    for word in ('DCGM_FI_DRIVER_VERSION="590.1"', 'firmware_version="28.99"', 'release="6.9.1"', 'setting="nccl",value="2.1"'):
        assert word in both[0]
        assert word not in both[1]


def test_a_loss_that_is_not_a_number_is_shown():
    """NaN of a finished step is a value; before the first step there is none."""
    frames = FleetFrames(_world())
    job = frames.world.jobs["train-1"]
    job.loss = float("nan")
    frames.world.revision += 1
    _check(frames, frames.world.now_ms)
    page = frames.answer(frames.world.nodes[0], "trainer").body
    assert len(re.findall(rb"^greylag_train_loss\{.*\} NaN$", page, re.M)) == 8
    early = FleetFrames(World(2, 0, 1, START, telemetry=EVERYTHING))
    early.world.advance(START + 15_000)
    assert b"greylag_train_loss" not in early.answer(early.world.nodes[0], "trainer").body


def test_frames_are_cheap():
    """The numbers of 64 nodes with all signals cost some milliseconds a slot (bound: 40, on a busy machine)."""
    frames = FleetFrames(World(64, 0, 1, START, telemetry=EVERYTHING))
    frames.frames_at(START + 15_000)
    began = time.process_time()
    for _ in range(5):
        frames.world.revision += 1
        frames.frames_at(frames.world.now_ms)
    assert (time.process_time() - began) / 5 < 0.04


def test_lean_pages_are_the_demos():
    """The demo's telemetry shows three exporters and nothing else."""
    assert FleetFrames(_world(telemetry=DEMO)).pages.names == ("dcgm", "node", "trainer")


# Names and types of neuron-monitor's bridge on a real instance with a process on it (its own process's rows left out), in their
# order, and of vLLM's servers (facts/signals.md §8; its pages have a `_created` beside each).
NEURON = """execution_errors_total counter, execution_errors_created gauge, execution_status_total counter, execution_status_created
gauge, execution_latency_seconds gauge, neuron_runtime_memory_used_bytes gauge, neuron_runtime_vcpu_usage_ratio gauge,
neuroncore_utilization_ratio gauge, system_memory_total_bytes gauge, system_memory_used_bytes gauge, system_swap_total_bytes gauge,
system_swap_used_bytes gauge, hardware_ecc_events_total counter, hardware_ecc_events_created gauge, system_vcpu_count gauge,
system_vcpu_usage_ratio gauge, instance_info gauge"""
NEURON_LABELS = {"availability_zone", "instance_id", "instance_name", "instance_type", "region", "subnet_id"}
VLLM = """num_requests_running gauge, num_requests_waiting gauge, kv_cache_usage_perc gauge, prompt_tokens_total counter,
generation_tokens_total counter, request_success_total counter, num_preemptions_total counter, prefix_cache_queries_total counter,
prefix_cache_hits_total counter, time_to_first_token_seconds histogram, inter_token_latency_seconds histogram,
e2e_request_latency_seconds histogram, request_queue_time_seconds histogram, request_prefill_time_seconds histogram,
request_decode_time_seconds histogram"""


def _listed(text: str) -> list[tuple[str, ...]]:
    return [tuple(row.split()) for row in text.split(",")]


def test_the_neuron_bridges_families_are_the_real_ones():
    """Names, types and order of a real page; the instance's labels on every series, all of them sorted by name."""
    frames = _read_only("trn2.48xlarge", "D")
    page = frames.answer(frames.world.nodes[0], "neuron").body
    assert _families(page) == _listed(NEURON)
    for _, labels, _ in _samples(page):
        names = re.findall(r'(\w+)="', labels)
        assert names == sorted(names)
        assert set(names) >= NEURON_LABELS
    busy = {labels: value for name, labels, value in _samples(page) if name == "execution_status_total"}
    assert sum(value > 0 for value in busy.values()) == 1
    idle = frames.answer(frames.world.nodes[3], "neuron").body  # a spare has no process
    assert {name for name, _, _ in _samples(idle)}.isdisjoint({"execution_status_total", "neuroncore_utilization_ratio"})


def test_vllms_families_are_those_of_its_first_version():
    """Each metric of facts/signals.md §8 with its type, under the `vllm:` prefix."""
    frames = _read_only("h100-8x-roce", "D")
    shown = _families(frames.answer(frames.world.nodes[2], "vllm").body)
    assert {(f"vllm:{name}", kind) for name, kind in _listed(VLLM)} <= set(shown)
