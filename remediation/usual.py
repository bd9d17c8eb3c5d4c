"""How long each step usually takes: one table (`remediation/worth.yaml`, with its sources) for whoever weighs an attempt and for
whoever simulates one."""

from __future__ import annotations

from collections.abc import Mapping

from remediation.cures import numbers
from remediation.diagnose import tests_of


def usual_seconds(kind: str, args: Mapping[str, object], fault: str) -> float:
    """Seconds that a step usually holds its target up; a diagnosis as long as the fault's level of tests takes, a job's start
    by its way (`mode`). notify and escalate take none."""
    rows = numbers()["seconds"]
    if kind == "diagnose":
        return float(rows.get(f"diagnose_{args.get('level', tests_of(fault).level)}", rows["diagnose_3"]))
    share = float(numbers()["modes"].get(str(args.get("mode")), 1.0)) if kind == "resume_job" else 1.0
    return float(rows.get(kind, 0.0)) * share


def usual_table() -> dict[str, float]:
    """By kind, and by level of a diagnosis, in seconds; a job's start as a full one."""
    return {name: float(seconds) for name, seconds in numbers()["seconds"].items()}
