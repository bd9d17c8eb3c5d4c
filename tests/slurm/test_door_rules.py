"""What the engine and the door make of a job that would have to wait in the queue, and the programs' errors; no Slurm needed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from core.errors import ConfigError, Refused, Unavailable
from remediation.backends import slurm_json as read
from remediation.backends.slurm import site_of
from remediation.backends.slurm_commands import NoSuchOption, Runner, Scheduler
from remediation.backends.slurm_rules import find, may_not_stop, told
from remediation.backends.slurm_site import (
    DiagnoseParams,
    OptInParams,
    Site,
    SlurmParams,
    read_trace,
    write_trace,
)
from tests.remediation.test_worth import run, site
from tests.remediation.worlds import T0, Owner, cluster, finding, incident, policy

RULES = OptInParams()


def test_a_wait_in_the_queue_becomes_a_proposal() -> None:
    """In mode act: the door refuses for a price, a person is asked, and after a yes the same attempt starts."""
    world = cluster()
    world.refuse["drain"] = "queue_wait"
    owner = Owner(policy(), world)
    owner.facts.findings = [finding(owner.at)]
    owner.facts.steps = [(0, 2.0), (T0 + 1, 3.0)]
    owner.open(incident())

    def tick(times: int) -> None:
        for _ in range(times):
            owner.facts.findings = [finding(owner.at)]
            owner.tick()

    tick(4)
    assert owner.state() == ("proposed", "queue_wait")
    assert owner.did() == []
    del world.refuse["drain"]
    owner.engine.approve("inc-1", "ada", owner.at)
    tick(2)
    assert owner.did()[:1] == ["drain"]
    assert (world.order[0].reason, world.order[0].actor) == ("approved", "ada")


def test_a_proposal_for_a_job_that_would_wait_in_the_queue_charges_that_wait() -> None:
    """An hour in place of a minute, for all of the job's GPUs; what waiting costs stays, and the person is asked all the same."""
    asked = {}
    for mode in ("propose", "act"):
        owner, fault, rate = site(mode=mode)
        if mode == "act":
            owner.world.refuse["drain"] = "queue_wait"
        run(owner, fault, rate, 12)
        reason = "awaiting_approval" if mode == "propose" else "queue_wait"
        assert owner.state() == ("proposed", reason)
        asked[mode] = next(a for a, o in owner.rows if a.reason == reason and o.state == "PENDING").args
    more = asked["act"]["attempt_gpu_hours"] - asked["propose"]["attempt_gpu_hours"]
    assert more >= 128 * 3540 / 3600 - 1
    assert all("queue 3600 s" in line for line in asked["act"]["attempts"])
    assert all("queue 60 s" in line for line in asked["propose"]["attempts"] if "reset_gpu" in line)
    assert asked["act"]["waiting_gpu_hours"] == pytest.approx(asked["propose"]["waiting_gpu_hours"], rel=0.05)


def job(**more: object) -> read.SlurmJob:
    """A job that may be stopped, but for `more`."""
    base: dict[str, object] = {"id": 7, "name": "llm", "user": "ada", "partition": "train", "state": "RUNNING", "states": frozenset({"RUNNING"}),
                               "nodes": ("n1",), "node_count": 1, "requeue": True, "batch": True, "comment": "greylag=act"}
    return read.SlurmJob(**{**base, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(("more", "rules", "reason"), [
    ({}, RULES, None),
    ({"comment": ""}, RULES, "not_opted_in"),
    ({"comment": "greylag=active"}, RULES, "not_opted_in"),
    ({"comment": "a, greylag=act;b"}, RULES, None),
    ({"comment": ""}, OptInParams(partitions=("train",)), None),
    ({"comment": "greylag=no"}, OptInParams(partitions=("train",)), "not_opted_in"),
    ({"comment": ""}, OptInParams(comment=""), "not_opted_in"),
    ({"het_id": 7}, RULES, "het_job"),
    ({"batch": False}, RULES, "interactive_job"),
    ({"array_id": 5}, RULES, "array_job"),
    ({"array_id": 5, "array_task": 1}, RULES, None),
    ({"requeue": False}, RULES, "not_requeueable"),
    ({"clear": False}, RULES, "job_unclear"),
])
def test_who_may_be_stopped(more: dict[str, object], rules: OptInParams, reason: str | None) -> None:
    """Opt-in first, then what Slurm can start again."""
    assert may_not_stop(job(**more), rules) == reason


OVER = {"state": "COMPLETED", "states": frozenset({"COMPLETED"})}


@pytest.mark.parametrize(("jobs", "by", "name", "reason"), [
    ((job(),), "id", "7", None), ((job(),), "name", "llm", None), ((job(),), "id", "llm", "job_unknown"), ((), "id", "7", "job_unknown"),
    ((job(), job(id=8)), "name", "llm", "job_ambiguous"), ((job(**OVER),), "id", "7", "job_ended"),
    ((job(**OVER), job(id=8)), "name", "llm", None), ((job(array_id=5, array_task=1), job(id=8, array_id=5, array_task=2)), "id", "5", "array_job"),
    ((job(array_id=5, array_task=1), job(id=8, array_id=5, array_task=2)), "id", "5_2", None), ((job(),), "id", None, "job_unknown"),
])
def test_which_job_is_meant(jobs: tuple[read.SlurmJob, ...], by: str, name: str | None, reason: str | None) -> None:
    """One job, or a named reason."""
    site = site_of(SlurmParams(jobs_by=by))
    if reason is None:
        assert not find(site, name, jobs).over
    else:
        with pytest.raises(Refused) as refused:
            find(site, name, jobs)
        assert refused.value.reason == reason


def test_a_jobs_own_words() -> None:
    """`greylag.checkpoint=/path` in the comment."""
    assert told(job(comment="greylag=act greylag.checkpoint=/ck/last"), "checkpoint") == "/ck/last"
    assert told(job(), "checkpoint") is None


@pytest.mark.parametrize("text", ["", "Not responding", "greylag", "greylag:", "greylag: x", "ada: greylag: inc-1/1/1 drain", "Greylag: inc-1/1/1 drain"])
def test_other_words_are_no_trace_of_ours(text: str) -> None:
    """Only the whole form counts."""
    assert read_trace(text) is None


def test_a_trace_is_read_back() -> None:
    """Also with what Slurm and others add behind it."""
    text = write_trace("inc-0123456789ab/1/2", "reboot", "gpu_lost")
    for more in ("", " : reboot issued", " | site: 7"):
        found = read_trace(text + more)
        assert found is not None
        assert (found.id, found.word, found.rest.split()[0]) == ("inc-0123456789ab/1/2", "reboot", "gpu_lost")


# --- which hand --------------------------------------------------------------------------------------------------------
def seen(reservations: tuple[read.Reservation, ...] = (), jobs: tuple[read.SlurmJob, ...] = (), **node: object) -> tuple[str, str | None]:
    """(state, held_by) of a node as Greylag, user `greylag`, sees it."""
    one = read.SlurmNode("n1", **{"base": "IDLE", **node})  # type: ignore[arg-type]
    world = read.Cluster({"n1": one}, jobs, {r.name: r for r in reservations})
    view = site_of(SlurmParams(user="greylag")).view(one, world)
    return view.state, view.held_by


DRAIN = frozenset({"DRAIN"})
OURS = {"reason": "greylag: inc-1/1/1 drain", "reason_user": "greylag"}


@pytest.mark.parametrize(("node", "state", "held"), [
    ({}, "in_service", None),
    ({"base": "MIXED"}, "in_service", None),
    ({"flags": frozenset({"NOT_RESPONDING"})}, "unknown", None),
    ({"base": "FUTURE"}, "provisioning", None),
    ({"base": "SOMETHING_NEW"}, "unknown", None),
    ({"flags": DRAIN, **OURS}, "drained", "greylag"),
    ({"flags": DRAIN, **OURS, "reason_user": "root"}, "drained", "root: greylag: inc-1/1/1 drain"),
    ({"flags": DRAIN, "reason": "NHC: check_fs", "reason_user": "root"}, "drained", "root: NHC: check_fs"),
    ({"flags": DRAIN}, "drained", "somebody"),
    ({"base": "DOWN", "reason": "Not responding", "reason_user": "slurm"}, "down", None),
    ({"base": "DOWN", "reason": "Node unexpectedly rebooted", "reason_user": "slurm"}, "down", None),
    ({"base": "DOWN", "reason": "power supply", "reason_user": "ada"}, "down", "ada: power supply"),
    ({"base": "DOWN", "flags": DRAIN, "reason": "Not responding", "reason_user": "ada"}, "down", "ada: Not responding"),
    ({"base": "DOWN", **OURS}, "drained", "greylag"),
    ({"base": "DOWN", "flags": frozenset({"NOT_RESPONDING", "DRAIN"}), **OURS}, "down", "greylag"),
    ({"base": "DOWN", **OURS, "reason": "greylag: inc-1/1/2 reboot : reboot issued : reboot complete"}, "drained", "greylag"),
    ({"base": "DOWN", "flags": frozenset({"DRAIN", "REBOOT_ISSUED"}), **OURS}, "rebooting", "greylag"),
    ({"flags": frozenset({"REBOOT_REQUESTED"}), "reason": "kernel", "reason_user": "ada"}, "rebooting", "ada: kernel"),
    ({**OURS}, "in_service", None),
])
def test_in_whose_hands_a_node_is(node: dict[str, object], state: str, held: str | None) -> None:
    """Ours by text and user; Slurm's own reasons are nobody's; all else is another hand's."""
    assert seen(**node) == (state, held)


def test_a_node_that_is_tested_is_ours_and_out() -> None:
    """It is taken back for the test, inside a reservation of ours."""
    assert seen((read.Reservation("greylag-diagnose-n1", ("n1",)),)) == ("drained", "greylag")
    assert seen((read.Reservation("spares", ("n1",)),)) == ("spare", None)


def test_a_spare_that_a_test_uses_is_a_spare_that_is_not_to_be_had() -> None:
    """As the one that is tested, or as the other node of a test: Slurm shows it as allocated, and a spare that seems to have gone
    into service would count as new when it is back."""
    site = site_of(SlurmParams(user="greylag"))
    node, spares = read.SlurmNode("n1", "ALLOCATED"), read.Reservation("spares", ("n1",))
    mine, anothers = (job(name="greylag-diagnose", user=user, nodes=("n1",), states=frozenset({"RUNNING"})) for user in ("greylag", "ada"))
    for jobs, rows, state, busy in (((mine,), (spares,), "spare", "greylag-diagnose"), ((anothers,), (spares,), "in_service", None),
                                    ((), (spares, read.Reservation("greylag-diagnose-n2", ("n2", "n1"))), "spare", "greylag-diagnose")):
        view = site.view(node, read.Cluster({"n1": node}, jobs, {r.name: r for r in rows}))
        assert (view.state, view.held_by, view.maintenance) == (state, None, busy)


@pytest.mark.parametrize(("reason", "name"), [
    ("Maintenance window 7", "Maintenance window 7"), ("planned: PSU swap", "planned: PSU swap"), ("fw UPGRADE", "fw UPGRADE"),
    ("unplanned outage", None), ("NHC: check_fs", None), ("", None), ("x" * 70 + " maint", "x" * 60),
])
def test_a_drain_for_planned_work_is_a_maintenance_in_another_hand(reason: str, name: str | None) -> None:
    """By the words of its reason, in the forms of 22.05 and of 23.02; where the pattern is empty no drain is one."""
    rows = ({"name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": reason, "reason_set_by_user": "root", "partitions": []},
            {"name": "n1", "state": ["IDLE", "DRAIN"], "reason": reason, "reason_set_by_user": "root", "partitions": []})
    for row in rows:
        world = read.Cluster(read.nodes_of(json.dumps({"nodes": [row]})))
        view = site_of(SlurmParams(user="greylag")).view(world.nodes["n1"], world)
        assert (view.state, view.maintenance) == ("drained", name)
        assert (view.held_by or "").startswith("root")
        assert site_of(SlurmParams(user="greylag", planned_reasons="")).view(world.nodes["n1"], world).maintenance is None


@pytest.mark.parametrize("node", [
    {"flags": DRAIN, **OURS, "reason": "greylag: inc-1/1/1 drain maintenance"}, {"base": "DOWN", "reason": "Not responding maint"}, {"reason": "maint"},
])
def test_what_no_other_hand_took_out_is_no_planned_work(node: dict[str, object]) -> None:
    """Our own drain, a node that fell out, and one that is in service whatever its last reason was."""
    one = read.SlurmNode("n1", **{"base": "IDLE", **node})  # type: ignore[arg-type]
    assert site_of(SlurmParams(user="greylag")).view(one, read.Cluster({"n1": one})).maintenance is None


def test_what_is_found_on_a_node_in_planned_work_waits_for_its_end() -> None:
    """Nothing is sent and nothing is escalated: the incident holds, and goes on once the node is given back."""
    owner = Owner(policy(), cluster())
    owner.facts.steps = [(0, 2.0), (T0 + 1, 3.0)]
    owner.open(incident())
    given_back = owner.world.states["n1"]
    node = read.SlurmNode("n1", "IDLE", DRAIN, "maintenance: new fans", "ada")
    owner.world.states["n1"] = site_of(SlurmParams(user="greylag")).view(node, read.Cluster({"n1": node}))
    for _ in range(20):
        owner.facts.findings = [finding(owner.at)]
        owner.tick()
        assert (owner.did(), owner.state()[0] == "escalated") == ([], False)
    assert owner.state() == ("holding", "maintenance")
    owner.world.states["n1"] = given_back
    for _ in range(3):
        owner.facts.findings = [finding(owner.at)]
        owner.tick()
    assert owner.did()[:1] == ["drain"]


def test_a_node_drains_while_a_job_is_on_it() -> None:
    """Also while its processes end, and where PrivateData hides the job from us."""
    assert seen(base="ALLOCATED", flags=DRAIN, **OURS) == ("draining", "greylag")
    assert seen(jobs=(job(),), flags=DRAIN, **OURS) == ("draining", "greylag")
    assert seen(jobs=(job(states=frozenset({"COMPLETING"})),), flags=DRAIN, **OURS) == ("draining", "greylag")


# --- the programs ------------------------------------------------------------------------------------------------------
def program(folder: Path, name: str, text: str) -> None:
    """A stand-in for one of Slurm's programs."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(("said", "error", "reason"), [
    ("slurm_update error: Invalid user id", Refused, "not_permitted"),
    ("sudo: a password is required", Refused, "not_permitted"),
    ("slurm_update error: Invalid node name specified", Refused, "node_unknown"),
    ("slurm_load_jobs error: Invalid job id specified", Refused, "job_unknown"),
    ("Job/step already completing or completed for job 3", Refused, "job_ended"),
    ("something else", Refused, "backend_refused"),
    ("slurm_load_node error: Unable to contact slurm controller (connect failure)", Unavailable, ""),
    ("slurm_update error: Socket timed out on send/recv operation", Unavailable, ""),
    ("scontrol: unrecognized option '--json'", NoSuchOption, ""),
])
def test_what_the_programs_say(tmp_path: Path, said: str, error: type[Exception], reason: str) -> None:
    """Refused by name, or unavailable."""
    program(tmp_path, "scontrol", f'echo "{said}" >&2; exit 1')
    with pytest.raises(error) as found:
        Runner(str(tmp_path)).run("scontrol", "x")
    assert getattr(found.value, "reason", "") == reason


def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    """With what it started, and nothing is known."""
    program(tmp_path, "scontrol", "sleep 60 & wait")
    with pytest.raises(Unavailable, match=r"0\.2 s"):
        Runner(str(tmp_path), seconds=0.2).run("scontrol", "x")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """One clear sentence."""
    with pytest.raises(Unavailable, match="cannot be started"):
        Runner(str(tmp_path / "nowhere")).run("scontrol")


def test_words_reach_the_program_as_they_are(tmp_path: Path) -> None:
    """No shell looks at them, and the caller's SQUEUE_FORMAT does not reach it."""
    program(tmp_path, "scontrol", 'printf "%s\\n" "$@" "$SLURM_CONF" "$SQUEUE_FORMAT"')
    words = ("reason=a b; $(id) `id` 'x' \"y\" | > /x", "n[1-2]")
    assert Runner(str(tmp_path), conf="/c.conf").run("scontrol", *words).split("\n")[:4] == [*words, "/c.conf", ""]


NODES = '{"nodes": [{"name": "n1", "state": ["IDLE"], "partitions": []}]}'


def test_a_new_slurm_is_asked_in_json_and_an_old_one_in_text(tmp_path: Path) -> None:
    """The best form that works is kept; one that breaks later is an error, not a reason to try another."""
    program(tmp_path, "scontrol", f"""case "$*" in "show nodes --json") cat {tmp_path}/answer;; *) echo unrecognized option >&2; exit 1;; esac""")
    (tmp_path / "answer").write_text(NODES)
    scheduler = Scheduler(Runner(str(tmp_path)))
    assert set(scheduler.nodes()) == {"n1"}
    (tmp_path / "answer").write_text(NODES[:20])
    with pytest.raises(Unavailable, match="no JSON"):
        scheduler.nodes()
    program(tmp_path, "squeue", "echo unrecognized option >&2; exit 1")
    program(tmp_path, "scontrol", "echo JobId=7 JobName=x JobState=RUNNING NodeList=n1 NumNodes=1")
    assert scheduler.jobs()[0].nodes == ("n1",)


@pytest.mark.parametrize("params", [
    SlurmParams(jobs_by="nam"), SlurmParams(queue_wait="maybe"), SlurmParams(timeout_seconds=0.0), SlurmParams(reserve_minutes=0),
    SlurmParams(planned_reasons="(maint"), SlurmParams(diagnose=DiagnoseParams(programs={"dcgm": ()})), SlurmParams(diagnose=DiagnoseParams(output="out")),
])
def test_parameters_that_cannot_be_meant(params: SlurmParams) -> None:
    """The key is named."""
    with pytest.raises(ConfigError, match=r"backend: (jobs_by|queue_wait|timeout_seconds|reserve_minutes|planned_reasons|diagnose)"):
        site_of(params)


def test_who_we_are() -> None:
    """With a prefix somebody else runs the commands: root, unless it is said."""
    assert isinstance(site_of(SlurmParams()), Site)
    assert site_of(SlurmParams(prefix=("sudo", "-n"))).user == "root"
    assert site_of(SlurmParams(prefix=("sudo", "-n", "-u", "slurm"), user="slurm")).user == "slurm"
