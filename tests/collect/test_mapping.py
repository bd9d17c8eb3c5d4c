"""Real captures of exporters, and single series, to canonical signals."""

from __future__ import annotations

import textwrap
from collections import defaultdict

import numpy as np
import pytest

from collectors.exposition import parse_exposition
from collectors.mapping import Mapper
from core.derive import STALE_NAN, absent, derive
from core.plugins import load_plugins
from core.protocols import TargetInfo
from core.signals import SIGNALS
from core.types import Series
from tests import needs

MAPPER = Mapper(load_plugins("collectors.sources"))
TARGET = TargetInfo("job/n1:9400", {"job": "job", "instance": "n1:9400"}, "n1")
U = "GPU-1"


def mapped(path, target=TARGET):
    """(layout, {signal: {device: canonical value}}) of a capture."""
    text = textwrap.dedent(needs.shared(path).read_text())
    samples = parse_exposition(text.encode()).samples
    series = [Series(s.name, tuple(p for p in s.labels if p[1]), s.type) for s in samples]
    layout = MAPPER.layout(target, series)
    values = MAPPER.clean(layout, np.array([s.value for s in samples]))
    out = defaultdict(dict)
    for ref in layout.signals:
        value = derive(ref.signal, values[ref.index : ref.index + 1], ref.scale)[0]
        out[ref.signal].setdefault(ref.target.device, value)
    return layout, out


def one(name, labels=None, kind="gauge", target=TARGET):
    """The references of a single series."""
    series = Series(name, tuple(sorted((labels or {}).items())), kind)
    return MAPPER.layout(target, [series]).signals


def test_l4_full_scrape():
    """A real scrape of an L4, printed twice: units, identity, and the missing HBM sensor."""
    layout, found = mapped("samples/dcgm/conformance_kops_L4_full.prom")
    assert (layout.source, layout.node) == ("dcgm", "node-001")
    assert found["gpu.sm_clock_hertz"].keys() == {"0"}
    assert 1e8 < found["gpu.sm_clock_hertz"]["0"] < 3e9
    assert np.isnan(found["gpu.memory_temperature_celsius"]["0"])
    assert 1e9 < found["gpu.memory_free_bytes"]["0"] < 3e10
    gpus = {ref.target.id for ref in layout.signals if ref.target.kind == "gpu"}
    assert len(gpus) == 1
    assert all(uuid.startswith("GPU-") for uuid in gpus)


@pytest.mark.parametrize(("path", "gpus"), [
    ("aicr_8xH100_partial.prom", 8), ("conformance_ericsson.prom", 1), ("conformance_rafay.prom", 1),
    ("conformance_upcloud_L40S_full.prom", 1), ("conformance_vks.prom", 1),
    ("fake-gpu-operator_samples/2.9_mig_metrics_Empty_mig_disabled.prom", None),
])
def test_dcgm_captures_name_their_gpus(path, gpus):
    """Each real capture names its GPUs by index and UUID, on the node of its own label."""
    layout, found = mapped(f"samples/dcgm/{path}")
    assert layout.source == "dcgm"
    assert gpus is None or len(found["gpu.utilization_ratio"]) == gpus
    assert all(0 <= v <= 1 for v in found["gpu.utilization_ratio"].values())
    assert {ref.target.node for ref in layout.signals} == {"node-001"}


def test_mig_instances_are_parts_for_what_is_measured_in_them():
    """Memory belongs to the instance, temperature to the board, whose copies are one part."""
    layout, found = mapped("samples/dcgm/fake-gpu-operator_samples/2.9_mig_metrics_Active_2_1g.5gb_2g.10gb.prom")
    assert {"0/7", "0/9", "0/5"} <= found["gpu.memory_used_bytes"].keys()
    ids = {ref.target.id for ref in layout.signals if ref.signal == "gpu.memory_used_bytes" and ref.target.device == "0/7"}
    assert ids == {"GPU-d2f66e4e-946c-dfe4-3145-6749adb7e3d1/7"}
    assert all("/" not in device for device in found["gpu.temperature_celsius"])


def test_efa_capture():
    """A real p4d scrape: four devices, their bytes, and no link state."""
    layout, found = mapped("samples/efa/p4d_4xEFA_full.prom")
    assert layout.source == "efa"
    assert found["nic.packets_lost_per_second"].keys() == {
        "rdmap16s27/1", "rdmap32s27/1", "rdmap144s27/1", "rdmap160s27/1"}
    assert "nic.link_up" not in found
    assert all(ref.counter for ref in layout.signals if ref.target.kind == "nic")


def test_node_exporter_fixture():
    """The full end-to-end page: hosts, RDMA ports, interfaces and whole disks."""
    layout, found = mapped("samples/node_exporter/e2e-output.txt")
    assert (layout.source, layout.node) == ("node_exporter", "n1")
    assert found["nic.link_up"] == {"mlx4_0/1": 1.0, "mlx4_0/2": 1.0, "i40iw0/1": 1.0, "eth0": 1.0}
    assert found["nic.rate_bytes_per_second"]["mlx4_0/1"] == 5e9
    assert found["disk.read_bytes_per_second"].keys() == {"mmcblk0", "nvme0n1", "sda", "sdb", "sdc", "vda"}
    assert {"node.boot_time_seconds", "node.load1", "node.cpu_busy_ratio", "node.memory_total_bytes",
            "node.io_waiting_ratio", "node.tcp_retransmits_per_second"} <= found.keys()
    packets = [layout.series[r.index].name for r in layout.signals
               if r.signal == "nic.received_packets_per_second" and r.target.device == "mlx4_0/1"]
    assert packets == ["node_infiniband_port_packets_received_total", "node_infiniband_legacy_packets_received_total"]


def test_lustre_client_bytes():
    """Only the client's rows are a node's storage traffic."""
    layout, _ = mapped("samples/lustre/gsi_lustre_exporter_expected.prom")
    names = [layout.series[r.index].name for r in layout.signals if r.signal == "node.storage_bytes_per_second"]
    assert sorted(names) == ["lustre_read_bytes_total", "lustre_write_bytes_total"]


GPU_LABELS = {"gpu": "3", "UUID": U, "Hostname": "n9"}
SERIES = [
    # name, labels, signal, device, node, scale, counter
    ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", GPU_LABELS, "gpu.temperature_celsius", "3", "n9", 1.0, False),
    ("dcgm_gpu_temp", {"gpu": "3", "uuid": U}, "gpu.temperature_celsius", "3", "n1", 1.0, False),
    ("DCGM_FI_DEV_GPU_TEMP_LIMIT", {"gpu": "3", "hostname": "n8"}, "gpu.thermal_margin_celsius", "3", "n8", 1.0, False),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", GPU_LABELS, "gpu.thermal_violation_ratio", "3", "n9", 1e-9, True),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", GPU_LABELS, "gpu.energy_watts", "3", "n9", 1e-3, True),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", GPU_LABELS, "gpu.pcie_bytes_per_second", "3", "n9", 1.0, False),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", {**GPU_LABELS, "clock_event": "hw_thermal"}, "gpu.thermal_events_in_window", "3", "n9",
     1.0, False),
    ("node_infiniband_out_of_sequence_packets_received_total", {"device": "mlx5_0", "port": "1"},
     "nic.packets_lost_per_second", "mlx5_0/1", "n1", 1.0, True),
    ("node_infiniband_packet_sequence_errors_total", {"device": "mlx5_0", "port": "1"}, "nic.peer_loss_per_second",
     "mlx5_0/1", "n1", 1.0, True),
    ("node_infiniband_np_cnp_packets_sent_total", {"device": "mlx5_0", "port": "1"}, "nic.congestion_marks_per_second",
     "mlx5_0/1", "n1", 1.0, True),
    ("node_network_receive_drop_total", {"device": "ens5"}, "nic.packets_lost_per_second", "ens5", "n1", 1.0, True),
    ("node_ethtool_received_discards_phy", {"device": "ens5"}, "nic.packets_lost_per_second", "ens5", "n1", 1.0, True),
    ("node_amazonefa_retrans_pkts", {"device": "rdmap0s6", "port": "1"}, "nic.retransmits_per_second", "rdmap0s6/1", "n1",
     1.0, True),
    ("node_amazonefa_impaired_remote_conn_events", {"device": "rdmap0s6", "port": "1"}, "nic.remote_impaired_per_second",
     "rdmap0s6/1", "n1", 1.0, True),
    ("node_cpu_seconds_total", {"cpu": "0", "mode": "iowait"}, "node.cpu_idle_ratio", None, "n1", 1.0, True),
    ("node_hwmon_temp_celsius", {"chip": "ipmi", "sensor": "inlet"}, "node.inlet_temperature_celsius", None, "n1", 1.0, False),
    ("greylag_train_step", {"job": "llm", "rank": "5", "node": "n7", "gpu": "2"}, "rank.step", "2", "n7", 1.0, False),
    ("greylag_train_phase", {"job": "llm", "rank": "5", "node": "n7", "phase": "eval"}, "rank.phase_eval", None, "n7", 1.0,
     False),
]


@pytest.mark.parametrize(("name", "labels", "signal", "device", "node", "scale", "counter"), SERIES)
def test_one_series(name, labels, signal, device, node, scale, counter):
    """Spelling, identity, unit and kind of single series."""
    (ref,) = one(name, labels)
    assert (ref.signal, ref.target.device, ref.target.node, ref.scale, ref.counter) == (signal, device, node, scale, counter)
    assert ref.target.kind == SIGNALS[signal].kind


NOTHING = [
    ("node_network_receive_drop_total", {"device": "lo"}), ("node_network_carrier", {"device": "veth12ab"}),
    ("node_network_carrier", {"device": "docker0"}), ("node_network_carrier", {"device": "bond0"}),
    ("node_network_carrier", {"device": "ens5.100"}), ("node_network_carrier", {"device": "cali0a1b"}),
    ("node_infiniband_state_id", {"device": "rdmap0s6", "port": "1"}),
    ("node_infiniband_out_of_buffer_drops_total", {"device": "mlx5_0", "port": "1"}),
    ("node_disk_read_bytes_total", {"device": "nvme0n1p1"}), ("node_disk_read_bytes_total", {"device": "loop3"}),
    ("node_cpu_seconds_total", {"cpu": "0", "mode": "guest"}),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", {**GPU_LABELS, "clock_event": "gpu_idle"}),
    ("DCGM_FI_DEV_GPU_TEMP", {"Hostname": "n1"}), ("greylag_train_step", {"job": "llm", "rank": "x"}),
    ("greylag_train_step", {"job": "llm"}), ("node_amazonefa_state", {"device": "rdmap0s6", "port": "1"}),
    ("node_hwmon_temp_celsius", {"chip": "coretemp", "sensor": "temp1"}),
    ("lustre_read_bytes_total", {"component": "generic", "target": "x"}),
]


@pytest.mark.parametrize(("name", "labels"), NOTHING)
def test_series_that_mean_nothing(name, labels):
    """What cannot be told, or would be counted twice, is stored and means nothing."""
    assert one(name, labels) == ()


def test_a_loss_means_two_signals():
    """The loss and whether it is finite come from one series; a page's NaN is evidence, an absent loss is none."""
    refs = one("greylag_train_loss", {"job": "llm", "rank": "0"})
    assert [(r.signal, r.index) for r in refs] == [("rank.loss", 0), ("rank.loss_nonfinite", 0)]


def test_trainer_job_under_a_scrapes_own_job_label():
    """`exported_job` is the training job where the scrape's own label took `job`."""
    (ref,) = one("greylag_train_step", {"job": "trainers", "exported_job": "llm", "rank": "1"})
    assert (ref.target.job, ref.target.rank) == ("llm", 1)


def test_layout_names_node_job_and_source():
    """A layout's node and job are those that all its meanings share."""
    layout = MAPPER.layout(TARGET, [
        Series("greylag_train_step", (("job", "llm"), ("node", "n7"), ("rank", str(i)))) for i in range(2)
    ])
    assert (layout.node, layout.job, layout.source, layout.target_id) == ("n7", "llm", "trainer", TARGET.id)
    empty = MAPPER.layout(TARGET, [Series("up", ())])
    assert (empty.node, empty.job, empty.source) == ("n1", None, None)


def test_ownership_labels_do_not_add_up():
    """A count that is repeated for each pod counts once; the same count of two events is added."""
    def event(kind, pod):
        return Series("DCGM_EXP_CLOCK_EVENTS_COUNT", (("UUID", U), ("clock_event", kind), ("gpu", "0"), ("pod", pod)))
    layout = MAPPER.layout(TARGET, [event("hw_thermal", "a"), event("hw_thermal", "b"), event("sw_thermal", "a")])
    assert [r.index for r in layout.signals] == [0, 2]


def test_the_enforced_power_limit_comes_first():
    """Of two spellings of a limit the enforced one is the first choice, whatever their order on the page."""
    layout = MAPPER.layout(TARGET, [
        Series("DCGM_FI_DEV_POWER_MGMT_LIMIT", (("gpu", "0"),)), Series("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", (("gpu", "0"),))])
    assert [r.index for r in layout.signals] == [1, 0]


def test_blanks_are_absent_on_dcgm_series_only():
    """DCGM's sentinels become stale markers; the same number of another exporter is a number."""
    series = [Series("DCGM_FI_DEV_GPU_TEMP", (("gpu", "0"),)), Series("DCGM_FI_DEV_POWER_USAGE", (("gpu", "0"),)),
              Series("node_load1", ()), Series("DCGM_FI_DEV_SM_CLOCK", (("gpu", "0"),))]
    layout = MAPPER.layout(TARGET, series)
    values = np.array([9223372036854775794.0, 140737488355328.0, 2147483632.0, 1980.0])
    cleaned = MAPPER.clean(layout, values)
    assert absent(cleaned).tolist() == [True, True, False, False]
    assert values[0] > 1e18
    clean = np.array([50.0, 600.0, 1.0, STALE_NAN])
    assert MAPPER.clean(layout, clean) is clean


def test_a_sensors_name_comes_from_its_own_series():
    """`temp1` is the inlet where node_hwmon_sensor_label says so; the stored series keeps its own labels."""
    place = (("chip", "ipmi0"), ("sensor", "temp1"))
    series = [Series("node_hwmon_temp_celsius", place, "gauge"),
              Series("node_hwmon_sensor_label", (("chip", "ipmi0"), ("label", "Inlet Temp"), ("sensor", "temp1")), "gauge")]
    layout = MAPPER.layout(TARGET, series)
    assert [(r.signal, r.index) for r in layout.signals] == [("node.inlet_temperature_celsius", 0)]
    assert layout.series[0].labels == place
