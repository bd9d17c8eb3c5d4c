"""The supervisor as a program of its own: `python -m app.supervise FILE`.

`greylag run` checks the configuration, which imports everything, and then becomes this one: a process that only starts
others and waits should not hold a hundred megabytes of libraries for months.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from app.supervisor import Child, Supervisor
from app.workerfiles import OWNER_FILE, publish_running, wanted
from core.config import GreylagConfig, read_config


def become(path: Path) -> int:
    """Replaces this process by the supervisor of a configuration that was checked; does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "app.supervise", str(path)])


def supervise(path: Path, config: GreylagConfig) -> int:
    """The owner and as many collectors as it wants, until stopped."""
    data_dir = Path(config.resolve(config.data_dir))
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / OWNER_FILE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "app.cli", "run", "-c", str(path), "--role"]
    bounds = (config.workers.min, config.workers.max or os.cpu_count() or 1)
    return Supervisor(
        [Child("owner", [*command, "owner"])],
        lambda name: Child(name, [*command, "collector", "--worker", name]),
        lambda: wanted(data_dir, *bounds),
        lambda processes: publish_running(data_dir, processes)).run()


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1]), read_config(sys.argv[1])))
