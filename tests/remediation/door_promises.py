"""What every control door promises, whatever world stands behind it. Each backend's tests ask for these with a world of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.errors import Unavailable
from core.protocols import ControlDoor, WorldView
from core.reasons import ACTION_REASONS
from core.types import Action, Outcome

FINAL = ("DONE", "FAILED", "REFUSED", "SIMULATED")


def names_the_unknown(door: ControlDoor) -> None:
    """poll of an id that was never submitted: REFUSED unknown_operation."""
    told = door.poll("inc-never00000000/1/1")
    assert (told.state, told.reason) == ("REFUSED", "unknown_operation")


def ends(door: ControlDoor, action: Action, wait: Callable[[], None], tries: int = 300) -> Outcome:
    """RUNNING until it is over; each answer carries the id and a reason of the closed list."""
    told = door.submit(action)
    for _ in range(tries):
        assert told.action_id == action.id
        assert told.reason in ACTION_REASONS, told
        assert told.took_seconds >= 0
        if told.state in FINAL:
            return told
        assert told.state == "RUNNING"
        wait()
        told = door.poll(action.id)
    raise AssertionError(f"{action.kind} never ended: {told}")


def answers_alike(door: ControlDoor, action: Action, carried_out: Callable[[], int]) -> None:
    """The same id twice: the same answer, carried out once."""
    first, again = door.submit(action), door.submit(action)
    assert again.state in (first.state, "DONE")
    assert carried_out() == 1


def refuses(door: ControlDoor, action: Action, reason: str) -> None:
    """REFUSED with the world's named reason; the id stays refused."""
    for told in (door.submit(action), door.submit(action), door.poll(action.id)):
        assert (told.state, told.reason) == ("REFUSED", reason)


def says_when_nothing_is_known(door: ControlDoor, view: WorldView, action: Action) -> None:
    """A world that does not answer: submit, poll and nodes raise Unavailable."""
    for ask in (lambda: door.submit(action), lambda: door.poll("inc-never00000000/1/1"), view.nodes):
        with pytest.raises(Unavailable):
            ask()
