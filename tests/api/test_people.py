"""What people tell Greylag, what an incident shows besides, and the doctor: over a real owner with a small store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from app.owner import Owner
from app.why import LiveSite, answer
from core.clock import ManualClock, rfc3339
from core.config import read_config
from core.errors import BadInput
from core.types import Batch, Event, Finding, Incident, Layout, Scrape, Series, SignalRef, Target
from pipeline.detect import Changes
from tests.pipeline.worlds import finding
from tests.store import build

TICKS = 12
NODES = ("n1", "n2")
HOT = Target("gpu", "n1", "0", "GPU-n1")
NOW = build.T0 + (TICKS - 1) * build.STEP
API = "/api/greylag/v1"


class ApiClient:
    """`app.client.Client` over the test's own application."""

    def __init__(self, api: TestClient) -> None:
        self._api = api

    def get(self, path: str, **params: Any) -> Any:
        answer = self._api.get(path, params={k: v for k, v in params.items() if v is not None})
        if answer.status_code >= 400:
            raise BadInput(path, "", answer.text, "the API refused")
        return answer.json()


def page(node: str) -> Layout:
    gpu = Target("gpu", node, "0", f"GPU-{node}")
    signals = ("gpu.temperature_celsius", "gpu.power_watts", "gpu.utilization_ratio")
    series = tuple(Series(s.replace(".", "_"), (("instance", node),), "gauge") for s in signals)
    return Layout(Layout.make_id(node, series), node, series, tuple(SignalRef(i, s, gpu) for i, s in enumerate(signals)), node)


def quick(owner: Owner) -> None:
    """No detector judges here: what is held is given by `hold`."""
    owner.brain.loop.run = lambda window, gaps=(): Changes()  # type: ignore[method-assign]


def hold(owner: Owner, findings: list[Finding]) -> None:
    """The detect loop holds these findings from now on."""
    owner.brain.loop.open = lambda: tuple(findings)  # type: ignore[method-assign]


def tick(owner: Owner, i: int) -> None:
    """One tick of two nodes, judged and committed."""
    at, shapes = build.T0 + i * build.STEP, [page(node) for node in NODES]
    events = (Event(at, Target("node", "n1"), "config_change", {"what": "driver", "old": "550", "new": "570"}),
              Event(at, Target("node", "n9"), "config_change", {"what": "kernel", "old": "5", "new": "6"}),
              Event(at, Target("gpu", "n1", "0"), "xid", {"xid": 62})) if i == 2 else ()
    batch = Batch("w", 1, i + 1, at, tuple(shapes) if not i else (), tuple(
        Scrape(one.id, one.target_id, at, np.array([60.0 + i, 300.0 + i, 1.0])) for one in shapes), events)
    owner.store.append([batch])
    owner.brain.feed(batch)
    owner.clock = ManualClock(at)
    ticked = owner.brain.tick(at)
    owner.store.commit_tick(ticked.commit)
    owner.last_window = ticked.window


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    tmp_path = tmp_path_factory.mktemp("owner")
    (tmp_path / "inventory.yaml").write_text("nodes: [{name: n1, rack: r1}, {name: n2, rack: r1}, {name: n3}]\n"
                                             "jobs: [{id: train-1, nodes: [n1, n2]}]\n")
    (tmp_path / "greylag.yaml").write_text(
        "data_dir: data\nlisten: 127.0.0.1:0\nexternal_url: http://greylag:9470\ninventory: {file: inventory.yaml}\nbackend: {name: observe}\n"
        "logs: [{kind: kernel, path: '/var/log/kernel.*.log'}]\nnotify: [{name: alertmanager_webhook, url: 'http://127.0.0.1:9/'}]\n")
    made = Owner(read_config(tmp_path / "greylag.yaml"))
    quick(made)
    for i in range(TICKS - 4):
        tick(made, i)
    hold(made, [finding(HOT, at=build.T0 + (TICKS - 5) * build.STEP, onset=build.T0 + 4 * build.STEP, observed=91.0)])
    for i in range(TICKS - 4, TICKS):
        tick(made, i)
    yield made
    made.writer.close()
    made.store.close()
    made.loop.close()


@pytest.fixture(scope="module")
def api(owner: Owner) -> TestClient:
    return TestClient(owner.app())


def opened(owner: Owner) -> Incident:
    [one] = owner.brain.book.open()
    return one


def case(api: TestClient, owner: Owner) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{API}/incidents/{next(iter(owner.store.incident_records())).id}").json()
    return found


def test_an_incident_shows_what_changed_on_its_nodes(owner: Owner, api: TestClient) -> None:
    """The driver of its node, nobody else's kernel; the XID is an event, not a change."""
    found = case(api, owner)
    assert [(row["kind"], row["text"], row["target"]["node"], row["seconds_from_onset"]) for row in found["changes"]] == [
        ("change", "driver 550 → 570", "n1", -30.0)]
    assert [row["kind"] for row in found["timeline"] if row["kind"] != "action"] == ["change", "event", "onset", "opened"]
    assert found["runbook_url"] == "http://greylag:9470/runbooks/thermal_throttle"


def test_an_incident_lists_what_is_not_watched_there(owner: Owner, api: TestClient) -> None:
    """Its node shows three signals: what others need is a blind spot by name, and what the log tells is none."""
    spots = {spot["fault"]: spot for spot in case(api, owner)["blind_spots"]}
    assert spots["power_brake"] == {"fault": "power_brake", "state": "not_configured", "nodes": ["n1"], "count": 1,
                                    "any_of": ["gpu.throttle_reasons_bits", "gpu.power_brake_ratio"]}
    assert not {"xid_fatal", "link_down"} & set(spots)


def test_a_change_that_is_posted_is_stored_at_once_and_shown(owner: Owner, api: TestClient) -> None:
    """201 after the commit; the event is in the list, and in the timeline of an incident that follows it."""
    body = {"what": "firmware", "old": "24.06", "new": "24.09", "nodes": ["n1", "n2"], "by": "anna", "at": rfc3339(build.T0)}
    done = api.post(f"{API}/events", json=body)
    assert (done.status_code, done.json()["stored"]) == (201, 2)
    listed = api.get(f"{API}/events", params={"since": rfc3339(build.T0)}).json()["items"]
    assert [e["fields"] for e in listed if e["kind"] == "config_change" and e["fields"]["what"] == "firmware"] == [
        {"what": "firmware", "old": "24.06", "new": "24.09", "by": "anna"}] * 2
    assert "firmware 24.06 → 24.09" in [row["text"] for row in case(api, owner)["changes"]]


@pytest.mark.parametrize(("body", "word"), [
    ({}, "what"), ({"what": ""}, "what"), ([], "the body"), ({"what": "x", "node": "n1"}, "node"), ({"what": "x", "nodes": "n1"}, "nodes"),
    ({"what": "x", "nodes": [1]}, "nodes"), ({"what": "x", "at": "soon"}, "at"), ({"what": "x", "at": 1}, "at"), ({"what": "x" * 121}, "what"),
    ({"what": "x", "new": {"a": 1}}, "new"), ({"what": "x", "at": float("1e300")}, "at")])
def test_a_bad_change_is_one_sentence(api: TestClient, body: Any, word: str) -> None:
    """What was given and what is allowed; nothing is stored."""
    answer_ = api.post(f"{API}/events", json=body)
    assert answer_.status_code == 400
    assert answer_.json()["error"].startswith(word)
    assert "\n" not in answer_.json()["error"]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\x00"])
def test_a_body_that_is_no_json_is_one_sentence(api: TestClient, text: str) -> None:
    """Never a trace."""
    assert api.post(f"{API}/events", content=text).status_code == 400


def test_acknowledged_is_said_and_nothing_else_changes(owner: Owner, api: TestClient) -> None:
    """The mark is on the incident and in its timeline; it is open as before, also after a restart."""
    one = opened(owner)
    answer_ = api.post(f"{API}/incidents/{one.id}/acknowledge", json={"note": "looking  at\nit"})
    tick(owner, TICKS)
    found = case(api, owner)
    assert answer_.status_code == 200
    assert [(m["word"], m["actor"], m["note"]) for m in found["marks"]] == [("acknowledge", "local", "looking at it")]
    assert [row["text"] for row in found["timeline"] if row["kind"] == "mark"] == ["acknowledged by local: looking at it"]
    assert (opened(owner).id, opened(owner).state) == (one.id, one.state)
    owner.brain.load(owner.store.state)
    assert [m.word for m in owner.brain.marks.of(one.id)] == ["acknowledge"]


@pytest.mark.parametrize(("word", "body", "status"), [
    ("acknowledge", {"note": 1}, 400), ("silence", {"seconds": -1}, 400), ("silence", {"seconds": True}, 400), ("wrong", {"seconds": 1}, 400),
    ("silence", {"until": 1}, 400), ("acknowledge", {"note": "x" * 501}, 400)])
def test_a_bad_mark_is_one_sentence(owner: Owner, api: TestClient, word: str, body: Any, status: int) -> None:
    """400 with what is allowed."""
    answer_ = api.post(f"{API}/incidents/{opened(owner).id}/{word}", json=body)
    assert (answer_.status_code, "\n" in answer_.json()["error"]) == (status, False)


@pytest.mark.parametrize("word", ["acknowledge", "silence", "wrong"])
def test_a_mark_on_nothing_is_404(api: TestClient, word: str) -> None:
    """An incident that nobody knows."""
    assert api.post(f"{API}/incidents/inc-none/{word}").status_code == 404


def test_jobs_are_shown_as_the_tick_saw_them(api: TestClient) -> None:
    """With their nodes, also where only the inventory knows them."""
    assert [(j["id"], j["nodes"]) for j in api.get(f"{API}/jobs").json()["items"]] == [("train-1", ["n1", "n2"])]


def test_the_doctor_says_what_is_judged_and_what_adds_the_rest(api: TestClient) -> None:
    """Two nodes with three signals and a kernel log: XIDs are judged there, not on the silent third; the brake needs a field."""
    doc = api.get(f"{API}/doctor").json()
    faults = {row["fault"]: row for row in doc["faults"]}
    assert (doc["nodes"], doc["logs"]) == (3, ["kernel"])
    assert (faults["xid_fatal"]["state"], faults["xid_fatal"]["nodes_judged"]) == ("judged", 2)
    [missing] = faults["power_brake"]["missing"]
    assert missing["any_of"] == ["gpu.throttle_reasons_bits", "gpu.power_brake_ratio"]
    assert missing["add"][0] == {"source": "dcgm", "metric": "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "signal": "gpu.throttle_reasons_bits",
                                 "how": "add DCGM_FI_DEV_CLOCK_THROTTLE_REASONS to dcgm-exporter's list of fields (-f FILE.csv)",
                                 "series_per_node": 1, "series": 3}


def test_why_in_ten_lines_from_the_api(owner: Owner, api: TestClient) -> None:
    """The job of the hot GPU: the cluster, the part, the driver that changed before, the page."""
    lines = answer(LiveSite(ApiClient(api)), "train-1")  # type: ignore[arg-type]
    assert len(lines) <= 10
    assert lines[0].startswith("job train-1: the cluster, not the code (confidence 0.9")
    assert lines[1] == f"culprit   n1 GPU 0: thermal_throttle ({opened(owner).id}, open)"
    text = "\n".join(lines)
    assert "driver 550 → 570 on n1 30 s before" in text
    assert text.endswith("page      http://greylag:9470/runbooks/thermal_throttle")
