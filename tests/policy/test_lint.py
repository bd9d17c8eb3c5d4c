"""What lint says: where, about which rule, what is wrong and what to change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli import app
from core.faults import faults
from core.plugins import load_plugins
from core.targets import ACTION_KINDS, SCOPES
from remediation.lint import covers, examine, lint, uncovered
from remediation.policy import Match, parse_policy

SOUND = {"match": "{fault: [packet_loss], scope: [device]}", "attempts": "[{do: [drain, replace, resume_job]}]",
         "verify": "{quiet_seconds: 60, deadline_seconds: 600}", "finally": "escalate"}


def rules(*changes: dict[str, str], limits: str = "{}", mode: str = "act") -> str:
    """A policy of sound rules a, b, ..., some keys changed."""
    text = f"version: 1\nmode: {mode}\nlimits: {limits}\nrules:\n"
    for name, change in zip("abcdef", changes, strict=False):
        text += f"- name: {name}\n" + "".join(f"  {k}: {v}\n" for k, v in (SOUND | change).items() if v)
    return text


CASES = [
    (rules({}), None),
    (rules({"attempts": "[{do: [reboot, diagnose, undrain, resume_job]}]"}), "uses reboot on a node that was not drained"),
    (rules({"attempts": "[{do: [drain, escalate, resume_job]}]"}), "has resume_job after escalate"),
    (rules({"attempts": "[{do: [drain, reset_gpu, diagnose, undrain, resume_job]}]"}), "resets a GPU for the fault packet_loss"),
    (rules({"match": "{fault: [xid_fatal], scope: [device, node]}", "attempts": "[{do: [drain, reset_gpu, diagnose, undrain, resume_job]}]"}),
     "resets a GPU for the scope node"),
    (rules({"match": "{fault: [xid_fatal], scope: [device]}", "attempts": "[{do: [drain, reset_gpu, diagnose, undrain, resume_job]}]"}), None),
    (rules({"match": "{fault: [stalled_loss]}", "attempts": "[{do: [{drain: {wait_for: checkpoint}}, replace, resume_job]}]"}),
     "waits for a checkpoint with stalled_loss"),
    (rules({"match": "{fault: [target_down], scope: [node]}"}), "acts because something is not seen (target_down)"),
    (rules({"match": "{fault: [job_crash_loop]}", "attempts": "[{do: [resume_job]}]"}), "retries a crash loop"),
    (rules({"match": "{fault: [job_crash_loop], scope: [device]}"}), None),
    (rules({"match": "{fault: [packet_loss], class: [ticket]}"}), "no fault has that class and owner"),
    (rules({"attempts": "[{do: [drain, replace, resume_job], times: 4}]"}), "has 4 attempts that touch a job, and limits.per_job_per_day is 3"),
    (rules({"match": "{fault: [packet_loss, link_down]}"}, {}), "'b' is never reached: rule 'a'"),
    (rules({"match": "{fault: [packet_loss]}"}, {"match": "{fault: [link_down]}"}, {"match": "{fault: [packet_loss, link_down], scope: [node]}"}),
     "'c' is never reached: the rules 'a', 'b'"),
    (rules({"match": "{fault: [packet_loss], job: [x]}"}, {}), None),
    (rules({"match": "{fault: [packet_loss], job: ['*']}"}, {}), "'b' is never reached: rule 'a'"),
    (rules({}, limits="{per_leaf: 0}"), "per_leaf is 0"),
    (rules({}, limits="{per_node_per_week: 0}"), "per_node_per_week is 0"),
    (rules({}, limits="{per_node_per_week: 100}"), "unbounded"),
    (rules({}, limits="{release_seconds: 0}"), "starts at once"),
    (rules({}, limits="{approval_seconds: 1000000.0}"), "lets a yes of yesterday act today"),
    (rules({}, limits="{approval_seconds: 100}", mode="propose"), "too short for a person"),
    (rules({}, limits="{approval_seconds: 100}"), None),
]


@pytest.mark.parametrize(("text", "says"), CASES)
def test_each_weakness_is_named(text, says):
    """One problem for each weakness, none for a sound policy."""
    found = examine(parse_policy(text), ACTION_KINDS)
    assert [str(p) for p in found if says is None or says not in str(p)] == []
    assert len(found) == (0 if says is None else 1)


def test_a_problem_stands_where_its_key_does():
    """File and line of the attempt, the match or the limit."""
    text = ("version: 1\nlimits:\n  per_hour: 0\nrules:\n- name: a\n  match: {fault: [packet_loss],\n          scope: [switch]}\n  attempts:\n"
            "  - do: [drain, replace, resume_job]\n  - do: [drain,\n         resume_job]\n")
    found = {p.what.partition(":")[0].partition(" is 0")[0]: p.where for p in examine(parse_policy(text, "p.yaml"), ACTION_KINDS)}
    assert found["limits.per_hour"] == "p.yaml:3"
    assert found["commands parts for the scope switch"] == "p.yaml:6"
    assert found["in attempt 2 takes a node out with drain and never gives it back"] == "p.yaml:10"
    assert found["has no `finally`"] == "p.yaml:5"


@pytest.mark.parametrize("backend", sorted(load_plugins("remediation.backends")))
def test_kinds_that_a_backend_lacks_are_named_with_it(backend):
    """Each kind that it cannot carry out once, and no other."""
    kinds = frozenset(load_plugins("remediation.backends")[backend].kinds)
    lacks = sorted(k for k in ACTION_KINDS if k not in kinds and k not in ("notify", "escalate"))
    text = rules({"attempts": f"[{{do: [drain, {', '.join(k for k in ACTION_KINDS if k not in ('drain', 'escalate'))}]}}]",
                  "match": "{fault: [xid_fatal], scope: [device]}"})
    found = [p for p in examine(parse_policy(text), kinds, f"the backend {backend}") if "cannot carry out" in p.what]
    assert [p.what for p in found] == [f"uses {k}, which the backend {backend} cannot carry out" for k in lacks]


def test_faults_without_a_rule_are_told():
    """Those of the closed list that no match can be about."""
    silent = uncovered(parse_policy(rules({"match": "{fault: [packet_loss], owner: [network]}"})))
    assert "packet_loss" not in silent
    assert len(silent) == len(faults()) - 1


names = st.sampled_from(sorted(faults()))
matches = st.builds(Match, st.lists(names, max_size=3).map(tuple), st.lists(st.sampled_from(SCOPES), max_size=3).map(tuple),
                    st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 60.0]))


@settings(max_examples=60, deadline=None)
@given(matches, matches, names, st.sampled_from(SCOPES), st.sampled_from([0.1, 0.7, 1.0]), st.sampled_from([0.0, 100.0]))
def test_what_is_covered_never_matches_alone(wide, narrow, fault, scope, confidence, age):
    """Where one match covers another, each incident of the second is one of the first."""
    def holds(m):
        return ((not m.fault or fault in m.fault) and (not m.scope or scope in m.scope) and confidence >= m.confidence_min
                and age >= m.duration_seconds_min)

    assert not (covers(wide, narrow) and holds(narrow) and not holds(wide))


# --- the command ------------------------------------------------------------------------------------------------------
def ran(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["policy", "lint", *args])
    return done.exit_code, done.output


def test_the_command_is_quiet_about_what_ships_and_fails_on_what_is_wrong(tmp_path: Path):
    """Exit 0 and one line; exit 1 and a line for each problem."""
    assert ran()[0] == 0
    path = tmp_path / "p.yaml"
    path.write_text(rules({"finally": ""}))
    code, said = ran(str(path))
    assert code == 1
    assert f"{path}:5: rule 'a' has no `finally`" in said


def test_the_command_answers_as_json(tmp_path: Path):
    """where, rule, what, change."""
    path = tmp_path / "p.yaml"
    path.write_text(rules({"finally": ""}))
    code, said = ran(str(path), "--json", "--backend", "all")
    answer = json.loads(said)
    assert code == 1
    assert answer["problems"][0]["rule"] == "a"
    assert set(answer["backends"]) == set(load_plugins("remediation.backends"))


def test_the_command_reads_backend_and_policy_of_a_configuration(tmp_path: Path):
    """As `greylag run -c` would use them."""
    (tmp_path / "p.yaml").write_text(rules({}, mode="observe"))
    (tmp_path / "greylag.yaml").write_text("policy: p.yaml\nbackend: {name: observe}\n")
    code, said = ran("-c", str(tmp_path / "greylag.yaml"))
    assert code == 0
    assert "nothing to mend for observe" in said


def test_a_backend_that_is_none_is_refused_with_the_nearest():
    """Bad input, one sentence."""
    done = CliRunner().invoke(app, ["policy", "lint", "--backend", "fleeet"])
    assert "did you mean 'fleet'" in str(done.exception)


def test_lint_without_a_file_names_the_policy():
    """A policy from text stands nowhere."""
    assert lint(parse_policy(rules({"finally": ""})), ACTION_KINDS)[0].startswith("policy:5: rule 'a'")
