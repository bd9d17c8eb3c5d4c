"""The owner's side of the workers: their heartbeats, who is dead, who joins and leaves, and how many there should be.

A heartbeat (`POST /internal/v1/leases`, each second and whenever an answer to a batch named newer leases) brings a worker's
numbers and takes the lease table back. With the supervisor the owner talks by two small files in the data directory, so
that neither ever waits for the other: `workers-wanted.json` (how many there should be) and `workers-running.json` (which
process has which name).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.gate import TickGate
from app.leases import Leases, by_number
from app.scaler import Decision, ScalerState, WorkerLoad, decide
from app.workerfiles import publish_wanted, running
from collectors.shards import LOGS_WORKER
from core.clock import TICK_MS, Clock, rfc3339
from core.config import WorkersConfig
from core.errors import BadInput
from core.telemetry import Telemetry
from core.types import Batch

LEASES_FILE = "leases.json"
LOOK_SECONDS = 0.5
SILENT_SECONDS = 3.0  # three heartbeats
START_SECONDS = 5.0  # an owner that starts anew needs a moment to hear from everybody
SILENT_ALIVE_SECONDS = 10.0  # its process runs, the supervisor says: it may only be busy
SILENT_DEAD_SECONDS = 1.2  # its process is gone: no heartbeat of it is still to come
LEAD_MS = 3000  # three heartbeats, so that every worker knows a planned change before it takes force
PACED_LEAD_MS = 4 * TICK_MS
RESUME_MS = 900_000  # after a longer pause a worker starts anew: what nobody watched is no missed slot
DECISIONS_KEPT = 50
GAUGES = ("greylag_collector_lag_seconds", "greylag_collector_targets", "greylag_collector_cpu_ratio",
          "greylag_collector_resident_bytes", "greylag_collector_shed_level", "greylag_collector_shed_targets",
          "greylag_helpers_stuck")


@dataclass(slots=True)
class Member:
    """A worker as its heartbeats show it. counted: (wall seconds, CPU seconds, samples, missed) at the last look."""

    pid: int
    heard: float
    status: Mapping[str, Any]
    counted: tuple[float, float, float, float] | None = None
    load: WorkerLoad | None = None
    late: float = 0.0


@dataclass
class Crew:
    """See the module. Used on the owner's event loop only, but for `document`. most: the greatest number of workers."""

    config: WorkersConfig
    data_dir: Path
    clock: Clock
    telemetry: Telemetry
    gate: TickGate
    paced: bool
    marks: dict[str, int]
    started: float
    members: dict[str, Member] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    boots: dict[str, tuple[int, int]] = field(default_factory=dict)
    decisions: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))

    def __post_init__(self) -> None:
        self.leases = Leases(self.data_dir / LEASES_FILE)
        self.most = self.config.max or os.cpu_count() or 1
        numbered = sum(by_number(w)[1] >= 0 for w in self.leases.workers)
        self.scaler = ScalerState(max(self.config.min, min(self.most, numbered)) if not self.paced else self.config.min)
        self._version = 0
        self._next_look = self.started + self.config.look_seconds
        self._last_look = self.started
        self._published: int | None = None
        self._publish()

    # --- what the doors bring -----------------------------------------------------------------------------------------
    def beat(self, body: Mapping[str, Any], wall: float) -> dict[str, Any]:
        """Takes a heartbeat and gives its answer. Raises BadInput where it is none."""
        try:
            name, pid = str(body["worker"])[:64], int(body["pid"])
            status = {key: float(body.get(key, 0.0)) for key in
                      ("targets", "samples", "cpu_seconds", "rss_bytes", "missed", "lag_seconds")}
            starting, seen = bool(body.get("starting")), int(body.get("version", 0))
            self._learn(body.get("jobs") or (), body.get("boots") or {})
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput("heartbeat", "", str(error), "worker, pid and numbers are needed") from None
        member = self.members.get(name)
        if member is None or member.pid != pid:
            member = self.members[name] = Member(pid, wall, status)
        member.heard, member.status = wall, status
        member.late = max(member.late, status["lag_seconds"])
        if name not in self.leases.workers and self._welcome(name):
            self._join(name, wall)
        answer: dict[str, Any] = {"segments": self.leases.table.as_json(), "wanted": self.scaler.wanted}
        if starting:
            answer["resume_ms"] = self._resume(name)
        if name == LOGS_WORKER and seen < self._version:
            answer["known"] = {"version": self._version, "jobs": [j for j, v in self.jobs.items() if v > seen],
                               "boots": {n: at for n, (at, v) in self.boots.items() if v > seen}}
        self.telemetry.set("greylag_collector_targets", status["targets"], worker=name)
        self.telemetry.set("greylag_collector_workers", len(self._live()))
        return answer

    def _join(self, name: str, wall: float) -> None:
        first = not self.leases.table.segments
        from_ms = 0 if first else self.clock.now_ms() + self._lead
        self.leases.share([*self.leases.workers, name], from_ms)
        if self.gate.workers(wall):  # the ticks from then on wait for it, the ones before do not
            self.gate.report(name, from_ms - 1, wall)

    def _learn(self, jobs: Any, boots: Mapping[str, Any]) -> None:
        fresh = [str(job) for job in jobs if str(job) not in self.jobs]
        changed = {str(n): int(at) for n, at in boots.items() if self.boots.get(str(n), (0, 0))[0] != int(at)}
        if fresh or changed:
            self._version += 1
            self.jobs.update((job, self._version) for job in fresh)
            self.boots.update((n, (at, self._version)) for n, at in changed.items())

    def check(self, batch: Batch) -> Batch:
        """The batch without what its worker held no lease for; that is counted."""
        batch, refused = self.leases.check(batch)
        if refused:
            self.telemetry.add("greylag_collector_dropped_total", refused, worker=batch.worker, reason="stale_generation")
        return batch

    def committed(self, worker: str, watermark: int) -> None:
        """A batch of the worker is in the store."""
        self.marks[worker] = max(self.marks.get(worker, 0), watermark)

    def lags(self, at_ms: int) -> dict[str, float]:
        """Seconds since up to which each worker that has leases has reported everything, seen from `at_ms`. Any thread."""
        return {name: max(0.0, (at_ms - self.marks[name]) / 1000) for name in tuple(self.leases.workers) if name in self.marks}

    # --- the round of the owner ---------------------------------------------------------------------------------------
    def look(self, wall: float) -> None:
        """To be called every LOOK_SECONDS: the dead, those who leave, and, less often, the scaler."""
        overslept = wall - self._last_look - LOOK_SECONDS
        self._last_look = wall
        if overslept > 1.0:  # this process stood still, so heartbeats lie unread: silence says nothing now
            for member in self.members.values():
                member.heard = max(member.heard, wall - LOOK_SECONDS)
        processes = running(self.data_dir)
        for name in self.leases.workers:
            if self._dead(name, processes, wall) and self.leases.bury(name, self._last_word(name)):
                self._gone(name)
        for name in [n for n in self.members if n not in self.leases.workers and self._dead(n, processes, wall)]:
            self._gone(name)
        if wall >= self._next_look:
            self._next_look = wall + self.config.look_seconds
            self._scale(wall)
        self._publish()
        self.telemetry.set("greylag_collector_workers", len(self._live()))
        self.telemetry.set("greylag_collector_workers_wanted", self.scaler.wanted)

    def _dead(self, name: str, processes: Mapping[str, int] | None, wall: float) -> bool:
        member = self.members.get(name)
        silent = wall - (member.heard if member is not None else self.started + START_SECONDS)
        if processes is None or by_number(name)[1] < 0:
            return silent > SILENT_SECONDS
        if member is not None and processes.get(name) != member.pid:
            return silent > SILENT_DEAD_SECONDS
        return silent > SILENT_ALIVE_SECONDS

    def _gone(self, name: str) -> None:
        self.members.pop(name, None)
        self.gate.leave(name)
        for gauge in GAUGES:
            self.telemetry.drop(gauge, worker=name)

    def _welcome(self, name: str) -> bool:
        """True where a worker of that name is to have leases; one that is to leave comes not back in."""
        number = by_number(name)[1]
        return number < 0 or number < self.scaler.wanted

    def _since(self, name: str) -> int:
        """From when on the worker has been in the table without a break."""
        since = 0
        for one in reversed(self.leases.table.segments):
            if name not in one.workers:
                break
            since = one.from_ms
        return since

    def _last_word(self, name: str) -> int:
        return max(self.marks.get(name, -1), self._since(name) - 1)

    def _resume(self, name: str) -> int | None:
        """Up to when a worker that starts is known to have reported; None where it is new or was long away."""
        word = self._last_word(name)
        return word if name in self.leases.workers and word > self.clock.now_ms() - RESUME_MS else None

    @property
    def _lead(self) -> int:
        return PACED_LEAD_MS if self.paced else LEAD_MS

    def _live(self) -> list[str]:
        return [name for name in self.leases.workers if name in self.members]

    # --- how many -----------------------------------------------------------------------------------------------------
    def _scale(self, wall: float) -> None:
        if self.paced:
            self._decided(Decision(self.scaler.wanted, "hold", "paced_clock"))
            return
        segments = self.leases.table.segments
        if segments and self.clock.now_ms() < segments[-1].from_ms:  # who joins or leaves has not done so yet
            self.scaler = replace(self.scaler, high_looks=0, quiet_since=None)
            self._decided(Decision(self.scaler.wanted, "hold", "settling"))
            return
        loads = [load for name in self._live() if (load := self._load(name, wall)) is not None]
        self.scaler, decision = decide(self.scaler, loads, wall, self.config, self.most, memory_free())
        self._decided(decision)
        leaving = [name for name in self.leases.workers if not self._welcome(name)]
        if leaving:
            staying = [name for name in self.leases.workers if name not in leaving]
            if staying:
                self.leases.share(staying, self.clock.now_ms() + self._lead)

    def _load(self, name: str, wall: float) -> WorkerLoad | None:
        """The worker since its last look, None where this is its first."""
        member, status = self.members[name], self.members[name].status
        before = member.counted
        now = (member.heard, status["cpu_seconds"], status["samples"], status["missed"])
        if before is None or now[0] - before[0] < 0.1:
            member.counted = before or now
            return member.load
        member.counted, seconds = now, now[0] - before[0]
        member.load = WorkerLoad(name, int(status["targets"]), (now[2] - before[2]) / seconds, member.late,
                                 (now[1] - before[1]) / seconds, int(now[3] - before[3]), int(status["rss_bytes"]))
        member.late = 0.0
        return member.load

    def _decided(self, decision: Decision) -> None:
        self.telemetry.add("greylag_scale_decisions_total", direction=decision.direction, reason=decision.reason)
        last = self.decisions[-1] if self.decisions else None
        if last is None or decision.direction != "hold" or (last["direction"], last["reason"]) != ("hold", decision.reason):
            self.decisions.append({"at": rfc3339(self.clock.now_ms()), "wanted": decision.wanted,
                                   "direction": decision.direction, "reason": decision.reason, "workers": len(self._live())})

    def _publish(self) -> None:
        """Tells the supervisor how many there should be; those who leave count until their last lease is reported."""
        wanted, now = self.scaler.wanted, self.clock.now_ms()
        segments = self.leases.table.segments
        for name in self.members:
            number = by_number(name)[1]
            if number >= wanted and segments and (
                    name in segments[-1].workers or now < segments[-1].from_ms
                    or self.marks.get(name, 0) < self._left_at(name) - 1):
                wanted = max(wanted, number + 1)
        if wanted != self._published:
            publish_wanted(self.data_dir, wanted)
            self._published = wanted

    def _left_at(self, name: str) -> int:
        """When the worker's last lease ended; 0 where it had none."""
        end = 0
        for one, after in zip(self.leases.table.segments, self.leases.table.segments[1:], strict=False):
            if name in one.workers and name not in after.workers:
                end = after.from_ms
        return end

    # --- what people see ----------------------------------------------------------------------------------------------
    def document(self, wall: float) -> dict[str, Any]:
        """Workers, leases and the last decisions, as JSON types."""
        now, segments = self.clock.now_ms(), self.leases.table.segments
        in_force = self.leases.table.at(now)
        rows = []
        for name in sorted({*self.leases.workers, *list(self.members)}, key=by_number):
            member, load, mark = self.members.get(name), None, self.marks.get(name)
            load = member.load if member is not None else None
            held, coming = in_force is not None and name in in_force.workers, name in self.leases.workers
            state = ("lost" if member is None else "active" if held and coming else "joining" if coming else "leaving")
            rows.append({
                "worker": name, "state": state, "pid": member.pid if member is not None else None,
                "targets": int(member.status["targets"]) if member is not None else None,
                "samples_per_second": round(load.samples_per_second, 1) if load is not None else None,
                "cpu_ratio": round(load.cpu_ratio, 3) if load is not None else None,
                "late_seconds": load.lag_seconds if load is not None else None,
                "lag_seconds": round(max(0, now - mark) / 1000, 3) if mark is not None else None,
                "missed": int(member.status["missed"]) if member is not None else None,
                "resident_bytes": int(member.status["rss_bytes"]) if member is not None else None,
                "heard_seconds_ago": round(wall - member.heard, 3) if member is not None else None,
                "generation": in_force.generation if held and in_force is not None else None})
        return {"wanted": self.scaler.wanted, "min": self.config.min, "max": self.most,
                "generation": self.leases.generation, "items": rows, "decisions": list(self.decisions),
                "leases": [{"generation": one.generation, "from": rfc3339(one.from_ms), "workers": list(one.workers)}
                           for one in segments]}


def memory_free() -> int | None:
    """Bytes that the machine could still give, None where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
