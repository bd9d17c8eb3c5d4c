"""Scrape targets from static lists, file_sd and HTTP service discovery, with Prometheus' label rules.

`__address__`, `__metrics_path__`, `__scheme__`, `__param_<name>`, `__scrape_interval__` and `__scrape_timeout__` say how
to scrape; all labels that start with `__` are dropped at the end. `job` defaults to the configuration's job_name,
`instance` to the address. A source that fails keeps its last good list and is counted by name.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlencode

from collectors.fetch import Fetch, Request
from collectors.meaning import host_of
from collectors.scrape_config import HttpSd, ScrapeConfig, StaticGroup, parse_duration_ms, parse_groups
from core.clock import monotonic_seconds
from core.errors import ConfigError, SourceError
from core.protocols import TargetInfo
from core.yamlfile import parse_yaml, read_yaml

log = logging.getLogger("greylag.discovery")
HTTP_SD_TIMEOUT_SECONDS = 10.0
HTTP_SD_BODY_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """What to fetch and how. interval_ms, timeout_seconds (wall time), limits as the configuration says."""

    info: TargetInfo
    url: str
    interval_ms: int
    timeout_seconds: float
    honor_labels: bool = False
    honor_timestamps: bool = True
    sample_limit: int = 0
    body_size_limit: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _FileState:
    stamp: tuple[int, int] | None = None
    groups: tuple[StaticGroup, ...] = ()


@dataclass(slots=True)
class _HttpState:
    due_at: float = 0.0
    answered: bool = False
    groups: tuple[StaticGroup, ...] = ()


@dataclass
class Discovery:
    """Keeps the current targets. failures: how often each kind of source failed (file_sd, http_sd, target)."""

    configs: Sequence[ScrapeConfig]
    fetch: Fetch
    failures: Counter[str] = field(default_factory=Counter)
    last_errors: dict[str, str] = field(default_factory=dict)
    _files: dict[str, _FileState] = field(default_factory=dict)
    _http: dict[str, _HttpState] = field(default_factory=dict)

    async def refresh(self) -> list[ScrapeTarget]:
        """The targets now, sorted by id. Reads changed files, and asks HTTP sources whose refresh interval is over.

        Refresh intervals are wall time: they bound I/O, whatever the speed of cluster time.
        """
        found: dict[str, ScrapeTarget] = {}
        for config in self.configs:
            for group in await self._groups(config):
                for target in self._targets(config, group):
                    self._add(found, target)
        return [found[key] for key in sorted(found)]

    def hurry(self) -> None:
        """Asks every HTTP source anew at the next refresh, whatever its refresh interval says."""
        for state in self._http.values():
            state.due_at = 0.0

    @property
    def waiting(self) -> bool:
        """True while an HTTP source has never answered."""
        return any(not state.answered for state in self._http.values())

    async def _groups(self, config: ScrapeConfig) -> list[StaticGroup]:
        groups = list(config.static_configs)
        for sd in config.file_sd_configs:
            for pattern in sd.files:
                groups += self._from_files(pattern)
        for http in config.http_sd_configs:
            groups += await self._from_http(http)
        return groups

    def _from_files(self, pattern: str) -> Iterator[StaticGroup]:
        path = Path(pattern)
        files = sorted(path.parent.glob(path.name)) if any(c in path.name for c in "*?[") else [path]
        # A file that vanished keeps its last good list, as a file that broke does: gone targets are a decision to write.
        known = [f for f in self._files if Path(f).parent == path.parent and Path(f).match(path.name)]
        for file in sorted({str(f) for f in files} | set(known)):
            yield from self._from_file(file)

    def _from_file(self, file: str) -> tuple[StaticGroup, ...]:
        state = self._files.setdefault(file, _FileState())
        try:
            status = Path(file).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == state.stamp:
                return state.groups
            state.stamp = stamp
            state.groups = parse_groups(read_yaml(file), file)
            self.last_errors.pop(file, None)
        except OSError as error:
            self._failed("file_sd", file, error.strerror or "it cannot be read")
        except ConfigError as error:
            self._failed("file_sd", file, str(error))
        return state.groups

    async def _from_http(self, sd: HttpSd) -> tuple[StaticGroup, ...]:
        state = self._http.setdefault(sd.url, _HttpState())
        now = monotonic_seconds()
        if now < state.due_at:
            return state.groups
        state.due_at = now + sd.refresh_interval_ms / 1000
        request = Request(sd.url, HTTP_SD_TIMEOUT_SECONDS, HTTP_SD_BODY_LIMIT, "application/json", allow_empty=False)
        try:
            body = await self.fetch.get(request)
            state.groups = parse_groups(_json(body.data, sd.url), sd.url)
        except (SourceError, ConfigError) as error:
            self._failed("http_sd", sd.url, str(error))
            if not state.answered:
                state.due_at = now
        else:
            state.answered = True
            self.last_errors.pop(sd.url, None)
        return state.groups

    def _failed(self, kind: str, where: str, what: str) -> None:
        self.failures[kind] += 1
        if self.last_errors.get(where) != what:
            log.warning("%s: %s", kind, what if where in what else f"{where}: {what}")
        self.last_errors[where] = what

    def _targets(self, config: ScrapeConfig, group: StaticGroup) -> Iterator[ScrapeTarget]:
        for address in group.targets:
            try:
                yield make_target(config, address, group.labels)
            except ConfigError as error:
                self._failed("target", address, str(error))

    @staticmethod
    def _add(found: dict[str, ScrapeTarget], target: ScrapeTarget) -> None:
        """job/instance, with the path (and the query) added where two targets share them; equal targets count once."""
        base = target.info.id
        other = found.get(base)
        if other is None:
            found[base] = target
        elif other.url != target.url:
            longer = base + "/" + target.url.split("/", 3)[3]
            found.setdefault(longer, replace(target, info=replace(target.info, id=longer)))


def _json(data: bytes, where: str) -> object:
    """JSON, read by the YAML reader where it is small (so that errors carry lines), else as JSON."""
    try:
        text = data.decode("utf-8")
        return json.loads(text) if len(text) > 4_000 else parse_yaml(text, where)
    except ValueError:
        raise ConfigError(where, "", "an answer that is not JSON", "a JSON list of target groups is needed") from None


def make_target(config: ScrapeConfig, address: str, group: Mapping[str, str]) -> ScrapeTarget:
    """The target of one address, by Prometheus' rules. Raises ConfigError for labels that cannot be followed."""
    labels = {"__address__": address, "__metrics_path__": config.metrics_path, "__scheme__": config.scheme,
              "job": config.job_name}
    labels.update({f"__param_{name}": values[0] for name, values in config.params.items() if values})
    labels.update(group)
    where = config.where or config.job_name
    address = labels["__address__"]
    if labels["__scheme__"] != "http":
        raise ConfigError(where, "__scheme__", labels["__scheme__"], "only http is supported yet")
    interval = _timing(labels, "__scrape_interval__", config.scrape_interval_ms, where)
    timeout = _timing(labels, "__scrape_timeout__", min(config.scrape_timeout_ms, interval), where)
    if timeout > interval:
        raise ConfigError(where, "__scrape_timeout__", f"{timeout}ms", "at most the scrape interval is allowed")
    query = [(name, value) for name, values in sorted(config.params.items()) for value in values[1:]]
    query += [(name.removeprefix("__param_"), value) for name, value in sorted(labels.items())
              if name.startswith("__param_")]
    path = labels["__metrics_path__"]
    url = f"http://{address}{quote(path if path.startswith('/') else '/' + path, safe='/%:@&=+$,;~')}"
    if query:
        url += "?" + urlencode(sorted(query, key=lambda pair: pair[0]))
    public = {name: value for name, value in labels.items() if not name.startswith("__") and value}
    public.setdefault("instance", address)
    node = public.get("node") or host_of(public["instance"])
    info = TargetInfo(f"{public.get('job', config.job_name)}/{public['instance']}", public, node)
    return ScrapeTarget(info, url, interval, timeout / 1000, config.honor_labels, config.honor_timestamps,
                        config.sample_limit, config.body_size_limit)


def _timing(labels: Mapping[str, str], name: str, default: int, where: str) -> int:
    if name not in labels:
        return default
    found = parse_duration_ms(labels[name])
    if not found:
        raise ConfigError(where, name, labels[name], "a duration such as 15s is needed")
    return found
