"""Job health: loss spikes, late and failing saves, crash loops, suspected wrong results, slow endpoints, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import Event, JobState, Target, Verdict
from core.window import Window
from detectors.loss_spike import Params as SpikeParams
from detectors.loss_spike import Readings, find
from tests.contract import windows
from tests.contract.windows import JOB, START, STEP, Cluster

PLUGINS = load_plugins("detectors")
TARGET = Target("job", job=JOB)


def judge(name: str, window: Window) -> list[Verdict]:
    plugin = PLUGINS[name]
    return list(plugin.judge(window, plugin.params()))


def faulty(name: str, window: Window) -> dict[str, str]:
    return {v.target.key: v.reason for v in judge(name, window) if v.state == "faulty"}


def small(**more: object) -> Cluster:
    return Cluster(nodes=2, **more)  # type: ignore[arg-type]


def at(tick: float) -> int:
    return START + round(tick * STEP * 1000)


def all_ranks(cluster: Cluster, signal: str, values: np.ndarray) -> Cluster:
    cluster.signals[signal] = np.tile(values[:, None], (1, cluster.width("rank")))
    return cluster


# --- loss_spike -------------------------------------------------------------------------------------------------------
def steady(cluster: Cluster) -> np.ndarray:
    return 2.2 + cluster.rng("steady").normal(0, 0.02, cluster.ticks)


def one_high_step() -> Cluster:
    c = small()
    return c.add("rank.loss", 1.8, 99, 100)


def two_high_steps() -> Cluster:
    c = small()
    c.signals["rank.grad_norm"][98:] *= 20
    return c.add("rank.loss", 1.8, 98)


def another_mix() -> Cluster:
    return small().add("rank.loss", 0.6, 60)


def another_mix_under_a_norm_that_is_high_once() -> Cluster:
    c = another_mix()
    c.signals["rank.grad_norm"][80] *= 1.7
    return c


def lower_norm_noise() -> Cluster:
    c = small()
    c.signals["rank.grad_norm"][90:] *= 20  # the norm alone jumps
    return c


def resumed_from_an_older_step() -> Cluster:
    c = small().add("rank.loss", 0.9, 70)
    c.signals["rank.grad_norm"][70:] *= 5
    c.signals["rank.step"][70:] -= 500
    return c


def loss_that_is_no_number() -> Cluster:
    return windows.not_finite(windows.spike(small(), 90), 97)


def noise_of_a_small_loss() -> Cluster:
    c = small(without=("rank.grad_norm",))
    return all_ranks(c, "rank.loss", np.exp(c.rng("tiny").normal(-3.0, 0.6, c.ticks)))


def loss_around_zero() -> Cluster:
    c = small(without=("rank.grad_norm",))
    return all_ranks(c, "rank.loss", c.rng("rl").normal(0.0, 0.3, c.ticks))


def rises_a_little_without_a_norm() -> Cluster:
    return small(without=("rank.grad_norm",)).add("rank.loss", 0.4, 80)


NO_SPIKES = [one_high_step, two_high_steps, another_mix, another_mix_under_a_norm_that_is_high_once, lower_norm_noise, resumed_from_an_older_step, loss_that_is_no_number,
             noise_of_a_small_loss, loss_around_zero, rises_a_little_without_a_norm]


@pytest.mark.parametrize("make", NO_SPIKES, ids=lambda f: f.__name__)
def test_is_no_loss_spike(make: Callable[[], Cluster]) -> None:
    """Noise, another mix of data, a resumed run and losses without a scale are none."""
    assert faulty("loss_spike", make().window()) == {}


@pytest.mark.parametrize(("decay", "kind"), [(0.9, "spike"), (1.0, "divergence"), (1.02, "divergence")])
def test_tells_a_spike_from_a_divergence(decay: float, kind: str) -> None:
    """What comes down again is a spike, what stays up or climbs for ten minutes diverges."""
    c = windows.spike(small(), 50)
    c.signals["rank.loss"][50:] += (1.4 * (decay ** np.arange(50) - 1))[:, None]
    assert faulty("loss_spike", c.window(65 if decay < 1 else None)) == {f"job:{JOB}/": kind}


@pytest.mark.parametrize(("norm", "said"), [(5.0, {f"job:{JOB}/": "spike"}), (1.0, {})])
def test_a_second_spike_is_told_by_its_norm(norm: float, said: dict[str, str]) -> None:
    """A loss that was as high for a while and came back says something new only with the gradient norm."""
    c = small().add("rank.loss", 1.4, 20, 62).add("rank.loss", 1.2, 85)
    c.signals["rank.grad_norm"][20:40] *= 5
    c.signals["rank.grad_norm"][85:] *= norm
    assert faulty("loss_spike", c.window(92)) == said


def test_a_spike_without_a_norm_has_to_be_large() -> None:
    """Where no gradient norm is logged, a loss that doubles is found all the same."""
    c = small(without=("rank.grad_norm",)).add("rank.loss", 2.2, 80)
    assert faulty("loss_spike", c.window()) == {f"job:{JOB}/": "spike"}


def test_stages_that_show_no_loss_hide_no_spike() -> None:
    """A pipeline's first stages tell a loss of 0."""
    c = windows.spike(small(), 80)
    c.put("rank.loss", 0.0, 0, None, slice(0, 12))
    assert set(faulty("loss_spike", c.window())) == {f"job:{JOB}/"}


def test_real_healthy_runs_step_by_step_are_silent(healthy_runs: list[tuple[str, dict[str, np.ndarray]]]) -> None:
    """Even if each step were read, and each took a minute, no healthy run has a spike."""
    hits = []
    for name, run in healthy_runs[:3]:
        loss, step = run["loss"], run["iteration"] + 1000
        for end in range(12, min(len(loss), 4000), 9):
            cut = slice(max(0, end - 40), end)
            seen = Readings(np.arange(end)[cut] * 60_000, step[cut], loss[cut], np.full(len(loss[cut]), np.nan))
            if not np.isnan(seen.loss).any() and find(seen, SpikeParams()) is not None:
                hits.append((name, end))
    assert hits == []


# --- checkpoint_stale -------------------------------------------------------------------------------------------------
def saves(cluster: Cluster, *told: tuple[float, int, str]) -> Cluster:
    """told: tick, step, state."""
    cluster.events += [Event(at(tick), TARGET, "checkpoint", {"step": step, "state": state}) for tick, step, state in told]
    return cluster


def by_log(every: int = 20, took: float = 2.0, last: int = 99, ticks: int = 100) -> Cluster:
    """A log alone tells of saves: each `every` ticks (75 steps), the last begun at tick `last` at the latest."""
    c = small(ticks=ticks, without=("rank.last_checkpoint_step",))
    for tick in range(5, last, every):
        saves(c, (tick, 1000 + tick * 4, "saving"), (tick + took, 1000 + tick * 4, "saved"))
    return c


def never_saved() -> Cluster:
    return small().put("rank.last_checkpoint_step", 0.0, 0)


def saves_go_on() -> Cluster:
    return by_log()


def hangs_without_saving() -> Cluster:
    return by_log(10, 1.0, 40).freeze(42)


def long_pause_then_steps() -> Cluster:
    return by_log(10, 1.0, 50).freeze(52, 95)


def just_started_again() -> Cluster:
    c = by_log(10, 1.0, 60)
    c.events.append(Event(at(85), TARGET, "job_phase", {"phase": "start", "source": "log"}))
    return c


def saves_less_often_since_its_start() -> Cluster:
    c = by_log(8, 1.0, 40)
    c.events.append(Event(at(45), TARGET, "job_phase", {"phase": "start", "source": "log"}))
    return saves(c, (48, 1200, "saving"), (49, 1200, "saved"))


def one_failed_save() -> Cluster:
    return saves(by_log(10, 1.0, 90), (92, 1380, "saving"), (93, 1380, "failed"))


def saved_in_the_background() -> Cluster:
    return saves(by_log(20, 15.0, 80), (95, 1380, "saving"))


def shown_too(cluster: Cluster, *changes: tuple[int, int]) -> Cluster:
    """changes: tick from which on the ranks show a save, and its step."""
    newest = np.full(cluster.ticks, 900.0)
    for tick, step in changes:
        newest[tick:] = step
    return all_ranks(cluster, "rank.last_checkpoint_step", newest)


def told_twice(took: float = 2.0, finishes: bool = True) -> Cluster:
    """Since a start two saves of a log, one of them out of turn, which the ranks show a little later with the step that was really saved."""
    c = small()
    c.events.append(Event(at(40), TARGET, "job_phase", {"phase": "start", "source": "log"}))
    for tick, step in ((60, 1240), (69, 1270)):
        saves(c, (tick, step, "saving"), *([(tick + took, step, "saved")] if finishes else []))
    return shown_too(c, (61 + int(took), 1243), (70 + int(took), 1272))


def told_twice_by_a_log_without_ends() -> Cluster:
    return told_twice(5.0, False)


NOT_STALE = [told_twice, told_twice_by_a_log_without_ends, never_saved, saves_go_on, hangs_without_saving, long_pause_then_steps,
             just_started_again, saves_less_often_since_its_start, one_failed_save, saved_in_the_background]


@pytest.mark.parametrize("make", NOT_STALE, ids=lambda f: f.__name__)
def test_is_no_stale_checkpoint(make: Callable[[], Cluster]) -> None:
    """Jobs that never saved, that stand still, that have just started, and saves that take their time are none."""
    assert faulty("checkpoint_stale", make().window()) == {}


def unfinished() -> Cluster:
    return saves(by_log(10, 1.0, 60), (65, 1240, "saving"), (75, 1280, "saving"))


def failing() -> Cluster:
    return saves(by_log(10, 1.0, 60), (65, 1260, "saving"), (66, 1260, "failed"), (75, 1300, "saving"), (76, 1300, "failed"))


def slow() -> Cluster:
    c = by_log(10, 1.0, 60)
    return saves(c, (62, 1260, "saving"), (75, 1260, "saved"), (80, 1320, "saving"), (95, 1320, "saved"))


@pytest.mark.parametrize(("make", "ticks", "reason"), [
    (lambda: by_log(20, 1.0, 50), 100, "stale"), (unfinished, 78, "saves_unfinished"), (failing, 78, "saves_fail"),
    (slow, 98, "saves_slow")])
def test_finds_stale_checkpoints(make: Callable[[], Cluster], ticks: int, reason: str) -> None:
    """Late, unfinished, failing and slow saves of a log are found while the training goes on."""
    assert faulty("checkpoint_stale", make().window(ticks)) == {f"job:{JOB}/": reason}


@pytest.mark.parametrize(("phase", "said"), [("checkpoint", {f"job:{JOB}/": "saves_slow"}), ("train", {})])
def test_a_slow_save_is_told_while_it_goes_on(phase: str, said: dict[str, str]) -> None:
    """A log tells no step meanwhile: that the job saves is enough, and a job of which no step comes otherwise is not judged."""
    c = saves(by_log(10, 1.0, 60), (62, 1260, "saving"), (75, 1260, "saved"), (80, 1320, "saving"))
    c.signals["rank.step"][81:] = np.nan
    window = c.window(98)
    assert faulty("checkpoint_stale", replace(window, jobs=tuple(replace(job, phase=phase) for job in window.jobs))) == said


def test_what_the_ranks_show_goes_on_where_the_log_ends() -> None:
    """Saves that only the ranks show count though the log told of those before, and are late when they end."""
    c = shown_too(by_log(10, 1.0, 30), (7, 1022), (17, 1062), (27, 1102), (36, 1142), (46, 1182), (56, 1222), (66, 1262))
    c.without = ()
    assert faulty("checkpoint_stale", c.window(82)) == {}
    assert faulty("checkpoint_stale", c.window(99)) == {f"job:{JOB}/": "stale"}


# --- job_crash_loop ---------------------------------------------------------------------------------------------------
POISON = "IndexError: index 50304 is out of bounds"
CUDA = "RuntimeError: CUDA error: an illegal memory access was encountered"
NCCL = "torch.distributed.DistBackendError: NCCL error"


def crashes(*told: tuple[float, int | None, str, int, str | None], run_steps: int = 40) -> Cluster:
    """told: tick, step (None = none reached), message, rank, node. A run begins run_steps before it dies."""
    c = small()
    for tick, step, message, rank, node in told:
        fields = {"rank": rank, "code": 1, "message": message} | ({} if step is None else {"step": step})
        if step is not None:
            c.events.append(Event(at(tick - 8), TARGET, "job_phase", {"phase": "train", "step": step - run_steps, "source": "log"}))
        c.events.append(Event(at(tick), Target("rank", node, job=JOB, rank=rank), "job_exit", fields))
    c.signals["rank.step"][:] = 4000  # the run stands at the step, reported all along
    return c


def same_step(message: str = POISON, **more: int) -> Cluster:
    return crashes((20, 4000, message, 3, None), (50, 4002, message, 3, None), (80, 4001, message, 3, None), **more)


def beside_a_broken_part() -> Cluster:
    c = same_step()
    c.events.append(Event(at(79), Target("gpu", "n001", "3"), "xid", {"xid": 48, "fatal": True}))
    return c


def broken_nvlink() -> Cluster:
    """The line of an XID 74 has no word of its own for how grave it is."""
    c = crashes((20, 4000, CUDA, 3, None), (50, 4130, CUDA, 3, None), (80, 4060, CUDA, 3, None))
    c.events.append(Event(at(79), Target("gpu", "n001", "3"), "xid", {"xid": 74}))
    return c


def passed() -> Cluster:
    c = same_step()
    c.signals["rank.step"][:] = 4100
    return c


def long_ago() -> Cluster:
    c = same_step()
    c.events = [replace(e, at=e.at - 10 * 3_600_000) for e in c.events]
    return c


def unlogged(loaded: int | None) -> Cluster:
    """The second and third run die before their first line of a step; loaded: the step that they began from."""
    c = crashes((20, 4000, POISON, 3, None), (50, None, POISON, 3, None), (80, None, POISON, 3, None))
    for tick in (44, 74):
        c.events.append(Event(at(tick), TARGET, "job_phase", {"phase": "start", "step": loaded, "source": "log"}))
    return c


NO_LOOPS = {
    "one crash": lambda: crashes((80, 4001, POISON, 3, None)),
    "two crashes of other words": lambda: crashes((50, 4000, POISON, 3, None), (80, 4001, "KeyError: 'lr'", 3, None)),
    "two crashes of the machine's words": lambda: crashes((50, 4000, NCCL, 3, None), (80, 4001, NCCL, 3, None)),
    "two crashes at other steps": lambda: crashes((50, 4000, POISON, 3, None), (80, 4100, POISON, 3, None)),
    "two crashes soon after the start": lambda: crashes((50, 4000, POISON, 3, None), (80, 4001, POISON, 3, None), run_steps=4),
    "other steps, other ranks": lambda: crashes((20, 4000, CUDA, 3, None), (50, 4130, CUDA, 7, None), (80, 4060, CUDA, 1, None)),
    "beside a broken part": beside_a_broken_part,
    "passed": passed,
    "long ago": long_ago,
    "short runs that die of the machine": lambda: same_step(CUDA, run_steps=4),
    "no step, of the network": lambda: crashes(*((t, None, NCCL, 3, "n001") for t in (20, 50, 80))),
    "an XID that somebody calls fatal": broken_nvlink,
    "an NVLink that cannot be mended": lambda: crashes(*(
        (t, s, "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", 3, None)
        for t, s in ((20, 4000), (50, 4130), (80, 4060)))),
    "an uncorrectable error": lambda: same_step("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    "rank 0 at other steps, of the network": lambda: crashes(
        (20, 4000, NCCL, 0, None), (50, 4130, NCCL, 0, None), (80, 4060, NCCL, 0, None)),
    "no line of a step after a start elsewhere": lambda: unlogged(4020),
    "a rank on other nodes": lambda: crashes((20, 4000, CUDA, 3, "n000"), (50, 4130, CUDA, 3, "n001"), (80, 4060, CUDA, 3, "n000")),
}


@pytest.mark.parametrize("name", NO_LOOPS)
def test_is_no_crash_loop(name: str) -> None:
    """Few crashes, crashes of hardware, and what is over are none of the job's."""
    assert faulty("job_crash_loop", NO_LOOPS[name]().window()) == {}


LOOPS = {
    "same step": (same_step, f"job:{JOB}/", "same_step"),
    "two crashes of the same words after long runs": (
        lambda: crashes((50, 4000, POISON, 3, None), (80, 4001, POISON, 3, None)), f"job:{JOB}/", "same_step"),
    "same step of the machine's words after long runs": (lambda: same_step(CUDA), f"job:{JOB}/", "same_step"),
    "soon after the checkpoint, the same words": (lambda: same_step(run_steps=2), f"job:{JOB}/", "same_step"),
    "another node each time": (lambda: crashes(*((t, 4000, NCCL, r, f"n00{r}") for t, r in ((20, 1), (50, 2), (80, 3))), run_steps=2),
                               f"job:{JOB}/", "same_step"),
    "never a step": (lambda: crashes(*((t, None, "ValueError: no such layer", 0, None) for t in (20, 50, 80))),
                     f"job:{JOB}/", "dies_at_start"),
    "one rank at other steps": (lambda: crashes((20, 4000, CUDA, 3, None), (50, 4130, CUDA, 3, None), (80, 4060, CUDA, 3, None)),
                                f"rank:{JOB}/3", "follows_part"),
    "rank 0 at other steps, of its GPU": (
        lambda: crashes((20, 4000, CUDA, 0, None), (50, 4130, CUDA, 0, None), (80, 4060, CUDA, 0, None)), f"rank:{JOB}/0", "follows_part"),
    "no line of a step, begun beside it": (lambda: unlogged(4003), f"job:{JOB}/", "same_step"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_finds_crash_loops(name: str) -> None:
    """Three crashes at one place, or two of the same words: the job's, or a suspected part's where they follow one rank and no step."""
    make, key, reason = LOOPS[name]
    assert faulty("job_crash_loop", make().window()) == {key: reason}


def test_the_rank_that_only_the_log_tells_of_is_given_its_place() -> None:
    """The ranks of a node follow one another, so a job of known size tells on which node and GPU it stands."""
    cluster = crashes((20, 4000, CUDA, 9, None), (50, 4130, CUDA, 9, None), (80, 4060, CUDA, 9, None))
    cluster.entities["rank"] = (Target("rank", job=JOB, rank=9),)
    cluster.signals = {n: v[:, :1] if n.startswith("rank.") else v for n, v in cluster.signals.items()}
    cluster.job = replace(cluster.job, ranks=(0,), ranks_per_node=8)
    verdict = next(v for v in PLUGINS["job_crash_loop"].judge(cluster.window(), PLUGINS["job_crash_loop"].params()) if v.state == "faulty")
    assert (verdict.target.node, verdict.target.device) == ("n001", "1")


def test_the_gpu_of_rank_0_and_the_job_are_suspects_alike() -> None:
    """Rank 0 does what no other does: that its GPU is named first tells no more than that the job dies."""
    window = LOOPS["rank 0 at other steps, of its GPU"][0]().window()
    verdict = next(v for v in PLUGINS["job_crash_loop"].judge(window, PLUGINS["job_crash_loop"].params()) if v.state == "faulty")
    assert [(t.key, chance) for t, chance, _ in verdict.suspects] == [(f"rank:{JOB}/0", 0.5), (f"job:{JOB}/", 0.5)]


# --- silent_corruption ------------------------------------------------------------------------------------------------
def agreeing(ticks: int = 100) -> Cluster:
    """All ranks tell the norm of the whole model."""
    c = small(ticks=ticks)
    return all_ranks(c, "rank.grad_norm", np.abs(c.rng("all").normal(0.3, 0.05, ticks)))


def one_computes_otherwise(start: int = 60) -> Cluster:
    c = agreeing()
    c.signals["rank.grad_norm"][start:, 11] *= 1.02
    return c


def uneven_from_the_start() -> Cluster:
    c = agreeing()
    c.signals["rank.grad_norm"][:, 11] *= 3
    return c


def read_a_step_later() -> Cluster:
    c = agreeing()
    for name in ("rank.grad_norm", "rank.step", "rank.loss"):
        c.signals[name][1:, 11] = c.signals[name][:-1, 11].copy()
    return c


def all_together() -> Cluster:
    c = small()
    c.signals["rank.grad_norm"][60:] *= 5
    return c


def half_of_them() -> Cluster:
    c = small()
    c.signals["rank.grad_norm"][60:, ::2] *= 5
    return c


def one_reading() -> Cluster:
    c = agreeing()
    c.signals["rank.grad_norm"][99:, 11] *= 2
    return c


def found_nan(*ticks: float, ranks: tuple[int, ...] = (5,), line: str = "Rank 5: found NaN in local grad norm") -> Cluster:
    c = small()
    c.events += [Event(at(t), Target("rank", "n000", "5", job=JOB, rank=r), "nonfinite", {"what": "grad_norm"}, line)
                 for t in ticks for r in ranks]
    return c


@pytest.mark.parametrize("make", [uneven_from_the_start, read_a_step_later, all_together, half_of_them, one_reading,
                                  lambda: found_nan(90), lambda: found_nan(20, 90, ranks=(5, 6)),
                                  lambda: found_nan(20, 90, line="iteration 5/ 9 | lm loss: nan |")])
def test_is_no_silent_corruption(make: Callable[[], Cluster]) -> None:
    """Unevenness, skew between readings, what all do, single readings, and NaN that several or only the logging rank tell."""
    assert faulty("silent_corruption", make().window()) == {}


@pytest.mark.parametrize(("make", "rank", "reason"), [(one_computes_otherwise, 11, "left_its_peers"),
                                                      (lambda: found_nan(20, 90), 5, "finds_nan_alone")])
def test_suspects_one_rank(make: Callable[[], Cluster], rank: int, reason: str) -> None:
    """A rank that leaves those it agreed with, or finds NaN alone again and again, is suspected with low confidence."""
    found = [v for v in judge("silent_corruption", make().window()) if v.state == "faulty"]
    assert [(v.target.rank, v.reason, v.severity) for v in found] == [(rank, reason, 0.3)]
    assert all(weight <= 0.3 for v in found for _, weight, _ in v.suspects)


# --- inference_slow ---------------------------------------------------------------------------------------------------
def busier() -> Cluster:
    c = small()
    for name in ("requests_running", "requests_per_second", "first_tokens_per_second", "request_time_ratio", "kv_cache_ratio",
                 "token_gaps_per_second"):
        c.signals[f"job.{name}"][60:] *= 2.5
    c.signals["job.token_time_ratio"][60:] *= 2.5 * 2.0
    return c.put("job.requests_waiting", 30.0, 60)


def longer_contexts() -> Cluster:
    c = small()
    c.signals["job.kv_cache_ratio"][60:] *= 2.2
    c.signals["job.token_time_ratio"][60:] *= 1.6
    return c


def burst() -> Cluster:
    c = small()
    c.signals["job.first_tokens_per_second"][80:] *= 3
    c.signals["job.token_time_ratio"][80:] *= 1.6
    return c


def a_queue_by_itself() -> Cluster:
    return small().put("job.requests_waiting", 50.0, 60)


def idle() -> Cluster:
    c = small()
    for name, values in c.signals.items():
        if name.startswith("job."):
            values[70:] = 0.0
    return c


def just_started() -> Cluster:
    c = windows.answer_slowly(small(), 0)
    for name, values in c.signals.items():
        if name.startswith("job."):
            values[:80] = np.nan
    return c


@pytest.mark.parametrize("make", [busier, longer_contexts, burst, a_queue_by_itself, idle, just_started], ids=lambda f: f.__name__)
def test_is_no_slow_endpoint(make: Callable[[], Cluster]) -> None:
    """More work, longer contexts, bursts, a queue, rest and a start are none."""
    assert faulty("inference_slow", make().window()) == {}


def all_slow() -> Cluster:
    c = small()
    c.signals["job.token_time_ratio"][60:] *= 1.6
    return c


def queue_grows_by_slowness() -> Cluster:
    c = all_slow()
    c.signals["job.requests_running"][60:] *= 1.2
    return c.put("job.requests_waiting", 40.0, 70)


def more_under_way_for_being_slow() -> Cluster:
    """Each answer takes a quarter longer: as many more are under way and hold their cache, and none waits."""
    c = small()
    for name in ("token_time_ratio", "requests_running", "kv_cache_ratio"):
        c.signals[f"job.{name}"][60:] *= 1.25
    return c


def slower_by_and_by() -> Cluster:
    """Over ten minutes, while single moments scatter by a tenth."""
    c = small()
    more = 1.0 + 0.8 * np.minimum(1.0, np.arange(60) / 40.0)[: c.ticks - 50]
    c.signals["job.token_time_ratio"] *= c.rng("scatter").lognormal(0.0, 0.1, c.signals["job.token_time_ratio"].shape)
    c.signals["job.token_time_ratio"][50:] *= more[:, None]
    return c


def answers_nothing() -> Cluster:
    c = small()
    for name in ("token_gaps_per_second", "token_time_ratio", "tokens_per_second", "requests_per_second", "first_tokens_per_second"):
        c.put(f"job.{name}", 0.0, 80, None, [1])
    return c


def without_tokens() -> Cluster:
    c = small(without=("job.token_gaps_per_second", "job.token_time_ratio", "job.requests_running", "job.kv_cache_ratio"))
    c.signals["job.request_time_ratio"][60:] *= 2.2
    return c


@pytest.mark.parametrize(("make", "reason"), [(all_slow, "slower_at_like_load"), (queue_grows_by_slowness, "slower_at_like_load"),
                                              (more_under_way_for_being_slow, "slower_at_like_load"),
                                              (answers_nothing, "no_answers"), (slower_by_and_by, "slower_at_like_load")], ids=lambda f: getattr(f, "__name__", f))
def test_finds_slow_endpoints(make: Callable[[], Cluster], reason: str) -> None:
    """Replicas of a model that are slow together are one fault; one that answers nothing is found as well."""
    assert faulty("inference_slow", make().window()) == {"job:chat/": reason}


def test_the_inventory_names_the_job_of_endpoints() -> None:
    """Endpoints on the nodes of a job of the inventory are that job's."""
    c = all_slow()
    c.job = JobState("serve-1", "unknown", tuple(c.names))
    assert set(faulty("inference_slow", c.window())) == {"job:serve-1/"}


def test_a_slow_replica_among_many_is_a_suspect() -> None:
    """Which of the replicas is slow is told."""
    c = windows.answer_slowly(Cluster(nodes=4), 60)
    found = [v for v in judge("inference_slow", c.window()) if v.state == "faulty"]
    assert [[t.job for t, _, _ in v.suspects] for v in found] == [["chat@n001:8000"]]
