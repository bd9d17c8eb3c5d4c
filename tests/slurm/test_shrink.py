"""shrink_job on a real Slurm: an elastic job goes on without the node that is out, and no other job is touched."""

from __future__ import annotations

import secrets

import pytest

from tests.slurm import test_real_slurm as shared
from tests.slurm.cluster import Slurm, until
from tests.slurm.test_real_slurm import ACT, action, done, door, free_job, view

pytestmark = pytest.mark.lab
ELASTIC = "--comment=greylag=act greylag.shrinks=2"
# What docs/slurm.md gives to people: a step on all nodes that the job has now, and another one when nodes were given up.
LAUNCHER = r"""
while :; do
  nodes=$(squeue -h -j "$SLURM_JOB_ID" -o %N); count=$(squeue -h -j "$SLURM_JOB_ID" -o %D)
  unset SLURM_NODELIST SLURM_JOB_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_NTASKS SLURM_NPROCS SLURM_TASKS_PER_NODE SLURM_JOB_CPUS_PER_NODE
  srun --kill-on-bad-exit=1 --nodes="$count" --nodelist="$nodes" --ntasks-per-node=1 sh -c 'echo "$SLURM_NNODES $SLURMD_NODENAME" >> {log}; exec sleep 300' && exit 0
  sleep 1
done
"""


@pytest.fixture(autouse=True)
def _another_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm remembers jobs that have ended, with what we wrote there: each test has an incident of its own."""
    monkeypatch.setattr(shared, "INCIDENT", f"inc-{secrets.token_hex(6)}")


def test_it_goes_on_without_the_node_that_is_out(real: Slurm) -> None:
    """Four nodes, one of which is taken out: the job keeps its number and its batch script, a new step runs on the other three,
    and the node is empty and can be tested."""
    log = real.folder / "out" / "ranks"
    job, hands = free_job(real, 4, ELASTIC, script=LAUNCHER.format(log=log)), door(real)
    until(lambda: log.exists() and len(log.read_text().splitlines()) == 4, 20, "four ranks")
    bad = next(n for n in ("n4", "n3", "n2") if n != real.job(job)["BatchHost"])
    assert done(hands, action("exclude_node", bad)).state == "DONE"
    told = done(hands, action("shrink_job", job, 2), 40)
    rest = [n for n in ("n1", "n2", "n3", "n4") if n != bad]
    assert (told.state, told.detail) == ("DONE", f"job {job} runs on {','.join(rest)}, 3 of 4 nodes")
    row = real.job(job)
    assert (row["JobState"], row["NumNodes"], row["Restarts"]) == ("RUNNING", "3", "0")
    until(lambda: log.read_text().splitlines()[4:] and len(log.read_text().splitlines()) >= 7, 30, "three ranks")
    assert sorted(log.read_text().splitlines()[4:7]) == [f"3 {n}" for n in rest]
    seen = until(lambda: (now := view(real))[bad].jobs == () and now, 20, f"{bad} is empty")
    assert (seen[bad].state, seen[bad].held_by) == ("drained", "greylag")
    again = door(real)
    assert again.poll(f"{shared.INCIDENT}/1/2").state == "DONE"
    assert again.submit(action("shrink_job", job, 3)).reason == "already_so"


def test_what_may_not_shrink_is_left_alone(real: Slurm) -> None:
    """It did not say that it can, not opted in, too few would be left, its batch script's node is out, or from before a NaN."""
    hands = door(real)
    plain, few = free_job(real, 2, ACT, "--exclusive"), free_job(real, 2, ELASTIC, "--exclusive")
    assert hands.submit(action("shrink_job", plain)).reason == "not_supported"
    assert hands.submit(action("shrink_job", few, 2)).reason == "already_so"
    host = real.job(few)["BatchHost"]
    other = next(n for n, v in view(real).items() if v.jobs == (few,) and n != host)
    done(hands, action("exclude_node", other, 3))
    assert hands.submit(action("shrink_job", few, 4)).reason == "no_spare"
    assert hands.submit(action("shrink_job", few, 5, before="2027-01-15T08:00:00.000Z")).reason == "not_supported"
    done(hands, action("exclude_node", host, 6))
    assert "batch script" in (hands.submit(action("shrink_job", few, 7)).detail or "")
    assert hands.submit(action("shrink_job", "999", 8)).reason == "job_unknown"
    assert [real.job(j)["NumNodes"] for j in (plain, few)] == ["2", "2"]
    real.do("scontrol", "update", f"jobid={plain}", "comment=greylag.shrinks=1")
    assert hands.submit(action("shrink_job", plain, 9)).reason == "not_opted_in"


def test_a_job_that_does_not_go_on_has_failed(real: Slurm) -> None:
    """Its batch script ends with its step: who asks then is told so."""
    job, hands = free_job(real, 3, ELASTIC, script="srun --kill-on-bad-exit=1 sleep 300"), door(real)
    until(lambda: f"{job}.0" in real.do("squeue", "-s", "-h", "-o", "%i"), 20, "its step")
    host = real.job(job)["BatchHost"]
    bad = next(n for n, v in view(real).items() if v.jobs == (job,) and n != host)
    done(hands, action("exclude_node", bad))
    told = done(hands, action("shrink_job", job, 2), 40)
    assert told.state in ("DONE", "FAILED")  # Slurm took the node out before the script ended, or it had ended by then
    until(lambda: real.job(job)["JobState"] == "FAILED", 30, "the end of the job")
    assert door(real).poll(f"{shared.INCIDENT}/1/2").state == "FAILED"
