"""XID 13 and 31, which programs cause: on one GPU under several jobs they point at the GPU, on several GPUs of one job at the job.

Under which job a line was written follows from the inventory: the one job that had the node then. A line under none or under
several, or under a job of which nobody knows when it began, tells nothing; nor do repeats within one job, however many.
"""

from __future__ import annotations

from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Window
from core.xids import xid_of
from detectors import shared

PROGRAMS = (13, 31)
REASON = "repeats_across_jobs"
SUSPECTED = 0.3  # how sure repeats make us of the GPU: one user's program may be all of the jobs
TICKET = 0.3


def suspected(window: Window, fault: str, jobs: int, seconds: float) -> dict[str, Verdict]:
    """By key, the GPUs with such lines under so many jobs; clear once the newest is older than `seconds`."""
    out: dict[str, Verdict] = {}
    for gpu, events in _by_gpu(window).items():
        under = _under(window, events)
        if len(under) < jobs or gpu.node in window.silent_nodes:
            continue
        newest = events[-1]
        if window.end - newest.at > seconds * 1000:
            out[gpu.key] = Verdict(gpu, fault, "clear", reason="clear")
            continue
        code = newest.fields["xid"]
        text = f"XID {code}: {xid_of(int(str(code))).means}; under {', '.join(under[:4])}, on no other GPU of theirs: {newest.line or ''}"
        row = Evidence("xid", "count", float(len(under)), 1.0, "jobs under which a program's own fault repeats on one GPU", text)
        out[gpu.key] = Verdict(gpu, fault, "faulty", TICKET, (row,), REASON, onset_at=events[0].at, suspects=((gpu, SUSPECTED, REASON),))
    return out


def of_programs(window: Window) -> list[Event]:
    """The lines of XID 13 and 31 that the window holds, in time order."""
    return window.once("xids of programs", lambda: [e for e in window.events_of("xid") if e.fields.get("xid") in PROGRAMS])


def _by_gpu(window: Window) -> dict[Target, list[Event]]:
    by_key: dict[str, list[Event]] = {}
    for event in of_programs(window):
        by_key.setdefault(event.target.key, []).append(event)
    parts = window.of_kind("gpu")
    places = shared.by_key(parts) if by_key else {}
    return {parts[places[key]] if key in places else events[0].target: events for key, events in by_key.items()}


def _under(window: Window, events: list[Event]) -> list[str]:
    """The jobs under which the GPU's lines were written, but for those that met them on several GPUs: their software did it."""
    gpus = window.once("gpus of programs' xids by job", lambda: _gpus_by_job(window))
    found = dict.fromkeys(_job_at(window, e) for e in events)
    return [job for job in found if job is not None and len(gpus[job]) == 1]


def _gpus_by_job(window: Window) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for event in of_programs(window):
        job = _job_at(window, event)
        if job is not None:
            out.setdefault(job, set()).add(event.target.key)
    return out


def _job_at(window: Window, event: Event) -> str | None:
    """The one job that had the event's node at its time."""
    jobs = window.once("known times of jobs by node", lambda: _by_node(window.jobs)).get(event.target.node or "", [])
    there = [job.id for job in jobs if job.start is not None and job.start <= event.at and (job.end is None or event.at <= job.end)]
    return there[0] if len(there) == 1 else None


def _by_node(jobs: tuple[JobState, ...]) -> dict[str, list[JobState]]:
    out: dict[str, list[JobState]] = {}
    for job in jobs:
        for node in job.nodes:
            out.setdefault(node, []).append(job)
    return out
