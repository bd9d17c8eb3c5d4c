"""A Loki of our own for tests: streams in memory, asked by the rules of Loki's HTTP API, with its limits and its words for them."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

Row = tuple[int, str, dict[str, str]]  # ns, line, structured metadata
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class FakeLoki:
    """most: max_entries_limit_per_query. only: the direction of every answer, whatever is asked; None = as asked. tenants: their
    names, empty = one for all. widest_ms: of a query's time. cuts: answers that break off, from the first on."""

    most: int = 5000
    only: str | None = None
    tenants: tuple[str, ...] = ()
    widest_ms: int = 31 * 86_400_000
    cuts: int = 0
    asked: list[dict[str, str]] = field(default_factory=list)
    streams: list[tuple[str, dict[str, str], list[Row]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                params = {name: values[0] for name, values in parse_qs(parts.query).items()}
                status, body = outer.answer(parts.path, params, {k.lower(): v for k, v in self.headers.items()})
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if outer.cuts and parts.path.endswith("query_range"):
                    outer.cuts -= 1
                    body = body[: len(body) // 2]
                    self.close_connection = True
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, labels: dict[str, str], rows: list[tuple], tenant: str = "fake") -> None:
        """rows: (ms, line) or (ms, line, metadata)."""
        self.streams.append((tenant, labels, [(round(row[0] * 1_000_000), row[1], row[2] if len(row) > 2 else {}) for row in rows]))

    def answer(self, path: str, params: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        tenant = headers.get("x-scope-orgid", "")
        if not path.startswith("/loki/"):
            return 404, b"404 page not found"
        if self.tenants and not tenant:
            return 401, b"no org id\n"
        streams = [s for s in self.streams if not self.tenants or s[0] in tenant.split("|")]
        if path == "/loki/api/v1/labels":
            return 200, json.dumps({"status": "success", "data": sorted({n for _, labels, _ in streams for n in labels})}).encode()
        if path != "/loki/api/v1/query_range":
            return 404, b"404 page not found"
        self.asked.append(params)
        return self._query(params, streams, "categorize-labels" in headers.get("x-loki-response-encoding-flags", ""))

    def _query(self, params: dict[str, str], streams: list, apart: bool) -> tuple[int, bytes]:
        limit, low, high = int(params.get("limit", "100")), int(params["start"]), int(params["end"])
        if limit > self.most:
            return 400, f"max entries limit per query exceeded, limit > max_entries_limit_per_query ({limit} > {self.most})\n".encode()
        if high - low > self.widest_ms * 1_000_000:
            return 400, b"the query time range exceeds the limit (query length: 6h0m0s, limit: 1h0m0s)\n"
        found = re.fullmatch(r"\s*\{(.*)\}\s*", params["query"])
        matchers = _MATCHER.findall(found[1]) if found else []
        if not matchers:
            return 400, b"parse error at line 1, col 1: syntax error: unexpected IDENTIFIER\n"
        rows = [(ns, i, n, line, labels, meta) for i, (_, labels, held) in enumerate(streams) if _matches(labels, matchers)
                for n, (ns, line, meta) in enumerate(held) if low <= ns < high]
        backward = (self.only or params.get("direction", "backward")) == "backward"
        rows.sort(key=lambda row: row[:3], reverse=backward)
        out: dict[str, dict] = {}
        for ns, _, _, line, labels, meta in rows[:limit]:
            shown = labels if apart else {**labels, **meta}
            one = out.setdefault(json.dumps(shown, sort_keys=True), {"stream": shown, "values": []})
            one["values"].append([str(ns), line, {"structuredMetadata": meta} if meta else {}] if apart else [str(ns), line])
        data = {"resultType": "streams", "result": list(out.values()), "stats": {"summary": {"totalLinesProcessed": len(rows)}}}
        return 200, json.dumps({"status": "success", "data": {**data, **({"encodingFlags": ["categorize-labels"]} if apart else {})}}).encode()


def _matches(labels: dict[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    for name, op, value in matchers:
        hit = labels.get(name, "") == value if "~" not in op else re.fullmatch(value, labels.get(name, "")) is not None
        if hit != (not op.startswith("!")):
            return False
    return True
