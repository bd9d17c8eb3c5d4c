"""Real failure cases that logs tell of: the right verdict, and none of what must not be said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.replay import ReplayOptions, replay
from core.clock import parse_rfc3339
from tests.evaluate.judge import incidents_of
from tests.evaluate.test_real_cases import T0, case, gpu_labels, tidy

STAMP = "2026-01-05T10:{m:02d}:{s:02d}+00:00"


def stamp(seconds: float) -> str:
    return STAMP.format(m=int(seconds // 60), s=int(seconds % 60))


def iterations(steps: range, seconds: float) -> list[str]:
    """A Megatron log's lines of healthy steps that end at the step before the case's."""
    return [f"iteration {n}/8000 | elapsed time per iteration (ms): {seconds * 1000:.1f} | lm loss: {7.2e-1 + 0.01 * (n % 5):.6E} | "
            f"loss scale: 1.0 | grad norm: 0.7 | number of skipped iterations: 0 | number of nan iterations: 0 |" for n in steps]


def found(folder: Path) -> list[tuple[str, str]]:
    return [(i["fault"], i["scope"]) for i in incidents_of(folder)]


def test_a_gradient_that_is_nan_without_a_loss_is_found(tmp_path: Path) -> None:
    """P03: the NaN counter stays at zero and the loss is absent; the gradient alone tells."""
    lines = [*iterations(range(3350, 3383), 7.6), *(str(line) for line in case("P03"))]
    (tmp_path / "trainer.run.log").write_text("\n".join(lines) + "\n")
    assert found(tmp_path) == [("nonfinite_loss", "job")]


def test_a_search_of_the_loss_scale_is_healthy(tmp_path: Path) -> None:
    """P04: seven overflows at the start, each at a scale of millions."""
    lines = []
    for line in case("P04"):
        told = re.match(r"\[t\+(\d+)s\] (.*)", str(line))
        if told:
            lines.append(f"[{stamp(float(told[1])).replace('T', ' ')[:19]},000] {told[2]}")
    (tmp_path / "trainer.run.log").write_text("\n".join(lines) + "\n")
    assert found(tmp_path) == []


def test_overflows_down_to_the_last_scale_are_found(tmp_path: Path) -> None:
    """P05: each step overflows and the scale reaches its minimum."""
    lines = [f"[{stamp(132 * i).replace('T', ' ')[:19]},000] {str(line).partition('s/it ')[2] or line}" for i, line in enumerate(case("P05"))]
    (tmp_path / "trainer.run.log").write_text("\n".join(lines) + "\n")
    assert found(tmp_path) == [("nonfinite_loss", "job")]


def test_a_gpu_off_the_bus_without_a_number_is_found_once(tmp_path: Path) -> None:
    """P07: no line holds an XID; one GPU is lost, once."""
    (tmp_path / "kernel.node-a.log").write_text("\n".join(str(line) for line in case("P07")) + "\n")
    lost = incidents_of(tmp_path)
    assert [(i["fault"], i["culprit"]["node"], i["culprit"]["device"]) for i in lost] == [("gpu_lost", "node-a", "0000:b3:00.0")]


def story(folder: Path) -> list[dict[str, Any]]:
    """All that the replay says, in its order."""
    lines: list[str] = []
    replay(ReplayOptions((str(folder),)), lines.append)
    return [json.loads(line) for line in lines]


def storm(folder: Path, total: int) -> None:
    """P08: `total` lines within ten minutes, of the case's 29 texts (buses and processes), on node-x; a GPU of node-y falls off the bus
    after five."""
    told = case("P08")
    texts = [str(told["template"]).format(bus=f"{1 + i % 8:02x}").replace("pid=1234", f"pid={1234 + i}") for i in range(told["distinct"])]
    assert len(set(texts)) == 29
    (folder / "kernel.node-x.log").write_text(
        "".join(f"{moment(600 * i / total)} node-x kernel: {texts[i % len(texts)]}\n" for i in range(total)))
    other = "NVRM: Xid (PCI:0000:b3:00): 79, pid=77, name=python3, GPU has fallen off the bus."
    (folder / "kernel.node-y.log").write_text(
        "".join(f"{moment(30 * i)} node-y kernel: {other if i == 10 else 'a line'}\n" for i in range(21)))


def moment(seconds: float) -> str:
    """As `stamp`, with parts of a second."""
    return STAMP.format(m=int(seconds // 60), s=int(seconds % 60)).replace("+", f".{int(seconds % 1 * 1e6):06d}+")


def said_of_the_storm(folder: Path, total: int) -> None:
    """One incident on node-x and few words; that of node-y opens in the tick of its line."""
    storm(folder, total)
    told = story(folder)
    opened = {r["incident"]["culprit"]["node"]: r["at"] for r in told if r["type"] == "incident" and r["event"] == "opened"}
    last = {r["incident"]["id"]: r["incident"] for r in told if r["type"] == "incident"}
    standing = [(i["fault"], i["scope"], i["culprit"]["node"]) for i in last.values() if i["state"] != "merged"]
    assert sorted(standing) == [("ecc_uncorrectable", "node", "node-x"), ("gpu_lost", "device", "node-y")]
    assert opened["node-y"] == "2026-01-05T10:05:00.000Z"
    assert len([r for r in told if r["type"] in ("finding", "incident")]) <= 50
    assert told[-1]["events"] == total + 1


def test_a_storm_of_one_xid_is_one_incident(tmp_path: Path) -> None:
    """P08: 29 texts of XID 95, again and again, on one node: one incident, and another node's lost GPU is told at once beside it."""
    said_of_the_storm(tmp_path, 20_000)


@pytest.mark.evaluate
def test_a_storm_of_all_the_lines_is_one_incident(tmp_path: Path) -> None:
    """P08 as it was: 800,000 lines."""
    said_of_the_storm(tmp_path, case("P08")["total"])


def test_a_loss_of_exactly_zero_with_nan_gradients_is_found(tmp_path: Path) -> None:
    """P11: 0.0 is no improvement."""
    healthy = [f"{{'loss': {0.21 + 0.001 * (i % 7):.4f}, 'grad_norm': 1.1, 'learning_rate': 9.8e-06, 'epoch': {0.5 + i / 1000:.3f}}}"
               for i in range(30)]
    (tmp_path / "trainer.run.log").write_text("\n".join([*healthy, *(str(line) for line in case("P11"))]) + "\n")
    assert found(tmp_path) == [("nonfinite_loss", "job")]


@pytest.mark.parametrize("restart", [False, True])
def test_a_sticky_xid_of_a_program_is_an_event_only(tmp_path: Path, restart: bool) -> None:
    """P01: XID 31 stands in the gauge for minutes, and a restart of the exporter takes it away: one event, at the
    change, and neither finding nor incident."""
    values = [float(v) for v in case("P01")["values"]] + ([0.0] * 10 if restart else [])
    first = values.index(31.0)
    labels = gpu_labels(1, 3, "NVIDIA H100 80GB HBM3")
    rows = []
    for i, value in enumerate(values):
        rows += [("DCGM_FI_DEV_XID_ERRORS", labels, 15.0 * i, value), ("DCGM_FI_DEV_GPU_TEMP", labels, 15.0 * i, 60.0 + i % 2),
                 ("DCGM_FI_DEV_GPU_UTIL", labels, 15.0 * i, 99.0)]
    tidy(rows, tmp_path / "gpus.parquet")
    told = [r for r in story(tmp_path) if r["type"] in ("event", "finding", "incident")]
    assert [(r["event"]["kind"], r["event"]["fields"]["xid"], r["event"]["target"]["id"]) for r in told] == [("xid", 31, "GPU-0001-3")]
    assert parse_rfc3339(told[0]["event"]["at"]) == T0 + 15_000 * first


def test_the_host_that_ran_out_of_memory_is_named(tmp_path: Path) -> None:
    """P14: the network errors that a rank logs follow from an agent that was killed on host-b: no port and no job is named for them."""
    killed, *errors = (str(line) for line in case("P14"))
    host, _, words = killed.partition(" kernel: ")
    (tmp_path / f"kernel.{host}.log").write_text(f"{stamp(0)} {host} kernel: {words}\n{stamp(570)} {host} kernel: a line\n")
    lines = []
    for i, step in enumerate(iterations(range(100, 158), 10.0)):
        lines.append(f"[{stamp(10 * i).replace('T', ' ')[:19]}] {step}")
        if i == 3:
            lines += [f"[{stamp(10 * i + k).replace('T', ' ')[:19]}] {line}" for k, line in enumerate(errors, 1)]
    (tmp_path / "trainer.run.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "inventory.yaml").write_text("jobs:\n- {id: run, nodes: [host-a, host-b], ranks_per_node: 8}\n")
    told = story(tmp_path)
    assert [r["event"]["fields"]["message"] for r in told if r["type"] == "event" and r["event"]["kind"] == "nccl_error"] == [
        line.partition("NET/IB : ")[2] for line in errors]
    named = [(i["fault"], i["culprit"]["node"]) for i in incidents_of(tmp_path)]
    assert named == [("memory_pressure", "host-b")]
