"""torchtitan: `step: N  loss: x  grad_norm: x  memory: …  tps: n  tflops: …  mfu: …`, with or without terminal colours.

A line tells no step time: it is what lies between the own times of two lines of a rank, by the steps between them.
`tps` is tokens a second of the device that speaks.
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import NOTHING, Step, job_line, number, plain, step_reading, step_seconds_between
from core.protocols import LogReading, SourcePlugin, TargetInfo

_STEP = re.compile(r"(?<!\w )\bstep:\s*(\d{1,12})\s+(?:\S+:\s*\S+\s+)*?loss:\s*(\S+)(.*)", re.DOTALL)
_FIELD = re.compile(r"\b(grad_norm|tps|memory|tflops|mfu):\s*([-+\w.,]+)")
_VALIDATE = re.compile(r"\bvalidate\s+step:\s*(\d{1,12})")
_SAVING = re.compile(r"[Ss]aving (?:the|a full) checkpoint|[Ss]aving the (?:last )?checkpoint")
_SAVED = re.compile(r"[Ff]inished saving the checkpoint")
_START = re.compile(r"Training starts at step (\d{1,12})")


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Steps, validation, checkpoints, start and end of training."""
    bare = plain(line)
    if not ("step:" in bare or "checkpoint" in bare or "Training " in bare):
        return NOTHING
    told = job_line(line, at, state, log)
    if match := _VALIDATE.search(told.text):
        return told.reading(told.phase("eval", int(match[1])))
    if (match := _STEP.search(told.text)) and number(match[2]) is not None:
        step = int(match[1])
        state["titan_step"] = step
        fields = dict(_FIELD.findall(match[3]))
        return step_reading(told, Step(
            step, step_seconds_between(told, step), number(match[2]), number(fields.get("grad_norm")),
            number(fields.get("tps")),
        ))
    last = state.get("titan_step")
    if _SAVED.search(told.text):
        events = [told.event("checkpoint", step=last, state="saved")]
        if state.get("phase") == "checkpoint":
            events += told.phase("train", last)
        return told.reading(events, None if last is None else {"rank.last_checkpoint_step": float(last)})
    if _SAVING.search(told.text):
        return told.reading([told.event("checkpoint", step=last, state="saving"), *told.phase("checkpoint", last)])
    if match := _START.search(told.text):
        return told.reading(told.phase("start", int(match[1])))
    if re.search(r"\bTraining completed\b", told.text):
        return told.reading(told.phase("done", last))
    return told.reading()


PLUGIN = SourcePlugin("torchtitan", parse_line=parse_line, log_kind="trainer")
