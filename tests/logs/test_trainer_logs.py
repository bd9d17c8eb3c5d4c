"""Trainers' logs: steps, losses, checkpoints, phases and watchdogs, and the times of lines that carry none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.loglines import ALL_STEP_SIGNALS, LogReader
from collectors.logtimes import Anchor
from collectors.readings import series_of
from core.clock import parse_rfc3339
from core.derive import STALE_NAN, absent
from core.events import KINDS
from core.plugins import load_plugins
from core.protocols import TargetInfo
from core.signals import SIGNALS
from core.types import Target

START = 1_780_000_000_000
NOON = parse_rfc3339("2026-11-28T12:00:00Z")
SOURCES = {n: s for n, s in load_plugins("collectors.sources").items() if s.log_kind == "trainer"}
SAMPLES = Path(__file__).parents[3] / "shared" / "samples" / "training"


def reader(start: int = START) -> LogReader:
    return LogReader(SOURCES, TargetInfo("log/j1", {"job": "j1"}), Anchor(start))


def read(*lines: str):
    """(time, kind, fields) of all events, and (time, rank, values) of all readings."""
    log, events, readings = reader(), [], []
    for line in lines:
        _, said = log.read(line)
        events += [(e.at, e.kind, dict(e.fields)) for e in said.events]
        readings += [(at, target.rank, dict(values)) for at, target, values in said.readings]
    return events, readings


def values(*lines: str) -> list[dict[str, float]]:
    """The readings that speak of a step or a loss, the line's time and absent values left out."""
    _, readings = read(*lines)
    out = []
    for _, _, told in readings:
        row = {k.removeprefix("rank."): v for k, v in told.items()
               if not absent([v]).item() and k != "rank.last_step_timestamp_seconds"}
        out.append(row)
    return out


MEGATRON = (
    " [2026-11-28 12:00:00] iteration       10/     500 | consumed samples:  320 | elapsed time per iteration (ms): 1500.0 | "
    "learning rate: 1.0E-05 | global batch size:    32 | lm loss: 9.871E+00 | loss scale: 1.0 | grad norm: 1.250 | "
    "number of skipped iterations:   2 | number of nan iterations:   1 |"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (MEGATRON, [{"step": 10, "step_seconds": 1.5, "loss": 9.871, "grad_norm": 1.25, "batch_samples": 32},
                    {"skipped_per_second": 2, "nonfinite_per_second": 1}]),
        ("iteration 3383/8000 | elapsed time per iteration (ms): 7613.1 | lm loss: 7.3E-01 | loss scale: 1.0 | grad norm: 0.752 |",
         [{"step": 3383, "step_seconds": 7.6131, "loss": 0.73, "grad_norm": 0.752}]),
        ("[rank0]:[titan] 2026-11-28 12:00:00,000 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.5  \x1b[38;2;1;2;3mgrad_norm:"
         "  1.5  \x1b[33mmemory: 30.1GiB(38.0%)  \x1b[34mtps: 6,123  \x1b[36mtflops: 50.1  \x1b[35mmfu: 16.1%\x1b[39m",
         [{"step": 10, "loss": 7.5, "grad_norm": 1.5, "tokens_per_second": 6123}]),
        ("{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.1}", [{"step": 1, "loss": 0.69, "grad_norm": 1.2}]),
        ("{'loss': '0.69', 'grad_norm': '1.2', 'learning_rate': '4e-05', 'epoch': '0.1'}",
         [{"step": 1, "loss": 0.69, "grad_norm": 1.2}]),
        ('{"loss": 0.5, "step": 7}', [{"step": 7, "loss": 0.5}]),
        ("Training epoch 0, iteration 9/99 | lr: 0 | global_batch_size: 8 | global_step: 9 | reduced_train_loss: 11.03 | "
         "train_step_timing in s: 1.2", [{"step": 9, "loss": 11.03, "step_seconds": 1.2}]),
        ("Epoch 0: :   1%|  | 10/1000 [00:12<19:48, reduced_train_loss=10.40, global_step=9.000, consumed_samples=80.0, "
         "train_step_timing in s=1.230]", [{"step": 9, "loss": 10.4, "step_seconds": 1.23}]),
        ("steps: 10 loss: 7.9 iter time (s): 1.25 samples/sec: 106.6", [{"step": 10, "loss": 7.9, "step_seconds": 1.25}]),
        ("[2026-11-28 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=3, skipped=0, lr=[1e-07], mom=[0.9]",
         [{"step": 3}]),
        ("[2026-11-28 12:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[1e-07], mom=[0.9]", []),
        ("loss.py:12: UserWarning: iteration over a 0-d array", []),
        ("{'eval_loss': 0.5, 'epoch': 1.0}", []),
        ("    checkpoint_activations .......................... False", []),
    ],
)
def test_a_step_line(line: str, expected: list[dict[str, float]]) -> None:
    """What each trainer's line says of its step."""
    assert values(line) == [pytest.approx(row) for row in expected]


def test_a_nan_loss_is_a_value_and_an_event() -> None:
    """`loss: nan` is what the trainer said, not a missing value."""
    events, readings = read("step: 10  loss: nan  grad_norm: 1.0")
    loss = readings[0][2]["rank.loss"]
    assert math.isnan(loss)
    assert not absent([loss]).item()
    assert (START, "nonfinite", {"rank": 0, "step": 10, "what": "loss"}) in events


def test_a_loss_that_is_left_out_is_absent() -> None:
    """Megatron leaves a loss out when it is not finite: the last one does not go on (case P03)."""
    lines = [
        "iteration 3384/8000 | elapsed time per iteration (ms): 7845.5 | lm loss: 7.07E-01 | grad norm: 0.741 | number of skipped iterations: 0 |",
        "iteration 3385/8000 | elapsed time per iteration (ms): 7624.3 | loss scale: 1.0 | grad norm: nan | number of skipped iterations: 0 |",
    ]
    events, readings = read(*lines)
    told = [row for _, _, row in readings if "rank.step" in row]
    assert absent([told[1]["rank.loss"]]).item()
    assert [e[2] for e in events if e[1] == "nonfinite"] == [{"rank": 0, "step": 3385, "what": "grad_norm"}]


def test_a_skipped_step_is_no_nonfinite_event() -> None:
    """A gradient that overflowed at a step which the loss scaler skipped is its daily work (case P04)."""
    events, _ = read("iteration 5/10 | elapsed time per iteration (ms): 1.0 | grad norm: inf | number of skipped iterations: 1 |")
    assert [e for e in events if e[1] == "nonfinite"] == []


def test_loss_zero_with_nan_gradients() -> None:
    """Case P11: each line tells that its gradient is not finite."""
    events, readings = read(*["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 9e-06, 'epoch': 0.53}"] * 3)
    assert [e[2]["step"] for e in events if e[1] == "nonfinite"] == [1, 2, 3]
    assert [row["rank.loss"] for _, _, row in readings] == [0.0, 0.0, 0.0]


def test_skipped_and_nan_counts_add_up() -> None:
    """Megatron counts per log interval; the signal is a counter."""
    _, readings = read(MEGATRON, MEGATRON.replace("10/", "20/"))
    counted = [row for _, _, row in readings if "rank.skipped_per_second" in row]
    assert [(r["rank.skipped_per_second"], r["rank.nonfinite_per_second"]) for r in counted] == [(2, 1), (4, 2)]


def test_lines_without_a_time_advance_by_their_own() -> None:
    """From the recording's start, by the elapsed time of the iterations since the last line; a restart counts one."""
    line = "iteration {}/100 | elapsed time per iteration (ms): 2000.0 | lm loss: 1.0 |"
    _, readings = read(*(line.format(i) for i in (10, 20, 21, 21, 15)))
    assert [at - START for at, _, _ in readings] == [2000, 22_000, 24_000, 24_000, 26_000]
    assert [row["rank.last_step_timestamp_seconds"] for _, _, row in readings] == [at / 1000 for at, _, _ in readings]


def test_only_one_rank_moves_the_clock() -> None:
    """Eight ranks that log the same step do not make eight steps' time pass."""
    line = "[rank{}]: iteration {}/100 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |"
    _, readings = read(*(line.format(r, i) for i in (1, 2) for r in range(8)))
    assert {at - START for at, _, _ in readings} == {1000, 2000}
    assert sorted({rank for _, rank, _ in readings}) == list(range(8))


def test_a_line_without_a_time_is_not_before_a_timed_one() -> None:
    """The clock follows the lines that carry a time, whatever they say."""
    _, readings = read(
        "[2026-11-28 12:00:00] hello",
        "iteration 1/9 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |",
        "iteration 2/9 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |",
        "[2026-11-28 12:00:30] hello",
        "iteration 3/9 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |",
    )
    assert [at - NOON for at, _, _ in readings] == [0, 1000, 30_000]


def test_a_timeout_without_a_time_comes_after_its_wait() -> None:
    """Ten minutes after the last step, once for all the ranks that tell of the same hang."""
    work = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 600080 milliseconds"
    events, _ = read("[2026-11-28 12:00:00] iteration 1/9 | elapsed time per iteration (ms): 1000.0 | lm loss: 1.0 |",
                     *(f"[rank{r}]: [Rank {r}] {work}" for r in range(3)))
    assert [at - NOON for at, kind, _ in events if kind == "nccl_watchdog"] == [600_080] * 3


def test_the_training_bar_tells_step_and_time() -> None:
    """Between tqdm bars the dicts need no step of their own, and the bars' elapsed time moves the clock."""
    events, readings = read(
        "  0%|          | 0/100 [00:00<?, ?it/s]", "  5%|▌         | 5/100 [00:10<03:10,  2.00s/it]",
        "{'loss': 0.5, 'grad_norm': 1.0, 'epoch': 0.1}", " 10%|█         | 10/100 [00:20<03:00,  2.00s/it]",
        "  2%|2         | 1/40 [00:00<00:10,  4.00it/s]", "{'train_runtime': 20.0, 'train_loss': 0.5}",
    )
    assert [(at - START, row.get("rank.step"), row.get("rank.loss"), row.get("rank.step_seconds")) for at, _, row in readings] == [
        (10_000, 5, None, 2.0), (10_000, None, 0.5, None), (20_000, 10, None, 2.0)]
    assert [e[2]["phase"] for e in events] == ["train", "eval", "done"]


def test_torchtitans_step_time_lies_between_its_lines() -> None:
    """Ten steps in five seconds are half a second each."""
    line = "[rank1]:2026-11-28 12:00:{:02d},000 - root - INFO - step: {}  loss: 7.0  grad_norm: 1.0  tps: 100"
    assert [row.get("step_seconds") for row in values(line.format(0, 10), line.format(5, 20))] == [None, 0.5]


@pytest.mark.parametrize(
    ("lines", "phases", "checkpoints"),
    [
        ((MEGATRON, "saving checkpoint at iteration      10 to /ckpt in torch_dist format",
          "  successfully saved checkpoint from iteration      10 to /ckpt", "validation loss at iteration 10 | lm loss value: 5.0E+00 |",
          MEGATRON.replace("10/", "11/"), "[after training is done] datetime: 2026-11-28 12:10:00",
          "saving checkpoint at iteration 11 to /ckpt"),
         ["train", "checkpoint", "train", "eval", "train", "done"], [(10, "saving"), (10, "saved"), (11, "saving")]),
        (("Training starts at step 1", "step: 10 loss: 1.0", "Saving the checkpoint (or staging if async is enabled).",
          "Finished saving the checkpoint (or staging if async is enabled) in 2.1 seconds.", "validate step: 10 loss: 1.2",
          "step: 11 loss: 1.0", "Training completed"),
         ["start", "train", "checkpoint", "train", "eval", "train", "done"], [(10, "saving"), (10, "saved")]),
        (("***** Running training *****", "{'loss': 1.0, 'epoch': 0.1}", "Saving model checkpoint to out/checkpoint-500",
          "{'loss': 1.0, 'epoch': 0.2}", "***** Running Evaluation *****", "{'eval_loss': 1.0, 'epoch': 0.2}",
          "{'train_runtime': 1.0, 'train_loss': 1.0}"),
         ["start", "train", "checkpoint", "train", "eval", "done"], [(500, "saving")]),
        (("global_step: 9 | reduced_train_loss: 1.0", "Scheduled async checkpoint save for /ckpt",
          "Async checkpoint save for step 9 finalized successfully.", "`Trainer.fit` stopped: `max_steps=10` reached."),
         ["train", "checkpoint", "train", "done"], [(9, "saving"), (9, "saved")]),
    ],
)
def test_phases_and_checkpoints(lines, phases, checkpoints) -> None:
    """A phase is told where it changes; what follows the end of a job does not make it run again."""
    events, _ = read(*lines)
    assert [f["phase"] for _, k, f in events if k == "job_phase"] == phases
    assert [(f["step"], f["state"]) for _, k, f in events if k == "checkpoint"] == checkpoints


def test_a_saved_checkpoint_is_a_reading() -> None:
    """The step of the newest complete checkpoint."""
    _, readings = read("  successfully saved checkpoint from iteration      10 to /ckpt")
    assert readings == [(START, 0, {"rank.last_checkpoint_step": 10.0})]


@pytest.mark.parametrize(
    ("line", "rank", "scale", "step"),
    [
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4294967296, reducing to 2147483648", 0, 2147483648.0, None),
        ("[2026-11-28 12:00:00,123] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 3 Skipping step. "
         "Attempted loss scale: 64, but hysteresis is 2. Reducing hysteresis to 1", 3, 64.0, None),
        ("[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 65536, reducing to 32768", 0, 32768.0, None),
        ("step 378/2724 132 s/it [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32", 0, 32.0, 378),
    ],
)
def test_an_overflow_line(line: str, rank: int, scale: float, step: int | None) -> None:
    """Rank and loss scale; a shared progress display gives the step and moves the clock (cases P04, P05)."""
    events, readings = read(line)
    assert [e[2] for e in events if e[1] == "overflow"] == [{"rank": rank, "loss_scale": scale}]
    assert [row["rank.step"] for _, _, row in readings if "rank.step" in row] == ([step] if step else [])
    if step:
        assert readings[0][0] == START + 132_000


def test_a_loss_scale_at_its_minimum_is_told() -> None:
    """The end of case P05."""
    events, _ = read("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.")
    assert [e[1:] for e in events] == [("nonfinite", {"rank": 0, "what": "loss_scale_at_minimum"})]


WORK = "WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"[rank3]:[E1128 12:00:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: {WORK} "
         "ran for 600080 milliseconds before timing out.",
         {"rank": 3, "op": "ALLREDUCE", "seq": 1234, "timeout_seconds": 600.0, "ran_seconds": 600.08}),
        (f"[E ProcessGroupNCCL.cpp:475] [Rank 5] Watchdog caught collective operation timeout: {WORK} ran for 600080 milliseconds",
         {"rank": 5, "op": "ALLREDUCE", "seq": 1234, "timeout_seconds": 600.0, "ran_seconds": 600.08}),
        (f"n7: [rank9]:[E1128 12:00:00.1 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank 9] Watchdog caught "
         f"collective operation timeout: {WORK} ran for 600080 milliseconds before timing out.",
         {"rank": 9, "op": "ALLREDUCE", "seq": 1234, "timeout_seconds": 600.0, "ran_seconds": 600.08, "group": "default_pg"}),
        ("[rank3]: [Rank 3] Timeout at NCCL work: 1234, last enqueued NCCL work: 1236, last completed NCCL work: 1233.",
         {"rank": 3, "seq": 1234, "last_enqueued": 1236, "last_completed": 1233}),
        ("[rank3]: [PG ID 2 PG GUID 5 Rank 1] failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 9, "
         "last completed work: 6", {"rank": 1, "seq": 7, "last_enqueued": 9, "last_completed": 6, "group": "2"}),
        ("[PG 1 Rank 0] Received a dump signal due to a collective timeout. Last enqueued NCCL work: 9, last completed NCCL work: 8.",
         {"rank": 0, "last_enqueued": 9, "last_completed": 8, "group": "1"}),
        ("[rank2]:[F1128 12:00:00.1 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 2] [PG ID 0 PG GUID "
         "0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
         {"rank": 2, "ran_seconds": 480.0, "group": "default_pg"}),
        ("[rank2]: [Rank 2] Heartbeat monitor timed out! Process will be terminated", {"rank": 2}),
    ],
)
def test_a_watchdog_line(line: str, expected: dict[str, object]) -> None:
    """Old and new forms, with and without a process group."""
    events, _ = read(line)
    assert [(kind, fields) for _, kind, fields in events] == [("nccl_watchdog", expected)]


def test_the_line_after_a_timeout_completes_it() -> None:
    """What was enqueued and completed comes one line later, with what the first line said."""
    events, _ = read(f"[Rank 3] Watchdog caught collective operation timeout: {WORK} ran for 600080 milliseconds",
                     "[Rank 3] Timeout at NCCL work: 1234, last enqueued NCCL work: 1236, last completed NCCL work: 1233.")
    assert events[1][2] == {**events[0][2], "last_enqueued": 1236, "last_completed": 1233}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('[rank4]: {"rank": 4, "collective_seq_id": 99, "state": "scheduled", "process_group": ["0", "default_pg"]}',
         {"rank": 4, "seq": 99, "state": "scheduled", "group": "default_pg"}),
        ("[rank4]: collective_seq_id=99 state=started", {"rank": 4, "seq": 99, "state": "started"}),
    ],
)
def test_a_flight_recorder_line(line: str, expected: dict[str, object]) -> None:
    """One entry of a dump that was printed."""
    events, _ = read(line)
    assert [(kind, fields) for _, kind, fields in events] == [("nccl_flight_recorder", expected)]


@pytest.mark.parametrize(("line", "expected"), [
    ("rank 12: NET/IB : Got completion with error 12, vendor err 129", {"rank": 12, "message": "Got completion with error 12, vendor err 129"}),
    ("[rank3]: n7:12:34 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<4791> with status=12 opcode=0 len=0 vendor err 129 (Send)",
     {"rank": 3, "message": "Got completion from peer 10.0.0.1<4791> with status=12 opcode=0 len=0 vendor err 129 (Send)"}),
])
def test_a_completion_error_of_the_network(line: str, expected: dict[str, object]) -> None:
    """As the case's report has it, and as NCCL prints it: an event of the rank that met it."""
    events, _ = read(line)
    assert [(kind, fields) for _, kind, fields in events] == [("nccl_error", expected)]


def test_the_node_before_a_line_is_kept() -> None:
    """`n7:` is stripped and names where the rank runs."""
    _, said = reader().read(f"n7: [rank9]: [Rank 9] Watchdog caught collective operation timeout: {WORK} ran for 1 milliseconds")
    target = said.events[0].target
    assert (target.kind, target.job, target.rank, target.node) == ("rank", "j1", 9, "n7")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared samples are not here")
def test_a_real_megatron_deepspeed_log() -> None:
    """Two nodes over pdsh: five steps, their losses, the end, and a checkpoint after it that changes nothing."""
    text = (SAMPLES / "superbench_megatron_deepspeed.log").read_text(errors="replace")
    events, readings = read(*text.splitlines())
    losses = [(row["rank.step"], row["rank.loss"]) for _, _, row in readings if "rank.loss" in row]
    assert losses == [(1, 11.00492), (2, 11.00421), (3, 10.96316), (4, 10.55474), (5, 9.927882)]
    assert [f["phase"] for _, k, f in events if k == "job_phase"] == ["start", "train", "done"]
    assert {k for _, k, _ in events} == {"job_phase", "checkpoint"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=200) | st.sampled_from([
    MEGATRON, "step: 10 loss: nan", "{'loss': 1, 'grad_norm': inf}", "[Rank 1] last enqueued NCCL work: -1, last completed NCCL work: -1",
    "OVERFLOW! Skipping step. Attempted loss scale: x", "  3%|x| 3/9 [00:01<00:05, 1.0it/s]", "successfully saved checkpoint at iteration 9",
]), max_size=20))
def test_no_log_breaks_the_sources(lines: list[str]) -> None:
    """Any mix of lines gives known signals and events with known fields, and times that never go back."""
    log, newest = reader(), START
    for line in lines:
        at, said = log.read(line)
        assert all(e.kind in KINDS and set(e.fields) <= set(KINDS[e.kind]) for e in said.events)
        assert all(set(row) <= set(SIGNALS) for _, _, row in said.readings)
        assert said.at is not None or at >= newest
        newest = max(newest, at)


def test_the_marker_survives_a_reading() -> None:
    """An absent value keeps its bits through the sources."""
    assert absent([STALE_NAN]).item()


def test_every_number_of_a_step_line_reaches_the_window() -> None:
    """What a line tells of a step has a series that stands for it: a batch that grows must be seen beside longer steps."""
    assert sorted(s for s in ALL_STEP_SIGNALS if series_of(s, Target("rank", job="a", rank=0)) is None) == []
