"""The lab's one run: it does all its harm side by side, to different nodes, so that it takes no longer than the slowest finding."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.lab.injector import Injector
from tests.lab.namespaces import Refused
from tests.lab.site import Site
from tests.live.site import wait_for

# What a verdict may be called, by what was done. A quota shows as the pressure of the node's tasks where the kernel tells it for a
# control group, else as the rank that is late. A rate limit shows as what its short queue drops: the port's own speed stays as it
# was, so `link_slow` has nothing to see, and that the job is slow too follows from it.
FAULTS = {
    "interface_down": {"link_down"},
    "exporter_stopped": {"target_down"},
    "tmpfs_full": {"disk_full"},
    "rank_stopped": {"stalled_loss"},
    "packets_dropped": {"packet_loss"},
    "cpu_quota": {"cpu_starved", "straggler"},
    "rate_limit": {"packet_loss"},
}

QUIET = 105.0  # seconds in which a rank, a job and a port show how they usually are


@dataclass
class Run:
    """What was done (the injector's rows by kind), what the machine refused (reasons by kind), what Greylag said."""

    truth: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    incidents: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: str) -> dict[str, Any]:
        """The injector's row; skips the test where the machine did not allow it."""
        if kind in self.refused:
            pytest.skip(f"{kind}: {self.refused[kind]}")
        return self.truth[kind]

    def found(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The incidents that speak of what the row did: by fault, on its node (or its job)."""
        return [one for one in self.incidents if one["state"] != "merged" and one["fault"] in FAULTS[row["kind"]]
                and (on_node(one, row["node"]) or (row.get("job") and row["job"] in one["jobs"] and one["culprit"] is None))]


def on_node(incident: dict[str, Any], node: str) -> bool:
    """Its culprit stands on the node."""
    return incident["culprit"] is not None and incident["culprit"]["node"] == node


def harm(run: Run, injector: Injector, plan: dict[str, Callable[[Injector], dict[str, Any]]]) -> None:
    """Does all of the plan; what the machine refuses is kept with its reason."""
    for kind, act in plan.items():
        if kind not in run.refused:
            try:
                run.truth[kind] = act(injector)
            except Refused as error:
                run.refused[kind] = str(error)


def watch(site: Site, run: Run, seconds: float, done: Callable[[], bool]) -> None:
    """Reads the incidents until `done`, for so many seconds at most."""
    assert site.greylag is not None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run.incidents = site.greylag.items("incidents")
        if done():
            return
        time.sleep(1.0)


def all_found(run: Run) -> bool:
    return all(run.found(row) for row in run.truth.values())


def settle(site: Site, ticks: int) -> None:
    """Waits until every target is up and so many ticks after that were judged."""
    greylag = site.greylag
    assert greylag is not None

    def up() -> bool:
        rows = greylag.query("up")
        return len(rows) >= len(site.nodes) and all(row["value"][1] == "1" for row in rows)

    wait_for(up, 40, f"the first page of every target (see {site.folder})")
    until = (time.time() // 15 + ticks) * 15 + 3
    time.sleep(max(0.0, until - time.time()))


@contextmanager
def laboratory(folder: Path, count: int) -> Iterator[Site]:
    """A site that is removed whatever happens. Skips where the machine allows no namespaces."""
    for program in ("ip", "tc", "mount", "node_exporter"):
        needs.program(program)
    site = None
    try:
        try:
            site = Site(folder, count)
            site.build()
        except Refused as error:
            pytest.skip(f"this machine allows no network namespaces: {error}")
        yield site
    finally:
        if site is not None:
            site.close()


def told(run: Run, folder: Path) -> None:
    """Keeps what was done and said beside the logs, for whoever looks at a failure."""
    (folder / "run.json").write_text(json.dumps({"truth": run.truth, "refused": run.refused, "incidents": run.incidents}, indent=1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Seven faults on 21 nodes in six jobs; each job has healthy nodes, and one node has nothing but a healthy rank.

    A port that is taken down and a full file system are judged without a past, so their harm is done while the others' past is made;
    the port is brought up again as soon as it was found, for its end takes longest.
    """
    folder, run = tmp_path_factory.mktemp("lab"), Run()
    with laboratory(folder, 21) as site:
        n = site.nodes
        start(site, run)
        injector = Injector(site, folder / "truth.jsonl")
        quiet = time.monotonic() + QUIET
        harm(run, injector, {
            "interface_down": lambda i: i.interface_down(n[12]),
            "tmpfs_full": lambda i: i.fill(n[19]),
        })
        watch(site, run, QUIET, lambda: all_found(run))
        if "interface_down" in run.truth:
            injector.interface_up(n[12])
        time.sleep(max(0.0, quiet - time.monotonic()))
        harm(run, injector, {
            "packets_dropped": lambda i: i.drop(n[0]),
            "rate_limit": lambda i: i.rate_limit(n[4]),
            "cpu_quota": lambda i: i.starve("quota", 0),
            "rank_stopped": lambda i: i.stop_rank("stop", 1),
            "exporter_stopped": lambda i: i.stop_exporter(n[18]),
        })
        watch(site, run, 300, lambda: all_found(run) and back(run))
        told(run, folder)
    return run


def start(site: Site, run: Run) -> None:
    """All jobs train and are read, and the first tick was judged."""
    n = site.nodes
    try:
        site.relayed(n[0])
    except Refused as error:
        run.refused["packets_dropped"] = str(error)
    site.train("loss", n[0:4])
    site.train("slow", n[4:8], "--kilobytes", "1024")
    site.train("quota", n[8:12], "--work", "0.01")
    site.train("down", n[12:15])
    site.train("stop", n[15:18])
    site.train("calm", n[18:21])
    site.run()
    settle(site, 1)


def back(run: Run) -> bool:
    """The link's incident is over."""
    row = run.truth.get("interface_down")
    return row is None or any(one["state"] == "resolved" for one in run.found(row))
