"""First readings in turn: reading a page for the first time costs a hundred times as much as each later time.

A worker that starts, or takes over another's targets, has hundreds of them at once. Read together they hold up the slots
of all others for seconds, and readings are missed that had nothing to do with it. So first readings get what a slot
leaves: they begin behind its other readings, a few at once, as long as the next slot is not near. One that finds no room
waits for the next slot; where it would begin too late for its time (`schedule.latest_begin`) it is left out, and counted as
`first_reading_waits`. One begins in each slot, however late that is: otherwise a busy worker would never learn the others.
Only where the owner is behind with what was read already (`Handover.learns`) none begins.
"""

from __future__ import annotations

AT_ONCE = 4  # so that one is fetched while another is parsed
FIRST_GUESS_SECONDS = 0.1
LEARN = 0.2  # how fast the guess follows what first readings cost


class Admission:
    """Of one worker. Pure: times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._until = 0.0
        self._slot = 0
        self._begun = 0  # in this slot
        self._open = 0  # of those, how many are under way
        self._guess = FIRST_GUESS_SECONDS

    def slot(self, until: float) -> None:
        """A slot begins; the next one is to begin at `until`. What still hangs from the last one takes no place in it."""
        self._until, self._begun, self._open = until, 0, 0
        self._slot += 1

    def admits(self, now: float) -> int:
        """A ticket where a first reading may begin now, else 0."""
        late = now + self._guess * (self._open + 1) > self._until
        if self._begun and (late or self._open >= AT_ONCE):
            return 0
        self._begun += 1
        self._open += 1
        return self._slot

    def took(self, ticket: int, seconds: float | None) -> None:
        """The reading that was admitted has ended; it cost this much without waiting, 0 where it failed, None where it
        never began."""
        if ticket == self._slot:
            self._open -= 1
        if seconds is not None:
            self._guess += LEARN * (seconds - self._guess)
