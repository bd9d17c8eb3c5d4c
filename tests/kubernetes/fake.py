"""A small Kubernetes API server: its objects, its rules and its answers, without a socket.

Written against the API conventions and what kubectl, lightkube and the official client ask for. It keeps objects with
resourceVersion and managedFields, refuses stale writes with 409, takes merge, strategic-merge and JSON patches, selects
by labels and fields, pages lists, watches with bookmarks and 410 Gone, evicts within disruption budgets, deletes with
grace, prints tables, and asks a token and RBAC rules before each request. `tests/kubernetes/controllers.py` moves what
controllers and kubelets would move; `tests/kubernetes/server.py` puts it behind HTTP.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.kubernetes import patches, tables
from tests.kubernetes.select import field_matches, label_matches

Obj = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A resource. builtin: strategic-merge patches are taken (custom resources have none)."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ("status",)
    builtin: bool = True
    fields: tuple[str, ...] = ("metadata.name", "metadata.namespace")

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


POD_FIELDS = ("metadata.name", "metadata.namespace", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase",
              "status.podIP")
KINDS: tuple[Kind, ...] = (
    Kind("", "v1", "nodes", "Node", False, ("no",), fields=("metadata.name", "spec.unschedulable")),
    Kind("", "v1", "namespaces", "Namespace", False, ("ns",), fields=("metadata.name", "status.phase")),
    Kind("", "v1", "pods", "Pod", True, ("po",), ("status", "log", "eviction"), fields=POD_FIELDS),
    Kind("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Kind("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",)),
    Kind("batch", "v1", "jobs", "Job", True),
    Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", builtin=False),
    Kind("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", builtin=False),
)
BY_PLURAL = {(k.group, k.version, k.plural): k for k in KINDS}
BY_KIND = {k.kind: k for k in KINDS}
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Rule:
    """An RBAC rule. namespace None: a ClusterRole's, for all namespaces. names: resourceNames, empty = any."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespace: str | None = None
    names: tuple[str, ...] = ()

    def allows(self, verb: str, group: str, resource: str, namespace: str | None, name: str | None = None) -> bool:
        if self.names and name not in self.names:
            return False
        return (verb in self.verbs or "*" in self.verbs) and (group in self.groups or "*" in self.groups) \
            and (resource in self.resources or "*" in self.resources) \
            and (self.namespace is None or self.namespace == namespace)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""


@dataclass
class Answer:
    status: int
    body: Any = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: Iterator[bytes] | None = None

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else json.dumps(self.body).encode()


class Problem(Exception):
    """A Status answer."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None, **headers: str) -> None:
        self.code, self.reason, self.message, self.details, self.headers = code, reason, message, details or {}, headers
        super().__init__(message)

    def status(self) -> Obj:
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
                "reason": self.reason, "details": self.details, "code": self.code}


@dataclass
class Where:
    """A parsed path."""

    kind: Kind
    namespace: str | None = None
    name: str | None = None
    sub: str | None = None


class Cluster:
    """The server. now_ms: the cluster's time; None = the wall's. Controllers run after each write, on the wall's
    time also before each request.

    users: token -> (name, rules; None = may do all). log: (verb, resource, name) of each request that passed RBAC.
    fail: (verb, resource) -> Problem to answer with, as often as its number says. down: nobody answers.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self.objects: dict[str, dict[tuple[str, str], Obj]] = {k.kind: {} for k in KINDS}
        self.clock = now_ms
        self.users: dict[str, tuple[str, tuple[Rule, ...] | None]] = {"admin": ("admin", None)}
        self.version = 1000
        self.compacted = 0
        self.events: list[tuple[int, str, Obj | None, Obj | None]] = []
        self.snapshots: dict[int, list[Obj]] = {}
        self.log: list[tuple[str, str, str]] = []
        self.fail: dict[tuple[str, str], list[Problem]] = {}
        self.before_write: list[Any] = []  # called once each, before the next write: another controller's hand
        self.logs: dict[tuple[str, str], str] = {}
        self.down = False
        self.absent: set[str] = set()
        self.changed = threading.Condition(threading.RLock())
        self.settle: Any = lambda cluster: None
        self.make("Namespace", "default")

    # --- time, seeding -------------------------------------------------------------------------------------------------
    @property
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 if self.clock is None else self.clock

    def stamp(self, at_ms: int | None = None) -> str:
        at = self.now_ms if at_ms is None else at_ms
        return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def make(self, kind: str, name: str, namespace: str = "", manager: str = "seed", **parts: Any) -> Obj:
        """Puts an object there, as a controller of the cluster would."""
        body = {"metadata": {"name": name, **parts.pop("metadata", {})}, **parts}
        return self.create(BY_KIND[kind], namespace, body, manager)

    def get(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        return self.objects[kind].get((namespace, name))

    def all(self, kind: str) -> list[Obj]:
        return [o for _, o in sorted(self.objects[kind].items())]

    # --- writing -------------------------------------------------------------------------------------------------------
    def create(self, kind: Kind, namespace: str, body: Obj, manager: str = "seed", dry: bool = False) -> Obj:
        obj = copy.deepcopy(body)
        meta = obj.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if not meta.get("name"):
            raise Problem(422, "Invalid", f"{kind.kind} is invalid: metadata.name: Required value")
        if kind.namespaced:
            if self.get("Namespace", namespace) is None:
                raise Problem(404, "NotFound", f'namespaces "{namespace}" not found')
            meta["namespace"] = namespace
        key = (namespace if kind.namespaced else "", meta["name"])
        if key in self.objects[kind.kind]:
            raise Problem(409, "AlreadyExists", f'{_full(kind)} "{meta["name"]}" already exists',
                          {"name": meta["name"], "group": kind.group, "kind": kind.plural})
        obj.update(apiVersion=kind.api_version, kind=kind.kind)
        if kind.kind in ("Job", "JobSet", "PyTorchJob", "Pod", "Node"):
            obj.setdefault("status", {})
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", self.stamp())
        meta["generation"] = 1
        meta.pop("resourceVersion", None)
        if dry:
            return obj
        return self._store(kind, key, None, obj, manager)

    def update(self, obj: Obj, new: Obj, manager: str = "seed", dry: bool = False) -> Obj:
        """Stores `new` in the place of `obj`; nothing happens where they are equal."""
        kind = BY_KIND[obj["kind"]]
        for name in ("uid", "creationTimestamp", "name", "namespace", "resourceVersion", "generation", "deletionTimestamp",
                     "deletionGracePeriodSeconds", "managedFields"):
            if name in obj["metadata"]:
                new["metadata"][name] = obj["metadata"][name]
            else:
                new["metadata"].pop(name, None)
        new.update(apiVersion=obj["apiVersion"], kind=obj["kind"])
        if new == obj:
            return obj
        if new.get("spec") != obj.get("spec"):
            new["metadata"]["generation"] = obj["metadata"].get("generation", 1) + 1
        if dry:
            return new
        return self._store(kind, _key(obj), obj, new, manager)

    def change(self, obj: Obj, edit: Any, manager: str = "controller") -> Obj:
        """A change by a controller or kubelet: `edit` gets a copy."""
        with self.changed:
            current = self.objects[obj["kind"]].get(_key(obj))
            if current is None:
                return obj
            new = copy.deepcopy(current)
            edit(new)
            return self.update(current, new, manager)

    def remove(self, obj: Obj) -> None:
        """The object is gone."""
        with self.changed:
            current = self.objects[obj["kind"]].pop(_key(obj), None)
            if current is not None:
                self.version += 1
                gone = copy.deepcopy(current)
                gone["metadata"]["resourceVersion"] = str(self.version)
                self.events.append((self.version, obj["kind"], current, None))
                self.changed.notify_all()

    def _store(self, kind: Kind, key: tuple[str, str], old: Obj | None, new: Obj, manager: str) -> Obj:
        with self.changed:
            self.version += 1
            new["metadata"]["resourceVersion"] = str(self.version)
            patches.own_fields(old or {}, new, manager, kind.api_version, self.stamp())
            self.objects[kind.kind][key] = new
            self.events.append((self.version, kind.kind, old, new))
            self.changed.notify_all()
            return new

    def begin_delete(self, obj: Obj, grace: int | None = None) -> bool:
        """Marks a pod as terminating, or removes the object. True where it is gone."""
        if obj["kind"] != "Pod" or grace == 0:
            self.remove(obj)
            return True
        seconds = grace if grace is not None else obj.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        if obj["metadata"].get("deletionTimestamp"):
            return False
        if obj.get("status", {}).get("phase") == "Pending" or not obj.get("spec", {}).get("nodeName"):
            self.remove(obj)
            return True
        new = copy.deepcopy(obj)
        new["metadata"]["deletionTimestamp"] = self.stamp(self.now_ms + seconds * 1000)
        new["metadata"]["deletionGracePeriodSeconds"] = seconds
        with self.changed:
            self._store(BY_KIND["Pod"], _key(obj), obj, new, "kubelet")
        return False

    def compact(self) -> None:
        """Older versions are gone: watches and pages that ask for them get 410."""
        self.compacted = self.version
        self.snapshots.clear()

    # --- requests ------------------------------------------------------------------------------------------------------
    def handle(self, request: Request) -> Answer:
        """The answer. Never raises, unless the server is down."""
        if self.down:
            raise ConnectionError("nobody answers")
        with self.changed:
            try:
                if self.clock is None:
                    self.settle(self)
                answer = self._route(request)
                if self.clock is None or request.method != "GET":
                    self.settle(self)
                return answer
            except Problem as problem:
                return Answer(problem.code, problem.status(), headers=problem.headers)

    def _route(self, request: Request) -> Answer:
        user, rules = self._who(request)
        parts = [p for p in request.path.split("/") if p]
        if request.method == "GET" and (found := tables.discovery(KINDS, parts, VERBS)) is not None:
            return Answer(200, found)
        where = _where(parts)
        if where is None:
            raise Problem(404, "NotFound", "the server could not find the requested resource")
        watch = request.query.get("watch") in ("true", "1")
        verb = _verb(request.method, where, watch)
        resource = where.kind.plural + (f"/{where.sub}" if where.sub else "")
        if rules is not None and not any(r.allows(verb, where.kind.group, resource, where.namespace, where.name) for r in rules):
            scope = f'in the namespace "{where.namespace}"' if where.namespace else "at the cluster scope"
            name = f' "{where.name}"' if where.name else ""
            raise Problem(403, "Forbidden", f'{_full(where.kind)}{name} is forbidden: User "{user}" cannot {verb} resource '
                          f'"{resource}" in API group "{where.kind.group}" {scope}',
                          {"name": where.name or "", "group": where.kind.group, "kind": where.kind.plural})
        if where.kind.plural in self.absent:
            return Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
        self.log.append((verb, resource, where.name or ""))
        if waiting := self.fail.get((verb, resource)):
            raise waiting.pop(0)
        if verb in ("create", "patch", "update", "delete"):
            for hand in [self.before_write.pop(0) for _ in range(len(self.before_write))]:
                hand()
        manager = request.query.get("fieldManager") or request.headers.get("user-agent", "unknown").split("/")[0]
        return self._serve(request, where, verb, manager)

    def _serve(self, request: Request, where: Where, verb: str, manager: str) -> Answer:
        dry = request.query.get("dryRun") == "All"
        if verb == "list":
            return self._list(request, where)
        if verb == "watch":
            return Answer(200, stream=self._watch(request, where))
        if verb == "create" and where.sub is None:
            return Answer(201, self.create(where.kind, where.namespace or "", _json(request), manager, dry))
        obj = self.objects[where.kind.kind].get((where.namespace or "", where.name or ""))
        if obj is None:
            raise Problem(404, "NotFound", f'{_full(where.kind)} "{where.name}" not found',
                          {"name": where.name, "group": where.kind.group, "kind": where.kind.plural})
        if where.sub == "log":
            text = self.logs.get((where.namespace or "", where.name or ""), "")
            return Answer(200, text.encode(), "text/plain")
        if where.sub == "eviction":
            return self._evict(obj, _json(request), dry)
        if verb == "get":
            return Answer(200, tables.one(where.kind, obj, request.headers, self.now_ms))
        if verb == "delete":
            return self._delete(request, obj, dry)
        return self._write(request, where, obj, manager, dry)

    def _who(self, request: Request) -> tuple[str, tuple[Rule, ...] | None]:
        given = request.headers.get("authorization", "")
        found = self.users.get(given.removeprefix("Bearer ")) if given.startswith("Bearer ") else None
        if found is None:
            raise Problem(401, "Unauthorized", "Unauthorized")
        return found

    def _write(self, request: Request, where: Where, obj: Obj, manager: str, dry: bool) -> Answer:
        if request.method == "PUT":
            new = _json(request)
        else:
            new = patches.patched(obj, request.body, request.headers.get("content-type", ""), where.kind.builtin, Problem)
        asked = _asked_version(request)
        if asked is not None and asked != obj["metadata"]["resourceVersion"]:
            raise Problem(409, "Conflict", f'Operation cannot be fulfilled on {_full(where.kind)} "{where.name}": the object has '
                          "been modified; please apply your changes to the latest version and try again",
                          {"name": where.name, "group": where.kind.group, "kind": where.kind.plural})
        if where.sub == "status":
            new = {**copy.deepcopy(obj), "status": new.get("status", {})}
        else:
            _check_unchanged(where.kind, obj, new)
        return Answer(200, self.update(obj, new, manager, dry))

    def _delete(self, request: Request, obj: Obj, dry: bool) -> Answer:
        options = _json(request) if request.body else {}
        wanted = options.get("preconditions", {})
        for name in ("uid", "resourceVersion"):
            if wanted.get(name) not in (None, obj["metadata"][name]):
                raise Problem(409, "Conflict", f"Precondition failed: {name} in precondition: {wanted[name]}")
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        if not dry:
            policy = options.get("propagationPolicy", request.query.get("propagationPolicy"))
            if policy == "Orphan":
                self._orphan(obj)
            gone = self.begin_delete(obj, None if grace is None else int(grace))
            if not gone:
                return Answer(200, self.objects["Pod"][_key(obj)])
        return Answer(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                            "details": {"name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}})

    def _orphan(self, owner: Obj) -> None:
        uid = owner["metadata"]["uid"]
        for kind in KINDS:
            for obj in self.all(kind.kind):
                if any(r["uid"] == uid for r in obj["metadata"].get("ownerReferences", ())):
                    self.change(obj, lambda o: o["metadata"].update(
                        ownerReferences=[r for r in o["metadata"]["ownerReferences"] if r["uid"] != uid]))

    def _evict(self, pod: Obj, body: Obj, dry: bool) -> Answer:
        options = body.get("deleteOptions") or {}
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, pod["metadata"]["uid"]):
            raise Problem(409, "Conflict", "Precondition failed: UID in precondition")
        phase = pod.get("status", {}).get("phase")
        if phase == "Running" and not pod["metadata"].get("deletionTimestamp"):
            budgets = [b for b in self.all("PodDisruptionBudget") if _covers(b, pod)]
            if len(budgets) > 1:
                raise Problem(500, "InternalError", "This pod has more than one PodDisruptionBudget, which the eviction "
                              "subresource does not support.")
            if budgets:
                healthy, needed = self.budget(budgets[0])
                if healthy - 1 < needed:
                    name = budgets[0]["metadata"]["name"]
                    raise Problem(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.",
                                  {"causes": [{"reason": "DisruptionBudget", "message": f"The disruption budget {name} needs "
                                               f"{needed} healthy pods and has {healthy} currently"}]})
        if not (dry or (options.get("dryRun") or []) == ["All"]):
            self.begin_delete(pod, options.get("gracePeriodSeconds"))
        return Answer(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})

    def budget(self, budget: Obj) -> tuple[int, int]:
        """(healthy pods, pods that have to stay so) of a disruption budget."""
        covered = [p for p in self.all("Pod") if _covers(budget, p) and p.get("status", {}).get("phase") in ("Running", "Pending")]
        healthy = sum(p["status"]["phase"] == "Running" and not p["metadata"].get("deletionTimestamp") for p in covered)
        spec = budget["spec"]
        if "minAvailable" in spec:
            return healthy, _count(spec["minAvailable"], len(covered))
        return healthy, len(covered) - _count(spec["maxUnavailable"], len(covered))

    # --- lists and watches ---------------------------------------------------------------------------------------------
    def _matches(self, request: Request, where: Where, obj: Obj) -> bool:
        if where.namespace is not None and obj["metadata"].get("namespace") != where.namespace:
            return False
        return label_matches(request.query.get("labelSelector", ""), obj["metadata"].get("labels") or {}, Problem) \
            and field_matches(request.query.get("fieldSelector", ""), obj, where.kind.fields, Problem)

    def _list(self, request: Request, where: Where) -> Answer:
        limit = int(request.query.get("limit") or 0)
        asked = request.query.get("resourceVersion")
        if asked and asked.isdigit() and int(asked) > self.version:
            raise Problem(504, "Timeout", f"Too large resource version: {asked}, current: {self.version}")
        token = request.query.get("continue")
        if token:
            version, start = json.loads(base64.urlsafe_b64decode(token))
            if version not in self.snapshots:
                raise Problem(410, "Expired", "The provided continue parameter is too old to display a consistent list result.")
            found = self.snapshots[version]
        else:
            version, start = self.version, 0
            found = [o for o in self.all(where.kind.kind) if self._matches(request, where, o)]
        page = found[start: start + limit] if limit else found[start:]
        meta: Obj = {"resourceVersion": str(version)}
        left = len(found) - start - len(page)
        if left > 0:
            self.snapshots[version] = found
            meta["continue"] = base64.urlsafe_b64encode(json.dumps([version, start + len(page)]).encode()).decode()
            meta["remainingItemCount"] = left
        return Answer(200, tables.many(where.kind, page, meta, request.headers, self.now_ms))

    def _watch(self, request: Request, where: Where) -> Iterator[bytes]:
        """Lines of events until the time is up."""
        asked = request.query.get("resourceVersion")
        ends = time.monotonic() + float(request.query.get("timeoutSeconds") or 60)
        marks = request.query.get("allowWatchBookmarks") in ("true", "1")
        since = int(asked) if asked and asked != "0" else self.version
        first = [] if asked and asked != "0" else [("ADDED", o) for o in self.all(where.kind.kind)
                                                   if self._matches(request, where, o)]

        def lines() -> Iterator[bytes]:
            nonlocal since
            if since < self.compacted:
                problem = Problem(410, "Expired", f"too old resource version: {since} ({self.compacted})")
                yield _line("ERROR", problem.status())
                return
            for name, obj in first:
                yield _line(name, tables.one(where.kind, obj, request.headers, self.now_ms))
            while True:
                with self.changed:
                    fresh = [e for e in self.events if e[0] > since and e[1] == where.kind.kind]
                    if not fresh:
                        left = ends - time.monotonic()
                        if left <= 0:
                            break
                        self.changed.wait(min(left, 0.5))
                        if self.clock is None:
                            self.settle(self)
                        continue
                for version, _, old, new in fresh:
                    since = version
                    event = self._event(request, where, old, new, version)
                    if event is not None:
                        yield event
            if marks:
                yield _line("BOOKMARK", {"kind": where.kind.kind, "apiVersion": where.kind.api_version,
                                         "metadata": {"resourceVersion": str(max(since, self.version))}})
        return lines()

    def _event(self, request: Request, where: Where, old: Obj | None, new: Obj | None, version: int) -> bytes | None:
        was = old is not None and self._matches(request, where, old)
        now = new is not None and self._matches(request, where, new)
        if not was and not now:
            return None
        name = "MODIFIED" if was and now else "ADDED" if now else "DELETED"
        shown = copy.deepcopy(new if now else old)
        assert shown is not None
        shown["metadata"]["resourceVersion"] = str(version)
        return _line(name, tables.one(where.kind, shown, request.headers, self.now_ms))


# --- small things ------------------------------------------------------------------------------------------------------
def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _full(kind: Kind) -> str:
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def _line(name: str, obj: Obj) -> bytes:
    return json.dumps({"type": name, "object": obj}).encode() + b"\n"


def _json(request: Request) -> Obj:
    try:
        found = json.loads(request.body or b"{}")
    except ValueError as error:
        raise Problem(400, "BadRequest", f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Problem(400, "BadRequest", "the body is no object")
    return found


def _asked_version(request: Request) -> str | None:
    """The resourceVersion that a write insists on."""
    if request.headers.get("content-type", "").startswith("application/json-patch"):
        return None
    return (_json(request).get("metadata") or {}).get("resourceVersion")


def _where(parts: list[str]) -> Where | None:
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = BY_PLURAL.get((group, version, rest[0]))
    if kind is None or (namespace is not None and not kind.namespaced) or len(rest) > 3:
        return None
    if len(rest) > 1 and kind.namespaced and namespace is None:
        return None
    sub = rest[2] if len(rest) > 2 else None
    if sub is not None and sub not in kind.subresources:
        return None
    return Where(kind, namespace, rest[1] if len(rest) > 1 else None, sub)


def _verb(method: str, where: Where, watch: bool) -> str:
    if method == "GET":
        return "get" if where.name else "watch" if watch else "list"
    found = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method)
    if found is None or (found in ("update", "patch", "delete") and where.name is None) \
            or (found == "create" and where.name is not None and where.sub != "eviction"):
        raise Problem(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return found


def _check_unchanged(kind: Kind, old: Obj, new: Obj) -> None:
    """What the real server does not let change: most of a pod's spec, a Job's template while it runs."""
    if kind.kind == "Pod":
        for name in ("nodeName", "containers"):
            if new.get("spec", {}).get(name) != old.get("spec", {}).get(name):
                raise Problem(422, "Invalid", f'Pod "{old["metadata"]["name"]}" is invalid: spec: Forbidden: pod updates may not '
                              f"change {name}")
    if kind.kind == "Job" and new.get("spec", {}).get("template") != old.get("spec", {}).get("template"):
        raise Problem(422, "Invalid", f'Job.batch "{old["metadata"]["name"]}" is invalid: spec.template: field is immutable')


def _covers(budget: Obj, pod: Obj) -> bool:
    if budget["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    wanted = budget["spec"].get("selector", {}).get("matchLabels", {})
    labels = pod["metadata"].get("labels") or {}
    return bool(wanted) and all(labels.get(k) == v for k, v in wanted.items())


def _count(value: Any, of: int) -> int:
    return -(-int(value[:-1]) * of // 100) if isinstance(value, str) and value.endswith("%") else int(value)
