"""Jobs as the window knows them: from the inventory, the ranks that report, and what logs said of phases.

An inventory may name a job several times: it was requeued, and each run has its own nodes. The run of a moment is the one that
began last. Jobs that ended over a day ago are none of it, so a month of a scheduler's history costs a tick no more than a day.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from core.targets import PHASES
from core.types import Event, JobState, Target
from core.window import Window
from pipeline.ring_parts import natural

STEP_SIGNALS = ("rank.step", "rank.last_step_timestamp_seconds")
ADVANCE_SECONDS = 300  # a job whose step grew within this time trains
PHASE_OF_EVENT = {"start": "init", "restart": "init", "end": "done", **{p: p for p in PHASES}}
SCHEDULER = "slurm"  # the source of phases that come from the scheduler's accounting
_OWN = ("boot", "exporter_restart", "action")  # events that Greylag made itself
ENDED_MS = 86_400_000  # a job that ended is told of for so long
_FIRST, _LAST = -(2**62), 2**62


class Jobs:
    """Remembers which jobs said that they are done: that holds until they say something else."""

    def __init__(self) -> None:
        self._inventory: dict[str, list[JobState]] = {}
        self._runs: list[JobState] = []
        self._starts = self._ends = np.zeros(0, np.int64)
        self._done: dict[str, int] = {}

    def set_inventory(self, jobs: Sequence[JobState]) -> None:
        """The jobs that the inventory names; of runs of one job that began together the last one named counts."""
        self._runs = sorted(jobs, key=lambda job: _FIRST if job.start is None else job.start)
        self._starts = np.array([_FIRST if job.start is None else job.start for job in self._runs], np.int64)
        self._ends = np.array([_LAST if job.end is None else job.end for job in self._runs], np.int64)
        self._inventory = {}
        for job in self._runs:
            self._inventory.setdefault(job.id, []).append(job)

    def _run(self, job_id: str, at: int) -> JobState | None:
        """The run of a job at a time, None where the inventory has it begin later."""
        return next((run for run in reversed(self._inventory[job_id]) if run.start is None or run.start <= at), None)

    def states(self, window: Window, recent: Iterable[Event]) -> tuple[JobState, ...]:
        """All jobs at the window's end, in natural order of their ids.

        window: without jobs yet. recent: the events of the last minute, which show that an input goes on.
        """
        ranks = _columns_by_job(window.of_kind("rank"))
        told = _last_phases(window.events)
        spoke = {e.target.job for e in recent if e.target.job is not None and e.kind not in _OWN}
        fresh = _fresh_ranks(window)
        states: list[JobState] = []
        homeless: list[int] = []
        first = int(window.times[0]) if len(window.times) else window.end
        here = np.flatnonzero((self._starts <= window.end) & (self._ends >= first - ENDED_MS)).tolist()
        for job_id in sorted({*(self._runs[i].id for i in here), *ranks, *told}, key=natural):
            known = self._run(job_id, window.end) if job_id in self._inventory else JobState(job_id)
            if known is None:
                continue
            columns = ranks.get(job_id, [])
            if not columns and job_id not in self._inventory and told[job_id][0] < window.end - 1_800_000:
                continue  # only old words of it are left
            state = replace(known, ranks=tuple(columns), nodes=_nodes(known, columns, window.of_kind("rank")),
                            end=known.end if known.end is not None and known.end <= window.end else None)
            if not state.nodes:
                homeless.append(len(states))
            states.append(replace(state, phase=self._phase(state, window, fresh, told.get(job_id))))
        if len(homeless) == 1 and states[homeless[0]].running:
            states[homeless[0]] = replace(states[homeless[0]], nodes=_unclaimed(window, states))
        return tuple(replace(s, silent=_is_silent(s, window, fresh, spoke)) for s in states)

    def _phase(self, job: JobState, window: Window, fresh: np.ndarray, told: tuple[int, str] | None) -> str:
        if job.end is not None:
            return "done"
        columns = np.array([c for c in job.ranks if fresh[c]], np.int64)
        said = _majority(window, columns)
        if said is None and told is not None:
            done_at = self._done.get(job.id)
            said = told[1] if done_at is None or told[0] > done_at else "done"
        if said == "done":
            self._done.setdefault(job.id, window.end if told is None else max(told[0], window.end))
            return "done"
        if said is not None:
            self._done.pop(job.id, None)
            return said
        if job.id in self._done:
            return "done"
        return "train" if _advances(window, np.array(job.ranks, np.int64)) else "unknown"


def _columns_by_job(ranks: tuple[Target, ...]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for column, rank in enumerate(ranks):
        if rank.job is not None:
            out.setdefault(rank.job, []).append(column)
    return out


def _last_phases(events: Sequence[Event]) -> dict[str, tuple[int, str]]:
    out: dict[str, tuple[int, str]] = {}
    for event in events:
        # A scheduler knows when a job began and ended (the inventory says it), not what it does.
        if event.kind == "job_phase" and event.target.job is not None and event.fields.get("source") != SCHEDULER:
            phase = PHASE_OF_EVENT.get(str(event.fields.get("phase")))
            if phase is not None:
                out[event.target.job] = (event.at, phase)
    return out


def _fresh_ranks(window: Window) -> np.ndarray:
    """bool[rank]: any signal of the rank is fresh."""
    out = np.zeros(len(window.of_kind("rank")), np.bool_)
    for name, block in window.blocks.items():
        if name.startswith("rank."):
            out |= block.fresh()
    return out


def _majority(window: Window, columns: np.ndarray) -> str | None:
    """The phase that most fresh ranks say they are in, None where none says; equal counts go to the earlier phase."""
    best, most = None, 0
    for phase in PHASES:
        block = window.blocks.get(f"rank.phase_{phase}")
        if block is None or not len(columns):
            continue
        count = int((block.last[columns] >= 0.5).sum())
        if count > most:
            best, most = phase, count
    return best


def _advances(window: Window, columns: np.ndarray) -> bool:
    for signal in STEP_SIGNALS:
        if signal in window.blocks and len(columns):
            values = window.tail(signal, ADVANCE_SECONDS)[:, columns]
            known = ~np.isnan(values)
            low = np.where(known, values, np.inf).min(axis=0)
            high = np.where(known, values, -np.inf).max(axis=0)
            if bool((high > low).any()):
                return True
    return False


def _is_silent(job: JobState, window: Window, fresh: np.ndarray, spoke: Collection[str]) -> bool:
    """Nothing is heard of the job: no rank, no line, and none of its nodes."""
    alive = bool(fresh[list(job.ranks)].any()) if job.ranks else False
    return not alive and job.id not in spoke and all(n in window.silent_nodes for n in job.nodes)


def _unclaimed(window: Window, states: Sequence[JobState]) -> tuple[str, ...]:
    """Where a job runs of which only a log speaks, that names no node: on the nodes whose GPUs worked in the window and
    that no other running job has. Asked only where there is one such job, so that nothing is guessed between two."""
    block = window.blocks.get("gpu.utilization_ratio")
    if block is None:
        return ()
    with np.errstate(invalid="ignore"):
        worked = np.asarray(block.values >= 0.5).any(axis=0)
    taken = {node for job in states if job.running for node in job.nodes}
    seen = {gpu.node for gpu, on in zip(block.entities, list(np.atleast_1d(worked)), strict=True) if on and gpu.node is not None}
    return tuple(sorted(seen - taken, key=natural))


def _nodes(known: JobState, columns: list[int], ranks: tuple[Target, ...]) -> tuple[str, ...]:
    """Where the job runs. Its ranks know best once they stand on as many nodes as the inventory names (a node was
    replaced); fewer are only those that report, and both are named."""
    seen = {node for c in columns if (node := ranks[c].node) is not None}
    if len(seen) >= len(known.nodes):
        return tuple(sorted(seen, key=natural))
    return tuple(sorted(seen | set(known.nodes), key=natural))
