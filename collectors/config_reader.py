"""Takes keys from one mapping of a configuration, with errors that name file and line; Prometheus' durations and sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from core.errors import ConfigError, nearest
from core.yamlfile import Node

_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_UNITS_MS = (365 * 86_400_000, 7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000, 1)
_DURATION_SIGNS = ("y", "w", "d", "h", "m", "s", "ms")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGTPE]i?B?)?", re.IGNORECASE | re.ASCII)


def parse_duration_ms(text: object) -> int | None:
    """Milliseconds of a Prometheus duration (`15s`, `1m30s`, `0`), None where it is none."""
    if text in (0, "0") and not isinstance(text, bool):
        return 0
    if not isinstance(text, str) or not text or len(text) > 100:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return sum(int(n) * unit for n, unit in zip(found.groups(), _UNITS_MS, strict=True) if n)


def duration_text(ms: int) -> str:
    """The duration as Prometheus writes it: years, weeks and days only where nothing smaller is left."""
    if ms == 0:
        return "0s"
    out = ""
    for unit, sign in zip(_UNITS_MS, _DURATION_SIGNS, strict=True):
        if sign in ("y", "w", "d") and ms % unit:
            continue
        n, ms = divmod(ms, unit)
        out += f"{n}{sign}" if n else ""
    return out


def parse_size(text: object) -> int | None:
    """Bytes of a Prometheus size (`10MB`, `64MiB`; units are powers of 1024 as there), None where it is none."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text if text >= 0 else None
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    unit = (found.group(2) or "B")[0].upper()
    value = float(found.group(1)) * 1024 ** "BKMGTPE".index(unit)
    return int(value) if math.isfinite(value) else None


class Reader:
    """One mapping. path: how its place in the file is named (`scrape_configs[0]`)."""

    def __init__(self, data: Any, where: str, path: str) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(where, path, data, "a mapping is needed")
        self.data, self.path = data, path
        self._where = data.where() if isinstance(data, Node) else where

    def where(self, key: str | None = None) -> str:
        """`file:line` of the key, or of the mapping itself."""
        return self.data.where(key) if isinstance(self.data, Node) else self._where

    def name(self, key: str) -> str:
        """The key's whole name."""
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, given: object, allowed: str) -> ConfigError:
        """The error for a key, to be raised."""
        return ConfigError(self.where(key), self.name(key), given, allowed)

    def check_keys(self, known: Iterable[str], later: Mapping[str, str]) -> None:
        """Raises ConfigError for a key that is not known. later: keys of Prometheus that are not done, with advice."""
        known = list(known)
        for key in self.data:
            if key in later:
                raise self.fail(key, "a key that is not supported", later[key])
            if key not in known:
                hint = nearest(key, [*known, *later])
                raise self.fail(key, "an unknown key", f"allowed are: {', '.join(sorted(known))}{hint}")

    def within(self, key: str) -> Reader | None:
        """A reader of the mapping under the key; None where there is none."""
        data = self.data.get(key)
        return None if data is None else Reader(data, self.where(key), self.name(key))

    def duration(self, key: str, default: int) -> int:
        """Milliseconds."""
        if self.data.get(key) is None:
            return default
        found = parse_duration_ms(self.data[key])
        if found is None:
            raise self.fail(key, self.data[key], "a duration such as 15s or 1m30s is needed")
        return found

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty; required where there is no default."""
        value = self.data.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.fail(key, value, "text is needed" if key in self.data else "this key is required")
        return value

    def word(self, key: str, default: str = "") -> str:
        """A text that may be empty. A whole number is its digits; what YAML may have changed has to stand in quotes."""
        value = self.data.get(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.fail(key, value, "text is needed: put it in quotes")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, value, "true or false is needed")
        return value

    def number(self, key: str, default: int) -> int:
        """A whole number, 0 or more."""
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail(key, value, "a whole number, 0 or more, is needed")
        return value

    def size(self, key: str, default: int) -> int:
        """Bytes; 0 gives the default, because Greylag keeps a limit where Prometheus has none."""
        if self.data.get(key) is None:
            return default
        found = parse_size(self.data[key])
        if found is None:
            raise self.fail(key, self.data[key], "a size such as 10MB is needed")
        return found or default

    def items(self, key: str) -> list[Any]:
        """A list; empty where there is none."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self.fail(key, value, "a list is needed")
        return list(value)

    def texts(self, key: str, empty: bool = False) -> tuple[str, ...]:
        """A list of texts; whole numbers are their digits. empty: whether one of them may be empty."""
        values: Sequence[Any] = [str(one) if type(one) is int else one for one in self.items(key)]
        for value in values:
            if not isinstance(value, str) or not (value or empty):
                raise self.fail(key, value, "a list of texts is needed")
        return tuple(values)
