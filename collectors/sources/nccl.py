"""NCCL and PyTorch watchdogs, the heartbeat monitor, flight-recorder entries and NCCL's completion errors.

Each line is an event; the one that follows a timeout and tells what was enqueued and completed repeats what the first
said. The rank is the one in the watchdog's own brackets, else that of the line's prefix. Older lines name no process
group: `group` is then absent, and a verdict is worth less (DESIGN §6).
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import NOTHING, JobLine, job_line
from core.protocols import LogReading, SourcePlugin, TargetInfo

_WHO = re.compile(
    r"\[(?:PG (?:ID )?(?P<pg>\d+)(?: PG GUID (?P<guid>[^\s(\]]+))? ?(?:\((?P<name>[^)\]]*)\))? ?)?Rank (?P<rank>\d+)\]")
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\((?P<work>[^)]*(?:\)=[^)]*)*)\)(?: ran for (?P<ran>\d+) milliseconds)?")
_WORK = re.compile(r"\b(SeqNum|OpType|Timeout\(ms\))=([\w-]+)")
_PROGRESS = re.compile(
    r"last enqueued (?:NCCL )?work:? (-?\d+), last completed (?:NCCL )?work:? (-?\d+)", re.IGNORECASE)
_AT_WORK = re.compile(r"(?:at|Timeout at) (?:NCCL )?work(?: sequence id)?:? (\d+)", re.IGNORECASE)
_STUCK = re.compile(r"(?:watchdog|heartbeat).{0,80}?(?:got )?stuck for (\d+) seconds", re.IGNORECASE)
_HEARTBEAT = re.compile(r"Heartbeat monitor timed out", re.IGNORECASE)
_RECORDED = re.compile(r"['\"]?collective_seq_id['\"]?\s*[:=]\s*(\d+)")
_STATE = re.compile(r"['\"]?state['\"]?\s*[:=]\s*['\"]?(scheduled|started|completed)")
_RANK = re.compile(r"['\"]?\b(?:global_)?rank['\"]?\s*[:=]?\s*(\d+)", re.IGNORECASE)
_GROUP = re.compile(r"['\"]?(?:process_group|pg_name|pg_id)['\"]?\s*[:=]\s*(?:[\[(]\s*['\"]?[^,'\"]*['\"]?\s*,\s*)?['\"]?([\w.-]+)")
_COMPLETION = re.compile(r"NET/IB ?: (Got completion .{0,200}?with (?:error|status)[ =]\d+.{0,200})")
_HINTS = re.compile(r"Got completion|[Ww]atchdog|WorkNCCL|enqueued|[Hh]eartbeat|collective_seq_id")


def _who(line: JobLine) -> tuple[int | None, str | None]:
    match = _WHO.search(line.text)
    if match is None:
        return line.rank, None
    group = match["name"] or match["pg"]
    return int(match["rank"]), group


def _watchdog(line: JobLine, **fields: Any) -> LogReading:
    rank, group = _who(line)
    target = None if rank is None else line.rank_target(rank)
    if rank is not None and line.rank is None and target is not None and line.node:
        target = type(target)("rank", line.node, job=line.job, rank=rank)
    known = {} if rank is None else dict(line.state.get(f"watchdog/{rank}/{group}", {}))
    known |= {name: value for name, value in fields.items() if value is not None}
    if rank is not None:
        line.state[f"watchdog/{rank}/{group}"] = known
    events = [line.event("nccl_watchdog", target, rank=rank, group=group, **known)]
    return line.reading(events, elapsed=_waited(line, fields.get("ran_seconds")))


def _waited(line: JobLine, ran_seconds: float | None) -> float:
    """Seconds since the last step that a timeout tells, for logs without times; told once for all ranks of one hang."""
    step = line.state.get("clock_step")
    if ran_seconds is None or line.state.get("hang_told", ()) == (step,):
        return 0.0
    line.state["hang_told"] = (step,)
    return ran_seconds


def _timeout(line: JobLine, match: re.Match[str]) -> LogReading:
    rank, group = _who(line)
    line.state.pop(f"watchdog/{rank}/{group}", None)  # another collective: nothing of the last one holds
    work = dict(_WORK.findall(match["work"]))
    limit, seq = work.get("Timeout(ms)", ""), work.get("SeqNum", "")
    progress = _PROGRESS.search(line.text)
    return _watchdog(
        line, op=work.get("OpType"), seq=int(seq) if seq.isdigit() else None,
        timeout_seconds=int(limit) / 1000 if limit.isdigit() else None,
        ran_seconds=int(match["ran"]) / 1000 if match["ran"] else None,
        last_enqueued=int(progress[1]) if progress else None, last_completed=int(progress[2]) if progress else None,
    )


def _recorded(line: JobLine, match: re.Match[str]) -> LogReading:
    state, rank, group = _STATE.search(line.text), _RANK.search(line.text), _GROUP.search(line.text)
    who = int(rank[1]) if rank else line.rank
    target = None if who is None else line.rank_target(who)
    return line.reading([line.event("nccl_flight_recorder", target, rank=who, seq=int(match[1]),
                                    state=state[1] if state else None, group=group[1] if group else None)])


def _completion(line: JobLine, match: re.Match[str]) -> LogReading:
    who = _RANK.search(line.text) if line.rank is None else None
    rank = int(who[1]) if who else line.rank
    return line.reading([line.event("nccl_error", None if rank is None else line.rank_target(rank), rank=rank, message=match[1].strip())])


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Events of a watchdog's or flight recorder's line."""
    if not _HINTS.search(line):
        return NOTHING
    told = job_line(line, at, state, log)
    if match := _TIMEOUT.search(told.text):
        return _timeout(told, match)
    if match := _PROGRESS.search(told.text):
        work = _AT_WORK.search(told.text)
        return _watchdog(told, seq=int(work[1]) if work else None, last_enqueued=int(match[1]), last_completed=int(match[2]))
    if match := _STUCK.search(told.text):
        return _watchdog(told, ran_seconds=float(match[1]))
    if _HEARTBEAT.search(told.text):
        return _watchdog(told)
    if match := _RECORDED.search(told.text):
        return _recorded(told, match)
    if match := _COMPLETION.search(told.text):
        return _completion(told, match)
    return told.reading()


PLUGIN = SourcePlugin("nccl", parse_line=parse_line, log_kind="trainer")
