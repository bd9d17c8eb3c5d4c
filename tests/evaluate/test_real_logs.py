"""Real failure cases that logs tell of: the right verdict, and none of what must not be said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.evaluate.judge import incidents_of
from tests.evaluate.test_real_cases import case, gpu_labels, tidy

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


def test_a_storm_of_one_xid_is_one_incident(tmp_path: Path) -> None:
    """P08: 20,000 lines of XID 95, 29 distinct buses' worth of text, one node: one incident."""
    template = case("P08")["template"]
    lines = [f"{stamp(i // 40)} node-x kernel: {str(template).format(bus='b3')}" for i in range(20_000)]
    (tmp_path / "kernel.node-x.log").write_text("\n".join(lines) + "\n")
    assert found(tmp_path) == [("ecc_uncorrectable", "device")]


def test_a_loss_of_exactly_zero_with_nan_gradients_is_found(tmp_path: Path) -> None:
    """P11: 0.0 is no improvement."""
    healthy = [f"{{'loss': {0.21 + 0.001 * (i % 7):.4f}, 'grad_norm': 1.1, 'learning_rate': 9.8e-06, 'epoch': {0.5 + i / 1000:.3f}}}"
               for i in range(30)]
    (tmp_path / "trainer.run.log").write_text("\n".join([*healthy, *(str(line) for line in case("P11"))]) + "\n")
    assert found(tmp_path) == [("nonfinite_loss", "job")]


@pytest.mark.parametrize("restart", [False, True])
def test_a_sticky_xid_of_a_program_is_an_event_only(tmp_path: Path, restart: bool) -> None:
    """P01: XID 31 stands in the gauge for minutes, and a restart of the exporter takes it away: no incident."""
    values = [0.0] * 8 + [31.0] * 40 + ([0.0] * 10 if restart else [])
    rows = []
    for i, value in enumerate(values):
        labels = gpu_labels(1, 3, "NVIDIA H100 80GB HBM3")
        rows += [("DCGM_FI_DEV_XID_ERRORS", labels, 15.0 * i, value), ("DCGM_FI_DEV_GPU_TEMP", labels, 15.0 * i, 60.0 + i % 2),
                 ("DCGM_FI_DEV_GPU_UTIL", labels, 15.0 * i, 99.0)]
    tidy(rows, tmp_path / "gpus.parquet")
    assert found(tmp_path) == []


def test_the_host_that_ran_out_of_memory_is_named(tmp_path: Path) -> None:
    """P14: the network errors that ranks log follow from an agent that was killed on host-b."""
    first = str(case("P14")[0]).partition("kernel: ")[2]
    (tmp_path / "kernel.host-b.log").write_text(f"{stamp(0)} host-b kernel: {first}\n{stamp(300)} host-b kernel: a line\n")
    named = [(i["fault"], i["culprit"]["node"]) for i in incidents_of(tmp_path)]
    assert named == [("memory_pressure", "host-b")]
