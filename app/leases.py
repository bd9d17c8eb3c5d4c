"""The owner's lease table: which worker reads which target from which time on, kept in a file that outlives the owner.

A planned change takes force a little ahead, so that all workers know it when its time comes: nothing is missed and
nothing read twice. A dead worker is taken out from its last word on: what it had not reported is the others' business
now, and they read late what they can. What a worker hands over for a time at which the target was another's is refused by
name, so a worker that was only asleep doubles nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from collectors.page_shape import whole_target
from collectors.shards import LeaseTable, Segment
from core.types import Batch, Scrape

KEPT_MS = 900_000  # segments that ended so long ago are dropped: no batch is so late


class Leases:
    """See the module. Not for several threads at once. file: None = not kept."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.table = _read(file)

    @property
    def generation(self) -> int:
        return self.table.generation

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers of the newest segment, be it in force yet or not."""
        return self.table.segments[-1].workers if self.table.segments else ()

    def share(self, workers: Iterable[str], from_ms: int) -> None:
        """From this time on these workers share the targets; what was planned for later is withdrawn."""
        fresh = tuple(sorted(set(workers), key=by_number))
        kept = [one for one in self.table.segments if one.from_ms < from_ms]
        self._issue([*kept, Segment(self.generation + 1, from_ms, fresh)], from_ms)

    def bury(self, worker: str, last_word_ms: int) -> bool:
        """Takes a dead worker out of everything after its last word. False where it is the only one: then its leases
        wait for its restart."""
        after = last_word_ms + 1
        in_force = self.table.at(after)
        if in_force is None or not set(self.workers) - {worker}:
            return False
        later = [one for one in self.table.segments if one.from_ms > after]
        fresh = [Segment(0, from_ms, tuple(w for w in one.workers if w != worker))
                 for from_ms, one in [(after, in_force), *((one.from_ms, one) for one in later)]]
        if any(not one.workers for one in fresh):
            fresh = [one for one in fresh if one.workers]
        numbered = [replace(one, generation=self.generation + 1 + i) for i, one in enumerate(fresh)]
        self._issue([*(one for one in self.table.segments if one.from_ms < after), *numbered], after)
        return True

    def _issue(self, segments: list[Segment], from_ms: int) -> None:
        live = [one for i, one in enumerate(segments)
                if i + 1 == len(segments) or segments[i + 1].from_ms > from_ms - KEPT_MS]
        self.table = LeaseTable(live)
        if self._file is not None:
            fresh = self._file.with_suffix(".tmp")
            with fresh.open("w", encoding="utf-8") as out:
                json.dump(self.table.as_json(), out)
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(self._file)

    def check(self, batch: Batch) -> tuple[Batch, int]:
        """(the batch without the scrapes that its worker had no lease for, how many those are)."""
        held = [one for one in batch.scrapes if self._valid(batch.worker, one)]
        refused = len(batch.scrapes) - len(held)
        return (batch if not refused else replace(batch, scrapes=tuple(held))), refused

    def _valid(self, worker: str, scrape: Scrape) -> bool:
        return not scrape.generation or self.table.holds(worker, whole_target(scrape.target_id), scrape.at)


def by_number(worker: str) -> tuple[str, int]:
    """A sort key in which `collector-2` comes before `collector-10`."""
    stem, _, number = worker.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (worker, -1)


def _read(file: Path | None) -> LeaseTable:
    """The table of the file; an empty one where there is none, or where it is damaged (then leases are issued anew)."""
    if file is None:
        return LeaseTable()
    try:
        return LeaseTable.of_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return LeaseTable()
