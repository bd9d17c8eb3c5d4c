"""XIDs that programs cause: repeats tell a GPU from a program by the jobs under which they came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.plugins import load_plugins
from core.types import Event, Finding, JobState, Target, Verdict
from pipeline.localise import blame_part
from tests.contract.windows import Cluster, crash_at_one_step
from tests.detectors.test_fatal_events import GPU, at, line

PLUGIN = load_plugins("detectors")["xid_fatal"]
OTHER = Target("gpu", "n001", "4", id="GPU-n001-4")
FIRST, SECOND = (-4000, -2000), (-1000, None)  # ticks of two jobs that had the node one after the other


def job(name: str, ticks: tuple[int, int | None]) -> JobState:
    return JobState(name, "train", ("n001",), start=at(ticks[0]), end=None if ticks[1] is None else at(ticks[1]))


def said(events: list[Event], *jobs: JobState) -> list[Verdict]:
    cluster = Cluster()
    cluster.events += events
    window = replace(cluster.window(), jobs=jobs)
    return [v for v in PLUGIN.judge(window, PLUGIN.params()) if v.state == "faulty"]


TWO = (job("a", FIRST), job("b", SECOND))


@pytest.mark.parametrize("codes", [(31, 31), (13, 13), (13, 31)])
def test_repeats_on_one_gpu_under_two_jobs_suspect_the_gpu(codes: tuple[int, int]) -> None:
    """It is a ticket that no shipped policy acts on, dated by the first line, and never counts at once."""
    [verdict] = said([line(codes[0], -3000), line(codes[1], 90)], *TWO)
    assert (verdict.target.key, verdict.reason, verdict.severity, verdict.discrete) == (GPU.key, "repeats_across_jobs", 0.3, False)
    assert verdict.onset_at == at(-3000)
    finding = Finding("f", "xid_fatal", verdict.fault, verdict.target, "open", verdict.severity, verdict.evidence, verdict.reason,
                      verdict.onset_at, at(99), at(99), suspects=verdict.suspects)
    assert blame_part([finding], Cluster().window()).confidence <= 0.3


@pytest.mark.parametrize(("events", "jobs"), [
    ([line(31, tick) for tick in range(80, 100)], TWO),
    ([line(31, -3000), *(line(31, 90, gpu=gpu) for gpu in (GPU, OTHER))], TWO),
    ([line(31, -3000), line(31, 90, gpu=OTHER)], TWO),
    ([line(31, -3000), line(31, -1500)], TWO),
    ([line(31, -3000), line(31, 90)], (job("a", (-4000, None)), job("b", SECOND))),
    ([line(31, -3000), line(31, 90)], (replace(TWO[0], start=None), TWO[1])),
    ([line(43, -3000), line(43, 90)], TWO),
    ([line(31, -3000), line(31, -1440)], (TWO[0], job("b", (-1500, None)))),
], ids=["twenty-in-one-job", "several-gpus-of-one-job", "another-gpu-each-time", "between-two-jobs", "two-jobs-at-once", "a-job-of-unknown-start",
        "an-echo", "over-six-hours-ago"])
def test_what_may_be_a_program_suspects_no_gpu(events: list[Event], jobs: tuple[JobState, ...]) -> None:
    """One job, several GPUs of a job, lines under no job or under which nobody knows, and old ones are silent."""
    assert said(events, *jobs) == []


def test_a_fatal_code_on_the_same_gpu_comes_first() -> None:
    """What the driver gives up is given up, whatever programs met on it."""
    cluster = Cluster()
    cluster.events += [line(31, -3000), line(31, 90), line(119, 95)]
    cluster.put("gpu.utilization_ratio", 0.0, 90, None, [11])
    window = replace(cluster.window(), jobs=TWO)
    assert [v.severity for v in PLUGIN.judge(window, PLUGIN.params()) if v.state == "faulty"] == [0.9]


@pytest.mark.parametrize(("gpus", "told"), [((GPU, OTHER), True), ((GPU,), False)])
def test_a_crash_loop_tells_that_programs_failed_on_several_gpus(gpus: tuple[Target, ...], told: bool) -> None:
    """XID 31 on several GPUs of the job speaks for its software, on one it is not mentioned."""
    cluster = crash_at_one_step(Cluster(), 60)
    cluster.events += [line(31, 80, gpu=gpu) for gpu in gpus]
    plugin = load_plugins("detectors")["job_crash_loop"]
    [verdict] = [v for v in plugin.judge(cluster.window(), plugin.params()) if v.state == "faulty"]
    assert any("software" in (row.text or "") for row in verdict.evidence) is told
