"""Merge, strategic-merge and JSON patches, and who owns which field afterwards."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

# Lists of built-in types that merge by a key; all others are replaced (taints and tolerations among them).
MERGE_KEYS = {"conditions": "type", "containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
              "ownerReferences": "uid", "addresses": "type", "ports": "containerPort", "volumeMounts": "mountPath",
              "imagePullSecrets": "name"}
MERGED_WORDS = {"finalizers"}


def patched(obj: Any, body: bytes, content_type: str, builtin: bool, problem: Any) -> Any:
    """The object with the patch on it. Raises 415 for a type that is not taken, 400 and 422 for a bad patch."""
    kind = content_type.split(";", maxsplit=1)[0].strip()
    try:
        patch = json.loads(body)
    except ValueError as error:
        raise problem(400, "BadRequest", f"error decoding patch: {error}") from None
    if kind == "application/json-patch+json":
        return json_patch(obj, patch, problem)
    if kind == "application/merge-patch+json":
        return merge(copy.deepcopy(obj), patch)
    if kind == "application/strategic-merge-patch+json" and builtin:
        return strategic(copy.deepcopy(obj), patch)
    raise problem(415, "UnsupportedMediaType", "the body of the request was in an unknown format - accepted media types include: "
                  "application/json-patch+json, application/merge-patch+json")


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge(target.get(key), value)
    return target


def strategic(target: Any, patch: Any) -> Any:
    """Kubernetes' own merge: lists with a merge key are merged by it, `$patch` replaces or deletes."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {k: v for k, v in patch.items() if k != "$patch"}
    target = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            target[name] = [v for v in target.get(name, []) if v not in value]
        elif key.startswith("$"):
            continue  # $setElementOrder and $retainKeys: order and unions that these tests do not have
        elif value is None:
            target.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS:
            target[key] = _merged_list(target.get(key) or [], value, MERGE_KEYS[key])
        elif isinstance(value, list) and key in MERGED_WORDS:
            target[key] = [*target.get(key, []), *(v for v in value if v not in target.get(key, []))]
        else:
            target[key] = strategic(target.get(key), value)
    return target


def _merged_list(have: list[Any], patch: list[Any], by: str) -> list[Any]:
    out = list(have)
    for one in patch:
        at = next((i for i, o in enumerate(out) if o.get(by) == one.get(by)), None)
        if one.get("$patch") == "delete":
            if at is not None:
                out.pop(at)
        elif at is None:
            out.append(one)
        else:
            out[at] = strategic(out[at], one)
    return out


def json_patch(obj: Any, patch: Any, problem: Any) -> Any:
    """RFC 6902, all or nothing."""
    out = copy.deepcopy(obj)
    if not isinstance(patch, list):
        raise problem(400, "BadRequest", "a JSON patch is a list")
    for step in patch:
        try:
            op, path = step["op"], _steps(step["path"])
            if op == "test":
                if _at(out, path) != step["value"]:
                    raise KeyError("test failed")
            elif op in ("add", "replace"):
                if op == "replace":
                    _at(out, path)
                out = _put(out, path, step["value"], insert=op == "add")
            elif op == "remove":
                _remove(out, path)
            elif op in ("move", "copy"):
                source = _steps(step["from"])
                value = copy.deepcopy(_at(out, source))
                if op == "move":
                    _remove(out, source)
                out = _put(out, path, value, insert=True)
            else:
                raise KeyError(op)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise problem(422, "Invalid", f"the server rejected our request due to an error in our request: {error}") from None
    return out


def _steps(path: str) -> list[str]:
    return [p.replace("~1", "/").replace("~0", "~") for p in path.split("/")[1:]]


def _at(obj: Any, path: list[str]) -> Any:
    for step in path:
        obj = obj[int(step)] if isinstance(obj, list) else obj[step]
    return obj


def _put(obj: Any, path: list[str], value: Any, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _at(obj, path[:-1]), path[-1]
    if isinstance(parent, list):
        at = len(parent) if last == "-" else int(last)
        if insert:
            parent.insert(at, value)
        else:
            parent[at] = value
    else:
        parent[last] = value
    return obj


def _remove(obj: Any, path: list[str]) -> None:
    parent, last = _at(obj, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.pop(int(last))
    else:
        del parent[last]


# --- managedFields -----------------------------------------------------------------------------------------------------
IGNORED = {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "name", "namespace"}


def own_fields(old: Any, new: Any, manager: str, api_version: str, at: str) -> None:
    """Writes into `new` who set which field: what changed is the manager's from now on, what is gone is nobody's."""
    changed = {p for p in set(_leaves(old)) | set(_leaves(new)) if _get(old, p) != _get(new, p)}
    if not changed:
        return
    owned = {m["manager"]: set(_read(m["fieldsV1"])) for m in old.get("metadata", {}).get("managedFields", [])}
    there = set(_leaves(new))
    for name in owned:
        owned[name] -= changed
    owned.setdefault(manager, set()).update(changed & there)
    new["metadata"]["managedFields"] = [
        {"manager": name, "operation": "Update", "apiVersion": api_version, "time": at, "fieldsType": "FieldsV1",
         "fieldsV1": _tree(paths & there)} for name, paths in sorted(owned.items()) if paths & there]


def _leaves(obj: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in obj.items():
        if key in IGNORED or (not path and key in ("apiVersion", "kind")):
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key)


def _get(obj: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(obj, dict) or step not in obj:
            return None
        obj = obj[step]
    return obj


def _tree(paths: set[tuple[str, ...]]) -> Any:
    out: dict[str, Any] = {}
    for path in sorted(paths):
        at = out
        for step in path:
            at = at.setdefault("f:" + step, {})
    return out


def _read(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        step = (*path, key.removeprefix("f:"))
        if value:
            yield from _read(value, step)
        else:
            yield step
