"""Jobs as the window knows them: from the inventory, the ranks that report, and what logs said of phases."""

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
_OWN = ("boot", "exporter_restart", "action")  # events that Greylag made itself


class Jobs:
    """Remembers which jobs said that they are done: that holds until they say something else."""

    def __init__(self) -> None:
        self._inventory: dict[str, JobState] = {}
        self._done: dict[str, int] = {}

    def set_inventory(self, jobs: Sequence[JobState]) -> None:
        """The jobs that the inventory names."""
        self._inventory = {job.id: job for job in jobs}

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
        for job_id in sorted({*self._inventory, *ranks, *told}, key=natural):
            known = self._inventory.get(job_id, JobState(job_id))
            if known.start is not None and known.start > window.end:
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
        if event.kind == "job_phase" and event.target.job is not None:
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
