"""Megatron-LM and Megatron-DeepSpeed: `iteration N/ M | elapsed time per iteration (ms): X | lm loss: … | …`.

Counts of skipped and nan iterations are per log interval and are added up here. A line without a loss has no loss: it
is absent, not unchanged (Megatron leaves it out when it is not finite).
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import NOTHING, JobLine, Step, job_line, number, step_reading
from core.protocols import LogReading, SourcePlugin, TargetInfo

_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|(.*)", re.DOTALL)
_VALIDATION = re.compile(r"validation loss at (?:iteration )?(\d{1,12})|validation loss at the end of training")
_SAVING = re.compile(r"saving checkpoint at iteration\s+(\d{1,12})", re.IGNORECASE)
_SAVED = re.compile(r"successfully saved checkpoint (?:at|from) iteration\s+(\d{1,12})", re.IGNORECASE)
_LOADED = re.compile(r"successfully loaded checkpoint .*at iteration\s+(\d{1,12})")
_HINTS = ("iteration", "validation loss", "[after training is done]", "[before the start of training step]", "Evaluating")


def _step(line: JobLine, match: re.Match[str]) -> LogReading:
    fields: dict[str, str] = {}
    for part in match[3].split("|"):
        name, colon, value = part.rpartition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    losses = [v for k, v in fields.items() if (k == "loss" or k.endswith(" loss")) and number(v) is not None]
    milliseconds = number(fields.get("elapsed time per iteration (ms)"))
    loss = fields.get("lm loss") or (losses[0] if losses else None)
    return step_reading(line, Step(
        int(match[1]),
        None if milliseconds is None else milliseconds / 1000,
        number(loss),
        number(fields.get("grad norm")),
        number(fields.get("tokens per second") or fields.get("tokens/sec")),
        number(fields.get("number of skipped iterations")),
        number(fields.get("number of nan iterations")),
    ))


def _checkpoint(line: JobLine) -> LogReading | None:
    if match := _SAVED.search(line.text):
        step = int(match[1])
        events = [line.event("checkpoint", step=step, state="saved")]
        if line.state.get("phase") == "checkpoint":
            events += line.phase("train", step)
        return line.reading(events, {"rank.last_checkpoint_step": float(step)})
    if match := _SAVING.search(line.text):
        step = int(match[1])
        return line.reading([line.event("checkpoint", step=step, state="saving"), *line.phase("checkpoint", step)])
    return None


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Steps, checkpoints, evaluation and the end of training."""
    if not any(hint in line for hint in _HINTS):
        return NOTHING
    told = job_line(line, at, state, log)
    if (match := _ITERATION.search(told.text)) and "global_step" not in told.text:  # else NeMo's iteration of an epoch
        return _step(told, match)
    if (saved := _checkpoint(told)) is not None:
        return saved
    if match := _VALIDATION.search(told.text):
        return told.reading(told.phase("eval", int(match[1]) if match[1] else None))
    if "[after training is done]" in told.text or "exiting program at iteration" in told.text:
        return told.reading(told.phase("done"))
    if "[before the start of training step]" in told.text or _LOADED.search(told.text):
        return told.reading(told.phase("start"))
    if told.text.startswith(("Evaluating iter", "Evaluating on")):
        return told.reading(told.phase("eval"))
    return told.reading()


PLUGIN = SourcePlugin("megatron", parse_line=parse_line, log_kind="trainer")
