"""Bad input and bad servers: one clear sentence each, and nothing is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cramjam
import numpy as np
import pytest

import app.import_command as command
from app.import_command import ImportOptions, import_history
from collectors.history.pieces import Piece
from collectors.history.protobuf import write_response
from core.errors import BadInput, GreylagError, Unavailable
from tests.history.servers import stored_past

Answer = tuple[int, bytes]
NOW = 1_780_000_000_000


class FakeServer:
    """Answers each path by a function of (body, headers); counts what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[bytes, dict[str, str]], Answer]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                outer.asked.append(path)
                made = outer.answers.get(path, lambda body, headers: (404, b"404 page not found"))
                status, answer = made(body, dict(self.headers))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                if status == 302:
                    self.send_header("Location", "http://elsewhere/")
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = _serve  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server that has nothing yet; between tries nobody waits."""
    monkeypatch.setattr(command.time, "sleep", lambda seconds: None)
    made = FakeServer()
    yield made
    made.close()


BAD_OPTIONS = [
    ({}, "neither --from nor files"),
    ({"url": "prometheus:9090"}, "an address is needed, such as http://prometheus:9090"),
    ({"url": "ftp://x"}, "an address is needed"),
    ({"url": "http://me:secret@x"}, "--password-file"),
    ({"url": "http://x", "start": "yesterday"}, "--start: got 'yesterday', a time is needed"),
    ({"url": "http://x", "format": "csv"}, "allowed are: auto, export, remote_read, query_range, loki, tsdb-dump, logs, sacct"),
    ({"url": "http://x", "format": "tsdb-dump"}, "a file, or - for standard input, is needed"),
    ({"url": "http://x", "match": ("sum(up)",)}, "--match: got 'sum(up)', a series selector is needed"),
    ({"url": "http://x", "step": "fast", "format": "query_range"}, "--step: got 'fast', a duration is needed"),
    ({"url": "http://x", "token_file": "/nonexistent"}, "--token-file: got '/nonexistent', a readable file is needed"),
    ({"url": "http://x", "password_file": "/nonexistent"}, "no --user"),
    ({"url": "http://x", "ca_file": "/nonexistent"}, "--ca-file: got '/nonexistent', a readable PEM file"),
    ({"url": "http://x", "headers": ("X-Scope-OrgID",)}, "`Name: value` is needed"),
    ({"url": "http://x", "inventory": "/nonexistent.yaml"}, "an existing file is needed"),
    ({"files": ("/nonexistent.dump",)}, "no file"),
    ({"files": ("/nonexistent.prom",)}, "no file or directory"),
    ({"files": ("x.prom",), "match": ("up",)}, "selectors are for servers"),
    ({"files": ("x.dump",), "user": "me"}, "credentials are for servers"),
    ({"files": ("x.dump",), "format": "export"}, "--from URL is needed with it"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS, ids=[sentence[:40] for _, sentence in BAD_OPTIONS])
def test_bad_options_get_one_sentence(tmp_path: Path, options: dict[str, object], sentence: str) -> None:
    """Which option, what was given, what is allowed; no store is made."""
    with pytest.raises(BadInput) as raised:
        import_history(ImportOptions(str(tmp_path / "out"), now_ms=NOW, **options))  # type: ignore[arg-type]
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "greylag.duckdb").exists()


def always(status: int, body: bytes) -> Callable[[bytes, dict[str, str]], Answer]:
    return lambda given, headers: (status, body)


RANGE = "/api/v1/query_range"
BAD_SERVERS = [
    (always(401, b"who are you"), BadInput, "credentials are needed: --token-file, or --user and --password-file (the server says: who are you)"),
    (always(400, b'{"status":"error","error":"invalid parameter \\"query\\": parse error"}'), BadInput, "the server says: invalid parameter"),
    (always(302, b""), BadInput, "a redirect to http://elsewhere/"),
    (always(404, b"no such page"), BadInput, "got no query_range"),
    (always(200, b"<html>hello"), BadInput, "an answer that is no JSON"),
    (always(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}'), BadInput, "a matrix was expected"),
    (always(200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}'), BadInput, "nothing from 2026-"),
    (always(503, b"warming up"), Unavailable, "answered 503: warming up; the same command goes on where this one ended"),
    (always(422, b'{"error":"query processing would load too many samples into memory"}'), BadInput, "narrower selectors are needed"),
]


@pytest.mark.parametrize(("answer", "error", "sentence"), BAD_SERVERS, ids=[sentence[:40] for *_, sentence in BAD_SERVERS])
def test_bad_answers_get_one_sentence(
    server: FakeServer, tmp_path: Path, answer: Callable[[bytes, dict[str, str]], Answer], error: type[GreylagError], sentence: str,
) -> None:
    """What the server said, and what helps; an import that brought nothing leaves nothing."""
    first = answer(b"", {})[0] in (422,) or b"vector" in answer(b"", {})[1]
    calls: list[int] = []

    def serve(body: bytes, headers: dict[str, str]) -> Answer:
        calls.append(1)
        if first and len(calls) == 1:  # the question whether it can
            return 200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
        return answer(body, headers)

    server.answers[RANGE] = serve
    with pytest.raises(error) as raised:
        import_history(ImportOptions(str(tmp_path / "out"), server.url, start="1h", format="query_range", now_ms=NOW))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "greylag.duckdb").exists()


def test_a_server_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried three times, then one sentence."""
    waited: list[float] = []
    monkeypatch.setattr(command.time, "sleep", waited.append)
    with pytest.raises(Unavailable, match=r"could not be asked .*refused"):
        import_history(ImportOptions(str(tmp_path / "out"), "http://127.0.0.1:1", now_ms=NOW))
    assert waited == [1.0, 2.0]


def test_https_where_there_is_none(server: FakeServer, tmp_path: Path) -> None:
    """The sentence says which address to give."""
    with pytest.raises(BadInput, match="a server that speaks no TLS"):
        import_history(ImportOptions(str(tmp_path / "out"), server.url.replace("http", "https"), now_ms=NOW))


def matrix(at: int, value: str) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
        {"metric": {"__name__": "up", "job": "j", "instance": "i:1"}, "values": [[at / 1000, value]]}]}}).encode()


def test_a_hiccup_is_tried_again(server: FakeServer, tmp_path: Path) -> None:
    """A 503 in the middle costs nothing but a wait."""
    calls: list[int] = []

    def serve(body: bytes, headers: dict[str, str]) -> Answer:
        calls.append(1)
        return (503, b"later") if len(calls) in (2, 4) else (200, matrix(NOW - 60_000, "1"))

    server.answers[RANGE] = serve
    import_history(ImportOptions(str(tmp_path / "out"), server.url, start="1h", format="query_range", now_ms=NOW))
    assert len(stored_past(tmp_path / "out")) == 1


def test_credentials_and_headers_are_sent(server: FakeServer, tmp_path: Path) -> None:
    """A token from its file, and a tenant."""
    seen: list[dict[str, str]] = []

    def serve(body: bytes, headers: dict[str, str]) -> Answer:
        seen.append(headers)
        return 200, matrix(NOW - 60_000, "1")

    server.answers[RANGE] = serve
    (tmp_path / "token").write_text("s3cret\n")
    import_history(ImportOptions(str(tmp_path / "out"), server.url, start="1h", format="query_range", now_ms=NOW,
                                 token_file=str(tmp_path / "token"), headers=("X-Scope-OrgID: team-a",)))
    assert {(h["Authorization"], h["X-Scope-OrgID"]) for h in seen} == {("Bearer s3cret", "team-a")}


def test_an_answer_that_is_too_large_is_asked_in_smaller_slices(server: FakeServer, tmp_path: Path) -> None:
    """A server that gives at most two minutes at once is read in slices of that size, and nothing is missing."""
    from collectors.history.protobuf import _fields, _read_varint

    def serve(body: bytes, headers: dict[str, str]) -> Answer:
        request = memoryview(bytes(cramjam.snappy.decompress_raw(body)))
        _, _, begin, stop = next(_fields(request, 0, len(request)))
        numbers = {n: _read_varint(request, a, b)[0] for n, kind, a, b in _fields(request, begin, stop) if kind == 0}
        start, end = numbers.get(1, 0), numbers.get(2, 0)
        if end - start > 120_000:
            return 400, b"exceeded sample limit (5000000)"
        times = np.arange(-(-start // 15_000) * 15_000, end + 1, 15_000, dtype=np.int64)
        piece = Piece("up", (("instance", "i:1"), ("job", "j")), times, np.ones(len(times)))
        return 200, bytes(cramjam.snappy.compress_raw(write_response([piece] if start else [])))

    server.answers["/api/v1/read"] = serve
    import_history(ImportOptions(str(tmp_path / "out"), server.url, start="20m", now_ms=NOW))
    assert [len(points) for points in stored_past(tmp_path / "out").values()] == [80 + (NOW % 15_000 == 0)]


@pytest.mark.parametrize("body", [b"no snappy", bytes(cramjam.snappy.compress_raw(b"\x0a\xff\x01")), bytes(cramjam.snappy.compress_raw(b"\x0f"))])
def test_a_broken_remote_read_answer(server: FakeServer, tmp_path: Path, body: bytes) -> None:
    """One sentence whatever the bytes."""
    server.answers["/api/v1/read"] = always(200, body)
    with pytest.raises(BadInput, match="/api/v1/read: got an answer that"):
        import_history(ImportOptions(str(tmp_path / "out"), server.url, start="1h", format="remote_read", now_ms=NOW))


def test_a_folder_of_another_store_is_left_alone(tmp_path: Path) -> None:
    """A live store, or one that a replay kept, is not mixed with history."""
    (tmp_path / "greylag.duckdb").write_bytes(b"somebody's")
    with pytest.raises(BadInput, match=r"a folder without another's greylag\.duckdb"):
        import_history(ImportOptions(str(tmp_path), "http://127.0.0.1:1", now_ms=NOW))
    assert (tmp_path / "greylag.duckdb").read_bytes() == b"somebody's"
