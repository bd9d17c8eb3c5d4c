"""The job's log as Megatron-LM writes it, and the watchdog's last words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.clock import rfc3339

if TYPE_CHECKING:
    from fleet.job import Job


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


class JobLog(ByteLog):
    """What the last rank prints; each line that has a time has it in UTC."""

    sequence_length = 8 << 10

    def loading(self, at: int, job: str, step: int, ranks: int) -> None:
        self.write(f"[{_moment(at)}] using world size: {ranks}, data-parallel size: {max(1, ranks // 8)}, "
                   "tensor-model-parallel size: 8, pipeline-model-parallel size: 1")
        self.write(f" loading distributed checkpoint from /checkpoints/{job} at iteration {step}")

    def loaded(self, at: int, job: str, step: int) -> None:
        self.write(f"[{_moment(at)}]  successfully loaded checkpoint from /checkpoints/{job} [ t 1/8, p 1/1 ] "
                   f"at iteration {step}")

    def stopped(self, at: int, step: int, clean: bool) -> None:
        if clean:
            self.write(f"[{_moment(at)}] exiting program at iteration {step} after a termination signal")

    def saving(self, at: int, step: int) -> None:
        self.write(f"[{_moment(at)}] saving checkpoint at iteration {step:7d} to /checkpoints in torch_dist format")

    def saved(self, at: int, step: int, took_ms: int) -> None:
        self.write(f"[{_moment(at)}]   successfully saved checkpoint from iteration {step:7d} to /checkpoints "
                   f"({took_ms:.0f} ms)")

    def evaluated(self, at: int, step: int, loss: float) -> None:
        self.write(f"[{_moment(at)}] validation loss at iteration {step} | lm loss value: {loss:.6E} |")

    def iteration(self, at: int, job: Job, seconds: float) -> None:
        shape = job.shape
        batch = shape.tokens_per_rank * job.ranks // self.sequence_length
        # A 70-billion-parameter model needs about 6 floating-point operations per parameter and token.
        flops = 6 * 7e10 * shape.tokens_per_rank / seconds / 1e12
        self.write(
            f" [{_moment(at)}] iteration {job.step:8d}/{shape.last_step:8d} | consumed samples: {job.step * batch:12d} | "
            f"elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {flops:.1f} | "
            f"learning rate: {1.2e-4:.6E} | global batch size: {batch:5d} | lm loss: {job.loss:.6E} | loss scale: 1.0 | "
            f"grad norm: {job.grad_norm:.3f} | number of skipped iterations: {job.skipped:3d} | "
            f"number of nan iterations: {job.nonfinite:3d} |")

    def watchdog(self, at: int, job: Job, timeout: int) -> None:
        """Each rank that waits in the collective reports it; the one that never entered it says nothing."""
        clock = rfc3339(at)
        day, moment = clock[5:7] + clock[8:10], clock[11:23]
        for rank in range(job.ranks):
            if rank == job.hung_rank:
                continue
            seq = int(job.seq[rank])
            head = f"[rank{rank}]:[E{day} {moment}000000 ProcessGroupNCCL.cpp:632] [Rank {rank}]"
            self.write(f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
                       f"NumelIn=16777216, NumelOut=16777216, Timeout(ms)={timeout * 1000}) ran for "
                       f"{timeout * 1000 + 60 + rank % 29} milliseconds before timing out.")
            self.write(f"{head} failure detected by watchdog at work sequence id: {seq} PG status: "
                       f"last enqueued work: {seq}, last completed work: {seq - 1}")


def _moment(at: int) -> str:
    text = rfc3339(at)
    return f"{text[:10]} {text[11:19]}"
