"""Trees and archives of logs: whose each file is, in which order, what is there twice, and what an archive may not do."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
from pathlib import Path
from zoneinfo import ZoneInfo

import cramjam
import pytest

from app.import_command import ImportOptions, import_history
from collectors.loglines import dated_line
from collectors.recording import archives
from collectors.recording.archives import Gathered, gather
from collectors.recording.lognames import LogNames
from core.errors import BadInput
from pipeline.store.duck import DuckStore

RANDOM = random.Random(7)
CHANGED = 1_795_000_000  # 2026-11-18
XID = b"Nov  3 12:00:00 n17 kernel: [1.0] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
EARLIER = b"Nov  2 12:00:00 n17 kernel: mlx5_core 0000:3b:00.0: Port module event\n"
DAEMON = b"Nov  3 12:00:01 n17 sshd[1]: kernel of truth\n"
EXPORT = (b"__CURSOR=a\n__REALTIME_TIMESTAMP=1793707200000000\n_TRANSPORT=kernel\n_HOSTNAME=n18\nMESSAGE=NVRM: Xid (PCI:0000:9b:00): 48\n\n"
          b"__CURSOR=b\n__REALTIME_TIMESTAMP=1793707201000000\n_TRANSPORT=kernel\n_HOSTNAME=n18\nMESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\n\n"
          b"__CURSOR=c\n__REALTIME_TIMESTAMP=1793707202000000\n_TRANSPORT=syslog\n_HOSTNAME=n18\nMESSAGE=NVRM: said by a program\n\n")


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def tar(path: Path, files: dict[str, bytes], mode: str = "w", **header: object) -> Path:
    """An archive; header: set on each member."""
    with tarfile.open(path, mode) as out:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), CHANGED
            for key, value in header.items():
                setattr(member, key, value)
            out.addfile(member, io.BytesIO(data))
    return path


def gathered(folder: Path, *paths: Path, names: tuple[str, ...] = ()) -> tuple[Gathered, dict[str, str]]:
    """What came of it, and the logs by name."""
    out = folder / "scratch"
    out.mkdir()
    found = gather([str(p) for p in paths], LogNames(names), out)
    assert sorted(os.listdir(out)) == sorted(Path(f).name for f in found.files)
    return found, {Path(f).name: Path(f).read_text() for f in found.files}


NAMES = [
    ("n17/var/log/messages", ("kernel", "n17")), ("var/log/kern.log.2.gz", ("kernel", None)), ("n17.kern.log-20261101.xz", ("kernel", "n17")),
    ("gpu-01-dmesg.txt", ("kernel", "gpu-01")), ("kernel.n1.example.org.log", ("kernel", "n1.example.org")), ("2026-11/n3/journal.export.zst", ("kernel", "n3")),
    ("slurm-123_4.out", ("trainer", "123_4")), ("jobs/trainer.llama.log.1", ("trainer", "llama")), ("n17/var/log/auth.log", None), ("../../etc/passwd", None),
]


@pytest.mark.parametrize(("path", "wanted"), NAMES)
def test_usual_names(path: str, wanted: tuple[str, str | None] | None) -> None:
    """Kinds and subjects of paths as sites have them."""
    found = LogNames().of(path)
    assert (None if found is None else (found.kind, found.subject)) == wanted


PACKED = [("tar", "w", lambda d: d), ("tar.gz", "w:gz", gzip.compress), ("tar.bz2", "w:bz2", bz2.compress), ("tar.xz", "w:xz", lzma.compress),
          ("tar.zst", "w", zstd)]


@pytest.mark.parametrize(("ending", "mode", "pack"), PACKED, ids=[row[0] for row in PACKED])
def test_archives_of_rotated_logs(tmp_path: Path, ending: str, mode: str, pack: object) -> None:
    """Each way to pack, outside and inside: rotated parts in order with their year, only the kernel's lines, the same file once."""
    files = {"n17/log/messages": XID + DAEMON, "n17/log/messages.1.x": pack(EARLIER + XID), "n17/copy/messages.1": pack(EARLIER + XID),  # type: ignore[operator]
             "n18/journal.export": EXPORT, "readme.txt": b"hello"}
    path = tar(tmp_path / f"logs.{ending}", {name.replace(".x", ""): data for name, data in files.items()}, mode)
    if ending == "tar.zst":
        path.write_bytes(zstd(path.read_bytes()))
    found, logs = gathered(tmp_path, path)
    dated = [f"2026-11-{day}T12:00:00.000Z" for day in ("02", "03")]
    assert [line[:24] for line in logs["kernel.n17.log"].splitlines()] == dated
    assert (logs["kernel.n18.log"].count("NVRM"), logs["kernel.n18.log"].count("\n")) == (1, 2)
    assert {k: found.counts[k] for k in ("read", "passed_over", "same_file", "same_line", "cut_short")} == {
        "read": 4, "passed_over": 1, "same_file": 1, "same_line": 1, "cut_short": 0}


HOSTILE = [
    ("absolute names and ways out", {"/kernel.a.log": XID, "../../../kernel.b.log": XID, "x/kernel.../../c.log": XID}, {}, 2),
    ("links", {"n1/kern.log": b"", "n2/messages": b""}, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, 0),
    ("devices", {"n1/kern.log": b""}, {"type": tarfile.CHRTYPE}, 0),
    ("sizes that are none", {"n1/kern.log": XID}, {"mtime": -5}, 1),
]


@pytest.mark.parametrize(("files", "header", "logs"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_an_archive_writes_nothing_but_logs(tmp_path: Path, files: dict[str, bytes], header: dict[str, object], logs: int) -> None:
    """Whatever it names, only files of our own names appear, in our own folder."""
    path = tar(tmp_path / "logs.tar", files, **header)
    before = set(tmp_path.rglob("*"))
    found, made = gathered(tmp_path, path)
    assert len(made) == logs
    assert {p for p in set(tmp_path.rglob("*")) - before if (tmp_path / "scratch") not in (p, *p.parents)} == set()
    assert found.counts["no_regular_file"] == (len(files) if logs == 0 else 0)


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstd, bytes], ids=["gz", "xz", "zst", "plain"])
def test_what_is_cut_short_is_read_up_to_there(tmp_path: Path, pack: object, keep: float) -> None:
    """A truncated archive gives the lines before the cut, and says so."""
    lines = b"".join(b"2026-11-03T12:%02d:%02d.000Z n17 kernel: line %d %s\n" % (i // 60, i % 60, i, RANDOM.randbytes(40).hex().encode()) for i in range(3000))
    whole = pack(tar(tmp_path / "a", {"n17/kern.log": lines}).read_bytes())  # type: ignore[operator]
    path = tmp_path / "logs.tar.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    found, logs = gathered(tmp_path, path)
    got = logs["kernel.n17.log"].splitlines()
    assert found.counts["cut_short"] >= 1 or len(got) == 3000
    assert 100 < len(got) <= 3000
    assert all(f"line {i} " in line for i, line in enumerate(got[:-1]))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would fill the disk, or run for ever, ends with a sentence."""
    monkeypatch.setattr(archives, "MOST_BYTES", 4 << 20)
    path = tar(tmp_path / "logs.tar.gz", {"n1/kern.log": b"\0" * (8 << 20)}, "w:gz")
    with pytest.raises(BadInput, match="a part of it at a time is needed"):
        gathered(tmp_path, path)


@pytest.mark.parametrize("content", [b"", b"hello world", b"\x1f\x8b" + RANDOM.randbytes(50), RANDOM.randbytes(2000)],
                         ids=["empty", "text", "gzip by its first bytes alone", "noise"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    """One sentence that names the file; an empty file is an empty archive."""
    path = tmp_path / "logs.tar.gz"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"logs\.tar\.gz"):
        import_history(ImportOptions(str(tmp_path / "out"), files=(str(path),), now_ms=CHANGED * 1000))


DATES = [
    ("Dec 31 23:59:59 n1 kernel: x", None, "2025-12-31T23:59:59.000Z n1 kernel: x"),
    ("<6>Nov  3 12:00:00 n1 kernel: x", None, "2026-11-03T12:00:00.000Z n1 kernel: x"),
    ("Nov  3 12:00:00 n1 kernel: x", "Europe/Berlin", "2026-11-03T11:00:00.000Z n1 kernel: x"),
    ("2026-11-03T12:00:00 n1 kernel: x", "Europe/Berlin", "2026-11-03T11:00:00.000Z n1 kernel: x"),
    ("2026-11-03T12:00:00+00:00 n1 kernel: x", "Europe/Berlin", "2026-11-03T12:00:00+00:00 n1 kernel: x"),
    ("[Tue Nov  3 12:00:00 2026] x", "Europe/Berlin", "2026-11-03T11:00:00.000Z x"),
    ("Feb 29 12:00:00 n1 kernel: x", None, "2024-02-29T12:00:00.000Z n1 kernel: x"),
    ("[  12.5] x", None, "[  12.5] x"), ("", None, ""), ("Nov 31 12:00:00 x", None, "Nov 31 12:00:00 x"),
]


@pytest.mark.parametrize(("line", "zone", "wanted"), DATES)
def test_dates_become_whole(line: str, zone: str | None, wanted: str) -> None:
    """The year is the last in which the date is not after the file's own time; a zone counts where the line names none."""
    assert dated_line(line, CHANGED * 1000, *([ZoneInfo(zone)] if zone else [])) == wanted


def test_import_of_a_tree_by_patterns(tmp_path: Path) -> None:
    """Files that no usual name fits are named by patterns; a second import of overlapping logs adds only what is new."""
    tree = tmp_path / "collected"
    (tree / "rack1" / "node-7").mkdir(parents=True)
    (tree / "rack1" / "node-7" / "console.txt").write_bytes(XID)
    (tree / "rack1" / "other.bin").write_bytes(b"\0\1\2")
    names = (r"rack1/(?P<node>[^/]+)/console",)
    os.utime(tree / "rack1" / "node-7" / "console.txt", (CHANGED, CHANGED))
    out = str(tmp_path / "out")
    import_history(ImportOptions(out, files=(str(tree),), log_names=names, now_ms=CHANGED * 1000))
    with (tree / "rack1" / "node-7" / "console.txt").open("ab") as more:
        more.write(XID.replace(b"79", b"48").replace(b"12:00", b"13:00"))
    os.utime(tree / "rack1" / "node-7" / "console.txt", (CHANGED, CHANGED))
    done = import_history(ImportOptions(out, files=(str(tree),), log_names=names, now_ms=CHANGED * 1000))
    store = DuckStore(tmp_path / "out" / "greylag.duckdb", retention_ms=2**53)
    found = [(e.target.node, e.fields["xid"]) for e in store.events(0, 2**53)]
    store.close()
    assert (found, done["logs"], done["logs_passed_over"]) == ([("node-7", 79), ("node-7", 48)], 1, 1)
