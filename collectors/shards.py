"""Who reads which target when: rendezvous hashing over the workers of a lease table.

A *segment* says which workers share the targets from a moment on; the table is a list of segments in the order of time,
and every change of it gets a new generation. The worker of (target, scheduled time) follows from the table alone, so the
owner and all workers come to the same answer, and a target that stays with its worker never notices a change: when a
worker comes or goes, only the targets that it takes or leaves move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from collectors.page_shape import whole_target

LOGS_WORKER = "collector-0"  # the one that follows logs and takes pushes: the first to start and the last to go
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """From `from_ms` (scheduled time, included) until the next segment these workers share the targets."""

    generation: int
    from_ms: int
    workers: tuple[str, ...]


@lru_cache(maxsize=200_000)
def stable_hash(text: str) -> int:
    """64 bits of BLAKE2b: the same in every process, whatever PYTHONHASHSEED says."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(x: int) -> int:
    """The finisher of SplitMix64: spreads the bits of target and worker over the whole word."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def owner_of(target_id: str, workers: Sequence[str]) -> str | None:
    """The worker with the highest weight for the target; None where there is no worker."""
    if len(workers) < 2:
        return workers[0] if workers else None
    target = stable_hash(target_id)
    return max(workers, key=lambda worker: (_mix(target ^ stable_hash(worker)), worker))


class LeaseTable:
    """The segments in the order of time. `generation`: the highest of them, 0 where nothing was ever issued.

    An empty table leases everything to everybody: a worker beside an owner that issues no leases reads all targets.
    """

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.segments = sorted(segments, key=lambda one: (one.from_ms, one.generation))
        self.generation = max((one.generation for one in self.segments), default=0)
        self._owners: dict[tuple[str, ...], dict[str, str | None]] = {}

    def at(self, at_ms: int) -> Segment | None:
        """The segment in force at a scheduled time; before the first one the first holds."""
        for one in reversed(self.segments):
            if one.from_ms <= at_ms:
                return one
        return self.segments[0] if self.segments else None

    def owner(self, target_id: str, at_ms: int) -> str | None:
        """The worker that reads the target (or section of one) at that time, None where nothing is leased."""
        segment = self.at(at_ms)
        if segment is None:
            return None
        known = self._owners.setdefault(segment.workers, {})
        found = known.get(target_id)
        if found is None:
            found = known[target_id] = owner_of(whole_target(target_id), segment.workers)
        return found

    def holds(self, worker: str, target_id: str, at_ms: int) -> bool:
        """True where this worker reads the target at that time."""
        return not self.segments or self.owner(target_id, at_ms) == worker

    def changed_from(self, generation: int) -> int | None:
        """The earliest time whose segment is newer than that generation; None where none is."""
        return min((one.from_ms for one in self.segments if one.generation > generation), default=None)

    def as_json(self) -> list[list[Any]]:
        """[[generation, from_ms, [worker, …]], …]."""
        return [[one.generation, one.from_ms, list(one.workers)] for one in self.segments]

    @staticmethod
    def of_json(rows: Any) -> LeaseTable:
        """The table of `as_json`. Raises ValueError, TypeError or KeyError on anything else."""
        return LeaseTable(Segment(int(generation), int(from_ms), tuple(str(w) for w in workers))
                          for generation, from_ms, workers in rows)


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What the owner answers to a heartbeat. resume_ms: the newest time that it knows this worker to have reported, for
    a worker that starts anew; known: what other workers learned of jobs and boots, for the one that follows the logs."""

    table: LeaseTable
    resume_ms: int | None = None
    jobs: tuple[str, ...] = ()
    boots: Mapping[str, int] | None = None
    version: int = 0

    @staticmethod
    def of_json(found: Mapping[str, Any]) -> LeaseAnswer:
        """Raises ValueError, TypeError or KeyError where the answer is none."""
        resume = found.get("resume_ms")
        known = found.get("known") or {}
        return LeaseAnswer(LeaseTable.of_json(found["segments"]), None if resume is None else int(resume),
                           tuple(str(job) for job in known.get("jobs", ())),
                           {str(node): int(at) for node, at in known.get("boots", {}).items()}, int(known.get("version", 0)))
