"""Which checkpoint a run begins from: several are kept, and those that are not trusted are passed over.

What was saved after a loss stopped being a number may hold it already. A scheduler's hand says so as spans of time, each
`FROM/UNTIL` in RFC 3339; docs/slurm.md shows how they reach a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from sample_data.trainer.reduce import AllReduce


@dataclass(frozen=True)
class Saved:
    """A checkpoint on the disk. at: seconds since the epoch, when it was saved."""

    path: Path
    step: int
    at: float


def spans(text: str) -> list[tuple[float, float]]:
    """The spans (seconds since the epoch) of words `FROM/UNTIL`. Raises ValueError."""
    return [(_seconds(start), _seconds(end)) for start, _, end in (word.partition("/") for word in text.split())]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def kept(path: Path) -> list[Saved]:
    """The checkpoints of `path`, the newest first. One without a time of its own has that of its file."""
    found = []
    for one in (path, *path.parent.glob(f"{path.name}.step*")):
        if one.exists():
            with np.load(one) as data:
                found.append(Saved(one, int(data["step"]), float(data["saved_at"]) if "saved_at" in data else one.stat().st_mtime))
    return sorted(found, key=lambda saved: (-saved.at, -saved.step))


def make_room(path: Path, keep: int) -> None:
    """Puts the newest checkpoint aside before the next is written, and removes those beyond `keep`."""
    if keep > 1:
        for saved in kept(path)[keep - 1:]:
            saved.path.unlink()
        for saved in kept(path)[:1]:
            if saved.path == path:
                path.rename(path.with_name(f"{path.name}.step{saved.step}"))


def trusted(found: Sequence[Saved], distrusted: Sequence[tuple[float, float]]) -> list[Saved]:
    """Those that were saved in none of the spans."""
    return [saved for saved in found if not any(start <= saved.at < end for start, end in distrusted)]


def agreed(found: Sequence[Saved], group: AllReduce) -> Saved | None:
    """The newest one of which every rank has its part: ranks save a moment apart, and a span's edge may fall between. None
    where there is none."""
    rest = list(found)
    while True:
        step = float(rest[0].step) if rest else -1.0
        mean, square = group.mean(np.array([step, step * step]))
        if square - mean * mean < 0.25:  # all have the same
            return rest[0] if rest else None
        rest = [saved for saved in rest if saved.step <= mean]
