"""The sample trainer: real processes, real pages, and what Greylag makes of a job that hangs."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app import wiring
from app.brain import Brain
from app.processes import free_port
from collectors.discovery import ScrapeTarget
from collectors.fetch import HttpFetch
from collectors.mapping import Mapper
from collectors.scrape import TargetScraper
from core.clock import TICK_MS, rfc3339, tick_at_or_after
from core.inventory import Inventory
from core.protocols import TargetInfo
from core.types import Batch
from sample_data.trainer.train import Model, main
from tests.needs import ROOT

SCALE = 60  # one wall second is a minute of the job
Start = Callable[..., subprocess.Popen[bytes]]


def start(spawn: Start, *options: object) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a rank; gives it and the port of its page."""
    process = spawn(sys.executable, "-m", "sample_data.trainer.train", *map(str, options), cwd=ROOT,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["port"]


def page(port: int) -> dict[tuple[str, str], float]:
    """(sample, phase) → value of a rank's page."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return {(sample.name, sample.labels.get("phase", "")): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def test_a_run_that_resumes_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    """Stopped at step 40 and gone on to 70 gives the weights of 70 steps in one go."""
    short, whole = tmp_path / "a.npz", tmp_path / "b.npz"
    quick = ["--pause", "0", "--checkpoint-every", "10"]
    main(["--steps", "40", "--checkpoint", str(short), *quick])
    main(["--steps", "70", "--checkpoint", str(short), *quick])
    main(["--steps", "70", "--checkpoint", str(whole), *quick])
    first, second = Model.load(short), Model.load(whole)
    assert (first.step, second.step) == (70, 70)
    np.testing.assert_array_equal(first.weights, second.weights)


def test_training_learns(tmp_path: Path) -> None:
    """It is a real loop: the rule that it learns leaves the weights it began with."""
    main(["--steps", "60", "--pause", "0", "--checkpoint", str(tmp_path / "c.npz"), "--checkpoint-every", "60"])
    assert np.linalg.norm(Model.load(tmp_path / "c.npz").weights) > 0.5


def test_nan_shows_in_the_page_and_in_no_checkpoint(spawn: Start, tmp_path: Path) -> None:
    """A NaN in the data spreads to the loss and is counted; what could not be resumed from is not saved."""
    checkpoint = tmp_path / "n.npz"
    process, port = start(spawn, "--steps", 30, "--pause", 0, "--nan-at", 25, "--checkpoint", checkpoint,
                          "--checkpoint-every", 10, "--linger", 30)
    assert process.stdout is not None
    process.stdout.readline()  # it is done
    seen = page(port)
    assert math.isnan(seen["greylag_train_loss", ""])
    assert seen["greylag_train_nonfinite_total", ""] == 5
    assert seen["greylag_train_phase", "done"] == 1
    assert (seen["greylag_train_last_checkpoint_step", ""], Model.load(checkpoint).step) == (20, 20)


def test_a_rank_whose_peer_leaves_stops_with_a_sentence(spawn: Start) -> None:
    """No rank trains on alone."""
    address = f"127.0.0.1:{free_port()}"
    first, _ = start(spawn, "--rank", 0, "--world", 2, "--rendezvous", address, "--steps", 100000)
    second, port = start(spawn, "--rank", 1, "--world", 2, "--rendezvous", address, "--steps", 100000)
    wait_until(lambda: page(port).get(("greylag_train_step", ""), 0) > 3)
    second.kill()
    assert first.wait(10) == 1
    assert first.stderr is not None
    said = first.stderr.read()
    assert said.startswith(b"rank 0 stopped at step")
    assert said.count(b"\n") == 1


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@dataclass
class Watched:
    """Records of the story in time order, and the time (ms) of the slot in which the rank had hung."""

    records: list[dict[str, Any]] = field(default_factory=list)
    hung_at: int = 0

    def incidents(self, job: str, event: str = "opened") -> list[dict[str, Any]]:
        return [r for r in self.records if r["type"] == "incident" and r["event"] == event
                and job in (r["incident"]["jobs"] or [(r["incident"]["culprit"] or {}).get("job")])]


def ranks(spawn: Start, job: str, world: int, origin: float, *more: object) -> Iterator[TargetScraper]:
    """A job of `world` ranks, each on a node of its own; the last one gets the further options."""
    address, mapper = f"127.0.0.1:{free_port()}", Mapper(wiring.sources())
    for rank in range(world):
        node = f"{job}-n{rank}"
        _, port = start(spawn, "--job", job, "--rank", rank, "--world", world, "--rendezvous", address, "--node", node,
                        "--steps", 1000000, "--pause", 0.04, "--time-scale", SCALE, "--time-origin", origin,
                        *(more if rank == world - 1 else ()))
        labels = {"instance": f"127.0.0.1:{port}", "job": "trainer", "node": node}
        target = ScrapeTarget(TargetInfo(f"trainer/{node}", labels, node), f"http://127.0.0.1:{port}/metrics", TICK_MS, 5.0,
                              honor_labels=True)
        yield TargetScraper(target, mapper)


async def watch(scrapers: list[TargetScraper], brain: Brain, origin: float, found: Watched, hang_step: int) -> None:
    """Scrapes all pages at each slot of the jobs' own time until the hang is resolved into an incident."""
    fetch = HttpFetch()
    at, seq = tick_at_or_after(round((origin + (time.time() - origin) * SCALE) * 1000)), 0
    last = at + 900_000
    while at < last and not found.incidents("hangs"):
        await asyncio.sleep(max(0.0, origin + (at / 1000 - origin) / SCALE - time.time()))
        results = [row for rows in await asyncio.gather(*(one.scrape(fetch, at) for one in scrapers)) for row in rows]
        seq += 1
        brain.feed(Batch("w", 1, seq, at, tuple(layout for layout, _ in results), tuple(scrape for _, scrape in results)))
        ticked = brain.tick(at)
        found.records += [json.loads(record.line) for record in ticked.commit.records]
        steps = ticked.window.last("rank.step")
        here = [i for i, rank in enumerate(ticked.window.of_kind("rank")) if rank.job == "hangs"]
        if not found.hung_at and here and np.nanmax(steps[here], initial=0) >= hang_step:
            found.hung_at = at
        at += TICK_MS
    await fetch.aclose()


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """Two jobs side by side under one Brain: `hangs`, whose last rank stops for ever, and `trains`."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn(*args: str, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(args, **kwargs))
        return started[-1]

    origin = time.time()
    try:
        scrapers = [*ranks(spawn, "hangs", 3, origin, "--hang-at", 60), *ranks(spawn, "trains", 2, origin)]
        plugins, params = wiring.detectors({}, "test")
        found = Watched()
        asyncio.run(watch(scrapers, Brain(plugins, params, Inventory()), origin, found, 60))
        yield found
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(10)


def test_a_hang_is_one_incident_that_names_the_rank(watched: Watched) -> None:
    """The rank that did not enter the collective is behind: it is the culprit, and its job is the one that stands."""
    [opened] = watched.incidents("hangs")
    one = opened["incident"]
    assert (one["fault"], one["culprit"]["node"], one["jobs"]) == ("stalled_loss", "hangs-n2", ["hangs"])


def test_nothing_opens_before_the_hang(watched: Watched) -> None:
    """The steps before it, the start included, are no incident."""
    assert watched.hung_at
    assert min(r["at"] for r in watched.incidents("hangs")) > rfc3339(watched.hung_at)


def test_a_job_that_trains_has_no_incident(watched: Watched) -> None:
    """The same trainer without a hang, judged by the same Brain at the same time."""
    assert watched.incidents("trains") == []
