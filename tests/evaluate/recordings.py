"""Makes recordings that nobody tuned Greylag on: `write(plan, folder)`; what is in them is drawn from a seed.

Files are as DESIGN §5 has them. The truth is given back, never written.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tests.evaluate.logs import log_lines
from tests.evaluate.pages import Page, all_pages, culprit_port, node_of_ports, ports_of, uuid_of
from tests.evaluate.plan import Plan
from tests.evaluate.world import run_job


@dataclass(frozen=True)
class Truth:
    """What was planted. also: culprits that say the same (a rank where its GPU is not known)."""

    fault: str
    scope: tuple[str, ...]
    node: str | None
    device: str | None
    id: str | None
    job: str | None
    rank: int | None
    at_ms: int


def _value(value: float) -> str:
    if np.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else ""


def _lines(page: Page, plan: Plan, seconds: bool) -> list[tuple[int, list[str]]]:
    """(ms, lines) by scrape."""
    at = plan.start_ms + np.round(page.times * 1000).astype(np.int64)
    shown = [f"{ms / 1000:.3f}" if seconds else str(ms) for ms in at.tolist()]
    heads = [(family.name + _labels(labels), values) for family in page.families for labels, values in family.rows]
    texts = [[f"{head} {_value(v)} {shown[i]}" for i, v in enumerate(values.tolist()) if not np.isnan(v)
              or "_loss" in head] for head, values in heads]
    out: list[tuple[int, list[str]]] = [(int(ms), []) for ms in at]
    place = {text: i for i, text in enumerate(shown)}
    for rows in texts:
        for line in rows:
            out[place[line.rpartition(" ")[2]]][1].append(line)
    return out


def _by_family(pages: list[Page], plan: Plan) -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for page in pages:
        at = plan.start_ms + np.round(page.times * 1000).astype(np.int64)
        for family in page.families:
            rows = grouped.setdefault((family.name, family.type), [])
            for labels, values in family.rows:
                head = family.name + _labels(labels)
                rows += [f"{head} {_value(v)} {ms}" for ms, v in zip(at.tolist(), values.tolist(), strict=True)]
    out = []
    for (name, kind), rows in grouped.items():
        out += [f"# HELP {name} of the recording", f"# TYPE {name} {kind}", *rows]
    return "\n".join(out) + "\n"


def _table(pages: list[Page], plan: Plan) -> pl.DataFrame:
    parts = []
    for page in pages:
        at = plan.start_ms + np.round(page.times * 1000).astype(np.int64)
        for family in page.families:
            for labels, values in family.rows:
                parts.append(pl.DataFrame({
                    "metric": [family.name] * len(at), "labels": [json.dumps(labels)] * len(at),
                    "timestamp": at, "value": values.astype(float)}))
    return pl.concat(parts).sort("timestamp")


def write(plan: Plan, folder: Path) -> Truth | None:
    """Writes the recording of a plan and gives what was planted, None for a healthy one."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [run_job(plan, job, plan.fault if plan.fault is not None and i == plan.notes.get("job") else None)
            for i, job in enumerate(plan.jobs)]
    pages = all_pages(plan, runs)
    _write_samples(plan, pages, folder)
    for run in runs:
        lines = log_lines(plan, run)
        if lines:
            (folder / f"trainer.{run.job.name}.log").write_text("\n".join(lines) + "\n")
    if plan.inventory:
        (folder / "inventory.yaml").write_text(_inventory(plan))
    return truth_of(plan, runs[int(str(plan.notes["job"]))]) if plan.fault is not None else None


def _write_samples(plan: Plan, pages: list[Page], folder: Path) -> None:
    form = "node" if plan.address == "stem" else plan.form
    if form == "node":
        for node in sorted({p.node for p in pages}):
            scrapes = sorted((s for p in pages if p.node == node for s in _lines(p, plan, False)), key=lambda s: s[0])
            (folder / f"{node}.prom").write_text("\n".join(line for _, lines in scrapes for line in lines) + "\n")
    elif form in ("time", "om"):
        scrapes = sorted((s for p in pages for s in _lines(p, plan, form == "om")), key=lambda s: s[0])
        text = "\n".join(line for _, lines in scrapes for line in lines) + "\n"
        (folder / f"all.{'om' if form == 'om' else 'prom'}").write_text(text + ("# EOF\n" if form == "om" else ""))
    elif form == "family":
        (folder / "cluster.prom").write_text(_by_family(pages, plan))
    elif form == "parquet":
        _table(pages, plan).write_parquet(folder / "tidy.parquet")
    else:
        buffer = io.BytesIO()
        _table(pages, plan).write_csv(buffer)
        (folder / "tidy.csv").write_bytes(buffer.getvalue())


def _inventory(plan: Plan) -> str:
    rows = ["nodes:"]
    for i, name in enumerate(plan.nodes):
        rows.append(f"- {{name: {name}, instance_type: p5.48xlarge, rack: r{i // 4}, leaf: leaf{i // 8}}}")
    rows.append("jobs:")
    for job in plan.jobs:
        rows.append(f"- {{id: {job.name}, nodes: [{', '.join(plan.nodes[n] for n in job.nodes)}], ranks_per_node: {plan.used}}}")
    return "\n".join(rows) + "\n"


def truth_of(plan: Plan, run) -> Truth:  # type: ignore[no-untyped-def]
    """What must be found."""
    fault = plan.fault
    assert fault is not None
    at = plan.start_ms + int(fault.at * 1000)
    node = plan.nodes[fault.node]
    if fault.kind == "thermal_throttle":
        return Truth(fault.kind, ("device",), node, str(fault.device), uuid_of(plan, fault.node, fault.device), None, None, at)
    if fault.kind == "packet_loss":
        return Truth(fault.kind, ("device",), node_of_ports(plan, fault.node), ports_of(plan)[culprit_port(plan)], None, None,
                     None, at)
    named = fault.how == "rank" and run.job.seq and run.job.metrics == "all"
    if named:
        return Truth(fault.kind, ("device",), node, str(fault.device), None, run.job.name, run.behind, at)
    return Truth(fault.kind, ("job", "device") if fault.how == "rank" else ("job",), None, None, None, run.job.name, run.behind, at)
