"""Workers of real jobs (Alibaba PAI): the slow one is named at its time, and spread alone names nobody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from core.clock import parse_rfc3339
from core.window import Window
from detectors import data_stall, gpu_slow, straggler, throughput_drop
from tests.evaluate import pai
from tests.evaluate.judge import incidents_of

SPELL = (1801, 1950)  # the steps of the label
SLOW_WORKER = 6


def named(window: Window) -> list[str]:
    """What the detectors of slow work call faulty."""
    return [f"{v.fault} {v.target.key}" for d in (straggler, throughput_drop, data_stall, gpu_slow)
            for v in d.judge(window, d.Params()) if v.state == "faulty"]


def test_the_slow_worker_is_named_from_its_start_to_its_end() -> None:
    """Worker 6 within two minutes of its first slow row, with the right onset; before and after it nobody, at any row looked at."""
    step, times = pai.workers()
    first, last = (int(np.searchsorted(step, s)) for s in SPELL)
    looked = sorted({*range(9, len(step), 20), *range(first + 6, last + 1)})
    found = {row: named(w) for row, w in pai.windows("pai", step, times, looked)}
    assert {row for row, said in found.items() if said} <= set(range(first, last + 6))
    assert all(found[row] == [f"straggler rank:pai/{SLOW_WORKER}"] for row in range(first + 7, last + 1))


def test_its_onset_is_the_first_slow_row() -> None:
    """Within two rows."""
    step, times = pai.workers()
    first = int(np.searchsorted(step, SPELL[0]))
    _, window = next(iter(pai.windows("pai", step, times, [first + 10])))
    verdict = next(v for v in straggler.judge(window, straggler.Params()) if v.state == "faulty")
    assert abs(verdict.onset_at - (1000 * pai.START + 15_000 * first)) <= 30_000


def silent_rows(job: str, cov: np.ndarray, every: int) -> dict[int, list[str]]:
    times = pai.made(cov, 12, sum(job.encode()))
    looked = range(min(len(cov) - 1, 40), len(cov), every)
    return {row: said for row, w in pai.windows(job, 10 * np.arange(len(cov)), times, looked) if (said := named(w))}


@pytest.mark.parametrize("which", [0, 13, 29, 47])
def test_spread_alone_names_nobody(which: int) -> None:
    """Workers whose times spread as in a real job, each time others ahead."""
    job, cov = sorted(pai.spreads().items())[which]
    assert silent_rows(job, cov, 100) == {}


@pytest.mark.evaluate
def test_spread_of_all_fifty_jobs_names_nobody() -> None:
    """Every job, every twentieth row."""
    assert {job: said for job, cov in pai.spreads().items() if (said := silent_rows(job, cov, 20))} == {}


@pytest.mark.evaluate
@pytest.mark.parametrize("each", [15.0, 30.0])
def test_a_replay_opens_one_incident(tmp_path: Path, each: float) -> None:
    """The whole path, a row of the data each scrape and each second scrape."""
    step, times = pai.workers()
    pai.series("pai", step, times, each).write_parquet(tmp_path / "run.parquet")
    found = incidents_of(tmp_path)
    assert [(i["fault"], i["culprit"]["rank"], i["state"]) for i in found] == [("straggler", SLOW_WORKER, "resolved")]
    began = 1000 * (pai.START + each * float(np.searchsorted(step, SPELL[0])))
    assert abs(parse_rfc3339(found[0]["onset_at"]) - began) <= 60_000
    assert parse_rfc3339(found[0]["opened_at"]) - began <= 240_000
