"""The Kubernetes API as the backend needs it: plain objects in and out, and errors that say what to do next.

The only file that knows lightkube (extra `[k8s]`); it is imported when a client is asked for, never before. Objects are
dicts as the API sends them. Every write of a node or job carries the resourceVersion that was read, so that a change by
another hand in between is refused by the server (ApiConflict) and never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from core.errors import ConfigError, GreylagError, Refused, Unavailable

Obj = dict[str, Any]
T = TypeVar("T")
MANAGER = "greylag"  # how our writes are named in managedFields
PAGE = 500           # objects a list asks for at once, as kubectl does
LOG_LINES = 20_000

# kind: (group, version, plural, namespaced). JobSet: jobset.sigs.k8s.io; PyTorchJob: the Kubeflow training operator.
RESOURCES: dict[str, tuple[str, str, str, bool]] = {
    "Node": ("", "v1", "nodes", False),
    "Pod": ("", "v1", "pods", True),
    "ConfigMap": ("", "v1", "configmaps", True),
    "Job": ("batch", "v1", "jobs", True),
    "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets", True),
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs", True),
}


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server.

    kubeconfig: a file; None = the pod's own service account, whose files lie in account_dir. context: of the kubeconfig,
    None = its current one. timeout_seconds: wall time that an answer may take.
    """

    kubeconfig: str | None = None
    context: str | None = None
    timeout_seconds: float = 5.0
    account_dir: str = "/var/run/secrets/kubernetes.io/serviceaccount"


class ApiConflict(GreylagError):
    """409: the object changed since it was read, or it exists already. Read it again and decide anew."""


class ApiMissing(GreylagError):
    """404: there is no such object, or no such resource (its CRD is not installed)."""


class ApiBlocked(GreylagError):
    """An eviction that a disruption budget does not allow now."""


class Api:
    """Calls on the API server. Raises Unavailable where it gave no usable answer, Refused `forbidden` on 403, Refused
    `backend_refused` where it found the request itself wrong, and the errors above."""

    def __init__(self, client: Any) -> None:
        from lightkube.core.exceptions import ApiError  # type: ignore[import-not-found,unused-ignore]

        self._client = client
        self._api_error = ApiError
        self._kinds = _resource_classes()

    def get(self, kind: str, name: str, namespace: str | None = None) -> Obj:
        """The object as it is now. Raises ApiMissing."""
        return self._ask(lambda: dict(self._client.get(self._kinds[kind], name, **_in(namespace))))

    def list(self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None,
             fields: Mapping[str, str] | None = None, unended: bool = False) -> list[Obj]:
        """All objects, page by page; namespace None = in all. unended: of pods those that have not succeeded or failed.
        Raises ApiMissing for a resource that is not installed."""
        from lightkube import operators  # type: ignore[import-not-found,unused-ignore]

        wanted: dict[str, Any] = dict(fields or {})
        if unended:  # a cluster keeps many pods of jobs that have ended: the server leaves them out
            wanted["status.phase"] = operators.not_in(["Succeeded", "Failed"])
        where = {"namespace": namespace or "*"} if RESOURCES[kind][3] else {}
        return self._ask(lambda: [{**o, "kind": kind} for o in self._client.list(
            self._kinds[kind], labels=dict(labels or {}) or None, fields=wanted or None, chunk_size=PAGE, **where)])

    def patch(self, obj: Obj, changes: Obj) -> Obj:
        """The object with a merge patch on it, if it is still as it was read. Raises ApiConflict, ApiMissing."""
        from lightkube.types import PatchType  # type: ignore[import-not-found,unused-ignore]

        meta = obj["metadata"]
        body = {**changes, "metadata": {**changes.get("metadata", {}), "resourceVersion": meta["resourceVersion"]}}
        return self._ask(lambda: dict(self._client.patch(
            self._kinds[str(obj["kind"])], meta["name"], body, patch_type=PatchType.MERGE, field_manager=MANAGER,
            **_in(meta.get("namespace")))))

    def create(self, kind: str, namespace: str, body: Obj) -> Obj:
        """A new object. Raises ApiConflict where one of its name exists."""
        made = self._kinds[kind](body)
        return self._ask(lambda: dict(self._client.create(made, namespace=namespace, field_manager=MANAGER)))

    def delete(self, kind: str, namespace: str, name: str, grace_seconds: int | None = None) -> None:
        """Deletes it with what depends on it. grace_seconds: None = the pod's own. What is gone already is no error."""
        from lightkube.types import CascadeType

        try:
            self._ask(lambda: self._client.delete(self._kinds[kind], name, namespace=namespace, grace_period=grace_seconds,
                                                  cascade=CascadeType.BACKGROUND))
        except ApiMissing:
            return

    def evict(self, pod: Obj, grace_seconds: int | None = None) -> None:
        """Asks the API server to evict this very pod (its uid, so that no successor of the same name is hit).

        Raises ApiBlocked where a disruption budget does not allow it now, ApiConflict where another pod has the name.
        """
        from lightkube.models.meta_v1 import (  # type: ignore[import-not-found,unused-ignore]
            DeleteOptions,
            ObjectMeta,
            Preconditions,
        )
        from lightkube.resources.core_v1 import PodEviction  # type: ignore[import-not-found,unused-ignore]

        meta = pod["metadata"]
        options = DeleteOptions(preconditions=Preconditions(uid=meta["uid"]), gracePeriodSeconds=grace_seconds)
        eviction = PodEviction(metadata=ObjectMeta(name=meta["name"], namespace=meta["namespace"]), deleteOptions=options)
        try:
            self._ask(lambda: self._client.create(eviction, meta["name"], namespace=meta["namespace"]), evicting=True)
        except ApiMissing:
            return

    def log(self, namespace: str, pod: str) -> str:
        """The newest lines of a pod's log; empty where it has none."""
        try:
            return self._ask(lambda: "".join(self._client.log(pod, namespace=namespace, tail_lines=LOG_LINES)))
        except (ApiMissing, Refused):
            return ""

    def _ask(self, call: Callable[[], T], evicting: bool = False) -> T:
        import httpx2  # type: ignore[import-not-found,unused-ignore]
        import msgspec  # type: ignore[import-not-found,unused-ignore]
        from lightkube.core.exceptions import ConfigError as KubeConfigError

        try:
            return call()
        except self._api_error as error:
            raise _told(error, evicting) from None
        except httpx2.HTTPStatusError as error:
            code = int(error.response.status_code)
            if code == 404:  # a group that is not installed is answered as plain text
                raise ApiMissing("no such resource") from None
            if code == 403:  # a proxy before the server
                raise Refused("forbidden", "refused without a reason") from None
            raise Unavailable(f"the Kubernetes API answered {code} without a status") from None
        except httpx2.HTTPError as error:
            raise Unavailable(f"the Kubernetes API did not answer ({type(error).__name__})") from None
        except KubeConfigError as error:
            raise Unavailable(f"there is no way to log in to the Kubernetes API: {str(error)[:120]}") from None
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise Unavailable(f"the Kubernetes API's answer could not be read ({type(error).__name__})") from None


def _told(error: Any, evicting: bool) -> GreylagError:
    """What an error status means for us."""
    status = error.status
    code = int(status.code or (error.response.status_code if error.response is not None else 0))
    message = str(status.message or status.reason or "")[:200]
    causes = [str(c.reason) for c in (status.details.causes or ())] if status.details is not None else []
    if code == 404:
        return ApiMissing(message)
    if code == 409:
        return ApiConflict(message)
    if evicting and (code == 500 or (code == 429 and (not causes or "DisruptionBudget" in causes))):
        return ApiBlocked(message)  # 500: more than one budget covers the pod
    if code == 403:
        return Refused("forbidden", message)
    if code in (401, 408, 410, 425, 429) or code >= 500 or code == 0:
        return Unavailable(f"the Kubernetes API answered {code}: {message}")
    return Refused("backend_refused", message)


def _in(namespace: str | None) -> dict[str, str]:
    return {} if namespace is None else {"namespace": namespace}


_CLASSES: dict[str, Any] = {}


def _resource_classes() -> dict[str, Any]:
    """lightkube's classes whose objects are plain dicts: nothing that the server says is lost, whatever its version."""
    if not _CLASSES:
        from lightkube import generic_resource as generic  # type: ignore[import-not-found,unused-ignore]

        for kind, (group, version, plural, namespaced) in RESOURCES.items():
            base = generic.GenericNamespacedResource if namespaced else generic.GenericGlobalResource
            _CLASSES[kind] = type(kind, (base,), {"_api_info": generic.create_api_info(group, version, kind, plural)})
    return _CLASSES


def connect(access: Access, section: str, transport: Any = None) -> Api:
    """A client. section: the part of the configuration that asks for it, for messages. Raises ConfigError.

    transport: another httpx2 transport than the network's.
    """
    try:
        import httpx2
        from lightkube import Client, KubeConfig
        from lightkube.core.exceptions import ConfigError as KubeConfigError
    except ImportError:
        raise ConfigError(section, "", "kubernetes without its client", "install greylag with the extra: "
                          "pip install 'greylag[k8s]'") from None
    if access.timeout_seconds <= 0:
        raise ConfigError(section, "timeout_seconds", access.timeout_seconds, "a number above 0 is needed")
    try:
        if access.kubeconfig is not None:
            one = KubeConfig.from_file(Path(access.kubeconfig).expanduser()).get(access.context)
        else:
            if "KUBERNETES_SERVICE_HOST" not in os.environ:
                raise ConfigError(section, "kubeconfig_file", "nothing", "a kubeconfig file is needed outside of a cluster")
            one = KubeConfig.from_service_account(access.account_dir).get()
    except (KubeConfigError, KeyError, TypeError, ValueError, OSError) as error:
        raise ConfigError(section, "kubeconfig_file", access.kubeconfig or "the service account",
                          f"it cannot be used: {str(error)[:160]}") from None
    if one is None or one.user is None:
        raise ConfigError(section, "context", access.context, "a context with a user is needed")
    timeout = httpx2.Timeout(access.timeout_seconds)
    return Api(Client(one, timeout=timeout, trust_env=False, transport=transport, field_manager=MANAGER))


def each_namespace(namespaces: tuple[str, ...]) -> Iterator[str | None]:
    """The namespaces to ask in; None once where all are meant."""
    yield from namespaces or (None,)
