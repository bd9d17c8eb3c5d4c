"""Senders' side of the formats, built on protobuf's own library: nothing here is shared with the readers under test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

F = descriptor_pb2.FieldDescriptorProto
# message: [(field, number, type, repeated, message type)]
_MESSAGES: dict[str, list[tuple[str, int, int, bool, str]]] = {
    "Label": [("name", 1, F.TYPE_STRING, False, ""), ("value", 2, F.TYPE_STRING, False, "")],
    "Sample": [("value", 1, F.TYPE_DOUBLE, False, ""), ("timestamp", 2, F.TYPE_INT64, False, "")],
    "Exemplar": [("labels", 1, F.TYPE_MESSAGE, True, "Label"), ("value", 2, F.TYPE_DOUBLE, False, ""),
                 ("timestamp", 3, F.TYPE_INT64, False, "")],
    "TimeSeries": [("labels", 1, F.TYPE_MESSAGE, True, "Label"), ("samples", 2, F.TYPE_MESSAGE, True, "Sample"),
                   ("exemplars", 3, F.TYPE_MESSAGE, True, "Exemplar"), ("histograms", 4, F.TYPE_MESSAGE, True, "Sample")],
    "Metadata": [("type", 1, F.TYPE_INT32, False, ""), ("metric_family_name", 2, F.TYPE_STRING, False, ""),
                 ("help", 4, F.TYPE_STRING, False, ""), ("unit", 5, F.TYPE_STRING, False, "")],
    "WriteRequest": [("timeseries", 1, F.TYPE_MESSAGE, True, "TimeSeries"), ("metadata", 3, F.TYPE_MESSAGE, True, "Metadata")],
    "Stamp": [("seconds", 1, F.TYPE_INT64, False, ""), ("nanos", 2, F.TYPE_INT32, False, "")],
    "Entry": [("timestamp", 1, F.TYPE_MESSAGE, False, "Stamp"), ("line", 2, F.TYPE_STRING, False, ""),
              ("metadata", 3, F.TYPE_MESSAGE, True, "Label")],
    "Stream": [("labels", 1, F.TYPE_STRING, False, ""), ("entries", 2, F.TYPE_MESSAGE, True, "Entry")],
    "PushRequest": [("streams", 1, F.TYPE_MESSAGE, True, "Stream")],
}


@cache
def message(name: str) -> Any:
    """The class of a message."""
    return _classes()[f"greylag.tests.{name}"]


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="greylag_push_tests.proto", package="greylag.tests", syntax="proto3")
    for name, fields in _MESSAGES.items():
        one = file.message_type.add(name=name)
        for field, number, kind, repeated, of in fields:
            label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
            row = one.field.add(name=field, number=number, type=kind, label=label)
            if of:
                row.type_name = f".greylag.tests.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles([file.name], pool)


Rows = Iterable[tuple[Mapping[str, str] | Sequence[tuple[str, str]], Sequence[tuple[int, float]]]]


def write_request(rows: Rows, metadata: Iterable[tuple[str, int]] = ()) -> bytes:
    """A WriteRequest, not packed. rows: (labels with `__name__`, [(ms, value)]); metadata: (family, type number)."""
    request = message("WriteRequest")()
    for labels, samples in rows:
        series = request.timeseries.add()
        for name, value in labels.items() if isinstance(labels, Mapping) else labels:
            series.labels.add(name=name, value=value)
        for at, value in samples:
            series.samples.add(timestamp=at, value=value)
    for family, kind in metadata:
        request.metadata.add(metric_family_name=family, type=kind)
    return bytes(request.SerializeToString())


def loki_request(streams: Iterable[tuple[str, Sequence[tuple[int, str, Mapping[str, str]]]]]) -> bytes:
    """A Loki PushRequest, not packed. streams: (labels as text, [(ms, line, metadata)])."""
    request = message("PushRequest")()
    for labels, entries in streams:
        stream = request.streams.add(labels=labels)
        for at, line, more in entries:
            entry = stream.entries.add(line=line)
            entry.timestamp.seconds, entry.timestamp.nanos = at // 1000, at % 1000 * 1_000_000
            for name, value in more.items():
                entry.metadata.add(name=name, value=value)
    return bytes(request.SerializeToString())


def snappy(data: bytes) -> bytes:
    """A snappy block."""
    return bytes(cramjam.snappy.compress_raw(data))
