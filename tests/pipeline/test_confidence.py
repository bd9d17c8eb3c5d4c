"""How sure evidence makes us: what was measured on tuning seeds, drawn to the mean of all kinds where it is little."""

from __future__ import annotations

import pytest
import yaml

from pipeline.confidence import FILE, chance_of, chances, measured


@pytest.mark.parametrize(("prior", "right", "of", "chance"), [
    (0.9, 0, 0, 0.9), (0.9, 10, 10, 0.95), (0.9, 5, 10, 0.7), (0.9, 990, 990, 0.999)])
def test_what_was_measured_moves_the_prior(prior: float, right: int, of: int, chance: float) -> None:
    """Ten incidents weigh as much as the prior does."""
    assert chance_of({"right": right, "of": of}, prior, 10.0) == pytest.approx(chance)


def test_a_kind_of_which_little_is_known_is_like_the_others() -> None:
    """It stands at the mean of all; one that was often wrong stands apart; no number of them makes certain."""
    kinds = {"much": {"right": 190, "of": 190}, "none": {"right": 0, "of": 0}, "poor": {"right": 50, "of": 100}}
    assert measured(kinds, 0.9, 10.0, 0.98) == {"much": 0.98, "none": pytest.approx(0.83), "poor": pytest.approx(0.53)}


def test_the_file_names_its_source() -> None:
    """Tuning seeds only, and each kind between a half and the most."""
    data = yaml.safe_load(FILE.read_text())
    assert data["source"]["first_seeds"]
    assert all(seed < 10_000 for seed in data["source"]["first_seeds"])
    assert all(0.5 <= chance <= data["most"] for chance in chances().values())
    assert all(0 <= row["right"] <= row["of"] for row in data["kinds"].values())
