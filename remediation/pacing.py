"""After a freeze: what was held back is let go one attempt at a time, never all at once.

A freeze, or a world that does not answer, holds every attempt back; when it ends all of them could start in one tick. From
then on attempts start at least `release_seconds` apart, for so long at least, and until none waits for its turn any more. A freeze
that comes and goes between two ticks counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """stopped: at the last tick nothing could start. releasing: attempts start one by one. since: from when on, ms. started_at: the
    last of them, ms. waits: at this tick an attempt waited for its turn."""

    stopped: bool = False
    releasing: bool = False
    started_at: int | None = None
    waits: bool = False
    since: int = 0

    def tick(self, at: int, frozen: bool, seconds: float) -> None:
        """A tick begins at `at` (ms). seconds: how far apart attempts start. What the tick finds taken back (not sent in its own
        tick, refused for a while) is decided on anew only in a later one, so one tick in which none waits does not end the release."""
        if frozen:
            self.stopped, self.releasing = True, False
        elif self.stopped:
            self.stopped, self.releasing, self.started_at, self.since = False, True, None, at
        elif self.releasing and not self.waits and at - self.since >= seconds * 1000:
            self.releasing = False
        self.waits = False

    def stop(self) -> None:
        """Nothing can start now: the world does not answer."""
        self.stopped, self.releasing = True, False

    def too_soon(self, at: int, seconds: float) -> bool:
        """Whether an attempt has to wait for its turn at `at` (ms)."""
        return self.releasing and self.started_at is not None and at - self.started_at < seconds * 1000

    def started(self, at: int) -> None:
        """An attempt started."""
        self.started_at = at
