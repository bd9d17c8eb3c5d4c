"""Discovery documents, and answers as objects, lists or tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.4", "gitCommit": "0" * 40, "gitTreeState": "clean",
           "buildDate": "2025-04-22T00:00:00Z", "goVersion": "go1.23.6", "compiler": "gc", "platform": "linux/amd64"}


def discovery(kinds: Sequence[Any], parts: list[str], verbs: list[str]) -> Any:
    """What /version, /api, /apis and the paths of their versions answer; None for any other path."""
    if parts == ["version"]:
        return VERSION
    if parts in (["healthz"], ["livez"], ["readyz"]):
        return b"ok"
    groups = {k.group: k.version for k in kinds if k.group}
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g, v) for g, v in groups.items()]}
    if len(parts) == 2 and parts[0] == "apis" and parts[1] in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
    version = {("api", "v1"): "", **{("apis", g, v): g for g, v in groups.items()}}
    if tuple(parts) not in version:
        return None
    group = version[tuple(parts)]
    rows: list[dict[str, Any]] = []
    for kind in (k for k in kinds if k.group == group):
        rows.append({"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced, "kind": kind.kind,
                     "verbs": verbs, "shortNames": list(kind.short)})
        for sub in kind.subresources:
            row = {"name": f"{kind.plural}/{sub}", "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind,
                   "verbs": ["get", "patch", "update"]}
            if sub == "eviction":
                row |= {"kind": "Eviction", "group": "policy", "version": "v1", "verbs": ["create"]}
            rows.append(row)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "/".join(parts[1:]), "resources": rows}


def _group(name: str, version: str) -> dict[str, Any]:
    one = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [one], "preferredVersion": one}


def wants_table(headers: dict[str, str]) -> bool:
    return "as=Table" in headers.get("accept", "")


def one(kind: Any, obj: Any, headers: dict[str, str], now_ms: int) -> Any:
    """The object, or a table of one row."""
    meta = {"resourceVersion": obj["metadata"]["resourceVersion"]}
    return _table(kind, [obj], meta, now_ms) if wants_table(headers) else obj


def many(kind: Any, objs: list[Any], meta: dict[str, Any], headers: dict[str, str], now_ms: int) -> Any:
    """The list, or a table."""
    if wants_table(headers):
        return _table(kind, objs, meta, now_ms)
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta, "items": objs}


def _table(kind: Any, objs: list[Any], meta: dict[str, Any], now_ms: int) -> Any:
    columns, cells = {"Node": (("Name", "Status", "Roles", "Age", "Version"), _node),
                      "Pod": (("Name", "Ready", "Status", "Restarts", "Age"), _pod)}.get(kind.kind, (("Name", "Age"), _other))
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": [{"name": c, "type": "string", "format": "name" if c == "Name" else "", "description": c,
                                   "priority": 0} for c in columns],
            "rows": [{"cells": cells(o, now_ms), "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                                                            "metadata": o["metadata"]}} for o in objs]}


def _age(obj: Any, now_ms: int) -> str:
    born = datetime.fromisoformat(obj["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    return f"{max(0, int(now_ms / 1000 - born))}s"


def _other(obj: Any, now_ms: int) -> list[Any]:
    return [obj["metadata"]["name"], _age(obj, now_ms)]


def _node(obj: Any, now_ms: int) -> list[Any]:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in obj.get("status", {}).get("conditions", []))
    word = "Ready" if ready else "NotReady"
    if obj.get("spec", {}).get("unschedulable"):
        word += ",SchedulingDisabled"
    return [obj["metadata"]["name"], word, "<none>", _age(obj, now_ms), "v1.32.4"]


def _pod(obj: Any, now_ms: int) -> list[Any]:
    phase = obj.get("status", {}).get("phase", "Unknown")
    word = "Terminating" if obj["metadata"].get("deletionTimestamp") else phase
    return [obj["metadata"]["name"], "1/1" if phase == "Running" else "0/1", word, "0", _age(obj, now_ms)]
