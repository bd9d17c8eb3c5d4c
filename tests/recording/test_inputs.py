"""Which files make a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import T0, opened, write

from collectors.recording.inputs import LONGEST_LINE, InputFile, LogLines, find_inputs, kind_of
from core.errors import BadInput, ConfigError


@pytest.mark.parametrize(
    ("name", "kind", "subject"),
    [
        ("n1.prom", "prom", "n1"),
        ("n1.om.gz", "om", "n1"),
        ("a.b.parquet", "parquet", "a.b"),
        ("a.csv", "csv", "a"),
        ("kernel.ip-10-0-0-1.ec2.internal.log", "kernel", "ip-10-0-0-1.ec2.internal"),
        ("trainer.job.7.log", "trainer", "job.7"),
        ("trainer.j.log.gz", "trainer", "j"),
        ("kernel..log", None, None),
        ("kernel.log", None, None),
        ("messages.log", None, None),
        (".prom", None, None),
        ("notes.txt", None, None),
    ],
)
def test_a_files_kind_is_in_its_name(name: str, kind: str | None, subject: str | None) -> None:
    """Node and job are everything between the first and the last word."""
    found = kind_of(Path(name))
    assert (found and found.kind, found and found.subject) == (kind, subject)


def test_a_directory_is_walked_in_order(tmp_path) -> None:
    """With what is below it; hidden and other files are passed over, and the others are noted."""
    write(tmp_path, b__prom="", notes__txt="")
    write(tmp_path / "sub", a__csv="", _hidden="")
    write(tmp_path / ".git", x__prom="")
    found = find_inputs([tmp_path, tmp_path / "b.prom"])
    assert [f.path.name for f in found.files] == ["a.csv", "b.prom"]
    assert [Path(p).name for p in found.ignored] == ["notes.txt", "_hidden"]


@pytest.mark.parametrize(("make", "words"), [
    (lambda root: root / "nothing", "an existing file or directory"),
    (lambda root: write(root, x__txt="") / "x.txt", r"x\.txt.*\*\.prom"),
    (lambda root: write(root / "empty"), "a directory without a recording"),
])
def test_what_is_no_recording_is_said(tmp_path, make, words: str) -> None:
    """One sentence that says what is allowed."""
    with pytest.raises(BadInput, match=words):
        find_inputs([make(tmp_path)])


def test_the_inventory_among_the_files_is_used(tmp_path) -> None:
    """And one that is given takes its place."""
    write(tmp_path / "r", x__prom=f"a 1 {T0}\n", inventory__yaml="nodes: [{name: n1}]")
    other = write(tmp_path / "o", inventory__json='{"nodes": [{"name": "n2"}]}') / "inventory.json"
    assert [n.name for n in opened(tmp_path / "r").inventory.nodes] == ["n1"]
    assert [n.name for n in opened(tmp_path / "r", inventory=other).inventory.nodes] == ["n2"]
    assert opened(write(tmp_path / "none", x__prom="")).inventory.nodes == ()


def test_two_inventories_are_one_too_many(tmp_path) -> None:
    """Which of them is meant cannot be known."""
    write(tmp_path, inventory__yaml="nodes: []", inventory__json="{}")
    with pytest.raises(BadInput, match="a second inventory"):
        opened(tmp_path)


def test_a_bad_inventory_is_bad_input(tmp_path) -> None:
    """With its own file, line and key."""
    with pytest.raises(ConfigError, match=r"inventory\.yaml"):
        opened(write(tmp_path, inventory__yaml="nodes: [{nam: n1}]"))


def test_lines_of_logs_whatever_their_bytes(tmp_path) -> None:
    """CR and LF end lines, long ones are cut and counted, bad UTF-8 is replaced and counted, the last needs no end."""
    data = b"a\r b\rc\r\n\n" + b"x" * (LONGEST_LINE + 600_000) + b"\n\xff\xfe\x00z\nlast"
    lines = LogLines(InputFile(write(tmp_path, trainer__j__log=data) / "trainer.j.log", "trainer", "j", 100_000))
    found = list(lines)
    assert [line[:3] for line in found] == ["a", " b", "c", "xxx", "��\x00", "las"]
    assert max(map(len, found)) <= LONGEST_LINE
    assert (lines.too_long, lines.bad_utf8) == (1, 1)
