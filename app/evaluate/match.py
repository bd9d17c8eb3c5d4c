"""Truth against what was said: which incident found which fault, and what all others are.

An incident is *right* when the fault's name is the same, its culprit is the true part (or the true shared scope) and it was
opened between the fault's onset and GRACE after its end. The first right one finds the fault, further ones are *repeats*.
An *echo* is an incident about what a planted fault does to its job or to those who watch (`ECHOES`): opened in that time, on
the job or node of the fault, naming no part elsewhere (a straggler: the very part that is slow, whose own name is missed). Echoes and repeats are no false alarms, and count against the incidents
per true fault. All else is a false alarm, of three kinds: *misplaced* (a true fault's name and time, the wrong part),
*misnamed* (the true part and time, or a part of the true node, another fault), *unfounded* (neither). A merged incident is none.
"Cannot tell apart": when two suspects have the same probability and the truth is one of them, the fault is found, and its
place counts a half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.evaluate.facts import Part, Said, Truth

GRACE_MS = 300_000
# A tick or a clock's step: nothing is known before it happens, but a log line may carry the second before.
EARLY_MS = 15_000
TIE = 0.005
RIGHT, REPEAT, ECHO, MISPLACED, MISNAMED, UNFOUNDED, MERGED = (
    "right", "repeat", "echo", "misplaced", "misnamed", "unfounded", "merged")
FALSE_WORDS = (MISPLACED, MISNAMED, UNFOUNDED)
# What follows from what. STOPS: the job stands or dies. SLOWS: its step is longer.
STOPS, SLOWS = frozenset({"stops"}), frozenset({"stops", "slows"})
ECHOES: Mapping[str, frozenset[str]] = {
    "throughput_drop": SLOWS,
    "stalled_loss": STOPS,
    "job_crash_loop": STOPS | {"gpu_memory_leaked"},
    "checkpoint_stale": STOPS | {"storage_slow", "disk_full", "disk_slow"},
    "data_stall": frozenset({"storage_slow", "disk_slow", "cpu_starved", "memory_pressure"}),
    "target_down": frozenset({"collector_starved", "xid_fatal"}),
    "exporter_stale": frozenset({"xid_fatal"}),
    "nonfinite_loss": frozenset({"silent_corruption"}),
    "clock_skew": frozenset({"service_down"}),  # without its time daemon a clock drifts
    "loss_spike": frozenset({"silent_corruption"}),
}
# Parts that stand for each other: a file system and its disk; and a hang is seen at the rank that is behind, whatever part
# under it is to blame, for no telemetry shows that one.
UNDER_A_HANG = ("mount", "nic", "gpu", "rank", "node")
STORED = ("disk", "mount")
HEAT_AND_POWER = ("rack", "pdu", "cooling")

Groups = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a truth. by: the right incident (None = a miss), delay: ms from onset. near: the incident that was
    judged for its place. top1, top3: None where there was nothing to judge; a half for a tie. count: its incidents,
    repeats and echoes included."""

    truth: Truth
    by: Said | None
    delay: int | None
    near: Said | None
    top1: float | None
    top3: float | None
    count: int


@dataclass(frozen=True, slots=True)
class Word:
    """What an incident is. truth: index of the fault that it belongs to, None = of none."""

    said: Said
    word: str
    truth: int | None = None

    @property
    def false(self) -> bool:
        return self.word in FALSE_WORDS


def match(truths: Sequence[Truth], said: Sequence[Said], groups: Groups) -> tuple[list[Found], list[Word]]:
    """All true faults (look-alikes left out) and all incidents, each with its word."""
    faults = [t for t in truths if t.fault]
    words: list[Word] = []
    first: dict[int, Said] = {}
    for one in sorted(said, key=lambda s: (s.opened, s.id)):
        word = _word(one, faults, groups, first)
        if word.word == RIGHT and word.truth is not None:
            first[word.truth] = one
        words.append(word)
    return [_found(i, truth, words, first.get(i), groups) for i, truth in enumerate(faults)], words


def _word(one: Said, faults: Sequence[Truth], groups: Groups, first: Mapping[int, Said]) -> Word:
    if one.state == MERGED:
        return Word(one, MERGED)
    now = [i for i, truth in enumerate(faults) if in_time(truth, one)]
    right = [i for i in now if faults[i].fault == one.fault and rightly_placed(faults[i], one, groups)]
    free = [i for i in right if i not in first]
    if free:
        return Word(one, RIGHT, free[0])
    if right:
        return Word(one, REPEAT, right[0])
    echoed = [i for i in now if is_echo(faults[i], one)]
    if echoed:
        return Word(one, ECHO, echoed[0])
    near = [i for i in now if faults[i].fault == one.fault and _near(faults[i], one)]
    if near:
        return Word(one, MISPLACED, near[0])
    named = [i for i in now if same_part(faults[i], one.culprit, one, groups) or (
        faults[i].culprit.kind == "node" and one.culprit is not None and one.culprit.node == faults[i].culprit.node)]
    return Word(one, MISNAMED, named[0]) if named else Word(one, UNFOUNDED)


def _found(index: int, truth: Truth, words: Sequence[Word], by: Said | None, groups: Groups) -> Found:
    mine = [w for w in words if w.truth == index]
    near = by or next((w.said for w in mine if w.word == MISPLACED), None)
    top1 = top3 = None
    if near is not None:
        top1, top3 = places(truth, near, groups)
    count = len({w.said.id for w in mine if w.word in (RIGHT, REPEAT, ECHO)})  # one that was reopened is one incident
    return Found(truth, by, None if by is None else max(0, by.opened - truth.onset), near, top1, top3, count)


def in_time(truth: Truth, one: Said) -> bool:
    """Opened from the onset on, GRACE after the end at the latest."""
    return min(truth.at, truth.onset) - EARLY_MS <= one.opened <= truth.end + GRACE_MS


def rightly_placed(truth: Truth, one: Said, groups: Groups) -> bool:
    """The culprit is the true one, or one of two that cannot be told apart."""
    return same_part(truth, one.culprit, one, groups) or (tied(one) and any(
        same_part(truth, part, one, groups) for part, _ in one.suspects[:2]))


def tied(one: Said) -> bool:
    """Two suspects, equally probable, and no third one like them."""
    chances = sorted((chance for _, chance in one.suspects), reverse=True)
    return len(chances) >= 2 and chances[0] - chances[1] <= TIE and (len(chances) == 2 or chances[1] - chances[2] > TIE)


def places(truth: Truth, one: Said, groups: Groups) -> tuple[float, float]:
    """(top-1, top-3): whether the culprit is right, a half for a tie; whether it is among the first three suspects."""
    sure = same_part(truth, one.culprit, one, groups)
    top1 = 0.5 if tied(one) and rightly_placed(truth, one, groups) else float(sure)
    ranked = sorted(one.suspects, key=lambda s: -s[1])[:3]
    return top1, float(sure or any(same_part(truth, part, one, groups) for part, _ in ranked))


def same_part(truth: Truth, culprit: Part | None, one: Said, groups: Groups) -> bool:
    """Whether `culprit` is what is broken in truth, at the true scope."""
    real = truth.culprit
    if real.kind == "job":
        return one.scope == "job" and (culprit is None or culprit.kind == "job") and real.job in (
            *one.jobs, *((culprit.job,) if culprit else ()))
    if real.kind in ("fleet", "collector"):
        return one.scope == real.kind and (culprit is None or culprit.kind == real.kind)
    if culprit is None:
        return False
    if truth.fault == "stalled_loss" and real.kind in ("mount", "nic"):
        return culprit.kind in UNDER_A_HANG and culprit.node == real.node
    if real.kind in ("gpu", "rank"):
        return culprit.kind in ("gpu", "rank") and ((culprit.node, culprit.device) == (real.node, real.device) or (
            culprit.node is None and real.rank is not None and (culprit.job, culprit.rank) == (real.job, real.rank)))
    if real.kind in STORED:
        return culprit.kind in STORED and culprit.node == real.node
    if real.kind in HEAT_AND_POWER and culprit.kind in HEAT_AND_POWER:
        mine = groups.get(f"{real.kind}:{real.device}")
        return culprit.device == real.device or (mine is not None and mine == groups.get(f"{culprit.kind}:{culprit.device}"))
    if real.kind == "nic" and culprit.kind == "nic" and culprit.node == real.node:
        return real.device in (culprit.device, *groups.get(f"nic:{culprit.node}/{culprit.device}", ()))
    return (culprit.kind, culprit.node, culprit.device) == (real.kind, real.node, real.device)


def is_echo(truth: Truth, one: Said) -> bool:
    """A consequence of the fault for its job or its exporters, that blames nobody elsewhere."""
    causes = ECHOES.get(one.fault, frozenset())
    if one.fault == "straggler":  # what any slow part does to the rank on it: true of that part alone
        return truth.harms and truth.fault != "straggler" and same_part(truth, one.culprit, one, {})
    does = {truth.fault, *(("stops", "slows") if truth.impact is None else ("slows",) if truth.harms else ())}
    if not causes & does or one.fault == truth.fault:
        return False
    if one.culprit is not None and one.culprit.node is not None and one.culprit.node not in truth.nodes:
        return False
    return bool(set(one.jobs) & set(truth.jobs)) or bool(set(one.nodes) & set(truth.nodes))


def _near(truth: Truth, one: Said) -> bool:
    """In the fault's neighbourhood: on its job or nodes, so that it was about this fault and blamed another part."""
    return bool(set(one.jobs) & set(truth.jobs)) or bool(set(one.nodes) & set(truth.nodes)) or truth.culprit.kind in (
        "fleet", "collector")
