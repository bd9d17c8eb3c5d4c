"""Prometheus' scrape configuration: what is read, and what is refused by name and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.scrape_config import parse_duration_ms, parse_size, read_scrape_configs
from core.config import read_config
from core.errors import ConfigError


def config(tmp_path: Path, text: str):
    """The scrape configurations of a greylag.yaml with this text."""
    file = tmp_path / "greylag.yaml"
    file.write_text(text)
    return read_scrape_configs(read_config(file))


def test_reads_what_prometheus_reads(tmp_path):
    """All supported keys arrive, with Prometheus' defaults for the rest."""
    (tmp_path / "more.yml").write_text("scrape_configs:\n- job_name: more\n  static_configs: [{targets: ['c:1']}]\n")
    found = config(tmp_path, """
global: {scrape_interval: 30s, scrape_timeout: 5s}
scrape_config_files: [more.yml]
scrape_configs:
- job_name: a
  scrape_interval: 1m30s
  metrics_path: /m
  params: {collect: [x, y]}
  honor_labels: true
  honor_timestamps: false
  sample_limit: 5
  body_size_limit: 10MB
  static_configs: [{targets: ['a:1', 'b:1'], labels: {node: n1}}]
  file_sd_configs: [{files: ['sd/*.json']}]
  http_sd_configs: [{url: 'http://h/sd', refresh_interval: 5s}]
- job_name: b
""")
    a, b, more = found
    assert (a.scrape_interval_ms, a.scrape_timeout_ms, a.metrics_path) == (90_000, 5_000, "/m")
    assert (a.honor_labels, a.honor_timestamps, a.sample_limit, a.body_size_limit) == (True, False, 5, 10 * 1024**2)
    assert a.params == {"collect": ("x", "y")}
    assert a.static_configs[0].targets == ("a:1", "b:1")
    assert a.file_sd_configs[0].files == (str(tmp_path / "sd/*.json"),)
    assert (b.scrape_interval_ms, b.scrape_timeout_ms, b.metrics_path, b.honor_labels) == (30_000, 5_000, "/metrics", False)
    assert more.job_name == "more"


REFUSED = [
    ("relabel_configs: []", "relabel_configs", "not supported yet", "remove it"),
    ("tls_config: {}", "tls_config", "not supported yet", "remove it"),
    ("basic_auth: {}", "basic_auth", "not supported yet", "remove it"),
    ("kubernetes_sd_configs: []", "kubernetes_sd_configs", "not supported yet", "remove it"),
    ("metric_relabel_configs: []", "metric_relabel_configs", "not supported yet", "remove it"),
    ("honour_labels: true", "honour_labels", "unknown key", "did you mean 'honor_labels'"),
    ("scheme: https", "scheme", "'https'", "only http"),
    ("scrape_interval: 10", "scrape_interval", "10", "a duration such as"),
    ("scrape_interval: 5s\n  scrape_timeout: 6s", "scrape_timeout", "'6s'", "at most scrape_interval"),
    ("static_configs: [{targets: ['http://a:1']}]", "targets", "http://a:1", "without a scheme"),
    ("http_sd_configs: [{url: 'https://a'}]", "url", "https://a", "https is not supported yet"),
    ("file_sd_configs: [{files: [a.txt]}]", "files", "a.txt", ".json"),
    ("honor_labels: maybe", "honor_labels", "maybe", "true or false"),
    ("sample_limit: -1", "sample_limit", "-1", "whole number"),
]


@pytest.mark.parametrize(("text", "key", "given", "allowed"), REFUSED)
def test_refuses_by_name_and_line(tmp_path, text, key, given, allowed):
    """Each refusal is one sentence with file, line, key, what was given and what is allowed."""
    with pytest.raises(ConfigError) as error:
        config(tmp_path, f"scrape_configs:\n- job_name: a\n  {text}\n")
    message = str(error.value)
    assert f"{tmp_path}/greylag.yaml:" in message
    assert key in message
    assert given in message
    assert allowed in message
    assert "\n" not in message


def test_refusal_names_the_line_of_the_key(tmp_path):
    """The line is that of the key itself."""
    with pytest.raises(ConfigError, match=r"greylag\.yaml:4: scrape_configs\[0\]\.tls_config"):
        config(tmp_path, "scrape_configs:\n- job_name: a\n  metrics_path: /m\n  tls_config: {}\n")


def test_refuses_the_same_job_twice(tmp_path):
    """A job name is allowed once."""
    with pytest.raises(ConfigError, match="allowed once"):
        config(tmp_path, "scrape_configs:\n- job_name: a\n- job_name: a\n")


@pytest.mark.parametrize(("text", "ms"), [
    ("15s", 15_000), ("1m30s", 90_000), ("1d", 86_400_000), ("500ms", 500), ("0", 0), ("1h1m1s1ms", 3_661_001),
    ("15", None), ("", None), ("-5s", None), ("1.5s", None), ("5s1m", None), (None, None), (15, None),
])
def test_durations(text, ms):
    """Durations are Prometheus' own, in its order of units."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(("text", "size"), [("10MB", 10 * 1024**2), ("1KiB", 1024), (5, 5), ("0", 0), ("x", None), (True, None)])
def test_sizes(text, size):
    """Sizes count in powers of 1024, as Prometheus does."""
    assert parse_size(text) == size
