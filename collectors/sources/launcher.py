"""What launchers and dying processes say of a job: torchrun's and srun's word on an exit code, a traceback's last line, a
checkpoint that could not be written.

A process that was asked to end (SIGTERM) did not die by itself: it is what schedulers and launchers do to the others.
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import NOTHING, JobLine, job_line
from core.protocols import LogReading, SourcePlugin, TargetInfo
from core.types import Target

_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,4})\b")
_SRUN = re.compile(r"srun: error: ([\w.-]+): tasks? (\d{1,7})[\d,-]*: (?:Exited with exit code (\d{1,5})|(Segmentation fault|Aborted|Killed|Bus error))")
_TRACEBACK = "Traceback (most recent call last)"
# The line that ends a traceback: the exception's class, perhaps with its modules, and what it says.
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure)): (.*)", re.DOTALL)
_SAVE = re.compile(r"\bcheckpoint of iteration (\d{1,12}) was not written|\bCheckpointException ranks:")
_SIGNALS = {"Segmentation fault": -11, "Aborted": -6, "Killed": -9, "Bus error": -7}
ASKED_TO_END = (-15, 143)
_HINTS = ("exitcode", "srun: error", "Traceback", "Error: ", "Exception", "was not written")
_STEPS = ("clock_step", "titan_step", "nemo_step", "bar_step", "hf_step")
SAME_EXIT_MS = 120_000  # the nodes' launchers report one crash one after the other
LONGEST_MESSAGE = 200


def _last_step(line: JobLine) -> int | None:
    """The last step of the run that dies. It is asked once for each crash, and forgotten: the next run may reach none."""
    state = line.state
    known = state.get("exit")
    if known is not None and 0 <= line.at - known[0] <= SAME_EXIT_MS and not any(name in state for name in _STEPS[:1]):
        return known[1] if isinstance(known[1], int) else None
    found = [int(state.pop(name)) for name in _STEPS if isinstance(state.get(name), (int, float))]
    step = max(found, default=None)
    state["exit"] = (line.at, step)
    return step


def _exit(line: JobLine, code: int, rank: int | None, node: str | None) -> LogReading:
    if code == 0 or code in ASKED_TO_END:
        return line.reading()
    message = line.state.pop("exception", None)
    if rank is None and message is not None:
        rank = message[0]
    if line.state.get("phase") == "start":  # the next run begins anew, though this one came no further
        line.state.pop("phase")
    part = Target("job", job=line.job) if rank is None else Target("rank", node or line.node, job=line.job, rank=rank)
    return line.reading([line.event("job_exit", part, rank=rank, code=code, step=_last_step(line),
                                    message=None if message is None else message[1])])


def _failed_save(line: JobLine, match: re.Match[str]) -> LogReading:
    """One failure is told by several lines: those of one save count once."""
    step = int(match[1]) if match[1] else None
    before = line.state.get("save_failed")
    if before is not None and 0 <= line.at - before <= 60_000:
        return line.reading()
    line.state["save_failed"] = line.at
    return line.reading([line.event("checkpoint", step=step, state="failed")])


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Exits of processes and checkpoints that failed."""
    if not any(hint in line for hint in _HINTS):
        return NOTHING
    told = job_line(line, at, state, log)
    if match := _SAVE.search(told.text):
        return _failed_save(told, match)
    if match := _TORCHRUN.search(told.text):
        return _exit(told, int(match[1]), None, told.node)
    if match := _SRUN.search(told.text):
        code = int(match[3]) if match[3] else _SIGNALS[match[4]]
        return _exit(told, code if code < 128 else 128 - code, int(match[2]), match[1])
    if match := _EXCEPTION.match(told.text):
        # The first exception of a crash is its cause; the launcher's own follows.
        if match[1].rpartition(".")[2] not in ("ChildFailedError", "SignalException"):
            state.setdefault("exception", (told.rank, f"{match[1]}: {match[2].strip()}"[:LONGEST_MESSAGE]))
    elif _TRACEBACK in told.text and told.rank is not None:
        state.pop("exception", None)
    return told.reading()


PLUGIN = SourcePlugin("launcher", parse_line=parse_line, log_kind="trainer")
