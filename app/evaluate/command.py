"""`greylag evaluate`: runs a suite on some processes, keeps what each scenario left in a file, and writes the scorecard.

The file beside the scorecard (`FILE.rows.jsonl`) has one line a scenario; `--resume` goes on from there where suite, seed and
the judgement's code are the same.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app import wiring
from app.evaluate import recorded
from app.evaluate.drive import run
from app.evaluate.facts import Ran, from_data, to_data
from app.evaluate.plan import NEVER_SHOWN, NOT_SHOWN_ON, SUITES, TUNING_SEEDS, Planned, plan_suite
from app.evaluate.rates import base_rates
from app.evaluate.report import details, table
from app.evaluate.score import scorecard
from app.fingerprint import code_hash
from app.lean import lean
from core.clock import monotonic_seconds
from core.errors import BadInput
from fleet.build import all_plugins
from fleet.rates import groups
from fleet.telemetry import TIERS

PROCESSES = 2
RECORDED = "recorded"  # the suite of recorded cases alone
# Plans of one evaluation have seeds so far apart that none is planned twice.
SEEDS_APART, MOST_TIMES = 1000, 50
# Whose bytes decide what is found, beside the detectors' parameters: all packages that the path runs through.
CODE = ("app", "collectors", "core", "detectors", "fleet", "pipeline", "remediation")


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """out: the scorecard's file, None = it is only printed. first_seed None = the first that is not for tuning with `out`,
    else 0. only: names of faults or plug-ins; only scenarios that have one are run. one: a scenario by its id, told in
    full; tell_all: all of them are. processes: how many at a time. times: so many plans of the suite, from seeds of their own.
    cases: recorded ones to be judged beside the shipped ones; truth: what is true of the only one. floor: exit status 1 where
    recall or precision, each the mean over faults, is below, or a recorded case is not right."""

    suite: str
    first_seed: int | None = None
    out: str | None = None
    resume: bool = False
    only: tuple[str, ...] = ()
    one: str | None = None
    tell_all: bool = False
    processes: int = PROCESSES
    times: int = 1
    cases: tuple[str, ...] = ()
    truth: str | None = None
    floor: float | None = None


def evaluate(options: EvaluateOptions, tell: Callable[[str], None], show: Callable[[str], None]) -> int:
    """Runs it. tell: progress; show: the answer. 0, or 1 where a scenario failed or the floor is not reached. Raises BadInput."""
    if options.suite not in (*SUITES, RECORDED):
        raise BadInput("evaluate", "--suite", options.suite, f"allowed are: {', '.join((*SUITES, RECORDED))}")
    seed = options.first_seed if options.first_seed is not None else TUNING_SEEDS if options.out else 0
    if options.out and seed < TUNING_SEEDS:
        raise BadInput("evaluate", "--first-seed", seed, f"seeds below {TUNING_SEEDS} are for tuning: no scorecard is written of them")
    if options.out and (options.only or options.one):
        raise BadInput("evaluate", "--out", options.out, "a scorecard is written of a whole suite only")
    if not 1 <= options.times <= MOST_TIMES:
        raise BadInput("evaluate", "--times", options.times, f"1 to {MOST_TIMES} is allowed")
    cases = recorded.recorded(options.cases, options.truth)
    if options.suite != RECORDED and not options.only and not options.one:
        cases += recorded.recorded([str(recorded.SHIPPED)])
    turns = range(options.times if options.suite != RECORDED else 0)
    plan = _chosen([p for turn in turns for p in plan_suite(options.suite, seed + SEEDS_APART * turn)], options)
    settings = {**settings_of(options.suite, seed), "times": options.times}
    started = monotonic_seconds()
    runs = _all(plan, options, settings, tell)
    if options.one or options.tell_all:
        for line in (line for ran in runs for line in details(ran)):
            show(line)
    if options.one:
        return 1 if runs[0].error else 0
    judged = recorded.section(list(recorded.judge_all(cases, options.processes)))
    card = {"settings": {**settings, "scenarios": len(runs), "wall_seconds": round(monotonic_seconds() - started, 1),
                         "cpu_seconds": round(sum(r.cpu_seconds for r in runs), 1)},
            **scorecard(runs, base_rates(groups(), all_plugins())), "cannot_show": cannot_show(), "cases": judged}
    for line in table(card):
        show(line)
    if options.out:
        Path(options.out).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    below = below_floor(card, options.floor)
    for line in below:
        show(line)
    return 1 if card["errors"] or judged[recorded.FAILED] or below else 0


def below_floor(card: Mapping[str, Any], floor: float | None) -> list[str]:
    """One sentence for each thing that is worse than asked for; none without a floor."""
    if floor is None:
        return []
    macro, cases = card["macro"], card["cases"]
    out = [f"below the floor: {key} {macro[key]} is less than {floor}" for key in ("recall", "precision") if (macro[key] or 0.0) < floor] \
        if card["settings"]["scenarios"] else []
    return out + [f"below the floor: the recorded case {row['name']} is not right" for row in cases["cases"] if row["verdict"] != recorded.RIGHT]


def _chosen(plan: list[Planned], options: EvaluateOptions) -> list[Planned]:
    if options.one:
        found = [p for p in plan if p.id == options.one or p.id.endswith(f"-{options.one}")]
        if not found:
            raise BadInput("evaluate", "--scenario", options.one, f"there are: {plan[0].id} to {len(plan)} of them")
        return found[:1]
    if not options.only:
        return plan
    plugins = all_plugins()
    return [p for p in plan if any(word in (e.name, plugins[e.name].fault) for e in p.scenario.schedule for word in options.only)]


def settings_of(suite: str, seed: int) -> dict[str, Any]:
    """What a scorecard is a scorecard of. thresholds: of all parameters of all detectors; code: of all that judges or plays."""
    _, params = wiring.detectors({}, "evaluate")
    rows = sorted((name, sorted((key, repr(value)) for key, value in asdict(one).items())) for name, one in params.items())
    return {"suite": suite, "first_seed": seed, **(asdict(SUITES[suite]) if suite in SUITES else {}), "detectors": sorted(params),
            "thresholds": hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16], "code": code_hash(CODE)}


def cannot_show() -> dict[str, list[str]]:
    """By tier, the fault plug-ins that its telemetry cannot show: they count nowhere in recall, nor are they scored as healthy."""
    by_fabric = [f"{name} on {fabric}" for name, fabric in NOT_SHOWN_ON]
    return {tier: sorted([*(p.name for p in all_plugins().values() if p.fault is not None and (p.tier > tier or p.name in NEVER_SHOWN)),
                          *by_fabric]) for tier in TIERS}


# --- running ----------------------------------------------------------------------------------------------------------
def _all(plan: Sequence[Planned], options: EvaluateOptions, settings: dict[str, Any], tell: Callable[[str], None]) -> list[Ran]:
    rows = _Rows(Path(f"{options.out}.rows.jsonl") if options.out else None, settings, options.resume)
    left = [p for p in plan if p.id not in rows.done]
    started, total, done = monotonic_seconds(), len(plan), len(plan) - len(left)
    if done:
        tell(f"{done} of {total} scenarios were there already")
    for ran in _results(left, min(options.processes, max(1, len(left)))):
        rows.add(ran)
        done += 1
        tell(f"{done}/{total} {ran.id} {ran.kind}{' ' + ran.stress if ran.stress else ''} {ran.tier} {ran.nodes} nodes "
             f"{ran.cpu_seconds:.0f} s CPU, {monotonic_seconds() - started:.0f} s{': ' + ran.error if ran.error else ''}")
    return [rows.done[p.id] for p in plan]


def _results(plan: Sequence[Planned], processes: int) -> Iterator[Ran]:
    if processes == 1:
        yield from map(safe_run, plan)
        return
    with multiprocessing.get_context("spawn").Pool(processes, lean) as pool:
        yield from pool.imap_unordered(safe_run, plan)


def safe_run(planned: Planned) -> Ran:
    """The run, or one that says why there is none: a scenario that fails must not end the suite."""
    try:
        return run(planned)
    except Exception as error:  # containment: told in the scorecard, and the exit status is 1
        spec = planned.scenario.fleet
        return Ran(planned.id, planned.kind, planned.stress, spec.tier, spec.type, spec.nodes, spec.scrape_seconds, 0.0, (), (),
                   (), {}, 0.0, 0.0, 0.0, f"{type(error).__name__}: {error}")


class _Rows:
    """What was run, by id, in memory and in a file (None = in memory only)."""

    def __init__(self, path: Path | None, settings: dict[str, Any], resume: bool) -> None:
        self.done: dict[str, Ran] = {}
        self._path = path
        if path is None:
            return
        if resume and path.exists():
            self._read(path, settings)
        if not self.done:
            path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")

    def _read(self, path: Path, settings: dict[str, Any]) -> None:
        text = path.read_text(encoding="utf-8")
        first, _, rest = text.partition("\n")
        known = json.loads(first or "{}").get("settings")
        if known != settings:
            raise BadInput("evaluate", "--resume", str(path), "it is of another suite, seed or state of the code; remove it to begin anew")
        for line in rest.splitlines():
            try:
                ran = from_data(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line of a run that was broken off
            if not ran.error:
                self.done[ran.id] = ran
        if text and not text.endswith("\n"):  # the next row must not be glued to what is left of the last one
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def add(self, ran: Ran) -> None:
        self.done[ran.id] = ran
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(to_data(ran)) + "\n")


def tell_stderr(line: str) -> None:
    """Progress goes to stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
