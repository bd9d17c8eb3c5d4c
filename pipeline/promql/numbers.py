"""Numbers and times as Prometheus writes them in its JSON answers."""

from __future__ import annotations

import math
from decimal import Decimal


def number(value: float, exponents: bool = True) -> str:
    """The shortest decimal text that reads back as `value`: `NaN`, `+Inf`, `-Inf`; an exponent below 1e-6 and from 1e21.

    exponents: False for the one place where Prometheus writes all digits, the answer that is a scalar.
    """
    if value != value:  # noqa: PLR0124 - the fastest test for NaN: a range has a million of these
        return "NaN"
    size = abs(value)
    if size < 1e15 and value == int(value):
        return "-0" if value == 0 and math.copysign(1.0, value) < 0 else str(int(value))
    if size == math.inf:
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    if exponents and (size < 1e-6 or size >= 1e21):
        return text.replace(".0e", "e")
    if "e" in text:
        return format(Decimal(text), "f")
    return text.removesuffix(".0")


def seconds(at_ms: int) -> int | float:
    """A time as Prometheus gives it: seconds, whole where they are."""
    return at_ms // 1000 if at_ms % 1000 == 0 else at_ms / 1000
