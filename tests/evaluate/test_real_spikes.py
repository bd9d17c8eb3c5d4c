"""Real loss spikes and divergences, made into recordings: each is found, for the job alone, and nothing else is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.evaluate.judge import incidents_of
from tests.evaluate.test_real_cases import as_log, case, run_frame, tidy

# What the evidence must say of the run, by its name in the data set.
RUNS = {"bloom176b_loss_spike": "it falls again", "tr1_13b_divergence_29020": "it has not come down",
        "tr8_104b_diverge_6900": "it has not come down"}
FORMS = ("dated log", "undated log", "series")
# One form of each in `make test`; all of them in `make evaluate`.
QUICK = {("bloom176b_loss_spike", "series"), ("tr1_13b_divergence_29020", "dated log"), ("tr8_104b_diverge_6900", "undated log")}


def p02() -> pl.DataFrame:
    """The case's series as the data set's columns."""
    told = case("P02")
    return pl.DataFrame({"iteration": told["iteration"], "loss": told["loss"], "grad_norm": told["grad_norm"],
                         "iter_ms": [1000.0 * s for s in told["iter_s"]]})


def as_series(frame: pl.DataFrame, path: Path) -> None:
    """Scraped every 15 s: each step is shown until the next one ends. Of steps that the data leave out nothing is known, so
    no time passes for them."""
    steps = np.array(frame["iteration"], float)
    apart = np.diff(steps, prepend=steps[0] - 1)
    ends = np.cumsum(np.where(apart > 10, 1, apart) * np.array(frame["iter_ms"], float) / 1000)
    rows: list[tuple[str, dict[str, str], float, float]] = []
    for at in np.arange(15 * np.ceil(ends[0] / 15), ends[-1] + 16, 15.0):
        i = int(np.searchsorted(ends, at, side="right")) - 1
        for rank in range(4):
            labels = {"job": "run", "rank": str(rank), "node": "n1", "gpu": str(rank)}
            rows.append(("greylag_train_step", labels, at, steps[i]))
            rows.append(("greylag_train_loss", labels, at, frame["loss"][i]))
            if frame["grad_norm"][i] is not None:
                rows.append(("greylag_train_grad_norm", labels, at, frame["grad_norm"][i]))
    tidy(rows, path)


def recorded(frame: pl.DataFrame, folder: Path, form: str) -> list[dict[str, Any]]:
    """The incidents of the run in that form."""
    if form == "series":
        as_series(frame, folder / "run.parquet")
    else:
        as_log(frame, folder / "trainer.run.log", form == "dated log")
    return incidents_of(folder)


@pytest.mark.parametrize(("name", "form"), [
    pytest.param(name, form, marks=() if (name, form) in QUICK else pytest.mark.evaluate) for name in sorted(RUNS) for form in FORMS])
def test_a_real_spike_or_divergence_is_found(tmp_path: Path, name: str, form: str) -> None:
    """Each run that went wrong opens loss_spike for its job, blames no part, and the evidence says whether it came down."""
    found = recorded(run_frame(name), tmp_path, form)
    assert [(i["fault"], i["scope"], i["culprit"], i["jobs"]) for i in found] == [("loss_spike", "job", None, ["run"])]
    assert RUNS[name] in [e["text"] for e in found[0]["evidence"]]


@pytest.mark.parametrize("form", ["dated log", pytest.param("series", marks=pytest.mark.evaluate)])
def test_the_spike_of_a_case_is_a_ticket_and_nothing_else(tmp_path: Path, form: str) -> None:
    """P02: the spike opens a ticket; no part is blamed, and steps that are as long as ever are no fault."""
    found = recorded(p02(), tmp_path, form)
    assert [(i["fault"], i["culprit"], i["class"]) for i in found] == [("loss_spike", None, "ticket")]


def test_the_same_run_before_its_spike_is_healthy(tmp_path: Path) -> None:
    """Up to the first high step, and with it, nothing is said."""
    assert recorded(run_frame("bloom176b_loss_spike").head(6), tmp_path, "dated log") == []


def test_infiniband_counters_without_a_value_are_no_dead_link(tmp_path: Path) -> None:
    """P12: a host whose port cannot tell link_downed or its bytes, beside one that tells a quarter of them, opens nothing."""
    assert "N/A" in case("P12")["link_downed"]
    rows: list[tuple[str, dict[str, str], float, float]] = []
    for at in np.arange(0, 450, 15.0):
        for node in range(3):
            labels = {"device": "mlx5_0", "port": "1", "instance": f"node{node}:9100", "job": "node"}
            rows += [("node_infiniband_state_id", labels, at, 4), ("node_infiniband_physical_state_id", labels, at, 5),
                     ("node_infiniband_rate_bytes_per_second", labels, at, 5e10)]
            if node:
                share = 0.25 if node == 1 else 1.0
                rows += [("node_infiniband_link_downed_total", labels, at, 0),
                         ("node_infiniband_port_data_received_bytes_total", labels, at, share * 8e9 * at),
                         ("node_infiniband_port_data_transmitted_bytes_total", labels, at, share * 8e9 * at)]
    tidy(rows, tmp_path / "ports.parquet")
    assert incidents_of(tmp_path) == []
