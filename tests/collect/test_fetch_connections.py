"""Kept connections: used again, closed by the server, broken in the middle, bounded in number."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from collectors import http_reader
from collectors.fetch import HttpFetch, Request
from collectors.http_reader import place_of
from core.errors import SourceError
from tests.collect.doors import reply

PAGE = reply(b"a 1\n")


class Server:
    """A server whose connections follow `script(connection number, request number)`: bytes to send, or None = hang up."""

    def __init__(self, script, pause=0.0):
        self.script, self.pause = script, pause
        self.connections = self.open = 0
        self.heads: list[bytes] = []

    async def _handle(self, reader, writer):
        number, asked = self.connections, 0
        self.connections += 1
        self.open += 1
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                said = self.script(number, asked)
                asked += 1
                if said is None:
                    break
                step = 1 if self.pause else len(said)
                for i in range(0, len(said), step):
                    writer.write(said[i:i + step])
                    await writer.drain()
                    await asyncio.sleep(self.pause)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    @asynccontextmanager
    async def running(self, host="127.0.0.1"):
        server = await asyncio.start_server(self._handle, host, 0)
        try:
            port = server.sockets[0].getsockname()[1]
            yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        finally:
            server.close()


def fetches(server, *rounds, host="127.0.0.1", timeout=5.0, between=None):
    """Rounds of so many fetches at once; gives the bodies, an error's reason in the place of one."""

    async def one(fetch, url):
        try:
            return (await fetch.get(Request(url + "/metrics?x=1", timeout, 1000))).data
        except SourceError as error:
            return error.reason

    async def act():
        fetch, out = HttpFetch(), []
        async with server.running(host) as url:
            try:
                for n in rounds:
                    out += await asyncio.gather(*(one(fetch, url) for _ in range(n)))
                    if between is not None:
                        await between()
            finally:
                await fetch.aclose()
            await asyncio.sleep(0.02)
        return out

    return asyncio.run(act())


def test_a_connection_is_used_again():
    """Ten fetches one after the other need one connection."""
    server = Server(lambda connection, asked: PAGE)
    assert fetches(server, *[1] * 10) == [b"a 1\n"] * 10
    assert server.connections == 1


def test_parallel_fetches_have_connections_of_their_own():
    """Five at once need five connections; the next five use them again, and closing leaves none open."""
    server = Server(lambda connection, asked: PAGE)
    assert fetches(server, 5, 5) == [b"a 1\n"] * 10
    assert (server.connections, server.open) == (5, 0)


def test_the_pool_is_bounded(monkeypatch):
    """What does not fit into the pool is closed at once."""
    monkeypatch.setattr(http_reader, "IDLE_OF_A_SERVER", 2)
    server = Server(lambda connection, asked: PAGE)
    seen = []

    async def look():
        await asyncio.sleep(0.02)
        seen.append(server.open)

    fetches(server, 5, between=look)
    assert seen == [2]


def test_the_pool_is_bounded_over_all_servers(monkeypatch):
    """The connection that lay idle for longest makes room for that of another server."""
    monkeypatch.setattr(http_reader, "IDLE_IN_ALL", 2)
    servers = [Server(lambda connection, asked: PAGE) for _ in range(4)]

    async def act():
        fetch = HttpFetch()
        async with (servers[0].running() as a, servers[1].running() as b, servers[2].running() as c,
                    servers[3].running() as d):
            for url in (a, b, c, d):
                await fetch.get(Request(url, 5.0, 1000))
            await asyncio.sleep(0.02)
            found = [s.open for s in servers]
            await fetch.aclose()
            return found

    assert asyncio.run(act()) == [0, 0, 1, 1]


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_stale_connection_is_replaced(at_once):
    """A server that hangs up on a kept connection is asked once more, on a new one."""
    server = Server(lambda connection, asked: PAGE if asked == 0 else None)
    assert fetches(server, at_once, at_once, at_once) == [b"a 1\n"] * 3 * at_once


def test_a_connection_that_was_closed_while_idle_is_not_used():
    """The pool notices the end of an idle connection without asking on it."""
    server = Server(lambda connection, asked: reply(b"a 1\n", connection="close"))
    assert fetches(server, 1, 1) == [b"a 1\n"] * 2
    assert len(server.heads) == 2


def test_a_server_that_only_hangs_up_is_asked_twice_at_most():
    """A fresh connection that ends without an answer is an error, not a loop."""
    server = Server(lambda connection, asked: PAGE if connection == asked == 0 else None)
    assert fetches(server, 1, 1) == [b"a 1\n", "truncated"]
    assert server.connections == 2


def test_a_broken_answer_is_not_asked_for_again():
    """Where the answer has begun, its end is the server's word."""
    server = Server(lambda connection, asked: PAGE if not server.heads[1:] else PAGE[:-2] if asked == 1 else None)
    assert fetches(server, 1, 1, between=None, timeout=0.3) == [b"a 1\n", "timeout"]
    assert server.connections == 1


def test_a_slow_answer_within_the_deadline_is_read():
    """Byte by byte is an answer too, if it ends in time."""
    server = Server(lambda connection, asked: PAGE, pause=0.001)
    assert fetches(server, 1) == [b"a 1\n"]


def test_a_slow_answer_beyond_the_deadline_is_given_up():
    """A drip of bytes does not move the deadline, and its connection is closed."""
    server = Server(lambda connection, asked: PAGE, pause=0.02)
    assert fetches(server, 1, timeout=0.2) == ["timeout"]
    assert server.open == 0


@pytest.mark.parametrize(("answer", "first"), [
    (PAGE + b"more", b"a 1\n"), (reply(b"", "404 No"), "http_status"), (b"\0\r\n\r\n", "truncated"),
])
def test_a_connection_that_is_out_of_step_is_not_used_again(answer, first):
    """After bytes that nobody asked for, or an error, the next fetch has a new connection and a right answer."""
    server = Server(lambda connection, asked: answer if connection == 0 else PAGE)
    assert fetches(server, 1, 1) == [first, b"a 1\n"]
    assert server.connections == 2


def test_bytes_on_an_idle_connection_end_it():
    """What a server says without being asked never becomes the next answer."""
    server = Server(lambda connection, asked: PAGE)

    async def act():
        fetch = HttpFetch()
        writers = []
        plain = server._handle

        async def handle(reader, writer):
            writers.append(writer)
            await plain(reader, writer)

        server._handle = handle
        async with server.running() as url:
            await fetch.get(Request(url, 5.0, 1000))
            writers[0].write(reply(b"forged"))
            await asyncio.sleep(0.02)
            found = (await fetch.get(Request(url, 5.0, 1000))).data
            await fetch.aclose()
            return found

    assert asyncio.run(act()) == b"a 1\n"
    assert server.connections == 2


def test_a_reset_in_the_middle_is_named():
    """A connection that breaks inside the body is a body cut short."""

    async def act():
        async def handle(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(PAGE[:-2])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        fetch = HttpFetch()
        try:
            await fetch.get(Request(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/", 5.0, 1000))
        finally:
            await fetch.aclose()
            listening.close()

    with pytest.raises(SourceError) as error:
        asyncio.run(act())
    assert error.value.reason == "truncated"


def test_what_is_asked():
    """Path and query as they stand, the host with its port, no compression, and how long we wait."""
    server = Server(lambda connection, asked: PAGE)
    fetches(server, 1, timeout=7.5)
    lines = server.heads[0].decode().split("\r\n")
    assert lines[0] == "GET /metrics?x=1 HTTP/1.1"
    assert lines[1].startswith("Host: 127.0.0.1:")
    assert {"Accept-Encoding: identity", "X-Prometheus-Scrape-Timeout-Seconds: 7.5"} <= set(lines)


def test_an_ipv6_literal():
    """A host in brackets is a host."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    server = Server(lambda connection, asked: PAGE)
    assert fetches(server, 1, host="::1") == [b"a 1\n"]
    assert b"\r\nHost: [::1]:" in server.heads[0]


PLACES = [
    ("http://n1:9100/metrics", ("n1", 9100, "n1:9100", "/metrics")),
    ("http://n1", ("n1", 80, "n1", "/")),
    ("http://[fd00::1]:9100/m", ("fd00::1", 9100, "[fd00::1]:9100", "/m")),
    ("http://n1/m?match[]={job=\"a b\"}#top", ("n1", 80, "n1", "/m?match[]=%7Bjob=%22a%20b%22%7D")),
    ("http://n1/%41%2f", ("n1", 80, "n1", "/%41%2f")),
    ("http://n1/ä\r\nX: y", ("n1", 80, "n1", "/%C3%A4X:%20y")),
]


@pytest.mark.parametrize(("url", "place"), PLACES)
def test_places_of_urls(url, place):
    """What stands in the request line can hold no blank and no line end."""
    assert place_of(url) == place


@pytest.mark.parametrize("url", [
    "https://n1/metrics", "n1:9100", "http://", "http:///metrics", "http://user:word@n1/", "http://n1:99999/",
    "http://n1:x/", "http://[::1/", "http://n 1/", "http://nödé/", "file:///etc/passwd", "http://\x00/",
])
def test_urls_that_are_none_are_refused(url):
    """Only http:// with a host and without a user is fetched."""
    with pytest.raises(SourceError) as error:
        place_of(url)
    assert error.value.reason == "connect_failed"
