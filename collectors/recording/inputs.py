"""Which files a recording is made of, and how their bytes are read: plain or gzip, in blocks, with bounded lines."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import BadInput

ALLOWED = (
    "allowed are: *.prom, *.om, *.dump (also .gz), *.parquet, *.csv, kernel.<node>.log, trainer.<job>.log (also .gz), "
    "inventory.yaml, inventory.yml, inventory.json"
)
INVENTORIES = ("inventory.yaml", "inventory.yml", "inventory.json")
MOST_BLOCK_BYTES, LEAST_BLOCK_BYTES = 256 * 1024, 16 * 1024
ALL_BLOCKS_BYTES = 32 << 20  # all files of a recording are read side by side: their blocks together
LONGEST_LINE = 1 << 20
_LOG = re.compile(r"(kernel|trainer)\.(.+)\.log(?:\.gz)?")
_ENDINGS = ((".prom", "prom"), (".prom.gz", "prom"), (".om", "om"), (".om.gz", "om"),
            (".dump", "dump"), (".dump.gz", "dump"), (".parquet", "parquet"), (".csv", "csv"))


@dataclass(frozen=True, slots=True)
class InputFile:
    """kind: prom, om, dump, parquet, csv, kernel, trainer. subject: a log's node or job, else the file's stem. block_bytes: how
    much of it is read at once."""

    path: Path
    kind: str
    subject: str
    block_bytes: int = MOST_BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files by name; the inventory among them; names that were passed over in a directory."""

    files: tuple[InputFile, ...]
    inventory: Path | None
    ignored: tuple[str, ...]


def kind_of(path: Path) -> InputFile | None:
    """What a file is by its name, None where no recording has such a name."""
    name = path.name
    if match := _LOG.fullmatch(name):
        return InputFile(path, match[1], match[2])
    for ending, kind in _ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return InputFile(path, kind, name[: -len(ending)])
    return None


def find_inputs(paths: Sequence[str | Path]) -> Inputs:
    """The files that the paths (files, or directories with what is below them) give, sorted.

    BadInput: a path that does not exist, a file of another name that was given by itself, a directory without any file
    of a recording, a second inventory.
    """
    files: dict[Path, InputFile] = {}
    inventories: list[Path] = []
    ignored: list[str] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = _walk(path, files, inventories, ignored)
            if not found:
                raise BadInput(str(path), "", "a directory without a recording", ALLOWED)
        elif path.is_file():
            if not _take(path, files, inventories):
                raise BadInput(str(path), "", path.name, ALLOWED)
        else:
            raise BadInput(str(path), "", "no file or directory", "an existing file or directory is needed")
    if len({p.resolve() for p in inventories}) > 1:
        raise BadInput(str(inventories[1]), "", "a second inventory", f"one is allowed, and {inventories[0]} is one")
    share = max(LEAST_BLOCK_BYTES, min(MOST_BLOCK_BYTES, ALL_BLOCKS_BYTES // max(1, len(files))))
    ordered = sorted((replace(f, block_bytes=share) for f in files.values()), key=lambda f: (f.path.name, str(f.path)))
    return Inputs(tuple(ordered), inventories[0] if inventories else None, tuple(sorted(ignored)))


def _walk(root: Path, files: dict[Path, InputFile], inventories: list[Path], ignored: list[str]) -> bool:
    found = False
    for path in sorted(root.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(root).parts) or not path.is_file():
            continue
        if _take(path, files, inventories):
            found = True
        else:
            ignored.append(str(path))
    return found


def _take(path: Path, files: dict[Path, InputFile], inventories: list[Path]) -> bool:
    if path.name in INVENTORIES:
        if path.resolve() not in {p.resolve() for p in inventories}:
            inventories.append(path)
        return True
    one = kind_of(path)
    if one is None:
        return False
    files.setdefault(path.resolve(), one)
    return True


def blocks(file: InputFile) -> Iterator[bytes]:
    """The file's bytes, unpacked. BadInput where it cannot be read.

    Between two blocks a plain file is closed: a recording may have more files than a process may hold open.
    """
    path, offset = file.path, 0
    try:
        if path.name.endswith(".gz"):
            with gzip.open(path, "rb") as packed:
                while block := packed.read(file.block_bytes):
                    yield block
            return
        while True:
            with open(path, "rb") as plain:
                plain.seek(offset)
                block = plain.read(file.block_bytes)
            if not block:
                return
            offset += len(block)
            yield block
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise BadInput(str(path), "", what, "a readable, whole file is needed") from None


def sample_lines(file: InputFile) -> Iterator[list[bytes]]:
    """Lines of an exposition without their ends, many at a time. BadInput for a line over 1 MiB."""
    rest = b""
    number = 0
    for block in blocks(file):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if b"\r" in block:
            lines = [line.removesuffix(b"\r") for line in lines]
        number += len(lines)
        if len(rest) > LONGEST_LINE:
            raise BadInput(f"{file.path}:{number + 1}", "", "a line over 1 MiB", "a line may have at most 1048576 bytes")
        yield lines
    if rest:
        yield [rest]


@dataclass(slots=True)
class LogLines:
    """Lines of a log, split at LF and at CR (progress bars write over themselves); whatever the bytes, it goes on.

    too_long: lines that were cut at 1 MiB. bad_utf8: lines with bytes that are no UTF-8; these show as U+FFFD.
    """

    file: InputFile
    too_long: int = 0
    bad_utf8: int = 0

    def __iter__(self) -> Iterator[str]:
        rest = b""
        dropping = False
        for block in blocks(self.file):
            lines = (rest + block.replace(b"\r", b"\n")).split(b"\n")
            rest = lines.pop()
            for raw in lines:
                if dropping:
                    dropping = False
                elif raw:
                    yield self._text(raw)
            if len(rest) > LONGEST_LINE:
                if not dropping:
                    self.too_long += 1
                    yield self._text(rest[:LONGEST_LINE])
                rest, dropping = b"", True
        if rest and not dropping:
            yield self._text(rest)

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.bad_utf8 += 1
            return raw.decode("utf-8", "replace")
