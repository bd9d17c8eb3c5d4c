"""Whether an attempt has worked: the detectors are quiet, and each job is as fast as before the fault.

A job's speed is its tokens a second per GPU; where they are not known, its step time. The speed before is taken once,
from the ten minutes before the onset; the speed after is the median over the last two minutes, and at least one minute,
since the last step was done. Warm-up slows the first steps, so the comparison is made anew each tick until the deadline.

A job that ended, that waits in a queue, that came back with fewer ranks or with another batch cannot be compared: the
attempt is then *inconclusive*. That is neither a cure nor a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocols import WorkFacts
from core.types import Finding, Incident
from remediation.plan import jobs_of
from remediation.policy import Verify
from remediation.track import Speed, Track

BEFORE_MS = 600_000
AFTER_MS = 120_000
AFTER_LEAST_MS = 60_000
# Tokens a step per GPU differ by this ratio before a batch counts as another one. Two medians of the same batch, read at
# other moments, differ by a few per cent; one micro-batch more or less of eight is 12.5 %.
REBATCH_RATIO = 0.1
MOST_JOBS = 8  # of one incident whose speed is proved: more have their cause in common, and nothing is done to a node then


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found out about an attempt. result: cured, failed or inconclusive; reason: the named one.

    job: the one that decided, None where no job's speed did. Seconds are those of a step, tokens those a second per GPU;
    None where no trainer metric told.
    """

    at: int
    incident: str
    job: str | None
    before_seconds: float | None
    after_seconds: float | None
    attempt: int = 0
    result: str = "cured"
    reason: str = "recovered"
    before_tokens: float | None = None
    after_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """result: wait | cured | failed | inconclusive. reason: the incident's, by name. resolves: False where a person has to
    look all the same. before, after: the speed of the job that decided."""

    result: str
    reason: str = ""
    resolves: bool = False
    before: Speed | None = None
    after: Speed | None = None

    def told(self, at: int, incident: str, attempt: int) -> Recovery:
        """The proof as it is recorded."""
        before, after = self.before or Speed(""), self.after or Speed("")
        return Recovery(at, incident, before.job or None, before.seconds, after.seconds, attempt, self.result, self.reason,
                        before.tokens, after.tokens)


def remember(track: Track, incident: Incident, facts: WorkFacts) -> None:
    """Keeps how fast the incident's jobs were before its onset; what is not known yet is asked for again."""
    onset = incident.onset_at
    known = {one.job: one for one in track.before if one.known}
    jobs = tuple(dict.fromkeys((*known, *jobs_of(incident))))[:MOST_JOBS]
    if len(known) < len(jobs):
        track.before = tuple(known.get(job) or speed(job, onset - BEFORE_MS, onset, facts) for job in jobs)


def speed(job: str, start: int, end: int, facts: WorkFacts) -> Speed:
    """How fast the job was between the two times (ms)."""
    return Speed(job, facts.step_seconds(job, start, end), facts.tokens_per_second(job, start, end), facts.ranks(job, start, end))


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


def judge(at: int, incident: Incident, track: Track, verify: Verify, facts: WorkFacts) -> Judged:
    """One tick of verifying. Keeps `quiet_since` of the track up to date; changes nothing else."""
    began = track.verify_at if track.verify_at is not None else at
    jobs = tuple(dict.fromkeys((*track.jobs, *incident.jobs)))
    if noisy(incident, jobs, tuple(facts.open_findings())):
        track.quiet_since = None
    elif track.quiet_since is None:
        track.quiet_since = at
    late = at - began >= verify.deadline_seconds * 1000
    quiet = track.quiet_since is not None and at - track.quiet_since >= verify.quiet_seconds * 1000
    told = _jobs(at, began, track, verify, facts)
    if quiet and told.result in ("cured", "inconclusive") and told.resolves:
        return told
    if not late:
        return Judged("wait")
    if told.result == "inconclusive" and track.quiet_since is not None:
        return told  # the part is quiet, and nothing more can be learned from this job
    return Judged("failed", "verify_failed", before=told.before, after=told.after)


def _jobs(at: int, began: int, track: Track, verify: Verify, facts: WorkFacts) -> Judged:
    """What the jobs' speed says now, all of them together: the worst word counts."""
    rows = [_one(at, began, before, verify.step_time_ratio_max, facts) for before in track.before]
    for word in ("wait", "slow", "job_queued", "job_ended", "job_shrank", "job_rebatched", "recovered"):
        for found, before, after in rows:
            if found != word:
                continue
            if word == "wait":
                return Judged("wait", before=before, after=after)
            if word == "slow":
                return Judged("failed", "verify_failed", before=before, after=after)
            if word == "recovered":
                return Judged("cured", "recovered", True, before, after)
            # A job that nobody runs any more costs nothing; one that should run and does not is a person's to look at.
            return Judged("inconclusive", word, word != "job_queued", before, after)
    # Nothing to compare with (no job, or no trainer metrics before the fault): the detectors' silence has to do.
    return Judged("cured", "quiet", True)


def _one(at: int, began: int, before: Speed, ratio_max: float, facts: WorkFacts) -> tuple[str, Speed, Speed]:
    """(word, before, after) of one job. word: wait, slow, recovered, unknown, or why it cannot be compared."""
    known = facts.job(before.job)
    enough = at - began >= AFTER_LEAST_MS
    if not before.known and not before.ranks:
        return "unknown", before, Speed(before.job)
    if not enough:
        return "wait", before, Speed(before.job)
    after = speed(before.job, max(began, at - AFTER_MS), at, facts)
    if known is not None and not known.running:
        return "job_ended", before, after
    if before.ranks and not after.ranks:
        return "job_queued", before, after
    if not before.known:
        return "unknown", before, after
    if not after.known:  # its ranks are there, and it makes no step
        return "slow", before, after
    if before.ranks and after.ranks and after.ranks < before.ranks:
        return "job_shrank", before, after
    if _rebatched(before, after):
        return "job_rebatched", before, after
    return ("recovered" if _back(before, after, ratio_max) else "slow"), before, after


def _rebatched(before: Speed, after: Speed) -> bool:
    """Tokens a step per GPU are others: a step of another size takes another time, and says nothing of the fault."""
    sizes = [s.tokens * s.seconds for s in (before, after) if s.tokens is not None and s.seconds is not None]
    return len(sizes) == 2 and abs(sizes[1] / sizes[0] - 1) > REBATCH_RATIO


def _back(before: Speed, after: Speed, ratio_max: float) -> bool:
    if before.tokens is not None and after.tokens is not None:
        return after.tokens * ratio_max >= before.tokens
    if before.seconds is not None and after.seconds is not None:
        return after.seconds / before.seconds <= ratio_max
    return False  # known before by a metric that says nothing now
