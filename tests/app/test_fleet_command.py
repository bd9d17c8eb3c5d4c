"""`greylag fleet`: runs scenarios, plants faults in a running fleet over HTTP, tells how it is; exit status as promised."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import cli
from fleet.build import load_scenario
from fleet.server import FleetServer

SCENARIO = """
name: tiny
seed: 5
duration: 6m
fleet: {nodes: 2, spares: 1, times: fast, before: 4m}
jobs:
- {name: train-1, restart: 2m}
schedule:
- {fault: packet_loss, at: 1m, severity: 0.4, onset: step, for: 3m}
- {look_alike: hot_day, at: 2m}
- {hand: ann, node: n03, at: 1m, for: 2m}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetServer]:
    """A served scenario behind the lab's token, an hour behind the wall clock."""
    path = tmp_path_factory.mktemp("fleet") / "tiny.yaml"
    path.write_text(SCENARIO)
    ready = threading.Event()
    server = FleetServer(lab_token="lab", start_behind_seconds=3600, ready=lambda url: ready.set(), scenario=load_scenario(path))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield server
    server.stop()
    thread.join(10)


def _greylag(monkeypatch, capsys, *args: str, token: str | None = None) -> tuple[int, list[str], str]:
    """(exit status, lines of stdout, stderr) of `greylag fleet ...`."""
    monkeypatch.setattr(sys, "argv", ["greylag", "fleet", *args])
    monkeypatch.delenv("GREYLAG_LAB_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("GREYLAG_LAB_TOKEN", token)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out.splitlines(), out.err


def test_serve_passes_its_options_on(monkeypatch, capsys):
    """What stands after `--` is the server's, and its exit status is the command's."""
    seen: list[str] = []
    monkeypatch.setattr("fleet.server.main", lambda args: seen.extend(args) or 2)
    status, _, _ = _greylag(monkeypatch, capsys, "serve", "--", "--nodes", "8", "--speed", "1")
    assert (status, seen) == (2, ["--nodes", "8", "--speed", "1"])


def test_run_prints_truth_and_goodput_as_json_lines(monkeypatch, capsys, scenario):
    """Truth of all that was planted, hands, goodput, a summary; the same again for the same seed."""
    status, lines, _ = _greylag(monkeypatch, capsys, "run", str(scenario))
    rows = [json.loads(line) for line in lines]
    assert status == 0
    assert [r["type"] for r in rows] == ["truth", "truth", "hand", "goodput", "summary"]
    assert (rows[0]["fault"], rows[0]["cured_by"], rows[0]["nothing_to_do"]) == ("packet_loss", "itself", False)
    assert (rows[1]["look_alike"], rows[1]["nothing_to_do"]) == ("hot_day", True)
    spent = rows[3]["fleet"]["gpu_seconds"]
    assert sum(spent.values()) == pytest.approx(rows[3]["gpu_seconds_elapsed"])
    assert _greylag(monkeypatch, capsys, "run", str(scenario))[1] == lines


@pytest.mark.parametrize("how", ["--truth-only", "--events"])
def test_other_ways_to_run_know_the_same_truth(monkeypatch, capsys, scenario, how):
    """Without running, and from event to event: the same faults on the same parts at the same time."""
    whole = [json.loads(line) for line in _greylag(monkeypatch, capsys, "run", str(scenario))[1]]
    other = [json.loads(line) for line in _greylag(monkeypatch, capsys, "run", str(scenario), how)[1]]
    for one, two in zip(*([r for r in rows if r["type"] == "truth"] for rows in (whole, other)), strict=True):
        assert {k: one[k] for k in ("plant", "culprit", "at", "until", "severity")} \
            == {k: two[k] for k in ("plant", "culprit", "at", "until", "severity")}


def test_another_seed_is_another_run(monkeypatch, capsys, scenario):
    """`--seed` stands in place of the file's own."""
    assert _greylag(monkeypatch, capsys, "run", str(scenario), "--seed", "6", "--truth-only")[1] \
        != _greylag(monkeypatch, capsys, "run", str(scenario), "--truth-only")[1]


def test_bad_scenarios_end_with_two_and_one_sentence(monkeypatch, capsys, tmp_path):
    """File, line, key, what was given, what is allowed, on stderr; nothing on stdout."""
    path = tmp_path / "bad.yaml"
    path.write_text("name: bad\nschedule:\n- {fault: fire, at: 1m}\n")
    status, lines, error = _greylag(monkeypatch, capsys, "run", str(path))
    assert (status, lines) == (2, [])
    assert "bad.yaml:3: schedule[0].fault: got 'fire'" in error
    assert error.count("\n") == 1


def test_status_shows_nodes_and_jobs_and_with_the_token_faults(fleet, monkeypatch, capsys):
    """Without the token the truth stays hidden; with it faults and goodput are shown."""
    status, lines, _ = _greylag(monkeypatch, capsys, "status", "--url", fleet.url)
    assert status == 0
    assert any("3 nodes" in line for line in lines)
    assert any(line.startswith("job train-1") for line in lines)
    assert any("unknown without the lab's token" in line for line in lines)
    shown = json.loads(_greylag(monkeypatch, capsys, "status", "--url", fleet.url, "--json", token="lab")[1][0])
    assert shown["faults"] is not None
    assert 0 <= shown["goodput"]["fleet"]["goodput_ratio"] <= 1


PLACES = [("packet_loss", "n01/mlx5_3/1", "nic"), ("gpu_slow", "n02/5", "gpu"), ("cpu_starved", "n01", "node")]


@pytest.mark.parametrize(("fault", "target", "kind"), PLACES)
def test_inject_plants_where_it_is_told(fleet, monkeypatch, capsys, fault, target, kind):
    """NODE and NODE/DEVICE name the part; severity and onset are taken; the truth is printed and in the status."""
    status, lines, _ = _greylag(monkeypatch, capsys, "inject", fault, "--target", target, "--severity", "0.2", "--onset", "step",
                                "--for", "2h", "--url", fleet.url, token="lab")
    row = json.loads(lines[0])
    assert status == 0
    assert row["until"] is not None
    assert (row["fault"], row["severity"], row["onset"], row["culprit"]["kind"]) == (fault, 0.2, "step", kind)
    assert "/".join(p for p in (row["culprit"]["node"], row["culprit"]["device"]) if p) == target
    told = _greylag(monkeypatch, capsys, "status", "--url", fleet.url, token="lab")[1]
    assert any(line.startswith(f"fault {fault} on ") for line in told)


WRONG = [
    (("inject", "fire"), "lab", 2, "allowed are"),
    (("inject", "packet_loss", "--target", "n99/mlx5_0/1"), "lab", 2, "with a node of the fleet"),
    (("inject", "packet_loss", "--target", "n01/eth0"), "lab", 2, "allowed are: mlx5_0/1"),
    (("inject", "packet_loss", "--severity", "99"), "lab", 2, "a number from 0 to 10"),
    (("inject", "packet_loss", "--onset", "slowly"), "lab", 2, "allowed are: step"),
    (("inject", "packet_loss", "--for", "a while"), "lab", 2, "a duration is needed"),
    (("inject", "packet_loss"), None, 2, "the lab's token is needed"),
    (("inject", "packet_loss"), "wrong", 2, "the lab's token is needed"),
]


@pytest.mark.parametrize(("args", "token", "code", "words"), WRONG)
def test_what_cannot_be_planted_is_one_sentence(fleet, monkeypatch, capsys, args, token, code, words):
    """Bad input ends with 2 and says what is allowed."""
    status, _, error = _greylag(monkeypatch, capsys, *args, "--url", fleet.url, token=token)
    assert status == code
    assert words in error
    assert error.count("\n") == 1


NOBODY = [("http://127.0.0.1:9", 1, "no fleet answers"), ("ftp://x", 2, "the fleet's address is needed")]


@pytest.mark.parametrize(("url", "code", "words"), NOBODY)
def test_a_fleet_that_is_not_there(monkeypatch, capsys, url, code, words):
    """Silence ends with 1, an address that is none with 2."""
    status, _, error = _greylag(monkeypatch, capsys, "status", "--url", url)
    assert status == code
    assert words in error
