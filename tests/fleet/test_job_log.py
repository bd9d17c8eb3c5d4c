"""The jobs' logs, read back by the sources that read real ones."""

from __future__ import annotations

import re

import pytest

from collectors.loglines import LogReader
from collectors.logtimes import Anchor
from core.derive import absent
from core.plugins import load_plugins
from core.protocols import TargetInfo
from fleet.job import PRINT_SECONDS
from fleet.joblog import CRASHES
from tests.fleet.jobhelp import Bench

SOURCES = {n: s for n, s in load_plugins("collectors.sources").items() if s.log_kind == "trainer"}


def read(bench: Bench) -> tuple[list[tuple[str, dict]], list[dict[str, float]]]:
    """(kind, fields) of all events, and all readings, of a job's log."""
    log, events, readings = LogReader(SOURCES, TargetInfo("log/j1", {"job": "j1"}), Anchor(0)), [], []
    for line in bench.job.log.read().decode().splitlines():
        _, said = log.read(line)
        events += [(e.kind, dict(e.fields)) for e in said.events]
        readings += [dict(values) for _, _, values in said.readings]
    return events, readings


def phases(events) -> list[str]:
    return [fields["phase"] for kind, fields in events if kind == "job_phase"]


@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_a_trainers_log_is_read_as_it_was_meant(trainer):
    """Steps, losses, phases and checkpoints come back out of either form."""
    bench = Bench(nodes=2, seed=4, trainer=trainer, checkpoint_every_seconds=100, eval_every_seconds=200).train()
    bench.run(400)
    bench.job.stop(bench.at, clean=True)
    events, readings = read(bench)
    steps = [row for row in readings if "rank.step" in row]
    assert steps[-1]["rank.step"] == bench.job.step // 5 * 5
    assert all(1 < row["rank.loss"] < 4 for row in steps)
    assert {"start", "train", "checkpoint", "eval", "done"} <= set(phases(events))
    saved = [fields["step"] for kind, fields in events if kind == "checkpoint" and fields["state"] == "saved"]
    assert len(saved) == bench.job.checkpoints >= 2


def test_elapsed_time_and_world_size_are_the_jobs():
    """The iteration line tells the step's own seconds, by a clock that is read when it is written; the first line the groups."""
    bench = Bench(nodes=4, seed=4, pp=2, log_every=1).train()
    bench.substep()
    _, readings = read(bench)
    last = [row for row in readings if row.get("rank.step") == bench.job.step][-1]
    assert last["rank.step_seconds"] == pytest.approx(bench.job.step_seconds, abs=PRINT_SECONDS + 1e-4)
    first = bench.job.log.read().decode().splitlines()[0]
    assert "using world size: 32, data-parallel size: 2, tensor-model-parallel size: 8, pipeline-model-parallel size: 2" in first


def test_a_loss_that_is_not_finite_is_left_out():
    """Megatron-LM prints no loss then, a gradient norm of nan, and counts the iterations."""
    bench = Bench(nodes=2, seed=4).train()
    bench.turn = lambda knobs: setattr(knobs, "nonfinite", True)
    bench.run(120)
    events, readings = read(bench)
    told = [row for row in readings if "rank.step" in row]
    assert absent([told[-1]["rank.loss"]]).item()
    assert [fields["what"] for kind, fields in events if kind == "nonfinite"][-1] == "grad_norm"
    counts = [row["rank.nonfinite_per_second"] for row in readings if "rank.nonfinite_per_second" in row]
    assert counts == sorted(counts)
    assert counts[-1] == bench.job.step // 5 * 5 - (bench.job.step - bench.job.nonfinite)


def test_overflow_lines_tell_the_scale():
    """Each skipped step halves it; skipped iterations are those of the interval."""
    bench = Bench(nodes=2, seed=4, fp16=True).train()
    bench.turn = lambda knobs: setattr(knobs, "overflow_share", 0.5)
    bench.run(60)
    events, readings = read(bench)
    scales = [fields["loss_scale"] for kind, fields in events if kind == "overflow"]
    assert len(scales) == bench.job.skipped > 3
    assert scales == [32768.0 / 2**i for i in range(len(scales))]
    skipped = [row["rank.skipped_per_second"] for row in readings if "rank.skipped_per_second" in row]
    assert 0 < skipped[-1] <= bench.job.skipped


@pytest.mark.parametrize(("groups", "name"), [(False, None), (True, "default_pg")])
def test_the_watchdog_tells_of_all_but_the_one_that_hangs(groups, name):
    """Ten minutes after the hang each other rank reports the collective; the culprit's number is one behind."""
    bench = Bench(nodes=2, seed=4, process_groups=groups).train()
    bench.turn = lambda knobs: knobs.hung.__setitem__(5, True)
    bench.run(620)
    events, _ = read(bench)
    told = [fields for kind, fields in events if kind == "nccl_watchdog"]
    assert {fields["rank"] for fields in told} == set(range(16)) - {5}
    assert all(fields.get("group") == name for fields in told)
    assert all(fields["timeout_seconds"] == 600 for fields in told)
    assert bench.job.seq[5] == bench.job.seq[0] - 1
    assert bench.job.state == "failed"


@pytest.mark.parametrize("reason", [*sorted(CRASHES), "some other message"])
def test_dying_processes_leave_a_trace(reason):
    """A traceback where there is one, and the launcher's report with the exit code and the rank's place."""
    bench = Bench(nodes=2, seed=4).train()
    bench.turn = lambda knobs: (setattr(knobs, "crash", reason), setattr(knobs, "crash_rank", 11))
    bench.substep()
    text = bench.job.log.read().decode()
    code = CRASHES.get(reason, ("", 1))[1]
    assert re.search(rf"failed \(exitcode: {code}\) local_rank: 3 \(pid: \d+\)", text)
    assert ("Traceback" in text) == (reason not in ("host_oom", "segfault"))
    assert "{" not in text.split("Traceback")[-1].split("failed (exit")[0]


def test_no_line_of_a_crash_is_taken_for_a_step():
    """Sources read no step, loss or phase out of a traceback."""
    bench = Bench(nodes=2, seed=4).train()
    before = len(read(bench)[1])
    bench.turn = lambda knobs: setattr(knobs, "crash", "oom")
    bench.substep()
    assert len(read(bench)[1]) == before


def test_a_sweeps_lines_carry_their_node():
    """Each line names the node that its run is on."""
    bench = Bench("sweep", nodes=3, seed=4)
    bench.run(200)
    lines = bench.job.log.read().decode().splitlines()
    assert {line.split(":")[0] for line in lines} == {"n01", "n02", "n03"}
    assert all(re.search(r"iteration +\d+/ +\d+ \| elapsed time", line) for line in lines)


def test_a_servers_line_is_vllms():
    """Running, waiting, cache and throughput each ten seconds."""
    bench = Bench("inference", nodes=2, seed=4)
    bench.run(300)
    form = re.compile(r"\(APIServer pid=1\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[loggers\.py:271\] Engine 00[01]: Avg prompt throughput: [\d.]+ tokens/s, "
                      r"Avg generation throughput: [\d.]+ tokens/s, Running: \d+ reqs, Waiting: \d+ reqs, GPU KV cache usage: [\d.]+%, "
                      r"Prefix cache hit rate: [\d.]+%")
    lines = bench.job.log.read().decode().splitlines()
    assert len(lines) > 20
    assert all(form.fullmatch(line) for line in lines)
