"""A real Prometheus that scrapes a small target server and writes what it scraped to an address of ours."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Target:
    """Serves a page whose values, and some of whose series, change with each scrape."""

    def __init__(self, series: int, seed: int) -> None:
        self._random, self._series, self._n = random.Random(seed), series, 0
        self._lock = threading.Lock()
        page = self._page

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                body = page()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def _page(self) -> bytes:
        with self._lock:
            self._n += 1
            n = self._n
        lines = ["# TYPE DCGM_FI_DEV_GPU_TEMP gauge"]
        lines += [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{i}",UUID="GPU-{i}",Hostname="n1"}} {self._random.randint(20, 90)}' for i in range(8)]
        lines.append("# TYPE probe_total counter")
        lines += [f'probe_total{{i="{i}"}} {n * (i % 7)}' for i in range(self._series)]
        # Comes and goes: each time it goes Prometheus writes a stale marker.
        if n % 4 < 2:
            lines.append('blinking{a="1"} 0')
        return ("\n".join(lines) + "\nloss NaN\nzero 0\n").encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def configuration(addresses: list[str], url: str, interval: str) -> str:
    """A configuration (JSON is YAML): one job with the targets, their `node` as a label, remote write to `url`."""
    groups = [{"targets": [address], "labels": {"node": f"n{i + 1}"}} for i, address in enumerate(addresses)]
    queue = {"batch_send_deadline": "500ms", "max_samples_per_send": 200, "min_backoff": "50ms", "max_backoff": "500ms"}
    return json.dumps({
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [{"job_name": "site", "static_configs": groups}],
        "remote_write": [{"url": url, "queue_config": queue}],
    })


def start(program: str, folder: Path, port: int, config: str, spawn: Callable[..., Any]) -> Any:
    """Starts it; the process."""
    file = folder / "prometheus.yml"
    file.write_text(config)
    return spawn(program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", "--storage.remote.flush-deadline=2s")


def ask(port: int, path: str, **params: str) -> Any:
    """The `data` of an answer of its API; None while it does not answer."""
    query = urllib.parse.urlencode(params)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def raw_samples(port: int, at: float, seconds: int) -> dict[tuple[str, tuple[tuple[str, str], ...], int], str]:
    """{(name, labels, ms): value} of everything that it scraped in the last seconds before `at`."""
    found = ask(port, "query", query='{job="site"}' + f"[{seconds}s]", time=f"{at:.3f}")
    out = {}
    for one in found["result"]:
        labels = dict(one["metric"])
        name = labels.pop("__name__")
        for stamp, value in one["values"]:
            out[name, tuple(sorted(labels.items())), round(float(stamp) * 1000)] = value
    return out


def wait_until(what: Callable[[], bool], seconds: float) -> bool:
    """True once `what` is; False after the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.1)
    return False
