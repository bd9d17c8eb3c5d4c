"""The root-cause explorer: the fleet at a glance, and one incident with its evidence. Reads the API, never the store.

Run by `greylag demo`, or `GREYLAG_URL=http://127.0.0.1:9470 streamlit run app/explorer.py`.
"""

from __future__ import annotations

import os
from typing import Any

import altair as alt
import polars as pl
import streamlit as st

from app.client import Client
from app.story import action_lines, evidence, part
from core.clock import parse_rfc3339, rfc3339
from core.errors import GreylagError
from core.targets import CLOSED_STATES

DEFAULT_URL = "http://127.0.0.1:9470"
BEFORE_MS, AFTER_MS = 10 * 60_000, 5 * 60_000
CULPRIT, PEERS = "culprit", "median of all"
STATE_COLOURS = {"in service": "#2f9e44", "incident": "#e03131", "drained": "#868e96", "spare": "#1c7ed6", "unknown": "#f08c00"}


@st.cache_resource
def client() -> Client:
    """One client for all sessions."""
    return Client(os.environ.get("GREYLAG_URL", DEFAULT_URL))


def ask(path: str, **params: Any) -> Any:
    """The API's answer; where nobody answers the page says so and stops."""
    try:
        return client().get(path, **params)
    except GreylagError as error:
        st.error(f"{error}")
        st.stop()


def incidents() -> list[dict[str, Any]]:
    """Incidents, the newest first, without those that a wider one absorbed."""
    rows = ask("/api/greylag/v1/incidents", limit=200)["items"]
    return sorted((r for r in rows if r["state"] != "merged"), key=lambda r: r["opened_at"], reverse=True)


def is_open(one: dict[str, Any]) -> bool:
    return one["state"] not in CLOSED_STATES


def node_rows(inventory: dict[str, Any], rows: list[dict[str, Any]], coverage: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a node: its state in one word, its place, and what is open on it."""
    open_on: dict[str, list[str]] = {}
    for one in rows:
        if is_open(one) and one["culprit"] and one["culprit"].get("node"):
            open_on.setdefault(one["culprit"]["node"], []).append(one["fault"])
    lost = {row["node"] for row in coverage if row.get("state") == "lost" and row.get("node")}
    out = []
    for node in inventory["nodes"]:
        name, declared = node["name"], node["state"].replace("_", " ")
        state = "incident" if name in open_on else "unknown" if name in lost else declared
        out.append({"node": name, "state": state, "rack": node.get("rack") or "", "leaf": node.get("leaf") or "",
                    "open": ", ".join(open_on.get(name, []))})
    return out


def node_grid(rows: list[dict[str, Any]]) -> alt.Chart:
    """A square a node, grouped by rack."""
    frame = pl.DataFrame(rows).with_columns(pl.int_range(pl.len()).over("rack").alias("slot"))
    colours = alt.Scale(domain=list(STATE_COLOURS), range=list(STATE_COLOURS.values()))
    base = alt.Chart(frame).encode(
        x=alt.X("slot:O", axis=None), y=alt.Y("rack:N", title=None), tooltip=["node", "state", "rack", "leaf", "open"])
    squares = base.mark_rect(cornerRadius=4, stroke="white", strokeWidth=3).encode(
        color=alt.Color("state:N", scale=colours, legend=alt.Legend(title=None, orient="top")))
    names = base.mark_text(color="white", fontSize=12).encode(text="node:N")
    return (squares + names).properties(height=max(70, 64 * frame["rack"].n_unique()))


@st.fragment(run_every="5s")
def fleet_live() -> None:
    """The part of the fleet page that renews itself."""
    rows = incidents()
    inventory = ask("/api/greylag/v1/inventory")
    coverage = ask("/api/greylag/v1/coverage")["items"]
    tick = ask("/api/greylag/v1/records", cursor=2**53, limit=1)["tick"]
    opened = [r for r in rows if is_open(r)]
    nodes = node_rows(inventory, rows, coverage)
    columns = st.columns(4)
    columns[0].metric("Open incidents", len(opened))
    columns[1].metric("Nodes in service", sum(n["state"] in ("in service", "incident") for n in nodes))
    columns[2].metric("GPU-hours lost", f"{sum(r['lost_gpu_hours'] for r in rows):.1f}")
    columns[3].metric("Last tick (UTC)", tick[11:19] if tick else "none")
    if nodes:
        st.altair_chart(node_grid(nodes), width="stretch")
    else:
        st.info("No inventory is configured: nodes are not shown.")
    st.subheader("Incidents")
    if not rows:
        st.success("No incident has been opened.")
        return
    st.dataframe(
        [{"opened (UTC)": r["opened_at"][:19].replace("T", " "), "state": r["state"], "fault": r["fault"],
          "part": part(r["culprit"]), "confidence": r["confidence"], "jobs": ", ".join(r["jobs"]),
          "GPU-hours lost": r["lost_gpu_hours"], "evidence": f"/incident?incident={r['id']}"} for r in rows],
        hide_index=True, width="stretch",
        column_config={
            "evidence": st.column_config.LinkColumn(display_text="open"),
            "confidence": st.column_config.NumberColumn(format="%.2f"),
            "GPU-hours lost": st.column_config.NumberColumn(format="%.2f"),
        },
    )


def fleet_page() -> None:
    """The fleet at a glance."""
    st.title("Fleet at a glance")
    fleet_live()


def evidence_frame(answer: dict[str, Any], culprit: dict[str, Any] | None) -> pl.DataFrame:
    """Long rows (time, value, who) of a signal: the culprit against the median of all parts."""
    times = [parse_rfc3339(t) for t in answer["times"]]
    rows = [{"time": t, "value": v, "who": PEERS} for t, v in zip(times, answer["median"], strict=True) if v is not None]
    for one in answer["series"]:
        if culprit and _is(one["target"], culprit):
            rows += [{"time": t, "value": v, "who": CULPRIT} for t, v in zip(times, one["values"], strict=True) if v is not None]
    frame = pl.DataFrame(rows, schema={"time": pl.Int64, "value": pl.Float64, "who": pl.String})
    return frame.with_columns(pl.from_epoch("time", time_unit="ms"))


def _is(target: dict[str, Any], culprit: dict[str, Any]) -> bool:
    if target["kind"] == "rank" and culprit.get("rank") is not None:
        return bool((target["job"], target["rank"]) == (culprit.get("job"), culprit["rank"]))
    if target["kind"] == culprit["kind"] and target.get("id") and culprit.get("id"):
        return bool(target["id"] == culprit["id"])
    return bool((target["node"], target["device"]) == (culprit.get("node"), culprit.get("device")))


def evidence_chart(frame: pl.DataFrame, unit: str, marks: list[dict[str, Any]]) -> alt.LayerChart:
    """Culprit against peers, with the incident's moments as rules."""
    colours = alt.Scale(domain=[CULPRIT, PEERS], range=["#e03131", "#868e96"])
    lines = alt.Chart(frame).mark_line(interpolate="step-after", strokeWidth=2).encode(
        x=alt.X("time:T", title="UTC", axis=alt.Axis(format="%H:%M"), scale=alt.Scale(type="utc")),
        y=alt.Y("value:Q", title=unit, scale=alt.Scale(zero=False)),
        color=alt.Color("who:N", scale=colours, legend=alt.Legend(title=None, orient="top")),
        tooltip=["time:T", "value:Q", "who:N"])
    moments = pl.DataFrame(marks).with_columns(pl.from_epoch("time", time_unit="ms"))
    base = alt.Chart(moments).encode(x=alt.X("time:T", scale=alt.Scale(type="utc")))
    rules = base.mark_rule(strokeDash=[4, 3], color="#1c7ed6")
    words = base.mark_text(align="left", dx=4, dy=-4, y=0, color="#1c7ed6", baseline="top").encode(text="what:N")
    return (lines + rules + words).properties(height=220)


def show_evidence(one: dict[str, Any]) -> None:
    """A chart and a sentence for each signal of the incident's evidence."""
    onset, opened = parse_rfc3339(one["onset_at"]), parse_rfc3339(one["opened_at"])
    marks = [{"time": onset, "what": "onset"}, {"time": opened, "what": "opened"}]
    end = parse_rfc3339(one["updated_at"])
    if one["resolved_at"]:
        end = parse_rfc3339(one["resolved_at"])
        marks.append({"time": end, "what": "resolved"})
    for row, words in zip(one["evidence"], evidence(one["evidence"], 20), strict=False):
        st.markdown(f"**{words}**")
        if "." not in row["signal"]:
            continue
        answer = ask("/api/greylag/v1/windows", signal=row["signal"], start=rfc3339(onset - BEFORE_MS),
                     end=rfc3339(end + AFTER_MS))
        frame = evidence_frame(answer, one["culprit"])
        if frame.is_empty():
            st.caption("No stored values of this signal around the incident.")
            continue
        st.altair_chart(evidence_chart(frame, answer["unit"], marks), width="stretch")


def incident_page() -> None:
    """One incident: what, where, why, what was done."""
    rows = incidents()
    st.title("Incident")
    if not rows:
        st.success("No incident has been opened.")
        return
    ids = [r["id"] for r in rows]
    wanted = st.query_params.get("incident")
    names = {r["id"]: f"{r['opened_at'][:19].replace('T', ' ')}  {r['fault']} on {part(r['culprit'])}  ({r['state']})" for r in rows}
    chosen = st.selectbox("Incident", ids, index=ids.index(wanted) if wanted in ids else 0, format_func=names.__getitem__,
                          key="incident")
    st.query_params["incident"] = chosen
    answer = ask(f"/api/greylag/v1/incidents/{chosen}")
    one = answer["incident"]
    columns = st.columns(4)
    columns[0].metric("Fault", one["fault"])
    columns[1].metric("Part", part(one["culprit"]))
    columns[2].metric("Confidence", f"{one['confidence']:.2f}")
    columns[3].metric("GPU-hours lost", f"{one['lost_gpu_hours']:.2f}")
    st.caption(f"{one['id']} · scope {one['scope']} · owner {one['owner']} · {one['class']} · {one['state']}: {one['reason']}"
               f" · jobs {', '.join(one['jobs']) or 'none'}")
    st.subheader("Evidence")
    show_evidence(one)
    left, right = st.columns(2)
    left.subheader("Suspects")
    left.dataframe([{"part": part(s["target"]), "probability": s["probability"], "reasons": ", ".join(s["reasons"])}
                    for s in one["suspects"]], hide_index=True, width="stretch")
    right.subheader("What was done")
    for row in answer["actions"]:
        for line in action_lines(row):
            right.text(f"{row['outcome']['at'][11:19] if row['outcome']['at'] else ''} {line.strip()}")
    if not answer["actions"]:
        right.caption("Nothing was done.")


def main() -> None:
    """The two pages."""
    st.set_page_config(page_title="Greylag", layout="wide")
    pages = [st.Page(fleet_page, title="Fleet", url_path="fleet", default=True),
             st.Page(incident_page, title="Incident", url_path="incident")]
    st.navigation(pages).run()


main()
