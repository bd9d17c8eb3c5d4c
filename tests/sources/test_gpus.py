"""GPU exporters: pages to (signal, node, part, value, counter), traps included."""

from __future__ import annotations

import pytest

from tests import needs
from tests.sources.captured import page, told

U = "GPU-aaaa"
L = f'gpu="3",UUID="{U}",device="nvidia3",Hostname="n9"'
DCGM = [
    # page, what it means
    (f'DCGM_FI_DEV_GPU_TEMP{{{L}}} 61\n', [("gpu.temperature_celsius", "n9", "3", 61, False)]),
    (f'DCGM_FI_DEV_GPU_TEMP_CELSIUS{{{L}}} 61\n', [("gpu.temperature_celsius", "n9", "3", 61, False)]),
    (f'DCGM_FI_DEV_BOARD_POWER_WATTS{{{L.replace("Host", "host")}}} 612.5\n', [("gpu.power_watts", "n9", "3", 612.5, False)]),
    # the label and the field say ratio, the value is the percentage that it always was
    (f'DCGM_FI_DEV_GPU_UTIL_RATIO{{{L}}} 97\n', [("gpu.utilization_ratio", "n9", "3", 0.97, False)]),
    (f'DCGM_FI_PROF_TENSOR_UTIL_RATIO{{{L}}} 0.38\n', [("gpu.tensor_active_ratio", "n9", "3", 0.38, False)]),
    # nanoseconds of a counter are a share of time, whatever the CSV's help says
    (f'# HELP DCGM_FI_DEV_THERMAL_VIOLATION Throttling duration (in us).\nDCGM_FI_DEV_THERMAL_VIOLATION{{{L}}} 15000000000\n',
     [("gpu.thermal_violation_ratio", "n9", "3", 15, True)]),
    (f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{L}}} 9000\n', [("gpu.energy_watts", "n9", "3", 9, True)]),
    # the last XID, not a count
    (f'DCGM_FI_DEV_XID_ERROR{{{L},err_code="79",err_msg="off the bus"}} 79\n', [("gpu.xid", "n9", "3", 79, False)]),
    (f'DCGM_FI_DEV_PCIE_REPLAY_TOTAL{{{L}}} 9\n', [("gpu.pcie_replays_per_second", "n9", "3", 9, True)]),
    (f'DCGM_FI_DEV_PCIE_LINK_WIDTH{{{L}}} 8\nDCGM_FI_DEV_PCIE_MAX_LINK_WIDTH{{{L}}} 16\n',
     [("gpu.pcie_link_width", "n9", "3", 8, False), ("gpu.pcie_max_link_width", "n9", "3", 16, False)]),
    (f'DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL{{{L}}} 2\nDCGM_FI_DEV_ROW_REMAP_FAILED{{{L}}} 1\n',
     [("gpu.row_remap_failed", "n9", "3", 1, False), ("gpu.uncorrectable_rows", "n9", "3", 2, False)]),
    # blanks and the sensor that is not there
    (f'DCGM_FI_DEV_MEMORY_TEMP{{{L}}} 0\nDCGM_FI_DEV_SM_CLOCK{{{L}}} 9223372036854775794\n',
     [("gpu.memory_temperature_celsius", "n9", "3", None, False), ("gpu.sm_clock_hertz", "n9", "3", None, False)]),
    # declared counters that are rates, both ways
    (f'# TYPE DCGM_FI_PROF_NVLINK_TX_BYTES counter\nDCGM_FI_PROF_NVLINK_TX_BYTES{{{L}}} 5e10\n',
     [("gpu.nvlink_bytes_per_second", "n9", "3", 5e10, False)]),
    # NVLink up to Hopper: the GPU's totals, and links one by one, are different parts
    (f'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{{{L}}} 7\nDCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L11{{{L}}} 7\n',
     [("gpu.nvlink_errors_per_second", "n9", "3", 7, True), ("link.errors_per_second", "n9", "3/nvlink11", 7, True)]),
    (f'DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_L2_TOTAL{{{L}}} 1\n', [("link.recoveries_per_second", "n9", "3/nvlink2", 1, True)]),
    (f'DCGM_FI_DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL{{{L},nvlink="5"}} 4\n',
     [("link.errors_per_second", "n9", "3/nvlink5", 4, True)]),
    # NVLink 5: with a label one link, without the GPU
    (f'DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS{{gpu="3",gpu_uuid="{U}",nvlink="4",hostname="n9"}} 4\n',
     [("link.errors_per_second", "n9", "3/nvlink4", 4, True)]),
    (f'DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL{{{L}}} 4\n', [("gpu.nvlink_errors_per_second", "n9", "3", 4, True)]),
    # no meaning: unknown unit, NVSwitch, counts of the exporter's own
    (f'DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{L}}} 7\nDCGM_EXP_XID_ERRORS_COUNT{{{L},xid="31"}} 1\n'
     f'DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{{nvswitch="1",{L}}} 3\nDCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_L2_TOTAL{{nvswitch="1",{L}}} 3\n'
     'DCGM_FI_DEV_GPU_TEMP{Hostname="n9"} 4\n', []),
    # version 1.x
    ('dcgm_nvlink_replay_error_count_total{gpu="3",uuid="GPU-aaaa"} 2\n', [("gpu.nvlink_errors_per_second", "n1", "3", 2, True)]),
]


@pytest.mark.parametrize(("text", "expected"), DCGM)
def test_dcgm(text, expected) -> None:
    """Spellings, units, identity, and what only looks like something."""
    assert told(text) == expected


CHOICES = [
    (("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 600), ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 700)),
    (("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS", 600), ("DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS", 700)),
    (("DCGM_FI_DEV_POWER_USAGE", 600), ("DCGM_FI_DEV_POWER_USAGE_INSTANT", 700)),
    (("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1), ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 90)),
    (("DCGM_FI_DEV_POWER_VIOLATION", 1), ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 2)),
    (("gpu_junction_temperature", 60), ("gpu_edge_temperature", 50)),
    (("amd_gpu_package_power", 600), ("amd_gpu_power_usage", 0)),
]


@pytest.mark.parametrize(("first", "second"), CHOICES)
def test_the_first_choice_stands_first(first, second) -> None:
    """Of two fields that say the same, the better one, whatever their order on the page."""
    text = "".join(f'{name}{{gpu="0",gpu_id="0"}} {value}\n' for name, value in (second, first))
    layout, _ = page(text)
    assert [layout.series[ref.index].name for ref in layout.signals] == [first[0], second[0]]


def test_mig_copies_of_a_boards_counter_are_not_added_up() -> None:
    """Each MIG instance repeats its board's NVLink errors: they count once; memory is each instance's own."""
    rows = "".join(f'DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{{{L},GPU_I_PROFILE="1g.10gb",GPU_I_ID="{i}"}} 5\n'
                   f'DCGM_FI_DEV_FB_USED{{{L},GPU_I_PROFILE="1g.10gb",GPU_I_ID="{i}"}} 1\n' for i in (7, 8))
    found = told(rows)
    assert found == [
        ("gpu.memory_used_bytes", "n9", "3/7", 1048576, False), ("gpu.memory_used_bytes", "n9", "3/8", 1048576, False),
        ("gpu.nvlink_errors_per_second", "n9", "3", 5, True)]


@pytest.mark.parametrize(("path", "signal", "expected"), [
    ("aicr_8xH100_partial.prom", "gpu.power_watts", {"0": 113.611, "7": 66.997}),
    ("conformance_upcloud_L40S_full.prom", "gpu.memory_temperature_celsius", {"0": None}),
    ("conformance_upcloud_L40S_full.prom", "gpu.row_remap_failed", {"0": 0}),
    ("conformance_upcloud_L40S_full.prom", "gpu.correctable_rows", {"0": 0}),
    ("fake-gpu-operator_samples/2.9_mig_metrics_4_Active_Workloads.prom", "gpu.sm_clock_hertz", {"0": 1.41e9}),
    ("fake-gpu-operator_samples/2.9_mig_metrics_4_Active_Workloads.prom", "gpu.xid", {"0": 0}),
])
def test_dcgm_captures(path, signal, expected) -> None:
    """Values of real scrapes, by GPU index."""
    found = {where: value for name, _, where, value, _ in told(needs.shared(f"samples/dcgm/{path}").read_text()) if name == signal}
    assert {index: found[index] for index in expected} == pytest.approx(expected)


AMD_L = 'gpu_id="2",gpu_uuid="72ff740f",serial_number="6922",hostname="n5",card_model="0x1002"'
AMD = [
    (f"gpu_junction_temperature{{{AMD_L}}} 61\n", [("gpu.temperature_celsius", "n5", "2", 61, False)]),
    (f'amd_gpu_junction_temperature{{{AMD_L},gpu_partition_id="NA"}} 61\n', [("gpu.temperature_celsius", "n5", "2", 61, False)]),
    (f"gpu_energy_consumed{{{AMD_L}}} 3000000\n", [("gpu.energy_watts", "n5", "2", 3, True)]),
    (f"gpu_gfx_activity{{{AMD_L}}} 55\n", [("gpu.utilization_ratio", "n5", "2", 0.55, False)]),
    (f"gpu_used_vram{{{AMD_L}}} 2\n", [("gpu.memory_used_bytes", "n5", "2", 2097152, False)]),
    (f"gpu_ecc_uncorrect_total{{{AMD_L}}} 1\n", [("gpu.ecc_uncorrectable_per_second", "n5", "2", 1, True)]),
    (f"pcie_replay_count{{{AMD_L}}} 3\n", [("gpu.pcie_replays_per_second", "n5", "2", 3, True)]),
    (f"pcie_bandwidth{{{AMD_L}}} 8\n", [("gpu.pcie_bytes_per_second", "n5", "2", 1e6, False)]),
    (f'gpu_clock{{{AMD_L},clock_type="system",clock_index="2"}} 132\ngpu_clock{{{AMD_L},clock_type="video",clock_index="9"}} 29\n',
     [("gpu.sm_clock_hertz", "n5", "2", 132e6, False)]),
    (f"gpu_violation_socket_thermal_residency_percentage{{{AMD_L}}} 40\n", [("gpu.hw_thermal_ratio", "n5", "2", 0.4, False)]),
    # other partitions of a split GPU report 0 watts
    (f'gpu_package_power{{{AMD_L},gpu_partition_id="3"}} 0\n', []),
    (f"gpu_ecc_correct_umc{{{AMD_L}}} 1\n", []),
    # the old exporter: raw units, the GPU in a label named as the metric
    ('amd_gpu_power{gpu_power="1",productname="MI100"} 95000000\n', [("gpu.power_watts", "n1", "1", 95, False)]),
    ('amd_gpu_current_temperature{gpu_current_temperature="1"} 45000\n', [("gpu.temperature_celsius", "n1", "1", 45, False)]),
    ('amd_gpu_SCLK{gpu_SCLK="0"} 1700000000\n', [("gpu.sm_clock_hertz", "n1", "0", 1.7e9, False)]),
]
NEURON_L = 'instance_id="i-1",instance_type="trn1.32xlarge",region="us-east-1"'
NEURON = [
    (f'neuroncore_utilization_ratio{{neuroncore="5",runtime_tag="367",{NEURON_L}}} 0.86\n',
     [("gpu.utilization_ratio", "n1", "core5", 0.86, False)]),
    (f'hardware_ecc_events_total{{event_type="mem_ecc_corrected",neuron_device_index="7",{NEURON_L}}} 3\n'
     f'hardware_ecc_events_total{{event_type="sram_ecc_uncorrected",neuron_device_index="7",{NEURON_L}}} 864\n',
     [("gpu.ecc_correctable_per_second", "n1", "device7", 3, True), ("gpu.ecc_uncorrectable_per_second", "n1", "device7", 864, True)]),
    (f'system_memory_used_bytes{{{NEURON_L}}} 5\nexecution_latency_seconds{{percentile="p50",{NEURON_L}}} 1\n', []),
]


@pytest.mark.parametrize(("text", "expected"), AMD + NEURON)
def test_amd_and_neuron(text, expected) -> None:
    """The other vendors meet NVIDIA in the canonical signals."""
    assert told(text) == expected


def test_an_amd_gpu_is_known_by_its_uuid_and_serial() -> None:
    """Indexes renumber after a loss."""
    layout, _ = page(AMD[0][0])
    assert (layout.signals[0].target.id, layout.signals[0].target.serial) == ("72ff740f", "6922")
