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
        Graph("Collector lag", "greylag_collector_lag_seconds", "{{worker}}", "s", "Cluster time since a worker's watermark."),
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
    return (timeseries.Panel().title(one.title).description(one.description).datasource(SOURCE).unit(one.unit)
            .span(one.span).height(8).legend(legend).tooltip(tooltip).with_target(_query(one.expr, one.legend)))


def _thresholds(*steps: tuple[float | None, str]) -> boards.ThresholdsConfig:
    return (boards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE)
            .steps([dashboard.Threshold(value=value, color=colour) for value, colour in steps]))


def _stat(title: str, expr: str, legend: str, description: str, unit: str = "none") -> stat.Panel:
    return (stat.Panel().title(title).description(description).datasource(SOURCE).span(6).height(5).unit(unit)
            .no_value("0").thresholds(_thresholds((None, "green"), (1, "red")))
            .with_target(_query(expr, legend, instant=True)))


def _open_incidents() -> table.Panel:
    hidden = {"Time": True, "Value": True, "__name__": True, "instance": True}
    organise = dashboard.DataTransformerConfig(id_val="organize", options={
        "excludeByName": hidden, "indexByName": {"fault": 0, "scope": 1, "node": 2, "device": 3, "job": 4, "id": 5},
        "renameByName": {"fault": "Fault", "scope": "Scope", "node": "Node", "device": "Device", "job": "Jobs", "id": "Incident"},
    })
    return (table.Panel().title("Open incidents").description("One row an open incident: the fault and the part.")
            .datasource(SOURCE).span(12).height(5).no_value("nothing is open")
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
    made = made.with_panel(_stat("Open incidents by state", "greylag_incidents", "{{fault}} {{state}}",
                                 "Open incidents by fault and state."))
    made = made.with_panel(_stat("GPU-hours lost", "greylag_lost_gpu_hours_total", "{{job}} {{fault}}",
                                 "GPU-hours that jobs lost to incidents.", "h"))
    for row, graphs in GRAPHS.items():
        made = made.with_row(boards.Row(row))
        for one in graphs:
            made = made.with_panel(_graph(one))
    return made


def queries() -> list[tuple[str, str]]:
    """(expression, legend) of every panel, for tests."""
    rows = [(one.expr, one.legend) for graphs in GRAPHS.values() for one in graphs]
    return [("greylag_incident_info", ""), ("greylag_incidents", "{{fault}} {{state}}"),
            ("greylag_lost_gpu_hours_total", "{{job}} {{fault}}"), *rows]


def model() -> Any:
    """The dashboard as the SDK's model."""
    return board().build()
