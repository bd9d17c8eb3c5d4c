"""Jobs that get slow: what the job as a whole, a rank, a node or its data is at fault for, and what is no fault at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.types import Baseline, Event, Target
from core.window import Window
from detectors import data_stall, job_pace, mean_power, straggler, throughput_drop
from tests.contract.windows import JOB, START, STEP, Cluster, lag, slow_down, wait_for_data

AT = 60


def timed(seed: int = 1, nodes: int = 4, ticks: int = 120, jitter: float = 0.005, **more: object) -> Cluster:
    """A cluster whose trainer tells what a step consists of: 2.4 s of computing, the same step for all, the rest is waiting."""
    c = Cluster(nodes=nodes, ticks=ticks, seed=seed, **more)
    n, rng = c.width("rank"), c.rng("timed")
    part = 1.0 + 0.004 * rng.normal(0, 1, n)
    c.signals["rank.compute_seconds"] = 2.4 * part * (1 + jitter * rng.normal(0, 1, (ticks, n)))
    tail = np.where(rng.random(ticks) < 0.4, rng.exponential(0.2, ticks), 0.0)
    c.signals["tail"] = np.tile(tail[:, None], (1, n))
    return settle(c)


def settle(c: Cluster) -> Cluster:
    """Step and waiting follow from the slowest rank; call it again after the computing was changed."""
    work = c.signals["rank.compute_seconds"] + c.signals["rank.data_wait_seconds"]
    step = work.max(axis=1, keepdims=True) + 0.7 + c.signals["tail"]
    c.signals["rank.step_seconds"] = step
    c.signals["rank.comm_wait_seconds"] = step - work
    c.signals["rank.tokens_per_second"] = 3072.0 / step
    return c


def window(c: Cluster, upto: int | None = None, **more: object) -> Window:
    tail = c.signals.pop("tail", None)
    try:
        return c.window(upto, **more)
    finally:
        if tail is not None:
            c.signals["tail"] = tail


def work_more(c: Cluster, columns: object, start: int, factor: object, stop: int | None = None) -> Cluster:
    c.signals["rank.compute_seconds"][start:stop, columns] *= factor
    return settle(c)


def says(detector: object, w: Window) -> list[str]:
    return [v.target.key for v in detector.judge(w, detector.Params()) if v.state == "faulty"]


def clear(detector: object, w: Window) -> set[str]:
    return {v.target.key for v in detector.judge(w, detector.Params()) if v.state == "clear"}


# --- straggler --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("excess", [0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_rank_that_works_longer_is_named(excess: float, seed: int) -> None:
    """Within seven minutes for a twentieth of the computing, within three for a third, and nobody else."""
    c = work_more(timed(seed), 11, AT, 1 + excess)
    assert says(straggler, window(c, AT + (30 if excess < 0.1 else 20))) == [f"rank:{JOB}/11"]


def test_all_ranks_of_a_node_are_the_node() -> None:
    """Eight ranks that slow down together are one finding on their node."""
    c = work_more(timed(), slice(8, 16), AT, 1.15)
    assert says(straggler, window(c, AT + 30)) == ["node:n001/"]


def test_without_the_computing_what_a_rank_does_not_wait_is_its_work() -> None:
    """Step and waiting are enough."""
    c = work_more(timed(), 11, AT, 1.2)
    del c.signals["rank.compute_seconds"]
    assert says(straggler, window(c, AT + 30)) == [f"rank:{JOB}/11"]


def test_the_step_of_a_job_in_lock_step_names_nobody() -> None:
    """All ranks have the step of the slowest."""
    c = work_more(timed(), 11, AT, 1.2)
    for name in ("rank.compute_seconds", "rank.comm_wait_seconds", "rank.data_wait_seconds"):
        del c.signals[name]
    found = straggler.judge(window(c, AT + 30), straggler.Params())
    assert not found


def uneven_from_the_start(c: Cluster) -> Cluster:
    return work_more(c, [3, 11, 19], 0, 1.15)


def wandering(c: Cluster) -> Cluster:
    for i, column in enumerate((5, 17, 30, 2, 11, 28)):
        c = work_more(c, column, 20 + 16 * i, 1.2, 36 + 16 * i)
    return c


def several_at_once(c: Cluster) -> Cluster:
    return work_more(c, [3, 19], AT, 1.2)


def sequences(c: Cluster) -> Cluster:
    lengths = c.rng("lengths").lognormal(0, 0.35, (c.ticks - AT, c.nodes))
    lengths /= lengths.max(axis=1, keepdims=True)
    return work_more(c, slice(None), AT, 1 + 0.3 * np.repeat(lengths, 8, axis=1))


def longer_sequences(c: Cluster) -> Cluster:
    """All nodes have more to do than before, in each step another one most."""
    lengths = c.rng("longer").lognormal(0, 0.35, (c.ticks - AT, c.nodes))
    return work_more(c, slice(None), AT, 1 + 0.15 * np.repeat(lengths, 8, axis=1))


def garbage(c: Cluster) -> Cluster:
    rng = c.rng("garbage")
    for row in range(AT, c.ticks, 2):
        c.signals["rank.compute_seconds"][row, rng.integers(0, c.width("rank"))] += 1.0
    return settle(c)


def everybody(c: Cluster) -> Cluster:
    return work_more(c, slice(None), AT, 1.2)


def profiled(c: Cluster) -> Cluster:
    for name in ("gpu.tensor_active_ratio", "gpu.graphics_active_ratio"):
        c.put(name, np.nan, AT, None, range(8, 16))
    return work_more(c, 11, AT, 1.2)


def one_hiccup(c: Cluster) -> Cluster:
    return work_more(c, 11, 110, 2.0, 112)


QUIET = [uneven_from_the_start, wandering, several_at_once, sequences, garbage, everybody, profiled, one_hiccup]


@pytest.mark.parametrize("plant", QUIET, ids=lambda f: f.__name__)
@pytest.mark.parametrize("upto", [80, 95, 120])
def test_what_is_no_straggler(plant: Callable[[Cluster], Cluster], upto: int) -> None:
    """Unevenness that was there, that wanders, that many share, that a profiler makes, that is over in a moment."""
    assert says(straggler, window(plant(timed(3)), upto)) == []


def test_a_rank_is_named_though_another_node_was_slow_before() -> None:
    """A node that was slow and is well again for minutes had a fault of its own; work that goes from one to the next is uneven."""
    after = work_more(work_more(timed(3), 2, 20, 1.2, 50), 19, 70, 1.3)
    at_once = work_more(work_more(timed(3), 2, 20, 1.2, 66), 19, 66, 1.3)
    assert [says(straggler, window(c, 95)) for c in (after, at_once)] == [[f"rank:{JOB}/19"], []]


@pytest.mark.parametrize("known", [True, False])
def test_a_whole_stage_is_compared_with_itself(known: bool) -> None:
    """A pipeline's last stage that has more to do since now: with the layout nobody stands out; without it, many do at once."""
    c = timed(nodes=8)
    c = work_more(c, slice(48, 64), AT, 1.15)
    if known:
        c.job = replace(c.job, tp=8, pp=4, dp=2)
    assert says(straggler, window(c, AT + 40)) == []


def test_a_rank_of_a_stage_is_named_among_its_stage() -> None:
    """Stages differ; the rank is slow among its own."""
    c = work_more(timed(nodes=8), slice(32, 64), 0, 1.2)
    c.job = replace(c.job, tp=8, pp=2, dp=4)
    assert says(straggler, window(work_more(c, 11, AT, 1.35), AT + 30)) == [f"rank:{JOB}/11"]


def test_a_finding_older_than_the_window_goes_on() -> None:
    """The whole window is slow; that the last minutes are no past of this rank tells that its finding is open."""
    c = work_more(timed(), 11, 0, 1.2)
    w = window(c)
    assert says(straggler, w) == []
    assert says(straggler, replace(w, baseline_of=excluded(w, [11]))) == [f"rank:{JOB}/11"]


def test_what_goes_on_keeps_a_finding_and_opens_none() -> None:
    """The finding whose time is left out of the past may be another detector's: a rank beside it is no straggler for that."""
    old = window(work_more(timed(), 11, 0, 1.2))
    old = replace(old, baseline_of=excluded(old, [11]))
    new = window(work_more(timed(), 11, AT, 1.35), AT + 30)
    keeps = [{v.keeps for v in straggler.judge(seen, straggler.Params()) if v.state == "faulty"} for seen in (old, new)]
    assert keeps == [{True}, {False}]


def test_it_goes_on_while_a_finding_on_the_whole_job_is_open_too() -> None:
    """All ranks are left out of the past then; still only the slow one is named."""
    w = window(work_more(timed(), 11, 0, 1.2))
    assert says(straggler, replace(w, baseline_of=excluded(w, slice(None)))) == [f"rank:{JOB}/11"]


def test_a_rank_that_is_seen_to_follow_late_is_no_straggler() -> None:
    """The whole job gets fast again, one rank's reading a row after the others': nobody is slow."""
    c = work_more(timed(), slice(None), 0, 1.2, 116)
    w = window(work_more(c, 11, 116, 1.2, 117))
    assert says(straggler, replace(w, baseline_of=excluded(w, slice(None)))) == []


def excluded(w: Window, columns: object) -> Callable[[str, int], Baseline]:
    """A past of hours that knows healthy levels; of the columns it leaves out the time of the window."""
    def of(signal: str, seconds: int) -> Baseline:
        n = w.values(signal).shape[1]
        minutes = np.full(n, seconds / 60.0)
        minutes[columns] = max(0.0, seconds / 60.0 - 30.0)
        level = np.full(n, {"rank.compute_seconds": 2.4, "rank.step_seconds": 3.15, "rank.data_wait_seconds": 0.02}.get(signal, 1.0))
        return Baseline(minutes, np.where(minutes > 0, level, np.nan), np.zeros(n), np.zeros(n))
    return of


# --- throughput_drop --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("without", [(), ("rank.compute_seconds", "rank.comm_wait_seconds", "rank.data_wait_seconds")])
def test_a_job_that_got_slower_is_found(share: float, without: tuple[str, ...]) -> None:
    """All ranks compute longer, whether or not the trainer says what its steps consist of."""
    c = timed()
    c.without = without
    assert says(throughput_drop, window(work_more(c, slice(None), AT, 1 + 1.3 * share), AT + 24)) == [f"job:{JOB}/"]


def test_a_job_that_tells_only_its_step_number_is_judged() -> None:
    """Time over steps."""
    c = Cluster(ticks=120, without=("rank.step_seconds",))
    clock = np.arange(120) * STEP
    clock = np.where(clock < AT * STEP, clock, AT * STEP + (clock - AT * STEP) / 1.2)
    step = 1000 + np.floor(clock / 4.0)
    c.signals["rank.step"] = np.tile(step[:, None], (1, 32))
    c.without = ("rank.step_seconds", "rank.last_step_timestamp_seconds")
    assert says(throughput_drop, c.window(AT + 24)) == [f"job:{JOB}/"]


def grown_batch(c: Cluster) -> Cluster:
    slow_down(c, AT, 0.3)
    c.signals["rank.tokens_per_second"][AT:] = c.signals["rank.tokens_per_second"][:1].mean()
    return c


def checkpoints(c: Cluster) -> Cluster:
    for row in range(25, c.ticks - 3, 20):
        c.phase("checkpoint", row, row + 2)
        c.add("rank.step_seconds", 8.0, row + 2, row + 3)
    return c


def restarted(c: Cluster) -> Cluster:
    c.add("rank.step", -500, AT)
    return slow_down(c, AT, 0.4)


def reconfigured(c: Cluster) -> Cluster:
    c.events.append(Event(START + AT * 15_000, Target("job", job=JOB), "config_change", {}))
    return slow_down(c, AT, 0.4)


def short(c: Cluster) -> Cluster:
    return slow_down(c, c.ticks - 6, 0.4)


def always(c: Cluster) -> Cluster:
    return slow_down(c, 0, 0.4)


def two_percent(c: Cluster) -> Cluster:
    return slow_down(c, AT, 0.015)


def one_rank(c: Cluster) -> Cluster:
    return work_more(c, 11, AT, 1.2)


@pytest.mark.parametrize("plant", [grown_batch, checkpoints, restarted, reconfigured, short, always, two_percent, one_rank, sequences,
                                   longer_sequences, garbage], ids=lambda f: f.__name__)
def test_what_is_no_drop(plant: Callable[[Cluster], Cluster]) -> None:
    """Bigger batches, pauses, new runs, moments, what was always so, and what a few ranks do."""
    assert says(throughput_drop, window(plant(timed(4)))) == []


def ramped(c: Cluster) -> Cluster:
    """No tokens are told, but how many samples a step holds."""
    c.without = (*PARTS_OF_A_STEP, "rank.tokens_per_second")
    return c.put("rank.batch_samples", 1024.0, 0, AT).put("rank.batch_samples", 1331.0, AT)


def lengths_alone(c: Cluster) -> Cluster:
    """Each step some other node has the longest sequences and its GPUs are busy longest; nobody tells the computing."""
    c.without = (*PARTS_OF_A_STEP, "rank.tokens_per_second")
    share = np.repeat(c.rng("shares").normal(0, 0.08, (c.ticks - AT, c.nodes)), 8, axis=1)
    for name in ("gpu.power_watts", "gpu.sm_active_ratio"):
        c.signals[name][AT:] *= 1 + share
    return c


def longer_alone(c: Cluster) -> Cluster:
    """Longer sequences on all: steps are longer, and the tensor pipes are busier."""
    c.without = PARTS_OF_A_STEP
    c.signals["gpu.tensor_active_ratio"][AT:] *= 1.12
    return c


PARTS_OF_A_STEP = ("rank.compute_seconds", "rank.comm_wait_seconds", "rank.data_wait_seconds")


@pytest.mark.parametrize(("plant", "said"), [(ramped, []), (lengths_alone, []), (longer_alone, []), (lambda c: c, [f"job:{JOB}/"])],
                         ids=["ramped", "lengths", "longer", "a drop"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_steps_hold_is_told_by_samples_and_by_gpus(plant: Callable[[Cluster], Cluster], said: list[str], seed: int) -> None:
    """A larger batch, and sequences of uneven length, where ranks do not tell what their steps consist of."""
    c = timed(seed)
    c.without = (*PARTS_OF_A_STEP, "rank.tokens_per_second")
    assert says(throughput_drop, window(plant(work_more(c, slice(None), AT, 1.39)), AT + 24)) == said


def energy(c: Cluster, busy: np.ndarray) -> Cluster:
    """The energy counter of GPUs that draw 600 W times `busy`, read every half minute and repeated in between."""
    watts = 600.0 * busy * (1 + 0.01 * c.rng("boards").normal(0, 1, busy.shape[1])) * (1 + 0.002 * c.rng("watts").normal(0, 1, busy.shape))
    watts[1::2] += watts[::2]
    watts[::2] = 0.0
    return c.put("gpu.energy_watts", watts, 0)


def alike(c: Cluster) -> np.ndarray:
    busy = np.ones((c.ticks, c.width("gpu")))
    busy[AT:] = 0.88
    return busy


def one_is_awaited(c: Cluster) -> np.ndarray:
    busy = alike(c)
    busy[AT:, 5] = 1.0
    return busy


def others_are_awaited(c: Cluster) -> np.ndarray:
    busy = alike(c)
    for row in range(AT, c.ticks, 8):
        busy[row:row + 8, 3 * row % busy.shape[1]] = 1.0
    return busy


def another_node_each_time(c: Cluster) -> np.ndarray:
    busy = alike(c)
    busy[AT:] *= 1 + np.repeat(c.rng("lengths").normal(0, 0.02, (c.ticks - AT, c.nodes)), 8, axis=1)
    return busy


@pytest.mark.parametrize(("draws", "slow"), [(alike, True), (one_is_awaited, False), (others_are_awaited, False), (another_node_each_time, False)],
                         ids=lambda f: getattr(f, "__name__", None))
def test_energy_tells_who_is_waited_for(draws: Callable[[Cluster], np.ndarray], slow: bool) -> None:
    """Where no rank tells its computing, the energy of the GPUs shows whether all of them do less, or wait for some."""
    c = work_more(timed(), slice(None), AT, 1.2)
    energy(c, draws(c)).without = PARTS_OF_A_STEP
    seen = window(c, AT + 24)
    assert (says(throughput_drop, seen), f"job:{JOB}/" in clear(throughput_drop, seen)) == ([f"job:{JOB}/"] if slow else [], not slow)


@pytest.mark.parametrize(("before", "after", "differ"), [(0.0006, 0.002, False), (0.0006, 0.005, True), (0.002, 0.005, True)])
def test_nodes_that_were_alike_by_luck_are_no_measure(before: float, after: float, differ: bool) -> None:
    """Counters that are read at other moments of a step differ by a tenth of a percent: of three nodes it is by luck that they did by less."""
    rng, names = np.random.default_rng(1), [f"n{i // 8}" for i in range(24)]
    apart = np.concatenate([rng.normal(0, before, (20, 3)), rng.normal(0, after, (28, 3))])
    rows = np.arange(48)
    drew = 600.0 * (1 + np.repeat(apart, 8, axis=1))
    assert throughput_drop._differ_in_power(drew, names, rows[:20], rows[20:], 0.075, throughput_drop.Params()) is differ


@pytest.mark.parametrize(("together", "more"), [(0.0, True), (0.06, False)], ids=["each alone", "all at once"])
def test_readings_of_one_moment_are_one(together: float, more: bool) -> None:
    """GPUs of a job are read in about the same moment of a step: all of them seem busier where a few more readings fell on computing."""
    rng, rows = np.random.default_rng(5), np.arange(60)
    moments = np.tile([-together, together], 30) * (1 + 0.01 * rng.normal(0, 1, 60))
    values = 0.4 * (1 + moments[:, None]) * np.where(rows < 24, 1.0, 1.05)[:, None] * (1 + 0.01 * rng.normal(0, 1, (60, 24)))
    assert throughput_drop._more_in_a_step(values, rows[:24], rows[24:], 0.15, throughput_drop.Params()) is more


def test_mean_power_lies_between_the_readings_of_the_counter() -> None:
    """A counter that exporters repeat, a row that is missing, and no counter."""
    c = Cluster(ticks=12)
    told = c.put("gpu.energy_watts", np.array([0.0, 800, 0, 820, 0, 780, 0, np.nan, 0, 800, 0, 840])[:, None], 0).window()
    mean = mean_power.read(told, np.array([0]))
    assert mean is not None
    np.testing.assert_allclose(mean[:, 0], [np.nan, np.nan, 410, 410, 390, 390, *[np.nan] * 4, 420, 420])
    assert mean_power.read(Cluster(ticks=12).window(), np.array([0])) is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_small_drop_shows_in_the_computing_of_all_ranks(seed: int) -> None:
    """Steps that are rough hide 4 %; what the usual rank computes does not."""
    c = timed(seed, ticks=100)
    c.signals["tail"] = np.abs(c.rng("rough").normal(0, 0.6, c.ticks))[:, None] * np.ones((1, c.width("rank")))
    assert says(throughput_drop, window(work_more(c, slice(None), AT, 1.05), AT + 18)) == [f"job:{JOB}/"]


def test_jobs_that_slow_down_together_are_nobodys_fault() -> None:
    """All jobs of a site at one moment: no job is named; one of two is."""
    c, healthy = everybody(timed()), timed()
    first, second = (replace(c.job, id=name, ranks=tuple(range(16 * i, 16 * i + 16))) for i, name in enumerate("ab"))
    together = says(throughput_drop, replace(window(c), jobs=(first, second)))
    for name, values in c.signals.items():
        if name.startswith("rank."):
            c.signals[name] = np.concatenate([values[:, :16], healthy.signals[name][:, 16:]], axis=1)
    assert (together, says(throughput_drop, replace(window(c), jobs=(first, second)))) == ([], ["job:a/"])


def two_jobs(*slow: tuple[int, object, float]) -> Window:
    """Each job has 16 ranks; slow: (from which tick, which ranks, by how much they compute longer) of the first and the second."""
    clusters = [work_more(timed(), columns, start, factor) for start, columns, factor in slow]
    c = clusters[0]
    for name, values in c.signals.items():
        if name.startswith("rank."):
            c.signals[name] = np.concatenate([values[:, :16], clusters[1].signals[name][:, 16:]], axis=1)
    jobs = tuple(replace(c.job, id=name, ranks=tuple(range(16 * i, 16 * i + 16))) for i, name in enumerate("ab"))
    return replace(window(c, AT + 24), jobs=jobs)


@pytest.mark.parametrize(("first", "second", "said"), [
    ((AT, slice(None), 1.2), (AT + 2, slice(16, 18), 1.2), []),
    ((AT, slice(None), 1.2), (AT - 30, slice(16, 18), 1.2), ["job:a/"]),
    ((AT, slice(None), 1.2), (AT + 2, slice(16, 18), 1.05), ["job:a/"]),
    ((AT, slice(0, 2), 1.2), (AT + 2, slice(16, 18), 1.2), []),
], ids=["one of them not sure", "long before", "by far less", "neither is sure"])
def test_a_job_that_is_on_its_way_slows_down_with_another(first: tuple[int, object, float], second: tuple[int, object, float],
                                                          said: list[str]) -> None:
    """Unless it is known that it began at another time, or for what little it lost."""
    assert says(throughput_drop, two_jobs(first, second)) == said


@pytest.mark.parametrize(("tensor", "said"), [(0.5, [f"job:{JOB}/"]), (1.0, [])], ids=["it fell", "it rose"])
def test_what_gpus_do_is_compared_with_the_past_in_which_the_job_was_fast(tensor: float, said: list[str]) -> None:
    """A slow spell of the past, in which GPUs did half, is no measure: since the change they do as much as when the job was fast (a
    drop), or more (there is more in a step)."""
    c = work_more(work_more(timed(), slice(None), 5, 2.0, 40), slice(None), AT + 5, 1.3)
    c.without = PARTS_OF_A_STEP
    c.signals["gpu.tensor_active_ratio"][5:40] *= 0.5
    c.signals["gpu.tensor_active_ratio"][AT + 5:] *= 0.9 if said else 1.12
    assert says(throughput_drop, window(c, AT + 29)) == said


@pytest.mark.parametrize(("well", "said"), [(True, []), (False, [f"job:{JOB}/"])], ids=["well in between", "slow since"])
def test_a_drop_of_means_that_single_steps_deny_is_none(well: bool, said: list[str]) -> None:
    """By the counter of steps the job is slow since the 40th tick; by its single steps it was well again in between."""
    c = work_more(timed(), slice(None), 40, 1.3)
    if well:
        c = work_more(c, slice(None), 58, 1 / 1.3, 85)
    done = np.cumsum(STEP / np.where(np.arange(c.ticks) < 40, 3.3, 4.0))
    c.signals["rank.step"] = np.tile(1000 + np.floor(done)[:, None], (1, c.width("rank")))
    c.without = (*PARTS_OF_A_STEP, "rank.last_step_timestamp_seconds")
    assert says(throughput_drop, window(c, 112)) == said


def test_what_is_shown_of_a_runs_first_steps_is_no_past_of_its_parts() -> None:
    """Readings of parts count from when those of the first steps are no longer shown; all count where the window shows no start."""
    c = timed()
    whole = job_pace.read(window(c), c.job)
    c.add("rank.step", -500, 40)
    pace = job_pace.read(window(c), c.job)
    assert whole is not None
    assert pace is not None
    assert whole.settled[0] == 0
    assert (pace.started, pace.settled[0]) == (40, pace.rows[0] + 3)


def test_a_drop_older_than_the_window_goes_on() -> None:
    """While its last minutes are left out of the past, the job is compared with the hours before."""
    w = window(slow_down(timed(), 0, 0.2))
    assert says(throughput_drop, replace(w, baseline_of=excluded(w, slice(None)))) == [f"job:{JOB}/"]
    healthy = window(timed())
    assert clear(throughput_drop, replace(healthy, baseline_of=excluded(healthy, slice(None)))) == {f"job:{JOB}/"}


def test_a_new_run_ends_what_the_run_before_had() -> None:
    """Some minutes after a restart the job is clear: its pace is that of another run."""
    c = slow_down(timed(), 20)
    c.add("rank.step", -500, 100)
    assert clear(throughput_drop, window(c)) == {f"job:{JOB}/"}


# --- data_stall -------------------------------------------------------------------------------------------------------
def data(c: Cluster, columns: object, start: int, seconds: float) -> Cluster:
    c.signals["rank.data_wait_seconds"][start:, columns] += seconds
    return settle(c)


@pytest.mark.parametrize(("columns", "named"), [(slice(None), [f"job:{JOB}/"]), (slice(8, 16), ["node:n001/"])])
@pytest.mark.parametrize("seconds", [0.2, 1.0])
def test_who_waits_for_data(columns: slice, named: list[str], seconds: float) -> None:
    """All ranks: the job. Those of one node: the node, with its job."""
    w = window(data(timed(), columns, AT, seconds), AT + 20)
    assert says(data_stall, w) == named
    assert {v.target.job for v in data_stall.judge(w, data_stall.Params())} == {JOB}


def hidden(c: Cluster) -> Cluster:
    c.signals["rank.data_wait_seconds"][AT:] += 0.3
    return c  # the steps are as long as before


def always_waited(c: Cluster) -> Cluster:
    return data(c, slice(None), 0, 0.5)


def one_of_a_node(c: Cluster) -> Cluster:
    return data(c, 11, AT, 0.5)


@pytest.mark.parametrize("plant", [hidden, always_waited, one_of_a_node, everybody, checkpoints], ids=lambda f: f.__name__)
def test_what_is_no_stall(plant: Callable[[Cluster], Cluster]) -> None:
    """Waiting that costs no step, that was always there, or that is one rank's."""
    assert says(data_stall, window(plant(timed(5)))) == []


@pytest.mark.parametrize(("later", "named"), [(1.0, ["node:n001/"]), (1.1, [])], ids=["all wait for it", "it would wait anyway"])
def test_where_steps_are_rough_the_others_waiting_tells_what_a_stall_costs(later: float, named: list[str]) -> None:
    """A node waits for data for a thirtieth of the step, and the steps scatter by more. That it comes last now costs the others; where
    another node comes later still, as ever, nobody lost anything."""
    c = timed(3)
    c.signals["tail"] *= 4.0
    c.signals["tail"] += 0.1 * c.rng("rough").normal(0, 1, (c.ticks, 1))
    c = work_more(c, slice(16, 24), 0, later)
    assert says(data_stall, window(data(c, slice(8, 16), AT, 0.11), AT + 24)) == named


@pytest.mark.parametrize(("columns", "named"), [(slice(None), [f"job:{JOB}/"]), (slice(8, 16), ["node:n001/"])])
def test_a_stall_older_than_the_window_goes_on(columns: slice, named: list[str]) -> None:
    """While the last minutes are left out of the past, the waiting is compared with that of the hours before."""
    w = window(data(timed(), columns, 0, 0.5))
    assert says(data_stall, w) == []
    assert says(data_stall, replace(w, baseline_of=excluded(w, columns))) == named


@pytest.mark.parametrize(("left_out", "named"), [(8.0, ["node:n002/"]), (0.0, [])], ids=["found-before", "never-found"])
def test_a_stall_after_a_greater_one(left_out: float, named: list[str]) -> None:
    """A node waits after the whole job waited for longer and was well again: new where that was found, else the job's usual ups and downs."""
    c = data(data(timed(), slice(None), 20, 2.0), slice(None), 60, -2.0)
    w = window(data(c, slice(16, 24), 85, 0.6), 110)
    minutes = np.full(32, (w.times[-1] - w.times[0]) / 60_000 - left_out)
    past = replace(w, baseline_of=lambda *_: Baseline(minutes, np.full(32, 0.02), np.zeros(32), np.zeros(32)))
    assert says(data_stall, past) == named


# --- the shared pieces ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("at", "up"), [(10, 0.2), (60, 0.05), (100, 0.3)])
def test_the_moment_of_a_change_is_found(at: int, up: float) -> None:
    """Within a few values, with the levels on both sides."""
    rng = np.random.default_rng(7)
    values = 1.0 + 0.01 * rng.normal(size=120) + np.where(np.arange(120) >= at, up, 0.0)
    found = job_pace.change(values, 8)
    assert abs(found.at - at) <= 3
    assert abs(found.before - 1.0) < 0.02
    assert abs(found.growth - up) < 0.02


def test_too_few_values_have_no_change() -> None:
    """Nothing is said of them."""
    assert job_pace.change(np.ones(9), 4) is None


@pytest.mark.parametrize("plant", [lambda c: lag(c, 11, AT), lambda c: slow_down(c, AT), lambda c: wait_for_data(c, AT)])
def test_a_pause_says_nothing(plant: Callable[[Cluster], Cluster]) -> None:
    """During a checkpoint no word is said: an open finding stands still."""
    c = plant(Cluster(ticks=100)).phase("checkpoint", 96)
    w = c.window()
    assert [list(d.judge(w, d.Params())) for d in (straggler, throughput_drop, data_stall)] == [[], [], []]
