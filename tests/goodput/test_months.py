"""Months of cluster life: who looks after the fleet, and what each arm leaves of the GPU time."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.resources import files

import pytest

from app.goodput.arms import ARMS, NOTICED_MS, Oracle, Restarting
from app.goodput.chances import Chances, read_chances
from app.goodput.command import GoodputOptions, durations, evaluate_goodput, heading, told
from app.goodput.study import Span, limits_for, month, run_arm, together
from app.goodput.watching import Watching
from core.errors import BadInput
from fleet.build import with_rates
from fleet.eventstep import EventWorld
from fleet.scenario import Entry
from fleet.times import all_times
from remediation.policy import read_policy
from tests.goodput.test_chances import CARD, _row, written

ACT = files("sample_data").joinpath("policies", "act.yaml")


def quiet(nodes=8, days=0.5, *entries, seed=20_001):
    """A fleet on which nothing happens but what is asked for."""
    return replace(with_rates(replace(month(Span(nodes, 0.001, seed)), duration=f"{days:g}d", schedule=())), schedule=entries)


def left(arm, scenario):
    event = EventWorld(scenario, [arm])
    event.advance(scenario.end_ms)
    return event, event.watchers[0]


DEAD = Entry(fault="gpu_lost", at="1h", seed=3)
SHORT = Entry(fault="gpu_slow", at="1h", for_="10m", severity=0.2, seed=3)
LONG = Entry(fault="gpu_slow", at="1h", for_="30d", severity=0.5, seed=3)


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_a_dead_gpu_is_replaced_and_the_job_goes_on(arm):
    """Whoever looks after it: the node that the job died of is no longer in it, and it trains again."""
    event, _ = left(ARMS[arm], quiet(8, 0.5, DEAD))
    planted = event.world.faults[0]
    assert event.world.jobs["pretrain"].alive
    assert planted.place.rows[0] not in event.world.jobs["pretrain"].nodes


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_a_node_that_dies_while_another_is_changed_is_changed_as_well(arm):
    """The job is started once in vain and not again and again: whoever started it looks what it died of."""
    event, _ = left(ARMS[arm], quiet(8, 0.5, *[replace(DEAD, node=node, device="0", at=at) for node, at in (("n01", "60m"), ("n02", "62m"))]))
    job = event.world.jobs["pretrain"]
    assert job.alive
    assert not {p.place.rows[0] for p in event.world.faults} & set(job.nodes)
    assert job.run <= 4


def test_people_take_longer_than_a_script_and_a_script_longer_than_an_oracle():
    """The same dead GPU, the same fleet."""
    ratios = {arm: left(ARMS[arm], quiet(8, 0.5, DEAD))[0].world.goodput.ratio() for arm in ARMS}
    assert ratios["people"] < ratios["restart"] < ratios["oracle"]


def test_slow_nodes_are_changed_while_the_job_stands_for_a_dead_one():
    """An oracle changes both in one stop, at one time."""
    event, watcher = left(Oracle, quiet(8, 0.5, replace(LONG, at="59m", severity=0.02), DEAD))
    assert watcher.errands.count == 1
    assert not {p.place.rows[0] for p in event.world.faults} & set(event.world.jobs["pretrain"].nodes)


@pytest.mark.parametrize(("entry", "errands"), [(SHORT, 0), (LONG, 1)])
def test_an_oracle_acts_only_where_acting_costs_less(entry, errands):
    """Ten minutes at 20 % are cheaper to wait for than a restart; half the pace for the rest of the day is not."""
    assert left(Oracle, quiet(8, 0.5, entry))[1].errands.count == errands


def test_people_find_what_is_slow_and_stays_the_next_day():
    """Not before, and then it is replaced."""
    event, watcher = left(ARMS["restart"], quiet(8, 1.0, LONG))
    assert isinstance(watcher, Restarting)
    assert watcher.errands.count == 1
    assert event.world.faults[0].cured_at - event.world.faults[0].at > NOTICED_MS


FULL, POISON = Entry(fault="disk_full", at="1h", seed=5), Entry(fault="job_crash_loop", at="11h", for_="30m", seed=6)


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_saves_that_fail_are_put_right_by_a_person_in_all_arms(arm):
    """A full disk: ten hours later a job that dies has lost the work since its last save, and not all of it. No node is touched for
    either of the two."""
    event, watcher = left(ARMS[arm], quiet(8, 0.5, FULL, POISON))
    assert event.world.faults[0].cured_by == "hand"
    assert event.world.goodput.gpu_seconds()["lost_work"] < 64 * 2 * 3600
    assert all(node.state in ("in_service", "spare") for node in event.world.nodes)
    assert isinstance(watcher, Restarting)


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_a_node_that_kills_its_job_again_and_again_is_found_by_all_arms(arm):
    """Short of memory it is slow first, then the kernel kills a rank and its log says so: the job is started without that node."""
    event, _ = left(ARMS[arm], quiet(8, 0.5, Entry(fault="memory_pressure", at="1h", for_="20h", severity=2.0, seed=3)))
    job = event.world.jobs["pretrain"]
    assert event.world.faults[0].place.rows[0] not in job.nodes
    assert (job.alive, job.run) == (True, 2)


def test_what_only_leaves_marks_is_no_reason_for_an_oracle_to_stop_a_job():
    """Silent corruption costs no pace here, so a stop for it wins nothing."""
    assert left(Oracle, quiet(8, 0.5, Entry(fault="silent_corruption", at="1h", seed=3)))[1].errands.count == 0


def test_a_fault_behind_a_slower_one_is_worth_a_stop_only_together_with_it():
    """Two slow GPUs for the rest of the day: the slowest sets the pace, so both are changed, in one stop."""
    event, watcher = left(Oracle, quiet(64, 0.5, LONG, replace(LONG, at="61m", seed=4)))
    assert watcher.errands.count <= 2
    assert not {p.place.rows[0] for p in event.world.faults} & set(event.world.jobs["pretrain"].nodes)


def watching(tmp_path, scenario, **changed):
    chances, policy = read_chances(written(tmp_path, **changed)), read_policy(str(ACT))
    return left(lambda event: Watching(event, chances, policy, scenario.seed), scenario)


def test_greylag_finds_and_repairs_what_it_would_find(tmp_path):
    """A slow GPU that stays: an incident after the drawn delay, its own engine acts, the job is on healthy nodes."""
    sure = {"faults__gpu_slow": _row(1.0, 1.0), "calibration__confidence__bins": CARD["calibration"]["confidence"]["bins"][1:]}
    event, watcher = watching(tmp_path, quiet(8, 0.5, LONG), **sure)
    assert (watcher.found, watcher.missed, watcher.healthy_acted) == (1, 0, [])
    assert event.world.faults[0].place.rows[0] not in event.world.jobs["pretrain"].nodes


ROW = {"nodes": 8, "days": 1, "seed": 1, "arm": "greylag", "goodput_ratio": 0.9, "shares": {}, "cpu_seconds": 1.0, "found": 1, "missed": 0,
       "healthy_nodes_acted_on": 0, "repairs": 1, "repair_seconds_median": 400.0}


def test_a_warm_spare_takes_a_dead_nodes_place_within_five_minutes(tmp_path):
    """From the confirmed incident to the end of the job's first step after, on the fleet's clock and with its short operations
    (`times: fast`)."""
    sure = {"faults__gpu_lost": _row(1.0, 1.0, 10.0, 12.0), "calibration__confidence__bins": CARD["calibration"]["confidence"]["bins"][1:]}
    scenario = quiet(8, 0.2, DEAD)
    event, watcher = watching(tmp_path, replace(scenario, fleet=replace(scenario.fleet, times="fast")), **sure)
    assert event.world.jobs["pretrain"].alive
    assert len(watcher.back) == len(watcher.back_attempt) == 1
    assert 0 < watcher.back_attempt[0] <= watcher.back[0] <= 300.0
    assert event.world.jobs["pretrain"].run == 2
    row = {**ROW, "replaced": 1, "back_seconds_median": watcher.back[0], "back_attempt_seconds_median": watcher.back_attempt[0]}
    assert f"first step a median of {watcher.back[0]} s after the incident was confirmed, " in told(row)
    assert f", {watcher.back_attempt[0]} s after its attempt began" in told(row)
    assert "first step" not in told({**ROW, "replaced": 0})


def test_waiting_until_acting_is_worth_it_counts_from_the_incident_on(tmp_path):
    """A slow GPU is watched first: from the incident to the next step it takes longer than from its attempt on."""
    sure = {"faults__gpu_slow": _row(1.0, 1.0), "calibration__confidence__bins": CARD["calibration"]["confidence"]["bins"][1:]}
    _, watcher = watching(tmp_path, quiet(8, 0.5, LONG), **sure)
    assert watcher.back[0] > watcher.back_attempt[0] > 0


def test_what_is_missed_stays(tmp_path):
    """A recall of nothing leaves the part where it is."""
    event, watcher = watching(tmp_path, quiet(8, 0.5, LONG), faults__gpu_slow=_row(0.0, 1.0))
    assert (watcher.found, watcher.missed) == (0, 1)
    assert event.world.faults[0].present


def test_acting_on_the_wrong_node_is_counted(tmp_path):
    """Wrong parts that are as sure as right ones: the study must see a healthy node drained."""
    wrong = {"faults__gpu_slow": {**_row(1.0, 0.0), "incidents": {"right": 0, "misplaced": 9}}, "calibration__confidence__bins": [{"said": 0.95, "true": {"value": 0.5, "n": 9}}]}
    _, watcher = watching(tmp_path, quiet(8, 0.5, LONG), **wrong)
    assert watcher.healthy_acted


def test_a_fault_that_was_taken_for_its_switchs_is_drawn_on_no_node(tmp_path):
    """The scorecard tells of what scope the misplaced incident was: one of a switch acts on nobody."""
    told = {"word": "misplaced", "fault": "gpu_slow", "scope": "switch", "stress": ""}
    wrong = {"faults__gpu_slow": {**_row(1.0, 0.0), "incidents": {"right": 0, "misplaced": 9}}, "wrong": {"false": [told], "missed": []},
             "calibration__confidence__bins": [{"said": 0.95, "true": {"value": 0.5, "n": 9}}]}
    _, watcher = watching(tmp_path, quiet(8, 0.5, LONG), **wrong)
    assert (watcher.found, watcher.healthy_acted) == (1, [])


def test_the_same_month_twice_is_the_same(tmp_path):
    """Seeds decide everything."""
    chances, policy = read_chances(written(tmp_path)), read_policy(str(ACT))
    rows = [run_arm("greylag", month(Span(16, 2.0, 20_002)), chances, policy, print) for _ in range(2)]
    assert {**rows[0], "cpu_seconds": 0} == {**rows[1], "cpu_seconds": 0}


@pytest.mark.parametrize(("ratios", "closed"), [((0.8, 0.9, 0.88), 0.8), ((0.8, 0.9, 0.7), -1.0), ((0.9, 0.9, 0.9), None)])
def test_the_share_of_the_gap(ratios, closed):
    """From restarting to the oracle; without a gap there is nothing to close."""
    restart, oracle, own = ratios
    rows = [{"arm": arm, "goodput_ratio": ratio, "nodes": 64, "days": 30, "healthy_nodes_acted_on": 0, "found": 1, "missed": 0}
            for arm, ratio in (("people", 0.5), ("restart", restart), ("oracle", oracle), ("greylag", own))]
    assert together(64, rows)["gap_closed"] == closed


def test_the_interval_of_the_share_is_drawn_from_the_months():
    """Months of which each closes half of its gap leave no doubt, those that differ do, and two months tell nothing."""
    def card(*months):
        return together(64, [{"arm": arm, "goodput_ratio": ratio, "nodes": 64, "days": 30, "seed": n, "healthy_nodes_acted_on": 0, "found": 1,
                              "missed": 0} for n, own in enumerate(months)
                             for arm, ratio in (("people", 0.5), ("restart", 0.8), ("oracle", 0.9), ("greylag", own))])["gap_closed_95"]

    assert card(0.85, 0.85, 0.85, 0.85) == [0.5, 0.5]
    low, high = card(0.75, 0.9, 0.9, 0.85)
    assert low < 0.5 < high
    assert card(0.85, 0.85) is None


@pytest.mark.parametrize(("scope", "nodes"), [("rack", 0), ("device", 1)])
def test_a_false_incident_of_a_rack_names_no_node(tmp_path, scope, nodes):
    """The shipped policy touches none for it; one of a device is on one."""
    row = {**_row(false=400), "unfounded_scopes": {scope: 400}}
    chances = read_chances(written(tmp_path, faults__power_cap=row))
    event = EventWorld(month(Span(16, 1.0, 20_003)))
    watching = Watching(event, chances, read_policy(str(ACT)), 20_003)
    named = {case.incident.culprit is not None for _, case in watching._coming}
    assert named == {bool(nodes)}
    assert {case.incident.scope for _, case in watching._coming} == {scope}


def test_budgets_grow_with_the_job():
    """A job on 512 nodes may be acted on as often as eight jobs on 64."""
    policy = read_policy(str(ACT))
    assert limits_for(policy, 512).limits.per_job_per_day == 8 * policy.limits.per_job_per_day
    assert limits_for(policy, 32).limits == policy.limits


def test_the_limits_that_hold_at_each_size_are_printed_and_kept(tmp_path, monkeypatch):
    """Those of a job on 512 nodes are not those of the file, whatever the policy is called."""
    monkeypatch.setattr("app.goodput.command.compare", lambda *args: iter(()))
    told, out, own = [], tmp_path / "out.json", read_policy(str(ACT)).limits
    evaluate_goodput(GoodputOptions(str(written(tmp_path)), nodes=(512, 64), out=str(out)), print, told.append)
    kept = json.loads(out.read_text())
    assert kept["limits"]["64"] == asdict(own)
    assert kept["limits"]["512"] == {**asdict(own), "per_hour": 8 * own.per_hour, "per_job_per_day": 8 * own.per_job_per_day}
    assert {"launch", "load", "queue"} <= set(kept["times"])
    [small, large] = [line for line in told if line.startswith("  limits on ")]
    assert f"per_hour {own.per_hour}, per_job_per_day {own.per_job_per_day}, " in small
    assert f"per_hour {8 * own.per_hour} ({own.per_hour} in the policy), per_job_per_day {8 * own.per_job_per_day} (" in large


def test_all_times_of_the_months_are_listed_with_their_sources():
    """What a job's start, its wait in the queue and its checkpoint take included."""
    chances = Chances({}, {}, (), (), "card.json", "0" * 64, "standard", 1, 1.0)
    listed, told = durations(), "\n".join(heading(chances, "act.yaml", read_policy(str(ACT)), [64]))
    assert {*all_times()["real"].seconds, "launch", "rendezvous", "load", "save", "requeue", "person", "noticed"} == set(listed)
    assert {"queue", "drain", "replace", "reboot", "reset_gpu", "diagnose_2", "repair"} <= set(listed)
    for name, row in listed.items():
        assert len(row["source"]) > 5
        assert 0 < row["seconds"][1] >= row["seconds"][0]
        assert f"time {name}: " in told
        assert row["source"] in told


@pytest.mark.parametrize("options", [
    GoodputOptions(None), GoodputOptions("card.json", nodes=(4,)), GoodputOptions("card.json", days=0), GoodputOptions("no-such-file"),
])
def test_without_a_scorecard_or_with_impossible_sizes_nothing_runs(options):
    """One sentence instead."""
    with pytest.raises(BadInput, match="evaluate"):
        evaluate_goodput(options, print, print)
