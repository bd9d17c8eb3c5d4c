"""What discovery found, as a target to scrape: Prometheus' rules for labels, address and URL.

`__address__`, `__scheme__`, `__metrics_path__`, `__param_<name>`, `__scrape_interval__` and `__scrape_timeout__` say how to
scrape; relabelling sees and may change them all. Then `__meta_*` and all other labels that start with `__` are dropped, and
`instance` defaults to the address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from collectors.access import OPEN, Access
from collectors.config_reader import duration_text, parse_duration_ms
from collectors.fetch import Request
from collectors.meaning import host_of
from collectors.relabel import LABEL, Labels, RelabelRule, relabel_many
from collectors.scrape_config import DEFAULT_BODY_LIMIT, SHORTEST_INTERVAL_MS, ScrapeConfig, StaticGroup
from core.errors import ConfigError, SourceError
from core.protocols import TargetInfo

PARAM = "__param_"
PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """What to fetch and how. interval_ms, timeout_seconds (wall time), limits as the configuration says (0 = none).

    rules: metric_relabel_configs. refused: why it is not asked at all, a reason of `core.reasons.SCRAPE_REASONS`.
    """

    info: TargetInfo
    url: str
    interval_ms: int
    timeout_seconds: float
    honor_labels: bool = False
    honor_timestamps: bool = True
    sample_limit: int = 0
    body_size_limit: int = DEFAULT_BODY_LIMIT
    label_limit: int = 0
    label_name_length_limit: int = 0
    label_value_length_limit: int = 0
    rules: tuple[RelabelRule, ...] = ()
    access: Access = OPEN
    refused: str = ""

    def request(self, body_limit: int) -> Request:
        """What to ask for. Raises SourceError where it is not to be asked."""
        if self.refused:
            raise SourceError(self.refused)
        return Request(self.url, self.timeout_seconds, body_limit, allow_empty=False, access=self.access)


@dataclass(frozen=True, slots=True)
class Found:
    """One address. labels: before relabelling. target: None where it was dropped, or where `error` says what is wrong."""

    labels: Mapping[str, str]
    target: ScrapeTarget | None = None
    error: ConfigError | None = None


def found_targets(config: ScrapeConfig, group: StaticGroup) -> list[Found]:
    """Each address of a group."""
    before = [_discovered(config, address, group.labels) for address in group.targets]
    after = relabel_many(before, config.relabel_configs) if config.relabel_configs else before
    out = []
    for labels, kept in zip(before, after, strict=True):
        try:
            out.append(Found(labels, None if kept is None else _target(config, kept)))
        except ConfigError as error:
            out.append(Found(labels, None, error))
    return out


def make_target(config: ScrapeConfig, address: str, group: Mapping[str, str]) -> ScrapeTarget | None:
    """The target of one address, None where relabelling drops it. Raises ConfigError for labels that cannot be followed."""
    (found,) = found_targets(config, StaticGroup((address,), group))
    if found.error is not None:
        raise found.error
    return found.target


def _discovered(config: ScrapeConfig, address: str, group: Mapping[str, str]) -> Labels:
    """What relabelling sees. The configuration fills in what is missing; its parameters win."""
    labels = {name: value for name, value in group.items() if value}
    labels["__address__"] = address
    for name, value in (("job", config.job_name), ("__metrics_path__", config.metrics_path), ("__scheme__", config.scheme),
                        ("__scrape_interval__", duration_text(config.scrape_interval_ms)),
                        ("__scrape_timeout__", duration_text(config.scrape_timeout_ms))):
        labels.setdefault(name, value)
    for name, values in config.params.items():
        if values:
            labels[PARAM + name] = values[0]
    return {name: value for name, value in labels.items() if value}


def _target(config: ScrapeConfig, labels: Mapping[str, str]) -> ScrapeTarget:
    where = config.where or config.job_name
    scheme = labels.get("__scheme__", "http")
    if scheme not in PORTS:
        raise ConfigError(where, "__scheme__", scheme, "allowed are: http, https")
    address = _address(labels.get("__address__", ""), scheme, where)
    interval = _timing(labels, "__scrape_interval__", where)
    timeout = _timing(labels, "__scrape_timeout__", where)
    if interval < SHORTEST_INTERVAL_MS:
        raise ConfigError(where, "__scrape_interval__", f"{interval}ms", "at least 1s is allowed")
    if timeout > interval:
        raise ConfigError(where, "__scrape_timeout__", f"{timeout}ms", "at most the scrape interval is allowed")
    public = {name: value for name, value in labels.items() if not name.startswith("__")}
    wrong = next((name for name in public if LABEL.fullmatch(name) is None), None)
    if wrong is not None:
        raise ConfigError(where, "relabel_configs", wrong, "a label name of letters, digits and _ is needed")
    public.setdefault("instance", address)
    info = TargetInfo(f"{public.get('job', config.job_name)}/{public['instance']}", public,
                      public.get("node") or host_of(public["instance"]))
    limits = config.limits
    return ScrapeTarget(
        info, url_of(scheme, address, labels, config.params), interval, timeout / 1000, config.honor_labels,
        config.honor_timestamps, limits.sample_limit, limits.body_size_limit, limits.label_limit,
        limits.label_name_length_limit, limits.label_value_length_limit, config.metric_relabel_configs, config.access)


def url_of(scheme: str, address: str, labels: Mapping[str, str], params: Mapping[str, Sequence[str]]) -> str:
    """The URL; `__param_x` is the first value of the parameter x, its others are the configuration's."""
    query = {name: list(values) for name, values in params.items() if values}
    for name, value in labels.items():
        if name.startswith(PARAM):
            query[name.removeprefix(PARAM)] = [value, *query.get(name.removeprefix(PARAM), ())[1:]]
    path = labels.get("__metrics_path__", "")
    path = quote(path if path.startswith("/") or not path else "/" + path, safe="/$&+,:;=@~")
    pairs = [(name, value) for name in sorted(query) for value in query[name]]
    host = quote(address, safe="!$&'()*+,;=:[]<>\"")
    return f"{scheme}://{host}{path}" + (f"?{urlencode(pairs)}" if pairs else "")


def _address(address: str, scheme: str, where: str) -> str:
    """host:port, with the scheme's port where there is none."""
    if not address:
        raise ConfigError(where, "__address__", "nothing", "host:port is needed")
    if "/" in address:
        raise ConfigError(where, "__address__", address, "host:port without a scheme or a path is needed")
    if not _has_port(address) and _has_port(address + ":1"):
        return f"{address}:{PORTS[scheme]}"
    return address


def _has_port(address: str) -> bool:
    """Whether it is host:port, an IPv6 address in brackets."""
    host, colon, _ = address.rpartition(":")
    if not colon:
        return False
    if host.startswith("["):
        return host.endswith("]") and "[" not in host[1:] and "]" not in host[:-1]
    return ":" not in host and "[" not in address and "]" not in address


def _timing(labels: Mapping[str, str], name: str, where: str) -> int:
    found = parse_duration_ms(labels.get(name))
    if not found:
        raise ConfigError(where, name, labels.get(name, "nothing"), "a duration such as 15s is needed")
    return found
