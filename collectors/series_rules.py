"""What a job says of the series of a page: metric_relabel_configs and the limits on labels.

It is asked when a layout is built, so a page with the same series as before costs nothing more. A dropped series is left out
of the layout; of two that become equal the first one counts, as it does for Prometheus. The series that Greylag adds itself
(`up`, ...) are not relabelled, and a page's series cannot become one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from collectors.page_shape import Labels, Row, section_of
from collectors.relabel import LABEL, relabel_in_place
from collectors.scrape_target import ScrapeTarget
from core.errors import SourceError, quote

NAME = "__name__"
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class SeriesRules:
    """Of one target. tolerated: where series that became equal are counted."""

    def __init__(self, target: ScrapeTarget, tolerated: Counter[str]) -> None:
        self._target, self._tolerated = target, tolerated
        self._limited = bool(target.label_limit or target.label_name_length_limit or target.label_value_length_limit)
        self._labels: dict[Labels, Labels] = {}
        self.repeats = 0  # of the last rows: left out, since they became equal to an earlier one

    def rows(self, rows: list[Row], taken: Collection[tuple[str, Labels]] = ()) -> list[Row]:
        """The rows that are kept, relabelled. taken: names and labels that no page can speak for.

        Raises SourceError: `bad_relabelling`, `label_limits`, `too_many_samples` (counted after relabelling).
        """
        if self._target.rules:
            rows = self._relabelled(rows, taken)
            if 0 < self._target.sample_limit < len(rows):
                raise SourceError("too_many_samples", f"{len(rows)} samples, {self._target.sample_limit} are allowed")
        if self._limited:
            self._check(rows)
        return rows

    @staticmethod
    def moved(before: Sequence[Row], changed: Collection[int], left: dict[int, tuple[str, Labels]]) -> list[Row] | None:
        """The rows of a section with other names and labels for the changed samples, which are taken out of `left`.

        None where one of them is dropped, belongs to another section, or is another series of this one.
        """
        out = []
        for row in before:
            if row[3] in changed:
                new = left.pop(row[3], None)
                if new is None or section_of(new[0]) != section_of(row[0]):
                    return None
                out.append((*new, row[2], row[3]))
            else:
                out.append(row)
        return out if len({row[:2] for row in out}) == len(out) else None

    def _relabelled(self, rows: Sequence[Row], taken: Collection[tuple[str, Labels]]) -> list[Row]:
        self._labels = {}  # equal sets of labels are one object, as far as one page goes
        out: dict[tuple[str, Labels], Row] = {}
        sound: set[str] = set()
        self.repeats = 0
        after = relabel_in_place([{**dict(row[1]), NAME: row[0]} for row in rows], self._target.rules)
        for row, labels in zip(rows, after, strict=True):
            if not labels:
                continue
            name = labels.pop(NAME, "")
            if (name != row[0] and _METRIC.fullmatch(name) is None) or not (labels.keys() <= sound or _are_sound(labels, sound)):
                raise SourceError("bad_relabelling", f"{quote(row[0])} becomes {quote(name)} with labels {quote(list(labels))}")
            found = tuple(sorted(labels.items()))
            if found == row[1]:
                found = row[1]
            found = self._labels.setdefault(found, found)
            if (name, found) in out:
                self._tolerated["duplicate_series"] += 1
                self.repeats += 1
            elif (name, found) not in taken:
                out[name, found] = (name, found, row[2], row[3])
        return list(out.values())

    def _check(self, rows: Sequence[Row]) -> None:
        """Prometheus counts the name as a label, and lengths in bytes."""
        most, longest_name, longest_value = (self._target.label_limit, self._target.label_name_length_limit,
                                             self._target.label_value_length_limit)
        sound: set[int] = set()
        if 0 < longest_name < len(NAME):
            raise SourceError("label_limits", f"label_name_length_limit is {longest_name}, {NAME} is longer")
        for name, labels, _, _ in rows:
            if 0 < longest_value < len(name):
                raise SourceError("label_limits", f"the name {quote(name)} has more than {longest_value} bytes")
            if id(labels) in sound:
                continue
            sound.add(id(labels))
            if 0 < most < len(labels) + 1:
                raise SourceError("label_limits", f"{quote(name)} has {len(labels) + 1} labels, {most} are allowed")
            for label, value in labels:
                if 0 < longest_name < len(label) or 0 < longest_value < len(value.encode("utf-8", "replace")):
                    raise SourceError("label_limits", f"the label {quote(label)} of {quote(name)} or its value is too long")


def _are_sound(labels: Iterable[str], sound: set[str]) -> bool:
    """Whether all are names of labels; those that are join `sound`."""
    sound.update(one for one in labels if LABEL.fullmatch(one) is not None)
    return all(one in sound for one in labels)
