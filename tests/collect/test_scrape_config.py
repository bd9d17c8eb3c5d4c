"""Prometheus' scrape configuration: what is read, and what is refused by name and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.config_reader import duration_text
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
  params: {collect: [x, y], port: [9100, '']}
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
    assert (a.honor_labels, a.honor_timestamps, a.limits.sample_limit, a.limits.body_size_limit) == (True, False, 5, 10 * 1024**2)
    assert a.params == {"collect": ("x", "y"), "port": ("9100", "")}
    assert a.static_configs[0].targets == ("a:1", "b:1")
    assert a.file_sd_configs[0].files == (str(tmp_path / "sd/*.json"),)
    assert (b.scrape_interval_ms, b.scrape_timeout_ms, b.metrics_path, b.honor_labels) == (30_000, 5_000, "/metrics", False)
    assert more.job_name == "more"


REFUSED = [
    ("kubernetes_sd_configs: []", "kubernetes_sd_configs", "not supported", "write a file for file_sd_configs"),
    ("oauth2: {}", "oauth2", "not supported", "credentials_file"),
    ("proxy_url: 'http://p'", "proxy_url", "not supported", "without a proxy"),
    ("native_histogram_bucket_limit: 1", "native_histogram_bucket_limit", "not supported", "remove it"),
    ("tls_config: {ca: x}", "tls_config.ca", "not supported", "ca_file"),
    ("tls_config: {cert_file: x}", "tls_config.cert_file", "one file of a pair", "together"),
    ("tls_config: {min_version: TLS1.3}", "tls_config.min_version", "TLS1.3", "TLS12"),
    ("tls_config: {servername: x}", "tls_config.servername", "unknown key", "did you mean 'server_name'"),
    ("basic_auth: {username: a, password: b, password_file: c}", "basic_auth.password_file", "beside password", "one of them"),
    ("authorization: {type: Basic, credentials: x}", "authorization.type", "'Basic'", "basic_auth"),
    ("authorization: {credentials: x}\n  basic_auth: {username: a}", "authorization", "a second way", "one of basic_auth"),
    ("bearer_token: x\n  bearer_token_file: y", "bearer_token_file", "a second way", "allowed"),
    ("label_limit: -1", "label_limit", "-1", "whole number"),
    ("follow_redirects: 1", "follow_redirects", "1", "true or false"),
    ("honour_labels: true", "honour_labels", "unknown key", "did you mean 'honor_labels'"),
    ("scheme: ftp", "scheme", "'ftp'", "http, https"),
    ("scrape_interval: 10", "scrape_interval", "10", "a duration such as"),
    ("scrape_interval: 5s\n  scrape_timeout: 6s", "scrape_timeout", "'6s'", "at most scrape_interval"),
    ("static_configs: [{targets: ['http://a:1']}]", "targets", "http://a:1", "without a scheme"),
    ("http_sd_configs: [{url: 'ftp://a'}]", "url", "ftp://a", "http:// or https://"),
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
    with pytest.raises(ConfigError, match=r"greylag\.yaml:5: scrape_configs\[0\]\.tls_config\.max_version"):
        config(tmp_path, "scrape_configs:\n- job_name: a\n  tls_config:\n    ca_file: x\n    max_version: TLS13\n")


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


RULES_REFUSED = [
    ("{action: keeep}", "action", "'keeep'", "keepequal"),
    ("{action: ''}", "action", "''", "allowed are"),
    ("{regex: '('}", "regex", "'('", "RE2"),
    ("{regex: 'a)(b', target_label: x}", "regex", "a)(b", "RE2"),
    ("{regex: '(?=a)', target_label: x}", "regex", "(?=a)", "RE2"),
    ("{regex: '(a{1000}){1000}', target_label: x}", "regex", "a{1000}", "RE2"),
    ("{regex: '\\C', target_label: x}", "regex", "C", "RE2"),
    ("{regex: 1.50, target_label: x}", "regex", "1.5", "quotes"),
    ("{source_labels: [a-b], target_label: x}", "source_labels", "'a-b'", "names of labels"),
    ("{source_labels: a, target_label: x}", "source_labels", "'a'", "a list"),
    ("{source_labels: [a]}", "target_label", "nothing", "replace needs one"),
    ("{target_label: 'a-b'}", "target_label", "'a-b'", "a label name"),
    ("{target_label: '" + "a$b" * 12 + "-'}", "target_label", "a$b", "a label name"),
    ("{action: hashmod, target_label: a}", "modulus", "0", "1 or more"),
    ("{action: hashmod, target_label: 'a$1', modulus: 3}", "target_label", "'a$1'", "a label name"),
    ("{action: labelmap, replacement: '-'}", "replacement", "'-'", "a label name"),
    ("{action: labeldrop, source_labels: [a]}", "source_labels", "a", "only regex"),
    ("{action: keepequal, source_labels: [a], target_label: b, regex: x}", "regex", "'x'", "source_labels and target_label"),
    ("{action: lowercase, source_labels: [a], target_label: b, replacement: x}", "replacement", "'x'", "takes none"),
    ("{targetlabel: x}", "targetlabel", "unknown key", "did you mean 'target_label'"),
    ("null", "relabel_configs[0]", "None", "a mapping"),
]


@pytest.mark.parametrize(("rule", "key", "given", "allowed"), RULES_REFUSED)
@pytest.mark.parametrize("list_key", ["relabel_configs", "metric_relabel_configs"])
def test_refuses_rules_as_prometheus_does(tmp_path, list_key, rule, key, given, allowed):
    """A rule that cannot be followed is one sentence with line, key, what was given and what is allowed."""
    with pytest.raises(ConfigError) as error:
        config(tmp_path, f"scrape_configs:\n- job_name: a\n  {list_key}:\n  - {rule}\n")
    message = str(error.value)
    assert f"{tmp_path}/greylag.yaml:" in message
    assert f"{list_key}[0]" in message
    assert all(word in message for word in (key.replace("relabel_configs[0]", list_key), given, allowed)), message


SECRETS = [
    "basic_auth: {username: a, password: [hunter2]}",
    "basic_auth: {password: {hunter2: 1}}",
    "basic_auth: {password: hunter2, password_file: x}",
    "basic_auth: {password: \"hunter2\\n\"}",
    "authorization: {credentials: [hunter2]}",
    "authorization: {credentials: hunter2, credentials_file: x}",
    "bearer_token: [hunter2]",
    "http_sd_configs: [{url: 'http://user:hunter2@h/sd'}]",
    "http_sd_configs: [{url: 'ftp://user:hunter2@h/sd'}]",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_refusal_shows_a_secret(tmp_path, text):
    """What may be a password is not quoted."""
    with pytest.raises(ConfigError) as error:
        config(tmp_path, f"scrape_configs:\n- job_name: a\n  {text}\n")
    assert "hunter2" not in str(error.value)


def test_a_secret_is_in_no_repr(tmp_path):
    """A configuration can be logged."""
    (found,) = config(tmp_path, "scrape_configs: [{job_name: a, basic_auth: {username: u, password: hunter2}}]\n")
    assert found.access.secret.text == "hunter2"
    assert "hunter2" not in repr(found)


def test_a_whole_prometheus_yml(tmp_path):
    """A file of Prometheus is taken as it is: its `global` goes with its jobs, paths are relative to it."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p/prometheus.yml").write_text("""
global: {scrape_interval: 20s, evaluation_interval: 1m, external_labels: {cluster: x}, label_limit: 30, body_size_limit: 5MB}
alerting: {alertmanagers: []}
rule_files: ['*.rules']
remote_write: [{url: 'http://x'}]
scrape_configs:
- job_name: a
  label_limit: 10
  tls_config: {ca_file: ca.pem, insecure_skip_verify: false}
  authorization: {credentials_file: /run/token}
  http_sd_configs: [{url: 'https://h/sd', tls_config: {cert_file: c.pem, key_file: k.pem}, basic_auth: {password_file: pw}}]
  enable_http2: false
  keep_dropped_targets: 5
""")
    (tmp_path / "other.yml").write_text("scrape_configs: [{job_name: b}]\n")
    a, b = config(tmp_path, "scrape_config_files: [p/prometheus.yml, other.yml]\nglobal: {scrape_interval: 30s}\n")
    assert (a.scrape_interval_ms, b.scrape_interval_ms) == (20_000, 30_000)
    assert (a.limits.label_limit, a.limits.body_size_limit, b.limits.label_limit) == (10, 5 * 1024**2, 0)
    assert (a.access.tls.ca_file, a.access.secret_file, a.access.scheme) == (f"{tmp_path}/p/ca.pem", "/run/token", "Bearer")
    (sd,) = a.http_sd_configs
    assert (sd.access.tls.files, sd.access.secret_file) == ((f"{tmp_path}/p/c.pem", f"{tmp_path}/p/k.pem"), f"{tmp_path}/p/pw")


@pytest.mark.parametrize(("ms", "text"), [
    (0, "0s"), (90_000, "1m30s"), (3_600_000, "1h"), (90_000_000, "25h"), (86_400_000, "1d"), (1500, "1s500ms"), (604_800_000, "1w"),
])
def test_durations_are_written_as_prometheus_does(ms, text):
    """`__scrape_interval__` is what Prometheus shows, and reads back as itself."""
    assert duration_text(ms) == text
    assert parse_duration_ms(text) == ms
