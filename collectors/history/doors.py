"""Finds out how a server's past can be read, and what types its metrics have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.history.pieces import HistoryReader, TooMuch
from collectors.history.query_range import QueryRange
from collectors.history.remote_read import RemoteRead
from collectors.history.vm_export import VmExport
from collectors.history.web import NotThere, Server
from core.errors import BadInput, Unavailable

# In order of preference: what is exact comes first.
WAYS = ("export", "remote_read", "query_range")
METADATA, BUILD = "/api/v1/metadata", "/api/v1/status/buildinfo"
TYPES = frozenset({"counter", "gauge", "histogram", "summary"})
PARTS = {"_bucket": ("histogram",), "_sum": ("histogram", "summary"), "_count": ("histogram", "summary"), "_total": ("counter",)}


def reader_of(server: Server, way: str, step_ms: int) -> HistoryReader:
    """The reader for `way` (of WAYS, or `auto`: the first that the server has).

    Raises BadInput where the server does not have it, or does not look like one at all; Unavailable.
    """
    readers: dict[str, VmExport | RemoteRead | QueryRange] = {
        "export": VmExport(server), "remote_read": RemoteRead(server), "query_range": QueryRange(server, step_ms)}
    said: list[str] = []
    for name in WAYS if way == "auto" else (way,):
        try:
            server.patiently(readers[name].there)
        except NotThere as error:
            said.append(str(error))
        except BadInput as error:
            # A proxy may refuse a path that it does not know in any way; what needs credentials needs them everywhere.
            if way != "auto" or "credentials" in str(error) or name == WAYS[-1] or "--" in error.allowed:
                raise
            said.append(str(error))
        else:
            return readers[name]
    raise BadInput(server.url, "", "no API to read history from" if way == "auto" else f"no {way}",
                   f"a Prometheus, VictoriaMetrics, Thanos or Mimir is needed ({said[-1]})")


def build_of(server: Server) -> str:
    """`Prometheus 2.42.0`, as far as the server tells; an empty string where it does not."""
    try:
        found = server.data(BUILD)
    except (NotThere, TooMuch, BadInput, Unavailable):
        return ""
    if not isinstance(found, dict) or not found.get("version"):
        return ""
    return f"{found.get('application') or 'Prometheus'} {found['version']}"


@dataclass(frozen=True, slots=True)
class Types:
    """Types of metrics as the server knows them now; history itself keeps none."""

    known: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """counter, gauge, histogram, summary or untyped."""
        if name in self.known:
            return self.known[name]
        for ending, kinds in PARTS.items():
            if name.endswith(ending):
                family = self.known.get(name.removesuffix(ending))
                if family in kinds:
                    return family
        return "untyped"


def types_of(server: Server) -> Types:
    """The server's metadata; nothing where it has none. A name that is told several types is untyped."""
    try:
        found = server.data(METADATA)
    except (NotThere, TooMuch, BadInput, Unavailable):
        return Types()
    known: dict[str, str] = {}
    for name, rows in (found.items() if isinstance(found, dict) else ()):
        kinds = {str(row.get("type")) for row in rows if isinstance(row, dict)} if isinstance(rows, list) else set()
        if len(kinds) == 1 and (kind := kinds.pop()) in TYPES:
            known[str(name)] = kind
    return Types(known)
