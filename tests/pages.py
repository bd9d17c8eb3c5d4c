"""A small HTTP server on a free loopback port: a test says what it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Pages:
    """Answers each GET with (status, body) of its path, until it is closed; closing it twice does nothing."""

    def __init__(self, answer: Callable[[str], tuple[int, bytes]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self.path)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread: threading.Thread | None = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Ends it; its port refuses from now on."""
        if self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread = None
