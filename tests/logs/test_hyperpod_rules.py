"""HyperPod's log rules: the file, strictly read; a log under them, line by line; and the whole way to an incident in a replay."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.replay import whole_story
from app.run import check_config
from collectors.follow import LiveLog, log_target
from collectors.log_rules import LogRule, RuleWatch, read_rules
from collectors.re2 import Pattern
from core.clock import rfc3339
from core.errors import ConfigError
from core.types import Event, JobState, Target
from core.window import Window

T0 = 1_790_000_010_000
RULES = r"""
logMonitoringConfiguration:
- {name: JobStart, logPattern: ".*Experiment configuration.*", expectedStartCutOffInSeconds: 120}
- name: JobHanging
  logPattern: ".*iteration +(\\d+)/.*"
  expectedRecurringFrequencyInSeconds: 300
  expectedStartCutOffInSeconds: 600
  stopPattern: ".*training done.*"
- name: LowThroughput
  logPattern: ".*samples/sec: (\\d+(\\.\\d+)?).*"
  metricThreshold: 80
  operator: lteq
  metricEvaluationDataPoints: 3
"""
MANIFEST = "apiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\nspec:\n  nprocPerNode: '8'\n  runPolicy:\n    jobMaxRetryCount: 50\n"


def file(folder: Path, text: str) -> Path:
    (folder / "rules.yaml").write_text(text)
    return folder / "rules.yaml"


# --- the file ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["section", "list", "manifest"])
def test_all_forms_that_users_have_are_read(tmp_path: Path, form: str) -> None:
    """The section alone, the bare list, or the job's whole manifest, of which the rest is not ours."""
    rows = RULES.split("\n", 2)[2]
    text = {"section": RULES, "list": rows, "manifest": MANIFEST + "".join(f"    {line}\n" for line in RULES.strip().splitlines())}[form]
    rules = read_rules(file(tmp_path, text))
    assert [(r.name, r.start_seconds, r.every_seconds, r.threshold, r.operator, r.points, r.stop is not None) for r in rules] == [
        ("JobStart", 120.0, None, None, None, 1, False), ("JobHanging", 600.0, 300.0, None, None, 1, True),
        ("LowThroughput", None, None, 80.0, "lteq", 3, False)]


@pytest.mark.parametrize(("rule", "words"), [
    ("{name: a, logPattern: x}", "can find nothing"),
    ("{logPattern: x, expectedStartCutOffInSeconds: 1}", "name: got nothing"),
    ("{name: a, expectedStartCutOffInSeconds: 1}", "logPattern"),
    ("{name: a, logPattern: '(', expectedStartCutOffInSeconds: 1}", "RE2"),
    ("{name: a, logPattern: '(a)|b)(c', expectedStartCutOffInSeconds: 1}", "RE2"),
    (r"{name: a, logPattern: '(x)\1', expectedStartCutOffInSeconds: 1}", "RE2"),
    ("{name: a, logPattern: x, expectedStartCutOffInSeconds: 0}", "at least 1"),
    ("{name: a, logPattern: x, expectedStartCutOffInSeconds: soon}", "a number is needed"),
    ("{name: a, logPattern: x, expectedRecurringFrequencyInSeconds: .nan}", "a number is needed"),
    ("{name: a, logPattern: x, expectedRecurringFrequencyInSecond: 5}", "did you mean 'expectedRecurringFrequencyInSeconds'"),
    ("{name: a, logPattern: x, faultOnMatch: 'yes'}", "true or false is needed"),
    ("{name: a, logPattern: x, faultOnMatch: false}", "can find nothing"),
    ("{name: a, logPattern: '(x)', metricThreshold: 5}", "metricThreshold and operator go together"),
    ("{name: a, logPattern: '(x)', operator: lt}", "metricThreshold and operator go together"),
    ("{name: a, logPattern: 'x', metricThreshold: 5, operator: lt}", "a group in parentheses"),
    ("{name: a, logPattern: '(x)', metricThreshold: 5, operator: less}", "allowed are: gt, gteq, lt, lteq, eq"),
    ("{name: a, logPattern: '(x)', metricThreshold: 5, operator: lt, metricEvaluationDataPoints: 0}", "at least 1"),
    ("{name: a, logPattern: '(x)', metricThreshold: 5, operator: lt, metricEvaluationDataPoints: 1.5}", "whole number"),
    ("{name: a, logPattern: x, expectedStartCutOffInSeconds: 1, metricEvaluationDataPoints: 2}", "needs a metricThreshold"),
    ("just words", "a mapping is needed")])
def test_a_wrong_rule_is_refused_in_one_sentence(tmp_path: Path, rule: str, words: str) -> None:
    """File, line, key, what was given and what is allowed."""
    with pytest.raises(ConfigError) as error:
        read_rules(file(tmp_path, f"logMonitoringConfiguration:\n- {rule}\n"))
    assert words in str(error.value)
    assert str(error.value).startswith(f"{tmp_path}/rules.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "spec: {}", "logMonitoringConfiguration: 3",
                                  "- {name: a, logPattern: x, expectedStartCutOffInSeconds: 1}\n- {name: a, logPattern: x, expectedStartCutOffInSeconds: 1}"])
def test_no_rules_or_the_same_twice_are_refused(tmp_path: Path, text: str) -> None:
    """An empty file, no list, two rules of one name."""
    with pytest.raises(ConfigError):
        read_rules(file(tmp_path, text))


def test_the_configuration_names_the_file_and_check_reads_it(tmp_path: Path) -> None:
    """`logs[].rules` is of trainers' logs; `greylag check` reads the file that it names."""
    file(tmp_path, "- {name: a, logPattern: x}")
    config = tmp_path / "greylag.yaml"
    config.write_text("logs: [{kind: trainer, path: /tmp/*.log, rules: rules.yaml}]\n")
    with pytest.raises(ConfigError, match="can find nothing"):
        check_config(config)
    config.write_text("logs: [{kind: kernel, path: /tmp/*.log, rules: rules.yaml}]\n")
    with pytest.raises(ConfigError, match="rules are for logs of kind trainer"):
        check_config(config)


def test_a_line_that_is_a_fault_by_itself_is_told_each_time(tmp_path: Path) -> None:
    """`faultOnMatch` of the operator's elastic agent: such a line is an event with its text, those right after it are the same one."""
    one = RuleWatch(read_rules(file(tmp_path, "- {name: OOM, logPattern: '.*OutOfMemoryError.*', faultOnMatch: true}")), "llm")
    assert says(one, [(0, "step 1"), (5, "rank3: torch.OutOfMemoryError: CUDA"), (6, "step 2"), (9, "OutOfMemoryError again"),
                      (99, "OutOfMemoryError once more"), (999, None)]) == [(5, "OOM", "fault"), (99, "OOM", "fault")]


# --- a log under rules ------------------------------------------------------------------------------------------------
def watch(tmp_path: Path, whole: bool = True) -> RuleWatch:
    return RuleWatch(read_rules(file(tmp_path, RULES)), "llm", whole)


def says(one: RuleWatch, lines: Iterable[tuple[float, str | None]]) -> list[tuple[float, str, str]]:
    """(seconds, rule, state) of what lines (None = only time passes) changed."""
    events = [e for at, text in lines
              for e in (one.clock(T0 + round(at * 1000)) if text is None else one.line(text, T0 + round(at * 1000)))]
    return [(round((e.at - T0) / 1000), str(e.fields["rule"]), str(e.fields["state"])) for e in events]


GO, STEP = "2026 Experiment configuration: {}", " iteration 12/ 1000 | loss 2.0"


@pytest.mark.parametrize(("lines", "told"), [
    ([(0, "hello"), (119, GO), (130, STEP)], [(119, "JobStart", "matching"), (130, "JobHanging", "matching")]),
    ([(0, "hello"), (121, None)], [(120, "JobStart", "overdue")]),
    ([(0, "hello"), (121, None), (130, GO)], [(120, "JobStart", "overdue"), (130, "JobStart", "matching")]),
    ([(0, GO), (1, STEP), (301, None), (302, None), (400, "warning"), (401, STEP)],
     [(0, "JobStart", "matching"), (1, "JobHanging", "matching"), (301, "JobHanging", "overdue"), (401, "JobHanging", "matching")]),
    ([(0, GO), (1, STEP), (900, "warning")], [(0, "JobStart", "matching"), (1, "JobHanging", "matching"), (301, "JobHanging", "overdue")]),
    ([(0, GO), (1, STEP), (5, "training done"), (9000, None)],
     [(0, "JobStart", "matching"), (1, "JobHanging", "matching"), (5, "JobHanging", "stopped")]),
    ([(0, GO), (1, "samples/sec: 81"), (2, "samples/sec: 80"), (3, "samples/sec: 79.5"), (4, "samples/sec: 12")],
     [(0, "JobStart", "matching"), (1, "LowThroughput", "matching"), (4, "LowThroughput", "slow")]),
    ([(0, GO), (1, "samples/sec: 8"), (2, "samples/sec: 8"), (3, "samples/sec: 99"), (4, "samples/sec: 8"), (5, "samples/sec: 8")],
     [(0, "JobStart", "matching"), (1, "LowThroughput", "matching")]),
    ([(0, GO), (1, "samples/sec: 8"), (2, "samples/sec: 8"), (3, "samples/sec: 8"), (4, "samples/sec: 99")],
     [(0, "JobStart", "matching"), (1, "LowThroughput", "matching"), (3, "LowThroughput", "slow"), (4, "LowThroughput", "matching")]),
    ([(0, "n7: [rank3] \x1b[32m iteration 1/ 9")], [(0, "JobHanging", "matching")])])
def test_a_log_under_rules(tmp_path: Path, lines: list[tuple[float, str | None]], told: list[tuple[float, str, str]]) -> None:
    """Start cut-off, recurring interval and threshold; only changes are told, each at the moment when it was due."""
    assert says(watch(tmp_path), lines) == told


def test_a_log_taken_up_in_its_middle_has_no_late_start(tmp_path: Path) -> None:
    """Its start was before anyone looked; what recurs is due from the first match that is seen."""
    assert says(watch(tmp_path, whole=False), [(0, "x"), (5000, None), (5001, STEP), (5400, None)]) == [
        (5001, "JobHanging", "matching"), (5301, "JobHanging", "overdue")]


def test_a_group_that_is_no_number_is_a_match_and_no_point() -> None:
    """`nan` in a group that takes anything: the line is there, its value says nothing."""
    rule = LogRule("loss", Pattern("(?:loss (\\S+))(?s:.*)"), None, 60.0, 5.0, "gt", 1)
    assert says(RuleWatch([rule], "llm"), [(0, "loss nan"), (1, "loss 9"), (2, "loss nan"), (3, "loss 1")]) == [
        (0, "loss", "matching"), (1, "loss", "slow"), (3, "loss", "matching")]


def test_a_followed_log_goes_on_with_the_clock(tmp_path: Path) -> None:
    """Slots without lines move the time: the rule is overdue at its moment, though nothing is written."""
    one = LiveLog(log_target("trainer", None, "llm", "x"), [], rules=watch(tmp_path))
    one.read([GO, STEP], T0)
    events = [e for n in range(1, 30) for e in one.read([], T0 + n * 15_000)[0]]
    assert [(e.at - T0, e.target.job, e.fields["rule"], e.fields["what"]) for e in events] == [(300_001, "llm", "JobHanging", "recurring")]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from([None, "x", " iteration 3/ 9", "training done"])), max_size=30))
def test_overdue_is_told_once_for_each_gap(steps: list[tuple[int, str | None]]) -> None:
    """Whatever comes: states change, never repeat, nothing follows a stop, and no event is of a later time than was reached."""
    rule = LogRule("r", Pattern("(?:.*iteration.*)(?s:.*)"), 100.0, 300.0, stop=Pattern("(?:training done)(?s:.*)"))
    one, now, seen = RuleWatch([rule], "llm"), T0, []
    for gap, text in steps:
        now += gap * 1000
        found = one.clock(now) if text is None else one.line(text, now)
        assert all(e.at <= now for e in found)
        seen += [e.fields["state"] for e in found]
    assert all(a != b for a, b in itertools.pairwise(seen))
    assert "stopped" not in seen[:-1]


# --- what detectors make of it ----------------------------------------------------------------------------------------
def said(state: str, at: int = T0, rule: str = "r") -> Event:
    return Event(at, Target("job", job="llm"), "log_rule", {"rule": rule, "state": state, "limit_seconds": 300.0, "what": "recurring",
                                                             "value": 61.0, "threshold": 80.0, "operator": "lt", "points": 3})


def judged(events: list[Event], **job: object) -> dict[str, list[str]]:
    """By detector, the states that it gives the job."""
    end = T0 + 600_000
    window = Window(end, 15, np.array([end]), {}, {}, tuple(events), (JobState("llm", **job),))  # type: ignore[arg-type]
    plugins = {name: import_module(f"detectors.{name}").PLUGIN for name in ("stalled_loss", "throughput_drop")}
    return {name: [v.state for v in p.judge(window, p.params())] for name, p in plugins.items()}


@pytest.mark.parametrize(("events", "job", "hang", "slow"), [
    ([said("overdue")], {}, ["faulty"], ["clear"]),
    ([said("slow")], {}, ["clear"], ["faulty"]),
    ([said("overdue"), said("matching", T0 + 1)], {}, ["clear"], ["clear"]),
    ([said("overdue"), said("matching", T0 + 1, "other")], {}, ["faulty"], ["clear"]),
    ([said("overdue"), said("stopped", T0 + 1)], {}, ["clear"], ["clear"]),
    ([said("overdue")], {"end": T0}, [], []),
    ([said("overdue")], {"silent": True}, [], []),
    ([said("overdue")], {"phase": "done"}, [], []),
    ([said("overdue"), Event(T0 + 1, Target("job", job="llm"), "job_phase", {"phase": "restart"})], {}, [], []),
    ([said("overdue", T0 + 700_000)], {}, [], [])])
def test_a_rules_last_word_is_judged_while_the_job_runs(events: list[Event], job: dict[str, object], hang: list[str], slow: list[str]) -> None:
    """The newest state of each rule counts; ended, silent and restarted jobs have none; the future is not known."""
    assert judged(events, **job) == {"stalled_loss": hang, "throughput_drop": slow}


# --- the whole way ----------------------------------------------------------------------------------------------------
def recording(folder: Path, lines: Iterable[tuple[float, str]], minutes: int) -> Path:
    """A job's log, and its node's metrics, which go on to the end."""
    rows = [f"{rfc3339(T0 + round(at * 1000))} {text}\n" for at, text in lines]
    (folder / "trainer.llm.log").write_text("".join(rows))
    body = "".join(f'node_load1{{instance="n1:9100",job="node"}} 3 {T0 + n * 15_000}\n' for n in range(minutes * 4))
    (folder / "n1.prom").write_text(body)
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}]\njobs: [{id: llm, nodes: [n1]}]\n")
    return folder


def replayed(folder: Path, rules: Path | None) -> list[tuple[str, str, str, str]]:
    """(event, fault, what the evidence says of rules, seconds) of the incidents."""
    story = whole_story([str(folder)], log_rules=None if rules is None else str(rules))
    return [(r["event"], r["incident"]["fault"],
             "; ".join(f"{e['compared_with']}: {e['text']}" for e in r["incident"]["evidence"] if e["signal"] == "log_rule"), r["at"])
            for r in story if r["type"] == "incident" and r["event"] in ("opened", "resolved")]


CHECKPOINT = "- {name: NoCheckpoint, logPattern: '.*checkpoint is finalized.*', expectedRecurringFrequencyInSeconds: 600, expectedStartCutOffInSeconds: 1800}\n"


@pytest.mark.evaluate
def test_a_line_that_is_missing_becomes_an_incident_and_ends_with_it(tmp_path: Path) -> None:
    """The job trains on, but no checkpoint is finalized for 10 minutes: an incident of the job, by the rule's name; it ends when
    checkpoints come again. Without the rule there is none."""
    (tmp_path / "r").mkdir()
    saved = {0, 300, 600, 2400, 2700, 3000, 3300}
    lines = sorted([(s, f" iteration {s}/ 99999 | elapsed time per iteration (ms): 5000.0 | lm loss: 2.{s % 89:02d}E+00 |") for s in range(5, 3600, 5)]
                   + [(s + 1, "checkpoint is finalized") for s in saved])
    folder = recording(tmp_path / "r", lines, 60)
    found = replayed(folder, file(tmp_path, CHECKPOINT))
    assert [(event, fault, text) for event, fault, text, _ in found] == [
        ("opened", "stalled_loss", "rule NoCheckpoint: no line that it names within 600 s"),
        ("resolved", "stalled_loss", "rule NoCheckpoint: no line that it names within 600 s")]
    assert rfc3339(T0 + 1_201_000) <= found[0][3] <= rfc3339(T0 + 1_261_000)
    assert replayed(folder, None) == []


def test_slow_lines_become_a_ticket_of_the_job(tmp_path: Path) -> None:
    """Ten values under the threshold in a row: throughput_drop by the rule's name, at job scope."""
    (tmp_path / "r").mkdir()
    lines = [(s, f"batch {s} samples/sec: {99 if s < 60 else 61}") for s in range(0, 300, 5)]
    rules = file(tmp_path, "- {name: Low, logPattern: '.*samples/sec: (\\d+).*', metricThreshold: 80, operator: lt, metricEvaluationDataPoints: 10}\n")
    found = replayed(recording(tmp_path / "r", lines, 5), rules)
    assert [(event, fault, text) for event, fault, text, _ in found] == [("opened", "throughput_drop", "rule Low: 10 in a row under 80")]


@pytest.mark.evaluate
def test_the_end_of_a_recording_is_no_hang(tmp_path: Path) -> None:
    """The log ends with everything else: silence is no evidence."""
    (tmp_path / "r").mkdir()
    folder = recording(tmp_path / "r", [(s, "checkpoint is finalized") for s in range(0, 1800, 300)], 31)
    assert replayed(folder, file(tmp_path, CHECKPOINT)) == []
