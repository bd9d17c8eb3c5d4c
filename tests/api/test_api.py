"""The HTTP API over a real owner with a small store: every read, its errors in a sentence, paging, pieces."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from app.house import reporting
from app.owner import Owner
from core.clock import ManualClock, rfc3339
from core.config import read_config
from core.render import dumps
from core.types import Batch, Event, Layout, Scrape, Series, SignalRef, Target
from pipeline.api import PIECE_POINTS, create_api, pieces
from tests.store import build

TICKS = 40
NEWEST = build.T0 + (TICKS - 1) * build.STEP
RECORDS = "/api/greylag/v1/records"


def fill(owner: Owner) -> None:
    """Forty scrapes of two GPUs, judged and committed; then seven incidents, their ledger, events and lines of the story."""
    gpus = [Target("gpu", "n1", str(i), f"GPU-{i}") for i in range(2)]
    series = tuple(Series("temp", (("gpu", str(i)), ("instance", "n1:9400")), "gauge") for i in range(2))
    refs = tuple(SignalRef(i, "gpu.temperature_celsius", gpus[i]) for i in range(2))
    one = Layout(Layout.make_id("n1", series, refs), "n1", series, refs, "n1")
    for i in range(TICKS):
        at = build.T0 + i * build.STEP
        events = tuple(Event(at, gpus[0], "xid", {"xid": n}) for n in range(3)) if i % 10 == 0 else ()
        batch = Batch("w", 1, i + 1, at, (one,) if not i else (), (Scrape(one.id, "n1", at, np.array([60.0 + i, 50.0])),), events)
        owner.store.append([batch])
        owner.brain.feed(batch)
        ticked = owner.brain.tick(at)
        owner.last_window = ticked.window
    names = [f"inc-{i}" for i in range(7)]
    owner.store.commit_tick(build.tick(
        TICKS - 1, incidents=[build.incident(n, build.T0 + i // 2 * 60_000) for i, n in enumerate(names)],
        findings=[build.finding(f"f{i}", build.T0 + i * 1000) for i in range(5)],
        actions=[build.action(i) for i in range(9)], records=[build.record(i) for i in range(12)]))


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("owner")
    (folder / "inventory.yaml").write_text("nodes: [{name: n1, rack: r1}]\n")
    (folder / "greylag.yaml").write_text(
        "data_dir: data\nlisten: 127.0.0.1:0\ninventory: {file: inventory.yaml}\nbackend: {name: observe}\n")
    owner = Owner(read_config(folder / "greylag.yaml"))
    owner.clock = ManualClock(NEWEST + 300_000)
    fill(owner)
    yield TestClient(owner.app())
    owner.writer.close()
    owner.store.close()
    owner.loop.close()


def get(api: TestClient, name: str, **params: Any) -> Any:
    answer = api.get(f"/api/greylag/v1/{name}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- reads ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [
    "/healthz", "/metrics", "/openapi.json", "/docs", "/api/v1/query?query=temp", "/api/v1/query_range?query=temp&start=1&end=2&step=1",
    "/api/v1/series?match[]=temp", "/api/v1/labels", "/api/v1/label/gpu/values", "/api/v1/status/buildinfo",
    *(f"/api/greylag/v1/{name}" for name in ("inventory", "coverage", "findings", "incidents", "incidents/inc-1", "actions", "policies",
                                             "windows?signal=gpu.temperature_celsius", "events", "records"))])
def test_every_read_answers(api: TestClient, path: str) -> None:
    """All GETs that DESIGN names and that exist."""
    assert api.get(path).status_code == 200


def test_not_ready_is_503_with_the_reason(api: TestClient) -> None:
    """The last tick of this store is five minutes old."""
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert "the last tick is" in answer.json()["reason"]


def test_openapi_describes_parameters(api: TestClient) -> None:
    """The document at /docs names the parameters of each list."""
    paths = api.get("/openapi.json").json()["paths"]
    names = {p["name"] for p in paths["/api/greylag/v1/incidents"]["get"]["parameters"]}
    assert names == {"since", "limit", "cursor"}
    assert len({operation["operationId"] for methods in paths.values() for operation in methods.values()}) == sum(map(len, paths.values()))


@pytest.mark.parametrize(("accept", "parse"), [("text/plain", plain_text), ("application/openmetrics-text; version=1.0.0", open_metrics)])
def test_own_series_parse(api: TestClient, accept: str, parse: Any) -> None:
    """prometheus-client's parsers read the page in both formats."""
    answer = api.get("/metrics", headers={"Accept": accept})
    families = list(parse(answer.text))
    assert families
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    assert all(sample.name.startswith("greylag_") for family in families for sample in family.samples)


@pytest.mark.parametrize(("path", "status"), [
    ("/api/greylag/v1/incidents?limit=0", 400), ("/api/greylag/v1/incidents?limit=1001", 400), ("/api/greylag/v1/incidents?limit=²", 400),
    ("/api/greylag/v1/incidents?since=yesterday", 400), ("/api/greylag/v1/incidents?cursor=x", 400),
    ("/api/greylag/v1/actions?cursor=-1", 400), ("/api/greylag/v1/events?cursor=1", 400), ("/api/greylag/v1/records?cursor=x", 400),
    ("/api/greylag/v1/windows", 400), ("/api/greylag/v1/windows?signal=gpu.temperatur_celsius", 400),
    ("/api/greylag/v1/windows?signal=gpu.xid&start=nan", 400), ("/api/greylag/v1/windows?signal=gpu.xid&start=1e300", 400),
    ("/api/greylag/v1/windows?signal=gpu.xid&start=9&end=1", 400), ("/api/greylag/v1/incidents/inc-none", 404),
    ("/api/greylag/v1/nothing", 404), ("/api/v1/query?query=sum(up)", 400), ("/api/v1/query?query=up&time=soon", 400),
    ("/api/v1/query?query=", 400), ("/api/v1/query_range?query=up&step=0", 400), ("/api/v1/query_range?query=up&step=1w", 400),
    ("/api/v1/query_range?query=up&start=0&end=11001&step=1", 400), ("/api/v1/series", 400)])
def test_an_error_is_one_sentence(api: TestClient, path: str, status: int) -> None:
    """Prometheus' envelope, with what was given and what is allowed in one line."""
    answer = api.get(path)
    body = answer.json()
    assert answer.status_code == status, answer.text
    assert body["status"] == "error"
    assert body["errorType"]
    assert body["error"]
    assert "\n" not in body["error"]


@pytest.mark.parametrize(("path", "body"), [("/api/greylag/v1/actions/inc-1/1/1/approve", None), ("/api/greylag/v1/actions/x/reject", None)])
def test_a_decision_on_what_is_not_proposed_is_404(api: TestClient, path: str, body: None) -> None:
    """Nothing is waiting under that name."""
    assert (api.post(path).status_code, api.post(path).json()["errorType"]) == (404, "not_found")


# --- lists ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "rows"), [("incidents", 7), ("findings", 5), ("actions", 9), ("events", 12), ("coverage", 5)])
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
def test_pages_hold_every_row_once(api: TestClient, name: str, rows: int, limit: int) -> None:
    """Following `next` to its end gives what one long page gives, in the same order."""
    params: dict[str, Any] = {"since": rfc3339(build.T0)} if name == "events" else {}
    whole = get(api, name, limit=1000, **params)["items"]
    found, cursor = [], None
    for _ in range(100):
        page = get(api, name, limit=limit, **({"cursor": cursor} if cursor else {}), **params)
        found += page["items"]
        assert len(page["items"]) <= limit
        cursor = page["next"]
        if cursor is None:
            break
    assert found == whole
    assert len(whole) >= rows


def test_records_go_on_after_the_cursor(api: TestClient) -> None:
    """The story is read in order; at its end `next` stays where it is."""
    first = api.get(RECORDS, params={"limit": 8}).json()
    second = api.get(RECORDS, params={"limit": 8, "cursor": first["next"]}).json()
    third = api.get(RECORDS, params={"cursor": second["next"]}).json()
    assert [row["n"] for row in first["items"] + second["items"]] == list(range(12))
    assert (third["items"], third["next"], third["tick"]) == ([], second["next"], rfc3339(NEWEST))


def test_since_leaves_out_what_did_not_change(api: TestClient) -> None:
    """By the last update, in RFC 3339 or in seconds."""
    at = build.T0 + 180_000
    by_text, by_number = get(api, "incidents", since=rfc3339(at)), get(api, "incidents", since=at / 1000)
    assert [row["id"] for row in by_text["items"]] == ["inc-6"]
    assert by_text == by_number


def test_an_incident_comes_with_its_actions(api: TestClient) -> None:
    """Oldest first, as they happened."""
    answer = get(api, "incidents/inc-1")
    assert answer["incident"]["id"] == "inc-1"
    assert [row["action"]["step"] for row in answer["actions"]] == list(range(9))


def test_windows_answer_for_now_and_for_then(api: TestClient) -> None:
    """Without times the last window, with them the store: the same values at the same moments."""
    now = get(api, "windows", signal="gpu.temperature_celsius")
    then = get(api, "windows", signal="gpu.temperature_celsius", start=now["times"][-20], end=now["times"][-1], node="n1", device="0")
    [line] = then["series"]
    assert then["times"] == now["times"][-20:]
    assert line["values"] == [60.0 + i for i in range(20, 40)]
    assert then["median"] == now["median"][-20:]
    assert {key: then[key] for key in ("unit", "step_seconds", "parts", "cut")} == {"unit": "°C", "step_seconds": 15, "parts": 2, "cut": None}


def test_a_node_in_a_word() -> None:
    """A job that stands still does not make a node silent; a machine that says nothing more is lost."""
    rows = [{"node": "a", "signal": "rank.step", "state": "lost"}, {"node": "a", "signal": "gpu.xid", "state": "partial"},
            {"node": "b", "signal": "gpu.xid", "state": "not_configured"}, {"node": "b", "signal": "nic.link_up", "state": "lost"},
            {"node": "c", "signal": "gpu.xid", "state": "not_configured"}, {"node": "d", "signal": "rank.step", "state": "fresh"}]
    assert reporting(rows) == {"a": "fresh", "b": "lost", "c": "not_configured"}


# --- Prometheus -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("path", "params"), [
    ("/api/v1/query", {"query": 'temp{gpu="0"}', "time": str(NEWEST / 1000)}),
    ("/api/v1/query_range", {"query": "temp", "start": str(build.T0 / 1000), "end": str(NEWEST / 1000), "step": "15s"}),
    ("/api/v1/series", {"match[]": "temp", "start": str(build.T0 / 1000)}),
    ("/api/v1/labels", {"match[]": "temp", "start": str(build.T0 / 1000)})])
def test_a_form_asks_like_a_query_string(api: TestClient, path: str, params: dict[str, str]) -> None:
    """Grafana POSTs a form by default."""
    by_get, by_post = api.get(path, params=params), api.post(path, data=params)
    assert by_get.json() == by_post.json()
    assert by_get.json()["data"]


@pytest.mark.parametrize(("seconds", "status"), [(11_000, 200), (11_001, 400)])
def test_a_range_has_at_most_11000_steps(api: TestClient, seconds: int, status: int) -> None:
    """Prometheus' own limit."""
    answer = api.get("/api/v1/query_range", params={"query": "temp", "start": 0, "end": seconds, "step": 1})
    assert answer.status_code == status


def matrix(rows: int, points: int) -> dict[str, Any]:
    values = [[t / 1000, str(math.sqrt(t))] for t in range(points)]
    return {"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "é", "n": str(i)}, "values": values} for i in range(rows)]}}


@pytest.mark.parametrize(("rows", "points"), [(0, 0), (1, 1), (1, 11_001), (3, 5_000), (700, 40), (2, 5_001)])
def test_pieces_are_the_plain_json(rows: int, points: int) -> None:
    """Put together they are what one encoding would give; each has at most 5,000 points."""
    answer = matrix(rows, points)
    parts = list(pieces(answer))
    assert b"".join(parts).decode() == dumps(answer)
    assert all(part.count(b'"],[') <= PIECE_POINTS for part in parts)
    assert len(parts) >= rows * points / PIECE_POINTS


_VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                       lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4), max_leaves=30)


@settings(max_examples=60, deadline=None)
@given(_VALUES, st.integers(0, 6))
def test_any_answer_survives_its_pieces(value: Any, doublings: int) -> None:
    """Nested, empty, long: the JSON is the same."""
    for _ in range(doublings):
        value = [value, value, value]
    assert json.loads(b"".join(pieces({"data": value}))) == {"data": value}


# --- what people do ---------------------------------------------------------------------------------------------------
def test_freeze_holds_until_resume(api: TestClient) -> None:
    """The policy document and the own series show it."""
    seen = []
    for word in ("freeze", "resume"):
        done = api.post(f"/api/greylag/v1/{word}").json()
        seen.append((done["done"], done["frozen"], get(api, "policies")["frozen"], "greylag_frozen 1.0" in api.get("/metrics").text))
    assert seen == [("freeze", True, True, True), ("resume", False, False, False)]


class Broken:
    """A house whose rooms fail in ways that nobody foresaw."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("/srv/secret is on fire")


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/query?query=up", "/api/greylag/v1/incidents"])
def test_an_unforeseen_error_tells_no_inner_life(path: str) -> None:
    """500 with a sentence; the text of the exception stays in the log."""
    answer = TestClient(create_api(Broken()), raise_server_exceptions=False).get(path)  # type: ignore[arg-type]
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["errorType"] == "internal"
