"""The small files through which the processes find each other and speak; each is written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWNER_FILE = "owner.json"  # where the owner listens
INTERNAL_FILE = "internal.secret"  # what the owner asks of its collectors, for this machine's user only
WANTED_FILE, RUNNING_FILE = "workers-wanted.json", "workers-running.json"


def write_whole(path: Path, text: str) -> None:
    """Replaces the file at once."""
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def publish_wanted(data_dir: Path, workers: int) -> None:
    """The owner says how many collector processes there should be."""
    write_whole(data_dir / WANTED_FILE, json.dumps({"workers": workers}))


def wanted(data_dir: Path, least: int, most: int) -> int:
    """How many the owner wants, within the bounds; `least` where it has not said."""
    found = _read(data_dir / WANTED_FILE)
    number = found.get("workers") if isinstance(found, dict) else None
    return max(least, min(most, number)) if isinstance(number, int) else least


def publish_running(data_dir: Path, processes: Mapping[str, int]) -> None:
    """The supervisor (this process) says which worker runs as which process."""
    write_whole(data_dir / RUNNING_FILE, json.dumps({"supervisor": os.getpid(), "workers": dict(processes)}))


def running(data_dir: Path) -> dict[str, int] | None:
    """Worker → pid as this process' own supervisor says it; None where there is no such supervisor."""
    found = _read(data_dir / RUNNING_FILE)
    if not isinstance(found, dict) or found.get("supervisor") != os.getppid():
        return None
    workers = found.get("workers")
    return {str(name): int(pid) for name, pid in workers.items()} if isinstance(workers, dict) else None
