"""Kernel logs: XIDs, GPUs that fell off the bus, links, out-of-memory kills, and errors of NICs, disks and the machine,
and what systemd says of the services that GPUs need.

Forms that are read: an ISO or `[seconds]` time, optionally `host kernel:`, then the message; dmesg with facility
prefixes or dates (`-x`, `-T`), classic syslog, journalctl (also `-o json`), and raw /dev/kmsg records. Each line is an event at its own
time, however often it repeats. For XID 144–150 the line's own Fatal or Nonfatal is the field `fatal` (DESIGN §2); what
an XID means is judged elsewhere. GPUs are named by PCI address here; who knows the inventory names them better.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.loglines import LONGEST_QUOTED, NOTHING, kernel_head, normalise_pci, plain
from collectors.logtimes import Anchor
from collectors.services import watched
from core.protocols import LogReading, SourcePlugin, TargetInfo
from core.types import Event, Target

SPLIT_LINES = 4  # the driver spreads "fallen off the bus" over three lines; others may come between
SPLIT_MS = 5_000
SAME_KILL_MS = 10_000  # "Kill process 456 …" of old kernels is followed by "Killed process 456 …"
_ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"

_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})(?: GPU-I:(\d+))?\): (\d+)(?:, *(.*))?")
_WHO = re.compile(r"(?:pid=(?:'[^']*'|[^,]*)(?:, *|$))?(?:name=(?:'[^']*'|[^,]*)(?:, *|$))?")
_FATALITY = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)
_GPU_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?({_ADDRESS}): (GPU-[0-9a-fA-F-]+)")
_GPU_NAMED = re.compile(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?({_ADDRESS})")
_KILLED = re.compile(r"[Oo]ut of memory: Kill(?:ed)? process ?(\d+)?[^(]{0,80}\(([^)]{1,64})\)")
_VIRTUAL = re.compile(r"(?:veth|cali|docker|br-|virbr|cni|flannel|tun|tap|dummy|ifb|lxc|vnet|cilium|lo$|kube|Slot$)")
_LINK = re.compile(
    rf"(?:(?P<driver>[\w-]+) (?P<pci>{_ADDRESS})(?: (?P<dev>[\w.@/-]+))?|(?P<only>[\w.-]+))"
    r"(?:: Port:? (?P<port>\d+))?:? ?(?:\(\w+\): )?(?:NIC |IB )?[Ll]ink (?:is )?(?P<state>[Dd]own|[Uu]p|DOWN|UP|ACTIVE)\b")
_SLAVE = re.compile(r"(?:\(slave (?P<dev>[\w.-]+)\): )?link status (?:definitely )?(?P<state>down|up)\b"
                    r"(?: for interface (?P<only>[\w.-]+))?")

# EFA's driver as it takes a device away: its port's number stands in no line, and there is only one.
_EFA_GONE = re.compile(rf"efa {_ADDRESS} (?P<dev>[\w.-]+): Unregister ib device")

# systemd's own lines, in the journal beside the kernel's: newer ones have a description behind the unit's name.
_UNIT = re.compile(r"systemd\[1\]: (?:(?P<verb>Started|Stopped|Starting|Stopping) (?P<unit>[\w@.:-]+\.service)\b|"
                   r"(?P<failed>[\w@.:-]+\.service): Failed with result '(?P<result>[\w-]+)'|"
                   r"(?P<again>[\w@.:-]+\.service): Scheduled restart job\b)")
_UNIT_EVENTS = {"Started": "service_started", "Stopped": "service_stopped", "Starting": "service_starting"}


@dataclass(frozen=True, slots=True)
class _Rule:
    """A kernel_error: pattern, subsystem, and the kind of the part that the group `dev` or `pci` names."""

    pattern: re.Pattern[str]
    subsystem: str
    kind: str = "node"


def _rule(pattern: str, subsystem: str, kind: str = "node") -> _Rule:
    return _Rule(re.compile(pattern), subsystem, kind)


_ERRORS = (
    _rule(rf"mlx\d_core (?P<pci>{_ADDRESS})(?: [\w.]+)?:.*(?:health compromised|[Hh]ealth issue|[Ff]atal error|"
          r"synd(?:rome)? 0x|wait_func.*timeout|cmd.*timeout|failed reclaiming pages|Cable error|module .* unplugged|"
          r"Cable unplugged|Power budget exceeded|High [Tt]emperature|insufficient power|fw_fatal|unrecoverable)", "mlx5", "nic"),
    _rule(r"nvme (?P<dev>nvme\d+)(?:n\d+)?: (?:I/O .*timeout|controller is down|Device not ready|Disabling device|Removing after|"
          r"Abort status|failed|.*[Ff]atal)", "nvme", "disk"),
    _rule(r"(?:I/O|critical \w+) error,? (?:on )?dev (?P<dev>\w+)", "block", "disk"),
    _rule(r"Buffer I/O error on dev(?:ice)? (?P<dev>\w+)", "block", "disk"),
    _rule(r"(?:EXT4-fs error \(device (?P<dev>\w+)\)|XFS \((?P<pci>\w+)\): .*(?:[Cc]orruption|I/O error|"
          r"[Ss]hutting down|shut down))", "filesystem", "disk"),
    _rule(r"EXT4-fs \((?P<dev>\w+)\): Remounting filesystem read-only", "filesystem", "disk"),
    _rule(rf"(?:\w+ )?(?:(?P<pci>{_ADDRESS}): )?(?:AER: (?:Multiple )?Uncorrect(?:ed|able)|"
          r"PCIe Bus Error: severity=Uncorrect(?:ed|able))", "pcie", "link"),
    _rule(rf"(?:(?P<pci>{_ADDRESS}): )?pciehp: Slot\([^)]*\): (?:Link Down|Card not present)", "pcie", "link"),
    _rule(rf"(?P<pci>{_ADDRESS}): [\d.]+ Gb/s available PCIe bandwidth, limited by", "pcie", "link"),
    _rule(r"SXid \(", "nvswitch"),
    _rule(r"NVRM: .*(?:RmInitAdapter failed|failed to initialize|GPU is lost)", "nvidia"),
    _rule(r"\[Hardware Error\]: (?:Machine check(?! events logged)|CPU \d+: Machine Check)", "mce"),
    _rule(r"temperature (?:is )?above threshold, cpu clock (?:is )?throttled", "cpu_thermal"),
    _rule(r"EDAC \w+: \d+ UE\b", "edac"),
    _rule(r"INFO: task .{1,80} blocked for more than \d+ seconds", "hung_task"),
    _rule(r"(?:soft|hard) lockup|[Kk]ernel panic|kernel BUG at|\bOops:|rcu.* self-detected stall", "kernel"),
    _rule(r"segfault at .* in libnccl", "nccl"),
    _rule(r"Lustre(?:Error)?: .*?(?P<dev>[\w.]+-(?:OST|MDT)[0-9a-fA-F]{4})(?:-[\w-]+)?: (?:This client was evicted|Connection "
          r"to .{1,80} was lost)", "lustre", "storage"),
    _rule(r"LustreError:", "lustre"),
    _rule(r"nfs: server .{1,80} not responding", "nfs"),
)
# Words of which a line must hold one before it is looked at closely: most kernel lines hold none.
_HINTS = re.compile(
    r"NVRM|memory: Kill|[Ll]ink|fallen off|health|timeout|error|Error|SXid|EDAC|blocked for|lockup|panic|BUG|Oops|stall|"
    r"segfault|nfs:|nvme|mlx\d|Linux version|[Ff]atal|[Cc]orruption|shut|Lustre|throttled|systemd\[1\]|read-only|pciehp|PCIe|evicted|Unregister")


@dataclass(slots=True)
class _Line:
    """A kernel line and what its log knows. own: the line's own time; at: that, else the caller's."""

    text: str
    raw: str
    own: int | None
    at: int
    node: str | None
    state: dict[str, Any]

    def event(self, kind: str, target: Target | None = None, **fields: object) -> Event:
        kept = {name: value for name, value in fields.items() if value is not None}
        return Event(self.at, target or Target("node", self.node), kind, kept, self.raw[:LONGEST_QUOTED])

    def gpu(self, pci: str) -> Target:
        """The GPU at a PCI address; its UUID where the driver has told it."""
        return Target("gpu", self.node, pci, self.state.get(f"uuid/{pci}"))


def _xid(line: _Line) -> Event | None:
    match = _XID.search(line.text)
    if match is None:
        return None
    pci = normalise_pci(match[1]) or match[1]
    rest = match[4] or ""
    message = rest[who.end():] if (who := _WHO.match(rest)) else rest
    xid = int(match[3])
    told = _FATALITY.search(message) if 144 <= xid <= 150 else None
    fatal = None if told is None else told[1].lower() == "fatal"
    if len(match[3]) > 6:
        return None
    return line.event("xid", line.gpu(pci), xid=xid, pci=pci, fatal=fatal, message=message.strip()[:LONGEST_QUOTED] or None)


def _lost(line: _Line) -> Event | None:
    """ "Fallen off the bus" without an XID: on one line, or after the line that named the GPU."""
    state = line.state
    if (named := _GPU_NAMED.search(line.text)) is not None:
        state["named"] = (normalise_pci(named[1]) or named[1], line.at, SPLIT_LINES, line.raw)
    pending = state.get("named")
    if pending is None:
        return None
    pci, at, left, quoted = pending
    if left <= 0 or line.at - at > SPLIT_MS:
        state["named"] = None
        return None
    whole = quoted if named is not None else f"{quoted} {line.text}"
    if "fallen off the bus" in line.text:
        state["named"] = None
        event = line.event("gpu_lost", line.gpu(pci), pci=pci)
        return Event(event.at, event.target, event.kind, event.fields, whole[:LONGEST_QUOTED])
    state["named"] = (pci, at, left - 1, whole[:LONGEST_QUOTED])
    return None


def _nvidia(line: _Line) -> Event | None:
    if (told := _GPU_UUID.search(line.text)) is not None and (pci := normalise_pci(told[1])):
        line.state[f"uuid/{pci}"] = told[2]
        return None
    return _xid(line)


def _oom(line: _Line) -> Event | None:
    match = _KILLED.search(line.text)
    if match is None:
        return None
    last = line.state.get("killed")
    line.state["killed"] = (match[1], line.at, "Killed" in match[0])
    if match[1] and last and last[0] == match[1] and not last[2] and line.at - last[1] <= SAME_KILL_MS:
        return None
    return line.event("oom", None, process=match[2])


def _link(line: _Line) -> Event | None:
    gone = _EFA_GONE.search(line.text)
    if gone is not None:
        return line.event("link_down", Target("nic", line.node, f"{gone['dev']}/1"))
    match = _SLAVE.search(line.text) or _LINK.search(line.text)
    if match is None:
        return None
    g = match.groupdict()
    device = g.get("dev") or g.get("only") or normalise_pci(g.get("pci") or "") or ""
    if _VIRTUAL.match(device) or not device:
        return None
    if g.get("port"):
        device = f"{device}/{g['port']}"
    state = g["state"].lower()
    return line.event(f"link_{'up' if state == 'active' else state}", Target("nic", line.node, device))


def _boot(line: _Line) -> Event | None:
    """The first line of a boot. Only where the boot's time is known: a recording's start must not look like one."""
    if not line.text.startswith("Linux version ") or line.own is None:
        return None
    anchor: Anchor | None = line.state.get("anchor")
    if anchor is not None and anchor.boot is not None and not anchor.boots:
        return None
    return line.event("boot", None, boot_time_seconds=line.own / 1000)


def _error(line: _Line) -> Event | None:
    for rule in _ERRORS:
        match = rule.pattern.search(line.text)
        if match is None:
            continue
        g = match.groupdict()
        device = g.get("dev") or (normalise_pci(g["pci"]) or g["pci"] if g.get("pci") else None)
        target = Target(rule.kind, line.node, device) if rule.kind != "node" and device else None
        return line.event("kernel_error", target, subsystem=rule.subsystem, message=line.text[:LONGEST_QUOTED])
    return None


def _service(line: _Line) -> Event | None:
    match = _UNIT.search(line.text)
    if match is None:
        return None
    unit = match["unit"] or match["failed"] or match["again"]
    kind = "service_failed" if match["failed"] else "service_starting" if match["again"] else _UNIT_EVENTS.get(match["verb"])
    if kind is None or not watched(unit):
        return None
    return line.event(kind, Target("service", line.node, unit), unit=unit, result=match["result"])


_READERS: tuple[Callable[[_Line], Event | None], ...] = (_nvidia, _lost, _oom, _link, _boot, _service, _error)


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Events of a kernel line; one line gives at most one."""
    top = kernel_head(line)
    anchor: Anchor | None = state.get("anchor")
    if anchor is not None:
        own = anchor.resolve(top.mark)
    else:
        own = int(top.mark.value) if top.mark is not None and top.mark.kind == "at" else None
    if not _HINTS.search(top.text):
        return NOTHING if own is None else LogReading(at=own)
    when = own if own is not None else at
    node = log.node or log.labels.get("node") or top.host
    quoted = plain(line).strip()
    told = _Line(top.text, top.text if quoted.startswith("{") else quoted, own, when or 0, node, state)
    for reader in _READERS:
        event = reader(told)
        if event is not None:
            return LogReading((event,), (), own)
    return LogReading(at=own)


PLUGIN = SourcePlugin("kernel_log", parse_line=parse_line, log_kind="kernel")
