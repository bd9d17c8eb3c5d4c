"""Real cases that a table or a short series tells of: the right verdict, and none of what must not be said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluate.judge import incidents_of
from tests.evaluate.test_real_cases import case, gpu_labels, tidy

Rows = list[tuple[str, dict[str, str], float, float]]
MODEL = "NVIDIA H100 80GB HBM3"


def blank_rows(gpus: int, others: bool, xid: bool, before: int = 8, after: int = 16) -> Rows:
    """P10: the case's healthy values again and again, then its blanks; the other GPUs stay well."""
    told = case("P10")
    healthy = [v for v in told["values"] if v < 1.0]
    blank = next(v for v in told["values"] if v > 1.0)
    rows: Rows = []
    for i in range(before + after):
        for gpu in range(gpus):
            ill, labels = gpu == min(3, gpus - 1) and i >= before, gpu_labels(1, gpu, MODEL)
            rows.append((told["metric"], labels, 15.0 * i, blank if ill else healthy[(i + gpu) % len(healthy)]))
            if others:
                rows += [("DCGM_FI_DEV_GPU_TEMP", labels, 15.0 * i, 60.0 + (i + gpu) % 3), ("DCGM_FI_DEV_GPU_UTIL", labels, 15.0 * i, 99.0),
                         ("DCGM_FI_DEV_POWER_USAGE", labels, 15.0 * i, 601.5 + (7 * i + gpu) % 11)]
            if xid and ill:
                rows.append(("DCGM_FI_DEV_XID_ERRORS", labels, 15.0 * i, 31.0))
    return rows


@pytest.mark.parametrize(("gpus", "others", "xid"), [(8, True, True), (8, False, False), (1, True, True), (1, False, True), (1, False, False)])
def test_a_field_that_turns_blank_is_lost_telemetry(tmp_path: Path, gpus: int, others: bool, xid: bool) -> None:
    """P10: one GPU's field is blank from some moment on: its exporter is partial, and the blank is no number to anybody."""
    tidy(blank_rows(gpus, others, xid), tmp_path / "gpus.parquet")
    found = incidents_of(tmp_path)
    assert [(i["fault"], i["scope"], i["culprit"]["device"]) for i in found] == [("exporter_partial", "device", str(min(3, gpus - 1)))]
    assert all(e["observed"] is None for i in found for e in i["evidence"])


def pair_table(folder: Path) -> None:
    """P06 as people keep such tables: a CSV with a row for each pair."""
    lines = ["metric,a,b,timestamp,value"]
    lines += [f"nccl_pair_busbw_bytes_per_second,{a},{b},2026-01-05T10:00:{7 * i:02d}Z,{value * 1e9}"
              for i, (a, b, value) in enumerate(case("P06")["pairs"])]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")


def test_the_slow_node_of_a_table_of_pairs_is_named(tmp_path: Path) -> None:
    """P06: n644 is slow with partners that are fast with others; n284 and n678 cannot be told apart, and nobody else is blamed."""
    pair_table(tmp_path)
    found = incidents_of(tmp_path)
    assert [(i["fault"], i["culprit"]["node"]) for i in found] == [("link_slow", "n644")]
    assert {s["target"]["node"] for s in found[0]["suspects"]} == {"n644", "n284", "n678"}
