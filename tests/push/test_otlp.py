"""OTLP/HTTP with the real OpenTelemetry SDK as client, and the translation rules as data."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from collectors.push.otlp_names import choose_name, label_name, node_of_resource, translated_name
from core.clock import ManualClock, WallClock
from core.derive import STALE_BITS
from tests.push.site import START_MS, drain, post, receiver

RESOURCE = {"service.name": "trainer", "service.namespace": "ml", "service.instance.id": "abc", "host.name": "n17"}


def provider(port: int, compression: Compression, temporality: dict | None = None) -> MeterProvider:
    exporter = OTLPMetricExporter(f"http://127.0.0.1:{port}/v1/metrics", compression=compression, preferred_temporality=temporality)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=600_000)
    views = [View(instrument_type=Histogram, aggregation=ExplicitBucketHistogramAggregation((0.5, 5)))]
    return MeterProvider([reader], Resource(RESOURCE), shutdown_on_exit=False, views=views)


def record(one: MeterProvider) -> None:
    meter = one.get_meter("m")
    rank = {"job": "llama", "rank": "3"}
    meter.create_observable_gauge("greylag.train.step", [lambda _: [Observation(120, rank)]], unit="1")
    meter.create_observable_gauge("greylag_train_step_seconds", [lambda _: [Observation(2.5, rank)]], unit="s")
    meter.create_counter("greylag_train_nonfinite", unit="1").add(2, rank)
    meter.create_observable_gauge("DCGM_FI_DEV_GPU_TEMP", [temperature], unit="C")
    meter.create_up_down_counter("queue.length").add(5)
    wait = meter.create_histogram("http.server.duration", unit="s")
    for seconds in (0.1, 0.2, 3.0, 9.0):
        wait.record(seconds)


def temperature(options: CallbackOptions) -> list[Observation]:
    return [Observation(70 + i, {"gpu": str(i), "UUID": f"GPU-{i}", "Hostname": "n17"}) for i in range(2)]


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sdk_sends_metrics(tmp_path: Path, compression: Compression) -> None:
    """Names, labels, job and instance as Prometheus makes them; signals of trainer and DCGM found; node from the resource."""
    async def go() -> None:
        async with receiver(tmp_path, WallClock()) as one:
            meters = provider(one.port, compression)
            record(meters)
            assert await asyncio.to_thread(meters.force_flush)
            await asyncio.to_thread(meters.shutdown)
            results, _ = drain(one, WallClock().now_ms() + 7_000)
        values = {(s.name, s.label("le") or s.label("gpu")): float(v) for layout, scrape in results
                  for s, v in zip(layout.series, scrape.values, strict=True)}
        assert values == {
            ("greylag_train_step", ""): 120.0, ("greylag_train_step_seconds", ""): 2.5, ("greylag_train_nonfinite_total", ""): 2.0,
            ("DCGM_FI_DEV_GPU_TEMP", "0"): 70.0, ("DCGM_FI_DEV_GPU_TEMP", "1"): 71.0, ("queue_length", ""): 5.0,
            ("http_server_duration_seconds_bucket", "0.5"): 2.0, ("http_server_duration_seconds_bucket", "5"): 3.0,
            ("http_server_duration_seconds_bucket", "+Inf"): 4.0, ("http_server_duration_seconds_count", ""): 4.0,
            ("http_server_duration_seconds_sum", ""): 12.3, ("target_info", ""): 1.0,
        }
        assert {layout.target_id for layout, _ in results} == {"push/ml/trainer/abc"}
        refs = {(ref.signal, ref.target.node, ref.target.job, ref.target.rank) for layout, _ in results for ref in layout.signals}
        assert ("rank.step", "n17", "llama", 3) in refs
        assert ("rank.nonfinite_per_second", "n17", "llama", 3) in refs
        assert ("gpu.temperature_celsius", "n17", None, None) in refs
        assert {s.label("exported_job") for layout, _ in results for s in layout.series if "train" in s.name} == {"llama"}
    asyncio.run(go())


def test_delta_sums_are_refused_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A partial success says how many points and what to do; the gauges of the request are taken."""
    async def go() -> None:
        async with receiver(tmp_path, WallClock()) as one:
            meters = provider(one.port, Compression.NoCompression, {Counter: AggregationTemporality.DELTA})
            record(meters)
            with caplog.at_level(logging.DEBUG):
                await asyncio.to_thread(meters.force_flush)
            await asyncio.to_thread(meters.shutdown)
            results, _ = drain(one, WallClock().now_ms() + 7_000)
            assert one._telemetry.get("greylag_push_refused_total", reason="delta_temporality") >= 1
        names = {s.name for layout, _ in results for s in layout.series}
        assert "greylag_train_nonfinite_total" not in names
        assert "greylag_train_step" in names
    asyncio.run(go())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_sdk_sends_logs(tmp_path: Path) -> None:
    """A trainer's Python logging becomes steps of its rank, a kernel line an event of its node."""
    async def go() -> None:
        async with receiver(tmp_path, WallClock()) as one:
            def send() -> None:
                logs = LoggerProvider(Resource({"train_job": "llama", "rank": "0", "host.name": "n17"}), shutdown_on_exit=False)
                logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(
                    f"http://127.0.0.1:{one.port}/v1/logs", compression=Compression.Gzip)))
                logger = logging.getLogger("trainer-under-test")
                logger.propagate = False
                logger.setLevel(logging.INFO)
                handler = LoggingHandler(logger_provider=logs)
                logger.addHandler(handler)
                logger.info(" iteration 20/ 1000 | elapsed time per iteration (ms): 2500.0 | lm loss: 2.5E+00 |")
                logger.removeHandler(handler)
                logs.force_flush()
                logs.shutdown()
            await asyncio.to_thread(send)
            results, _ = drain(one, WallClock().now_ms() + 7_000)
        values = {ref.signal: float(scrape.values[ref.index]) for layout, scrape in results for ref in layout.signals}
        assert values["rank.step"] == 20
        assert values["rank.loss"] == 2.5
        assert {(ref.target.job, ref.target.rank) for layout, _ in results for ref in layout.signals} == {("llama", 0)}
    asyncio.run(go())


def logs_json(body: object, attributes: dict[str, object], resource: dict[str, str]) -> bytes:
    def pairs(found: dict[str, object]) -> list[dict[str, object]]:
        return [{"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}} for k, v in found.items()]
    if isinstance(body, dict):
        body = {"kvlistValue": {"values": pairs(body)}}
    else:
        body = {"stringValue": body}
    record = {"timeUnixNano": str(START_MS * 1_000_000), "body": body, "attributes": pairs(attributes),
              "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
    return json.dumps({"resourceLogs": [{"resource": {"attributes": pairs(resource)}, "scopeLogs": [{"logRecords": [record]}]}]}).encode()


XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


@pytest.mark.parametrize(("body", "attributes", "resource"), [
    ({"MESSAGE": XID, "_TRANSPORT": "kernel", "_HOSTNAME": "n17"}, {}, {"host.name": "gateway"}),  # journald receiver
    (XID, {"facility": 0, "hostname": "n17", "appname": "kernel"}, {}),  # syslog receiver
    (XID, {"log.file.path": "/var/log/kern.log"}, {"k8s.node.name": "n17"}),  # filelog receiver
    (f"Nov 28 01:02:03 n17 kernel: {XID}", {"log.file.name": "kern.log"}, {"host.name": "n17"}),
])
def test_kernel_lines_of_collectors_become_events(tmp_path: Path, body: object, attributes: dict, resource: dict) -> None:
    """The journald, syslog and filelog receivers of an OpenTelemetry collector, in JSON."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            status, _, said = await post(one.port, "/v1/logs", logs_json(body, attributes, resource), {"Content-Type": "application/json"})
            assert (status, said) == (200, b"{}")
            _, (event,) = drain(one, START_MS)
        assert (event.kind, event.at, event.fields["xid"]) == ("xid", START_MS, 79)
        assert event.target.node in ("n17", "gateway" if resource.get("host.name") == "gateway" else "n17")
    asyncio.run(go())


def metrics_json(kind: str, points: list[dict], **more: object) -> bytes:
    metric = {"name": "m", "unit": "By", kind: {"dataPoints": points, **more}}
    return json.dumps({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).encode()


@pytest.mark.parametrize(("kind", "point", "more", "status", "series"), [
    ("gauge", {"asInt": "5"}, {}, 200, {"m_bytes": 5.0}),
    ("sum", {"asDouble": 5.5}, {"aggregationTemporality": 2, "isMonotonic": True}, 200, {"m_bytes_total": 5.5}),
    ("sum", {"asDouble": 5.5}, {"aggregationTemporality": 1, "isMonotonic": True}, 400, {}),
    ("exponentialHistogram", {"count": "5"}, {"aggregationTemporality": 2}, 400, {}),
    ("summary", {"count": "2", "sum": 7, "quantileValues": [{"quantile": 0.99, "value": 4}]}, {}, 200,
     {"m_bytes_count": 2.0, "m_bytes_sum": 7.0, "m_bytes": 4.0}),
    ("gauge", {}, {}, 200, {}),  # a point without a number
])
def test_points_of_all_kinds(tmp_path: Path, kind: str, point: dict, more: dict, status: int, series: dict) -> None:
    """What is cumulative is taken under Prometheus' names; what cannot be is 400 with one sentence."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            point_at = {**point, "timeUnixNano": str(START_MS * 1_000_000)}
            found, _, body = await post(one.port, "/v1/metrics", metrics_json(kind, [point_at], **more), {"Content-Type": "application/json"})
            assert found == status
            assert status == 200 or json.loads(body)["message"].endswith(".")
            results, _ = drain(one, START_MS + 7_000)
        assert {s.name: float(v) for layout, scrape in results for s, v in zip(layout.series, scrape.values, strict=True)} == series
    asyncio.run(go())


def test_a_point_without_a_recorded_value_ends_its_series(tmp_path: Path) -> None:
    """OTLP's flag is Prometheus' stale marker."""
    async def go() -> None:
        clock = ManualClock(START_MS)
        async with receiver(tmp_path, clock) as one:
            ended = {"timeUnixNano": str(START_MS * 1_000_000), "flags": 1}
            await post(one.port, "/v1/metrics", metrics_json("gauge", [ended]), {"Content-Type": "application/json"})
            (_, scrape), = drain(one, START_MS + 7_000)[0]
        assert scrape.values.view("u8").tolist() == [STALE_BITS]
    asyncio.run(go())


@pytest.mark.parametrize(("name", "unit", "kind", "wanted"), [
    ("http.server.duration", "ms", "histogram", "http_server_duration_milliseconds"),
    ("system.network.io", "By", "counter", "system_network_io_bytes_total"),
    ("system.network.io.total", "By", "counter", "system_network_io_bytes_total"),
    ("cpu.utilization", "1", "gauge", "cpu_utilization_ratio"),
    ("jobs", "1", "counter", "jobs_total"),
    ("net.rate", "By/s", "gauge", "net_rate_bytes_per_second"),
    ("memory.bytes", "By", "gauge", "memory_bytes"),
    ("requests", "{request}/s", "gauge", "requests_per_second"),
    ("2xx..hits__now", "", "gauge", "_2xx_hits_now"),
    ("power", "kW", "gauge", "power_kW"),
])
def test_names_as_prometheus_translates_them(name: str, unit: str, kind: str, wanted: str) -> None:
    """Unit and type suffixes, each once."""
    assert translated_name(name, unit, kind) == wanted


@pytest.mark.parametrize(("name", "unit", "kind", "wanted"), [
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "", "counter", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),  # not …_total
    ("node_network_receive_bytes_total", "", "counter", "node_network_receive_bytes_total"),
    ("DCGM_FI_DEV_SOMETHING_NEW", "", "counter", "DCGM_FI_DEV_SOMETHING_NEW"),
    ("known_only_translated", "s", "gauge", "known_only_translated_seconds"),
    ("unknown.thing", "s", "gauge", "unknown_thing_seconds"),
])
def test_a_name_that_is_known_is_kept(name: str, unit: str, kind: str, wanted: str) -> None:
    """Exporters' own names that came through an OpenTelemetry collector stay as our sources know them."""
    known = {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "node_network_receive_bytes_total", "known_only_translated_seconds"}
    assert choose_name(name, unit, kind, known.__contains__) == wanted


@pytest.mark.parametrize(("resource", "node"), [
    ({"service.instance.id": "n17:9400", "host.name": "gateway"}, "n17"),
    ({"service.instance.id": "627cc493", "host.name": "n17"}, "n17"),
    ({"k8s.node.name": "n17", "host.name": "pod-1"}, "n17"),
    ({"service.instance.id": "627cc493"}, None),
])
def test_the_node_of_a_resource(resource: dict[str, str], node: str | None) -> None:
    """A scraped target's own address, else the node's or the host's name."""
    assert node_of_resource(resource) == node


@pytest.mark.parametrize(("key", "wanted"), [("k8s.node.name", "k8s_node_name"), ("9a", "key_9a"), ("_a", "key_a"), ("__a", "__a")])
def test_label_names(key: str, wanted: str) -> None:
    """Attribute keys as label names."""
    assert label_name(key) == wanted
