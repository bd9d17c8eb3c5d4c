"""How far down a ladder a job is, where the ladder is the job's and not one incident's (`period_seconds` of a rule).

The same way of counting as the HyperPod training operator's evaluation period: a period begins with the first attempt that
no period holds, and what was counted in it is forgotten when it is over. So no rung is stood on twice in a period.
"""

from __future__ import annotations

from collections.abc import Iterable

from remediation.ledger import Entry
from remediation.policy import Rule


def place(entries: Iterable[Entry], rule: Rule, jobs: Iterable[str], at: int) -> int:
    """How many attempts of the rule the current period of a job holds at `at` (ms); the most of all the jobs.

    entries: oldest first. An attempt of which no rule is known (only the store's rows tell of it) counts for each rule.
    """
    known = tuple(entries)
    return max((_place(known, rule, job, at) for job in jobs), default=0)


def _place(entries: tuple[Entry, ...], rule: Rule, job: str, at: int) -> int:
    period, began, count = round(rule.period_seconds * 1000), None, 0
    for entry in entries:
        if job not in entry.jobs or entry.rule not in ("", rule.name):
            continue
        if began is None or entry.started_at - began >= period:
            began, count = entry.started_at, 0
        count += 1
    return count if began is not None and at - began < period else 0
