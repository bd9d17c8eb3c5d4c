"""`greylag_goodput_ratio{job}`: the share of a job's time that new steps at its best pace account for.

    new steps × seconds of a step at the best pace seen ÷ seconds since Greylag first saw the job

New steps are those beyond the highest step that the job ever reached here: what is computed again after a restart counts
for nothing. The best pace is the shortest median of step times over ten minutes, so that a job which got slower has less
goodput than one which did not. Checkpoints, evaluations, hangs, restarts and waiting all count against it. Time in which
nothing is heard of the job, though it may run, counts neither way. A job without a step counter has no ratio.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from core.telemetry import Telemetry
from core.types import JobState
from core.window import Window
from pipeline.codec import pack, unpack
from pipeline.facts import step_seconds

PACE_MS = 600_000
LEAST_STEPS = 10
KEPT_MS = 86_400_000


@dataclass(slots=True)
class Account:
    """top: the highest step; new_steps: beyond the first one seen; seconds: for which the job was heard; pace: seconds a
    step at its best, None until it is known; last_at: ms of the last tick that counted."""

    top: float
    last_at: int
    new_steps: float = 0.0
    seconds: float = 0.0
    pace: float | None = None

    @property
    def ratio(self) -> float | None:
        """0–1; None where it is not known yet."""
        if self.pace is None or self.new_steps < LEAST_STEPS or self.seconds <= 0:
            return None
        return min(1.0, self.new_steps * self.pace / self.seconds)


class Goodput:
    """The accounts of all jobs that run or ran within the last day."""

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self._telemetry = telemetry
        self._accounts: dict[str, Account] = {}

    def update(self, window: Window) -> dict[str, float]:
        """Takes one tick; gives the ratio of each running job where it is known."""
        out: dict[str, float] = {}
        if "rank.step" in window.blocks:
            steps = window.last("rank.step")
            for job in window.jobs:
                account = self._take(job, window, steps)
                if account is not None and account.ratio is not None:
                    out[job.id] = account.ratio
        self._accounts = {job: one for job, one in self._accounts.items() if window.end - one.last_at <= KEPT_MS}
        if self._telemetry is not None:
            self._telemetry.replace("greylag_goodput_ratio", {(("job", job),): round(ratio, 4) for job, ratio in out.items()})
        return out

    def _take(self, job: JobState, window: Window, steps: np.ndarray) -> Account | None:
        if not job.running or job.silent or not job.ranks:
            return None
        known = steps[np.array(job.ranks, np.int64)]
        top = float(np.nanmax(known)) if not np.isnan(known).all() else None
        account = self._accounts.get(job.id)
        if account is None:
            if top is not None:
                self._accounts[job.id] = Account(top, window.end)
            return None
        account.seconds += min((window.end - account.last_at) / 1000, 4.0 * window.step_seconds)
        account.last_at = window.end
        if top is not None and top > account.top:
            account.new_steps += top - account.top
            account.top = top
        pace = step_seconds(window, job, window.end - PACE_MS, window.end) if account.new_steps >= LEAST_STEPS else None
        if pace is not None and pace > 0:
            account.pace = pace if account.pace is None else min(account.pace, pace)
        return account

    def dump(self) -> str:
        """All state as JSON; `load` gives it back."""
        return json.dumps({job: pack(one) for job, one in self._accounts.items()}, separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        self._accounts = {job: unpack(Account, one) for job, one in json.loads(text).items()}
