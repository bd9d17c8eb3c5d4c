"""What ships: one set of rules in three modes, sound for each backend, with a word about each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.faults import faults
from core.plugins import load_plugins
from core.types import Incident
from remediation.kinds import SHARED_SCOPES, commands
from remediation.lint import examine, uncovered
from remediation.matching import choose
from remediation.policy import read_policy
from tests.remediation.worlds import T0, incident

FOLDER = Path(__file__).resolve().parents[2] / "sample_data" / "policies"
MODES = ("observe", "propose", "act")
BACKENDS = load_plugins("remediation.backends")
# What a machine may repair by its commands, as docs/faults says it; for the rest people are told.
REPAIRED = frozenset({
    "thermal_throttle", "power_brake", "power_cap", "clock_loss", "gpu_slow", "ecc_correctable_storm", "ecc_uncorrectable",
    "row_remap_failure", "xid_fatal", "gpu_lost", "nvlink_errors", "pcie_degraded", "gpu_memory_leaked", "packet_loss", "link_flap",
    "link_down", "link_slow", "stalled_loss", "nonfinite_loss", "straggler", "data_stall", "job_crash_loop", "cpu_starved",
    "memory_pressure", "disk_slow", "service_down",
})
READ = {name: read_policy(FOLDER / f"{name}.yaml") for name in (*MODES, "demo")}
ACT = READ["act"]
KINDS_USED = {s.kind for r in ACT.rules for a in r.attempts for s in a.do if commands(s.kind)}


def one(fault: str, scope: str, hours: float = 0.25) -> Incident:
    row = faults()[fault]
    return incident("inc-1", fault, scope, None, confidence=0.95, owner=row.owner, klass=row.klass, onset_at=T0 - int(hours * 3_600_000))


def test_the_three_differ_in_their_mode_alone():
    """Line for line, the first comment aside."""
    texts = {mode: (FOLDER / f"{mode}.yaml").read_text().splitlines() for mode in MODES}
    for mode, lines in texts.items():
        assert [line for line in lines if not line.startswith(("#", "mode:"))] == \
            [line for line in texts["observe"] if not line.startswith(("#", "mode:"))]
        assert f"mode: {mode}" in lines


@pytest.mark.parametrize("backend", sorted(BACKENDS))
@pytest.mark.parametrize("name", [*MODES, "demo"])
def test_each_is_sound_for_each_backend(name, backend):
    """Nothing to mend but, on a backend that lacks a kind, the attempts that use it."""
    policy, kinds = READ[name], frozenset(BACKENDS[backend].kinds)
    found = examine(policy, kinds, backend)
    lacks = {k for k in KINDS_USED if k not in kinds}
    assert [str(p) for p in found if not any(p.what == f"uses {k}, which {backend} cannot carry out" for k in lacks)] == []
    if not lacks:
        assert found == []


@pytest.mark.parametrize("fault", sorted(faults()))
def test_each_fault_has_a_rule_that_names_it(fault):
    """Repaired where a machine may, else people are told at once; nothing is left to the last rule alone."""
    chosen = {scope: choose(ACT, one(fault, scope), T0, lambda node: {})[0] for scope in ("device", "node", "job")}
    acting = {scope for scope, rule in chosen.items() if rule is not None and rule.attempts}
    assert bool(acting) == (fault in REPAIRED)
    if not acting:
        shared = choose(ACT, one(fault, "rack"), T0, lambda node: {})[0]
        assert shared is not None
        assert any(fault in r.match.fault or set(r.match.scope) >= SHARED_SCOPES for r in (*chosen.values(), shared) if r is not None)


@pytest.mark.parametrize("fault", sorted(faults()))
@pytest.mark.parametrize("scope", sorted(SHARED_SCOPES))
def test_no_rule_acts_for_a_shared_cause(fault, scope):
    """A switch, a rack, storage, a rollout: people are told, whatever the fault is called."""
    rule, reason = choose(ACT, one(fault, scope), T0, lambda node: {})
    assert rule is not None
    assert (rule.attempts, reason) == ((), None)


@pytest.mark.parametrize("fault", sorted(faults()))
@pytest.mark.parametrize("scope", ["device", "node", "job"])
def test_after_half_an_hour_something_is_done_or_people_know(fault, scope):
    """No fault at any scope is without a rule in the end, however little is known."""
    weak = one(fault, scope, hours=0.6)
    rule, reason = choose(ACT, weak, T0, lambda node: {})
    assert (rule is not None, reason) == (True, None)


def test_no_fault_is_uncovered():
    """As `policy lint` notes it."""
    assert uncovered(READ["observe"]) == []
