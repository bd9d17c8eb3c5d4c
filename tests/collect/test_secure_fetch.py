"""TLS, passwords and tokens: what is let in, what fails under which name, and files that change."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
from pathlib import Path

import pytest

from collectors import credentials, secure_fetch
from collectors.access import Access, Secret, Tls
from collectors.discovery import Discovery
from collectors.disposable import Helpers
from collectors.fetch import HttpFetch, Request
from collectors.scrape_config import FileSd, HttpSd, ScrapeConfig
from collectors.watched_files import WatchedFiles
from core.errors import SourceError
from core.reasons import SCRAPE_REASONS
from tests.collect.secure_site import SERVER_NAME, Page, authority, basic, groups, site

BOMB = gzip.compress(bytes(4_000_000))


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    """A folder with an authority, and certificates."""
    folder = tmp_path_factory.mktemp("pki")
    authority(folder)
    return folder


def tls_of(pki: Path, **change: object) -> Tls:
    """A tls_config that fits the test server."""
    return Tls(**{"ca_file": str(pki / "ca.pem"), "server_name": SERVER_NAME, **change})


def get(url: str, access: Access, limit: int = 1_000_000, seconds: float = 5.0, fetch: HttpFetch | None = None) -> bytes:
    """The body; raises SourceError."""

    async def act() -> bytes:
        own = fetch or HttpFetch()
        try:
            return (await own.get(Request(url, seconds, limit, access=access))).data
        finally:
            await own.aclose()

    return asyncio.run(act())


PAGES = {
    "/m": Page(b"a 1\n"), "/away": Page(b"", location="/m"), "/gz": Page(gzip.compress(b"a 1\n", mtime=0), headers={"content-encoding": "gzip"}),
    "/bomb": Page(BOMB, headers={"content-encoding": "gzip"}), "/br": Page(b"x", headers={"content-encoding": "br"}), "/big": Page(bytes(100_001)),
    "/basic": Page(b"in", authorization=basic("u", "p:ü")), "/token": Page(b"in", authorization="Token abc"),
}


@pytest.fixture(scope="module")
def server(pki):
    """A server with TLS."""
    with site(PAGES, pki) as one:
        yield one


@pytest.mark.parametrize(("path", "result"), [
    ("/m", b"a 1\n"), ("/gz", b"a 1\n"), ("/away", "redirect_refused"), ("/none", "http_status"), ("/bomb", "body_too_large"),
    ("/big", "body_too_large"), ("/br", "bad_encoding"),
])
def test_answers_over_tls(pki, server, path, result):
    """Bodies are bounded after unpacking, redirects refused, all by the names that plain HTTP has."""
    try:
        found: object = get(f"https://{server.address}{path}", Access(tls_of(pki)), limit=100_000)
    except SourceError as error:
        found = error.reason
    assert found == result


@pytest.mark.parametrize(("change", "words"), [
    ({"ca_file": ""}, "certificate"), ({"server_name": ""}, "certificate"), ({"server_name": "else.test"}, "else.test"),
    ({"ca_file": "{}/other.pem"}, "certificate"), ({"ca_file": "{}/none.pem"}, "none.pem"), ({"ca_file": "{}/server.ext"}, "server.ext"),
    ({"cert_file": "{}/client.pem", "key_file": "{}/server.key"}, "client.pem"),
])
def test_what_is_not_trusted(pki, server, change, words):
    """A certificate that does not hold, and a file that cannot be used, fail as `tls_failed`, with words that help."""
    change = {name: value.format(pki) for name, value in change.items()}
    with pytest.raises(SourceError, match=words) as caught:
        get(f"https://{server.address}/m", Access(tls_of(pki, **change)))
    assert caught.value.reason == "tls_failed"


@pytest.mark.parametrize(("own", "let_in"), [({"cert_file": "client.pem", "key_file": "client.key"}, True), ({}, False)])
def test_a_client_certificate(pki, own, let_in):
    """A server that wants one lets in who has one; who has none reads why.

    With TLS 1.3 the refusal comes behind the handshake: the connection may break before it is read.
    """
    with site(PAGES, pki, client=True) as one:
        try:
            found: object = get(f"https://{one.address}/m", Access(tls_of(pki, **{name: str(pki / file) for name, file in own.items()})))
        except SourceError as error:
            found = "client's certificate" in str(error) or "certificate required" in str(error)
    assert found == (b"a 1\n" if let_in else True)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("path", "access", "result"), [
    ("/basic", Access(scheme="Basic", user="u", secret=Secret("p:ü")), b"in"), ("/basic", Access(scheme="Basic", user="u"), "http_status"),
    ("/basic", Access(), "http_status"), ("/token", Access(scheme="Token", secret=Secret("abc")), b"in"),
    ("/token", Access(scheme="Bearer", secret=Secret("abc")), "http_status"),
    ("/token", Access(scheme="Token", secret=Secret("hunter2\r\nX: y")), "secret_unreadable"),
    ("/token", Access(scheme="Token", secret_file="/nowhere/hunter"), "secret_unreadable"),
])
def test_who_asks(pki, server, scheme, path, access, result):
    """Passwords and tokens work with and without TLS, and no header can be smuggled in with one."""
    with site(PAGES) as plain:
        address = server.address if scheme == "https" else plain.address
        try:
            found: object = get(f"{scheme}://{address}{path}", Access(tls_of(pki), access.scheme, access.user, access.secret, access.secret_file))
        except SourceError as error:
            found = error.reason if "hunter2" not in str(error) else "the secret is shown"
    assert found == result


def test_a_password_file_is_read_again_when_it_changes(tmp_path, monkeypatch):
    """The next request after a look uses the new secret; a file that is gone is an error that names it."""
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.0)
    file = tmp_path / "secret"
    access = Access(scheme="Bearer", secret_file=str(file))

    async def act() -> list[object]:
        fetch, out = HttpFetch(), []
        with site({"/": Page(b"in", authorization="Bearer two")}) as one:
            for text in ("one\n", " two \n", None):
                if text is None:
                    file.unlink()
                else:
                    file.write_text(text)
                    os.utime(file, ns=(len(out) + 1, len(out) + 1))
                try:
                    out.append((await fetch.get(Request(f"http://{one.address}/", 5.0, 100, access=access))).data)
                except SourceError as error:
                    out.append((error.reason, str(file) in str(error)))
        await fetch.aclose()
        return out

    assert asyncio.run(act()) == [("http_status", False), b"in", ("secret_unreadable", True)]


def test_certificates_are_read_again_when_they_change(pki, server, tmp_path, monkeypatch):
    """An authority that is replaced is used for the next connection."""
    monkeypatch.setattr(secure_fetch, "LOOK_SECONDS", 0.0)
    file = tmp_path / "ca.pem"
    access = Access(tls_of(pki, ca_file=str(file)))

    async def act() -> list[object]:
        fetch, out = HttpFetch(), []
        for i, name in enumerate(("ca.pem", "other.pem", "ca.pem")):
            file.write_bytes((pki / name).read_bytes())
            os.utime(file, ns=(i + 1, i + 1))
            try:
                out.append((await fetch.get(Request(f"https://{server.address}/m", 5.0, 100, access=access))).data)
            except SourceError as error:
                out.append(error.reason)
        await fetch.aclose()
        return out

    assert asyncio.run(act()) == [b"a 1\n", "tls_failed", b"a 1\n"]


def test_many_at_once_share_connections_and_end_with_the_time_out(pki, server):
    """Requests beside each other all get their answer; a server that never speaks TLS costs its time-out only."""

    async def act() -> tuple[list[bytes], str]:
        fetch, access = HttpFetch(), Access(tls_of(pki))
        one = Request(f"https://{server.address}/m", 5.0, 100, access=access)
        bodies = [body.data for body in await asyncio.gather(*(fetch.get(one) for _ in range(20)))]
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        try:
            await fetch.get(Request(f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}/", 0.2, 100, access=access))
        except SourceError as error:
            return bodies, error.reason
        finally:
            silent.close()
            await fetch.aclose()
        return bodies, ""

    bodies, reason = asyncio.run(act())
    assert bodies == [b"a 1\n"] * 20
    assert reason == "timeout"


def test_names_are_looked_up_beside_the_loop(pki, server):
    """The resolver that plain HTTP uses is asked for names over TLS too, and its failure is the request's."""
    asked = []

    async def addresses(host: str) -> tuple[str, ...]:
        asked.append(host)
        if host != SERVER_NAME:
            raise SourceError("connect_failed", f"{host}: no address")
        return "127.0.0.9", "127.0.0.1"

    port = server.address.rpartition(":")[2]
    access = Access(tls_of(pki, server_name=""))
    assert get(f"https://{SERVER_NAME}:{port}/m", access, fetch=HttpFetch(addresses)) == b"a 1\n"
    with pytest.raises(SourceError, match=r"else\.test: no address"):
        get(f"https://else.test:{port}/m", access, fetch=HttpFetch(addresses))
    assert asked == [SERVER_NAME, "else.test"]


def test_files_are_read_by_helpers_where_there_are_some(pki, server, tmp_path):
    """Secrets, certificates and target files come through the processes that may be left behind."""
    (tmp_path / "secret").write_text("p:ü")
    (tmp_path / "a.json").write_text(f'[{{"targets": ["{server.address}"]}}]')
    access = Access(tls_of(pki), "Basic", "u", secret_file=str(tmp_path / "secret"))

    async def act() -> list[bytes]:
        helpers = Helpers()
        fetch = HttpFetch(files=WatchedFiles(helpers))
        config = ScrapeConfig("j", scheme="https", metrics_path="/basic", access=access,
                              file_sd_configs=(FileSd((f"{tmp_path}/*.json",)),))
        try:
            (target,) = await Discovery([config], fetch, WatchedFiles(helpers)).refresh()
            return [one.data for one in await asyncio.gather(*(fetch.get(target.request(100)) for _ in range(5)))]
        finally:
            await fetch.aclose()
            helpers.close()

    assert asyncio.run(act()) == [b"in"] * 5


@pytest.mark.parametrize("url", ["https://", "https://a:b/", "https://u:p@h/", "https://a b/"])
def test_addresses_that_cannot_be_read(pki, url):
    """They fail as those of plain HTTP do."""
    with pytest.raises(SourceError) as caught:
        get(url, Access(tls_of(pki)))
    assert caught.value.reason == "connect_failed"


def test_discovery_over_tls_with_a_token(pki, caplog):
    """Service discovery is let in by the same means; its refusal is counted, and logs hold no secret."""
    page = groups({"targets": ["a:1"], "labels": {"rack": "r"}})
    page.authorization = "Bearer hunter2"

    async def act(url: str, secret: str) -> tuple[list[str], dict[str, int]]:
        fetch = HttpFetch()
        access = Access(tls_of(pki), "Bearer", secret=Secret(secret))
        discovery = Discovery([ScrapeConfig("j", http_sd_configs=(HttpSd(url, 0, access),))], fetch)
        found = [one.url for one in await discovery.refresh()]
        await fetch.aclose()
        return found, dict(discovery.failures)

    with caplog.at_level(logging.DEBUG), site({"/sd": page}, pki) as one:
        assert asyncio.run(act(f"https://{one.address}/sd", "hunter2")) == (["http://a:1/metrics"], {})
        assert asyncio.run(act(f"https://{one.address}/sd", "hunter3")) == ([], {"http_sd": 1})
    assert "hunter" not in caplog.text


def test_all_reasons_are_named():
    """What a scrape can fail for here stands in the closed list."""
    assert {"tls_failed", "secret_unreadable", "too_many_targets", "label_limits", "bad_relabelling"} <= set(SCRAPE_REASONS)
