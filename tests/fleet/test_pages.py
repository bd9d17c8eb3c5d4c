"""Exporter pages: the form of the real ones, lean, fast, and the same over HTTP and in virtual time."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.inventory import inventory_from
from core.types import Target
from fleet.build import build_world
from fleet.frames import FleetDoor, FleetFrames
from fleet.hardware import NODE_TYPES
from fleet.numbers import go_float
from fleet.pages import Pages, discovery
from fleet.state import inventory
from fleet.telemetry import Telemetry
from fleet.world import World
from tests import needs
from tests.fleet.fleethelp import START, act, pages, read, run_until, small

GO = [(0.0, "0"), (1.0, "1"), (-0.0, "-0"), (210.45, "210.45"), (999999.0, "999999"), (1e6, "1e+06"), (1.07832e6, "1.07832e+06"),
      (1234567.5, "1.2345675e+06"), (5e10, "5e+10"), (1.0474e12, "1.0474e+12"), (1e21, "1e+21"), (0.0001, "0.0001"),
      (0.00001, "1e-05"), (-2.5e7, "-2.5e+07"), (1234567890123456789.0, "1.2345678901234568e+18"),
      (float("nan"), "NaN"), (float("inf"), "+Inf"), (float("-inf"), "-Inf")]


@pytest.mark.parametrize(("value", "text"), GO)
def test_go_floats(value, text):
    """Numbers are printed as Go's exposition code prints them."""
    assert go_float(value) == text


@given(st.floats(allow_nan=False))
def test_go_floats_read_back(value):
    """No digit is lost."""
    assert float(go_float(value)) == value


def _pages(world):
    return pages(FleetFrames(world), world.now_ms)


def test_a_node_has_at_most_800_series():
    """Pages are lean: the three exporters of a node together stay within the demo's bound."""
    world, _ = small()
    found = _pages(world)
    for node in ("n01", "n05"):
        count = sum(len(rows) for kind in ("dcgm", "node", "trainer") for rows in read(found[(node, kind)]).values())
        assert 300 < count <= 800


def test_dcgm_page_has_the_exporters_form():
    """HELP before TYPE, labels in the exporter's order, integers whole, floats with six decimals, no timestamps."""
    world, _ = small()
    text = _pages(world)[("n02", "dcgm")].decode()
    lines = text.splitlines()
    assert lines[0].startswith("# HELP DCGM_FI_DEV_SM_CLOCK ")
    assert lines[1] == "# TYPE DCGM_FI_DEV_SM_CLOCK gauge"
    sample = re.compile(
        r'DCGM_FI_\w+\{gpu="\d",UUID="GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",pci_bus_id="00000000:[0-9A-F]{2}:00.0",'
        r'device="nvidia\d",modelName="NVIDIA H100 80GB HBM3",Hostname="n02",DCGM_FI_DRIVER_VERSION="[\d.]+"\} -?\d+(\.\d{6})?')
    assert all(sample.fullmatch(line) for line in lines if not line.startswith("#"))
    assert re.search(r'DCGM_FI_DEV_POWER_USAGE\{.*\} \d+\.\d{6}\n', text)
    assert "EOF" not in text


def test_dcgm_page_has_the_labels_of_the_real_capture():
    """Names of families and labels are those of a real scrape of the same exporter."""
    real = needs.shared("samples/dcgm/conformance_upcloud_L40S_full.prom").read_text()
    world, _ = small()
    ours = _pages(world)[("n01", "dcgm")].decode()
    order = re.search(r"DCGM_FI_DEV_GPU_TEMP\{(.*)\}", real)
    mine = re.search(r"DCGM_FI_DEV_GPU_TEMP\{(.*)\}", ours)
    keys = re.compile(r'(\w+)="')
    assert keys.findall(mine[1]) == keys.findall(order[1])
    real_types = dict(re.findall(r"# TYPE (\S+) (\S+)", real))
    our_types = dict(re.findall(r"# TYPE (\S+) (\S+)", ours))
    assert {k: our_types[k] for k in our_types.keys() & real_types} == {k: real_types[k] for k in our_types.keys() & real_types}
    assert len(our_types.keys() & real_types) >= 12


def test_xid_is_absent_until_the_first():
    """No XID line on a healthy GPU; one line once there was one."""
    world, _ = small()
    assert b"XID" not in _pages(world)[("n01", "dcgm")]
    world.gpus.xid[0, 3] = 79
    world.revision += 1
    found = read(_pages(world)[("n01", "dcgm")])["DCGM_FI_DEV_XID_ERRORS"]
    assert [(dict(k)["gpu"], v) for k, v in found.items()] == [("3", 79.0)]


def test_node_page_families_are_sorted_and_typed():
    """Families come in name order with HELP and TYPE, as the Go registry gathers them."""
    world, _ = small()
    names = re.findall(r"^# TYPE (\S+) ", _pages(world)[("n01", "node")].decode(), re.M)
    assert names == sorted(names)
    assert "node_infiniband_out_of_sequence_packets_received_total" in names


# Families of ours that the real exporter's own sample lacks: its machine has no such part, or other files.
ABSENT_THERE = ("node_infiniband_", "node_filesystem_", "node_timex_", "node_memory_MemAvailable", "node_uname_", "node_ethtool_",
                "node_exporter_build", "node_time_", "node_boot_", "node_systemd_", "greylag_")


def _shown(kind: str, exporter: str, tier: str = "D") -> str:
    world = World(2, 0, 1, START, kind=NODE_TYPES[kind], telemetry=Telemetry(tier, dcgm_cycle_seconds=0))
    world.advance(START + 120_000)
    return Pages(world).answer(world.nodes[0], exporter).body.decode()


def _types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))


@pytest.mark.parametrize("kind", ["h100-8x-roce", "p5.48xlarge"])
def test_node_page_names_are_the_real_ones(kind):
    """Families that the real exporter's own sample has too are of the same type, with the same names of labels."""
    real = needs.shared("samples/node_exporter/e2e-output.txt").read_text()
    ours, theirs = _shown(kind, "node"), _types(real)
    mine = _types(ours)
    assert not {n for n in mine if n not in theirs and not n.startswith(ABSENT_THERE)}
    both = mine.keys() & theirs.keys()
    assert len(both) > 60
    assert {n: mine[n] for n in both} == {n: theirs[n] for n in both}
    labels = [{name: re.findall(r'(\w+)="', block) for name, block in re.findall(r"^(\w+)\{(.*)\} ", text, re.M)} for text in (ours, real)]
    differ = {name for name in labels[0].keys() & labels[1].keys() if labels[0][name] != labels[1][name]}
    assert differ <= {"node_infiniband_info"}  # that machine's adapters differ: some say less of themselves


def test_dcgm_shows_its_default_list_at_tier_a():
    """Exactly the fields that the exporter's own list has switched on, in its order; an XID only after one."""
    text = needs.shared("samples/dcgm/csv/dcgm-exporter_default-counters.csv").read_text()
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.startswith("DCGM")]
    listed = [(row[0], row[1]) for row in rows if row[1] != "label" and row[0] != "DCGM_FI_DEV_XID_ERRORS"]
    assert list(_types(_shown("h100-8x-roce", "dcgm", "A")).items()) == listed


def test_dcgm_shows_the_recommended_fields_from_tier_c_on():
    """Fields of the advanced list of a large cloud that such GPUs have are there, with the types of the exporter's own list."""
    wanted = set(re.findall(r"^(DCGM_FI_\w+)", needs.shared("samples/dcgm/csv/hyperpod_dcgm-metrics-advanced.csv").read_text(), re.M))
    ours = _types(_shown("h100-8x-roce", "dcgm", "C"))
    gone = {n for n in wanted if "RETIRED" in n or "FP64" in n or "FP32" in n or "FP16" in n or n.endswith(("_L0", "XID_ERRORS"))}
    assert wanted - gone <= ours.keys()
    own = needs.shared("samples/dcgm/csv/dcgm-exporter_default-counters.csv").read_text()
    types = dict(re.findall(r"^(?:# )?(DCGM_FI_(?:DEV|PROF)_\w+) *, *(\w+)", own, re.M))
    types |= {"DCGM_FI_PROF_PCIE_TX_BYTES": "gauge", "DCGM_FI_PROF_PCIE_RX_BYTES": "gauge"}  # listed twice there
    assert {n: ours[n] for n in ours.keys() & types} == {n: types[n] for n in ours.keys() & types}


def test_efa_page_is_the_real_captures():
    """Families, types, help texts, order and labels of a real p4d's page; numbers in the same notation."""
    real = needs.shared("samples/efa/p4d_4xEFA_full.prom").read_text()
    ours = _shown("p4d.24xlarge", "efa")
    heads = [[line for line in text.splitlines() if line.startswith("#")] for text in (ours, real)]
    assert [line for line in heads[0] if "amazonefa_info" not in line] == [line for line in heads[1] if "amazonefa_info" not in line]
    places = [re.findall(r"^(node_amazonefa_\w+\{.*\}) ", text, re.M) for text in (ours, real)]
    assert places[0] == places[1]
    assert re.search(r'^node_amazonefa_tx_bytes\{.*\} \d\.\d+e\+1\d$', ours, re.M)


def test_lustre_page_names_are_the_real_ones():
    """Each series has the name, type and labels of the real exporter's client rows."""
    real = needs.shared("samples/lustre/gsi_lustre_exporter_expected.prom").read_text()
    ours = _shown("h100-8x-roce", "lustre")
    mine, theirs = _types(ours), _types(real)
    assert {n: theirs.get(n) for n in mine} == mine

    def rows(text):
        return {(name, re.sub(r'target="[^"]*"', "", labels)) for name, labels in re.findall(r"^(lustre_\w+)\{(.*)\} ", text, re.M)}
    assert {row for row in rows(ours) if "statfs" not in row[1]} <= rows(real)


def test_trainer_page_is_prometheus_clients():
    """Sorted labels, floats with a point, one rank a GPU, exactly one phase."""
    world, _ = small()
    run_until(world, lambda: world.jobs["train-1"].phase == "train")
    page = _pages(world)[("n02", "trainer")]
    assert re.search(rb'^greylag_train_step\{gpu="0",job="train-1",node="n02",rank="8"\} \d+\.0$', page, re.M)
    found = read(page)
    assert [dict(k)["rank"] for k in found["greylag_train_collective_seq"]] == [str(r) for r in range(8, 16)]
    one = [dict(k)["phase"] for k, v in found["greylag_train_phase"].items() if v and dict(k)["rank"] == "9"]
    assert one == ["train"]
    parts = [found[f"greylag_train_{p}_seconds"] for p in ("compute", "comm_wait", "data_wait")]
    for key, total in found["greylag_train_step_seconds"].items():
        assert sum(p[key] for p in parts) <= total * 1.001


def test_a_node_without_ranks_answers_without_their_series():
    """Spares have the agent and no ranks; killed ranks vanish; a clean stop leaves phase done."""
    world, ops = small()
    door = FleetDoor(ops)
    assert set(read(_pages(world)[("n05", "trainer")])) == {"greylag_train_agent_ranks"}
    act(door, "a/1/1", "drain", Target("node", "n01"), wait_for="checkpoint")
    run_until(world, lambda: door.poll("a/1/1").state == "DONE")
    phases = read(_pages(world)[("n02", "trainer")])["greylag_train_phase"]
    assert {dict(k)["phase"] for k, v in phases.items() if v} == {"done"}


def test_steps_that_have_not_happened_are_absent():
    """While the job loads there is a phase and a step, and no step time or loss."""
    world, _ = build_world(2, 0, 1, START, before_seconds=15)
    found = read(_pages(world)[("n01", "trainer")])
    assert "greylag_train_step_seconds" not in found
    assert "greylag_train_loss" not in found
    assert set(found["greylag_train_step"].values()) == {18_000.0}


def test_a_rebooting_node_does_not_answer():
    """No page while the node reboots."""
    world, _ = small()
    world.nodes[1].state = "rebooting"
    found = _pages(world)
    assert found[("n02", "dcgm")] is None
    assert found[("n01", "dcgm")] is not None


def test_counters_only_grow():
    """Between two slots no counter of a running node goes back."""
    world, _ = small()
    frames = FleetFrames(world)
    first, second = pages(frames, START + 15_000), pages(frames, START + 90_000)
    for key, page in first.items():
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)", page.decode(), re.M))
        before, after = read(page), read(second[key])
        for name, kind in types.items():
            if kind == "counter":
                # prometheus-client puts `_total` on counters whose exporter leaves it out
                    shown = name if name in before else f"{name}_total"
                    assert all(after[shown][k] >= v for k, v in before[shown].items()), name


def test_energy_counter_is_the_integral_of_power():
    """Millijoules grow as the watts say, within the noise of the samples."""
    world, _ = small()
    job = world.jobs["train-1"]
    run_until(world, lambda: job.phase == "checkpoint")
    run_until(world, lambda: job.phase == "train")
    world.advance(world.now_ms + 30_000)
    before, watts = world.gpus.energy_mj[0, 0], []
    for _ in range(24):
        world.advance(world.now_ms + 5_000)
        watts.append(np.median(world.gpus.power[:4]))
    assert (world.gpus.energy_mj[0, 0] - before) / 1000 / 120 == pytest.approx(np.mean(watts), rel=0.08)


def test_pages_of_eighteen_nodes_are_made_fast():
    """All 54 pages of the demo's fleet cost a few milliseconds of CPU a slot (bound: 80)."""
    world, _ = build_world(16, 2, 1, START, before_seconds=60)
    frames = FleetFrames(world)
    frames.pages_at(world.now_ms)
    began = time.process_time()
    for _ in range(5):
        world.revision += 1
        frames.pages_at(world.now_ms)
    assert (time.process_time() - began) / 5 < 0.08


def test_virtual_time_gives_each_slot_once():
    """`advance` yields every target at every multiple of 15 s, in order."""
    world, _ = small()
    frames = FleetFrames(world)
    rows = list(frames.advance(START + 60_000))
    assert [at for _, at, _ in rows[::15]] == [START + s * 1000 for s in (15, 30, 45, 60)]
    assert len(rows) == 4 * 15
    assert list(frames.advance(START + 60_000)) == []


def test_inventory_is_one_that_greylag_reads():
    """The door's inventory passes the strict reader and names every part as the pages do."""
    world, _ = small()
    found = inventory_from(json.loads(json.dumps(inventory(world))), "fleet")
    assert [n.state for n in found.nodes] == ["in_service"] * 4 + ["spare"]
    assert found.jobs[0].nodes == ("n01", "n02", "n03", "n04")
    assert found.topology().nics[("n03", "mlx5_4/1")].rail == 4
    uuids = {target.id for target, _ in found.gpus()}
    page = _pages(world)[("n03", "dcgm")].decode()
    assert set(re.findall(r'UUID="([^"]+)"', page)) <= uuids
    assert len({n.rack for n in found.nodes}) == 2


def test_discovery_lists_every_exporter():
    """Three targets a node, spares included, with the labels of the design."""
    world, _ = small()
    rows = discovery(world, "127.0.0.1:1")
    assert len(rows) == 15
    assert rows[0] == {"targets": ["127.0.0.1:1"], "labels": {
        "__metrics_path__": "/nodes/n01/dcgm", "instance": "n01:9400", "job": "dcgm", "node": "n01"}}
    assert {r["labels"]["instance"].split(":")[1] for r in rows} == {"9400", "9100", "9401"}


def test_trainer_log_reads_as_megatrons():
    """Iteration, checkpoint and load lines in Megatron-LM's form."""
    world, _ = small()
    text = world.jobs["train-1"].log.read().decode()
    assert re.search(r"^ \[2025-12-31 23:5\d:\d\d\] iteration +\d+/ +500000 \| consumed samples: +\d+ \| elapsed time per "
                     r"iteration \(ms\): \d+\.\d \| .* lm loss: \d\.\d{6}E[+-]\d\d \|", text, re.M)
    assert "successfully saved checkpoint" in text
    assert "successfully loaded checkpoint" in text


def test_log_offsets_are_bytes():
    """Reading from an offset gives the rest, beyond the end nothing."""
    world, _ = small()
    log = world.kernel.of(0)
    whole = log.read()
    assert log.read(10) == whole[10:]
    assert log.read(len(whole) + 5) == b""
    assert re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00 n01 kernel: Linux version", whole)
