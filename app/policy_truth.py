"""What is true beside a recording: which parts were at fault from when to when, and what would have cured them.

`NAME.truth.jsonl` as the bundled fleet writes it (`greylag fleet run`, docs/scenarios.md): one JSON object a line, of which
`fault`, `scope`, `culprit`, `victims`, `at`, `until`, `cured_at`, `cures` and `nothing_to_do` are read.
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

GRACE_MS = 300_000  # what was decided while the fault was there may come a little later


@dataclass(frozen=True, slots=True)
class TrueFault:
    """A fault that was there. start, end: ms, end infinite where it did not go. node: of its part, None where its part is no
    node's; jobs: those that suffered; cures: action kinds that end it."""

    fault: str
    scope: str
    node: str | None
    device: str | None
    jobs: tuple[str, ...]
    start: float
    end: float
    cures: frozenset[str]

    def now(self, at: int) -> bool:
        """True where something that was decided at `at` can be about it."""
        return self.start <= at <= self.end + GRACE_MS


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
