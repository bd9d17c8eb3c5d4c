"""Slurm's short form for many nodes: `n[1-3,7],rack[1-2]n[01-04]` and back.

Slurm's own `scontrol show hostnames` says the same; a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_NODES = 65_536  # Slurm's own greatest number of nodes in a hostlist (MAX_SLURM_NODES)
_NOTHING = frozenset({"", "(null)", "None", "N/A", "(none)"})
_ITEM = re.compile(r"(\d+)(?:-(\d+))?\Z")


def expand(text: str) -> tuple[str, ...]:
    """The names in their order, each once. Raises ValueError for what is no hostlist, or one of too many nodes."""
    if text.strip() in _NOTHING:
        return ()
    out: dict[str, None] = {}
    for piece in _pieces(text.strip()):
        for name in _names(piece):
            out[name] = None
            if len(out) > MOST_NODES:
                raise ValueError(f"more than {MOST_NODES} nodes")
    return tuple(out)


def join(names: Iterable[str]) -> str:
    """Names as Slurm takes them: separated by commas, each once, in their order."""
    return ",".join(dict.fromkeys(names))


def _pieces(text: str) -> list[str]:
    """Cut at the commas that stand outside brackets. Raises ValueError where brackets do not match."""
    out, depth, piece = [], 0, ""
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"brackets that do not match in {text[:60]!r}")
        if letter == "," and depth == 0:
            out.append(piece)
            piece = ""
        else:
            piece += letter
    if depth:
        raise ValueError(f"brackets that do not match in {text[:60]!r}")
    return [one for one in (*out, piece) if one]


def _names(piece: str) -> list[str]:
    """All names of one piece; every bracket is a dimension. Raises ValueError."""
    head, opened, rest = piece.partition("[")
    if not opened:
        return [head]
    inner, closed, tail = rest.partition("]")
    if not closed:
        raise ValueError(f"brackets that do not match in {piece[:60]!r}")
    tails = _names(tail) if tail else [""]
    numbers = _numbers(inner)
    if len(numbers) * len(tails) > MOST_NODES:
        raise ValueError(f"more than {MOST_NODES} nodes")
    return [f"{head}{number}{end}" for number in numbers for end in tails]


def _numbers(inner: str) -> list[str]:
    """`1-3,08-10` → 1 2 3 08 09 10: the width of the first number is kept. Raises ValueError."""
    out: list[str] = []
    for item in inner.split(","):
        found = _ITEM.match(item.strip())
        if not found:
            raise ValueError(f"{item[:40]!r} is no range of numbers")
        first, last = found.group(1), found.group(2) or found.group(1)
        low, high = int(first), int(last)
        if high < low or high - low >= MOST_NODES:
            raise ValueError(f"{item[:40]!r} is no range of numbers")
        out += [str(n).zfill(len(first)) for n in range(low, high + 1)]
    return out
