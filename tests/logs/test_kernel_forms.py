"""Kernel lines in the forms of journald and /dev/kmsg, and the errors of the machine's other parts."""

from __future__ import annotations

import json

import pytest

from collectors.loglines import LogReader, kernel_head
from collectors.logtimes import Anchor
from collectors.sources.kernel_log import PLUGIN
from core.clock import parse_rfc3339
from core.events import KINDS
from core.protocols import TargetInfo

NOON = parse_rfc3339("2026-11-28T12:00:00Z")
XID = "NVRM: Xid (PCI:0000:b3:00.0): 79, pid=1, name=python, GPU has fallen off the bus."


def read(lines, node=None):
    """All events of the lines of a log, of a node that the log's place names or not."""
    reader = LogReader({"kernel_log": PLUGIN}, TargetInfo("kernel", {}, node), Anchor(NOON, (NOON - 3_600_000,)))
    return [event for line in lines for event in reader.read(line)[1].events]


def journal(message, **fields):
    """A line of `journalctl -o json`."""
    entry = {"__REALTIME_TIMESTAMP": str(NOON * 1000), "_HOSTNAME": "n7", "_TRANSPORT": "kernel", "MESSAGE": message, **fields}
    return json.dumps(entry)


@pytest.mark.parametrize(
    "line",
    [
        journal(XID),
        journal(list(XID.encode())),
        f"2026-11-28T12:00:00+0000 n7 kernel: {XID}",
        f"2026-11-28T13:00:00+01:00 n7 kernel: {XID}",
        f"Nov 28 12:00:00 n7 kernel: {XID}",
        f"Nov 28 12:00:00 n7 kernel: [ 3600.000000] {XID}",
        f"kern  :err   : 2026-11-28T12:00:00,000000+00:00 n7 kernel: {XID}",
        f"[ 3600.000000] n7 kernel: {XID}",
    ],
)
def test_one_line_in_the_forms_of_journal_and_syslog(line) -> None:
    """Time, node, GPU and number are the same, whoever wrote the line down."""
    (event,) = read([line])
    assert (event.at, event.target.node, event.target.device, event.fields["xid"]) == (NOON, "n7", "0000:b3:00.0", 79)
    assert XID in (event.line or "")


@pytest.mark.parametrize("record", ["3,1234,3600000000,-;", "3,1234,3600000000,c;", "3,1234,3600000000,-,caller=T99;"])
def test_a_record_of_dev_kmsg_and_the_lines_that_go_on_with_it(record) -> None:
    """The microseconds since boot date it; the lines with its device say nothing of their own."""
    events = read([record + XID, " SUBSYSTEM=pci", " DEVICE=+pci:0000:b3:00.0"], "n7")
    assert [(e.at, e.kind, e.target.node) for e in events] == [(NOON, "xid", "n7")]


@pytest.mark.parametrize(
    "line",
    [
        journal(XID, _TRANSPORT="syslog"),
        journal(XID, _TRANSPORT="stdout"),
        json.dumps({"MESSAGE": XID, "SYSLOG_IDENTIFIER": "python"}),
        json.dumps({"message": XID, "level": "error"}).replace("NVRM: ", ""),
        " DEVICE=+pci:0000:b3:00.0 link is down",
    ],
)
def test_what_is_not_the_kernels_is_no_event(line) -> None:
    """A program that writes a kernel's words into the journal is not the kernel."""
    assert read([line], "n7") == []


@pytest.mark.parametrize("line", ["{", '{"MESSAGE": 5', '{"MESSAGE": [1, 999, "x"]}', '{"MESSAGE": null}', "[" * 5000 + '{"MESSAGE"',
                                  "{" + '"a":' * 3000, '{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "soon", "_HOSTNAME": 7}'])
def test_a_broken_journal_line_is_read_as_any_line(line) -> None:
    """Cut or odd JSON breaks nothing."""
    assert isinstance(kernel_head(line).text, str)


ERRORS = [
    # message, kind of part, device, subsystem
    ("mlx5_core 0000:81:00.0: mlx5_pcie_event:299:(pid 0): Detected insufficient power on the PCIe slot (27W).", "nic",
     "0000:81:00.0", "mlx5"),
    ("mlx5_core 0000:81:00.0: Port module event[error]: module 0, Cable error, High Temperature", "nic", "0000:81:00.0", "mlx5"),
    ("mlx5_core 0000:81:00.0: mlx5_fw_fatal_reporter_err_work:728:(pid 9): fw_fatal reporter", "nic", "0000:81:00.0", "mlx5"),
    ("mlx5_core 0000:12:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:11:00.0", "link",
     "0000:12:00.0", "pcie"),
    ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", "link", "0000:00:01.0", "pcie"),
    ("nvidia 0000:b3:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer", "link",
     "0000:b3:00.0", "pcie"),
    ("pcieport 0000:30:01.0: pciehp: Slot(12): Link Down", "link", "0000:30:01.0", "pcie"),
    ("pcieport 0000:30:01.0: pciehp: Slot(12): Card not present", "link", "0000:30:01.0", "pcie"),
    ("CPU12: Package temperature above threshold, cpu clock throttled (total events = 5)", "node", None, "cpu_thermal"),
    ("mce: CPU3: Core temperature is above threshold, cpu clock is throttled", "node", None, "cpu_thermal"),
    ("nvme nvme2: I/O tag 12 (0x700c) opcode 0x2 (I/O Cmd) QID 5 timeout, aborting req_op:READ(0) size:4096", "disk", "nvme2",
     "nvme"),
    ("EXT4-fs (nvme1n1): Remounting filesystem read-only", "disk", "nvme1n1", "filesystem"),
    ("XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).", "disk", "nvme1n1", "filesystem"),
    ("LustreError: 167-0: lustre-OST0001-osc-ffff8c1: This client was evicted by lustre-OST0001; in progress operations fail.",
     "storage", "lustre-OST0001", "lustre"),
    ("Lustre: lustre-OST0004-osc-ffff8c1: Connection to lustre-OST0004 (at 10.0.0.4@tcp) was lost; in progress operations wait",
     "storage", "lustre-OST0004", "lustre"),
    ("LustreError: 11-0: an error of another kind", "node", None, "lustre"),
    ("mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 7: be00000000800400", "node", None, "mce"),
    ("mce: [Hardware Error]: Machine check events logged", "node", None, None),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "node", None, "edac"),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "node", None, None),
    ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "node", None, None),
    ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:123]", "node", None, "kernel"),
    ("Lustre: lustre-OST0004-osc-ffff8c1: Connection restored to lustre-OST0004 (at 10.0.0.4@tcp)", "node", None, None),
]


@pytest.mark.parametrize(("message", "kind", "device", "subsystem"), ERRORS)
def test_errors_and_their_look_alikes(message, kind, device, subsystem) -> None:
    """Each error names its part; what was corrected, restored or merely logged is none (no subsystem)."""
    events = read([f"2026-11-28T12:00:00Z n1 kernel: {message}"])
    told = [(e.kind, e.target.kind, e.target.device, e.fields["subsystem"]) for e in events]
    assert told == ([] if subsystem is None else [("kernel_error", kind, device, subsystem)])
    assert all(set(e.fields) <= set(KINDS[e.kind]) for e in events)


@pytest.mark.parametrize(("said", "kind"), [
    ("nvidia-fabricmanager.service: Failed with result 'exit-code'.", "service_failed"),
    ("nvidia-fabricmanager.service: Main process exited, code=exited, status=1/FAILURE", None),
    ("nvidia-fabricmanager.service: Scheduled restart job, restart counter is at 3.", "service_starting"),
    ("Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...", "service_starting"),
    ("Started nvidia-fabricmanager.service - NVIDIA fabric manager service.", "service_started"),
    ("Stopping nvidia-fabricmanager.service - NVIDIA fabric manager service...", None),
    ("Stopped nvidia-fabricmanager.service - NVIDIA fabric manager service.", "service_stopped"),
    ("cups.service: Failed with result 'exit-code'.", None),
])
def test_what_systemd_says_of_a_watched_unit(said, kind) -> None:
    """Its words for a unit that failed, is started again, runs or was stopped; units that GPU work does not need are left out."""
    events = read([f"2026-11-28T12:00:00Z n1 systemd[1]: {said}"])
    assert [(e.kind, e.target.kind, e.target.device) for e in events] == ([(kind, "service", "nvidia-fabricmanager.service")] if kind else [])


@pytest.mark.parametrize(("message", "state", "device"), [
    ("bond0: link status definitely down for interface eth1, disabling it", "link_down", "eth1"),
    ("bond0: (slave eth1): link status definitely up, 100000 Mbps full duplex", "link_up", "eth1"),
    ("ena 0000:00:06.0 ens6: link is down", "link_down", "ens6"),
])
def test_links(message, state, device) -> None:
    """Old and new words of the bonding driver, and a plain one."""
    assert [(e.kind, e.target.device) for e in read([f"2026-11-28T12:00:00Z n1 kernel: {message}"])] == [(state, device)]
