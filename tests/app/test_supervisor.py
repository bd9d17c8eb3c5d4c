"""The supervisor with small children: restarts, ends in order, and no orphan when it is killed itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.workerfiles import RUNNING_FILE, publish_wanted
from tests import needs
from tests.live.site import alive, wait_for

# A child that notes its pid, watches its supervisor, notes its end, and ends as it is told to.
CHILD = """
import os, signal, sys, time
from app.supervisor import end_with_parent
name, folder, how = sys.argv[1:]
with open(folder + "/" + name, "a") as file:
    file.write(f"{os.getpid()}\\n")
def end(*_):
    with open(folder + "/ended", "a") as file:
        file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
end_with_parent()
if how == "die":
    time.sleep(0.2)
    sys.exit(7)
if how == "bad":
    sys.exit(2)
while True:
    time.sleep(0.1)
"""
MAIN = """
import sys
from app.supervisor import Child, Supervisor
child, folder, first, second = sys.argv[1:]
run = lambda name, how: Child(name, [sys.executable, child, name, folder, how])
sys.exit(Supervisor([run("owner", first), run("collector", second)]).run())
"""


class Family:
    """A supervisor with two children, in a folder where they note what happens to them."""

    def __init__(self, folder: Path, first: str, second: str) -> None:
        self.folder = folder
        (folder / "child.py").write_text(CHILD)
        (folder / "main.py").write_text(MAIN)
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "main.py"), str(folder / "child.py"), str(folder), first, second],
            env={"PYTHONPATH": str(needs.ROOT), "PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL)

    def pids(self, name: str) -> list[int]:
        file = self.folder / name
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def both(self) -> list[int]:
        wait_for(lambda: self.pids("owner") and self.pids("collector"), 20, "the start of the children")
        return self.pids("owner")[-1:] + self.pids("collector")[-1:]


@pytest.fixture
def family(tmp_path):
    """A function that starts one; nothing of it is left after the test."""
    made: list[Family] = []

    def start(first: str = "stay", second: str = "stay") -> Family:
        made.append(Family(tmp_path, first, second))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait(5)
        wait_for(lambda one=one: not any(map(alive, one.pids("owner") + one.pids("collector"))), 15, "the end of the children")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_children_end_with_it_the_collector_first(family, how):
    """A collector hands over what it holds while the owner still listens."""
    one = family()
    pids = one.both()
    one.process.send_signal(how)
    assert one.process.wait(15) == 0
    assert not any(map(alive, pids))
    assert (one.folder / "ended").read_text().split() == ["collector", "owner"]


def test_children_of_a_killed_supervisor_end(family):
    """kill -9 of the supervisor leaves nobody who holds the store."""
    one = family()
    pids = one.both()
    one.process.kill()
    one.process.wait(5)
    wait_for(lambda: not any(map(alive, pids)), 10, "the end of the orphans")
    assert sorted((one.folder / "ended").read_text().split()) == ["collector", "owner"]


def test_a_child_that_dies_is_started_again_ever_later(family):
    """Pauses double; the other child stays."""
    one = family(second="die")
    began = time.monotonic()
    wait_for(lambda: len(one.pids("collector")) >= 3, 30, "the second restart")
    assert time.monotonic() - began >= 0.5 + 1.0
    assert len(one.pids("owner")) == 1


def test_a_wrong_configuration_ends_it(family):
    """Status 2 of a child is not tried again: it is handed on."""
    one = family(first="bad")
    assert one.process.wait(20) == 2
    assert len(one.pids("owner")) == 1


CREW = """
import sys
from pathlib import Path
from app.supervisor import Child, Supervisor
from app.workerfiles import publish_running, wanted
child, folder = sys.argv[1:]
data = Path(folder)
run = lambda name: Child(name, [sys.executable, child, name, folder, "stay"])
sys.exit(Supervisor([run("owner")], run, lambda: wanted(data, 1, 3), lambda pids: publish_running(data, pids)).run())
"""


def test_as_many_workers_as_are_wanted(tmp_path):
    """Workers come and go with the file of the owner, the highest number first; who runs stands in a file; the owner stays."""
    (tmp_path / "child.py").write_text(CHILD)
    (tmp_path / "main.py").write_text(CREW)

    def running() -> list[str]:
        return sorted(json.loads((tmp_path / RUNNING_FILE).read_text())["workers"])

    process = subprocess.Popen([sys.executable, str(tmp_path / "main.py"), str(tmp_path / "child.py"), str(tmp_path)],
                               env={"PYTHONPATH": str(needs.ROOT), "PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL)
    try:
        seen = []
        for number in (1, 3, 1):
            publish_wanted(tmp_path, number)
            seen.append(wait_for(lambda number=number: len(running()) == number and running(), 30, f"{number} workers"))
            wait_for(lambda: all((tmp_path / name).exists() for name in running()), 30, "their first words")
            time.sleep(0.2)
        assert seen == [["collector-0"], ["collector-0", "collector-1", "collector-2"], ["collector-0"]]
        assert len((tmp_path / "owner").read_text().split()) == 1
        wait_for(lambda: (tmp_path / "ended").read_text().split(), 10, "the end of the others")
        assert "collector-0" not in (tmp_path / "ended").read_text().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert (tmp_path / "ended").read_text().split()[-1] == "owner"
    finally:
        process.kill()
        process.wait(5)
