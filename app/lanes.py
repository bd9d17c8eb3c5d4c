"""When a message may be tried again: pure, time is an argument (monotonic seconds).

A lane is one incident at one notifier: its messages go in order, and one that fails makes only its own lane wait. A receiver
that fails for several lanes in a row is away: then it is asked with one message at a time until it takes one.
"""

from __future__ import annotations

import random

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 300.0
MOST_TRIES = 300  # at the longest pause these are a day
AWAY_AFTER = 3


def pause_seconds(tries: int, seed: int, key: str) -> float:
    """The pause after so many failed tries: doubled each time, up to 300 s, and spread over half to one and a half of that, so
    that what failed together does not come back together. The same for the same arguments."""
    grown = FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16)
    return min(LONGEST_PAUSE_SECONDS, grown) * (0.5 + random.Random(f"{seed}\x00{key}\x00{tries}").random())


class Lanes:
    """The lanes of one notifier. seed: of the jitter."""

    def __init__(self, seed: int = 0, most_tries: int = MOST_TRIES) -> None:
        self._seed, self._most = seed, most_tries
        self._until: dict[str, float] = {}
        self._in_a_row = 0
        self._away_until = 0.0

    def resting(self, now: float) -> tuple[str, ...]:
        """The lanes in which nothing is to be tried now."""
        self._until = {lane: until for lane, until in self._until.items() if until > now}
        return tuple(self._until)

    def open(self, now: float) -> bool:
        """False while the receiver is away and not to be asked."""
        return now >= self._away_until

    @property
    def away(self) -> bool:
        """True where the receiver failed for several messages in a row: one message is tried at a time."""
        return self._in_a_row >= AWAY_AFTER

    def taken(self, lane: str) -> None:
        """The receiver took a message of the lane."""
        self._until.pop(lane, None)
        self._in_a_row, self._away_until = 0, 0.0

    def failed(self, lane: str, message_id: str, tries: int, now: float, at_least: float = 0.0) -> bool:
        """A try failed, the `tries`-th of the message; at_least: seconds that the receiver asked for. True = give it up."""
        self._in_a_row += 1
        wait = max(at_least, pause_seconds(tries, self._seed, message_id))
        self._until[lane] = now + wait
        if self.away:
            self._away_until = now + max(at_least, pause_seconds(self._in_a_row - AWAY_AFTER + 1, self._seed, ""))
        if tries >= self._most:
            self._until.pop(lane, None)
            return True
        return False
