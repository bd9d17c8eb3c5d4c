"""Scaling with real processes: load climbs and falls, workers come and go, one is killed, and no reading is lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest

from app.processes import free_port
from core.reasons import SCALE_REASONS
from tests.live.site import named
from tests.scale.scene import FEW, MANY, Scene, ledger, play, thresholds

MOST_UNTIL_READ_AGAIN = 2  # intervals


def pauses_after(scene: Scene, killed_ms: int) -> list[int]:
    """For every target that was read around the kill: how long (ms) after it the next reading was due."""
    out = []
    with scene.greylag.store() as store:
        for one in store.select(named("up", job="load"), killed_ms - 20_000, killed_ms + 20_000):
            later = [at for at in one.at if at > killed_ms]
            if later and one.at[0] < killed_ms:
                out.append(later[0] - killed_ms)
    return out


def directions(scene: Scene) -> list[str]:
    """The steps that were decided, in order."""
    return [row["direction"] for row in scene.workers()["decisions"] if row["direction"] != "hold"]


def live_through(scene: Scene, climb: list[tuple[int, float]], top: int, back: float) -> dict[str, Any]:
    """Plays the scene, ends Greylag, and gives what it said at its end."""
    try:
        killed = play(scene, climb, top, back)
        said = {"decisions": scene.workers()["decisions"], "missed": scene.missed(), "steps": directions(scene),
                "live": {s.live for s in scene.seen},
                "metrics": scene.greylag.http.get("/metrics").text}
        assert scene.greylag.stop() == 0
        return {**said, "ledger": ledger(scene), "pauses": pauses_after(scene, killed)}
    finally:
        scene.close()


def holds(said: dict[str, Any], top: int, interval_ms: int) -> None:
    """What must be so after it."""
    found = said["ledger"]
    assert found.doubled == 0
    assert found.off_schedule == 0
    assert found.holes <= said["missed"], "readings are missing that nobody counted"
    assert said["live"] >= {1, top}
    assert said["steps"][0] == "up"
    assert said["steps"][-1] == "down"
    assert {row["reason"] for row in said["decisions"]} <= set(SCALE_REASONS)
    assert {row["reason"] for row in said["decisions"] if row["direction"] == "up"} <= {"cpu_high", "lag_high", "missed_slots"}
    assert {row["reason"] for row in said["decisions"] if row["direction"] == "down"} == {"quiet"}
    assert 'greylag_scale_decisions_total{direction="up"' in said["metrics"]
    assert "greylag_collector_workers_wanted 1.0" in said["metrics"]
    assert len(said["pauses"]) == MANY
    assert max(said["pauses"]) <= MOST_UNTIL_READ_AGAIN * interval_ms


@pytest.mark.lab
def test_up_and_down_with_a_killed_worker(tmp_path):
    """20 to 400 targets and back on up to 3 workers; kill -9 of one: read again within two intervals, all accounted for."""
    scene = Scene(tmp_path, free_port(), "3s", max=3, **thresholds())
    said = live_through(scene, [(MANY, 0.0)], 3, 60)
    holds(said, 3, 3000)


@pytest.mark.chaos
@pytest.mark.parametrize("most", [4])
def test_the_long_climb(tmp_path, most):
    """The same in small steps with up to 4 workers at an interval of 3 s."""
    scene = Scene(tmp_path, free_port(), "3s", max=most, **thresholds())
    said = live_through(scene, [(n, 6.0) for n in (60, 120, 200, 300, MANY)], 3, 150)
    holds(said, 3, 3000)
    assert FEW < MANY
