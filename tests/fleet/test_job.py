"""Synchronous jobs: groups, how a step goes, its noise, the loss, and what each knob does."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadInput
from fleet.groups import Groups, lockstep, per_gpu
from fleet.jobs import make_job, shape_of
from fleet.loss import LossCurve
from fleet.noise import StepNoise
from fleet.shape import JobShape
from tests.fleet.jobhelp import Bench

SAMPLES = Path(__file__).parents[3] / "shared" / "samples" / "training"
MEGATRON = ("megatron_golden_gpt3_15b_8t_release_sm.json", "megatron_golden_mixtral_8x7b_alltoall_tp2pp4ep4_release.json")


# --- groups -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("ranks", "gpus", "tp", "pp", "expected"), [
    (128, 8, None, 1, (8, 1, 16)), (128, 8, 8, 4, (8, 4, 4)), (64, 4, None, 2, (4, 2, 8)), (8, 8, 8, 4, (8, 1, 1)),
    (120, 8, 8, 4, (8, 4, 3)), (32, 8, 2, 4, (2, 4, 4)), (72, 4, 8, 3, (8, 3, 3)),
])
def test_groups_fit_the_ranks(ranks, gpus, tp, pp, expected):
    """As asked for where there is room; else fewer stages, and whole replicas only."""
    groups = Groups.fit(ranks, gpus, tp, pp)
    assert (groups.tp, groups.pp, groups.dp) == expected


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 6))
def test_each_rank_is_in_its_own_groups(tp, pp, dp):
    """Index and peers agree, and the groups of a kind cover every rank once."""
    groups = Groups(tp, pp, dp)
    for kind, size in (("tp", tp), ("dp", dp), ("pp", pp)):
        found = [tuple(groups.peers(rank)[kind].tolist()) for rank in range(groups.ranks)]
        assert all(rank in members and len(members) == size for rank, members in enumerate(found))
        assert sorted(sum(set(found), ())) == list(range(groups.ranks))
    assert groups.stage_ranks(-1)[-1] == groups.ranks - 1


def test_a_stage_lies_on_nodes_of_its_own():
    """With tensor groups of a node's size the pipeline's stages are on different nodes."""
    groups = Groups.fit(64, 8, 8, 4)
    assert {rank // 8 for rank in groups.stage_ranks(0)} == {0, 1}
    assert {rank // 8 for rank in groups.stage_ranks(3)} == {6, 7}


@pytest.mark.parametrize(("nics", "expected"), [(8, [1, 1, 1, 1, 1, 1, 1, 3]), (16, [1, 1, 1, 1, 1, 1, 1, 3]), (4, [1, 1, 1, 1, 1, 1, 3, 3])])
def test_nics_and_gpus_of_a_node(nics, expected):
    """The slowest of a GPU's NICs counts; GPUs that share one share its slowness."""
    values = np.ones((2, nics))
    values[1, -1] = 3.0
    assert per_gpu(values, 8)[1].tolist() == expected


def _step(groups: Groups, work, tensor=0.0, hop=0.0, collective=0.5, microbatches=8):
    n = groups.ranks
    return lockstep(groups, np.asarray(work, float) * np.ones(n), tensor * np.ones(n), hop * np.ones(n),
                    collective * np.ones(n), microbatches)


def test_a_step_takes_the_slowest_rank_and_the_slowest_link():
    """Without a pipeline it is the greatest compute plus the longest collective."""
    groups, work, links = Groups(8, 1, 4), np.full(32, 2.0), np.full(32, 0.5)
    work[11], links[29] = 3.0, 1.25
    step = lockstep(groups, work, np.zeros(32), np.zeros(32), links, 8)
    assert step.seconds == pytest.approx(4.25)
    # The slow link belongs to a data group of every eighth rank, no other group's own exchange is longer.
    assert np.flatnonzero(step.exchange > 1).tolist() == [5, 13, 21, 29]


def test_a_pipeline_fills_and_empties():
    """p stages and m microbatches take (m + p - 1) / m of the compute."""
    assert _step(Groups(1, 4, 1), 2.0, microbatches=8).seconds == pytest.approx(2.0 * 11 / 8)


def test_a_slow_stage_holds_up_the_others():
    """One stage that takes 1 s longer makes the step 1 s longer: the others wait through bubbles."""
    groups = Groups(2, 4, 2)
    work = np.full(16, 2.0)
    before = _step(groups, work).seconds
    work[groups.stage_ranks(2)] = 3.0
    assert _step(groups, work).seconds - before == pytest.approx(1.0)


def test_one_replica_group_needs_no_collective():
    """A job with one replica exchanges nothing across nodes."""
    assert _step(Groups(8, 1, 1), 2.0).seconds == pytest.approx(2.0)


# --- culprits and victims -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("share", [0.08, 2.0])
@pytest.mark.parametrize("what", ["compute", "link", "nvlink", "loader", "data"])
def test_impact_gives_the_factor_that_costs_a_share_of_the_step(what, share, pp):
    """The factor that `Impact` gives for a share makes the step longer by about that share."""
    def median(struck: bool) -> float:
        bench = Bench(nodes=4, seed=3, pp=pp, checkpoint_every_seconds=1e9, rough_share=0, outlier_share=0).train()
        job, factor = bench.job, getattr(bench.job.impact, what)(share) if struck else 1.0
        array = {"compute": job.slowness, "link": job.links, "nvlink": job.nvlink, "loader": job.loader}.get(what)
        if array is not None:
            array[20] *= factor
        else:
            bench.turn = lambda knobs: knobs.data.__setitem__(20, factor)
        return float(np.median(bench.steps(120)))
    assert median(True) / median(False) - 1 == pytest.approx(share, rel=0.12, abs=0.02)


@pytest.mark.parametrize("pp", [1, 2])
def test_the_culprit_does_not_wait_and_its_victims_do(pp):
    """A slow rank computes longest and waits least; all others wait more than before."""
    bench = Bench(nodes=8, seed=4, pp=pp, rough_share=0, outlier_share=0).train()
    before = bench.job.comm_wait.copy()
    bench.turn = lambda knobs: knobs.compute.__setitem__(37, 1.3)
    bench.run(40)
    wait, compute = bench.job.comm_wait, bench.job.compute
    assert int(wait.argmin()) == int(compute.argmax()) == 37
    others = np.delete(np.arange(64), 37)
    assert (wait[others] > before[others] + 0.3).all()


def test_victims_ask_for_less_power():
    """Who waits draws less than who computes."""
    bench = Bench(nodes=4, seed=4).train()
    bench.turn = lambda knobs: knobs.compute.__setitem__(5, 1.8)
    bench.run(60)
    load = bench.work.load.ravel()
    assert load[5] > 1.15 * np.median(load)


# --- noise --------------------------------------------------------------------------------------------------------------
def _figures(times: np.ndarray) -> dict[str, float]:
    median = float(np.median(times))
    usual = times[times < 1.3 * median]
    return {"cv": float(usual.std() / usual.mean()), "p95": float(np.percentile(times, 95)) / median,
            "beyond_1.1": float((times > 1.1 * median).mean()), "beyond_1.3": float((times > 1.3 * median).mean())}


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")
@pytest.mark.parametrize("name", MEGATRON)
def test_step_times_are_at_least_as_rough_as_megatrons(name):
    """CV, p95, and the shares beyond 1.1 and 1.3 times the median are those of the real run or more, and not far more."""
    values = json.loads((SAMPLES / name).read_text())["iteration-time"]["values"].values()
    real = np.array([float(v) for v in values if v != "nan"])[20:]  # the first hundreds of steps warm up
    shape, noise, rng = JobShape(), StepNoise(JobShape(), 32), np.random.default_rng(5)
    drawn = [noise.draw(rng, 256) for _ in range(20_000)]
    share = shape.compute_seconds / Bench(start=False).job.impact.step_seconds
    ours = _figures(np.array([1 + share * (n.common - 1) + n.excess for n in drawn]))
    theirs = _figures(real)
    assert all(ours[key] >= theirs[key] for key in ours), (ours, theirs)
    most = {key: 1.4 * max(theirs[key], low) for key, low in (("cv", 0.05), ("p95", 1.16), ("beyond_1.1", 0.11), ("beyond_1.3", 0.027))}
    assert all(ours[key] <= most[key] for key in ours), (ours, most)


def test_first_steps_take_ten_times_as_long():
    """Warm-up: the first step about ten times the usual one, the sixth is usual."""
    bench = Bench(seed=6)
    seen: dict[int, float] = {}
    bench.until(lambda: (seen.__setitem__(bench.job.step, bench.job.step_seconds) or bench.job.phase == "train"))
    bench.run(100)
    assert 7 < seen[18_001] / bench.job.step_seconds < 11


# --- loss ---------------------------------------------------------------------------------------------------------------
def _losses(steps: int, first: int = 18_000, seed: int = 1, **turned) -> tuple[LossCurve, np.ndarray]:
    curve, rng = LossCurve(bool(turned.pop("fp16", False)), JobShape().loss_noise), np.random.default_rng(seed)
    out = []
    for i in range(steps):
        curve.step(rng, first + i, **turned)
        out.append(curve.loss)
    return curve, np.array(out)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")
def test_loss_noise_is_as_large_as_megatrons():
    """The difference over five steps late in training has the spread of the real run, and its largest jump."""
    values = json.loads((SAMPLES / MEGATRON[0]).read_text())["lm loss"]["values"].values()
    real = np.diff(np.array([float(v) for v in values if v != "nan"])[-1000:])
    ours = np.diff(_losses(20_000)[1][::5])
    assert ours.std() == pytest.approx(real.std(), rel=0.2)
    assert 3 < ours.max() / ours.std() < 8


def test_healthy_spikes_recover():
    """Whatever jumps in a healthy run is back within thirty steps."""
    losses = _losses(30_000, seed=3)[1]
    smooth = np.convolve(losses, np.ones(200) / 200, "same")[200:-200]
    high = losses[200:-200] - smooth > 0.12
    longest = max((len(run) for run in "".join("x" if h else " " for h in high).split()), default=0)
    assert 0 < high.sum() < 150
    assert longest < 30


def test_a_slope_makes_it_diverge():
    """The loss climbs for as long as the slope is there, and stays up."""
    losses = _losses(400, slope=0.01)[1]
    assert losses[-1] - losses[0] > 3


@pytest.mark.parametrize(("turned", "check"), [
    ({"nonfinite": True}, lambda c, losses: math.isnan(c.loss) and math.isnan(c.grad_norm) and c.nonfinite == 50),
    ({"overflow_share": 1.0}, lambda c, losses: c.skipped == 50 and c.loss_scale == 1.0 and math.isinf(c.grad_norm)),
    ({"frozen": True}, lambda c, losses: len(set(losses.tolist())) == 1),
    ({"bump": 2.0}, lambda c, losses: losses.min() > 3.5),
])
def test_what_the_loss_knobs_do(turned, check):
    """NaN counts and stays while it lasts; overflow halves the scale; a frozen loss repeats; a bump lifts it."""
    curve, losses = _losses(50, **turned)
    assert check(curve, losses)


def test_fp16_skips_a_step_or_two_in_a_thousand():
    """The scaler's daily work."""
    curve, _ = _losses(10_000, fp16=True)
    assert 5 <= curve.skipped <= 30
    assert curve.nonfinite == 0


# --- knobs --------------------------------------------------------------------------------------------------------------
def test_a_pause_of_one_rank_is_everybodys_wait():
    """A rank that stands still for two seconds makes the step so much longer."""
    bench = Bench(seed=2, rough_share=0, outlier_share=0, checkpoint_every_seconds=1e9).train()
    usual = float(np.median(bench.steps(60)))
    bench.turn = lambda knobs: knobs.pause_seconds.__setitem__(3, 2.0)
    assert bench.steps(60).max() == pytest.approx(usual + 2.0, rel=0.06)
    assert bench.job.comm_wait[3] <= bench.job.comm_wait.min() + 1e-9 or bench.job.step_seconds < usual + 1


@pytest.mark.parametrize(("name", "value", "ratio"), [("pace", 1.5, 1.5), ("tokens", 1.5, 1.38)])
def test_knobs_of_the_whole_job(name, value, ratio):
    """Pace lengthens all of a step; more tokens lengthen its compute, and are more tokens."""
    bench = Bench(seed=2, rough_share=0, outlier_share=0, checkpoint_every_seconds=1e9).train()
    usual, tokens = float(np.median(bench.steps(60))), bench.job.tokens_per_second * bench.job.step_seconds
    bench.turn = lambda knobs: setattr(knobs, name, value)
    bench.run(10)
    assert float(np.median(bench.steps(90))) / usual == pytest.approx(ratio, abs=0.06)
    grown = bench.job.tokens_per_second * bench.job.step_seconds / tokens
    assert grown == pytest.approx(value if name == "tokens" else 1.0)


@pytest.mark.parametrize(("ask", "phase"), [("checkpoint", "checkpoint"), ("eval", "eval"), ("compile", "warmup")])
def test_a_phase_can_be_asked_for(ask, phase):
    """The job enters it after the step under way, and comes back."""
    bench = Bench(seed=2).train()
    bench.turn = lambda knobs: setattr(knobs, "ask", ask)
    bench.until(lambda: bench.job.phase == phase, 30)
    bench.turn = lambda knobs: None
    bench.until(lambda: bench.job.phase == "train", 120)
    assert bench.job.phase == "train"


def test_a_crash_ends_all_processes():
    """The job fails, its memory is free, and the log says why on the rank that died."""
    bench = Bench(seed=2).train()
    bench.turn = lambda knobs: (setattr(knobs, "crash", "oom"), setattr(knobs, "crash_rank", 9))
    bench.substep()
    assert (bench.job.state, bench.job.phase, bench.job.alive) == ("failed", "done", False)
    assert bench.work.memory_mib.max() == 0
    text = bench.job.log.read().decode()
    assert "[rank9]: torch.OutOfMemoryError: CUDA out of memory." in text
    assert "local_rank: 1 (pid:" in text


def test_time_in_pieces_is_time():
    """Sub-steps in one go or with reads between them give the same job."""
    first, second = Bench(seed=8), Bench(seed=8)
    first.run(600)
    for _ in range(120):
        second.substep()
        second.job.shown()
    for key, values in first.job.shown().items():
        assert np.array_equal(values, second.job.shown()[key], equal_nan=True), key


def test_no_whole_replica_no_seat():
    """Nodes beyond whole replicas are benched, and the job runs on the rest."""
    bench = Bench(nodes=8, pp=4, start=False)
    bench.job.seat(list(range(7)))
    assert (bench.job.nodes, bench.job.benched, bench.job.groups.dp) == ([0, 1, 2, 3], [4, 5, 6], 1)


@pytest.mark.parametrize(("kind", "shape", "key"), [
    ("training", {"compute_second": 1}, "compute_second"), ("training", {"pp": 1.5}, "pp"), ("training", {"trainer": "x"}, "trainer"),
    ("sweep", {"sizes": [1]}, "sizes"), ("inference", {"batch": -1}, "batch"), ("training", {"extra_tiers": [["peer"]]}, "extra_tiers"),
    ("training", {"compute_seconds": True}, "compute_seconds"), ("other", {}, "kind"), ("training", {"fp16": "yes"}, "fp16"),
])
def test_a_bad_shape_is_refused_by_name(kind, shape, key):
    """One sentence that names the key."""
    with pytest.raises(BadInput) as error:
        shape_of(kind, shape)
    assert error.value.key == key


@pytest.mark.parametrize("shape", [{"pp": 5}, {"tp": 3}, {"extra_tiers": [["tape", 60]]}])
def test_a_job_that_does_not_fit_is_refused(shape):
    """Groups that do not fit on the nodes, and tiers that nobody knows."""
    with pytest.raises(BadInput):
        make_job("training", "j1", shape_of("training", shape), range(4), 8, np.random.default_rng(1))
