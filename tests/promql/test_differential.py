"""The same samples in a real Prometheus and in the store: equal answers to plain selectors, instant and range."""

from __future__ import annotations

import json
import math
import random
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from app.processes import free_port
from core.clock import monotonic_seconds
from core.types import Batch, Layout, Scrape, Series
from pipeline import promql
from pipeline.store.duck import DuckStore
from tests import needs

T0 = 1_700_000_000_000 // 15_000 * 15_000
STEP = 15_000
SLOTS = 600

SERIES = [
    Series("up", (("instance", "n1:9400"), ("job", "dcgm")), "gauge"),
    Series("up", (("instance", "n2:9400"), ("job", "dcgm")), "gauge"),
    Series("up", (("instance", "n1:9100"), ("job", "node")), "gauge"),
    Series("DCGM_FI_DEV_GPU_TEMP", (("Hostname", "n1"), ("UUID", "GPU-a"), ("gpu", "0")), "gauge"),
    Series("DCGM_FI_DEV_GPU_TEMP", (("Hostname", "n1"), ("UUID", "GPU-b"), ("gpu", "1")), "gauge"),
    Series("DCGM_FI_DEV_GPU_TEMP", (("Hostname", "n2"), ("UUID", "GPU-c"), ("gpu", "10")), "gauge"),
    Series("odd", (("path", 'C:\\tmp "x"\ny'),), "gauge"),
    Series("odd", (("path", "é☃"),), "gauge"),
    Series("odd", (), "gauge"),
    Series("big", (("kind", "large"),), "gauge"),
    Series("big", (("kind", "small"),), "gauge"),
    Series("special", (("kind", "nan"),), "gauge"),
    Series("special", (("kind", "inf"),), "gauge"),
    Series("sparse", (), "gauge"),
]
SELECTORS = [
    "up", 'up{job="dcgm"}', 'up{job!="dcgm"}', 'up{job=~"dc.*"}', 'up{job!~"dc.*"}', 'up{job=~"dc"}', 'up{job=~".+"}',
    'up{nothing=""}', 'up{nothing!=""}', 'up{nothing=~".*"}', 'up{instance=~"n[12]:9400"}', 'up{instance=~"n1:.*|n2:.*",job="dcgm"}',
    "DCGM_FI_DEV_GPU_TEMP", 'DCGM_FI_DEV_GPU_TEMP{gpu="1"}', 'DCGM_FI_DEV_GPU_TEMP{gpu=~"1"}', 'DCGM_FI_DEV_GPU_TEMP{gpu=~"1.*"}',
    'DCGM_FI_DEV_GPU_TEMP{gpu=~"1.+"}', 'DCGM_FI_DEV_GPU_TEMP{gpu=~"\\\\d+"}', 'DCGM_FI_DEV_GPU_TEMP{Hostname=~"(?i)N1"}',
    'DCGM_FI_DEV_GPU_TEMP{Hostname!~"n1|n3"}', 'DCGM_FI_DEV_GPU_TEMP{UUID=~"GPU-[a-b]"}', 'DCGM_FI_DEV_GPU_TEMP{gpu!="0",Hostname="n1"}',
    'DCGM_FI_DEV_GPU_TEMP{UUID=~"GPU-.",gpu=~"0|10"}', 'DCGM_FI_DEV_GPU_TEMP{Hostname=~"n\\\\pN"}',
    "odd", 'odd{path=""}', 'odd{path!=""}', 'odd{path=~".*"}', 'odd{path=~".+"}', 'odd{path=~"(?s).+"}', 'odd{path="é☃"}',
    'odd{path="C:\\\\tmp \\"x\\"\\ny"}', 'odd{path=~"é."}', 'odd{path=~"C:.*y"}', "odd{path=`é☃`}",
    "big", 'big{kind="large"}', "special", 'special{kind!~"nan"}', "sparse", "sparse{}", "(sparse)",
    "up offset 1m", "up offset 7s", "sparse offset 5m", "sparse offset -2m", "DCGM_FI_DEV_GPU_TEMP offset 1h", "up offset 10d",
    '{__name__="up"}', '{__name__=~"up|sparse"}', '{__name__=~"DCGM_.*",gpu="0"}', '{job="node"}', '{job=~"d.*|n.*"}',
    '{__name__!="up",job="dcgm"}', '{gpu=~".+"}', '{Hostname="n2"}', '{__name__=~".+",kind="nan"}', "missing", 'up{job=""}',
    "1+1", "1/0", "-1e-7", "2^0.5", "0/0", "1e21",
]
INSTANTS = [0, 1, 7_499, 15_000, 20 * STEP, 20 * STEP + 14_999, 40 * STEP, 60 * STEP, 61 * STEP + 1, 300 * STEP,
            599 * STEP, 599 * STEP + 299_999, 599 * STEP + 300_000, 599 * STEP + 300_001]
RANGES = [(0, 599 * STEP, 60_000), (-300_000, 400_000, 7_000), (500 * STEP, 700 * STEP, STEP), (1, 900_001, 333_333)]


def samples() -> dict[int, list[tuple[int, float]]]:
    """(time, value) of each series: gaps, values of all sizes, scrapes between the slots."""
    chance = random.Random(3)
    out: dict[int, list[tuple[int, float]]] = {}
    for i, one in enumerate(SERIES):
        rows = []
        for n in range(SLOTS):
            at, value = T0 + n * STEP, chance.choice([chance.random() * 100, float(chance.randint(0, 5)), -0.0, 1e-5])
            if one.name == "sparse" and n % 21 not in (0, 20):
                continue
            if one.name.startswith("DCGM") and 100 <= n < 150 and i % 2:
                continue
            if one.name == "big":
                value = chance.choice([1.0, 3.3]) * 10.0 ** (chance.randint(14, 24) * (1 if one.label("kind") == "large" else -1))
            if one.name == "special":
                value = math.nan if one.label("kind") == "nan" else chance.choice([math.inf, -math.inf])
            rows.append((at + (i * 977 if i % 3 == 0 else 0), value))
        out[i] = rows
    return out


def open_metrics(rows: dict[int, list[tuple[int, float]]]) -> str:
    lines, last = [], ""
    for i, one in enumerate(SERIES):
        if one.name != last:
            lines.append(f"# TYPE {one.name} gauge")
            last = one.name
        labels = ",".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in one.labels)
        lines += [f"{one.name}{{{labels}}} {value!r} {at / 1000:.3f}".replace(" inf", " +Inf").replace("-inf", "-Inf")
                  for at, value in rows[i]]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def store() -> Iterator[DuckStore]:
    made = DuckStore(None)
    shapes = [Layout(f"l{i}", f"t{i}", (one,), ()) for i, one in enumerate(SERIES)]
    scrapes = [Scrape(f"l{i}", f"t{i}", at, np.array([value])) for i, rows in samples().items() for at, value in rows]
    made.append([Batch("w", 1, 1, 0, tuple(shapes), tuple(scrapes), ())])
    yield made
    made.close()


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, dict[str, str]], dict[str, Any]]]:
    """Asks a real Prometheus over the same samples."""
    promtool, prometheus = needs.program("promtool"), needs.program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "s.om").write_text(open_metrics(samples()), encoding="utf-8")
    (folder / "p.yml").write_text("global: {}\n")
    subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "s.om"), str(folder / "data")],
                   check=True, capture_output=True)
    port = free_port()
    server = subprocess.Popen(
        [prometheus, f"--config.file={folder / 'p.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"

    def call(path: str, params: dict[str, str]) -> dict[str, Any]:
        body = urllib.parse.urlencode(params).encode()
        try:
            with urllib.request.urlopen(f"{base}/api/v1/{path}", body, timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))

    try:
        until = monotonic_seconds() + 20
        while True:
            try:
                with urllib.request.urlopen(f"{base}/-/ready", timeout=1):
                    break
            except OSError:
                assert monotonic_seconds() < until, "Prometheus did not start"
        yield call
    finally:
        server.kill()
        server.wait(10)


def canonical(answer: dict[str, Any]) -> Any:
    """An answer without the order of its series."""
    data = answer["data"]
    if isinstance(data["result"], list) and data["resultType"] in ("vector", "matrix"):
        return data["resultType"], sorted(data["result"], key=lambda row: sorted(row["metric"].items()))
    return data["resultType"], data["result"]


@pytest.mark.parametrize("query", SELECTORS)
def test_instant_answers_are_equal(store: DuckStore, ask: Callable[..., dict[str, Any]], query: str) -> None:
    """At times on, beside and after the samples, the edge of the look-back included."""
    for at in INSTANTS:
        theirs = ask("query", {"query": query, "time": f"{(T0 + at) / 1000:.3f}"})
        assert canonical(promql.instant(store, query, T0 + at)) == canonical(theirs), at


@pytest.mark.parametrize("query", SELECTORS)
def test_range_answers_are_equal(store: DuckStore, ask: Callable[..., dict[str, Any]], query: str) -> None:
    """With steps that divide the scrape interval and steps that do not."""
    for start, end, step in RANGES:
        theirs = ask("query_range", {"query": query, "start": f"{(T0 + start) / 1000:.3f}", "end": f"{(T0 + end) / 1000:.3f}",
                                     "step": f"{step / 1000:.3f}"})
        assert canonical(promql.range_(store, query, T0 + start, T0 + end, step)) == canonical(theirs), (start, end, step)


@pytest.mark.parametrize(("query", "path"), [
    ("up{", "query"), ("", "query"), ("{}", "query"), ('up{a=~"("}', "query"), ("sum(", "query"), ("up{a=b}", "query"),
    ('up{a=~"a(?=b)"}', "query"), ('up{a=~"a++"}', "query"),
])
def test_what_prometheus_refuses_is_refused(
    store: DuckStore, ask: Callable[..., dict[str, Any]], query: str, path: str,
) -> None:
    """With the same kind of error."""
    theirs, ours = ask(path, {"query": query, "time": str(T0 / 1000)}), promql.instant(store, query, T0)
    assert (ours["status"], ours["errorType"]) == (theirs["status"], theirs["errorType"]) == ("error", "bad_data")


@pytest.mark.parametrize("matches", [["up"], ['{job=~".+"}', "sparse"], ["missing"]])
def test_series_and_labels_are_equal(store: DuckStore, ask: Callable[..., dict[str, Any]], matches: list[str]) -> None:
    """Label sets, names and values over the whole time."""
    def theirs(path: str) -> Any:
        params = {"start": str(T0 / 1000), "end": str((T0 + SLOTS * STEP) / 1000)}
        pairs = [*params.items(), *[("match[]", m) for m in matches]]
        answer = ask(path, pairs) if not path.startswith("label/") else ask(f"{path}?{urllib.parse.urlencode(pairs)}", None)  # type: ignore[arg-type]
        return answer["data"]

    start, end = T0, T0 + SLOTS * STEP
    assert promql.series(store, matches, start, end)["data"] == sorted(
        theirs("series"), key=lambda m: (m["__name__"], sorted((k, v) for k, v in m.items() if k != "__name__")))
    assert promql.labels(store, matches, start, end)["data"] == theirs("labels")
