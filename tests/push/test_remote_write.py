"""The wire walker against protobuf's own encoder, and against bytes that no sender of good will makes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.push.bodies import unpack
from collectors.push.parts import PushRefused
from collectors.push.remote_write import Decoder
from collectors.push.series import SeriesBook
from core.config import TargetBudget
from tests.push.encode import message, snappy, write_request

NAMES = st.sampled_from(["m", "DCGM_FI_DEV_GPU_TEMP", "up", "a:b_total"])
PAIRS = st.dictionaries(st.sampled_from(["job", "instance", "Hostname", "UUID", "gpu", "a", "z9"]), st.text(max_size=6), max_size=5)
VALUES = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, float("inf")]))
TIMES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, 1_790_000_000_000]))
ROWS = st.lists(st.tuples(NAMES, PAIRS, st.lists(st.tuples(TIMES, VALUES), max_size=3)), max_size=6)


def read(decoder: Decoder, data: bytes) -> list[tuple[str, tuple[tuple[str, str], ...], int, int]]:
    samples = decoder.read(data).samples
    bits = np.ascontiguousarray(samples.values).view(np.uint64)
    book = decoder._book
    return [(book.series[n].name, book.series[n].labels, int(at), int(b))
            for n, at, b in zip(samples.ids, samples.at, bits, strict=True)]


def refusal_of(decoder: Decoder, data: bytes) -> PushRefused | None:
    try:
        decoder.read(data)
    except PushRefused as error:
        return error
    return None


def shuffled(rng: object, name: str, labels: dict[str, str]) -> list[tuple[str, str]]:
    pairs = [("__name__", name), *labels.items()]
    rng.shuffle(pairs)  # type: ignore[attr-defined]
    return pairs


@given(st.lists(ROWS, min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_reads_what_protobuf_writes(requests: list, rng: object) -> None:
    """Series in any order, labels in any order, zeros left out, requests that repeat each other: the same samples."""
    decoder = Decoder(SeriesBook(), "sender")
    for rows in [*requests, *requests]:
        data = write_request([(shuffled(rng, name, labels), samples) for name, labels, samples in rows])
        wanted = [(name, tuple(sorted((k, v) for k, v in labels.items() if v)), at, struct.unpack("<Q", struct.pack("<d", value))[0])
                  for name, labels, samples in rows for at, value in samples]
        zero, minus_zero = 0, 1 << 63  # protobuf's own encoder writes -0.0, gogo's leaves it out
        assert [r for r in read(decoder, data) if r[3] != minus_zero or zero] == [r for r in wanted if r[3] != minus_zero or zero]


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Whatever comes: samples or one refusal with a sentence, never another error."""
    refused = refusal_of(Decoder(SeriesBook(), "sender"), data)
    assert refused is None or refused.status in (400, 413)


@given(ROWS, st.data())
@settings(max_examples=120, deadline=None)
def test_damaged_requests_are_read_or_refused(rows: list, data: st.DataObject) -> None:
    """Cut off, or with a byte changed: read (where it still is a request) or refused. protobuf's own reader agrees."""
    good = write_request([({"__name__": name, **labels}, samples) for name, labels, samples in rows])
    if not good:
        return
    position = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:position] if data.draw(st.booleans()) else (
        good[:position] + bytes([data.draw(st.integers(0, 255))]) + good[position + 1:])
    decoder = Decoder(SeriesBook(), "sender")
    decoder.read(good)
    refused = refusal_of(decoder, damaged)
    if refused is not None:
        assert refused.reason == "bad_protobuf"
        return
    ours = decoder.read(damaged)
    try:
        theirs = message("WriteRequest").FromString(damaged)
    except Exception:
        return  # a stricter reader than ours: unknown groups, texts in fields that are passed over
    count = sum(len(series.samples) for series in theirs.timeseries)
    assert len(ours.samples) + sum(ours.refused.values()) >= count


@pytest.mark.parametrize(("labels", "sentence"), [
    ([("job", "x")], "a series has no __name__."),
    ([("__name__", "m"), ("a", "1"), ("a", "2")], "the label 'a' stands twice in one series."),
    ([("__name__", "m"), ("a", ""), ("a", "")], "the label 'a' stands twice in one series."),
    ([("__name__", "9m")], "'9m' is no metric name."),
    ([("__name__", "m"), ("a-b", "1")], "'a-b' is no label name."),
    ([("__name__", "m"), ("a", "x" * 21)], "the value of the label 'a' has more than 20 bytes."),
    ([("__name__", "m"), *((f"l{i}", "1") for i in range(8))], "a series has 9 labels, 8 are allowed."),
])
def test_wrong_labels_are_refused_by_series(labels: list, sentence: str) -> None:
    """One sentence says what is wrong; the other series of the request are kept."""
    decoder = Decoder(SeriesBook(TargetBudget(labels=8, label_value_bytes=20)), "sender")
    parsed = decoder.read(write_request([(labels, [(1, 1.0)]), ({"__name__": "good"}, [(1, 2.0)])]))
    assert (parsed.sentence, len(parsed.samples)) == (sentence, 1)


def test_a_target_over_its_budget_costs_the_others_nothing() -> None:
    """The series beyond the budget are refused by name, another target's are taken."""
    decoder = Decoder(SeriesBook(TargetBudget(series=10)), "sender")
    rows = [({"__name__": "m", "i": str(i), "job": "j", "instance": "a:1"}, [(1, 1.0)]) for i in range(15)]
    parsed = decoder.read(write_request([*rows, ({"__name__": "m", "job": "j", "instance": "b:1"}, [(1, 1.0)])]))
    assert (parsed.refused["too_many_series"], len(parsed.samples)) == (5, 11)
    assert parsed.sentence == "the target push/j/a:1 has 10 series, no more are taken of it."


def test_metadata_names_types_and_native_histograms_are_named() -> None:
    """A family's type is known once its metadata came; native histograms are refused by name, exemplars passed over."""
    decoder = Decoder(SeriesBook(), "sender")
    decoder.read(write_request([], [("h", 3), ("c_total", 1)]))
    request = message("WriteRequest").FromString(write_request([
        ({"__name__": "h_bucket", "le": "1"}, [(1, 1.0)]), ({"__name__": "c_total"}, [(1, 1.0)]), ({"__name__": "n"}, [])]))
    request.timeseries[1].exemplars.add(value=3.0)
    request.timeseries[2].histograms.add(value=1.0)
    parsed = decoder.read(request.SerializeToString())
    assert [decoder._book.series[n].type for n in parsed.samples.ids] == ["histogram", "counter"]
    assert dict(parsed.refused) == {"native_histogram": 1}


@pytest.mark.parametrize(("body", "status", "reason"), [
    (b"", 400, "bad_encoding"),
    (b"\xff\xff\xff\xff\x0f", 413, "body_too_large"),  # announces 4 GiB
    (b"\x80\x80\x80\x04abcd", 400, "bad_encoding"),  # announces 8 MiB in four bytes
    (b"\xff\x06\x00\x00sNaPpY", 400, "bad_encoding"),  # the framed format
    (b"\x05\x00", 400, "bad_encoding"),
    (snappy(bytes(2_000_000))[:-3], 400, "bad_encoding"),
])
def test_snappy_bombs_and_damage(body: bytes, status: int, reason: str) -> None:
    """A block's announced size is checked before anything is unpacked."""
    with pytest.raises(PushRefused) as caught:
        unpack(body, "snappy", 16 * 1024 * 1024)
    assert (caught.value.status, caught.value.reason) == (status, reason)


def test_snappy_at_its_best_ratio_is_taken() -> None:
    """A megabyte of zeros is the most that snappy can pack, and is no bomb."""
    assert unpack(snappy(bytes(1_000_000)), "snappy", 2_000_000) == bytes(1_000_000)
