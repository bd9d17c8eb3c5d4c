"""A trained model as a file: JSON that is read as numbers and nothing else, with a hash over its content.

What somebody changed, cut short or made by another program is refused in one sentence; nothing of it is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from core.clock import parse_rfc3339, rfc3339
from core.errors import BadInput
from core.types import Floats
from pipeline.unknown import LEVEL, RESTLESS, SIGNALS, KindModel, Model

FORMAT = "greylag-unknown/1"
LARGEST_BYTES = 64 * 1024 * 1024
MOST_SLOTS = 4096


def document(model: Model) -> dict[str, Any]:
    """The model as JSON types, its hash included."""
    body: dict[str, Any] = {
        "format": FORMAT, "span": {"start": rfc3339(model.start), "end": rfc3339(model.end)}, "windows": model.windows,
        "kinds": [_kind(one) for one in model.kinds]}
    return {**body, "hash": digest(body)}


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 over the content without the hash, keys sorted."""
    text = json.dumps({k: v for k, v in body.items() if k != "hash"}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_model(path: Path, model: Model) -> str:
    """Writes the file whole or not at all; gives the hash. Raises BadInput where it cannot be written."""
    body = document(model)
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(body, file, separators=(",", ":"), allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise BadInput(str(path), "", error.strerror or "an error", "a file that can be written is needed") from None
    return str(body["hash"])


def read_model(path: Path) -> Model:
    """The model of a file. Raises BadInput: no such file, another format, content that its hash does not fit."""
    where = str(path)
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise BadInput(where, "", f"{path.stat().st_size} bytes", f"at most {LARGEST_BYTES} are allowed")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(where, "", error.strerror or "an error", "a file that `greylag train` wrote is needed") from None
    except (ValueError, RecursionError):
        raise BadInput(where, "", "text that is no JSON", "a file that `greylag train` wrote is needed") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise BadInput(where, "format", found, f"{FORMAT} is needed: train again")
    try:
        right = digest(data) == data.get("hash")
    except ValueError:
        right = False
    if not right:
        raise BadInput(where, "hash", data.get("hash"), "its content is not what was written: train again")
    try:
        return Model(tuple(_read_kind(one) for one in data["kinds"]), parse_rfc3339(data["span"]["start"]),
                     parse_rfc3339(data["span"]["end"]), int(data["windows"]), str(data["hash"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput(where, "kinds", str(error), "a file that `greylag train` wrote is needed") from None


def _kind(one: KindModel) -> dict[str, Any]:
    return {"kind": one.kind, "names": [list(name) for name in one.names], "slots": list(one.slots), "centre": one.centre.tolist(),
            "scale": one.scale.tolist(), "precision": one.precision.tolist(), "limit": one.limit, "low": one.low.tolist(),
            "high": one.high.tolist(), "level_names": list(one.level_names), "level_low": one.level_low.tolist(),
            "level_high": one.level_high.tolist(), "rows": one.rows}


def _read_kind(data: Mapping[str, Any]) -> KindModel:
    kind = str(data["kind"])
    names = tuple((str(a), str(b)) for a, b in data["names"])
    slots, levels = tuple(str(s) for s in data["slots"]), tuple(str(s) for s in data["level_names"])
    known = SIGNALS[kind]
    if not names or any(s not in known or what not in (LEVEL, RESTLESS) for s, what in names) or any(s not in known for s in levels):
        raise ValueError("signals that are not known")
    if len(slots) > MOST_SLOTS:
        raise ValueError("too many slots")
    n = len(names)
    limit = float(data["limit"])
    scale = _array(data["scale"], (n,))
    precision = _array(data["precision"], (n, n))
    if not (math.isfinite(limit) and limit > 0 and (scale > 0).all() and (np.diag(precision) > 0).all()):
        raise ValueError("a limit or a scale that is not positive")
    return KindModel(kind, names, slots, _array(data["centre"], (len(slots) + 1, n)), scale, precision, limit,
                     _array(data["low"], (n,)), _array(data["high"], (n,)), levels, _array(data["level_low"], (len(levels),)),
                     _array(data["level_high"], (len(levels),)), int(data["rows"]))


def _array(values: Sequence[Any], shape: tuple[int, ...]) -> Floats:
    out = np.array(values, np.float64).reshape(shape) if len(values) or 0 in shape else np.zeros(shape)
    if not np.isfinite(out).all():
        raise ValueError("a number that is not finite")
    return out
