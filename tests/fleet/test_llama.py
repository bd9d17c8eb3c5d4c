"""The preset of the Llama 3 405B run, whole and from event to event, with somebody on call: as many interruptions as were published."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fleet.build import all_plugins, load_scenario, with_rates
from fleet.eventstep import EventWorld
from fleet.rates import groups
from fleet.responder import Responder
from fleet.scenario import seconds_of

SCENARIO = Path(__file__).parents[2] / "sample_data" / "scenarios" / "llama3-405b.yaml"
PUBLISHED, PLANNED, DAYS = 419, 47, 54
# So many sigma of a Poisson count may a count be off.
SIGMAS = 4.0
# Causes of the published table by the words that stand for them here, where no other study brings the same.
FAMILIES = {
    "GPU and its memory": ("gpu_lost", "xid_fatal", "nvlink_errors", "ecc_uncorrectable", "row_remap_failure"),
    "software and watchdogs": ("job_crash_loop", "stalled_loss"), "silent data corruption": ("silent_corruption",),
    "SSD": ("disk_slow", "disk_full"), "power supply": ("power_brake",), "IO expansion board": ("pcie_degraded",),
    "dependency": ("data_stall",), "system memory": ("memory_pressure",), "host maintenance": ("hand",)}


def _expected(words: tuple[str, ...]) -> float:
    """What the published rates bring of these words on 16,384 GPUs in 54 days, all studies together."""
    hours = {"gpu": 16_384 * DAYS * 24.0, "node": 2_048 * DAYS * 24.0}
    return sum(row.per_hour * hours[group.base] * sum(row.becomes.get(word, 0.0) for word in words)
               for group in groups().values() for row in group.rows)


def _within(count: int, expected: float) -> bool:
    return abs(count - expected) <= SIGMAS * max(1.0, expected) ** 0.5


@pytest.mark.evaluate
def test_the_presets_schedule_holds_the_published_counts_by_cause():
    """Each family of causes within Poisson limits of its published number; all interruptions together within those of 419 and 47."""
    scenario = with_rates(load_scenario(SCENARIO))
    assert seconds_of(scenario.duration) == DAYS * 86_400
    faults = {name: plugin.fault for name, plugin in all_plugins().items()}
    counts = Counter("hand" if entry.hand else faults[entry.fault] for entry in scenario.schedule)
    wrong = {name: (sum(counts[w] for w in words), round(_expected(words), 1)) for name, words in FAMILIES.items()
             if not _within(sum(counts[w] for w in words), _expected(words))}
    assert wrong == {}


@pytest.mark.evaluate
def test_the_preset_runs_whole_and_is_interrupted_as_often_as_published():
    """54 days with somebody on call who needs five minutes: everything of the schedule happens, the job ends the run at work or
    on its way back, and comes back after each interruption."""
    scenario = load_scenario(SCENARIO)
    event = EventWorld(scenario, [lambda world: Responder(world.world, world.operations, 300.0, retries=12)])
    event.advance(scenario.end_ms)
    hands = sum(entry.hand is not None for entry in with_rates(scenario).schedule)
    faults = Counter(planted.plugin.fault for planted in event.world.faults)
    for name, words in FAMILIES.items():
        found = hands if words == ("hand",) else sum(faults[word] for word in words)
        assert _within(found, _expected(words)), (name, found, _expected(words))
    job = event.world.jobs["pretrain"]
    assert job.run - 1 >= PUBLISHED + PLANNED - SIGMAS * (PUBLISHED + PLANNED) ** 0.5
    assert event.world.goodput.ratio("pretrain") > 0.3
