"""The sudo rules of docs/slurm.md are enough for all that Greylag tells Slurm, and each of them is needed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.types import Action, Target
from remediation.backends import slurm_commands
from remediation.backends.slurm import SlurmDoor, site_of
from remediation.backends.slurm_commands import Scheduler
from remediation.backends.slurm_json import Cluster, Reservation, SlurmJob, SlurmNode
from remediation.backends.slurm_site import DiagnoseParams, Site, SlurmParams
from tests.needs import ROOT

PAGE = (ROOT / "docs" / "slurm.md").read_text(encoding="utf-8")
READS = {"cluster", "nodes", "jobs", "reservations"}  # methods that only ask: no prefix, so no rule
NOW = 1_790_000_000_000
INCIDENT = "inc-0123456789ab"
ID = f"{INCIDENT}/1/1"
TESTS = DiagnoseParams(programs={"exit": ("true",), "nccl": ("true",)}, pairs=("nccl",))


# --- what the page allows ------------------------------------------------------------------------------------------------
def rules() -> list[str]:
    """Each command of the page's rules as sudo reads it: joined lines, without the backslashes."""
    text = PAGE.replace("\\\n", " ")
    found = [one for line in re.findall(r"^Cmnd_Alias \w+ =(.*)$", text, re.MULTILINE) for one in re.split(r"(?<!\\),", line)]
    return [re.sub(r"\\(.)", r"\1", one.strip()) for one in found]


def covers(rule: str, command: Sequence[str]) -> bool:
    """As sudo matches: the program by its path, the arguments joined by blanks with fnmatch, whose star takes blanks and slashes."""
    program, _, words = rule.partition(" ")
    return program == command[0] and fnmatchcase(" ".join(command[1:]), words)


def configured(**more: Any) -> SlurmParams:
    """The `backend` that the page gives together with the rules."""
    [line] = re.findall(r"^backend: \{name: slurm, folder.*$", PAGE, re.MULTILINE)
    given = {key: value for key, value in yaml.safe_load(line)["backend"].items() if key != "name"}
    ours = {"prefix": tuple(given["prefix"]), "restart_signal": "USR2", "diagnose": TESTS, "reset_gpu": ("reset",)}
    return SlurmParams(**{**given, **ours, **more})


# --- what is told to Slurm ------------------------------------------------------------------------------------------------
@dataclass
class Told:
    """The commands in their order, and the places in the code that they came from."""

    commands: list[list[str]]
    places: set[tuple[str, int]]
    methods: set[str]


class Still(Scheduler):
    """A Slurm that always shows the same, and takes every command."""

    cluster_now = Cluster()

    def cluster(self) -> Cluster:
        return self.cluster_now


def spy(monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> Told:
    """Notes what the real commands would start. refuses: a word of commands that Slurm does not take."""
    told = Told([], set(), set())

    def call(words: Sequence[str], *_: object) -> tuple[int, str, str]:
        assert tuple(words[:2]) == ("sudo", "-n"), words
        told.commands.append(list(words[2:]))
        return (1, "", "Access/permission denied") if refuses and refuses in words else (0, "7\n", "")

    monkeypatch.setattr(slurm_commands, "call", call)
    for name, method in commands().items():
        monkeypatch.setattr(Still, name, _noted(told, name, method), raising=False)
    return told


def _noted(told: Told, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **more: Any) -> Any:
        frame = sys._getframe(1)
        told.places.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
        told.methods.add(name)
        return method(*args, **more)

    return noted


def commands() -> dict[str, Callable[..., Any]]:
    """The scheduler's methods that change something."""
    return {name: one for name, one in vars(Scheduler).items() if callable(one) and not name.startswith("_") and name not in READS}


def node(name: str, word: str = "", **more: Any) -> SlurmNode:
    """An idle one; word: what Greylag wrote when it took it out."""
    out = {"flags": frozenset({"DRAIN"}), "reason": f"greylag: {ID} {word}", "reason_user": "root"} if word else {}
    return SlurmNode(name, **{"base": "IDLE", "partitions": ("train",), **out, **more})


def job(state: str = "RUNNING", note: str = "", **more: Any) -> SlurmJob:
    """Job 7 on n1 and n2, which opted in. note: the action's word and numbers in its administrators' comment."""
    base = {"name": "llm", "user": "ada", "partition": "train", "state": state, "states": frozenset({state}),
            "nodes": ("n1", "n2"), "node_count": 2, "requeue": True, "batch": True, "batch_host": "n2",
            "comment": "greylag=act greylag.shrinks=1 greylag.resumes=before",
            "admin_comment": f"greylag: {ID} {note}" if note else ""}
    return SlurmJob(7, **{**base, **more})


def action(kind: str, target: Target | None = None, **args: object) -> Action:
    where = target or Target("node", "n1")
    return Action(f"{INCIDENT}/1/2", kind, where, args, 60.0, "act", INCIDENT, 1, 2, 0, "policy", fault="link_slow")


def world(*parts: SlurmNode | SlurmJob | Reservation) -> Cluster:
    """What Slurm shows: n1, n2 and n3 are idle and nothing else is there, but for the parts."""
    nodes = {name: node(name) for name in ("n1", "n2", "n3")} | {one.name: one for one in parts if isinstance(one, SlurmNode)}
    kept = {one.name: one for one in parts if isinstance(one, Reservation)}
    return Cluster(nodes, tuple(one for one in parts if isinstance(one, SlurmJob)), kept)


JOB, GPU = Target("job", job="7"), Target("gpu", "n1", "3")
KEPT = Reservation("greylag-job-7", ("n2",))
TESTED = Reservation("greylag-diagnose-n1", ("n1",))
OUT = node("n1", "drain link_slow")
WAITS = {"nodes": (), "states": frozenset({"PENDING"}), "held": True, "restarts": 1}
WAITING = {**WAITS, "held": False}
SPARES = (Reservation("spares", ("spare1", "spare2")), node("spare1"), node("spare2"))
BOOTED = f"greylag: {ID} reboot link_slow : reboot issued : reboot complete"
TEST = SlurmJob(9, name="greylag-diagnose", user="root", state="COMPLETED", states=frozenset({"COMPLETED"}), exit_code=0,
                comment=f"greylag: {ID} diagnose node=n1 fault=- device=- tests=exit")
BEGUN: dict[str, tuple[Action, Cluster]] = {
    "drain": (action("drain"), world(job())),
    "drain, nodes are kept": (action("drain"), world(job(), KEPT)),
    "exclude": (action("exclude_node"), world()),
    "undrain": (action("undrain"), world(node("n1", "diagnosed_passed no_fault_found"))),
    "reboot": (action("reboot"), world(OUT)),
    "replace": (action("replace"), world(OUT, *SPARES, job("PENDING", "drain restarts=0 nodes=2", **WAITS))),
    "replace, the last spare": (action("replace"), world(OUT, Reservation("spares", ("spare1",)), node("spare1"))),
    "resume": (action("resume_job", JOB), world(job())),
    "resume from before": (action("resume_job", JOB, before="2026-09-21T14:00:00.000Z"), world(job("PENDING", **WAITING))),
    "restart": (action("restart_process", JOB), world(job())),
    "shrink": (action("shrink_job", JOB), world(OUT, job())),
    "diagnose": (action("diagnose", tests="exit"), world(OUT)),
    "diagnose a pair": (action("diagnose", tests="exit,nccl"), world(OUT, *SPARES)),
    "diagnose a pair again": (action("diagnose", tests="nccl"), world(OUT, *SPARES, TESTED)),
    "diagnose a spare": (action("diagnose", Target("node", "spare1"), tests="exit"), world(*SPARES)),
    "diagnose two spares": (action("diagnose", Target("node", "spare1"), tests="nccl"), world(*SPARES)),
    "reset": (action("reset_gpu", GPU), world(OUT)),
}
WENT_ON: dict[str, Cluster] = {
    "a drain ends": world(OUT, job("PENDING", "drain restarts=0 nodes=2", **WAITS)),
    "a drain ends, nodes are kept": world(OUT, KEPT, job("PENDING", "drain restarts=0 nodes=2", **WAITS)),
    "a reboot ends": world(node("n1", base="DOWN", reason=BOOTED, reason_user="root")),
    "a job is let go": world(OUT, job("PENDING", "resume restarts=0 nodes=2", **WAITS), KEPT),
    "a job is let go from before": world(OUT, job("PENDING", "resume restarts=0 nodes=2 before=1790000000000", **WAITS)),
    "a reservation has run out": world(job("PENDING", "released restarts=0 nodes=2", **WAITING, reservation=KEPT.name)),
    "a job runs again": world(job("RUNNING", "released restarts=0 nodes=2", restarts=1, reservation=KEPT.name), KEPT),
    "a job was noted and not stopped": world(job("RUNNING", "resume restarts=0 nodes=2")),
    "a job did not shrink": world(node("n1", base="DOWN", reason="x"), job("RUNNING", "shrinking restarts=0 nodes=2 to=1")),
    "a diagnosis ends": world(node("n1"), TEST, TESTED),
    "a reset ends": world(node("n1"), replace(TEST, comment=TEST.comment.replace("diagnose", "reset_gpu")), TESTED),
}


def door(cluster: Cluster, **more: Any) -> SlurmDoor:
    """As the page configures it, over this Slurm."""
    site = site_of(configured(**more))
    still = Still(site.scheduler.runner)
    still.cluster_now = cluster
    return SlurmDoor(Site(site.params, still, site.user, lambda: NOW))


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """All that Greylag ever tells Slurm."""
    with pytest.MonkeyPatch.context() as patch:
        all_of_it = spy(patch)
        for what, cluster in BEGUN.values():
            assert door(cluster).submit(what).state in ("RUNNING", "DONE"), what
        for diagnose in (replace(TESTS, partition="test", output="/shared"), replace(TESTS, minutes=5)):
            door(BEGUN["diagnose"][1], diagnose=diagnose).submit(BEGUN["diagnose"][0])
        for name, cluster in WENT_ON.items():
            assert door(cluster).poll(ID).reason != "unknown_operation", name
        yield all_of_it


def test_every_command_of_the_code_is_among_them(told: Told) -> None:
    """Each method that changes something, and each place that calls one: a new one needs a case here, and then a rule."""
    places = {(file.name, call.lineno) for file in (ROOT / "remediation" / "backends").glob("slurm*.py")
              for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
              if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
              and ast.unparse(call.func.value).endswith("scheduler") and call.func.attr not in READS}
    assert (told.methods, places - told.places) == (set(commands()), set())
    assert len(places) > 20


def test_only_the_commands_themselves_start_programs() -> None:
    """Nothing but the scheduler's methods has the prefix."""
    runs = {file.name for file in (ROOT / "remediation").rglob("*.py") if ".runner.run(" in file.read_text(encoding="utf-8")}
    assert runs == {"slurm_commands.py"}


def test_the_rules_are_enough(told: Told) -> None:
    """Some rule covers each command."""
    assert [" ".join(one) for one in told.commands if not any(covers(rule, one) for rule in rules())] == []


@pytest.mark.parametrize("gone", rules())
def test_each_rule_is_needed(told: Told, gone: str) -> None:
    """It alone covers some command."""
    rest = [rule for rule in rules() if rule != gone]
    assert [one for one in told.commands if covers(gone, one) and not any(covers(rule, one) for rule in rest)]


@pytest.mark.parametrize("words", [
    "scontrol update nodename=n1 state=down reason=greylag: x", "scontrol update nodename=n1 state=drain reason=mine",
    "scontrol update jobid=7 priority=9", "scontrol update jobid=7 userid=0", "scontrol update jobid=7 timelimit=1",
    "scontrol update partitionname=train state=down", "scontrol delete reservationname=maintenance", "scontrol delete nodename=n1",
    "scontrol update reservationname=maintenance nodes=n1", "scontrol shutdown", "scontrol requeuehold jobname=llm",
    "scontrol create reservation reservationname=mine nodes=n1 users=root flags=maint,ignore_jobs starttime=now duration=infinite",
    "scancel 7", "scancel --signal=KILL --batch 7", "scancel --signal=USR2 --batch --user=ada",
    "sbatch --parsable --nodes=1 --wrap=sh", "sbatch --parsable --nodes=100 --nodelist=n1"])
def test_no_rule_covers_what_greylag_never_says(words: str) -> None:
    """Commands near those that it has."""
    assert [rule for rule in rules() if covers(rule, f"/usr/bin/{words}".split())] == []


def test_the_rules_are_written_as_sudo_reads_them() -> None:
    """A comma, a colon, an equals sign and a backslash of an argument have a backslash before them; all aliases are granted."""
    lines = re.findall(r"^Cmnd_Alias (\w+) = \\\n((?:  .*\n)+)", PAGE, re.MULTILINE)
    arguments = [re.sub(r"(, )?\\?$", "", line) for _, block in lines for line in block.splitlines()]
    assert [line for line in arguments if re.search(r"(?<!\\)[,:=]", line)] == []
    [granted] = re.findall(r"^greylag ALL=\(root\) NOPASSWD: (.*)$", PAGE, re.MULTILINE)
    assert granted.split(", ") == [name for name, _ in lines]
    assert len(arguments) == len(rules())


def test_a_command_without_a_rule_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was kept for the job is given back."""
    told = spy(monkeypatch, "state=drain")
    outcome = door(world(job())).submit(action("drain"))
    assert (outcome.state, outcome.reason) == ("REFUSED", "not_permitted")
    assert told.commands[-1] == ["/usr/bin/scontrol", "delete", "reservationname=greylag-job-7"]
