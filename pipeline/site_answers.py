"""What a Prometheus says of itself, said by Greylag: metadata, targets, rules and alerts, in the same shape.

Targets are those whose `up` is stored; alerts are the open incidents; rules are the faults, one each, in one group. A rule's
`query` is true of Greylag's own series: the rule fires exactly while that series exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from core.clock import TICK_MS, rfc3339
from core.errors import BadInput
from core.faults import faults
from core.protocols import SeriesSamples
from core.targets import CLOSED_STATES
from core.types import Incident
from pipeline.notify.alertmanager_webhook import annotations_of, labels_of
from pipeline.runbooks import runbook_url

GROUP = "greylag"
VALUE = "1e+00"
NEVER = "0001-01-01T00:00:00Z"  # what Prometheus writes for a target that was never scraped
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
LOOK_BACK_MS = 300_000  # as Prometheus: what is older is not there any more


def success(data: Any) -> dict[str, Any]:
    """The envelope."""
    return {"status": "success", "data": data}


def metadata(types: Iterable[tuple[str, str]], metric: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """`/api/v1/metadata`: types: (metric name, type) as stored. Help and unit are not kept, so they are empty."""
    found: dict[str, set[str]] = {}
    for name, kind in types:
        family = next((name.removesuffix(end) for end in SUFFIXES.get(kind, ()) if name.endswith(end)), name)
        if metric in (None, "", family):
            found.setdefault(family, set()).add("unknown" if kind in ("untyped", "") else kind)
    names = sorted(found)[:limit if limit is not None and limit >= 0 else None]
    return success({name: [{"type": kind, "help": "", "unit": ""} for kind in sorted(found[name])] for name in names})


def targets(ups: Sequence[SeriesSamples], took: Sequence[SeriesSamples], jobs: Mapping[str, Mapping[str, Any]],
            state: str = "any") -> dict[str, Any]:
    """`/api/v1/targets`. ups, took: `up` and `scrape_duration_seconds` of the last minutes. jobs: scrape configuration by
    job name, for scheme, path and timing. A target of which nothing was stored lately is not there."""
    if state not in ("any", "active", "dropped", ""):
        raise BadInput("state", "", state, "allowed are: active, dropped, any")
    seconds = {_key(one): one for one in took}
    active = [] if state == "dropped" else [row for one in ups if (row := _target(one, seconds.get(_key(one)), jobs)) is not None]
    active.sort(key=lambda row: (row["scrapePool"], row["labels"].get("instance", "")))
    return success({"activeTargets": active, "droppedTargets": []})


def _key(one: SeriesSamples) -> tuple[tuple[str, str], ...]:
    return one.series.labels


def _target(up: SeriesSamples, took: SeriesSamples | None, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    if not up.at or up.values[-1] is None:
        return None
    labels = dict(up.series.labels)
    job = labels.get("job", "")
    known = jobs.get(job, {})
    healthy, instance = up.values[-1] == 1.0, labels.get("instance", "")
    scheme, path = str(known.get("scheme", "http")), str(known.get("metrics_path", "/metrics"))
    url = f"{scheme}://{instance}{path}"
    last = next((value for value in reversed(took.values) if value is not None), 0.0) if took is not None else 0.0
    return {"discoveredLabels": {"__address__": instance, "__metrics_path__": path, "__scheme__": scheme, "job": job},
            "labels": labels, "scrapePool": job, "scrapeUrl": url, "globalUrl": url,
            "lastError": "" if healthy else "the last scrape failed; greylag_scrapes_total says by which reasons",
            "lastScrape": rfc3339(up.at[-1]), "lastScrapeDuration": last, "health": "up" if healthy else "down",
            "scrapeInterval": str(known.get("scrape_interval", "1m")), "scrapeTimeout": str(known.get("scrape_timeout", "10s"))}


def alerts(incidents: Iterable[Incident], links: Mapping[str, str]) -> dict[str, Any]:
    """`/api/v1/alerts`: an alert for each open incident."""
    return success({"alerts": [_alert(one, links) for one in incidents if one.state not in CLOSED_STATES]})


def _alert(one: Incident, links: Mapping[str, str]) -> dict[str, Any]:
    return {"labels": labels_of(one), "annotations": annotations_of(one, links), "state": "firing",
            "activeAt": rfc3339(one.onset_at), "value": VALUE}


def rules(incidents: Iterable[Incident], links: Mapping[str, str], judged: Collection[str], at: int | None, seconds: float,
          kind: str = "", names: Collection[str] = ()) -> dict[str, Any]:
    """`/api/v1/rules`: a rule for each fault that a detector judges. at: the last tick (ms); seconds: what it took.

    kind: alert, record or empty; names: only these rules. Raises BadInput.
    """
    if kind not in ("", "alert", "record"):
        raise BadInput("type", "", kind, "allowed are: alert, record")
    last = NEVER if at is None else rfc3339(at)
    firing: dict[str, list[dict[str, Any]]] = {}
    for one in incidents:
        if one.state not in CLOSED_STATES:
            firing.setdefault(one.fault, []).append(_alert(one, links))
    found = [{"state": "firing" if name in firing else "inactive", "name": name, "query": f'greylag_incident_info{{fault="{name}"}}',
              "duration": 0, "keepFiringFor": 0, "labels": {"class": fault.klass, "owner": fault.owner},
              "annotations": {"runbook_url": runbook_url(name, links), "summary": fault.means}, "alerts": firing.get(name, []),
              "health": "ok", "evaluationTime": seconds, "lastEvaluation": last, "type": "alerting"}
             for name, fault in faults().items() if name in judged and (not names or name in names) and kind != "record"]
    group = {"name": GROUP, "file": GROUP, "rules": found, "interval": TICK_MS // 1000, "limit": 0, "evaluationTime": seconds,
             "lastEvaluation": last}
    return success({"groups": [group] if found else []})
