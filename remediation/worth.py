"""Is it worth it? Expected GPU-hours lost by waiting and by each attempt that the rule has left.

    waiting       lost now × how long the fault goes on (some heal, a person comes within the horizon)
    an attempt    the work since the checkpoint, and the whole job while it stands
                  + (1 - chance to cure) × (proof that it failed, and then the best of what is left)

The last attempt is followed by waiting: a person. An attempt is skipped (`not_worth_it`) where the own ledger shows that it
seldom cures and what comes after it is cheaper. All of them are held while acting later costs less than acting now
(`remediation.waiting`): most slow parts heal within minutes, and right after the next checkpoint a stop loses no work. What is
not known (no rate, no job) is no reason for either: then the policy alone decides. All of it is pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.protocols import Checkpoint
from remediation.cures import Cures, numbers
from remediation.kinds import KINDS, commands
from remediation.policy import Attempt, Step
from remediation.usual import usual_seconds
from remediation.waiting import Lasting, best_wait, waits

HOUR = 3600.0
SELDOM = 0.5        # an attempt that cures more often than not is never skipped: the gentler step goes first
OWN_LEAST = 5       # nor one of which the own ledger knows too little: a prior is somebody else's cluster
MARGIN = 1.1        # a tenth dearer is within what these numbers can tell
LATER = 1.02        # beginning later has to save that much: the sum is flat about its least, and the next tick asks again
STALLED = 0.95      # of the job's work lost: it makes no step, so no checkpoint comes and none of its time is saved
STOPS = frozenset({"drain", "replace", "exclude_node", "reset_gpu", "reboot", "restart_process", "resume_job", "shrink_job"})
USES_SPARE = frozenset({"replace"})


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of an incident now.

    lost_gpus: GPU-hours that it costs in an hour. job_gpus: GPUs of the jobs that an attempt stops. unsaved_seconds: full-speed
    work since the newest complete checkpoint; next_seconds: until the next one is complete; interval_seconds: between two;
    None = not known. spares: that may be used. node_gpus: of the accused node. heal_share, heal_seconds: the share of such
    faults, at their onset, that go away by themselves, and their mean time; age_seconds: since the onset of this one.
    stands_seconds: the job stands already for something else, and would for so long only by this attempt; None = it runs.
    queued: the world could not keep nodes for the job: it would wait in the queue until some are free.
    """

    fault: str
    lost_gpus: float
    job_gpus: float
    unsaved_seconds: float | None = None
    next_seconds: float | None = None
    spares: int = 0
    node_gpus: float = 8.0
    heal_share: float = 0.0
    heal_seconds: float = 1800.0
    age_seconds: float = 0.0
    interval_seconds: float | None = None
    stands_seconds: float | None = None
    queued: bool = False

    @property
    def lasting(self) -> Lasting:
        """How long it goes on. A job that stands is stopped by nothing else."""
        stops = 0.0 if self.stalled else self.job_gpus / max(1.0, self.node_gpus) * float(numbers()["failures_per_node_day"]) / 86_400
        return Lasting(self.heal_share, self.heal_seconds, float(numbers()["heal_sigma"]), self.age_seconds, stops)

    @property
    def stalled(self) -> bool:
        """The job makes no progress at all."""
        return self.lost_gpus >= STALLED * self.job_gpus > 0


@dataclass(frozen=True, slots=True)
class Option:
    """One attempt of the rule. place: its index. cure: the chance that it cures; cured, failed: what the own ledger counts.
    stop_gpu_hours: what the job loses by it whether or not it cures. expected_gpu_hours: all that the job is expected to lose
    when it is made now, what comes after it where it fails included. spare_gpu_hours: the expected price of spares, beside
    that. skip: it is not worth it. restart_seconds: what its steps take until the job runs again; queue_seconds: what the job waits in
    the queue besides."""

    place: int
    kinds: tuple[str, ...]
    cure: float
    cured: int
    failed: int
    stop_gpu_hours: float
    expected_gpu_hours: float
    spare_gpu_hours: float
    skip: bool = False
    restart_seconds: float = 0.0
    queue_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What waiting and acting are expected to cost. options: the attempts that are left. wait_for: `checkpoint` where
    waiting for the next one is cheaper than stopping the job now, `now` where it is not, None where that is not known.
    hold: acting later, or not at all, costs less than acting now. wait_seconds: until acting costs least, as far as is known now.
    least_gpu_hours: what is expected to be lost where everything is done at its best time. spares: that may be used."""

    at: int
    lost_gpus: float
    job_gpus: float
    unsaved_seconds: float | None
    waiting_gpu_hours: float
    options: tuple[Option, ...]
    wait_for: str | None = None
    hold: bool = False
    wait_seconds: float = 0.0
    least_gpu_hours: float = 0.0
    spares: int = 0

    def best(self) -> Option | None:
        """The first option that is not skipped."""
        return next((one for one in self.options if not one.skip), None)


def as_json(worth: Worth | None) -> dict[str, Any] | None:
    """For the API and the command line; None stays None."""
    return None if worth is None else asdict(worth)


def told(worth: Worth, option: Option) -> str:
    """Why an option is not worth it, in words."""
    judged = option.cured + option.failed
    after = next((o.expected_gpu_hours + o.spare_gpu_hours for o in worth.options if o.place > option.place and not o.skip),
                 worth.waiting_gpu_hours)
    cost = option.expected_gpu_hours + option.spare_gpu_hours
    return (f"cures {100 * option.cure:.0f} % ({option.cured} of {judged} here): {cost:.1f} GPU-hours expected to be lost with it,"
            f" {after:.1f} without it")


def attempt_words(one: Mapping[str, Any]) -> str:
    """An option, as JSON, in one line: its steps, what is expected to be lost by it, what that rests on, and its chance to cure."""
    judged = one["cured"] + one["failed"]
    own = f"{one['cured']} of {judged} here" if judged else "no own record"
    spare = f", spares {one['spare_gpu_hours']:.1f} besides" if one["spare_gpu_hours"] else ""
    skipped = ", not worth it: skipped" if one["skip"] else ""
    return (f"attempt {one['place'] + 1} ({', '.join(one['kinds'])}): {one['expected_gpu_hours']:.1f} GPU-hours expected, "
            f"{one['stop_gpu_hours']:.1f} of it at once (restart {one['restart_seconds']:.0f} s, queue {one['queue_seconds']:.0f} s)"
            f"{spare}; cures {100 * one['cure']:.0f} % ({own}){skipped}")


def proposal_args(worth: Worth | None) -> dict[str, object]:
    """What a proposal shows of the worth, as arguments of its action: expected GPU-hours lost by waiting and by the attempt,
    its chance to cure, the work that is not saved, the spares, and a line for each attempt."""
    best = worth.best() if worth is not None else None
    if worth is None or best is None:
        return {}
    unsaved = None if worth.unsaved_seconds is None else round(worth.unsaved_seconds)
    return {"waiting_gpu_hours": round(worth.waiting_gpu_hours, 2), "attempt_gpu_hours": round(best.expected_gpu_hours, 2),
            "cure_chance": round(best.cure, 3), "unsaved_seconds": unsaved, "spares": worth.spares,
            "attempts": [attempt_words(asdict(one)) for one in worth.options]}


# --- the two sides ------------------------------------------------------------------------------------------------------
def waiting_gpu_hours(now: Situation) -> float:
    """What doing nothing is expected to cost: the faults that heal do so after a log-normal time, the rest lasts for the
    horizon. A job that is stalled loses what it did since its checkpoint, too, unless it wakes up."""
    lasting = now.lasting
    rework = now.job_gpus * (now.unsaved_seconds or 0.0) * (1.0 - lasting.heals) if now.stalled else 0.0
    return (now.lost_gpus * lasting.expected(float(numbers()["horizon"])) + rework) / HOUR


def checkpoint_first(now: Situation) -> str | None:
    """`checkpoint` where losing a little for longer is cheaper than losing all work since the last one."""
    if now.stalled:
        return "now"
    if now.unsaved_seconds is None or now.next_seconds is None:
        return None
    return "checkpoint" if now.lost_gpus * now.next_seconds < now.job_gpus * now.unsaved_seconds else "now"


def stop_gpu_hours(steps: Sequence[Step], now: Situation) -> tuple[float, float]:
    """(lost, spare): what the steps cost the job whether or not they cure, and the price of the spare that they take.

    The job loses what is unsaved (or, where the drain waits for a checkpoint, a little for longer), then stands until the last
    step is done. A spare that is taken is away until the node is repaired: its GPUs' time, by the chance that it is `missed`.
    """
    kinds = [s.kind for s in steps if commands(s.kind)]
    if not any(kind in STOPS for kind in kinds):
        return 0.0, 0.0
    seconds = sum(stands(steps, now))
    patient = _waits(steps, now)
    unsaved = 0.0 if patient else now.unsaved_seconds or 0.0
    lost = now.job_gpus * (seconds + unsaved)
    if patient:
        lost += now.lost_gpus * (now.next_seconds or 0.0)
    if now.stands_seconds is not None:  # what was not saved is lost already, and the job stands whatever is done here
        lost = now.job_gpus * now.stands_seconds
    spare = 0.0
    if any(kind in USES_SPARE for kind in kinds):
        spare = now.node_gpus * float(numbers()["repair"]) * missed(now)
    return lost / HOUR, spare / HOUR


def stands(steps: Sequence[Step], now: Situation) -> tuple[float, float]:
    """(restart, queue): seconds that the steps take until the job runs again, and that it waits for its nodes besides."""
    kinds = [s.kind for s in steps if commands(s.kind)]
    restart, queue = sum(step_seconds(s, now.fault) for s in steps if commands(s.kind)), 0.0
    if any(KINDS[kind].subject == "job" for kind in kinds):
        needs = now.queued or (any(kind in USES_SPARE for kind in kinds) and now.spares < 1)
        queue = float(numbers()["queue_without_spare" if needs else "queue"])
    return restart, queue


def missed(now: Situation) -> float:
    """The chance that, until the node is repaired, the job needs more spares than are left (Poisson); 1 where there is none."""
    nodes = now.job_gpus / max(1.0, now.node_gpus)
    wanted = nodes * float(numbers()["failures_per_node_day"]) * float(numbers()["repair"]) / 86_400
    enough = sum(math.exp(-wanted) * wanted**k / math.factorial(k) for k in range(min(now.spares, 100)))
    return min(1.0, max(0.0, 1.0 - enough))


def _waits(steps: Sequence[Step], now: Situation) -> bool:
    """The attempt's drain waits for a checkpoint, by the policy's word or by the cost."""
    drain = next((s for s in steps if s.kind == "drain"), None)
    if drain is None or now.stalled:
        return False
    said = drain.args.get("wait_for")
    return said == "checkpoint" or (said in BY_COST and checkpoint_first(now) == "checkpoint")


BY_COST = (None, "cheapest")  # what leaves it to the cost whether a drain waits; `nothing` never waits


def step_seconds(step: Step, fault: str) -> float:
    """How long a step usually holds the job up, in seconds; a diagnosis as long as the fault's level of tests takes."""
    return usual_seconds(step.kind, step.args, fault)


# --- all of it ----------------------------------------------------------------------------------------------------------
def weigh(at: int, attempts: Sequence[Attempt], first: int, now: Situation, cures: Cures, verify_seconds: float,
          passed: Collection[int] = (), skipped: Collection[int] | None = None) -> Worth | None:
    """The worth of the attempts from index `first` on; None where the rate, or the job, is not known.

    verify_seconds: how long it takes until a failed attempt is known to be one. passed: attempts that are not made now. skipped: those
    of which it is decided already that they are not worth it, None = that is decided here.
    """
    if not (now.lost_gpus > 0 and now.job_gpus > 0 and math.isfinite(now.lost_gpus) and math.isfinite(now.job_gpus)):
        return None
    waiting = waiting_gpu_hours(now)
    options: list[Option] = []
    after, spares_after = waiting, 0.0  # what is lost, and the price of spares, by going on without this attempt
    places = [place for place in range(first, len(attempts)) if place not in passed]
    for place in reversed(places):
        steps = attempts[place].do
        kinds = tuple(s.kind for s in steps if commands(s.kind))
        chance = cures.chance(now.fault, kinds)
        stop, spare = stop_gpu_hours(steps, now)
        proof = now.lost_gpus * verify_seconds / HOUR
        expected = stop + (1.0 - chance.mean) * (proof + after)
        price = spare + (1.0 - chance.mean) * spares_after
        last = place == places[-1]
        dearer = expected + price > MARGIN * (after + spares_after)
        skip = not last and chance.mean < SELDOM and chance.own.judged >= OWN_LEAST and dearer if skipped is None else place in skipped
        options.append(Option(place, kinds, chance.mean, chance.own.cured, chance.own.failed, stop, expected, price, skip,
                              *stands(steps, now)))
        if not skip:
            after, spares_after = expected, price  # the ladder is gone down in order
    options.reverse()
    # The price of a spare is no reason to wait: a part that has to be repaired has to be repaired later, too.
    wait, cost = _best_time(options, attempts, now, after) if options and not now.stalled else (0.0, after)
    hold = bool(options) and not now.stalled and (after > MARGIN * waiting or after > LATER * cost)
    if now.stands_seconds is not None:  # the stop is there now and not later: against the best that can be done without it
        alone = weigh(at, attempts, first, replace(now, stands_seconds=None), cures, verify_seconds, passed)
        hold = bool(options) and alone is not None and after > alone.least_gpu_hours
    return Worth(at, now.lost_gpus, now.job_gpus, now.unsaved_seconds, waiting, tuple(options), checkpoint_first(now), hold,
                 wait if hold else 0.0, min(waiting, cost), now.spares)


def _best_time(options: Sequence[Option], attempts: Sequence[Attempt], now: Situation, after: float) -> tuple[float, float]:
    """(seconds to wait, GPU-hours expected) of the best time to begin. after: what beginning now costs. What changes by waiting is
    whether the fault is still there, and how much work a stop loses. A drain that waits in the world cannot be called back when the
    part heals meanwhile; one that is held here can."""
    first = next((one for one in options if not one.skip), options[-1])
    steps = attempts[first.place].do
    said = next((s.args.get("wait_for") for s in steps if s.kind == "drain"), None)
    stops = any(kind in STOPS for kind in first.kinds) and now.stands_seconds is None and said != "nothing"
    at_once = after  # where the drain that is begun now would not wait
    if said != "checkpoint" and _waits(steps, now):
        at_once += (now.job_gpus * (now.unsaved_seconds or 0.0) - now.lost_gpus * (now.next_seconds or 0.0)) / HOUR

    def cost_at(wait: float) -> float:
        if wait <= 0 or not stops or now.unsaved_seconds is None:
            return after
        if said == "checkpoint":
            return after + now.lost_gpus * (_to_save(now, wait) - (now.next_seconds or 0.0)) / HOUR
        return at_once + now.job_gpus * (_unsaved(now, wait) - now.unsaved_seconds) / HOUR

    found = waits(float(numbers()["horizon"]), now.next_seconds if stops else None, now.interval_seconds)
    return best_wait(now.lasting, now.lost_gpus / HOUR, cost_at, found)


def _to_save(now: Situation, wait: float) -> float:
    """Seconds until the next save after a wait is complete."""
    if now.next_seconds is None:
        return 0.0
    every = now.interval_seconds or 0.0
    left = now.next_seconds - wait
    return left if left >= 0 else (left % every if every > 0 else 0.0)


def _unsaved(now: Situation, wait: float) -> float:
    """Seconds of full-speed work that a stop after a wait would lose."""
    share = max(0.0, 1.0 - now.lost_gpus / now.job_gpus)
    if now.next_seconds is None or wait <= now.next_seconds:
        return (now.unsaved_seconds or 0.0) + wait * share
    over, every = wait - now.next_seconds, now.interval_seconds or 0.0
    return (over % every if every > 0 else over) * share


# --- from what is known -------------------------------------------------------------------------------------------------
def saved(now: Situation, at: int, onset_at: int, checkpoint: Checkpoint) -> Situation:
    """The situation with what the job's newest checkpoint says. at, onset_at: ms.

    Work before the onset counts in full, work after it by the share that was not lost; a job that is stalled saves no more.
    """
    if checkpoint.saved_at is None:
        return now
    share = max(0.0, 1.0 - now.lost_gpus / now.job_gpus) if now.job_gpus > 0 else 1.0
    whole = max(0, min(at, onset_at) - checkpoint.saved_at) / 1000
    slow = max(0, at - max(onset_at, checkpoint.saved_at)) / 1000
    left = None
    if checkpoint.interval_seconds is not None:
        left = max(0.0, checkpoint.interval_seconds - (at - checkpoint.saved_at) / 1000)
    return replace(now, unsaved_seconds=whole + slow * share, next_seconds=left, interval_seconds=checkpoint.interval_seconds)
