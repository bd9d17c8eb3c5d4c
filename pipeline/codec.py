"""Frozen records to JSON types and back, for state that a restart needs: nothing is lost, nothing is executed."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


def pack(value: Any) -> Any:
    """`value` as JSON types: records become mappings of all their fields, tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): pack(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [pack(v) for v in value]
    return value


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def unpack(cls: type[T], data: Mapping[str, Any]) -> T:
    """The record that `pack` made. Raises KeyError or TypeError on anything else."""
    hints = _hints(cls)  # type: ignore[arg-type]
    return cls(**{f.name: _value(hints[f.name], data[f.name])
                  for f in dataclasses.fields(cls) if f.name in data})  # type: ignore[arg-type]


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(a for a in args if a is not type(None)), value)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_value(args[0], v) for v in value)
        return tuple(_value(a, v) for a, v in zip(args, value, strict=True))
    if origin is list:
        return [_value(args[0], v) for v in value]
    if origin is dict:
        return {k: _value(args[1], v) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return unpack(hint, value)  # type: ignore[arg-type]
    if hint is float:
        return float(value)
    return value
