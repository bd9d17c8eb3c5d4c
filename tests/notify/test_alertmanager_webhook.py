"""The webhook: Alertmanager's version 4 form, what is worth another try, and an outbox that a restart does not empty."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.outbox import OutboxThread
from core.clock import monotonic_seconds, parse_rfc3339, rfc3339, wall_ms
from core.errors import Refused, Unavailable
from core.protocols import TickCommit
from core.telemetry import Telemetry
from core.types import Evidence, Incident, Notice, Outbound, Target
from pipeline.notify import alertmanager_webhook as webhook
from pipeline.store.duck import DuckStore
from pipeline.store.writer import StoreWriter
from tests import needs

AT = 1_790_000_010_000
GPU = Target("gpu", "n7", "3", "GPU-7-3")
INCIDENT = Incident(
    id="inc-0123456789ab", fault="thermal_throttle", scope="device", culprit=GPU, confidence=0.95, suspects=(), victims=(),
    findings=("fnd-1",), evidence=(Evidence("gpu.temperature_celsius", "°C", 88.0, 61.0, "median of 127 peers"),),
    jobs=("train-1",), lost_gpu_hours=1.25, owner="infra", klass="page", state="open", reason="opened_by_finding",
    merged_into=None, onset_at=AT - 60_000, opened_at=AT, updated_at=AT)
LINKS = {"external_url": "http://greylag:9470", "explorer_url": "http://greylag:8501"}


class Receiver:
    """A receiver that answers with the given statuses, then with 200, and keeps the bodies."""

    def __init__(self, *statuses: int) -> None:
        self.statuses, self.bodies, self.keys = list(statuses), [], []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.keys.append(self.headers["Idempotency-Key"])
                receiver.bodies.append(json.loads(body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Callable[..., Receiver]]:
    """A function that starts a receiver."""
    started: list[Receiver] = []

    def start(*statuses: int) -> Receiver:
        started.append(Receiver(*statuses))
        return started[-1]

    yield start
    for one in started:
        one.close()


def notice(one: Incident) -> Notice:
    return Notice("resolved" if one.state in ("resolved", "merged") else "opened", AT, one.id, (one,))


def body(**changes: object) -> dict[str, object]:
    text = webhook.render(notice(replace(INCIDENT, **changes)), LINKS)  # type: ignore[arg-type]
    return json.loads(text or "{}")


def test_the_body_has_the_keys_of_version_4() -> None:
    """Receivers written for Alertmanager find what they read."""
    assert set(body()) == {"version", "groupKey", "truncatedAlerts", "status", "receiver", "groupLabels", "commonLabels",
                           "commonAnnotations", "externalURL", "alerts"}


@pytest.mark.parametrize(("key", "want"), [
    ("alertname", "thermal_throttle"), ("node", "n7"), ("device", "3"), ("owner", "infra"), ("class", "page"),
    ("job", "train-1"), ("incident", "inc-0123456789ab"),
])
def test_labels_are_the_identity(key: str, want: str) -> None:
    """Fault, part, owner and class are labels."""
    assert body()["alerts"][0]["labels"][key] == want  # type: ignore[index]


def test_an_open_incident_fires_and_has_not_ended() -> None:
    """endsAt is Alertmanager's zero time while it fires."""
    alert = body()["alerts"][0]  # type: ignore[index]
    assert (alert["status"], alert["endsAt"]) == ("firing", "0001-01-01T00:00:00Z")


def test_a_resolved_incident_ends_at_its_resolution() -> None:
    """The same labels come with status resolved."""
    alert = body(state="resolved", resolved_at=AT + 600_000)["alerts"][0]  # type: ignore[index]
    assert (alert["status"], alert["endsAt"]) == ("resolved", "2026-09-21T14:23:30.000Z")


def test_labels_do_not_change_while_the_incident_lives() -> None:
    """Silences set on an open incident survive its changes."""
    first = body()["alerts"][0]["fingerprint"]  # type: ignore[index]
    assert first == body(state="acting", confidence=0.5, lost_gpu_hours=9.0)["alerts"][0]["fingerprint"]  # type: ignore[index]


def test_a_merged_incident_ends() -> None:
    """The wider incident speaks for it from now on: its own alert must not fire for ever."""
    assert body(state="merged", resolved_at=AT)["alerts"][0]["status"] == "resolved"  # type: ignore[index]


def test_a_storm_is_one_body_within_its_bound() -> None:
    """An alert for each of the first members; the others are counted."""
    many = tuple(replace(INCIDENT, id=f"inc-{i:012d}") for i in range(150))
    found = json.loads(webhook.render(Notice("storm", AT, "storm-1", many, total=150, still_open=150), LINKS) or "{}")
    assert (len(found["alerts"]), found["truncatedAlerts"], found["groupLabels"]) == (100, 50, {})


def message(receiver: Receiver) -> tuple[webhook.Webhook, Outbound]:
    return webhook.Webhook(webhook.Params(receiver.url)), Outbound("m1", "alertmanager_webhook/0", INCIDENT.id, AT, "{}")


@pytest.mark.parametrize(("status", "error"), [(500, Unavailable), (503, Unavailable), (429, Unavailable),
                                               (302, Refused), (400, Refused), (404, Refused)])
def test_a_failing_receiver_is_told_from_one_that_refuses(receiver: Callable[..., Receiver], status: int,
                                                         error: type[Exception]) -> None:
    """5xx and 429 are worth another try, other answers are final."""
    hook, one = message(receiver(status))
    with pytest.raises(error):
        hook.deliver(one)


def wait_for(condition: Callable[[], bool], seconds: float = 8.0) -> bool:
    end = monotonic_seconds() + seconds
    while monotonic_seconds() < end:
        if condition():
            return True
        threading.Event().wait(0.05)
    return condition()


def never() -> bool:
    return False


def deliver_from(path: Path, url: str, want: Callable[[], bool], seconds: float = 8.0) -> int:
    """Opens the store, runs the outbox until `want` or for so long, closes; gives what is left pending."""
    store = DuckStore(path)
    writer = StoreWriter(store)
    thread = OutboxThread(store, writer, {"hook": webhook.Webhook(webhook.Params(url, 2.0))}, Telemetry())
    thread.start()
    wait_for(want, seconds)
    thread.stop()
    left = len(store.outbox_pending("hook"))
    writer.close()
    store.close()
    return left


def commit(path: Path, *ids: str) -> None:
    store = DuckStore(path)
    rows = tuple(Outbound(i, "hook", INCIDENT.id, AT, webhook.render(notice(INCIDENT), LINKS) or "") for i in ids)
    store.commit_tick(TickCommit(AT, outbox=rows))
    store.close()


def test_a_message_is_tried_again_until_it_is_taken(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """Two failures, then success: one message in the end, with one idempotency key."""
    one = receiver(503, 503)
    commit(tmp_path / "g.duckdb", "m1")
    deliver_from(tmp_path / "g.duckdb", one.url, lambda: len(one.bodies) >= 3)
    assert one.keys == ["m1", "m1", "m1"]


def test_a_restart_loses_no_message(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """What the first run could not deliver, the next one does, in order."""
    commit(tmp_path / "g.duckdb", "m1", "m2")
    left = deliver_from(tmp_path / "g.duckdb", "http://127.0.0.1:9/hook", never, 0.8)
    one = receiver()
    deliver_from(tmp_path / "g.duckdb", one.url, lambda: len(one.bodies) >= 2)
    assert (left, one.keys) == (2, ["m1", "m2"])


def test_a_delivered_message_is_not_sent_again_after_a_restart(receiver: Callable[..., Receiver], tmp_path: Path) -> None:
    """Delivery is committed."""
    one = receiver()
    commit(tmp_path / "g.duckdb", "m1")
    deliver_from(tmp_path / "g.duckdb", one.url, lambda: len(one.bodies) >= 1)
    deliver_from(tmp_path / "g.duckdb", one.url, never, 0.8)
    assert one.keys == ["m1"]


# --- against a real Alertmanager --------------------------------------------------------------------------------------
ALERTMANAGER = """
route: {receiver: hook, group_by: [alertname], group_wait: 0s, group_interval: 1s}
receivers: [{name: hook, webhook_configs: [{url: "%s", send_resolved: true}]}]
"""


def real_bodies(receiver: Receiver, folder: Path, port: int, spawn: Callable[..., object]) -> dict[str, dict[str, object]]:
    """What Debian's Alertmanager posts for an alert that fires and then ends, by status."""
    binary = needs.program("alertmanager")
    (folder / "am.yml").write_text(ALERTMANAGER % receiver.url)
    spawn(binary, f"--config.file={folder / 'am.yml'}", f"--storage.path={folder / 'data'}", "--log.level=error",
          f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=")
    labels = {"alertname": "GpuHot", "node": "n7"}
    for ends in (wall_ms() + 600_000, wall_ms() - 1000):
        alert = {"labels": labels, "annotations": {"summary": "hot"}, "generatorURL": "http://x/g",
                 "startsAt": rfc3339(wall_ms() - 60_000), "endsAt": rfc3339(ends)}
        seen = len(receiver.bodies)
        assert wait_for(lambda alert=alert: post(f"http://127.0.0.1:{port}/api/v2/alerts", [alert]))  # type: ignore[misc]
        assert wait_for(lambda seen=seen: len(receiver.bodies) > seen)  # type: ignore[misc]
    return {str(one["status"]): one for one in receiver.bodies}


def post(url: str, what: object) -> bool:
    request = urllib.request.Request(url, json.dumps(what).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def form(value: object, key: str = "") -> object:
    """The keys and types of a JSON value. Labels and annotations are free, but all text; times are RFC 3339."""
    if isinstance(value, dict):
        if key.lower().endswith(("labels", "annotations")):
            return sorted({type(one).__name__ for one in value.values()})
        return {name: form(inner, name) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [form(one) for one in value][:1]
    if key in ("startsAt", "endsAt"):
        return "time" if parse_rfc3339(str(value)) else "no time"
    if key == "fingerprint":
        return len(str(value)), int(str(value), 16) >= 0
    return value if key in ("version", "status") else type(value).__name__


def test_the_form_is_that_of_a_real_alertmanager(receiver: Callable[..., Receiver], tmp_path: Path,
                                                 free_port: Callable[[], int], spawn: Callable[..., object]) -> None:
    """Keys and types of the body, while it fires and when it has ended, equal those that Debian's Alertmanager posts."""
    real = real_bodies(receiver(), tmp_path, free_port(), spawn)
    ours = {"firing": body(), "resolved": body(state="resolved", resolved_at=AT + 600_000)}
    assert {status: form(one) for status, one in ours.items()} == {status: form(one) for status, one in real.items()}
    assert real["firing"]["alerts"][0]["endsAt"] == ours["firing"]["alerts"][0]["endsAt"]  # type: ignore[index]
