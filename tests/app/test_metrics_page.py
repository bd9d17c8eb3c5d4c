"""The page of Greylag's own metrics: as prometheus-client would print all of it at once, however little was printed anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text

from app.page import MetricsPage
from core.telemetry import Telemetry

FORMATS = [pytest.param("text/plain", text, id="text"), pytest.param("application/openmetrics-text", openmetrics, id="OpenMetrics")]
COVERAGE = {(("node", f"n{i}"), ("signal", 'a "quoted" one')): i / 4 for i in range(4)}


def told() -> Telemetry:
    telemetry = Telemetry()
    telemetry.replace("greylag_coverage_ratio", COVERAGE)
    telemetry.add("greylag_scrapes_total", 3.0, result="ok")
    return telemetry


def read(page: MetricsPage, accept: str, parse: Callable[[str], object]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body = page.render(accept)[0].decode()
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in parse(body) for s in f.samples}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("accept", "parse"), FORMATS)
@pytest.mark.parametrize("change", [
    pytest.param(lambda t: None, id="nothing"),
    pytest.param(lambda t: t.add("greylag_scrapes_total", 2.0, result="ok"), id="a counter grew"),
    pytest.param(lambda t: t.set("greylag_frozen", 1.0), id="a gauge was set for the first time"),
    pytest.param(lambda t: t.amend("greylag_coverage_ratio", {next(iter(COVERAGE)): None}), id="a row vanished"),
    pytest.param(lambda t: t.amend("greylag_coverage_ratio", {next(iter(COVERAGE)): 0.125}), id="a row changed"),
    pytest.param(lambda t: t.replace("greylag_coverage_ratio", {}), id="a metric vanished"),
    pytest.param(lambda t: t.drop("greylag_coverage_ratio", node="n1", signal='a "quoted" one'), id="a row was dropped"),
])
def test_a_page_shows_what_is_there_now(accept: str, parse: Callable[[str], object], change: Callable[[Telemetry], None]) -> None:
    """Whatever changed since the page was asked for last, it is what a page made from nothing shows."""
    telemetry = told()
    page = MetricsPage(telemetry)
    page.render(accept)
    change(telemetry)
    assert read(page, accept, parse) == {(n, labels): v for (n, labels), v in telemetry.snapshot().items()}


def test_what_did_not_change_is_not_printed_again() -> None:
    """A counter moves: of 69,000 rows of coverage none is printed anew."""
    telemetry = told()
    page, printed = MetricsPage(telemetry), []
    page.render()
    plain = page._print
    page._print = lambda name, encoder: printed.append(name) or plain(name, encoder)  # type: ignore[method-assign,func-returns-value]
    telemetry.add("greylag_scrapes_total", result="ok")
    page.render()
    assert printed == ["greylag_scrapes_total"]
