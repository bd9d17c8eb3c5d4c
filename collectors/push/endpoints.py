"""The paths of the push port: what each takes, how its bodies become samples and lines, and how it answers.

| path | bodies | taken | senders try again at |
|---|---|---|---|
| `/api/v1/write` | protobuf in snappy (remote write 1.0) | 204 | 503 (Prometheus drops at 429 unless told otherwise) |
| `/v1/metrics`, `/v1/logs` | OTLP protobuf or JSON, plain or gzip | 200 | 429, 503 |
| `/loki/api/v1/push` | JSON, plain or gzip; protobuf in snappy | 204 | 429, 503 |
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from collectors.protowire import field, varint
from collectors.push import loki, otlp_logs, otlp_metrics
from collectors.push.bodies import unpack
from collectors.push.http import Answer
from collectors.push.parts import Parsed, PushRefused
from collectors.push.remote_write import Decoders
from collectors.push.series import SeriesBook
from collectors.push.syslog import parse_message
from core.errors import quote
from core.protocols import SourcePlugin

PROTOBUF, JSON = "application/x-protobuf", "application/json"
LOOPBACK = frozenset({"127.0.0.1", "::1"})
INVALID_ARGUMENT = 3  # google.rpc.Code


@dataclass(frozen=True, slots=True)
class Meta:
    """What a spool record says of its body. encoding: as sent; peer: the sender's address."""

    kind: str
    received_ms: int
    peer: str
    content_type: str = ""
    encoding: str = ""

    def record(self, body: bytes) -> bytes:
        """The payload of a spool record."""
        head = [self.kind, self.received_ms, self.peer, self.content_type, self.encoding]
        return json.dumps(head).encode() + b"\n" + body


def meta_of(payload: bytes) -> tuple[Meta, bytes]:
    """(meta, body) of a spool record."""
    head, _, body = payload.partition(b"\n")
    return Meta(*json.loads(head)), body


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path. full_status: the answer to a sender that is to come again; types: content types that it takes."""

    kind: str
    full_status: int
    types: tuple[str, ...]
    done_status: int


ENDPOINTS: dict[str, Endpoint] = {
    "/api/v1/write": Endpoint("write", 503, (PROTOBUF,), 204),
    "/v1/metrics": Endpoint("otlp_metrics", 429, (PROTOBUF, JSON), 200),
    "/v1/logs": Endpoint("otlp_logs", 429, (PROTOBUF, JSON), 200),
    "/loki/api/v1/push": Endpoint("loki", 429, (JSON, PROTOBUF), 204),
}


def meta_for(endpoint: Endpoint, headers: Mapping[str, str], peer: str, received_ms: int) -> Meta:
    """Checks the headers. Raises PushRefused(415)."""
    whole = headers.get("content-type", "").lower()
    kind, _, params = (part.strip() for part in whole.partition(";"))
    kind = kind or endpoint.types[0]
    encoding = headers.get("content-encoding", "").strip().lower()
    if kind not in endpoint.types:
        allowed = " or ".join(endpoint.types)
        raise PushRefused(415, "bad_content_type", f"the content type {quote(kind)} is not taken here, {allowed} is needed.")
    if endpoint.kind == "write":
        version = headers.get("x-prometheus-remote-write-version", "0.1.0")
        if "io.prometheus.write.v2" in params or version.startswith("2"):
            raise PushRefused(415, "bad_content_type", "remote write 2.0 is not taken, version 1.0 (prometheus.WriteRequest) is.")
        if encoding not in ("snappy", ""):
            raise PushRefused(415, "bad_encoding", f"the content encoding {quote(encoding)} is not taken here, snappy is needed.")
        encoding = "snappy"
    elif endpoint.kind == "loki" and kind == PROTOBUF:
        encoding = encoding or "snappy"
    return Meta(endpoint.kind, received_ms, peer, kind, encoding)


class Reader:
    """Bodies into samples and lines. limit: bytes of an unpacked body."""

    def __init__(self, book: SeriesBook, sources: Mapping[str, SourcePlugin], limit: int) -> None:
        self._limit = limit
        self._decoders = Decoders(book)
        mappers = tuple(one.map_series for _, one in sorted(sources.items()) if one.map_series is not None)
        self._metrics = otlp_metrics.OtlpMetrics(book, mappers)
        self._kinds: dict[str, Callable[[Meta, bytes], Parsed]] = {
            "write": self._write, "otlp_metrics": self._otlp_metrics, "otlp_logs": self._otlp_logs, "loki": self._loki,
            "syslog": self._syslog,
        }

    def read(self, meta: Meta, body: bytes) -> Parsed:
        """What a body holds. Raises PushRefused."""
        return self._kinds[meta.kind](meta, unpack(body, meta.encoding, self._limit))

    def _write(self, meta: Meta, body: bytes) -> Parsed:
        return self._decoders.of(meta.peer).read(body)

    def _otlp_metrics(self, meta: Meta, body: bytes) -> Parsed:
        request = otlp_metrics.request_of(body, meta.content_type == JSON)
        return self._metrics.read(request, meta.peer, meta.received_ms)

    def _otlp_logs(self, meta: Meta, body: bytes) -> Parsed:
        return otlp_logs.read_logs(otlp_logs.request_of(body, meta.content_type == JSON), meta.received_ms)

    def _loki(self, meta: Meta, body: bytes) -> Parsed:
        return loki.read_json(body) if meta.content_type == JSON else loki.read_protobuf(body)

    def _syslog(self, meta: Meta, body: bytes) -> Parsed:
        out = Parsed()
        host = socket.gethostname() if meta.peer in LOOPBACK else meta.peer
        out.lines = [parse_message(raw, host, meta.received_ms) for raw in json.loads(body)]
        return out


# --- answers ----------------------------------------------------------------------------------------------------------
def done(endpoint: Endpoint, content_type: str, refused: int, sentence: str) -> Answer:
    """All of a request, or of an OTLP request the part that could be taken, is on disk."""
    if not endpoint.kind.startswith("otlp"):
        return Answer(endpoint.done_status)
    if content_type == JSON:
        name = "rejectedDataPoints" if endpoint.kind == "otlp_metrics" else "rejectedLogRecords"
        said: dict[str, Any] = {"partialSuccess": {name: str(refused), "errorMessage": sentence}} if refused else {}
        return Answer(200, json.dumps(said).encode(), JSON)
    return Answer(200, _partial(refused, sentence) if refused else b"", PROTOBUF)


def refusal(endpoint: Endpoint | None, content_type: str, error: PushRefused) -> Answer:
    """An error as the protocol of the path has it: one sentence."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if endpoint is None or not endpoint.kind.startswith("otlp"):
        return Answer(error.status, f"{error.sentence}\n".encode(), headers=headers)
    code = INVALID_ARGUMENT if error.status == 400 else 14  # UNAVAILABLE
    if content_type == JSON:
        return Answer(error.status, json.dumps({"code": code, "message": error.sentence}).encode(), JSON, headers)
    return Answer(error.status, bytes((0x08, code)) + field(2, error.sentence.encode()), PROTOBUF, headers)


def _partial(refused: int, sentence: str) -> bytes:
    """An Export…ServiceResponse whose partial_success has the number refused and the sentence."""
    return field(1, b"\x08" + varint(refused) + field(2, sentence.encode()))
