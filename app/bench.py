"""`greylag bench`: each part measured against a peer named in the result, in one run, so that the ratio can be trusted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from core.clock import monotonic_seconds, process_cpu_seconds
from core.errors import BadInput

SECONDS = 2.0
Rows = Iterator[dict[str, Any]]  # one for each system and load, as each is measured


def _rate(work: Callable[[], int], seconds: float = SECONDS) -> tuple[float, float]:
    """(units a CPU second, CPU µs a unit) of `work`, which gives how many units it did; one warm-up run."""
    work()
    began, cpu, units = monotonic_seconds(), process_cpu_seconds(), 0
    while monotonic_seconds() - began < seconds:
        units += work()
    used = max(1e-9, process_cpu_seconds() - cpu)
    return units / used, used / units * 1e6


def bench_parse() -> Rows:
    """The ways to read a page, in a tight loop, against prometheus-client's parser; and the reader against httpx."""
    from prometheus_client.parser import text_string_to_metric_families

    from app.bench_pages import node_pages
    from collectors.exposition import Known, parse_exposition
    from collectors.exposition_template import PageTemplate

    pages, known = node_pages(), Known()
    text, parsed = pages[0].decode(), parse_exposition(pages[0], known=known)
    samples, template = len(parsed.samples), PageTemplate.of(parsed, pages[0], None)
    if template is None:
        raise RuntimeError("the page of the bench has no template")
    turn = itertools.cycle(pages)

    def alike() -> int:
        return sum(samples for _ in range(20) if template.values(next(turn), None) is not None)

    strict = _rate(lambda: len(parse_exposition(next(turn), known=known).samples))
    short = _rate(alike)
    peer = _rate(lambda: sum(len(f.samples) for f in text_string_to_metric_families(text)))
    yield {"samples_per_page": samples, "strict_parser_us_per_sample": round(strict[1], 3),
           "page_like_the_last_us_per_sample": round(short[1], 4),
           "prometheus_client_us_per_sample": round(peer[1], 3), "peer": "prometheus_client text parser",
           "strict_times_faster": round(peer[1] / strict[1], 1), "times_faster": round(peer[1] / short[1], 1)}
    yield {"fetch": bench_fetch(pages[0])}


def bench_fetch(page: bytes) -> dict[str, Any]:
    """CPU of this process for a GET of the page over a kept connection; the server is another process."""
    import httpx

    from collectors.fetch import HttpFetch, Request

    context = multiprocessing.get_context("spawn")
    ports, theirs = context.Pipe(duplex=False)
    server = context.Process(target=_serve_page, args=(theirs, page), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ports.recv()}/metrics"
        with asyncio.Runner() as loop:
            fetch, client = HttpFetch(), httpx.AsyncClient(trust_env=False)

            async def ours() -> int:
                return sum([len((await fetch.get(Request(url, 10.0, 1 << 20))).data) == len(page) for _ in range(50)])

            async def peer() -> int:
                return sum([len((await client.get(url)).content) == len(page) for _ in range(50)])

            own, other = _rate(lambda: loop.run(ours())), _rate(lambda: loop.run(peer()))
            loop.run(fetch.aclose())
            loop.run(client.aclose())
    finally:
        server.terminate()
        server.join()
    return {"page_bytes": len(page), "ms_per_scrape": round(own[1] / 1000, 3), "httpx_ms_per_scrape": round(other[1] / 1000, 3),
            "peer": "httpx", "times_cheaper": round(other[1] / own[1], 2)}


def _serve_page(port: Any, page: bytes) -> None:
    """Answers every request with the page; sends its port number through `port`. Runs until it is terminated."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(page) + page

    async def serve() -> None:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(answer)
                    await writer.drain()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def bench_detect(nodes: int = 0) -> Rows:
    """The ring alone, then one tick of judgement (window, all detectors, incidents) for fleets of several sizes.

    nodes: instead, the smallest fleet and one of so many nodes; 10,000 take gigabytes, and many minutes to set up.
    """
    from app.bench_blocks import BLOCK_NODES
    from app.bench_detect import SIZES
    from app.bench_detect import bench_detect as run
    from pipeline.ring_bench import bench_ring

    if nodes % BLOCK_NODES:
        raise BadInput("bench", "--nodes", str(nodes), f"a multiple of {BLOCK_NODES} is needed")
    if nodes:
        yield from run((SIZES[0], nodes))
        return
    yield dict(bench_ring(64))
    yield from run()


def bench_fleet(day: bool = False) -> Rows:
    """Cluster seconds a CPU second of the bundled fleet: the world, its frames, its pages, and Greylag behind it; or a day of many
    nodes."""
    from app.bench_fleet import bench_fleet as run

    return run(day)


def bench_query() -> Rows:
    """A PromQL range query over the store against reading the same samples with SQL alone."""
    from core.protocols import Matcher
    from core.types import Batch, Layout, Scrape, Series
    from pipeline import promql
    from pipeline.store.duck import DuckStore

    targets, ticks, start = 100, 240, 1_790_000_010_000
    series = tuple(Series("m", (("gpu", str(g)),), "gauge") for g in range(8))
    rng = np.random.default_rng(1)
    store = DuckStore(None)
    layouts = tuple(Layout(f"l{t}", f"t{t}", tuple(Series(s.name, (*s.labels, ("node", f"n{t}")), s.type) for s in series), ())
                    for t in range(targets))
    for i in range(ticks):
        scrapes = tuple(Scrape(f"l{t}", f"t{t}", start + i * 15_000, rng.random(8)) for t in range(targets))
        store.append([Batch("bench", 1, i, start, layouts if i == 0 else (), scrapes)])
    end = start + (ticks - 1) * 15_000
    points = targets * 8 * ticks
    matchers = [Matcher("__name__", "=", "m")]
    query = _rate(lambda: points if promql.range_(store, "m", start, end, 15_000)["status"] == "success" else 1)
    raw = _rate(lambda: sum(len(s.at) for s in store.arrays(matchers, start, end)))
    store.close()
    yield {"series": targets * 8, "points": points, "range_query_us_per_point": round(query[1], 3),
            "read_us_per_point": round(raw[1], 3), "peer": "reading the same samples without PromQL",
            "query_times_read": round(query[1] / raw[1], 2)}


def bench_ingest(matrix: bool = False, scale: bool = False) -> Rows:
    """Greylag and its peers scrape the same targets in turn."""
    from app.bench_ingest import bench_ingest as run
    from app.bench_scale import bench_scale

    return bench_scale() if scale else run(matrix)


def bench_store() -> Rows:
    """The same samples in Greylag's store and in its peers'."""
    from app.bench_store import bench_store as run

    return run()


def bench_incidents() -> Rows:
    """A lost rack with a thousand findings in one tick, and a thousand incidents that share nothing."""
    from app.bench_incidents import bench_incidents as run

    return run()


BENCHES: dict[str, Callable[..., Rows]] = {
    "parse": bench_parse, "ingest": bench_ingest, "store": bench_store, "detect": bench_detect, "fleet": bench_fleet,
    "query": bench_query, "incidents": bench_incidents,
}
