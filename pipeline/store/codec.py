"""Records as JSON text and back without loss: what the store keeps of findings, incidents, actions and events.

`core.render` is for people (rounded, RFC 3339); this is for the owner after a restart. NaN and infinities are kept in
Python's own JSON spelling. Keys that an older program wrote and this one does not know are ignored on reading.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from core.types import SignalRef, Target

T = TypeVar("T")
_PART = ("kind", "node", "device", "id", "job", "rank", "serial")


def encode(record: Any) -> str:
    """A dataclass of `core.types` as one line of JSON."""
    return json.dumps(_out(record), separators=(",", ":"), ensure_ascii=False)


def decode(cls: type[T], text: str) -> T:
    """The record that `encode` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    made: T = _in(cls, json.loads(text))
    return made


def pack(refs: Sequence[SignalRef]) -> tuple[str, bytes]:
    """A layout's signals: (their names, each between spaces, for a filter; all of them, compressed)."""
    signals: dict[str, int] = {}
    parts: dict[Target, int] = {}
    seen: dict[int, int] = {}  # a layout repeats few Target objects: by identity first
    columns: list[Any] = [[r.index for r in refs], [signals.setdefault(r.signal, len(signals)) for r in refs], [],
                          [r.scale for r in refs], [i for i, r in enumerate(refs) if r.counter]]
    for ref in refs:
        number = seen.get(id(ref.target))
        if number is None:
            number = seen[id(ref.target)] = parts.setdefault(ref.target, len(parts))
        columns[2].append(number)
    body = json.dumps([*columns, list(signals), [[getattr(t, name) for name in _PART] for t in parts]], separators=(",", ":"))
    return "".join(f" {name} " for name in signals), zlib.compress(body.encode(), 3)


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A layout's signals in columns. index: of the series; signal, part: indexes into `signals` and `parts`; scale;
    counters: which of them are counters."""

    index: list[int]
    signal: list[int]
    part: list[int]
    scale: list[float]
    counters: list[int]
    signals: list[str]
    parts: list[Target]


def unpack_columns(packed: bytes) -> Packed:
    """What `pack` packed, without an object for each signal."""
    index, signal, part, scale, counters, signals, parts = json.loads(zlib.decompress(packed))
    return Packed(index, signal, part, scale, counters, signals, [Target(*row) for row in parts])


def unpack(packed: bytes) -> tuple[SignalRef, ...]:
    """The signals that `pack` made."""
    one = unpack_columns(packed)
    counted = set(one.counters)
    return tuple([SignalRef(at, one.signals[s], one.parts[p], float(x), i in counted)
                  for i, (at, s, p, x) in enumerate(zip(one.index, one.signal, one.part, one.scale, strict=True))])


def _out(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _out(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _out(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_out(v) for v in value]
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _in(hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _in(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_in(args[0], one) for one in value)
        return tuple(_in(a, one) for a, one in zip(args, value, strict=True))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = _hints(hint)
        known = {f.name for f in dataclasses.fields(hint) if f.init}
        return hint(**{k: _in(hints[k], v) for k, v in value.items() if k in known})
    return value
