"""The diagnosis: which tests answer which fault, what their results mean, and how they score the detector.

A node is tested after it was taken out and before it returns. Four answers, each a named reason:

    diagnose_confirmed     FAILED   a check that shows the fault failed, on the part that was accused
    diagnose_refuted       DONE     the checks that show the fault ran on that part and passed
    no_fault_found         DONE     everything passed, but nothing that would show the fault was among it
    diagnose_inconclusive  FAILED   a test could not be run or read, or is not sure: the node does not return

A check that fails and has nothing to do with the accusation is `diagnose_failed`: the node stays out, and the detector is
not scored. Only FAILED keeps a node out; what could not be read is never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from core.types import Action, Incident, Outcome, Target
from core.yamlfile import parse_yaml
from remediation.diagnose_output import CONFIG, FAILED, PASSED, WARNED, Check, TestResult
from remediation.kinds import KINDS

CONFIRMED, REFUTED, NONE_FOUND, INCONCLUSIVE, OTHER = (
    "diagnose_confirmed", "diagnose_refuted", "no_fault_found", "diagnose_inconclusive", "diagnose_failed")
STATES = {CONFIRMED: "FAILED", REFUTED: "DONE", NONE_FOUND: "DONE", INCONCLUSIVE: "FAILED", OTHER: "FAILED"}
CURES = ("reset_gpu", "reboot", "restart_process")  # after these a pass says that they helped, not that nothing was there
LONGEST = 300
SLACK_SECONDS = 600.0  # a test waits in the scheduler's queue, and loads its image


@dataclass(frozen=True, slots=True)
class Tests:
    """How a fault is tested. tests: programs in their order. level: of `dcgmi diag`. shown_by: checks that show the fault.
    comes_and_goes: a pass is no refutation. setting: a wrong setting of the node is this fault."""

    tests: tuple[str, ...]
    level: int
    shown_by: frozenset[str]
    comes_and_goes: bool = False
    setting: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. state: DONE | FAILED. reason: of `core.reasons.ACTION_REASONS`. detail: which check, on what, in words."""

    state: str
    reason: str
    detail: str


@cache
def _table() -> tuple[Mapping[str, Tests], Tests, Mapping[int, float]]:
    name = "diagnoses.yaml"
    data = parse_yaml(files("remediation").joinpath(name).read_text(encoding="utf-8"), f"remediation/{name}")
    least = int(data["least_level"])

    def row(one: Mapping[str, Any]) -> Tests:
        return Tests(tuple(one["tests"]), max(least, int(one["level"])), frozenset(one["shown_by"]),
                     bool(one.get("comes_and_goes")), bool(one.get("setting")))

    return ({fault: row(one) for fault, one in data["faults"].items()}, row(data["usual"]),
            {int(level): float(seconds) for level, seconds in data["level_seconds"].items()})


def tests_of(fault: str) -> Tests:
    """How a fault is tested; the usual tests for one that the table does not name."""
    rows, usual, _ = _table()
    return rows.get(fault, usual)


def level_seconds(level: int) -> float:
    """The longest that `dcgmi diag` usually takes at a level (1-4), in seconds."""
    return _table()[2].get(level, _table()[2][3])


# --- what is asked for ------------------------------------------------------------------------------------------------
def ask(given: Mapping[str, object], deadline_seconds: float, target: Target, incident: Incident,
        before: Sequence[str]) -> tuple[dict[str, object], float]:
    """(arguments, deadline) of a diagnose step, with what a backend needs to run the right tests.

    Arguments: fault, device (the accused part of the node, null where it is the node), tests (names, comma-separated), level,
    and `after` (what of CURES came before it in the attempt, null = nothing). given: what the policy's step says, which wins;
    deadline_seconds, target: of the step. before: kinds of the attempt's earlier steps.
    """
    how = tests_of(incident.fault)
    culprit = incident.culprit
    device = culprit.device if culprit is not None and culprit.node == target.node else None
    after = next((kind for kind in reversed(before) if kind in CURES), None)
    args: dict[str, object] = {"fault": incident.fault, "device": device, "tests": ",".join(how.tests), "level": how.level,
                               "after": after, **given}
    return args, _deadline(deadline_seconds, args["level"])


def _deadline(seconds: float, level: object) -> float:
    """The step's own deadline; where the policy gave none, one that the level can keep."""
    if seconds != KINDS["diagnose"].deadline_seconds or not isinstance(level, int):
        return seconds
    return max(seconds, level_seconds(level) + SLACK_SECONDS)


# --- what came out ----------------------------------------------------------------------------------------------------
def conclude(fault: str | None, device: str | None, results: Sequence[TestResult], gpus: int | None = None) -> Diagnosis:
    """What the results of the tests mean for the accusation. Pure, never raises.

    fault, device: as `ask` gave them in the action's arguments (None: a check without an accusation, as of a spare). results:
    of every test that was to run, those that could not be read included. gpus: how many GPUs the node should have, where
    the backend knows; fewer in DCGM's report is a failed check `gpus.count` whatever the accusation.
    """
    how = tests_of(fault) if fault else _table()[1]
    checks = [*(check for one in results for check in one.checks), *_counted(results, gpus)]
    shows = [check for check in checks if check.name in how.shown_by]
    mine = [check for check in shows if _same_part(check, device)]
    bad = [c for c in mine if c.result == FAILED or (c.result == CONFIG and how.setting)]
    if bad:
        return _say(CONFIRMED, bad)
    other = [c for c in checks if c.result == FAILED]
    if other:
        return _say(OTHER, other)
    problems = [f"{one.tool}: {one.problem}" for one in results if one.problem]
    if problems:
        return Diagnosis("FAILED", INCONCLUSIVE, "; ".join(problems)[:LONGEST])
    unsure = [c for c in mine if c.result == WARNED]
    if unsure:
        return _say(INCONCLUSIVE, unsure)
    passed = [c for c in checks if c.result == PASSED]
    if not passed:
        return _say(INCONCLUSIVE, checks) if checks else Diagnosis("FAILED", INCONCLUSIVE, "nothing was tested")
    cleared = [c for c in mine if c.result == PASSED]
    if cleared and not how.comes_and_goes:
        return _say(REFUTED, cleared)
    if not cleared and any(c.result == PASSED for c in shows):
        return Diagnosis("FAILED", INCONCLUSIVE, f"the report does not name {device}")
    return _say(NONE_FOUND, passed)


def _same_part(check: Check, device: str | None) -> bool:
    """A check of the accused part, of the whole node, or where nobody said which part."""
    return device is None or check.device is None or check.device == device or device.startswith(check.device + "/")


def _counted(results: Sequence[TestResult], gpus: int | None) -> list[Check]:
    if gpus is None:
        return []
    seen = {c.device for one in results if one.tool == "dcgm" for c in one.checks if c.device is not None}
    if not seen:
        return []
    result = PASSED if len(seen) >= gpus else FAILED
    return [Check("gpus.count", result, None, f"{len(seen)} of {gpus} GPUs")]


def _say(reason: str, checks: Iterable[Check]) -> Diagnosis:
    said = []
    for one in checks:
        on = f" on {'GPU ' if one.device.isdigit() else ''}{one.device}" if one.device is not None else ""
        text = f"{one.name} {one.result}{on}" + (f" ({one.words})" if one.words else "")
        if text not in said:
            said.append(text)
    more = f"; and {len(said) - 4} more" if len(said) > 4 else ""
    return Diagnosis(STATES[reason], reason, ("; ".join(said[:4]) + more)[:LONGEST])


# --- how detectors score ------------------------------------------------------------------------------------------------
RESULTS = ("confirmed", "refuted", "repaired", "none", "other", "inconclusive")
_WORDS = {CONFIRMED: "confirmed", REFUTED: "refuted", NONE_FOUND: "none", OTHER: "other", INCONCLUSIVE: "inconclusive"}


def result_of(action: Action, outcome: Outcome) -> str | None:
    """What a diagnosis says of the detector, a word of RESULTS; None where it is no end of one.

    `repaired`: the checks passed after a reset, a reboot or a restart in the same attempt: that helped, and says nothing
    against the detector. A bare `done` (a backend that names no test) is `none`, a bare failure `other`.
    """
    if action.kind != "diagnose" or outcome.state not in ("DONE", "FAILED") or not action.args.get("fault"):
        return None
    if outcome.state == "DONE" and outcome.reason not in (REFUTED, NONE_FOUND):
        return "none"
    word = _WORDS.get(outcome.reason, "inconclusive")
    return "repaired" if word == "refuted" and action.args.get("after") else word


@dataclass(frozen=True, slots=True)
class Score:
    """How often diagnoses of a fault came out how. precision: confirmed of those that were confirmed or refuted; None
    before the first of them."""

    fault: str
    counts: Mapping[str, int]

    @property
    def precision(self) -> float | None:
        judged = self.counts["confirmed"] + self.counts["refuted"]
        return self.counts["confirmed"] / judged if judged else None


def scores(rows: Iterable[tuple[Action, Outcome]]) -> list[Score]:
    """The detectors' scores by fault, from the ledger's rows in any order; each diagnosis counts once, by its last word."""
    last: dict[str, tuple[str, str]] = {}
    for action, outcome in rows:
        word = result_of(action, outcome)
        if word is not None:
            last[action.id] = (str(action.args["fault"]), word)
    counts: dict[str, dict[str, int]] = {}
    for fault, word in last.values():
        counts.setdefault(fault, dict.fromkeys(RESULTS, 0))[word] += 1
    return [Score(fault, counts[fault]) for fault in sorted(counts)]
