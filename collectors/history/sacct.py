"""What `sacct` tells of jobs that ran: text of `--parsable2` (or `--parsable`), or `--json`, of Slurm 22.05 and newer.

A job that was requeued has a run for each time it ran; `sacct` shows all of them with `--duplicates` only. Steps (`4.batch`) are
passed over. Times without a zone are UTC unless the caller knows better: `TZ=UTC sacct` prints them so, and
`SLURM_TIME_FORMAT=%s` prints seconds since 1970, which are read as well.

Columns stand in any order. A name may hold the delimiter: the row is then cut where state and times stand in their columns.
Rows of which that cannot be said are counted, and the first of them is kept for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from core.errors import BadInput

NEEDED = ("JobID", "State", "Start", "End", "NodeList")
FREE_TEXT = ("JobName", "Comment", "SystemComment", "AdminComment", "WorkDir", "SubmitLine", "Account", "WCKey")
COMMAND = ("TZ=UTC sacct --parsable2 --allusers --duplicates --allocations --starttime=now-30days "
           "--format=JobID,Cluster,State,ExitCode,Submit,Start,End,NodeList%10000,JobName")
# What Slurm calls a job that holds its nodes, and one that never had any.
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "CONFIGURING", "STAGING"})
WAITING = frozenset({"PENDING", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
MOST_NODES = 10_000_000  # in all lists together: a month of a large cluster has some 100,000
LATEST_SECONDS = 253_402_300_799  # the end of the year 9999
_STATE = re.compile(r"[A-Z][A-Z_]{2,30}\+?(?: by \S+)?")
_JOB = re.compile(r"\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_NO_NODES = frozenset({"", "None assigned", "None", "(null)", "N/A", "Unknown"})


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job. id: as people know it (`12`, `12_3` of an array, `12+1` of a job of several parts). start, end: ms; end
    None = it ran when sacct was asked. state: Slurm's first word (COMPLETED, NODE_FAIL, REQUEUED, ...). code: exit code, signal:
    of the process that ended it; None where there is none or Slurm does not know."""

    id: str
    name: str
    state: str
    nodes: tuple[str, ...]
    start: int
    end: int | None
    code: int | None = None
    signal: int | None = None

    @property
    def outcome(self) -> str:
        """`FAILED, exit code 3`, `FAILED, signal 9`, `NODE_FAIL`."""
        more = f", signal {self.signal}" if self.signal else f", exit code {self.code}" if self.code else ""
        return f"{self.state}{more}"


@dataclass(slots=True)
class SacctRead:
    """runs: by start, each once. waiting: jobs that never had a node. steps: rows of steps. repeats: rows that came again.
    unreadable: rows that no reading fits; first_bad: (line, text) of the first."""

    runs: list[JobRun] = field(default_factory=list)
    waiting: int = 0
    steps: int = 0
    repeats: int = 0
    unreadable: int = 0
    first_bad: tuple[int, str] | None = None

    def bad(self, line: int, text: str) -> None:
        """Counts a row that cannot be read."""
        self.unreadable += 1
        self.first_bad = self.first_bad or (line, text)


Expand = Callable[[str], tuple[str, ...]]


def read_sacct(lines: Iterable[str], where: str, expand: Expand, zone: tzinfo = UTC, by_name: bool = False) -> SacctRead:
    """The runs that an output of sacct tells. where: names it to people. expand: names of a Slurm hostlist, ValueError for what is
    none. zone: of times that name none. by_name: jobs are called by their name in place of their id.

    Raises BadInput for what is no output of sacct.
    """
    rows, expand = iter(lines), _Expander(expand, where)
    first = next((line for line in rows if line.strip()), None)
    if first is None:
        return SacctRead()
    if first.lstrip("\ufeff").lstrip().startswith("{"):
        found = _of_json("".join([first, *rows]), where, expand)
    else:
        found = _of_text(first.lstrip("\ufeff"), rows, where, expand, zone)
    return _tidy(found, by_name)


class _Expander:
    """Expands each hostlist once. Raises BadInput where all of them together name more nodes than any cluster's history."""

    def __init__(self, expand: Expand, where: str) -> None:
        self._expand, self._where = expand, where
        self._known: dict[str, tuple[str, ...]] = {}
        self._nodes = 0

    def __call__(self, text: str) -> tuple[str, ...]:
        if text not in self._known:
            self._known[text] = found = self._expand(text)
            self._nodes += len(found)
            if self._nodes > MOST_NODES:
                raise BadInput(self._where, "NodeList", f"more than {MOST_NODES} names of nodes", "less time at once is needed")
        return self._known[text]


def looks_like(first_line: str) -> bool:
    """Whether a file's first line is the head of `sacct --parsable` or begins its JSON."""
    names = first_line.strip().split("|")
    return len(names) > 2 and "JobID" in names and "State" in names


def _tidy(found: SacctRead, by_name: bool) -> SacctRead:
    """Runs by start, each once: of several rows of one run the one that knows its end counts."""
    best: dict[tuple[str, int], JobRun] = {}
    for run in found.runs:
        name = run.name if by_name and run.name else run.id
        one = run if name == run.id else JobRun(name, run.name, run.state, run.nodes, run.start, run.end, run.code, run.signal)
        known = best.get((name, run.start))
        if known is not None:
            found.repeats += 1
        if known is None or (known.end is None and one.end is not None):
            best[name, run.start] = one
    found.runs = sorted(best.values(), key=lambda run: (run.start, run.id))
    return found


# --- text -------------------------------------------------------------------------------------------------------------
def _of_text(head: str, rows: Iterator[str], where: str, expand: Expand, zone: tzinfo) -> SacctRead:
    names = [name.strip() for name in head.strip().split("|")]
    ended = names[-1:] == [""]  # --parsable ends each row with the delimiter
    names = names[:-1] if ended else names
    missing = [name for name in NEEDED if name not in names]
    if missing:
        given = "a text without a head of sacct" if "JobID" not in names else f"no column {', '.join(missing)}"
        raise BadInput(where, "", given, f"an output of `{COMMAND}` is needed")
    out, place = SacctRead(), names.index("JobID")
    for number, line in enumerate(rows, start=2):
        text = line.rstrip("\r\n")
        if not text.strip() or text.strip() == head.strip():  # several outputs one after the other
            continue
        cells = text.split("|")
        cells = cells[:-1] if ended and cells[-1] == "" else cells
        if len(cells) > place and "." in cells[place]:
            out.steps += 1
            continue
        row = _row(names, cells, zone)
        if row is None or not _take(row, out, expand, zone):
            out.bad(number, text)
    return out


def _row(names: Sequence[str], cells: Sequence[str], zone: tzinfo) -> dict[str, str] | None:
    """The cells by their columns; None where they fit in no way."""
    surplus = len(cells) - len(names)
    if surplus < 0:
        return None
    for i in ([0] if not surplus else [i for i, name in enumerate(names) if name in FREE_TEXT]):
        fit = list(cells) if not surplus else [*cells[:i], "|".join(cells[i : i + surplus + 1]), *cells[i + surplus + 1 :]]
        row = dict(zip(names, fit, strict=True))
        if _JOB.fullmatch(row["JobID"]) and _STATE.fullmatch(row["State"]) and all(_is_time(row[k]) for k in ("Start", "End")):
            return row
    return None


def _is_time(text: str) -> bool:
    return text in ("Unknown", "None", "") or text.isdigit() or _TIME.fullmatch(text) is not None


def _take(row: Mapping[str, str], out: SacctRead, expand: Expand, zone: tzinfo) -> bool:
    """Adds the run of a row; False where a value is none."""
    state = row["State"].split()[0].rstrip("+")
    try:
        start, end = _ms(row["Start"], zone), _ms(row["End"], zone)
        nodes = () if row["NodeList"] in _NO_NODES else expand(row["NodeList"])
    except ValueError:
        return False
    if start is None or not nodes:
        out.waiting += 1
        return True
    if end is not None and end < start:
        return False
    code, _, signal = row.get("ExitCode", "").partition(":")
    run = JobRun(row["JobID"], row.get("JobName", ""), state, nodes, start, None if state in RUNNING else end,
                 _whole(code), _whole(signal))
    return _add(run, end, out)


def _add(run: JobRun, end: int | None, out: SacctRead) -> bool:
    """False for a run that is over at a time that nobody knows: it would run for ever."""
    if run.state in WAITING and end is None:
        out.waiting += 1
        return True
    if end is None and run.state not in RUNNING:
        return False
    out.runs.append(run)
    return True


def _ms(text: str, zone: tzinfo) -> int | None:
    if text in ("Unknown", "None", ""):
        return None
    if text.isdigit():
        seconds = int(text)
        if seconds > LATEST_SECONDS:
            raise ValueError("a time after the year 9999")
        return seconds * 1000 or None
    return round(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()) * 1000


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) else None


# --- JSON -------------------------------------------------------------------------------------------------------------
def _of_json(text: str, where: str, expand: Expand) -> SacctRead:
    try:
        jobs = json.loads(text.lstrip("\ufeff"))["jobs"]
        if not isinstance(jobs, list):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(where, "", "a text that is no whole JSON of sacct", "an output of `sacct --json --allusers --duplicates` is needed") from None
    out = SacctRead()
    for number, job in enumerate(jobs, start=1):
        try:
            good = isinstance(job, dict) and _take_json(job, out, expand)
        except (ValueError, KeyError, TypeError, AttributeError):
            good = False
        if not good:
            out.bad(number, json.dumps(job)[:200])
    return out


def _take_json(job: Mapping[str, Any], out: SacctRead, expand: Expand) -> bool:
    """Slurm 22.05 shows a state as text and numbers bare; newer ones show lists, and numbers with `set` beside them."""
    shown = job["state"]["current"]
    state = str(shown[0] if isinstance(shown, list) else shown)
    out.steps += len(job.get("steps") or ())
    times = job["time"]
    start, end = _number(times["start"]), _number(times["end"])
    names = str(job.get("nodes") or "")
    if not _STATE.fullmatch(state):
        return False
    if not start or names in _NO_NODES:
        out.waiting += 1
        return True
    if max(start, end or 0) > LATEST_SECONDS or (end and end < start):
        return False
    told = job.get("exit_code") or {}
    signal = told.get("signal") or {}
    run = JobRun(_json_id(job), str(job.get("name") or ""), state, expand(names), start * 1000,
                 end * 1000 if end and state not in RUNNING else None,
                 _number(told.get("return_code")) or None, _number(signal.get("signal_id", signal.get("id"))) or None)
    return _add(run, end * 1000 if end else None, out)


def _json_id(job: Mapping[str, Any]) -> str:
    array, het = job.get("array") or {}, job.get("het") or {}
    parent, task = _number(array.get("job_id")), _number(array.get("task_id"))
    if parent and task is not None:
        return f"{parent}_{task}"
    leader, offset = _number(het.get("job_id")), _number(het.get("job_offset"))
    if leader and offset is not None:
        return f"{leader}+{offset}"
    return str(int(job["job_id"]))


def _number(value: Any) -> int | None:
    """A number, bare or as {set, infinite, number}; None where it is not set."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
