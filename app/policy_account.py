"""What a policy would have done in a recording, in numbers and words: commands, healthy nodes hit, GPU-hours, differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.policy_model import CHECKPOINT_WAIT_SECONDS, HANDS
from app.policy_shadow import TRUTH, Case, Shadow, Try
from app.story import because
from core.clock import rfc3339
from core.render import plain
from remediation.usual import usual_table

HOUR = 3600.0
NOUNS = {"reboot": "reboot", "drain": "drain", "replace": "replacement", "reset_gpu": "GPU reset", "exclude_node": "exclusion",
         "restart_process": "process restart", "resume_job": "job restart", "shrink_job": "shrunk job", "diagnose": "diagnosis",
         "undrain": "return to service"}


@dataclass(frozen=True, slots=True)
class Account:
    """actions: commands by kind. healthy: of them on healthy nodes, by kind; needless: on jobs without a fault; both None
    where nothing is known. unjudged: commands to nodes of which it is not known whether they were healthy. saved_hours: GPU-hours against what was recorded, costs taken off. unknown_cost: attempts of
    which the GPUs, or the work lost with them, are not known; they count as free. told: incidents handed to people."""

    policy: str
    assumption: str
    actions: Mapping[str, int]
    healthy: Mapping[str, int] | None
    needless: Mapping[str, int] | None
    lost_hours: float
    saved_hours: float
    incidents: int
    told: int
    attempts: int
    unknown_cost: int
    rows: tuple[dict[str, Any], ...] = field(default=())
    unjudged: int = 0

    @property
    def healthy_nodes(self) -> int | None:
        """Commands to healthy nodes."""
        return None if self.healthy is None else sum(self.healthy.values())


def account(name: str, shadow: Shadow) -> Account:
    """The numbers of one shadow."""
    actions: Counter[str] = Counter()
    healthy: Counter[str] = Counter()
    needless: Counter[str] = Counter()
    unjudged = 0
    for case in shadow.cases.values():
        for did in (d for each in case.tries for d in each.did):
            actions[did.kind] += 1
            wrong = shadow.healthy(did)
            unjudged += wrong is None and did.kind in HANDS
            if wrong:
                (healthy if did.kind in HANDS else needless)[did.kind] += 1
    counted = [c for c in shadow.cases.values() if c.incident.state != "merged" or c.tries]
    rows = tuple(_row(case, shadow) for case in counted)
    known = shadow.known.complete or bool(shadow.known.faults or shadow.known.sound)
    return Account(
        name, shadow.assumption, dict(actions), dict(healthy) if known else None, dict(needless) if known else None,
        sum(c.incident.lost_gpu_hours for c in counted), sum(saved(c) for c in counted), len(counted), sum(c.told for c in counted),
        sum(len(c.tries) for c in counted),
        sum(t.work_seconds is None or t.gpus is None for c in counted for t in c.tries), rows,
        unjudged if known else 0)


def saved(case: Case) -> float:
    """GPU-hours that the attempts on an incident saved; below 0 they cost more than they brought."""
    total = 0.0
    for each in case.tries:
        if each.stop_at is None or each.ended_at is None:
            continue
        stood = (each.gpus or 0) * (each.ended_at - each.stop_at) / 1000 / HOUR
        work = (each.gpus or 0) * (each.work_seconds or 0.0) / HOUR
        if each.helped:
            return total + (case.incident.lost_gpu_hours - each.lost_at) - stood - work
        # The job would have lost something meanwhile as well.
        total -= max(0.0, stood - (each.lost_after - each.lost_at)) + work
    return total


def _row(case: Case, shadow: Shadow) -> dict[str, Any]:
    one = case.incident
    return {
        "incident": one.id, "fault": one.fault, "scope": one.scope, "culprit": plain(one.culprit), "jobs": list(one.jobs),
        "opened_at": rfc3339(one.opened_at), "lost_gpu_hours": one.lost_gpu_hours, "rule": case.rule,
        "did": _words(case), "attempts": [_attempt(each, shadow) for each in case.tries], "saved_gpu_hours": saved(case),
    }


def _attempt(each: Try, shadow: Shadow) -> dict[str, Any]:
    return {"number": each.number, "steps": [{
        "kind": d.kind, "node": d.node, "job": d.job, "at": rfc3339(d.at), "done_at": None if d.until is None else rfc3339(d.until),
        "healthy": shadow.healthy(d)} for d in each.did], "helped": each.helped}


def _words(case: Case) -> str:
    """What became of an incident under the policy, short."""
    if case.skipped is not None and not case.tries:
        return f"nothing: {case.skipped}"
    steps = ["+".join(d.kind for d in each.did) or "nothing" for each in case.tries]
    text = ", then ".join(steps)
    if case.told:
        return f"{text}, then people" if text else "people"
    if not text:
        return f"held: {because(case.reason)}" if case.state == "holding" else because(case.reason) if case.reason else "nothing"
    return text


# --- words ------------------------------------------------------------------------------------------------------------
def count_words(actions: Mapping[str, int], healthy: Mapping[str, int] | None, hours: str) -> str:
    """`12 reboots, 3 of them on healthy nodes, 41 GPU-hours saved`."""
    parts = []
    for kind in sorted(actions, key=lambda k: (k not in HANDS, -actions[k], k)):
        number, noun = actions[kind], NOUNS[kind]
        plural = noun if number == 1 else {"diagnosis": "diagnoses", "return to service": "returns to service"}.get(noun, f"{noun}s")
        text = f"{number} {plural}"
        if healthy is not None and kind in HANDS:
            text += f", {healthy.get(kind, 0) or 'none'} of them on healthy nodes" if number > 1 else \
                ", on a healthy node" if healthy.get(kind) else ", on a faulty node"
        parts.append(text)
    return "; ".join([*parts, hours]) if parts else f"nothing done; {hours}"


def hours_words(hours: float) -> str:
    """`41.2 GPU-hours saved`; what cost more than it brought is said so."""
    return f"{hours:.1f} GPU-hours saved" if hours > -0.05 else f"{-hours:.1f} GPU-hours more lost than without it"


def lines(groups: Sequence[Sequence[Account]], span: str) -> Iterator[str]:
    """For people. groups: for each policy its accounts, one for each assumption."""
    yield span
    for accounts in groups:
        yield f"{accounts[0].policy}:"
        for one in accounts:
            prefix = "" if len(accounts) == 1 else f"if {one.assumption}: "
            yield f"  {prefix}{count_words(one.actions, one.healthy, hours_words(one.saved_hours))}"
            needless = sum((one.needless or {}).values())
            if needless:
                yield f"  {needless} restarts of jobs that had no fault"
            yield f"  {one.incidents} incidents, {one.attempts} attempts, {one.told} handed to people"
            if one.unjudged:
                yield f"  of {one.unjudged} of the commands to nodes nobody knows whether the node was healthy"
            if one.unknown_cost:
                yield f"  {one.unknown_cost} attempts cost what the recording does not tell (GPUs, last checkpoint): counted as free"
    yield from _assumptions([a for accounts in groups for a in accounts])


def _assumptions(accounts: Iterable[Account]) -> Iterator[str]:
    accounts = list(accounts)
    known, partly = any(a.assumption == TRUTH for a in accounts), any(a.healthy is not None for a in accounts)
    times = ", ".join(f"{kind} {seconds:g} s" for kind, seconds in usual_table().items())
    yield "assumed:"
    yield "  · guards and budgets count as in mode act; each command is done after its usual time:"
    yield f"    {times}; a drain that waits for a checkpoint, that much later ({CHECKPOINT_WAIT_SECONDS:g} s where it is not known)"
    if known:
        yield "  · the truth beside the recording says which attempts would have ended a fault, and which nodes were healthy"
    elif partly:
        yield "  · what labels, or the store's own history (proofs, diagnoses, people's words), say of a fault or a node counts as true;"
        yield "    of all else nobody knows, so there are two answers, the best case and the worst; what was done in the recording stays done"
    else:
        yield "  · no truth is known: whether a node was healthy cannot be told, and what comes after an attempt is not in a"
        yield "    recording; so there are two answers, the best case and the worst"
    yield "  · saved: what the incident cost in the recording from the attempt on, less the time that the job stands and the work"
    yield "    since its last checkpoint; a cured fault does not come back"


def differences(a: Account, b: Account) -> list[dict[str, Any]]:
    """Incidents of which two policies make something else, in the order of opening."""
    other = {row["incident"]: row for row in b.rows}
    out = []
    for row in a.rows:
        twin = other.get(row["incident"])
        if twin is not None and (row["did"], row["rule"]) != (twin["did"], twin["rule"]):
            out.append({"incident": row["incident"], "fault": row["fault"], "culprit": row["culprit"], "opened_at": row["opened_at"],
                        "a": _side(row), "b": _side(twin)})
    return out


def _side(row: Mapping[str, Any]) -> dict[str, Any]:
    healthy = [s["healthy"] for each in row["attempts"] for s in each["steps"] if s["kind"] in HANDS]
    return {"rule": row["rule"], "did": row["did"], "saved_gpu_hours": row["saved_gpu_hours"],
            "healthy_nodes": None if any(h is None for h in healthy) else sum(healthy)}


def table(rows: Sequence[Mapping[str, Any]], a: str, b: str) -> Iterator[str]:
    """The differences as a table."""
    from app.story import part

    if not rows:
        yield f"{a} and {b} do the same"
        return
    yield f"where {a} and {b} differ:"
    cells = [("incident", "fault, part", a, b)]
    for row in rows:
        cells.append((row["opened_at"][5:16].replace("T", " "), f"{row['fault']} on {part(row['culprit'])}",
                      *(f"{side['did']} ({side['saved_gpu_hours']:+.1f} h)" for side in (row["a"], row["b"]))))
    widths = [min(60, max(len(r[i]) for r in cells)) for i in range(4)]
    for line in cells:
        yield "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


def document(account_: Account) -> dict[str, Any]:
    """One account as JSON."""
    return {**{k: v for k, v in plain(account_).items() if k != "rows"}, "healthy_nodes": account_.healthy_nodes,
            "incidents_in_order": list(account_.rows)}
