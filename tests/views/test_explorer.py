"""The explorer: its two pages against a fake API, what it says when there is nothing to show, and once in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pyarrow as pa
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.demo import explorer_command
from app.story import evidence
from core.clock import monotonic_seconds, rfc3339
from tests import needs
from tests.views.fakeapi import AT, INCIDENTS, FakeApi

EXPLORER = str(needs.ROOT / "app" / "explorer.py")
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]
SECONDS = 20


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeApi]]:
    """A function that starts a fake API and points the explorer to it."""
    started: list[FakeApi] = []

    def start(empty: bool = False) -> FakeApi:
        started.append(FakeApi(empty))
        monkeypatch.setenv("GREYLAG_URL", started[-1].url)
        st.cache_resource.clear()
        return started[-1]

    yield start
    for one in started:
        one.close()


def page(name: str | None = None, **params: str) -> AppTest:
    """A page, run once. name: the function of its page, None = the one that opens first."""
    test = AppTest.from_file(EXPLORER, default_timeout=SECONDS)
    for key, value in params.items():
        test.query_params[key] = value
    if name is not None:
        test = AppTest.from_string(_ALONE.format(path=EXPLORER, name=name), default_timeout=SECONDS)
        for key, value in params.items():
            test.query_params[key] = value
    return test.run()


# AppTest has no way to another page of st.navigation: the page's function is run alone.
_ALONE = """
import runpy
import streamlit as st
keep, st.navigation = st.navigation, lambda pages: type("Nothing", (), {{"run": lambda self: None}})()
found = runpy.run_path({path!r})
st.navigation = keep
found[{name!r}]()
"""


def texts(test: AppTest) -> str:
    """All that the page says, as one text."""
    parts = [*test.title, *test.subheader, *test.markdown, *test.caption, *test.text, *test.success, *test.info, *test.warning, *test.error]
    return "\n".join(str(one.value) for one in parts)


def test_the_fleet_page_counts_and_lists(serve: Callable[..., FakeApi]) -> None:
    """Open incidents, nodes in service, the table with a link to each incident's page."""
    serve()
    test = page()
    assert not test.exception
    assert {m.label: m.value for m in test.metric} == {"Open incidents": "1", "Nodes in service": "3", "GPU-hours lost": "3.0",
                                                       "Last tick (UTC)": "11:06:45"}
    table = test.dataframe[0].value
    assert list(table["fault"]) == ["thermal_throttle", "packet_loss"]
    assert list(table["evidence"]) == ["/incident?incident=inc-open", "/incident?incident=inc-done"]


def test_an_incident_shows_evidence_against_its_peers(serve: Callable[..., FakeApi]) -> None:
    """The deep link opens the incident that it names: fault and part, numbers with units, what was done, one chart."""
    serve()
    test = page("incident_page", incident="inc-done")
    said = texts(test)
    assert not test.exception
    assert "packet_loss on n3 mlx5_0/1" in said
    assert evidence(INCIDENTS[1]["evidence"])[0] in said
    assert "drain n3 mlx5_0/1: DONE after 90 s" in said
    [chart] = test.get("vega_lite_chart")
    drawn = {row["who"]: row["value"] for data in chart.proto.datasets for row in rows(data.data.data) if row.get("value") == 91.0
             or row.get("who") == "median of all parts"}
    assert drawn == {"culprit": 91.0, "median of all parts": 60.0}
    assert {"onset", "opened", "resolved"} == {row["what"] for data in chart.proto.datasets for row in rows(data.data.data) if "what" in row}


def rows(arrow: bytes) -> list[dict[str, object]]:
    with pa.ipc.open_stream(arrow) as reader:
        return list(reader.read_all().to_pylist())


def test_an_incident_shows_what_changed_and_what_is_not_watched(serve: Callable[..., FakeApi]) -> None:
    """The timeline with who did it, the blind spots, and the page of the fault."""
    serve()
    test = page("incident_page", incident="inc-open")
    tables = [frame.value.to_dict("records") for frame in test.dataframe]
    assert {"UTC": rfc3339(AT - 600_000)[:19].replace("T", " "), "kind": "change", "what": "driver 550 → 570", "part": "n2", "by": "anna"} in [
        row for table in tables for row in table]
    assert {"fault": "power_brake", "why": "was seen and is silent now", "needs": "gpu.throttle_reasons_bits", "nodes": "n2"} in [row for table in tables for row in table]
    assert "(http://greylag:9470/runbooks/thermal_throttle)" in " ".join(one.value for one in test.markdown)


@pytest.mark.parametrize("name", ["fleet_page", "incident_page"])
def test_a_site_without_anything_is_no_error(serve: Callable[..., FakeApi], name: str) -> None:
    """No inventory, no incident: said in a sentence each."""
    serve(empty=True)
    test = page(name)
    assert not test.exception
    assert not test.error
    assert "No incident has been opened." in texts(test)
    assert name != "fleet_page" or "No inventory is configured" in texts(test)


def test_what_is_old_does_not_look_quiet(serve: Callable[..., FakeApi]) -> None:
    """Where nothing is judged the fleet page says so above all else."""
    api = serve()
    api.late = True
    assert next(w.value for w in page().warning).startswith("What is shown may be out of date")
    api.late = False
    assert not page().warning


def test_an_incident_that_is_not_known(serve: Callable[..., FakeApi]) -> None:
    """A stale link is answered with a sentence, and with the newest incident."""
    serve()
    test = page("incident_page", incident="inc-gone")
    assert not test.exception
    assert [w.value for w in test.warning] == ["There is no incident inc-gone."]
    assert "thermal_throttle on n2 GPU 3" in texts(test)


@pytest.mark.parametrize("name", ["fleet_page", "incident_page"])
def test_no_api_is_one_kind_sentence(serve: Callable[..., FakeApi], name: str) -> None:
    """Who does not answer, and what to do about it; no traceback."""
    api = serve()
    api.close()
    test = page(name)
    assert not test.exception
    [sentence] = [e.value for e in test.error]
    assert api.url in sentence
    assert "greylag run" in sentence


def test_in_a_real_browser(serve: Callable[..., FakeApi], spawn: Callable[..., object], free_port: Callable[[], int]) -> None:
    """The real process in Chromium: from the fleet page one click leads to the incident, whose chart shows the
    culprit's line."""
    chromium = needs.program("chromium")
    from playwright.sync_api import sync_playwright

    serve()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    spawn(*explorer_command(port), cwd=needs.ROOT)
    deadline = monotonic_seconds() + SECONDS
    while not answers(f"{url}/_stcore/health"):
        assert monotonic_seconds() < deadline, "the explorer did not start"
    asked = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=BROWSER)
        try:
            tab = browser.new_page()
            tab.on("request", lambda request: asked.append(request.url))
            tab.goto(url)
            tab.get_by_role("link", name="thermal_throttle on n2 GPU 3").click(timeout=SECONDS * 1000)
            tab.get_by_role("heading", name="thermal_throttle on n2 GPU 3").wait_for(timeout=SECONDS * 1000)
            tab.locator("[data-testid=stVegaLiteChart] path[stroke='#e03131']").first.wait_for(timeout=SECONDS * 1000)
            assert tab.url == f"{url}/incident?incident=inc-open"
        finally:
            browser.close()
    assert all(one.startswith((url, "data:", "blob:", url.replace("http", "ws"))) for one in asked), "something leaves the machine"


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1).status_code == 200
    except httpx.HTTPError:
        return False
