"""The whole path in virtual time: the fleet's pages through the real parser, judged, repaired and proven."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from app.verdict import same_part
from app.virtual import VirtualSite
from core.render import plain
from fleet.state import truth

MINUTE_MS = 60_000
FAULTS = ("thermal_throttle", "packet_loss", "stalled_loss")


def story(site: VirtualSite, kind: str) -> list[dict[str, Any]]:
    return [r for r in map(json.loads, site.lines) if r["type"] == kind]


def broken(fault: str, seed: int, nodes: int) -> VirtualSite:
    """A site whose job has trained for five minutes, then met the fault, and was watched until it was repaired."""
    site = VirtualSite(nodes=nodes, spares=2, seed=seed)
    site.run_until(site.world.now_ms + 5 * MINUTE_MS)
    site.world.inject(fault, None, random.Random(seed).uniform(0.14, 0.4), seed)

    def resolved() -> bool:
        return any('"event":"resolved"' in line for line in site.lines[-40:])

    site.run_until(site.world.now_ms + 35 * MINUTE_MS, resolved)
    return site


def what_is_wrong(site: VirtualSite) -> list[str]:
    """Everything that keeps the run from being a success; empty = found, repaired, proven."""
    last = {r["incident"]["id"]: r["incident"] for r in story(site, "incident")}
    real = [i for i in last.values() if i["state"] != "merged"]
    culprit = plain(truth(site.world)[0])["culprit"]
    out = [f"{len(real)} incidents opened: {[(i['fault'], i['culprit']) for i in real]}"] if len(real) != 1 else []
    out += [f"named {i['culprit']}, it is {culprit}" for i in real if not same_part(i["culprit"], culprit)]
    out += [f"{i['state']}: {i['reason']}" for i in real if (i["state"], i["reason"]) != ("resolved", "recovered")]
    ends = {r["action"]["id"]: r["outcome"] for r in story(site, "action")}
    return out + [f"{key}: {o['state']} {o['reason']}" for key, o in ends.items() if o["state"] != "DONE"]


@pytest.mark.parametrize("fault", [pytest.param(f, marks=pytest.mark.evaluate) for f in FAULTS])
def test_a_fault_is_found_repaired_and_proven(fault: str) -> None:
    """One incident, on the part that the truth names, resolved as recovered, every action done."""
    assert not what_is_wrong(broken(fault, seed=5, nodes=3))


def test_a_healthy_fleet_is_left_alone() -> None:
    """Twenty minutes of training, four checkpoints in them, open nothing and do nothing."""
    site = VirtualSite(nodes=3, spares=1, seed=6)
    site.run_until(site.world.now_ms + 20 * MINUTE_MS)
    assert not story(site, "incident") + story(site, "action")


@pytest.mark.evaluate
@pytest.mark.parametrize("nodes", [2, 9, 16])
@pytest.mark.parametrize("seed", range(10_000, 10_010))
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_at_random_places(fault: str, seed: int, nodes: int) -> None:
    """The same for places, severities and fleets that the seed draws."""
    assert not what_is_wrong(broken(fault, seed, nodes))


@pytest.mark.evaluate
@pytest.mark.parametrize("seed", range(10_000, 10_004))
def test_healthy_days(seed: int) -> None:
    """Six hours of sixteen nodes without a fault open nothing."""
    site = VirtualSite(nodes=16, spares=2, seed=seed)
    site.run_until(site.world.now_ms + 360 * MINUTE_MS)
    assert not story(site, "incident") + story(site, "action")
