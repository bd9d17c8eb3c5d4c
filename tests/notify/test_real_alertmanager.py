"""Both ways with Debian's Alertmanager: our alert there, its silence here, its webhook here; through a real owner with tokens."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from app.owner import Owner
from app.processes import free_port
from core.clock import rfc3339, wall_ms
from core.config import read_config
from tests import needs
from tests.api.test_people import HOT, hold, quick, tick
from tests.notify.receivers import wait_for
from tests.pipeline.worlds import finding
from tests.store import build

TOKEN = "a-token-of-the-alertmanager"
CONFIG = """
global: {resolve_timeout: 3s}
route: {receiver: greylag, group_by: [alertname], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}
receivers:
- name: greylag
  webhook_configs:
  - url: http://127.0.0.1:%d/api/greylag/v1/alerts/in
    http_config: {authorization: {credentials: %s}}
"""
GREYLAG = """
data_dir: data
listen: 127.0.0.1:%d
external_url: http://greylag:9470
inventory: {file: inventory.yaml}
tokens:
- {name: alertmanager, role: sender, sha256: %s}
- {name: ada, role: operator, sha256: %s}
notify:
- {name: alertmanager, id: am, url: 'http://127.0.0.1:%d', resend_seconds: 1, poll_seconds: 0.2}
"""


class Both:
    """An owner whose ticks the test makes, served over HTTP, and an Alertmanager."""

    def __init__(self, owner: Owner, alertmanager: str) -> None:
        self.owner, self.url, self.now = owner, alertmanager, 0

    def tick(self, *held: Any) -> None:
        """One tick with these findings held; then the tick thread's part of the outbox."""
        hold(self.owner, list(held))
        before = self.owner.brain.open_incidents()
        tick(self.owner, self.now)
        self.now += 1
        still = self.owner.brain.open_incidents()
        self.owner.outbox.ended({one.id for one in before} - {one.id for one in still})
        self.owner.outbox.stands(build.T0 + self.now * build.STEP, self.owner.brain.herald.standing(still))
        self.owner.outbox.wake()
        while not self.owner.ticker.inbox.empty():
            self.owner.brain.feed(self.owner.ticker.inbox.get_nowait())

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """What Alertmanager shows of the alerts with this name that fire."""
        return httpx.get(f"{self.url}/api/v2/alerts", params={"filter": f'alertname="{name}"'}).json()

    def states(self, name: str) -> list[str]:
        return [one["status"]["state"] for one in self.alerts(name)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    program = needs.program("alertmanager")
    folder = tmp_path_factory.mktemp("both")
    ours, theirs = free_port(), free_port()
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (TOKEN, "ada's")]
    (folder / "am.yml").write_text(CONFIG % (ours, TOKEN))
    (folder / "inventory.yaml").write_text("nodes: [{name: n1, rack: r1}, {name: n2, rack: r1}]\n")
    (folder / "greylag.yaml").write_text(GREYLAG % (ours, *digests, theirs))
    import subprocess

    alertmanager = subprocess.Popen([program, f"--config.file={folder / 'am.yml'}", f"--storage.path={folder / 'data'}", "--log.level=error",
                                     f"--web.listen-address=127.0.0.1:{theirs}", "--cluster.listen-address="])
    owner = Owner(read_config(folder / "greylag.yaml"))
    quick(owner)
    server = uvicorn.Server(uvicorn.Config(owner.app(), host="127.0.0.1", port=ours, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    site = Both(owner, f"http://127.0.0.1:{theirs}")
    try:
        owner.outbox.start()
        owner.silence_watch.begin()
        yield site
    finally:
        server.should_exit = True
        thread.join(10)
        owner.silence_watch.stop()
        owner.outbox.stop()
        owner.writer.close()
        owner.store.close()
        owner.loop.close()
        alertmanager.terminate()
        alertmanager.wait(10)


def hot(i: int, observed: float = 91.0) -> Any:
    return finding(HOT, at=build.T0 + 4 * build.STEP, onset=build.T0 + 4 * build.STEP, observed=observed)


def test_both_ways(both: Both) -> None:
    """An alert shows there with its labels, is posted again past resolve_timeout, is silenced there and so here, stays silenced when
    the incident changes, and ends with it; an alert of others comes here as evidence, our own comes back as none."""
    owner = both.owner
    for _ in range(5):
        both.tick()
    both.tick(hot(5))
    [incident] = owner.brain.open_incidents()

    # It shows there, and stays beyond the resolve_timeout of 3 s, for it is posted again each second.
    assert wait_for(lambda: both.states("thermal_throttle") == ["active"])
    shown = both.alerts("thermal_throttle")[0]
    assert shown["labels"] == {"alertname": "thermal_throttle", "fault": "thermal_throttle", "target": "n1 GPU 0", "node": "n1", "owner": "infra",
                               "class": "page"}
    assert (shown["annotations"]["incident"], shown["generatorURL"]) == (incident.id, f"http://greylag:9470/api/greylag/v1/incidents/{incident.id}")
    assert wait_for(lambda: owner.telemetry.get("greylag_alerts_in_total", reason="own_alert") >= 1)
    threading.Event().wait(3.5)
    assert both.states("thermal_throttle") == ["active"]

    # A silence that is made there is one here, by whoever made it, and survives a change of the incident.
    silence = {"matchers": [{"name": "fault", "value": "thermal_.*", "isRegex": True, "isEqual": True},
                            {"name": "target", "value": "n1 GPU 0", "isRegex": False, "isEqual": True}],
               "startsAt": rfc3339(wall_ms()), "endsAt": rfc3339(build.T0 + 3_600_000), "createdBy": "ada", "comment": "fans on order"}
    made = httpx.post(f"{both.url}/api/v2/silences", json=silence).json()["silenceID"]
    assert wait_for(lambda: len(owner.brain.silences.all()) == 1)
    both.tick(hot(6, 95.0))
    [incident] = owner.brain.open_incidents()
    [mark] = owner.brain.marks.of(incident.id)
    assert (mark.word, mark.actor, "fans on order" in mark.note, made in mark.note) == ("silence", "alertmanager:ada", True, True)
    assert owner.brain.marks.silenced(incident, build.T0 + 7 * build.STEP)
    assert wait_for(lambda: both.states("thermal_throttle") == ["suppressed"])
    both.tick(hot(7, 99.0))
    assert wait_for(lambda: "99" in both.alerts("thermal_throttle")[0]["annotations"]["description"])
    assert both.states("thermal_throttle") == ["suppressed"]

    # It is ended there: it ends here.
    httpx.delete(f"{both.url}/api/v2/silence/{made}")
    assert wait_for(lambda: not owner.brain.silences.all())
    both.tick(hot(8, 99.0))
    assert not owner.brain.marks.silenced(incident, build.T0 + 9 * build.STEP)

    # An alert of others on that node comes here by Alertmanager's webhook, and stands in the incident's evidence.
    other = {"labels": {"alertname": "GpuHighTemperature", "instance": "n1:9400", "gpu": "0", "severity": "warning"},
             "annotations": {"summary": "GPU 0 is hot"}, "startsAt": rfc3339(wall_ms() - 60_000)}
    httpx.post(f"{both.url}/api/v2/alerts", json=[other])
    assert wait_for(lambda: owner.telemetry.get("greylag_alerts_in_total", reason="stored") >= 1)
    both.tick(hot(9, 99.0))
    both.tick(hot(10, 99.5))
    [incident] = owner.brain.open_incidents()
    assert [e.text for e in incident.evidence if e.signal == "alert"] == ["GpuHighTemperature firing: GPU 0 is hot"]

    # The incident ends: so does its alert.
    for _ in range(10):
        both.tick()
    assert not owner.brain.open_incidents()
    assert wait_for(lambda: both.alerts("thermal_throttle") == [])
