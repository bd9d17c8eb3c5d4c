"""The jobs' logs: training as Megatron-LM or torchtitan writes it, and the last words of watchdogs and dying processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.clock import rfc3339

if TYPE_CHECKING:
    from fleet.job import Job

# A 70-billion-parameter model needs about 6 floating-point operations per parameter and token.
FLOPS_PER_TOKEN = 6 * 7e10
PEAK_TFLOPS = 989.0
# What a process says when it dies: the last line of its traceback, and the exit code that the launcher reports.
CRASHES: dict[str, tuple[str, int]] = {
    "oom": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {gpu} has a total capacity of 79.11 GiB "
            "of which 1.12 GiB is free. Including non-PyTorch memory, this process has 77.96 GiB memory in use. Of the "
            "allocated memory 74.30 GiB is allocated by PyTorch, and 1.85 GiB is reserved by PyTorch but unallocated.", 1),
    "host_oom": ("", -9),
    "ecc": ("RuntimeError: CUDA error: uncorrectable ECC error encountered", 1),
    "gpu_lost": ("RuntimeError: CUDA error: unspecified launch failure", 1),
    "illegal_access": ("RuntimeError: CUDA error: an illegal memory access was encountered", 1),
    "nccl": ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was "
             "a network error, NCCL version 2.27.3", 1),
    "storage": ("OSError: [Errno 5] Input/output error: '/checkpoints/data/shard_{rank:05d}.bin'", 1),
    "disk_full": ("OSError: [Errno 28] No space left on device", 1),
    "segfault": ("", -11),
    "nonfinite": ("RuntimeError: Rank {rank}: found NaN in local forward loss calculation. Device: cuda:{gpu}", 1),
    "config": ("ValueError: expected sequence length {rank} to be a multiple of the context-parallel size", 1),
}


class ByteLog:
    """A log that only grows, read by byte offset."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, line: str) -> None:
        self._data += line.encode() + b"\n"

    def read(self, start: int = 0) -> bytes:
        """Everything from byte `start` on; empty beyond the end."""
        return bytes(self._data[max(0, start):])

    def __len__(self) -> int:
        return len(self._data)

    def stopped(self, at: int, step: int, clean: bool) -> None:
        """The last word of work that was stopped; killed processes say nothing."""


class JobLog(ByteLog):
    """What a job prints, in Megatron-LM's form; each line that has a time has it in UTC."""

    sequence_length = 8 << 10

    # --- start and end -------------------------------------------------------------------------------------------------
    def loading(self, at: int, job: Job) -> None:
        g = job.groups
        self.write(f"[{_moment(at)}] using world size: {g.ranks}, data-parallel size: {g.dp}, "
                   f"tensor-model-parallel size: {g.tp}, pipeline-model-parallel size: {g.pp}")
        self.write(f" loading distributed checkpoint from /checkpoints/{job.name} at iteration {job.step}")

    def loaded(self, at: int, job: Job) -> None:
        self.write(f"[{_moment(at)}]  successfully loaded checkpoint from /checkpoints/{job.name} "
                   f"[ t 1/{job.groups.tp}, p 1/{job.groups.pp} ] at iteration {job.step}")

    def stopped(self, at: int, step: int, clean: bool) -> None:
        if clean:
            self.write(f"[{_moment(at)}] exiting program at iteration {step} after a termination signal")

    def finished(self, at: int, job: Job) -> None:
        self.write(f"[after training is done] datetime: {_moment(at)}")

    # --- phases --------------------------------------------------------------------------------------------------------
    def saving(self, at: int, step: int, tier: str = "lustre") -> None:
        self.write(f"[{_moment(at)}] saving checkpoint at iteration {step:7d} to {_where(tier)} in torch_dist format")

    def saved(self, at: int, step: int, took_ms: int, tier: str = "lustre") -> None:
        self.write(f"[{_moment(at)}]   successfully saved checkpoint from iteration {step:7d} to {_where(tier)} "
                   f"({took_ms:.0f} ms)")

    def save_failed(self, at: int, step: int, rank: int, tier: str = "lustre") -> None:
        self.write(f"[rank{rank}]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
                   f"ranks:dict_keys([{rank}])")
        self.write(f"[rank{rank}]: OSError: [Errno 5] Input/output error: '{_where(tier)}/iter_{step:07d}/__{rank}_0.distcp'")
        self.write(f"[{_moment(at)}] WARNING: the checkpoint of iteration {step} was not written, training goes on")

    def evaluated(self, at: int, step: int, loss: float) -> None:
        self.write(f"[{_moment(at)}] validation loss at iteration {step} | lm loss value: {loss:.6E} |")

    # --- steps -----------------------------------------------------------------------------------------------------------
    def iteration(self, at: int, job: Job, seconds: float, skipped: int, nonfinite: int) -> None:
        """skipped, nonfinite: since the last line. A loss that is not finite is left out, as Megatron-LM does."""
        shape = job.shape
        # What the step held: more than usual where the batch grows.
        held = job.tokens_per_second * job.step_seconds
        tokens = shape.tokens_per_rank if math.isnan(held) else round(held)
        batch = tokens * job.ranks // self.sequence_length
        flops = FLOPS_PER_TOKEN * tokens / seconds / 1e12
        usual = shape.tokens_per_rank * job.ranks // self.sequence_length
        loss = f"lm loss: {job.loss:.6E} | " if math.isfinite(job.loss) else ""
        self.write(
            f" [{_moment(at)}] iteration {job.step:8d}/{shape.last_step:8d} | consumed samples: {job.step * usual:12d} | "
            f"elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {flops:.1f} | "
            f"learning rate: {1.2e-4:.6E} | global batch size: {batch:5d} | {loss}loss scale: {job.curve.shown_scale:.1f} | "
            f"grad norm: {job.grad_norm:.3f} | number of skipped iterations: {skipped:3d} | "
            f"number of nan iterations: {nonfinite:3d} |")

    def overflow(self, at: int, scale: float) -> None:
        """The fp16 scaler leaves a step out."""
        self.write(f"[{_moment(at)}] [INFO] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale:.0f}, "
                   f"reducing to {max(1.0, scale / 2):.0f}")

    def found_nan(self, at: int, rank: int, step: int) -> None:
        """A rank's check of its own results, as Megatron-LM's rerun machine reports it where it is asked to go on."""
        self.write(f"[{_moment(at)}] Unexpected result nan on rank {rank} at iteration #{step} invocation #1 "
                   "(message='found NaN in local forward loss calculation')!")

    # --- the end of processes --------------------------------------------------------------------------------------------
    def watchdog(self, at: int, job: Job, timeout: int) -> None:
        """Each rank that waits in the collective reports it; the one that never entered it says nothing."""
        stamp, behind = _glog(at), job.seq < job.seq.max()
        for rank in range(job.ranks):
            if rank == job.hung_rank or behind[rank]:
                continue
            seq = int(job.seq[rank])
            who = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]" if job.shape.process_groups else f"[Rank {rank}]"
            head = f"[rank{rank}]:[E{stamp} ProcessGroupNCCL.cpp:632] {who}"
            self.write(f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
                       f"NumelIn=16777216, NumelOut=16777216, Timeout(ms)={timeout * 1000}) ran for "
                       f"{timeout * 1000 + 60 + rank % 29} milliseconds before timing out.")
            self.write(f"{head} failure detected by watchdog at work sequence id: {seq} PG status: "
                       f"last enqueued work: {seq}, last completed work: {seq - 1}")
        first = 1 if job.hung_rank == 0 else 0
        self.write(f"[rank{first}]:[E{stamp} ProcessGroupNCCL.cpp:684] [Rank {first}] Some NCCL operations have failed or timed out. "
                   "To avoid data inconsistency, we are taking the entire process down.")
        self._launcher(at, first % job.gpus, first, -6)

    def crashed(self, at: int, job: Job, reason: str, rank: int) -> None:
        """A rank's traceback and the launcher's report. reason: a name of CRASHES, or the message itself."""
        message, code = CRASHES.get(reason, (f"RuntimeError: {reason}", 1))
        gpu = rank % job.gpus
        if message:
            self.write(f"[rank{rank}]: Traceback (most recent call last):")
            self.write(f'[rank{rank}]:   File "/workspace/pretrain_gpt.py", line 321, in <module>')
            self.write(f"[rank{rank}]: {message.format(gpu=gpu, rank=rank)}")
        self._launcher(at, gpu, rank, code)

    def _launcher(self, at: int, local: int, rank: int, code: int) -> None:
        """torchrun ends the other processes of the node."""
        stamp, pid = _glog(at)[:17], 412_000 + rank
        api = "torch/distributed/elastic/multiprocessing/api.py"
        for other in (pid - 1, pid + 1):
            self.write(f"W{stamp} {pid - 40} {api}:900] Sending process {other} closing signal SIGTERM")
        self.write(f"E{stamp} {pid - 40} {api}:874] failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: "
                   "/usr/bin/python3")
        self.write("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")


class TitanLog(JobLog):
    """The same job as torchtitan writes it."""

    def loading(self, at: int, job: Job) -> None:
        g = job.groups
        self._say(at, f"Building {'3' if g.pp > 1 else '2'}-D device mesh with ['pp', 'dp_shard', 'tp'], [{g.pp}, {g.dp}, {g.tp}]")
        self._say(at, f"Loading the checkpoint from /checkpoints/{job.name}/step-{job.step}.")

    def loaded(self, at: int, job: Job) -> None:
        self._say(at, "Finished loading the checkpoint in 31.20 seconds.")
        self._say(at, f"Training starts at step {job.step + 1}")

    def finished(self, at: int, job: Job) -> None:
        self._say(at, "Training completed")

    def found_nan(self, at: int, rank: int, step: int) -> None:
        """torchtitan checks nothing rank by rank."""

    def stopped(self, at: int, step: int, clean: bool) -> None:
        if clean:
            self._say(at, "Training completed")

    def saving(self, at: int, step: int, tier: str = "lustre") -> None:
        self._say(at, "Saving the checkpoint (or staging if async is enabled).")

    def saved(self, at: int, step: int, took_ms: int, tier: str = "lustre") -> None:
        self._say(at, f"Finished saving the checkpoint (or staging if async is enabled) in {took_ms / 1000:.2f} seconds.")

    def evaluated(self, at: int, step: int, loss: float) -> None:
        self._say(at, f"validate step: {step:2}  loss: {loss:7.4f}  memory: 60.12GiB(76.00%)  tps: 11,402")

    def iteration(self, at: int, job: Job, seconds: float, skipped: int, nonfinite: int) -> None:
        tokens = job.tokens_per_second
        flops = FLOPS_PER_TOKEN * tokens / 1e12
        gib = job.shape.memory_mib / 1024
        self._say(at, f"\x1b[31mstep: {job.step:2}  \x1b[32mloss: {job.loss:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {job.grad_norm:7.4f}  "
                      f"\x1b[38;2;54;234;195mmemory: {gib:5.2f}GiB({gib / 0.7911:.2f}%)  \x1b[34mtps: {round(tokens):,}  "
                      f"\x1b[36mtflops: {flops:,.2f}  \x1b[35mmfu: {100 * flops / PEAK_TFLOPS:.2f}%\x1b[39m")

    def _say(self, at: int, text: str) -> None:
        clock = rfc3339(at)
        self.write(f"[rank0]:[titan] {clock[:10]} {clock[11:19]},{clock[20:23]} - root - INFO - {text}")


class ServerLog(ByteLog):
    """What inference servers print each ten seconds, in vLLM's form."""

    def stopped(self, at: int, step: int, clean: bool) -> None:
        if clean:
            self.write(f"INFO {_american(at)} [launcher.py:94] Shutting down FastAPI HTTP server.")

    def crashed(self, at: int, engine: int, reason: str) -> None:
        """The engine dies, and the server with it."""
        message = CRASHES.get(reason, (f"RuntimeError: {reason}", 1))[0].format(gpu=0, rank=engine)
        self.write(f"(EngineCore pid={411 + engine}) ERROR {_american(at)} [core.py:866] EngineCore encountered a fatal error. {message}")
        self.write(f"(APIServer pid=1) ERROR {_american(at)} [async_llm.py:525] AsyncLLM output_handler failed.")

    def stats(self, at: int, engine: int, prompt: float, generated: float, running: int, waiting: int, cache: float) -> None:
        """prompt, generated: tokens a second; cache: share of the KV cache."""
        self.write(f"(APIServer pid=1) INFO {_american(at)} [loggers.py:271] Engine {engine:03d}: Avg prompt throughput: {prompt:.1f} "
                   f"tokens/s, Avg generation throughput: {generated:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} "
                   f"reqs, GPU KV cache usage: {100 * cache:.1f}%, Prefix cache hit rate: 0.0%")


class SweepLog(ByteLog):
    """What the runs of a sweep print, each line with its node in front."""

    def stopped(self, at: int, step: int, clean: bool) -> None:
        if clean:
            self.write(f"[{_moment(at)}] sweep stopped after a termination signal")

    def crashed(self, at: int, node: str, reason: str, rank: int, gpu: int) -> None:
        """A run's process dies."""
        message, code = CRASHES.get(reason, (f"RuntimeError: {reason}", 1))
        if message:
            self.write(f"{node}: [rank{gpu}]: Traceback (most recent call last):")
            self.write(f"{node}: [rank{gpu}]: {message.format(gpu=gpu, rank=rank)}")
        self.write(f"{node}: E{_glog(at)[:17]} {411_960 + rank} torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) "
                   f"local_rank: {gpu} (pid: {412_000 + rank}) of binary: /usr/bin/python3")

    def steps(self, at: int, rows: Sequence[tuple[str, int, int, float, float]]) -> None:
        """rows: (node, step, last step, seconds, loss)."""
        for node, step, last, seconds, loss in rows:
            self.write(f"{node}: [{_moment(at)}] iteration {step:8d}/{last:8d} | elapsed time per iteration (ms): "
                       f"{seconds * 1000:.1f} | lm loss: {loss:.6E} |")


def log_of(trainer: str) -> JobLog:
    """A log in the form of that trainer."""
    return TitanLog() if trainer == "torchtitan" else JobLog()


def _where(tier: str) -> str:
    return {"lustre": "/checkpoints", "nvme": "/scratch/checkpoints", "peer": "/dev/shm/checkpoints"}.get(tier, "s3://checkpoints")


def _glog(at: int) -> str:
    clock = rfc3339(at)
    return f"{clock[5:7]}{clock[8:10]} {clock[11:23]}000000"


def _american(at: int) -> str:
    clock = rfc3339(at)
    return f"{clock[5:10]} {clock[11:19]}"


def _moment(at: int) -> str:
    text = rfc3339(at)
    return f"{text[:10]} {text[11:19]}"
