"""OTLP names and attributes as Prometheus series have them (OpenTelemetry's Prometheus compatibility rules).

Dots and other foreign characters become underscores, the unit and `_total` or `_ratio` are added, service.name (with its
namespace) is the job and service.instance.id the instance. One rule is our own: a name that a source knows as it stands
is kept as it stands. dcgm-exporter's fields come through an OpenTelemetry collector as counters without `_total` and
with units of their own; a suffix added there would hide them from everybody who knows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collectors.meaning import host_of
from collectors.recording.series import exporter_of

# UCUM → the words that Prometheus uses.
UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes", "TiBy": "tibibytes",
    "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes", "m": "meters", "V": "volts",
    "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius", "Hz": "hertz", "1": "", "%": "percent",
}
PER = {"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}
_FOREIGN = re.compile(r"[^a-zA-Z0-9:]+")
_FOREIGN_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_ANNOTATION = re.compile(r"\{[^}]*\}")
_HOST_AND_PORT = re.compile(r".+:\d{1,5}")
NODE_ATTRIBUTES = ("k8s.node.name", "host.name")  # resource attributes that name a machine, the surer one first


def plain_name(name: str) -> str:
    """The name with underscores for what Prometheus does not allow, and nothing added."""
    out = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
    return f"_{out}" if out[:1].isdigit() else out


def translated_name(name: str, unit: str, kind: str) -> str:
    """The name as Prometheus' OTLP receiver makes it. kind: counter, gauge, histogram, summary."""
    words = [word for word in _FOREIGN.split(name) if word]
    main, per = _unit_words(unit)
    if main and main not in words:
        words.append(main)
    if per and f"per_{per}" not in "_".join(words):
        words += ["per", per]
    if kind == "counter":
        words = [word for word in words if word != "total"] + ["total"]
    elif kind == "gauge" and unit == "1":
        words = [word for word in words if word != "ratio"] + ["ratio"]
    out = "_".join(words)
    return f"_{out}" if out[:1].isdigit() else out


def _unit_words(unit: str) -> tuple[str, str]:
    """(main, per) words of a unit: `By/s` → (bytes, second), `{request}/s` → ("", second)."""
    main, _, per = unit.partition("/")
    words = []
    for text, table in ((main.strip(), UNITS), (per.strip(), PER)):
        bare = _ANNOTATION.sub("", text).strip()
        words.append(_FOREIGN.sub("_", table.get(bare, bare)).strip("_"))
    return words[0], words[1]


def choose_name(name: str, unit: str, kind: str, known: Callable[[str], bool]) -> str:
    """The series name of a metric. known: whether a source knows a series of this name (with the point's labels)."""
    if name.startswith("dcgm_fi_"):
        name = name.upper()  # OpenTelemetry SDKs make the names of instruments lower-case; no DCGM field is
    plain, full = plain_name(name), translated_name(name, unit, kind)
    if plain == full or known(plain):
        return plain
    if known(full):
        return full
    return plain if plain == name and exporter_of(plain) else full


def label_name(attribute: str) -> str:
    """An attribute's key as a label name: `k8s.node.name` → `k8s_node_name`, `9lives` → `key_9lives`."""
    out = _FOREIGN_LABEL.sub("_", attribute)
    if out[:1].isdigit():
        return f"key_{out}"
    return f"key{out}" if out.startswith("_") and not out.startswith("__") else out


def text_of(value: Any) -> str:
    """An AnyValue as text: numbers and booleans as JSON has them, lists and maps as JSON."""
    which = value.WhichOneof("value")
    if which == "string_value":
        return str(value.string_value)
    return "" if which is None else json.dumps(plain_value(value), ensure_ascii=False, separators=(",", ":"))


def plain_value(value: Any) -> Any:
    """An AnyValue as JSON types."""
    which = value.WhichOneof("value")
    if which == "array_value":
        return [plain_value(one) for one in value.array_value.values]
    if which == "kvlist_value":
        return {one.key: plain_value(one.value) for one in value.kvlist_value.values}
    if which == "bytes_value":
        return value.bytes_value.hex()
    return None if which is None else getattr(value, which)


def attributes(pairs: Iterable[Any]) -> dict[str, str]:
    """KeyValues by their own keys."""
    return {pair.key: text_of(pair.value) for pair in pairs}


def labels_from(found: Mapping[str, str]) -> dict[str, str]:
    """Attributes as labels; keys that become the same label are joined by `;` in the order of the keys."""
    out: dict[str, str] = {}
    for key in sorted(found):
        name = label_name(key)
        out[name] = f"{out[name]};{found[key]}" if name in out else found[key]
    return out


def identity(resource: Mapping[str, str]) -> dict[str, str]:
    """job and instance of a resource, as far as it names them."""
    service, namespace = resource.get("service.name", ""), resource.get("service.namespace", "")
    job = f"{namespace}/{service}" if namespace and service else service
    pairs = (("job", job), ("instance", resource.get("service.instance.id", "")))
    return {name: value for name, value in pairs if value}


def with_identity(labels: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """A point's labels with the resource's job and instance. What the point itself says under these names is kept as
    `exported_job` and `exported_instance`, as Prometheus does when it scrapes: for a trainer that is its job."""
    out = dict(labels)
    for name, value in base.items():
        own = out.get(name)
        if own is not None and own != value:
            out.setdefault(f"exported_{name}", own)
        out[name] = value
    return out


def node_of_resource(resource: Mapping[str, str]) -> str | None:
    """The machine of a resource: the host of an instance `host:port` (a scraped target), else its node or host name."""
    instance = resource.get("service.instance.id", "")
    if _HOST_AND_PORT.fullmatch(instance):
        return host_of(instance)
    return next((resource[name] for name in NODE_ATTRIBUTES if resource.get(name)), None)
