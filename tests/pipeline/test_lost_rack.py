"""What a rack that lost its power looks like, and how many ranks of a job are heard."""

from __future__ import annotations

import math

import pytest

from core.types import JobState, Target
from pipeline.facts import WindowFacts
from pipeline.incidents import IncidentBook
from tests.pipeline.worlds import T0, finding, inventory, tick, window

NODES = [{"name": f"n{i}", "rack": f"r{i // 4}", "pdu": f"p{i // 4}", "gpus": [{"index": 0, "uuid": f"GPU-{i}"}]} for i in range(16)]
GPUS = tuple(Target("gpu", f"n{i}", "0", f"GPU-{i}") for i in range(16))


@pytest.mark.parametrize("fault", ["gpu_lost", "target_down"])
@pytest.mark.parametrize(("lost", "scopes"), [(range(4, 8), ["rack"]), (range(4, 6), ["device", "device"]), ((0, 5), ["device", "device"])],
                         ids=["a-whole-rack", "two-of-it", "two-racks"])
def test_a_rack_that_vanishes_is_one_incident(fault, lost, scopes):
    """Four nodes of one rack at once are the rack; two, or one of each of two racks, are themselves."""
    parts = [GPUS[i] if fault == "gpu_lost" else Target("node", f"n{i}") for i in lost]
    seen = window(tick(1), entities={"gpu": GPUS, "node": tuple(Target("node", f"n{i}") for i in range(16))},
                  topology=inventory(nodes=NODES).topology())
    told = IncidentBook().update(seen, [finding(part, fault, tick(1)) for part in parts], [])
    wanted = ["node" if s == "device" and fault == "target_down" else s for s in scopes]
    assert [one.scope for _, one in told] == wanted
    if scopes == ["rack"]:
        assert str(told[0][1].culprit) == str(Target("rack", device="r1"))


def test_a_rack_whose_gpus_are_lost_and_whose_nodes_fall_silent_is_one_incident():
    """Lost GPUs of two of its nodes first, then no node answers, then nobody tells of the GPUs any more: one incident, of the rack."""
    rack = range(4, 8)
    gone = [finding(GPUS[i], "gpu_lost", tick(1)) for i in (4, 6)]
    silent = [finding(Target("node", f"n{i}"), "target_down", tick(5)) for i in rack]
    seen = {"entities": {"gpu": GPUS, "node": tuple(Target("node", f"n{i}") for i in range(16))},
            "topology": inventory(nodes=NODES).topology()}
    book = IncidentBook()
    book.update(window(tick(1), **seen), gone, [])
    book.update(window(tick(5), **seen), [*gone, *silent], [])
    (one,) = book.open()
    assert (one.fault, one.scope, str(one.culprit)) == ("gpu_lost", "rack", str(Target("rack", device="r1")))
    book.update(window(tick(9), **seen), silent, [])
    assert [left.id for left in book.open()] == [one.id]


@pytest.mark.parametrize(("start", "heard"), [(0, 3), (2, 2), (3, 0)], ids=["all", "one-fell-silent", "none"])
def test_ranks_are_counted_that_said_anything(start, heard):
    """A rank that moved to another node is one rank; a column of NaN is not heard."""
    nan = math.nan
    ranks = (Target("rank", "n1", rank=0, job="j"), Target("rank", "n1", rank=1, job="j"), Target("rank", "n1", rank=2, job="j"),
             Target("rank", "n2", rank=2, job="j"))
    rows = [[1, 1, 1, nan], [2, 2, 2, nan], [3, nan, nan, 3], [nan] * 4]
    one = window(tick(3), {"rank.step": (ranks, rows)}, jobs=(JobState("j", "train", ranks=(0, 1, 2, 3)),))
    facts = WindowFacts(one, ())
    assert facts.ranks("j", tick(start), tick(3)) == heard
    assert facts.ranks("other", T0, tick(3)) is None
