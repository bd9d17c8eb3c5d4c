"""A target's pages as layouts and scrapes, by Prometheus' rules."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from collectors.discovery import make_target
from collectors.fetch import Body, HttpFetch
from collectors.mapping import Mapper
from collectors.scrape import TargetScraper, merge_labels
from collectors.scrape_config import Limits, ScrapeConfig
from core.derive import absent
from core.errors import SourceError
from core.plugins import load_plugins
from tests.collect.doors import reply, serve

MAPPER = Mapper(load_plugins("collectors.sources"))
T0 = 1_800_000_000_000


def scraper(**config):
    """A scraper of one target with these settings."""
    return TargetScraper(make_target(ScrapeConfig("j", **config), "n1:9100", {"node": "n1"}), MAPPER)


def read(one, text, at=T0):
    """{(name, labels): value} of a page, with its layout and scrape."""
    (layout, scrape), *_ = one.page(Body(text.encode(), "text/plain"), at, 0.0)
    return {(s.name, s.labels): v for s, v in zip(layout.series, scrape.values, strict=True)}, layout, scrape


MERGES = [
    ((("a", "1"),), {"job": "j"}, False, {"a": "1", "job": "j"}),
    ((("job", "p"),), {"job": "j"}, False, {"job": "j", "exported_job": "p"}),
    ((("job", "p"), ("exported_job", "q")), {"job": "j"}, False, {"job": "j", "exported_job": "q", "exported_exported_job": "p"}),
    ((("job", "p"),), {"job": "j"}, True, {"job": "p"}),
    ((("job", ""),), {"job": "j"}, True, {}),
    ((("job", ""),), {"job": "j"}, False, {"job": "j"}),
    ((("a", ""),), {}, False, {}),
]


@pytest.mark.parametrize(("page", "target", "honor", "wanted"), MERGES)
def test_labels_merge_as_prometheus_merges_them(page, target, honor, wanted):
    """Collisions go to `exported_`, or to the page with honor_labels; empty labels are none."""
    assert dict(merge_labels(page, target, honor)) == wanted


def test_a_page_becomes_a_scrape_with_its_own_series():
    """Series get the target's labels; up, duration and sample count stand at the end with the target's labels only."""
    found, layout, scrape = read(scraper(), "# TYPE b gauge\nb 2\na{x=\"1\"} 1\n")
    target = (("instance", "n1:9100"), ("job", "j"), ("node", "n1"))
    assert [s.name for s in layout.series] == ["a", "b", "up", "scrape_duration_seconds", "scrape_samples_scraped"]
    assert found["a", (*target, ("x", "1"))] == 1.0
    assert found["up", target] == 1.0
    assert found["scrape_samples_scraped", target] == 2.0
    assert layout.series[1].type == "gauge"
    assert (scrape.at, scrape.error, scrape.target_id) == (T0, None, "j/n1:9100")


def test_the_layout_stays_while_the_series_do():
    """New values and shuffled families keep the layout; a new series makes another; the first comes back as it was."""
    one = scraper()
    first = read(one, "a 1\nb 2\n")[1]
    again = read(one, "a 3\nb 4\n")
    assert again[1] is first
    shuffled = read(one, "b 6\na 5\n")
    assert shuffled[1] is first
    assert shuffled[2].values[:2].tolist() == [5.0, 6.0]
    more = read(one, "a 1\nb 2\nc 3\n")[1]
    assert more.id != first.id
    assert read(one, "a 1\nb 2\n")[1] is first


def test_a_page_cannot_speak_for_the_scraper():
    """A page's own `up` gives way to the real one."""
    found, layout, _ = read(scraper(honor_labels=True), 'up{instance="n1:9100",job="j",node="n1"} 0\n')
    assert [s.name for s in layout.series].count("up") == 1
    assert found["up", layout.series[0].labels] == 1.0


@pytest.mark.parametrize(("honor", "age_ms", "kept"), [
    (True, 0, True), (True, 60_000, True), (True, 300_001, False), (True, -700_000, False), (False, 900_000, True),
])
def test_timestamps_of_the_page(honor, age_ms, kept):
    """A value with a time of its own counts at the slot while it is at most 5 minutes old."""
    _, _, scrape = read(scraper(honor_timestamps=honor), f"a 1 {T0 - age_ms}\n")
    assert absent(scrape.values[:1]).tolist() == [not kept]
    assert scrape.at == T0


def test_sample_limit():
    """More samples than sample_limit fail the whole scrape."""
    with pytest.raises(SourceError) as error:
        read(scraper(limits=Limits(sample_limit=1)), "a 1\nb 2\n")
    assert error.value.reason == "too_many_samples"


def test_breaches_that_are_let_pass_are_counted():
    """What Prometheus tolerates is stored and counted by name."""
    one = scraper()
    read(one, "a 1\nb 2")
    assert one.tolerated["missing_newline"] == 1


FAILURES = [
    (reply(b"what is this"), "truncated"),
    (reply(b"a b c d\n"), "bad_syntax"),
    (reply(b""), "empty_body"),
    (reply(b"", "503 Busy"), "http_status"),
    (reply(b"", "301 Moved", location="/x"), "redirect_refused"),
    (reply(b"a 1\n" * 30), "body_too_large"),
    (None, "timeout"),
]


@pytest.mark.parametrize(("answer", "reason"), FAILURES)
def test_a_failed_scrape_is_a_scrape(answer, reason):
    """A target that cannot be read gives `up` 0, no samples, and the reason."""

    async def act():
        fetch = HttpFetch()
        try:
            async with serve(lambda path, body: answer) as url:
                config = ScrapeConfig("j", scrape_timeout_ms=300, limits=Limits(body_size_limit=100))
                one = TargetScraper(make_target(config, url.removeprefix("http://"), {}), MAPPER)
                return await one.scrape(fetch, T0)
        finally:
            await fetch.aclose()

    [(layout, scrape)] = asyncio.run(act())
    assert [s.name for s in layout.series] == ["up", "scrape_duration_seconds", "scrape_samples_scraped"]
    assert (scrape.error, scrape.at, scrape.values[0], scrape.values[2]) == (reason, T0, 0.0, 0.0)
    assert np.isfinite(scrape.values).all()
