"""All captures of the shared samples through the strict parser and all sources."""

from __future__ import annotations

from collections import defaultdict

import pytest

from collectors.exposition import parse_exposition
from core.errors import SourceError
from core.protocols import TargetInfo
from core.signals import SIGNALS
from core.targets import KINDS
from core.types import Series
from tests import needs
from tests.sources.captured import SOURCES, TARGET, claims, page, told

# file → (least number of series with a meaning, the source of all of them but for one of node_exporter's own)
CAPTURES = {
    "dcgm/aicr_8xH100_partial.prom": (24, "dcgm"),
    "dcgm/conformance_ericsson.prom": (15, "dcgm"),
    "dcgm/conformance_kops_L4_full.prom": (18, "dcgm"),
    "dcgm/conformance_rafay.prom": (14, "dcgm"),
    "dcgm/conformance_upcloud_L40S_full.prom": (18, "dcgm"),
    "dcgm/conformance_vks.prom": (6, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_fraction_metrics_1_workload.prom": (30, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_4_Active_Workloads.prom": (52, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Active_1g.5gb.prom": (13, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Active_2_1g.5gb_2g.10gb.prom": (39, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Empty_mig_disabled.prom": (19, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Emtpy_MIG_enabled.prom": (13, "dcgm"),
    "dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Idle_1g.5gb_allocated.prom": (13, "dcgm"),
    "efa/p4d_4xEFA_full.prom": (20, "efa"),
    "efa/p5_32xEFA_tx_pkts.prom": (32, "efa"),
    "infiniband/expected_hca_test.prom": (22, "infiniband_exporter"),
    "infiniband/expected_infiniband_exporter_test.prom": (57, "infiniband_exporter"),
    "infiniband/expected_switch_test.prom": (34, "infiniband_exporter"),
    "lustre/gsi_lustre_exporter_expected.prom": (26, "lustre"),
    "lustre/hp_lustre_exporter_expected.prom": (24, "lustre"),
    "node_exporter/e2e-output.txt": (240, "node_exporter"),
    "inference/conformance_kops.prom": (0, None),
    "parsers/prom_alltypes.237mfs.prom.txt": (0, None),
    "parsers/prom_alltypes.237mfs.nometa.prom.txt": (0, None),
    "parsers/prom_1histogram.om.txt": (0, None),
}


def text_of(name: str) -> str:
    """A capture's text."""
    return needs.shared(f"samples/{name}").read_text(encoding="utf-8")


def every_capture() -> list[str]:
    """All files of the samples that could be pages; one name that skips where the folder is absent."""
    root = needs.SHARED / "samples"
    found = [p for p in sorted(root.rglob("*")) if p.suffix in (".prom", ".out", ".txt") and p.is_file()]
    return [p.relative_to(root).as_posix() for p in found] or ["dcgm"]


@pytest.mark.parametrize(("name", "least", "source"), [(name, *expected) for name, expected in CAPTURES.items()])
def test_a_capture_has_its_meanings(name, least, source) -> None:
    """At least so many series mean something, and its own exporter's source takes them."""
    layout, _ = page(text_of(name))
    taken = {layout.series[ref.index] for ref in layout.signals}
    assert len(taken) >= least
    assert layout.source == source


@pytest.mark.parametrize("name", every_capture())
def test_no_capture_is_misread(name) -> None:
    """Nothing raises, whatever is on the page; each meaning is a signal of its part's kind; one series of a page never
    means two things, and no two series of one metric mean different things for one part."""
    try:
        layout, _ = page(text_of(name) if name != "dcgm" else text_of("dcgm/conformance_vks.prom"))
    except SourceError:
        assert name not in CAPTURES
        return
    meanings = defaultdict(set)
    for ref in layout.signals:
        assert SIGNALS[ref.signal].kind == ref.target.kind
        assert ref.target.kind in KINDS
        assert ref.target.node or ref.target.id or ref.target.job or ref.target.kind == "fleet"
        meanings[ref.signal, ref.target.key, layout.series[ref.index].name].add((ref.scale, ref.counter))
    assert all(len(found) == 1 for found in meanings.values())


@pytest.mark.parametrize("name", list(CAPTURES))
def test_one_source_for_a_series(name) -> None:
    """No source claims a series of another exporter; what carries Greylag's or Prometheus' own names is nobody's."""
    layout, _ = page(text_of(name))
    for one in layout.series:
        assert len(claims(one)) <= 1, (one, claims(one))


OTHERS = [
    # names of other exporters that start alike
    ("node_namespace_pod_container:container_cpu_usage_seconds_total:sum_irate", {"node": "n1"}),
    ("node_memory_MemAvailable_bytes:rate", {}), ("node_ipmi_temperature_celsius", {"sensor": "Inlet"}),
    ("gpu_temperature", {"gpu": "0"}), ("gpu_power_usage", {"uuid": "x"}), ("gpu_info", {"gpu_id": "0"}),
    ("pcie_replay_count", {"gpu": "0"}), ("nvidia_smi_temperature_gpu", {"uuid": "x"}), ("nv_gpu_utilization", {"gpu_uuid": "x"}),
    ("dcgm_exporter_build_info", {"gpu": "0"}), ("ifMtu", {"ifName": "swp1"}), ("if_things_total", {"ifName": "swp1"}),
    ("interfaces_interface_subinterfaces_subinterface_state_counters_in_octets", {"interface_name": "swp1", "index": "0"}),
    ("gnmic_up", {"source": "leaf1"}), ("kube_pod_info", {"pod": "a-worker-0"}), ("kube_node_info", {"node": "n1"}),
    ("slurm_job_state", {"node": "n1"}), ("slurm_nodes_drain", {"partition": "gpu"}), ("hardware_ecc_events_total", {}),
    ("lustre_job_read_bytes_total", {"component": "ost", "target": "x-OST0001", "jobid": "7"}), ("tgi_request_count", {"x": "y"}),
    ("vllm:cache_config_info", {"model_name": "m"}), ("ipmi_up", {"collector": "ipmi"}), ("redfish_up", {}), ("up", {}),
    ("scrape_samples_scraped", {}), ("greylag_train_seed", {"job": "j", "rank": "0"}), ("greylag_incidents", {"fault": "x"}),
]


@pytest.mark.parametrize(("name", "labels"), OTHERS)
def test_names_that_start_alike_are_not_claimed(name, labels) -> None:
    """A prefix is no proof."""
    assert claims(Series(name, tuple(sorted(labels.items())), "gauge")) == []


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_source_is_asked_about_its_own_names_only(name) -> None:
    """Prefixes are given, every described metric starts with one, its signal exists, and metrics are described once."""
    plugin = SOURCES[name]
    assert plugin.prefixes
    rows = list(described(name))
    assert rows
    for row in rows:
        metric = row.metric.removeprefix("[amd_]").removeprefix("[prefix_]")
        assert metric.startswith(plugin.prefixes)
        assert row.meaning.signal in SIGNALS
    # Pushed names are tried without looking at prefixes.
    labels = (("device", "x"), ("gpu", "0"), ("gpu_id", "0"), ("guid", "0x1"), ("model", "m"), ("port", "1"))
    assert all(plugin.map_series(Series(row.metric.partition("_")[2], labels), TARGET) is None for row in rows if "[" not in row.metric)
    assert len({row.metric for row in rows}) == len(rows)


def described(name):
    """The rows of a source's own description."""
    return __import__(f"collectors.sources.{name}", fromlist=["described"]).described()


def test_a_cut_page_is_rejected_whole() -> None:
    """Labels elided with dots are no page; no source gets to see half of it."""
    with pytest.raises(SourceError):
        parse_exposition(text_of("dcgm/conformance_viettel_elided_BAD.prom").encode())


def test_a_page_without_any_identity_names_the_target() -> None:
    """Where neither labels nor discovery know a node, parts have none, and nothing raises."""
    found = told("node_load1 1\nnode_network_carrier{device=\"eth0\"} 1\n", TargetInfo("x", {}, None))
    assert [(signal, node) for signal, node, *_ in found] == [("nic.link_up", None), ("node.load1", None)]
    assert TARGET.node == "n1"
