"""Stalled loss: hangs with and without a trainer's word, frozen losses, culprits, and every pause that is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.types import Event, JobState, Target, Verdict
from core.window import Block, Window
from detectors.stalled_loss import PLUGIN, Params
from tests.contract.windows import JOB, START, STEP, Cluster, hang

JOB_KEY = f"job:{JOB}/"
TENSOR = "gpu.tensor_active_ratio"


def judge(window: Window) -> list[Verdict]:
    return list(PLUGIN.judge(window, Params()))


def faulty(window: Window) -> dict[str, str]:
    return {v.target.key: v.reason for v in judge(window) if v.state == "faulty"}


def no_phase(**more: object) -> Cluster:
    return Cluster(nodes=2, phases=False, **more)  # type: ignore[arg-type]


def test_a_log_that_is_read_from_its_start_tells_no_hang() -> None:
    """Minutes of lines come at once with the first tick: the first of them is old, and nobody saw what came between."""
    cluster = Cluster(nodes=2, phases=False, without=tuple(n for n in no_phase().signals if n.startswith(("gpu.", "nic."))))
    window = cluster.window(upto=1)
    blocks = {name: replace(b, first_at=np.where(np.isnan(b.first_at), np.nan, START - 3_600_000.0)) if name.startswith("rank.") else b
              for name, b in window.blocks.items()}
    assert faulty(replace(window, blocks=blocks)) == {}


# --- what is no hang --------------------------------------------------------------------------------------------------
def checkpoint() -> Cluster:
    return Cluster(nodes=2).freeze(50, 70).pause(50, 70, power=150, tensor=0.05).phase("checkpoint", 50, 70)


def long_checkpoint_now() -> Cluster:
    return Cluster(nodes=2).freeze(60).pause(60, power=150).phase("checkpoint", 60)


def evaluation() -> Cluster:
    return Cluster(nodes=2).freeze(40, 90).phase("eval", 40, 90)


def checkpoint_without_phase() -> Cluster:
    return no_phase().freeze(50, 75).pause(50, 75, power=150, tensor=0.057).put(
        "node.storage_bytes_per_second", 2e9, 50, 75)


def silent_checkpoint_without_phase() -> Cluster:
    return no_phase().freeze(50, 60).pause(50, 60, power=150, tensor=0.0, traffic=0.0)


def checkpoints_seen_before() -> Cluster:
    c = no_phase(without=(TENSOR,))
    for start in (10, 40, 70):
        c.freeze(start, start + 16).pause(start, start + 16, power=150)
    return c


def evaluation_without_phase() -> Cluster:
    return no_phase().freeze(30, 95).pause(30, 95, power=520, tensor=0.3, traffic=0.5)


def warm_up() -> Cluster:
    c = Cluster(nodes=2).phase("init", 0, 30).phase("warmup", 30, 60)
    return _never_started(c, 60)


def compile_without_phase() -> Cluster:
    return _never_started(no_phase(), 55).put("gpu.utilization_ratio", 0, 0, 55).put("gpu.power_watts", 110, 0, 55)


def _never_started(c: Cluster, start: int) -> Cluster:
    for name in ("rank.step", "rank.collective_seq"):
        c.put(name, 0, 0, start)
    for name in ("rank.last_step_timestamp_seconds", "rank.step_seconds", "rank.loss"):
        c.put(name, np.nan, 0, start)
    return c.put(TENSOR, 0, 0, start)


def done() -> Cluster:
    return _gpus_end(Cluster(nodes=2).freeze(60).phase("done", 60))


def _gpus_end(c: Cluster) -> Cluster:
    c.put("gpu.utilization_ratio", 0, 62).put("gpu.power_watts", 72, 62).put(TENSOR, 0, 62)
    return c.put("gpu.memory_used_bytes", 0, 62)


def ended_without_a_word() -> Cluster:
    c = _gpus_end(no_phase())
    for name, values in c.signals.items():
        if name.startswith("rank."):
            values[60:] = np.nan
    return c


def long_steps() -> Cluster:
    return no_phase(step_seconds=70.0)


def loss_each_tenth_reading() -> Cluster:
    c = Cluster(nodes=2)
    return c.put("rank.loss", c.signals["rank.loss"][np.arange(100) // 10 * 10], 0)


def converged_rounded_loss() -> Cluster:
    c = Cluster(nodes=2)
    loss = np.round(0.0123 + c.rng("round").normal(0, 0.00004, 100), 4)[:, None]
    return c.put("rank.loss", loss, 0)


def constant_loss_of_other_stages() -> Cluster:
    return Cluster(nodes=2).put("rank.loss", 0.0, 0, None, slice(0, 8))


def nan_loss() -> Cluster:
    c = Cluster(nodes=2).put("rank.loss", np.nan, 60).put("rank.grad_norm", np.nan, 60)
    return c.put("rank.loss_nonfinite", 0, 0, 60).put("rank.loss_nonfinite", 1, 60)


def zero_loss_with_nan_gradients() -> Cluster:
    return Cluster(nodes=2).put("rank.loss", 0.0, 50).put("rank.grad_norm", np.nan, 50)


def restart() -> Cluster:
    c = Cluster(nodes=2)
    c.add("rank.step", -300, 60).add("rank.collective_seq", -12000, 60)
    for name, values in c.signals.items():
        if name.startswith("rank."):
            values[52:60] = np.nan
    return c.put("gpu.utilization_ratio", 0, 52, 64).put("gpu.power_watts", 75, 52, 64).put(TENSOR, 0, 52, 64)


LOOK_ALIKES: list[Callable[[], Cluster]] = [
    checkpoint, long_checkpoint_now, evaluation, checkpoint_without_phase, silent_checkpoint_without_phase,
    checkpoints_seen_before, evaluation_without_phase, warm_up, compile_without_phase, done, ended_without_a_word,
    long_steps, loss_each_tenth_reading, converged_rounded_loss, constant_loss_of_other_stages, nan_loss,
    zero_loss_with_nan_gradients, restart,
]


@pytest.mark.parametrize("interval", [pytest.param(15, marks=pytest.mark.evaluate), 60])
@pytest.mark.parametrize("alike", LOOK_ALIKES, ids=lambda f: f.__name__)
def test_stays_silent_on_look_alikes(alike: Callable[[], Cluster], interval: int) -> None:
    """A pause, a start, an end, a rare step or a loss that repeats by habit is no stall at any moment."""
    cluster = alike()
    cluster.interval = interval
    for upto in range(8, 101, 4):
        end_phase = cluster.job
        if cluster.phases and cluster.job is not None:
            cluster.job = replace(cluster.job, phase=_phase_at(cluster, upto - 1))
        assert not faulty(cluster.window(upto)), upto
        cluster.job = end_phase


def _phase_at(cluster: Cluster, row: int) -> str:
    return next(p for p in ("init", "warmup", "train", "eval", "checkpoint", "done")
                if cluster.signals[f"rank.phase_{p}"][row, 0] > 0.5) if not np.isnan(
        cluster.signals["rank.phase_train"][row, 0]) else "unknown"


# --- hangs ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("without", "phases", "ticks"), [
    ((), True, 10), ((TENSOR,), True, 10), ((), False, 14), ((TENSOR,), False, 22),
    (("gpu.power_watts", TENSOR, "gpu.utilization_ratio"), True, 10),
    (("gpu.power_watts", TENSOR, "gpu.utilization_ratio"), False, 42),
    (("rank.last_step_timestamp_seconds",), True, 10), (("rank.step_seconds",), True, 10),
    (("rank.step", "rank.step_seconds"), True, 12),
], ids=str)
def test_a_hang_is_found_in_time(without: tuple[str, ...], phases: bool, ticks: int) -> None:
    """The less the pages tell, the longer the wait; it is the whole job where no rank is behind."""
    cluster = hang(Cluster(nodes=2, phases=phases, without=without), 50)
    assert not faulty(cluster.window(56))
    assert faulty(cluster.window(50 + ticks)) == {JOB_KEY: "no_step"}
    assert faulty(cluster.window()) == ({JOB_KEY: "no_step"})


def test_a_hang_after_the_trainer_fell_silent_is_found() -> None:
    """A log that says nothing more while all GPUs wait is a hang."""
    cluster = hang(no_phase(), 40)
    for name, values in cluster.signals.items():
        if name.startswith("rank."):
            values[42:] = np.nan
    assert faulty(cluster.window()) == {JOB_KEY: "no_step"}


def test_a_job_without_a_trainer_hangs_by_its_hardware() -> None:
    """All GPUs busy at low power, tensor cores and network still: the whole job, after five minutes."""
    cluster = hang(Cluster(nodes=2, trainer=False), 40)
    assert faulty(cluster.window(58)) == {}
    assert faulty(cluster.window(64)) == {JOB_KEY: "hang_signature"}


@pytest.mark.parametrize("change", [
    lambda c: c.put("gpu.utilization_ratio", 0.2, 40),
    lambda c: c.put("gpu.power_watts", 500, 40),
    lambda c: c.put("node.storage_bytes_per_second", 3e9, 40),
    lambda c: c.put("gpu.power_watts", 600, 40, None, [3]),
])
def test_a_job_without_a_trainer_is_not_judged_on_half_a_signature(change: Callable[[Cluster], object]) -> None:
    """One GPU at work, bytes to storage, or low utilisation is no hang."""
    cluster = hang(Cluster(nodes=2, trainer=False), 40)
    change(cluster)
    assert faulty(cluster.window()) == {}


def test_an_endless_checkpoint_is_a_hang() -> None:
    """A named pause is excused within bounds only."""
    cluster = Cluster(nodes=2, ticks=200).freeze(60).pause(60).phase("checkpoint", 60)
    assert faulty(cluster.window(170)) == {}
    assert faulty(cluster.window(200)) == {JOB_KEY: "no_step"}


def test_a_hang_that_fills_the_window_stays() -> None:
    """After half an hour the window holds no step any more; the hang is still one."""
    cluster = hang(Cluster(nodes=2, ticks=160), 20)
    window = cluster.window()
    blocks = {n: replace(b, values=b.values[-120:]) for n, b in window.blocks.items()}
    assert faulty(replace(window, times=window.times[-120:], blocks=blocks)) == {JOB_KEY: "no_step"}


# --- culprits ---------------------------------------------------------------------------------------------------------
def test_the_rank_that_is_behind_is_the_culprit() -> None:
    """One rank has not entered the collective: it is named with its GPU."""
    verdict = next(v for v in judge(hang(Cluster(nodes=2), 50, behind=5).window()) if v.state == "faulty")
    assert (verdict.reason, verdict.target.node, verdict.target.device, verdict.target.rank) == (
        "seq_behind", "n000", "5", 5)


def test_a_rank_that_is_a_step_behind_is_the_culprit() -> None:
    """Without collective numbers the step tells."""
    cluster = hang(Cluster(nodes=2, without=("rank.collective_seq",)), 50)
    cluster.add("rank.step", -1, 50, None, [9])
    assert faulty(cluster.window()) == {f"rank:{JOB}/9": "seq_behind"}


def test_several_ranks_equally_behind_are_the_whole_job() -> None:
    """Some ranks of a node, or of two, that are behind give no single culprit."""
    cluster = hang(Cluster(nodes=3), 50)
    cluster.add("rank.collective_seq", 3, 50, None, slice(6, 24))
    assert set(faulty(cluster.window())) == {JOB_KEY}


def test_all_ranks_of_one_node_equally_behind_are_the_node() -> None:
    """What the ranks of a node share (its mount, its host) holds them up together."""
    cluster = hang(Cluster(nodes=3), 50)
    cluster.add("rank.collective_seq", 3, 50, None, slice(0, 16))
    assert faulty(cluster.window()) == {"node:n002/": "seq_behind"}


@pytest.mark.parametrize("named", ["node:n001/", f"rank:{JOB}/5"])
def test_a_job_that_goes_on_clears_whoever_was_behind(named: str) -> None:
    """Also the node as a whole, and the rank that is known by nothing but the others' watchdogs."""
    cluster = Cluster(nodes=2)
    cluster.job = replace(cluster.job, ranks_per_node=8)
    cluster.events.append(Event(START + 600_000, Target("rank", None, job=JOB, rank=0), "nccl_watchdog", {"rank": 0, "seq": 9}))
    clear = {v.target.key for v in judge(cluster.window()) if v.state == "clear"}
    assert named in clear


def silent(cluster: Cluster, rank: int, since: int) -> Cluster:
    for name in [n for n in cluster.signals if n.startswith("rank.")]:
        cluster.put(name, np.nan, since, None, [rank])
    return cluster


@pytest.mark.parametrize(("since", "asked", "named"), [(50, True, True), (50, False, False), (85, True, False)],
                         ids=["stopped", "nobody_asks", "fell_silent_later"])
def test_the_rank_whose_page_comes_no_more_is_the_culprit(since: int, asked: bool, named: bool) -> None:
    """A process that stands still answers nothing, while the others wait: they differ by a collective, as victims do."""
    cluster = silent(hang(Cluster(nodes=2), 50), 5, since)
    cluster.add("rank.collective_seq", -1, 50, None, [4, 6, 7])
    if asked:
        cluster.put("exporter.state", 2.0, since, None, [0])
    found = {v.target.key: v for v in judge(cluster.window()) if v.state == "faulty"}
    assert (f"rank:{JOB}/5" in found, len(found)) == (named, 1)
    assert not named or found[f"rank:{JOB}/5"].reason == "answers_no_more"


def test_what_stands_out_is_suspected_not_blamed() -> None:
    """A GPU that idles while the others wait, and the rank that waited least, are suspects."""
    cluster = hang(Cluster(nodes=2), 50).put("gpu.utilization_ratio", 0, 50, None, [6])
    cluster.put("rank.comm_wait_seconds", 0.01, 40, None, [6])
    verdict = next(v for v in judge(cluster.window()) if v.state == "faulty")
    assert verdict.target.key == JOB_KEY
    assert [(t.rank, why) for t, _, why in verdict.suspects] == [(6, "gpu_differs")]


def watchdog(rank: int, at: int, **fields: object) -> Event:
    return Event(START + at * 1000, Target("rank", None, job=JOB, rank=rank), "nccl_watchdog", {"rank": rank, **fields})


@pytest.mark.parametrize(("lines", "culprit", "reason", "weight"), [
    ([(0, {"seq": 90}), (3, {"seq": 89}), (7, {"seq": 90})], f"rank:{JOB}/3", "watchdog_behind", 0.8),
    ([(0, {"seq": 90, "group": "dp"}), (3, {"seq": 88, "group": "dp"})], f"rank:{JOB}/3", "watchdog_behind", 0.9),
    ([(0, {"seq": 9, "last_enqueued": 12}), (3, {"seq": 9, "last_enqueued": 8}), (5, {"seq": 9, "last_enqueued": 12})],
     f"rank:{JOB}/3", "watchdog_behind", 0.8),
    ([(0, {"seq": 90, "group": "tp0"}), (3, {"seq": 7, "group": "tp1"})], JOB_KEY, "watchdog_equal", None),
    ([(r, {"seq": 90}) for r in range(16)], JOB_KEY, "watchdog_equal", None),
    ([(0, {"seq": 89}), (1, {"seq": 89}), (2, {"seq": 90})], JOB_KEY, "watchdog_equal", None),
    ([(0, {})], JOB_KEY, "watchdog_equal", None),
], ids=range(7))
def test_watchdogs_name_the_rank_that_is_behind(
    lines: list[tuple[int, dict[str, object]]], culprit: str, reason: str, weight: float | None,
) -> None:
    """The lowest number of one group is behind; equal numbers, or numbers of different groups, name nobody."""
    cluster = hang(Cluster(nodes=2, without=("rank.collective_seq",)), 20)
    cluster.events += [watchdog(rank, 1100 + i, **fields) for i, (rank, fields) in enumerate(lines)]
    verdict = next(v for v in judge(cluster.window()) if v.state == "faulty")
    assert (verdict.target.key, verdict.reason, verdict.discrete) == (culprit, reason, True)
    assert weight is None or [w for _, w, _ in verdict.suspects] == [weight]


def test_a_rank_that_logged_nothing_is_a_suspect_only() -> None:
    """Fifteen ranks' watchdogs agree; the silent one is suspected."""
    cluster = hang(Cluster(nodes=2, without=("rank.collective_seq",)), 20)
    cluster.events += [watchdog(r, 1100, seq=90) for r in range(16) if r != 4]
    verdict = next(v for v in judge(cluster.window()) if v.state == "faulty")
    assert verdict.target.key == JOB_KEY
    assert [(t.rank, why) for t, _, why in verdict.suspects] == [(4, "logged_nothing")]


def test_old_watchdog_lines_of_a_job_that_goes_on_are_clear() -> None:
    """A step after the line ends what it said, also for the rank that it named."""
    cluster = Cluster(nodes=2)
    cluster.events += [watchdog(r, 600, seq=90 - (r == 3)) for r in range(4)]
    found = {v.target.key: v.state for v in judge(cluster.window())}
    assert found[f"rank:{JOB}/3"] == found[JOB_KEY] == "clear"


def test_watchdogs_count_when_the_job_is_dead() -> None:
    """The lines of a job that its watchdog killed are evidence though nothing of it goes on."""
    cluster = hang(Cluster(nodes=2, without=("rank.collective_seq",)), 20)
    cluster.events += [watchdog(r, 1200, seq=90 - (r == 3)) for r in range(16)]
    cluster.job = replace(cluster.job, silent=True)
    assert faulty(cluster.window()) == {f"rank:{JOB}/3": "watchdog_behind"}


# --- frozen loss ------------------------------------------------------------------------------------------------------
def test_a_frozen_loss_is_found() -> None:
    """Steps go on, the loss is the same number on all ranks: the whole job."""
    cluster = Cluster(nodes=2).put("rank.loss", 2.25, 60)
    assert faulty(cluster.window(66)) == {}
    assert faulty(cluster.window(75)) == {JOB_KEY: "frozen_loss"}


@pytest.mark.parametrize("before", [40, 12], ids=["long", "short"])
def test_a_loss_that_froze_before_is_found_again(before: int) -> None:
    """A freeze that was mended is no habit of the loss."""
    cluster = Cluster(nodes=2, ticks=140)
    cluster.put("rank.loss", 2.25, 20, 20 + before).put("rank.loss", 2.125, 110)
    assert faulty(cluster.window()) == {JOB_KEY: "frozen_loss"}


def test_a_frozen_loss_on_one_rank_names_it() -> None:
    """The other ranks' loss changes: the rank is named."""
    cluster = Cluster(nodes=2).put("rank.loss", 2.25, 60, None, [5])
    assert faulty(cluster.window()) == {f"rank:{JOB}/5": "frozen_loss"}


def test_a_loss_that_rounds_often_needs_longer() -> None:
    """Three digits of a flat loss repeat now and then: only a run far beyond its habit is frozen."""
    cluster = Cluster(nodes=2)
    loss = np.round(2.3 + cluster.rng("digits").normal(0, 0.002, 100), 3)[:, None]
    cluster.put("rank.loss", loss, 0).put("rank.loss", 2.301, 70)
    assert [faulty(cluster.window(upto)) for upto in (74, 100)] == [{}, {JOB_KEY: "frozen_loss"}]


# --- real data --------------------------------------------------------------------------------------------------------
def test_p09_a_hang_that_looks_busy(shared_cases: dict[str, dict]) -> None:
    """Case P09: 4 nodes of 8 GPUs stand at step 197 for minutes at full utilisation and 100 W: the whole job."""
    case = shared_cases["P09"]["input"]
    ticks = 62
    cluster = Cluster(nodes=4, ticks=ticks, phases=False)
    keep = ("gpu.utilization_ratio", "gpu.power_watts", "rank.step")
    cluster.signals = {name: cluster.signals[name] for name in keep}
    for signal, row, scale in zip(keep, (case["gpu_util_pct"], case["power_w"], case["step"]), (0.01, 1, 1), strict=True):
        cluster.put(signal, np.nan, 0)
        for at, value in zip(case["t_s"], row, strict=True):
            cluster.put(signal, value * scale, int(np.ceil(at / STEP)), int(np.ceil(at / STEP)) + 1)
    assert [faulty(cluster.window(upto)) for upto in (5, 6)] == [{}, {}]
    assert faulty(cluster.window()) == {JOB_KEY: "no_step"}


def _run(frame: dict[str, np.ndarray], elapsed: np.ndarray) -> Window:
    """A rank's log as a window: at each tick the newest line of at most one tick ago."""
    ticks = np.arange(0, elapsed[-1] + STEP, STEP)
    at = np.searchsorted(elapsed, ticks, side="right") - 1
    fresh = (at >= 0) & (ticks - elapsed[np.maximum(at, 0)] <= STEP)
    rank = (Target("rank", None, None, job="run", rank=0),)
    blocks = {}
    for name, values in frame.items():
        column = np.where(fresh, values[np.maximum(at, 0)], np.nan)[:, None]
        blocks[name] = Block(name, rank, column, np.zeros(1), np.full(1, 15.0), np.full(1, float(START)))
    times = START + 15_000 * np.arange(len(ticks))
    job = JobState("run", "train", (), (0,))
    return Window(int(times[-1]), STEP, times, {"rank": rank}, blocks, (), (job,))


def test_healthy_training_logs_never_stall(healthy_runs: list[tuple[str, dict[str, np.ndarray]]]) -> None:
    """13 real runs, each seen through windows of half an hour: nothing stalls."""
    for name, run in healthy_runs:
        seconds = np.nan_to_num(run["iter_ms"], nan=np.nanmedian(run["iter_ms"])) / 1000.0
        lines = np.diff(run["iteration"], prepend=run["iteration"][0] - 1)
        frame = {"rank.step": run["iteration"], "rank.loss": run["loss"], "rank.step_seconds": seconds}
        whole = _run(frame, np.cumsum(seconds * lines))
        for end in range(4, len(whole.times), max(1, len(whole.times) // 60)):
            part = slice(max(0, end - 120), end)
            blocks = {n: replace(b, values=b.values[part]) for n, b in whole.blocks.items()}
            window = replace(whole, end=int(whole.times[end - 1]), times=whole.times[part], blocks=blocks)
            assert faulty(window) == {}, (name, end)
