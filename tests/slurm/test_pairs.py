"""A test between two nodes on a real Slurm: the accused one and a spare, both kept for it, and nobody else's meanwhile."""

from __future__ import annotations

import secrets

import pytest

from remediation.backends.slurm import site_of
from remediation.backends.slurm_site import DiagnoseParams
from tests.slurm import test_real_slurm as shared
from tests.slurm.cluster import Slurm, until
from tests.slurm.test_real_slurm import SLEEPS, action, done, door, params, view

pytestmark = pytest.mark.lab
# What nccl-tests prints for two nodes: the bus bandwidth that is reached is the fabric's, not NVLink's.
NCCL = ("# Using devices\\n#  Rank 0 on {node}\\n#  Rank 8 on {partner}\\n"
        "  8589934592    2147483648     float     sum      -1    {us}  {bw}  {bw}      0    {us}  {bw}  {bw}      0\\n"
        "# Out of bounds values : 0 OK\\n# Avg bus bandwidth    : {bw}\\n")


@pytest.fixture(autouse=True)
def _another_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm remembers jobs that have ended, with what we wrote there: each test has an incident of its own."""
    monkeypatch.setattr(shared, "INCIDENT", f"inc-{secrets.token_hex(6)}")


def pairs(slurm: Slurm, bandwidth: float, **more: object) -> DiagnoseParams:
    """`nccl` runs on both nodes by srun, as one that MPI starts does, and prints what nccl-tests print; `exit` runs on one."""
    said = NCCL.replace("{bw}", f"{bandwidth:.2f}").replace("{us}", "24000")
    both = f"srun -N2 -n2 sh -c 'echo ran on $SLURMD_NODENAME >> {slurm.folder}/out/ran'; printf '{said.format(node='a', partner='b')}'"
    one = f"echo alone on $SLURMD_NODENAME >> {slurm.folder}/out/ran"
    return DiagnoseParams(programs={"exit": ("sh", "-c", one), "nccl": ("sh", "-c", both, "{node}", "{partner}")}, pairs=("nccl",),
                          need={"nccl": 300.0}, output=str(slurm.folder / "out"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("bandwidth", "state", "reason"), [(387.0, "DONE", "diagnose_refuted"), (41.0, "FAILED", "diagnose_confirmed")])
def test_the_other_node_is_a_spare(real: Slurm, bandwidth: float, state: str, reason: str) -> None:
    """Tests of one node run there alone; the pair runs on both; the detail names the spare, which is a spare again afterwards."""
    (real.folder / "out" / "ran").unlink(missing_ok=True)
    hands = door(real, diagnose=pairs(real, bandwidth))
    done(hands, action("drain", "n1"))
    told = done(hands, action("diagnose", "n1", 2, tests="exit,nccl", fault="link_slow", avoid="spare1"), 40)
    assert (told.state, told.reason) == (state, reason), told
    assert (told.detail or "").endswith("; with spare2")
    assert sorted((real.folder / "out" / "ran").read_text().splitlines()) == ["alone on n1", "ran on n1", "ran on spare2"]
    seen = view(real)
    assert (seen["n1"].state, seen["n1"].held_by) == ("drained", "greylag")
    assert (seen["spare2"].state, seen["spare2"].held_by, seen["spare2"].maintenance) == ("spare", None, None)
    assert real.reservation("spares")["Nodes"] == "spare[1-2]"
    assert real.reservation("greylag-diagnose-n1") == {}


def test_while_it_runs_the_spare_is_not_to_be_had(real: Slurm) -> None:
    """It stays a spare that is in the middle of something: neither a replacement nor another test takes it, and its age as a spare
    goes on."""
    hands = door(real, diagnose=DiagnoseParams(programs={"exit": ("srun", "-N2", "-n2", "sleep", "3")}, pairs=("exit",)))
    for name, step in (("n1", 1), ("n2", 2)):
        done(hands, action("drain", name, step))
    test = action("diagnose", "n1", 3, avoid="spare1")
    hands.submit(test)
    until(lambda: real.do("squeue", "-h", "-n", "greylag-diagnose", "-t", "R", "-o", "%A"), 15, "the test runs")
    seen = view(real)
    assert [(seen[n].state, seen[n].maintenance, seen[n].jobs) for n in ("spare1", "spare2")] == [
        ("spare", None, ()), ("spare", "greylag-diagnose", ())]
    assert hands.submit(action("replace", "n2", 4, avoid="spare1")).reason == "no_spare"
    refused = hands.submit(action("diagnose", "n2", 5, avoid="spare1"))
    assert (refused.state, refused.reason, refused.detail) == ("REFUSED", "target_busy", "no spare is free to be the other node of exit")
    assert until(lambda: (t := hands.poll(test.id)).state != "RUNNING" and t, 30, "the end of the test").state == "DONE"
    assert view(real)["spare2"].maintenance is None


def test_a_spare_under_its_own_test_stays_a_spare(real: Slurm) -> None:
    """Else its age as an untested spare would begin anew with each test that could not be read."""
    hands = door(real, diagnose=DiagnoseParams(programs={"exit": ("sleep", "2"), "nccl": ("true",)}, pairs=("nccl",)))
    hands.submit(test := action("diagnose", "spare1", tests="exit"))
    until(lambda: real.do("squeue", "-h", "-n", "greylag-diagnose", "-t", "R", "-o", "%A"), 15, "the test runs")
    assert (view(real)["spare1"].state, view(real)["spare1"].maintenance) == ("spare", "greylag-diagnose")
    assert until(lambda: (t := hands.poll(test.id)).state != "RUNNING" and t, 30, "the end of the test").state == "DONE"
    assert (view(real)["spare1"].state, view(real)["spare1"].maintenance) == ("spare", None)


def test_a_pair_needs_a_command(running: Slurm) -> None:
    """Refused at the start, by name."""
    from core.errors import ConfigError

    with pytest.raises(ConfigError, match=r"diagnose\.pairs"):
        site_of(params(running, diagnose=DiagnoseParams(programs={"exit": ("true",)}, pairs=("nccl",))))
    assert SLEEPS
