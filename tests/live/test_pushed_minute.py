"""A minute of a real Prometheus' remote write into a whole running Greylag: collector, spool, owner, store."""

from __future__ import annotations

import math
import time

import pytest

from app.processes import free_port
from core.protocols import Matcher
from tests import needs
from tests.live.site import Greylag, wait_for
from tests.push import prometheus

SECONDS, SETTLE_SECONDS = 60, 20.0


def number(value: float) -> float | str:
    """A value that equals itself."""
    return "NaN" if math.isnan(value) else value


@pytest.mark.chaos
def test_everything_that_prometheus_scraped_is_in_the_store_once(tmp_path, spawn):
    """Every sample with its labels, time and value, and no other; what was pushed is a target of its own with its node."""
    program, ours, theirs = needs.program("prometheus"), free_port(), free_port()
    targets = [prometheus.Target(180, 1), prometheus.Target(40, 2)]
    greylag = Greylag(tmp_path, free_port(), push_listen=f"127.0.0.1:{ours}", flush_seconds=1.0, scrape_configs=[])
    try:
        greylag.start()
        config = prometheus.configuration([t.address for t in targets], f"http://127.0.0.1:{ours}/api/v1/write", "1s")
        server = prometheus.start(program, tmp_path, theirs, config, spawn)
        wait_for(lambda: greylag.query('probe_total{i="0"}'), 60, "the first pushed sample")
        time.sleep(SECONDS)
        for target in targets:
            target.close()  # what was scraped so far stays as it is
        time.sleep(1.5)
        wanted = {key: number(float(value)) for key, value in prometheus.raw_samples(theirs, time.time(), SECONDS + 300).items()}
        newest = max(at for name, _, at in wanted if name == "probe_total")
        time.sleep(SETTLE_SECONDS)
        window = greylag.http.get("/api/greylag/v1/windows", params={"signal": "gpu.temperature_celsius", "node": "n1"}).json()
        server.terminate()
        assert greylag.stop() == 0
    finally:
        greylag.close()
    with greylag.store() as store:
        found: dict[tuple[str, tuple[tuple[str, str], ...], int], list[float | str]] = {}
        for one in store.select([Matcher("job", "=", "site")], 0, 2**62):
            for at, value in zip(one.at, one.values, strict=True):
                if value is not None and at <= newest:
                    found.setdefault((one.series.name, one.series.labels, at), []).append(number(value))
    wanted = {key: value for key, value in wanted.items() if key[2] <= newest}
    assert len(wanted) > 200 * SECONDS
    assert {key: value for key, value in wanted.items() if found.get(key) != [value]} == {}
    assert found.keys() - wanted.keys() == set()
    assert len(window["series"]) == 8
