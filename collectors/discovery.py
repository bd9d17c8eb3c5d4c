"""Scrape targets from static lists, file_sd and HTTP service discovery, with Prometheus' label rules.

How labels become a target is in `collectors.scrape_target`. A target is known by its labels and its URL: equal ones count
once. A source that fails keeps its last good list and is counted by name. Nothing here blocks the event loop: files are
read beside it, see `collectors.watched_files`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from collectors.fetch import Fetch, Request
from collectors.scrape_config import HttpSd, ScrapeConfig, StaticGroup, parse_groups
from collectors.scrape_target import Found, ScrapeTarget, found_targets, make_target
from collectors.watched_files import Stamp, WatchedFiles
from core.clock import monotonic_seconds
from core.errors import ConfigError, SourceError
from core.yamlfile import parse_yaml

__all__ = ["Discovery", "ScrapeTarget", "make_target"]

log = logging.getLogger("greylag.discovery")
HTTP_SD_TIMEOUT_SECONDS = 10.0
HTTP_SD_BODY_LIMIT = 64 * 1024 * 1024
SMALL_TEXT = 4_000  # characters; longer ones are parsed beside the event loop


@dataclass(slots=True)
class _FileState:
    stamp: Stamp | None = None
    groups: tuple[StaticGroup, ...] = ()


@dataclass(slots=True)
class _HttpState:
    due_at: float = 0.0
    answered: bool = False
    data: bytes | None = None
    groups: tuple[StaticGroup, ...] = ()


@dataclass(slots=True)
class _Made:
    """What a group gave, kept as long as the group is the same object: 1,000 targets are not made anew every 5 seconds."""

    config: ScrapeConfig
    group: StaticGroup
    found: list[Found]


@dataclass
class Discovery:
    """Keeps the current targets. failures: how often each kind of source failed (file_sd, http_sd, target).

    dropped: how many targets relabelling left out at the last refresh, by job_name.
    """

    configs: Sequence[ScrapeConfig]
    fetch: Fetch
    files: WatchedFiles = field(default_factory=WatchedFiles)
    failures: Counter[str] = field(default_factory=Counter)
    last_errors: dict[str, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    _files: dict[str, _FileState] = field(default_factory=dict)
    _http: dict[HttpSd, _HttpState] = field(default_factory=dict)
    _made: dict[tuple[int, int], _Made] = field(default_factory=dict)

    async def refresh(self) -> list[ScrapeTarget]:
        """The targets now, sorted by id. Reads changed files, and asks HTTP sources whose refresh interval is over.

        Refresh intervals are wall time: they bound I/O, whatever the speed of cluster time.
        """
        found: dict[str, ScrapeTarget] = {}
        made: dict[tuple[int, int], _Made] = {}
        dropped: Counter[str] = Counter()
        for config in self.configs:
            own: list[ScrapeTarget] = []
            for group in await self._groups(config):
                one = made[id(config), id(group)] = self._make(config, group)
                own += [each.target for each in one.found if each.target is not None]
                dropped[config.job_name] += sum(each.target is None and each.error is None for each in one.found)
            for target in _within_limit(config, own):
                _add(found, target)
        self._made, self.dropped = made, +dropped
        return [found[key] for key in sorted(found)]

    def hurry(self) -> None:
        """Asks every HTTP source anew at the next refresh, whatever its refresh interval says."""
        for state in self._http.values():
            state.due_at = 0.0

    @property
    def waiting(self) -> bool:
        """True while an HTTP source has never answered."""
        return any(not state.answered for state in self._http.values())

    # --- sources ------------------------------------------------------------------------------------------------------
    async def _groups(self, config: ScrapeConfig) -> list[StaticGroup]:
        groups = list(config.static_configs)
        for sd in config.file_sd_configs:
            for pattern in sd.files:
                groups += await self._from_files(pattern)
        for http in config.http_sd_configs:
            groups += await self._from_http(http)
        return groups

    async def _from_files(self, pattern: str) -> list[StaticGroup]:
        try:
            files = await self.files.find(pattern)
        except SourceError as error:
            self._failed("file_sd", pattern, str(error))
            files = []
        # A file that vanished keeps its last good list, as a file that broke does: gone targets are a decision to write.
        known = [file for file in self._files if fnmatchcase(file, pattern) and file.count("/") == pattern.count("/")]
        return [group for file in sorted({*files, *known}) for group in await self._from_file(file)]

    async def _from_file(self, file: str) -> tuple[StaticGroup, ...]:
        state = self._files.setdefault(file, _FileState())
        try:
            stamp, text = await self.files.read(file, state.stamp)
            if text is None:
                return state.groups
            state.stamp = stamp
            state.groups = _with_meta(parse_groups(await _parsed(text, file), file), "__meta_filepath", file)
            self.last_errors.pop(file, None)
        except (SourceError, ConfigError) as error:
            self._failed("file_sd", file, error.detail if isinstance(error, SourceError) else str(error))
        return state.groups

    async def _from_http(self, sd: HttpSd) -> tuple[StaticGroup, ...]:
        state = self._http.setdefault(sd, _HttpState())
        now = monotonic_seconds()
        if now < state.due_at:
            return state.groups
        state.due_at = now + sd.refresh_interval_ms / 1000
        request = Request(sd.url, HTTP_SD_TIMEOUT_SECONDS, HTTP_SD_BODY_LIMIT, "application/json", allow_empty=False,
                          access=sd.access)
        try:
            body = await self.fetch.get(request)
            if body.data != state.data:
                text = body.data.decode("utf-8", "replace")
                state.groups = _with_meta(parse_groups(_json(text, sd.url, "an answer that is not JSON"), sd.url),
                                          "__meta_url", sd.url)
                state.data = body.data
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

    def _make(self, config: ScrapeConfig, group: StaticGroup) -> _Made:
        known = self._made.get((id(config), id(group)))
        if known is not None and known.config is config and known.group is group:
            made = known
        else:
            made = _Made(config, group, found_targets(config, group))
        for one in made.found:
            if one.error is not None:
                self._failed("target", one.labels["__address__"], str(one.error))
        return made


def _with_meta(groups: Iterable[StaticGroup], name: str, value: str) -> tuple[StaticGroup, ...]:
    return tuple(replace(group, labels={**group.labels, name: value}) for group in groups)


def _within_limit(config: ScrapeConfig, targets: list[ScrapeTarget]) -> list[ScrapeTarget]:
    """All of them, or, where a job has more targets than target_limit, all of them as failing: so does Prometheus."""
    limit = config.limits.target_limit
    if not limit or len({(one.url, *sorted(one.info.labels.items())) for one in targets}) <= limit:
        return targets
    return [replace(one, refused="too_many_targets") for one in targets]


def _add(found: dict[str, ScrapeTarget], target: ScrapeTarget) -> None:
    """job/instance, with the path (and the query) added where two targets share them, and with a mark of the labels where
    these are all that differs; equal targets count once."""
    base = target.info.id
    path = target.url.split("/", 3)[3:]
    for longer in (base, "/".join((base, *path)), f"{base}~{_mark(target)}"):
        other = found.get(longer)
        if other is None:
            found[longer] = target if longer == base else replace(target, info=replace(target.info, id=longer))
            return
        if other.url == target.url and other.info.labels == target.info.labels:
            return


def _mark(target: ScrapeTarget) -> str:
    """8 hex digits of the target's labels and URL."""
    whole = json.dumps([target.url, sorted(target.info.labels.items())])
    return hashlib.sha256(whole.encode()).hexdigest()[:8]


async def _parsed(text: str, where: str) -> object:
    """A target file's content, by the ending of its name."""
    if where.endswith(".json"):
        return _json(text, where, "text that is not JSON")
    return parse_yaml(text, where) if len(text) <= SMALL_TEXT else await asyncio.to_thread(parse_yaml, text, where)


def _json(text: str, where: str, else_it_is: str) -> object:
    """JSON. Where it is small the YAML reader reads it once more, so that errors carry lines."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(where, "", else_it_is, "a JSON list of target groups is needed") from None
    if len(text) <= SMALL_TEXT:
        with suppress(ConfigError):  # JSON that YAML does not take: it has tabs, say
            return parse_yaml(text, where)
    return data
