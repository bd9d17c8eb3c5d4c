"""Greylag's own series: a small registry that the app renders through prometheus-client.

Plain counters and gauges by (name, labels), safe to touch from several threads. Names are declared once in METRICS,
so a misspelt one fails at its first use, and the docs are generated from the same table.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

# name: (type, help, labels)
METRICS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "greylag_node_state": ("gauge", "1 for the node's state, 0 for the others, unknown included", ("node", "state")),
    "greylag_coverage_ratio": ("gauge", "share of a node's expected entities with a fresh value", ("node", "signal")),
    "greylag_incidents": ("gauge", "open incidents", ("fault", "scope", "state")),
    "greylag_incident_info": ("gauge", "1 for each open incident", ("id", "fault", "scope", "node", "device", "job")),
    "greylag_lost_gpu_hours_total": ("counter", "GPU hours lost to incidents", ("job", "fault")),
    "greylag_goodput_ratio": ("gauge", "share of a job's time that new steps at its best pace account for", ("job",)),
    "greylag_actions_total": ("counter", "actions by outcome", ("kind", "state", "reason")),
    "greylag_detection_delay_seconds": ("gauge", "onset to opening of the newest incident", ("fault",)),
    "greylag_event_loop_lag_seconds": ("gauge", "how late the owner's event loop wakes up", ()),
    "greylag_collector_lag_seconds": ("gauge", "cluster time since a worker's watermark", ("worker",)),
    "greylag_collector_samples_total": ("counter", "samples handed over", ("worker",)),
    "greylag_collector_dropped_total": ("counter", "samples or scrapes not kept, by named reason", ("worker", "reason")),
    "greylag_collector_workers": ("gauge", "live collector workers", ()),
    "greylag_collector_workers_wanted": ("gauge", "collector workers that the scaler wants", ()),
    "greylag_collector_targets": ("gauge", "targets that a worker reads", ("worker",)),
    "greylag_collector_cpu_ratio": ("gauge", "CPU that a worker used, of one CPU", ("worker",)),
    "greylag_collector_resident_bytes": ("gauge", "resident memory of a worker", ("worker",)),
    "greylag_collector_shed_level": ("gauge", "how far a worker sheds load to stay within its budget, 0 = not", ("worker",)),
    "greylag_collector_shed_targets": ("gauge", "targets of a worker that are over their own budgets", ("worker",)),
    "greylag_target_shed_series": ("gauge", "series of a target that are left out, by named reason", ("target", "reason")),
    "greylag_helpers_stuck": ("gauge", "helper processes of a worker that hang on a path or a name", ("worker",)),
    "greylag_disk_free_ratio": ("gauge", "free share of the file system of data_dir", ()),
    "greylag_retention_seconds": ("gauge", "how long raw samples are kept now", ()),
    "greylag_disk_steps_total": ("counter", "changes of what is stored because of the disk, by named reason", ("reason",)),
    "greylag_scale_decisions_total": ("counter", "looks of the scaler by direction and named reason", ("direction", "reason")),
    "greylag_scrapes_total": ("counter", "scrapes by result", ("result",)),
    "greylag_push_requests_total": ("counter", "push requests answered", ("endpoint", "status")),
    "greylag_push_samples_total": ("counter", "samples and log lines that were acknowledged", ("endpoint",)),
    "greylag_push_refused_total": ("counter", "samples, lines or requests not taken, by named reason", ("reason",)),
    "greylag_push_scrapes_total": ("counter", "pushed readings handed over: whole, part, late", ("kind",)),
    "greylag_push_spool_bytes": ("gauge", "bytes in the spool of pushes", ("worker",)),
    "greylag_push_fsyncs_total": ("counter", "fsyncs of the spool, each for all requests that waited", ("worker",)),
    "greylag_tolerated_total": ("counter", "breaches of the exposition standards that were let pass", ("breach",)),
    "greylag_tick_seconds": ("gauge", "wall time of the last tick", ()),
    "greylag_tick_timestamp_seconds": ("gauge", "cluster time of the last committed tick", ()),
    "greylag_detector_seconds": ("gauge", "wall time of a detector at the last tick", ("detector",)),
    "greylag_detector_errors_total": ("counter", "exceptions contained by the runner", ("detector",)),
    "greylag_findings": ("gauge", "open findings", ("detector",)),
    "greylag_outbox_pending": ("gauge", "messages not delivered yet", ("notifier",)),
    "greylag_notifications_total": ("counter", "deliveries by result", ("notifier", "result")),
    "greylag_outbox_dead": ("gauge", "messages that were given up: dead letters", ("notifier",)),
    "greylag_outbox_oldest_seconds": ("gauge", "how long the oldest undelivered message has been waiting", ("notifier",)),
    "greylag_courier_errors_total": ("counter", "unexpected exceptions of a notifier's courier, which went on", ("notifier",)),
    "greylag_pages_left": ("gauge", "pages of this week that the notifier's budget leaves", ("notifier",)),
    "greylag_lag_seconds": ("gauge", "how far ingest, detect and notify are behind", ("part",)),
    "greylag_heartbeats_total": ("counter", "heartbeats by result", ("result",)),
    "greylag_alerts_in_total": ("counter", "alerts of others that were handed in, by named reason", ("reason",)),
    "greylag_silences": ("gauge", "silences of an Alertmanager that hold now", ("notifier",)),
    "greylag_requests_denied_total": ("counter", "requests without a token that allows them, by status", ("status",)),
    "greylag_drift_days_to_go": ("gauge", "days until a drifting part reaches the named limit of its signal",
                                 ("signal", "node", "device")),
    "greylag_odd_score": ("gauge", "how far a part stands outside of what the trained model calls usual, 1 = the limit",
                          ("node", "device", "kind")),
    "greylag_decisions_total": ("counter", "remediation decisions by named reason", ("decision", "reason")),
    "greylag_diagnoses_total": ("counter", "diagnoses of accused parts by what they say of the detector", ("fault", "result")),
    "greylag_frozen": ("gauge", "1 while actions are frozen", ()),
}

Key = tuple[str, tuple[tuple[str, str], ...]]


class Telemetry:
    """Counters and gauges by (name, labels)."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in METRICS}
        self._versions: Counter[str] = Counter()
        self._lock = threading.Lock()

    @staticmethod
    def _key(name: str, labels: Mapping[str, str]) -> Key:
        if set(labels) != set(METRICS[name][2]):
            raise ValueError(f"{name} takes the labels {METRICS[name][2]}, got {tuple(labels)}")
        return name, tuple(sorted((k, str(v)) for k, v in labels.items()))

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter."""
        key = self._key(name, labels)
        with self._lock:
            rows = self._values[name]
            rows[key[1]] = rows.get(key[1], 0.0) + amount
            self._versions[name] += 1

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        key = self._key(name, labels)
        with self._lock:
            self._values[name][key[1]] = value
            self._versions[name] += 1

    def replace(self, name: str, rows: Mapping[tuple[tuple[str, str], ...], float]) -> None:
        """Replaces all rows of a gauge at once: rows that are gone vanish. Keys: (label, value) pairs."""
        fresh = self._rows(name, rows)
        with self._lock:
            self._values[name] = fresh
            self._versions[name] += 1

    def amend(self, name: str, rows: Mapping[tuple[tuple[str, str], ...], float | None]) -> None:
        """As `replace`, of the given rows alone: the others stay, and those with None vanish."""
        if not rows:
            return
        gone = self._rows(name, {pairs: 0.0 for pairs, value in rows.items() if value is None})
        fresh = self._rows(name, {pairs: value for pairs, value in rows.items() if value is not None})
        with self._lock:
            for key in gone:
                self._values[name].pop(key, None)
            self._values[name].update(fresh)
            self._versions[name] += 1

    def _rows(self, name: str, rows: Mapping[tuple[tuple[str, str], ...], float]) -> dict[tuple[tuple[str, str], ...], float]:
        """The rows by their sorted labels. A large site has 100,000 of them, and nearly all are sorted already."""
        names = tuple(sorted(METRICS[name][2]))
        return {pairs if tuple([key for key, _ in pairs]) == names else self._key(name, dict(pairs))[1]: value
                for pairs, value in rows.items()}

    def merge(self, rows: Iterable[tuple[str, tuple[tuple[str, str], ...], float]]) -> None:
        """Takes another process' series: counters are added, gauges set. Rows that METRICS does not know are left out."""
        for name, labels, value in rows:
            known = METRICS.get(name)
            if known is not None and set(dict(labels)) == set(known[2]):
                (self.add if known[0] == "counter" else self.set)(name, value, **dict(labels))

    def drop(self, name: str, **labels: str) -> None:
        """Takes one series away: a gauge of what is gone."""
        key = self._key(name, labels)
        with self._lock:
            self._values[name].pop(key[1], None)
            self._versions[name] += 1

    def get(self, name: str, **labels: str) -> float:
        """The value, 0 where never touched."""
        with self._lock:
            return self._values[name].get(self._key(name, labels)[1], 0.0)

    def version(self, name: str) -> int:
        """Grows with each change of the metric's rows."""
        with self._lock:
            return self._versions[name]

    def rows(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """A copy of one metric's rows."""
        with self._lock:
            return dict(self._values[name])

    def snapshot(self) -> dict[Key, float]:
        """A copy of all values."""
        with self._lock:
            return {(name, labels): value for name, rows in self._values.items() for labels, value in rows.items()}
