"""The fake API server behind HTTPS, for clients that want a socket: kubectl and the official client among them.

TLS is needed: kubectl sends no token over plain HTTP. The certificate is made by openssl, once in a run of the tests.
"""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests import needs
from tests.kubernetes.fake import Cluster, Request


def certificate(folder: Path) -> Path:
    """A key and a certificate of its own for 127.0.0.1, in one file."""
    file = folder / "server.pem"
    if not file.exists():
        key = folder / "key.pem"
        subprocess.run([needs.program("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", str(key), "-out", str(file), "-days", "2", "-subj", "/CN=127.0.0.1",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        file.write_text(key.read_text() + file.read_text())
    return file


def kubeconfig(url: str, pem: Path, token: str = "admin") -> dict[str, object]:
    """A kubeconfig that trusts the certificate."""
    text = pem.read_text()
    ca = base64.b64encode(text[text.index("-----BEGIN CERTIFICATE"):].encode()).decode()
    return {"apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "clusters": [{"name": "fake", "cluster": {"server": url, "certificate-authority-data": ca}}],
            "users": [{"name": "me", "user": {"token": token}}]}


@contextmanager
def serving(cluster: Cluster, pem: Path) -> Iterator[str]:
    """The server's address; it ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            """One request."""
            split = urlsplit(self.path)
            length = int(self.headers.get("content-length") or 0)
            asked = Request(self.command, split.path, dict(parse_qsl(split.query, keep_blank_values=True)),
                            {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(length))
            told = cluster.handle(asked)
            self.send_response(told.status)
            self.send_header("Content-Type", told.content_type)
            for name, value in told.headers.items():
                self.send_header(name, value)
            if told.stream is None:
                body = told.content
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in told.stream:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")


        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Says nothing."""

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
