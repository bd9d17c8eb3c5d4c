"""The chance to cure: published priors that the own ledger moves, by fault and strongest step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.faults import faults
from core.targets import ACTION_KINDS
from remediation.cures import STRONGEST, Cures, Tally, numbers, prior_of, strongest
from remediation.ledger import Entry

RESET = ("drain", "reset_gpu", "diagnose", "undrain", "resume_job")


def entries(cured=0, failed=0, inconclusive=0, fault="gpu_slow", kinds=RESET):
    results = ["cured"] * cured + ["failed"] * failed + ["inconclusive"] * inconclusive
    return [Entry(f"inc-{i}", 1, "p", ("n1",), ("j",), 0, 0, fault, kinds, result) for i, result in enumerate(results)]


@pytest.mark.parametrize(("kinds", "kind"), [
    (RESET, "reset_gpu"), (("drain", "reboot", "diagnose", "undrain"), "reboot"), (("drain", "replace", "resume_job"), "replace"),
    (("resume_job",), "resume_job"), (("drain", "diagnose", "undrain", "resume_job"), "resume_job"), (("diagnose",), None), ((), None)])
def test_an_attempt_stands_for_its_strongest_step(kinds, kind):
    """A restart after a replacement cured nothing by itself."""
    assert strongest(kinds) == kind


def test_without_a_ledger_the_prior_speaks():
    """A reset seldom cures heat; a replacement usually cures what a node has."""
    chance = Cures().chance("thermal_throttle", RESET)
    assert (chance.mean, chance.prior, chance.own) == (0.1, 0.1, Tally())
    assert Cures().chance("thermal_throttle", ("drain", "replace")).mean == 0.9


@pytest.mark.parametrize(("cured", "failed", "low", "high"), [(1, 19, 0.05, 0.2), (19, 1, 0.8, 0.95), (0, 200, 0.0, 0.02), (200, 0, 0.97, 1.0)])
def test_the_own_ledger_outweighs_the_prior(cured, failed, low, high):
    """Twenty attempts of one's own say more than other people's clusters."""
    assert low < Cures(entries(cured, failed)).chance("gpu_slow", RESET).mean < high


def test_other_faults_other_steps_and_what_is_unclear_do_not_count():
    """Only attempts of the same step on the same fault that cured or failed move the chance."""
    cures = Cures([*entries(0, 9, fault="packet_loss"), *entries(9, 0, kinds=("drain", "replace")), *entries(0, 0, 30), *entries(9, 0, fault="")])
    assert cures.chance("gpu_slow", RESET).mean == prior_of("gpu_slow", "reset_gpu")
    assert cures.tallies["gpu_slow", "reset_gpu"] == Tally(inconclusive=30)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from(sorted(faults())))
def test_a_cure_never_lowers_the_chance_and_a_failure_never_raises_it(cured, failed, fault):
    """And it stays a probability."""
    now, better, worse = (Cures(entries(c, f, fault=fault)).chance(fault, RESET).mean
                          for c, f in ((cured, failed), (cured + 1, failed), (cured, failed + 1)))
    assert 0 <= worse <= now <= better <= 1


def test_every_number_is_one():
    """Chances and shares lie between 0 and 1, faults and kinds are of the lists, times are positive."""
    rows = numbers()
    assert {f for f in rows["cure"] if f != "usual"} | {f for f in rows["heals"] if f != "usual"} <= set(faults())
    assert set(rows["cure"]["usual"]) == set(STRONGEST)
    assert all(set(row) <= set(ACTION_KINDS) and all(0 <= p <= 1 for p in row.values()) for row in rows["cure"].values())
    assert all(0 <= row["share"] <= 1 and row["seconds"] > 0 for row in rows["heals"].values())
    assert all(seconds > 0 for seconds in rows["seconds"].values())
