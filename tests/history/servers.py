"""Real servers that hold a made-up past: Prometheus and VictoriaMetrics, backfilled, and what they must give back."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from core.derive import absent
from pipeline.store.duck import DuckStore
from tests import needs

# (name, sorted labels) → {ms: value}
Past = dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, float]]
_LINE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+) (\S+)')
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
SECONDS = 1800


def past_of(text: str, unit: float) -> Past:
    """The samples of an exposition; unit: ms in one unit of its times."""
    out: Past = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            assert line.startswith("#"), line
            continue
        labels = {name: value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") for name, value in _PAIR.findall(found[2] or "")}
        key = found[1], tuple(sorted(labels.items()))
        out.setdefault(key, {})[round(float(found[4]) * unit)] = float(found[3])
    return out


def odd_series(start_ms: int) -> dict[str, list[tuple[int, str]]]:
    """Series of one more target: a counter that resets twice, one with a gap, numbers of all sizes, labels of all kinds."""
    at = [start_ms // 15_000 * 15_000 + 7_123 + i * 15_000 for i in range(100)]
    place = 'job="odd",instance="n1:1"'
    return {
        f"odd_resets_total{{{place}}}": [(t, str(float(i % 37))) for i, t in enumerate(at)],
        f"odd_gap{{{place}}}": [(t, str(i / 7)) for i, t in enumerate(at) if not 30 <= i < 60],
        f"odd_sizes{{{place}}}": [(t, ["0", "-1e-300", "1.5e300", "123456789.125", "+Inf", "-Inf", "5e-324", "0.1"][i % 8])
                                  for i, t in enumerate(at)],
        f'odd_labels{{{place},path="C:\\\\tmp \\"x\\"\\ny",word="é☃"}}': [(t, "1") for t in at],
    }


def exposition(series: dict[str, list[tuple[int, str]]], seconds: bool) -> list[str]:
    """Lines by time."""
    rows = [(t, f"{head} {value} {f'{t / 1000:.3f}' if seconds else t}") for head, points in series.items() for t, value in points]
    return [line for _, line in sorted(rows, key=lambda row: row[0])]


@contextmanager
def running(args: list[str], ready: str, log: Path) -> Iterator[None]:
    """A server, ended by its pid; it is there once `ready` answers."""
    with open(log, "wb") as out:
        server = subprocess.Popen(args, stdout=out, stderr=out)
    try:
        for _ in range(400):
            try:
                with urllib.request.urlopen(ready, timeout=1):
                    break
            except OSError:
                assert server.poll() is None, log.read_text(errors="replace")[-2000:]
                time.sleep(0.05)
        else:
            raise AssertionError(f"{args[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
        yield
    finally:
        server.kill()
        server.wait(10)


@contextmanager
def prometheus(folder: Path, port: int, open_metrics: str | None = None, *more: str) -> Iterator[str]:
    """A Prometheus with its data in folder/data; gives its address."""
    binary, promtool = needs.program("prometheus"), needs.program("promtool")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "p.yml").write_text("global: {}\n")
    if open_metrics is not None:
        (folder / "s.om").write_text(open_metrics, encoding="utf-8")
        subprocess.run([promtool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "s.om"), str(folder / "data")],
                       check=True, capture_output=True)
    url = f"http://127.0.0.1:{port}"
    args = [binary, f"--config.file={folder / 'p.yml'}", f"--storage.tsdb.path={folder / 'data'}", *more,
            "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with running(args, f"{url}/-/ready", folder / "log"):
        yield url


@contextmanager
def victoria(folder: Path, port: int, text: str) -> Iterator[str]:
    """A VictoriaMetrics that holds an exposition with times in ms; gives its address."""
    binary = needs.program("victoria-metrics")
    folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{port}"
    args = [binary, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y",
            "-search.latencyOffset=0s"]
    with running(args, f"{url}/health", folder / "log"):
        with urllib.request.urlopen(f"{url}/api/v1/import/prometheus", text.encode(), timeout=20) as answer:
            assert answer.status == 204
        with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=20):
            pass
        yield url


def stored_past(folder: Path) -> Past:
    """The samples of a store, stale markers left out."""
    store = DuckStore(folder / "greylag.duckdb", retention_ms=2**53)
    try:
        out: Past = {}
        for one in store.arrays([], -(2**53), 2**53):
            there = ~absent(one.values)
            if there.any():
                out[one.series.name, one.series.labels] = dict(zip(one.at[there].tolist(), one.values[there].tolist(), strict=True))
        return out
    finally:
        store.close()


def differences(theirs: Past, ours: Past, same: Callable[[float, float], bool] | None = None) -> list[str]:
    """What is missing, too much or another value; empty where both are equal."""
    out = [f"missing {key}" for key in theirs.keys() - ours.keys()] + [f"new {key}" for key in ours.keys() - theirs.keys()]
    for key in theirs.keys() & ours.keys():
        if theirs[key].keys() != ours[key].keys():
            out.append(f"times of {key}: {sorted(theirs[key].keys() ^ ours[key].keys())[:5]}")
            continue
        for at, value in theirs[key].items():
            given = ours[key][at]
            if not (given == value or (np.isnan(given) and np.isnan(value)) or (same is not None and same(value, given))):
                out.append(f"{key} at {at}: {value!r} came as {given!r}")
                break
    return out
