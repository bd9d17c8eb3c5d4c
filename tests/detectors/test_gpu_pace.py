"""Clocks, slow GPUs, held memory and cooling: what only looks like the fault, and what tells one fault from another."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from core.plugins import load_plugins
from core.types import JobState, Target
from core.window import Window
from detectors.slow_reasons import ranked, reason_of
from pipeline.consequences import explained
from pipeline.correlate import correlate
from tests import needs
from tests.contract import windows
from tests.contract.gpu_plants import heat_loop, leak, lose_clock, rest, slow_rank, time_ranks
from tests.contract.windows import JOB, START, Cluster

PLUGINS = load_plugins("detectors")
GPU = "gpu:GPU-n001-3"
LOOP = "cooling:/loop1"


def verdicts(window: Window, detector: str) -> dict[str, str]:
    plugin = PLUGINS[detector]
    return {v.target.key: v.state for v in plugin.judge(window, plugin.params())}


def faulty(cluster: Cluster, detector: str, **more: object) -> list[str]:
    return sorted(k for k, state in verdicts(cluster.window(**more), detector).items() if state == "faulty")


# --- clocks -----------------------------------------------------------------------------------------------------------
def with_bits(bits: int) -> Callable[[Cluster], Cluster]:
    def plant(c: Cluster) -> Cluster:
        return lose_clock(c, 11, 60).put("gpu.throttle_reasons_bits", float(bits), 60, None, [11])

    plant.__name__ = f"bits_{bits:#x}"
    return plant


def at_the_limit(c: Cluster) -> Cluster:
    return lose_clock(c, 11, 60).put("gpu.power_watts", 668.0, 60, None, [11])


def at_the_limit_unseen(c: Cluster) -> Cluster:
    c.without = ("gpu.power_limit_watts", "gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio")
    return lose_clock(c, 11, 60).put("gpu.power_watts", 640.0, 60, None, [11])


def idle_one(c: Cluster) -> Cluster:
    return lose_clock(c, 11, 60, 0.8).put("gpu.utilization_ratio", 0.0, 60, None, [11])


def whole_node(c: Cluster) -> Cluster:
    for column in range(8, 16):
        lose_clock(c, column, 60)
    return c


def whole_job(c: Cluster) -> Cluster:
    for column in range(32):
        lose_clock(c, column, 60)
    return c


def half_the_job(c: Cluster) -> Cluster:
    for column in range(0, 32, 2):
        lose_clock(c, column, 60)
    return c


def one_reading(c: Cluster) -> Cluster:
    return c.put("gpu.sm_clock_hertz", 345e6, 96, 98, [11])


def hot(c: Cluster) -> Cluster:
    return windows.throttle(c, 11, 60)


def hot_without_counters(c: Cluster) -> Cluster:
    c.without = ("gpu.throttle_reasons_bits", "gpu.thermal_violation_ratio", "gpu.thermal_margin_celsius")
    return windows.throttle(c, 11, 60)


def another_model(c: Cluster) -> Cluster:
    c.put("gpu.memory_free_bytes", 8e9, 0)
    c.put("gpu.memory_free_bytes", 60e9, 0, None, list(range(8, 12)))
    for column in range(8, 12):
        lose_clock(c, column, 0, 0.3)
    return c


def set_lower(c: Cluster) -> Cluster:
    c.put("gpu.application_clock_hertz", 1980e6, 0)
    return lose_clock(c, 11, 60).put("gpu.application_clock_hertz", 1584e6, 60, None, [11])


def a_little_since_the_start(c: Cluster) -> Cluster:
    return lose_clock(c, 11, 0, 0.05)


# --- slow GPUs --------------------------------------------------------------------------------------------------------
def late_process(c: Cluster) -> Cluster:
    return slow_rank(c, 11, 60, busy=False)


def with_a_lower_clock(c: Cluster) -> Cluster:
    return lose_clock(slow_rank(c, 11, 60), 11, 60, 0.15)


def second_program(c: Cluster) -> Cluster:
    return slow_rank(c, 11, 60).add("gpu.memory_used_bytes", 5e9, 58, None, [11])


def uneven_since_the_start(c: Cluster) -> Cluster:
    return slow_rank(c, 11, 0)


def evaluation_on_one(c: Cluster) -> Cluster:
    others = [i for i in range(32) if i != 11]
    for name in ("gpu.tensor_active_ratio", "gpu.power_watts"):
        c.signals[name][80:90][:, others] *= 0.1
    return c


def several_with_more_to_do(c: Cluster) -> Cluster:
    for column in (3, 11, 19):
        wait_for(c, column)
    return c


def wait_for(c: Cluster, column: int, share: float = 0.3, start: int = 50) -> Cluster:
    """All but one GPU work a smaller share of their time, and each does as much in a step: nobody's rank is timed."""
    others = [i for i in range(c.width("gpu")) if i != column]
    c.signals["gpu.sm_active_ratio"][start:, others] /= 1 + share
    c.signals["gpu.tensor_active_ratio"][start:] /= 1 + share
    return c.add("gpu.power_watts", -90.0, start, None, others)


def more_to_do(c: Cluster) -> Cluster:
    """An expert that gets more tokens than the others: its kernels take longer, and do more."""
    slow_rank(c, 11, 50).signals["gpu.tensor_active_ratio"][50:, 11] *= 1.25
    return c


def more_to_do_untimed(c: Cluster) -> Cluster:
    wait_for(c, 11).signals["gpu.tensor_active_ratio"][50:, 11] *= 1.3
    return c


def page_stands_still(c: Cluster) -> Cluster:
    """The exporter of a node repeats itself when the others begin to wait."""
    wait_for(c, 11)
    for name in ("sm_active_ratio", "tensor_active_ratio", "power_watts"):
        values = c.signals[f"gpu.{name}"]
        values[50:, 8:16] = values[49, 8:16]
    return c


# --- held memory ------------------------------------------------------------------------------------------------------
def job_elsewhere(c: Cluster, *nodes: str) -> Cluster:
    c.job = JobState(JOB, "train", nodes or tuple(n for n in c.names if n != "n001"))
    return c


def idle_program(c: Cluster) -> Cluster:
    return leak(c, 11, 60).put("gpu.power_watts", 118.0, 60, None, [11]).put("gpu.sm_clock_hertz", 1980e6, 60, None, [11])


def job_still_there(c: Cluster) -> Cluster:
    before = {k: v.copy() for k, v in c.signals.items() if k.startswith("rank.")}
    leak(c, 11, 60).signals.update(before)
    return c


def untimed_job(c: Cluster) -> Cluster:
    """A job of one GPU, whose trainer tells nothing, before its first kernel: the others of its node have memory as well."""
    c.job = JobState(JOB, "unknown", ("n001",))
    return leak(c, 11, 60).put("gpu.memory_used_bytes", 3e10, 60, None, [8, 9, 10, 12])


def moving_memory(c: Cluster) -> Cluster:
    leak(c, 11, 60).signals["gpu.memory_used_bytes"][60:, 11] = np.linspace(1e9, 6e10, c.ticks - 60)
    return c


def just_ended(c: Cluster) -> Cluster:
    return leak(c, 11, 92)


def daemon(c: Cluster) -> Cluster:
    return leak(c, 11, 60, 1.4e9)


def instances(c: Cluster) -> Cluster:
    return leak(c, 11, 60).put("gpu.mig_enabled", 1.0, 0, None, list(range(8, 16)))


def everybody_loads(c: Cluster) -> Cluster:
    return rest(c, [0, 1, 2, 3], 60).put("gpu.memory_used_bytes", 4e10, 60)


def own_job(c: Cluster) -> Cluster:
    c.entities["gpu"] = tuple(replace(g, job="pod-a") if i == 11 else g for i, g in enumerate(c.entities["gpu"]))
    c.job = JobState("pod-a", "unknown", ())
    return leak(c, 11, 60)


# --- cooling ----------------------------------------------------------------------------------------------------------
def hot_day(c: Cluster) -> Cluster:
    heat_loop(c, 20, 6, 0, 15)
    return heat_loop(c, 20, 6, 1, 15)


def hotter_day_on_one_side(c: Cluster) -> Cluster:
    heat_loop(c, 20, 7, 0, 15)
    return heat_loop(c, 20, 4, 1, 15)


def fans_of_a_node(c: Cluster) -> Cluster:
    return c.add("gpu.temperature_celsius", 18, 60, None, list(range(8, 16)))


def hot_gpus(c: Cluster) -> Cluster:
    return c.add("gpu.temperature_celsius", 18, 60, None, [8, 9, 24, 25])


def more_power(c: Cluster) -> Cluster:
    loop = [*range(8, 16), *range(24, 32)]
    c.put("gpu.power_watts", 420.0, 0, 60, loop)
    c.add("gpu.temperature_celsius", -11, 0, 60, loop)
    return c


def job_starts(c: Cluster) -> Cluster:
    loop = [*range(8, 16), *range(24, 32)]
    warm = np.round(62 - 30 * np.exp(-np.arange(16) / 3))[:, None]
    for name, value in (("temperature_celsius", 32), ("power_watts", 72), ("utilization_ratio", 0)):
        c.put(f"gpu.{name}", value, 0, 60, loop)
    return c.put("gpu.temperature_celsius", warm, 60, 76, loop)


def always_warmer(c: Cluster) -> Cluster:
    return heat_loop(c, 0, 14)


def one_loop_only(c: Cluster) -> Cluster:
    c.put("gpu.utilization_ratio", 0.0, 0, None, [*range(8), *range(16, 24)])
    return heat_loop(c, 60)


SILENT = [
    ("clock_loss", with_bits(0x4)), ("clock_loss", with_bits(0x2)), ("clock_loss", with_bits(0x48)), ("clock_loss", with_bits(0x88)),
    ("clock_loss", at_the_limit), ("clock_loss", at_the_limit_unseen), ("clock_loss", idle_one), ("clock_loss", whole_node),
    ("clock_loss", whole_job), ("clock_loss", half_the_job), ("clock_loss", one_reading), ("clock_loss", hot),
    ("clock_loss", hot_without_counters), ("clock_loss", another_model), ("clock_loss", set_lower),
    ("clock_loss", a_little_since_the_start), ("clock_loss", late_process),
    ("gpu_slow", late_process), ("gpu_slow", with_a_lower_clock), ("gpu_slow", second_program), ("gpu_slow", uneven_since_the_start),
    ("gpu_slow", evaluation_on_one), ("gpu_slow", several_with_more_to_do), ("gpu_slow", hot), ("gpu_slow", lambda c: lose_clock(c, 11, 60)),
    ("gpu_slow", time_ranks), ("gpu_slow", more_to_do), ("gpu_slow", more_to_do_untimed), ("gpu_slow", page_stands_still),
    ("gpu_memory_leaked", idle_program), ("gpu_memory_leaked", job_still_there), ("gpu_memory_leaked", untimed_job), ("gpu_memory_leaked", moving_memory),
    ("gpu_memory_leaked", just_ended), ("gpu_memory_leaked", daemon), ("gpu_memory_leaked", instances),
    ("gpu_memory_leaked", everybody_loads), ("gpu_memory_leaked", own_job),
    ("cooling_fault", hot_day), ("cooling_fault", hotter_day_on_one_side), ("cooling_fault", fans_of_a_node),
    ("cooling_fault", hot_gpus), ("cooling_fault", more_power), ("cooling_fault", job_starts), ("cooling_fault", always_warmer),
    ("cooling_fault", one_loop_only), ("cooling_fault", hot),
]


@pytest.mark.parametrize(("detector", "alike"), SILENT, ids=lambda x: getattr(x, "__name__", x))
def test_stays_silent_on_look_alikes(detector: str, alike: Callable[[Cluster], Cluster]) -> None:
    """What only looks like the fault opens nothing, soon after it began and later."""
    cluster = alike(Cluster())
    for upto in (72, 91):
        assert faulty(cluster, detector, upto=upto) == [], upto


@pytest.mark.parametrize(("detector", "alike"), [
    ("clock_loss", at_the_limit), ("clock_loss", set_lower), ("cooling_fault", hot_day), ("gpu_memory_leaked", daemon)])
def test_what_is_explained_is_no_fault_and_nothing_hides_behind_it(detector: str, alike: Callable[[Cluster], Cluster]) -> None:
    """The others are judged as ever: they are clear."""
    states = verdicts(alike(Cluster()).window(), detector)
    assert list(states.values()).count("clear") >= 1


def labelled(window: Window, nodes: set[str]) -> Window:
    places = {n: replace(p, labels=(("driver", "590" if n in nodes else "570"),)) for n, p in window.topology.places.items()}
    return replace(window, topology=replace(window.topology, places=places))


@pytest.mark.parametrize(("low", "label", "found"), [(3, 3, 24), (3, 8, 0), (1, 1, 0)])
def test_whole_nodes_count_where_a_label_joins_them(low: int, label: int, found: int) -> None:
    """Low clocks on all GPUs of nodes that share a driver which others lack; a lone node or a label of all is a setting."""
    cluster = Cluster(nodes=8)
    for column in range(8 * low):
        lose_clock(cluster, column, 60)
    window = labelled(cluster.window(), {f"n{i:03d}" for i in range(label)})
    assert list(verdicts(window, "clock_loss").values()).count("faulty") == found


@pytest.mark.parametrize(("low", "found"), [((0, 1, 4), 24), ((0, 1), 0)], ids=["a-rollout", "two-nodes"])
def test_a_label_joins_nodes_that_are_half_of_a_job(low: tuple[int, ...], found: int) -> None:
    """Two of four nodes of a job are low, and no middle tells which two: the other job's GPUs of the type do."""
    cluster = Cluster(nodes=8)
    for node in low:
        for column in range(8 * node, 8 * node + 8):
            lose_clock(cluster, column, 60)
    seen = cluster.window()
    jobs = tuple(replace(seen.jobs[0], id=f"j{i}", nodes=tuple(cluster.names[4 * i:4 * i + 4])) for i in range(2))
    window = replace(labelled(seen, {cluster.names[i] for i in low}), jobs=jobs)
    assert list(verdicts(window, "clock_loss").values()).count("faulty") == found


@pytest.mark.parametrize("loss", [0.04, 0.1, 0.5])
def test_a_lost_clock_of_any_size_is_found(loss: float) -> None:
    """From 4 % of the clock on."""
    assert faulty(lose_clock(Cluster(), 11, 60, loss), "clock_loss") == [GPU]


def test_a_clock_that_was_always_far_lower_is_found_where_all_explanations_are_shown() -> None:
    """8 % below the peers with limit, bits and heat shown; without them it is not judged."""
    assert faulty(lose_clock(Cluster(), 11, 0, 0.15), "clock_loss") == [GPU]
    blind = Cluster(without=("gpu.power_limit_watts", "gpu.throttle_reasons_bits"))
    assert faulty(lose_clock(blind, 11, 0, 0.15), "clock_loss") == []


@pytest.mark.parametrize("without", [(), ("gpu.sm_active_ratio",), ("gpu.sm_clock_hertz",), ("gpu.tensor_active_ratio",)])
@pytest.mark.parametrize("excess", [0.12, 0.3])
def test_a_slow_gpu_is_told_by_what_the_page_shows(excess: float, without: tuple[str, ...]) -> None:
    """By SM activity, or by power alone; that nothing holds its clock by the clock, or by the driver's reasons."""
    assert faulty(slow_rank(Cluster(without=without), 11, 50, excess), "gpu_slow") == [GPU]


def test_without_timed_ranks_the_one_that_works_on_is_named() -> None:
    """All others began to wait at one moment; it did not."""
    assert faulty(wait_for(Cluster(trainer=False), 11), "gpu_slow") == [GPU]


def test_what_was_seen_before_a_job_stood_does_not_count() -> None:
    """A job that works on one GPU more than on others, stands, and comes back: the pattern must last at work."""
    cluster = wait_for(Cluster(trainer=False), 11)
    end = cluster.signals["gpu.utilization_ratio"].shape[0]
    cluster.put("gpu.utilization_ratio", 0.0, end - 36, end - 22, list(range(cluster.width("gpu"))))
    assert faulty(cluster, "gpu_slow") == []


def test_a_leak_is_found_by_the_resting_gpus_of_other_nodes() -> None:
    """All GPUs of a node hold memory although nobody is there: other resting nodes show what rest is."""
    cluster = rest(job_elsewhere(Cluster(), "n000", "n003"), [1, 2], 40)
    cluster.put("gpu.memory_used_bytes", 4e10, 40, None, list(range(8, 16)))
    assert faulty(cluster, "gpu_memory_leaked") == [f"gpu:GPU-n001-{i}" for i in range(8)]


def between_runs(run: tuple[int, int] = (74, 92), **second: float) -> Cluster:
    """A job that dies, runs again for a while and dies again, and a GPU whose memory stays held. second: of its second pause."""
    c = Cluster()
    before = {name: values.copy() for name, values in c.signals.items()}
    leak(c, 11, 60)
    for name, values in before.items():
        c.signals[name][slice(*run)] = values[slice(*run)]
    for name, value in second.items():
        c.put(f"gpu.{name}", value, run[1], None, [11])
    return c


@pytest.mark.parametrize(("made", "named"), [
    (between_runs(), ["gpu:GPU-n001-3"]), (between_runs(memory_used_bytes=2e10), []), (between_runs(memory_used_bytes=0.0), []),
    (between_runs(sm_clock_hertz=1980e6, power_watts=118.0), []), (between_runs((61, 92)), [])],
    ids=["held twice", "other bytes", "free again", "a program at rest", "one pause"])
def test_memory_that_stays_between_short_runs(made: Cluster, named: list[str]) -> None:
    """Two pauses of a minute or two, in which the same bytes stay and the other GPUs are empty, are enough."""
    assert faulty(made, "gpu_memory_leaked") == named


def test_a_model_server_at_rest_is_no_leak() -> None:
    """A real page of 8 H100, one of which has a server without requests: 114 W beside 66 to 69 W."""
    page = needs.shared("samples/dcgm/aicr_8xH100_partial.prom").read_text()
    watts = [float(v) for v in re.findall(r"^DCGM_FI_DEV_POWER_USAGE{.*} ([0-9.]+)$", page, re.MULTILINE)]
    assert len(watts) == 8
    cluster = rest(Cluster(nodes=1, trainer=False, without=("gpu.sm_clock_hertz",)), [0], 0)
    cluster.job = JobState(JOB, "done", (), end=START)
    cluster.put("gpu.memory_used_bytes", 7e10, 0, None, [0]).put("gpu.power_watts", np.array(watts), 0)
    assert faulty(cluster, "gpu_memory_leaked") == []
    assert faulty(cluster.put("gpu.power_watts", 67.0, 0, None, [0]), "gpu_memory_leaked") == ["gpu:GPU-n000-0"]


@pytest.mark.parametrize("minutes", [0.0, 5.0])
def test_a_loop_that_heats_up_is_named_by_its_loop_or_by_its_air(minutes: float) -> None:
    """Without inlet temperatures the loop; where the air rose with it, the rack."""
    cluster = heat_loop(Cluster(), 50, 14, 1, minutes)
    assert faulty(cluster, "cooling_fault") == [LOOP]
    cluster.signals["node.inlet_temperature_celsius"] = np.full((cluster.ticks, 4), 24.0)
    cluster.add("node.inlet_temperature_celsius", 12.0, 50, None, [1, 3])
    window = cluster.window()
    places = {n: replace(p, rack=f"rack{i % 2}") for i, (n, p) in enumerate(window.topology.places.items())}
    both = replace(window, topology=replace(window.topology, places=places))
    assert [k for k, s in verdicts(both, "cooling_fault").items() if s == "faulty"] == ["rack:/rack1"]


def findings(window: Window, *detectors: str) -> list:
    from core.types import Finding

    return [Finding(f"fnd-{d}-{i}", d, v.fault, v.target, "open", v.severity, v.evidence, v.reason, v.onset_at or START, START, START)
            for d in detectors for i, v in enumerate(PLUGINS[d].judge(window, PLUGINS[d].params())) if v.state == "faulty"]


def test_throttled_gpus_of_a_hot_loop_belong_to_its_incident() -> None:
    """One group at the loop's scope, with its nodes; a GPU that throttles elsewhere stays alone."""
    cluster = heat_loop(Cluster(), 50, 14)
    for column in (8, 9, 15, 27):
        windows.throttle(cluster, column, 54)
    windows.throttle(cluster, 2, 54)
    window = cluster.window()
    found = findings(window, "cooling_fault", "thermal_throttle")
    assert len(found) == 8  # four GPUs and their two nodes, the GPU elsewhere, the loop
    groups = explained(correlate(window, found), window)
    assert [(g.fault, g.scope, g.culprit.target.key) for g in groups if g.culprit.target] == [
        ("cooling_fault", "rack", LOOP), ("thermal_throttle", "device", "gpu:GPU-n000-2")]
    assert groups[0].nodes == ("n001", "n003")
    assert len(groups[0].findings) == 7


def test_a_slow_gpu_takes_its_rank_along() -> None:
    """The straggler that it makes is no incident of its own."""
    window = slow_rank(Cluster(), 11, 50).window()
    groups = explained(correlate(window, findings(window, "gpu_slow", "straggler")), window)
    assert [(g.fault, g.scope) for g in groups] == [("gpu_slow", "device")]


@pytest.mark.parametrize(("numbers", "reason"), [
    ((0.08, 0.077, 82.0, 16.0, 0.84), "hot"), ((0.08, 0.07, 66.0, 1.0, 0.99), "power_limited"), ((0.08, 0.07, 66.0, 1.0, 0.8), "low_clock"),
    ((0.08, 0.01, 74.0, 9.0, 0.94), "no_reason"), ((0.1, np.nan, np.nan, np.nan, np.nan), "not_measured"),
])
def test_the_reason_of_a_slow_gpu(numbers: tuple[float, ...], reason: str) -> None:
    """A lower clock explains slowness, and heat or the limit explains the clock."""
    assert reason_of(*numbers) == reason


def test_ranking_needs_runs_peers_and_constancy() -> None:
    """Slowest first; a GPU with one slow run, with too few runs or of another model is not ranked."""
    rng = np.random.default_rng(3)
    seconds = rng.normal(100, 0.5, (6, 12))
    seconds[:, 2] *= 1.2
    seconds[:, 3] *= 1.08
    seconds[0, 4] *= 1.5
    seconds[2:, 5] = np.nan
    seconds[:2, 5] *= 1.5
    seconds[:, 11] *= 2
    none = np.full_like(seconds, np.nan)
    groups = np.array([0] * 11 + [1])
    found = ranked(seconds, none, none, none, 300.0, groups)
    assert [(s.at, s.reason) for s in found] == [(2, "not_measured"), (3, "not_measured")]


def test_targets_of_loops_are_no_part_of_a_node() -> None:
    """A loop is named by itself."""
    assert str(Target("cooling", device="loop1")) == "loop1"


def test_parts_without_a_past_divide_nothing_by_zero() -> None:
    """GPUs whose activity and power were nothing until now are judged without a warning."""
    c = wait_for(Cluster(), 11)
    for signal in ("gpu.tensor_active_ratio", "gpu.power_watts"):
        c.put(signal, 0.0, 0, 60)
    with np.errstate(all="raise"):
        assert faulty(c, "gpu_slow") == []
