"""Pieces of pushed readings into scrapes with few and stable layouts.

A Prometheus sender cuts one scrape of a target into several requests, at other places each time, and sends its shards up
to its `batch_send_deadline` (5 s) apart. So the pieces of (target, time) are kept until they are whole: every series that
the target's last reading had is there (one that ended comes with a stale marker). What is not whole after `SETTLE_MS` is
handed over as it is.

A target's series stand in **blocks**: series that come together. A block is a target of its own for the owner
(`push/<job>/<instance>`, further blocks `…#2`), so exporters that push their parts at different times do not make each
other stale. A whole block is one scrape of the block's layout; a part of it is a scrape of a smaller layout; a part that
comes `SPLIT_AFTER` times without the block being whole once becomes a block. What comes after its block's scrape of that time was handed over is a scrape
of `…#late`: the owner takes one scrape of a target and a time, and the first one wins.

All layouts are partial: a series that is not in one has not ended. In a whole block's scrape a stale marker stands for a
series that has ended, because the sender said so.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectors.mapping import Mapper
from collectors.push.parts import Ints, Samples
from collectors.push.series import PushTarget, SeriesBook
from collectors.recording.grouping import common_node
from core.derive import absent, stale_array
from core.protocols import TargetInfo
from core.types import Floats, Layout, Scrape, Series

SETTLE_MS = 6_000  # Prometheus' batch_send_deadline of 5 s, and a second on the way
QUIET_MS = 2_000  # a target's first reading: as nothing is known of it, what came at once is all
SPLIT_AFTER = 4
MOST_PARTS = 16  # layouts of parts that one block keeps
MOST_PENDING, MOST_READINGS = 500_000, 50_000  # samples, and readings, that wait for the rest of them
RECENT = 64  # times of a block that are known to be handed over
SLACK = 16  # ended series that a layout may carry along beside as many as are alive


@dataclass(slots=True, eq=False)
class _Block:
    """Series that come together. order: their numbers; place: where each stands; alive: bool[len(order)] with a value in
    the newest whole scrape. parts: layouts of parts of it, by positions; repeats: how often each part came since the block
    last was whole."""

    id: str
    order: list[int] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)
    alive: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    layout: Layout | None = None
    newest: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    parts: OrderedDict[tuple[bool, bytes], Layout] = field(default_factory=OrderedDict)
    repeats: Counter[bytes] = field(default_factory=Counter)
    spacings: deque[int] = field(default_factory=lambda: deque(maxlen=8))

    def missing(self, present: NDArray[np.bool_]) -> bool:
        """Whether a living series is not among the present ones."""
        return bool((self.alive & ~present).any())

    @property
    def interval(self) -> int:
        """The usual ms between its readings, 0 where unknown."""
        return sorted(self.spacings)[len(self.spacings) // 2] if self.spacings else 0


@dataclass(slots=True, eq=False)
class _Pending:
    """The pieces of one target and time. record: number of the first spool record that it stands in."""

    record: int
    first_ms: int
    last_ms: int
    pieces: list[tuple[Ints, Floats]] = field(default_factory=list)
    size: int = 0

    def whole(self) -> tuple[Ints, Floats]:
        """Numbers and values, each series once (the first piece wins), and how they were sent otherwise."""
        if len(self.pieces) == 1:
            ids, values = self.pieces[0]
        else:
            ids = np.concatenate([one[0] for one in self.pieces])
            values = np.concatenate([one[1] for one in self.pieces])
        _, first = np.unique(ids, return_index=True)
        if len(first) != len(ids):
            first.sort()
            ids, values = ids[first], values[first]
        return ids, values


class Assembler:
    """See the module. counts: `whole`, `part` and `late` scrapes, `split` blocks. repeated: samples that
    came twice while their reading was put together."""

    def __init__(self, book: SeriesBook, mapper: Mapper) -> None:
        self._book, self._mapper = book, mapper
        self._blocks: dict[int, list[_Block]] = {}  # by target
        self._block_of: dict[int, _Block] = {}  # by series
        self._pending: dict[tuple[int, int], _Pending] = {}  # by (target, time)
        self._waiting = 0
        self.repeated = 0
        self.counts: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Samples that wait for the rest of their reading."""
        return self._waiting

    def waiting_ids(self) -> Ints:
        """The numbers of the series of which anything waits."""
        pieces = [ids for one in self._pending.values() for ids, _ in one.pieces]
        return np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)

    def oldest_record(self) -> int | None:
        """The first spool record of which anything still waits."""
        return min((one.record for one in self._pending.values()), default=None)

    def add(self, record: int, samples: Samples, received_ms: int) -> None:
        """Takes a request's samples."""
        if not len(samples):
            return
        owner = self._book.owner[samples.ids]
        order = np.lexsort((samples.at, owner))
        owner, at = owner[order], samples.at[order]
        edges = np.flatnonzero((owner[1:] != owner[:-1]) | (at[1:] != at[:-1])) + 1
        bounds = [0, *edges.tolist(), len(order)]
        for start, stop in pairwise(bounds):
            key = (int(owner[start]), int(at[start]))
            one = self._pending.get(key)
            if one is None:
                one = self._pending[key] = _Pending(record, received_ms, received_ms)
            rows = order[start:stop]
            one.pieces.append((samples.ids[rows], samples.values[rows]))
            one.last_ms = max(one.last_ms, received_ms)
            one.size += stop - start
            self._waiting += stop - start

    # --- out ----------------------------------------------------------------------------------------------------------
    def due(self, now_ms: int, everything: bool = False) -> list[tuple[Layout, Scrape]]:
        """The scrapes that are whole or have waited long enough, by time."""
        out: list[tuple[Layout, Scrape]] = []
        everything = everything or self._waiting > MOST_PENDING or len(self._pending) > MOST_READINGS
        for key in sorted(self._pending, key=lambda key: (key[1], key[0])):
            one = self._pending[key]
            target = self._book.targets.get(key[0])
            if target is None:  # forgotten meanwhile: it was silent for longer than anything waits
                self._drop(key)
                continue
            ids, values = one.whole()
            if everything or self._ready(one, ids, now_ms):
                self._drop(key)
                self.repeated += one.size - len(ids)
                out += self._scrapes(target, key[1], ids, values)
        return out

    def _drop(self, key: tuple[int, int]) -> None:
        self._waiting -= self._pending.pop(key).size

    def _ready(self, one: _Pending, ids: Ints, now_ms: int) -> bool:
        age = now_ms - one.first_ms
        if not 0 <= age < SETTLE_MS:
            return True
        touched = self._by_block(ids)
        known = [(block, rows) for block, rows in touched if block is not None]
        if not known:
            return now_ms - one.last_ms >= QUIET_MS
        return not any(block.missing(_present(block, ids[rows])) for block, rows in known)

    def _by_block(self, ids: Ints) -> list[tuple[_Block | None, Ints]]:
        """(block, positions in `ids`) of each block that is touched; None = series that are in no block yet."""
        groups: dict[int, tuple[_Block | None, list[int]]] = {}
        for position, number in enumerate(ids.tolist()):
            block = self._block_of.get(number)
            groups.setdefault(id(block), (block, []))[1].append(position)
        return [(block, np.array(rows, np.int64)) for block, rows in groups.values()]

    def _scrapes(self, target: PushTarget, at: int, ids: Ints, values: Floats) -> list[tuple[Layout, Scrape]]:
        touched = self._by_block(ids)
        new = next((rows for block, rows in touched if block is None), None)
        known = [(block, rows) for block, rows in touched if block is not None]
        out: list[tuple[Layout, Scrape]] = []
        if new is not None:
            home = next((i for i, (block, rows) in enumerate(known)
                         if at not in block.recent and not block.missing(_present(block, ids[rows]))), None)
            if home is None:
                known.append((self._new_block(target), new))
                home = len(known) - 1
            else:
                known[home] = (known[home][0], np.concatenate([known[home][1], new]))
            self._grow(known[home][0], ids[new], ids[known[home][1]])
        for block, rows in known:
            out.append(self._scrape(target, block, at, ids[rows], values[rows]))
        return out

    def _new_block(self, target: PushTarget) -> _Block:
        blocks = self._blocks.setdefault(target.number, [])
        taken = {one.id for one in blocks}
        n = 1
        while (name := target.id if n == 1 else f"{target.id}#{n}") in taken:
            n += 1
        blocks.append(_Block(name))
        return blocks[-1]

    def _grow(self, block: _Block, new: Ints, present: Ints) -> None:
        """Adds series to a block; where it carries many ended ones along, its order is made anew without them."""
        kept = block.order
        alive = int(block.alive.sum()) + len(new)
        if len(kept) + len(new) > 2 * alive + SLACK:
            here = set(present.tolist())
            kept = [number for number, lives in zip(block.order, block.alive.tolist(), strict=True) if lives or number in here]
            kept = [number for number in kept if number not in set(new.tolist())]
            for number in set(block.order) - set(kept):
                self._block_of.pop(number, None)
        self._set_order(block, [*kept, *new.tolist()])

    def _set_order(self, block: _Block, order: list[int]) -> None:
        lives = {number for number, alive in zip(block.order, block.alive.tolist(), strict=True) if alive}
        block.order = order
        block.place = {number: i for i, number in enumerate(order)}
        block.alive = np.array([number in lives for number in order], np.bool_)
        block.layout = None
        block.parts.clear()
        block.repeats.clear()
        for number in order:
            self._block_of[number] = block

    def _scrape(self, target: PushTarget, block: _Block, at: int, ids: Ints, values: Floats) -> tuple[Layout, Scrape]:
        late = at in block.recent
        positions = np.array([block.place[number] for number in ids.tolist()], np.int64)
        present = np.zeros(len(block.order), np.bool_)
        present[positions] = True
        if not late and not block.missing(present):
            self.counts["whole"] += 1
            row = stale_array(len(block.order))
            row[positions] = values
            if at >= block.newest:
                block.alive = ~absent(row)
            if block.layout is None:
                block.layout = self._layout(target, block.id, block.order)
            block.repeats.clear()
            self._note(block, at)
            return block.layout, self._made(block.layout, at, row)
        self.counts["late" if late else "part"] += 1
        order = np.argsort(positions)
        positions, values, ids = positions[order], values[order], ids[order]
        part = positions.tobytes()
        if not late:
            self._note(block, at)
            if at >= block.newest:
                block.alive[positions] = ~absent(values)
            if len(block.repeats) > 4 * MOST_PARTS:
                block.repeats.clear()
            block.repeats[part] += 1
            if block.repeats[part] >= SPLIT_AFTER:
                self.counts["split"] += 1
                return self._scrape(target, self._split(target, block, ids), at, ids, values)
        layout = block.parts.get((late, part))
        if layout is None:
            layout = self._layout(target, f"{block.id}#late" if late else block.id, ids.tolist())
            block.parts[late, part] = layout
            if len(block.parts) > MOST_PARTS:
                block.parts.popitem(last=False)
        else:
            block.parts.move_to_end((late, part))
        return layout, self._made(layout, at, values)

    def _note(self, block: _Block, at: int) -> None:
        if block.newest and at > block.newest:
            block.spacings.append(at - block.newest)
        block.newest = max(block.newest, at)
        block.recent.append(at)

    def _split(self, target: PushTarget, block: _Block, ids: Ints) -> _Block:
        """Parts a block in two: `ids` and the rest; the larger one keeps the name. Gives the block of `ids`, which has no
        recent times: its scrape of now is still to be made."""
        here = set(ids.tolist())
        rest = [number for number in block.order if number not in here]
        lives = {number for number, alive in zip(block.order, block.alive.tolist(), strict=True) if alive}
        stays = len(here) * 2 >= len(block.order)
        fresh = self._new_block(target)
        fresh.newest, fresh.spacings, fresh.recent = block.newest, deque(block.spacings, 8), deque(block.recent, RECENT)
        moved = rest if stays else ids.tolist()
        fresh.order, fresh.alive = moved, np.array([number in lives for number in moved], np.bool_)
        self._set_order(block, ids.tolist() if stays else rest)
        self._set_order(fresh, moved)
        part = block if stays else fresh
        part.recent.clear()
        return part

    def _made(self, layout: Layout, at: int, row: Floats) -> Scrape:
        return Scrape(layout.id, layout.target_id, at, self._mapper.clean(layout, row))

    def _layout(self, target: PushTarget, name: str, numbers: Iterable[int]) -> Layout:
        rows: list[Series] = []
        for number in numbers:
            one = self._book.series[number]
            assert one is not None
            rows.append(one)
        labels = target.labels
        node = common_node(dict(one.labels) for one in rows)
        if node is not None:
            labels["node"] = node
        return replace(self._mapper.layout(TargetInfo(name, labels, node or target.host), rows), partial=True)

    # --- time ---------------------------------------------------------------------------------------------------------
    def expected(self, now_ms: int) -> int | None:
        """The earliest time (ms) of which a reading is still to be expected: one that waits for its rest, or the next one of
        a target that pushes regularly. None where there is none. A target that went silent is not waited for."""
        times = [at for _, at in self._pending]
        for blocks in self._blocks.values():
            for block in blocks:
                interval = block.interval
                if interval and now_ms - block.newest < 3 * interval + SETTLE_MS:
                    times.append(block.newest + interval)
        return min(times, default=None)

    def forget(self, numbers: Iterable[int]) -> None:
        """Takes forgotten series out of their blocks (nothing of them may wait)."""
        gone = set(numbers)
        touched = {id(block): block for number in gone if (block := self._block_of.pop(number, None)) is not None}
        for block in touched.values():
            self._set_order(block, [number for number in block.order if number not in gone])
        for number, blocks in list(self._blocks.items()):
            kept = [block for block in blocks if block.order]
            if number not in self._book.targets or not kept:
                del self._blocks[number]
            else:
                self._blocks[number] = kept


def _present(block: _Block, ids: Ints) -> NDArray[np.bool_]:
    present = np.zeros(len(block.order), np.bool_)
    present[[block.place[number] for number in ids.tolist()]] = True
    return present
