"""What waiting and acting are expected to cost, and how detectors score, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WAITS = {"checkpoint": "cheaper after the next checkpoint", "now": "no checkpoint is worth waiting for"}


def worth_lines(worth: Mapping[str, Any] | None) -> list[str]:
    """One line for waiting and one for each attempt that the rule has left; nothing where it is not known."""
    if not worth:
        return []
    unsaved = worth["unsaved_seconds"]
    work = "unsaved work not known" if unsaved is None else f"{unsaved / 60:.0f} min of work unsaved"
    stop = f"; stopping the job: {WAITS[worth['wait_for']]}" if worth["wait_for"] else ""
    lines = [f"worth     waiting: {worth['waiting_gpu_hours']:.1f} GPU-hours expected to be lost ({worth['lost_gpus']:.1f} an hour now, "
             f"{worth['job_gpus']:.0f} GPUs, {work}{stop})"]
    for one in worth["options"]:
        judged = one["cured"] + one["failed"]
        own = f"{one['cured']} of {judged} here" if judged else "no own record"
        spare = f", spares {one['spare_gpu_hours']:.1f} besides" if one["spare_gpu_hours"] else ""
        skipped = ", not worth it: skipped" if one["skip"] else ""
        lines.append(f"          attempt {one['place'] + 1} ({', '.join(one['kinds'])}): {one['expected_gpu_hours']:.1f} expected, "
                     f"{one['stop_gpu_hours']:.1f} of it at once{spare}; cures {100 * one['cure']:.0f} % ({own}){skipped}")
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
