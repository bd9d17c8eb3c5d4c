"""kill -9 at every point of every action: what was begun goes on, and nothing is done twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.errors import BadInput
from remediation.engine import Engine
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


class Crash(Exception):
    """The process is gone."""


class Bomb:
    """Goes off at the n-th point that is passed; each point has a name."""

    def __init__(self, at: int) -> None:
        self.left, self.where = at, ""

    def passed(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = name
            raise Crash(name)


class Mined(World):
    """A world whose caller may die just before and just after each call."""

    bomb: Bomb

    def submit(self, action):
        self.bomb.passed("before submit")
        outcome = super().submit(action)
        self.bomb.passed("after submit, before recording")
        return outcome

    def poll(self, action_id):
        outcome = super().poll(action_id)
        self.bomb.passed("after poll, before recording")
        return outcome

    def nodes(self):
        self.bomb.passed("at the view")
        return super().nodes()


def run(bomb: Bomb, lasts: dict[str, float]) -> Owner:
    """A whole repair, with one death at the bomb's point."""
    plain = cluster()
    world = Mined(states=plain.states, lasts=lasts)
    world.bomb = bomb
    owner = Owner(policy(), world)
    owner.open(incident())
    fault = Fault(owner, ("reset_gpu",))
    for _ in range(120):
        fault.shine()
        try:
            step = owner.decide()
            bomb.passed("after deciding, before the commit")
            owner.commit(step)
            bomb.passed("after the commit, before the door")
            owner.carry()
            bomb.passed("after the door, before the next tick")
        except Crash:
            owner.die()
        owner.at += TICK
        if owner.incidents["inc-1"].state == "resolved":
            break
    return owner


@pytest.mark.parametrize("lasts", [{}, {"drain": 40, "reset_gpu": 20, "diagnose": 20, "resume_job": 50}])
def test_each_action_is_carried_out_exactly_once_wherever_the_crash_falls(lasts):
    """Walks every point that a repair passes, one death for each run."""
    walked = set()
    for n in range(1, 1000):
        bomb = Bomb(n)
        owner = run(bomb, dict(lasts))
        if not bomb.where:
            break
        walked.add(bomb.where)
        assert owner.did() == STEPS, f"died {bomb.where} (point {n})"
        assert set(owner.world.executed.values()) == set(owner.world.arrived.values()) == {1}
        assert owner.state() == ("resolved", "recovered")
    assert len(walked) == (7 if lasts else 6)  # a command that is done at once is never polled
    assert n > 40


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
