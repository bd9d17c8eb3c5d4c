"""What a policy would have done: an engine in a simulated world beside a recording, the truth, and the account."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import app
from app.policy_account import Account, account, count_words, differences, lines, table
from app.policy_model import SimulatedWorld
from app.policy_shadow import FAILS, HELPS, TRUTH, Shadow
from app.policy_simulate import SimulateOptions, simulate
from app.policy_truth import GRACE_MS, TrueFault, read_truth, truth_of, truth_paths
from core.errors import BadInput
from core.inventory import Inventory, inventory_from
from core.targets import ACTION_KINDS
from core.types import Action, Incident, JobState, Target
from core.window import Window
from remediation.policy import Policy, parse_policy
from remediation.usual import usual_seconds
from tests.policy.recordings import record
from tests.remediation.worlds import T0, TICK, Facts, finding, incident

REPLACE = """
version: 1
mode: observe
limits: {concurrent_nodes: 1, pool_nodes: 3, per_hour: 20, per_job_per_day: 20, spare_floor: 0, cooldown_seconds: 600}
rules:
- name: hot
  match: {fault: [row_remap_failure], scope: [device], confidence_min: 0.7, duration_seconds_min: 60}
  attempts:
  - do: [drain, reset_gpu, diagnose, undrain, resume_job]
  - do: [drain, replace, resume_job]
  verify: {quiet_seconds: 60, deadline_seconds: 300}
  finally: escalate
"""
ONCE = REPLACE.replace("  - do: [drain, reset_gpu, diagnose, undrain, resume_job]\n", "")
SITE = inventory_from({"nodes": [*({"name": f"n{i}"} for i in range(1, 6)), {"name": "s1", "state": "spare"}, {"name": "s2", "state": "spare"}],
                       "jobs": [{"id": "train", "nodes": ["n1", "n2"], "ranks_per_node": 8}]}, "test")
JOB = JobState("train", "train", ("n1", "n2"), tuple(range(16)))
HOT = TrueFault("row_remap_failure", "device", "n1", "3", ("train",), T0, math.inf, frozenset({"replace"}))


def worn(name: str = "inc-1", **more: Any) -> Incident:
    """Of a part that does not heal by itself: waiting is never the cheaper way."""
    return incident(name, "row_remap_failure", **more)


def window(at: int, jobs: tuple[JobState, ...] = (JOB,)) -> Window:
    return Window(at, 15, np.array([at]), {}, {}, (), jobs)


def follow(shadow: Shadow, minutes: int = 60, opens: tuple[Incident, ...] = (worn(),), hours_per_minute: float = 0.1) -> Shadow:
    """The shadow beside a recording in which the incidents go on for that long, each costing so much a minute."""
    at, last = T0, {}
    for step in range(minutes * 4):
        at = T0 + step * TICK
        lost = hours_per_minute * step / 4
        now = [replace(i, lost_gpu_hours=lost) for i in opens if i.opened_at <= at]
        last |= {i.id: i for i in now}
        facts = Facts(findings=[finding(at, i.fault, i.culprit, i.findings[0]) for i in now], jobs={"train": JOB})
        shadow.tick(at, now, facts, window(at))
    shadow.close(last.get)
    return shadow


def shadow_of(text: str = REPLACE, assumption: str = HELPS, truths: tuple[TrueFault, ...] = (), site: Inventory = SITE) -> Shadow:
    return Shadow(parse_policy(text), site, assumption, truths)


def kinds(shadow: Shadow) -> list[str]:
    return [d.kind for case in shadow.cases.values() for each in case.tries for d in each.did]


# --- the assumptions --------------------------------------------------------------------------------------------------
def test_where_every_attempt_helps_the_first_is_the_last():
    """The mildest attempt, proved by what is assumed of the part and its job."""
    shadow = follow(shadow_of())
    assert kinds(shadow) == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]
    assert shadow.cases["inc-1"].state == "resolved"


def test_where_none_helps_the_ladder_goes_to_people():
    """The fault goes on as it was recorded, so each proof fails."""
    shadow = follow(shadow_of(assumption=FAILS), 120)
    assert kinds(shadow) == ["drain", "reset_gpu", "diagnose", "undrain", "resume_job", "drain", "replace", "resume_job"]
    assert (shadow.cases["inc-1"].told, [t.helped for t in shadow.cases["inc-1"].tries]) == (True, [False, False])


def test_the_truth_says_which_attempt_ends_the_fault():
    """A reset does not cure it, a replacement does."""
    shadow = follow(shadow_of(assumption=TRUTH, truths=(HOT,)), 120)
    assert [t.helped for t in shadow.cases["inc-1"].tries] == [False, True]
    assert shadow.cases["inc-1"].state == "resolved"


def test_commands_take_their_usual_time_in_a_world_of_their_own():
    """A drained node is ours until it is given back; a replacement takes a spare, and fails where there is none."""
    world = SimulatedWorld(inventory_from({"nodes": [{"name": "n1"}, {"name": "s1", "state": "spare"}]}, "test"))
    for number, kind in enumerate(("drain", "replace")):
        action = Action(f"a/{number}", kind, Target("node", "n1"), {}, 1200.0, "act", "inc-1", 1, number, world.now, "policy")
        assert world.submit(action).state == "RUNNING"
        world.now += round(usual_seconds(kind, {}, "") * 1000) - 1
        assert world.poll(action.id).state == "RUNNING"
        world.now += 1
        assert (world.poll(action.id).state, world.submit(action).state) == ("DONE", "DONE")
    assert {n: (v.state, v.held_by) for n, v in world.nodes().items()} == {"n1": ("drained", "greylag"), "s1": ("in_service", None)}
    world.submit(replace(action, id="a/9", at=world.now))
    world.now += 10**6
    assert world.poll("a/9").reason == "no_spare"
    assert world.poll("nobody").reason == "unknown_operation"


def test_each_command_has_a_usual_time():
    """None is done in no time by forgetting it, and a diagnosis takes what its level does."""
    assert {kind for kind in ACTION_KINDS if usual_seconds(kind, {}, "gpu_slow") > 0} == set(ACTION_KINDS) - {"notify", "escalate"}
    assert usual_seconds("diagnose", {"level": 1}, "gpu_slow") < usual_seconds("diagnose", {"level": 3}, "gpu_slow")


def test_budgets_hold_as_if_everything_were_done():
    """Two hot nodes at once, one at a time allowed: the second waits until the first is through."""
    other = worn("inc-2", culprit=Target("gpu", "n4", "1", "GPU-9"), findings=("fnd-2",), jobs=())
    shadow = follow(shadow_of(ONCE), 60, (worn(), other))
    first, second = (shadow.cases[n].tries[0] for n in ("inc-1", "inc-2"))
    assert first.ended_at is not None
    assert second.did[0].at >= first.ended_at


def test_a_later_incident_on_a_node_that_is_out_is_not_acted_on():
    """The node would not be there."""
    later = incident("inc-2", "packet_loss", culprit=Target("nic", "n1", "mlx5_0/1"), findings=("fnd-2",), opened_at=T0 + 40 * 60_000)
    shadow = follow(shadow_of(ONCE.replace("[row_remap_failure]", "[row_remap_failure, packet_loss]")), 60, (worn(), later))
    assert shadow.cases["inc-2"].skipped == "its node was out of service already"
    assert shadow.cases["inc-2"].tries == []


def test_without_an_inventory_the_nodes_are_those_that_are_spoken_of():
    """So that guards know them; there are no spares then, and a replacement is held for it."""
    shadow = follow(shadow_of(ONCE, site=Inventory()))
    assert set(shadow.world.nodes()) == {"n1"}
    assert (shadow.cases["inc-1"].state, shadow.cases["inc-1"].reason) == ("holding", "no_spare")


# --- the account ------------------------------------------------------------------------------------------------------
def test_what_is_saved_is_what_was_lost_from_the_attempt_on_less_what_it_costs():
    """100 minutes at 6 GPU-hours an hour; 16 GPUs stand while the node is replaced and the job loads."""
    shadow = follow(shadow_of(ONCE, TRUTH, (HOT,)), 100)
    attempt = shadow.cases["inc-1"].tries[0]
    assert attempt.stop_at is not None
    assert attempt.ended_at is not None
    stood = (attempt.ended_at - attempt.stop_at) / 3_600_000
    assert stood * 3600 >= sum(usual_seconds(k, {}, "") for k in ("drain", "replace", "resume_job"))
    total = shadow.cases["inc-1"].incident.lost_gpu_hours
    told = account("p", shadow)
    assert told.saved_hours == pytest.approx(total - attempt.lost_at - 16 * stood)
    assert (told.healthy_nodes, told.actions, told.unknown_cost) == (0, {"drain": 1, "replace": 1, "resume_job": 1}, 1)


def test_an_attempt_on_a_healthy_node_costs_and_brings_nothing():
    """The truth knows of no fault there; the job stood for it."""
    elsewhere = replace(HOT, node="n5", jobs=())
    told = account("p", follow(shadow_of(ONCE, TRUTH, (elsewhere,)), 60))
    assert told.healthy == {"drain": 1, "replace": 1}
    assert told.needless == {"resume_job": 1}
    assert told.saved_hours < 0


def test_without_truth_nothing_is_said_of_healthy_nodes():
    """None, and the words say why there are two answers."""
    groups = [[account("p", follow(shadow_of(ONCE, a))) for a in (HELPS, FAILS)]]
    assert [a.healthy_nodes for a in groups[0]] == [None, None]
    text = "\n".join(lines(groups, "span"))
    assert "no truth is known" in text
    assert "healthy" not in text.split("assumed:")[0]
    assert "if every attempt helps" in text
    assert "if no attempt helps" in text


def test_the_sentence():
    """As the issue asks for it."""
    assert count_words({"reboot": 12}, {"reboot": 3}, "41.0 GPU-hours saved") == "12 reboots, 3 of them on healthy nodes; 41.0 GPU-hours saved"
    assert count_words({"reboot": 1}, {"reboot": 1}, "x") == "1 reboot, on a healthy node; x"
    assert count_words({"replace": 2, "resume_job": 1}, None, "x") == "2 replacements; 1 job restart; x"
    assert count_words({}, None, "x") == "nothing done; x"


def test_two_policies_are_compared_incident_by_incident():
    """Where they do the same nothing is shown."""
    a, b = (account(n, follow(shadow_of(t, TRUTH, (HOT,)), 120)) for n, t in (("a", REPLACE), ("b", ONCE)))
    rows = differences(a, b)
    assert [(r["a"]["did"], r["b"]["did"]) for r in rows] == [
        ("drain+reset_gpu+diagnose+undrain+resume_job, then drain+replace+resume_job", "drain+replace+resume_job")]
    assert len(list(table(rows, "a", "b"))) == 3
    assert differences(a, a) == []
    assert list(table([], "a", "b")) == ["a and b do the same"]


# --- the truth --------------------------------------------------------------------------------------------------------
ROW: dict[str, Any] = {"fault": "packet_loss", "scope": "device", "culprit": {"kind": "nic", "node": "n6", "device": "mlx5_2/1", "job": None},
                       "victims": [{"kind": "job", "job": "train"}], "at": "2026-01-01T00:00:00Z", "until": None, "cured_at": None,
                       "cures": ["replace"], "nothing_to_do": False}


@pytest.mark.parametrize(("change", "says"), [
    ({}, ("n6", math.inf)), ({"until": "2026-01-01T01:00:00Z"}, ("n6", 1_767_229_200_000)),
    ({"culprit": {"kind": "switch", "node": None, "device": "leaf-1"}}, (None, math.inf)),
    ({"fault": None, "nothing_to_do": True}, None), ({"type": "summary"}, None)])
def test_a_row_of_truth(change, says):
    """A shared cause is no node's fault, a look-alike is none at all."""
    found = truth_of({**ROW, **change})
    assert (None if found is None else (found.node, found.end)) == says


def test_what_was_decided_while_a_fault_was_there_may_come_a_little_later():
    """But not before it, and not long after."""
    fault = replace(HOT, end=T0 + 1000.0)
    assert [fault.now(T0 + d) for d in (-1, 0, 1000, 1000 + GRACE_MS, 1001 + GRACE_MS)] == [False, True, True, True, False]


def test_the_truth_is_found_beside_a_recording(tmp_path: Path):
    """Beside a file by its name, in a folder whatever its name; a bad line is named."""
    (tmp_path / "a.truth.jsonl").write_text(json.dumps(ROW) + "\n\n")
    (tmp_path / "a.prom").write_text("")
    assert truth_paths([str(tmp_path / "a.prom")]) == truth_paths([str(tmp_path)]) == [tmp_path / "a.truth.jsonl"]
    assert [t.fault for t in read_truth(truth_paths([str(tmp_path)]))] == ["packet_loss"]
    (tmp_path / "b.truth.jsonl").write_text("{}\nno\n")
    with pytest.raises(BadInput, match=r"b\.truth\.jsonl:1"):
        read_truth([tmp_path / "b.truth.jsonl"])


# --- the command ------------------------------------------------------------------------------------------------------
@pytest.fixture
def fallen(tmp_path: Path) -> Path:
    """Twelve minutes of a node; one of its two GPUs is shown no more after four of them."""
    start = 1_767_225_600_000
    rows = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{g}",UUID="GPU-{g}",Hostname="n1"}} {50 + g} {start + step * 15_000}'
            for step in range(49) for g in (0, 1) if g or step <= 16]
    (tmp_path / "rec.prom").write_text("# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" + "\n".join(rows) + "\n")
    (tmp_path / "inventory.yaml").write_text(
        "nodes: [{name: n1, gpus: [{index: 0, uuid: GPU-0}, {index: 1, uuid: GPU-1}]}, {name: n2}, {name: s1, state: spare}, {name: s2, state: spare}]\n")
    (tmp_path / "p.yaml").write_text(ONCE.replace("row_remap_failure", "gpu_lost").replace("duration_seconds_min: 60", "duration_seconds_min: 0"))
    return tmp_path


def test_a_recording_is_simulated_by_the_command(fallen: Path):
    """Without truth there are two answers; with it one, and the difference of two policies; the same bytes each time."""
    args = ["policy", "simulate", str(fallen / "rec.prom"), "--inventory", str(fallen / "inventory.yaml"), "--policy", str(fallen / "p.yaml")]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "if every attempt helps: 1 drain" in done.output
    row = {**ROW, "fault": "gpu_lost", "culprit": {"kind": "gpu", "node": "n1", "device": "0"}, "victims": []}
    (fallen / "rec.truth.jsonl").write_text(json.dumps(row) + "\n")
    (fallen / "none.yaml").write_text("version: 1\nrules: []\n")
    again = [CliRunner().invoke(app, [*args, "--json", "--against", str(fallen / "none.yaml")]).output for _ in range(2)]
    answer = json.loads(again[0])
    assert again[0] == again[1]
    assert answer["truth"] is True
    assert answer["policies"][0][0]["healthy_nodes"] == 0
    assert [d["fault"] for d in answer["differences"]] == ["gpu_lost"]


def test_a_seed_needs_a_scenario(fallen: Path):
    """Bad input in a sentence."""
    done = CliRunner().invoke(app, ["policy", "simulate", str(fallen), "--seed", "3"])
    assert isinstance(done.exception, BadInput)


@pytest.mark.evaluate
def test_a_recording_of_the_fleet_with_its_truth(tmp_path: Path):
    """A hot GPU in a store with its truth beside it: one replacement, on the faulty node, and GPU-hours saved."""
    folder = record(tmp_path / "rec", 30, nodes=2)
    (tmp_path / "p.yaml").write_text(ONCE.replace("row_remap_failure", "thermal_throttle"))
    answer = simulate(SimulateOptions((str(folder),), str(tmp_path / "p.yaml")))
    told = answer["policies"][0][0]
    assert (told["actions"], told["healthy_nodes"]) == ({"drain": 1, "replace": 1, "resume_job": 1}, 0)


SCENARIO = """
name: small
seed: 21
duration: {minutes}m
fleet: {{nodes: 2, spares: 1, tier: D, times: fast, before: 30s}}
jobs:
- {{name: train-1, restart: 5m}}
schedule:
- {{fault: thermal_throttle, at: {at}, node: n01, device: "4", severity: 0.5}}
"""


def played(tmp_path: Path, minutes: int, at: str, policy: str) -> dict[str, Any]:
    (tmp_path / "s.yaml").write_text(SCENARIO.format(minutes=minutes, at=at))
    (tmp_path / "p.yaml").write_text(policy)
    return simulate(SimulateOptions((str(tmp_path / "s.yaml"),), str(tmp_path / "p.yaml")))


def test_a_scenario_is_run_with_the_policy_and_without_anybody(tmp_path: Path):
    """Two runs of the same seed: before anything happened they are the same."""
    answer = played(tmp_path, 1, "50s", "version: 1\nmode: act\nrules: []\n")
    assert [r["policy"] for r in answer["runs"]] == ["nobody acts", "p.yaml"]
    assert answer["runs"][1]["saved_gpu_hours"] == 0


@pytest.mark.evaluate
def test_a_closed_loop_saves_what_a_slow_gpu_costs(tmp_path: Path):
    """Forty minutes: the node is replaced, none that is healthy is touched, more is productive than without anybody."""
    answer = played(tmp_path, 40, "2m", ONCE.replace("confidence_min: 0.7, ", "").replace("row_remap_failure", "thermal_throttle"))
    run = answer["runs"][1]
    assert (run["actions"].get("replace"), run["healthy_nodes"]) == (1, 0)
    assert run["saved_gpu_hours"] > 0


def test_an_account_is_json() -> None:
    """Everything in it renders."""
    from app.policy_account import document

    told: Account = account("p", follow(shadow_of(), 5))
    assert json.loads(json.dumps(document(told)))["policy"] == "p"
    assert isinstance(parse_policy(ONCE), Policy)
