"""Servers with TLS and passwords, and a certificate authority of their own."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests import needs

SERVER_NAME = "exporter.test"


def authority(folder: Path) -> None:
    """ca.pem, other.pem (an authority that signed nothing), server.pem (for SERVER_NAME only) and client.pem, with keys."""
    for name in ("ca", "other"):
        _openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                 "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    (folder / "server.ext").write_text(f"subjectAltName=DNS:{SERVER_NAME}\n")
    (folder / "client.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "client"):
        _openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                 "-days", "30", "-extfile", f"{name}.ext", "-out", f"{name}.pem")


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run([needs.program("openssl"), *words], cwd=folder, check=True, capture_output=True)


@dataclass
class Page:
    """What a path answers. authorization: the header that it wants; location: it redirects there."""

    body: bytes
    content_type: str = "text/plain; version=0.0.4"
    authorization: str = ""
    location: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        page = self.server.pages.get(self.path.split("?")[0])
        status = 404 if page is None else 401 if page.authorization not in ("", self.headers.get("authorization")) else 200
        if page is not None and page.location:
            status = 302
        body = page.body if page is not None and status == 200 else b""
        self.send_response(status)
        if page is not None:
            self.send_header("content-type", page.content_type)
            if page.location:
                self.send_header("location", page.location)
            for name, value in page.headers.items():
                self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


class Site(ThreadingHTTPServer):
    """Pages by path; asked: the paths that came."""

    daemon_threads = True
    pages: dict[str, Page]
    asked: list[str]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        return None


@contextmanager
def site(pages: dict[str, Page], folder: Path | None = None, client: bool = False) -> Iterator[Site]:
    """A server on a free port. folder: speaks TLS with the authority's server.pem; client: and wants a client's certificate."""
    server = Site(("127.0.0.1", 0), _Handler, bind_and_activate=True)
    server.pages, server.asked = pages, []
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        if client:
            context.load_verify_locations(folder / "ca.pem")
            context.verify_mode = ssl.CERT_REQUIRED
        # The handshake is the connection's own thread's business: one client that fails it must not stop the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def basic(user: str, password: str) -> str:
    """The header of basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def groups(*found: Mapping[str, Any]) -> Page:
    """An answer of HTTP service discovery."""
    return Page(json.dumps(found).encode(), "application/json")
