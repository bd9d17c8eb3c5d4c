"""No number of the fleet is a number of a detector: what is found must not be what was painted on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LEAST_DIGITS = 3
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

# Numbers that both may have, and why. Anything else that two sides share has to go from one of them.
ALLOWED: dict[float, str] = {
    1000.0: "milliseconds in a second",
    1024.0: "bytes in a KiB, MiB in a GiB",
    3600.0: "seconds in an hour",
    86400.0: "seconds in a day",
}


def _is_round(value: float) -> bool:
    """A power of ten (0.001, 1e6) or of two (128, 1 << 20 written out): units, not measurements."""
    if value == 0:
        return True
    size = abs(value)
    mantissa = size
    while mantissa >= 10:
        mantissa /= 10
    while mantissa < 1:
        mantissa *= 10
    power_of_ten = abs(mantissa - 1) < 1e-9 or abs(mantissa - 10) < 1e-9
    whole = int(size)
    return power_of_ten or (size == whole and whole & (whole - 1) == 0)


def significant_digits(text: str) -> int:
    """Significant digits of a number as it is written: 300 has one, 0.0565 three, 81559 five. A factor such as 1.05 is "one and
    a share": those of the share count, so it has one and 1.453 three."""
    mantissa = text.lower().replace("_", "").split("e")[0]
    if mantissa.startswith("1.") and mantissa[2:].strip("0"):
        return len(mantissa[2:].strip("0"))
    if "." in mantissa:
        return len(mantissa.replace(".", "").strip("0"))
    return len(mantissa.strip("0"))


def literals(path: Path) -> Iterator[tuple[float, int]]:
    """Numbers of a Python file with at least `LEAST_DIGITS` significant digits, and their lines. Strings (names, log lines) are
    no numbers."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
            continue
        written = ast.get_source_segment(text, node) or repr(node.value)
        if written.lower().startswith(("0x", "0b", "0o")):
            written = str(node.value)
        if significant_digits(written) >= LEAST_DIGITS and not _is_round(float(node.value)):
            yield float(node.value), node.lineno


def table_numbers(path: Path) -> Iterator[tuple[float, int]]:
    """The same of a YAML file's scalars: tables of data are constants as well."""
    for token in yaml.scan(path.read_text(encoding="utf-8")):
        if isinstance(token, yaml.ScalarToken) and token.plain and NUMBER.fullmatch(token.value):
            value = float(token.value)
            if significant_digits(token.value) >= LEAST_DIGITS and not _is_round(value):
                yield value, token.start_mark.line + 1


def _of(room: str) -> dict[float, str]:
    found: dict[float, str] = {}
    for path in sorted((ROOT / room).rglob("*.yaml")):
        for value, line in table_numbers(path):
            found.setdefault(value, f"{path.relative_to(ROOT).as_posix()}:{line}")
    for path in sorted((ROOT / room).rglob("*.py")):
        for value, line in literals(path):
            found.setdefault(value, f"{path.relative_to(ROOT).as_posix()}:{line}")
    return found


def test_the_fleet_and_the_detectors_share_no_number() -> None:
    """A literal of three or more significant digits stands on one side only."""
    fleet, detectors = _of("fleet"), _of("detectors")
    shared = sorted(set(fleet) & set(detectors) - set(ALLOWED))
    assert not shared, "; ".join(f"{value:g}: {fleet[value]} and {detectors[value]}" for value in shared)


@pytest.mark.parametrize(("text", "digits"), [
    ("300", 1), ("0.0565", 3), ("81559", 5), ("1980", 3), ("1.0e-3", 1), ("0.05", 1), ("1_000_000", 1), ("2.56e10", 3), ("105", 3),
    ("0.20", 1), ("10.5", 3), ("1.05", 1), ("1.453", 3)])
def test_digits_are_counted_as_written(text: str, digits: int) -> None:
    """Zeros at the ends are no digits."""
    assert significant_digits(text) == digits


@pytest.mark.parametrize(("value", "round_one"), [
    (1e-6, True), (0.001, True), (4096.0, True), (100.0, True), (1024.0, True), (300.0, False), (0.12, False), (1980.0, False)])
def test_powers_of_ten_and_two_are_units(value: float, round_one: bool) -> None:
    """Units are no measurements."""
    assert _is_round(value) == round_one


def test_numbers_are_found_and_strings_are_not(tmp_path: Path) -> None:
    """Assignments, defaults and tables count, text does not."""
    path = tmp_path / "one.py"
    path.write_text('A = 1980\nB = "1981"\ndef f(x=0.123): return x + 3.3\nC = {"a": 4567, "b": 100, "c": 2048, "d": True}\n')
    assert sorted(v for v, _ in literals(path)) == [0.123, 1980.0, 4567.0]
