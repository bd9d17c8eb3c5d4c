"""Slow GPUs of real clusters are ranked, and with the right reason."""

from __future__ import annotations

import pytest

from tests import needs
from tests.evaluate import gpu_variability as data

SETS = ("sgemm_longhorn", "resnet_longhorn", "bert_longhorn", "resnet_frontera", "bert_frontera", "resnet_ls6")


@pytest.mark.parametrize("name", SETS)
def test_the_labelled_gpus_are_ranked_and_no_other(name: str) -> None:
    """Precision and recall of 1, in the labels' order; a silent and a naive rule beside it."""
    folder = needs.shared("data/gpu_variability")
    runs, truth = data.read(folder / f"{name}.parquet"), data.labels(folder)[name]
    found = data.slow(runs)
    said = {runs.names[s.at] for s in found}
    for rule, answer in (("greylag", said), ("silent", set()), ("naive", data.naive(runs))):
        right, wrong, missed = data.score(answer, truth)
        precision = f"{right / (right + wrong):.2f}" if right + wrong else "-"
        recall = f"{right / (right + missed):.2f}" if right + missed else "-"
        print(f"{name} of {len(runs.names)} GPUs, {rule}: precision {precision} recall {recall} ({right} right, {wrong} wrong, {missed} missed)")
    assert said == truth
    assert [s.slowdown for s in found] == sorted((s.slowdown for s in found), reverse=True)


def test_reasons_are_those_that_clock_heat_and_power_show() -> None:
    """The slowest runs at 82 °C with 8 % of its clock gone; the second has its clock and is slow all the same."""
    folder = needs.shared("data/gpu_variability")
    found = data.slow(data.read(folder / "sgemm_longhorn.parquet"))
    assert [s.reason for s in found] == ["hot", "no_reason"]
    assert {s.reason for s in data.slow(data.read(folder / "resnet_frontera.parquet"))} == {"not_measured"}


def test_gpus_at_their_power_limit_differ_without_being_slow() -> None:
    """214 V100s at 297 of 300 W: clocks spread by 10 %, and all but two lie within 5 % of the middle."""
    runs = data.read(needs.shared("data/gpu_variability") / "sgemm_longhorn.parquet")
    assert len(runs.names) == 214
    assert not [s for s in data.slow(runs) if s.reason == "power_limited"]
