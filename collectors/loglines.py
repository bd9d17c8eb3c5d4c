"""What the log sources share: the head of a line (time, node, rank), PCI addresses, and the bookkeeping of a job's log.

How a source is called: `parse_line(line, at, state, log)`. A line that carries a time of its own is of that time and
`LogReading.at` gives it; another is of `at`, and the caller may move its events to `at` plus `elapsed_seconds`.
`state` is one dict for each log, shared by all sources that read it. The caller may put into it: `anchor` (an
`Anchor`, dates `[seconds]` and dates without a year; without it such lines have no time) and `nodes` (names that a
leading `node:` may have without looking like a host's name). `log.labels["job"]` names a trainer log's job and
`log.node` a kernel log's node. `LogReader` does all of this.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from collectors.logtimes import ISO, MONTH_NAMES, MONTHS, Anchor, Mark, dated, fraction_ms, iso_mark
from core.clock import rfc3339
from core.derive import STALE_NAN
from core.protocols import LogReading, SourcePlugin, TargetInfo
from core.types import Event, Target

LONGEST_QUOTED = 500  # characters of a line that an event keeps (DESIGN §2)
LONGEST_PARSED = 16 * 1024  # characters of a line that are looked at; no known trainer writes a longer one
NOTHING = LogReading()

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


def plain(line: str) -> str:
    """The line without terminal colours and control characters, bounded in length."""
    if len(line) > LONGEST_PARSED:
        line = line[:LONGEST_PARSED]
    return _ANSI.sub("", line) if "\x1b" in line else line


def normalise_pci(text: str) -> str | None:
    """`0000:9b:00.0` of any spelling: domain of 4 or 8 digits or none, either case, function optional; None for no address."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain = (match[1] or "0").lstrip("0").lower().rjust(4, "0")
    return f"{domain}:{match[2].lower()}:{match[3].lower()}.{match[4] or '0'}"


def number(text: str | None) -> float | None:
    """A logged number (`1.0E+01`, `1,234`, `nan`, `-inf`), None where it is none."""
    if text is None:
        return None
    try:
        return float(text.strip().replace(",", ""))
    except ValueError:
        return None


# --- the head of a trainer's line -------------------------------------------------------------------------------------
class Head(NamedTuple):
    """mark: the line's own time. node and rank: of a prefix. text: the rest."""

    mark: Mark | None
    node: str | None
    rank: int | None
    text: str


_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_TIMES = (
    re.compile(rf"[\[(]?{ISO}[\])]?[ \t]*(?:[-|:>]{{1,2}}[ \t]+)?"),
    re.compile(rf"\[NeMo [A-Z] {ISO}[^\]]*\][ \t]*"),
    re.compile(rf"\[[A-Z] {ISO}[^\]]*\][ \t]*"),
)
_GLOG = re.compile(
    r"\[?[DIWEFC](?P<mo>[01]\d)(?P<d>[0-3]\d) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d+))?[^\]]{0,200}\][ \t]*"
)
_GLOG_UNDATED = re.compile(r"\[[DIWEFC] [\w./-]+:\d+\][ \t]*")
_AMERICAN = re.compile(r"(?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d{4}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)[ \t]*(?:-[ \t]+)?")
_OFFSET = re.compile(r"\[t\+(?P<o>\d+(?:\.\d+)?)s\][ \t]*")
_RANK = re.compile(r"\[rank[ _]?(\d+)\][ \t]*:?[ \t]*|rank[ _]?(\d+):[ \t]+|(\d{1,6}):[ \t]+(?=\S)", re.IGNORECASE)
_TAG = re.compile(rf"\[(?:titan|default\d+|{_LEVEL}(?:\|[^\]]*)?)\][ \t]*:?[ \t]*|{_LEVEL}[ \t]*:?[ \t]+(?=[\[\d])|<\d{{1,3}}>")
_NODE = re.compile(r"([A-Za-z0-9][\w.-]{0,252})(?::[ \t]+|[ \t]?\|[ \t]+)(?=\S)")
_BRACKETED = re.compile(r"\[([A-Za-z0-9][\w.-]{0,252})\][ \t]*:?[ \t]+")
# Words with a digit that stand before a colon in trainers' logs and are no host's name.
_NO_HOST = re.compile(
    r"(?:[a-z]*(?:fp|bf|int|tf|float|uint)\d+\w*|(?:train_|eval_)?(?:steps?|epochs?|iter(?:ation)?s?|layer|stage)[._-]?\d+\w*"
    r"|(?:cuda|rank|local_rank|node_rank|dp|tp|pp|ep|cp|pg|top|adam\w*|beta|zero|v|version|sha|md|lr|bs)[._-]?\d[\w.]*"
    r"|(?:gpu|worker|device|node_?rank)_?\d|[hab][1-9]00s?|l4|l40s?|[\d._-]+)", re.IGNORECASE)


def _host_like(word: str) -> bool:
    return any(c.isdigit() for c in word) and any(c.isalpha() for c in word) and _NO_HOST.fullmatch(word) is None


def _time_at(text: str) -> tuple[Mark, int] | None:
    for pattern in _TIMES:
        if match := pattern.match(text):
            mark = iso_mark(match)
            return (mark, match.end()) if mark else None
    if match := _GLOG.match(text):
        g = match.group
        fields = (int(g("mo")), int(g("d")), int(g("h")), int(g("mi")), int(g("s")), fraction_ms(g("f")))
        return Mark("yearless", 0.0, fields), match.end()
    if match := _AMERICAN.match(text):
        at = dated(int(match["y"]), (*(int(match[k]) for k in ("mo", "d", "h", "mi", "s")), 0))
        return (Mark("at", at), match.end()) if at is not None else None
    if match := _OFFSET.match(text):
        return Mark("offset", float(match["o"])), match.end()
    return None


@lru_cache(maxsize=16)
def head(line: str, nodes: frozenset[str] = frozenset()) -> Head:
    """Takes time, `node:` and `[rankN]` off the front of a line, in any order, each at most once.

    nodes: names that are taken for a node's whatever they look like. Pure; the few newest answers are kept because
    several sources look at each line.
    """
    text = plain(line).lstrip()
    mark: Mark | None = None
    node: str | None = None
    rank: int | None = None
    for _ in range(8):
        if (timed := _time_at(text)) is not None:
            mark = mark or timed[0]
            end = timed[1]
        elif (match := _TAG.match(text) or _GLOG_UNDATED.match(text)) is not None:
            end = match.end()
        elif rank is None and (match := _RANK.match(text)) is not None:
            rank = int(next(g for g in match.groups() if g is not None))
            end = match.end()
        elif (node is None and (match := _NODE.match(text)) is not None and (match[1] in nodes or _host_like(match[1]))) or (node is None and (match := _BRACKETED.match(text)) is not None and match[1] in nodes):
            node, end = match[1], match.end()
        else:
            break
        text = text[end:]
    return Head(mark, node, rank, text)


# --- the head of a kernel line ----------------------------------------------------------------------------------------
class KernelHead(NamedTuple):
    """mark: the line's own time. host: as the line names it. text: the message."""

    mark: Mark | None
    host: str | None
    text: str


_PRIORITY = re.compile(r"(?:<\d{1,3}>\d? ?|[a-z]+ *:[a-z]+ *: *)")
_K_ISO = re.compile(rf"\[?{ISO}\]?[ \t]*")
_K_SECONDS = re.compile(r"\[ *(\d+\.\d+|\d+)(?:\] *|, *)(?:\[ *[TC]\d+\] *)?")
_K_DATE = re.compile(rf"\[(?:\w{{3}} )?(?P<mo>{MONTH_NAMES}) +(?P<d>\d+) (?:(?P<y1>\d{{4}}) )?(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"
                     r"(?: (?P<y2>\d{4}))?\] *")
_K_SYSLOG = re.compile(rf"(?P<mo>{MONTH_NAMES}) +(?P<d>\d{{1,2}}) (?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d+))? +")
_K_KMSG = re.compile(r"\d+,\d+,(\d+),[^;]*;")
_K_HOST = re.compile(r"(?:([\w][\w.-]*) +)?kernel(?:\[\d+\])?: *")
_KMSG_MORE = re.compile(r"[ \t]+[A-Z_]+=\S.*")  # /dev/kmsg tells on lines of their own what device a record is about


def _kernel_time(text: str) -> tuple[Mark | None, int] | None:
    if match := _K_ISO.match(text):
        return iso_mark(match), match.end()
    if match := _K_SECONDS.match(text):
        return Mark("seconds", float(match[1])), match.end()
    if match := _K_KMSG.match(text):
        return Mark("seconds", int(match[1]) / 1e6), match.end()
    match = _K_DATE.match(text) or _K_SYSLOG.match(text)
    if match is None:
        return None
    g = match.groupdict()
    fields = (MONTHS[g["mo"]], int(g["d"]), int(g["h"]), int(g["mi"]), int(g["s"]), fraction_ms(g.get("f")))
    year = g.get("y1") or g.get("y2")
    if year is None:
        return Mark("yearless", 0.0, fields), match.end()
    at = dated(int(year), fields)
    return (None if at is None else Mark("at", at)), match.end()


def _journal_entry(text: str) -> KernelHead | None:
    """The head of a line of `journalctl -o json`; None for what is none. What is not the kernel's has no text."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or "MESSAGE" not in entry:
        return None
    message = entry["MESSAGE"]
    if isinstance(message, list):  # bytes that are no UTF-8
        message = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256).decode(errors="replace")
    kernel = entry.get("_TRANSPORT", entry.get("SYSLOG_IDENTIFIER", "kernel")) == "kernel"
    at = str(entry.get("__REALTIME_TIMESTAMP", ""))
    mark = Mark("at", int(at) // 1000) if at.isascii() and at.isdigit() and len(at) <= 18 else None
    host = entry.get("_HOSTNAME")
    return KernelHead(mark, host if isinstance(host, str) and host else None, plain(str(message)).strip() if kernel else "")


@lru_cache(maxsize=16)
def kernel_head(line: str) -> KernelHead:
    """Takes priority, time and `host kernel:` off the front of a kernel line, in the orders of dmesg, syslog and journal.

    A line of `journalctl -o json` is read as its fields say; lines of /dev/kmsg that go on with a record have no text.
    """
    text = plain(line)
    if text.startswith("{") and (entry := _journal_entry(text)) is not None:
        return entry
    if _KMSG_MORE.fullmatch(text):
        return KernelHead(None, None, "")
    text = text.lstrip()
    if match := _PRIORITY.match(text):
        text = text[match.end():]
    mark: Mark | None = None
    host: str | None = None
    for _ in range(4):
        if (timed := _kernel_time(text)) is not None:
            mark, end = mark or timed[0], timed[1]
        elif host is None and (match := _K_HOST.match(text)) is not None:
            host, end = match[1] or "", match.end()
        else:
            break
        text = text[end:]
    return KernelHead(mark, host or None, text.strip())


def dated_line(line: str, newest_ms: int, tz: tzinfo = UTC) -> str:
    """The kernel line with its date whole: a syslog date gets the last year in which it is not after `newest_ms`, and a date
    without a zone is of `tz`. Lines with another time or none, and those of a journal, stay as they are."""
    if line.startswith("{"):
        return line
    text = plain(line).lstrip()
    if match := _PRIORITY.match(text):
        text = text[match.end():]
    match = _K_ISO.match(text)
    if match is not None and (match["z"] or tz is UTC):
        return line
    match = match or _K_DATE.match(text) or _K_SYSLOG.match(text)
    if match is None:
        return line
    g = match.groupdict()
    month = MONTHS[g["mo"]] if g["mo"] in MONTHS else int(g["mo"])
    fields = (month, int(g["d"]), int(g["h"]), int(g["mi"]), int(g["s"]), fraction_ms(g.get("f")))
    year = g.get("y") or g.get("y1") or g.get("y2")
    newest = datetime.fromtimestamp(newest_ms / 1000, UTC).year
    years = [int(year)] if year else [newest, newest - 1, newest - 2, newest - 3, newest - 4]  # the 29th of February is rare
    for one in years:
        at = dated(one, fields, tz)
        if at is not None and (year or at <= newest_ms):
            return f"{rfc3339(at)} {text[match.end():]}"
    return line


# --- a job's log ------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class JobLine:
    """One line of a trainer's log with what its log knows. own: the line's own time; at: that, else the caller's."""

    text: str
    raw: str
    own: int | None
    at: int
    job: str
    node: str | None
    rank: int | None
    state: dict[str, Any]

    @property
    def part(self) -> Target:
        """The rank that speaks: of the line, else rank 0, for trainers log on one rank and do not say which."""
        return self.rank_target(self.rank or 0)

    def rank_target(self, rank: int) -> Target:
        """A rank of this job; its node is known for the rank that speaks only."""
        return Target("rank", self.node if rank == (self.rank or 0) else None, job=self.job, rank=rank)

    def event(self, kind: str, target: Target | None = None, **fields: object) -> Event:
        """An event of this line, of the whole job where no target is given; fields that are None are left out."""
        kept = {name: value for name, value in fields.items() if value is not None}
        return Event(self.at, target or Target("job", job=self.job), kind, kept, self.raw[:LONGEST_QUOTED])

    def phase(self, phase: str, step: int | None = None) -> tuple[Event, ...]:
        """The job's phase, as an event where it changes."""
        now = self.state.get("phase")
        # The last checkpoint and evaluation of a finished job do not make it run again.
        if now == phase or (now == "done" and phase in ("checkpoint", "eval")):
            return ()
        self.state["phase"] = phase
        return (self.event("job_phase", phase=phase, step=step, source="log"),)

    def reading(self, events: Sequence[Event] = (), values: Mapping[str, float] | None = None, elapsed: float = 0.0) -> LogReading:
        """What the line gives: events, and values of the rank that speaks."""
        readings = ((self.own, self.part, dict(values)),) if values else ()
        return LogReading(tuple(events), readings, self.own, elapsed)

    def count(self, signal: str, more: float) -> float:
        """Adds to a counter of the rank that speaks and gives its new value."""
        key = f"count/{signal}/{self.rank or 0}"
        self.state[key] = float(self.state.get(key, 0.0)) + more
        return float(self.state[key])


def job_line(line: str, at: int | None, state: dict[str, Any], log: TargetInfo) -> JobLine:
    """The line as its sources see it."""
    top = head(line, state.get("nodes", frozenset()))
    own = _own_time(line, top.mark, state)
    job = log.labels.get("job") or log.id
    when = own if own is not None else at
    return JobLine(top.text, plain(line).strip(), own, when or 0, job, top.node or log.node, top.rank, state)


def _own_time(line: str, mark: Mark | None, state: dict[str, Any]) -> int | None:
    """The line's time in ms. An anchor learns from each line, so it is asked once for each, not once for each source."""
    kept = state.get("own_time")
    if kept is not None and kept[0] is line:
        return int(kept[1]) if kept[1] is not None else None
    anchor: Anchor | None = state.get("anchor")
    if anchor is not None:
        own = anchor.resolve(mark)
    else:
        own = int(mark.value) if mark is not None and mark.kind == "at" else None
    state["own_time"] = (line, own)
    return own


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step as a line tells it. seconds: of one step. skipped, nan: steps of that kind since the last line.
    batch: samples in the step, of the whole job."""

    step: int | None
    seconds: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    skipped: float | None = None
    nan: float | None = None
    batch: float | None = None


PROGRESS = frozenset({"rank.step", "rank.last_step_timestamp_seconds"})
TIMED_PROGRESS = PROGRESS | {"rank.step_seconds"}
RESULTS = frozenset({"rank.loss", "rank.grad_norm", "rank.tokens_per_second", "rank.batch_samples"})
ALL_STEP_SIGNALS = TIMED_PROGRESS | RESULTS


def step_reading(line: JobLine, told: Step, only: frozenset[str] = ALL_STEP_SIGNALS) -> LogReading:
    """The readings and events of a line that tells of a step.

    only: the signals that this kind of line speaks of. A value of these that this rank's lines had before and this one
    lacks is absent (stale), not unchanged. A loss or gradient that is not finite is an event of its own, unless the
    trainer says that it skipped the step.
    """
    state, part = line.state, line.part
    elapsed = _elapsed(line, told)
    values: dict[str, float | None] = {
        "rank.step": None if told.step is None else float(told.step),
        "rank.last_step_timestamp_seconds": line.at / 1000,
        "rank.step_seconds": told.seconds,
        "rank.loss": told.loss,
        "rank.grad_norm": told.grad_norm,
        "rank.tokens_per_second": told.tokens_per_second,
        "rank.batch_samples": told.batch,
    }
    seen: set[str] = state.setdefault(f"seen/{part.rank}", set())
    seen.update(name for name, value in values.items() if value is not None)
    row = {name: STALE_NAN if value is None else value for name, value in values.items() if name in seen & only}
    counted = {}
    for signal, more in (("rank.skipped_per_second", told.skipped), ("rank.nonfinite_per_second", told.nan)):
        if more is not None:
            counted[signal] = line.count(signal, more)
    events = [*line.phase("train", told.step), *_nonfinite(line, told)]
    readings = [(line.own, part, row)] + ([(line.own, part, counted)] if counted else [])
    return LogReading(tuple(events), tuple(readings), line.own, elapsed)


def _nonfinite(line: JobLine, told: Step) -> list[Event]:
    if told.skipped:
        return []
    found = []
    for what, value in (("loss", told.loss), ("grad_norm", told.grad_norm)):
        if value is not None and not math.isfinite(value):
            found.append(line.event("nonfinite", line.part, rank=line.part.rank, step=told.step, what=what))
    if told.nan and not found:
        found.append(line.event("nonfinite", line.part, rank=line.part.rank, step=told.step, what="nan_iterations"))
    return found


def _elapsed(line: JobLine, told: Step) -> float:
    """Seconds that this line says have passed since the last such line; only the first rank that speaks counts them."""
    state, rank = line.state, line.rank or 0
    if told.step is None or told.seconds is None or not 0 <= told.seconds < 1e7:
        return 0.0
    if state.setdefault("clock_rank", rank) != rank:
        return 0.0
    before = state.get("clock_step")
    state["clock_step"] = told.step
    steps = 1 if before is None or told.step < before else told.step - before
    return told.seconds * steps


def step_seconds_between(line: JobLine, step: int) -> float | None:
    """Seconds a step took, from the own times of this rank's last two lines; None where they have none."""
    key = f"last_line/{line.rank or 0}"
    before = line.state.get(key)
    line.state[key] = (step, line.own)
    if before is None or before[1] is None or line.own is None or step <= before[0] or line.own < before[1]:
        return None
    return float(line.own - before[1]) / 1000 / (step - before[0])


# --- reading a whole log ----------------------------------------------------------------------------------------------
@dataclass(slots=True)
class LogReader:
    """Reads one log line by line and dates what has no time of its own.

    sources: the log's, asked in the order of their names; the first that says something is heard. A line without a time
    comes `elapsed_seconds` after the last line that told of a step or of passed time, and never before the newest line.
    """

    sources: Mapping[str, SourcePlugin]
    log: TargetInfo
    anchor: Anchor = field(default_factory=Anchor)
    nodes: frozenset[str] = frozenset()
    state: dict[str, Any] = field(default_factory=dict)
    clock: int | None = None
    timed: bool = False
    log_kind: str = "trainer"
    _told: int | None = None

    def __post_init__(self) -> None:
        kinds = {source.log_kind for source in self.sources.values()}
        self.log_kind = "kernel" if kinds == {"kernel"} else "trainer"
        self.state.update(anchor=self.anchor, nodes=self.nodes)

    def read(self, line: str) -> tuple[int, LogReading]:
        """The line's time (ms) and what it says; all events and readings carry their time."""
        clock = self.anchor.start if self.clock is None else self.clock
        said = NOTHING
        if self.log_kind == "trainer":  # lines that no source cares for move the clock as well
            said = LogReading(at=_own_time(line, head(line, self.nodes).mark, self.state))
        for _, source in sorted(self.sources.items()):
            assert source.parse_line is not None
            reading = source.parse_line(line, clock, self.state, self.log)
            if reading.at is not None and said.at is None:
                said = replace(said, at=reading.at)
            if reading.events or reading.readings or reading.elapsed_seconds:
                said = reading
                break
        if said.at is not None:
            self.timed = True
            at = said.at
        else:
            base = self._told if self._told is not None else self.anchor.start
            at = max(clock, base + round(said.elapsed_seconds * 1000)) if said.elapsed_seconds else clock
        self.clock = at if self.clock is None or said.at is None else max(self.clock, at)
        if said.elapsed_seconds or said.readings:
            self._told = at
        return at, said if said.at is not None else _moved(said, at)


def _moved(said: LogReading, at: int) -> LogReading:
    """The reading of a line without a time, at its time."""
    events = tuple(replace(event, at=at) for event in said.events)
    readings = []
    for _, target, values in said.readings:
        stamp = {"rank.last_step_timestamp_seconds": at / 1000} if "rank.last_step_timestamp_seconds" in values else {}
        readings.append((at, target, {**values, **stamp}))
    return LogReading(events, tuple(readings), None, said.elapsed_seconds)
