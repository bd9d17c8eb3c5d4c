"""What Slurm says of nodes, jobs and reservations, as records.

Three forms of the same: the JSON of 22.05 (plain numbers, `state` a word beside `state_flags`), that of 23.02 and later
(`{set, infinite, number}`, states as lists), and the one-line text of `scontrol show … -o` where there is no JSON.
A document that cannot be read raises ValueError: a list that cannot be read is no empty list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from remediation.backends.slurm_hosts import expand

T = TypeVar("T")
_MARKS = "*~#!%$@^-+"  # what sinfo puts behind a state
_RUNS = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"})
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """base: the state's word (IDLE, ALLOCATED, MIXED, DOWN, …); flags: DRAIN, NOT_RESPONDING, REBOOT_ISSUED, …; all upper case.

    reason, reason_user: why it is out and who said so, empty where nobody did. Times are ms, 0 = unknown.
    """

    name: str
    base: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    reason_user: str = ""
    reason_at: int = 0
    boot_at: int = 0
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gres: str = ""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of an array. clear: False where the text form left in doubt what belongs to which field.

    het_id, array_id: 0 = it is none. array_task: None = it is no task, or it stands for all tasks that wait.
    exit_code: 0 = it ended well, None = unknown. held: it waits and will not start until somebody lets it. Times are ms.
    batch_host: the node of its batch script, empty = unknown.
    """

    id: int
    name: str = ""
    user: str = ""
    partition: str = ""
    state: str = ""
    states: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    requeue: bool = False
    batch: bool = False
    het_id: int = 0
    array_id: int = 0
    array_task: int | None = None
    comment: str = ""
    admin_comment: str = ""
    restarts: int = 0
    held: bool = False
    reason: str = ""
    excluded: tuple[str, ...] = ()
    reservation: str = ""
    submit_at: int = 0
    start_at: int = 0
    end_at: int = 0
    exit_code: int | None = None
    clear: bool = True
    batch_host: str = ""

    @property
    def ref(self) -> str:
        """How people name it: `123`, or `123_4` for a task of an array."""
        return f"{self.array_id}_{self.array_task}" if self.array_id and self.array_task is not None else str(self.id)

    @property
    def on_nodes(self) -> bool:
        """It occupies its nodes now."""
        return bool(self.states & _RUNS)

    @property
    def waits(self) -> bool:
        """It waits for nodes, held or not."""
        return not self.on_nodes and bool(self.states & _WAITS)

    @property
    def over(self) -> bool:
        """It has ended and will not run again."""
        return not self.on_nodes and not self.waits


@dataclass(frozen=True, slots=True)
class Reservation:
    """start_at, end_at: ms; flags in upper case."""

    name: str
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    start_at: int = 0
    end_at: int = 0
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    """All of it, read at one time."""

    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)
    jobs: tuple[SlurmJob, ...] = ()
    reservations: Mapping[str, Reservation] = field(default_factory=dict)

    def on(self, node: str) -> tuple[SlurmJob, ...]:
        """The jobs that occupy the node now."""
        return tuple(j for j in self.jobs if j.on_nodes and node in j.nodes)

    def reserved(self) -> frozenset[str]:
        """Nodes that stand in any reservation."""
        return frozenset(n for r in self.reservations.values() for n in r.nodes)


# --- JSON -------------------------------------------------------------------------------------------------------------
def nodes_of(text: str) -> dict[str, SlurmNode]:
    """`sinfo --json` of 22.05, `scontrol show nodes --json` of later versions."""
    rows = _rows(text, "nodes", _node)
    return {node.name: node for node in rows}


def jobs_of(text: str) -> tuple[SlurmJob, ...]:
    """`squeue --json`."""
    return tuple(_rows(text, "jobs", _job))


def reservations_of(text: str) -> dict[str, Reservation]:
    """`scontrol show reservations --json`."""
    return {one.name: one for one in _rows(text, "reservations", _reservation)}


def _rows(text: str, key: str, read: Callable[[Mapping[str, Any]], T]) -> list[T]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"Slurm's list of {key} is no JSON") from None
    rows = document.get(key) if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise ValueError(f"Slurm's JSON has no list of {key}")
    out = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f"Slurm's list of {key} has a row that is no object")
        try:
            out.append(read(row))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"a row of Slurm's list of {key} cannot be read ({type(error).__name__})") from None
    return out


def _number(value: Any) -> int | None:
    """A plain number, or `{set, infinite, number}`; None where it is not set."""
    if isinstance(value, Mapping):
        if value.get("infinite") or value.get("set") is False:
            return None
        value = value.get("number")
    if value is None or isinstance(value, bool):
        return None
    return int(value)


def _ms(value: Any) -> int:
    seconds = _number(value)
    return seconds * 1000 if seconds is not None and 0 < seconds < 1 << 33 else 0


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(value)
    return "" if value in ("(null)", "N/A") else value


def _names(value: Any) -> tuple[str, ...]:
    """A list of words, or words separated by commas."""
    if isinstance(value, str):
        value = value.split(",") if value not in ("", "(null)") else []
    return tuple(str(one) for one in value or ())


def _states(value: Any, flags: Any = ()) -> tuple[str, frozenset[str]]:
    """(the first word, all others) of a state in any form, in upper case and without marks."""
    words = value.replace("+", " ").split() if isinstance(value, str) else [str(one) for one in value]
    words = [word for one in words if (word := one.upper().rstrip(_MARKS))]
    if not words:
        raise ValueError("a state that is empty")
    return words[0], frozenset((*words[1:], *(str(one).upper() for one in flags or ())))


def _node(row: Mapping[str, Any]) -> SlurmNode:
    base, flags = _states(row["state"], row.get("state_flags"))
    return SlurmNode(_needed(row["name"]), base, flags, _text(row.get("reason")), _text(row.get("reason_set_by_user")),
                     _ms(row.get("reason_changed_at")), _ms(row.get("boot_time")), _names(row.get("partitions")),
                     _names(row.get("active_features")), _text(row.get("gres")))


def _needed(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a name that is none")
    return value


def _job(row: Mapping[str, Any]) -> SlurmJob:
    base, more = _states(row["job_state"])
    number = _number(row["job_id"])
    if number is None:
        raise ValueError("a job without a number")
    waits, reason = base == "PENDING", _text(row.get("state_reason"))
    priority = _number(row.get("priority"))
    held = waits or base in _WAITS or "REQUEUED" in more
    held = held and (row.get("hold") is True or priority == 0 or reason.startswith(("JobHeld", "job_requeued_in_held")))
    if base == "COMPLETING" and priority == 0:
        held = True  # 22.05 says so of a job that was requeued and held while its processes end
    array, task = _number(row.get("array_job_id")) or 0, _number(row.get("array_task_id"))
    return SlurmJob(
        number, _text(row.get("name")), _text(row.get("user_name")), _text(row.get("partition")), base,
        frozenset((base, *more)), expand(_text(row.get("nodes"))), _number(row.get("node_count")) or 0,
        row.get("requeue") is True, bool(row.get("batch_flag")), _number(row.get("het_job_id")) or 0, array,
        task if array else None, _text(row.get("comment")), _text(row.get("admin_comment")),
        _number(row.get("restart_cnt")) or 0, held, reason, expand(_text(row.get("excluded_nodes"))),
        _text(row.get("resv_name")), _ms(row.get("submit_time")), _ms(row.get("start_time")), _ms(row.get("end_time")),
        _exit_code(row.get("exit_code")), batch_host=_text(row.get("batch_host")))


def _exit_code(value: Any) -> int | None:
    """A status as wait() gives it (22.05), or an object with `return_code` and `signal`: what a shell would say."""
    if isinstance(value, Mapping):
        code, signal = _number(value.get("return_code")), value.get("signal")
        number = _number(signal.get("id", signal.get("signal_id"))) if isinstance(signal, Mapping) else None
        return 128 + number if number else code
    status = _number(value)
    if status is None:
        return None
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8


def _reservation(row: Mapping[str, Any]) -> Reservation:
    flags = row.get("flags") or ()
    flags = flags.split(",") if isinstance(flags, str) else flags
    return Reservation(_needed(row["name"]), expand(_text(row.get("node_list"))), frozenset(str(f).upper() for f in flags),
                       _ms(row.get("start_time")), _ms(row.get("end_time")), _names(row.get("users")))


# --- text -------------------------------------------------------------------------------------------------------------
_WORD = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_/:*]*)=")


def _fields(line: str) -> tuple[dict[str, str], bool]:
    """(fields, clear) of a line of `scontrol show … -o`. A value may hold blanks, and even what looks like another field:
    where a name comes twice the first one counts, and the row is not clear."""
    found = list(_WORD.finditer(line))
    out: dict[str, str] = {}
    clear = True
    for one, after in zip(found, [*found[1:], None], strict=True):
        value = line[one.end(): after.start() if after else len(line)].strip()
        if one.group(1) in out:
            clear = False
        else:
            out[one.group(1)] = "" if value in ("(null)", "N/A", "(none)") else value
    return out, clear


def _lines(text: str, first: str) -> Iterator[tuple[dict[str, str], bool]]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("No "):  # "No reservations in the system"
            continue
        row, clear = _fields(line)
        if first not in row:
            raise ValueError(f"a line of Slurm's text has no {first}")
        yield row, clear


def _moment(text: str | None) -> int:
    """ms of Slurm's local time; 0 where it says Unknown."""
    try:
        return round(datetime.fromisoformat(text or "").timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def nodes_of_text(text: str) -> dict[str, SlurmNode]:
    """`scontrol show nodes -o`. A reason ends in `[user@time]`."""
    out = {}
    for row, _ in _lines(text, "NodeName"):
        base, flags = _states(row.get("State", ""))
        reason, mark, said = row.get("Reason", "").rpartition(" [")
        user, _, at = said.rstrip("]").partition("@")
        reason, user = (reason, user) if mark else (row.get("Reason", ""), "")
        out[row["NodeName"]] = SlurmNode(row["NodeName"], base, flags, reason, user, _moment(at), _moment(row.get("BootTime")),
                                         _names(row.get("Partitions", "")), _names(row.get("ActiveFeatures", "")),
                                         row.get("Gres", ""))
    return out


def jobs_of_text(text: str) -> tuple[SlurmJob, ...]:
    """`scontrol show jobs -o`."""
    out = []
    for row, clear in _lines(text, "JobId"):
        base, more = _states(row.get("JobState", ""))
        task = row.get("ArrayTaskId", "")
        code, _, signal = row.get("ExitCode", "").partition(":")
        priority, reason = row.get("Priority", ""), row.get("Reason", "")
        count = re.match(r"\d+", row.get("NumNodes", ""))
        out.append(SlurmJob(
            int(row["JobId"]), row.get("JobName", ""), row.get("UserId", "").partition("(")[0], row.get("Partition", ""), base,
            frozenset((base, *more)), expand(row.get("NodeList", "")), int(count.group()) if count else 0,
            row.get("Requeue") == "1", row.get("BatchFlag", "0") != "0", int(row.get("HetJobId") or 0),
            int(row.get("ArrayJobId") or 0), int(task) if task.isdigit() else None, row.get("Comment", ""),
            row.get("AdminComment", ""), int(row.get("Restarts") or 0),
            (priority == "0" and (base in _WAITS or base == "COMPLETING")) or reason.startswith("JobHeld"), reason,
            expand(row.get("ExcNodeList", "")), row.get("Reservation", ""), _moment(row.get("SubmitTime")),
            _moment(row.get("StartTime")), _moment(row.get("EndTime")),
            (128 + int(signal) if signal not in ("", "0") else int(code)) if code.isdigit() and signal.isdigit() else None, clear))
    return tuple(out)


def reservations_of_text(text: str) -> dict[str, Reservation]:
    """`scontrol show reservations -o`."""
    return {row["ReservationName"]: Reservation(
        row["ReservationName"], expand(row.get("Nodes", "")), frozenset(_names(row.get("Flags", ""))),
        _moment(row.get("StartTime")), _moment(row.get("EndTime")), _names(row.get("Users", "")))
        for row, _ in _lines(text, "ReservationName")}


def switches_of_text(text: str) -> tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...]:
    """`scontrol show topology`: (switch, level, nodes, switches below it)."""
    rows: Sequence[dict[str, str]] = [row for row, _ in _lines(text, "SwitchName")]
    return tuple((row["SwitchName"], int(row.get("Level") or 0), expand(row.get("Nodes", "")), expand(row.get("Switches", "")))
                 for row in rows)
