"""The book of incidents: opens, updates, merges, resolves and reopens them as findings come and go.

The book changes the state of incidents in open, holding, proposed, approved and escalated. While an incident is acting
or verifying only remediation changes its state, and hands it back with `adopt`; its evidence is kept up to date.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from core.faults import faults
from core.targets import CLOSED_STATES
from core.telemetry import Telemetry
from core.types import Event, Finding, Incident, Target
from core.window import Window
from pipeline import losses
from pipeline.alerts_in import evidence_for
from pipeline.board import one_board
from pipeline.codec import pack, unpack
from pipeline.consequences import Past, explained, outlived
from pipeline.correlate import Group, correlate
from pipeline.localise import jobs_hit

HANDS_OFF = ("acting", "verifying")
REMEMBER_MS = 24 * 3_600_000
MOST_FINDINGS = 200
MOST_EVIDENCE = 12
MOST_VICTIMS = 64
CONFIDENCE_STEP = 0.1
LOSS_NEWS_HOURS = 0.5  # the loss is news again when it is twice what was last told, and at least this much


@dataclass(slots=True)
class Entry:
    """An incident and what the book knows besides. key: see `correlate.Group`. open: ids of its open findings.
    ends: why its findings ended. quiet_since: tick since when it has none. usual: step time before the onset, by job.
    told_hours: the loss that was last told. followers: findings of other faults that follow from it.
    lost: GPU hours by job, an empty name where no job is known."""

    incident: Incident
    key: tuple[str, str, str]
    open: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    quiet_since: int | None = None
    usual: dict[str, float] = field(default_factory=dict)
    told_hours: float = 0.0
    followers: list[str] = field(default_factory=list)
    lost: dict[str, float] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        return self.incident.state not in CLOSED_STATES


class IncidentBook:
    """quiet_seconds: without findings for so long, an incident is resolved. reopen_seconds: what comes back within this
    time after that is the same incident."""

    def __init__(self, quiet_seconds: float = 120, reopen_seconds: float = 1800, telemetry: Telemetry | None = None) -> None:
        self._quiet_ms, self._reopen_ms = int(quiet_seconds * 1000), int(reopen_seconds * 1000)
        self._telemetry = telemetry
        self._entries: dict[str, Entry] = {}
        self._alerts: Sequence[Event] = ()  # of others, at this tick

    # --- the tick ---------------------------------------------------------------------------------------------------
    def update(self, window: Window, open_findings: Sequence[Finding],
               ended_findings: Sequence[Finding]) -> list[tuple[str, Incident]]:
        """One tick. Gives (opened | updated | resolved | reopened, incident) in the order of happening."""
        for finding in ended_findings:
            for known in self._entries.values():
                if finding.id in known.open:
                    known.ends = [*known.ends, finding.end_reason or "cleared"][-MOST_FINDINGS:]
        held_ids = {f.id for f in open_findings}
        for known in self._entries.values():
            if known.incident.state == "abandoned" and known.open:  # closed by a person: over once its findings are
                known.open = [i for i in known.open if i in held_ids]
        live = {e.key for e in self._entries.values() if e.live}
        self._alerts = window.events_of("alert")
        news: list[tuple[str, Incident]] = []
        # What is being acted on keeps its own evidence: the proof that the action helped must not move elsewhere.
        held = {e.key for e in self._entries.values() if e.incident.state in HANDS_OFF}
        groups = explained(one_board(correlate(window, open_findings, live), live), window, held)
        groups = outlived(groups, self._over(window.end), window.end, self._past(window.end, held_ids), live)
        matched: dict[str, Group] = {}
        for group in groups:
            entry = self._match(group, window.end, matched)
            if entry is None:
                entry = self._open(group, window)
                news.append(("opened", entry.incident))
            elif entry.live:
                word = self._refresh(entry, group, window)
                news += [(word, entry.incident)] if word else []
            elif entry.incident.state == "resolved":
                self._reopen(entry, group, window)
                news.append(("reopened", entry.incident))
            entry.followers = [*entry.followers, *(f.id for f in group.findings if f.fault != group.fault
                                                   and f.id not in entry.followers)][-MOST_FINDINGS:]
            matched[entry.incident.id] = group
        news += self._absorb(matched, window.end)
        news += self._quiet(matched, window)
        news = self._count_losses(news, window)
        self._forget(window.end)
        return news

    def _over(self, tick: int) -> dict[str, int]:
        """By finding that followed from another fault: since when the incident of that fault has been quiet (ms)."""
        out: dict[str, int] = {}
        for entry in self._entries.values():
            if entry.incident.state == "merged":
                continue
            since = entry.incident.resolved_at if entry.quiet_since is None else entry.quiet_since
            for finding in entry.followers:
                out[finding] = max(tick if since is None else since, out.get(finding, 0))
        return out

    def _past(self, tick: int, open_ids: Collection[str]) -> list[Past]:
        """Incidents that are quiet or resolved, with since when; also those of which nothing but consequences is left now."""
        out = []
        for entry in self._entries.values():
            one = entry.incident
            since = one.resolved_at if entry.quiet_since is None else entry.quiet_since
            own = set(entry.open) - set(entry.followers)
            if one.state != "merged" and not any(i in open_ids for i in own):
                out.append(Past(one.fault, one.culprit, one.evidence, tick if since is None else since))
        return out

    def _match(self, group: Group, tick: int, taken: dict[str, Group]) -> Entry | None:
        """The incident that a group belongs to: an open one with its key, else one that it reopens, else one that a
        person closed although the evidence stays."""
        same = [e for e in self._entries.values() if e.incident.id not in taken and _same_key(e, group)]
        for entry in same:
            if entry.live:
                return entry
        ids = {f.id for f in group.findings}
        for entry in sorted(same, key=lambda e: -e.incident.updated_at):
            incident = entry.incident
            if incident.state == "abandoned" and ids & set(entry.open):
                return entry
            recent = incident.resolved_at is not None and tick - incident.resolved_at <= self._reopen_ms
            if incident.state == "resolved" and recent and _same_culprit(incident.culprit, group.culprit.target):
                return entry
        return None

    def _open(self, group: Group, window: Window) -> Entry:
        at = window.end
        incident_id = Incident.make_id(group.fault, group.scope, group.scope_key, at)
        known = faults()[group.fault]
        incident = Incident(
            incident_id, group.fault, group.scope, None, 0.0, (), (), (), (), (), 0.0, known.owner, known.klass, "open",
            "shared_cause" if group.shared else "opened_by_finding", None, min(f.onset_at for f in group.findings), at, at)
        entry = Entry(_with_evidence(incident, group, window, self._alerts), group.key, [f.id for f in group.findings])
        self._entries[incident_id] = entry
        self._learn_usual(entry, window)
        if self._telemetry is not None:
            self._telemetry.set("greylag_detection_delay_seconds", (at - incident.onset_at) / 1000, fault=group.fault)
        return entry

    def _learn_usual(self, entry: Entry, window: Window) -> None:
        for job in window.jobs:
            if job.id in entry.incident.jobs and job.id not in entry.usual:
                usual = losses.before(job, window, entry.incident.onset_at)
                if usual is not None:
                    entry.usual[job.id] = usual

    def _refresh(self, entry: Entry, group: Group, window: Window) -> str | None:
        """Brings the evidence up to date; gives `updated` where that is news."""
        entry.open, entry.quiet_since, entry.key = [f.id for f in group.findings], None, group.key
        before = entry.incident
        fresh = _with_evidence(before, group, window, self._alerts)
        fresh = replace(fresh, scope=group.scope, onset_at=min(before.onset_at, fresh.onset_at))
        if not _material(before, fresh):
            return None
        reason = "evidence_changed" if before.state == "open" else before.reason
        entry.incident = replace(fresh, reason=reason, updated_at=window.end)
        self._learn_usual(entry, window)
        return "updated"

    def _reopen(self, entry: Entry, group: Group, window: Window) -> None:
        fresh = _with_evidence(entry.incident, group, window, self._alerts)
        entry.incident = replace(fresh, state="open", reason="reopened", resolved_at=None, updated_at=window.end)
        entry.open, entry.quiet_since, entry.ends = [f.id for f in group.findings], None, []
        self._learn_usual(entry, window)

    def _absorb(self, matched: dict[str, Group], tick: int) -> list[tuple[str, Incident]]:
        """Ends incidents whose findings all went to another one."""
        news = []
        owner = {f.id: incident_id for incident_id, group in matched.items() for f in group.findings}
        for entry in self._entries.values():
            incident = entry.incident
            if incident.id in matched or not entry.live or incident.state in HANDS_OFF:
                continue
            own = set(entry.open) - set(entry.followers)  # what only followed may follow from another fault now
            into = sorted({owner[i] for i in own if i in owner} - {incident.id})
            if into:
                entry.incident = replace(incident, state="merged", reason="absorbed", merged_into=into[0],
                                         updated_at=tick, resolved_at=tick)
                news.append(("updated", entry.incident))
        return news

    def _quiet(self, matched: dict[str, Group], window: Window) -> list[tuple[str, Incident]]:
        news = []
        for entry in self._entries.values():
            if entry.incident.id in matched or not entry.live:
                continue
            entry.open = []
            entry.quiet_since = window.end if entry.quiet_since is None else entry.quiet_since
            if entry.incident.state in HANDS_OFF or window.end - entry.quiet_since < self._quiet_ms:
                continue
            entry.incident = replace(entry.incident, state="resolved", reason=_why_quiet(entry, window),
                                     updated_at=window.end, resolved_at=window.end)
            news.append(("resolved", entry.incident))
        return news

    def _count_losses(self, news: list[tuple[str, Incident]], window: Window) -> list[tuple[str, Incident]]:
        """Adds the tick's loss to each open incident; the news of the tick show it."""
        for entry in self._entries.values():
            if not entry.live:
                continue
            lost = losses.lost_gpu_hours(entry.incident, window, entry.usual)
            if not lost:
                continue
            total = entry.incident.lost_gpu_hours + sum(lost.values())
            entry.incident = replace(entry.incident, lost_gpu_hours=total)
            for job, hours in lost.items():
                entry.lost[job] = entry.lost.get(job, 0.0) + hours
            if self._telemetry is not None:
                for job, hours in lost.items():
                    self._telemetry.add("greylag_lost_gpu_hours_total", hours, job=job, fault=entry.incident.fault)
        told = {incident.id for _, incident in news}
        for entry in self._entries.values():
            hours = entry.incident.lost_gpu_hours
            if entry.live and entry.incident.id not in told and hours >= max(LOSS_NEWS_HOURS, 2 * entry.told_hours):
                entry.incident = replace(entry.incident, updated_at=window.end)
                news.append(("updated", entry.incident))
        for _, incident in news:
            self._entries[incident.id].told_hours = self._entries[incident.id].incident.lost_gpu_hours
        return [(word, self._entries[incident.id].incident) for word, incident in news]

    def _forget(self, tick: int) -> None:
        for incident_id in [i for i, e in self._entries.items()
                            if not e.live and not e.open and tick - e.incident.updated_at > REMEMBER_MS]:
            del self._entries[incident_id]

    # --- what others ask and tell -----------------------------------------------------------------------------------
    def adopt(self, at: int, incident: Incident) -> None:
        """Takes over what remediation or a person decided: state, reason, attempt and times. Evidence and the loss stay
        as the book knows them."""
        entry = self._entries.get(incident.id)
        if entry is None:
            self._entries[incident.id] = Entry(incident, _key_of(incident))
            return
        resolved_at = incident.resolved_at
        if incident.state in CLOSED_STATES and resolved_at is None:
            resolved_at = at
        entry.incident = replace(entry.incident, state=incident.state, reason=incident.reason, attempt=incident.attempt,
                                 resolved_at=resolved_at, merged_into=incident.merged_into, updated_at=at)

    def open(self) -> tuple[Incident, ...]:
        """Incidents that are not closed, by opening time and id."""
        return tuple(sorted((e.incident for e in self._entries.values() if e.live), key=lambda i: (i.opened_at, i.id)))

    def get(self, incident_id: str) -> Incident | None:
        """An incident of the last day, None where it is not known."""
        entry = self._entries.get(incident_id)
        return entry.incident if entry else None

    def losses(self) -> list[dict[str, object]]:
        """What open incidents and those of the last day cost each job, the worst on top: {job, lost_gpu_hours, open,
        incidents}, an incident as {id, fault, state, lost_gpu_hours}. What a merged incident had cost stays counted."""
        by_job: dict[str, list[tuple[float, Incident]]] = {}
        for entry in self._entries.values():
            for job, hours in entry.lost.items():
                by_job.setdefault(job, []).append((hours, entry.incident))
        rows: list[dict[str, object]] = []
        for job, of_job in sorted(by_job.items(), key=lambda item: (-sum(hours for hours, _ in item[1]), item[0])):
            rows.append({"job": job or None, "lost_gpu_hours": sum(hours for hours, _ in of_job),
                         "open": sum(one.state not in CLOSED_STATES for _, one in of_job),
                         "incidents": [{"id": one.id, "fault": one.fault, "state": one.state, "lost_gpu_hours": hours}
                                       for hours, one in sorted(of_job, key=lambda pair: (-pair[0], pair[1].id))]})
        return rows

    def quiet_since(self, incident_id: str) -> int | None:
        """The tick since when the incident has no open finding, None while it has."""
        entry = self._entries.get(incident_id)
        return entry.quiet_since if entry else None

    def dump(self) -> str:
        """All state as JSON; `load` gives exactly it back."""
        return json.dumps([pack(entry) for entry in self._entries.values()], separators=(",", ":"))

    def load(self, text: str) -> None:
        """Replaces the state by what `dump` gave."""
        entries = [unpack(Entry, row) for row in json.loads(text)]
        self._entries = {entry.incident.id: entry for entry in entries}


# --- pure pieces ------------------------------------------------------------------------------------------------------
def _key_of(incident: Incident) -> tuple[str, str, str]:
    if incident.scope == "job":
        return incident.fault, "job", incident.jobs[0] if incident.jobs else ""
    kind = "device" if incident.scope == "device" or incident.culprit is None else incident.culprit.kind
    return incident.fault, kind, incident.culprit.key if incident.culprit is not None else ""


def _same_key(entry: Entry, group: Group) -> bool:
    """Equal keys; for devices also the same part whose id came to be known since."""
    if entry.key == group.key:
        return True
    culprit, other = entry.incident.culprit, group.culprit.target
    return (entry.key[:2] == group.key[:2] and group.key[1] == "device" and culprit is not None and other is not None
            and culprit.same_part(other))


def _same_culprit(before: Target | None, now: Target | None) -> bool:
    if before is None or now is None:
        return before is now
    return before.same_part(now)


def _with_evidence(incident: Incident, group: Group, window: Window, alerts: Sequence[Event] = ()) -> Incident:
    """The incident with culprit, suspects, findings, evidence, victims and jobs of the group. alerts: of others; those that bear
    it out stand last in its evidence, and change nothing else."""
    found = sorted(group.findings, key=lambda f: (-f.severity, f.onset_at, f.target.key))
    evidence = [*group.evidence]
    for finding in found:
        evidence += [e for e in finding.evidence if e not in evidence]
    ids = [*incident.findings, *(f.id for f in sorted(group.findings, key=lambda f: (f.opened_at, f.id))
                                 if f.id not in incident.findings)]
    victims = [v for v in group.victims if group.culprit.target is None or not v.same_part(group.culprit.target)]
    named = {f.target.job for f in group.findings if f.target.job is not None and f.target.kind in ("rank", "job", "node")}
    jobs = jobs_hit(group.nodes if group.key[1] != "job" else (), named, window.jobs)
    onset = min(incident.onset_at, *(f.onset_at for f in found))
    joined = evidence_for(replace(incident, culprit=group.culprit.target, onset_at=onset), alerts, window.end) if alerts else ()
    return replace(
        incident, culprit=group.culprit.target, confidence=group.culprit.confidence, suspects=group.culprit.suspects,
        victims=tuple(victims[:MOST_VICTIMS]), findings=tuple(ids[-MOST_FINDINGS:]),
        evidence=(*evidence[: MOST_EVIDENCE - len(joined)], *joined), jobs=tuple(dict.fromkeys([*incident.jobs, *jobs])), onset_at=onset)


def _material(before: Incident, after: Incident) -> bool:
    """True where an update is worth telling."""
    if abs(before.confidence - after.confidence) >= CONFIDENCE_STEP:
        return True
    names = [(s.target.key, s.reasons) for s in before.suspects] != [(s.target.key, s.reasons) for s in after.suspects]
    return names or any(getattr(before, f) != getattr(after, f)
                        for f in ("culprit", "scope", "victims", "findings", "evidence", "jobs", "onset_at"))


def _why_quiet(entry: Entry, window: Window) -> str:
    """The named reason for which an incident without findings ends."""
    jobs = {j.id: j for j in window.jobs}
    if entry.key[1] == "job" and any(j in jobs and not jobs[j].running for j in entry.incident.jobs):
        return "job_ended"
    if entry.ends and all(end == "expired" for end in entry.ends):
        return "evidence_expired"
    return "quiet"
