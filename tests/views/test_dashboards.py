"""The Grafana dashboard: no Grafana is at hand here, so it is proven in layers up to a real Prometheus behind it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from app.page import MetricsPage
from app.virtual import FleetSource
from collectors.sources import dcgm
from core.clock import monotonic_seconds
from core.signals import SIGNALS
from core.telemetry import METRICS, Telemetry
from dashboards import build, fleet_glance
from fleet.frames import FleetFrames
from fleet.server import FleetServer
from pipeline import promql
from pipeline.store.duck import DuckStore
from tests import needs
from tests.exposition.real import TEXT, Pages
from tests.fleet.fleethelp import read, settled

MODEL = json.loads(build.documents()["dashboards/greylag-fleet.json"])
PANELS = [p for p in MODEL["panels"] if p["type"] != "row"]
QUERIES = [(target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
# What is absent on a healthy fleet: the exporter has no XID series before the first XID.
MAY_BE_EMPTY = {"DCGM_FI_DEV_XID_ERRORS"}


def asked(expr: str) -> str:
    """The expression as Grafana sends it with "All" chosen."""
    return re.sub(r"\$\w+", ".*", expr)


def metric(expr: str) -> str:
    return expr.partition("{")[0]


def own_page() -> bytes:
    """Greylag's own page with one row in each series that the dashboard shows."""
    telemetry = Telemetry()
    for name in {metric(expr) for expr, _ in QUERIES} & set(METRICS):
        telemetry.set(name, 1.0, **{label: "detect" if label == "part" else "x" for label in METRICS[name][2]})
    return MetricsPage(telemetry).render("text/plain")[0]


# --- the document -----------------------------------------------------------------------------------------------------
def test_the_board_fits_grafanas_schema() -> None:
    """JSON Schema of the Grafana Foundation SDK."""
    schema = json.loads((needs.shared("peer-tests/grafana") / "dashboard.jsonschema.json").read_text())
    wrong = jsonschema.validators.validator_for(schema)(schema).iter_errors(MODEL)
    assert [f"{one.json_path}: {one.message}" for one in wrong] == []


def test_the_board_survives_the_sdk() -> None:
    """Read by the SDK and written again it is the same."""
    register_default_plugins()
    again = JSONEncoder(sort_keys=True, indent=2).encode(Dashboard.from_json(MODEL))
    assert json.loads(again) == MODEL


def test_panels_stand_beside_each_other() -> None:
    """No two overlap, none is wider than the board."""
    boxes = [panel["gridPos"] for panel in MODEL["panels"]]
    cells = [(x, y) for box in boxes for x in range(box["x"], box["x"] + box["w"]) for y in range(box["y"], box["y"] + box["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """A title, a description, and the data source of the variable everywhere."""
    assert panel["title"]
    assert panel["description"]
    assert {panel["datasource"]["uid"], *(t["datasource"]["uid"] for t in panel["targets"])} == {"${ds}"}


@pytest.mark.parametrize("expr", sorted({expr for expr, _ in QUERIES}))
def test_an_expression_is_a_plain_selector(expr: str) -> None:
    """promql-parser reads it, and it is what our own API can evaluate."""
    assert isinstance(promql_parser.parse(asked(expr)), promql_parser.VectorSelector)


def test_provisioning_reads_back() -> None:
    """The files that Grafana reads at its start: data source, provider of dashboards, compose."""
    files = {name: yaml.safe_load(text) for name, text in build.documents("http://127.0.0.1:1").items() if name.endswith("yaml")}
    source = files["provisioning/datasources/greylag.yaml"]["datasources"][0]
    provider = files["provisioning/dashboards/greylag.yaml"]["providers"][0]
    grafana = files["compose.yaml"]["services"]["grafana"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:1")
    assert any(volume.split(":")[1] == provider["options"]["path"] for volume in grafana["volumes"])
    assert grafana["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_stale_files_are_named(tmp_path: Path) -> None:
    """Missing or changed files are stale, written ones are not."""
    assert len(build.stale(tmp_path)) == len(build.documents())
    build.write_all(tmp_path)
    assert build.stale(tmp_path) == []
    (tmp_path / "compose.yaml").write_text("x")
    assert build.stale(tmp_path) == ["compose.yaml"]


# --- the data behind it -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Metric → label names, of the emulated exporters with what discovery adds, and of Greylag's own page."""
    world, _ = settled(1, 2)
    found: dict[str, set[str]] = {}
    for target, page in FleetFrames(world).pages_at(world.now_ms):
        for name, rows in read(page or b"").items():
            names = {key for labels in rows for key, _ in labels} | {key for key in target if not key.startswith("__")}
            found.setdefault(name, set()).update(names)
    for name, (_, _, names) in METRICS.items():
        found[name] = set(names)
    return found


@pytest.mark.parametrize(("expr", "legend"), QUERIES)
def test_a_legend_names_labels_that_exist(labels: dict[str, set[str]], expr: str, legend: str) -> None:
    """{{label}} of a legend, and labels that the selector asks for, are labels of the series."""
    known = labels.get(metric(expr)) or labels["DCGM_FI_DEV_GPU_TEMP"]  # one exporter gives all its series the same labels
    wanted = set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", expr))
    assert wanted <= known
    assert metric(expr) in labels or metric(expr) in MAY_BE_EMPTY


# What a metric is measured in (its signal's unit and the scale to it, or the end of its name) → Grafana's name of that unit.
UNITS = {("°C", 1.0): "celsius", ("Hz", 1e6): "rotmhz", ("W", 1.0): "watt", ("ratio", 1.0): "percentunit", ("bytes/s", 1.0): "Bps",
         "_per_second": "Bps", "_seconds": "s", "_ratio": "percentunit", "_bytes": "bytes", "gpu_hours_total": "suffix: GPU-h"}


@pytest.mark.parametrize("panel", [p for p in PANELS if p["type"] != "table"], ids=lambda p: p["title"])
def test_a_panel_has_the_unit_of_its_metric(panel: dict[str, Any]) -> None:
    """As the sources read the exporter; what is a number without a unit has none."""
    name, found = metric(panel["targets"][0]["expr"]), panel["fieldConfig"]["defaults"]["unit"]
    meant = {row.metric: row.meaning for row in dcgm.described()}.get(name)
    if meant is not None and meant.signal != "gpu.xid_code":
        assert UNITS.get((SIGNALS[meant.signal].unit, meant.scale), "none") == found
    else:
        assert next((unit for end, unit in UNITS.items() if isinstance(end, str) and name.endswith(end)), "none") == found


def test_missing_data_is_never_a_good_number() -> None:
    """Without data a panel says so in words; the one that tells whether Greylag is heard names it."""
    said = {panel["title"]: panel["fieldConfig"]["defaults"].get("noValue", "") for panel in PANELS}
    assert [title for title, words in said.items() if not re.search("[a-z]", words)] == []
    assert said["Last tick"] == "Greylag is not heard"


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    """Two slots of an emulated fleet in the store."""
    world, _ = settled(1, 2)
    made = DuckStore(None)
    for batch in FleetSource(world).advance(world.now_ms + 30_000):
        made.append([batch])
        made.newest = batch.watermark  # type: ignore[attr-defined]
    yield made
    made.close()


@pytest.mark.parametrize("expr", sorted({expr for expr, _ in QUERIES if metric(expr) not in METRICS}))
def test_our_api_answers_the_panels(store: DuckStore, expr: str) -> None:
    """Each panel about the fleet has data in Greylag's own store, by its own PromQL."""
    answer = promql.instant(store, asked(expr), store.newest)  # type: ignore[attr-defined]
    assert answer["status"] == "success"
    assert answer["data"]["result"] or metric(expr) in MAY_BE_EMPTY


@pytest.mark.parametrize("variable", [v for v in MODEL["templating"]["list"] if v["type"] == "query"], ids=lambda v: v["name"])
def test_our_api_answers_the_variables(store: DuckStore, variable: dict[str, Any]) -> None:
    """label_values(metric, label) has values."""
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
    assert promql.label_values(store, label, [name])["data"]


@pytest.fixture
def fleet() -> Iterator[str]:
    """The address of an emulated fleet at speed 1."""
    ready = threading.Event()
    server = FleetServer(nodes=2, spares=0, seed=2, speed=1.0, ready=lambda url: ready.set())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(15)
    yield server.url
    server.stop()
    thread.join(10)


def test_a_real_prometheus_answers_the_panels(fleet: str, tmp_path: Path, free_port: Callable[[], int],
                                              spawn: Callable[..., object]) -> None:
    """Debian's Prometheus scrapes the fleet through its service discovery, and Greylag's own page: every panel has data."""
    program, own, port = needs.program("prometheus"), Pages([(TEXT, own_page())]), free_port()
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [
        {"job_name": "fleet", "honor_labels": True, "http_sd_configs": [{"url": f"{fleet}/sd", "refresh_interval": "1s"}]},
        {"job_name": "greylag", "honor_labels": True, "metrics_path": "/0", "static_configs": [{"targets": [own.address]}]}]}
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    spawn(program, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
          f"--web.listen-address=127.0.0.1:{port}", "--log.level=error")
    waiting, deadline = {expr for expr, _ in QUERIES if metric(expr) not in MAY_BE_EMPTY}, monotonic_seconds() + 20
    while waiting and monotonic_seconds() < deadline:
        waiting = {expr for expr in waiting if not results(f"http://127.0.0.1:{port}", asked(expr))}
        threading.Event().wait(0.3)
    own.close()
    assert not waiting


def results(url: str, query: str) -> list[Any]:
    try:
        return list(httpx.post(f"{url}/api/v1/query", data={"query": query}, timeout=5).json()["data"]["result"])
    except (httpx.HTTPError, ValueError, KeyError):  # it is starting
        return []


def test_the_list_for_other_tests_is_complete() -> None:
    """`queries()` names each expression of the board."""
    assert {expr for expr, _ in fleet_glance.queries()} == {expr for expr, _ in QUERIES}
