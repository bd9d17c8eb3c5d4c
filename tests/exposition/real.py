"""One real Prometheus that scrapes many pages at once, and says of each whether it could be scraped."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Page = tuple[str, bytes]  # content type, body


class Pages:
    """An HTTP server on loopback that gives page N under `/N`."""

    def __init__(self, pages: Sequence[Page]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet

            def do_GET(self) -> None:
                content_type, body = pages[int(self.path.strip("/"))]
                self.send_response(200)
                if content_type:
                    self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: object) -> None:
                pass  # the real Prometheus resets its connections when it ends

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def configuration(address: str, count: int, interval: str) -> str:
    """A Prometheus configuration (JSON is YAML) with one target for each page."""
    targets = [
        {"targets": [address], "labels": {"__metrics_path__": f"/{n}", "page": str(n)}} for n in range(count)
    ]
    job = {"job_name": "pages", "static_configs": targets}
    return json.dumps(
        {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": [job]}
    )


@dataclass(frozen=True)
class Scraped:
    """errors: for each page the scrape's last error, empty where it was up. series: what an instant query answers."""

    errors: list[str]
    series: list[dict[str, Any]]


def scrape(
    program: str,
    pages: Sequence[Page],
    folder: Path,
    port: int,
    spawn: Callable[..., Any],
    interval: str = "1s",
    patience: float = 60.0,
) -> Scraped:
    """Lets one real Prometheus scrape all pages, waits until each was scraped, and ends it."""
    server = Pages(pages)
    try:
        config = folder / "prometheus.yml"
        config.write_text(configuration(server.address, len(pages), interval))
        url = f"127.0.0.1:{port}"
        process = spawn(
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={url}",
            "--log.level=error",
        )
        try:
            return Scraped(_wait(f"http://{url}", len(pages), patience), _series(f"http://{url}"))
        finally:
            process.kill()  # its data is of no use any more
            process.wait(10)
    finally:
        server.close()


def _wait(url: str, count: int, patience: float) -> list[str]:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = _targets(url)
        if len(found) == count and all(target["health"] in ("up", "down") for target in found.values()):
            return [found[n]["lastError"] for n in range(count)]
        time.sleep(0.2)
    raise AssertionError("the real Prometheus did not scrape all pages in time")


def _targets(url: str) -> dict[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/targets?state=active", timeout=5) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
    except OSError:
        return {}
    return {int(target["labels"]["page"]): target for target in targets}


def _series(url: str) -> list[dict[str, Any]]:
    time.sleep(0.3)  # a scrape's samples are committed just after its health is known
    with urllib.request.urlopen(f"{url}/api/v1/query?query=%7Bpage%3D~%22.%2B%22%7D", timeout=20) as answer:
        return list(json.load(answer)["data"]["result"])
