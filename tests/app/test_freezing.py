"""A freeze by call holds while the tick waits, and after a restart."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import pytest

from app.freezing import Freezer
from app.house import OwnerHouse
from core.clock import ManualClock
from core.telemetry import Telemetry
from remediation.backends.observe import ObserveView
from remediation.engine import Engine
from remediation.policy import parse_policy

T0 = 1_800_000_000_000


def engine(file: Path) -> Engine:
    return Engine(parse_policy("version: 1"), frozenset(), ObserveView(), freeze_file_exists=file.exists)


def test_a_freeze_by_call_survives_a_restart(tmp_path: Path) -> None:
    """Nothing was committed in between: the next process finds it frozen, and a resume there lifts it for good."""
    file = tmp_path / "FREEZE"
    assert Freezer(file, engine(file)).freeze("ada", T0)
    assert file.read_text() == "frozen by call: ada at 2027-01-15T08:00:00.000Z\n"
    after = engine(file)
    assert after.frozen
    Freezer(file, after).resume()
    assert (after.frozen, file.exists()) == (False, False)


def test_a_file_that_a_person_made_is_theirs(tmp_path: Path) -> None:
    """Neither written over nor taken away by a call."""
    file = tmp_path / "FREEZE"
    file.write_text("power works until noon\n")
    one = engine(file)
    Freezer(file, one).freeze("ada", T0)
    Freezer(file, one).resume()
    assert (file.read_text(), one.frozen) == ("power works until noon\n", True)


def test_without_a_disk_the_freeze_holds_until_the_process_ends(tmp_path: Path) -> None:
    """The file cannot be written: the flag counts, and the answer says that a restart would lift it."""
    file = tmp_path / "gone" / "FREEZE"
    one = engine(file)
    assert Freezer(file, one).freeze("ada", T0) is False
    assert one.frozen


@pytest.mark.parametrize("held", [True, False])
def test_the_call_waits_for_no_tick(tmp_path: Path, held: bool) -> None:
    """A tick that waits for a full disk holds its lock; the freeze goes through all the same."""
    file, lock = tmp_path / "FREEZE", Lock()
    one = engine(file)
    if held:
        lock.acquire()
    owner = SimpleNamespace(
        hands=SimpleNamespace(engine=one), clock=ManualClock(T0), telemetry=Telemetry(), ticker=SimpleNamespace(lock=lock),
        config=SimpleNamespace(data_dir=str(tmp_path), resolve=lambda path: path), brain=SimpleNamespace(said=[]),
    )
    answer = OwnerHouse(owner).command("freeze", {})  # type: ignore[arg-type]
    assert answer == {"done": "freeze", "frozen": True, "survives_restart": True}
    assert (one.frozen, lock.locked(), len(owner.brain.said)) == (True, held, 1)
