"""What is remembered of a job's progress: its saves, its last step, and since when its loss is no number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.protocols import Checkpoint
from core.types import Event, JobState, Target
from pipeline.checkpoints import Checkpoints
from pipeline.facts import WindowFacts
from tests.pipeline.worlds import T0, tick, window

RANKS = [Target("rank", "n1", "0", job="j", rank=0), Target("rank", "n1", "1", job="j", rank=1)]
JOB = JobState("j", "train", ("n1",), (0, 1))
NAN = float("nan")


def seen(steps, saved, first=0, **more):
    """A window whose first tick is tick `first`."""
    signals = {"rank.step": (RANKS, [[s, s] for s in steps]), "rank.last_checkpoint_step": (RANKS, [[s, s] for s in saved])}
    return window(tick(first + len(steps) - 1), signals | more.pop("signals", {}), jobs=(JOB,), **more)


def after(*windows):
    book = Checkpoints()
    for one in windows:
        book.update(one)
    return book


def line(kind, i, **fields):
    return Event(tick(i), Target("job", job="j"), kind, fields)


CASES = [
    ("a job that was never seen", [], Checkpoint()),
    ("the first one was saved at an unknown time", [seen([1, 2, 3], [0, 0, 0])], Checkpoint(None, 0.0, None, tick(2))),
    ("one save gives its time and no interval", [seen([1, 2, 3], [0, 0, 2])], Checkpoint(tick(2), 2.0, None, tick(2))),
    ("three saves give the median gap", [seen(range(10), [0, 0, 2, 2, 4, 4, 4, 4, 4, 9])],
     Checkpoint(tick(9), 9.0, 52.5, tick(9))),
    ("saves are remembered beyond the window",
     [seen(range(7), [0, 0, 2, 2, 4, 4, 6]), seen(range(100, 103), [6, 6, 6], first=100)], Checkpoint(tick(6), 6.0, 30.0, tick(102))),
    ("a job that stands still has not moved", [seen([5, 6, 6, 6], [1, 1, 1, 1])], Checkpoint(None, 1.0, None, tick(1))),
    ("the checkpoint that a run began from was not saved by it",
     [seen([10, 11, 12], [5, 5, 12]), seen([5, 6, 7], [5, 5, 5], first=3)], Checkpoint(None, 5.0, None, tick(5))),
    ("what a restart shows as nothing for a moment is the same save",
     [seen([10, 11, 12], [5, 5, 12]), seen([12, 13, 14], [0, 12, 12], first=3)], Checkpoint(tick(2), 12.0, None, tick(5))),
    ("a gap across a restart is no interval",
     [seen(range(7), [0, 0, 2, 2, 4, 4, 6]), seen([2, 3, 4, 5, 6, 7], [2, 2, 2, 5, 5, 5], first=90)],
     Checkpoint(tick(93), 5.0, 30.0, tick(95))),
    ("ticks that were missed are read from the next window",
     [seen([1, 2], [0, 0]), seen(range(2, 9), [0, 0, 3, 3, 3, 6, 6], first=1)], Checkpoint(tick(6), 6.0, None, tick(7))),
]


@pytest.mark.parametrize(("windows", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_checkpoint(windows, expected):
    """The newest save, its step, the interval that saves keep and the last step, as far as each is known."""
    assert replace(after(*windows).of("j"), interval_steps=None, steps_since=None) == expected


def test_a_log_tells_saves():
    """Lines of complete saves count, the same save once; where the log says when one is complete, its beginning is none."""
    events = [e for i in (0, 20, 40) for e in (line("checkpoint", i, step=i, state="saving"), line("checkpoint", i + 2, step=i, state="saved"))]
    book = after(window(tick(42), jobs=(JobState("j", "train"),), events=tuple(events)))
    book.update(window(tick(43), jobs=(JobState("j", "train"),), events=tuple(events)))
    assert book.of("j") == Checkpoint(tick(42), 40.0, 300.0, None, 20.0)


@pytest.mark.parametrize(("steps", "saved", "interval", "since"), [
    ([0, 1, 2, 5, 6, 7], [0, 0, 2, 5, 5, 7], 2.5, 0.0), ([0, 1, 2, 5, 7, 9], [0, 0, 2, 5, 7, 7], 2.5, 2.0), ([1, 2], [1, 1], None, 1.0),
])
def test_the_interval_in_steps(steps, saved, interval, since):
    """How many steps lie between saves, and how many were made since the last one."""
    told = after(seen(steps, saved)).of("j")
    assert (told.interval_steps, told.steps_since) == (interval, since)


LOSSES = [
    ("finite", [[1.0, 1.0], [1.0, 1.0]], [[0, 0], [0, 0]], (), None),
    ("from the last finite reading on", [[1.0, 1.0], [NAN, NAN]], [[0, 0], [1, 1]], (), tick(0)),
    ("one rank is enough", [[1.0, 1.0], [1.0, NAN]], [[0, 0], [0, 1]], (), tick(0)),
    ("never finite: from the first NaN", [[NAN, NAN], [NAN, NAN]], [[1, 1], [1, 1]], (), tick(0)),
    ("over once it is finite", [[NAN, NAN], [1.0, 1.0]], [[1, 1], [0, 0]], (), None),
    ("missing is neither", [[1.0, 1.0], [NAN, NAN]], [[0, 0], [NAN, NAN]], (), None),
    ("a line of the log tells it", [[1.0, 1.0], [NAN, NAN]], [[0, 0], [NAN, NAN]], (line("nonfinite", 1, what="loss"),), tick(0)),
    ("a count of iterations alone does not", [[1.0, 1.0]], [[0, 0]], (line("nonfinite", 0, what="nan_iterations"),), None),
]


@pytest.mark.parametrize(("loss", "bad", "events", "since"), [c[1:] for c in LOSSES], ids=[c[0] for c in LOSSES])
def test_nonfinite_since(loss, bad, events, since):
    """What was saved after the last finite reading is not trusted."""
    signals = {"rank.loss": (RANKS, loss), "rank.loss_nonfinite": (RANKS, bad)}
    one = window(tick(len(loss) - 1), signals, jobs=(JOB,), events=events)
    assert WindowFacts(one, (), after(one)).nonfinite_since("j") == since


def test_it_goes_on_beyond_the_window():
    """A NaN that began before the window did is remembered."""
    nan = {"rank.loss": (RANKS, [[NAN, NAN]] * 3), "rank.loss_nonfinite": (RANKS, [[1, 1]] * 3)}
    good = {"rank.loss": (RANKS, [[1.0, 1.0]]), "rank.loss_nonfinite": (RANKS, [[0, 0]])}
    assert after(window(tick(0), good, jobs=(JOB,)), window(tick(500), nan, jobs=(JOB,))).nonfinite_since("j") == tick(0)


def test_state_survives_a_restart():
    """What is dumped is loaded, and goes on."""
    book, again = after(seen(range(7), [0, 0, 2, 2, 4, 4, 6])), Checkpoints()
    again.load(book.dump())
    assert (again.dump(), again.of("j")) == (book.dump(), book.of("j"))


def test_jobs_are_forgotten_after_seven_days():
    """A job of which nothing was heard for a week leaves no trace."""
    book = after(seen([1, 2], [0, 0]))
    book.update(window(tick(1) + 7 * 86_400_000 + 15_000))
    assert book.of("j") == Checkpoint()


TOKENS = [
    ("the median over ranks", [[1, 1], [2, 2]], [[100, 200], [100, 200]], 150.0),
    ("a hang does not count", [[1, 1], [2, 2], [2, 2]], [[100, 100], [100, 100], [900, 900]], 100.0),
    ("not told", [[1, 1], [2, 2]], [[NAN, NAN], [NAN, NAN]], None),
]


@pytest.mark.parametrize(("steps", "told", "expected"), [c[1:] for c in TOKENS], ids=[c[0] for c in TOKENS])
def test_tokens_per_second(steps, told, expected):
    """Tokens a second per GPU, from what the ranks say."""
    one = window(tick(len(steps) - 1), {"rank.step": (RANKS, steps), "rank.tokens_per_second": (RANKS, told)}, jobs=(JOB,))
    assert WindowFacts(one, ()).tokens_per_second("j", T0, tick(9)) == expected
    assert WindowFacts(one, ()).tokens_per_second("x", T0, tick(9)) is None
