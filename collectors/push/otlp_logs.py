"""OTLP logs into log lines. A line's labels are its resource's and its own attributes; a map as body (journald, syslog) is
read for its message, its other fields are labels."""

from __future__ import annotations

from typing import Any

from collectors.push.otlp_metrics import parse_message
from collectors.push.otlp_names import attributes, label_name, plain_value, text_of
from collectors.push.parts import LogLine, Parsed, PushRefused

MOST_LINES = 200_000
MESSAGE_KEYS = ("MESSAGE", "message", "msg", "body", "log")


def request_of(body: bytes, is_json: bool) -> Any:
    """An ExportLogsServiceRequest. Raises PushRefused(400)."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    return parse_message(ExportLogsServiceRequest(), body, is_json)


def read_logs(request: Any, received_ms: int) -> Parsed:
    """All lines of an ExportLogsServiceRequest."""
    out = Parsed()
    for resource_logs in request.resource_logs:
        base = {label_name(k): v for k, v in attributes(resource_logs.resource.attributes).items()}
        for scope in resource_logs.scope_logs:
            for record in scope.log_records:
                labels = {**base, **{label_name(k): v for k, v in attributes(record.attributes).items()}}
                text, more = _body(record.body)
                nanos = record.time_unix_nano or record.observed_time_unix_nano
                out.lines.append(LogLine(text or labels.get("message", ""), nanos // 1_000_000 or received_ms, {**labels, **more}))
                if len(out.lines) > MOST_LINES:
                    raise PushRefused(413, "body_too_large", f"the request has more than {MOST_LINES} lines: send smaller ones.")
    return out


def _body(body: Any) -> tuple[str, dict[str, str]]:
    """(message, labels) of a record's body."""
    if body.WhichOneof("value") != "kvlist_value":
        return text_of(body), {}
    found = plain_value(body)
    labels = {label_name(k): v if isinstance(v, str) else str(v) for k, v in found.items() if v is not None}
    for key in MESSAGE_KEYS:
        if isinstance(found.get(key), str):
            labels.pop(label_name(key), None)
            return found[key], labels
    return text_of(body), {}
