"""Scenario files: strict keys, one sentence for each mistake, the truth beside them, and back to YAML without loss."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.yamlfile import parse_yaml
from fleet.build import all_plugins, bare, load_scenario
from fleet.scenario import as_yaml, duration_text, scenario_from, seconds_of

FOLDER = Path(__file__).parents[2] / "sample_data" / "scenarios"
GOOD = sorted(p.name for p in FOLDER.glob("*.yaml"))
# Thousands of nodes take their time; its rates have a test of their own.
SMALL = [name for name in GOOD if name != "llama3-405b.yaml"]

BAD = {
    "unknown-key": "unknown-key.yaml:2: fleet.spare: got an unknown key, allowed are: .*did you mean 'spares'",
    "no-name": "no-name.yaml:1: name: got nothing, this key is required",
    "bad-name": "bad-name.yaml:1: name: got 'A name with spaces'",
    "unknown-type": "unknown-type.yaml:2: fleet.type: got 'p5.48xlarg', .*did you mean 'p5.48xlarge'",
    "wrong-fabric": "wrong-fabric.yaml:2: fleet.fabric: got 'infiniband', p5.48xlarge has efa",
    "unknown-tier": "unknown-tier.yaml:2: fleet.tier: got 'E', allowed are: A, B, C, D",
    "unknown-fault": r"unknown-fault.yaml:3: schedule\[0\].fault: .*did you mean 'thermal_throttle'",
    "look-alike-as-fault": r"look-alike-as-fault.yaml:3: schedule\[0\].fault: got 'hot_day'",
    "two-things-in-a-line": r"schedule\[0\]: got 'fault, look_alike', exactly one of fault, look_alike and hand",
    "nothing-in-a-line": r"schedule\[0\]: got nothing, exactly one of fault, look_alike and hand",
    "bad-duration": "bad-duration.yaml:2: duration: got 'one hour', a duration of at least 1m",
    "too-late": r"too-late.yaml:4: schedule\[0\].at: got '45m', the scenario is over after 30m",
    "bad-severity": r"schedule\[0\].severity: got 11.0, a number from 0 to 10",
    "bad-onset": r"schedule\[0\].onset: got 'slowly', allowed are: step",
    "unknown-node": r"unknown-node.yaml:4: schedule\[0\].node: got 'n05', allowed are: n01, n02, n03, n04",
    "unknown-device": r"unknown-device.yaml:4: schedule\[0\].device: got 'eth9', allowed are: mlx5_0/1",
    "no-such-gpu": r"no-such-gpu.yaml:4: schedule\[0\].device: got '8', a GPU index from 0 to 7",
    "hand-without-node": r"schedule\[0\].node: got nothing, the node that the hand takes",
    "not-in-this-fleet": r"schedule\[0\].fault: got 'xid_79', a fleet of trn2.48xlarge has no nvidia",
    "too-many-nodes": r"too-many-nodes.yaml:5: jobs\[1\].nodes: got 4, 2 nodes are left",
    "same-name-twice": r"same-name-twice.yaml:5: jobs\[1\].name: got 'a', each job needs a name of its own",
    "unknown-job-kind": r"jobs\[0\].kind: got 'trainig', .*did you mean 'training'",
    "bad-shape": r"bad-shape.yaml:4: jobs\[0\].shape.compute_second: got 2, allowed are: .*compute_seconds",
    "groups-that-do-not-fit": r"groups-that-do-not-fit.yaml:4: jobs\[0\].shape.*they have to fit on 32 GPUs",
    "bad-seed": "bad-seed.yaml:2: seed: got -1",
    "unknown-rates": "unknown-rates.yaml:2: rates.groups: got 'llama4', allowed are: llama3_405b",
    "no-mapping": "no-mapping.yaml: got .*a mapping is needed",
    "key-twice": "key-twice.yaml:3: seed: got the key a second time",
}


@pytest.mark.parametrize("name", GOOD)
def test_shipped_scenarios_are_valid_and_round_trip(name):
    """Each file loads, is named as its file, and its YAML gives the same scenario again."""
    found = load_scenario(FOLDER / name) if name in SMALL else scenario_from(
        parse_yaml((FOLDER / name).read_text(), name), name, all_plugins())
    assert found.name == Path(name).stem
    assert found.about
    assert scenario_from(parse_yaml(as_yaml(found), "again"), "again", all_plugins()) == found


@pytest.mark.parametrize("name", SMALL)
def test_the_truth_beside_a_file_is_what_will_be_true(name):
    """`NAME.truth.jsonl` is what `greylag fleet run --truth-only` prints; look-alikes have nothing to do."""
    programme = bare(load_scenario(FOLDER / name))[2]
    rows = [{"type": "truth", **row} for row in programme.truth()] + [{"type": "hand", **row} for row in programme.hands()]
    beside = (FOLDER / name).with_suffix(".truth.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in beside] == rows
    for row in rows:
        if row["type"] == "truth":
            assert row["nothing_to_do"] == (row["fault"] is None)
            assert row["victims"] == [] or not row["nothing_to_do"]


def test_every_bad_file_has_its_sentence():
    """The folder and the table below agree."""
    assert sorted(p.stem for p in (FOLDER / "bad").glob("*.yaml")) == sorted(BAD)


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_files_give_one_sentence_with_file_line_and_key(name):
    """Each mistake is one line that says where it is, what was given and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load_scenario(FOLDER / "bad" / f"{name}.yaml")
    assert "\n" not in str(caught.value)
    assert re.search(BAD[name], str(caught.value))


DURATIONS = [("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259200), ("1h30m", 5400), ("90", 90), ("0s", 0), ("1.5h", 5400)]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations_as_people_write_them(text, seconds):
    """Units s, m, h, d, put together at will; a plain number is seconds."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "5 m", "-5m", "5w", "1h-2m", "m5", "nan", "1e400"])
def test_other_texts_are_no_duration(text):
    """Anything else is refused (a negative or infinite number by its reader)."""
    try:
        value = seconds_of(text)
    except ValueError:
        return
    assert not 0 <= value < float("inf")


@given(st.integers(0, 400 * 86400))
def test_duration_text_is_read_back(seconds):
    """What is written is read as the same."""
    assert seconds_of(duration_text(seconds)) == seconds


def test_one_more_line_changes_no_other():
    """Each line draws from a stream of its own: an added one leaves place and size of the others."""
    text = "name: x\nseed: 3\nfleet: {nodes: 8}\nschedule:\n- {fault: gpu_slow, at: 5m}\n"
    one = scenario_from(parse_yaml(text, "x"), "x", all_plugins())
    two = scenario_from(parse_yaml(text + "- {look_alike: hot_day, at: 7m}\n", "x"), "x", all_plugins())
    assert bare(two)[2].truth()[0] == bare(one)[2].truth()[0]
