"""What launchers and dying processes say: exits with the step that the run had reached, and checkpoints that failed."""

from __future__ import annotations

import pytest

from app import wiring
from collectors.follow import log_target
from collectors.loglines import LogReader
from core.types import Event

STEP = "[2026-01-05 10:00:00] iteration {n:6d}/ 500 | elapsed time per iteration (ms): 3400.0 | lm loss: 2.1E+00 |"
TORCHRUN = ("E0105 10:00:{s:02d}.123000 412960 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) "
            "local_rank: 3 (pid: 4) of binary: /usr/bin/python3")


def read(*lines: str) -> list[Event]:
    sources = {name: s for name, s in wiring.sources().items() if s.log_kind == "trainer"}
    reader = LogReader(sources, log_target("trainer", None, "llm", "trainer.llm.log"))
    return [e for line in lines for e in reader.read(line)[1].events]


def exits(*lines: str) -> list[tuple[str, object, object, object, object]]:
    """(kind, rank, code, step, message or state) of the events that are not phases."""
    events = [e for e in read(*lines) if e.kind != "job_phase"]
    return [(e.kind, e.target.rank, e.fields.get("code"), e.fields.get("step"), e.fields.get("message", e.fields.get("state")))
            for e in events]


def test_an_exit_tells_rank_step_and_error() -> None:
    """The rank is that of the traceback, the step the last of the run, the message the traceback's last line."""
    assert exits(STEP.format(n=105), "[rank11]: Traceback (most recent call last):", '[rank11]:   File "a.py", line 1, in <module>',
                 "[rank11]: RuntimeError: index out of range", TORCHRUN.format(s=5, code=1),
                 "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:") == [
        ("job_exit", 11, 1, 105, "RuntimeError: index out of range")]


def test_launchers_of_one_crash_tell_one_step_and_a_run_without_steps_tells_none() -> None:
    """The step is of the run that died: a later run that reached none has none."""
    later = TORCHRUN.format(s=9, code=1).replace("10:00", "10:20")
    assert exits(STEP.format(n=105), TORCHRUN.format(s=5, code=1), TORCHRUN.format(s=7, code=-6), later) == [
        ("job_exit", None, 1, 105, None), ("job_exit", None, -6, 105, None), ("job_exit", None, 1, None, None)]


@pytest.mark.parametrize("line", [
    "[2026-01-05 1{hour}:01:00]  successfully loaded checkpoint from /checkpoints/llm [ t 1/8, p 1/1 ] at iteration {n}",
    "[rank0]:[titan] 2026-01-05 1{hour}:01:00,000 - root - INFO - Training starts at step {n}"])
def test_each_run_tells_the_step_that_it_begins_from(line: str) -> None:
    """Also the run after one that died before its first step."""
    runs = [text for hour, n in ((0, 120), (1, 118)) for text in (
        line.format(hour=hour, n=n), TORCHRUN.format(s=5, code=1).replace("10:00", f"1{hour}:02"))]
    assert [e.fields["step"] for e in read(*runs) if e.kind == "job_phase" and e.fields["phase"] == "start"] == [120, 118]


@pytest.mark.parametrize("line", [TORCHRUN.format(s=5, code=-15), "srun: error: n17: task 3: Exited with exit code 143",
                                  "W0105 10:00:05.123000 1 torch/api.py:900] Sending process 412 closing signal SIGTERM"])
def test_processes_that_were_asked_to_end_did_not_die(line: str) -> None:
    """SIGTERM is a scheduler's or a launcher's."""
    assert exits(STEP.format(n=105), line) == []


@pytest.mark.parametrize(("line", "rank", "code"), [("srun: error: n17: task 3: Exited with exit code 1", 3, 1),
                                                    ("srun: error: n17: tasks 8-15: Killed", 8, -9)])
def test_srun_names_the_task(line: str, rank: int, code: int) -> None:
    """A task is a rank; a signal is a negative code."""
    assert exits(STEP.format(n=105), line) == [("job_exit", rank, code, 105, None)]


def test_one_failed_save_counts_once() -> None:
    """Several lines tell of one failure."""
    assert exits(STEP.format(n=300), "[rank7]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([7])",
                 "[2026-01-05 10:00:10] WARNING: the checkpoint of iteration 300 was not written, training goes on") == [
        ("checkpoint", None, None, None, "failed")]
