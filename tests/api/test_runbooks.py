"""The pages of faults: one for each, with what people need at night, named rightly, linked and served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from core.events import KINDS as EVENT_KINDS
from core.faults import faults
from core.plugins import load_plugins
from core.protocols import DetectorPlugin
from core.signals import SIGNALS
from core.telemetry import METRICS
from pipeline.api import create_api
from pipeline.runbooks import SECTIONS, first_steps, runbook, runbook_url

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "faults"
KINDS = sorted({signal.kind for signal in SIGNALS.values()})
SIGNAL = re.compile(rf"`((?:{'|'.join(KINDS)})\.[a-z0-9_]+)`")
DETECTORS: dict[str, DetectorPlugin] = load_plugins("detectors")


def text(fault: str) -> str:
    return runbook(fault) or ""


def section(fault: str, name: str) -> str:
    found = re.search(rf"^## {name}\n\n(.*?)(?=^## |\Z)", text(fault), re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def test_there_is_a_page_for_each_fault_and_none_besides() -> None:
    """The closed list of faults is the list of pages."""
    assert {path.stem for path in FOLDER.glob("*.md")} == {*faults(), "README"}


@pytest.mark.parametrize("fault", faults())
def test_a_page_has_what_people_need(fault: str) -> None:
    """All sections in order and none empty; commands to confirm; numbered steps; owner and class as the list of faults says."""
    known = faults()[fault]
    assert re.findall(r"^## (.*)$", text(fault), re.MULTILINE) == list(SECTIONS)
    assert text(fault).startswith(f"# {fault}\n\n**{known.means[0].upper()}{known.means[1:]}.** Told to: {known.owner}. Class: {known.klass}.\n")
    assert all(len(section(fault, name)) > 60 for name in SECTIONS)
    assert len([line for line in section(fault, "Confirm by hand").splitlines() if line and not line.startswith(("#", "```"))]) >= 3
    assert re.findall(r"^(\d)\. ", section(fault, "Act"), re.MULTILINE)[:2] == ["1", "2"]
    assert "Easily mistaken for it" in section(fault, "How Greylag sees it")


@pytest.mark.parametrize("fault", faults())
def test_signals_and_events_that_a_page_names_exist(fault: str) -> None:
    """A page that names a signal, an event or one of Greylag's own series names it as the code does."""
    assert set(SIGNAL.findall(text(fault))) <= set(SIGNALS)
    assert SIGNAL.findall(section(fault, "How Greylag sees it")) or "`" in section(fault, "How Greylag sees it")
    for words in re.findall(r"\(events? ([^)]*)\)", section(fault, "How Greylag sees it")):
        assert set(re.findall(r"`([a-z_]+)`", words)) <= set(EVENT_KINDS)


@pytest.mark.parametrize("name", DETECTORS)
def test_a_page_names_what_its_detector_needs(name: str) -> None:
    """At least one of the signals or events without which the fault's detector cannot speak stands on the fault's page."""
    plugin = DETECTORS[name]
    if plugin.fault not in faults():
        pytest.skip(f"{name} finds no fault of the list")
    needed = {signal for group in plugin.needs for signal in group}
    others = {signal for one in DETECTORS.values() if one.fault == plugin.fault for group in one.needs for signal in group}
    assert any(f"`{signal}`" in text(plugin.fault) for signal in needed | others)


@pytest.mark.parametrize("page", [*faults(), "README"])
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    """Every relative link is a file of the checkout."""
    broken = [target for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text(page)) if not (FOLDER / target).is_file()]
    assert not broken


def test_the_list_and_the_readme_link_every_page() -> None:
    """Nobody has to search: the list links each page, README and the docs of the detectors lead to the list."""
    missing = [fault for fault in faults() if f"]({fault}.md)" not in text("README")]
    assert not missing
    assert "docs/faults/README.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "faults/README.md" in (ROOT / "docs" / "real-cluster.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("links", "url"), [
    ({"external_url": "http://greylag:9470/"}, "http://greylag:9470/runbooks/gpu_lost"),
    ({"external_url": "http://greylag:9470", "runbook_url": "https://wiki.internal/faults/"}, "https://wiki.internal/faults/gpu_lost")])
def test_the_link_is_ours_or_the_sites(links: dict[str, str], url: str) -> None:
    """Without a page of the site's own the running Greylag answers, also without internet."""
    assert runbook_url("gpu_lost", links) == url


@pytest.mark.parametrize("fault", faults())
def test_first_steps_are_plain_text(fault: str) -> None:
    """What `greylag why` shows as the next step: sentences without marks."""
    steps = first_steps(fault)
    assert len(steps) == 2
    assert all(step and not re.search(r"[`\]]|\n", step) for step in steps)


@pytest.fixture(scope="module")
def api() -> TestClient:
    class Nobody:
        pass

    made: FastAPI = create_api(Nobody())  # type: ignore[arg-type]
    return TestClient(made)


@pytest.mark.parametrize(("path", "status", "begins"), [
    ("/runbooks", 200, "# Faults"), ("/runbooks/gpu_lost", 200, "# gpu_lost"), ("/runbooks/gpu_lost.md", 200, "# gpu_lost"),
    ("/runbooks/gpu_lots", 404, '{"status":"error"'), ("/runbooks/..%2F..%2FREADME", 404, '{"status":"error"')])
def test_pages_are_served_as_plain_text(api: TestClient, path: str, status: int, begins: str) -> None:
    """A known fault gives its page, anything else 404 in one sentence; no path leads out of the folder."""
    answer = api.get(path)
    assert (answer.status_code, answer.text.startswith(begins)) == (status, True), answer.text[:80]
    assert answer.headers["content-type"].startswith("text/plain" if status == 200 else "application/json")


def test_runbook_of_own_series_exist() -> None:
    """Greylag's own series that a page greps for are declared."""
    named = re.findall(r"greylag_[a-z_]+", "".join(text(fault) for fault in faults()))
    roots = {name.rstrip("_") for name in named}
    assert all(any(metric.startswith(root) for metric in METRICS) for root in roots)
