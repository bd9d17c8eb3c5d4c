"""What is true beside a recording: which parts were at fault from when to when, and what would have cured them.

`NAME.truth.jsonl` as the bundled fleet writes it (`greylag fleet run`, docs/scenarios.md): one JSON object a line, of which
`fault`, `scope`, `culprit`, `victims`, `at`, `until`, `cured_at`, `cures` and `nothing_to_do` are read. Or labels by hand,
`NAME.labels.yaml` (or .json, or `labels.yaml` in the folder): a list of faults, each with `fault`, `start`, and as far as known
`node`, `device`, `jobs`, `end` and `cures`; an empty list says that nothing was wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.clock import parse_rfc3339
from core.errors import BadInput
from core.yamlfile import read_yaml

GRACE_MS = 300_000  # what was decided while the fault was there may come a little later


@dataclass(frozen=True, slots=True)
class TrueFault:
    """A fault that was there. start, end: ms, end infinite where it did not go. node: of its part, None where its part is no
    node's; jobs: those that suffered; cures: action kinds that end it; fails: those that were seen not to."""

    fault: str
    scope: str
    node: str | None
    device: str | None
    jobs: tuple[str, ...]
    start: float
    end: float
    cures: frozenset[str]
    fails: frozenset[str] = frozenset()

    def now(self, at: int) -> bool:
        """True where something that was decided at `at` can be about it."""
        return self.start <= at <= self.end + GRACE_MS


@dataclass(frozen=True, slots=True)
class Sound:
    """A node of which it is known that nothing was wrong with it from start to end (ms)."""

    node: str
    start: float
    end: float

    def now(self, at: int) -> bool:
        """True where something that was decided at `at` falls into it."""
        return self.start <= at <= self.end


@dataclass(frozen=True, slots=True)
class Known:
    """What is known beside a recording. complete: every fault of it is among `faults`, so that all other nodes were healthy.
    cures: each fault's cures are known, so that what is not among them would not have helped."""

    faults: tuple[TrueFault, ...] = ()
    sound: tuple[Sound, ...] = ()
    complete: bool = False
    cures: bool = False


NOTHING_KNOWN = Known()


def label_paths(paths: Sequence[str]) -> list[Path]:
    """The files of labels beside or in the paths of a recording."""
    out: list[Path] = []
    for path in map(Path, paths):
        for ending in ("yaml", "json"):
            if path.is_dir():
                out += sorted(path.glob(f"*.labels.{ending}")) + [p for p in (path / f"labels.{ending}",) if p.is_file()]
            out += [p for p in (path.with_name(f"{path.name.partition('.')[0]}.labels.{ending}"),) if p.is_file()]
    return list(dict.fromkeys(out))


def read_labels(paths: Sequence[Path]) -> Known:
    """The faults of the files. Raises BadInput: file and number of the row."""
    faults: list[TrueFault] = []
    cures = True
    for path in paths:
        rows = read_yaml(path)
        if not isinstance(rows, list):
            raise BadInput(str(path), "", type(rows).__name__, "a list of faults is needed")
        for number, row in enumerate(rows, 1):
            try:
                node, device = row.get("node"), row.get("device")
                end = math.inf if row.get("end") is None else parse_rfc3339(str(row["end"]))
                faults.append(TrueFault(str(row["fault"]), str(row.get("scope", "")), None if node is None else str(node),
                                        None if device is None else str(device), tuple(sorted(map(str, row.get("jobs") or ()))),
                                        parse_rfc3339(str(row["start"])), end, frozenset(map(str, row.get("cures") or ()))))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadInput(f"{path}, row {number}", "", type(error).__name__,
                               "a fault with `fault` and `start` (RFC 3339) is needed") from None
            cures = cures and row.get("cures") is not None
    return Known(tuple(sorted(faults, key=lambda t: (t.start, t.fault))), (), complete=True, cures=cures)


def truth_paths(paths: Sequence[str]) -> list[Path]:
    """The truth files beside or in the paths of a recording."""
    out: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            out += sorted(path.glob("*.truth.jsonl")) + [p for p in (path / "truth.jsonl",) if p.is_file()]
        out += [p for p in (path.with_name(f"{path.name.partition('.')[0]}.truth.jsonl"),) if p.is_file()]
    return list(dict.fromkeys(out))


def read_truth(paths: Sequence[Path]) -> list[TrueFault]:
    """The faults of the files; look-alikes are none. Raises BadInput: file and line."""
    out = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(str(path), "", type(error).__name__, "a readable UTF-8 file of truth is needed") from None
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                row = _row(line, f"{path}:{number}")
                if row is not None:
                    out.append(row)
    return sorted(out, key=lambda t: (t.start, t.fault))


def truth_of(row: Mapping[str, Any]) -> TrueFault | None:
    """A row of truth; None for what is not a fault. Raises KeyError, TypeError, ValueError on anything else."""
    if row.get("type", "truth") != "truth" or row.get("nothing_to_do") or row["fault"] is None:
        return None
    culprit = row["culprit"] or {}
    jobs = [v["job"] for v in row.get("victims", ()) if v.get("kind") == "job"] + [culprit.get("job")]
    ends = [parse_rfc3339(v) for v in (row.get("until"), row.get("cured_at")) if v is not None]
    alone = culprit.get("kind") not in ("switch", "rack", "pdu", "cooling", "storage", "fleet", "label", "collector")
    return TrueFault(str(row["fault"]), str(row.get("scope", "")), culprit.get("node") if alone else None, culprit.get("device"),
                 tuple(sorted({str(j) for j in jobs if j})), parse_rfc3339(row["at"]), min(ends, default=math.inf),
                 frozenset(row.get("cures", ())))


def _row(line: str, where: str) -> TrueFault | None:
    try:
        return truth_of(json.loads(line))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(where, "", type(error).__name__, "a row of truth as `greylag fleet run` prints it is needed") from None
