"""The scorecard's rules as tables: what matches what, which incidents are false, and the small statistics."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.evaluate.baselines import ALL_RULES
from app.evaluate.chances import sized
from app.evaluate.command import EvaluateOptions, cannot_show, evaluate
from app.evaluate.delays import HARD, delays, kind_of
from app.evaluate.drive import Seen
from app.evaluate.facts import Part, Ran, Said, Truth, from_data, to_data
from app.evaluate.impact import bands, rising, smallest
from app.evaluate.match import Found, match
from app.evaluate.plan import ONE_AT_A_TIME, SUITES, is_wide, plan_suite, shows
from app.evaluate.rates import calibration, field_precision, poisson_upper, quantile, rate, wilson
from app.evaluate.report import reliability
from app.evaluate.score import scorecard
from core.errors import BadInput
from core.faults import faults
from core.signals import SIGNALS
from core.types import Incident
from fleet.build import all_plugins, bare

GPU = Part("gpu", "n03", "4", "train-1", 20)
MINUTE = 60_000
HOT = Truth("thermal_throttle", "thermal_throttle", "device", GPU, ("n03",), ("train-1",), 10 * MINUTE, 11 * MINUTE, 20 * MINUTE, 0.2,
            True)
LOST = replace(HOT, plant="xid_79", fault="gpu_lost", impact=None)
LOOP = replace(HOT, plant="cooling_fault", fault="cooling_fault", scope="rack", culprit=Part("cooling", None, "loop-1"),
               nodes=("n01", "n02"), shared=True)
SLOW_JOB = replace(HOT, plant="throughput_drop", fault="throughput_drop", scope="job", culprit=Part("job", job="train-1"))
SKEW = replace(HOT, plant="clock_skew_fleet", fault="clock_skew", scope="fleet", culprit=Part("fleet"), impact=0.0)
HANG = replace(HOT, plant="mount_hung", fault="stalled_loss", culprit=Part("mount", "n03", "/checkpoints"), impact=None)
FULL = replace(HOT, plant="disk_full", fault="disk_full", culprit=Part("disk", "n03", "nvme1n1"), impact=0.0)
PORT = replace(HOT, plant="link_down", fault="link_down", culprit=Part("nic", "n03", "mlx5_0/1"), impact=None)
BAD = replace(HOT, plant="silent_corruption", fault="silent_corruption", impact=0.0)
STARVED = replace(HOT, plant="data_stall_disk", fault="data_stall", culprit=Part("node", "n03"))
SAID = Said("inc-1", "thermal_throttle", "device", GPU, 12 * MINUTE, "page", confidence=0.9, suspects=((GPU, 0.9),),
            jobs=("train-1",), nodes=("n03",))
GROUPS = {"cooling:loop-1": ("n01", "n02"), "rack:rack-1": ("n01", "n02"), "rack:rack-2": ("n03",),
          "nic:n03/enp24s0np0": ("mlx5_0/1",), "nic:n03/enp25s0np0": ("mlx5_1/1",)}
WHOLE_JOB = replace(SAID, fault="throughput_drop", scope="job", culprit=None, suspects=(), nodes=())


@pytest.mark.parametrize(("truth", "said", "word"), [
    (HOT, SAID, "right"),
    (HOT, replace(SAID, opened=10 * MINUTE), "right"),                    # a ramp: there, and not yet 1 %
    (HOT, replace(SAID, opened=24 * MINUTE), "right"),                    # within the grace
    (HOT, replace(SAID, opened=26 * MINUTE), "unfounded"),                # too late
    (HOT, replace(SAID, opened=9 * MINUTE), "unfounded"),                 # before it was there
    (HOT, replace(SAID, state="merged"), "merged"),
    (HOT, replace(SAID, culprit=replace(GPU, device="5")), "misplaced"),
    (HOT, replace(SAID, culprit=Part("node", "n03"), scope="node"), "misplaced"),
    (HOT, replace(SAID, culprit=Part("gpu", "n09", "4"), jobs=("train-2",), nodes=("n09",)), "unfounded"),
    (HOT, replace(SAID, fault="clock_loss"), "misnamed"),
    (HOT, WHOLE_JOB, "echo"),
    (HOT, replace(WHOLE_JOB, jobs=("train-2",)), "unfounded"),
    (HOT, replace(WHOLE_JOB, culprit=Part("gpu", "n09", "1"), scope="device"), "unfounded"),  # blames a part elsewhere
    (HOT, replace(WHOLE_JOB, fault="stalled_loss"), "unfounded"),         # what is slow does not stop
    (LOST, replace(WHOLE_JOB, fault="stalled_loss"), "echo"),
    (LOST, replace(SAID, fault="xid_fatal"), "misnamed"),
    (LOOP, replace(SAID, fault="cooling_fault", scope="rack", culprit=Part("cooling", None, "loop-1")), "right"),
    (LOOP, replace(SAID, fault="cooling_fault", scope="rack", culprit=Part("rack", None, "rack-1")), "right"),  # the same nodes
    (LOOP, replace(SAID, fault="cooling_fault", scope="rack", culprit=Part("rack", None, "rack-2")), "misplaced"),
    (SLOW_JOB, WHOLE_JOB, "right"),
    (SLOW_JOB, replace(WHOLE_JOB, culprit=GPU, scope="device"), "misplaced"),
    (SKEW, replace(SAID, fault="clock_skew", scope="fleet", culprit=None), "right"),
    (SKEW, replace(SAID, fault="clock_skew", scope="node", culprit=Part("node", "n03")), "misplaced"),
    (HANG, replace(SAID, fault="stalled_loss", scope="device"), "right"),  # the rank that waits is all that shows
    (HANG, replace(SAID, fault="stalled_loss", culprit=Part("gpu", "n04", "4")), "misplaced"),
    (PORT, replace(SAID, fault="link_down", culprit=Part("nic", "n03", "enp24s0np0")), "right"),  # its Ethernet interface
    (PORT, replace(SAID, fault="link_down", culprit=Part("nic", "n03", "enp25s0np0")), "misplaced"),
    (BAD, replace(WHOLE_JOB, fault="nonfinite_loss"), "echo"),
    (STARVED, replace(SAID, fault="disk_slow", culprit=Part("disk", "n03", "nvme1n1")), "misnamed"),
    (FULL, replace(SAID, fault="disk_full", culprit=Part("mount", "n03", "/scratch")), "right"),
])
def test_an_incident_has_one_word(truth: Truth, said: Said, word: str) -> None:
    """Name, part and time decide; consequences that blame nobody else are echoes; all else is false."""
    _, words = match([truth], [said], GROUPS)
    assert [w.word for w in words] == [word]


OTHER = replace(GPU, device="5")


@pytest.mark.parametrize(("suspects", "culprit", "top1", "top3"), [
    (((GPU, 0.9),), GPU, 1.0, 1.0),
    (((GPU, 0.48), (OTHER, 0.48)), GPU, 0.5, 1.0),
    (((OTHER, 0.48), (GPU, 0.48)), OTHER, 0.5, 1.0),                      # cannot tell apart, here are the two
    (((OTHER, 0.7), (GPU, 0.2)), OTHER, 0.0, 1.0),
    (((OTHER, 0.9),), OTHER, 0.0, 0.0),
    (((OTHER, 0.3), (GPU, 0.3), (Part("gpu", "n03", "6"), 0.3)), OTHER, 0.0, 1.0),  # three are no answer
])
def test_places(suspects: tuple[tuple[Part, float], ...], culprit: Part, top1: float, top3: float) -> None:
    """Top-1 is the culprit, a half for one of two equals; top-3 is the truth among the first three suspects."""
    found, _ = match([HOT], [replace(SAID, culprit=culprit, suspects=suspects)], {})
    assert (found[0].top1, found[0].top3) == (top1, top3)


def test_the_wrong_part_is_a_miss_and_a_false_alarm() -> None:
    """Right name and time on another GPU: nothing is found, and one false incident stands."""
    found, words = match([HOT], [replace(SAID, culprit=OTHER, suspects=((OTHER, 0.9),))], {})
    assert (found[0].by, found[0].delay, words[0].false) == (None, None, True)


def test_repeats_and_echoes_count_against_the_fault() -> None:
    """The first right incident finds it, measured from the first 1 % of impact; what comes beside it is counted."""
    found, words = match([HOT], [SAID, replace(SAID, id="inc-2", opened=15 * MINUTE), replace(WHOLE_JOB, id="inc-3")], {})
    assert (found[0].delay, found[0].count, [w.word for w in words]) == (MINUTE, 3, ["right", "echo", "repeat"])


def test_an_incident_that_is_reopened_is_told_anew() -> None:
    """It counts from when it was reopened, for the fault that it is about then; while it stays open it is one."""
    one = Incident("inc-1", "gpu_slow", "device", None, 0.9, (), (), (), (), (), 0.0, "infra", "page", "open", "opened_by_finding", None,
                   0, 1_000, 1_000)
    seen = Seen()
    for state, at in (("open", 1_000), ("resolved", 2_000), ("open", 9_000), ("acting", 9_500)):
        seen.take([replace(one, state=state, updated_at=at)])
    assert [(i.id, i.opened_at, i.state) for i in seen.said()] == [("inc-1", 1_000, "resolved"), ("inc-1", 9_000, "acting")]


def test_look_alikes_find_nothing() -> None:
    """An incident on a look-alike is false: the truth is that there is nothing to do."""
    _, words = match([replace(HOT, fault="", plant="hot_day")], [SAID], {})
    assert words[0].word == "unfounded"


@pytest.mark.parametrize(("hits", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (95, 100, 0.8882, 0.9785)])
def test_wilson(hits: int, n: int, low: float, high: float) -> None:
    """The interval of Wilson (1927) at 95 %."""
    assert wilson(hits, n) == pytest.approx((low, high), abs=1e-3)


def test_a_rate_of_nothing_is_no_rate() -> None:
    """Without a case there is no value, and never a good one."""
    assert rate(0, 0) == {"value": None, "n": 0, "low": None, "high": None}


@pytest.mark.parametrize(("events", "upper"), [(0, 2.996), (1, 4.744), (5, 10.513), (50, 63.29)])
def test_poisson_upper(events: int, upper: float) -> None:
    """The one-sided 95 % bound, by the tables."""
    assert poisson_upper(events) == pytest.approx(upper, abs=0.01)


@pytest.mark.parametrize(("values", "q", "answer"), [
    ([1, 2, 3, 4], 0.5, 2), ([1, None], 0.5, 1), ([1, None], 0.95, None), ([], 0.5, None), ([5], 0.95, 5),
])
def test_quantiles_with_misses(values: list[float | None], q: float, answer: float | None) -> None:
    """A miss is an infinite delay, which no quantile hides."""
    assert quantile(values, q) == answer


@pytest.mark.parametrize(("pairs", "error"), [
    ([(0.9, 1.0)] * 9 + [(0.9, 0.0)], 0.0), ([(1.0, 0.0)], 1.0), ([(0.55, 1.0), (0.55, 0.0), (0.95, 1.0), (0.95, 1.0)], 0.05),
])
def test_calibration(pairs: list[tuple[float, float]], error: float) -> None:
    """The distance between what was said and what came true, bin by bin, by weight."""
    assert calibration(pairs)["expected_calibration_error"] == pytest.approx(error, abs=1e-4)


def test_two_that_cannot_be_told_apart_come_true_by_a_half() -> None:
    """Whoever says 0.48 of each of two parts is right about one of them; the plot shows both what was said and what came true."""
    tie = replace(SAID, confidence=0.48, suspects=((GPU, 0.48), (OTHER, 0.48)))
    card = scorecard([_ran(truths=(HOT,), said=(tie,))], {})["calibration"]
    assert (card["confidence"]["bins"][0]["true"]["value"], card["suspects"]["bins"][0]["true"]["value"]) == (0.5, 0.5)
    assert next(reliability("suspects", card["suspects"]["bins"])).endswith("|" + "." * 19 + "ox" + "." * 20 + "|")


@pytest.mark.parametrize(("found", "false", "answer"), [(0.9, 0.1, 0.9), (1e-4, 0.0, 1.0), (0.0, 0.0, None)])
def test_precision_in_the_field(found: float, false: float, answer: float | None) -> None:
    """Rare faults drown in few false alarms."""
    assert field_precision(found, false) == answer


@pytest.mark.parametrize(("counts", "pooled"), [
    ([(1, 2), (4, 4)], [(1, 2), (4, 4)]),
    ([(4, 4), (1, 2)], [(5, 6), (5, 6)]),                                 # a larger fault is not harder to find
    ([(2, 2), (2, 2), (0, 1), (9, 9)], [(4, 5), (4, 5), (4, 5), (9, 9)]),  # each fault counts once, whatever its band's size
    ([], []),
])
def test_the_curve_of_recall_never_falls(counts: list[tuple[int, int]], pooled: list[tuple[int, int]]) -> None:
    """A band below the smaller ones before it is put together with them."""
    assert rising(counts) == pooled


def _sized(*rows: tuple[float, int, int]) -> list[Found]:
    """(impact, how many were found, of how many)."""
    return [Found(replace(HOT, impact=size), SAID if i < hits else None, None, None, None, None, 0) for size, hits, n in rows for i in range(n)]


@pytest.mark.parametrize(("rows", "impact", "recall", "n", "from_here"), [
    ([(0.015, 5, 10), (0.025, 9, 10), (0.04, 10, 10)], 0.02, 0.9, 10, 0.95),
    ([(0.06, 20, 20), (0.3, 1, 2), (0.7, 10, 10)], 0.05, 0.9545, 22, 0.9688),   # one miss of two larger ones decides nothing alone
    ([(0.015, 1, 10), (2.0, 90, 90)], 1.0, 1.0, 90, 1.0),                    # many large ones do not hide small ones that are missed
    ([(0.06, 8, 10)], None, None, None, None),
    ([], None, None, None, None),
])
def test_smallest_impact(rows: list[tuple[float, int, int]], impact: float | None, recall: float | None, n: int | None,
                         from_here: float | None) -> None:
    """The lower edge of the band from which the rising curve is at nine of ten, with what it rests on."""
    found = smallest(bands(_sized(*rows)))
    told = [None if found[key] is None else found[key]["value"] for key in ("recall", "from_here")]
    assert (found["impact"], *told, found["recall"] and found["recall"]["n"]) == (impact, recall, from_here, n)


@pytest.mark.parametrize(("plant", "tier", "kind"), [
    ("xid_79", "B", "hard_by_log"), ("xid_79", "A", "hard_by_scrape"), ("ecc_uncorrectable", "D", "hard_by_scrape"),
    ("stalled_loss", "D", "grey"), ("thermal_throttle", "A", "grey")])
def test_how_a_fault_can_be_told(plant: str, tier: str, kind: str) -> None:
    """By a line where the tier has logs that say it, else by a scrape; what is told by amounts is grey."""
    assert kind_of(plant, tier) == kind


def test_what_is_hard_has_no_size() -> None:
    """The table names plug-ins that exist, that plant a fault, and that are no matter of degree."""
    plugins = all_plugins()
    assert [name for name in HARD if name not in plugins or plugins[name].fault is None or sized(plugins[name])] == []


def test_delays_by_kind() -> None:
    """A miss is infinite in the quantiles of all, and left out of those of the found; tier B stands beside all tiers."""
    def found(plant: str, seconds: float | None) -> Found:
        return Found(replace(LOST, plant=plant), None, None if seconds is None else int(1000 * seconds), None, None, None, 0)

    card = delays([("B", found("xid_79", 10)), ("C", found("xid_79", 20)), ("A", found("xid_79", 80)), ("B", found("stalled_loss", 120)),
                   ("B", found("stalled_loss", None))])
    quantiles = {kind: [row[key] for key in ("n", "found", "p50_seconds", "p95_seconds", "p95_found_seconds")] for kind, row in card.items()}
    assert quantiles == {"hard_by_log": [2, 2, 10, 20, 20], "hard_by_scrape": [1, 1, 80, 80, 80], "grey": [2, 1, 120, None, 120]}
    assert (card["hard_by_log"]["tier_B"]["n"], card["grey"]["faults"]["gpu_lost"]["found"]) == (1, 1)


def _ran(**changed: object) -> Ran:
    one = Ran("s-0", "local", "", "B", "h100-8x-roce", 12, 15, 30.0, (HOT, LOST), (SAID,), (), GROUPS, 1.0, 99.0, 2.0)
    return replace(one, **changed)  # type: ignore[arg-type]


def test_a_run_is_read_back_as_it_was() -> None:
    """A suite that was broken off goes on from its file."""
    assert from_data(json.loads(json.dumps(to_data(_ran())))) == _ran()


def test_scorecard_of_a_small_run() -> None:
    """One found, one missed: recall 1 and 0, a silent detector finds nothing, stress and small faults stay out."""
    small = replace(HOT, impact=0.02, culprit=replace(GPU, node="n07"), nodes=("n07",))
    hidden = replace(HOT, shown=False, culprit=replace(GPU, node="n08"), nodes=("n08",))
    card = scorecard([_ran(truths=(HOT, LOST, small, hidden)), _ran(id="s-1", stress="noise", said=())], {"thermal_throttle": 1e-4})
    macro = card["macro"]
    assert (macro["recall"], macro["precision"], macro["fault_count"], macro["delay_p95_seconds"]) == (0.5, 1.0, 2, None)
    assert card["faults"]["thermal_throttle"]["recall"]["n"] == card["faults"]["thermal_throttle"]["small"]["n"] == 1
    assert card["baselines"]["silent"]["recall"] == 0.0
    assert (card["slices"]["stress"]["worst"], card["slices"]["stress"]["worst_precision"]) == ("noise", "none")
    assert (card["not_shown"], card["unknown_part_minutes"]["share"]) == ({"thermal_throttle at tier B": 1}, 0.01)
    assert set(card["faults"]) == set(faults())


def test_a_scenario_that_failed_is_told() -> None:
    """It is no healthy scenario: it is left out of the rates, and named."""
    card = scorecard([_ran(), _ran(id="s-1", error="ValueError: x")], {})
    assert (card["errors"], card["macro"]["node_days"]) == ([{"id": "s-1", "error": "ValueError: x"}], 0.25)


@pytest.mark.parametrize(("changed", "key"), [
    ({"suite": "small"}, "--suite"), ({"out": "x.json", "first_seed": 9999}, "--first-seed"), ({"out": "x.json", "only": ("a",)}, "--out"),
])
def test_what_is_refused(changed: dict[str, object], key: str) -> None:
    """Seeds for tuning give no scorecard, and neither does a part of a suite."""
    with pytest.raises(BadInput) as refused:
        evaluate(replace(EvaluateOptions("quick"), **changed), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    assert refused.value.key == key


def test_rules_speak_our_words() -> None:
    """Every rule of the baseline reads a known signal and stands for a known fault."""
    assert [r.name for r in ALL_RULES if r.fault not in faults() or not {r.signal, r.over or r.signal} <= {*SIGNALS, "up"}] == []


def test_what_a_tier_cannot_show_is_listed() -> None:
    """The richest tier shows all but what no telemetry of a fabric tells; poorer ones name what they cannot besides."""
    listed = cannot_show()
    assert (listed["D"], "straggler" in listed["C"]) == ([
        "gpu_slow on neuron", "leaf_slow on efa", "network_slow_fleet on efa", "silent_corruption", "spine_path_lost on efa", "spine_path_lost on infiniband",
        "spine_path_lost on roce"], True)


def test_a_slow_neuron_device_is_a_straggler_by_all_that_is_told() -> None:
    """Its monitor tells no clock and no activity."""
    slow = all_plugins()["gpu_slow"]
    assert (shows(slow, "D", "efa", "neuron"), shows(slow, "D", "efa")) == (False, True)


@pytest.mark.parametrize(("plant", "tier", "fabric", "shown"), [
    ("leaf_slow", "D", "efa", False), ("leaf_slow", "A", "roce", True), ("link_down", "A", "efa", True), ("straggler", "C", "roce", False),
    ("straggler", "D", "roce", True), ("silent_corruption", "D", "efa", False)])
def test_what_is_shown_depends_on_tier_and_fabric(plant: str, tier: str, fabric: str, shown: bool) -> None:
    """A fault counts only where something tells of it."""
    assert shows(all_plugins()[plant], tier, fabric) is shown


@pytest.mark.parametrize("name", ["quick", "standard"])
def test_a_suite_has_enough_of_each_fault(name: str) -> None:
    """At least the promised number of counted positives for every fault, and only what its tier can show; of those that can be small
    (a dozen names and more) the promised number of small ones where all is shown."""
    plugins, counted, unshown, fine = all_plugins(), dict.fromkeys(faults(), 0), [], 0
    for planned in plan_suite(name, 10_000):
        for entry in planned.scenario.schedule:
            plugin = plugins[entry.name]
            if plugin.fault is not None and not planned.stress:
                counted[plugin.fault] += entry.severity is None or entry.severity >= 0.05
                unshown += [entry.name] if plugin.tier > planned.scenario.fleet.tier else []
                fine += planned.scenario.fleet.tier == "D" and entry.severity is not None and entry.severity < 0.05
    assert (min(counted.values()) >= SUITES[name].positives, unshown, fine >= 12 * SUITES[name].fine) == (True, [], True)


def test_a_plan_is_the_same_again_and_can_be_built() -> None:
    """Equal seeds give equal scenarios, each of which the fleet accepts; equal network faults are never at once."""
    plan, plugins = plan_suite("quick", 10_000), all_plugins()
    assert plan == plan_suite("quick", 10_000)
    for planned in plan:
        bare(planned.scenario)
        names = [plugins[e.name].fault for e in planned.scenario.schedule if e.fault and not is_wide(plugins[e.name])]
        assert all(names.count(name) <= 2 for name in ONE_AT_A_TIME)
