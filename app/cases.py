"""Recorded cases: a span of a store or of a recording with what is true of it, kept to be judged again and again.

A case is a folder: a small store with the span's samples, events and meanings, the inventory, and `case.json`, which says what
Greylag must say of it (`incidents`, which may be none). `replay` reads the folder as it is; `check` replays a case and compares.

What is true is a person's word: a list of faults and parts, `nothing`, what became of one incident (one that was marked wrong is
nothing), or what a replay says today, where somebody has looked at it and found it right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.replay import ReplayOptions, sources_of, whole_story
from app.stored import FILE_NAME, FOR_EVER_MS, Together, open_stored, split_stores
from core.clock import TICK_MS, parse_rfc3339, rfc3339, tick_at_or_after
from core.errors import BadInput, nearest
from core.faults import faults
from core.types import Batch
from pipeline.store.duck import DuckStore
from pipeline.store.shrink import shrink

FILE = "case.json"
LEAD_MS, AFTER_MS = 30 * 60_000, 10 * 60_000  # around an incident: a window before it, and its end
BATCHES_PER_COMMIT = 40
PARTS = ("kind", "node", "device", "job", "rank")
NOTHING = "nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class CaseOptions:
    """What `greylag cases add` was asked for. expect: `FAULT`, `FAULT@NODE`, `FAULT@NODE/DEVICE`, `FAULT@job=NAME`, or `nothing`.
    incident: of a store. as_told: what a replay says now is true. must_not: as expect, what no incident may say."""

    name: str
    paths: tuple[str, ...]
    folder: str = "cases"
    start: str | None = None
    end: str | None = None
    expect: tuple[str, ...] = ()
    incident: str | None = None
    as_told: bool = False
    must_not: tuple[str, ...] = ()
    inventory: str | None = None
    note: str = ""


# --- what is true -----------------------------------------------------------------------------------------------------
def expected(text: str) -> dict[str, Any]:
    """`thermal_throttle@n7/3` as {fault, culprit}. Raises BadInput."""
    fault, at, place = text.partition("@")
    if fault not in faults():
        raise BadInput("--expect", "", fault, f"a fault of Greylag's is needed, or `{NOTHING}`{nearest(fault, faults())}")
    if not at:
        return {"fault": fault, "culprit": None}
    if place.startswith("job="):
        return {"fault": fault, "culprit": {"job": place[4:]}}
    node, slash, device = place.partition("/")
    if not node or (slash and not device):
        raise BadInput("--expect", "", text, "FAULT@NODE, FAULT@NODE/DEVICE or FAULT@job=NAME is needed")
    return {"fault": fault, "culprit": {"node": node, **({"device": device} if device else {})}}


def truth_of(incident: Mapping[str, Any]) -> dict[str, Any]:
    """What an incident says, as a truth."""
    culprit = incident["culprit"]
    kept = {key: culprit[key] for key in PARTS if culprit.get(key) is not None} if culprit else None
    return {"fault": incident["fault"], "scope": incident["scope"], "culprit": kept}


def told_of(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The incidents of a replay in their last state, without those that were absorbed by others."""
    last: dict[str, dict[str, Any]] = {}
    for record in whole_story(paths):
        if record["type"] == "incident":
            last[record["incident"]["id"]] = record["incident"]
    return [one for one in last.values() if one["state"] != "merged"]


def differences(truth: Sequence[Mapping[str, Any]], told: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each incident that is missing or too much; empty where both say the same."""
    left = list(told)
    out = []
    for one in truth:
        hit = next((t for t in left if same_incident(one, t)), None)
        if hit is None:
            out.append(f"missing: {words_of(one)}")
        else:
            left.remove(hit)
    return out + [f"too much: {words_of(one)}" for one in left]


def same_incident(truth: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """What the truth leaves open may be anything; `culprit: null` beside a scope says that no part may be named."""
    if truth["fault"] != told["fault"] or truth.get("scope") not in (None, told["scope"]):
        return False
    part, culprit = truth.get("culprit"), told["culprit"]
    if part is None:
        return "scope" not in truth or culprit is None
    if set(part) == {"job"}:
        return part["job"] in told["jobs"]
    return culprit is not None and all(culprit.get(key) == value for key, value in part.items())


def words_of(one: Mapping[str, Any]) -> str:
    """A truth or an incident as `FAULT@NODE/DEVICE`."""
    part = one.get("culprit") or {}
    place = "/".join(str(part[key]) for key in ("node", "device") if part.get(key)) or (f"job={part['job']}" if part.get("job") else "")
    return f"{one['fault']}@{place}" if place else str(one["fault"])


# --- adding -----------------------------------------------------------------------------------------------------------
def add(options: CaseOptions) -> dict[str, Any]:
    """Makes a case and gives what its `case.json` says. Raises BadInput; nothing is left of a case that could not be made."""
    folder, forbidden = _checked(options), [expected(text) for text in options.must_not]
    span, truth = _span(options), [expected(text) for text in options.expect if text != NOTHING]
    if options.incident is not None:
        span, truth = _of_incident(options, span)
    with contextlib.ExitStack() as held:
        recording, stored = sources_of(ReplayOptions(options.paths, options.inventory), held)
        ends = [(recording.first_at, recording.last_at), *((one.first_at, one.last_at) for one in stored)]
        known = [(first, last) for first, last in ends if first is not None and last is not None]
        if not known:
            raise BadInput(", ".join(options.paths), "", "nothing with a time", "a store or a recording is needed")
        first = max(min(f for f, _ in known), span[0])
        last = min(max(e for _, e in known), span[1])
        if first > last:
            raise BadInput("--start", "", rfc3339(span[0]), f"a time within {rfc3339(known[0][0])} to {rfc3339(known[0][1])} is needed")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            samples, events = _copy(Together([recording, *stored]), folder / FILE_NAME, min(f for f, _ in known), first, last)
            source = _inventory_of(options, recording.inventory_path)
            if source is not None:
                (folder / f"inventory{source.suffix}").write_bytes(source.read_bytes())
            if not samples and not events:
                raise BadInput(", ".join(options.paths), "", f"nothing from {rfc3339(first)} to {rfc3339(last)}", "another time is needed")
        except BaseException:
            _remove(folder)
            raise
    if options.as_told:
        truth = [truth_of(one) for one in told_of([str(folder)])]
    case = {"name": options.name, "from": ", ".join(Path(p).name for p in options.paths), "start": rfc3339(first), "end": rfc3339(last),
            "samples": samples, "events": events, "incidents": truth,
            "must_not": forbidden, "note": options.note}
    (folder / FILE).write_text(json.dumps(case, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return case


def _checked(options: CaseOptions) -> Path:
    """The folder of the new case. Raises BadInput."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,80}", options.name):
        raise BadInput("NAME", "", options.name, "letters, digits, `.`, `_` and `-` are allowed")
    ways = [bool(options.expect), options.incident is not None, options.as_told]
    if sum(ways) != 1:
        raise BadInput("cases add", "", "nothing that says what is true" if not any(ways) else "more than one word on what is true",
                       "one of --expect, --incident and --as-told is needed")
    if NOTHING in options.expect and len(options.expect) > 1:
        raise BadInput("--expect", "", NOTHING, "it is allowed alone only")
    folder = Path(options.folder) / options.name
    if folder.exists():
        raise BadInput("NAME", "", options.name, f"a name that {options.folder} does not have yet is needed")
    return folder


def _span(options: CaseOptions) -> tuple[int, int]:
    out = []
    for key, text, default in (("--start", options.start, -(2**62)), ("--end", options.end, 2**62)):
        try:
            out.append(default if text is None else parse_rfc3339(text))
        except ValueError:
            raise BadInput(key, "", text, "an RFC 3339 time such as 2026-01-31T12:00:00Z is needed") from None
    if out[0] >= out[1]:
        raise BadInput("--start", "", options.start, "a time before --end is needed")
    return out[0], out[1]


def _of_incident(options: CaseOptions, span: tuple[int, int]) -> tuple[tuple[int, int], list[dict[str, Any]]]:
    """The span of an incident of the store, and what is true of it."""
    for path in split_stores(options.paths)[0]:
        store = open_stored(path)
        try:
            found = store.incidents(id=options.incident)
        finally:
            store.close()
        if found:
            one = found[0]
            low = parse_rfc3339(one["onset_at"]) - LEAD_MS
            high = parse_rfc3339(one["resolved_at"] or one["updated_at"]) + AFTER_MS
            span = (span[0] if options.start else low, span[1] if options.end else high)
            return span, [] if one["state"] == "abandoned" else [truth_of(one)]
    raise BadInput("--incident", "", options.incident or "", "an incident of the store that is named is needed")


def _inventory_of(options: CaseOptions, found: Path | None) -> Path | None:
    return Path(options.inventory) if options.inventory is not None else found


def _copy(source: Together, file: Path, begin: int, first: int, last: int) -> tuple[int, int]:
    """Copies what lies in first..last (ms) into a new store: (samples, events). Layouts come along wherever they were told."""
    store = DuckStore(file, retention_ms=FOR_EVER_MS)
    events = seq = 0
    try:
        pending: list[Batch] = []
        for at in range(tick_at_or_after(begin), tick_at_or_after(last) + 1, TICK_MS):
            for batch in source.advance(at):
                kept = dataclasses.replace(
                    batch, worker="case", scrapes=tuple(s for s in batch.scrapes if first <= s.at <= last),
                    events=tuple(e for e in batch.events if first <= e.at <= last))
                if kept.scrapes or kept.events or kept.layouts:
                    seq += 1
                    events += len(kept.events)
                    pending.append(dataclasses.replace(kept, epoch=1, seq=seq))
            if len(pending) >= BATCHES_PER_COMMIT:
                store.append(pending)
                store.seal()
                pending = []
        store.append(pending)
        store.seal()
        store.checkpoint()
        return int(store.stats()["samples"]), events
    finally:
        store.close()
        shrink(file)


def _remove(folder: Path) -> None:
    """What was made of a case."""
    for one in sorted(folder.rglob("*"), reverse=True):
        one.rmdir() if one.is_dir() else one.unlink()
    folder.rmdir()


# --- judging again ----------------------------------------------------------------------------------------------------
def check(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Replays cases: {name, right, differences} for each. paths: cases, or folders of cases. Raises BadInput."""
    out = []
    for folder in _cases(paths):
        case = read_case(folder)
        told = told_of([str(folder)])
        found = differences(case["incidents"], told)
        found += [f"must not be said: {words_of(t)}" for t in told if any(same_incident(row, t) for row in case.get("must_not", ()))]
        out.append({"name": case["name"], "right": not found, "differences": found})
    return out


def read_case(folder: Path) -> dict[str, Any]:
    """The `case.json` of a case. Raises BadInput."""
    file = folder / FILE
    try:
        case = json.loads(file.read_text(encoding="utf-8"))
        assert isinstance(case["name"], str)
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise BadInput(str(file), "", "a file that is no case", "a case.json as `greylag cases add` writes it is needed") from None
    return case_of(case, str(file))


def case_of(said: Mapping[str, Any], file: str) -> dict[str, Any]:
    """What a case says is true (`incidents`) and must not be said (`must_not`), checked. Raises BadInput."""
    try:
        rows = [*said["incidents"], *said.get("must_not", ())]
        assert all(one["fault"] in faults() and isinstance(one.get("culprit"), Mapping | None) for one in rows)
    except (KeyError, TypeError, AttributeError, AssertionError):
        raise BadInput(file, "", "a file that is no case", "a case.json as `greylag cases add` writes it is needed") from None
    return dict(said)


def _cases(paths: Sequence[str]) -> list[Path]:
    out: list[Path] = []
    for path in map(Path, paths):
        found = [path] if (path / FILE).is_file() else sorted(one.parent for one in path.glob(f"*/{FILE}"))
        if not found:
            raise BadInput(str(path), "", "no case", "a folder that `greylag cases add` made, or one of such folders, is needed")
        out += found
    return out
