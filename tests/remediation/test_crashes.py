"""kill -9 at every point of every action: what was begun goes on, and nothing is done twice.

A crash is the loss of the engine; it starts again from what was committed last. The walk counts the points that a repair
passes, and dies at each of them once, in a run of its own. One further test kills real processes.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from core.errors import BadInput
from remediation.engine import Engine
from remediation.kinds import KINDS, commands
from remediation.policy import Policy
from tests.remediation.worlds import (
    ALL_KINDS,
    T0,
    TICK,
    Fault,
    Owner,
    World,
    cluster,
    finding,
    incident,
    policy,
)

STEPS = ["drain", "reset_gpu", "diagnose", "undrain", "resume_job"]
POINTS = ("decided, not committed", "committed, not sent", "at the door, not sent", "sent, no answer yet", "asked while it runs",
          "ended, not recorded", "its end recorded")


class Crash(Exception):
    """The process is gone."""


class Bomb:
    """Goes off at the n-th point that is passed. where: (kind of the action under way, point); ticks: in which tick each point
    was passed."""

    def __init__(self, at: int) -> None:
        self.left, self.where, self.tick = at, ("", ""), 0
        self.ticks: list[int] = []

    def passed(self, kind: str, point: str) -> None:
        self.ticks.append(self.tick)
        self.left -= 1
        if self.left == 0:
            self.where = (kind, point)
            raise Crash


class Mined(World):
    """A world whose caller may die just before and just after each call; each order is carried out whoever asked."""

    bomb: Bomb

    def submit(self, action):
        self.bomb.passed(action.kind, "at the door, not sent")
        outcome = super().submit(action)
        self.bomb.passed(action.kind, "sent, no answer yet")
        return outcome

    def poll(self, action_id):
        outcome = super().poll(action_id)
        if action_id in self.known:
            self.bomb.passed(self.known[action_id][0].kind, "asked while it runs")
        return outcome


@dataclass
class Case:
    """A repair. ladder: attempts of kinds. cured_by: what ends the fault. does: what the world has to see, in order.

    refuse_once: kinds that the world turns down once, for a reason that passes. fail: kinds that end as FAILED. ends: how
    the incident ends.
    """

    ladder: tuple[tuple[str, ...], ...]
    cured_by: str
    does: tuple[str, ...] = ()
    fail: dict[str, str] = field(default_factory=dict)
    refuse_once: tuple[str, ...] = ()
    mode: str = "act"
    ends: tuple[str, str] = ("resolved", "recovered")

    @functools.cached_property
    def rules(self) -> Policy:
        """The policy of the ladder."""
        attempts = "\n".join(f"  - do: [{', '.join(one)}]" for one in self.ladder)
        return policy(
            f"version: 1\nmode: {self.mode}\nlimits: {{concurrent_nodes: 1, pool_nodes: 3, per_hour: 20, per_job_per_day: 20, "
            f"spare_floor: 0, cooldown_seconds: 600}}\nrules:\n- name: hot\n  match: {{fault: [thermal_throttle]}}\n"
            f"  attempts:\n{attempts}\n  verify: {{quiet_seconds: 30, deadline_seconds: 90}}\n  finally: escalate\n")


CASES = {
    "reset": Case((tuple(STEPS),), "reset_gpu"),
    "reboot": Case((("drain", "reboot", "diagnose", "undrain", "resume_job"),), "reboot"),
    "replace": Case((("notify", "drain", "replace", "resume_job"),), "replace", ("drain", "replace", "resume_job")),
    "processes": Case((("restart_process",),), "restart_process"),
    "exclude": Case((("exclude_node", "resume_job", "escalate"),), "exclude_node", ("exclude_node", "resume_job"),
                    ends=("escalated", "escalated")),
    "shrink": Case((("shrink_job",),), "shrink_job"),
    "second attempt": Case((("restart_process",), ("drain", "replace")), "replace", ("restart_process", "drain", "replace")),
    "a step fails": Case((("drain", "reset_gpu", "undrain"), ("drain", "replace")), "replace",
                         ("drain", "reset_gpu", "drain", "replace"), fail={"reset_gpu": "backend_failed"}),
    "refused for now": Case((("drain", "replace"),), "replace", refuse_once=("drain", "replace")),
    "approved": Case((("drain", "replace"),), "replace", mode="propose"),
}


def run(case: Case, bomb: Bomb, lasts: float, dies_at: int = 0) -> Owner:
    """A whole repair, with one death at the bomb's point. dies_at: the tick of the death: what a restart needs is made from the
    tick before it on, which saves most of the time of a walk."""
    world = Mined(states=cluster().states, lasts=dict.fromkeys(KINDS, lasts), fail=dict(case.fail))
    world.bomb = bomb
    owner = Owner(case.rules, world)
    owner.open(incident())
    fault = Fault(owner, (case.cured_by,))
    for bomb.tick in range(120):
        owner.mortal = bomb.where == ("", "") and bomb.tick >= dies_at - 1
        fault.shine()
        kinds = [a.kind for a, o in owner.rows if o.reason == "target_busy"]
        world.refuse = {k: "target_busy" for k in case.refuse_once if k not in kinds}
        if owner.incidents["inc-1"].state == "proposed":
            owner.engine.approve("inc-1", "ada", owner.at)
        try:
            tick(owner, bomb)
        except Crash:
            owner.die()
        owner.at += TICK
        if owner.incidents["inc-1"].state in ("resolved", "escalated") and not owner.carried:
            break
    owner.tick(2)
    return owner


def tick(owner: Owner, bomb: Bomb) -> None:
    """One tick with its points: what was decided, what ended, what is on record."""
    ended = [a.kind for a, o in owner.carried if o.state in ("DONE", "FAILED", "REFUSED")]
    step = owner.decide()
    planned = [a.kind for a, o in step.actions if o.state == "PENDING" or not commands(a.kind)]
    for kind in planned:
        bomb.passed(kind, "decided, not committed")
    for kind in ended:
        bomb.passed(kind, "ended, not recorded")
    owner.commit(step)
    for kind in planned:
        bomb.passed(kind, "committed, not sent")
    for kind in ended:
        bomb.passed(kind, "its end recorded")
    owner.carry()
    bomb.passed("", "between two ticks")


def wrong(case: Case, owner: Owner) -> list[str]:
    """What a run did that it must not; empty = nothing was lost, nothing was done twice."""
    expected = list(case.does or case.ladder[0])
    out = [f"did {owner.did()}, not {expected}"] if owner.did() != expected else []
    out += [f"{name} was carried out {n} times" for name, n in owner.world.executed.items() if n > 1]
    out += [f"{name} was sent {n} times" for name, n in owner.world.arrived.items() if n > 1]
    out += [f"ended as {owner.state()}"] if owner.state() != case.ends else []
    finals = Counter(a.id for a, o in owner.rows if o.state in ("DONE", "FAILED", "REFUSED"))
    out += [f"{name} has {n} ends on record" for name, n in finals.items() if n > 1]
    missing = {a.id for a in owner.world.order} - {a.id for a, _ in owner.rows}
    return out + [f"{name} was done and is not on record" for name in sorted(missing)]


@pytest.mark.parametrize("lasts", [0, 20], ids=["at-once", "takes-two-ticks"])
def test_wherever_the_crash_falls_each_action_is_carried_out_once(lasts):
    """Walks every point that a repair passes, one death for each run, for every kind of action and every step."""
    walked: set[tuple[str, str]] = set()
    found: list[str] = []
    for name, case in CASES.items():
        whole = Bomb(10_000)
        found += [f"{name}: {one}" for one in wrong(case, run(case, whole, lasts, 1_000))]
        for n, dies_at in enumerate(whole.ticks, 1):
            bomb = Bomb(n)
            owner = run(case, bomb, lasts, dies_at)
            assert bomb.where != ("", ""), f"{name} passed fewer points than it did before"
            walked.add(bomb.where)
            found += [f"{name}: died at point {n}, {bomb.where}: {one}" for one in wrong(case, owner)]
        assert len(whole.ticks) > 10, f"{name} has hardly any points"
    assert not found, "\n".join(found[:20])
    asked = {"asked while it runs"} if not lasts else set()
    due = {(k, p) for k in KINDS if commands(k) for p in POINTS if p not in asked}
    due |= {(k, p) for k in ("notify", "escalate") for p in ("decided, not committed", "committed, not sent")}
    assert due <= walked, f"never died at {sorted(due - walked)}"


def test_a_lost_answer_is_asked_after():
    """The world did it, the answer was lost: the next tick asks, and does not send again."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    owner.world.deaf = True
    fault.run(1)
    assert owner.carried[0][1].reason == "unreachable"
    owner.world.deaf = False
    fault.until("resolved")
    assert owner.did() == STEPS
    assert set(owner.world.executed.values()) == {1}


def test_rows_alone_bring_a_running_command_to_its_end():
    """State lost, ledger kept: the command is watched to its end, nothing follows it, and the incident is only verified."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    owner.world.lasts["drain"] = 120
    fault.run(3)
    fresh = Engine(owner.rules, ALL_KINDS, owner.world)
    fresh.load("", owner.rows)
    owner.engine = fresh
    fault.run(10)
    assert owner.did() == ["drain"]
    assert owner.last("inc-1/1/1").state == "DONE"
    assert owner.incidents["inc-1"].state == "verifying"


def test_rows_count_for_the_budgets():
    """State lost, ledger kept: what was done within the hour still counts."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    fault.until("resolved")
    rules = replace(owner.rules, limits=replace(owner.rules.limits, per_hour=1))
    fresh = Engine(rules, ALL_KINDS, owner.world)
    fresh.load("", owner.rows)
    other = incident("inc-2", findings=("fnd-2",))
    owner.facts.findings = [finding(owner.at, name="fnd-2")]
    owner.facts.steps.append((owner.at - 60_000, 3.0))
    step = fresh.step(owner.at, [other], owner.facts)
    assert [(i.state, i.reason) for i in step.incidents] == [("holding", "limit_per_hour")]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version":99}', '{"version":1,"tracks":[{}]}', '{"version":1,"ledger":3}'])
def test_a_state_that_is_none_is_refused(text):
    """What dump did not write is BadInput, never a half-read state."""
    with pytest.raises(BadInput):
        Engine(policy(), ALL_KINDS, cluster()).load(text)


def test_a_dump_is_the_same_for_the_same_state():
    """Two dumps of one engine are one text, and a loaded engine dumps what it was given."""
    owner = Owner(policy(), cluster())
    owner.open(incident())
    Fault(owner, ("reset_gpu",)).until("verifying")
    text = owner.engine.dump()
    again = Engine(owner.rules, ALL_KINDS, owner.world)
    again.load(text)
    assert text == owner.engine.dump() == again.dump()
    assert T0 > 0


def child(folder: Path, chance: random.Random) -> list[str]:
    """Starts a process on the folder, kills it a moment after one of its ticks, and gives the lines that it wrote."""
    script = Path(__file__).with_name("crash_child.py")
    process = subprocess.Popen([sys.executable, str(script), str(folder), "0.01"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    after, lines = chance.randint(0, 6), []
    killer = threading.Timer(chance.uniform(0, 0.04), os.kill, (process.pid, signal.SIGKILL))
    for line in process.stdout:
        lines.append(line.strip())
        if len(lines) > after and killer.ident is None:
            killer.start()
    killer.cancel()
    process.wait(30)
    process.stdout.close()
    return lines


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(2))
def test_a_process_that_is_killed_again_and_again_repeats_nothing(tmp_path, seed):
    """Real processes, the real store, kill -9 every few ticks: each command is carried out once and is on record before."""
    from pipeline.store.duck import DuckStore

    chance, lines, deaths = random.Random(seed), [], 0
    while not lines or not lines[-1].startswith("over"):
        lines = child(tmp_path, chance)
        deaths += 1
        assert deaths < 80, "it never comes to its end"
    orders = [json.loads(row) for row in (tmp_path / "world.jsonl").read_text().splitlines()]
    assert [o["kind"] for o in orders] == STEPS
    assert len({o["id"] for o in orders}) == len(orders)
    assert lines[-1] == "over resolved recovered"
    assert deaths > 3
    store = DuckStore(tmp_path)
    ledger = store.ledger()
    first = {a.id: o.state for a, o in reversed(ledger)}
    assert [first[o["id"]] for o in orders] == ["PENDING"] * len(orders)
    assert {o.state for a, o in ledger if a.id == orders[-1]["id"]} >= {"PENDING", "DONE"}
    assert store.broken_seals() == []
    store.close()
