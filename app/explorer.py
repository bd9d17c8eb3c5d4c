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
from app.story import MISSING, action_lines, because, evidence, part
from core.clock import parse_rfc3339, rfc3339
from core.errors import BadInput, GreylagError, Unavailable
from core.signals import SIGNALS
from core.targets import CLOSED_STATES

DEFAULT_URL = "http://127.0.0.1:9470"
BEFORE_MS, AFTER_MS = 10 * 60_000, 5 * 60_000
LAST_STEP = "rank.last_step_timestamp_seconds"
CULPRIT, PEERS = "culprit", "median of all parts"
ROW_PIXELS, CHART_PIXELS = 56, 260
SHOWN_INCIDENTS = 200
# What people read on an axis: SI prefixes for large units, per cent for shares, whole numbers for bit masks.
AXIS_FORMATS = {"Hz": "~s", "bytes": "~s", "bytes/s": "~s", "ratio": "~%", "bits": "d"}
# What an axis is called where the unit alone would not be read.
AXIS_TITLES = {"ratio": "share", "1/s": "per second", "seq": "sequence number", "count": "number", "bool": "0 = no, 1 = yes", "bits": "bit mask"}
# On a slow machine, which is when one looks, a page that renews itself would be grey half of the time, and large numbers cut.
STYLE = """<style>
[data-stale="true"] { opacity: 1 !important; }
[data-testid="stMetricValue"] { font-size: 1.6rem; }
[data-testid="stMainBlockContainer"] { padding-top: 3rem; }
</style>"""
STATE_COLOURS = {"in service": "#2f9e44", "incident": "#e03131", "drained": "#868e96", "spare": "#1c7ed6", "unknown": "#f08c00"}


@st.cache_resource
def client() -> Client:
    """One client for all sessions."""
    return Client(os.environ.get("GREYLAG_URL", DEFAULT_URL))


def ask(path: str, **params: Any) -> Any:
    """The API's answer; where there is none the page says so in a sentence and stops."""
    try:
        return client().get(path, **params)
    except Unavailable:
        st.error(f"Greylag does not answer at {client().url}. Start it with `greylag run -c greylag.yaml`, or set"
                 " GREYLAG_URL to where it listens; then reload this page.")
        st.stop()
    except GreylagError as error:
        st.error(f"Greylag could not answer: {error}")
        st.stop()


def warn_where_late() -> None:
    """What is old must not look like a quiet fleet."""
    try:
        client().get("/readyz")
    except GreylagError as error:
        st.warning(f"What is shown may be out of date: Greylag judges nothing now. {error}")


def incidents() -> list[dict[str, Any]]:
    """The newest incidents, without those that a wider one absorbed."""
    rows = ask("/api/greylag/v1/incidents", limit=SHOWN_INCIDENTS)["items"]
    return [r for r in rows if r["state"] != "merged"]


def is_open(one: dict[str, Any]) -> bool:
    return one["state"] not in CLOSED_STATES


def node_rows(inventory: dict[str, Any], rows: list[dict[str, Any]], reports: dict[str, str]) -> list[dict[str, Any]]:
    """One row a node: its state in one word, its place, and what is open on it. Silence is unknown, never in service."""
    open_on: dict[str, list[str]] = {}
    for one in rows:
        if is_open(one) and one["culprit"] and one["culprit"].get("node"):
            open_on.setdefault(one["culprit"]["node"], []).append(one["fault"])
    out = []
    for node in inventory["nodes"]:
        name, declared = node["name"], node["state"].replace("_", " ")
        silent = declared == "in service" and reports.get(name) != "fresh"
        state = "incident" if name in open_on else "unknown" if silent else declared
        out.append({"node": name, "state": state, "in_service": declared == "in service", "rack": node.get("rack") or "", "leaf": node.get("leaf") or "",
                    "open": ", ".join(open_on.get(name, []))})
    return out


def node_grid(rows: list[dict[str, Any]]) -> alt.Chart:
    """A square a node, grouped by rack."""
    frame = pl.DataFrame(rows).with_columns(pl.int_range(pl.len()).over("rack").alias("slot"))
    # A single row would be one square of the page's width: at least eight places are drawn.
    places = list(range(max(8, int(frame["slot"].max()) + 1)))  # type: ignore[arg-type]
    colours = alt.Scale(domain=list(STATE_COLOURS), range=list(STATE_COLOURS.values()))
    base = alt.Chart(frame).encode(
        x=alt.X("slot:O", axis=None, scale=alt.Scale(domain=places)), y=alt.Y("rack:N", title=None), tooltip=["node", "state", "rack", "leaf", "open"])
    squares = base.mark_rect(cornerRadius=4, stroke="white", strokeWidth=3).encode(
        color=alt.Color("state:N", scale=colours, legend=alt.Legend(title=None, orient="top")))
    names = base.mark_text(color="white", fontSize=12).encode(text="node:N")
    return (squares + names).properties(height=40 + ROW_PIXELS * frame["rack"].n_unique())


@st.fragment(run_every="5s")
def fleet_live() -> None:
    """The part of the fleet page that renews itself."""
    rows = incidents()
    warn_where_late()
    inventory = ask("/api/greylag/v1/inventory")
    reports = ask("/api/greylag/v1/coverage", limit=1)["nodes"]
    tick = ask("/api/greylag/v1/records", cursor=2**53, limit=1)["tick"]
    opened = [r for r in rows if is_open(r)]
    nodes = node_rows(inventory, rows, reports)
    columns = st.columns(4)
    columns[0].metric("Open incidents", len(opened))
    columns[1].metric("Nodes in service", sum(n["in_service"] for n in nodes))
    columns[2].metric("GPU-hours lost", f"{sum(r['lost_gpu_hours'] for r in rows):.1f}")
    columns[3].metric("Last tick (UTC)", tick[11:19] if tick else "none")
    if nodes:
        st.altair_chart(node_grid(nodes), width="stretch")
    else:
        st.info("No inventory is configured: nodes are not shown.")
    if not rows:
        st.subheader("Incidents")
        st.success("No incident has been opened.")
        return
    if opened:
        st.subheader("Open now")
    for one in opened:
        st.page_link(incident_link(), label=f"{one['fault']} on {part(one['culprit'])}: {one['state']}, {because(one['reason'])}",
                     icon=":material/error:", query_params={"incident": one["id"]})
    st.subheader("Incidents")
    incident_table(rows)


def incident_table(rows: list[dict[str, Any]]) -> None:
    """All incidents, each with a link to its page."""
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
    if len(rows) >= SHOWN_INCIDENTS:
        st.caption(f"The newest {SHOWN_INCIDENTS} are shown; the API has the others.")


def fleet_page() -> None:
    """The fleet at a glance."""
    st.title("Fleet at a glance")
    fleet_live()


def evidence_frame(answer: dict[str, Any], culprit: dict[str, Any] | None) -> pl.DataFrame:
    """Long rows (time, value, who) of a signal: the culprit against the median of all parts; missing values break a line."""
    times = [parse_rfc3339(t) for t in answer["times"]]
    if answer["signal"] == LAST_STEP:
        answer = since_last_step(answer, times)
    lines = [(CULPRIT, one["values"]) for one in answer["series"] if culprit and _is(one["target"], culprit)]
    lines.append((PEERS, answer["median"]))
    rows = [{"time": t, "value": v, "who": who} for who, values in lines if any(v is not None for v in values)
            for t, v in zip(times, values, strict=True)]
    frame = pl.DataFrame(rows, schema={"time": pl.Int64, "value": pl.Float64, "who": pl.String})
    return frame.with_columns(pl.from_epoch("time", time_unit="ms"))


def since_last_step(answer: dict[str, Any], times: list[int]) -> dict[str, Any]:
    """Times of last steps as seconds since then: nobody reads seconds since the epoch."""
    def ages(values: list[float | None]) -> list[float | None]:
        return [None if v is None else t / 1000 - v for t, v in zip(times, values, strict=True)]

    return {**answer, "median": ages(answer["median"]),
            "series": [{**one, "values": ages(one["values"])} for one in answer["series"]]}


def _is(target: dict[str, Any], culprit: dict[str, Any]) -> bool:
    if target["kind"] == "rank" and culprit.get("rank") is not None:
        return bool((target["job"], target["rank"]) == (culprit.get("job"), culprit["rank"]))
    if target["kind"] == culprit["kind"] and target.get("id") and culprit.get("id"):
        return bool(target["id"] == culprit["id"])
    return bool((target["node"], target["device"]) == (culprit.get("node"), culprit.get("device")))


def evidence_chart(frame: pl.DataFrame, unit: str, marks: list[dict[str, Any]]) -> alt.LayerChart:
    """Culprit against peers, with the incident's moments as rules."""
    colours = alt.Scale(domain=[CULPRIT, PEERS], range=["#e03131", "#adb5bd"])
    axis = alt.Axis(format=AXIS_FORMATS.get(unit, alt.Undefined), titleFontWeight="normal")
    def line(who: str, width: float) -> alt.Chart:
        return alt.Chart(frame.filter(pl.col("who") == who)).mark_line(interpolate="step-after", strokeWidth=width).encode(
            x=alt.X("time:T", title="UTC", axis=alt.Axis(format="%H:%M", tickCount=8, titleFontWeight="normal"),
                    scale=alt.Scale(type="utc")),
            y=alt.Y("value:Q", title=AXIS_TITLES.get(unit, unit), axis=axis, scale=alt.Scale(zero=False)),
            color=alt.Color("who:N", scale=colours, legend=alt.Legend(title=None, orient="bottom")),
            tooltip=[alt.Tooltip("time:T", format="%H:%M:%S"), alt.Tooltip("value:Q", format=".4~g"), "who:N"])

    # The peers' line is broad and lies below, so that both are seen where the culprit is like its peers.
    lines = line(PEERS, 5) + line(CULPRIT, 2)
    moments = pl.DataFrame(marks).with_columns(pl.from_epoch("time", time_unit="ms"))
    base = alt.Chart(moments).encode(x=alt.X("time:T", scale=alt.Scale(type="utc")))
    rules = base.mark_rule(strokeDash=[4, 3], color="#1c7ed6")
    words = base.mark_text(align="left", dx=2, color="#1c7ed6", baseline="bottom").encode(text="what:N")
    low = words.transform_filter("!datum.high").encode(y=alt.value(-4))
    high = words.transform_filter("datum.high").encode(y=alt.value(-17))
    return (lines + rules + low + high).properties(height=CHART_PIXELS)


def moments(one: dict[str, Any]) -> list[dict[str, Any]]:
    """The incident's moments as rows (time in ms, what, high = one line up, so that near ones stay readable)."""
    found = [("onset", one["onset_at"]), ("opened", one["opened_at"])]
    if one["resolved_at"]:
        found.append((one["state"], one["resolved_at"]))
    return [{"time": parse_rfc3339(at), "what": what, "high": i % 2 == 1} for i, (what, at) in enumerate(found)]


def show_evidence(one: dict[str, Any]) -> None:
    """Each measured reason as a sentence; each signal once as a chart around the incident."""
    marks = moments(one)
    start = marks[0]["time"] - BEFORE_MS
    end = parse_rfc3339(one["resolved_at"] or one["updated_at"]) + AFTER_MS
    sentences: dict[str, list[str]] = {}
    told: set[tuple[str, str]] = set()  # two findings of one incident may say the same with other numbers
    for row, line in zip(one["evidence"], evidence(one["evidence"], len(one["evidence"])), strict=True):
        if (row["signal"], row["compared_with"]) not in told:
            told.add((row["signal"], row["compared_with"]))
            sentences.setdefault(row["signal"], []).append(line)
    if not sentences:
        st.caption("No measurement belongs to this incident.")
    columns = st.columns(2)
    for i, (signal, words) in enumerate(sentences.items()):
        with columns[i % 2]:
            st.markdown("  \n".join(f"**{line}**" for line in words))
            if signal in SIGNALS:
                show_signal(signal, one, start, end, marks)


def show_signal(signal: str, one: dict[str, Any], start: int, end: int, marks: list[dict[str, Any]]) -> None:
    """The chart of a signal: the culprit and the median of all parts from the store, also long after the incident."""
    answer = ask("/api/greylag/v1/windows", signal=signal, start=rfc3339(start), end=rfc3339(end),
                 node=(one["culprit"] or {}).get("node"))
    frame = evidence_frame(answer, one["culprit"])
    if frame.is_empty():
        st.caption("No value of this signal is stored around the incident.")
        return
    st.altair_chart(evidence_chart(frame, answer["unit"], marks), width="stretch")
    if answer["cut"]:
        st.caption(f"Not all is drawn: {answer['cut']}.")


def chosen_incident(rows: list[dict[str, Any]]) -> str | None:
    """The incident that the address or the box asks for; None where there is none."""
    wanted = st.query_params.get("incident")
    if wanted and wanted not in {r["id"] for r in rows}:
        try:
            rows = [client().get(f"/api/greylag/v1/incidents/{wanted}")["incident"], *rows]
        except BadInput:
            st.warning(f"There is no incident {wanted}.")
        except Unavailable:
            ask("/healthz")
    if not rows:
        return None
    names = {r["id"]: f"{r['opened_at'][:19].replace('T', ' ')}  {r['fault']} on {part(r['culprit'])} ({r['state']})"
             for r in rows}
    ids = list(names)
    index = ids.index(wanted) if wanted in names else 0
    chosen = st.selectbox("Incident", ids, index=index, format_func=lambda i: names.get(i, i), key="incident")
    st.query_params["incident"] = chosen
    return str(chosen)


def lasted(one: dict[str, Any]) -> str:
    """How long it lasted or lasts, from its onset."""
    end = one["resolved_at"] or one["updated_at"]
    minutes = (parse_rfc3339(end) - parse_rfc3339(one["onset_at"])) / 60_000
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def incident_page() -> None:
    """One incident: what, where, why, what was done."""
    title = st.empty()
    title.title("Incident")
    chosen = chosen_incident(incidents())
    if chosen is None:
        st.success("No incident has been opened.")
        return
    answer = ask(f"/api/greylag/v1/incidents/{chosen}")
    one = answer["incident"]
    title.title(f"{one['fault']} on {part(one['culprit'])}")
    columns = st.columns(4)
    columns[0].metric("State", one["state"])
    columns[1].metric("Confidence", f"{one['confidence']:.2f}")
    columns[2].metric("Lasted" if one["resolved_at"] else "Lasts for", lasted(one))
    columns[3].metric("GPU-hours lost", f"{one['lost_gpu_hours']:.2f}")
    st.caption(f"{one['id']} · {one['state']}: {because(one['reason'])} · scope {one['scope']} · owner {one['owner']} · {one['class']}"
               f" · jobs: {', '.join(one['jobs']) or 'none'} · onset {one['onset_at'][:19].replace('T', ' ')} UTC")
    left, right = st.columns(2)
    left.subheader("What was done")
    done = [f"{row['at'][11:19]} {' '.join(line.strip() for line in action_lines(row))}" for row in answer["actions"]
            if row["outcome"]["state"] != "RUNNING"]
    if done:
        left.caption("Times are UTC.")
        left.text("\n".join(done))
    else:
        left.caption("Nothing was done.")
    right.subheader("Suspects")
    if one["suspects"]:
        right.dataframe([{"part": part(s["target"]), "probability": s["probability"], "reasons": ", ".join(s["reasons"])}
                         for s in one["suspects"]], hide_index=True, width="stretch")
    else:
        right.caption("No single part stands out.")
    st.subheader("Evidence")
    show_evidence(one)
    show_timeline(answer)


def show_timeline(answer: dict[str, Any]) -> None:
    """What changed, what was seen and what was done, in order; what is not watched there; the page of the fault."""
    rows = answer.get("timeline", [])
    if rows:
        st.subheader("Timeline")
        st.dataframe([{"UTC": row["at"][:19].replace("T", " "), "kind": row["kind"], "what": row["text"],
                       "part": part(row["target"]) if row["target"] else "", "by": row["actor"] or ""} for row in rows],
                     hide_index=True, width="stretch")
    if spots := answer.get("blind_spots", []):
        st.subheader("Not watched here")
        st.dataframe([{"fault": spot["fault"] or "everything", "why": MISSING.get(spot["state"], spot["state"]), "needs": " or ".join(spot["any_of"]),
                       "nodes": ", ".join(spot["nodes"])} for spot in spots], hide_index=True, width="stretch")
    if url := answer.get("runbook_url"):
        st.markdown(f"[What to do: the page of this fault]({url})")


@st.cache_resource
def pages() -> list[Any]:
    """The two pages; the second is what links point to."""
    return [st.Page(fleet_page, title="Fleet", url_path="fleet", default=True),
            st.Page(incident_page, title="Incident", url_path="incident")]


def incident_link() -> Any:
    """The incident page, as a link's aim."""
    return pages()[1]


def main() -> None:
    """The two pages."""
    st.set_page_config(page_title="Greylag", layout="wide")
    st.set_option("client.toolbarMode", "minimal")
    st.html(STYLE)
    st.navigation(pages()).run()


main()
