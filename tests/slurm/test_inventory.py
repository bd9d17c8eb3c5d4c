"""The inventory from what Slurm shows; no Slurm needed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from app import wiring
from app.slurm_inventory import SlurmInventory, SlurmInventoryParams, inventory
from core.config import read_config
from core.errors import ConfigError, Unavailable
from core.inventory import Inventory
from remediation.backends import slurm_json as read
from remediation.backends.slurm import site_of
from remediation.backends.slurm_site import SlurmParams

NOW = 1_795_878_298_000
DRAIN = frozenset({"DRAIN"})


def shown(jobs: tuple[read.SlurmJob, ...] = (), **nodes: dict[str, object]) -> Inventory:
    """The inventory of these nodes, as user `greylag`, at NOW."""
    from dataclasses import replace

    site = replace(site_of(SlurmParams(user="greylag")), now=lambda: NOW)
    rows = {name: read.SlurmNode(name, **{"base": "IDLE", **row}) for name, row in nodes.items()}  # type: ignore[arg-type]
    world = read.Cluster(rows, jobs, {"spares": read.Reservation("spares", ("s1",))})
    return inventory(site, world, {"n1": ("leaf1", "spine1")})


@pytest.mark.parametrize(("row", "state"), [
    ({}, "in_service"), ({"base": "ALLOCATED"}, "in_service"),
    ({"base": "DOWN", "reason": "Not responding", "flags": frozenset({"NOT_RESPONDING"})}, "in_service"),
    ({"flags": DRAIN, "reason": "ada", "reason_user": "ada"}, "drained"),
    ({"flags": DRAIN, "reason": "greylag: inc-1/1/1 drain", "reason_user": "greylag"}, "drained"),
    ({"base": "DOWN", "reason": "power", "reason_user": "ada"}, "drained"),
    ({"flags": frozenset({"POWERED_DOWN"})}, "drained"),
])
def test_a_nodes_state(row: dict[str, object], state: str) -> None:
    """One that fell out and that nobody took out ought to be in service: its silence is a fault."""
    assert shown(n1=row).nodes[0].state == state


def test_spares_switches_and_labels() -> None:
    """A spare by its reservation; leaf and spine from the topology; partitions and features as labels."""
    found = {n.name: n for n in shown(n1={"partitions": ("train",), "features": ("h100",), "gres": "gpu:h100:8"}, s1={}).nodes}
    assert (found["n1"].leaf, found["n1"].spine, found["s1"].leaf, found["s1"].state) == ("leaf1", "spine1", None, "spare")
    assert found["n1"].labels == {"slurm_partitions": "train", "slurm_features": "h100", "slurm_gres": "gpu:h100:8"}


def job(number: int, state: str, **more: object) -> read.SlurmJob:
    base: dict[str, object] = {"name": "llm", "state": state, "states": frozenset({state}), "nodes": ("n1", "n2"), "start_at": NOW - 60_000}
    return read.SlurmJob(number, **{**base, **more})  # type: ignore[arg-type]


def test_jobs_that_run_and_that_have_just_ended() -> None:
    """With start, nodes, and an end for five minutes; what waits, ended long ago, or is a test of ours is left out."""
    jobs = (job(1, "RUNNING"), job(2, "COMPLETED", end_at=NOW - 60_000), job(3, "FAILED", end_at=NOW - 600_000),
            job(4, "PENDING", nodes=()), job(5, "RUNNING", name="greylag-diagnose"))
    found = shown(jobs).jobs
    assert [(j.id, j.nodes, j.start, j.end) for j in found] == [
        ("1", ("n1", "n2"), "2026-11-28T15:03:58.000Z", None),
        ("2", ("n1", "n2"), "2026-11-28T15:03:58.000Z", "2026-11-28T15:03:58.000Z"),
    ]


def programs(folder: Path) -> None:
    """Stand-ins for sinfo, squeue and scontrol that count how often they are asked."""
    for name, text in (("sinfo", f'echo >> {folder}/asked; echo \'{{"nodes": [{{"name": "n1", "state": "idle", "partitions": []}}]}}\''),
                       ("squeue", "echo '{\"jobs\": []}'"), ("scontrol", 'case "$*" in *--json) echo unrecognized option >&2; exit 1;; esac')):
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_slurm_is_not_asked_at_each_tick(tmp_path: Path) -> None:
    """Two looks within every_seconds are one question."""
    programs(tmp_path)
    reader = SlurmInventory(SlurmInventoryParams(folder=str(tmp_path)))
    assert reader() == reader()
    assert (tmp_path / "asked").read_text() == "\n"


def test_true_takes_what_the_backend_says(tmp_path: Path) -> None:
    """One place for the folder of the programs; a mapping of its own wins, and its keys are checked."""
    programs(tmp_path)
    file = tmp_path / "greylag.yaml"
    file.write_text(f"inventory: {{slurm: true}}\nbackend: {{name: slurm, folder: {tmp_path}, opt_in: {{comment: x}}}}\n")
    assert [n.name for n in wiring.inventory_reader(read_config(file))().nodes] == ["n1"]
    file.write_text(f"inventory: {{slurm: {{folder: {tmp_path}/none}}}}\nbackend: {{name: slurm, folder: {tmp_path}}}\n")
    with pytest.raises(Unavailable):
        wiring.inventory_reader(read_config(file))()
    file.write_text("inventory: {slurm: {folders: x}}\n")
    with pytest.raises(ConfigError, match="did you mean 'folder'"):
        wiring.inventory_reader(read_config(file))
