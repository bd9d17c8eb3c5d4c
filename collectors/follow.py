"""Follows kernel and trainer logs, files or HTTP doors, and turns their lines into events and trainer readings.

Each slot gives the lines that were completed since the slot before. Events and readings carry the line's own time where
it has one, else the slot. Where reading stopped can be saved (`places`) and given back at the next start.
"""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from collectors.disposable import Helpers
from collectors.fetch import Fetch
from collectors.kerneltail import JOURNAL, KMSG
from collectors.log_rules import LogRule, RuleWatch
from collectors.logtimes import Anchor
from collectors.mapping import Mapper
from collectors.readings import Reading, ReadingScrapes
from collectors.schedule import run_bounded
from collectors.tail import HelperTail, HttpTail
from core.config import LogConfig
from core.errors import SourceError
from core.protocols import SourcePlugin, TargetInfo
from core.types import Event, Layout, Scrape

LOGS_AT_ONCE = 16
SAME_BOOT_MS = 5_000  # node_exporter computes the boot time anew at each read, it moves by a second or two
_NAMED = re.compile(r"(?:kernel|trainer)\.(.+)\.log(?:\.\d+)?")


@dataclass(slots=True)
class LiveLog:
    """Reads the lines of one growing log. state: shared by its sources, kept between lines (see `collectors.loglines`).

    Sources are asked in the order of their names, the first that says something is heard. A line without a time of its
    own is of the slot. `[seconds]` since boot are dated once the node's boot time is known, until then they are none.
    """

    log: TargetInfo
    sources: Sequence[SourcePlugin]
    state: dict[str, Any] = field(default_factory=dict)
    rules: RuleWatch | None = None

    def booted(self, boot_ms: int, slot_ms: int) -> None:
        """Takes the node's boot time; another one than before is a new boot."""
        anchor: Anchor | None = self.state.get("anchor")
        if anchor is None:
            self.state["anchor"] = Anchor(start=slot_ms, boots=(boot_ms,))
        elif abs(anchor.boots[-1] - boot_ms) > SAME_BOOT_MS:
            anchor.boots = (*anchor.boots, boot_ms)

    def read(self, lines: Iterable[str], slot_ms: int) -> tuple[list[Event], list[Reading]]:
        """Events and readings of the lines."""
        events: list[Event] = []
        readings: list[Reading] = []
        for line in lines:
            if self.rules is not None:
                events += self.rules.line(line, slot_ms)
            for source in self.sources:
                assert source.parse_line is not None
                found = source.parse_line(line, slot_ms, self.state, self.log)
                if found.events or found.readings or found.elapsed_seconds:
                    events += found.events
                    readings += found.readings
                    break
        if self.rules is not None:
            events += self.rules.clock(slot_ms)
        return events, readings


@dataclass(slots=True)
class _Followed:
    tail: HelperTail | HttpTail
    reader: LiveLog


def log_target(kind: str, node: str | None, job: str | None, where: str) -> TargetInfo:
    """The identity of a log: `log/kernel/<node>`, `log/trainer/<job>`; where neither is known, the place it lies at."""
    name = (node if kind == "kernel" else job) or Path(where).name
    labels = {key: value for key, value in (("node", node), ("job", job)) if value}
    return TargetInfo(f"log/{kind}/{name}", labels, node)


class Follower:
    """All logs of a configuration. `failures` counts doors and files that did not answer, by named reason.

    helpers: read the files, so that a file system that hangs hangs nobody else. rules: by the name under which the
    configuration has them.
    """

    def __init__(self, configs: Sequence[LogConfig], sources: Mapping[str, SourcePlugin], mapper: Mapper, fetch: Fetch,
                 places: Mapping[str, Sequence[int]] | None = None, helpers: Helpers | None = None,
                 rules: Mapping[str, Sequence[LogRule]] | None = None) -> None:
        self._rules = dict(rules or {})
        self._configs = configs
        self._sources = {kind: [s for _, s in sorted(sources.items()) if s.parse_line and s.log_kind == kind]
                         for kind in ("kernel", "trainer")}
        self._fetch = fetch
        self._readings = ReadingScrapes(mapper)
        self._places = {key: tuple(value) for key, value in (places or {}).items()}
        self._followed: dict[str, _Followed] = {}
        self._found: dict[str, list[str]] = {}
        self.helpers = helpers or Helpers()
        self.failures: Counter[str] = Counter()

    async def poll(self, slot_ms: int, nodes: Iterable[str], jobs: Iterable[str], boots: Mapping[str, int] | None = None,
                   ) -> tuple[list[tuple[Layout, Scrape]], list[Event]]:
        """What the logs said since the last poll. nodes, jobs: what `{node}` and `{job}` in addresses stand for.

        boots: boot times (ms) of nodes where they are known.
        """
        await self._discover(sorted(set(nodes)), sorted(set(jobs)))
        keys = sorted(self._followed)
        lines = await run_bounded([partial(self._lines, key) for key in keys], LOGS_AT_ONCE)
        events: list[Event] = []
        readings: list[Reading] = []
        for key, found in zip(keys, lines, strict=True):
            reader = self._followed[key].reader
            boot_ms = (boots or {}).get(reader.log.node or "")
            if boot_ms is not None:
                reader.booted(boot_ms, slot_ms)
            more_events, more_readings = reader.read(found, slot_ms)
            events += more_events
            readings += more_readings
        events.sort(key=lambda event: event.at)
        return self._readings.scrapes(readings, slot_ms), events

    def places(self) -> dict[str, list[int]]:
        """Where each log stands, as JSON types: a file's [inode, offset], a door's [offset]."""
        out = {key: list(value) for key, value in self._places.items()}
        for key, one in self._followed.items():
            out[key] = list(one.tail.place) if isinstance(one.tail, HelperTail) else [one.tail.offset]
        return out

    def close(self) -> None:
        """Lets the helpers go."""
        self.helpers.close()

    async def _lines(self, key: str) -> list[str]:
        tail = self._followed[key].tail
        try:
            return await tail.read()
        except SourceError as error:
            self.failures[error.reason] += 1
            return []

    async def _discover(self, nodes: Sequence[str], jobs: Sequence[str]) -> None:
        for config in self._configs:
            if config.url is not None:
                for url, node, job in _expand(config, nodes, jobs):
                    self._add(config.kind, url, node, job, config.rules)
            elif config.path is not None:
                for path in await self._matching(config.path):
                    named = _NAMED.fullmatch(Path(path).name)
                    name = named.group(1) if named else None
                    node = config.node or (name if config.kind == "kernel" else None)
                    if path in (KMSG, JOURNAL):  # this machine's own kernel
                        node = config.node or socket.gethostname().partition(".")[0]
                    self._add(config.kind, path, node, config.job or (name if config.kind == "trainer" else None), config.rules)

    async def _matching(self, pattern: str) -> list[str]:
        """The files of a pattern; those of the last look where the file system does not answer."""
        if not any(c in pattern for c in "*?["):
            return [pattern]
        try:
            answer = await self.helpers.ask(pattern, {"op": "find", "pattern": pattern})
            self._found[pattern] = [str(path) for path in answer.get("paths", ())]
        except SourceError as error:
            self.failures[error.reason] += 1
        return self._found.get(pattern, [])

    def _add(self, kind: str, where: str, node: str | None, job: str | None, rules: str | None = None) -> None:
        if where in self._followed:
            return
        place = self._places.get(where, ())
        tail: HelperTail | HttpTail
        if where.startswith("http://"):
            tail = HttpTail(where, self._fetch, place[0] if len(place) == 1 else 0)
        else:
            tail = HelperTail(where, self.helpers, (place[0], place[1]) if len(place) == 2 else None)
        log, found = log_target(kind, node, job, where), self._rules.get(rules or "", ())
        watch = RuleWatch(found, job or log.id.rpartition("/")[2], whole=not place) if found else None
        self._followed[where] = _Followed(tail, LiveLog(log, self._sources[kind], rules=watch))


def _expand(config: LogConfig, nodes: Sequence[str], jobs: Sequence[str]) -> list[tuple[str, str | None, str | None]]:
    """(address, node, job) for each value of the place-holders in the configured address."""
    url = config.url or ""
    out: list[tuple[str, str | None, str | None]] = []
    for node in ([config.node] if config.node else nodes) if "{node}" in url else [config.node]:
        for job in ([config.job] if config.job else jobs) if "{job}" in url else [config.job]:
            out.append((url.replace("{node}", node or "").replace("{job}", job or ""), node, job))
    return out
