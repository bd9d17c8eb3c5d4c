"""A real Prometheus scrapes a running Greylag's own /metrics (the emulated fleet's pages: tests/fleet/test_server.py)."""

from __future__ import annotations

import httpx

from tests import needs
from tests.live.site import wait_for


def test_a_real_prometheus_reads_our_metrics(watched, spawn, free_port, tmp_path):
    """up is 1, the greylag_* series arrive, and no scrape is refused."""
    config, port = tmp_path / "prometheus.yml", free_port()
    config.write_text("global: {scrape_interval: 2s, scrape_timeout: 2s}\nscrape_configs:\n- job_name: greylag\n"
                      f"  static_configs: [{{targets: ['{watched.greylag.url.removeprefix('http://')}']}}]\n")
    spawn(needs.program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
          f"--web.listen-address=127.0.0.1:{port}")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=5.0) as prometheus:

        def query(text: str) -> list[dict]:
            return prometheus.get("/api/v1/query", params={"query": text}).json()["data"]["result"]

        wait_for(lambda: query("greylag_collector_samples_total > 0"), 60, "a scrape of Greylag by Prometheus")
        assert [row["value"][1] for row in query("up")] == ["1"]
        names = {row["metric"]["__name__"] for row in query('{__name__=~"greylag_.+"}')}
        assert names >= {"greylag_scrapes_total", "greylag_collector_lag_seconds", "greylag_collector_workers",
                         "greylag_event_loop_lag_seconds"}
        (target,) = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        types = {name.removesuffix("_total"): rows[0]["type"]
                 for name, rows in prometheus.get("/api/v1/metadata").json()["data"].items()}
        assert (types["greylag_scrapes"], types["greylag_collector_workers"]) == ("counter", "gauge")
