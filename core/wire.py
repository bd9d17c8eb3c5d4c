"""Batches on the wire between collector and owner: a JSON header line, one JSON line a layout, then the values as
little-endian float64. Layouts are read one by one: a start hands over thousands of them, of thousands of series each.

Nothing of it is executed on reading (no pickle). Stale markers and NaN keep their bits.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from core.errors import SourceError
from core.types import Batch, Event, Layout, Scrape, Series, SignalRef, Target

_TARGET = ("kind", "node", "device", "id", "job", "rank", "serial")


def _target_out(t: Target) -> list[Any]:
    return [getattr(t, name) for name in _TARGET]


def target_in(row: list[Any]) -> Target:
    """A Target from its list form."""
    return Target(*row)


def layout_out(one: Layout) -> dict[str, Any]:
    """A layout as JSON types: names, types, label sets, signals and parts once each, rows as numbers that point to them.

    A page repeats few label sets and parts in thousands of rows: so a row costs some 10 bytes and no text.
    """
    names: dict[str, int] = {}
    types: dict[str, int] = {}
    sets: dict[tuple[tuple[str, str], ...], int] = {}
    signals: dict[str, int] = {}
    parts: dict[Target, int] = {}
    return {
        "id": one.id, "target_id": one.target_id, "node": one.node, "job": one.job, "source": one.source,
        "partial": one.partial,
        "name": [names.setdefault(s.name, len(names)) for s in one.series],
        "type": [types.setdefault(s.type, len(types)) for s in one.series],
        "set": [sets.setdefault(s.labels, len(sets)) for s in one.series],
        "index": [r.index for r in one.signals],
        "signal": [signals.setdefault(r.signal, len(signals)) for r in one.signals],
        "part": [parts.setdefault(r.target, len(parts)) for r in one.signals],
        "scale": [r.scale for r in one.signals],
        "counter": [i for i, r in enumerate(one.signals) if r.counter],
        "names": list(names), "types": list(types), "sets": list(sets), "signals": list(signals),
        "parts": [_target_out(t) for t in parts],
    }


def layout_in(row: dict[str, Any]) -> Layout:
    """A layout from its JSON types. Raises KeyError, IndexError, TypeError or ValueError where they are damaged."""
    names, types, signals = row["names"], row["types"], row["signals"]
    sets = [tuple([(key, value) for key, value in one]) for one in row["sets"]]
    parts = [target_in(one) for one in row["parts"]]
    counters = set(row["counter"])
    series = tuple([Series(names[n], sets[s], types[t])
                    for n, s, t in zip(row["name"], row["set"], row["type"], strict=True)])
    refs = tuple([SignalRef(at, signals[s], parts[p], scale, i in counters) for i, (at, s, p, scale) in
                  enumerate(zip(row["index"], row["signal"], row["part"], row["scale"], strict=True))])
    if refs and not 0 <= min(row["index"]) <= max(row["index"]) < len(series):
        raise ValueError("a signal of a series that the layout does not have")
    return Layout(row["id"], row["target_id"], series, refs, row["node"], row["job"], row["source"],
                  bool(row.get("partial", False)))


def event_out(one: Event) -> list[Any]:
    """An event as JSON types."""
    return [one.at, _target_out(one.target), one.kind, dict(one.fields), one.line]


def event_in(row: list[Any]) -> Event:
    """An event from its JSON types."""
    return Event(row[0], target_in(row[1]), row[2], row[3], row[4])


def encode_batch(batch: Batch) -> bytes:
    """The batch as bytes."""
    header = {
        "worker": batch.worker, "epoch": batch.epoch, "seq": batch.seq, "watermark": batch.watermark,
        "layouts": len(batch.layouts),
        "scrapes": [[s.layout_id, s.target_id, s.at, len(s.values), s.took_seconds, s.error, s.generation] for s in batch.scrapes],
        "events": [event_out(one) for one in batch.events],
        "telemetry": batch.telemetry,
    }
    parts: list[bytes | memoryview[int]] = [json.dumps(header, separators=(",", ":")).encode(), b"\n"]
    for one in batch.layouts:
        parts += [json.dumps(layout_out(one), separators=(",", ":")).encode(), b"\n"]
    parts += [np.ascontiguousarray(s.values, "<f8").data for s in batch.scrapes if len(s.values)]
    return b"".join(parts)


def decode_batch(data: bytes) -> Batch:
    """The batch that `encode_batch` made. Raises SourceError(`truncated` or `bad_syntax`) on anything else."""
    cut = _line_end(data, 0)
    try:
        head = json.loads(data[:cut])
        layouts = []
        for _ in range(int(head["layouts"])):
            start, cut = cut + 1, _line_end(data, cut + 1)
            layouts.append(layout_in(json.loads(data[start:cut])))
        events = tuple(event_in(row) for row in head["events"])
        rows = [(str(i), str(t), int(at), int(n), float(took), error, int(gen)) for i, t, at, n, took, error, gen in head["scrapes"]]
        own = tuple((str(name), tuple((str(k), str(v)) for k, v in labels), float(value))
                    for name, labels, value in head.get("telemetry", ()))
        key = (str(head["worker"]), int(head["epoch"]), int(head["seq"]), int(head["watermark"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SourceError("bad_syntax", f"a batch whose header does not parse ({error})") from None
    if len(data) - cut - 1 != 8 * sum(row[3] for row in rows):
        raise SourceError("truncated", "a batch whose values do not match its header")
    scrapes, at_byte = [], cut + 1
    for layout_id, target_id, at, n, took, failure, generation in rows:
        values = np.frombuffer(data, "<f8", n, at_byte)
        at_byte += 8 * n
        scrapes.append(Scrape(layout_id, target_id, at, values, took, failure, generation))
    return Batch(*key, tuple(layouts), tuple(scrapes), events, own)


def _line_end(data: bytes, start: int) -> int:
    cut = data.find(b"\n", start)
    if cut < 0:
        raise SourceError("truncated", "a batch that ends in the middle of a line")
    return cut
