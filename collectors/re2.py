"""Anchored patterns with RE2's syntax and running time, and replacements as Go's `regexp.Expand` fills them in.

Prometheus' patterns are RE2's. Python's own `re` differs from it in syntax and in meaning, and some patterns cost it
exponential time. RE2 itself comes with pyarrow, which answers for many texts at once; the answers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

LONGEST_PATTERN = 16 * 1024  # characters; lists of metric names joined by | are the longest that people write
MOST_KEPT = 50_000  # answers of one pattern
ANY = "(.*)"
_PLAIN = re.compile(r"[A-Za-z0-9_:\-/ ,;=@]+(?:\|[A-Za-z0-9_:\-/ ,;=@]+)*")  # words joined by |: no RE2 is needed

Groups = tuple[str, ...]


class BadPattern(ValueError):
    """Not a pattern of RE2; the text says why."""


def _named(pattern: str) -> tuple[str, tuple[str, ...]]:
    """The pattern with its groups named g1, g2, ..., as pyarrow wants them; and the names that they had ("" = none)."""
    out: list[str] = []
    names: list[str] = []
    i, n = 0, len(pattern)
    while i < n:
        c, end = pattern[i], i + 1
        if c == "\\":
            end = i + 2
            if pattern.startswith("Q", i + 1):
                close = pattern.find("\\E", i + 2)
                end = n if close < 0 else close + 2
            elif pattern.startswith("C", i + 1):
                raise BadPattern("invalid escape sequence: \\C")
        elif c == "[":
            end = _class_end(pattern, i)
        elif c == "(":
            named = re.compile(r"\(\?P?<(\w+)>").match(pattern, i)
            if named is not None or not pattern.startswith("?", i + 1):
                names.append(named[1] if named else "")
                out.append(f"(?P<g{len(names)}>")
                i = named.end() if named else end
                continue
        out.append(pattern[i:end])
        i = end
    return "".join(out), tuple(names)


def _class_end(pattern: str, start: int) -> int:
    """Behind the `]` of the class that begins at `start`; a `]` at its very beginning is one of its characters."""
    i = start + 1
    if pattern.startswith("^", i):
        i += 1
    first = True
    while i < len(pattern):
        if pattern[i] == "]" and not first:
            return i + 1
        if pattern.startswith("[:", i) and (close := pattern.find(":]", i)) > 0:
            i = close + 2
        else:
            i += 2 if pattern[i] == "\\" else 1
        first = False
    return i


class Pattern:
    """One pattern that a whole text has to match. Raises BadPattern at once."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_PATTERN:
            raise BadPattern(f"it has {len(text)} characters, {LONGEST_PATTERN} are allowed")
        self.text = text
        self._check(text)
        rewritten, self.names = _named(text)
        self._anchored = rf"\A(?:{rewritten})\z"
        self._check(self._anchored)
        self._words = frozenset(text.split("|")) if _PLAIN.fullmatch(text) else None
        self._kept: dict[str, Groups | None] = {}

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    @staticmethod
    def _check(text: str) -> None:
        try:
            pc.match_substring_regex(pa.array([""]), text)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise BadPattern(str(error).removeprefix("Invalid regular expression: ").split("\n")[0]) from None

    def groups(self, value: str) -> Groups | None:
        """The whole text and what each group took (empty where it took no part); None where the text does not match."""
        if self._words is not None:
            return (value,) if value in self._words else None
        if self.text == ANY and "\n" not in value:
            return value, value
        if value not in self._kept:
            self.prepare((value,))
        return self._kept[value]

    def prepare(self, values: Iterable[str]) -> None:
        """Asks RE2 for all these texts at once: one by one costs a hundred times as much."""
        if self._words is not None:
            return
        if self.text == ANY:
            values = [one for one in values if "\n" in one]
        fresh = [one for one in dict.fromkeys(values) if one not in self._kept]
        if not fresh:
            return
        if len(self._kept) + len(fresh) > MOST_KEPT:
            self._kept = {}
            if len(fresh) > MOST_KEPT:
                fresh = fresh[:MOST_KEPT]
        texts = pa.array([one.encode("utf-8", "replace") for one in fresh], pa.binary()).cast(pa.string())
        if not self.names:
            self._kept.update((one, (one,) if yes else None)
                              for one, yes in zip(fresh, pc.match_substring_regex(texts, self._anchored).to_pylist(), strict=True))
            return
        found = pc.extract_regex(texts, self._anchored)
        columns = [found.field(i).to_pylist() for i in range(len(self.names))]
        for one, valid, *taken in zip(fresh, found.is_valid().to_pylist(), *columns, strict=True):
            self._kept[one] = (one, *taken) if valid else None


class Template:
    """A replacement: `$1`, `$name`, `${name}`, `$$`; the longest name counts, an unknown one is empty."""

    def __init__(self, text: str, pattern: Pattern) -> None:
        self._parts: list[str | tuple[int, ...]] = []
        plain = ""
        while text:
            before, dollar, rest = text.partition("$")
            plain += before
            text = rest
            if not dollar:
                break
            if text.startswith("$"):
                plain, text = plain + "$", text[1:]
                continue
            name, after = _reference(text)
            if name is None:
                plain += "$"  # no name behind it: it stands for itself
                continue
            text = after
            if plain:
                self._parts.append(plain)
                plain = ""
            self._parts.append(_places(name, pattern.names))
        if plain:
            self._parts.append(plain)
        self.constant = not any(isinstance(one, tuple) for one in self._parts)
        self._text = "".join(one for one in self._parts if isinstance(one, str))

    def expand(self, groups: Groups) -> str:
        """The replacement for what the groups took."""
        if self.constant:
            return self._text
        out = []
        for one in self._parts:
            if isinstance(one, str):
                out.append(one)
            elif len(one) == 1:
                out.append(groups[one[0]])
            else:
                out.append(next((groups[i] for i in one if groups[i]), ""))
        return "".join(out)


def _reference(text: str) -> tuple[str | None, str]:
    """(name, what stands behind it) of a reference whose `$` has been taken; the name is None where there is none."""
    brace = text.startswith("{")
    start = end = 1 if brace else 0
    while end < len(text) and (text[end].isalpha() or text[end].isdecimal() or text[end] == "_"):
        end += 1
    name = text[start:end]
    if not name or (brace and not text.startswith("}", end)):
        return None, text
    return name, text[end + brace:]


def _places(name: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Which groups a name means: digits without a leading zero are a group's number."""
    if name.isascii() and name.isdecimal() and (name == "0" or not name.startswith("0")):
        number = int(name) if len(name) < 9 else 1 << 30
        return (number,) if number <= len(names) else ()
    return tuple(i + 1 for i, one in enumerate(names) if one == name)
