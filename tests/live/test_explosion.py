"""A cardinality explosion beside a calm target, through a whole running Greylag: it is bounded, said, and over when it is over."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from app.processes import free_port
from core.clock import wall_ms
from tests.live.site import Greylag, named, wait_for
from tests.pages import Pages

EXPLODING, BUDGET, CALM = 20_000, 400, 50
HEALTH = "# TYPE node_load1 gauge\nnode_load1 1.5\n"


class Site:
    """`/calm` has 50 series that stay; `/wild` has a few, and while `exploding` 20,000 others at each reading beside them."""

    exploding = False
    address = ""

    def page(self, path: str) -> tuple[int, bytes]:
        """Of one of the two."""
        lines = [f'work{{part="{i}"}} 1\n' for i in range(CALM)]
        if path == "/wild" and self.exploding:
            ids = os.urandom(8 * EXPLODING).hex()
            lines += [f'requests_total{{id="{ids[16 * i:16 * i + 16]}"}} 1\n' for i in range(EXPLODING)]
        return 200, (HEALTH + "".join(lines)).encode()


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    pages = Pages(one.page)
    one.address = pages.address
    yield one
    pages.close()


def starved(greylag: Greylag, is_open: bool) -> list[dict]:
    """The findings of a starved collector that are open, or those that have ended."""
    return [one for one in greylag.items("findings") if one["fault"] == "collector_starved" and (one["ended_at"] is None) == is_open]


@pytest.mark.chaos
def test_it_is_bounded_and_said_and_ends(tmp_path, site):
    """The finding names the target and what was left out; the calm target misses no more than the machine costs, and no
    reading of the wild one lacks its health signal; once it is calm the finding ends, and nothing is left out any more."""
    greylag = Greylag(tmp_path, free_port(), budgets={"target": {"series": BUDGET}}, scrape_configs=[
        {"job_name": name, "scrape_interval": "5s", "scrape_timeout": "5s", "metrics_path": f"/{name}",
         "static_configs": [{"targets": [site.address], "labels": {"instance": name}}]} for name in ("calm", "wild")])
    try:
        greylag.start()
        wait_for(lambda: len(greylag.query("up")) >= 2, 60, "both targets")
        began = wall_ms()
        site.exploding = True
        [found] = wait_for(lambda: starved(greylag, True), 240, "the finding")
        site.exploding = False
        [ended] = wait_for(lambda: starved(greylag, False), 400, "the end of the finding")
        over = wall_ms()
        wait_for(lambda: all(float(row["value"][1]) == 0 for row in greylag.query("greylag_collector_shed_targets")), 60,
                 "the end of shedding")
        missed = sum(float(row["value"][1]) for row in greylag.query('greylag_collector_dropped_total{reason="missed_slot"}'))
        assert greylag.stop() == 0
    finally:
        greylag.close()
    said = " ".join(row["text"] or "" for row in found["evidence"])
    assert found["target"]["device"] == "collector-0"
    assert "wild/wild" in said
    assert "calm/calm" not in said
    assert "shed_series_budget" in said
    assert ended["end_reason"] == "cleared"
    with greylag.store() as store:
        calm = store.arrays(named("work", instance="calm"), began, over - 5000)
        [load] = store.arrays(named("node_load1", instance="wild"), began, over - 5000)
        [up] = store.arrays(named("up", instance="wild"), began, over - 5000)
        wild = store.arrays(named("requests_total"), began, over)
    assert len(calm) == CALM
    assert all(len(one.at) >= (over - began) // 5000 - 2 - missed and not np.isnan(one.values).any() for one in calm)
    assert load.at[~np.isnan(load.values)].tolist() == up.at[up.values == 1].tolist()
    at, counts = np.unique(np.concatenate([one.at[~np.isnan(one.values)] for one in wild]), return_counts=True)
    assert len(at) > 5
    assert counts.max() <= BUDGET
