"""What one scrape target may cost: which series of its page are kept when it has too many, too new or too large ones.

Over a budget a page is not lost: series are left out by priority, health signals last. Asked only when the series of a page
changed, so a steady page pays nothing.

1. A series with too many labels, or too long ones, is left out (`shed_labels`).
2. Series never seen before are counted over a sliding hour; over the budget those without a canonical signal are left
   out until the hour moves on (`shed_churn_budget`). Known series go on. The first page of a target is what is known.
3. Over the budget of series (`shed_series_budget`) are kept, in this order: series that mean a canonical signal, the
   scraper's own (`up`), and of the rest those that were kept before, then the small families: what explodes is one family.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.config import TargetBudget
from core.types import Series

OWN_NAMES = frozenset({
    "up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
})
MINUTE_MS, MINUTES = 60_000, 60
NONE_SHED: Mapping[str, int] = {}

Meaning = Callable[[Series], bool]
Hashes = NDArray[np.uint32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Admission:
    """kept: indexes of the series that stay, ascending. shed: how many were left out, by named reason."""

    kept: Sequence[int]
    shed: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """What is known of one target, in 4 bytes a series. now: hashes of the series kept at the last look, sorted. past:
    (minute in which they went, hashes). added: (minute, how many never seen before were kept in it)."""

    now: Hashes
    past: deque[tuple[int, Hashes]] = field(default_factory=deque)
    added: deque[tuple[int, int]] = field(default_factory=deque)

    def forget(self, minute: int) -> None:
        """Drops what is older than an hour."""
        while self.past and self.past[0][0] <= minute - MINUTES:
            self.past.popleft()
        while self.added and self.added[0][0] <= minute - MINUTES:
            self.added.popleft()

    def known(self, hashes: Hashes) -> Bools:
        """bool like `hashes`: seen within the last hour."""
        out = np.isin(hashes, self.now)
        for _, gone in self.past:
            if out.all():
                break
            out |= np.isin(hashes, gone)
        return out

    def keep(self, minute: int, kept: Hashes, fresh: int) -> None:
        """Takes what was kept now; `fresh` of them had never been seen."""
        gone = np.setdiff1d(self.now, kept)
        if len(gone):
            if self.past and self.past[-1][0] == minute:
                gone = np.union1d(self.past.pop()[1], gone)
            self.past.append((minute, gone))
        self.now = np.unique(kept)
        if fresh:
            if self.added and self.added[-1][0] == minute:
                fresh += self.added.pop()[1]
            self.added.append((minute, fresh))


class TargetBudgetKeeper:
    """Holds the budget of every target of a worker. Not for use from several threads.

    Memory: 4 bytes for each series of a target's page, and for each that it had within the last hour; the latter is bounded
    by the budgets themselves.
    """

    def __init__(self, budget: TargetBudget | None = None) -> None:
        self.budget = budget or TargetBudget()
        self.stamp = 0
        self._seen: dict[str, _Seen] = {}
        self._shed: dict[str, Mapping[str, int]] = {}
        self._health_only = False
        self._reason = "shed_cpu"

    # --- the process asks for less ------------------------------------------------------------------------------------
    @property
    def health_only(self) -> bool:
        """True while only series with a canonical signal are kept, because the process is over its own budget."""
        return self._health_only

    def set_health_only(self, on: bool, reason: str = "shed_cpu") -> None:
        """Changes it. `stamp` grows: whoever holds a layout that was made under an older stamp makes it anew."""
        if on != self._health_only:
            self._health_only, self._reason = on, reason
            self.stamp += 1

    # --- the targets --------------------------------------------------------------------------------------------------
    def admit(self, target_id: str, series: Sequence[Series], meaning: Meaning | Collection[int], now_ms: int) -> Admission:
        """Which of a page's series are kept. meaning: says of a series whether it carries a canonical signal, or the
        indexes of those that do; it is asked only where something has to be left out. now_ms: cluster time."""
        budget, n, minute = self.budget, len(series), now_ms // MINUTE_MS
        shed: Counter[str] = Counter()
        hashes, kept = _labels_of(series, budget)
        if not kept.all():
            shed["shed_labels"] = n - int(kept.sum())
        health = _Health(series, meaning)
        if self._health_only:
            wanted = health.mask(kept) | _own(series)
            shed[self._reason] = int((kept & ~wanted).sum())
            kept &= wanted
        seen = self._seen.get(target_id)
        known = np.ones(n, np.bool_)
        if seen is not None:
            seen.forget(minute)
            known = seen.known(hashes)
            self._churn(seen, series, kept, known, health, shed)
        if 0 < budget.series < int(kept.sum()):
            first = np.flatnonzero(kept)[_order(series, kept, known, health)[:budget.series]]
            shed["shed_series_budget"] = int(kept.sum()) - len(first)
            kept = np.zeros(n, np.bool_)
            kept[first] = True
        if seen is None:
            self._seen[target_id] = _Seen(np.unique(hashes[kept]))
        else:
            seen.keep(minute, hashes[kept], int((kept & ~known).sum()))
        counts = {reason: count for reason, count in shed.items() if count}
        self._shed[target_id] = counts
        return Admission(range(n) if kept.all() else np.flatnonzero(kept).tolist(), counts)

    def exchange(self, target_id: str, gone: Sequence[Series], come: Sequence[Series], meaning: Meaning, now_ms: int) -> bool:
        """As many series of a page that was kept whole as got other labels: True where all are kept, which is noted. False,
        and nothing noted, where a budget has to look at the whole page (`admit`)."""
        seen = self._seen.get(target_id)
        hashes, fits = _labels_of(come, self.budget)
        if seen is None or len(come) != len(gone) or not fits.all():
            return False
        seen.forget(now_ms // MINUTE_MS)
        known = seen.known(hashes)
        kept, shed = fits.copy(), Counter[str]()
        self._churn(seen, come, kept, known, _Health(come, meaning), shed)
        if any(shed.values()):
            return False
        stays = np.setdiff1d(seen.now, _labels_of(gone, self.budget)[0])
        seen.keep(now_ms // MINUTE_MS, np.union1d(stays, hashes), int((~known).sum()))
        return True

    def _churn(self, seen: _Seen, series: Sequence[Series], kept: Bools, known: Bools, health: _Health,
               shed: Counter[str]) -> None:
        """Takes new series without a signal out of `kept`, where the hour has no room for them."""
        limit = self.budget.new_series_per_hour
        fresh = kept & ~known
        room = limit - sum(count for _, count in seen.added)
        if limit <= 0 or int(fresh.sum()) <= room:
            return
        plain = fresh & ~health.mask(fresh) & ~_own(series)
        room -= int((fresh & ~plain).sum())
        left_out = np.flatnonzero(plain)[_order(series, plain, known, None)[max(0, room):]]
        kept[left_out] = False
        shed["shed_churn_budget"] = len(left_out)

    def room(self, target_id: str, now_ms: int) -> int | None:
        """How many series never seen before the target may still bring within this hour; None = any number."""
        seen, limit = self._seen.get(target_id), self.budget.new_series_per_hour
        if limit <= 0 or seen is None:
            return None
        seen.forget(now_ms // MINUTE_MS)
        return max(0, limit - sum(count for _, count in seen.added))

    def note(self, target_id: str, shed: Mapping[str, int]) -> None:
        """Adds what was left out of a target's page before its series were known (lines of a page that is far too long)."""
        if shed:
            self._shed[target_id] = dict(Counter(self._shed.get(target_id, {})) + Counter(shed))

    def shed_of(self, target_id: str) -> Mapping[str, int]:
        """How many series of the target's present page are left out, by named reason."""
        return self._shed.get(target_id, NONE_SHED)

    def shedding(self) -> dict[str, Mapping[str, int]]:
        """The targets of which something is left out now."""
        return {target_id: shed for target_id, shed in sorted(self._shed.items()) if shed}

    def forget(self, living: Collection[str]) -> None:
        """Drops what is known of targets that are not among the living."""
        for book in (self._seen, self._shed):
            for gone in [key for key in book if key not in living]:
                del book[gone]  # type: ignore[attr-defined]


class _Health:
    """Which series carry a canonical signal; each is asked about at most once."""

    def __init__(self, series: Sequence[Series], meaning: Meaning | Collection[int]) -> None:
        self._series, self._meaning = series, meaning
        self._asked = np.zeros(len(series), np.bool_)
        self._found = np.zeros(len(series), np.bool_)
        if not callable(meaning):
            self._found[list(meaning)] = True
            self._asked[:] = True

    def mask(self, among: Bools) -> Bools:
        """bool[series]: those among the given that do."""
        meaning = self._meaning
        if callable(meaning):
            for i in np.flatnonzero(among & ~self._asked).tolist():
                self._found[i] = meaning(self._series[i])
            self._asked |= among
        return self._found & among


def _labels_of(series: Sequence[Series], budget: TargetBudget) -> tuple[Hashes, Bools]:
    """(uint32[series], bool[series]): hashes of the series, and which are within the bounds of labels. A set of labels that
    series share (as one object) is looked at once. Hashes are of this process only: a restart knows nothing anyway."""
    keys = [id(one.labels) for one in series]
    sets = {key: one.labels for key, one in zip(keys, series, strict=True)}
    of_set = {key: hash(labels) for key, labels in sets.items()}
    wrong = {key for key, labels in sets.items() if not labels_fit(labels, budget)}
    mixed = np.array([of_set[key] for key in keys], np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.array([hash(one.name) for one in series], np.int64).view(np.uint64)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    fits = np.array([key not in wrong for key in keys], np.bool_) if wrong else np.ones(len(keys), np.bool_)
    return (mixed >> np.uint64(32)).astype(np.uint32), fits


def _own(series: Sequence[Series]) -> Bools:
    return np.fromiter((one.name in OWN_NAMES for one in series), np.bool_, len(series))


def labels_fit(labels: Sequence[tuple[str, str]], budget: TargetBudget) -> bool:
    """Whether a set of labels (without the metric's name) is within the budget."""
    if 0 < budget.labels < len(labels):
        return False
    for name, value in labels:
        if 0 < budget.label_name_bytes < len(name):
            return False
        # A character has at most 4 bytes of UTF-8: only near the limit they are counted.
        if 0 < budget.label_value_bytes < 4 * len(value) and budget.label_value_bytes < len(value.encode()):
            return False
    return True


def _order(series: Sequence[Series], among: Bools, known: Bools, health: _Health | None) -> NDArray[np.intp]:
    """Places within `np.flatnonzero(among)`, what is kept first comes first. Equal pages give equal orders."""
    at = np.flatnonzero(among)
    names = [series[i].name for i in at.tolist()]
    sizes = Counter(names)
    size = np.fromiter((sizes[name] for name in names), np.int64, len(at))
    rank = np.full(len(at), 2)
    rank[[i for i, name in enumerate(names) if name in OWN_NAMES]] = 1
    if health is not None:
        rank[health.mask(among)[at]] = 0
    return np.lexsort((np.arange(len(at)), size, ~known[at], rank))
