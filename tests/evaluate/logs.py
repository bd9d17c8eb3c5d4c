"""Trainer logs of the made-up jobs: Megatron-LM, torchtitan, HF Trainer, with the lines of the collective watchdog."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.evaluate.plan import Plan, rng_of
from tests.evaluate.world import Run

WATCHDOG_AFTER = 600.0


def _time(plan: Plan, t: float, form: str) -> str:
    moment = datetime.fromtimestamp(plan.start_ms / 1000 + t, UTC)
    return moment.strftime(form)


def _megatron(plan: Plan, run: Run) -> list[tuple[float, str]]:
    rows: list[tuple[float, str]] = []
    job = run.job
    rng = rng_of(plan.seed, "log", job.name)
    dated = rng.random() < 0.8 or job.starts > 0  # nothing says when an undated log of a later start began
    for i, (number, end) in enumerate(zip(run.step_number, run.step_ends, strict=True)):
        if number % job.log_interval:
            continue
        first = max(0, i - job.log_interval + 1)
        mean = float(run.step_took[first:i + 1].mean()) * 1000
        head = " [" + _time(plan, end, "%Y-%m-%d %H:%M:%S") + "]" if dated else ""
        rows.append((end, f"{head} iteration {number:8d}/  500000 | consumed samples: {number * 1024:12d} | elapsed time per "
                          f"iteration (ms): {mean:.1f} | throughput per GPU (TFLOP/s/GPU): 402.1 | learning rate: 1.500000E-04 | "
                          f"global batch size:  1024 | lm loss: {run.losses[i]:.6E} | loss scale: 1.0 | grad norm: "
                          f"{0.5 + 0.05 * rng.standard_normal():.3f} | number of skipped iterations:   0 | number of nan "
                          "iterations:   0 |"))
    for a, b, number in run.saves:
        rows.append((a + 0.1, f"saving checkpoint at iteration {number:7d} to /ckpt in torch_dist format"))
        rows.append((b - 0.1, f"  successfully saved checkpoint from iteration {number:7d} to /ckpt"))
    for _, b, number in run.evals:
        rows.append((b - 0.2, "-" * 90))
        rows.append((b - 0.2, f" validation loss at iteration {number} | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | "))
    if job.ends is not None and not job.lingers:
        rows.append((job.ends, f"[after training is done] datetime: {_time(plan, job.ends, '%Y-%m-%d %H:%M:%S')} "))
    return rows


def _titan(plan: Plan, run: Run) -> list[tuple[float, str]]:
    rows: list[tuple[float, str]] = []
    job = run.job

    def say(t: float, text: str) -> None:
        rows.append((t, f"[titan] {_time(plan, t, '%Y-%m-%d %H:%M:%S')},{int(t * 1000) % 1000:03d} - root - INFO - {text}"))

    for i, (number, end) in enumerate(zip(run.step_number, run.step_ends, strict=True)):
        if number % job.log_interval == 0:
            say(float(end), f"\x1b[31mstep: {number:2}  \x1b[32mloss: {run.losses[i]:7.4f}  \x1b[33mgrad_norm: {0.5:7.4f}  "
                            "\x1b[34mmemory: 40.20GiB(50.1%)  \x1b[36mtps: 7,012  \x1b[35mtflops: 301.11  mfu: 30.22%\x1b[39m")
    for a, b, _ in run.saves:
        say(a + 0.1, "Saving the checkpoint (or staging if async is enabled).")
        say(b - 0.1, f"Finished saving the checkpoint (or staging if async is enabled)in {b - a:.2f} seconds.")
    if job.ends is not None and not job.lingers:
        say(job.ends, "Training completed")
    return rows


def _hf(plan: Plan, run: Run) -> list[tuple[float, str]]:
    rows: list[tuple[float, str]] = []
    job = run.job
    if not len(run.step_ends):
        return rows
    first = float(run.step_ends[0])
    rng = rng_of(plan.seed, "log", job.name)
    for i, (number, end) in enumerate(zip(run.step_number, run.step_ends, strict=True)):
        if number % job.log_interval:
            continue
        head = _time(plan, end, "%Y-%m-%dT%H:%M:%SZ ")
        rows.append((float(end), f"{head}{{'loss': {run.losses[i]:.4f}, 'grad_norm': {0.5 + 0.05 * rng.standard_normal():.4f}, "
                                 f"'learning_rate': 1.5e-05, 'epoch': {(end - first) / 9e4:.4f}, 'step': {number}}}"))
    if job.ends is not None and not job.lingers:
        rows.append((job.ends, _time(plan, job.ends, "%Y-%m-%dT%H:%M:%SZ ") + "{'train_runtime': 5123.2, 'train_loss': 2.1}"))
    return rows


def _watchdog(plan: Plan, run: Run) -> list[tuple[float, str]]:
    """After ten minutes all ranks (or all but the one that hangs) say what they wait for."""
    if run.hung is None or run.hung + WATCHDOG_AFTER > plan.seconds - 1:
        return []
    rows = []
    number = 40 * len(run.step_ends) + 17
    for rank in range(len(run.job.nodes) * plan.used):
        seq = number - 1 if rank == run.behind else number
        t = run.hung + WATCHDOG_AFTER + 0.01 * rank
        day = _time(plan, t, "%m%d %H:%M:%S")
        rows.append((t, f"[rank{rank}]:[E{day}.{int(t * 1e6) % 1000000:06d} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
                        f"collective operation timeout: WorkNCCL(SeqNum={seq + 1}, OpType=ALLREDUCE, NumelIn=1048576, "
                        f"NumelOut=1048576, Timeout(ms)=600000) ran for 600{rank % 90:03d} milliseconds before timing out."))
        rows.append((t, f"[rank{rank}]:[E{day}.{int(t * 1e6) % 1000000:06d} ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) "
                        f"Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq + 1}, last "
                        f"enqueued NCCL work: {seq + 1}, last completed NCCL work: {seq}."))
    return rows


def log_lines(plan: Plan, run: Run) -> list[str]:
    """The lines of the job's log within the recording, in time order."""
    if run.job.log is None:
        return []
    rows = {"megatron": _megatron, "torchtitan": _titan, "hf": _hf}[run.job.log](plan, run) + _watchdog(plan, run)
    return [text for t, text in sorted(rows, key=lambda row: row[0]) if 0 <= t <= plan.seconds]
