"""Prometheus' own `scrape_configs` (and `global`) as frozen dataclasses.

What Greylag does not do yet is refused by name and line, so that a file copied from Prometheus never half works.
Defaults are Prometheus': interval 1m, timeout 10s (never longer than the interval), path /metrics, labels and
timestamps as its documentation says. Scrape configurations: static, file and HTTP service discovery.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.config import GreylagConfig
from core.errors import ConfigError, nearest
from core.yamlfile import Node, read_yaml

MIB = 1024 * 1024
DEFAULT_INTERVAL_MS, DEFAULT_TIMEOUT_MS = 60_000, 10_000
DEFAULT_REFRESH_MS = {"http_sd_configs": 60_000, "file_sd_configs": 300_000}
SHORTEST_INTERVAL_MS = 1000
DEFAULT_BODY_LIMIT = 64 * MIB  # Prometheus has none; a page larger than this is a fault or an attack


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What Prometheus knows and Greylag does not yet.
LATER_JOB = _words("""
relabel_configs metric_relabel_configs tls_config basic_auth authorization oauth2 proxy_url proxy_from_environment
proxy_connect_header no_proxy follow_redirects enable_http2 http_headers bearer_token bearer_token_file
track_timestamps_staleness scrape_classic_histograms always_scrape_classic_histograms
convert_classic_histograms_to_nhcb native_histogram_bucket_limit native_histogram_min_bucket_factor scrape_native_histograms
scrape_protocols scrape_fallback_protocol enable_compression label_limit label_name_length_limit
label_value_length_limit target_limit keep_dropped_targets metric_name_validation_scheme metric_name_escaping_scheme
scrape_failure_log_file extra_scrape_metrics
azure_sd_configs consul_sd_configs digitalocean_sd_configs docker_sd_configs dockerswarm_sd_configs dns_sd_configs
ec2_sd_configs eureka_sd_configs gce_sd_configs hetzner_sd_configs ionos_sd_configs kubernetes_sd_configs
kuma_sd_configs lightsail_sd_configs linode_sd_configs marathon_sd_configs nerve_sd_configs nomad_sd_configs
openstack_sd_configs ovhcloud_sd_configs puppetdb_sd_configs scaleway_sd_configs serverset_sd_configs stackit_sd_configs
triton_sd_configs uyuni_sd_configs vultr_sd_configs aws_sd_configs
""")
LATER_SD = _words("""
tls_config basic_auth authorization oauth2 proxy_url proxy_from_environment proxy_connect_header no_proxy
follow_redirects enable_http2 http_headers bearer_token bearer_token_file
""")
LATER_GLOBAL = _words("""
evaluation_interval rule_query_offset external_labels query_log_file body_size_limit sample_limit label_limit
label_name_length_limit label_value_length_limit target_limit keep_dropped_targets scrape_protocols
metric_name_validation_scheme metric_name_escaping_scheme scrape_failure_log_file convert_classic_histograms_to_nhcb
scrape_native_histograms always_scrape_classic_histograms runtime extra_scrape_metrics
""")

_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_UNITS_MS = (365 * 86_400_000, 7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000, 1)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGTPE]i?B?)?", re.IGNORECASE)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class StaticGroup:
    """Addresses (`host:port`) that share labels."""

    targets: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileSd:
    """Target files (paths or globs with `*` in the last part); re-read when they change."""

    files: tuple[str, ...]
    refresh_interval_ms: int = DEFAULT_REFRESH_MS["file_sd_configs"]


@dataclass(frozen=True, slots=True)
class HttpSd:
    """A URL that answers with target groups as JSON."""

    url: str
    refresh_interval_ms: int = DEFAULT_REFRESH_MS["http_sd_configs"]


@dataclass(frozen=True, slots=True)
class ScrapeConfig:
    """One `scrape_configs` entry. sample_limit: 0 = none. where: file and line of the entry."""

    job_name: str
    scrape_interval_ms: int = DEFAULT_INTERVAL_MS
    scrape_timeout_ms: int = DEFAULT_TIMEOUT_MS
    metrics_path: str = "/metrics"
    scheme: str = "http"
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    honor_labels: bool = False
    honor_timestamps: bool = True
    sample_limit: int = 0
    body_size_limit: int = DEFAULT_BODY_LIMIT
    static_configs: tuple[StaticGroup, ...] = ()
    file_sd_configs: tuple[FileSd, ...] = ()
    http_sd_configs: tuple[HttpSd, ...] = ()
    where: str = ""


def parse_duration_ms(text: object) -> int | None:
    """Milliseconds of a Prometheus duration (`15s`, `1m30s`, `0`), None where it is none."""
    if text in (0, "0"):
        return 0
    if not isinstance(text, str) or not text:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return sum(int(n) * unit for n, unit in zip(found.groups(), _UNITS_MS, strict=True) if n)


def parse_size(text: object) -> int | None:
    """Bytes of a Prometheus size (`10MB`, `64MiB`; units are powers of 1024 as there), None where it is none."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text if text >= 0 else None
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    unit = (found.group(2) or "B")[0].upper()
    value = float(found.group(1)) * 1024 ** "BKMGTPE".index(unit)
    return int(value) if math.isfinite(value) else None


class _Reader:
    """Takes keys from one mapping, with errors that name file and line."""

    def __init__(self, data: Any, where: str, path: str) -> None:
        if not isinstance(data, Mapping):
            raise ConfigError(where, path, data, "a mapping is needed")
        self.data, self.path = data, path
        self._where = data.where() if isinstance(data, Node) else where

    def where(self, key: str | None = None) -> str:
        return self.data.where(key) if isinstance(self.data, Node) else self._where

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def fail(self, key: str, given: object, allowed: str) -> ConfigError:
        return ConfigError(self.where(key), self.name(key), given, allowed)

    def check_keys(self, known: Sequence[str], later: frozenset[str]) -> None:
        for key in self.data:
            if key in later:
                raise self.fail(key, "a key that is not supported yet", "remove it")
            if key not in known:
                hint = nearest(key, [*known, *later])
                raise self.fail(key, "an unknown key", f"allowed are: {', '.join(sorted(known))}{hint}")

    def duration(self, key: str, default: int) -> int:
        if self.data.get(key) is None:
            return default
        found = parse_duration_ms(self.data[key])
        if found is None:
            raise self.fail(key, self.data[key], "a duration such as 15s or 1m30s is needed")
        return found

    def text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.fail(key, value, "text is needed" if key in self.data else "this key is required")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, value, "true or false is needed")
        return value

    def number(self, key: str, default: int) -> int:
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail(key, value, "a whole number, 0 or more, is needed")
        return value

    def size(self, key: str, default: int) -> int:
        if self.data.get(key) is None:
            return default
        found = parse_size(self.data[key])
        if found is None:
            raise self.fail(key, self.data[key], "a size such as 10MB is needed")
        return found or default  # 0 means no limit to Prometheus; Greylag keeps its own

    def items(self, key: str) -> list[Any]:
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self.fail(key, value, "a list is needed")
        return list(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.items(key)
        for value in values:
            if not isinstance(value, str) or not value:
                raise self.fail(key, value, "a list of texts is needed")
        return tuple(values)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The `global` section."""

    scrape_interval_ms: int = DEFAULT_INTERVAL_MS
    scrape_timeout_ms: int = DEFAULT_TIMEOUT_MS


def read_defaults(data: Any, where: str) -> Defaults:
    """The `global` section. Raises ConfigError."""
    if data is None:
        return Defaults()
    reader = _Reader(data, where, "global")
    reader.check_keys(("scrape_interval", "scrape_timeout"), LATER_GLOBAL)
    interval = _interval(reader, DEFAULT_INTERVAL_MS)
    timeout = reader.duration("scrape_timeout", min(DEFAULT_TIMEOUT_MS, interval))
    if not 0 < timeout <= interval:
        raise reader.fail("scrape_timeout", data.get("scrape_timeout"), "more than 0 and at most scrape_interval is allowed")
    return Defaults(interval, timeout)


def _interval(reader: _Reader, default: int) -> int:
    interval = reader.duration("scrape_interval", default)
    if interval < SHORTEST_INTERVAL_MS:
        raise reader.fail("scrape_interval", reader.data.get("scrape_interval"), "at least 1s is allowed")
    return interval


def parse_labels(reader: _Reader, key: str = "labels") -> dict[str, str]:
    """A label mapping. Raises ConfigError for a name that is none or a value that is no text."""
    data = reader.data.get(key)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise reader.fail(key, data, "a mapping of label names to texts is needed")
    for name, value in data.items():
        if not _LABEL.fullmatch(str(name)):
            raise reader.fail(key, name, "a label name of letters, digits and _ is needed")
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise reader.fail(key, value, f"a text is needed for the label {name}")
    return {str(name): str(value) for name, value in data.items()}


def parse_groups(data: Any, where: str, path: str = "") -> tuple[StaticGroup, ...]:
    """Target groups as static_configs, file_sd and http_sd have them. Raises ConfigError."""
    if not isinstance(data, (list, tuple)):
        raise ConfigError(where, path, data, "a list of target groups is needed")
    groups = []
    for i, one in enumerate(data):
        reader = _Reader(one, where, f"{path}[{i}]")
        reader.check_keys(("targets", "labels", "source"), frozenset())
        targets = reader.texts("targets")
        for address in targets:
            if "/" in address or not address.strip():
                raise reader.fail("targets", address, "host:port without a scheme or a path is needed")
        groups.append(StaticGroup(targets, parse_labels(reader)))
    return tuple(groups)


def _file_sd(data: Any, where: str, path: str) -> FileSd:
    reader = _Reader(data, where, path)
    reader.check_keys(("files", "refresh_interval"), frozenset())
    files = reader.texts("files")
    if not files:
        raise reader.fail("files", "nothing", "this key is required")
    for file in files:
        if not file.endswith((".json", ".yml", ".yaml")):
            raise reader.fail("files", file, "a path that ends in .json, .yml or .yaml is needed")
    return FileSd(files, reader.duration("refresh_interval", DEFAULT_REFRESH_MS["file_sd_configs"]))


def _http_sd(data: Any, where: str, path: str) -> HttpSd:
    reader = _Reader(data, where, path)
    reader.check_keys(("url", "refresh_interval"), LATER_SD)
    url = reader.text("url")
    if not url.startswith("http://"):
        raise reader.fail("url", url, "an address that starts with http:// is needed (https is not supported yet)")
    refresh = reader.duration("refresh_interval", DEFAULT_REFRESH_MS["http_sd_configs"])
    return HttpSd(url, max(refresh, SHORTEST_INTERVAL_MS))


def _params(reader: _Reader) -> dict[str, tuple[str, ...]]:
    data = reader.data.get("params")
    if data is None:
        return {}
    inner = _Reader(data, reader.where("params"), reader.name("params"))
    return {str(key): inner.texts(key) for key in inner.data}


JOB_KEYS = ("job_name", "scrape_interval", "scrape_timeout", "metrics_path", "scheme", "params", "honor_labels",
            "honor_timestamps", "sample_limit", "body_size_limit", "static_configs", "file_sd_configs", "http_sd_configs")


def parse_job(data: Any, defaults: Defaults, where: str, path: str) -> ScrapeConfig:
    """One entry of `scrape_configs`. Raises ConfigError."""
    reader = _Reader(data, where, path)
    reader.check_keys(JOB_KEYS, LATER_JOB)
    interval = _interval(reader, defaults.scrape_interval_ms)
    timeout = reader.duration("scrape_timeout", min(defaults.scrape_timeout_ms, interval))
    if not 0 < timeout <= interval:
        raise reader.fail("scrape_timeout", data.get("scrape_timeout"), "more than 0 and at most scrape_interval is allowed")
    scheme = reader.text("scheme", "http")
    if scheme != "http":
        raise reader.fail("scheme", scheme, "only http is supported yet")
    metrics_path = reader.text("metrics_path", "/metrics")
    if not metrics_path.startswith("/"):
        raise reader.fail("metrics_path", metrics_path, "a path that starts with / is needed")
    at = reader.where()
    static = reader.items("static_configs")
    return ScrapeConfig(
        reader.text("job_name"), interval, timeout, metrics_path, scheme, _params(reader),
        reader.flag("honor_labels", False), reader.flag("honor_timestamps", True), reader.number("sample_limit", 0),
        reader.size("body_size_limit", DEFAULT_BODY_LIMIT),
        parse_groups(static, at, reader.name("static_configs")),
        tuple(_file_sd(one, at, f"{reader.name('file_sd_configs')}[{i}]")
              for i, one in enumerate(reader.items("file_sd_configs"))),
        tuple(_http_sd(one, at, f"{reader.name('http_sd_configs')}[{i}]")
              for i, one in enumerate(reader.items("http_sd_configs"))),
        at,
    )


def parse_jobs(entries: Sequence[Any], defaults: Defaults, where: str) -> tuple[ScrapeConfig, ...]:
    """All entries of a `scrape_configs` list. Raises ConfigError."""
    return tuple(parse_job(one, defaults, where, f"scrape_configs[{i}]") for i, one in enumerate(entries))


def _included(config: GreylagConfig, defaults: Defaults) -> list[ScrapeConfig]:
    found: list[ScrapeConfig] = []
    for pattern in config.scrape_config_files:
        path = config.resolve(pattern)
        files = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
        for file in files:
            data = read_yaml(file)
            reader = _Reader(data, str(file), "")
            reader.check_keys(("scrape_configs",), frozenset())
            found += parse_jobs(reader.items("scrape_configs"), defaults, str(file))
    return found


def read_scrape_configs(config: GreylagConfig) -> tuple[ScrapeConfig, ...]:
    """All scrape configurations of `greylag.yaml` and of the files it names. Raises ConfigError.

    Relative paths in file_sd_configs are made relative to the file that names them.
    """
    where = config.file or "greylag.yaml"
    # core hands `global` over as a plain mapping or as a Node; both are read.
    defaults = read_defaults(config.global_defaults or None, where)
    jobs = [*parse_jobs(config.scrape_configs, defaults, where), *_included(config, defaults)]
    seen: dict[str, str] = {}
    for job in jobs:
        if job.job_name in seen:
            raise ConfigError(job.where, "job_name", job.job_name, f"each name is allowed once (see {seen[job.job_name]})")
        seen[job.job_name] = job.where
    return tuple(_anchored(job) for job in jobs)


def _anchored(job: ScrapeConfig) -> ScrapeConfig:
    folder = Path(job.where.rpartition(":")[0] or job.where).parent
    anchored = tuple(replace(sd, files=tuple(str(folder / file) for file in sd.files)) for sd in job.file_sd_configs)
    return replace(job, file_sd_configs=anchored)
