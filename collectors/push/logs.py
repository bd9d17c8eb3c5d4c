"""Pushed log lines into events and trainer readings, through the same parsers as followed files.

Which log a line is of is read from its labels (stream labels, attributes, syslog header), by the names that promtail,
Alloy, Vector, Fluent Bit, the OpenTelemetry collector and rsyslog use:

- **kernel**: facility kern (0), journald transport `kernel`, or an application, identifier, unit, job, source or log named
  `kernel`, `kern` or `dmesg`; or a file `kern.log`, `kernel.<node>.log`. The node is the host that the labels name.
- **trainer**: a log named `trainer`; a training job's own label (`train_job`, `slurm_job_id`, `hpc_job`, …); a `rank` label
  beside a `job`; or a file `trainer.<job>.log`. A `rank` label stands for the rank where the line names none.

Everything else is no log that Greylag reads: taken, counted as `other_log`, and forgotten.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from collectors.follow import LiveLog, log_target
from collectors.loglines import head
from collectors.push.parts import LogLine
from collectors.readings import Reading
from core.protocols import SourcePlugin
from core.types import Event

MOST_LOGS = 20_000  # logs whose state is kept; the least lately heard is forgotten
AHEAD_MS = 10 * 60_000
KERNEL_NAMES = frozenset({"kernel", "kern", "dmesg", "kmsg", "klog"})
KIND_LABELS = ("greylag_log", "log_kind", "log_type", "logtype", "log", "kind")
NAME_LABELS = ("app_name", "appname", "syslog_app_name", "app", "application", "program", "programname", "ident", "identifier",
               "syslog_identifier", "SYSLOG_IDENTIFIER", "tag", "unit", "job", "source", "service_name", "job_name", *KIND_LABELS)
FACILITY_LABELS = ("facility", "syslog_facility", "SYSLOG_FACILITY", "facility_name", "facility_keyword", "facility_text")
TRANSPORT_LABELS = ("transport", "journal_transport", "_TRANSPORT", "key_TRANSPORT", "__journal__transport")
NODE_LABELS = ("node", "node_name", "nodename", "k8s_node_name", "hostname", "host_name", "host", "syslog_hostname", "_HOSTNAME",
               "key_HOSTNAME", "__journal__hostname", "machine", "instance")
JOB_LABELS = ("train_job", "training_job", "exported_job", "hpc_job", "slurm_job_id", "slurm_job", "SLURM_JOB_ID", "job_id", "jobid")
FILE_LABELS = ("filename", "__path__", "log_file_path", "log_file_name", "file", "path")
_KERNEL_FILE = re.compile(r"(?:.*/)?(?:kern\.log|dmesg|kernel\.(?P<node>.+)\.log)(?:\.\d+)?")
_TRAINER_FILE = re.compile(r"(?:.*/)?trainer\.(?P<job>.+)\.log(?:\.\d+)?")


class LogOf(NamedTuple):
    """Which log a line is of. rank: of its labels, None where they name none."""

    kind: str
    node: str | None
    job: str | None
    rank: int | None = None


def classify(labels: Mapping[str, str]) -> LogOf | None:
    """The log that the labels name, None where it is none that is read here."""
    node = _first(labels, NODE_LABELS)
    if node is not None and node == labels.get("instance"):
        node = node.rpartition(":")[0] or node
    file = _first(labels, FILE_LABELS) or ""
    rank_text = labels.get("rank", "")
    rank = int(rank_text) if rank_text.isascii() and rank_text.isdigit() and len(rank_text) < 7 else None
    job = _first(labels, JOB_LABELS)
    in_file = _TRAINER_FILE.fullmatch(file)
    named = {labels[name].lower() for name in KIND_LABELS if name in labels}
    if "trainer" in named or job is not None or (rank is not None and "job" in labels) or in_file is not None:
        job = job or (in_file["job"] if in_file else None) or labels.get("job") or labels.get("service_name")
        return None if job is None else LogOf("trainer", node, job, rank)
    in_kernel_file = _KERNEL_FILE.fullmatch(file)
    if (any(labels.get(name, "").lower() in ("kern", "kernel", "0") for name in FACILITY_LABELS)
            or any(labels.get(name) == "kernel" for name in TRANSPORT_LABELS)
            or any(labels.get(name, "").lower().removesuffix(".service") in KERNEL_NAMES for name in NAME_LABELS)
            or in_kernel_file is not None):
        return LogOf("kernel", node or (in_kernel_file["node"] if in_kernel_file else None), None)
    return None


def _first(labels: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


class PushedLogs:
    """Keeps a reader for each log. The lines of one training job share what its log knows, whoever sent them.

    of: which log the labels of a line name.
    """

    def __init__(self, sources: Mapping[str, SourcePlugin], of: Callable[[Mapping[str, str]], LogOf | None] = classify) -> None:
        self._of = of
        self._sources = {kind: [s for _, s in sorted(sources.items()) if s.parse_line and s.log_kind == kind]
                         for kind in ("kernel", "trainer")}
        self._logs: OrderedDict[tuple[str, str | None, str | None], LiveLog] = OrderedDict()
        self._states: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def read(self, lines: Iterable[LogLine], received_ms: int) -> tuple[list[Event], list[Reading]]:
        """Events and readings of the lines; a line without a time of its own is of its sender's time, else of receipt (also
        where the sender's clock is ahead by more than `AHEAD_MS`: what it says is still worth hearing)."""
        events: list[Event] = []
        readings: list[Reading] = []
        for line in lines:
            of = self._of(line.labels)
            if of is None:
                self.counts["other_log"] += 1
                continue
            self.counts[of.kind] += 1
            at = received_ms if line.at is None or line.at > received_ms + AHEAD_MS else line.at
            for text in line.text.splitlines():
                more_events, more_readings = self._log(of).read([_ranked(text, of.rank)], at)
                events += more_events
                readings += [(at if when is None else when, rank, values) for when, rank, values in more_readings]
        return events, readings

    def _log(self, of: LogOf) -> LiveLog:
        key = (of.kind, of.node, of.job)
        found = self._logs.get(key)
        if found is None:
            info = log_target(of.kind, of.node, of.job, "pushed")
            state = self._states.setdefault(info.id, {})
            found = self._logs[key] = LiveLog(info, self._sources[of.kind], state)
            if len(self._logs) > MOST_LOGS:
                _, gone = self._logs.popitem(last=False)
                if not any(one.log.id == gone.log.id for one in self._logs.values()):
                    self._states.pop(gone.log.id, None)
        self._logs.move_to_end(key)
        return found


def _ranked(text: str, rank: int | None) -> str:
    """The line with its rank in front where only the labels know it."""
    if rank is None or head(text).rank is not None:
        return text
    return f"[rank{rank}]: {text}"
