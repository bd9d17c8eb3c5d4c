"""Hosts, NICs, storage and BMCs: pages to (signal, node, part, value, counter), traps included."""

from __future__ import annotations

import pytest

from tests import needs
from tests.sources.captured import page, told

D = 'device="ens5"'
PAGES = [
    # ethtool: pause frames by priority, FEC, lanes, the host's PCIe
    (f"node_ethtool_received_prio3_pause{{{D}}} 7\nnode_ethtool_transmitted_prio3_pause{{{D}}} 2\n",
     [("nic.pause_received_per_second", "n1", "ens5", 7, True), ("nic.pause_sent_per_second", "n1", "ens5", 2, True)]),
    (f"node_ethtool_received_global_pause{{{D}}} 7\nnode_ethtool_received_pfc_ena_frames_pri5{{{D}}} 1\n",
     [("nic.pause_received_per_second", "n1", "ens5", 1, True), ("nic.pause_received_per_second", "n1", "ens5", 7, True)]),
    (f"node_ethtool_received_prio3_pause_duration{{{D}}} 7\nnode_ethtool_received_prio3_pause_transition{{{D}}} 7\n"
     f"node_ethtool_received_prio3_bytes{{{D}}} 7\nnode_ethtool_received_pause_ctrl_phy{{{D}}} 7\n", []),
    (f"node_ethtool_received_corrected_bits_phy{{{D}}} 1e9\nnode_ethtool_received_pcs_symbol_err_phy{{{D}}} 3\n"
     f"node_ethtool_received_err_lane_2_phy{{{D}}} 4\nnode_ethtool_outbound_pci_stalled_wr{{{D}}} 40\n",
     [("nic.corrected_bits_per_second", "n1", "ens5", 1e9, True), ("nic.lane_errors_per_second", "n1", "ens5", 4, True),
      ("nic.pcie_stalled_ratio", "n1", "ens5", 0.4, False), ("nic.uncorrected_symbols_per_second", "n1", "ens5", 3, True)]),
    # a port's state: 4 is active; a speed of -1 is no speed
    ('node_infiniband_state_id{device="mlx5_0",port="1"} 1\nnode_network_speed_bytes{device="ens5"} -125000\n',
     [("nic.link_up", "n1", "mlx5_0/1", 0, False), ("nic.rate_bytes_per_second", "n1", "ens5", None, False)]),
    # a port that was taken down has no carrier line at all: its state is left
    (f'node_network_up{{{D}}} 0\nnode_network_carrier{{device="ens6"}} 1\nnode_network_up{{device="ens6"}} 1\n',
     [("nic.link_up", "n1", "ens5", 0, False), ("nic.link_up", "n1", "ens6", 1, False), ("nic.link_up", "n1", "ens6", 1, False)]),
    # file systems: containers' and empty ones are none; shares go by what all nodes call them
    ('node_filesystem_avail_bytes{device="/dev/nvme0n1p2",fstype="ext4",mountpoint="/"} 5\n'
     'node_filesystem_avail_bytes{device="tmpfs",fstype="tmpfs",mountpoint="/dev/shm"} 5\n'
     'node_filesystem_avail_bytes{device="ram",fstype="tmpfs",mountpoint="/scratch/ram"} 7\n'
     'node_filesystem_avail_bytes{device="overlay",fstype="overlay",mountpoint="/x"} 5\n'
     'node_filesystem_avail_bytes{device="/dev/sda1",fstype="ext4",mountpoint="/var/lib/kubelet/pods/1/vol"} 5\n'
     'node_filesystem_avail_bytes{device="10.0.0.1:/home",fstype="nfs4",mountpoint="/home"} 6\n'
     'node_filesystem_readonly{device="10.0.0.9@tcp:/fsx",fstype="lustre",mountpoint="/fsx"} 0\n',
     [("mount.available_bytes", "n1", "/", 5, False), ("mount.available_bytes", "n1", "/scratch/ram", 7, False),
      ("mount.available_bytes", "n1", "10.0.0.1:/home", 6, False),
      ("mount.readonly", "n1", "fsx", 0, False)]),
    # EDAC: the controllers' totals, not their rows and channels
    ('node_edac_correctable_errors_total{controller="0"} 1\nnode_edac_csrow_correctable_errors_total{controller="0",csrow="0"} 3\n'
     'node_edac_channel_correctable_errors_total{controller="0",csrow="0",channel="0"} 3\n',
     [("node.corrected_memory_errors_per_second", "n1", None, 1, True)]),
    ("node_timex_offset_seconds -0.2\nnode_timex_sync_status 0\nnode_timex_maxerror_seconds 16\n",
     [("node.clock_error_seconds", "n1", None, 16, False), ("node.clock_offset_seconds", "n1", None, -0.2, False),
      ("node.clock_synced", "n1", None, 0, False)]),
    # untyped, yet they only grow
    ("# TYPE node_vmstat_oom_kill untyped\nnode_vmstat_oom_kill 1\nnode_vmstat_pgmajfault 9\n",
     [("node.major_faults_per_second", "n1", None, 9, True), ("node.oom_kills_per_second", "n1", None, 1, True)]),
    # PCIe links of NICs, GPUs and NVMe drives; bridges and devices of unknown class are none
    ('node_pcidevice_current_link_width{segment="0000",bus="B3",device="00",function="0"} 8\n'
     'node_pcidevice_current_link_width{segment="0000",bus="00",device="01",function="0"} 4\n'
     'node_pcidevice_current_link_width{segment="0000",bus="07",device="00",function="0"} 4\n'
     'node_pcidevice_info{segment="0000",bus="B3",device="00",function="0",class_id="0x020700"} 1\n'
     'node_pcidevice_info{segment="0000",bus="00",device="01",function="0",class_id="0x060400"} 1\n',
     [("link.pcie_width", "n1", "0000:b3:00.0", 8, False)]),
    # hwmon: the inlet by its board's name; each fan
    ('node_hwmon_temp_celsius{chip="x",sensor="temp1"} 24\nnode_hwmon_temp_celsius{chip="x",sensor="temp2"} 60\n'
     'node_hwmon_sensor_label{chip="x",sensor="temp1",label="Inlet Temp"} 1\nnode_hwmon_fan_rpm{chip="x",sensor="fan2"} 0\n',
     [("cooling.fan_rpm", "n1", "x/fan2", 0, False), ("node.inlet_temperature_celsius", "n1", None, 24, False)]),
    # EFA
    ('node_amazonefa_unresponsive_remote_events{device="rdmap0s6",port="1"} 2\nnode_amazonefa_lifespan{device="rdmap0s6",port="1"} 12\n'
     'node_amazonefa_info{device="rdmap0s6"} 1\n', [("nic.remote_impaired_per_second", "n1", "rdmap0s6/1", 2, True)]),
    # Lustre
    ('lustre_read_samples_total{component="client",target="fsx-ffff88105db50000"} 9\n'
     'lustre_read_samples_total{component="ost",target="fsx-OST0000"} 9\nlustre_degraded{component="ost",target="fsx-OST0001"} 1\n'
     'lustre_available_kilobytes{component="client",target="fsx-ffff88105db50000"} 2\nlustre_health_check{component="health"} 0\n',
     [("mount.available_bytes", "n1", "fsx", 2048, False), ("mount.reads_per_second", "n1", "fsx", 9, True),
      ("node.lustre_healthy", "n1", None, 0, False), ("storage.degraded", "n1", "fsx-OST0001", 1, False)]),
    # BMCs; a sensor without a value is NaN
    ('ipmi_temperature_celsius{id="18",name="Inlet Temp"} 24\nipmi_temperature_celsius{id="9",name="CPU1 Temp"} 80\n'
     'ipmi_fan_speed_rpm{id="12",name="Fan1A"} NaN\nipmi_fan_speed_state{id="12",name="Fan1A"} 2\n'
     "ipmi_dcmi_power_consumption_current_watts 5200\nipmi_sel_entries_count 17\n",
     [("cooling.fan_rpm", "n1", "Fan1A", None, False), ("cooling.fan_state", "n1", "Fan1A", 2, False),
      ("node.event_log_entries", "n1", None, 17, False), ("node.inlet_temperature_celsius", "n1", None, 24, False),
      ("node.power_watts", "n1", None, 5200, False)]),
    ('redfish_chassis_temperature_celsius{chassis_id="1",sensor="Front Ambient"} 23\n'
     'redfish_chassis_temperature_celsius{chassis_id="1",sensor="GPU 1"} 70\nredfish_chassis_fan_rpm{chassis_id="1",fan="FAN 2"} 9000\n'
     'redfish_thermal_fans_reading_rpm{name="FAN 3"} 9100\n',
     [("cooling.fan_rpm", "n1", "FAN 2", 9000, False), ("cooling.fan_rpm", "n1", "FAN 3", 9100, False),
      ("node.inlet_temperature_celsius", "n1", None, 23, False)]),
]


@pytest.mark.parametrize(("text", "expected"), PAGES)
def test_a_page(text, expected) -> None:
    """Units, parts, and what only looks like something."""
    assert told(text) == expected


CAPTURED = [
    # file, (signal, part, value)
    ("node_exporter/e2e-output.txt", ("node.corrected_memory_errors_per_second", None, 1)),
    ("node_exporter/e2e-output.txt", ("node.uncorrected_memory_errors_per_second", None, 5)),
    ("node_exporter/e2e-output.txt", ("node.cpu_waiting_ratio", None, 14.036781)),
    ("node_exporter/e2e-output.txt", ("node.hung_tasks_per_second", None, 42)),
    ("node_exporter/e2e-output.txt", ("node.oom_kills_per_second", None, 0)),
    ("node_exporter/e2e-output.txt", ("node.nfs_retransmits_per_second", None, 374636)),
    ("node_exporter/e2e-output.txt", ("disk.reads_per_second", "nvme0n1", 47114)),
    ("node_exporter/e2e-output.txt", ("disk.read_time_ratio", "nvme0n1", 21.65)),
    ("node_exporter/e2e-output.txt", ("disk.busy_ratio", "nvme0n1", 222.766)),
    ("node_exporter/e2e-output.txt", ("mount.reads_per_second", "192.168.1.1:/srv/test", 1298)),
    ("node_exporter/e2e-output.txt", ("mount.read_time_ratio", "192.168.1.1:/srv/test", 79.407)),
    ("node_exporter/e2e-output.txt", ("link.pcie_max_transfers_per_second", "0000:01:00.0", 16e9)),
    ("node_exporter/e2e-output.txt", ("link.pcie_width", "0000:45:00.0", 4)),
    ("node_exporter/e2e-output.txt", ("cooling.fan_rpm", "nct6779/fan2", 1098)),
    ("node_exporter/e2e-output.txt", ("nic.transmitted_bytes_per_second", "mlx4_0/1", 14933760)),
    ("node_exporter/e2e-output.txt", ("nic.carrier_changes_per_second", "eth0", 2)),
    ("efa/p4d_4xEFA_full.prom", ("nic.packets_lost_per_second", "rdmap16s27/1", 0)),
    ("lustre/gsi_lustre_exporter_expected.prom", ("mount.writes_per_second", "lustrefs", 89467810)),
    ("lustre/gsi_lustre_exporter_expected.prom", ("storage.degraded", "lustrefs-OST0006", 0)),
    ("lustre/hp_lustre_exporter_expected.prom", ("mount.size_bytes", "lustrefs", 289802611064832)),
]


@pytest.mark.parametrize(("path", "expected"), CAPTURED)
def test_a_value_of_a_capture(path, expected) -> None:
    """Real values, in canonical units."""
    signal, part, value = expected
    found = [v for name, _, where, v, _ in told(needs.shared(f"samples/{path}").read_text()) if (name, where) == (signal, part)]
    assert value in [pytest.approx(v) for v in found]


def test_whole_disks_only() -> None:
    """Partitions, loops, mappers and optical drives repeat a disk or are none."""
    found = told(needs.shared("samples/node_exporter/e2e-output.txt").read_text())
    assert {where for name, _, where, *_ in found if name == "disk.busy_ratio"} == {"mmcblk0", "nvme0n1", "sda", "sdb", "sdc", "vda"}


def test_a_disks_serial_is_no_identity() -> None:
    """Virtual disks of all nodes share one serial number: it is shown, and the place says which disk it is."""
    layout, _ = page('node_disk_reads_completed_total{device="vda"} 1\nnode_disk_info{device="vda",serial="QM00001"} 1\n')
    (target,) = {ref.target for ref in layout.signals}
    assert (target.serial, target.id, target.key) == ("QM00001", None, "disk:n1/vda")
