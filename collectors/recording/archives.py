"""Logs as sites keep them: trees and archives of rotated kernel and trainer logs, made into the logs of a recording.

A path is a file, a folder with what is below it, or a tar, any of them packed by gzip, bzip2, xz or zstd, and so are the files
within. What a file is, and whose, is told by its path (`LogNames`), else by the host that each of its lines names: lines of
`messages` or of a journal's export may come from many hosts. Each log is written into a folder of the caller's as
`kernel.<node>.log` or `trainer.<job>.log`, its rotated parts in order, a syslog date without a year given the year that its
file's own time allows. Nothing is ever written under a name that an archive chose.

A file that is there twice, and dated lines that an overlapping part has again, count once. What ends too early is read up to
there. All of this is counted, and told to people.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import re
import shutil
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from collectors.loglines import dated_line, kernel_head
from collectors.recording.inputs import kind_of
from collectors.recording.journal_export import entries
from collectors.recording.lognames import LogNames, Named
from core.errors import BadInput

MAGIC = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zst"))
BLOCK = 1 << 18
PIECE = 1 << 14  # a read that meets the break loses what it had: so much at most
LONGEST_LINE = 1 << 20
MOST_FILES = 1_000_000
MOST_BYTES = 64 << 30    # unpacked, of one import
LEAST_FREE_BYTES = 1 << 30
MOST_HEADER_BYTES = 1 << 20  # of a name in a tar
MOST_REMEMBERED = 4_000_000  # dated lines of one log that are compared with those of its other parts
JOURNAL_MARK, BINARY_JOURNAL = b"__CURSOR=", b"LPKSHHRH"


class CutShort(Exception):
    """What was read ends too early, or is damaged from here on."""


class _TooMuch(Exception):
    """More than an import may unpack."""


@dataclass(slots=True)
class Gathered:
    """files: of the recording, in the caller's folder. counts: read, passed_over, binary_journal, cut_short, same_file,
    same_line, no_host, no_regular_file. examples: for each count, the first path."""

    files: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, path: str, n: int = 1) -> None:
        """Counts."""
        if n:
            self.counts[what] += n
            self.examples.setdefault(what, path)


@dataclass(frozen=True, slots=True)
class _Part:
    """One file of a log. order: its place among the rotated parts, the oldest first."""

    path: Path
    order: tuple[int, int, int]


def is_archive(path: Path) -> bool:
    """Whether a file's name is that of a tar, packed or not."""
    return re.search(r"\.(?:tar(?:\.(?:gz|bz2|xz|zst))?|tgz|tbz2?|txz|tzst)$", path.name.lower()) is not None


def gather(paths: Sequence[str], names: LogNames, folder: Path, zone: tzinfo = UTC,
           progress: Callable[[str], None] | None = None) -> Gathered:
    """The logs of all paths, as files of a recording in `folder`. zone: of dates that name none.

    Raises BadInput for a path that cannot be read at all, and where the whole is larger than an import may be.
    """
    work = _Gatherer(names, folder, zone, progress)
    for given in paths:
        try:
            work.path(Path(given))
        except _TooMuch:
            raise BadInput(given, "", f"more than {MOST_BYTES >> 30} GiB of logs, or more than the disk holds",
                           "a part of it at a time is needed") from None
    work.join()
    return work.out


class _Gatherer:
    def __init__(self, names: LogNames, folder: Path, zone: tzinfo, progress: Callable[[str], None] | None) -> None:
        self._names, self._folder, self._zone, self._progress = names, folder, zone, progress
        self._parts: dict[tuple[str, str], list[_Part]] = {}
        self._seen: set[tuple[str, str, bytes]] = set()
        self._bytes = 0
        self._files = 0
        self.out = Gathered()

    # --- finding ------------------------------------------------------------------------------------------------------
    def path(self, path: Path) -> None:
        """A file, a folder or an archive. Raises BadInput, _TooMuch."""
        if path.is_dir():
            for one in sorted(path.rglob("*")):
                if one.is_file() and not one.is_symlink() and not any(p.startswith(".") for p in one.relative_to(path).parts):
                    self._one(one, str(one.relative_to(path)))
        elif path.is_file():
            self._one(path, str(path) if self._names.given else path.name)
        else:
            raise BadInput(str(path), "", "no such file", "an existing file or folder is needed")

    def _one(self, path: Path, shown: str) -> None:
        try:
            with open(path, "rb") as raw:
                if is_archive(path):
                    self._tar(_unpacked(raw), shown)
                else:
                    self._file(raw, shown, round(path.stat().st_mtime * 1000))
        except OSError as error:
            raise BadInput(str(path), "", error.strerror or "an error of the disk", "a readable file is needed") from None

    def _tar(self, stream: IO[bytes], shown: str) -> None:
        """Members in the order of the archive. Names are only ever compared with patterns."""
        members = 0
        try:
            with tarfile.open(fileobj=_Steady(stream), mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]
                for member in tar:
                    members += 1
                    if not member.isreg() or member.issparse():  # holes may be as long as a header likes
                        self.out.add("no_regular_file", f"{shown}: {member.name}", 0 if member.isdir() else 1)
                        continue
                    held = tar.extractfile(member)
                    if held is not None:
                        self._file(held, member.name, round(max(0.0, float(member.mtime)) * 1000))
        except (tarfile.TarError, CutShort, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as error:
            if not members:
                raise BadInput(shown, "", "no archive that can be read", f"a tar is needed ({str(error)[:100]})") from None
            self.out.add("cut_short", shown)

    # --- one file -----------------------------------------------------------------------------------------------------
    def _file(self, raw: IO[bytes], shown: str, changed_ms: int) -> None:
        self._files += 1
        if self._files > MOST_FILES:
            raise _TooMuch
        if self._progress is not None:
            self._progress(f"{self._files} files, {self._bytes >> 20} MiB of logs")
        named = self._names.of(shown)
        if named is None:
            self.out.add("passed_over", shown)
            return
        digest = hashlib.sha256()
        writers: dict[str, Path] = {}
        try:
            stream = _unpacked(raw)
            first = _reading(stream, BLOCK)
            if first.startswith(BINARY_JOURNAL):
                self.out.add("binary_journal", shown)
                return
            self._write(named, _lines(first, self._blocks(first, stream, digest)), shown, changed_ms, writers)
        except CutShort:
            self.out.add("cut_short", shown)
        self.out.add("read", shown)
        for subject, path in writers.items():
            key = (named.kind, subject, digest.digest())
            if key in self._seen:
                self.out.add("same_file", shown)
                path.unlink()
                continue
            self._seen.add(key)
            self._parts.setdefault((named.kind, subject), []).append(_Part(path, named.order))

    def _write(self, named: Named, lines: Iterator[bytes], shown: str, changed_ms: int, writers: dict[str, Path]) -> None:
        """Each line into the part of its log. A log whose file names no node goes by the hosts of its lines."""
        open_files: dict[str, IO[bytes]] = {}
        newest = changed_ms + 86_400_000
        subject = None if named.guess else named.subject
        try:
            for line in lines:
                text = line.decode("utf-8", "replace")
                if named.kind == "kernel":
                    if named.mixed and not _of_kernel(text):
                        continue
                    subject = _node_of(named, text, subject)
                    if not subject:
                        self.out.add("no_host", shown)
                        continue
                    text = dated_line(text, newest, self._zone)
                elif named.node:
                    text = f"{named.node}: {text}"
                out = open_files.get(subject or "")
                if out is None:
                    out = self._open(subject or "", open_files, writers)
                out.write(text.encode("utf-8", "replace") + b"\n")
        finally:
            for one in open_files.values():
                one.close()

    def _open(self, subject: str, open_files: dict[str, IO[bytes]], writers: dict[str, Path]) -> IO[bytes]:
        if len(open_files) >= 64:  # a process may hold only so many: the others are opened again where they are needed
            open_files.pop(next(iter(open_files))).close()
        path = writers.get(subject)
        if path is None:
            path = writers[subject] = self._folder / f"part-{self._files:07d}-{len(writers):05d}"
        open_files[subject] = out = open(path, "ab")  # noqa: SIM115 - closed when the file's lines are over
        return out

    def _count(self, size: int) -> None:
        before = self._bytes
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise _TooMuch
        if before >> 26 != self._bytes >> 26 and shutil.disk_usage(self._folder).free < LEAST_FREE_BYTES:
            raise _TooMuch

    def _blocks(self, first: bytes, stream: IO[bytes], digest: Any) -> Iterator[bytes]:
        """All blocks of a file, counted: what is unpacked and thrown away takes time as well."""
        block = first
        while block:
            digest.update(block)
            self._count(len(block))
            yield block
            block = _reading(stream, BLOCK)

    # --- whole logs ---------------------------------------------------------------------------------------------------
    def join(self) -> None:
        """Puts the parts of each log together."""
        for (kind, subject), parts in sorted(self._parts.items()):
            path = self._folder / f"{kind}.{_safe(subject)}.log"
            if kind_of(path) is None or path.exists():
                path = self._folder / f"{kind}.{hashlib.sha256(subject.encode()).hexdigest()[:12]}.log"
            parts.sort(key=lambda part: part.order)
            if len(parts) == 1:
                os.replace(parts[0].path, path)
            else:
                self._joined(parts, path, subject)
            self.out.files.append(str(path))

    def _joined(self, parts: Sequence[_Part], path: Path, subject: str) -> None:
        """Dated lines that an earlier part has as often already are left out: parts of a log overlap."""
        earlier: Counter[bytes] = Counter()
        with open(path, "wb") as out:
            for part in parts:
                here: Counter[bytes] = Counter()
                with open(part.path, "rb") as lines:
                    for line in lines:
                        if (line[:4].isdigit() or line[:1] == b"{") and len(earlier) < MOST_REMEMBERED:
                            mark = hashlib.blake2b(line, digest_size=8).digest()
                            here[mark] += 1
                            if here[mark] <= earlier[mark]:
                                self.out.add("same_line", subject)
                                continue
                        out.write(line)
                part.path.unlink()
                earlier |= here


# --- bytes ------------------------------------------------------------------------------------------------------------
class _Steady:
    """A stream that gives as many bytes as are asked for, until its end: a tar is read in blocks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        return _reading(self._stream, size)


class _Member(tarfile.TarInfo):
    """A member whose name is no longer than names are: the name is read into memory before it can be looked at."""

    def _proc_member(self, archive: Any) -> Any:
        if self.size > MOST_HEADER_BYTES and self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
                                                           tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            raise tarfile.ReadError("a name of over 1 MiB")
        return super()._proc_member(archive)  # type: ignore[misc]


def _reading(stream: IO[bytes], size: int) -> bytes:
    """`size` bytes, fewer only at the end. Raises CutShort where the packed stream breaks off."""
    out = b""
    try:
        while len(out) < size or size < 0:
            block = stream.read(PIECE if size < 0 else min(PIECE, size - len(out)))
            if not block:
                break
            out += block
    except (CutShort, EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, pa.ArrowException) as error:
        if out:
            return out
        raise CutShort(str(error)) from None
    return out


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    """The stream, unpacked as its first bytes say."""
    head = _Peeked(raw)
    kind = next((name for magic, name in MAGIC if head.first.startswith(magic)), None)
    stream: Any = head
    if kind == "gz":
        stream = gzip.GzipFile(fileobj=stream, mode="rb")
    elif kind == "bz2":
        stream = bz2.BZ2File(stream, "rb")
    elif kind == "xz":
        stream = lzma.LZMAFile(stream, "rb")  # noqa: SIM115 - the file is closed by who opened it
    elif kind == "zst":
        stream = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd")
    return stream  # type: ignore[no-any-return]


class _Peeked:
    """A stream whose first bytes were looked at; it only goes forward."""

    closed = False

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.first = _reading(raw, 6)
        self._left = self.first
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        if self._left:
            out, self._left = (self._left, b"") if size < 0 or size >= len(self._left) else (self._left[:size], self._left[size:])
        else:
            out = self._raw.read(BLOCK if size < 0 else size)
        self._at += len(out)
        return out

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """The file is closed by who opened it."""


def _lines(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends, bounded in length; entries of a journal's export as lines of JSON. first: the first block."""
    if first.startswith(JOURNAL_MARK) or re.match(rb"[A-Z_][A-Z0-9_]*=[^\n]*\n__|__[A-Z_]+=", first):
        yield from entries(blocks)
        return
    rest, dropping = b"", False
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if dropping:
                dropping = False
            elif line:
                yield line[:LONGEST_LINE].rstrip(b"\r")
        if len(rest) > LONGEST_LINE:
            if not dropping:
                yield rest[:LONGEST_LINE]
            rest, dropping = b"", True
    if rest and not dropping:
        yield rest


def _node_of(named: Named, text: str, before: str | None) -> str | None:
    """The node of a kernel's line: as the path says; where that is a guess, as the line says, else as the line before it."""
    if named.subject is not None and not named.guess:
        return named.subject
    host = (kernel_head(text).host or "").partition(".")[0]
    return host if host and host != "localhost" else before or named.subject


_TAGGED = re.compile(r"(?:^|\s)kernel(?:\[\d+\])?:|^\{|^<\d")


def _of_kernel(text: str) -> bool:
    """Whether a line of a log of many programs is the kernel's."""
    if text.startswith("{"):
        return bool(kernel_head(text).text)
    return _TAGGED.search(text[:200]) is not None


def _safe(name: str) -> str:
    """A name of a file that no path can be made of."""
    return re.sub(r"[^\w.@+-]", "_", name)[:200]
