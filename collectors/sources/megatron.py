"""Megatron-LM and Megatron-DeepSpeed: `iteration N/ M | elapsed time per iteration (ms): X | lm loss: … | …`.

The last rank writes the iteration lines, rank 0 the rest: a line without a rank is the last rank's once the log has told
the world size, so that the node in front of the line is the right one.

Counts of skipped and nan iterations are per log interval and are added up here. A line without a loss has no loss: it
is absent, not unchanged (Megatron leaves it out when it is not finite).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from collectors.loglines import NOTHING, JobLine, Step, job_line, number, step_reading
from core.protocols import LogReading, SourcePlugin, TargetInfo

_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|(.*)", re.DOTALL)
_VALIDATION = re.compile(r"validation loss at (?:iteration )?(\d{1,12})|validation loss at the end of training")
_SAVING = re.compile(r"saving checkpoint at iteration\s+(\d{1,12})", re.IGNORECASE)
_SAVED = re.compile(r"successfully saved checkpoint (?:at|from) iteration\s+(\d{1,12})", re.IGNORECASE)
_LOADED = re.compile(r"successfully loaded checkpoint .*at iteration\s+(\d{1,12})")
_WORLD = re.compile(r"using world size: (\d{1,7})\b")
# The checks of a rank's own results: `Rank 3: found NaN in local grad norm …, node: n5`, or `Unexpected result nan on rank 3
# at iteration #17 … (message='found NaN in local forward loss calculation')`.
_NONFINITE = re.compile(r"found (?:NaN|Inf\w*) in local (?:forward )?(loss|grad)", re.IGNORECASE)
_RANK, _AT_ITERATION = re.compile(r"\brank (\d{1,7})\b", re.IGNORECASE), re.compile(r"iteration #?(\d{1,12})")
_ON_NODE = re.compile(r"\bnode: ([\w.-]+)")
_HINTS = ("iteration", "validation loss", "[after training is done]", "[before the start of training step]", "Evaluating",
          "using world size", "in local")


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
        number(fields.get("global batch size")),
    ))


def _nonfinite(line: JobLine, match: re.Match[str]) -> LogReading:
    rank, step, node = _RANK.search(line.text), _AT_ITERATION.search(line.text), _ON_NODE.search(line.text)
    part = line.rank_target(int(rank[1])) if rank else line.part
    if node is not None:
        part = replace(part, node=node[1].rstrip("."))
    what = "grad_norm" if match[1].lower() == "grad" else "loss"
    return line.reading([line.event("nonfinite", part, rank=part.rank, step=int(step[1]) if step else None, what=what)])


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
        world = state.get("world_size")
        return _step(replace(told, rank=world - 1) if told.rank is None and world else told, match)
    if match := _NONFINITE.search(told.text):
        return _nonfinite(told, match)
    if (match := _WORLD.search(told.text)) and int(match[1]) > 0:
        state["world_size"] = int(match[1])
        return told.reading()
    if (saved := _checkpoint(told)) is not None:
        return saved
    if match := _VALIDATION.search(told.text):
        return told.reading(told.phase("eval", int(match[1]) if match[1] else None))
    if "[after training is done]" in told.text or "exiting program at iteration" in told.text:
        return told.reading(told.phase("done"))
    if (match := _LOADED.search(told.text)) or "[before the start of training step]" in told.text:
        return told.reading(told.phase("start", None if match is None else int(match[1])))
    if told.text.startswith(("Evaluating iter", "Evaluating on")):
        return told.reading(told.phase("eval"))
    return told.reading()


PLUGIN = SourcePlugin("megatron", parse_line=parse_line, log_kind="trainer")
