"""On a real cluster nothing is touched before somebody says so: without a configured policy the shipped `observe` runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from app import wiring
from app.owner import Owner
from core.config import GreylagConfig, read_config
from core.plugins import load_plugins
from remediation.policy import Policy, read_policy
from tests.kubernetes.site import config as kubeconfig
from tests.needs import ROOT
from tests.remediation.worlds import Fault, World, cluster, incident
from tests.remediation.worlds import Owner as Small

SHIPPED = ROOT / "sample_data" / "policies"
BACKENDS = {"slurm": "{name: slurm, folder: /nowhere}", "kubernetes": "{name: kubernetes, kubeconfig_file: kube.yaml}"}

real = pytest.mark.parametrize("backend", BACKENDS)


def configured(folder: Path, backend: str, more: str = "") -> GreylagConfig:
    """A greylag.yaml with this backend. more: further lines of it."""
    (folder / "kube.yaml").write_text(yaml.safe_dump(kubeconfig()))
    (folder / "greylag.yaml").write_text(f"data_dir: data\nlisten: 127.0.0.1:0\nbackend: {BACKENDS[backend]}\n{more}")
    return read_config(folder / "greylag.yaml")


def story(policy: Policy, backend: str) -> tuple[World, list[str]]:
    """A GPU runs hot for ten minutes: the world, and what became of each action."""
    owner = Small(policy, cluster(), kinds=load_plugins("remediation.backends")[backend].kinds)
    owner.open(incident())
    Fault(owner, ("reset_gpu",)).run(40)
    return owner.world, [outcome.state for _, outcome in owner.rows]


@real
def test_without_a_policy_the_owner_runs_observe(tmp_path: Path, backend: str) -> None:
    """The engine that its ticks ask has the shipped rules, in that mode, over the backend that was asked for."""
    owner = Owner(configured(tmp_path, backend))
    try:
        assert owner.hands.backend == backend
        assert owner.brain.engine is owner.hands.engine
        assert owner.hands.engine.policy == owner.hands.policy == read_policy(SHIPPED / "observe.yaml")
        assert owner.hands.engine.policy.mode == "observe"
    finally:
        owner.writer.close()
        owner.store.close()
        owner.loop.close()


@real
def test_what_runs_then_touches_nothing(tmp_path: Path, backend: str) -> None:
    """It says what it would do; the same story in mode `act` has hands at work."""
    policy = wiring.hands(configured(tmp_path, backend)).policy
    world, states = story(policy, backend)
    assert (world.order, set(states)) == ([], {"SIMULATED"})
    assert story(replace(policy, mode="act"), backend)[0].order != []


@real
@pytest.mark.parametrize("mode", ["propose", "act"])
def test_a_policy_that_is_configured_is_the_one_that_runs(tmp_path: Path, backend: str, mode: str) -> None:
    """The default is no ceiling."""
    made = wiring.hands(configured(tmp_path, backend, f"policy: {SHIPPED / f'{mode}.yaml'}\n"))
    assert made.engine.policy == made.policy == read_policy(SHIPPED / f"{mode}.yaml")


def test_with_the_backend_that_only_watches_even_act_observes(tmp_path: Path) -> None:
    """There is nothing that could act."""
    (tmp_path / "greylag.yaml").write_text(f"backend: {{name: observe}}\npolicy: {SHIPPED / 'act.yaml'}\n")
    assert wiring.hands(read_config(tmp_path / "greylag.yaml")).engine.policy.mode == "observe"
