"""`greylag run` beside Debian's real node_exporter: its series under their own names, found in three ways."""

from __future__ import annotations

import signal

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.site import alive, children, named, wait_for

OWN = ("up", "scrape_duration_seconds", "scrape_samples_scraped")


def page_series(address: str, query: str = "") -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Names and labels of the exporter's own page, read by prometheus-client; those of this very scrape left out."""
    page = httpx.get(f"http://{address}/metrics{query}", trust_env=False).text
    return {(s.name, tuple(sorted((k, v) for k, v in s.labels.items() if v)))
            for family in text_string_to_metric_families(page) for s in family.samples}


def test_every_series_of_the_page_is_there(watched):
    """Names and labels are the exporter's, with job, instance and the group's labels added, as Prometheus does it."""
    greylag, target = watched.greylag, {"job": "node", "instance": watched.address, "cluster": "lab"}
    expected = page_series(watched.address)

    def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        found = set()
        for one in greylag.http.get("/api/v1/series", params={"match[]": '{job="node"}'}).raise_for_status().json()["data"]:
            labels = dict(one)
            name = labels.pop("__name__")
            assert labels.items() >= target.items(), one
            found.add((name, tuple(sorted((k, v) for k, v in labels.items() if k not in target))))
        return found

    # A page holds what its own scrape added (a status code seen for the first time), and interfaces that came a moment ago:
    # that may come a scrape later.
    wait_for(lambda: not {one for one in expected - series() if not one[0].startswith(("promhttp_", "process_", "go_"))},
             10, "the last series of the page")
    assert len(series()) > 200


def test_values_are_the_exporters(watched):
    """A value that does not change is the page's to the last digit; a counter's type and help do not get lost."""
    page = httpx.get(f"http://{watched.address}/metrics", trust_env=False).text
    families = {f.name: f for f in text_string_to_metric_families(page)}
    for name in ("node_memory_MemTotal_bytes", "node_boot_time_seconds"):
        rows = watched.greylag.query(f'{name}{{job="node"}}')
        assert [float(row["value"][1]) for row in rows] == [families[name].samples[0].value]


@pytest.mark.parametrize("name", OWN)
def test_the_scrape_itself_is_a_series(watched, name):
    """up, its duration and its number of samples, with the target's labels only."""
    rows = watched.greylag.query(f'{name}{{job="node"}}')
    assert [row["metric"] for row in rows] == [
        {"__name__": name, "job": "node", "instance": watched.address, "cluster": "lab"}]
    value = float(rows[0]["value"][1])
    assert {"up": value == 1, "scrape_duration_seconds": 0 < value < 1, "scrape_samples_scraped": value > 200}[name]


def test_http_discovery_finds_it(watched):
    """The group's labels join its series, and `params` are asked with: only one collector's series come."""
    greylag = watched.greylag
    wait_for(lambda: greylag.query('up{job="by-http",rack="r7"}')[0]["value"][1] == "1", 20, "a target of the HTTP discovery")
    assert [float(r["value"][1]) >= 0 for r in greylag.query('node_load1{job="by-http"}')] == [True]
    assert greylag.query('node_memory_MemTotal_bytes{job="by-http"}') == []


def test_a_file_that_changes_adds_a_target(watched):
    """file_sd is followed while Greylag runs; the file of the beginning had no target."""
    greylag = watched.greylag
    assert greylag.query('up{job="by-file"}') == []
    watched.file_sd.write_text(f'[{{"targets": ["{watched.address}"], "labels": {{"row": "b"}}}}]')
    wait_for(lambda: greylag.query('up{job="by-file",row="b"}')[0]["value"][1] == "1", 20, "the target of the changed file")
    rows = greylag.query('node_memory_MemFree_bytes{job="by-file"}')
    assert [row["metric"]["row"] for row in rows] == ["b"]


def test_ticks_are_judged_and_nothing_is_found(watched):
    """Ticks go on in real time; a healthy host opens no incident; readiness says so."""
    greylag = watched.greylag
    ready = wait_for(lambda: greylag.http.get("/readyz").status_code == 200, 50, "the first tick")
    assert ready
    assert greylag.items("incidents") == []


@pytest.mark.parametrize("how", [signal.SIGTERM])
def test_the_end_is_clean_and_the_store_has_everything(watched, how):
    """SIGTERM: status 0 within seconds, no process left, and the DuckDB file holds the series. Runs last: it ends the site."""
    greylag = watched.greylag
    pids = children(greylag.pid)
    assert set(pids) == {"owner", "collector"}
    assert greylag.stop(how) == 0
    assert [role for role, pid in pids.items() if alive(pid)] == []
    assert "Traceback" not in greylag.log()
    with greylag.store() as store:
        (up,) = store.select(named("up", job="node"), 0, 2**62)
        assert dict(up.series.labels) == {"job": "node", "instance": watched.address, "cluster": "lab"}
        assert len(up.at) >= 3
        assert [b - a for a, b in zip(up.at, up.at[1:], strict=False) if b <= a] == []
        assert all(at % 500 == 0 for at in up.at)
        assert set(up.values) == {1.0}
        assert len(store.series([*named("node_cpu_seconds_total", job="node")])) >= 8
        (total,) = store.select(named("node_memory_MemTotal_bytes", job="node"), 0, 2**62)
        assert total.series.type == "gauge"
        assert len(total.at) == len(up.at)
