"""Compares the story that Greylag told with the truth that the lab planted, and measures the recovery."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator
from typing import Any

from app.client import Client
from app.story import RATIO_MAX, because, part
from core.clock import parse_rfc3339, rfc3339
from core.targets import CLOSED_STATES

BEFORE_SECONDS = 300
AFTER_SECONDS = 120
STEP_SECONDS = "greylag_train_step_seconds"


def same_part(a: dict[str, Any] | None, b: dict[str, Any] | None) -> bool:
    """True when two culprits (JSON Targets) are the same part: by id where both have one, else by place."""
    if a is None or b is None:
        return a is b
    if a["kind"] != b["kind"]:
        return False
    if a.get("id") and b.get("id"):
        return bool(a["id"] == b["id"])
    return (a.get("node"), a.get("device")) == (b.get("node"), b.get("device"))


class Checker:
    """Collects truths, incidents, actions and recoveries; says at the end what does not fit."""

    def __init__(self) -> None:
        self.truths: list[dict[str, Any]] = []
        self.incidents: dict[str, dict[str, Any]] = {}
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.recovered: dict[str, dict[str, Any]] = {}

    def take(self, record: dict[str, Any]) -> None:
        """One record of the story."""
        kind = record["type"]
        if kind == "truth":
            self.truths.append(record)
        elif kind == "incident":
            self.incidents[record["incident"]["id"]] = record["incident"]
        elif kind == "action":
            self.outcomes[record["action"]["id"]] = record
        elif kind == "recovery" and "incident" in record:
            self.recovered[record["incident"]] = record

    @property
    def real(self) -> list[dict[str, Any]]:
        """Incidents that count: those that a wider one did not absorb."""
        return [i for i in self.incidents.values() if i["state"] != "merged"]

    @property
    def settled(self) -> bool:
        """All incidents are closed and each resolved one has its recovery measured."""
        closed = all(i["state"] in CLOSED_STATES for i in self.real)
        return closed and all(i["id"] in self.recovered for i in self.real if i["state"] == "resolved" and i["jobs"])

    def recoveries(self, client: Client, known: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """A recovery record for each incident that has been resolved for two minutes of cluster time; not for `known` ones."""
        waiting = [i for i in self.real if i["state"] == "resolved" and i["jobs"]
                   and i["id"] not in self.recovered and i["id"] not in known]
        if not waiting:
            return
        tick = client.get("/api/greylag/v1/records", cursor=2**53, limit=1)["tick"]
        for one in waiting:
            onset, resolved = parse_rfc3339(one["onset_at"]), parse_rfc3339(one["resolved_at"] or one["updated_at"])
            now = parse_rfc3339(tick)
            if now < resolved + AFTER_SECONDS * 1000:
                continue
            for job in one["jobs"]:
                before = step_seconds(client, job, onset - BEFORE_SECONDS * 1000, onset - 15_000)
                after = step_seconds(client, job, resolved - 60_000, resolved + AFTER_SECONDS * 1000)
                yield {"type": "recovery", "at": rfc3339(now), "job": job, "before_seconds": before,
                       "after_seconds": after, "incident": one["id"]}

    def problems(self, planted: int) -> list[str]:
        """Everything that keeps the run from being a success, in words; empty = healed."""
        out = []
        if len(self.truths) != planted:
            out.append(f"{len(self.truths)} of {planted} faults were planted in time")
        left = list(self.real)
        for record in self.truths:
            truth = record["truth"]
            match = next((i for i in left if i["fault"] == truth["fault"] and same_part(i["culprit"], truth["culprit"])), None)
            if match is None:
                out.append(f"no incident names {truth['fault']} on {part(truth['culprit'])}")
                continue
            left.remove(match)
            if match["state"] != "resolved":
                out.append(f"{match['id']} ({match['fault']} on {part(match['culprit'])}) is {match['state']}: {because(match['reason'])}")
            recovery = self.recovered.get(match["id"])
            if recovery is None or recovery["before_seconds"] is None or recovery["after_seconds"] is None:
                out.append(f"{match['id']} has no measured recovery")
            elif recovery["after_seconds"] > RATIO_MAX * recovery["before_seconds"]:
                out.append(f"{match['id']}: a step took {recovery['before_seconds']:.2f} s before and "
                           f"{recovery['after_seconds']:.2f} s after")
        out += [f"{i['id']} ({i['fault']} on {part(i['culprit'])}) opened without a planted fault" for i in left]
        out += [f"action {key} has not ended" if r["outcome"]["state"] in ("PENDING", "RUNNING") else
                f"action {key} ended as {r['outcome']['state']}: {because(r['outcome']['reason'])}"
                for key, r in self.outcomes.items() if r["outcome"]["state"] != "DONE"]
        return out

    def quiet_problems(self) -> list[str]:
        """What happened although nothing was planted; empty = as it should be."""
        out = [f"{i['id']} ({i['fault']} on {part(i['culprit'])}) opened without a planted fault" for i in self.real]
        return out + [f"action {key} was taken without a planted fault" for key in self.outcomes]

    def summary(self) -> str:
        """One line for people."""
        resolved = sum(i["state"] == "resolved" for i in self.real)
        lost = sum(i["lost_gpu_hours"] for i in self.real)
        return (f"{counted(len(self.truths), 'fault')} planted, {counted(len(self.real), 'incident')} opened, "
                f"{resolved} resolved, {lost:.1f} GPU-hours lost")


def counted(n: int, what: str) -> str:
    """`1 fault`, `2 faults`."""
    return f"{n} {what}" + ("" if n == 1 else "s")


def step_seconds(client: Client, job: str, start: int, end: int) -> float | None:
    """Median step time of a job between two times (ms), from the stored trainer series; None where none is known."""
    answer = client.get("/api/v1/query_range", query=f'{STEP_SECONDS}{{job="{job}"}}', start=start / 1000,
                        end=end / 1000, step="15")
    values = [float(v) for row in answer["data"]["result"] for _, v in row["values"] if v != "NaN"]
    return round(statistics.median(values), 4) if values else None
