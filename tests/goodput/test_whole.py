"""Weeks through the whole path beside those that are drawn."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest

from app.fingerprint import policy_hash
from app.goodput import whole as path
from app.goodput.chances import read_chances
from fleet.scenario import Entry
from remediation.policy import read_policy
from tests.goodput.test_chances import written
from tests.goodput.test_months import quiet

ACT = files("sample_data").joinpath("policies", "act.yaml")


def row(whole, drawn, acted=0):
    return {"goodput_ratio": whole, "drawn": drawn, "nodes": 16, "days": 1.0, "healthy_nodes_acted_on": acted}


@pytest.mark.parametrize(("whole", "agrees"), [(0.90, True), (0.915, True), (0.80, False), (0.99, False)])
def test_they_agree_within_the_spread_of_the_draws(whole, agrees):
    """The mean of the whole path against the means of the draws, two standard deviations and the models' own difference wide."""
    told = path.agreement([row(whole, [0.90, 0.91]), row(whole, [0.90, 0.91], 1)])
    assert (told["agrees"], told["node_days"], told["healthy_nodes_acted_on"]) == (agrees, 32.0, 1)


def test_a_stretch_that_is_kept_is_not_run_again(tmp_path, monkeypatch):
    """A run that was cut off goes on where it stopped; another scorecard asks for other draws, and for no other whole path."""
    known, policy, ran, drawn = read_chances(written(tmp_path)), read_policy(str(ACT)), [], []
    monkeypatch.setattr(path, "whole", lambda scenario, policy, tell: ran.append(scenario.seed) or {"goodput_ratio": 0.9, "healthy_nodes_acted_on": 0})
    monkeypatch.setattr(path, "run_arm", lambda arm, scenario, *args: drawn.append(scenario.seed) or {"goodput_ratio": 0.9})
    keep = str(tmp_path / "whole.json")
    for days, chances in ((16, known), (40, known), (40, known), (16, replace(known, sha256="other"))):
        rows = list(path.compare_whole(days, 20_001, chances, policy, keep, print))
    assert ran == [20_001, 20_002, 20_003]
    assert drawn == [seed for seed in (20_001, 20_002, 20_003, 20_001) for _ in range(path.DRAWS)]
    assert [(r["seed"], r["scorecard"]) for r in rows] == [(20_001, "other")]


@pytest.mark.parametrize("other", ["policy", "code"])
def test_what_is_kept_of_another_policy_or_code_is_run_again_and_said(tmp_path, monkeypatch, other):
    """Rows of one file that rest on different things would be compared as if they were one."""
    known, policy, ran, told = read_chances(written(tmp_path)), read_policy(str(ACT)), [], []
    done = {"goodput_ratio": 0.9, "healthy_nodes_acted_on": 0}
    monkeypatch.setattr(path, "whole", lambda scenario, policy, tell: ran.append(scenario.seed) or done)
    monkeypatch.setattr(path, "run_arm", lambda arm, *args: {"goodput_ratio": 0.9})
    keep = str(tmp_path / "whole.json")
    before = list(path.compare_whole(16, 20_001, known, policy, keep, told.append))
    if other == "code":
        monkeypatch.setattr(path, "code_hash", lambda rooms: "later")
    else:
        policy = replace(policy, limits=replace(policy.limits, per_hour=9))
    after = list(path.compare_whole(16, 20_001, known, policy, keep, told.append))
    assert ran == [20_001, 20_001]
    assert told == [f"seed 20001: what is kept is of another {other}: it is run again"]
    assert [key for key in ("policy", "code") if before[0][key] != after[0][key]] == [other]


def test_a_policy_is_the_same_wherever_its_file_lies():
    """What it says counts."""
    policy = read_policy(str(ACT))
    assert policy_hash(replace(policy, file="elsewhere.yaml")) == policy_hash(policy)
    assert policy_hash(replace(policy, mode="propose")) != policy_hash(policy)


@pytest.mark.evaluate
def test_a_dead_gpu_is_found_and_replaced_through_the_whole_path():
    """Pages, detectors, incidents, the shipped policy: twenty minutes of four nodes."""
    scenario = quiet(8, 0.014, Entry(fault="gpu_lost", at="5m", seed=3))
    told = path.whole(replace(scenario, fleet=replace(scenario.fleet, times="fast")), read_policy(str(ACT)), print)
    assert (told["faults"], told["healthy_nodes_acted_on"]) == (1, 0)
    assert told["incidents"] >= 1
    assert 0.2 < told["goodput_ratio"] < 0.95
