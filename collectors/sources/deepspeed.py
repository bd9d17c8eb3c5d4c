"""DeepSpeed: loss-scale overflows (each a skipped step), its own step lines, and checkpoints.

All ranks tell of a checkpoint; the first line of each step counts.

An overflow line belongs to one step; `step N/M T s/it` before it, where a progress display shares the line, is the
step and the time that it took.
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import (
    NOTHING,
    PROGRESS,
    TIMED_PROGRESS,
    JobLine,
    Step,
    job_line,
    number,
    step_reading,
)
from core.protocols import LogReading, SourcePlugin, TargetInfo

_OVERFLOW = re.compile(
    r"(?:OVERFLOW!|overflow!)(?: Rank (\d+))?.*?[Ss]kipping step\.?(?: Attempted loss scale: ([\d.e+]+), (?:but hysteresis.*?|reducing to ([\d.e+]+)))?")
_AT_MINIMUM = "Current loss scale already at minimum"
_SHARED = re.compile(r"\bstep (\d{1,12})/(\d{1,12})\s+([\d.]+)\s?s/it")
_PIPE = re.compile(r"\bsteps: (\d{1,12}) loss: (\S+) iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)")
_SAVING = re.compile(r"Saving model checkpoint: \S*global_step(\d{1,12})\b")
_SAVED = re.compile(r"Checkpoint global_step(\d{1,12}) is ready now")
_LOGGED = re.compile(r"\bstep=(\d{1,12}), skipped=(\d+), lr=")


def _overflow(line: JobLine, match: re.Match[str]) -> LogReading:
    state = line.state
    rank = int(match[1]) if match[1] else (line.rank or 0)
    scale = number(match[3] or match[2])
    events = [line.event("overflow", line.rank_target(rank), rank=rank, loss_scale=scale)]
    counted = {"rank.skipped_per_second": line.count("rank.skipped_per_second", 1.0)}
    shared = _SHARED.search(line.text)
    if shared is None or state.get("shared_step") == shared[1]:
        return LogReading(tuple(events), ((line.own, line.part, counted),), line.own)
    state["shared_step"] = shared[1]
    said = step_reading(line, Step(int(shared[1]), number(shared[3])), TIMED_PROGRESS)
    return LogReading((*events, *said.events), (*said.readings, (line.own, line.part, counted)), line.own,
                      said.elapsed_seconds)


def _checkpoint(line: JobLine) -> LogReading | None:
    if (match := _SAVED.search(line.text)) is not None:
        state = "saved"
    elif (match := _SAVING.search(line.text)) is not None:
        state = "saving"
    else:
        return None
    step, told = int(match[1]), f"deepspeed/{state}"
    if line.state.get(told) == step:
        return line.reading()
    line.state[told] = step
    events = [line.event("checkpoint", step=step, state=state)]
    if state == "saving":
        return line.reading([*events, *line.phase("checkpoint", step)])
    if line.state.get("phase") == "checkpoint":
        events += line.phase("train", step)
    return line.reading(events, {"rank.last_checkpoint_step": float(step)})


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Overflows and step lines."""
    if not ("kipping step" in line or "step=" in line or "steps: " in line or _AT_MINIMUM in line or "global_step" in line):
        return NOTHING
    told = job_line(line, at, state, log)
    if match := _OVERFLOW.search(told.text):
        return _overflow(told, match)
    if (saved := _checkpoint(told)) is not None:
        return saved
    if _AT_MINIMUM in told.text:
        return told.reading([told.event("nonfinite", told.part, rank=told.part.rank, what="loss_scale_at_minimum")])
    if match := _PIPE.search(told.text):
        return step_reading(told, Step(int(match[1]), number(match[3]), number(match[2])))
    if (match := _LOGGED.search(told.text)) and int(match[1]) > 0:  # step 0 is the start of the engine
        return step_reading(told, Step(int(match[1])), PROGRESS)
    return told.reading()


PLUGIN = SourcePlugin("deepspeed", parse_line=parse_line, log_kind="trainer")
