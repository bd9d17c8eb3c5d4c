"""NeMo and Lightning: `Training epoch 0, iteration 9/99 | … | global_step: 9 | reduced_train_loss: … | train_step_timing
in s: …`, the same fields in a progress bar (`global_step=9.000`), and the lines at checkpoints, validation and the end.
"""

from __future__ import annotations

import math
import re
from typing import Any

from collectors.loglines import NOTHING, Step, job_line, number, step_reading
from core.protocols import LogReading, SourcePlugin, TargetInfo

_FIELD = re.compile(
    r"\b(global_step|reduced_train_loss|grad_norm|train_step_timing in s|tokens_per_sec(?:ond)?)\s*[:=]\s*([-+\w.]+)")
_SAVING = re.compile(r"(?:Scheduled async checkpoint save|Async save of checkpoint|Saving checkpoint (?:for|to)|Global Checkpoint Save)")
_SAVED = re.compile(r"Async checkpoint save for step (\d{1,12}) finalized|"
                    r"(?:checkpoint saved|successfully saved checkpoint)[^\n]*?step[ =]?(\d{1,12})", re.IGNORECASE)
_STOPPED = re.compile(r"`?Trainer\.fit`? stopped: .*reached")


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Steps, checkpoints, validation and the end of training."""
    if not ("global_step" in line or "heckpoint" in line or "Trainer.fit" in line or "Validation" in line):
        return NOTHING
    told = job_line(line, at, state, log)
    fields = dict(_FIELD.findall(told.text))
    step = number(fields.get("global_step"))
    if step is not None and math.isfinite(step) and ("reduced_train_loss" in fields or "train_step_timing in s" in fields):
        state["nemo_step"] = int(step)
        return step_reading(told, Step(
            int(step), number(fields.get("train_step_timing in s")), number(fields.get("reduced_train_loss")),
            number(fields.get("grad_norm")), number(fields.get("tokens_per_sec") or fields.get("tokens_per_second")),
        ))
    last = state.get("nemo_step")
    if match := _SAVED.search(told.text):
        saved = int(match[1] or match[2])
        events = [told.event("checkpoint", step=saved, state="saved")]
        if state.get("phase") == "checkpoint":
            events += told.phase("train", saved)
        return told.reading(events, {"rank.last_checkpoint_step": float(saved)})
    if _SAVING.search(told.text):
        return told.reading([told.event("checkpoint", step=last, state="saving"), *told.phase("checkpoint", last)])
    if re.match(r"Validation(?:[ :]|$| DataLoader)", told.text):
        return told.reading(told.phase("eval", last))
    if _STOPPED.search(told.text):
        return told.reading(told.phase("done", last))
    return told.reading()


PLUGIN = SourcePlugin("nemo", parse_line=parse_line, log_kind="trainer")
