"""Real cases and real healthy training runs, made into recordings: what people saw must be what Greylag says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests import needs
from tests.evaluate.judge import incidents_of

T0 = 1_764_000_000_000
# Healthy runs with the shape that matters most, in `make test`; all of them in `make evaluate`.
QUICK_RUNS = ("healthy_meg_gpt2_base_n8_dp1_tp4_pp8-1809562", "healthy_nanogpt_2024-11-06_ShortcutsTweaks_05b29e54")
STEPS_OF_A_RUN = 1000  # of the longest runs the first ones: warm-up, noise and the steepest part of the loss


def case(name: str) -> Any:
    """The input of a case."""
    for line in needs.shared("data/cases/cases.jsonl").read_text().splitlines():
        found = json.loads(line)
        if found["id"] == name:
            return found["input"]
    raise AssertionError(f"no case {name}")


def tidy(rows: list[tuple[str, dict[str, str], float, float]], path: Path) -> None:
    """rows: metric, labels, seconds since T0, value."""
    pl.DataFrame({
        "metric": [r[0] for r in rows], "labels": [json.dumps(r[1]) for r in rows],
        "timestamp": [T0 + round(r[2] * 1000) for r in rows], "value": [float(r[3]) for r in rows],
    }).sort("timestamp").write_parquet(path)


def gpu_labels(node: int, gpu: int, model: str) -> dict[str, str]:
    return {"gpu": str(gpu), "UUID": f"GPU-{node:04d}-{gpu}", "modelName": model, "Hostname": f"node{node}",
            "instance": f"node{node}:9400", "job": "dcgm"}


def hang_rows(trainer: bool) -> list[tuple[str, dict[str, str], float, float]]:
    """P09: 4 × 8 H100, six steps of 1.08 s, then none; the GPUs stay at 100 % and fall to 100 W."""
    told = case("P09")
    times, power, util = np.array(told["t_s"], float), told["power_w"], told["gpu_util_pct"]
    lead = 300.0  # the numbers of before the hang, repeated: the case shows its last seconds only
    rows: list[tuple[str, dict[str, str], float, float]] = []
    for at in np.arange(0, lead + times[-1] + 1, 15.0):
        here = int(np.searchsorted(times, at - lead, side="right")) - 1
        here = here if here >= 0 else int(at / 15) % 4
        before = at < lead
        step = 193 - int((lead - at) / 1.08) if before else told["step"][here]
        for node in range(4):
            for gpu in range(8):
                labels = gpu_labels(node, gpu, "NVIDIA H100 80GB HBM3")
                rows.append(("DCGM_FI_DEV_GPU_UTIL", labels, at, util[here]))
                rows.append(("DCGM_FI_DEV_POWER_USAGE", labels, at, power[here] + node - gpu))
                if trainer:
                    rank = {"job": "speech", "rank": str(node * 8 + gpu), "node": f"node{node}", "gpu": str(gpu)}
                    rows.append(("greylag_train_step", rank, at, step))
                    rows.append(("greylag_train_last_step_timestamp_seconds", rank, at,
                                 (T0 / 1000 + at) if before else T0 / 1000 + lead + 4.3))
    return rows


@pytest.mark.parametrize("how", ["metrics", "log", "hardware"])
def test_hang_that_looks_busy_is_a_stalled_job(tmp_path: Path, how: str) -> None:
    """P09 opens stalled_loss for the whole job and blames no GPU, by trainer series, by its log, or by the GPUs alone."""
    tidy(hang_rows(how == "metrics"), tmp_path / "gpus.parquet")
    if how == "log":
        lines = []
        for i in range(280):
            at = T0 / 1000 + 300 + 4.3 - (279 - i) * 1.08
            stamp = np.datetime64(int(at * 1000), "ms").item().strftime("%Y-%m-%d %H:%M:%S.%f")
            lines.append(f" [{stamp}] iteration {i - 279 + 197:8d}/ 1000 | consumed samples: 10 | elapsed time per iteration (ms): 1080.0"
                         f" | learning rate: 1.0E-04 | lm loss: {3 + 0.01 * (i % 7):.6E} | grad norm: 1.0 |"
                         .replace("iteration       -", "iteration "))
        (tmp_path / "trainer.speech.log").write_text("\n".join(lines[90:]) + "\n")
    if how != "metrics":
        (tmp_path / "inventory.yaml").write_text("jobs:\n- {id: speech, nodes: [node0, node1, node2, node3], ranks_per_node: 8}\n")
    found = incidents_of(tmp_path)
    assert [(i["fault"], i["scope"], i["culprit"]) for i in found] == [("stalled_loss", "job", None)]


@pytest.mark.parametrize(("limits", "bits"), [(True, True), (False, False)])
def test_power_capped_fleet_is_no_fault(tmp_path: Path, limits: bool, bits: bool) -> None:
    """P13: H200s that cannot hold 1830 MHz under 700 W open nothing, whether or not the page shows limit and reason."""
    told = case("P13")
    rng = np.random.default_rng(13)
    rows: list[tuple[str, dict[str, str], float, float]] = []
    for at in np.arange(0, 1200, 15.0):
        for node in range(4):
            for gpu in range(8):
                labels = gpu_labels(node, gpu, "NVIDIA H200")
                i = int(rng.integers(0, 4))
                rows += [("DCGM_FI_DEV_GPU_UTIL", labels, at, 100), ("DCGM_FI_DEV_GPU_TEMP", labels, at, 60 + gpu + rng.integers(0, 2)),
                         ("DCGM_FI_DEV_POWER_USAGE", labels, at, told["power_w"][i]),
                         ("DCGM_FI_DEV_SM_CLOCK", labels, at, told["sm_clock_mhz"][i])]
                if limits:
                    rows.append(("DCGM_FI_DEV_POWER_MGMT_LIMIT", labels, at, 700))
                if bits:
                    rows.append(("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", labels, at, 4))
    tidy(rows, tmp_path / "gpus.parquet")
    assert incidents_of(tmp_path) == []


def run_frame(name: str) -> pl.DataFrame:
    path = needs.shared("data/training_logs") / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"the shared folder has no {path.name}")
    return pl.read_parquet(path).filter(pl.col("iter_ms").is_not_null())


def healthy_runs() -> list[str]:
    folder = needs.SHARED / "data" / "training_logs"
    return sorted(p.stem for p in folder.glob("healthy_*.parquet")) or list(QUICK_RUNS)


def as_log(frame: pl.DataFrame, path: Path, dated: bool) -> None:
    lines, at = [], T0 / 1000
    done = 0
    for row in frame.iter_rows(named=True):
        at += (row["iteration"] - done) * row["iter_ms"] / 1000
        done = row["iteration"]
        stamp = " [" + np.datetime64(int(at * 1000), "ms").item().strftime("%Y-%m-%d %H:%M:%S.%f") + "]" if dated else ""
        loss = "" if row["loss"] is None else f" lm loss: {row['loss']:.6E} |"
        norm = "" if row["grad_norm"] is None else f" grad norm: {row['grad_norm']:.3f} |"
        lines.append(f"{stamp} iteration {done:8d}/ 99999 | consumed samples: {done * 512} | elapsed time per iteration (ms): "
                     f"{row['iter_ms']:.1f} | learning rate: 6.0E-05 | global batch size: 512 |{loss} loss scale: 1.0 |{norm} "
                     "number of skipped iterations: 0 | number of nan iterations: 0 |")
    path.write_text("\n".join(lines) + "\n")


def as_metrics(frame: pl.DataFrame, path: Path) -> None:
    done = np.array(frame["iteration"], int)
    took = np.array(frame["iter_ms"], float) / 1000
    ends = np.cumsum(took * np.diff(np.concatenate([[0], done])))
    loss = frame["loss"].to_list()
    rows: list[tuple[str, dict[str, str], float, float]] = []
    for at in np.arange(5, ends[-1], 15.0):
        i = int(np.searchsorted(ends, at, side="right")) - 1
        for rank in range(8):
            labels = {"job": "run", "rank": str(rank), "node": "n1", "gpu": str(rank)}
            rows.append(("greylag_train_step", labels, at, done[i] if i >= 0 else 0))
            if i < 0:
                continue
            rows.append(("greylag_train_last_step_timestamp_seconds", labels, at, T0 / 1000 + ends[i]))
            rows.append(("greylag_train_step_seconds", labels, at, took[i]))
            if loss[i] is not None:
                rows.append(("greylag_train_loss", labels, at, loss[i]))
    tidy(rows, path)


@pytest.mark.parametrize("form", ["dated log", "metrics"])
@pytest.mark.parametrize("name", QUICK_RUNS)
def test_healthy_run_opens_nothing(tmp_path: Path, name: str, form: str) -> None:
    """A real healthy training run opens no incident, as a Megatron log or as scraped series."""
    frame = run_frame(name).head(STEPS_OF_A_RUN)
    if form == "metrics":
        as_metrics(frame, tmp_path / "run.parquet")
    else:
        as_log(frame, tmp_path / "trainer.run.log", form == "dated log")
    assert incidents_of(tmp_path) == []


@pytest.mark.evaluate
@pytest.mark.parametrize("form", ["dated log", "undated log", "metrics"])
@pytest.mark.parametrize("name", healthy_runs())
def test_every_healthy_run_opens_nothing(tmp_path: Path, name: str, form: str) -> None:
    """All real healthy runs, whole (the longest one's first three hours), open no incident."""
    frame = run_frame(name)
    frame = frame.filter(pl.col("iter_ms").cum_sum() < 3 * 3_600_000)
    if form == "metrics":
        as_metrics(frame, tmp_path / "run.parquet")
    else:
        as_log(frame, tmp_path / "trainer.run.log", form == "dated log")
    assert incidents_of(tmp_path) == []
