"""The fleet at a glance: what is open, which part, what the job does, what the parts do, what Greylag itself costs.

Every query is a plain selector, so the same JSON works on Greylag's own API and on a Prometheus that scrapes the same
exporters and Greylag's /metrics. One data source variable (`ds`) chooses between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from core.config import LagLimits

UID = "greylag-fleet"
SOURCE = common.DataSourceRef(type_val="prometheus", uid="${ds}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A time series panel: what people read and what is asked."""

    title: str
    expr: str
    legend: str
    unit: str
    description: str
    span: int = 12
    limit: float | None = None  # above it the value is red


LAGS = LagLimits()
GRAPHS: dict[str, tuple[Graph, ...]] = {
    "Training job": (
        Graph("Step time", 'greylag_train_step_seconds{job=~"$job"}', "rank {{rank}} {{node}}", "s",
              "Seconds of the last step by rank. In a synchronous job all ranks show the same; who waits least is the culprit."),
        Graph("Waiting in collectives", 'greylag_train_comm_wait_seconds{job=~"$job"}', "rank {{rank}} {{node}}", "s",
              "Victims wait, the culprit does not."),
        Graph("Loss", 'greylag_train_loss{job=~"$job"}', "rank {{rank}}", "none", "Training loss by rank."),
        Graph("Step", 'greylag_train_step{job=~"$job"}', "rank {{rank}}", "none", "Last finished step. It goes back after a resume."),
    ),
    "GPUs": (
        Graph("Temperature", 'DCGM_FI_DEV_GPU_TEMP{node=~"$node"}', "{{node}} GPU {{gpu}}", "celsius", "Core temperature."),
        Graph("Margin to slowdown", 'DCGM_FI_DEV_GPU_TEMP_LIMIT{node=~"$node"}', "{{node}} GPU {{gpu}}", "celsius",
              "Distance to the nearest slowdown limit; 0 or less means that the GPU is slowed by heat."),
        Graph("SM clock", 'DCGM_FI_DEV_SM_CLOCK{node=~"$node"}', "{{node}} GPU {{gpu}}", "rotmhz",
              "A low clock at the power limit is normal; a low clock far below it is not."),
        Graph("Power", 'DCGM_FI_DEV_POWER_USAGE{node=~"$node"}', "{{node}} GPU {{gpu}}", "watt", "Board power."),
        Graph("Tensor pipe active", 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{node=~"$node"}', "{{node}} GPU {{gpu}}", "percentunit",
              "The best proxy of useful work: near 0 with a busy GPU means a hang."),
        Graph("Last XID", 'DCGM_FI_DEV_XID_ERRORS{node=~"$node"}', "{{node}} GPU {{gpu}}", "none",
              "A gauge that keeps its last value: only a change means something."),
    ),
    "Network": (
        Graph("Link rate", 'node_infiniband_rate_bytes_per_second{node=~"$node"}', "{{node}} {{device}}/{{port}}", "Bps",
              "Negotiated rate by port."),
        Graph("Out-of-sequence packets", 'node_infiniband_out_of_sequence_packets_received_total{node=~"$node"}',
              "{{node}} {{device}}/{{port}}", "none", "Counter: a steady climb on one port is loss seen there."),
    ),
    "Greylag itself": (
        Graph("Wall time of a tick", "greylag_tick_seconds", "tick", "s", "Must stay far below 15 s."),
        Graph("Collector lag", "greylag_collector_lag_seconds", "{{worker}}", "s", "Cluster time since a worker's watermark.",
              limit=LAGS.ingest_seconds),
        Graph("How far behind", "greylag_lag_seconds", "{{part}}", "s",
              "Ingest and detect in cluster time, notify by its oldest message. Beyond the limits of `heartbeat` no heartbeat is sent.",
              limit=LAGS.detect_seconds),
        Graph("Shed level", "greylag_collector_shed_level", "{{worker}}", "none",
              "0: everything is read. Above it something is left out to stay within the budgets, and is unknown meanwhile.", limit=1),
        Graph("Messages that wait", "greylag_outbox_pending", "{{notifier}}", "none", "Not delivered yet, by receiver."),
        Graph("Dead letters", "greylag_outbox_dead", "{{notifier}}", "none",
              "Messages that were given up: `greylag incidents undelivered`.", limit=1),
    ),
}


def _query(expr: str, legend: str, instant: bool = False) -> prometheus.Dataquery:
    query = prometheus.Dataquery().ref_id("A").datasource(SOURCE).expr(expr).legend_format(legend)
    return query.instant() if instant else query.range()


def _graph(one: Graph) -> timeseries.Panel:
    legend = (common_builders.VizLegendOptions().show_legend(False).display_mode(common.LegendDisplayMode.LIST)
              .placement(common.LegendPlacement.BOTTOM))
    tooltip = (common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
               .sort(common.SortOrder.DESCENDING))
    made = (timeseries.Panel().title(one.title).description(one.description).datasource(SOURCE).unit(one.unit)
            .span(one.span).height(8).legend(legend).tooltip(tooltip).no_value("no data").with_target(_query(one.expr, one.legend)))
    if one.limit is None:
        return made
    line = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.LINE)
    return made.thresholds(_thresholds((None, "transparent"), (one.limit, "red"))).thresholds_style(line)


def _thresholds(*steps: tuple[float | None, str]) -> boards.ThresholdsConfig:
    return (boards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE)
            .steps([dashboard.Threshold(value=value, color=colour) for value, colour in steps]))


def _stat(title: str, expr: str, legend: str, description: str, unit: str, empty: str, *steps: tuple[float | None, str]) -> stat.Panel:
    """empty: what stands there without data, which is no number: nothing at all is known then. steps: colours, the first for all."""
    return (stat.Panel().title(title).description(description).datasource(SOURCE).span(6).height(5).unit(unit)
            .no_value(empty).thresholds(_thresholds(*steps)).with_target(_query(expr, legend, instant=True)))


def _nodes() -> table.Panel:
    """One row a node that is not in service. The states are one-hot: only those that hold are kept."""
    kept = dashboard.DataTransformerConfig(id_val="filterByValue", options={
        "type": "include", "match": "all", "filters": [{"fieldName": "Value", "config": {"id": "equal", "options": {"value": 1}}}]})
    organise = dashboard.DataTransformerConfig(id_val="organize", options={
        "excludeByName": {"Time": True, "Value": True, "__name__": True, "instance": True, "job": True},
        "indexByName": {"node": 0, "state": 1}, "renameByName": {"node": "Node", "state": "State"}})
    return (table.Panel().title("Nodes that are not in service")
            .description("Drained, spare, or unknown: a node that is not heard is unknown, never healthy.")
            .datasource(SOURCE).span(12).height(5).no_value("none that Greylag knows of")
            .with_target(_query('greylag_node_state{state!="in_service"}', "", instant=True).format(PromQueryFormat.TABLE))
            .with_transformation(kept).with_transformation(organise))


def _open_incidents() -> table.Panel:
    hidden = {"Time": True, "Value": True, "__name__": True, "instance": True}
    organise = dashboard.DataTransformerConfig(id_val="organize", options={
        "excludeByName": hidden, "indexByName": {"fault": 0, "scope": 1, "node": 2, "device": 3, "job": 4, "id": 5},
        "renameByName": {"fault": "Fault", "scope": "Scope", "node": "Node", "device": "Device", "job": "Jobs", "id": "Incident"},
    })
    return (table.Panel().title("Open incidents").description("One row an open incident: the fault and the part.")
            .datasource(SOURCE).span(12).height(5).no_value("nothing is open, or Greylag is not heard: see `Last tick`")
            .with_target(_query("greylag_incident_info", "", instant=True).format(PromQueryFormat.TABLE))
            .with_transformation(organise))


def _variables(board: boards.Dashboard) -> boards.Dashboard:
    source = boards.DatasourceVariable("ds").label("Data source").type("prometheus")
    job = (boards.QueryVariable("job").label("Job").datasource(SOURCE).refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
           .query("label_values(greylag_train_step, job)").multi(True).include_all(True).all_value(".*"))
    node = (boards.QueryVariable("node").label("Node").datasource(SOURCE)
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .query("label_values(DCGM_FI_DEV_GPU_TEMP, node)").multi(True).include_all(True).all_value(".*"))
    return board.with_variable(source).with_variable(job).with_variable(node)


def board() -> boards.Dashboard:
    """The dashboard's builder."""
    made = (boards.Dashboard("Greylag: fleet at a glance").uid(UID).tags(["greylag"]).refresh("15s").time("now-1h", "now")
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR).timezone("utc")
            .description("What is open, which part, what the jobs and the parts do."))
    made = _variables(made).with_row(boards.Row("Now"))
    made = made.with_panel(_open_incidents())
    made = made.with_panel(_stat("Open incidents by state", "greylag_incidents", "{{fault}} {{scope}} {{state}}",
                                 "Open incidents by fault, scope and state.", "none", "none open", (None, "green"), (1, "red")))
    # No unit of time: Grafana would turn a thousand GPU-hours into weeks.
    made = made.with_panel(_stat("GPU-hours lost", "greylag_lost_gpu_hours_total", "{{job}} {{fault}}",
                                 "GPU-hours that jobs lost to incidents since Greylag started.", "suffix: GPU-h", "none", (None, "blue")))
    made = made.with_panel(_nodes())
    made = made.with_panel(_stat("Last tick", 'greylag_lag_seconds{part="detect"}', "judged so long ago",
                                 "Cluster time since the last judged tick. Without data Greylag is not heard, and nothing above means anything.",
                                 "s", "Greylag is not heard", (None, "green"), (LAGS.detect_seconds, "red")))
    made = made.with_panel(_stat("Actions frozen", "greylag_frozen", "1 = frozen",
                                 "1 while actions are frozen by file or call: nothing is repaired.", "none", "Greylag is not heard",
                                 (None, "green"), (1, "orange")))
    for row, graphs in GRAPHS.items():
        made = made.with_row(boards.Row(row))
        for one in graphs:
            made = made.with_panel(_graph(one))
    return made


def queries() -> list[tuple[str, str]]:
    """(expression, legend) of every panel, for tests."""
    rows = [(one.expr, one.legend) for graphs in GRAPHS.values() for one in graphs]
    return [("greylag_incident_info", ""), ("greylag_incidents", "{{fault}} {{scope}} {{state}}"),
            ("greylag_lost_gpu_hours_total", "{{job}} {{fault}}"), ('greylag_node_state{state!="in_service"}', ""),
            ('greylag_lag_seconds{part="detect"}', "judged so long ago"), ("greylag_frozen", "1 = frozen"), *rows]


def model() -> Any:
    """The dashboard as the SDK's model."""
    return board().build()
