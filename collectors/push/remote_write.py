"""Prometheus remote write 1.0: `prometheus.WriteRequest` walked by hand, keyed on the bytes of each series' labels.

A sender repeats its series in nearly the same order. The decoder remembers which label bytes came after which, compares
bytes, and looks at labels one by one only where they differ: what is byte-equal needs no second reading. proto3 leaves
zero values out: a sample without a value is 0, one without a timestamp is of 1970. Stale markers keep their bits.

Fields that are read: timeseries {labels, samples}, metadata {type, metric_family_name}. Exemplars are passed over.
Native histograms have no series here and are refused by name.
"""

from __future__ import annotations

import struct
from collections import OrderedDict

import numpy as np

from collectors.push.parts import Parsed, PushRefused, Samples, bad
from collectors.push.protowire import FIXED64, LENGTH, VARINT, WireError, fields, signed, span, text, varint
from collectors.push.series import SeriesBook, check_labels, check_name, check_pair

MOST_SAMPLES = 1_000_000  # of one request; Prometheus sends 500 by default, vmagent 10,000
SPARE_BLOCKS = 10_000  # label blocks that a decoder remembers beside two for each series: a sender keeps one order
MOST_PAIRS = 200_000
MOST_SENDERS = 64
MOST_FAMILIES = 100_000
_TYPES = {1: "counter", 2: "gauge", 3: "histogram", 5: "summary"}
_ZERO = struct.pack("<d", 0.0)
_SERIES, _METADATA = 1, 3
_LABEL, _SAMPLE, _HISTOGRAM = 1, 2, 4


class Decoder:
    """Reads the requests of one sender. Not safe for several threads."""

    def __init__(self, book: SeriesBook, sender: str) -> None:
        self._book, self._sender = book, sender
        self._blocks: dict[bytes, int] = {}
        self._after: dict[int, tuple[bytes, int]] = {}  # series → label bytes and number of the one that came next
        self._pairs: dict[bytes, tuple[str, str]] = {}
        self._names: set[str] = set()
        self._generation = book.generation

    def read(self, data: bytes) -> Parsed:
        """All of a request. Raises PushRefused(`bad_protobuf`) where it is no WriteRequest; a series whose labels are
        wrong is refused by itself."""
        if self._generation != self._book.generation or len(self._blocks) > 2 * len(self._book) + SPARE_BLOCKS:
            self._blocks.clear()
            self._after.clear()
            self._pairs.clear()
            self._names.clear()
            self._generation = self._book.generation
        out = _Rows()
        try:
            self._request(data, out)
        except WireError as error:
            raise bad("bad_protobuf", f"the body is no remote write 1.0 request: {error}.") from None
        out.parsed.samples = out.samples()
        return out.parsed

    def _request(self, data: bytes, out: _Rows) -> None:
        pos, end = 0, len(data)
        before = -1
        while pos < end:
            if data[pos] == 0x0A:  # timeseries, the only field of most requests
                if pos + 2 < end and data[pos + 1] >= 0x80 and data[pos + 2] < 0x80:  # a length of two bytes, the usual one
                    start = pos + 3
                    pos = start + (data[pos + 1] & 0x7F | data[pos + 2] << 7)
                    if pos > end:
                        raise WireError("a length points behind the end of its message")
                else:
                    start, pos = span(data, pos + 1, end)
                before = self._series(data, start, pos, before, out)
                if len(out.ids) > MOST_SAMPLES:
                    raise PushRefused(413, "body_too_large", f"the request has more than {MOST_SAMPLES} samples: send smaller ones.")
                continue
            for number, kind, start, stop in fields(data, pos, end):
                if number == _SERIES and kind == LENGTH:
                    before = self._series(data, start, stop, before, out)
                elif number == _METADATA and kind == LENGTH:
                    self._metadata(data, start, stop)
                pos = stop
                break

    def _series(self, data: bytes, pos: int, end: int, before: int, out: _Rows) -> int:
        """One time series; gives its number, or `before` where it was refused."""
        expected = self._after.get(before)
        if expected is not None and data.startswith(expected[0], pos):
            cut = pos + len(expected[0])
            if cut < end and data[cut] == 0x12 and out.take(data, cut, end, expected[1]):
                return expected[1]
        labels: list[bytes] = []
        cut = pos
        while cut < end and data[cut] == 0x0A:
            start, cut = span(data, cut + 1, end)
            labels.append(data[start:cut])
        if not _only_samples(data, cut, end):
            return self._odd_series(data, pos, end, before, out)
        block = data[pos:cut]
        number = self._blocks.get(block)
        if number is None:
            try:
                number = self._blocks[block] = self._number(labels)
            except PushRefused as error:
                out.parsed.refuse(error.reason, error.sentence, max(1, _count_samples(data, cut, end)))
                return before
        self._after[before] = (block, number)
        if not out.take(data, cut, end, number):
            return self._odd_series(data, pos, end, before, out)
        return number

    def _odd_series(self, data: bytes, pos: int, end: int, before: int, out: _Rows) -> int:
        """A series whose labels do not stand together before its samples, or that holds other fields."""
        labels = [data[start:stop] for number, kind, start, stop in fields(data, pos, end)
                  if number == _LABEL and kind == LENGTH]
        samples = [(start, stop) for number, kind, start, stop in fields(data, pos, end)
                   if number == _SAMPLE and kind == LENGTH]
        histograms = sum(1 for number, kind, _, _ in fields(data, pos, end) if number == _HISTOGRAM and kind == LENGTH)
        if histograms:
            out.parsed.refuse("native_histogram", "native histograms are not taken: they were left out of the request.", histograms)
        try:
            number = self._number(labels)
        except PushRefused as error:
            out.parsed.refuse(error.reason, error.sentence, max(1, len(samples)))
            return before
        for start, stop in samples:
            out.slow(data, start, stop, number)
        return number

    def _number(self, labels: list[bytes]) -> int:
        pairs = sorted([self._pairs.get(one) or self._pair(one) for one in labels])
        kept = check_labels(pairs, self._book.budget, checked=True)
        name = next((value for key, value in kept if key == "__name__"), "")
        if name not in self._names:
            self._names.add(check_name(name))
        return self._book.number(name, tuple([pair for pair in kept if pair[0] != "__name__"]), self._sender)

    def _pair(self, label: bytes) -> tuple[str, str]:
        """A label's name and value, checked; a sender repeats few of them in all its series."""
        name = value = ""
        for number, wire, start, stop in fields(label, 0, len(label)):
            if wire == LENGTH and number == 1:
                name = text(label, start, stop)
            elif wire == LENGTH and number == 2:
                value = text(label, start, stop)
        check_pair(name, value, self._book.budget)
        if len(self._pairs) < MOST_PAIRS:
            self._pairs[label] = (name, value)
        return name, value

    def _metadata(self, data: bytes, pos: int, end: int) -> None:
        kind, family = 0, ""
        for number, wire, start, stop in fields(data, pos, end):
            if number == 1 and wire == VARINT:
                kind = start
            elif number == 2 and wire == LENGTH:
                family = text(data, start, stop)
        if kind in _TYPES and family and len(family) <= 512 and len(self._book.types) < MOST_FAMILIES:
            self._book.types.setdefault(family, _TYPES[kind])


class _Rows:
    """Samples as they are found. values: 8 bytes each, so that NaN bits are never touched."""

    def __init__(self) -> None:
        self.parsed = Parsed()
        self.ids: list[int] = []
        self.at: list[int] = []
        self.values: list[bytes] = []
        self._times: dict[bytes, int] = {}

    def samples(self) -> Samples:
        values = np.frombuffer(b"".join(self.values), "<f8").astype(np.float64, copy=False)
        return Samples(np.array(self.at, np.int64), np.array(self.ids, np.int64), values)

    def take(self, data: bytes, pos: int, end: int, number: int) -> bool:
        """The samples from `pos` on. False where anything but samples in their usual form stands there: then nothing of
        the series is taken."""
        # The usual series: one sample with a value and a time of today, 2 + 9 + 7 bytes.
        if end - pos == 18 and data[pos:pos + 3] == b"\x12\x10\x09" and data[pos + 11] == 0x10:
            time = self._times.get(data[pos + 12:end])
            if time is not None:
                self.ids.append(number)
                self.at.append(time)
                self.values.append(data[pos + 3:pos + 11])
                return True
        size = len(self.ids)
        while pos < end:
            if data[pos] != 0x12 or pos + 2 > end or data[pos + 1] >= 0x80:
                return self._undo(size)
            start, stop = pos + 2, pos + 2 + data[pos + 1]
            if stop > end:
                return self._undo(size)
            if stop - start >= 11 and data[start] == 0x09 and data[start + 9] == 0x10:
                value, start = data[start + 1:start + 9], start + 10
            elif stop - start >= 2 and data[start] == 0x10:
                value, start = _ZERO, start + 1
            else:
                return self._undo(size)
            stamp = data[start:stop]
            at = self._times.get(stamp)
            if at is None:
                whole, behind = varint(data, start, stop)
                if behind != stop:
                    return self._undo(size)
                at = self._times[stamp] = signed(whole)
            self.ids.append(number)
            self.at.append(at)
            self.values.append(value)
            pos = stop
        return True

    def _undo(self, size: int) -> bool:
        del self.ids[size:], self.at[size:], self.values[size:]
        return False

    def slow(self, data: bytes, pos: int, end: int, number: int) -> None:
        """One sample in any form."""
        value, at = _ZERO, 0
        for field, wire, start, stop in fields(data, pos, end):
            if field == 1 and wire == FIXED64:
                value = data[start:stop]
            elif field == 2 and wire == VARINT:
                at = signed(start)
        self.ids.append(number)
        self.at.append(at)
        self.values.append(value)


def _only_samples(data: bytes, pos: int, end: int) -> bool:
    """Whether nothing but samples of the usual size stands from `pos` on."""
    while pos + 1 < end and data[pos] == 0x12 and data[pos + 1] < 0x80:
        pos += 2 + data[pos + 1]
    return pos == end


def _count_samples(data: bytes, pos: int, end: int) -> int:
    return sum(1 for number, _, _, _ in fields(data, pos, end) if number == _SAMPLE)


class Decoders:
    """One decoder for each sender, the least lately used forgotten."""

    def __init__(self, book: SeriesBook) -> None:
        self._book = book
        self._by_sender: OrderedDict[str, Decoder] = OrderedDict()

    def of(self, sender: str) -> Decoder:
        """The sender's decoder."""
        found = self._by_sender.get(sender)
        if found is None:
            found = self._by_sender[sender] = Decoder(self._book, sender)
            if len(self._by_sender) > MOST_SENDERS:
                self._by_sender.popitem(last=False)
        self._by_sender.move_to_end(sender)
        return found
