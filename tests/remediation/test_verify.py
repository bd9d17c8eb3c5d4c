"""When an attempt has worked, when it has not, and when nothing can be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.reasons import INCIDENT_REASONS
from core.types import JobState
from remediation.policy import Verify
from remediation.track import Speed, Track
from remediation.verify import Judged, judge, remember
from tests.remediation.worlds import T0, Facts, finding, incident

VERIFY = Verify(quiet_seconds=60, step_time_ratio_max=1.05, deadline_seconds=600)
BEGAN = T0 + 600_000
BEFORE = Speed("train", 2.0, 1000.0, 8)


def told(facts: Facts, *, seconds: float = 300, quiet: bool = True, before: tuple[Speed, ...] = (BEFORE,)) -> Judged:
    """What is judged so many seconds after the last step; quiet: the detectors have been so since then."""
    track = Track("inc-1", "verifying", before=before, verify_at=BEGAN, quiet_since=BEGAN if quiet else None, jobs=("train",))
    return judge(BEGAN + round(seconds * 1000), incident(), track, VERIFY, facts)


def facts(step: float | None = 2.0, tokens: float | None = 1000.0, ranks: int | None = 8, phase: str = "train",
          noisy: bool = False) -> Facts:
    """The job as it is now."""
    return Facts([finding(BEGAN)] if noisy else [], [(0, step)], {"train": JobState("train", phase)}, [(0, tokens)], [(0, ranks)])


@pytest.mark.parametrize(("now", "result", "reason", "resolves"), [
    (facts(), "cured", "recovered", True),
    (facts(tokens=960), "cured", "recovered", True),
    (facts(step=2.5, tokens=960), "inconclusive", "job_rebatched", True),
    (facts(step=None), "cured", "recovered", True),
    (facts(tokens=None), "cured", "recovered", True),
    (facts(step=2.04, tokens=None), "cured", "recovered", True),
    (facts(phase="done"), "inconclusive", "job_ended", True),
    (facts(ranks=6), "inconclusive", "job_shrank", True),
    (facts(step=1.0), "inconclusive", "job_rebatched", True),
    (facts(step=4.0, tokens=1000), "inconclusive", "job_rebatched", True),
], ids=["as-before", "within-the-ratio", "other-batch-and-as-fast", "tokens-alone", "step-time-alone", "step-time-within",
        "ended", "fewer-ranks", "smaller-batch", "larger-batch"])
def test_quiet_detectors_and_what_the_job_says(now, result, reason, resolves):
    """With quiet detectors the incident is over where the job is as fast, or where it cannot be compared."""
    one = told(now)
    assert (one.result, one.reason, one.resolves) == (result, reason, resolves)
    assert one.reason in INCIDENT_REASONS


@pytest.mark.parametrize("now", [
    facts(step=4.0, tokens=500), facts(step=2.2, tokens=None), facts(step=None, tokens=None), facts(tokens=940, step=2.13),
], ids=["half-as-fast", "slower-steps", "no-step", "a-little-below"])
def test_a_job_that_is_not_back_is_waited_for_and_then_failed(now):
    """Until the deadline it may come back; then the attempt has failed."""
    assert told(now).result == "wait"
    late = told(now, seconds=600)
    assert (late.result, late.reason) == ("failed", "verify_failed")


def test_a_queued_job_goes_to_a_person():
    """No rank is heard: until the deadline it may start; then nothing is proved, and somebody has to look."""
    now = facts(step=None, tokens=None, ranks=0)
    assert told(now).result == "wait"
    late = told(now, seconds=600)
    assert (late.result, late.reason, late.resolves) == ("inconclusive", "job_queued", False)


@pytest.mark.parametrize("phase", ["train", "done"])
def test_loud_detectors_are_no_cure_whatever_the_job_does(phase):
    """A finding that is open keeps the incident; at the deadline the attempt has failed, also where the job has ended."""
    now = facts(phase=phase, noisy=True)
    assert told(now, quiet=False).result == "wait"
    assert told(now, seconds=600, quiet=False).result == "failed"


def test_the_detectors_have_to_be_quiet_for_the_policy_s_time():
    """One tick without a finding is not enough."""
    track = Track("inc-1", "verifying", before=(BEFORE,), verify_at=BEGAN, jobs=("train",))
    results = [judge(BEGAN + s * 1000, incident(), track, VERIFY, facts()).result for s in (15, 30, 45, 60, 75)]
    assert results == ["wait"] * 4 + ["cured"]


@pytest.mark.parametrize("before", [(), (Speed("train", None, None, None),)], ids=["no-job", "no-trainer-metrics"])
def test_with_nothing_to_compare_with_quiet_decides(before):
    """Where no speed was known before the fault the reason says so: quiet, not recovered."""
    assert (told(facts(), before=before).result, told(facts(), before=before).reason) == ("cured", "quiet")


def test_ranks_without_any_speed_still_tell_a_job_that_is_gone():
    """A job whose speed was never known, and of which no rank is heard any more, is no quiet end."""
    late = told(facts(None, None, 0), seconds=600, before=(Speed("train", None, None, 8),))
    assert (late.reason, late.resolves) == ("job_queued", False)


def test_each_job_of_the_incident_has_to_be_back():
    """The worst word counts, and the proof names that job."""
    both = (BEFORE, Speed("other", 1.0, 2000.0, 8))
    one = told(facts(), seconds=600, before=both)
    assert (one.result, one.before.job) == ("failed", "other")


def test_the_first_minute_is_not_compared():
    """Warm-up would be taken for the fault, or one fast step for its end."""
    assert told(facts(step=9.0, tokens=100), seconds=45).result == "wait"


def test_the_speed_before_is_taken_once_and_asked_for_until_it_is_known():
    """What is unknown at first is taken later; what is known stays."""
    track = Track("inc-1")
    remember(track, incident(), facts(None, None, None))
    assert track.before == (Speed("train"),)
    remember(track, incident(), facts())
    remember(track, incident(), facts(step=9.0))
    assert track.before == (BEFORE,)


def test_a_job_that_joins_later_is_remembered_too():
    """The incident's jobs grow while it waits."""
    track = Track("inc-1")
    remember(track, incident(), facts())
    remember(track, incident(jobs=("train", "other")), facts())
    assert [s.job for s in track.before] == ["train", "other"]


def test_the_proof_tells_both_speeds():
    """Before and after, of the job that decided."""
    one = told(facts(step=2.05, tokens=980)).told(T0, "inc-1", 2)
    assert (one.job, one.before_seconds, one.after_seconds, one.before_tokens, one.after_tokens) == ("train", 2.0, 2.05, 1000.0, 980.0)
    assert (one.attempt, one.result, one.reason) == (2, "cured", "recovered")


def test_a_track_of_before_there_were_tokens_is_read():
    """A state that knew step times only keeps them."""
    from remediation.track import track_in, track_out
    row = {k: v for k, v in track_out(Track("inc-1")).items() if k != "before"}
    assert track_in({**row, "before_job": "train", "before_seconds": 2.0}).before == (Speed("train", 2.0),)
    assert track_in({**row, "before_job": None, "before_seconds": None}).before == ()
    kept = replace(Track("inc-1"), before=(BEFORE,))
    assert track_in(track_out(kept)) == kept
