"""A thousand at once: a lost rack with a thousand findings, and a thousand incidents that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from core.clock import monotonic_seconds, process_cpu_seconds
from core.inventory import Inventory, inventory_from
from core.protocols import Checkpoint, NodeView
from core.types import Action, Evidence, Finding, Incident, JobState, Outcome, Target
from core.window import Window
from pipeline.incidents import IncidentBook
from remediation.engine import Engine, Step
from remediation.kinds import KINDS, commands
from remediation.ledger import MOST_ENTRIES, Entry
from remediation.policy import Policy, parse_policy

AT = 1_790_000_010_000
TICK_MS = 15_000
RACKS, NODES_A_RACK, GPUS_A_NODE = 8, 125, 8
POLICY = """
version: 1
mode: act
limits: {concurrent_nodes: 2, pool_ratio: 0.05, pool_nodes: 1, per_hour: 4, per_job_per_day: 3, spare_floor: 1, cooldown_seconds: 3600}
rules:
- name: lost
  match: {fault: [gpu_lost, target_down]}
  attempts:
  - do: [drain, reboot, diagnose, undrain]
  - do: [drain, replace]
  verify: {quiet_seconds: 300, deadline_seconds: 1200}
  finally: escalate
"""


class Site:
    """The facts and the world of the bench: every node is in service, nothing answers but by what is asked of it here."""

    def __init__(self, nodes: list[str], findings: list[Finding]) -> None:
        self.findings = findings
        self.views = {name: NodeView(name, "in_service", None, (f"job-{i % 500}",)) for i, name in enumerate(nodes)}
        self.views |= {f"spare-{i}": NodeView(f"spare-{i}", "spare") for i in range(8)}
        self.known: dict[str, Outcome] = {}

    def nodes(self) -> Mapping[str, NodeView]:
        return dict(self.views)

    def open_findings(self) -> list[Finding]:
        return self.findings

    def step_seconds(self, job: str, start: int, end: int) -> float | None:
        return 2.0

    def tokens_per_second(self, job: str, start: int, end: int) -> float | None:
        return 1000.0

    def ranks(self, job: str, start: int, end: int) -> int | None:
        return 16

    def job(self, job: str) -> JobState | None:
        return JobState(job, "train")

    def checkpoint(self, job: str) -> Checkpoint:
        return Checkpoint()

    def gpu_in_use(self, gpu: Target) -> bool | None:
        """Nothing is known."""
        return None

    def nonfinite_since(self, job: str) -> int | None:
        return None

    def submit(self, action: Action) -> Outcome:
        return self.known.setdefault(action.id, Outcome(action.id, "RUNNING", "policy"))

    def poll(self, action_id: str) -> Outcome:
        return self.known.get(action_id, Outcome(action_id, "REFUSED", "unknown_operation"))


def cluster() -> tuple[Inventory, list[Target]]:
    """RACKS racks of NODES_A_RACK nodes, and their GPUs."""
    rows = [{"name": f"r{r}-n{i:03d}", "rack": f"r{r}", "pdu": f"p{r}", "leaf": f"l{r}-{i // 32}",
             "gpus": [{"index": g, "uuid": f"GPU-{r}-{i}-{g}"} for g in range(GPUS_A_NODE)]}
            for r in range(RACKS) for i in range(NODES_A_RACK)]
    gpus = [Target("gpu", str(n["name"]), str(g), f"GPU-{n['name']}-{g}") for n in rows for g in range(GPUS_A_NODE)]
    return inventory_from({"nodes": rows}, "bench"), gpus


def finding(target: Target, fault: str, at: int) -> Finding:
    """One that has just opened."""
    return Finding(f"fnd-{fault}-{target.key}", fault, fault, target, "open", 0.9,
                   (Evidence("gpu.count", "", 0.0, 8.0, "the inventory"),), "gone", at - 60_000, at, at)


def engine_with_past(policy: Policy, site: Site, entries: int) -> Engine:
    """An engine whose ledger is full of attempts of the weeks before."""
    engine = Engine(policy, frozenset(KINDS), site)
    for i in range(entries):
        began = AT - 8 * 86_400_000 + i * 60_000
        engine.history.ledger.note(Entry(f"inc-{i:012x}", 1, f"gpu/old-{i}/0", (f"old-{i}",), (f"job-{i % 500}",), began,
                                         began + 30_000, "gpu_lost", ("drain", "reboot"), "cured", "recovered", "lost"))
    return engine


def rack_lost(fault: str = "gpu_lost") -> dict[str, Any]:
    """A rack of 125 nodes vanishes: from a thousand findings in one tick to what is to be done."""
    inventory, gpus = cluster()
    times = np.array([AT], np.int64)
    window = Window(AT, 15, times, {"gpu": tuple(gpus)}, {}, topology=inventory.topology())
    found = [finding(g, fault, AT) for g in gpus if g.node is not None and g.node.startswith("r3-")]
    site = Site([n.name for n in inventory.nodes], found)
    book, engine = IncidentBook(), engine_with_past(parse_policy(POLICY), site, MOST_ENTRIES)
    began, cpu = monotonic_seconds(), process_cpu_seconds()
    book.update(window, found, [])
    grouped = monotonic_seconds()
    step = engine.step(AT, book.open(), site)
    ended, used = monotonic_seconds(), process_cpu_seconds() - cpu
    opened = book.open()
    return {"case": "a rack lost", "findings": len(found), "incidents": len(opened), "scope": opened[0].scope,
            "culprit": str(opened[0].culprit), "commands": _commands(step), "grouped_seconds": round(grouped - began, 3),
            "planned_seconds": round(ended - grouped, 3), "seconds": round(ended - began, 3), "cpu_seconds": round(used, 3),
            "state": [f"{i.state}: {i.reason}" for i in step.incidents]}


def thousand_apart(ticks: int = 20) -> dict[str, Any]:
    """A thousand incidents on a thousand nodes that share nothing: the greatest number of nodes at work at one time, of
    attempts in the hour, and what the slowest tick took."""
    nodes = [f"n{i:04d}" for i in range(RACKS * NODES_A_RACK)]
    parts = [Target("gpu", name, "0", f"GPU-{name}") for name in nodes]
    site = Site(nodes, [])
    engine = engine_with_past(parse_policy(POLICY), site, MOST_ENTRIES)
    incidents = {f"inc-{i:012x}x": _incident(f"inc-{i:012x}x", part, i) for i, part in enumerate(parts)}
    took, cpu, begun, most = [], [], set(), 0
    for i in range(ticks):
        at = AT + i * TICK_MS
        site.findings = [finding(part, "gpu_lost", at) for part in parts]
        began, used = monotonic_seconds(), process_cpu_seconds()
        step = engine.step(at, [one for one in incidents.values() if one.state != "resolved"], site)
        took.append(monotonic_seconds() - began)
        cpu.append(process_cpu_seconds() - used)
        incidents |= {one.id: one for one in step.incidents}
        engine.carry_out(at, site)
        begun |= {(a.incident, a.attempt) for a, _ in step.actions if commands(a.kind)}
        most = max(most, sum(one.state == "acting" for one in incidents.values()))
    dumped = process_cpu_seconds()
    size = len(engine.dump())
    return {"case": "a thousand apart", "incidents": len(parts), "first_tick_seconds": round(took[0], 3),
            "slowest_tick_seconds": round(max(took), 3), "acting_at_once": most, "attempts_in_the_hour": len(begun),
            "first_tick_cpu_seconds": round(cpu[0], 3), "slowest_tick_cpu_seconds": round(max(cpu), 3), "state_bytes": size,
            "dump_cpu_seconds": round(process_cpu_seconds() - dumped, 3)}


def _incident(name: str, part: Target, i: int) -> Incident:
    return Incident(name, "gpu_lost", "device", part, 0.95, (), (), (f"fnd-gpu_lost-{part.key}",), (), (f"job-{i % 500}",), 0.0,
                    "infra", "page", "open", "opened_by_finding", None, AT - 300_000, AT - 240_000, AT)


def _commands(step: Step) -> int:
    return sum(commands(action.kind) for action, _ in step.actions)


def bench_incidents() -> Iterator[dict[str, Any]]:
    """A lost rack, and a thousand incidents apart."""
    yield rack_lost()
    yield thousand_apart()
