"""The policy file: what is read, what is refused and with which words, what lint says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BadInput, ConfigError
from core.render import dumps, plain
from core.targets import ACTION_KINDS
from remediation.kinds import KINDS
from remediation.policy import lint, parse_policy, read_policy

FOLDER = Path(__file__).resolve().parent.parent.parent / "sample_data" / "policies"
SHIPPED = sorted(FOLDER.glob("*.yaml"))

DESIGN = """
version: 1
mode: observe            # observe | propose | act
limits: {concurrent_nodes: 2, pool_ratio: 0.05, pool_nodes: 1, per_hour: 4, per_job_per_day: 3, spare_floor: 1, cooldown_seconds: 3600}
rules:                   # the first match wins
- name: hot-gpu
  match: {fault: [thermal_throttle], scope: [device, node], confidence_min: 0.8, duration_seconds_min: 120, labels: {}}
  attempts:              # the next one only if verify fails
  - do: [{drain: {wait_for: checkpoint}}, reset_gpu, diagnose, undrain, {resume_job: {mode: partial}}]
  - do: [drain, replace, {resume_job: {mode: full}}]
  verify: {quiet_seconds: 300, step_time_ratio_max: 1.05, deadline_seconds: 1200}
  finally: escalate
"""


def test_the_example_of_the_design_is_read():
    """Each key of the documented schema lands in its place."""
    policy = parse_policy(DESIGN)
    rule = policy.rules[0]
    assert (policy.mode, policy.limits.per_hour, rule.finally_) == ("observe", 4, "escalate")
    assert [s.kind for s in rule.attempts[0].do] == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]
    assert rule.attempts[0].do[0].args == {"wait_for": "checkpoint"}
    assert rule.attempts[1].do[0].args == {}
    assert rule.attempts[0].do[0].deadline_seconds == KINDS["drain"].deadline_seconds


def test_a_step_may_have_its_own_deadline():
    """deadline_seconds among the arguments is the step's deadline and no argument."""
    step = parse_policy("version: 1\nrules:\n- name: a\n  attempts:\n  - do: [{drain: {deadline_seconds: 60, x: 1}}]\n") \
        .rules[0].attempts[0].do[0]
    assert (step.deadline_seconds, step.args) == (60.0, {"x": 1})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_what_ships_is_read_and_clean(path):
    """Each shipped policy is read, renders as JSON, and lint has nothing to say."""
    policy = read_policy(path)
    assert lint(policy, ACTION_KINDS) == []
    assert policy.mode == {"demo": "act"}.get(path.stem, path.stem)
    dumps(plain(policy))


WORDS = {
    "version": "version.yaml:1: version: got 2, allowed is: 1",
    "mode": "mode.yaml:2: mode: got 'auto', allowed are: observe, propose, act",
    "unknown_key": "unknown_key.yaml:2: limit: got an unknown key, allowed are: limits, mode, rules, spares, version, did you mean 'limits'?",
    "ratio": "ratio.yaml:3: limits.pool_ratio: got 1.5, a number from 0 to 1 is needed",
    "infinite": "infinite.yaml:3: limits.cooldown_seconds: got inf, a number from 0 to 1e+09 is needed",
    "unknown_fault": "unknown_fault.yaml:4: rules[0].match.fault: got 'thermal_throtle', allowed are: thermal_throttle",
    "fault_not_a_list": "fault_not_a_list.yaml:4: rules[0].match.fault: got 'thermal_throttle', a list is needed",
    "unknown_scope": "unknown_scope.yaml:4: rules[0].match.scope: got 'gpu', allowed are: device",
    "confidence": "confidence.yaml:5: rules[0].match.confidence_min: got 80.0, a number from 0 to 1 is needed",
    "unknown_kind": "unknown_kind.yaml:5: rules[0].attempts[0].do[1]: got 'replaze', allowed are: notify",
    "empty_attempt": "empty_attempt.yaml:5: rules[0].attempts[0].do: got [], at least one step is needed",
    "two_kinds": "two_kinds.yaml:6: rules[0].attempts[0].do[0]: got ['drain', 'replace'], one kind with its arguments",
    "args_not_scalar": "args_not_scalar.yaml:6: rules[0].attempts[0].do[0].drain.wait_for: got ['checkpoint'], text,",
    "deadline": "deadline.yaml:6: rules[0].attempts[0].do[0].drain.deadline_seconds: got 0, a number above 0 is needed",
    "finally": "finally.yaml:4: rules[0].finally: got 'reboot', allowed are: escalate",
    "same_name": "same_name.yaml:4: rules[1].name: got 'hot', a name that no other rule has is needed",
    "no_name": "no_name.yaml:3: rules[0].name: got nothing, this key is required",
    "verify": "verify.yaml:4: rules[0].verify.step_time_ratio_max: got 0.5, a number from 1 to 1e+09 is needed",
    "approval": "approval.yaml:3: limits.approval_seconds: got 5.0, a number from 60 to 1e+09 is needed",
    "leaf": "leaf.yaml:3: limits.per_leaf: got -1, a number from 0 to 1e+09 is needed",
    "not_yaml": "not_yaml.yaml:3: got YAML that does not parse",
    "not_a_mapping": "not_a_mapping.yaml: got ['drain'], a mapping is needed",
}


def test_each_bad_example_has_its_words():
    """No bad example without a test, and no test without its file."""
    assert {p.stem for p in (FOLDER / "bad").glob("*.yaml")} == set(WORDS)


@pytest.mark.parametrize("name", sorted(WORDS))
def test_what_is_wrong_is_said_in_one_sentence(name):
    """File and line, key, what was given, what is allowed; on one line."""
    with pytest.raises(ConfigError) as caught:
        read_policy(FOLDER / "bad" / f"{name}.yaml")
    assert WORDS[name] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["nothing.yaml", "."])
def test_a_file_that_cannot_be_read_is_named(path, tmp_path):
    """A missing file or a folder is a ConfigError."""
    with pytest.raises(ConfigError):
        read_policy(tmp_path / path)


def rule(**keys: str) -> str:
    """A policy with one sound rule, some keys changed."""
    base = {"match": "{fault: [packet_loss], scope: [device]}", "attempts": "[{do: [drain, replace, resume_job]}]",
            "verify": "{quiet_seconds: 60, deadline_seconds: 600}", "finally": "escalate"} | keys
    return "- name: a\n" + "".join(f"  {k}: {v}\n" for k, v in base.items() if v)


def make(rules: str, limits: str = "{}") -> str:
    return f"version: 1\nlimits: {limits}\nrules:\n{rules}"


LINTS = [
    (make(rule()), None),
    (make(rule(**{"finally": ""})), "no `finally`"),
    (make(rule(attempts="[{do: [drain, resume_job]}]")), "never gives it back"),
    (make(rule(attempts="[{do: [exclude_node, resume_job]}]")), "never gives it back"),
    (make(rule(attempts="[{do: [drain, resume_job, escalate]}]")), None),
    (make(rule(attempts="[{do: [drain, undrain, resume_job]}]")), "no diagnose passed"),
    (make(rule(attempts="[{do: [drain, diagnose, undrain, resume_job]}]")), None),
    (make(rule(attempts="[{do: [drain, replace]}]")), "no step brings the job back"),
    (make(rule(verify="{quiet_seconds: 600, deadline_seconds: 600}")), "never be verified"),
    (make(rule(match="{scope: [switch]}")), "the cause is shared"),
    (make(rule(match="{scope: [switch]}", attempts="[{do: [notify]}]")), None),
    (make(rule(match="{scope: [job]}")), "waits wherever no culprit is known"),
    (make(rule() + rule().replace("name: a", "name: b")), "'b' is never reached: rule 'a'"),
    (make(rule(match="{}") + rule().replace("name: a", "name: b")), "'b' is never reached"),
    (make(rule() + rule(match="{fault: [packet_loss, link_down], scope: [device]}").replace("name: a", "name: b")), None),
    (make(rule(match="{fault: [packet_loss], scope: [device], duration_seconds_min: 60}")
          + rule().replace("name: a", "name: b")), None),
    (make(rule(match="{fault: [packet_loss], scope: [device], labels: {gpu: h100}}")
          + rule().replace("name: a", "name: b")), None),
    (make(rule(), "{concurrent_nodes: 0}"), "concurrent_nodes is 0"),
    (make(rule(), "{pool_ratio: 0, pool_nodes: 0}"), "both 0"),
    (make(rule(), "{per_hour: 0}"), "per_hour is 0"),
    (make(rule(), "{pool_ratio: 0.9}"), "unbounded"),
    (make(rule(), "{per_hour: 1000}"), "unbounded"),
    (make(rule(), "{per_job_per_day: 1000}"), "unbounded"),
    (make(rule(), "{cooldown_seconds: 0}"), "unbounded"),
]


@pytest.mark.parametrize(("text", "says"), LINTS)
def test_lint_names_each_weakness(text, says):
    """One sentence for each weakness, none for a sound policy."""
    said = lint(parse_policy(text), ACTION_KINDS)
    assert [s for s in said if says is None or says not in s] == []
    assert bool(said) == (says is not None)


def test_lint_knows_what_the_backend_lacks():
    """A kind that the backend cannot carry out is named; Greylag's own kinds need none."""
    said = lint(parse_policy(make(rule(attempts="[{do: [drain, replace, resume_job, notify]}]"))), {"drain", "resume_job"})
    assert len(said) == 1
    assert "rule 'a' uses replace, which the backend cannot carry out" in said[0]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ACTION_KINDS)
trees = st.recursive(scalars, lambda c: st.lists(c, max_size=3) | st.dictionaries(
    st.sampled_from(["version", "mode", "limits", "rules", "name", "match", "attempts", "do", "verify", "finally", "fault",
                     "pool_nodes", "drain", "deadline_seconds", "quiet_seconds"]), c, max_size=4), max_leaves=12)


@given(trees)
@settings(deadline=None, max_examples=100)
def test_anything_is_read_or_refused_in_one_sentence(tree):
    """No input brings another error than BadInput."""
    text = yaml.safe_dump({"version": 1, "rules": tree} if not isinstance(tree, dict) else {"version": 1} | tree)
    said = []
    try:
        lint(parse_policy(text), ACTION_KINDS)
    except BadInput as error:
        said.append(str(error))
    assert not any("\n" in one for one in said)
