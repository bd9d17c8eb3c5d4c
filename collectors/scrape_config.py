"""Prometheus' own `scrape_configs` (and `global`) as frozen dataclasses.

What Greylag does not do is refused by name and line, so that a file copied from Prometheus never half works.
Defaults are Prometheus': interval 1m, timeout 10s (never longer than the interval), path /metrics, labels and
timestamps as its documentation says. Scrape configurations: static, file and HTTP service discovery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from collectors.access import ACCESS_KEYS, OPEN, Access, parse_access
from collectors.config_reader import Reader, parse_duration_ms, parse_size
from collectors.relabel import LABEL, RelabelRule, parse_rules
from core.config import GreylagConfig
from core.errors import ConfigError
from core.yamlfile import read_yaml

__all__ = ["FileSd", "HttpSd", "Limits", "ScrapeConfig", "StaticGroup", "parse_duration_ms", "parse_groups", "parse_jobs",
           "parse_size", "read_defaults", "read_scrape_configs"]

MIB = 1024 * 1024
DEFAULT_INTERVAL_MS, DEFAULT_TIMEOUT_MS = 60_000, 10_000
DEFAULT_REFRESH_MS = {"http_sd_configs": 60_000, "file_sd_configs": 300_000}
SHORTEST_INTERVAL_MS = 1000
DEFAULT_BODY_LIMIT = 64 * MIB  # Prometheus has none; a page larger than this is a fault or an attack


def _refused(advice: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


# What Prometheus knows and Greylag does not do, with advice.
_REMOVE = "remove it"
LATER_ACCESS = {
    **_refused("use basic_auth or authorization with a credentials_file that another program keeps fresh", "oauth2 sigv4"),
    **_refused("targets are asked without a proxy: remove it",
               "proxy_url proxy_from_environment proxy_connect_header no_proxy"),
    **_refused("use authorization or basic_auth, or remove it", "http_headers"),
}
LATER_JOB = {
    **LATER_ACCESS,
    **_refused("targets come from static_configs, file_sd_configs and http_sd_configs: let a program that can ask there "
               "write a file for file_sd_configs, or serve http_sd_configs", """
azure_sd_configs consul_sd_configs digitalocean_sd_configs docker_sd_configs dockerswarm_sd_configs dns_sd_configs
ec2_sd_configs eureka_sd_configs gce_sd_configs hetzner_sd_configs ionos_sd_configs kubernetes_sd_configs
kuma_sd_configs lightsail_sd_configs linode_sd_configs marathon_sd_configs nerve_sd_configs nomad_sd_configs
openstack_sd_configs ovhcloud_sd_configs puppetdb_sd_configs scaleway_sd_configs serverset_sd_configs stackit_sd_configs
triton_sd_configs uyuni_sd_configs vultr_sd_configs aws_sd_configs"""),
    **_refused(_REMOVE, """
track_timestamps_staleness scrape_classic_histograms always_scrape_classic_histograms
convert_classic_histograms_to_nhcb native_histogram_bucket_limit native_histogram_min_bucket_factor scrape_native_histograms
scrape_protocols scrape_fallback_protocol enable_compression metric_name_validation_scheme metric_name_escaping_scheme
scrape_failure_log_file extra_scrape_metrics"""),
}
LATER_GLOBAL = _refused(_REMOVE, """
scrape_protocols metric_name_validation_scheme metric_name_escaping_scheme scrape_failure_log_file
convert_classic_histograms_to_nhcb scrape_native_histograms always_scrape_classic_histograms extra_scrape_metrics""")
# Read by Prometheus alone; they change nothing of what is scraped.
UNUSED_GLOBAL = ("evaluation_interval", "rule_query_offset", "external_labels", "query_log_file", "runtime")
UNUSED_FILE = ("alerting", "rule_files", "remote_write", "remote_read", "storage", "tracing", "otlp")
LATER_FILE = {"scrape_config_files": "name these files in scrape_config_files of greylag.yaml"}
LIMIT_KEYS = ("sample_limit", "body_size_limit", "label_limit", "label_name_length_limit", "label_value_length_limit",
              "target_limit")


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
    access: Access = OPEN


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scrape, or a job, may bring before it fails as a whole. 0 = no limit, but for the body (bytes, unpacked).

    sample_limit counts what metric_relabel_configs leave. label_limit counts the name too; lengths are bytes.
    """

    sample_limit: int = 0
    body_size_limit: int = DEFAULT_BODY_LIMIT
    label_limit: int = 0
    label_name_length_limit: int = 0
    label_value_length_limit: int = 0
    target_limit: int = 0


@dataclass(frozen=True, slots=True)
class ScrapeConfig:
    """One `scrape_configs` entry. where: file and line of the entry."""

    job_name: str
    scrape_interval_ms: int = DEFAULT_INTERVAL_MS
    scrape_timeout_ms: int = DEFAULT_TIMEOUT_MS
    metrics_path: str = "/metrics"
    scheme: str = "http"
    params: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    honor_labels: bool = False
    honor_timestamps: bool = True
    limits: Limits = Limits()
    static_configs: tuple[StaticGroup, ...] = ()
    file_sd_configs: tuple[FileSd, ...] = ()
    http_sd_configs: tuple[HttpSd, ...] = ()
    relabel_configs: tuple[RelabelRule, ...] = ()
    metric_relabel_configs: tuple[RelabelRule, ...] = ()
    access: Access = OPEN
    where: str = ""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The `global` section."""

    scrape_interval_ms: int = DEFAULT_INTERVAL_MS
    scrape_timeout_ms: int = DEFAULT_TIMEOUT_MS
    limits: Limits = Limits()


def read_defaults(data: Any, where: str) -> Defaults:
    """The `global` section. Raises ConfigError."""
    if data is None:
        return Defaults()
    reader = Reader(data, where, "global")
    reader.check_keys(("scrape_interval", "scrape_timeout", "keep_dropped_targets", *LIMIT_KEYS, *UNUSED_GLOBAL), LATER_GLOBAL)
    parse_labels(reader, "external_labels")
    interval = _interval(reader, DEFAULT_INTERVAL_MS)
    timeout = _timeout(reader, min(DEFAULT_TIMEOUT_MS, interval), interval)
    return Defaults(interval, timeout, _limits(reader, Limits()))


def _interval(reader: Reader, default: int) -> int:
    interval = reader.duration("scrape_interval", default)
    if interval < SHORTEST_INTERVAL_MS:
        raise reader.fail("scrape_interval", reader.data.get("scrape_interval"), "at least 1s is allowed")
    return interval


def _timeout(reader: Reader, default: int, interval: int) -> int:
    timeout = reader.duration("scrape_timeout", default)
    if not 0 < timeout <= interval:
        raise reader.fail("scrape_timeout", reader.data.get("scrape_timeout"),
                          "more than 0 and at most scrape_interval is allowed")
    return timeout


def _limits(reader: Reader, default: Limits) -> Limits:
    return Limits(
        reader.number("sample_limit", default.sample_limit),
        reader.size("body_size_limit", default.body_size_limit),
        reader.number("label_limit", default.label_limit),
        reader.number("label_name_length_limit", default.label_name_length_limit),
        reader.number("label_value_length_limit", default.label_value_length_limit),
        reader.number("target_limit", default.target_limit),
    )


def parse_labels(reader: Reader, key: str = "labels") -> dict[str, str]:
    """A label mapping. Raises ConfigError for a name that is none or a value that is no text."""
    data = reader.data.get(key)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise reader.fail(key, data, "a mapping of label names to texts is needed")
    for name, value in data.items():
        if not LABEL.fullmatch(str(name)):
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
        reader = Reader(one, where, f"{path}[{i}]")
        reader.check_keys(("targets", "labels", "source"), {})
        targets = reader.texts("targets")
        for address in targets:
            if "/" in address or not address.strip():
                raise reader.fail("targets", address, "host:port without a scheme or a path is needed")
        groups.append(StaticGroup(targets, parse_labels(reader)))
    return tuple(groups)


def _port_stands(address: str) -> bool:
    """True where the address has no port (that of its scheme is taken, as Prometheus does) or one that can be."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or port.endswith("]") or (":" in host.strip("[]") and not host.startswith("[")):
        return True  # a name alone, or an IPv6 address that ends in a bracket or has none
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def _file_sd(data: Any, where: str, path: str) -> FileSd:
    reader = Reader(data, where, path)
    reader.check_keys(("files", "refresh_interval"), {})
    files = reader.texts("files")
    if not files:
        raise reader.fail("files", "nothing", "this key is required")
    for file in files:
        if not file.endswith((".json", ".yml", ".yaml")):
            raise reader.fail("files", file, "a path that ends in .json, .yml or .yaml is needed")
    return FileSd(files, reader.duration("refresh_interval", DEFAULT_REFRESH_MS["file_sd_configs"]))


def _http_sd(data: Any, where: str, path: str) -> HttpSd:
    reader = Reader(data, where, path)
    reader.check_keys(("url", "refresh_interval", *ACCESS_KEYS), LATER_ACCESS)
    url = reader.text("url")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if "@" in url.split("?")[0]:
        # Never shown: what stands before the @ may be a password.
        raise reader.fail("url", "an address with a user in it", "use basic_auth")
    if not sound:
        raise reader.fail("url", url, "an address that starts with http:// or https:// is needed")
    refresh = reader.duration("refresh_interval", DEFAULT_REFRESH_MS["http_sd_configs"])
    return HttpSd(url, max(refresh, SHORTEST_INTERVAL_MS), parse_access(reader))


def _params(reader: Reader) -> dict[str, tuple[str, ...]]:
    inner = reader.within("params")
    return {} if inner is None else {str(key): inner.texts(key, empty=True) for key in inner.data}


JOB_KEYS = ("job_name", "scrape_interval", "scrape_timeout", "metrics_path", "scheme", "params", "honor_labels",
            "honor_timestamps", *LIMIT_KEYS, *ACCESS_KEYS, "keep_dropped_targets", "static_configs", "file_sd_configs",
            "http_sd_configs", "relabel_configs", "metric_relabel_configs")


def parse_job(data: Any, defaults: Defaults, where: str, path: str) -> ScrapeConfig:
    """One entry of `scrape_configs`. Raises ConfigError."""
    reader = Reader(data, where, path)
    reader.check_keys(JOB_KEYS, LATER_JOB)
    interval = _interval(reader, defaults.scrape_interval_ms)
    timeout = _timeout(reader, min(defaults.scrape_timeout_ms, interval), interval)
    scheme = reader.text("scheme", "http")
    if scheme not in ("http", "https"):
        raise reader.fail("scheme", scheme, "allowed are: http, https")
    at = reader.where()
    groups = parse_groups(reader.items("static_configs"), at, reader.name("static_configs"))
    if not reader.items("relabel_configs"):  # which may make an address of anything
        for i, address in ((i, one) for i, group in enumerate(groups) for one in group.targets):
            if not _port_stands(address):
                raise ConfigError(at, f"{reader.name('static_configs')}[{i}].targets", address, "host:port with a port of 1 to 65535 is needed")
    return ScrapeConfig(
        reader.text("job_name"), interval, timeout, reader.text("metrics_path", "/metrics"), scheme, _params(reader),
        reader.flag("honor_labels", False), reader.flag("honor_timestamps", True), _limits(reader, defaults.limits),
        groups,
        tuple(_file_sd(one, at, f"{reader.name('file_sd_configs')}[{i}]")
              for i, one in enumerate(reader.items("file_sd_configs"))),
        tuple(_http_sd(one, at, f"{reader.name('http_sd_configs')}[{i}]")
              for i, one in enumerate(reader.items("http_sd_configs"))),
        parse_rules(reader, "relabel_configs"), parse_rules(reader, "metric_relabel_configs"), parse_access(reader), at,
    )


def parse_jobs(entries: Sequence[Any], defaults: Defaults, where: str) -> tuple[ScrapeConfig, ...]:
    """All entries of a `scrape_configs` list. Raises ConfigError."""
    return tuple(parse_job(one, defaults, where, f"scrape_configs[{i}]") for i, one in enumerate(entries))


def _included(config: GreylagConfig, defaults: Defaults) -> list[ScrapeConfig]:
    """The jobs of the files that `scrape_config_files` names; a file with a `global` of its own goes by that one."""
    found: list[ScrapeConfig] = []
    for pattern in config.scrape_config_files:
        path = config.resolve(pattern)
        files = sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
        for file in files:
            data = read_yaml(file)
            reader = Reader(data, str(file), "")
            reader.check_keys(("global", "scrape_configs", *UNUSED_FILE), LATER_FILE)
            own = defaults if data.get("global") is None else read_defaults(data["global"], str(file))
            found += parse_jobs(reader.items("scrape_configs"), own, str(file))
    return found


def read_scrape_configs(config: GreylagConfig) -> tuple[ScrapeConfig, ...]:
    """All scrape configurations of `greylag.yaml` and of the files it names. Raises ConfigError.

    Relative paths are made relative to the file that names them.
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
    files = tuple(replace(sd, files=tuple(str(folder / file) for file in sd.files)) for sd in job.file_sd_configs)
    urls = tuple(replace(sd, access=sd.access.anchored(folder)) for sd in job.http_sd_configs)
    return replace(job, file_sd_configs=files, http_sd_configs=urls, access=job.access.anchored(folder))
