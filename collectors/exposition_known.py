"""What has been read before: metric names and label blocks, so that a line like an earlier one costs two look-ups.

On the pages of real exporters few label blocks serve many metrics (eight on a node's DCGM page), and names and blocks
repeat from page to page. A known name right before a known block is a valid prefix: each token was checked when it was
first seen, by the same grammar, and neither depends on what follows it.
"""

from __future__ import annotations

import re

from collectors.exposition_grammar import Labels, read_labels

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*+")


class Known:
    """The series read so far, at most `most`; beyond it all are forgotten. May be kept between the pages of a target."""

    def __init__(self, most: int = 200_000) -> None:
        self._most = most
        self._count = 0
        self._openmetrics: bool | None = None
        self._names: dict[bytes, str] = {}
        self._by_labels: dict[Labels, Block] = {}
        self.blocks: dict[bytes, Block] = {}

    def use_for(self, openmetrics: bool) -> None:
        """Forgets all where the format changes: what one takes, the other may refuse."""
        if self._openmetrics is not openmetrics:
            self._openmetrics = openmetrics
            self.forget()

    def forget(self) -> None:
        """Starts anew, as if nothing had been read."""
        self._count = 0
        self._names.clear()
        self._by_labels.clear()
        self.blocks.clear()

    def block(self, raw: bytes, labels: int, value_bytes: int) -> Block:
        """The block of a text `{...}` that matched the grammar, or of no text. SourceError as `read_labels`."""
        found = self.blocks.get(raw)
        if found is None:
            pairs = read_labels(raw, labels, value_bytes) if raw else ()
            found = self._of(pairs)
            self._grow()
            self.blocks[raw] = found
        return found

    def series(self, block: Block, raw: bytes) -> Series | None:
        """The series of a name in a block; None where `raw` is no metric name."""
        found = block.series.get(raw)
        if found is None:
            name = self._names.get(raw)
            if name is None:
                if _NAME.fullmatch(raw) is None:
                    return None
                name = self._names[raw] = raw.decode()
            found = Series(name, block.labels)
            if block.bare is not None:
                found.identity = self.series(block.bare, raw)
            self._grow()
            block.series[raw] = found
        return found

    def _of(self, pairs: Labels) -> Block:
        found = self._by_labels.get(pairs)
        if found is None:
            found = self._by_labels[pairs] = Block(pairs)
            bare = tuple(pair for pair in pairs if pair[1])
            if bare != pairs:
                found.bare = self._of(bare)
        return found

    def _grow(self) -> None:
        self._count += 1
        if self._count > self._most:
            self.forget()

    def __len__(self) -> int:
        return self._count


class Block:
    """A set of labels. bare: the same without empty values (what makes a series' identity), None where none is empty."""

    __slots__ = ("bare", "labels", "series")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.bare: Block | None = None
        self.series: dict[bytes, Series] = {}


class Series:
    """A name with labels. identity: the series without empty labels that it is the same as, None where none is empty."""

    __slots__ = ("identity", "labels", "name")

    def __init__(self, name: str, labels: Labels) -> None:
        self.name, self.labels = name, labels
        self.identity: Series | None = None
