"""The history of a scheduler's jobs, in the store and beside it: events of their starts and ends, and an inventory of all runs.

What `replay`, `train` and `drift` know of jobs is the inventory beside the store, so the runs go there: a job that was requeued
stands in it once for each run, with the nodes of that run. The events (`job_phase` from `slurm`) are what people see in an
incident's timeline: when the job began, on which nodes, and as what it ended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from collectors.history.sacct import JobRun, SacctRead, looks_like, read_sacct
from collectors.recording.inputs import INVENTORIES, InputFile, LogLines
from core.clock import rfc3339
from core.errors import BadInput
from core.inventory import read_inventory
from core.types import Event, Target
from core.yamlfile import read_yaml
from remediation.backends.slurm_hosts import expand, join

SOURCE = "slurm"
LONGEST_NODES = 200  # characters of a hostlist that an event shows
ENDINGS = (".txt", ".psv", ".csv", ".json", ".out", ".log", "")


def is_sacct(path: Path) -> bool:
    """Whether a file holds what sacct printed: by its name, `sacct*`, or by its first line."""
    name = path.name.removesuffix(".gz").lower()
    if name.startswith("sacct") and name[name.rfind("."):] in ENDINGS if "." in name else name.startswith("sacct"):
        return True
    if not name.endswith((".txt", ".psv")):
        return False
    return looks_like(next(iter(LogLines(InputFile(path, "sacct", ""))), ""))


def zone_of(name: str | None) -> tzinfo:
    """The zone of times that name none. Raises BadInput."""
    if name is None or name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput("--zone", "", name, "a name of the time zone database is needed, such as Europe/Berlin") from None


def read_files(paths: Sequence[str], zone: tzinfo, by_name: bool) -> SacctRead:
    """What several outputs of sacct tell together; a run that several show counts once. Raises BadInput."""
    whole = SacctRead()
    known: dict[tuple[str, int], JobRun] = {}
    for path in paths:
        one = read_sacct(LogLines(InputFile(Path(path), "sacct", "")), path, expand, zone, by_name)
        for run in one.runs:
            before = known.get((run.id, run.start))
            whole.repeats += before is not None
            if before is None or (before.end is None and run.end is not None):
                known[run.id, run.start] = run
        whole.waiting += one.waiting
        whole.steps += one.steps
        whole.repeats += one.repeats
        whole.unreadable += one.unreadable
        whole.first_bad = whole.first_bad or one.first_bad
    whole.runs = sorted(known.values(), key=lambda run: (run.start, run.id))
    return whole


def within(runs: Iterable[JobRun], start: int, end: int) -> list[JobRun]:
    """The runs that overlap start..end (ms, both included)."""
    return [run for run in runs if run.start <= end and (run.end is None or run.end >= start)]


def events_of(runs: Sequence[JobRun], start: int, end: int) -> list[Event]:
    """Starts, restarts and ends within start..end (ms), by time."""
    out: list[Event] = []
    begun: set[str] = set()
    for run in sorted(runs, key=lambda one: (one.start, one.id)):
        target = Target("job", job=run.id)
        phase = "restart" if run.id in begun else "start"
        begun.add(run.id)
        nodes = join(run.nodes)
        nodes = nodes if len(nodes) <= LONGEST_NODES else f"{nodes[:LONGEST_NODES - 1]}…"
        out.append(Event(run.start, target, "job_phase", {"phase": phase, "source": SOURCE, "nodes": nodes, "count": len(run.nodes)}))
        if run.end is not None:
            told: dict[str, object] = {"phase": "end", "source": SOURCE, "state": run.state}
            told |= {key: value for key, value in (("code", run.code), ("signal", run.signal)) if value is not None}
            out.append(Event(run.end, target, "job_phase", told))
    return sorted((e for e in out if start <= e.at <= end), key=lambda e: e.at)


# --- the inventory beside the store -----------------------------------------------------------------------------------
def keep_inventory(folder: Path, given: Path | None, runs: Sequence[JobRun]) -> None:
    """Puts the inventory beside the store: the one that was given, else the one that is there, with the runs among its jobs.

    What it says of nodes and storage stays, and so do jobs that it names by themselves; a run that an import brought before is
    there once. Raises BadInput.
    """
    there = next((folder / name for name in INVENTORIES if (folder / name).is_file()), None)
    if given is not None and there is not None and given.resolve() == there.resolve():
        given = None
    before = read_jobs(there) if there is not None and there.suffix == ".json" else []
    if not runs and not before:
        if given is not None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(given, folder / f"inventory{given.suffix or '.yaml'}")
            if there is not None and there.name != f"inventory{given.suffix or '.yaml'}":
                there.unlink()
        return
    base = given or there
    data = _whole(base) if base is not None else {}
    rows = {(str(row["id"]), row.get("start")): row for row in before}
    for run in runs:
        key = run.id, rfc3339(run.start)
        if run.end is not None or "end" not in rows.get(key, {}):  # an older output does not make a job run again
            rows[key] = _row(run)
    own = [row for row in data.get("jobs") or () if (str(row["id"]), row.get("start")) not in rows]
    data["jobs"] = own + [rows[key] for key in sorted(rows, key=lambda key: (key[1] or "", key[0]))]
    target = folder / "inventory.json"  # 10,000 runs are read in 1.6 s, as YAML in 35 s
    folder.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(".tmp")
    with beside.open("w", encoding="utf-8") as out:
        out.write(_lines(data))
    beside.replace(target)
    if there is not None and there != target:
        there.unlink()


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """The jobs of an inventory, as they stand in it."""
    return [dict(row) for row in _whole(path).get("jobs") or ()]


def _whole(path: Path) -> dict[str, Any]:
    """An inventory's data, refused as a whole before anything is written."""
    read_inventory(path)
    if path.suffix == ".json":
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except ValueError:
            pass
    return dict(read_yaml(path) or {})


def _row(run: JobRun) -> dict[str, Any]:
    row: dict[str, Any] = {"id": run.id, "nodes": list(run.nodes), "start": rfc3339(run.start)}
    return row if run.end is None else {**row, "end": rfc3339(run.end)}


def _lines(data: Mapping[str, Any]) -> str:
    """JSON with one entry a line: people look at it, and compare two of them."""
    parts = []
    for key, value in data.items():
        rows = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in value) if isinstance(value, list) else ""
        parts.append(f" {json.dumps(key)}: " + (f"[\n{rows}\n ]" if rows else json.dumps(value, ensure_ascii=False)))
    return "{\n" + ",\n".join(parts) + "\n}\n"
