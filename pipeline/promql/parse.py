"""From a query's text to what we can answer: a selector with an offset, or a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import promql_parser

from core.errors import BadInput, quote
from core.protocols import Matcher

LONGEST_QUERY = 10_000
METRIC = "__name__"
_OPS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


class QueryError(BadInput):
    """A query that cannot be answered; the sentence is for whoever wrote the query."""

    def __init__(self, sentence: str) -> None:
        super().__init__("query", "", "", sentence)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Selector:
    """A plain selector. offset_ms: how long before the asked time it looks."""

    matchers: tuple[Matcher, ...]
    offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number."""

    value: float


def parse(query: str) -> Selector | Scalar:
    """What the query asks for. Raises QueryError where it does not parse, or asks for more than plain selectors."""
    if len(query) > LONGEST_QUERY:
        raise QueryError(f"the query has {len(query)} characters: at most {LONGEST_QUERY} are allowed")
    if not query.strip():
        raise QueryError("unknown position: parse error: no expression found in input")
    try:
        tree = promql_parser.parse(query)
    except Exception as error:  # the parser raises ValueError, and its own panics as other types
        raise QueryError(f"the query does not parse: {error}") from None
    return _convert(tree, query)


def selector(query: str) -> Selector:
    """As `parse`, for places that take only a selector without offset (`match[]`)."""
    found = parse(query)
    if not isinstance(found, Selector) or found.offset_ms:
        raise QueryError(f"{quote(query)} is no series selector")
    return found


def _convert(tree: Any, query: str) -> Selector | Scalar:
    while isinstance(tree, promql_parser.ParenExpr):
        tree = tree.expr
    if isinstance(tree, promql_parser.VectorSelector):
        return _selector(tree, query)
    if isinstance(tree, promql_parser.NumberLiteral):
        return Scalar(float(tree.val))
    if isinstance(tree, promql_parser.UnaryExpr):
        inner = _convert(tree.expr, query)
        if isinstance(inner, Scalar):
            return Scalar(-inner.value)
    if isinstance(tree, promql_parser.BinaryExpr) and tree.modifier is None:
        left, right = _convert(tree.lhs, query), _convert(tree.rhs, query)
        work = _ARITHMETIC.get(str(tree.op))
        if work is not None and isinstance(left, Scalar) and isinstance(right, Scalar):
            return Scalar(work(left.value, right.value))
    raise _not_yet(query)


def _not_yet(query: str) -> QueryError:
    return QueryError(f"{quote(query)} is not supported yet: only plain selectors and numbers are")


def _selector(tree: Any, query: str) -> Selector:
    if tree.at is not None or tree.matchers.or_matchers:
        raise _not_yet(query)
    matchers = [Matcher(METRIC, "=", tree.name)] if tree.name else []
    for one in tree.matchers.matchers:
        matchers.append(Matcher(one.name, _OPS[str(one.op).rpartition(".")[2]], one.value))
    offset = tree.offset
    return Selector(tuple(matchers), 0 if offset is None else round(offset.total_seconds() * 1000))


def _divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _modulo(a: float, b: float) -> float:
    return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)


def _power(a: float, b: float) -> float:
    odd = not math.isinf(b) and math.fmod(b, 2) in (1, -1)
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and odd else math.inf
    except ValueError:  # 0 to a negative power, or a negative base to a fraction
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if odd else math.inf


_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": _modulo,
    "^": _power,
}
