"""Whether an attempt has worked: the detectors are quiet, and the job steps as fast as before the fault.

The step time before is taken once, from the ten minutes before the onset; the step time after is the median over the
last two minutes, and at least one minute, since the last step was done. Warm-up slows the first steps, so the comparison
is made anew each tick until the deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocols import Facts
from core.types import Finding, Incident
from remediation.policy import Verify
from remediation.track import Track

BEFORE_MS = 600_000
AFTER_MS = 120_000
AFTER_LEAST_MS = 60_000


@dataclass(frozen=True, slots=True)
class Recovery:
    """The proof: step seconds of the job before the fault and after the repair; None where no trainer metric told."""

    at: int
    incident: str
    job: str | None
    before_seconds: float | None
    after_seconds: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """result: wait | recovered | job_ended | failed. after_seconds: the step time now, where known."""

    result: str
    after_seconds: float | None = None


def noisy(incident: Incident, jobs: tuple[str, ...], findings: tuple[Finding, ...]) -> bool:
    """True while a finding of the incident, of its fault on the culprit, or of its fault on the whole job is open."""
    for one in findings:
        if one.ended_at is not None:
            continue
        if one.id in incident.findings:
            return True
        if one.fault != incident.fault:
            continue
        if incident.culprit is not None and one.target.same_part(incident.culprit):
            return True
        if one.target.kind in ("job", "rank") and one.target.job in jobs:
            return True
    return False


def judge(at: int, incident: Incident, track: Track, verify: Verify, facts: Facts) -> Judged:
    """One tick of verifying. Keeps `quiet_since` of the track up to date; changes nothing else."""
    began = track.verify_at if track.verify_at is not None else at
    jobs = tuple(dict.fromkeys((*track.jobs, *incident.jobs)))
    if noisy(incident, jobs, tuple(facts.open_findings())):
        track.quiet_since = None
    elif track.quiet_since is None:
        track.quiet_since = at
    after = step_seconds_after(at, began, track.before_job, facts)
    if at - began >= AFTER_LEAST_MS and _ended(track.before_job, facts):
        return Judged("job_ended", after)
    quiet = track.quiet_since is not None and at - track.quiet_since >= verify.quiet_seconds * 1000
    if quiet and _back(track.before_seconds, after, verify.step_time_ratio_max):
        return Judged("recovered", after)
    return Judged("failed" if at - began >= verify.deadline_seconds * 1000 else "wait", after)


def step_seconds_after(at: int, began: int, job: str | None, facts: Facts) -> float | None:
    """Median step seconds since the repair, over at most the last two minutes; None before one minute has passed."""
    if job is None or at - began < AFTER_LEAST_MS:
        return None
    return facts.step_seconds(job, max(began, at - AFTER_MS), at)


def _back(before: float | None, after: float | None, ratio_max: float) -> bool:
    # Nothing to compare with (no trainer metrics before the fault): the detectors' silence has to do. Known before and
    # unknown now is a job that does not step: not recovered.
    if before is None or before <= 0:
        return True
    return after is not None and after / before <= ratio_max


def _ended(job: str | None, facts: Facts) -> bool:
    known = facts.job(job) if job is not None else None
    return known is not None and not known.running
