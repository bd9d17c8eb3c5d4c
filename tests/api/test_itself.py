"""metadata, targets, rules and alerts against a real Prometheus: the same keys, the same types of their values."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.processes import free_port
from core.clock import monotonic_seconds
from core.errors import BadInput
from core.protocols import SeriesSamples
from core.types import Evidence, Incident, Series, Target
from pipeline import site_answers as site
from tests import needs

AT = 1_790_000_010_000
LINKS = {"external_url": "http://greylag:9470", "explorer_url": ""}
INCIDENT = Incident(
    id="inc-0123456789ab", fault="gpu_lost", scope="device", culprit=Target("gpu", "n7", "3", "GPU-7-3"), confidence=0.95, suspects=(),
    victims=(), findings=("fnd-1",), evidence=(Evidence("gpu.temperature_celsius", "°C", 88.0, 61.0, "peers"),), jobs=("train-1",),
    lost_gpu_hours=1.25, owner="infra", klass="page", state="open", reason="opened_by_finding", merged_into=None,
    onset_at=AT - 60_000, opened_at=AT, updated_at=AT)
PAGE = ("# HELP a_total help\n# TYPE a_total counter\na_total 1\n# TYPE b gauge\nb 2\nc 3\n"
        "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n# TYPE s summary\ns_sum 1\ns_count 1\n")
TYPES = [("a_total", "counter"), ("b", "gauge"), ("c", "untyped"), ("h_bucket", "histogram"), ("h_sum", "histogram"),
         ("h_count", "histogram"), ("s_sum", "summary"), ("s_count", "summary")]


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *args: object) -> None:
        return


def ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a real Prometheus answers, with one target and one rule that fires."""
    program, folder = needs.program("prometheus"), tmp_path_factory.mktemp("prometheus")
    exporter = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=exporter.serve_forever, daemon=True).start()
    (folder / "rules.yml").write_text("groups: [{name: greylag, interval: 1s, rules: [{alert: up, expr: up == 1, labels: {class: page},"
                                      " annotations: {summary: x}}]}]\n")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nrule_files: [rules.yml]\n"
        f"scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ['127.0.0.1:{exporter.server_port}']}}]}}]\n")
    port = free_port()
    running = subprocess.Popen([program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                                f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    base, deadline = f"http://127.0.0.1:{port}/api/v1", monotonic_seconds() + 20
    try:
        found: dict[str, Any] = {}
        while monotonic_seconds() < deadline:
            try:
                found = {name: ask(f"{base}/{name}") for name in ("metadata", "targets", "rules", "alerts")}
                if found["alerts"]["data"]["alerts"] and found["metadata"]["data"]:
                    break
            except OSError:
                pass
            time.sleep(0.2)
        yield found
    finally:
        running.terminate()
        running.wait(10)
        exporter.shutdown()
        exporter.server_close()


def samples(name: str, value: float, **labels: str) -> SeriesSamples:
    return SeriesSamples(Series(name, tuple(sorted(labels.items())), "gauge"), [AT], [value])


WHERE = {"instance": "127.0.0.1:9400", "job": "dcgm"}
OURS = {
    "metadata": site.metadata(TYPES),
    "targets": site.targets([samples("up", 1.0, **WHERE)], [samples("scrape_duration_seconds", 0.01, **WHERE)],
                            {"dcgm": {"scrape_interval": "15s", "scrape_timeout": "10s"}}),
    "rules": site.rules([INCIDENT], LINKS, {"gpu_lost"}, AT, 0.2),
    "alerts": site.alerts([INCIDENT], LINKS),
}
FREE = ("labels", "annotations", "discoveredLabels")  # whatever somebody labels


def shape(value: Any, key: str = "") -> Any:
    """Keys and types; a list by its first item, numbers as one type, labels as text to text."""
    if isinstance(value, dict):
        if key in FREE:
            return {type(v).__name__ for v in value.values()}
        return {k: shape(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [shape(value[0], key)] if value else []
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("name", ["targets", "rules", "alerts"])
def test_the_shape_is_prometheus_own(theirs: dict[str, Any], name: str) -> None:
    """Every key that a real one gives, and no other; texts where it has texts, numbers where it has numbers."""
    assert shape(OURS[name]) == shape(theirs[name])


def test_metadata_names_families_and_types_as_prometheus_does(theirs: dict[str, Any]) -> None:
    """The same page: the same names and types; help is not kept, and empty."""
    def types(answer: dict[str, Any]) -> dict[str, list[str]]:
        return {name: [row["type"] for row in rows] for name, rows in answer["data"].items()}

    assert types(OURS["metadata"]) == {**types(theirs["metadata"]), "c": ["unknown"]}
    assert {key for rows in theirs["metadata"]["data"].values() for row in rows for key in row} == {"type", "help", "unit"}


def test_a_target_that_failed_is_down_and_an_old_one_is_not_there() -> None:
    """Health by the newest `up`; a series that ended (the stale marker) is no target."""
    ups = [samples("up", 0.0, **WHERE), SeriesSamples(Series("up", (("instance", "n2"), ("job", "x")), "gauge"), [AT], [None])]
    [one] = site.targets(ups, [], {})["data"]["activeTargets"]
    assert (one["health"], one["scrapeUrl"], bool(one["lastError"])) == ("down", "http://127.0.0.1:9400/metrics", True)
    assert site.targets(ups, [], {}, "dropped")["data"] == {"activeTargets": [], "droppedTargets": []}


@pytest.mark.parametrize(("call", "given"), [(lambda: site.targets([], [], {}, "all"), "state"),
                                             (lambda: site.rules([], LINKS, (), AT, 0.0, "alerts"), "type")])
def test_a_bad_parameter_is_one_sentence(call: Any, given: str) -> None:
    """With what is allowed."""
    with pytest.raises(BadInput, match=f"^{given}: got"):
        call()


@pytest.mark.parametrize(("kind", "names", "expected"), [
    ("", (), ["gpu_lost", "link_down"]), ("alert", ["link_down"], ["link_down"]), ("record", (), []), ("", ["nothing"], [])])
def test_rules_are_filtered(kind: str, names: list[str], expected: list[str]) -> None:
    """By type and by name; a group without rules is left out."""
    groups = site.rules([], LINKS, {"link_down", "gpu_lost"}, AT, 0.0, kind, names)["data"]["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"]] == expected
