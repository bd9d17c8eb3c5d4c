"""The few Protocol Buffers messages of Prometheus' remote read (`prompb/remote.proto`), written and read by hand.

A month of a cluster is billions of samples, so the samples of a series are read as arrays: each is 18 bytes long (9 where
its value is 0, which proto3 leaves out), and only what looks otherwise is read one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from collectors.history.pieces import Piece, split_name
from collectors.protowire import field, varint
from collectors.recording.series import Ints
from core.errors import SourceError
from core.protocols import Matcher
from core.types import Floats

MATCHER_TYPES = {"=": 0, "!=": 1, "=~": 2, "!~": 3}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VALUED, ZERO = 16, 7  # bytes of a sample message with a time of 6 bytes: with a value, without one
TIME_BYTES = 6        # ms since 1970 of the years 1971 to 2109
_SHIFTS = np.array([7 * i for i in range(TIME_BYTES)], np.int64)


# --- writing ----------------------------------------------------------------------------------------------------------
def _number(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def read_request(matchers: Sequence[Matcher], start: int, end: int) -> bytes:
    """A ReadRequest for the samples with start <= at <= end (ms), answered as plain samples."""
    query = _number(1, start) + _number(2, end)
    for one in matchers:
        query += field(3, _number(1, MATCHER_TYPES[one.op]) + field(2, one.label.encode()) + field(3, one.value.encode()))
    return field(1, query)  # accepted_response_types left out: SAMPLES


# --- reading ----------------------------------------------------------------------------------------------------------
def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7
    raise SourceError("truncated", "a number of the answer has no end")


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, its wire type, where its content begins, where it ends); for a varint the content is its bytes."""
    while at < end:
        tag, at = _read_varint(data, at, end)
        kind = tag & 7
        start = at
        if kind == VARINT:
            _, at = _read_varint(data, at, end)
        elif kind == BYTES:
            size, start = _read_varint(data, at, end)
            at = start + size
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        else:
            raise SourceError("bad_syntax", f"a field of the answer has the unknown type {kind}")
        if at > end:
            raise SourceError("truncated", "the answer ends within a field")
        yield tag >> 3, kind, start, at


def read_response(body: bytes) -> Iterator[Piece]:
    """The series of a ReadResponse. Raises SourceError(`truncated`, `bad_syntax`, `bad_encoding`)."""
    data = memoryview(body)
    for number, kind, start, end in _fields(data, 0, len(data)):
        if number == 1 and kind == BYTES:
            for inner, inner_kind, first, last in _fields(data, start, end):
                if inner == 1 and inner_kind == BYTES:
                    yield _time_series(data, first, last)


def _time_series(data: memoryview, at: int, end: int) -> Piece:
    labels: dict[str, str] = {}
    samples_from: int | None = None
    for number, kind, start, stop in _fields(data, at, end):
        if number == 1 and kind == BYTES:
            name, value = _label(data, start, stop)
            labels[name] = value
        elif number == 2 and kind == BYTES:
            samples_from = start - 2  # tag and length take a byte each: a sample is shorter than 128 bytes
            break
    name, pairs = split_name(labels)
    if samples_from is None:
        return Piece(name, pairs, np.empty(0, np.int64), np.empty(0))
    found = _samples_at_once(data, samples_from, end)
    times, values = found if found is not None else _samples_by_one(data, at, end)
    return Piece(name, pairs, times, values)


def _label(data: memoryview, start: int, end: int) -> tuple[str, str]:
    name = value = ""
    try:
        for number, _, first, last in _fields(data, start, end):
            if number == 1:
                name = str(data[first:last], "utf-8")
            elif number == 2:
                value = str(data[first:last], "utf-8")
    except UnicodeDecodeError:
        raise SourceError("bad_encoding", "a label of the answer is no UTF-8") from None
    return name, value


def _samples_at_once(data: memoryview, start: int, end: int) -> tuple[Ints, Floats] | None:
    """(times, values) where every message up to `end` is a sample in one of the two usual forms; else None."""
    raw = np.frombuffer(data[start:end], np.uint8)
    size = len(raw)
    step = 2 + int(raw[1])
    if size % step == 0 and (raw[1::step] == raw[1]).all():
        starts = np.arange(0, size, step)
    else:
        places, at, lengths = [], 0, raw.tolist()
        while at + 1 < size:
            places.append(at)
            at += 2 + lengths[at + 1]
        if at != size:
            return None
        starts = np.array(places, np.int64)
    length = raw[starts + 1]
    valued = length == VALUED
    if (raw[starts] != 0x12).any() or not (valued | (length == ZERO)).all():
        return None
    time_at = starts + np.where(valued, 12, 3)
    if (raw[time_at - 1] != 0x10).any() or (raw[starts[valued] + 2] != 0x09).any():
        return None
    digits = raw[time_at[:, None] + np.arange(TIME_BYTES)]
    if (digits[:, :-1] < 0x80).any() or (digits[:, -1] >= 0x80).any():
        return None
    times = ((digits & 0x7F).astype(np.int64) << _SHIFTS).sum(axis=1)
    values = np.zeros(len(starts))
    values[valued] = raw[starts[valued][:, None] + np.arange(3, 11)].view("<f8").ravel()
    return times, values


def _samples_by_one(data: memoryview, at: int, end: int) -> tuple[Ints, Floats]:
    times: list[int] = []
    bits: list[bytes] = []
    for number, kind, start, stop in _fields(data, at, end):
        if number != 2 or kind != BYTES:
            continue
        when, value = 0, b"\0" * 8
        for inner, inner_kind, first, last in _fields(data, start, stop):
            if inner == 1 and inner_kind == FIXED64:
                value = bytes(data[first:last])
            elif inner == 2 and inner_kind == VARINT:
                number_, _ = _read_varint(data, first, last)
                when = number_ - (1 << 64) if number_ >> 63 else number_
        times.append(when)
        bits.append(value)
    return np.array(times, np.int64), np.frombuffer(b"".join(bits), "<f8").astype(np.float64, copy=True)


def write_response(pieces: Sequence[Piece]) -> bytes:
    """A ReadResponse that holds the pieces: what a server of samples sends. For tests and for a door of our own."""
    out = b""
    for one in pieces:
        series = b""
        for name, value in (("__name__", one.name), *one.labels):
            series += field(1, field(1, name.encode()) + field(2, value.encode()))
        for at, number in zip(one.at.tolist(), one.values.tolist(), strict=True):
            bits = struct.pack("<d", number)
            body = (b"" if bits == b"\0" * 8 else b"\x09" + bits) + (_number(2, at) if at else b"")
            series += field(2, body)
        out += field(1, series)
    return field(1, out)
