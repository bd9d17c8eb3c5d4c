"""Targets from static lists, files and HTTP, and what their labels do."""

from __future__ import annotations

import asyncio
import json

import pytest

from collectors.discovery import Discovery, make_target
from collectors.fetch import HttpFetch
from collectors.re2 import Pattern
from collectors.relabel import RelabelRule
from collectors.scrape_config import FileSd, HttpSd, Limits, ScrapeConfig, StaticGroup
from collectors.watched_files import WatchedFiles
from core.errors import ConfigError, SourceError
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


@pytest.mark.parametrize("labels", [{"__scheme__": "ftp"}, {"__scrape_interval__": "10ms"}, {"__scrape_interval__": "x"}, {"__scrape_timeout__": "2m"}])
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


def test_targets_are_known_by_labels_and_url():
    """Two targets that differ only in a label are two, with ids that do not hang on their order; equal ones are one."""
    groups = [StaticGroup(("a:1",), {"team": "x"}), StaticGroup(("a:1",), {"team": "y"}), StaticGroup(("a:1",), {"team": "x"}),
              StaticGroup(("a:1",), {"team": "z"})]
    seen, _ = asyncio.run(targets_of(ScrapeConfig("j", static_configs=tuple(groups))))
    assert sorted(t.info.labels["team"] for t in seen[0]) == ["x", "y", "z"]
    ids = [t.info.id for t in seen[0]]
    assert len(set(ids)) == 3
    assert ids[0] == "j/a:1"


def test_meta_labels_of_files_reach_the_rules(tmp_path):
    """`__meta_filepath` is there to be relabelled, and gone behind it; what a rule drops is counted."""
    (tmp_path / "a.json").write_text('[\t{"targets": ["a:1", "b:1"]}]')
    rules = (RelabelRule(source_labels=("__meta_filepath",), target_label="file"),
             RelabelRule("drop", source_labels=("__address__",), target_label="", pattern=Pattern("b.*")))
    seen, discovery = asyncio.run(targets_of(ScrapeConfig("j", file_sd_configs=(FileSd((f"{tmp_path}/a.json",)),), relabel_configs=rules)))
    assert [t.info.labels for t in seen[0]] == [{"file": f"{tmp_path}/a.json", "instance": "a:1", "job": "j"}]
    assert discovery.dropped == {"j": 1}


@pytest.mark.parametrize(("limit", "refused"), [(0, ""), (2, ""), (1, "too_many_targets")])
def test_target_limit_fails_all_targets_of_its_job(limit, refused):
    """A job with too many targets has none that is asked; others are untouched."""
    config = ScrapeConfig("j", limits=Limits(target_limit=limit), static_configs=(StaticGroup(("a:1", "b:1", "b:1")),))
    seen, _ = asyncio.run(targets_of(config, ScrapeConfig("k", static_configs=(StaticGroup(("c:1",)),))))
    assert [(t.info.id, t.refused) for t in seen[0]] == [("j/a:1", refused), ("j/b:1", refused), ("k/c:1", "")]


def test_targets_that_stay_are_made_once():
    """A refresh gives the same objects as long as nothing changed."""
    config = ScrapeConfig("j", static_configs=(StaticGroup(("a:1", "b:1")),))
    seen, _ = asyncio.run(targets_of(config, rounds=2))
    assert all(one is other for one, other in zip(*seen, strict=True))


def test_a_file_on_a_file_system_that_hangs_keeps_its_list(tmp_path):
    """A helper that does not answer is a failure that is counted, and the last good list stays."""
    (tmp_path / "a.json").write_text('[{"targets": ["a:1"]}]')

    class Hanging(WatchedFiles):
        async def read(self, path, known=None, most=1):
            if known is not None:
                raise SourceError("hung", f"{path} did not answer in time")
            return await super().read(path, known)

    async def act():
        discovery = Discovery([ScrapeConfig("j", file_sd_configs=(FileSd((f"{tmp_path}/a.json",)),))], HttpFetch(), Hanging())
        return [[t.info.id for t in await discovery.refresh()] for _ in range(2)], dict(discovery.failures)

    assert asyncio.run(act()) == ([["j/a:1"], ["j/a:1"]], {"file_sd": 1})
