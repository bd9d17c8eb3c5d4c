"""Jobs and facts: what the window knows of the work."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from core.types import Event, JobState, Target
from pipeline.facts import WindowFacts
from pipeline.ring import Ring
from tests.pipeline.worlds import T0, batch, finding, inventory, layout, scrape, tick, window

NAN = float("nan")


def rank(n: int, node: str = "n1") -> Target:
    return Target("rank", node, str(n), job="j", rank=n)


def run(ticks: list[Mapping[str, float]], events: list[Event] = [], ranks: int = 2, inv: object = None,  # noqa: B006
        more: int = 0) -> JobState:
    """The job after `ticks` of trainer readings (and `more` empty ones), the same for each rank."""
    ring = Ring(inv or inventory())  # type: ignore[arg-type]
    names = sorted({name for t in ticks for name in t})
    shape = layout([(name, rank(r), False) for r in range(ranks) for name in names], "trainer", None)
    ring.feed(batch(events=events))
    for i, values in enumerate(ticks):
        ring.feed(batch(scrape(shape, tick(i), *[values.get(n, NAN) for _ in range(ranks) for n in names]), layouts=[shape]))
        seen = ring.window(tick(i))
    for i in range(len(ticks), len(ticks) + more):
        seen = ring.window(tick(i))
    return next(j for j in seen.jobs if j.id == "j")


def said(phase: str, at: int = T0) -> Event:
    return Event(at, Target("job", job="j"), "job_phase", {"phase": phase})


FLAG = {"rank.phase_train": 0.0, "rank.phase_eval": 1.0}
STEPS = [{"rank.step": float(i)} for i in range(4)]
PHASES = [
    ("flags say it", [FLAG], [], "eval"),
    ("flags go before events", [FLAG], [said("checkpoint")], "eval"),
    ("else the last event", [{"rank.step": 1.0}], [said("init"), said("checkpoint", T0 - 1)], "init"),
    ("an end is done", [{"rank.step": 1.0}], [said("end")], "done"),
    ("steps that advance are training", STEPS, [], "train"),
    ("steps that stand are unknown", [{"rank.step": 1.0}] * 4, [], "unknown"),
    ("done sticks when the flags go", [{"rank.phase_done": 1.0}, {"rank.step": 9.0}, {"rank.step": 10.0}], [], "done"),
    ("until it says something else", [{"rank.phase_done": 1.0}, {"rank.phase_train": 1.0}], [], "train"),
]


@pytest.mark.parametrize(("ticks", "events", "phase"), [p[1:] for p in PHASES], ids=[p[0] for p in PHASES])
def test_phase(ticks: list, events: list, phase: str) -> None:
    """The phase of a job: flags, else events, else steps."""
    assert run(ticks, events).phase == phase


def test_majority_of_ranks_decides() -> None:
    """One rank that is late does not change the phase."""
    ring = Ring(inventory())
    shape = layout([(f"rank.phase_{p}", rank(r), False) for r in range(3) for p in ("train", "checkpoint")], "trainer", None)
    ring.feed(batch(scrape(shape, T0, 0, 1, 0, 1, 1, 0), layouts=[shape]))
    assert ring.window(T0).jobs[0].phase == "checkpoint"


def test_ranks_are_columns_in_rank_order() -> None:
    """Rank 10 comes after rank 2."""
    job = run(STEPS, ranks=12)
    assert job.ranks == tuple(range(12))


def test_job_of_the_inventory_without_a_trainer() -> None:
    """A job without trainer metrics is a job with nodes."""
    inv = inventory(jobs=[{"id": "j", "nodes": ["n1", "n2"], "tp": 2}])
    job = Ring(inv).window(T0).jobs[0]
    assert (job.phase, job.nodes, job.tp, job.silent) == ("unknown", ("n1", "n2"), 2, True)


def test_job_that_did_not_start_yet_is_none() -> None:
    """A job that starts later is not known; one that ended is done."""
    inv = inventory(jobs=[{"id": "a", "start": "2033-01-01T00:00:00Z"}, {"id": "b", "end": "2023-11-14T00:00:00Z"},
                          {"id": "c", "end": "2033-01-01T00:00:00Z"}])
    jobs = Ring(inv).window(T0).jobs
    assert [(j.id, j.phase, j.running) for j in jobs] == [("b", "done", False), ("c", "unknown", True)]


def test_nodes_follow_the_ranks() -> None:
    """Ranks that moved to another node take the job with them."""
    inv = inventory(jobs=[{"id": "j", "nodes": ["n9"]}])
    assert run(STEPS, inv=inv).nodes == ("n1",)


def test_silence_when_everything_stops() -> None:
    """When nothing of a job and its nodes goes on, its silence is no evidence."""
    assert not run(STEPS).silent
    assert run(STEPS, more=8).silent


def test_no_silence_while_its_node_speaks() -> None:
    """A job whose ranks stop while the node's exporter goes on is not silent."""
    ring, node = Ring(inventory()), layout([("node.load1", Target("node", "n1"), False)], "n1:9100")
    shape = layout([("rank.step", rank(0), False)], "trainer", None)
    ring.feed(batch(scrape(shape, T0, 1), layouts=[shape, node]))
    for i in range(12):
        ring.feed(batch(scrape(node, tick(i), 1)))
        seen = ring.window(tick(i))
    assert not seen.jobs[0].silent


RANKS = [rank(0), rank(1)]
JOB = JobState("j", "train", ("n1",), (0, 1))
FACTS = [
    ("the trainer's own step time", {"rank.step": (RANKS, [[1, 1], [2, 2], [3, 3]]),
                                     "rank.step_seconds": (RANKS, [[2, 2], [2, 3], [2, 2]])}, 2.0),
    ("ticks without a step do not count", {"rank.step": (RANKS, [[1, 1], [2, 2], [2, 2], [2, 2]]),
                                           "rank.step_seconds": (RANKS, [[2, 2], [2, 2], [9, 9], [9, 9]])}, 2.0),
    ("pauses do not count", {"rank.step": (RANKS, [[1, 1], [2, 2], [3, 3]]),
                             "rank.step_seconds": (RANKS, [[2, 2], [2, 2], [8, 8]]),
                             "rank.phase_checkpoint": (RANKS, [[0, 0], [0, 0], [1, 1]])}, 2.0),
    ("else time over steps", {"rank.step": (RANKS, [[0, 0], [10, 10], [20, 20]])}, 1.5),
    ("no step, no answer", {"rank.step": (RANKS, [[1, 1], [1, 1]])}, None),
    ("no trainer, no answer", {"node.load1": ([Target("node", "n1")], [[1]])}, None),
]


@pytest.mark.parametrize(("signals", "seconds"), [f[1:] for f in FACTS], ids=[f[0] for f in FACTS])
def test_step_seconds(signals: dict, seconds: float | None) -> None:
    """What a step took, from what the trainer says."""
    job = JOB if "rank.step" in signals else JobState("j")
    facts = WindowFacts(window(tick(9), signals, jobs=(job,)), ())
    assert facts.step_seconds("j", tick(0), tick(9)) == seconds


def test_facts_know_jobs_and_findings() -> None:
    """Facts give the window's jobs and the open findings."""
    one = finding(RANKS[0])
    facts = WindowFacts(window(T0, jobs=(JOB,)), [one])
    assert (facts.job("j"), facts.job("x"), facts.open_findings(), facts.step_seconds("x", 0, 1)) == (JOB, None, (one,), None)


def _log_and_gpus(nodes: list[str], jobs: list[str], busy: set[str], inv: object = None) -> Mapping[str, JobState]:
    """Jobs of which only logs speak, beside GPUs that work on `busy` nodes."""
    ring = Ring(inv or inventory())  # type: ignore[arg-type]
    for node in nodes:
        shape = layout([("gpu.utilization_ratio", Target("gpu", node, "0"), False)], f"{node}:9400", node)
        ring.feed(batch(scrape(shape, T0, 1.0 if node in busy else 0.0), layouts=[shape]))
    for job in jobs:
        ring.feed(batch(events=[Event(T0, Target("job", job=job), "job_phase", {"phase": "train"})]))
    return {j.id: j for j in ring.window(T0).jobs}


def test_log_without_nodes_is_of_the_nodes_that_work() -> None:
    """A job of which only a log speaks runs where GPUs work that no other job has."""
    found = _log_and_gpus(["n1", "n2", "n3"], ["j"], {"n1", "n2"}, inventory(jobs=[{"id": "k", "nodes": ["n1"]}]))
    assert found["j"].nodes == ("n2",)


def test_nodes_are_not_guessed_between_two_jobs() -> None:
    """Two jobs without nodes get none."""
    assert [j.nodes for j in _log_and_gpus(["n1", "n2"], ["j", "k"], {"n1", "n2"}).values()] == [(), ()]
