"""This machine's own kernel: the real /dev/kmsg, and the journal by way of journalctl."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectors.disposable_child import Child
from collectors.kerneltail import JOURNAL, KMSG, JournalTail, KmsgTail, boot_number
from collectors.loglines import kernel_head

T0 = 1_764_000_000_000_000


@pytest.fixture
def kmsg() -> None:
    """The device, where this user may read it."""
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be read here ({error.strerror})")


@pytest.mark.usefixtures("kmsg")
def test_the_kernels_ring_is_read_once_and_never_waited_for() -> None:
    """Records in the kernel's form, in order; what was read does not come again, also after a restart."""
    tail = KmsgTail()
    first = tail.read()
    assert all(kernel_head(line).mark is not None for line in first)
    assert tail.place[0] == boot_number()
    again = KmsgTail(KMSG, tail.place).read()
    assert {line.split(",")[1] for line in again} & {line.split(",")[1] for line in first} == set()
    assert len(KmsgTail(KMSG, (1, 10**12)).read()) >= len(first) // 2  # a place of another boot is none
    tail.close()


@pytest.mark.usefixtures("kmsg")
def test_a_helper_reads_the_device() -> None:
    """The path alone says what it is."""
    child = Child()
    answer = child.answer({"op": "read", "path": KMSG, "place": None})
    assert answer["place"][0] == boot_number()
    assert child.answer({"op": "read", "path": KMSG, "place": answer["place"]})["place"][1] >= answer["place"][1]


def journalctl(folder: Path, *rows: object, status: int = 0, says: str = "") -> None:
    """A journalctl that prints rows and keeps what it was asked."""
    (folder / "rows").write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    script = f"#!/bin/sh\necho \"$@\" >> {folder}/asked\ncat {folder}/rows\necho '{says}' >&2\nexit {status}\n"
    (folder / "journalctl").write_text(script)
    (folder / "journalctl").chmod(0o755)


def row(at: int, text: str) -> dict[str, str]:
    return {"__REALTIME_TIMESTAMP": str(at), "_TRANSPORT": "kernel", "_HOSTNAME": "n1", "MESSAGE": text}


def test_the_journal_is_read_on_from_its_newest_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come once, broken ones are passed over, and the next question begins at the newest line."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    journalctl(tmp_path, row(T0, "a"), "no json", {}, row(T0 + 5, "b"))
    tail = JournalTail()
    assert [kernel_head(line).text for line in tail.read()] == ["a", "b"]
    journalctl(tmp_path, row(T0, "a"), row(T0 + 5, "b"), row(T0 + 9, "c"))
    assert [kernel_head(line).text for line in JournalTail(JOURNAL, tail.place).read()] == ["c"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["--since=-10min" in asked[0], f"--since=@{T0 // 1_000_000}" in asked[1]] == [True, True]


def test_a_journal_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper answers with the sentence of journalctl."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    journalctl(tmp_path, status=1, says="No journal files were opened due to insufficient permissions.")
    answer = Child().answer({"op": "read", "path": JOURNAL, "place": None})
    assert "insufficient permissions" in answer["error"]
