"""The story as people read it: one line or a few for each record of `replay --json`. Text comes from the record alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNITS = {"ratio": "", "1": "", "bool": "", "count": "", "bits": "", "Hz": "Hz"}
_SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
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


def evidence(rows: list[Mapping[str, Any]], most: int = 4) -> list[str]:
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
            lines.append(f"  · slows {', '.join(one['jobs'])}; the other {len(one['victims'])} parts seen are victims"
                         if one["victims"] else f"  · concerns {', '.join(one['jobs'])}")
        return lines
    if event == "resolved":
        return [f"RESOLVED {name}: {one['reason']}, {one['lost_gpu_hours']:.2f} GPU-hours lost"]
    return [f"{one['state']} {name}: {one['reason']}"]


def action_lines(record: Mapping[str, Any]) -> list[str]:
    """An action's decision or outcome."""
    action, outcome = record["action"], record["outcome"]
    args = " ".join(f"{k}={v}" for k, v in action["args"].items())
    text = f"{action['kind']} {part(action['target'])}" + (f" ({args})" if args else "")
    if outcome["state"] == "PENDING":
        return [f"  → {text}: {action['reason']}"]
    took = f" after {outcome['took_seconds']:.0f} s" if outcome["took_seconds"] else ""
    return [f"  {'✓' if outcome['state'] in ('DONE', 'SIMULATED') else '·' if outcome['state'] == 'RUNNING' else '✗'} "
            f"{text}: {outcome['state']}{took}, {outcome['reason']}"]


def story(record: Mapping[str, Any]) -> list[str]:
    """Lines for a record; empty for what people need not read (running actions, coverage)."""
    kind = record["type"]
    if kind == "incident":
        return incident_lines(record)
    if kind == "action":
        return [] if record["outcome"]["state"] == "RUNNING" else action_lines(record)
    if kind == "truth":
        truth = record["truth"]
        return [f"PLANTED (by the lab, unknown to Greylag) {truth['fault']} on {part(truth['culprit'])}"]
    if kind == "recovery":
        return [f"RECOVERED job {record['job']}: {record['before_seconds']:.2f} s a step before, "
                f"{record['after_seconds']:.2f} s after"]
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
