"""Recorded cases in a scorecard: stores and recordings with what is true of them, replayed and held against it.

A path is a case of `greylag cases add`, a folder of such cases, or a store or recording with its truth: beside it
(`NAME.truth.jsonl`, `labels.yaml`, as `app.policy_truth` reads them), or in a file that is named.
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.cases import FILE, case_of, read_case, same_incident, told_of, words_of
from app.evaluate.match import ECHOES
from app.evaluate.rates import rate
from app.policy_truth import GRACE_MS, TrueFault, label_paths, read_labels, read_truth, truth_paths
from core.clock import parse_rfc3339, process_cpu_seconds
from core.errors import BadInput
from core.yamlfile import read_yaml

SHIPPED = Path(__file__).parents[2] / "sample_data" / "recordings"
RIGHT, WRONG, MUST_NOT, FAILED = "right", "wrong", "must_not", "failed"


@dataclass(frozen=True, slots=True)
class Known:
    """Something that is true. start, end: ms between which it was there, None where only that it was is known; jobs: those that
    suffered; what an incident says of those at that time, and blames no part for, is an echo of it."""

    truth: Mapping[str, Any]
    start: float | None = None
    end: float = math.inf
    jobs: tuple[str, ...] = ()

    def now(self, told: Mapping[str, Any]) -> bool:
        """Whether an incident can be about it, by when it was opened."""
        return self.start is None or self.start <= parse_rfc3339(told["opened_at"]) <= self.end + GRACE_MS


@dataclass(frozen=True, slots=True)
class Recorded:
    """One to be judged. paths: what is replayed. must_not: what no incident may say."""

    name: str
    paths: tuple[str, ...]
    known: tuple[Known, ...]
    must_not: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one. missing, too_much, said_wrongly: in words. delays: seconds from when a fault began to when it was told,
    of those of which that is known."""

    name: str
    verdict: str
    expected: int
    found: int
    false: int
    missing: tuple[str, ...] = ()
    too_much: tuple[str, ...] = ()
    said_wrongly: tuple[str, ...] = ()
    delays: tuple[float, ...] = ()
    cpu_seconds: float = 0.0
    error: str = ""


# --- what is there ----------------------------------------------------------------------------------------------------
def recorded(paths: Iterable[str], truth: str | None = None) -> list[Recorded]:
    """All that the paths name. truth: the file that says what is true of the only path. Raises BadInput."""
    named = list(paths)
    if truth is not None:
        if len(named) != 1:
            raise BadInput("--truth", "", truth, "one --cases is needed beside it: the store or recording of which it is true")
        return [_with_truth(named[0], Path(truth))]
    out: list[Recorded] = []
    for path in map(Path, named):
        found = [path] if (path / FILE).is_file() else sorted(one.parent for one in path.glob(f"*/{FILE}"))
        out += [_case(one) for one in found] if found else [_labelled(path)]
    return out


def _case(folder: Path) -> Recorded:
    case = read_case(folder)
    return Recorded(case["name"], (str(folder),), tuple(Known(one) for one in case["incidents"]), tuple(case.get("must_not", ())))


def _with_truth(path: str, file: Path) -> Recorded:
    """A mapping is what a case.json says, a list is labels, lines are truth of the bundled fleet."""
    name = Path(path).name
    if file.suffix == ".jsonl":
        return Recorded(name, (path,), tuple(map(_known, read_truth([file]))))
    said = read_yaml(file)
    if isinstance(said, Mapping):
        case = case_of(said, str(file))
        return Recorded(name, (path,), tuple(Known(one) for one in case["incidents"]), tuple(case.get("must_not", ())))
    return Recorded(name, (path,), tuple(map(_known, read_labels([file]).faults)))


def _labelled(path: Path) -> Recorded:
    path = path.resolve()
    labels, lines = label_paths([str(path)]), truth_paths([str(path)])
    if not path.exists() or not (labels or lines):
        raise BadInput(str(path), "", "nothing that says what is true",
                       "a case, a folder of cases, or a store or recording with its truth beside it or in --truth is needed")
    faults = read_labels(labels).faults if labels else tuple(read_truth(lines))
    return Recorded(path.name, (str(path),), tuple(map(_known, faults)))


def _known(one: TrueFault) -> Known:
    """The truth as a case says it."""
    part = {key: value for key, value in (("node", one.node), ("device", one.device)) if value is not None}
    if not part and one.scope == "job" and one.jobs:
        part = {"job": one.jobs[0]}
    return Known({"fault": one.fault, **({"culprit": part} if part else {})}, one.start, one.end, one.jobs)


# --- judging ----------------------------------------------------------------------------------------------------------
def judge_all(cases: Sequence[Recorded], processes: int) -> Iterator[Judgement]:
    """Each of them, in their order."""
    if processes == 1 or len(cases) <= 1:
        yield from map(judge_one, cases)
        return
    with multiprocessing.get_context("spawn").Pool(min(processes, len(cases))) as pool:
        yield from pool.imap(judge_one, cases)


def judge_one(one: Recorded) -> Judgement:
    """Replays it and compares. What fails is told in the scorecard: it must not end the others."""
    cpu = process_cpu_seconds()
    try:
        told = told_of(list(one.paths))
    except Exception as error:  # containment: as of a scenario
        return Judgement(one.name, FAILED, len(one.known), 0, 0, error=f"{type(error).__name__}: {error}")
    return compared(one, told, process_cpu_seconds() - cpu)


def compared(one: Recorded, told: Sequence[Mapping[str, Any]], cpu: float = 0.0) -> Judgement:
    """The verdict: `right` when all that is true was said and nothing else; `must_not` when what must not be said was."""
    left = sorted(told, key=lambda t: (t["opened_at"], t["id"]))
    missing: list[str] = []
    delays: list[float] = []
    for known in sorted(one.known, key=lambda k: k.start or 0.0):
        hit = next((t for t in left if known.now(t) and same_incident(known.truth, t)), None)
        if hit is None:
            missing.append(words_of(known.truth))
            continue
        left.remove(hit)
        if known.start is not None:
            delays.append(max(0.0, (parse_rfc3339(hit["opened_at"]) - known.start) / 1000))
    false = [t for t in left if not any(_follows(known, t) for known in one.known)]
    wrongly = [words_of(t) for t in told if any(same_incident(row, t) for row in one.must_not)]
    verdict = MUST_NOT if wrongly else WRONG if missing or false else RIGHT
    return Judgement(one.name, verdict, len(one.known), len(one.known) - len(missing), len(false), tuple(missing),
                     tuple(words_of(t) for t in false), tuple(wrongly), tuple(delays), round(cpu, 2))


def _follows(known: Known, told: Mapping[str, Any]) -> bool:
    """The same again, or what the fault does to its jobs; only where it is known when it was there."""
    if known.start is None or not known.now(told):
        return False
    if same_incident(known.truth, told):
        return True
    causes = ECHOES.get(told["fault"], frozenset())
    blamed = (told["culprit"] or {}).get("node")
    mine = (known.truth.get("culprit") or {}).get("node")
    return bool(causes & {known.truth["fault"], "stops", "slows"}) and blamed in (None, mine) and bool(set(told["jobs"]) & set(known.jobs))


def section(rows: Sequence[Judgement]) -> dict[str, Any]:
    """The part of a scorecard that tells of them."""
    expected, found, false = (sum(getattr(row, key) for row in rows) for key in ("expected", "found", "false"))
    return {"n": len(rows), **{word: sum(row.verdict == word for row in rows) for word in (RIGHT, WRONG, MUST_NOT, FAILED)},
            "recall": rate(found, expected), "precision": rate(found, found + false),
            "cases": [json.loads(json.dumps(asdict(row))) for row in rows]}


def lines(part: Mapping[str, Any]) -> Iterator[str]:
    """The section as text."""
    if not part["n"]:
        return
    yield ""
    yield (f"recorded cases: {part['right']} of {part['n']} right, {part['wrong']} wrong, {part['must_not']} said what they must not, "
           f"{part['failed']} failed")
    for row in part["cases"]:
        more = [f"missing: {text}" for text in row["missing"]] + [f"too much: {text}" for text in row["too_much"]] + [
            f"must not be said: {text}" for text in row["said_wrongly"]] + [row["error"]] * bool(row["error"])
        yield "  ".join([f"  {row['name']}", row["verdict"].replace("_", " "), *more])
