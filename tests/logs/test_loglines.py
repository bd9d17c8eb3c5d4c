"""The heads of log lines: times, nodes, ranks, PCI addresses, and the anchors of what has no date."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.loglines import head, kernel_head, normalise_pci, number, plain
from collectors.logtimes import Anchor, Mark, boots_of_segments, dated
from core.clock import parse_rfc3339

NOON = parse_rfc3339("2026-11-28T12:00:00Z")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:9b:00", "0000:9b:00.0"),
        ("00000000:9B:00.0", "0000:9b:00.0"),
        ("9b:00.0", "0000:9b:00.0"),
        ("0008:01:00", "0008:01:00.0"),
        ("00010000:01:00.1", "10000:01:00.1"),
        (" 0000:b3:00.0 ", "0000:b3:00.0"),
        ("0000:9b", None),
        ("mlx5_0", None),
        ("", None),
    ],
)
def test_pci_addresses_have_one_spelling(text: str, expected: str | None) -> None:
    """Domain length, case and function do not make another device."""
    assert normalise_pci(text) == expected


@pytest.mark.parametrize(
    ("line", "at", "node", "rank", "text"),
    [
        ("2026-11-28T12:00:00Z hello", NOON, None, None, "hello"),
        ("2026-11-28 12:00:00,250 - root - INFO - hello", NOON + 250, None, None, "root - INFO - hello"),
        ("[2026-11-28 12:00:00] [INFO] [engine.py:1:f] hello", NOON, None, None, "[engine.py:1:f] hello"),
        ("[2026-11-28 12:00:00.123456] hello", NOON + 123, None, None, "hello"),
        (" [2026-11-28 12:00:00] iteration 1/ 2 |", NOON, None, None, "iteration 1/ 2 |"),
        ("2026-11-28T13:00:00+01:00 hello", NOON, None, None, "hello"),
        ("2026-11-28T13:30:00+0130 hello", NOON, None, None, "hello"),
        ("[NeMo I 2026-11-28 12:00:00 nemo_logging:381] hello", NOON, None, None, "hello"),
        ("[INFO|trainer.py:2048] 2026-11-28 12:00:00,000 >> ***** Running training *****", NOON, None, None,
         "***** Running training *****"),
        ("11/28/2026 12:00:00 - INFO - __main__ - hello", NOON, None, None, "INFO - __main__ - hello"),
        ("[rank3]:[titan] 2026-11-28 12:00:00,000 - root - INFO - step:  1", NOON, None, 3, "root - INFO - step:  1"),
        ("n3: [2026-11-28 12:00:00] hello", NOON, "n3", None, "hello"),
        ("2026-11-28T12:00:00Z ip-10-0-0-1.ec2.internal: [rank12]: hello", NOON, "ip-10-0-0-1.ec2.internal", 12, "hello"),
        ("vm-07-05: hello", None, "vm-07-05", None, "hello"),
        ("n3| hello", None, "n3", None, "hello"),
        ("12: hello", None, None, 12, "hello"),
        ("step: 5 loss: 1", None, None, None, "step: 5 loss: 1"),
        ("fp16: enabled", None, None, None, "fp16: enabled"),
        ("epoch1: done", None, None, None, "epoch1: done"),
        ("Exception: no", None, None, None, "Exception: no"),
        ("2026-13-45 12:00:00 hello", None, None, None, "2026-13-45 12:00:00 hello"),
        ("\x1b[31mn3: \x1b[0mhello", None, "n3", None, "hello"),
        ("", None, None, None, ""),
    ],
)
def test_the_head_of_a_trainer_line(line: str, at: int | None, node: str | None, rank: int | None, text: str) -> None:
    """Time, node and rank come off in any order and nothing else does."""
    top = head(line)
    assert (top.mark and int(top.mark.value), top.node, top.rank, top.text) == (at, node, rank, text)


@pytest.mark.parametrize(("line", "node"), [("alpha: hello", "alpha"), ("[alpha] hello", "alpha"), ("beta: hello", None)])
def test_known_names_need_not_look_like_hosts(line: str, node: str | None) -> None:
    """A word that the inventory has as a node is one."""
    assert head(line, frozenset({"alpha"})).node == node


@pytest.mark.parametrize(
    ("line", "mark", "host", "text"),
    [
        ("2026-11-28T12:00:00Z n1 kernel: hello", Mark("at", NOON), "n1", "hello"),
        ("2026-11-28T12:00:00.000000+00:00 n1.dc kernel: [12.5] hello", Mark("at", NOON), "n1.dc", "hello"),
        ("2026-11-28 12:00:00 hello", Mark("at", NOON), None, "hello"),
        ("kern  :warn  : 2026-11-28T12:00:00,000000+00:00 hello", Mark("at", NOON), None, "hello"),
        ("[   12.345678] hello", Mark("seconds", 12.345678), None, "hello"),
        ("[12.5] n1 kernel: hello", Mark("seconds", 12.5), "n1", "hello"),
        ("<4>[12.5] hello", Mark("seconds", 12.5), None, "hello"),
        ("[12.5] [T123] hello", Mark("seconds", 12.5), None, "hello"),
        ("[Sat Nov 28 12:00:00 2026] hello", Mark("at", NOON), None, "hello"),
        ("Nov 28 12:00:00 n1 kernel: [12.5] hello", Mark("yearless", 0.0, (11, 28, 12, 0, 0, 0)), "n1", "hello"),
        ("6,1234,5678901,-;hello", Mark("seconds", 5.678901), None, "hello"),
        ("host-b kernel: hello", None, "host-b", "hello"),
        ("kernel: hello", None, None, "hello"),
        ("hello kernel world", None, None, "hello kernel world"),
    ],
)
def test_the_head_of_a_kernel_line(line: str, mark: Mark | None, host: str | None, text: str) -> None:
    """The forms of dmesg, syslog, journalctl and /dev/kmsg."""
    assert kernel_head(line) == (mark, host, text)


def test_seconds_count_from_the_boot() -> None:
    """A known boot anchors `[seconds]`."""
    assert Anchor(NOON, (NOON - 60_000,)).resolve(Mark("seconds", 30.5)) == NOON - 29_500


def test_seconds_without_a_boot_count_from_the_recordings_start() -> None:
    """Nothing better is known then."""
    assert Anchor(NOON).resolve(Mark("seconds", 2.0)) == NOON + 2000


def test_seconds_that_fall_back_are_of_the_next_boot() -> None:
    """A reboot within the log uses the next boot time, and goes on from the newest line where none is known."""
    anchor = Anchor(NOON, (NOON - 1_000_000, NOON + 500_000))
    assert [anchor.resolve(Mark("seconds", s)) for s in (1100.0, 1099.0, 5.0, 400.0, 1.0)] == [
        NOON + 100_000, NOON + 99_000, NOON + 505_000, NOON + 900_000, NOON + 900_000,
    ]


@pytest.mark.parametrize(
    ("near", "fields", "expected"),
    [
        ("2026-12-31T23:59:00Z", (1, 1, 0, 1, 0, 0), "2027-01-01T00:01:00Z"),
        ("2027-01-01T00:00:00Z", (12, 31, 23, 59, 0, 0), "2026-12-31T23:59:00Z"),
        ("2024-03-01T00:00:00Z", (2, 29, 0, 0, 0, 0), "2024-02-29T00:00:00Z"),
    ],
)
def test_a_date_without_a_year_is_near_the_recording(near: str, fields: tuple[int, ...], expected: str) -> None:
    """Around New Year and on leap days, too."""
    assert Anchor(parse_rfc3339(near)).resolve(Mark("yearless", 0.0, fields)) == parse_rfc3339(expected)


@pytest.mark.parametrize(
    ("segments", "boots", "first", "expected"),
    [
        ([(1, 100)], (0,), 0, (0,)),
        ([(10, 5000)], (0, 4_000_000), 3_000_000, (4_000_000,)),
        ([(10, 3500)], (0, 4_000_000), 3_000_000, (0,)),
        ([(10, 3500), (0, 50)], (0, 4_000_000), 3_000_000, (0, 4_000_000)),
        ([(10, 30)], (0, 4_000_000), 3_000_000, (4_000_000,)),
        ([(1, 2), (1, 2)], (0,), 0, (0,)),
    ],
)
def test_boots_are_matched_to_what_the_log_shows(segments, boots, first, expected) -> None:
    """A log of the last boot only is not dated by the boot before."""
    assert boots_of_segments(segments, boots, first) == expected


def test_a_leap_second_is_a_time() -> None:
    """Second 60 is the first of the next minute."""
    assert dated(2016, (12, 31, 23, 59, 60, 0)) == parse_rfc3339("2017-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("text", "expected"), [("1.0E+01", 10.0), ("1,234", 1234.0), ("-inf", float("-inf")), ("x", None), (None, None)]
)
def test_logged_numbers(text: str | None, expected: float | None) -> None:
    """Exponents, thousands and words."""
    assert number(text) == expected


@given(st.text(max_size=300))
def test_no_line_breaks_the_heads(line: str) -> None:
    """Whatever a line holds, its head is read, and the text is a part of it."""
    assert head(line).text in plain(line)
    assert kernel_head(line).text in plain(line)
