"""What is on no node: the scheduler's exporters, log and books, and the switches' ports, which agree with the nodes' NICs."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache

import numpy as np
import pytest

from app import wiring
from app.fleet_targets import FleetTargets
from collectors.history.sacct import read_sacct
from collectors.mapping import Mapper
from core.errors import BadInput
from core.types import Target
from fleet.frames import FleetFrames
from fleet.pages import discovery
from fleet.scheduler import hostlist
from fleet.sheets.switches import SNMP_COUNTERS
from fleet.telemetry import Telemetry
from fleet.topology import PATHS
from fleet.world import World
from tests.fleet.fleethelp import START, read, small

SITES = (("slurm", "snmp"), ("kubernetes", "gnmic"))
SLOT = 15_000
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")


@cache
def _built(scheduler: str | None, switches: str | None) -> World:
    world, _ = small()
    world.telemetry = Telemetry("D", dcgm_cycle_seconds=0, scheduler=scheduler, switches=switches)
    FleetFrames(world)
    world.advance(world.now_ms + 2 * SLOT)
    return world


def site(scheduler: str | None, switches: str | None) -> FleetFrames:
    """Four nodes and a spare at work, whose scheduler and switches are watched for half a minute."""
    return FleetFrames(deepcopy(_built(scheduler, switches)))


def page(frames: FleetFrames, name: str, exporter: str) -> bytes:
    place = frames.pages.find(name, exporter)
    found = frames.pages.page(place, exporter)
    assert found is not None
    return found


def elsewhere(frames: FleetFrames) -> list[str]:
    """The exporters that are on no node."""
    return [n for n in frames.pages.names if frames.pages.exporters.places(n) is not frames.world.nodes]


# --- form ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("scheduler", "switches"), SITES)
def test_pages_and_frames_are_the_same_to_the_last_digit(scheduler, switches):
    """Every number of every page stands in the frame, in page order, and the product's own reader finds the same in both."""
    frames, compared = site(scheduler, switches), 0
    for frame in frames.frames_at(frames.world.now_ms + SLOT):
        if frame.exporter not in elsewhere(frames):
            continue
        for row in frame.rows:
            place = frames.pages.exporters.places(frame.exporter)[row]
            lines = [SAMPLE.fullmatch(line) for line in frames.answer(place, frame.exporter).body.decode().splitlines() if line[0] != "#"]
            numbers = frame.values[row][frames.pages.exporters.columns(place, frame.exporter)]
            assert np.array_equal(np.array([float(line[3]) for line in lines]), numbers)
            assert len(lines) == frame.samples[row]
            compared += len(lines)
    assert compared > 10_000


@pytest.mark.parametrize(("scheduler", "switches"), SITES)
def test_the_form_is_the_real_exporters(scheduler, switches):
    """One head for each family; Go's registry sorts families by name (kube-state-metrics does not), series by their labels."""
    frames = site(scheduler, switches)
    for exporter, name in ((elsewhere(frames)[0], "head"), (switches, "leaf-p1r0")):
        text = page(frames, name, exporter).decode()
        heads = re.findall(r"^# HELP (\S+) .+\n# TYPE \1 (counter|gauge|untyped)$", text, re.M)
        names = [head for head, _ in heads]
        assert len(names) == len(set(names)) == text.count("# HELP") == text.count("# TYPE")
        assert exporter == "kube" or names == sorted(names)
        series = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
        assert len(series) == len(set(series))
        assert {one.partition("{")[0] for one in series} == set(names)
        assert read(text.encode())


def test_a_known_port_prints_as_snmp_exporter_prints_it():
    """Labels by name, the object's number behind the help, large numbers as Go writes them."""
    text = page(site("slurm", "snmp"), "leaf-p1r0", "snmp").decode()
    assert re.search(r"^# HELP ifHCInOctets .+ - 1\.3\.6\.1\.2\.1\.31\.1\.1\.1\.6\n# TYPE ifHCInOctets counter$", text, re.M)
    assert re.search(r'^ifHCInOctets\{ifAlias="n02 mlx5_0",ifDescr="Ethernet2",ifIndex="2",ifName="Ethernet2"\} \d\.\d+e\+14$', text, re.M)
    assert re.search(r'^ifHighSpeed\{.*ifName="Ethernet2"\} 400000$', text, re.M)


# --- the product reads them ------------------------------------------------------------------------------------------------
def _signals(frames: FleetFrames, exporter: str, *places: str) -> dict[tuple[str, str | None, str | None], float]:
    """(signal, node, device or job) to value, as the collectors map these pages; of several values the worst."""
    targets, found = FleetTargets(frames, Mapper(wiring.sources()), False), {}
    for name in places:
        row = frames.pages.find(name, exporter).index
        for layout, scrape in targets._by_text(exporter, row, frames.world.now_ms)[0]:
            for signal in layout.signals:
                key = signal.signal, signal.target.node, signal.target.device or signal.target.job
                found[key] = max(found.get(key, -np.inf), scrape.values[signal.index] * signal.scale)
    return found


@pytest.mark.parametrize("switches", ["snmp", "gnmic"])
def test_the_sources_read_every_port_of_every_switch(switches):
    """Octets, errors, drops, pauses and state of each port, by switch and port."""
    frames = site(None, switches)
    found, bank = _signals(frames, switches, "leaf-p2r7", "spine-2"), frames.world.switchports
    for station in (one for one in bank.stations if one.name in ("leaf-p2r7", "spine-2")):
        for number in bank.ports[station.index]:
            port = (station.name, bank.names[number])
            assert found["link.received_bytes_per_second", *port] == pytest.approx(bank.counters["in_octets"][number], rel=1e-12)
            assert {("link.up", *port), ("link.errors_per_second", *port), ("link.discards_per_second", *port),
                    ("link.pause_sent_per_second", *port)} <= set(found)


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_the_sources_read_the_schedulers_states(scheduler):
    """A node that somebody drains gets no new work; the others work."""
    frames = site(scheduler, None)
    frames.world.other_hand("n05", "maintenance")
    frames.world.advance(frames.world.now_ms + 5_000)
    found = _signals(frames, elsewhere(frames)[0], "head")
    assert found["node.scheduler_state", "n05", None] == 1.0
    assert found["node.scheduler_state", "n01", None] == 0.0
    if scheduler == "kubernetes":
        assert found["job.pods_running", None, "train-1"] == 1.0


# --- both ends of a cable ----------------------------------------------------------------------------------------------------
ENDS = (("in_octets", "sent_bytes"), ("out_octets", "received_bytes"), ("in_packets", "sent_packets"),
        ("out_packets", "received_packets"), ("pause_in", "pause_sent"), ("pause_out", "pause_received"),
        ("transitions", "carrier_changes"))


@pytest.mark.parametrize("fault", [None, "link_flap", "link_slow", "packet_loss", "link_decay", "congestion"])
def test_a_switch_counts_what_its_nics_count(fault):
    """To the last digit, in health, in every fault of a port and when the fabric is crowded; its state and rate are the port's."""
    frames = site(None, "snmp")
    world, bank = frames.world, frames.world.switchports
    before = {name: values.copy() for name, values in bank.counters.items()}
    if fault is not None:
        severity = 0.08 if fault == "congestion" else 0.3
        world.inject(fault, None if fault == "congestion" else Target("nic", "n02", "mlx5_2/1"), severity, 3, "step")
    world.advance(world.now_ms + 120_000)
    moved = {name: values - before[name] for name, values in bank.counters.items()}
    cables = world.topology.leaf_of.size
    for here, there in ENDS:
        assert np.array_equal(bank.counters[here][:cables], world.nics.counters[there].ravel()), here
    assert np.array_equal(bank.up[:cables], world.network.up.ravel())
    own = world.topology.leaf_of.shape[1] + 2  # n02 mlx5_2
    for name, of in (("in_errors", "link_decay"), ("transitions", "link_flap")):
        assert (moved[name][own] > 0) == (fault == of), name
        assert moved[name][:cables].sum() == moved[name][own], name
    shown = read(page(frames, "leaf-p1r2", "snmp"))
    port = (("ifAlias", "n02 mlx5_2"), ("ifDescr", "Ethernet2"), ("ifIndex", "2"), ("ifName", "Ethernet2"))
    assert shown["ifHCInOctets_total"][port] == world.nics.counters["sent_bytes"][1, 2]
    assert shown["ifHighSpeed"][port] == round(8e-6 * world.knobs.nic.rate[1, 2] * world.kind.nic_bytes_per_second)


def test_what_a_leaf_drops_it_counts():
    """Its ports' discards are what is missing at the nodes, but for the healthy gaps; other leaves drop nothing."""
    frames = site(None, "snmp")
    world, bank = frames.world, frames.world.switchports
    gaps = world.nics.counters["out_of_sequence"].copy()
    planted = world.inject("leaf_loss", severity=0.4, seed=3, onset="step")
    world.advance(world.now_ms + 60_000)
    missing = world.nics.counters["out_of_sequence"] - gaps
    dropped = bank.counters["out_discards"][: missing.size].reshape(missing.shape)
    mine = world.topology.leaf_of == planted.place.index[0]
    at_work = mine & (np.arange(len(mine)) < 4)[:, None]  # the spare receives nothing
    assert dropped[at_work].min() > 100
    assert np.abs(dropped - missing)[mine].max() <= 3
    assert dropped[~mine].max() == 0


def test_both_ends_of_a_cable_between_switches_count_the_same():
    """What a leaf sends up its spine receives, and the other way round; something crosses."""
    world = site(None, "snmp").world
    bank = world.switchports
    leaf = slice(world.topology.leaf_of.size, world.topology.leaf_of.size + len(world.topology.leaves()) * PATHS)
    spine = slice(leaf.stop, None)
    for out, into in (("out_octets", "in_octets"), ("out_packets", "in_packets")):
        assert np.array_equal(bank.counters[out][leaf], bank.counters[into][spine])
        assert np.array_equal(bank.counters[into][leaf], bank.counters[out][spine])
    assert bank.counters["out_octets"][leaf].max() > 1e9


def test_a_dead_leaf_does_not_answer_and_its_neighbours_see_it():
    """Its page is gone; the spine's ports to it are down, and others are not."""
    frames = site(None, "snmp")
    world = frames.world
    world.inject("leaf_down", Target("switch", None, "leaf-p1r0"), seed=1)
    world.advance(world.now_ms + SLOT)
    assert frames.pages.page(frames.pages.find("leaf-p1r0", "snmp"), "snmp") is None
    states = {dict(labels)["ifAlias"]: value for labels, value in read(page(frames, "spine-1", "snmp"))["ifOperStatus"].items()}
    assert {value for peer, value in states.items() if peer.startswith("leaf-p1r0 ")} == {2.0}
    assert {value for peer, value in states.items() if not peer.startswith("leaf-p1r0 ")} == {1.0}


def test_watching_changes_nothing():
    """With scheduler and switches watched the world lives the same life."""
    one, other = (site(*watched).world for watched in ((None, None), ("slurm", "snmp")))
    for world in (one, other):
        world.inject("leaf_loss", severity=0.4, seed=3)
        world.advance(world.now_ms + 120_000)
    assert np.array_equal(one.nics.counters["sent_bytes"], other.nics.counters["sent_bytes"])
    assert np.array_equal(one.gpus.power, other.gpus.power)
    assert one.jobs["train-1"].step == other.jobs["train-1"].step


# --- the scheduler's log and books ---------------------------------------------------------------------------------------------
def _life() -> World:
    """A job that fails, waits a minute and runs again; a spare that somebody drains and gives back; a node that reboots."""
    world, _ = small()
    scheduler, job = world.watch_scheduler(), world.jobs["train-1"]
    assert scheduler is world.watch_scheduler()
    world.advance(world.now_ms + 60_000)
    job.crash("nccl", 3, world.now_ms)
    world.other_hand("n05", "maintenance")
    world.advance(world.now_ms + 60_000)
    world.nodes[1].state = "rebooting"
    world.advance(world.now_ms + 400_000)
    world.nodes[1].state = "in_service"
    world.other_hand("n05", None)
    job.start(world.now_ms)
    world.advance(world.now_ms + 60_000)
    job.stop(world.now_ms, clean=True)
    world.advance(world.now_ms + 10_000)
    return world


@cache
def _lived() -> World:
    return _life()


def test_the_books_are_read_by_the_products_reader():
    """Each run with its nodes, its end and how it ended, to the second."""
    found = read_sacct(_lived().scheduler.accounting().decode().splitlines(), "sacct", lambda text: ("n01", "n02", "n03", "n04"))
    assert [(run.id, run.name, run.state, run.code, run.nodes[0]) for run in found.runs] == [
        ("41200", "train-1", "FAILED", 1, "n01"), ("41200", "train-1", "COMPLETED", None, "n01")]
    # Ten minutes had gone by when the first minute began; a sub-step passes before the scheduler knows.
    assert [round((run.end - run.start) / 1000) for run in found.runs] == [665, 60]
    assert found.unreadable == 0


@pytest.mark.parametrize("line", [
    r"sched: Allocate JobId=41200 NodeList=n\[01-04\] #CPUs=768 Partition=gpu", r"_job_complete: JobId=41200 WEXITSTATUS 1",
    r"update_node: node n05 reason set to: maintenance", r"update_node: node n05 state set to DRAINED",
    r"error: Nodes n02 not responding$", r"error: Nodes n02 not responding, setting DOWN", r"Node n02 now responding",
    r"update_node: node n05 state set to RESUME", r"_job_complete: JobId=41200 WEXITSTATUS 0"])
def test_the_log_tells_what_happened(line):
    """As slurmctld writes it, each line with its time."""
    text = _lived().scheduler.log.read().decode()
    assert re.search(rf"^\[\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}\] {line}", text, re.M)


@pytest.mark.parametrize(("names", "text"), [
    (("n01",), "n01"), (("n01", "n02", "n03", "n07"), "n[01-03,07]"), (("n09", "n10"), "n[09-10]"), (("n2", "n10"), "n2,n10"),
    (("head",), "head"), (("a1", "b1"), "a1,b1")])
def test_names_are_written_together(names, text):
    """As Slurm writes lists of nodes."""
    assert hostlist(names) == text


# --- the doors ----------------------------------------------------------------------------------------------------------------
def test_discovery_names_them_beside_the_nodes():
    """One target on the head node, one for each switch, and none on the nodes."""
    world = site("slurm", "snmp").world
    found = [row["labels"] for row in discovery(world, "127.0.0.1:1") if row["labels"]["job"] in ("slurm", "snmp")]
    assert [row["node"] for row in found] == ["head", *world.topology.switches]
    assert found[0]["__metrics_path__"] == "/nodes/head/slurm"


@pytest.mark.parametrize(("tier", "shown"), [("A", []), ("B", ["slurm"]), ("C", ["slurm", "snmp"]), ("D", ["slurm", "snmp"])])
def test_each_has_its_tier(tier, shown):
    """The scheduler from B on, the switches from C on; a fabric whose switches are the provider's shows none."""
    world = World(2, 0, 1, START, None, telemetry=Telemetry(tier, scheduler="slurm", switches="snmp"))
    assert elsewhere(FleetFrames(world)) == shown


@pytest.mark.parametrize("key", ["scheduler", "switches"])
def test_what_nobody_knows_is_refused(key):
    """The allowed ones are named."""
    with pytest.raises(BadInput, match=rf"{key}.*allowed are: s"):
        Telemetry("D", **{key: "cups"})


def test_every_counter_of_the_bank_is_on_a_page():
    """What is counted is shown, by SNMP or, for changes of the carrier, by gnmic."""
    assert {key for *_, key in SNMP_COUNTERS} | {"transitions"} == set(site(None, "snmp").world.switchports.counters)
