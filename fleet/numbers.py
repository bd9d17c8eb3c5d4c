"""Floats as text the way Go's exposition code prints them: shortest digits, exponent from 1e+06 and below 1e-04."""

from __future__ import annotations

import math


def go_float(value: float) -> str:
    """`value` as `strconv.FormatFloat(v, 'g', -1, 64)` prints it in an exposition page."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    size = abs(value)
    if size < 1e6 and value == int(value):
        return str(int(value)) if value or math.copysign(1.0, value) > 0 else "-0"
    text = repr(value)
    if 1e-4 <= size < 1e6 or "e" in text:
        return text
    # Plain digits of a number from 1e+06 on: move the point behind the first digit.
    sign = "-" if value < 0 else ""
    whole, _, fraction = text.lstrip("-").partition(".")
    digits = (whole + ("" if fraction == "0" else fraction)).rstrip("0")
    exponent = len(whole) - 1
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{mantissa}e+{exponent:02d}"
