"""What cured a fault, beside how often the fault goes away when nobody acts."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from app.evaluate.rates import rate
from remediation.ledger import Entry
from remediation.memory import Memory

# The time in which a fault may go away by itself is that of the attempts that stand beside it; where there are none, an hour.
ALONE_SECONDS = 3_600.0


def document(memory: Memory, at: int, fault: str | None = None) -> dict[str, Any]:
    """{items: [{fault, untouched, attempts: [...]}]}, by fault; of one fault where it is named. at: ms, now.

    untouched: {value, n, low, high, within_seconds, lasting}: the share of incidents on which nobody acted and whose detectors
    were quiet within that time (95 % Wilson interval). attempts: by what they did, {kinds, value, n, low, high, failed,
    inconclusive, seconds}: cured of cured and failed; inconclusive ones count in neither.
    """
    entries = [e for e in memory.ledger.entries() if e.result and e.fault and e.kinds]
    alone = memory.untouched
    names = {e.fault for e in entries} | {e.fault for e in alone.endings()} | {w.fault for w in alone.watched()}
    return {"items": [_of(one, [e for e in entries if e.fault == one], memory, at)
                      for one in sorted(names) if fault in (None, one)]}


def _of(fault: str, entries: list[Entry], memory: Memory, at: int) -> dict[str, Any]:
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.kinds, []).append(entry)
    seconds = _seconds(entries) or ALONE_SECONDS
    recovered, n = memory.untouched.within(fault, seconds, at)
    going_on = sum(w.fault == fault for w in memory.untouched.watched())
    rows = [_row(kinds, groups[kinds]) for kinds in sorted(groups, key=lambda k: (-len(groups[k]), k))]
    return {"fault": fault, "untouched": {**rate(recovered, n), "within_seconds": round(seconds), "lasting": going_on},
            "attempts": rows}


def _row(kinds: tuple[str, ...], entries: list[Entry]) -> dict[str, Any]:
    cured, failed = (sum(e.result == word for e in entries) for word in ("cured", "failed"))
    return {"kinds": list(kinds), **rate(cured, cured + failed), "failed": failed,
            "inconclusive": len(entries) - cured - failed, "seconds": _seconds(entries)}


def _seconds(entries: Iterable[Entry]) -> float | None:
    spans = [(e.last_at - e.started_at) / 1000 for e in entries if e.result in ("cured", "failed")]
    return round(median(spans)) if spans else None


def lines(answer: dict[str, Any]) -> list[str]:
    """The document for people."""
    out: list[str] = []
    for one in answer["items"]:
        alone = one["untouched"]
        lasting = f", {alone['lasting']} still there" if alone["lasting"] else ""
        out.append(f"{one['fault']}: by itself within {_time(alone['within_seconds'])} {_share(alone)}{lasting}")
        for row in one["attempts"]:
            more = f", {row['inconclusive']} inconclusive" if row["inconclusive"] else ""
            took = f", took {_time(row['seconds'])}" if row["seconds"] is not None else ""
            out.append(f"  {' > '.join(row['kinds'])}: cured {_share(row)}{more}{took}")
    return out or ["nothing was acted on yet, and nothing that a rule would have acted on has ended"]


def _share(row: dict[str, Any]) -> str:
    if not row["n"]:
        return "unknown (n = 0)"
    return f"{100 * row['value']:.0f} % (n = {row['n']}, 95 %: {100 * row['low']:.0f} to {100 * row['high']:.0f} %)"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
