"""What would happen now: the engine's own step on a copy, which changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.owner import Owner as Process
from app.policy_plan import address, document, lines
from core.clock import ManualClock
from core.config import read_config
from core.errors import BadInput
from core.protocols import NodeView
from core.types import Target
from remediation.policy import Policy, parse_policy
from remediation.rehearsal import WOULD, Outlook, Rehearsal, rehearse, still
from remediation.turn import Site
from tests.remediation.worlds import POLICY, T0, Facts, Owner, cluster, finding, incident, policy


def look(owner: Owner, under: Policy | None = None) -> Rehearsal:
    """What would happen at the owner's next tick."""
    live = [i for i in owner.incidents.values() if i.state != "resolved"]
    return rehearse(owner.engine, owner.at, live, owner.facts, Site(), still(owner.engine), under)


def one(owner: Owner, under: Policy | None = None) -> Outlook:
    return look(owner, under).outlooks[0]


SLOWED = [(0, 2.0), (T0 + 1, 3.0)]  # by so much that waiting is dearer than an attempt


def owner_of(mode: str = "act", **limits: object) -> Owner:
    """An incident that is old and sure enough, with evidence of now."""
    owner = Owner(replace(policy(POLICY, **limits), mode=mode), cluster(), Facts([finding(T0 + 120_000)], steps=SLOWED))
    owner.open(incident())
    return owner


def shine(owner: Owner) -> None:
    owner.facts.findings = [finding(owner.at)]


HELD: list[tuple[str, Callable[[Owner], object]]] = [
    ("frozen", lambda o: o.engine.freeze()),
    ("stale_evidence", lambda o: setattr(o.facts, "findings", [finding(T0 - 60_000)])),
    ("confidence_too_low", lambda o: o.open(incident(confidence=0.3))),
    ("too_young", lambda o: o.open(incident(onset_at=T0 + 110_000))),
    ("other_hand", lambda o: o.world.states.update(n1=NodeView("n1", "drained", "alice"))),
    ("maintenance", lambda o: o.world.states.update(n1=NodeView("n1", "in_service", None, ("train",), "firmware"))),
    ("unreachable", lambda o: setattr(o.world, "down", True)),
    ("limit_per_hour", lambda o: setattr(o.engine, "policy", policy(POLICY, per_hour=0))),
    ("unknown_culprit", lambda o: o.open(replace(incident(), culprit=Target("gpu", "n1")))),
]


@pytest.mark.parametrize(("reason", "change"), HELD, ids=[r for r, _ in HELD])
def test_the_guard_that_holds_is_named(reason, change):
    """With the rule, the attempt and the reason in words; the step says the same when it comes."""
    owner = owner_of()
    change(owner)
    found = one(owner)
    owner.tick()
    assert (found.would, found.held_by, found.rule) == ("hold", reason, "hot")
    assert owner.state() == ("holding", reason)
    assert found.because != reason


@pytest.mark.parametrize(("mode", "would"), [("observe", "simulate"), ("propose", "propose"), ("act", "start")])
def test_each_mode_says_what_it_makes_of_an_attempt(mode, would):
    """Rule, attempt and steps with their targets."""
    found = one(owner_of(mode))
    assert (found.would, found.rule, found.attempt, found.of, found.held_by) == (would, "hot", 1, 2, None)
    assert [(s.kind, str(s.target)) for s in found.steps] == [
        ("drain", "n1"), ("reset_gpu", "n1 GPU 3"), ("diagnose", "n1"), ("undrain", "n1"), ("resume_job", "job train")]


def test_what_observe_has_simulated_is_still_planned():
    """The engine says it once; who asks is told each time."""
    owner = owner_of("observe")
    owner.tick(3)
    shine(owner)
    assert one(owner).would == "simulate"


def test_the_plan_is_what_the_next_tick_does():
    """Through a whole attempt: the step that the plan says comes next is the one that is written."""
    owner = owner_of()
    owner.world.lasts = {"drain": 30, "reset_gpu": 30}
    for _ in range(40):
        shine(owner)
        before, state = one(owner), owner.incidents["inc-1"].state
        owner.tick()
        after = owner.incidents["inc-1"].state
        expected = {"start": ("acting",), "go_on": ("acting", "verifying"), "prove": ("verifying", "holding"), "hold": ("holding",),
                    "people": ("escalated",), "with_people": ("escalated",), "resolve": ("resolved",)}
        assert after in expected[before.would], (state, before.would, after)


def test_steps_that_are_done_are_marked():
    """While an attempt is under way."""
    owner = owner_of()
    owner.world.lasts = {"reset_gpu": 60}
    for _ in range(4):
        shine(owner)
        owner.tick()
    found = one(owner)
    assert found.would == "go_on"
    assert [s.done for s in found.steps][:2] == [True, True]
    assert not found.steps[-1].done


@pytest.mark.parametrize("ticks", [0, 3, 12])
def test_asking_changes_nothing(ticks):
    """The engine's whole state is the same text, the door heard nothing, and two answers are equal."""
    owner = owner_of()
    for _ in range(ticks):
        shine(owner)
        owner.tick()
    shine(owner)
    before, arrived = owner.engine.dump(), dict(owner.world.arrived)
    first, second = look(owner), look(owner)
    assert (owner.engine.dump(), owner.world.arrived) == (before, arrived)
    assert first == second


def test_a_policy_that_is_not_in_force_is_tried():
    """Its own rules and limits, on what the running engine remembers."""
    owner = owner_of("observe")
    other = parse_policy("version: 1\nmode: act\nrules:\n- name: gentle\n  match: {fault: [thermal_throttle]}\n"
                         "  attempts: [{do: [notify]}]\n  finally: escalate\n")
    found = one(owner, other)
    assert (found.would, found.rule, [s.kind for s in found.steps]) == ("start", "gentle", ["notify"])
    assert owner.engine.policy.rule("gentle") is None


def test_budgets_count_as_the_guards_do():
    """After one attempt: an hour's budget less one, one node busy, the job's day less one."""
    owner = owner_of()
    owner.world.lasts = {"drain": 600}
    owner.tick(2)
    left = {b.name: (b.used, b.limit) for b in look(owner).budgets}
    assert left["per_hour"] == (1, 20)
    assert left["concurrent_nodes"] == (1, 1)
    assert left["pool (nodes out of service)"] == (1, 3)
    assert left["per_job_per_day of train"] == (1, 20)
    assert left["per_node_per_week of n1"] == (1, 5)


def test_an_incident_without_a_rule_is_said_so():
    """Nothing is done, by name."""
    owner = owner_of()
    owner.open(incident("inc-2", "packet_loss", culprit=Target("nic", "n2", "mlx5_0/1")))
    found = {o.incident.id: o for o in look(owner).outlooks}["inc-2"]
    assert (found.would, found.reason, found.rule, found.steps) == ("nothing", "no_rule", None, ())


# --- over HTTP --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "inventory.yaml").write_text("nodes: [{name: n1}, {name: n2}]\n")
    (folder / "greylag.yaml").write_text("data_dir: data\nlisten: 127.0.0.1:0\ninventory: {file: inventory.yaml}\n")
    owner = Process(read_config(folder / "greylag.yaml"))
    owner.clock = ManualClock(T0 + 300_000)
    yield owner
    owner.writer.close()
    owner.store.close()
    owner.loop.close()


def test_before_the_first_tick_there_is_nothing_to_plan(process: Process):
    """Said in a line."""
    answer = document(process, None)
    assert list(lines(answer)) == ["no tick has been judged yet: there is nothing to plan"]


def test_the_owner_answers_get_and_post(process: Process):
    """The policy in force, and one that is handed in; the answer is what the command prints."""
    ticked = process.brain.tick(T0 + 120_000)
    process.store.commit_tick(ticked.commit)
    process.last_window = ticked.window
    process.brain.book.adopt(T0 + 120_000, incident())
    api = TestClient(process.app())
    running = api.get("/api/greylag/v1/plan").json()
    assert (running["mode"], running["in_force"], running["items"][0]["rule"]) == ("observe", True, "hot-gpu")
    tried = api.post("/api/greylag/v1/plan", json={"policy": POLICY}).json()
    assert (tried["mode"], tried["in_force"], tried["items"][0]["rule"]) == ("act", False, "hot")
    told = list(lines(running))
    assert any("rule hot-gpu, attempt 1 of 1: waits" in line for line in told)
    assert any(line.endswith("per_hour") for line in told)


@pytest.mark.parametrize("body", [{"policy": "rules: ["}, {"policy": "version: 2"}, {"policy": 3}, {}, []])
def test_a_policy_that_is_none_is_refused(process: Process, body: object):
    """400 with a sentence."""
    answer = TestClient(process.app()).post("/api/greylag/v1/plan", json=body)
    assert answer.status_code == 400
    assert "\n" not in json.dumps(answer.json()["error"])


def test_the_address_comes_from_a_configuration_or_an_option(tmp_path: Path):
    """Not from both."""
    (tmp_path / "greylag.yaml").write_text("listen: 127.0.0.1:9999\n")
    assert address(None, tmp_path / "greylag.yaml") == "http://127.0.0.1:9999"
    with pytest.raises(BadInput):
        address("http://127.0.0.1:1", tmp_path / "greylag.yaml")


def test_each_word_has_its_words():
    """No outlook without a text."""
    assert all(WOULD.values())
