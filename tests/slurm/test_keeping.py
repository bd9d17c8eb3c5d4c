"""Which nodes are kept for a job before it is stopped, and that none is lost or left behind: by records, and on a real Slurm."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from core.errors import Refused
from core.types import Action, Target
from remediation.backends import slurm_jobs as jobs
from remediation.backends import slurm_json as read
from remediation.backends.slurm import BEGIN, SlurmDoor, site_of
from remediation.backends.slurm_commands import Runner, Scheduler
from remediation.backends.slurm_hosts import expand
from remediation.backends.slurm_site import Site, SlurmParams
from tests.slurm import test_real_slurm as shared
from tests.slurm.cluster import Slurm, until
from tests.slurm.test_real_slurm import ACT, SLEEPS, action, done, door, free_job, job_on, params, view

OURS = "greylag: inc-a/1/1"


@pytest.fixture(autouse=True)
def _another_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm remembers jobs that have ended, with what we wrote there: each test has an incident of its own."""
    monkeypatch.setattr(shared, "INCIDENT", f"inc-{secrets.token_hex(6)}")


# --- by records -------------------------------------------------------------------------------------------------------
@dataclass
class Said(Scheduler):
    """Writes down what Slurm is told; refuses what begins with one of the words of `refuses`."""

    refuses: tuple[str, ...] = ()
    told: list[str] = field(default_factory=list)
    runner: Any = None

    def __post_init__(self) -> None:
        self.runner = self

    def run(self, program: str, *words: str, **_: Any) -> str:
        line = " ".join(words)
        if any(one in line for one in self.refuses):
            raise Refused("backend_refused", "Requested nodes are busy")
        self.told.append(line)
        return ""

    def kept(self) -> dict[str, str]:
        """The nodes of each reservation as it was told last; those that were deleted are gone."""
        out: dict[str, str] = {}
        for line in self.told:
            words = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if line.startswith("delete"):
                out.pop(words["reservationname"], None)
            elif "nodes" in words and "reservationname" in words:
                out[words["reservationname"]] = words["nodes"]
        return out


def site(refuses: tuple[str, ...] = ()) -> tuple[Site, Said]:
    said = Said(refuses)
    return replace(site_of(SlurmParams(user="greylag")), scheduler=said), said


def job(number: int, *nodes: str, count: int = 0, **more: Any) -> read.SlurmJob:
    """A job that runs on these nodes and may be stopped."""
    base: dict[str, Any] = {"user": "ada", "partition": "train", "state": "RUNNING", "states": frozenset({"RUNNING"}), "nodes": nodes,
                            "node_count": count or len(nodes), "requeue": True, "batch": True, "comment": "greylag=act"}
    return read.SlurmJob(number, **{**base, **more})


HELD = {"state": "PENDING", "states": frozenset({"PENDING"}), "held": True}


def world(*rows: read.SlurmJob, kept: Mapping[str, tuple[str, ...]] | None = None, idle: int = 2, out: tuple[str, ...] = (),
          pool: tuple[str, ...] = ("s1", "s2")) -> read.Cluster:
    """The nodes of these jobs, idle ones i1, i2, … and spares, with these reservations besides the spares'."""
    busy = {name for one in rows if one.on_nodes for name in one.nodes}
    base = dict.fromkeys(busy, "ALLOCATED") | dict.fromkeys((*pool, *(f"i{n}" for n in range(1, idle + 1)), *out), "IDLE")
    drained = frozenset({"DRAIN"})
    nodes = {name: read.SlurmNode(name, state, drained if name in out else frozenset(), "greylag: inc-a/1/1 drain" if name in out else "",
                                  "greylag", partitions=("train",)) for name, state in base.items()}
    reserved = {"spares": read.Reservation("spares", pool, frozenset({"MAINT"}))} if pool else {}
    return read.Cluster(nodes, rows, reserved | {name: read.Reservation(name, names) for name, names in (kept or {}).items()})


def begin(kind: str, where: str, one: Site, cluster: read.Cluster, incident: str = "inc-a", **args: object) -> Any:
    target = Target("job", job=where) if where.isdigit() else Target("node", where)
    return BEGIN[kind](one, Action(f"{incident}/1/1", kind, target, args, 60.0, "act", incident, 1, 1, 0, "policy"), cluster)


@pytest.mark.parametrize(("count", "pool", "idle", "nodes"), [
    (3, ("s1", "s2"), 2, "n1,n3,s1"), (3, (), 2, "n1,n3,i1"), (4, ("s1",), 2, "n1,n3,s1,i1"), (5, ("s1", "s2"), 2, "n1,n3,s1,s2,i1"),
    (2, ("s1", "s2"), 2, "n1,n3"),
])
def test_a_drain_keeps_what_is_left_then_spares_then_idle_nodes(count: int, pool: tuple[str, ...], idle: int, nodes: str) -> None:
    """As many as the job needs, before anything else is said to Slurm."""
    one, said = site()
    begin("drain", "n2", one, world(job(7, "n1", "n2", "n3", count=count), idle=idle, pool=pool))
    assert said.kept() == {"greylag-job-7": nodes}
    assert [line.split()[0] for line in said.told] == ["create", "update", "update", "requeuehold"]


def test_a_requeue_keeps_idle_nodes_and_counts_on_no_spare() -> None:
    """A spare comes by `replace` alone, which is not to be expected behind it: without idle nodes a person is asked."""
    one, said = site()
    hung = job(7, "n1", "n2", count=3)
    begin("resume_job", "7", one, world(hung))
    assert said.kept() == {"greylag-job-7": "n1,n2,i1"}
    with pytest.raises(Refused, match="queue_wait"):
        begin("resume_job", "7", *site()[:1], world(hung, idle=0))


def test_two_jobs_of_one_node_count_on_different_nodes() -> None:
    """Where there are not enough for both, nothing is stopped and nothing stays reserved."""
    one, said = site()
    two = (job(7, "n1"), job(8, "n1"))
    begin("drain", "n1", one, world(*two, idle=1, pool=("s1",)))
    assert said.kept() == {"greylag-job-7": "s1", "greylag-job-8": "i1"}
    one, said = site()
    with pytest.raises(Refused, match="queue_wait"):
        begin("drain", "n1", one, world(*two, idle=0, pool=("s1",)))
    assert said.kept() == {}
    assert not any("requeuehold" in line or "state=drain" in line for line in said.told)


def test_what_is_kept_for_one_job_is_not_there_for_another() -> None:
    """Neither its spare nor its idle node; the incident that the spare is kept for gets that one first."""
    waits = job(7, count=3, admin_comment=f"{OURS} drain restarts=0 nodes=3", **HELD)
    there = world(waits, job(8, "n5"), kept={"greylag-job-7": ("n3", "s2", "i1")}, out=("n2",))
    one, said = site()
    begin("drain", "n5", one, there, "inc-b")
    assert said.kept() == {"greylag-job-8": "s1"}
    assert jobs.idle(one, job(8, "n5"), there) == ["i2"]
    assert jobs.spares(one, there) == ["s1"]
    assert jobs.spares(one, there, jobs.reservations_of("inc-a", there)) == ["s2", "s1"]


@pytest.mark.parametrize(("args", "pool", "kept"), [({}, "s1", {}), ({"avoid": "s2"}, "s2", {"greylag-job-7": "s1,i1,n3"})])
def test_a_replacement_brings_the_spare_that_is_kept_unless_it_must_not(args: dict[str, object], pool: str, kept: dict[str, str]) -> None:
    """The other one goes back: no more are kept than the job needs."""
    waits = job(7, count=3, admin_comment=f"{OURS} drain restarts=0 nodes=3", **HELD)
    one, said = site()
    begin("replace", "n2", one, world(waits, kept={"greylag-job-7": ("i1", "n3", "s2")}, out=("n2",)), **args)
    assert said.kept() == {"spares": pool, **kept}


def test_a_pool_that_overlaps_with_nothing_keeps_its_spares_itself() -> None:
    """Slurm takes no node of a reservation without the flag `maint` into another one; then the rest is kept."""
    one, said = site(refuses=("nodes=n1,n3,s1",))
    begin("drain", "n2", one, world(job(7, "n1", "n2", "n3")))
    assert said.kept() == {"greylag-job-7": "n1,n3"}


@pytest.mark.parametrize(("row", "goes"), [
    (job(7, "n1", state="CANCELLED", states=frozenset({"CANCELLED"})), True),
    (job(7, "n1", restarts=1, admin_comment=f"{OURS} drain restarts=0 nodes=1"), True),
    (job(7, "n2", restarts=1, admin_comment=f"{OURS} drain restarts=0 nodes=1"), False),
    (job(7, restarts=1, count=1, admin_comment=f"{OURS} drain restarts=0 nodes=1", **HELD), False),
    (job(7, "n1"), False), (job(9, "n1"), True),
], ids=["ended", "runs again", "runs again on a node that is out", "waits", "not stopped yet", "forgotten"])
def test_what_is_kept_for_nobody_goes_back(row: read.SlurmJob, goes: bool) -> None:
    """At the next command that needs nodes; a reservation of another's name stays."""
    one, said = site()
    there = world(row, kept={"greylag-job-7": ("n4",), "greylag-job-x": ("n5",)}, out=("n2",))
    assert ("greylag-job-7" not in jobs.clear_away(one, there).reservations) == goes
    assert [line for line in said.told if "delete" in line] == ["delete reservationname=greylag-job-7"] * goes


def test_a_kept_node_that_another_job_got_just_before_is_not_waited_for() -> None:
    """The job gets another idle one when it is let go."""
    waits = job(7, count=2, restarts=1, admin_comment=f"{OURS} resume restarts=0 nodes=2", **HELD)
    one, said = site()
    begin("resume_job", "7", one, world(waits, job(8, "n4"), kept={"greylag-job-7": ("n3", "n4")}, out=("n3",)))
    assert said.kept() == {"greylag-job-7": "i1,i2"}


# --- on a real Slurm ----------------------------------------------------------------------------------------------------
class Killed(BaseException):
    """As kill -9 does: nothing after it is carried out."""


@dataclass(frozen=True, slots=True)
class Mortal(Runner):
    """Dies behind each command that changes something, where it is told for the first time."""

    told: list[tuple[str, ...]] = field(default_factory=list)

    def look(self, program: str, *args: str) -> str:
        return Runner(self.folder, self.conf, (), self.seconds).look(program, *args)

    def run(self, program: str, *args: str, text: str | None = None, cwd: str | None = None) -> str:
        out = Runner.run(self, program, *args, text=text, cwd=cwd)
        if args not in self.told:
            self.told.append(args)
            raise Killed
        return out


def mortal_door(slurm: Slurm, told: list[tuple[str, ...]]) -> SlurmDoor:
    """A door without memory that dies behind each command that is not in `told` yet."""
    return SlurmDoor(replace(site_of(params(slurm)), scheduler=Scheduler(Mortal("", str(slurm.conf), (), 8.0, told))))


def ends_though_killed(slurm: Slurm, what: Action) -> list[str]:
    """The commands behind each of which a Greylag was killed, before another one ended the action."""
    told: list[tuple[str, ...]] = []

    def once() -> bool:
        with suppress(Killed):
            return mortal_door(slurm, told).submit(what).state == "DONE"
        return False

    until(once, 60, f"the end of {what.kind}")
    return [" ".join(one) for one in told]


@pytest.mark.lab
def test_killed_between_all_commands_no_spare_is_lost_and_no_reservation_left(real: Slurm) -> None:
    """Whatever was the last command of a Greylag, the next one ends the repair: one spare is used, one is left, nothing is kept."""
    job = free_job(real, 4, ACT)
    repair = (action("drain", "n2"), action("replace", "n2", 2), action("resume_job", job, 3))
    told = [line for one in repair for line in ends_though_killed(real, one)]
    for part in ("create reservation", "state=drain", "requeuehold", "reservationname=spares", "excnodelist=n2", "release", "delete"):
        assert any(part in line for line in told), (part, told)
    real.wait_job(job, "RUNNING")
    assert (real.job(job)["NodeList"], real.job(job)["Restarts"]) == ("n[1,3-4],spare1", "1")
    assert (real.reservation("spares")["Nodes"], real.reservation(f"greylag-job-{job}")) == ("spare2", {})


@pytest.mark.lab
def test_killed_before_the_drain_everything_goes_back(real: Slurm) -> None:
    """The nodes are kept, and the repair is never asked for again: the spare was never out of the spares, and with the end of the
    job, at the latest with the reservation's, it is free for the next incident."""
    job = job_on(real, "n1", ACT)
    with pytest.raises(Killed):
        mortal_door(real, []).submit(action("drain", "n1"))
    assert (real.reservation(f"greylag-job-{job}")["Nodes"], real.reservation("spares")["Nodes"]) == ("spare1", "spare[1-2]")
    assert real.job(job)["JobState"] == "RUNNING"
    real.cancel_all()
    until(lambda: real.job(job)["JobState"] == "CANCELLED", 15, "the job's end")
    next_one = job_on(real, "n2", ACT)
    assert done(door(real), action("drain", "n2", 2)).state == "DONE"
    assert (real.reservation(f"greylag-job-{next_one}")["Nodes"], real.reservation(f"greylag-job-{job}")) == ("spare1", {})


@pytest.mark.lab
def test_idle_nodes_are_kept_before_the_job_is_stopped(real: Slurm) -> None:
    """Of the two that are there as many as it needs: a job that is queued meanwhile gets the other one alone."""
    real.do("scontrol", "delete", "reservationname=spares")  # they are nodes like all others then
    job = free_job(real, 4, ACT)
    before = expand(real.job(job)["NodeList"])
    assert done(door(real), action("drain", before[0])).state == "DONE"
    kept = expand(real.reservation(f"greylag-job-{job}")["Nodes"])
    assert (len(kept), set(before) - set(kept)) == (4, {before[0]})
    others = [real.sbatch("--nodes=1", "--exclusive", script=SLEEPS) for _ in range(2)]
    until(lambda: real.job(others[0])["JobState"] == "RUNNING", 20, "the first of the others runs")
    assert done(door(real), action("resume_job", job, 2)).state == "DONE"
    assert set(expand(real.job(job)["NodeList"])) == set(kept)
    assert [real.job(one)["JobState"] for one in others] == ["RUNNING", "PENDING"]
    assert real.job(others[0])["NodeList"] not in kept


@pytest.mark.lab
def test_a_spare_is_kept_for_the_job_from_its_stop_on(real: Slurm) -> None:
    """It stays a spare that neither a job in the queue nor another incident gets, until the repair takes it."""
    job, other, hands = free_job(real, 2, ACT, "--exclusive"), free_job(real, 2, ACT, "--exclusive"), door(real)
    bad, worse = (expand(real.job(one)["NodeList"])[0] for one in (job, other))
    assert done(hands, action("drain", bad)).state == "DONE"
    assert expand(real.reservation(f"greylag-job-{job}")["Nodes"])[1:] == ("spare1",)
    assert real.reservation("spares")["Nodes"] == "spare[1-2]"
    assert (view(real)["spare1"].state, view(real)["spare1"].held_by, view(real)["spare1"].maintenance) == ("spare", None, None)
    queued = [real.sbatch("--nodes=1", "--exclusive", *where, script=SLEEPS) for where in ((), ("--nodelist=spare1",))]
    own = action("replace", bad, 2)
    shared.INCIDENT = f"inc-{secrets.token_hex(6)}"
    assert done(hands, action("drain", worse)).state == "DONE"
    assert expand(real.reservation(f"greylag-job-{other}")["Nodes"])[1:] == ("spare2",)
    assert hands.submit(replace(own, id=f"{own.id}0", args={"avoid": "spare1"})).reason == "no_spare"
    assert hands.submit(action("replace", worse, 3)).detail == f"spare2 takes the place of {worse}"
    assert done(hands, action("resume_job", other, 4)).state == "DONE"
    assert hands.submit(own).detail == f"spare1 takes the place of {bad}"
    assert done(hands, replace(own, id=f"{own.id}1", kind="resume_job", target=Target("job", job=job))).state == "DONE"
    assert [expand(real.job(one)["NodeList"])[1:] for one in (job, other)] == [("spare1",), ("spare2",)]
    assert [real.job(one)["JobState"] for one in queued] == ["PENDING", "PENDING"]
