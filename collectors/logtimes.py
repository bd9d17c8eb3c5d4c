"""The time that a log line carries: ISO 8601, syslog, glog, `[seconds]` since boot, and what anchors those without a date.

A line's time is read as a `Mark`; an `Anchor` makes milliseconds of it. No zone = UTC. A time that no calendar has
(`2026-13-45`) is no time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

MONTHS = {"Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6, "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11,
          "Dec": 12}
# Where nothing in a recording has a date, it starts here: a date that nobody takes for a real one.
UNDATED_START_MS = 946_684_800_000  # 2000-01-01T00:00:00Z
REBOOT_SLACK_SECONDS = 60.0  # `[seconds]` that fall back by more than this are of a new boot; CPUs print a little late
MONTH_NAMES = "|".join(MONTHS)

ISO = (
    r"(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)[T ](?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
    r"\d*(?: ?(?P<z>Z|UTC|[+-]\d\d:?\d\d)(?![\w:]))?"
)


class Mark(NamedTuple):
    """kind: at (value = ms), seconds (since boot), offset (seconds since the recording's start), yearless (fields =
    month, day, hour, minute, second, milliseconds)."""

    kind: str
    value: float = 0.0
    fields: tuple[int, ...] = ()


def _ms(moment: datetime) -> int:
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 1000 + moment.microsecond // 1000


def fraction_ms(digits: str | None) -> int:
    """Milliseconds of the digits behind the point."""
    return int((digits or "0")[:3].ljust(3, "0"))


def zone(text: str | None) -> timezone:
    """The zone of `Z`, `+01:00` or `+0100`; UTC where there is none."""
    if not text or text in ("Z", "UTC"):
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes)) if minutes < 1440 else UTC


def dated(year: int, fields: Sequence[int], tz: tzinfo = UTC) -> int | None:
    """Milliseconds of (month, day, hour, minute, second, ms) in a year; None for a date that no calendar has."""
    month, day, hour, minute, second, ms = fields
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, 59 if leap else second, ms * 1000, tz)
    except ValueError:
        return None
    return _ms(moment) + (1000 if leap else 0)


def iso_mark(match: re.Match[str]) -> Mark | None:
    """The mark of a match of `ISO`."""
    g = match.group
    fields = (int(g("mo")), int(g("d")), int(g("h")), int(g("mi")), int(g("s")), fraction_ms(g("f")))
    at = dated(int(g("y")), fields, zone(g("z")))
    return None if at is None else Mark("at", at)


@dataclass(slots=True)
class Anchor:
    """What dates the lines of one log.

    start: the recording's first time, ms. boots: times (ms) at which `[seconds]` were 0, one for each boot that the log
    shows, in order; empty = unknown: then the seconds count from `start`.
    """

    start: int = UNDATED_START_MS
    boots: tuple[int, ...] = ()
    newest: int | None = None
    boot: int | None = None
    _seconds: float = -1.0
    _boot_number: int = 0

    def resolve(self, mark: Mark | None) -> int | None:
        """Milliseconds of the mark, None where there is none."""
        if mark is None:
            return None
        if mark.kind == "at":
            at: int | None = int(mark.value)
        elif mark.kind == "offset":
            at = self.start + round(mark.value * 1000)
        elif mark.kind == "seconds":
            at = self._since_boot(mark.value)
        else:
            at = self._year_of(mark.fields)
        if at is not None:
            self.newest = at
        return at

    def _since_boot(self, seconds: float) -> int:
        if self.boot is None:
            self.boot = self.boots[0] if self.boots else self.start
        elif seconds + REBOOT_SLACK_SECONDS < self._seconds:
            self._boot_number += 1
            if self._boot_number < len(self.boots):
                self.boot = self.boots[self._boot_number]
            else:  # a boot that nobody dated: its first line comes no earlier than the last line of the boot before
                self.boot = (self.newest or self.start) - round(seconds * 1000)
        self._seconds = seconds
        return self.boot + round(seconds * 1000)

    def _year_of(self, fields: tuple[int, ...]) -> int | None:
        """The year that puts the date closest to the log's newest line, else to the recording's start."""
        near = self.newest if self.newest is not None else self.start
        year = datetime.fromtimestamp(near // 1000, UTC).year
        found = [at for y in (year - 1, year, year + 1) if (at := dated(y, fields)) is not None]
        return min(found, key=lambda at: abs(at - near)) if found else None


def boots_of_segments(segments: Sequence[tuple[float, float]], boots: Sequence[int], first_ms: int) -> tuple[int, ...]:
    """Which boots the segments of a log (least and greatest `[seconds]` between two resets) belong to.

    boots: known boot times of the node, ascending. The earliest run of boots is taken whose segments end before the
    next boot and reach into the recording; where none does, the latest.
    """
    spare = len(boots) - len(segments)
    for skip in range(spare + 1):
        ends = [boots[skip + i] + round(high * 1000) for i, (_, high) in enumerate(segments)]
        slack = REBOOT_SLACK_SECONDS * 1000
        fits = all(end <= boots[skip + i + 1] + slack for i, end in enumerate(ends) if skip + i + 1 < len(boots))
        if fits and ends and ends[-1] >= first_ms - slack:
            return tuple(boots[skip : skip + len(segments)])
    return tuple(boots[max(0, spare) :])
