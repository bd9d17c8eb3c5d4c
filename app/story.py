"""The story as people read it: one line or a few for each record of `replay --json`. Text comes from the record alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.clock import parse_rfc3339
from core.reasons import ACTION_REASONS, INCIDENT_REASONS

UNITS = {"ratio": "", "1": "", "bool": "", "count": "", "bits": "", "step": "", "seq": "", "Hz": "Hz"}
OLD_EVENT_MS = 3_600_000  # a boot of weeks ago is known at the first tick, and is no news
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
MISSING = {"lost": "was seen and is silent now", "not_configured": "was never seen"}
RATIO_MAX = 1.05  # a job is as fast as before when its step takes at most so much longer


def number(value: float | None, unit: str) -> str:
    """`value` with its unit, short: 1.42 GHz, 84.0 °C, 12 %, none."""
    if value is None:
        return "none"
    if unit == "ratio":
        return f"{value * 100:.3g} %"
    if unit in ("Hz", "bytes", "bytes/s"):
        for size, prefix in _SI:
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}{unit}"
    if unit == "bits":
        return f"0x{int(value):x}"
    text = f"{value / 1e6:.3g} million" if abs(value) >= 1e6 and unit.startswith("1/") else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if unit.startswith("1/"):
        return f"{text} {unit.replace('1/', 'per ')}"
    return f"{text} {UNITS.get(unit, unit)}".strip()


def part(target: Mapping[str, Any] | None) -> str:
    """A target in words: `n7 GPU 3`, `n2 mlx5_1/1`, `job train-1`."""
    if target is None:
        return "no single part"
    kind, device = target["kind"], target.get("device")
    if kind == "job":
        return f"job {target['job']}"
    if kind == "rank":
        place = f" on {target['node']}" + (f" GPU {device}" if device is not None else "") if target.get("node") else ""
        return f"rank {target['rank']} of job {target['job']}{place}"
    if kind == "node":
        return str(target["node"])
    words = f"GPU {device}" if kind == "gpu" else str(device or target.get("id") or kind)
    rank = f" (rank {target['rank']} of {target['job']})" if kind == "gpu" and target.get("rank") is not None else ""
    return f"{target['node']} {words}{rank}" if target.get("node") else f"{kind} {words}"


def evidence(rows: list[Mapping[str, Any]], most: int = 6) -> list[str]:
    """One line for each piece of evidence."""
    out = []
    for row in rows[:most]:
        line = f"{row['signal']} {number(row['observed'], row['unit'])}"
        if row.get("expected") is not None:
            line += f", expected {number(row['expected'], row['unit'])}"
        if row.get("compared_with"):
            line += f" ({row['compared_with']})"
        if row.get("text"):
            line += f": {row['text']}"
        out.append(line)
    return out


def because(reason: str) -> str:
    """A named reason with what it means."""
    words = INCIDENT_REASONS.get(reason) or ACTION_REASONS.get(reason) if reason != "policy" else None
    return f"{reason} ({words})" if words else reason


def incident_lines(record: Mapping[str, Any]) -> list[str]:
    """An incident's opening, change or end."""
    one, event = record["incident"], record["event"]
    name = f"{one['id']} {one['fault']} on {part(one['culprit'])}"
    if event in ("opened", "reopened"):
        head = f"{event.upper()} {name}, scope {one['scope']}, confidence {one['confidence']:.2f}"
        lines = [head, *(f"  · {row}" for row in evidence(one["evidence"]))]
        if one["culprit"] is None and one["suspects"]:
            names = ", ".join(f"{part(s['target'])} {s['probability']:.2f}" for s in one["suspects"][:3])
            lines.append(f"  · suspects: {names}")
        if one["jobs"]:
            others = f", and with it {len(one['victims'])} other parts" if one["victims"] else ""
            lines.append(f"  · job {', '.join(one['jobs'])} is affected{others}")
        return lines
    if event == "resolved":
        return [f"{one['state'].upper()} {name}: {because(one['reason'])}, {one['lost_gpu_hours']:.2f} GPU-hours lost"]
    attempt = f", attempt {one['attempt']}" if one["attempt"] and one["state"] in ("acting", "verifying") else ""
    return [f"{one['state']} {one['id']}{attempt}: {because(one['reason'])}"]


def action_lines(record: Mapping[str, Any]) -> list[str]:
    """An action's decision or outcome."""
    action, outcome = record["action"], record["outcome"]
    args = ", ".join(f"{k} {v}" for k, v in action["args"].items() if v is not None and k != "attempts")
    text = f"{action['kind']} {part(action['target'])}" + (f" ({args})" if args else "")
    if outcome["state"] == "PENDING":
        if action["reason"] == "policy":  # the usual case: the rule's next step
            return [f"  → step {action['step']}: {text}"]
        return [f"  → {text}: {because(action['reason'])}", *(f"  · {line}" for line in action["args"].get("attempts", ()))]
    took = f" after {outcome['took_seconds']:.0f} s" if outcome["took_seconds"] else ""
    mark = {"DONE": "✓", "SIMULATED": "✓", "RUNNING": "·"}.get(outcome["state"], "✗")
    why = "" if outcome["reason"] in ("", "done") else f": {because(outcome['reason'])}"
    detail = f": {outcome['detail']}" if outcome.get("detail") else ""
    return [f"  {mark} {text}: {outcome['state']}{took}{why}{detail}"]


def shown_lines(answer: Mapping[str, Any]) -> list[str]:
    """An incident as it stands: its state, its evidence, what it cost and what was done, each action once with its time (UTC)."""
    one = answer["incident"]
    head, *rest = incident_lines({"event": "opened", "incident": one})
    end = f" to {one['resolved_at'][:19].replace('T', ' ')}" if one["resolved_at"] else ""
    out = [head.replace("OPENED", one["state"].upper(), 1), *rest,
           f"  · since {one['onset_at'][:19].replace('T', ' ')}{end} UTC, {one['lost_gpu_hours']:.2f} GPU-hours lost; {one['state']}: {because(one['reason'])}"]
    ended = {row["action"]["id"] for row in answer["actions"] if row["outcome"]["state"] not in ("PENDING", "RUNNING")}
    for row in answer["actions"]:
        if row["outcome"]["state"] != "RUNNING" or row["action"]["id"] not in ended:
            out += [f"{row['at'][11:19]}{line}" for line in action_lines(row)]
    return out


def case_lines(case: Mapping[str, Any]) -> list[str]:
    """What belongs to an incident besides: its timeline, what is not watched where it plays, its page."""
    out = ["timeline"]
    for row in case["timeline"]:
        if row["kind"] == "action":
            continue  # told above, with arguments
        by = f", by {row['actor']}" if row["actor"] and row["kind"] != "mark" else ""
        target = row["target"] if row["kind"] in ("change", "event") and "parts)" not in row["text"] else None
        on = f" on {part(target)}" if target and part(target) not in row["text"] else ""
        out.append(f"  {row['at'][:19].replace('T', ' ')}  {row['kind']:<7} {row['text']}{on}{by}")
    for spot in case["blind_spots"][:6]:
        what = f"{spot['fault']} is not judged: {' or '.join(spot['any_of'])} {MISSING.get(spot['state'], spot['state'])}" \
            if spot["fault"] else "nothing is heard"
        out.append(f"blind     {what} on {', '.join(spot['nodes'])}" + (f" and {spot['count'] - len(spot['nodes'])} more"
                                                                        if spot["count"] > len(spot["nodes"]) else ""))
    return [*out, f"page      {case['runbook_url']}"]


def story(record: Mapping[str, Any]) -> list[str]:
    """Lines for a record; empty for what people need not read (running actions, coverage)."""
    kind = record["type"]
    if kind == "incident":
        return incident_lines(record)
    if kind == "action":
        return [] if record["outcome"]["state"] == "RUNNING" else action_lines(record)
    if kind == "truth":
        truth = record["truth"]
        return [f"PLANTED {truth['fault']} on {part(truth['culprit'])} (by the lab; Greylag is not told)"]
    if kind == "recovery":
        before, after = record["before_seconds"], record["after_seconds"]
        if before is None or after is None:
            return [f"NOT MEASURED job {record['job']}: its step time {'before' if before is None else 'after'} the fault is not known"]
        word = "PROVEN" if after <= RATIO_MAX * before else "SLOWER"
        return [f"{word} job {record['job']}: a step took {before:.2f} s before the fault and takes {after:.2f} s now"]
    if kind == "event" and record["event"]["kind"] not in ("job_phase", "checkpoint", "action"):
        return [f"event {record['event']['kind']} at {part(record['event']['target'])}"]
    if kind == "summary":
        return [f"{record['samples']} samples, {record['events']} events, {record['findings']} findings, "
                f"{record['incidents']} incidents"]
    return []


def stamped(record: Mapping[str, Any]) -> list[str]:
    """The record's lines, the first with its time of day."""
    lines = story(record)
    at = record.get("at")
    clock = at[11:19] if isinstance(at, str) else "        "
    return [f"{clock}  {line}" if i == 0 else f"          {line}" for i, line in enumerate(lines)]


class Teller:
    """Tells the records of one run in order, and leaves out what a reader knows already.

    The date stands on a line of its own where it changes. An incident's state is told when it or its reason changed.
    Events from more than an hour before the start are no news. started_at: the start (ms); None = the time of the first
    record that is no event, and until then events wait.
    """

    def __init__(self, started_at: int | None = None) -> None:
        self._date = ""
        self._states: dict[str, tuple[str, str]] = {}
        self._started = started_at
        self._waiting: list[Mapping[str, Any]] = []

    def lines(self, record: Mapping[str, Any]) -> list[str]:
        """What a reader sees of the next record; may be nothing."""
        if self._started is None:
            if record["type"] == "event":
                self._waiting.append(record)
                return []
            at = record.get("at") or record.get("started_at")
            self._started = parse_rfc3339(at) if isinstance(at, str) else 0
        early, self._waiting = self._waiting, []
        return [line for one in (*early, record) for line in self._tell(one)]

    def _tell(self, record: Mapping[str, Any]) -> list[str]:
        if record["type"] == "event" and parse_rfc3339(record["at"]) < (self._started or 0) - OLD_EVENT_MS:
            return []
        if record["type"] == "incident":
            one = record["incident"]
            before, now = self._states.get(one["id"]), (one["state"], one["reason"])
            self._states[one["id"]] = now
            if record["event"] == "updated" and before == now:
                return []
        lines = stamped(record)
        at = record.get("at")
        if lines and isinstance(at, str) and at[:10] != self._date:
            self._date = at[:10]
            lines.insert(0, f"{self._date} (UTC, the cluster's clock)")
        return lines
