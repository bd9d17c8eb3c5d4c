"""How sure evidence makes us: the prior, moved by what was measured on tuning seeds."""

from __future__ import annotations

import pytest
import yaml

from pipeline.confidence import FILE, chance_of, chances


@pytest.mark.parametrize(("prior", "right", "of", "chance"), [
    (0.9, 0, 0, 0.9), (0.9, 10, 10, 0.95), (0.9, 5, 10, 0.7), (0.9, 990, 990, 0.97)])
def test_what_was_measured_moves_the_prior(prior: float, right: int, of: int, chance: float) -> None:
    """Ten incidents weigh as much as the prior does, and no number of them makes certain."""
    assert chance_of({"prior": prior, "right": right, "of": of}, 10.0, 0.97) == chance


def test_the_file_names_its_source() -> None:
    """Tuning seeds only, and each kind between a half and the most."""
    data = yaml.safe_load(FILE.read_text())
    assert data["source"]["first_seeds"]
    assert all(seed < 10_000 for seed in data["source"]["first_seeds"])
    assert all(0.5 <= chance <= data["most"] for chance in chances().values())
    assert all(0 <= row["right"] <= row["of"] for row in data["kinds"].values())
