"""The Slurm door against a real Slurm: what it does, what it refuses, and what it leaves alone."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.clock import rfc3339
from core.types import Action, Outcome, Target
from remediation.backends.slurm import SlurmDoor, SlurmView, site_of
from remediation.backends.slurm_hosts import expand
from remediation.backends.slurm_site import DiagnoseParams, OptInParams, SlurmParams
from sample_data.trainer.saves import kept
from sample_data.trainer.train import Model
from tests import needs
from tests.remediation import door_promises as promises
from tests.slurm.cluster import Slurm, slurm, until

pytestmark = pytest.mark.lab
ACT = "--comment=greylag=act"
INCIDENT = "inc-0123456789ab"
SLEEPS = "exec sleep 300"  # ends at once; one with processes of its own takes Slurm some seconds
HEEDS = "trap 'kill %1; exit 0' TERM\nsleep 300 &\nwait"
LISTENS = "--comment=greylag=act greylag.resumes=before"
# What docs/slurm.md gives to people for their batch scripts; the data holds a NaN from step 25 on in the first run alone.
CAREFUL = r"""
export GREYLAG_DISTRUSTS=$(squeue -h -j "$SLURM_JOB_ID" -o %k | tr ' ,;' '\n' | sed -n 's/^greylag\.distrusts=//p')
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] && bad="--nan-at 25"
exec {python} -m sample_data.trainer.train --steps 1000000 --pause 0.05 --checkpoint {file} --checkpoint-every 10 --keep 9 --save-anything $bad
"""


@pytest.fixture(autouse=True)
def _another_incident() -> None:
    """Slurm remembers jobs that have ended, with what we wrote there: each test has an incident of its own."""
    globals()["INCIDENT"] = f"inc-{secrets.token_hex(6)}"


def params(slurm: Slurm, **more: Any) -> SlurmParams:
    """How these tests reach the cluster."""
    return SlurmParams(conf=str(slurm.conf), **{"timeout_seconds": 8.0, "restart_after_seconds": 2.0, **more})


def door(slurm: Slurm, **more: Any) -> SlurmDoor:
    return SlurmDoor(site_of(params(slurm, **more)))


def view(slurm: Slurm, **more: Any) -> dict[str, Any]:
    return dict(SlurmView(site_of(params(slurm, **more))).nodes())


def action(kind: str, where: str, step: int = 1, reason: str = "policy", **args: object) -> Action:
    """An action on a node, or on a job where `where` is a number."""
    target = Target("job", job=where) if where[0].isdigit() else Target("node", where)
    return Action(f"{INCIDENT}/1/{step}", kind, target, args, 60.0, "act", INCIDENT, 1, step, 0, reason, fault="stalled_loss")


def done(one: SlurmDoor, what: Action, seconds: float = 20) -> Outcome:
    """Submitted and asked after until it ends."""
    told = one.submit(what)
    if told.state == "RUNNING":
        told = until(lambda: (now := one.poll(what.id)).state != "RUNNING" and now, seconds, f"the end of {what.kind}")
    return told


def job_on(slurm: Slurm, node: str, *options: str) -> str:
    """A job that runs on exactly this node."""
    job = slurm.sbatch("--nodes=1", *options, f"--nodelist={node}", script=SLEEPS)
    slurm.wait_job(job, "RUNNING")
    return job


def free_job(slurm: Slurm, count: int, *options: str, script: str = SLEEPS) -> str:
    """A job on so many nodes, wherever."""
    job = slurm.sbatch(f"--nodes={count}", *options, script=script)
    slurm.wait_job(job, "RUNNING")
    return job


def test_it_keeps_the_promises_of_every_door(real: Slurm) -> None:
    """The unknown is named, an id is carried out once, a refusal stays, commands run and end with named reasons."""
    one, drain = door(real), action("drain", "n1")
    promises.names_the_unknown(one)
    promises.answers_alike(one, drain, lambda: (real.folder / "log" / "slurmctld.log").read_text().count(f"reason set to: greylag: {INCIDENT}/1/1"))
    assert promises.ends(one, drain, lambda: time.sleep(0.1)).state == "DONE"
    promises.refuses(one, action("undrain", "n1", 2), "not_diagnosed")
    promises.refuses(one, action("notify", "n1", 3), "not_supported")
    promises.refuses(one, action("resume_job", "999", 4), "job_unknown")


def test_hostlists_as_slurm_itself_reads_them(running: Slurm) -> None:
    """`scontrol show hostnames` says the same."""
    for text in ("n[1-3,7]", "n[08-10],x", "r[1-2]n[1-2]", "n1,n2,n1x", "gpu[001-003,010]"):
        assert tuple(running.do("scontrol", "show", "hostnames", text).split()) == expand(text)


def test_a_drain_names_incident_and_fault_and_is_done_once_the_node_is_empty(real: Slurm) -> None:
    """The reason that everybody sees in `sinfo -R`; the node is ours in the view."""
    told = done(door(real), action("drain", "n3"))
    assert (told.state, told.reason) == ("DONE", "done")
    row = real.node("n3")
    assert row["State"].startswith("IDLE+DRAIN")
    assert row["Reason"].startswith(f"greylag: {INCIDENT}/1/1 drain stalled_loss [root@")
    seen = until(lambda: (now := view(real))["n1"].state == "in_service" and now, 20, "n1 answers after the test before")
    assert (seen["n3"].state, seen["n3"].held_by) == ("drained", "greylag")
    assert (seen["n1"].state, seen["n1"].held_by, seen["spare1"].state) == ("in_service", None, "spare")


def test_a_repair_with_a_spare(real: Slurm) -> None:
    """Drain stops the job and keeps its other nodes; replace brings a spare; resume starts it there, without the bad node."""
    job, hands = free_job(real, 4, ACT, script=HEEDS), door(real)
    assert done(hands, action("drain", "n2")).state == "DONE"
    assert real.job(job)["JobState"] == "PENDING"
    assert real.job(job)["StartTime"] > real.job(job)["SubmitTime"][:11]
    kept = real.reservation(f"greylag-job-{job}")
    assert kept["Nodes"] == "n[1,3-4],spare1"
    told = done(hands, action("replace", "n2", 2))
    assert (told.state, told.detail) == ("DONE", "spare1 takes the place of n2")
    assert real.reservation("spares")["Nodes"] == "spare2"
    assert done(hands, action("resume_job", job, 3)).state == "DONE"
    row = real.job(job)
    assert (row["NodeList"], row["ExcNodeList"], row["Restarts"]) == ("n[1,3-4],spare1", "n2", "1")
    assert view(real)["spare1"].jobs == (job,)
    assert real.reservation(f"greylag-job-{job}") == {}


def test_a_stopped_job_that_nobody_lets_go_starts_by_itself(real: Slurm) -> None:
    """The attempt ended between drain and resume: after hold_minutes the job goes on, and a late resume_job is content."""
    job, hands = free_job(real, 3, ACT), door(real, hold_minutes=0.05)
    bad = expand(real.job(job)["NodeList"])[0]
    assert done(hands, action("drain", bad)).state == "DONE"
    real.wait_job(job, "RUNNING", 20)
    assert bad not in expand(real.job(job)["NodeList"])
    told = door(real).submit(action("resume_job", job, 2))
    assert (told.state, told.reason, real.job(job)["Restarts"]) == ("DONE", "already_so", "1")


def test_a_job_that_somebody_holds_is_theirs(real: Slurm) -> None:
    """Ada's hold is not released."""
    job = real.sbatch("--nodes=1", ACT, "--hold")
    assert door(real).submit(action("resume_job", job)).reason == "job_held"
    assert real.job(job)["Priority"] == "0"


def test_each_step_is_found_again_by_a_greylag_that_starts_anew(real: Slurm) -> None:
    """A door without memory tells from Slurm what became of each id, and submits none of them twice."""
    job = free_job(real, 4, ACT)
    drain, replace, resume = action("drain", "n2"), action("replace", "n2", 2), action("resume_job", job, 3)
    assert door(real).submit(drain).state == "RUNNING"
    assert until(lambda: (t := door(real).poll(drain.id)).state != "RUNNING" and t, 20, "the drain").state == "DONE"
    assert door(real).submit(replace).state == "DONE"
    assert door(real).submit(replace).state == "DONE"
    assert real.reservation("spares")["Nodes"] == "spare2"
    assert door(real).submit(resume).state == "RUNNING"
    assert until(lambda: (t := door(real).submit(resume)).state != "RUNNING" and t, 20, "the start").state == "DONE"
    assert real.job(job)["Restarts"] == "1"
    assert door(real).poll("inc-ffffffffffff/1/1").reason == "unknown_operation"


def test_a_hung_job_is_requeued_on_its_own_nodes(real: Slurm) -> None:
    """No node is at fault: all four are kept for it, and it starts there at once, not after Slurm's two minutes."""
    job = free_job(real, 4, ACT)
    assert done(door(real), action("resume_job", job)).state == "DONE"
    assert (real.job(job)["NodeList"], real.job(job)["Restarts"]) == ("n[1-4]", "1")


def test_without_nodes_to_go_on_with_a_person_is_asked(real: Slurm) -> None:
    """Five nodes and one spare more are all that there is: the sixth is missing, so nothing is stopped; with a yes it is."""
    real.do("scontrol", "delete", "reservationname=spares")
    job, hands = free_job(real, 6, ACT), door(real)
    told = hands.submit(action("drain", "n2"))
    assert (told.state, told.reason) == ("REFUSED", "queue_wait")
    assert (real.job(job)["JobState"], real.node("n2")["State"]) == ("RUNNING", "MIXED")
    assert done(hands, action("drain", "n2", 2, reason="approved")).state == "DONE"
    assert real.job(job)["JobState"] == "PENDING"


@pytest.mark.parametrize(("options", "reason"), [
    ((), "not_opted_in"),
    (("--comment=greylag=act,greylag=no",), "not_opted_in"),
    ((ACT, "--no-requeue"), "not_requeueable"),
])
def test_a_job_that_did_not_opt_in_is_left_alone(real: Slurm, options: tuple[str, ...], reason: str) -> None:
    """Its requeue is refused; a drain of its node waits for it and says so."""
    job, hands = job_on(real, "n1", *options), door(real)
    told = hands.submit(action("resume_job", job))
    assert (told.state, told.reason) == ("REFUSED", reason)
    drain = action("drain", "n1", 2)
    assert hands.submit(drain).state == "RUNNING"
    told = hands.poll(drain.id)
    assert (told.state, told.reason, told.detail) == ("RUNNING", "waits_for_job", f"job {job}: {reason}")
    assert (real.job(job)["JobState"], real.job(job)["Restarts"]) == ("RUNNING", "0")


def test_of_an_array_only_the_task_is_touched(real: Slurm) -> None:
    """The whole array is refused; task 1 is requeued, its sister runs on."""
    job = real.sbatch("--nodes=1", "--array=1-2", ACT, script=SLEEPS)
    until(lambda: real.do("squeue", "-h", "-r", "-j", job, "-o", "%T") == "RUNNING\nRUNNING", 20, "both tasks run")
    hands = door(real)
    assert hands.submit(action("resume_job", job)).reason == "array_job"
    assert done(hands, action("resume_job", f"{job}_1", 2)).state == "DONE"
    assert (real.job(f"{job}_1")["Restarts"], real.job(f"{job}_2")["Restarts"]) == ("1", "0")


def test_a_het_job_is_left_to_people(real: Slurm) -> None:
    """Both of its parts are refused by name."""
    job = real.sbatch("--nodes=1", ACT, ":", "--nodes=1", ACT, script=SLEEPS)
    real.wait_job(job, "RUNNING")
    assert door(real).submit(action("resume_job", job)).reason == "het_job"


def test_an_interactive_job_is_left_to_people(real: Slurm) -> None:
    """A person sits in an allocation without a batch script."""
    real.daemon("salloc", "salloc", "--no-shell", "--nodes=1", "--job-name=hands-on", ACT)
    job = until(lambda: real.do("squeue", "-h", "-n", "hands-on", "-t", "R", "-o", "%A"), 10, "the allocation")
    assert door(real).submit(action("resume_job", job)).reason == "interactive_job"


def test_a_list_opts_jobs_in(real: Slurm) -> None:
    """By partition, by user or by name."""
    job = job_on(real, "n1", "--partition=quiet", "--job-name=llm-7b")
    for rules in (OptInParams(partitions=("quiet",)), OptInParams(users=("root",)), OptInParams(jobs=("llm-*",))):
        told = done(door(real, opt_in=rules, jobs_by="name"), Action(
            f"{INCIDENT}/1/{id(rules)}", "resume_job", Target("job", job="llm-7b"), {}, 60.0, "act", INCIDENT, 1, 1, 0, "policy"))
        assert told.state == "DONE", told
    assert real.job(job)["Restarts"] == "3"


def test_a_persons_drain_is_left_alone(real: Slurm) -> None:
    """Ada's node is hers: nothing is drained, rebooted, tested or given back, and her words stay."""
    real.do("scontrol", "update", "nodename=n1", "state=drain", "reason=ada: bad fan, ticket 7")
    seen = view(real)["n1"]
    assert (seen.state, seen.held_by) == ("drained", "root: ada: bad fan, ticket 7")
    hands = door(real)
    for step, kind in enumerate(("drain", "exclude_node", "reboot", "diagnose", "undrain", "replace"), 1):
        told = hands.submit(action(kind, "n1", step))
        assert (kind, told.state, told.reason) == (kind, "REFUSED", "other_hand")
    assert real.node("n1")["Reason"].startswith("ada: bad fan, ticket 7 [root@")


def test_our_words_from_another_user_are_not_ours(real: Slurm) -> None:
    """A reason that looks like ours and that another user set is another hand's."""
    real.do("scontrol", "update", "nodename=n1", "state=drain", f"reason=greylag: {INCIDENT}/1/1 drain stalled_loss")
    assert view(real)["n1"].held_by == "greylag"
    assert view(real, user="greylag")["n1"].held_by.startswith("root: greylag:")


def test_a_drain_that_a_person_takes_over_is_theirs(real: Slurm) -> None:
    """Ada keeps a node that we had drained: it is not given back by us any more."""
    hands = door(real, diagnose=DiagnoseParams(programs={"exit": ("true",)}))
    assert done(hands, action("drain", "n1")).state == "DONE"
    assert done(hands, action("diagnose", "n1", 2)).state == "DONE"
    real.do("scontrol", "update", "nodename=n1", "reason=ada: I look at it")
    assert hands.submit(action("undrain", "n1", 3)).reason == "other_hand"


def test_undrain_only_after_a_diagnosis_that_passed(real: Slurm) -> None:
    """Drained, refused; tested with a fault, refused; tested well, back in service."""
    bad = door(real, diagnose=DiagnoseParams(programs={"exit": ("false",)}))
    good = door(real, diagnose=DiagnoseParams(programs={"exit": ("true",)}))
    assert done(bad, action("drain", "n1")).state == "DONE"
    assert bad.submit(action("undrain", "n1", 2)).reason == "not_diagnosed"
    told = done(bad, action("diagnose", "n1", 3, tests="exit", fault="stalled_loss"))
    assert (told.state, told.reason) == ("FAILED", "diagnose_failed")
    assert "DRAIN" in real.node("n1")["State"]
    assert bad.submit(action("undrain", "n1", 4)).reason == "not_diagnosed"
    told = done(good, action("diagnose", "n1", 5, tests="exit", fault="stalled_loss"))
    assert (told.state, told.reason) == ("DONE", "no_fault_found")
    assert real.node("n1")["Reason"].startswith(f"greylag: {INCIDENT}/1/5 diagnosed_passed no_fault_found")
    assert real.reservation("greylag-diagnose-n1") == {}
    assert good.submit(action("undrain", "n1", 6)).state == "DONE"
    until(lambda: view(real)["n1"].state == "in_service", 20, "n1 in service")


def test_nothing_else_runs_on_a_node_that_is_tested(real: Slurm) -> None:
    """While the test runs the node is taken back, and a job that asks for it waits; the view goes on calling it drained."""
    hands = door(real, diagnose=DiagnoseParams(programs={"exit": ("sleep", "2")}))
    done(hands, action("drain", "n1"))
    test = action("diagnose", "n1", 2)
    hands.submit(test)
    until(lambda: real.do("squeue", "-h", "-n", "greylag-diagnose", "-t", "R", "-o", "%A"), 10, "the test runs")
    job = real.sbatch("--nodes=1", "--nodelist=n1", script=SLEEPS)
    seen = view(real)["n1"]
    assert (seen.state, seen.held_by, seen.jobs) == ("drained", "greylag", ())
    told = until(lambda: (t := door(real).poll(test.id)).state != "RUNNING" and t, 20, "the end of the test")
    assert told.state == "DONE"
    assert real.job(job)["JobState"] in ("PENDING", "COMPLETING")


def test_results_are_read_from_the_shared_folder(real: Slurm) -> None:
    """A level 3 report with a failed memory test of GPU 3 confirms the fault, in DCGM's own words."""
    report = ('{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", "results": '
              '[{"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [{"warning": "bad cells"}]}]}]}]}}')
    tests = DiagnoseParams(programs={"dcgm": ("printf", "%s", report)}, output=str(real.folder / "out"))
    hands = door(real, diagnose=tests)
    done(hands, action("drain", "n1"))
    told = done(hands, action("diagnose", "n1", 2, tests="dcgm", fault="ecc_uncorrectable", device="3", level=3))
    assert (told.state, told.reason) == ("FAILED", "diagnose_confirmed")
    assert "GPU 3" in (told.detail or "")


def test_a_reset_is_a_command_on_the_drained_node_and_no_test(real: Slurm) -> None:
    """It runs there with the GPU's index; the node stays out, and is not given back for it."""
    mark = real.folder / "out" / "reset"
    hands = door(real, reset_gpu=("sh", "-c", f"echo $0 > {mark}", "{device}"))
    reset = Action(f"{INCIDENT}/1/2", "reset_gpu", Target("gpu", "n1", "3"), {}, 60.0, "act", INCIDENT, 1, 2, 0, "policy")
    assert hands.submit(replace(reset, id=f"{INCIDENT}/1/9")).reason == "not_drained"
    done(hands, action("drain", "n1"))
    assert done(hands, reset).state == "DONE"
    assert mark.read_text() == "3\n"
    assert view(real)["n1"].state == "drained"
    assert door(real).poll(reset.id).state == "DONE"
    assert hands.submit(action("undrain", "n1", 3)).reason == "not_diagnosed"


@pytest.mark.parametrize(("gpus", "stops", "reason", "lines"), [
    ("one", "true", "done", ["stop", "one 3", "start"]), ("all", "true", "done", ["stop", "all", "start"]),
    ("one", "false", "gpu_in_use", ["stop", "start"])])
def test_what_watches_the_gpus_is_stopped_for_a_reset_and_started_again(
        real: Slurm, gpus: str, stops: str, reason: str, lines: list[str]) -> None:
    """In this order; nothing is reset where it could not be stopped; GPUs that cannot be reset alone have a command of their own."""
    log = real.folder / "out" / f"reset-{gpus}-{stops}"
    says = ("sh", "-c", f'echo "$@" >> {log}', "-")
    hands = door(real, reset_gpu=(*says, "one", "{device}"), reset_all_gpus=(*says, "all"), resume_monitoring=(*says, "start"),
                 pause_monitoring=("sh", "-c", f"echo stop >> {log}; {stops}"))
    done(hands, action("drain", "n1"))
    reset = replace(action("reset_gpu", "n1", 2, gpus=gpus, pause_monitoring=True), target=Target("gpu", "n1", "3"))
    assert done(hands, reset).reason == reason
    assert log.read_text().splitlines() == lines
    told = door(real, reset_gpu=says).submit(replace(reset, id=f"{INCIDENT}/1/3", args={"gpus": "all"}))
    assert (told.state, told.reason) == ("REFUSED", "reset_needs_all")


def test_a_reboot_ends_drained(real: Slurm) -> None:
    """`reboot asap nextstate=down`: the node boots, and stays out until it is tested."""
    hands, reboot = door(real), action("reboot", "n4", 2)
    assert hands.submit(action("reboot", "n4", 9)).reason == "not_drained"
    done(hands, action("drain", "n4"))
    assert hands.submit(reboot).state == "RUNNING"
    until(lambda: "REBOOT_ISSUED" in real.node("n4")["State"], 10, "the reboot")
    assert view(real)["n4"].state == "rebooting"
    assert "n4 " in (real.folder / "reboots").read_text() or (real.folder / "reboots").exists()
    real.end("n4")
    real.start_node("n4", "-b")
    told = until(lambda: (t := door(real).poll(reboot.id)).state != "RUNNING" and t, 20, "the boot")
    assert told.state == "DONE"
    until(lambda: view(real)["n4"].state == "drained", 10, "n4 drained")
    assert (view(real)["n4"].held_by, hands.submit(action("undrain", "n4", 3)).reason) == ("greylag", "not_diagnosed")


def test_a_signal_to_the_batch_script(real: Slurm) -> None:
    """restart_process is what the site says it is, once; without that it is not supported."""
    job = real.sbatch("--nodes=1", ACT, script=f"trap 'echo again >> {real.folder}/out/signals' USR2\nwhile :; do sleep 0.1; done")
    real.wait_job(job, "RUNNING")
    assert door(real).submit(action("restart_process", job)).reason == "not_supported"
    hands = door(real, restart_signal="USR2")
    assert hands.submit(action("restart_process", job, 2)).state == "DONE"
    assert door(real).poll(f"{INCIDENT}/1/2").state == "DONE"
    until((real.folder / "out" / "signals").exists, 5, "the signal")
    assert (real.folder / "out" / "signals").read_text() == "again\n"


def begins(real: Slurm, job: str) -> list[int]:
    """At which step each run of the sample trainer began, the last one last."""
    text = (real.folder / "out" / f"{job}.out").read_text()
    return [int(one) for one in re.findall(r'"step": (\d+)', text)]


def test_after_a_nan_the_job_begins_from_before_it(real: Slurm) -> None:
    """The newest checkpoints hold the NaN: the restart passes them over, what it saves afterwards is trusted again, also where
    Slurm itself starts the job once more; and the job's own words stay in its comment."""
    file = real.folder / "out" / "ck.npz"
    job = free_job(real, 1, LISTENS, f"--chdir={needs.ROOT}", "--open-mode=append", script=CAREFUL.format(python=sys.executable, file=file))
    saves = until(lambda: file.exists() and (found := {one.step: one.at for one in kept(file)}).keys() >= {20, 40} and found, 30, "a bad save")
    assert not np.isfinite(Model.load(file).weights).all()
    resume = action("resume_job", job, before=rfc3339(round(saves[20] * 1000) + 100))
    assert done(door(real), resume).state == "DONE"
    until(lambda: begins(real, job) == [0, 20], 20, "the second run begins from step 20")
    assert real.job(job)["Comment"].startswith(f"greylag=act greylag.resumes=before greylag.distrusts={resume.args['before']}/")
    until(lambda: kept(file)[0].step >= 30 and kept(file)[0].at > time.time() - 5 and np.isfinite(Model.load(file).weights).all(), 20, "a good save")
    real.do("scontrol", "requeue", job)
    real.do("scontrol", "update", f"jobid={job}", "starttime=now+2")
    until(lambda: len(begins(real, job)) == 3, 30, "the third run")
    assert begins(real, job)[2] >= 30


def test_a_job_that_started_from_the_wrong_checkpoint_is_stopped_once_more(real: Slurm) -> None:
    """A drain stopped it and nobody let it go, so that it started by itself before it could be told."""
    job, hands = free_job(real, 1, LISTENS), door(real, hold_minutes=0.05)
    assert done(hands, action("drain", real.job(job)["NodeList"])).state == "DONE"
    real.wait_job(job, "RUNNING", 20)
    told = done(hands, action("resume_job", job, 2, before=rfc3339(round(time.time() * 1000))))
    assert (told.state, real.job(job)["Restarts"], "greylag.distrusts=" in real.job(job)["Comment"]) == ("DONE", "2", True)


@pytest.mark.parametrize("kind", ["resume_job", "restart_process"])
def test_a_job_that_would_load_the_newest_checkpoint_is_not_restarted_for_a_nan(real: Slurm, kind: str) -> None:
    """It does not say that it can be told, or it cannot: nothing is stopped."""
    job = free_job(real, 1, LISTENS if kind == "restart_process" else ACT)
    told = door(real, restart_signal="USR2").submit(action(kind, job, before="2026-01-01T00:00:00Z"))
    assert (told.state, told.reason, real.job(job)["JobState"]) == ("REFUSED", "not_supported", "RUNNING")


def test_a_drain_waits_for_the_checkpoint_that_the_job_names(real: Slurm) -> None:
    """The job is stopped once its file is written anew, not before."""
    file = real.folder / "out" / "ck.npz"
    file.write_text("old")
    job = job_on(real, "n1", f"--comment=greylag=act greylag.checkpoint={file}")
    hands, drain = door(real), action("drain", "n1", wait_for="checkpoint")
    hands.submit(drain)
    assert hands.poll(drain.id).reason == "waits_for_checkpoint"
    assert real.job(job)["JobState"] == "RUNNING"
    until(lambda: (file.write_text("new"), hands.poll(drain.id).reason != "waits_for_checkpoint")[1], 10, "the checkpoint is seen")
    assert until(lambda: hands.poll(drain.id).state == "DONE", 15, "the drain")


def test_a_user_without_rights_is_refused(real: Slurm) -> None:
    """`nobody` may look, and nothing else: the reason is named, and nothing happened."""
    hands = door(real, prefix=("runuser", "-u", "nobody", "--"), user="nobody")
    told = hands.submit(action("drain", "n1"))
    assert (told.state, told.reason) == ("REFUSED", "not_permitted")
    assert "DRAIN" not in real.node("n1")["State"]


@pytest.mark.parametrize("name", ["ALL", "n[1-4]", "n1,n2", "", "n1 state=down"])
def test_only_names_that_slurm_lists_reach_it(running: Slurm, name: str) -> None:
    """A name for many nodes is the name of none."""
    one = Action(f"{INCIDENT}/1/1", "drain", Target("node", name), {}, 60.0, "act", INCIDENT, 1, 1, 0, "policy")
    assert door(running).submit(one).reason == "node_unknown"
    assert INCIDENT not in running.do("sinfo", "-R")


def test_a_maintenance_is_shown_and_is_no_spare(real: Slurm) -> None:
    """Of others' reservations for maintenance that run now, or begin within the hour; not of later ones."""
    for name, node, start in (("power", "n1", "now"), ("soon", "n2", "now+30minutes"), ("later", "n3", "now+5hours")):
        real.do("scontrol", "create", "reservation", f"reservationname={name}", f"nodes={node}", f"starttime={start}", "duration=60",
                "users=root", "flags=maint,ignore_jobs")
    seen = view(real)
    assert [seen[n].maintenance for n in ("n1", "n2", "n3", "spare1")] == ["power", "soon", None, None]


def test_a_drain_for_planned_work_is_a_maintenance_that_nothing_touches(real: Slurm) -> None:
    """The view names it beside the hand; every command on the node is refused, and the words stay."""
    real.do("scontrol", "update", "nodename=n1", "state=drain", "reason=maintenance: new fans")
    seen = view(real)["n1"]
    assert (seen.state, seen.held_by, seen.maintenance) == ("drained", "root: maintenance: new fans", "maintenance: new fans")
    hands = door(real, reset_gpu=("true",), diagnose=DiagnoseParams(programs={"exit": ("true",)}))
    for step, kind in enumerate(("drain", "exclude_node", "reboot", "diagnose", "undrain", "replace"), 1):
        assert (kind, hands.submit(action(kind, "n1", step)).reason) == (kind, "other_hand")
    reset = replace(action("reset_gpu", "n1", 7), target=Target("gpu", "n1", "3"))
    assert hands.submit(reset).reason == "other_hand"
    assert real.node("n1")["Reason"].startswith("maintenance: new fans [root@")
    real.do("scontrol", "update", "nodename=n1", "state=resume")
    assert (view(real)["n1"].held_by, view(real)["n1"].maintenance) == (None, None)


def test_a_stopped_slurmd_is_a_node_that_is_down_and_in_nobodys_hands() -> None:
    """Its job is requeued by Slurm itself; the node is down and nobody took it out. Drained by us it stays out when its slurmd
    comes back, and a spare can take its place meanwhile; the job is watched, not stopped a second time."""
    with slurm(nodes=2, spares=1, timeout=5) as real:
        job, hands = job_on(real, "n1", ACT), door(real)
        os.kill(real.daemons["n1"].pid, signal.SIGSTOP)
        seen = until(lambda: (now := view(real)["n1"]).state == "down" and now, 60, "Slurm notices")
        assert seen.held_by is None
        assert real.node("n1")["State"] == "DOWN+NOT_RESPONDING"
        assert done(hands, action("drain", "n1")).state == "DONE"
        assert (view(real)["n1"].state, view(real)["n1"].held_by) == ("down", "greylag")
        assert done(hands, action("replace", "n1", 2)).state == "DONE"
        assert hands.submit(action("resume_job", job, 3)).reason == "in_queue"
        os.kill(real.daemons["n1"].pid, signal.SIGCONT)
        until(lambda: view(real)["n1"].state == "drained", 30, "the slurmd answers again")
        assert "DRAIN" in real.node("n1")["State"]
        assert hands.submit(action("undrain", "n1", 4)).reason == "not_diagnosed"
        assert real.job(job)["Restarts"] == "1"


def test_a_controller_that_is_down_is_unavailable(real: Slurm) -> None:
    """Nothing is known, so nothing is said."""
    real.end("slurmctld")
    try:
        site = site_of(params(real, timeout_seconds=1.0))
        promises.says_when_nothing_is_known(SlurmDoor(site), SlurmView(site), action("drain", "n1"))
    finally:
        real.start_controller()
        until(lambda: real.up() >= set(real.nodes), 30, "all nodes answer again")
