"""Scenarios from a seed: always valid, the same for a seed, complete, and as wished."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import BadInput
from core.yamlfile import parse_yaml
from fleet.build import all_plugins, bare
from fleet.generate import Wishes, generate, suite
from fleet.hardware import NODE_TYPES, kind_named
from fleet.scenario import as_yaml, scenario_from, seconds_of


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**31))
def test_every_seed_gives_a_valid_scenario_that_round_trips(seed):
    """What is generated reads back from YAML as the same, with the same truth, within its own time."""
    made = generate(seed)
    read = scenario_from(parse_yaml(as_yaml(made), "generated"), "generated", all_plugins())
    assert read == made
    assert bare(read)[2].truth() == bare(generate(seed))[2].truth()
    assert made.schedule
    assert all(seconds_of(entry.at) < seconds_of(made.duration) for entry in made.schedule)


def test_what_was_drawn_stands_in_the_file():
    """Severity and onset of each line are written, and the place where the kind of fault has one."""
    for made in suite(100, 6):
        for entry in made.schedule:
            if entry.hand is None:
                assert entry.severity is not None
                assert entry.onset is not None
            if entry.hand is None and all_plugins()[entry.name].place in ("gpu", "nic"):
                assert entry.node is not None
                assert entry.device is not None


def test_seeds_differ_in_all_that_is_drawn():
    """Among some seeds there are other faults, kinds, tiers and sizes, two faults at once, and look-alikes close by."""
    made = suite(0, 25)
    assert len({s.fleet.type for s in made}) >= 3
    assert {s.fleet.tier for s in made} == {"A", "B", "C", "D"}
    assert len({e.name for s in made for e in s.schedule}) >= 15
    assert any(sum(e.fault is not None for e in s.schedule) == 2 for s in made)
    assert any(e.look_alike for s in made for e in s.schedule)


@pytest.mark.parametrize("name", sorted(all_plugins()))
def test_every_plug_in_can_be_wished_for(name):
    """A scenario with just this fault or look-alike is valid, on hardware that can have it."""
    like = all_plugins()[name].fault is None
    made = generate(7, Wishes(fault="" if like else name, look_alike=name if like else "", faults=0 if like else 1, nodes=4))
    assert [e.name for e in made.schedule] == [name]
    has = kind_named(made.fleet.type).has
    assert all(n in has or n in ("trainer", "inference") for n in all_plugins()[name].needs)


@pytest.mark.parametrize("kind", sorted(NODE_TYPES))
def test_every_kind_of_node_can_be_wished_for(kind):
    """The fleet is of the kind; tier, number and size of the fault are as wished."""
    made = generate(3, Wishes(fault="cpu_starved", type=kind, tier="B", nodes=4, faults=1, severity=0.05))
    assert (made.fleet.type, made.fleet.tier, made.fleet.nodes) == (kind, "B", 4)
    assert made.schedule[0].severity == 0.05


WRONG = [Wishes(fault="fire"), Wishes(fault="xid_79", type="trn2.48xlarge")]


@pytest.mark.parametrize("wishes", WRONG)
def test_wishes_that_cannot_be_are_refused(wishes):
    """An unknown fault, or one that the kind of node cannot have, is one sentence."""
    with pytest.raises(BadInput):
        generate(1, wishes)
