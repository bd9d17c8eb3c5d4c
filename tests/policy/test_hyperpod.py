"""HyperPod's runPolicy becomes a policy, and the engine walks down its ladder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BadInput, ConfigError
from core.targets import ACTION_KINDS
from core.types import Incident
from core.yamlfile import parse_yaml
from remediation.hyperpod import translate
from remediation.ledger import Entry
from remediation.lint import lint
from remediation.periods import place
from remediation.policy import Policy, parse_policy
from tests.remediation.worlds import T0, Facts, Owner, cluster, finding, incident

RESTARTS = "numRestartBeforeFullJobRestart: 3, evalPeriodSeconds: 21600, maxFullJobRestarts: 1"
MANIFEST = f"""
apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
metadata: {{name: train}}
spec:
  nprocPerNode: "8"
  replicaSpecs: [{{name: pods, replicas: 2}}]
  runPolicy:
    jobMaxRetryCount: 50
    restartPolicy: {{{RESTARTS}, scaleUpSnoozeTimeInSeconds: 600}}
    cleanPodPolicy: All
    logMonitoringConfiguration:
    - {{name: JobStart, logPattern: ".*Loss:.*", expectedStartCutOffInSeconds: 240}}
    - {{name: Slow, logPattern: ".*tflops: ([0-9.]+)", metricThreshold: 80, operator: lteq, metricEvaluationDataPoints: 25}}
"""


def read(text: str, mode: str = "observe") -> tuple[Policy, tuple[str, ...]]:
    made = translate(parse_yaml(text, "job.yaml"), "job.yaml", mode)
    return parse_policy(made.text), made.notes


def kinds(policy: Policy) -> list[str]:
    return [step.kind for attempt in policy.rules[0].attempts for step in attempt.do]


def run_policy(keys: str) -> str:
    return "runPolicy:\n" + "".join(f"  {line}\n" for line in keys.splitlines())


def test_a_manifest_becomes_a_ladder_of_restarts():
    """Three process restarts, one full one, three more within a period of six hours; hangs and slowness of this job alone."""
    policy, _ = read(MANIFEST)
    rule = policy.rules[0]
    assert kinds(policy) == ["restart_process"] * 3 + ["resume_job"] + ["restart_process"] * 3
    assert (rule.period_seconds, rule.match.job, rule.finally_) == (21600, ("train",), "escalate")
    assert rule.match.fault == ("stalled_loss", "throughput_drop")
    assert rule.verify.deadline_seconds == 240 + 300
    assert rule.attempts[3].do[0].args == {"mode": "full"}
    assert lint(policy, ACTION_KINDS) == []


def test_what_has_no_counterpart_is_said_in_a_line_each():
    """Also in the file, as comments."""
    policy, notes = read(MANIFEST)
    for key in ("cleanPodPolicy", "scaleUpSnoozeTimeInSeconds", "jobMaxRetryCount", "logMonitoringConfiguration"):
        assert sum(key in note for note in notes) == 1
    assert not any("\n" in note for note in notes)
    assert policy.mode == "observe"


def test_lines_that_are_a_fault_by_themselves_are_the_operators():
    """`faultOnMatch` of its elastic agent: said in a note, and the log rules are read with it."""
    _, notes = read(MANIFEST + '    - {name: OOM, logPattern: ".*OutOfMemoryError.*", faultOnMatch: true}\n')
    assert sum("faultOnMatch" in note for note in notes) == 1


@pytest.mark.parametrize(("keys", "ladder"), [
    ("restartPolicy: {numRestartBeforeFullJobRestart: 2, evalPeriodSeconds: 60, maxFullJobRestarts: 2}", "ppfppfpp"),
    ("restartPolicy: {numRestartBeforeFullJobRestart: 2, evalPeriodSeconds: 60, maxFullJobRestarts: 0}", "pp"),
    ("restartPolicy: {evalPeriodSeconds: 60, maxFullJobRestarts: 2}", "ff"),
    ("restartPolicy: {numRestartBeforeFullJobRestart: 1, evalPeriodSeconds: 60}", "pfp"),
    ("jobMaxRetryCount: 3\nrestartPolicy: {numRestartBeforeFullJobRestart: 2, evalPeriodSeconds: 60, maxFullJobRestarts: 2}", "ppfp"),
    ("jobMaxRetryCount: 2", "pp"),
    ("jobMaxRetryCount: 0", ""),
    ("cleanPodPolicy: None", ""),
    ("restartPolicy: {numRestartBeforeFullJobRestart: 30, evalPeriodSeconds: 60, maxFullJobRestarts: 1}", "p" * 24),
])
def test_the_ladder_of_each_policy(keys, ladder):
    """p: a process restart, f: a full one."""
    policy, _ = read(run_policy(keys))
    assert "".join({"restart_process": "p", "resume_job": "f"}[k] for k in kinds(policy)) == ladder
    assert lint(policy, ACTION_KINDS) == []


@pytest.mark.parametrize(("text", "says"), [
    (run_policy("jobMaxRetryCont: 3"), "job.yaml:2: runPolicy.jobMaxRetryCont: got an unknown key"),
    (run_policy("restartPolicy: {evalPeriodSeconds: 60, maxRestarts: 1}"), "runPolicy.restartPolicy.maxRestarts: got an unknown key"),
    (run_policy("restartPolicy: {maxFullJobRestarts: 1}"), "runPolicy.restartPolicy.evalPeriodSeconds: got nothing, this key is required"),
    (run_policy("jobMaxRetryCount: -1"), "a whole number of at least 0 is needed"),
    (run_policy("jobMaxRetryCount: true"), "a whole number of at least 0 is needed"),
    (run_policy("jobMaxRetryCount: lots"), "a whole number of at least 0 is needed"),
    (run_policy("cleanPodPolicy: Some"), "allowed are: All, OnlyComplete, None"),
    (run_policy("restartPolicy: 3"), "a mapping is needed"),
    (run_policy("logMonitoringConfiguration: {rules: []}"), "a list of rules is needed"),
    ("kind: PyTorchJob\nspec: {}\n", "allowed is: HyperPodPyTorchJob"),
    ("kind: HyperPodPyTorchJob\nspec: {}\n", "spec.runPolicy: got nothing, this key is required"),
    ("- a\n", "a HyperPodPyTorchJob manifest, or its runPolicy, is needed"),
])
def test_what_cannot_be_translated_is_refused_in_one_sentence(text, says):
    """File, line, key, what was given, what is allowed."""
    with pytest.raises(ConfigError) as caught:
        translate(parse_yaml(text, "job.yaml"), "job.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


values = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**9), st.text(max_size=8), st.lists(st.integers(), max_size=2))
keys = st.sampled_from(["jobMaxRetryCount", "restartPolicy", "logMonitoringConfiguration", "cleanPodPolicy", "suspend", "spec", "kind",
                        "runPolicy", "metadata", "evalPeriodSeconds", "numRestartBeforeFullJobRestart", "maxFullJobRestarts"])
documents = st.recursive(values, lambda inner: st.one_of(st.dictionaries(keys, inner, max_size=4), st.lists(inner, max_size=2)), max_leaves=12)


@settings(max_examples=50, deadline=None)
@given(documents)
def test_anything_is_either_translated_into_a_sound_policy_or_refused(data):
    """No other exception, and what comes out is read and lint has nothing to say."""
    try:
        made = translate(data, "job.yaml")
    except BadInput:
        return
    assert lint(parse_policy(made.text), ACTION_KINDS) == []


# --- the engine on the ladder -----------------------------------------------------------------------------------------
RULE = read(MANIFEST)[0].rules[0]
HANG = {"fault": "stalled_loss", "scope": "job", "culprit": None}


def hang(name: str, at: int) -> Incident:
    return incident(name, **HANG, onset_at=at, opened_at=at, findings=(f"fnd-{name}",))


def hung(mode: str = "act") -> Owner:
    owner = Owner(read(MANIFEST, mode)[0], cluster(), Facts(steps=[(0, 2.0)]))
    owner.at = T0 + 600_000
    return owner


def play(owner: Owner, name: str, cured: Callable[[], bool], ticks: int = 400) -> None:
    """Ticks with the hang of `name` until it is closed or with people; while it goes on the job makes no step."""
    owner.open(hang(name, owner.at))
    for _ in range(ticks):
        if owner.incidents[name].state in ("resolved", "escalated"):
            return
        well = cured()
        owner.facts.findings = [] if well else [finding(owner.at, "stalled_loss", incident().culprit, f"fnd-{name}")]
        owner.facts.steps = [(0, 2.0), *([] if well else [(owner.at - 300_000, None)])]
        owner.tick()
    raise AssertionError(f"{name} went on: {owner.state(name)}, did {owner.did()}")


def test_a_hang_that_nothing_cures_goes_down_the_whole_ladder_and_then_to_people():
    """Three restarts of processes, one of the job, three of processes, and no eighth."""
    owner = hung()
    play(owner, "inc-1", lambda: False)
    assert owner.did() == ["restart_process"] * 3 + ["resume_job"] + ["restart_process"] * 3
    assert owner.state() == ("escalated", "policy_exhausted")


def test_hangs_of_one_job_share_the_ladder_of_a_period():
    """Each of four hangs is cured by one restart: the fourth gets the full one, for the period has had three."""
    owner = hung()
    for number in range(1, 5):
        done = len(owner.did())
        play(owner, f"inc-{number}", lambda done=done: len(owner.did()) > done)
        owner.at += 600_000
    assert owner.did() == ["restart_process"] * 3 + ["resume_job"]


def test_a_new_period_begins_the_ladder_anew():
    """Seven hours later the count is forgotten."""
    owner = hung()
    for number in range(1, 5):
        done = len(owner.did())
        play(owner, f"inc-{number}", lambda done=done: len(owner.did()) > done)
        owner.at += 7 * 3_600_000
    assert owner.did() == ["restart_process"] * 4


def test_another_job_has_a_ladder_of_its_own():
    """The rule speaks for the manifest's job alone; an incident of another one matches no rule."""
    owner = hung()
    owner.open(replace(hang("inc-1", owner.at), jobs=("other",)))
    owner.facts.findings = [finding(owner.at, "stalled_loss", incident().culprit, "fnd-inc-1")]
    owner.tick()
    assert owner.state() == ("open", "no_rule")


def test_a_restart_of_greylag_keeps_the_place_on_the_ladder():
    """The ladder is in the state that commits with the tick."""
    owner = hung()
    for number in range(1, 4):
        done = len(owner.did())
        play(owner, f"inc-{number}", lambda done=done: len(owner.did()) > done)
        owner.at += 600_000
    owner.die()
    done = len(owner.did())
    play(owner, "inc-4", lambda: len(owner.did()) > done)
    assert owner.did()[-1] == "resume_job"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40_000), max_size=30), st.integers(1, 10_000), st.integers(0, 50_000))
def test_no_rung_is_stood_on_twice_in_a_period(starts, period, at):
    """The place is the number of attempts since the period began, and a period is never longer than it says."""
    rule = replace(RULE, period_seconds=period / 1000)
    entries = [Entry(f"i{n}", 1, "p", (), ("train",), s, s, rule=rule.name) for n, s in enumerate(sorted(starts))]
    past = [e for e in entries if e.started_at <= at]
    found = place(past, rule, ["train"], at)
    began, places = None, set()
    for entry in past:
        if began is None or entry.started_at - began >= period:
            began, places = entry.started_at, set()
        places.add(len(places))
    assert found == (len(places) if began is not None and at - began < period else 0)


def test_the_command_writes_a_file_that_lint_likes(tmp_path: Path):
    """Notes go to people, the policy to the file; a second time it is refused."""
    from app.policy_lint import lint_command, translate_command

    source, out, told = tmp_path / "job.yaml", tmp_path / "policy.yaml", []
    source.write_text(MANIFEST)
    translate_command(source, out, "act", told.append, told.append)
    said: list[str] = []
    assert lint_command(out, ["observe"], None, False, said.append) == 0
    assert sum(line.startswith("note: ") for line in told) >= 4
    with pytest.raises(BadInput):
        translate_command(source, out, "act", told.append, told.append)
