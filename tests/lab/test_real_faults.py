"""Real faults, done to real interfaces, processes and file systems, are found on the right part; nothing else is."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.conftest import FAULTS, Run, laboratory, on_node
from tests.lab.site import Site

pytestmark = pytest.mark.lab


def found_on_its_part(run: Run, kind: str) -> None:
    """One incident, on the node and, where the injector names one, on the device, the rank or the mount."""
    row = run.of(kind)
    found = run.found(row)
    assert [one["fault"] for one in found if on_node(one, row["node"])], (row, run.incidents)
    assert len(found) == 1, found
    culprit = found[0]["culprit"]
    if row.get("device"):
        assert culprit["device"] == row["device"]
    if row.get("rank") is not None and culprit["kind"] != "node":
        assert (culprit["job"], culprit["rank"]) == (row["job"], row["rank"])
    assert found[0]["evidence"]


def fail_inside(folder: Path) -> tuple[str, list[subprocess.Popen[bytes]]]:
    """A lab with a job in which a test fails: how its names begin, and its processes."""
    seen: list[Site] = []
    with suppress(RuntimeError), laboratory(folder, 1) as site:
        seen.append(site)
        site.train("a", site.nodes)
        raise RuntimeError("a test that fails")
    return seen[0].cluster.stem, seen[0].processes


def strangers(run: Run) -> list[dict[str, object]]:
    """Incidents that speak of nothing that was done."""
    told = [one["id"] for row in run.truth.values() for one in run.found(row)]
    return [one for one in run.incidents if one["id"] not in told and one["state"] != "merged"]


def test_all_is_removed_when_a_test_fails(tmp_path: Path) -> None:
    """Namespaces, the link into them, control groups and processes go, whatever happened inside."""
    stem, processes = fail_inside(tmp_path)
    left = [str(path) for place in ("/run/netns", "/var/run/netns", "/sys/class/net") if Path(place).exists()
            for path in Path(place).iterdir() if path.name.startswith(stem)]
    left += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{stem}*")]
    assert left == []
    assert [process.args for process in processes if process.poll() is None] == []


@pytest.mark.parametrize("kind", FAULTS)
def test_each_real_fault_is_found_on_its_part(whole: Run, kind: str) -> None:
    """Seven faults at once, each on a node of its own."""
    found_on_its_part(whole, kind)


def test_the_others_stay_healthy(whole: Run) -> None:
    """No node, rank or job is named for which nothing was done."""
    assert strangers(whole) == []


def test_a_port_that_comes_back_is_over(whole: Run) -> None:
    """The interface was brought up again, and its incident resolves by evidence of health."""
    found = whole.found(whole.of("interface_down"))
    assert [one["state"] for one in found] == ["resolved"]
