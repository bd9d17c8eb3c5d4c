"""The detect loop: from verdicts to findings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.protocols import DetectorPlugin, Hold
from core.telemetry import Telemetry
from core.types import Event, Evidence, JobState, Target, Verdict
from core.window import Place, Topology, Window
from pipeline.detect import DetectLoop
from tests.pipeline.worlds import GPU, T0, tick, window

HOLD = Hold(on=3, of=4, off=2, expire=5)


@dataclass(frozen=True)
class NoParams:
    """Nothing to set."""


def said(word: str, target: Target = GPU, at: float = 90.0, **more: object) -> Verdict:
    state = {"f": "faulty", "d": "faulty", "k": "faulty", "c": "clear", "u": "unknown"}[word]
    evidence = (Evidence("gpu.temperature_celsius", "°C", at, 60.0, "peers"),)
    return Verdict(target, "thermal_throttle", state, 0.6, evidence, "hot", discrete=word == "d", keeps=word == "k", **more)  # type: ignore[arg-type]


class Script:
    """A detector that says what its script says, one list of verdicts a tick."""

    def __init__(self, *ticks: Sequence[Verdict]) -> None:
        self.ticks = ticks

    def __call__(self, seen: Window, params: object) -> Sequence[Verdict]:
        return self.ticks[(seen.end - T0) // 15_000]

    def loop(self, telemetry: Telemetry | None = None, **more: object) -> DetectLoop:
        plugin = DetectorPlugin("scripted", "thermal_throttle", self, NoParams, (), HOLD)
        return DetectLoop({"scripted": replace(plugin, **more)}, {}, telemetry)  # type: ignore[arg-type]


def story(words: str, **more: object) -> list[str]:
    """What happens tick by tick for one part: `o` opened, `u` updated, `e` and `x` ended (cleared, expired), `.` nothing."""
    loop = Script(*[[] if w == "-" else [said(w)] for w in words]).loop()
    out = []
    for i in range(len(words)):
        changes = loop.run(window(tick(i), **more))
        word = "o" * len(changes.opened) + "u" * len(changes.updated)
        word += "".join({"cleared": "e", "expired": "x", "part_gone": "g"}[str(f.end_reason)] for f in changes.ended)
        out.append(word or ".")
    return out


HOLDS = [
    ("3 of 4 faulty open it", "ffcf", "...o"),
    ("2 of 4 do not", "ffccff", "......"),
    ("a discrete verdict opens at once", "d", "o"),
    ("2 clear in a row end it", "fffcc", "..o.e"),
    ("1 clear does not", "fffcfcf", "..o...."),
    ("unknown freezes what is open", "fff----fcc", "..o......e"),
    ("unknown freezes the way there", "ff---f", ".....o"),
    ("5 unknown in a row end it as expired", "fff-----", "..o....x"),
    ("and forget the way there", "ff-----f", "........"),
    ("clear between unknown still counts", "fffc---c", "..o....e"),
    ("a verdict unknown is as none", "fffuuuuu", "..o....x"),
    ("it opens again after its end", "fffccfff", "..o.e..o"),
    ("what only keeps opens nothing", "kkkkk", "....."),
    ("and counts on nobody's way there", "fkkf", "...."),
    ("what only keeps keeps it open", "fffckckcc", "..o.....e"),
    ("after its end there is nothing to keep", "fffcckkk", "..o.e..."),
]


@pytest.mark.parametrize(("words", "news"), [h[1:] for h in HOLDS], ids=[h[0] for h in HOLDS])
def test_hold(words: str, news: str) -> None:
    """A hold opens, stands and ends as its detector declared."""
    assert story(words) == list(news)


def test_onset_is_the_first_faulty_tick() -> None:
    """A finding begins where its evidence did, unless the detector knows better."""
    loop = Script([said("f")], [said("f")], [said("f")]).loop()
    found = [loop.run(window(tick(i))).opened for i in range(3)][-1][0]
    assert (found.onset_at, found.opened_at) == (tick(0), tick(2))


def test_onset_of_the_detector_wins() -> None:
    """The onset that a verdict names is the finding's."""
    loop = Script([said("d", onset_at=T0 - 7)]).loop()
    assert loop.run(window(T0)).opened[0].onset_at == T0 - 7


def test_a_discrete_event_counts_once() -> None:
    """The same event does not open a second finding after the first ended; a newer one does."""
    old, new = said("d", onset_at=T0), said("d", onset_at=tick(4))
    loop = Script([old], [said("c")], [said("c")], [old], [old], [old], [new]).loop()
    news = [bool(loop.run(window(tick(i))).opened) for i in range(7)]
    assert news == [True, False, False, False, False, False, True]


UPDATES = [
    ("a small change of a value", said("f", at=95.0), False),
    ("a change by more than a fifth", said("f", at=120.0), True),
    ("a small change of severity", replace(said("f"), severity=0.65), False),
    ("a change of severity by 0.1", replace(said("f"), severity=0.7), True),
    ("another reason", replace(said("f"), reason="hotter"), True),
    ("a suspect", replace(said("f"), suspects=((GPU, 1.0, "why"),)), True),
]


@pytest.mark.parametrize(("verdict", "news"), [u[1:] for u in UPDATES], ids=[u[0] for u in UPDATES])
def test_updates(verdict: Verdict, news: bool) -> None:
    """Only what people would want to be told is an update."""
    loop = Script(*[[said("f")]] * 3, [verdict]).loop()
    changes = [loop.run(window(tick(i))) for i in range(4)][-1]
    assert bool(changes.updated) is news


def test_boot_grace_holds_and_is_judged_at_its_end() -> None:
    """In the first 300 s after a boot nothing opens; what is still faulty then opens with its first onset."""
    boot = Event(T0, Target("node", "n1"), "boot")
    news = story("f" * 22, events=(boot,))
    assert news.index("o") == 20


def test_boot_grace_forgets_what_passed() -> None:
    """Links that train after a boot are no fault."""
    assert "o" not in story("d" + "f" * 10 + "c" * 12, events=(Event(T0, Target("node", "n1"), "boot"),))


def test_boot_grace_is_of_the_node_alone() -> None:
    """Another node's boot holds nothing back, and a job has no grace."""
    assert "o" in story("fff", events=(Event(T0, Target("node", "n2"), "boot"),))


def test_an_exception_is_contained_and_counted() -> None:
    """A detector that raises has said nothing: its findings freeze, the tick goes on."""
    telemetry = Telemetry()
    loop = Script([said("d")]).loop(telemetry)
    loop.run(window(T0))
    loop.run(window(tick(1)))  # the script is at its end: IndexError
    assert telemetry.get("greylag_detector_errors_total", detector="scripted") == 1
    assert len(loop.open()) == 1


def test_a_blind_detector_is_not_asked() -> None:
    """Without the signals that it needs a detector says nothing, and the loop says which are missing."""
    loop = Script([said("d")]).loop(needs=(("gpu.temperature_celsius", "gpu.thermal_margin_celsius"),))
    assert not loop.run(window(T0)).opened
    assert loop.blind() == {"scripted": (("gpu.temperature_celsius", "gpu.thermal_margin_celsius"),)}


def test_a_seen_signal_is_not_missing() -> None:
    """Any signal of each group is enough."""
    loop = Script([said("d")]).loop(needs=(("gpu.temperature_celsius", "gpu.thermal_margin_celsius"),))
    assert loop.run(window(T0, {"gpu.thermal_margin_celsius": ([GPU], [[1.0]])})).opened


def test_the_worst_of_two_words_counts() -> None:
    """A part that is named twice is as bad as the worse verdict says, in any order."""
    for verdicts in itertools.permutations([said("d"), said("c")]):
        assert len(Script(list(verdicts)).loop().run(window(T0)).opened) == 1


def test_a_part_that_gets_its_id_keeps_its_hold() -> None:
    """An id that becomes known does not make another part of it."""
    plain = Target("gpu", "n1", "0")
    loop = Script([said("f", plain)], [said("f", plain)], [said("f")]).loop()
    found = [loop.run(window(tick(i))).opened for i in range(3)][-1]
    assert [f.target for f in found] == [GPU]


def test_part_gone_with_its_node() -> None:
    """A part of a drained node of which nothing has been known for a minute is gone, not unknown."""
    gone = Topology({"n1": Place("n1", state="drained")})
    loop = Script([said("d")], [], [], [], []).loop()
    loop.run(window(T0))
    ended = [[f.end_reason for f in loop.run(window(tick(i), topology=gone)).ended] for i in range(1, 5)]
    assert ended == [[], [], [], ["part_gone"]]


def test_part_gone_with_its_job() -> None:
    """A finding on a rank ends with the job."""
    rank = Target("rank", "n1", "0", job="j", rank=0)
    loop = Script([said("d", rank)], [said("f", rank)]).loop()
    loop.run(window(T0, jobs=(JobState("j", "train"),)))
    assert [f.end_reason for f in loop.run(window(tick(1), jobs=(JobState("j", "done"),))).ended] == ["part_gone"]


PARTS = [GPU, Target("gpu", "n1", "1"), Target("gpu", "n2", "0", "GPU-c")]
WORDS = st.lists(st.lists(st.sampled_from("fffdcu-"), min_size=3, max_size=3), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(0, 30), st.randoms(use_true_random=False))
def test_restart_and_order_change_nothing(words: list[list[str]], cut: int, rng: object) -> None:
    """Dump and load at any tick, and any order of verdicts, give the same findings."""
    ticks = [[said(w, PARTS[p], at=90.0 + i) for p, w in enumerate(row) if w != "-"] for i, row in enumerate(words)]
    shuffled = [list(t) for t in ticks]
    for t in shuffled:
        rng.shuffle(t)  # type: ignore[attr-defined]
    one, two = Script(*ticks).loop(), Script(*shuffled).loop()
    for i in range(len(ticks)):
        if i == cut:
            text = two.dump()
            two = Script(*shuffled).loop()
            two.load(text)
            assert two.dump() == text
        assert one.run(window(tick(i))) == two.run(window(tick(i)))
    assert one.open() == two.open()
    assert one.dump() == two.dump()


@pytest.mark.parametrize(("fault", "opens"), [("target_down", False), ("gpu_lost", False), ("exporter_stale", False), ("thermal_throttle", True)])
def test_a_planned_silence_opens_nothing(fault: str, opens: bool) -> None:
    """While a GPU of the node is reset its exporters may fall silent; what is no silence is judged as ever."""
    words = [replace(said("f"), fault=fault)]
    loop = Script(*[words] * 6).loop(fault=fault)
    news = [bool(loop.run(window(tick(i)), {str(GPU.node)}).opened) for i in range(6)]
    assert any(news) == opens


def test_a_planned_silence_freezes_what_was_open_and_ends_with_the_plan() -> None:
    """A finding that was open before stays as it is; after the gap the silence counts again."""
    words = [replace(said("f"), fault="gpu_lost")]
    loop = Script(*[words] * 12).loop(fault="gpu_lost")
    news = [loop.run(window(tick(i)), {str(GPU.node)} if 3 <= i < 6 else ()) for i in range(12)]
    assert [i for i, one in enumerate(news) if one.opened] == [2]
    assert not any(one.ended for one in news)
    assert len(loop.open()) == 1
