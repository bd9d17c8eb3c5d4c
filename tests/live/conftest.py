"""One Greylag beside a real node_exporter, shared by the tests that only look at it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.processes import free_port
from tests import needs
from tests.live.site import Greylag, wait_for


class Discovery(ThreadingHTTPServer):
    """An HTTP service discovery that gives `groups`."""

    daemon_threads = True
    groups: list[dict[str, Any]]

    class Handler(BaseHTTPRequestHandler):
        server: Discovery

        def do_GET(self) -> None:
            body = json.dumps(self.server.groups).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return None


class Watched:
    """The shared site: an exporter at `address`, found three ways; file_sd finds it only once a test writes the file."""

    def __init__(self, greylag: Greylag, address: str, file_sd: Path) -> None:
        self.greylag, self.address, self.file_sd = greylag, address, file_sd


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """`greylag run` on the wall clock, one-second scrapes of Debian's node_exporter. One per file: a file's last test may end it."""
    program = needs.program("node_exporter")
    folder = tmp_path_factory.mktemp("watched")
    port = free_port()
    address = f"127.0.0.1:{port}"
    exporter = subprocess.Popen([program, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sd = Discovery(("127.0.0.1", 0), Discovery.Handler)
    sd.groups = [{"targets": [address], "labels": {"rack": "r7", "__scrape_interval__": "5s"}}]
    threading.Thread(target=sd.serve_forever, daemon=True).start()
    file_sd = folder / "nodes.json"
    file_sd.write_text("[]")
    often: dict[str, Any] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    greylag = Greylag(folder, free_port(), scrape_configs=[
        {"job_name": "node", **often, "static_configs": [{"targets": [address], "labels": {"cluster": "lab"}}]},
        {"job_name": "by-file", **often, "params": {"collect[]": ["meminfo"]},
         "file_sd_configs": [{"files": ["nodes.json"]}]},
        {"job_name": "by-http", **often, "params": {"collect[]": ["loadavg"]},
         "http_sd_configs": [{"url": f"http://127.0.0.1:{sd.server_address[1]}/sd", "refresh_interval": "1s"}]},
    ])
    try:
        greylag.start()
        wait_for(lambda: greylag.query('up{job="node"}'), 30, "the first scrape")
        yield Watched(greylag, address, file_sd)
    finally:
        greylag.close()
        exporter.terminate()
        exporter.wait(5)
        sd.shutdown()
        sd.server_close()


@pytest.fixture
def exporter_address() -> Iterator[str]:
    """A real node_exporter of the test's own, at host:port."""
    program = needs.program("node_exporter")
    address = f"127.0.0.1:{free_port()}"
    exporter = subprocess.Popen([program, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield address
    finally:
        exporter.terminate()
        exporter.wait(5)
