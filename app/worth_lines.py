"""What waiting and acting are expected to cost, and how detectors score, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remediation.worth import attempt_words

WAITS = {"checkpoint": "cheaper after the next checkpoint", "now": "no checkpoint is worth waiting for"}


def worth_lines(worth: Mapping[str, Any] | None) -> list[str]:
    """One line for waiting and one for each attempt that the rule has left; nothing where it is not known."""
    if not worth:
        return []
    unsaved = worth["unsaved_seconds"]
    work = "unsaved work not known" if unsaved is None else f"{unsaved / 60:.0f} min of work unsaved"
    stop = f"; stopping the job: {WAITS[worth['wait_for']]}" if worth["wait_for"] else ""
    lines = [f"worth     waiting: {worth['waiting_gpu_hours']:.1f} GPU-hours expected to be lost ({worth['lost_gpus']:.1f} an hour now, "
             f"{worth['job_gpus']:.0f} GPUs, {work}, {worth['spares']} spares{stop})"]
    lines += [f"          {attempt_words(one)}" for one in worth["options"]]
    if worth["hold"]:
        lines.append("          held: stopping the job costs more than waiting")
    return lines


def score_lines(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each fault: how its diagnoses came out."""
    lines = []
    for one in items:
        counts = ", ".join(f"{n} {word}" for word, n in one["counts"].items() if n)
        share = "" if one["precision"] is None else f"{100 * one['precision']:.0f} % confirmed"
        lines.append(f"{one['fault']:<24} {share:<16} {counts}")
    return lines
