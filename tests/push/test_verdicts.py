"""A site that only pushes, without types, gets the verdicts that a replay of the same data gives."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.replay import whole_story
from tests.evaluate.plan import draw
from tests.evaluate.recordings import write
from tests.push.pushed_site import story

CASES = [(150, "thermal_throttle")]
SLOWER = [(112, "packet_loss"), (130, None), (112, "stalled_loss"), (130, "thermal_throttle"), (138, "thermal_throttle"), (145, "packet_loss"), (123, "stalled_loss"),
          (134, None)]


def told(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings and incidents, as they were told."""
    return [one for one in records if one["type"] in ("finding", "incident")]


def compare(folder: Path, seed: int, kind: str | None) -> None:
    plan = draw(seed, kind)
    truth = write(plan, folder / "recording")
    for log in (folder / "recording").glob("trainer.*.log"):
        log.unlink()
    inventory = folder / "recording" / "inventory.yaml"
    scraped = told(whole_story([str(folder / "recording")]))
    pushed = told(asyncio.run(story(plan, folder / "data", inventory if inventory.exists() else None)))
    assert pushed == scraped
    assert bool(scraped) == (truth is not None)


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_pushed_and_recorded_sites_are_judged_alike(tmp_path: Path, seed: int, kind: str | None) -> None:
    """Every finding and incident with its evidence, times and order is equal."""
    compare(tmp_path, seed, kind)


@pytest.mark.evaluate
@pytest.mark.parametrize(("seed", "kind"), SLOWER)
def test_more_sites(tmp_path: Path, seed: int, kind: str | None) -> None:
    """The same for more shapes of a site: intervals, addresses, exporters."""
    compare(tmp_path, seed, kind)
