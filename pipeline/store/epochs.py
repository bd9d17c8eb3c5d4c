"""Which batches have been committed: what makes a hand-over that comes twice count once."""

from __future__ import annotations

# A worker's batches arrive in order but for retries: a number this far behind its newest is a repeat.
REPEAT_SPAN = 100_000

BatchKey = tuple[str, int, int]


class Epochs:
    """Which (worker, epoch, seq) have been committed, for the newest epoch of each worker."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self._seen: dict[str, set[int]] = {}
        self._highest: dict[str, int] = {}

    def start(self, worker: str, epoch: int) -> None:
        """The worker's epoch is now `epoch`; nothing of it is committed yet."""
        self.newest[worker] = epoch
        self._seen[worker] = set()
        self._highest[worker] = -1

    def judge(self, key: BatchKey) -> str:
        """`new`, `repeat_batch` or `old_epoch`."""
        worker, epoch, seq = key
        newest = self.newest.get(worker)
        if newest is not None and epoch < newest:
            return "old_epoch"
        if newest is None or epoch > newest:
            return "new"
        if seq in self._seen[worker] or seq <= self._highest[worker] - REPEAT_SPAN:
            return "repeat_batch"
        return "new"

    def add(self, key: BatchKey) -> None:
        """The batch is committed."""
        worker, epoch, seq = key
        if self.newest.get(worker) != epoch:
            self.start(worker, epoch)
        seen = self._seen[worker]
        seen.add(seq)
        self._highest[worker] = max(self._highest[worker], seq)
        if len(seen) > 2 * REPEAT_SPAN:
            floor = self._highest[worker] - REPEAT_SPAN
            self._seen[worker] = {one for one in seen if one > floor}
