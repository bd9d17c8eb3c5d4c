"""`greylag doctor`: what can be judged, what is missing, what would add it and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from app.doctor import DCGM_DEFAULT, NODE_FLAGS, document, how, lines
from app.wiring import sources
from collectors.sources import dcgm, node_exporter
from core.events import KINDS
from core.faults import faults
from core.plugins import load_plugins
from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from core.types import Event, Target
from core.window import Window
from pipeline.blind import blind_spots
from tests.pipeline.worlds import T0, window

T, CLOCK, BITS, RATE, STEP = ("gpu.temperature_celsius", "gpu.sm_clock_hertz", "gpu.throttle_reasons_bits", "nic.rate_bytes_per_second",
                              "rank.step")
NAMES = list(faults())


def plugin(fault: str, *needs: tuple[str, ...]) -> dict[str, DetectorPlugin]:
    return {fault: DetectorPlugin(fault, fault, lambda seen, params: (), object, needs)}


def rows(**states: str) -> list[dict[str, Any]]:
    """Coverage rows of nodes, each given as `signal=state signal=state`."""
    return [{"node": node, "signal": part.partition("=")[0], "state": part.partition("=")[2], "ratio": None}
            for node, text in states.items() for part in text.split()]


def one(needs: tuple[tuple[str, ...], ...], states: dict[str, str], logs: tuple[str, ...] = (), seen: Window | None = None) -> dict[str, Any]:
    doc = document(plugin("thermal_throttle", *needs), rows(**states), seen, logs)
    return next(row for row in doc["faults"] if row["fault"] == "thermal_throttle")


STATES = [
    ("all there", ((T,),), {"n1": f"{T}=fresh"}, (), ("judged", 1, 0)),
    ("partial is there", ((T,),), {"n1": f"{T}=partial"}, (), ("judged", 1, 0)),
    ("one of a group", ((T, CLOCK),), {"n1": f"{T}=lost {CLOCK}=fresh"}, (), ("judged", 1, 0)),
    ("one group of two", ((T,), (CLOCK,)), {"n1": f"{T}=fresh {CLOCK}=not_configured"}, (), ("blind", 0, 1)),
    ("on one node of two", ((T,),), {"n1": f"{T}=fresh", "n2": f"{T}=lost"}, (), ("partly", 1, 1)),
    ("a node without such a part", ((T,),), {"n1": f"{T}=fresh", "n2": f"{T}=not_applicable"}, (), ("judged", 1, 0)),
    ("no such part anywhere", ((T,),), {"n1": f"{T}=not_applicable"}, (), ("blind", 0, 0)),
    ("a log tells", (("gpu.xid", "xid"),), {"n1": f"{T}=fresh"}, ("kernel",), ("judged", 1, 0)),
    ("no log is read", (("gpu.xid", "xid"),), {"n1": f"{T}=fresh"}, (), ("blind", 0, 1)),
    ("another log", ((T, "nonfinite"),), {"n1": f"{T}=lost"}, ("kernel",), ("blind", 0, 1)),
    ("an empty site", ((T,),), {}, (), ("blind", 0, 0)),
]


@pytest.mark.parametrize(("needs", "states", "logs", "expected"), [c[1:] for c in STATES], ids=[c[0] for c in STATES])
def test_what_is_judged(needs: tuple[tuple[str, ...], ...], states: dict[str, str], logs: tuple[str, ...], expected: tuple) -> None:
    """Unknown is never judged: a fresh signal of each group, or the log that tells it, on each node that has the part."""
    found = one(needs, states, logs)
    assert (found["state"], found["nodes_judged"], found["nodes_blind"]) == expected
    assert bool(found["missing"]) == (expected[0] != "judged")


def test_an_event_that_was_seen_proves_its_log() -> None:
    """Logs that come by push stand in no configuration."""
    seen = window(T0, {T: ([Target("gpu", "n1", "0", "GPU-a")], [[60.0]])}, events=(Event(T0, Target("gpu", "n1", "0"), "xid", {"xid": 13}),))
    assert one((("gpu.xid", "xid"),), {"n1": f"{T}=fresh"}, (), seen)["state"] == "judged"


def test_what_stands_on_no_node_is_judged_by_its_signals() -> None:
    """Greylag's collectors are no node's: a fresh lag is enough."""
    seen = window(T0, {"collector.lag_seconds": ([Target("collector", device="collector-0")], [[1.0]])})
    assert one((("collector.lag_seconds",),), {"n1": f"{T}=fresh collector.lag_seconds=not_applicable"}, (), seen)["state"] == "judged"


@pytest.mark.parametrize("signal", ["exporter.state", "label.present"])
def test_what_coverage_has_no_rows_of_is_seen_in_the_window(signal: str) -> None:
    """Whether exporters answer, and what labels say, is known node by node."""
    kind = SIGNALS[signal].kind
    seen = window(T0, {signal: ([Target(kind, "n1", "a")], [[0.0]])})
    found = one(((signal,),), {"n1": f"{T}=fresh", "n2": f"{T}=fresh"}, (), seen)
    assert (found["state"], found["nodes_judged"], found["nodes_blind"]) == ("partly", 1, 1)
    assert blind_spots(plugin("thermal_throttle", (signal,)), rows(n1=f"{T}=fresh"), ["n1"]) == []


def test_a_missing_field_has_its_cost() -> None:
    """Eight GPUs on each of two nodes: eight series a node, sixteen in all."""
    seen = window(T0, {T: ([Target("gpu", f"n{i // 8}", str(i % 8), f"GPU-{i}") for i in range(16)], [[60.0] * 16])})
    [missing] = one(((BITS,),), {"n0": f"{T}=fresh {BITS}=not_configured", "n1": f"{T}=fresh {BITS}=not_configured"}, (), seen)["missing"]
    assert (missing["any_of"], missing["nodes"]) == ([BITS], 2)
    assert missing["add"][0] == {
        "source": "dcgm", "metric": "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "signal": BITS, "series_per_node": 8, "series": 16,
        "how": "add DCGM_FI_DEV_CLOCK_THROTTLE_REASONS to dcgm-exporter's list of fields (-f FILE.csv)"}


@pytest.mark.parametrize(("targets", "signal", "first"), [
    ([Target("gpu", "n1", "0", "GPU-a")], "gpu.power_watts", "dcgm"), ([Target("gpu", "n1", "0", "0xdeadbeef")], "gpu.power_watts", "amd"),
    ([Target("nic", "n1", "rdmap113s0/1")], "nic.retransmits_per_second", "efa"),
    ([Target("nic", "n1", "mlx5_0/1")], "nic.retransmits_per_second", "node_exporter")])
def test_the_likeliest_exporter_comes_first(targets: list[Target], signal: str, first: str) -> None:
    """By what the site's parts are: NVIDIA or AMD, RoCE or EFA."""
    other = {"gpu": T, "nic": RATE}[targets[0].kind]
    seen = window(T0, {other: (targets, [[1.0]])})
    [missing] = one(((signal,),), {"n1": f"{other}=fresh {signal}=not_configured"}, (), seen)["missing"]
    assert missing["add"][0]["source"] == first


@pytest.mark.parametrize(("source", "metric", "words"), [
    ("dcgm", "DCGM_FI_DEV_GPU_TEMP", "its default list of fields has DCGM_FI_DEV_GPU_TEMP"),
    ("dcgm", "DCGM_FI_DEV_THERMAL_VIOLATION", "add DCGM_FI_DEV_THERMAL_VIOLATION to dcgm-exporter's list"),
    ("node_exporter", "node_ethtool_received_discards_phy", "--collector.ethtool"), ("node_exporter", "node_load1", "on by default"),
    ("trainer", "greylag_train_step", "docs/trainer-metrics.md"), ("slurm", "slurm_node_status", "a Slurm exporter")])
def test_how_it_is_added(source: str, metric: str, words: str) -> None:
    """A field, a flag, or an exporter."""
    assert words in how(source, metric)


def test_tables_name_what_the_sources_read() -> None:
    """Default fields and flags are of metrics that exist in the sources."""
    assert {f"DCGM_FI_{name}" for name in DCGM_DEFAULT} <= set(dcgm.TABLE)
    metrics = [row.metric for row in node_exporter.described()]
    assert all(any(metric.startswith(start) for metric in metrics) for start in NODE_FLAGS)


def test_every_need_of_every_detector_can_be_met() -> None:
    """No detector needs what neither an exporter nor a log can give: a group without any way to get it would never be judged."""
    known = {row.meaning.signal for name, plugin_ in sources().items() if plugin_.map_series is not None
             for row in __import__(f"collectors.sources.{name}", fromlist=["described"]).described()}
    lost = [(name, group) for name, plugin_ in load_plugins("detectors").items() for group in plugin_.needs
            if not any(n in KINDS or n in known or n.startswith(("collector.", "label.", "exporter.")) for n in group)]
    assert not lost


def test_the_page_for_people() -> None:
    """A sum, what is judged, what is not and what adds it, what has no detector."""
    plugins = plugin("thermal_throttle", (T,)) | plugin("power_brake", (BITS,)) | plugin("xid_fatal", ("gpu.xid", "xid"))
    text = lines(document(plugins, rows(n1=f"{T}=fresh {BITS}=not_configured"), None, ()))
    assert text[0] == f"{len(NAMES)} faults: 1 can be judged here, 0 on some nodes only, 2 not, {len(NAMES) - 3} have no detector. 1 nodes; logs: none."
    assert "  power_brake" in text
    assert f"    needs {BITS}" in text
    assert any(line.startswith("    + add DCGM_FI_DEV_CLOCK_THROTTLE_REASONS") and line.endswith("8 series a node, 8 in all") for line in text)
    assert any(line.startswith("    + follow the kernel log") and line.endswith("no series") for line in text)
    assert "no detector yet:" in text


def test_signals_of_the_cases_exist() -> None:
    """The cases above speak of real signals."""
    assert {T, CLOCK, BITS, RATE, STEP} <= set(SIGNALS)
