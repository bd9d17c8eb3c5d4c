"""The worker from end to end: a real node_exporter, a fake owner, slots by the clock."""

from __future__ import annotations

import asyncio
import socket
import time

from collectors.worker import run_worker
from core.clock import ManualClock
from core.config import read_config
from core.telemetry import Telemetry
from tests import needs
from tests.collect.doors import FakeOwner, reply, serve

T0 = 1_800_000_000_000


class PacedClock(ManualClock):
    """Goes to the next slot only after the owner has got the batch of the last one, as the fleet's clock does."""

    def __init__(self, at_ms, owner):
        super().__init__(at_ms)
        self.owner, self.slots = owner, 0

    async def sleep_until(self, at_ms):
        while len(self.owner.batches) < self.slots:
            await asyncio.sleep(0.002)
        self.slots += 1
        await super().sleep_until(at_ms)


def work(config, owner, batches, doors=None, telemetry=None):
    """Runs a worker until the owner has got so many batches."""

    async def act():
        stop = asyncio.Event()

        def answer(path, body):
            said = (doors or {}).get(path.partition("?")[0])
            if said is not None:
                return reply(said(path) if callable(said) else said)
            out = owner(path, body)
            if len(owner.batches) >= batches:
                stop.set()
            return out

        async with serve(answer) as url:
            settings = read_config(config(url))
            await asyncio.wait_for(
                run_worker(settings, PacedClock(T0 - 1, owner), url, "w", stop, telemetry or Telemetry()), 20)

    asyncio.run(act())


def write(tmp_path, text):
    """A greylag.yaml with URL for the doors' address."""

    def make(url):
        file = tmp_path / "greylag.yaml"
        file.write_text(f"data_dir: {tmp_path}/data\nclock: {url}\n" + text.replace("URL", url).replace("HOST", url.removeprefix("http://")))
        return file

    return make


def wait_for(port):
    """Returns once something listens on the port."""
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("nothing listens")


def test_a_real_node_exporter_arrives_at_the_owner(tmp_path, free_port, spawn):
    """Debian's node_exporter is scraped into batches under its own names, with up and signals, slot by slot."""
    port = free_port()
    spawn(needs.program("node_exporter"), f"--web.listen-address=127.0.0.1:{port}")
    wait_for(port)
    owner = FakeOwner()
    text = f"""scrape_configs:
- job_name: node
  scrape_interval: 15s
  static_configs: [{{targets: ['127.0.0.1:{port}'], labels: {{node: n1}}}}]
"""
    work(write(tmp_path, text), owner, 3)
    assert [b.watermark for b in owner.batches] == [T0, T0 + 15_000, T0 + 30_000]
    (layout,) = owner.batches[0].layouts
    assert owner.batches[1].layouts == ()
    assert (layout.source, layout.node, layout.target_id) == ("node_exporter", "n1", f"node/127.0.0.1:{port}")
    scrape = owner.batches[1].scrapes[0]
    values = {s.name: v for s, v in zip(layout.series, scrape.values, strict=True)}
    assert values["up"] == 1.0
    assert values["scrape_samples_scraped"] == len(layout.series) - 3
    assert values["node_boot_time_seconds"] > 1e9
    assert {"node.boot_time_seconds", "node.cpu_busy_ratio", "node.load1"} <= {r.signal for r in layout.signals}
    assert scrape.at == T0 + 15_000


def test_targets_logs_and_failures_share_a_batch(tmp_path):
    """One slot: HTTP discovery, a good and a dead target, a kernel log; counters say what happened."""
    owner, telemetry = FakeOwner(), Telemetry()
    log = b"2027-01-15T08:00:01.000Z n1 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, gone\n"
    groups = b'[{"targets": ["HOST"], "labels": {"__metrics_path__": "/nodes/n1/dcgm", "node": "n1", "instance": "n1:9400"}}, ' \
             b'{"targets": ["127.0.0.1:1"], "labels": {"node": "n2"}}]'
    doors = {"/nodes/n1/dcgm": b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",Hostname="n1"} 50\n',
             "/logs/n1": lambda path: log[int(path.rpartition("=")[2]):], "/logs/n2": b""}

    def config(url):
        doors["/sd"] = groups.replace(b"HOST", url.removeprefix("http://").encode())
        return write(tmp_path, """scrape_configs:
- job_name: dcgm
  scrape_interval: 15s
  http_sd_configs: [{url: 'URL/sd'}]
logs: [{kind: kernel, url: 'URL/logs/{node}'}]
""")(url)

    work(config, owner, 2, doors, telemetry)
    first = owner.batches[0]
    assert [(s.target_id, s.error) for s in first.scrapes] == [
        ("dcgm/127.0.0.1:1", "connect_failed"), ("dcgm/n1:9400", None), ("dcgm/n1:9400#gpu", None)]
    assert [e.kind for e in first.events] == ["xid"]
    assert owner.batches[1].events == ()
    assert telemetry.get("greylag_scrapes_total", result="connect_failed") >= 2
    assert ("greylag_scrapes_total", (("result", "connect_failed"),), 1.0) in first.telemetry
    assert str(len(log)) in (tmp_path / "data/follow-w.json").read_text()


def test_an_empty_configuration_still_reports_its_slots(tmp_path):
    """The owner can tick although there was nothing to read."""
    owner = FakeOwner()
    work(write(tmp_path, "scrape_configs: []\n"), owner, 2)
    assert [(b.watermark, b.scrapes) for b in owner.batches][:2] == [(T0, ()), (T0 + 15_000, ())]
