"""Targets from static lists, files and HTTP, and what their labels do."""

from __future__ import annotations

import asyncio
import json

import pytest

from collectors.discovery import Discovery, make_target
from collectors.fetch import HttpFetch
from collectors.scrape_config import FileSd, HttpSd, ScrapeConfig, StaticGroup
from core.errors import ConfigError
from tests.collect.doors import reply, serve


async def targets_of(*configs, rounds=1, between=None):
    """Refreshes `rounds` times and gives the targets of each round, with the discovery."""
    fetch = HttpFetch()
    try:
        discovery = Discovery(configs, fetch)
        seen = []
        for i in range(rounds):
            seen.append(await discovery.refresh())
            if between:
                between(i, discovery)
        return seen, discovery
    finally:
        await fetch.aclose()


def test_labels_say_how_to_scrape():
    """The `__` labels choose address, path, parameters and timing, and are dropped."""
    config = ScrapeConfig("dcgm", params={"a": ("1",)})
    target = make_target(config, "10.0.0.1:80", {
        "__metrics_path__": "/nodes/n17/dcgm", "__param_b": "2 3", "__scrape_interval__": "15s", "__scrape_timeout__": "5s",
        "__meta_x": "y", "instance": "n17:9400", "node": "n17", "job": "gpu", "empty": "",
    })
    assert target.url == "http://10.0.0.1:80/nodes/n17/dcgm?a=1&b=2+3"
    assert (target.interval_ms, target.timeout_seconds) == (15_000, 5.0)
    assert target.info.labels == {"instance": "n17:9400", "node": "n17", "job": "gpu"}
    assert (target.info.id, target.info.node) == ("gpu/n17:9400", "n17")


@pytest.mark.parametrize(("address", "labels", "node"), [
    ("n3:9100", {}, "n3"), ("[::1]:9100", {}, "::1"), ("n3:9100", {"instance": "web"}, "web"), ("n3:9100", {"node": "x"}, "x"),
])
def test_node_of_a_target(address, labels, node):
    """The label `node`, else the host part of `instance`."""
    assert make_target(ScrapeConfig("j"), address, labels).info.node == node


@pytest.mark.parametrize("labels", [{"__scheme__": "https"}, {"__scrape_interval__": "x"}, {"__scrape_timeout__": "2m"}])
def test_labels_that_cannot_be_followed(labels):
    """A label that asks for what is not there is an error, not a guess."""
    with pytest.raises(ConfigError):
        make_target(ScrapeConfig("j"), "a:1", labels)


def test_targets_that_share_job_and_instance_are_told_apart_by_path():
    """Ids are job/instance, and the path is added where two targets would be one."""
    config = ScrapeConfig("j", static_configs=(
        StaticGroup(("a:1",)), StaticGroup(("a:1",), {"__metrics_path__": "/other"}), StaticGroup(("a:1",)),
    ))
    seen, _ = asyncio.run(targets_of(config))
    assert [t.info.id for t in seen[0]] == ["j/a:1", "j/a:1/other"]


def test_file_sd_follows_changes_and_survives_a_broken_file(tmp_path):
    """A changed file counts at the next refresh; a broken one keeps its last good list and is counted."""
    json_file, yaml_file = tmp_path / "a.json", tmp_path / "b.yml"
    json_file.write_text(json.dumps([{"targets": ["a:1"], "labels": {"node": "n1"}}]))
    yaml_file.write_text("- targets: [b:1]\n")
    config = ScrapeConfig("j", file_sd_configs=(FileSd((f"{tmp_path}/*.json", f"{tmp_path}/b.yml")),))

    def between(i, discovery):
        if i == 0:
            yaml_file.write_text("- targets: [b:1, c:1]\n")
        if i == 1:
            yaml_file.write_text("- targets: [b:1\n")

    seen, discovery = asyncio.run(targets_of(config, rounds=3, between=between))
    assert [[t.info.id for t in round_] for round_ in seen] == [
        ["j/a:1", "j/b:1"], ["j/a:1", "j/b:1", "j/c:1"], ["j/a:1", "j/b:1", "j/c:1"]]
    assert discovery.failures == {"file_sd": 1}


def test_http_sd_keeps_its_last_list_when_it_fails():
    """HTTP discovery is asked again after its refresh interval; a failure keeps the last list and is counted."""
    answers = [reply(b'[{"targets": ["a:1"], "labels": {"job": "x"}}]'), reply(b"no", "500 Oh"), reply(b"{not json")]

    async def act():
        async with serve(lambda path, body: answers.pop(0)) as url:
            config = ScrapeConfig("j", http_sd_configs=(HttpSd(f"{url}/sd", 0),))
            return await targets_of(config, rounds=3)

    seen, discovery = asyncio.run(act())
    assert [[t.info.id for t in round_] for round_ in seen] == [["x/a:1"]] * 3
    assert discovery.failures == {"http_sd": 2}
    assert not discovery.waiting


def test_http_sd_is_not_asked_before_its_interval_is_over():
    """Between two refreshes the list comes from memory."""
    asked = []

    def answer(path, body):
        asked.append(path)
        return reply(b'[{"targets": ["a:1"]}]')

    async def act():
        async with serve(answer) as url:
            return await targets_of(ScrapeConfig("j", http_sd_configs=(HttpSd(f"{url}/sd", 60_000),)), rounds=3)

    seen, _ = asyncio.run(act())
    assert len(asked) == 1
    assert len(seen[2]) == 1
