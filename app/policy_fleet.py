"""A policy in a closed loop on the bundled fleet: the same scenario and seed with it, without anybody, and with another policy.

Here the truth is known, and what a command brings about is the fleet's own answer, not an assumption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.policy_account import count_words, hours_words
from app.policy_model import HANDS
from app.policy_truth import TrueFault, truth_of
from app.story import part
from app.virtual import VirtualSite
from core.clock import TICK_MS, monotonic_seconds, rfc3339
from core.render import plain
from core.targets import CLOSED_STATES
from core.types import Action, Incident
from fleet.build import build_scenario, load_scenario
from fleet.scenario import Scenario
from fleet.state import goodput, truth
from remediation.policy import Policy

TELL_SECONDS = 2.0
NOBODY = "nobody acts"


@dataclass(slots=True)
class Run:
    """One run. productive_hours, elapsed_hours: GPU-hours. actions: those that the fleet did, by id."""

    name: str
    productive_hours: float = 0.0
    elapsed_hours: float = 0.0
    actions: dict[str, Action] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    truths: list[TrueFault] = field(default_factory=list)

    def healthy(self, action: Action) -> bool:
        """Whether nothing was wrong with the node that was acted on."""
        return not any(t.node == action.target.node and t.now(action.at) for t in self.truths)


def run(path: str, chosen: list[tuple[str, Policy]], seed: int | None, progress: Callable[[str], None] | None) -> dict[str, Any]:
    """All runs as one document. Raises ConfigError."""
    scenario = load_scenario(path)
    if seed is not None:
        scenario = replace(scenario, seed=seed)
    runs = [_run(scenario, NOBODY, None, progress), *(_run(scenario, name, policy, progress) for name, policy in chosen)]
    rows = [_document(one, runs[0]) for one in runs]
    out: dict[str, Any] = {"scenario": scenario.name, "seed": scenario.seed, "started_at": rfc3339(scenario.start_ms),
                           "ended_at": rfc3339(scenario.end_ms), "faults": len(runs[0].truths), "runs": rows}
    if len(runs) == 3:
        out["differences"] = _differences(runs[1], runs[2])
    return out


def _run(scenario: Scenario, name: str, policy: Policy | None, progress: Callable[[str], None] | None) -> Run:
    world, operations, _ = build_scenario(scenario)
    acting = None if policy is None else replace(policy, mode="act")
    site = VirtualSite(act=policy is not None, built=(world, operations), policy=acting)
    out, tick, told = Run(name), world.now_ms // TICK_MS * TICK_MS, monotonic_seconds()
    while tick < scenario.end_ms:
        tick += TICK_MS
        commit = site.judge(tick).commit
        out.incidents |= {one.id: one for one in commit.incidents}
        out.actions |= {a.id: a for a, o in commit.actions if o.state in ("RUNNING", "DONE", "FAILED") and a.kind not in ("escalate", "notify")}
        site.brain.carry_out(tick, site.door)
        if progress is not None and monotonic_seconds() - told > TELL_SECONDS:
            told = monotonic_seconds()
            progress(f"{scenario.name}, {name}: {(tick - scenario.start_ms) / max(1, scenario.end_ms - scenario.start_ms):.0%}")
    spent = goodput(world)
    out.productive_hours = spent["fleet"]["gpu_seconds"].get("productive", 0.0) / 3600
    out.elapsed_hours = spent["gpu_seconds_elapsed"] / 3600
    out.truths = [row for one in truth(world) if (row := truth_of(one)) is not None]
    return out


# --- the answer -------------------------------------------------------------------------------------------------------
def _document(one: Run, nothing: Run) -> dict[str, Any]:
    acts = list(one.actions.values())
    healthy = Counter(a.kind for a in acts if a.kind in HANDS and one.healthy(a))
    real = [i for i in one.incidents.values() if i.state != "merged"]
    return {
        "policy": one.name, "actions": dict(Counter(a.kind for a in acts)), "healthy": dict(healthy), "healthy_nodes": sum(healthy.values()),
        "productive_gpu_hours": one.productive_hours, "saved_gpu_hours": one.productive_hours - nothing.productive_hours,
        "elapsed_gpu_hours": one.elapsed_hours, "incidents": len(real),
        "resolved": sum(i.state in CLOSED_STATES for i in real), "told": sum(i.state == "escalated" for i in real),
        "acts": [{"incident": a.incident, "kind": a.kind, "target": plain(a.target), "at": rfc3339(a.at),
                  "healthy": one.healthy(a) if a.kind in HANDS else None} for a in acts],
    }


def _differences(a: Run, b: Run) -> list[dict[str, Any]]:
    """What each run did, by fault and part: incidents of two runs are the same where these are."""
    def did(one: Run) -> dict[tuple[str, str], str]:
        out: dict[tuple[str, str], str] = {}
        for incident in sorted((i for i in one.incidents.values() if i.state != "merged"), key=lambda i: i.opened_at):
            acts = [x for x in one.actions.values() if x.incident == incident.id]
            tries = ["+".join(x.kind for x in acts if x.attempt == n) for n in sorted({x.attempt for x in acts})]
            words = (", then ".join(tries) or "nothing") + f" → {incident.state}"
            key = (incident.fault, part(plain(incident.culprit)))
            out[key] = f"{out[key]}; {words}" if key in out else words
        return out

    first, second = did(a), did(b)
    return [{"fault": key[0], "culprit": key[1], "a": first.get(key, "no incident"), "b": second.get(key, "no incident")}
            for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]


def scenario_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """The answer for people."""
    nothing = answer["runs"][0]
    yield (f"{answer['scenario']} (seed {answer['seed']}), {answer['started_at'][:19]} to {answer['ended_at'][:19]}: "
           f"{answer['faults']} faults, {nothing['elapsed_gpu_hours']:.1f} GPU-hours")
    for one in answer["runs"]:
        share = one["productive_gpu_hours"] / one["elapsed_gpu_hours"]
        yield f"{one['policy']}: {one['productive_gpu_hours']:.1f} GPU-hours productive ({share:.1%})"
        if one is not nothing:
            yield f"  {count_words(one['actions'], one['healthy'], hours_words(one['saved_gpu_hours']))}"
            yield f"  {one['incidents']} incidents, {one['resolved']} closed, {one['told']} with people"
    yield "saved: productive GPU-hours against the same seed with nobody acting (failed jobs are started again as the scenario says);"
    yield "commands take the scenario's own times; a healthy node is one that the scenario planted nothing on"
    if "differences" in answer:
        a, b = (one["policy"] for one in answer["runs"][1:])
        yield f"where {a} and {b} differ:" if answer["differences"] else f"{a} and {b} do the same"
        for row in answer["differences"]:
            yield f"  {row['fault']} on {row['culprit']}"
            yield f"    {a}: {row['a']}"
            yield f"    {b}: {row['b']}"
