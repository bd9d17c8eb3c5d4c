"""Kernel logs: which line is which event, of which part."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.loglines import LogReader
from collectors.logtimes import Anchor
from collectors.sources.kernel_log import PLUGIN
from core.events import KINDS
from core.protocols import TargetInfo

START = 1_780_000_000_000
SAMPLES = Path(__file__).parents[3] / "shared" / "samples" / "logs"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")


def read(lines, boots: tuple[int, ...] = ()):
    """All events of the lines of node n1."""
    reader = LogReader({"kernel_log": PLUGIN}, TargetInfo("kernel/n1", {"node": "n1"}, "n1"), Anchor(START, boots))
    return [event for line in lines for event in reader.read(line)[1].events]


@pytest.mark.parametrize(
    ("message", "xid", "pci", "fatal", "text"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79,
         "0000:9b:00.0", None, "GPU has fallen off the bus."),
        ("NVRM: Xid (PCI:0000:9B:00.0): 31, pid=123", 31, "0000:9b:00.0", None, None),
        ("NVRM: Xid (PCI:0000:04:00): 69", 69, "0000:04:00.0", None, None),
        ("NVRM: Xid (0000:04:00): 13, Graphics Exception: ESR 0x1", 13, "0000:04:00.0", None, "Graphics Exception: ESR 0x1"),
        ("NVRM: Xid (PCI:0000:65:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM (0x1).", 94, "0000:65:00.0",
         None, "Contained: SM (0x1)."),
        ("NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x02)", 149, "0008:01:00.0", True,
         "NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x02)"),
        ("NVRM: Xid (PCI:0008:01:00): 145, pid=1, name=ray::Worker, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x0)", 145,
         "0008:01:00.0", False, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x0)"),
        ("NVRM: Xid (PCI:0000:04:00): 63, Fatal words in another Xid", 63, "0000:04:00.0", None, "Fatal words in another Xid"),
    ],
)
def test_an_xid_line(message: str, xid: int, pci: str, fatal: bool | None, text: str | None) -> None:
    """Number, PCI address in one spelling, the line's own fatality for 144 to 150, and the message."""
    (event,) = read([f"2026-11-28T12:00:00Z n1 kernel: {message}"])
    expected = {"xid": xid, "pci": pci, "fatal": fatal, "message": text}
    assert (event.kind, event.target.kind, event.target.node, event.target.device) == ("xid", "gpu", "n1", pci)
    assert dict(event.fields) == {k: v for k, v in expected.items() if v is not None}
    assert message in (event.line or "")


def test_a_gpu_lost_over_three_lines() -> None:
    """The driver names the GPU on one line and says what happened to it two lines on, without a number (case P07)."""
    lines = [
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).",
    ]
    (event,) = read(lines, (START,))
    assert (event.kind, event.target.device, dict(event.fields)) == ("gpu_lost", "0000:b3:00.0", {"pci": "0000:b3:00.0"})
    assert event.at == START + 1_843_308
    assert "fallen off the bus" in (event.line or "")


def test_a_gpu_lost_on_one_line_and_an_unrelated_line_much_later() -> None:
    """One line is enough; a GPU named long before is not the one that is lost."""
    lines = [
        "[10.0] NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "[20.0] NVRM: The NVIDIA GPU 0000:b4:00.0",
        "[99.0] NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert [(e.kind, e.target.device) for e in read(lines)] == [("gpu_lost", "0000:b3:00.0")]


@pytest.mark.parametrize(
    ("message", "kind", "target_kind", "device", "fields"),
    [
        ("Out of memory: Killed process 123 (python3) total-vm:1kB", "oom", "node", None, {"process": "python3"}),
        ("Out of memory: Killed process 123, UID 48, (httpd)", "oom", "node", None, {"process": "httpd"}),
        ("Memory cgroup out of memory: Killed process 9 (pt_main_thread) total", "oom", "node", None,
         {"process": "pt_main_thread"}),
        ("Out of memory: Killed process (pingmesh-agent)", "oom", "node", None, {"process": "pingmesh-agent"}),
        ("mlx5_core 0000:9b:00.0 enp155s0np0: Link down", "link_down", "nic", "enp155s0np0", {}),
        ("mlx5_core 0000:9b:00.0 enp155s0np0: Link up", "link_up", "nic", "enp155s0np0", {}),
        ("bnxt_en 0000:3b:00.0 ens2f0np0: NIC Link is Down", "link_down", "nic", "ens2f0np0", {}),
        ("mlx5_core 0000:9b:00.0: Link down", "link_down", "nic", "0000:9b:00.0", {}),
        ("mlx5_0: Port 1 link down", "link_down", "nic", "mlx5_0/1", {}),
        ("mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link DOWN", "link_down", "nic", "mlx5_3/1", {}),
        ("mlx5_core 0000:53:00.0 mlx5_3: Port: 1 Link ACTIVE", "link_up", "nic", "mlx5_3/1", {}),
        ("e1000e: eth0 NIC Link is Up 1000 Mbps", "link_up", "nic", "eth0", {}),
        ("bond0: (slave eth1): link status definitely down, disabling slave", "link_down", "nic", "eth1", {}),
        ("mlx5_core 0000:9b:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
         "kernel_error", "nic", "0000:9b:00.0", {"subsystem": "mlx5"}),
        ("nvme nvme0: I/O 123 QID 5 timeout, aborting", "kernel_error", "disk", "nvme0", {"subsystem": "nvme"}),
        ("blk_update_request: I/O error, dev sda, sector 1", "kernel_error", "disk", "sda", {"subsystem": "block"}),
        ("INFO: task python3:123 blocked for more than 120 seconds.", "kernel_error", "node", None, {"subsystem": "hung_task"}),
        ("pt_main_thread[1]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d]", "kernel_error", "node", None,
         {"subsystem": "nccl"}),
        ("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress", "kernel_error", "node", None,
         {"subsystem": "nvswitch"}),
    ],
)
def test_other_events(message: str, kind: str, target_kind: str, device: str | None, fields: dict[str, object]) -> None:
    """Links, out-of-memory kills and errors, each of the part that it is about."""
    (event,) = read([f"2026-11-28T12:00:00Z n1 kernel: {message}"])
    told = {k: v for k, v in event.fields.items() if k != "message"}
    assert (event.kind, event.target.kind, event.target.node, event.target.device, told) == (
        kind, target_kind, "n1", device, fields)


@pytest.mark.parametrize(
    "message",
    [
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "cali123: Link up",
        "vethabc: link is down",
        "perf: interrupt took too long (2509 > 2500)",
        "oom_reaper: reaped process 345646 (vector), now anon-rss:0kB",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "pcieport 0000:00:01.0: AER: Corrected error received",
        "NVRM: Xid (PCI:0000:9b:00): not a number",
    ],
)
def test_look_alikes_are_no_events(message: str) -> None:
    """Virtual interfaces, traces of a kill and corrected errors say nothing of a fault."""
    assert read([f"2026-11-28T12:00:00Z n1 kernel: {message}"]) == []


def test_a_repeated_line_is_an_event_each_time() -> None:
    """Nothing is folded here."""
    line = "2026-11-28T12:00:00Z n1 kernel: NVRM: Xid (PCI:0000:9b:00): 95, pid=1, name=p, Uncontained ECC error"
    assert [e.kind for e in read([line] * 5)] == ["xid"] * 5


def test_an_old_kernels_two_lines_of_one_kill_are_one() -> None:
    """"Kill process 456" is an announcement, "Killed process 456" the deed."""
    lines = [
        "[10.0] Out of memory: Kill process 456 (python) score 50 or sacrifice child",
        "[10.1] Out of memory: Killed process 456 (python) total-vm:1kB",
    ]
    assert [e.kind for e in read(lines)] == ["oom"]


def test_a_uuid_that_the_driver_told_names_the_gpu() -> None:
    """`GPU at PCI:…: GPU-…` ties address and id together."""
    lines = ["[1.0] NVRM: GPU at PCI:0000:9b:00: GPU-b07aa427-4bf3", "[1.0] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=a, b"]
    assert [e.target.id for e in read(lines)] == ["GPU-b07aa427-4bf3"]


@pytest.mark.parametrize(
    ("line", "boots", "expected"),
    [
        ("[0.000000] Linux version 5.15.0", (START - 5000,), [START - 5000]),
        ("[0.000000] Linux version 5.15.0", (), []),
        ("2026-11-28T12:00:00Z n1 kernel: Linux version 5.15.0", (), [1795867200000]),
        ("Linux version 5.15.0", (), []),
    ],
)
def test_a_boot_is_told_only_where_its_time_is_known(line: str, boots: tuple[int, ...], expected: list[int]) -> None:
    """The start of a recording is not a boot."""
    assert [e.at for e in read([line], boots) if e.kind == "boot"] == expected


def test_a_line_is_kept_up_to_500_characters() -> None:
    """Long lines are cut in the event."""
    (event,) = read(["[1.0] NVRM: Xid (PCI:0000:9b:00): 13, " + "x" * 5000])
    assert len(event.line or "") == 500


@needs_samples
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dmesg_xid119_8xGPU.log", {"xid": 5}),
        ("dmesg_oom.log", {"xid": 17, "oom": 3}),
        ("dmesg_nccl_segfault.log", {"kernel_error": 2}),
        ("kmsg_1.log", {}),
    ],
)
def test_real_logs(name: str, expected: dict[str, int]) -> None:
    """Real dmesg and kmsg output gives the events that a person finds in it."""
    events = read((SAMPLES / name).read_text().splitlines())
    assert {k: sum(e.kind == k for e in events) for k in {e.kind for e in events}} == expected


@needs_samples
def test_real_xid_lines() -> None:
    """Every one of the collected XID lines is an event with known fields."""
    lines = (SAMPLES / "xid_lines_gpud.txt").read_text().splitlines()
    events = read(lines)
    assert len(events) == len(lines)
    assert all(set(e.fields) <= set(KINDS[e.kind]) and e.kind == "xid" for e in events)
    assert all(("fatal" in e.fields) == (144 <= e.fields["xid"] <= 150) for e in events)
