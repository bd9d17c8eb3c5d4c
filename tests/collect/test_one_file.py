"""One configuration file for both: a real Prometheus and Greylag find the same targets and store the same series."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from collectors.discovery import Discovery
from collectors.fetch import HttpFetch
from collectors.mapping import Mapper
from collectors.scrape import TargetScraper
from collectors.scrape_config import parse_duration_ms, read_scrape_configs
from core.config import read_config
from tests.collect.chance_rules import JOBS, SEED, jobs
from tests.collect.prometheus import prometheus, targets_once
from tests.collect.secure_site import SERVER_NAME, Page, authority, basic, groups, site

SLOT_MS = 1_790_000_000_000
ADDED_BY_PROMETHEUS = {"scrape_samples_post_metric_relabeling", "scrape_series_added"}

PAGE = b"""# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 1
node_cpu_seconds_total{cpu="0",mode="user"} 2
node_cpu_seconds_total{cpu="1",mode="idle"} 3
# TYPE go_goroutines gauge
go_goroutines 7
# TYPE temp gauge
temp{sensor="A",unit="C",instance="inner",job="inner"} 50
temp{sensor="b",unit="C"} 51
# TYPE dup gauge
dup{a="1"} 1
dup{a="2"} 2
# TYPE up gauge
up{own="x"} 1
"""
METRIC_RULES = [
    {"source_labels": ["__name__"], "regex": "go_.*", "action": "drop"},
    {"source_labels": ["__name__", "mode"], "regex": "node_cpu_seconds_total;(idle|.*)", "target_label": "how", "replacement": "m_$1"},
    {"source_labels": ["mode"], "regex": "user", "target_label": "__name__", "replacement": "cpu_user"},
    {"source_labels": ["sensor"], "target_label": "sensor", "action": "uppercase"},
    {"source_labels": ["unit"], "target_label": "unit", "action": "lowercase"},
    {"source_labels": ["sensor"], "target_label": "shard", "modulus": 8, "action": "hashmod"},
    {"regex": "s(ensor)", "replacement": "copy_$1", "action": "labelmap"},
    {"regex": "a", "action": "labeldrop"},
    {"regex": "__name__|job|instance|how|cpu|sensor|unit|shard|copy_.+|exported_.+|own", "action": "labelkeep"},
    {"source_labels": ["cpu"], "target_label": "shard", "action": "dropequal"},
    {"source_labels": ["job"], "target_label": "job", "action": "keepequal"},
    {"source_labels": ["__name__"], "regex": ".+", "action": "keep"},
]


@dataclass
class Both:
    """What the two have, Prometheus first. targets: by scrape pool (URL, labels, interval, timeout, health); series: by job."""

    targets: tuple[dict[str, Any], dict[str, Any]]
    series: tuple[dict[str, Any], dict[str, Any]]
    dropped: tuple[int, int]


def written(folder: Path, plain: str, secure: str, client: str) -> list[dict[str, Any]]:
    """The jobs by hand, and the files that they name."""
    (folder / "sd").mkdir()
    (folder / "sd/a.json").write_text(json.dumps([{"targets": [plain], "labels": {"rack": "r1", "__metrics_path__": "/a"}}]))
    (folder / "sd/b.yml").write_text(f"- targets: ['{plain}', '127.0.0.2:1']\n  labels: {{rack: r2, keep: 'no'}}\n")
    (folder / "password").write_text("pass word\n")
    (folder / "token").write_text("abc\n")
    ca = {"ca_file": "ca.pem", "server_name": SERVER_NAME}
    here = [{"targets": [plain]}]
    one = {"static_configs": here}
    return [
        {"job_name": "metrics", **one, "metric_relabel_configs": METRIC_RULES, "params": {"collect[]": ["x y", "z"], "a": ["&"]}},
        {"job_name": "honor", **one, "honor_labels": True, "metric_relabel_configs": METRIC_RULES[-2:]},
        {"job_name": "files", "file_sd_configs": [{"files": ["sd/*.json", "sd/b.yml"]}], "relabel_configs": [
            {"source_labels": ["__address__", "rack"], "regex": "127.0.0.2.*", "action": "drop"},
            {"source_labels": ["__meta_filepath"], "regex": ".*/([^/]+)\\..*", "target_label": "file"},
            {"source_labels": ["__address__", "rack"], "regex": "([^:]+):\\d+;(.+)", "target_label": "instance", "replacement": "${2}-$1"}]},
        {"job_name": "http", "http_sd_configs": [
            {"url": f"https://{secure}/sd", "tls_config": ca, "authorization": {"type": "Bearer", "credentials_file": "token"}}],
         "relabel_configs": [{"regex": "__meta_(rack)_(.+)", "action": "labelmap", "replacement": "${1}_$2"}]},
        {"job_name": "tls", "scheme": "https", "static_configs": [{"targets": [secure]}], "tls_config": {**ca, "min_version": "TLS12"},
         "basic_auth": {"username": "ü", "password_file": "password"}, "metrics_path": "/basic"},
        {"job_name": "tls-unknown-authority", "scheme": "https", "static_configs": [{"targets": [secure]}],
         "tls_config": {**ca, "ca_file": "other.pem"}},
        {"job_name": "tls-other-name", "scheme": "https", "static_configs": [{"targets": [secure]}], "tls_config": {"ca_file": "ca.pem"}},
        {"job_name": "tls-unchecked", "scheme": "https", "static_configs": [{"targets": [secure]}], "tls_config": {"insecure_skip_verify": True}},
        {"job_name": "client", "scheme": "https", "static_configs": [{"targets": [client]}],
         "tls_config": {**ca, "cert_file": "client.pem", "key_file": "client.key"}},
        {"job_name": "no-client", "scheme": "https", "static_configs": [{"targets": [client]}], "tls_config": ca},
        {"job_name": "basic", **one, "metrics_path": "/basic", "basic_auth": {"username": "ü", "password": "pass word"}},
        {"job_name": "wrong-password", **one, "metrics_path": "/basic", "basic_auth": {"username": "ü", "password": "no"}},
        {"job_name": "bearer", **one, "metrics_path": "/bearer", "bearer_token": "abc"},
        {"job_name": "redirect", **one, "metrics_path": "/away", "follow_redirects": False},
        {"job_name": "limit-labels", **one, "label_limit": 4},
        {"job_name": "limit-labels-kept", **one, "label_limit": 7},
        {"job_name": "limit-names", **one, "label_name_length_limit": 16},
        {"job_name": "limit-names-short", **one, "label_name_length_limit": 17, "metric_relabel_configs": [
            {"target_label": "a_name_of_18_bytes", "replacement": "x"}]},
        {"job_name": "limit-values", **one, "label_value_length_limit": 22},
        {"job_name": "limit-samples", **one, "sample_limit": 8},
        {"job_name": "limit-samples-left", **one, "sample_limit": 8, "metric_relabel_configs": METRIC_RULES[:1]},
        {"job_name": "limit-targets", "target_limit": 1, "static_configs": [{"targets": [plain, plain.replace("127.0.0.1", "localhost")]}]},
        {"job_name": "limit-body", **one, "body_size_limit": "100B"},
        {"job_name": "no-name", **one, "metric_relabel_configs": [{"target_label": "__name__", "replacement": "$9"}]},
        {"job_name": "bad-name", **one, "metric_relabel_configs": [{"target_label": "__name__", "replacement": "a-b"}]},
        {"job_name": "timing", "static_configs": [{"targets": [plain], "labels": {"__scrape_interval__": "1500ms", "__scrape_timeout__": "700ms"}}],
         "relabel_configs": [{"target_label": "__metrics_path__", "replacement": "/odd path/50%"}, {"target_label": "__param_t", "replacement": "é"}]},
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """One Prometheus over the file with all jobs, by hand and by chance, until it has scraped all of those by hand."""
    folder = tmp_path_factory.mktemp("one")
    authority(folder)
    page, away = Page(PAGE), Page(b"", location="/metrics")
    guarded = {"/basic": Page(PAGE, authorization=basic("ü", "pass word")), "/bearer": Page(PAGE, authorization="Bearer abc")}
    with ExitStack() as stack:
        plain = stack.enter_context(site({"/metrics": page, "/a": page, "/away": away, "/odd%20path/50%25": page, **guarded}))
        sd = groups({"targets": [plain.address], "labels": {"__meta_rack_row": "7", "node": "n1", "job": "other"}})
        sd.authorization = "Bearer abc"
        secure = stack.enter_context(site({"/metrics": page, "/sd": sd, **guarded}, folder))
        client = stack.enter_context(site({"/metrics": page}, folder, client=True))
        by_hand = written(folder, plain.address, secure.address, client.address)
        by_chance = [{**one, "scrape_interval": "1h"} for one in jobs(random.Random(SEED))]
        content = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "external_labels": {"site": "x"}},
                   "rule_files": ["none*.yml"], "scrape_configs": [*by_hand, *by_chance]}
        (folder / "prometheus.yml").write_text(yaml.dump(content, Dumper=Plain, allow_unicode=True))
        (folder / "greylag.yaml").write_text("scrape_config_files: [prometheus.yml]\n")
        with prometheus(folder / "prometheus.yml", folder / "data") as theirs:
            names = {one["job_name"] for one in by_hand}
            found = targets_once(theirs, lambda data: settled(data, names))
            series = by_job(theirs.get("/api/v1/series", params={"match[]": '{__name__!=""}'}).json()["data"],
                            {*names, "other", "inner"})
        targets: dict[str, Any] = {one["job_name"]: [] for one in content["scrape_configs"]}
        for one in found["activeTargets"]:
            targets[one["scrapePool"]].append((
                one["scrapeUrl"], sorted(one["labels"].items()), parse_duration_ms(one["scrapeInterval"]) / 1000,
                parse_duration_ms(one["scrapeTimeout"]) / 1000, one["health"] if one["scrapePool"] in names else "unknown"))
        targets = {name: sorted(some) for name, some in targets.items()}
        my_targets, my_series, my_dropped = asyncio.run(ours(folder))
        yield Both((targets, my_targets), (series, my_series), (len(found["droppedTargets"]), my_dropped))


class Plain(yaml.SafeDumper):
    """Without anchors, which Prometheus reads as well but people do not."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def settled(data: dict[str, Any], by_hand: set[str]) -> bool:
    """All jobs by hand have been scraped, and the jobs by chance are there."""
    time.sleep(0.2)
    active = data["activeTargets"]
    seen = {one["scrapePool"] for one in active if one["health"] != "unknown"}
    return by_hand <= seen and len(active) > JOBS and all(
        one["health"] != "unknown" for one in active if one["scrapePool"] in by_hand)


async def ours(folder: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """By scrape pool: (URL, labels, interval, timeout, health) of each target, and the series of one scrape; what was dropped."""
    fetch = HttpFetch()
    targets: dict[str, list[tuple[Any, ...]]] = {}
    series: list[dict[str, str]] = []
    dropped = 0
    try:
        for config in read_scrape_configs(read_config(folder / "greylag.yaml")):
            discovery, found = Discovery([config], fetch), []
            for target in await discovery.refresh():
                health = "unknown"
                if not config.job_name.startswith("job-"):
                    scraper = TargetScraper(target, Mapper({}))
                    rows = await scraper.scrape(fetch, SLOT_MS)
                    health = "down" if rows[0][1].error else "up"
                    series += [{"__name__": one.name, **dict(one.labels)} for layout, _ in rows for one in layout.series]
                found.append((target.url, sorted(target.info.labels.items()), target.interval_ms / 1000, target.timeout_seconds, health))
            targets[config.job_name] = sorted(found)
            dropped += discovery.dropped[config.job_name]
    finally:
        await fetch.aclose()
    return targets, by_job(series, {one["job"] for one in series}), dropped


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """The first few, to read."""
    wrong = [f"{name}:\n ours   {ours.get(name)}\n theirs {found}" for name, found in theirs.items() if ours.get(name) != found]
    return "\n".join(wrong[:5])


def test_the_targets_are_those_of_prometheus(both):
    """URL, labels, interval, timeout and health of every active target agree, and how many relabelling dropped."""
    theirs, ours_ = both.targets
    assert not differences(theirs, ours_)
    assert both.dropped[0] == both.dropped[1]
    assert both.dropped[0] > 50
    assert sum(len(some) for some in theirs.values()) > JOBS


def test_both_kinds_of_health_are_there(both):
    """The table of jobs by hand is not all up nor all down."""
    health = {name: {one[4] for one in some} for name, some in both.targets[0].items() if not name.startswith("job-")}
    assert [name for name, seen in health.items() if seen == {"down"}] == [
        "tls-unknown-authority", "tls-other-name", "no-client", "wrong-password", "redirect", "limit-labels", "limit-names",
        "limit-names-short", "limit-samples", "limit-targets", "limit-body", "no-name", "bad-name"]


def test_the_stored_series_are_those_of_prometheus(both):
    """After metric_relabel_configs both have the same series with the same labels; Prometheus adds two of its own."""
    theirs, ours_ = both.series
    assert not differences(theirs, ours_)
    assert {"cpu_user"} <= {dict(one)["__name__"] for one in theirs["metrics"]}
    assert set(theirs) == set(ours_)


def by_job(series: Iterable[dict[str, str]], jobs_: set[str]) -> dict[str, list[list[tuple[str, str]]]]:
    """Each set of labels once, sorted; without what only Prometheus adds, and without jobs by chance that it scrapes early."""
    out: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for labels in series:
        if labels["job"] in jobs_ and labels["__name__"] not in ADDED_BY_PROMETHEUS:
            out.setdefault(labels["job"], set()).add(tuple(sorted(labels.items())))
    return {job: [list(one) for one in sorted(some)] for job, some in out.items()}
