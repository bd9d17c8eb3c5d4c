"""YAML into frozen dataclasses, with errors that name file, line, key, what was given and what is allowed.

Only safe YAML is read. Mappings remember the line of each key, so that `ConfigError` can name it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml

from core.errors import ConfigError, nearest

T = TypeVar("T")
LARGEST_FILE_BYTES = 64 * 1024 * 1024


class Node(dict[str, Any]):
    """A mapping that knows its file and the line of each key."""

    file: str
    line: int
    lines: dict[str, int]

    def where(self, key: str | None = None) -> str:
        """`file:line` of the key (of the mapping itself where None)."""
        return f"{self.file}:{self.lines.get(key, self.line) if key is not None else self.line}"

    def holding(self, items: Mapping[str, Any]) -> Node:
        """A mapping with these items that stands where this one stands."""
        out = Node(items)
        out.file, out.line, out.lines = self.file, self.line, self.lines
        return out


def _loader(file: str) -> type[yaml.SafeLoader]:
    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Node:
        out = Node()
        out.file, out.line, out.lines = file, node.start_mark.line + 1, {}
        loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, (str, int, float, bool)):
                raise ConfigError(f"{file}:{line}", "", key, "a key must be plain text")
            key = str(key).lower() if isinstance(key, bool) else str(key)
            if key in out:
                raise ConfigError(f"{file}:{line}", key, "the key a second time", "each key is allowed once")
            out[key] = loader.construct_object(value_node, deep=True)
            out.lines[key] = line
        return out

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    # Times stay text: readers parse them with the zone rule of the design (no zone = UTC).
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))
    return Loader


def parse_yaml(text: str, file: str) -> Any:
    """YAML text as Nodes, lists and scalars. Raises ConfigError with the line where it does not parse."""
    try:
        return yaml.load(text, _loader(file))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "it does not parse"
        raise ConfigError(f"{file}:{line}", "", "YAML that does not parse", str(problem)) from None
    except RecursionError:
        raise ConfigError(file, "", "YAML nested too deep", "at most some hundred levels are allowed") from None


def read_yaml(path: str | Path) -> Any:
    """The file's content. Raises ConfigError where it cannot be read, is too large or does not parse."""
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_FILE_BYTES:
            raise ConfigError(str(path), "", f"{file.stat().st_size} bytes", f"at most {LARGEST_FILE_BYTES} are allowed")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", _unreadable(error), "a readable UTF-8 file is needed") from None
    return parse_yaml(text, str(path))


def _unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, as a phrase."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder"
    if isinstance(error, PermissionError):
        return "a file that this user may not read"
    return "text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)


def build(cls: type[T], data: Any, file: str, path: str = "") -> T:
    """A `cls` (frozen dataclass) from a mapping. Unknown keys, missing keys and wrong types raise ConfigError.

    Understood field types: str, int, float, bool, `X | None`, tuple[X, ...], Mapping[str, X], dataclasses, Any.
    A field `klass` is spelled `class`; `from_`, `for_` and `finally_` lose their underscore in YAML.
    """
    if data is None:
        data = {}
    where = data.where() if isinstance(data, Node) else file
    if not isinstance(data, Mapping):
        raise ConfigError(where, path, data, "a mapping is needed")
    hints = _hints(typing.cast(Any, cls))
    names = {_spelled(f.name): f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in data.items():
        at = data.where(key) if isinstance(data, Node) else file
        full = f"{path}.{key}" if path else str(key)
        if key not in names:
            hint = nearest(str(key), names)
            raise ConfigError(at, full, "an unknown key", f"allowed are: {', '.join(sorted(names))}{hint}")
        field = names[key]
        values[field.name] = convert(hints[field.name], value, at, full)
    for key, field in names.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in values and required:
            full = f"{path}.{key}" if path else key
            raise ConfigError(where, full, "nothing", "this key is required")
    return cls(**values)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The field types of a record; resolving them is the slow part of reading a large inventory again and again."""
    return typing.get_type_hints(cls)


def _spelled(name: str) -> str:
    return {"klass": "class", "from_": "from", "global_defaults": "global", "finally_": "finally", "for_": "for"}.get(name, name)


def convert(hint: Any, value: Any, where: str, path: str) -> Any:
    """`value` as the type `hint`. Raises ConfigError naming what is allowed."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        rest = [a for a in args if a is not type(None)]
        return convert(rest[0], value, where, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(where, path, value, "a list is needed")
        return tuple(convert(args[0], v, where, f"{path}[{i}]") for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(where, path, value, "a mapping is needed")
        items = {str(k): convert(args[1], v, where, f"{path}.{k}") for k, v in value.items()}
        # A mapping from a file keeps its lines: the room that reads it further names them too.
        return value.holding(items) if isinstance(value, Node) else items
    if dataclasses.is_dataclass(hint):
        return build(hint, value if value is not None else {}, where.rsplit(":", 1)[0], path)  # type: ignore[arg-type]
    return _scalar(hint, value, where, path)


def _scalar(hint: Any, value: Any, where: str, path: str) -> Any:
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return str(value)
    words = {float: "a number is needed", int: "a whole number is needed", bool: "true or false is needed",
             str: "text is needed"}
    raise ConfigError(where, path, value, words.get(hint, f"{hint} is needed"))


def require(condition: bool, where: str, key: str, given: object, allowed: str) -> None:
    """Raises ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(where, key, given, allowed)
