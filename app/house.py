"""What the API asks of the owner, answered from the store, the last window and the engine. Called from several threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import audit, cures, doctor, policy_plan, wiring
from app.case import case_document
from app.freezing import Freezer, held_briefly
from app.page import MetricsPage
from core.access import LOCAL
from core.clock import TICK_MS, monotonic_seconds, rfc3339
from core.errors import BadInput, Refused, nearest
from core.protocols import Matcher
from core.render import plain
from core.signals import SIGNALS
from core.types import Event
from pipeline import history as past
from pipeline import promql
from pipeline import site_answers as site
from pipeline.alerts_in import read_alerts
from pipeline.api import ITSELF, limit_of, time_of
from pipeline.changes import change_events
from pipeline.marks import WORDS, mark_of
from remediation.backends.webhook import WebhookDoor
from remediation.diagnose import scores
from remediation.worth import as_json

if TYPE_CHECKING:
    from app.owner import Owner

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
STORE_SECONDS = 30.0
MOST_SHOWN = 100
SCORECARD_FILE = "scorecard.json"


class OwnerHouse:
    """Implements `pipeline.api.House` over an Owner."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._page = MetricsPage(owner.telemetry)
        self._calls = threading.Lock()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        return self._page.render(accept)

    def ready(self) -> tuple[bool, str]:
        owner = self._owner
        if owner.ticker.failed:
            return False, owner.ticker.failed
        last = owner.store.last_tick()
        if last is None:
            return False, "no tick has been judged yet"
        behind = (owner.clock.now_ms() - last) / 1000
        if behind > 4 * TICK_MS / 1000:
            return False, f"the last tick is {behind:.0f} s old"
        return True, f"the last tick is {behind:.0f} s old"

    # --- Prometheus -------------------------------------------------------------------------------------------------
    def prometheus(self, what: str, params: Mapping[str, Any]) -> dict[str, Any]:
        store, now = self._owner.store, self._owner.clock.now_ms()
        if what == "query":
            return promql.instant(store, str(params.get("query", "")), time_of(params, "time", now))
        if what == "query_range":
            start, end = time_of(params, "start", now - 3_600_000), time_of(params, "end", now)
            return promql.range_(store, str(params.get("query", "")), start, end, _step_ms(params.get("step", "15")))
        start, end = time_of(params, "start", now - 3_600_000), time_of(params, "end", now)
        matches = list(params.get("match", ()))
        if what in ITSELF:
            return self._itself(what, params)
        if what == "series":
            return promql.series(store, matches, start, end)
        if what == "labels":
            return promql.labels(store, matches, start, end)
        return promql.label_values(store, str(params["label"]), matches, start, end)

    def _itself(self, what: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """What a Prometheus says of itself."""
        owner, now = self._owner, self._owner.clock.now_ms()
        if what == "metadata":
            limit = str(params.get("limit", ""))
            return site.metadata(owner.store.metric_types(), params.get("metric"), int(limit) if limit.isascii() and limit.isdigit() else None)
        if what == "targets":
            ups, took = (owner.store.select([Matcher("__name__", "=", name)], now - site.LOOK_BACK_MS, now)
                         for name in ("up", "scrape_duration_seconds"))
            return site.targets(ups, took, wiring.scrape_jobs(owner.config), str(params.get("state", "any")))
        opened = owner.brain.open_incidents()
        if what == "alerts":
            return site.alerts(opened, owner.links)
        judged = {plugin.fault for plugin in owner.brain.plugins.values()}
        return site.rules(opened, owner.links, judged, owner.store.last_tick(), owner.telemetry.get("greylag_tick_seconds"),
                          str(params.get("type", "")), params.get("rule_name", ()))

    # --- Greylag's own documents ------------------------------------------------------------------------------------
    def read(self, what: str, params: Mapping[str, Any]) -> Any:
        return getattr(self, f"_{what}")(params)

    def _inventory(self, params: Mapping[str, Any]) -> Any:
        return plain(self._owner.inventory)

    def _policies(self, params: Mapping[str, Any]) -> Any:
        hands = self._owner.hands
        return {"mode": hands.policy.mode, "backend": hands.backend, "frozen": hands.engine.frozen,
                "policy": plain(hands.policy)}

    def _plan(self, params: Mapping[str, Any]) -> Any:
        return policy_plan.document(self._owner, params.get("policy"))

    def _workers(self, params: Mapping[str, Any]) -> Any:
        return self._owner.crew.document(monotonic_seconds())

    def _coverage(self, params: Mapping[str, Any]) -> Any:
        rows = [r for r in self._owner.brain.coverage_rows() if params.get("node") in (None, r["node"])]
        start, limit = _place(params), limit_of(params)
        return {"items": rows[start : start + limit], "next": str(start + limit) if start + limit < len(rows) else None,
                "nodes": reporting(rows)}

    def _incidents(self, params: Mapping[str, Any]) -> Any:
        return _listed(*self._owner.store.incident_page(_since(params), limit_of(params), params.get("cursor")))

    def _incident(self, params: Mapping[str, Any]) -> Any:
        owner = self._owner
        rows = owner.store.incident_records(id=params["id"], limit=1)
        if not rows:
            raise KeyError(params["id"])
        window = owner.last_window
        nodes_of = {job.id: job.nodes for job in (window.jobs if window is not None else ())}
        held = window.events if window is not None else ()
        return case_document(rows[0], owner.store, owner.inventory.topology(), nodes_of, owner.brain.plugins,
                             owner.brain.coverage_rows(), owner.brain.marks.of(params["id"]), owner.links, held) | {
            "worth": plain(as_json(owner.hands.engine.worth(params["id"])))}

    def _jobs(self, params: Mapping[str, Any]) -> Any:
        window = self._owner.last_window
        return {"items": [plain(job) for job in (window.jobs if window is not None else ())]}

    def _losses(self, params: Mapping[str, Any]) -> Any:
        with self._owner.ticker.lock:
            return {"items": plain(self._owner.brain.book.losses())}

    def _doctor(self, params: Mapping[str, Any]) -> Any:
        owner = self._owner
        return doctor.document(owner.brain.plugins, owner.brain.coverage_rows(), owner.last_window,
                               {log.kind for log in owner.config.logs})

    def _scorecard(self, params: Mapping[str, Any]) -> Any:
        path = Path(self._owner.config.resolve(self._owner.config.data_dir)) / SCORECARD_FILE
        return {"scorecard": json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None}

    def _findings(self, params: Mapping[str, Any]) -> Any:
        return _listed(*self._owner.store.finding_page(_since(params), limit_of(params), params.get("cursor")))

    def _actions(self, params: Mapping[str, Any]) -> Any:
        return _listed(*self._owner.store.action_page(_since(params), limit_of(params), params.get("cursor")))

    def _ledger(self, params: Mapping[str, Any]) -> Any:
        store = self._owner.store
        page = store.audit_page(_since(params), limit_of(params), params.get("cursor"), params.get("incident"))
        return {**_listed(*page), "seal": store.head()}

    def _cures(self, params: Mapping[str, Any]) -> Any:
        owner = self._owner
        with owner.ticker.lock:
            return cures.document(owner.hands.engine.history, owner.clock.now_ms(), params.get("fault"))

    def _diagnoses(self, params: Mapping[str, Any]) -> Any:
        found = scores(self._owner.store.diagnoses())
        return {"items": [{"fault": s.fault, "precision": s.precision, "counts": dict(s.counts)} for s in found
                          if params.get("fault") in (None, s.fault)]}

    def _parts(self, params: Mapping[str, Any]) -> Any:
        return _listed(*self._owner.store.part_page(_since(params), limit_of(params), params.get("cursor"), params.get("node")))

    def _drift(self, params: Mapping[str, Any]) -> Any:
        return self._owner.drift.document()

    def _odd(self, params: Mapping[str, Any]) -> Any:
        return self._owner.odd.document()

    def _events(self, params: Mapping[str, Any]) -> Any:
        now = self._owner.clock.now_ms()
        since = time_of(params, "since", now - DAY_MS)
        return _listed(*self._owner.store.event_page(since, now + TICK_MS, limit_of(params), params.get("cursor")))

    def _records(self, params: Mapping[str, Any]) -> Any:
        after = _place(params)
        rows = self._owner.store.records(after, limit_of(params))
        last = rows[-1][0] if rows else after
        return {"items": [json.loads(line) for _, line in rows], "next": last, "tick": self._last_tick()}

    def _last_tick(self) -> str | None:
        last = self._owner.store.last_tick()
        return None if last is None else rfc3339(last)

    def _windows(self, params: Mapping[str, Any]) -> Any:
        signal = str(params.get("signal", ""))
        if signal not in SIGNALS:
            raise BadInput("signal", "", signal, f"a canonical signal is needed (core/contracts.md lists them){nearest(signal, SIGNALS)}")
        filters = {k: str(params[k]) for k in ("node", "device", "job") if params.get(k)}
        if params.get("start") is not None or params.get("end") is not None:
            end = time_of(params, "end", self._owner.clock.now_ms())
            start = time_of(params, "start", end - HOUR_MS)
            return past.document(past.history(self._owner.store, signal, start, end, filters.get("node")), filters)
        return past.document(past.of_window(self._owner.last_window, signal), filters)

    # --- what people do ---------------------------------------------------------------------------------------------
    def command(self, what: str, params: Mapping[str, Any]) -> Any:
        owner = self._owner
        engine, now = owner.hands.engine, owner.clock.now_ms()
        actor = str(params.get("actor", LOCAL))
        if what in WORDS:
            return self._mark(what, str(params["id"]), params["body"], now, actor)
        if what == "change":
            return self._change(params["body"], now, actor)
        if what == "resend":
            owner.outbox.resend(str(params["id"]))
            return {"done": "resend", "message": params["id"]}
        if what in ("alerts", "outcome"):
            return self._alerts(params["body"], now, actor) if what == "alerts" else self._called_back(params, now)
        if what == "freeze":
            return self._freeze(now, actor)
        with owner.ticker.lock:
            if what == "resume":
                self._freezer().resume()
            elif what == "approve":
                engine.approve(params["id"], actor, now)
            else:
                engine.reject(params["id"], actor, now)
            ref = {} if what == "resume" else {"ref": str(params["id"])}
            owner.brain.said.append(audit.person(now, what, actor, **ref))
        owner.telemetry.set("greylag_frozen", float(engine.frozen))
        return {"done": what, "frozen": engine.frozen}

    def _freezer(self) -> Freezer:
        config = self._owner.config
        return Freezer(Path(config.resolve(config.data_dir)) / wiring.FREEZE_FILE, self._owner.hands.engine)

    def _freeze(self, now: int, actor: str) -> Any:
        """Waits for nothing: the tick may hold its lock for as long as the disk is full."""
        owner = self._owner
        written = self._freezer().freeze(actor, now)
        owner.telemetry.set("greylag_frozen", 1.0)
        with held_briefly(owner.ticker.lock):
            owner.brain.said.append(audit.person(now, "freeze", actor))
        return {"done": "freeze", "frozen": True, "survives_restart": written}

    def _mark(self, word: str, incident: str, body: Any, now: int, actor: str) -> Any:
        """Kept with the next tick's commit, as all that people decide."""
        owner = self._owner
        known = owner.brain.book.get(incident) or next(iter(owner.store.incident_records(id=incident, limit=1)), None)
        if known is None:
            raise KeyError(incident)
        mark = mark_of(word, known, now, actor, body)
        with owner.ticker.lock:
            owner.brain.marks.add(mark)
        return {"done": word, "incident": incident, "mark": plain(mark)}

    def _change(self, body: Any, now: int, actor: str) -> Any:
        """Answered once the store has committed the events."""
        events = tuple(change_events(body, now, actor))
        self._store_events(events, now)
        return {"stored": len(events), "items": [plain(one) for one in events[:MOST_SHOWN]]}

    def _store_events(self, events: tuple[Event, ...], now: int) -> None:
        """Returns once the store has committed them; the next tick sees them."""
        owner = self._owner
        with owner.ticker.lock:
            batch = owner.own.events(now, events)
            stored = owner.writer.submit(batch)
        stored.result(STORE_SECONDS)
        owner.ticker.inbox.put(batch)

    # --- what other programs tell -----------------------------------------------------------------------------------
    def _alerts(self, body: Any, now: int, actor: str) -> Any:
        """Alerts of an Alertmanager: answered once the store has committed them as events."""
        owner = self._owner
        taken = read_alerts(body, now, {node.name for node in owner.inventory.nodes}, actor)
        if taken.events:
            self._store_events(taken.events, now)
        for reason, count in taken.reasons.items():
            if count:
                owner.telemetry.add("greylag_alerts_in_total", count, reason=reason)
        return {"taken": dict(taken.reasons)}

    def _called_back(self, params: Mapping[str, Any], now: int) -> Any:
        """An outcome that the webhook backend's receiver tells: kept by the store before it counts, so that a restart knows it."""
        owner, door, name = self._owner, self._owner.hands.door, str(params["id"])
        if not isinstance(door, WebhookDoor):
            raise Refused("not_supported", f"the backend {owner.hands.backend} takes no call-backs")
        with self._calls:  # the same message twice at one moment counts once
            message_id, outcome = door.read_callback(name, params["headers"], params["raw"])
            action = next((known for known, _ in owner.store.ledger(incident=name.partition("/")[0]) if known.id == name), None)
            if action is None:
                raise KeyError(name)
            self._store_events((Event(now, action.target, "action", {
                "action_id": name, "action": action.kind, "state": outcome.state, "reason": outcome.reason,
                "took_seconds": outcome.took_seconds, "message_id": message_id}),), now)
            door.recall(message_id, outcome)
        return {"action": name, "state": outcome.state, "reason": outcome.reason}

    def _outbox(self, params: Mapping[str, Any]) -> Any:
        owner = self._owner
        return {"items": owner.store.outbox_rows(limit=limit_of(params)), "pages_left": owner.brain.herald.pages_left(owner.clock.now_ms())}

    def _silences(self, params: Mapping[str, Any]) -> Any:
        now = self._owner.clock.now_ms()
        return {"items": [{**plain(one), "holds": one.start <= now < one.end} for one in self._owner.brain.silences.all()]}


def reporting(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Each node in a word, by its machine's own signals (a job that stands still is no news of the node): fresh where any
    of them reports, lost where they did and no longer do, not_configured where none ever did."""
    out: dict[str, str] = {}
    for row in rows:
        if row["signal"].startswith("rank.") or row["state"] == "not_applicable":
            continue
        word = "fresh" if row["state"] in ("fresh", "partial") else row["state"]
        if out.get(row["node"]) != "fresh" and (word != "not_configured" or row["node"] not in out):
            out[row["node"]] = word
    return out


def _listed(items: list[dict[str, Any]], cursor: str | None) -> dict[str, Any]:
    return {"items": items, "next": cursor}


def _place(params: Mapping[str, Any]) -> int:
    """A cursor that is a number: how far the reader has come."""
    text = str(params.get("cursor", "0"))
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise BadInput("cursor", "", text, "what the last answer gave as `next` is needed")
    return int(text)


def _since(params: Mapping[str, Any]) -> int | None:
    return time_of(params, "since", 0) if params.get("since") is not None else None


def _step_ms(text: Any) -> int:
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    raw = str(text)
    try:
        return round(float(raw) * 1000)
    except ValueError:
        pass
    for unit, size in units.items():
        number = raw.removesuffix(unit)
        if number != raw and number.isdigit():
            return int(number) * size
    raise BadInput("step", "", raw, "seconds or a duration such as 15s is needed")
