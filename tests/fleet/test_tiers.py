"""Each plug-in's `tier` is the poorest telemetry that shows it: not a richer one than is needed, and not a poorer one than can.

The whole form asks the product: at its tier a fault of usual size is named on the right part, and one tier below it is not. The quick
form, which asks only whether the declared tier adds anything that moves, is in `test_signatures.py`.
"""

from __future__ import annotations

import pytest

from app.evaluate import drive
from app.evaluate.chances import sized, stands
from app.evaluate.match import match
from app.evaluate.plan import NOT_SHOWN_ON, SLOW, Planned
from fleet.hardware import NODE_TYPES
from fleet.scenario import Entry, FleetSpec, JobSpec, Scenario
from fleet.telemetry import TIERS
from tests.fleet.faulthelp import FAULTS, PLUGINS

RICHER = [name for name in FAULTS if PLUGINS[name].tier > "A"]


def below(tier: str) -> str:
    """The tier before it."""
    return TIERS[TIERS.index(tier) - 1]


# --- the whole form -----------------------------------------------------------------------------------------------------
# Telling needs more than a quarter of an hour, or a run that ends.
LONG, SHORT = 36, 14
# A job that hangs is ended by its library's watchdog after ten minutes, and only then do logs tell who did not come.
HANGS = 19
# What is not named by the product on any fabric although its signals move: why.
UNNAMED = {name: why for (name, fabric), why in NOT_SHOWN_ON.items() if fabric == "roce" and (name, "infiniband") in NOT_SHOWN_ON}


def _kind(name: str) -> str:
    return next(k for k, kind in NODE_TYPES.items() if all(n in kind.has or n in ("trainer", "inference") for n in PLUGINS[name].needs))


def _scenario(name: str, tier: str, seed: int = 7) -> Scenario:
    """Two jobs at work for ten minutes; five minutes later the fault, on the first of them. Three nodes each, six where a label is
    rolled out to a third of the fleet: two nodes that share one could do so by chance."""
    plugin, kind = PLUGINS[name], _kind(name)
    each = 6 if plugin.place == "label" else 3
    slow = plugin.fault in SLOW
    lasts, duration = (None, LONG) if slow else ("12m", HANGS) if stands(plugin) else ("8m", SHORT)
    low, high = plugin.impact
    first = JobSpec("serve-1", "inference", each, {}, "3m") if "inference" in plugin.needs else JobSpec("train-1", "training", each, {}, "3m")
    device = {"gpu": "3", "rank": "3", "nic": f"{NODE_TYPES[kind].nic_names[1]}/1"}.get(plugin.place)
    entries = [Entry(fault=name, at="5m", for_=lasts, severity=min(high, max(low, 0.4)) if sized(plugin) else None,
                     onset=plugin.onsets[0], seed=seed, device=device, job=first.name if plugin.place == "job" else None,
                     node="n02" if plugin.place in ("gpu", "rank", "nic", "node", "disk", "mount") else None)]
    if plugin.fault == "gpu_memory_leaked":
        entries.append(Entry(look_alike="job_start_end", at="7m", job="train-1", seed=seed))
    return Scenario("tier", FleetSpec(2 * each, 0, kind, None, tier, before="10m"), (first, JobSpec("train-2", "training", each, {}, "3m")),
                    tuple(entries), seed=seed, duration=f"{duration}m")


def _named(name: str, tier: str) -> bool:
    """Whether the product names the fault on the right part."""
    ran = drive.run(Planned(f"{name}-{tier}", "local", _scenario(name, tier)))
    found, _ = match(ran.truths, ran.said, ran.groups)
    return any(one.by is not None for one in found if one.truth.plant == name)


@pytest.mark.evaluate
@pytest.mark.parametrize("name", [n for n in FAULTS if n not in UNNAMED])
def test_the_product_names_it_at_its_tier(name):
    """The declared tier is not too poor."""
    assert _named(name, PLUGINS[name].tier)


@pytest.mark.evaluate
@pytest.mark.parametrize("name", RICHER)
def test_the_product_does_not_name_it_one_tier_below(name):
    """The declared tier is not richer than it needs to be."""
    assert not _named(name, below(PLUGINS[name].tier))
