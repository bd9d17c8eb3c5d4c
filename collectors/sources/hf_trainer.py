"""Hugging Face Trainer: `{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': …, 'epoch': 0.1}` between tqdm bars.

The dicts hold no step: it is that of the training bar where one is shown, else the count of the dicts. The bar's own
elapsed time moves the clock of lines that carry none.
"""

from __future__ import annotations

import re
from typing import Any

from collectors.loglines import (
    ALL_STEP_SIGNALS,
    NOTHING,
    RESULTS,
    TIMED_PROGRESS,
    JobLine,
    Step,
    job_line,
    number,
    step_reading,
)
from core.protocols import LogReading, SourcePlugin, TargetInfo

_DICT = re.compile(r"\{(['\"][\w/.]+['\"]:[^{}]{0,4000})\}")
_PAIR = re.compile(r"['\"]([\w/.]+)['\"]:\s*['\"]?([^,'\"}\s]+)")
_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s*(\d{1,12})/(\d{1,12})\s*\[([\d:]+)<[^,\]]*(?:,\s*([\d.]+|\?)\s*(it/s|s/it))?")


def _seconds(clock: str) -> float | None:
    parts = clock.split(":")
    if not 1 < len(parts) <= 3 or not all(p.isdigit() for p in parts):
        return None
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return float(total)


def _bar(line: JobLine, match: re.Match[str]) -> LogReading:
    """A step of the training bar (the first bar without a title; a bar of another length is an evaluation's)."""
    state = line.state
    step, total = int(match[1]), int(match[2])
    if state.setdefault("bar_total", total) != total:
        return line.reading(line.phase("eval", state.get("bar_step")))
    rate = number(match[4])
    seconds = None if not rate else (1 / rate if match[5] == "it/s" else rate)
    shown = _seconds(match[3])
    before, state["bar_shown"] = state.get("bar_shown"), shown
    elapsed = 0.0
    if shown is not None and (line.rank or 0) == state.setdefault("bar_rank", line.rank or 0):
        elapsed = max(0.0, shown - (before or 0.0))
    if step == 0 or state.get("bar_step") == step:
        return LogReading((), (), line.own, elapsed)
    state["bar_step"], state["bar_seconds"] = step, seconds
    said = step_reading(line, Step(step, seconds), TIMED_PROGRESS)
    return LogReading(said.events, said.readings, said.at, elapsed)


def _logged(line: JobLine, fields: dict[str, str]) -> LogReading | None:
    state = line.state
    if "train_runtime" in fields:
        return line.reading(line.phase("done", state.get("hf_step")))
    if any(name.startswith("eval_") for name in fields):
        return line.reading(line.phase("eval", state.get("hf_step")))
    if "loss" not in fields or number(fields["loss"]) is None:
        return None
    told = number(fields.get("step") or fields.get("global_step"))
    step = int(told) if told is not None else state.get("bar_step", int(state.get("hf_step", 0)) + 1)
    state["hf_step"] = step
    told_step = Step(step, state.get("bar_seconds"), number(fields["loss"]), number(fields.get("grad_norm")),
                     number(fields.get("tokens_per_second")))
    # Where a bar is shown, it tells the progress and the dicts tell the results.
    said = step_reading(line, told_step, RESULTS if "bar_total" in state else ALL_STEP_SIGNALS)
    return LogReading(said.events, said.readings, said.at, 0.0 if "bar_total" in state else said.elapsed_seconds)


def parse_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> LogReading:
    """Logged dicts, training bars, start, checkpoints and end."""
    if not ("{" in line or "%|" in line or "*****" in line or "checkpoint-" in line):
        return NOTHING
    told = job_line(line, at, state, log)
    if (match := _DICT.search(told.text)) and (said := _logged(told, dict(_PAIR.findall(match[1])))) is not None:
        return said
    if match := _BAR.match(told.text):
        return _bar(told, match)
    if "***** Running training *****" in told.text:
        return told.reading(told.phase("start"))
    if "***** Running Evaluation *****" in told.text:
        return told.reading(told.phase("eval", state.get("hf_step")))
    if match := re.search(r"Saving model checkpoint to \S*checkpoint-(\d{1,12})", told.text):
        step = int(match[1])
        return told.reading([told.event("checkpoint", step=step, state="saving"), *told.phase("checkpoint", step)],
                            {"rank.last_checkpoint_step": float(step)})
    return told.reading()


PLUGIN = SourcePlugin("hf_trainer", parse_line=parse_line, log_kind="trainer")
