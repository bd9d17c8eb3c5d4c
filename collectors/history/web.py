"""The HTTP side of reading history: one server, its credentials, and one clear sentence for whatever goes wrong.

An answer that is too large for the server or for us is `TooMuch`: the caller asks for less. `Unavailable` is worth another
try (`Server.patiently`).
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from collectors.history.pieces import TooMuch
from core.errors import BadInput, Unavailable

TENANT = "X-Scope-OrgID"
TRIES = 3
PAUSE_SECONDS = 1.0
CONNECT_SECONDS, READ_SECONDS = 10.0, 120.0
MOST_BODY_BYTES = 256 << 20
LONGEST_MESSAGE = 300
AGAIN = frozenset({429, 502, 503, 504})
# What servers say when a query is too large for them: Prometheus, Thanos, Mimir, VictoriaMetrics.
TOO_LARGE_WORDS = ("too many samples", "exceeded maximum resolution", "exceeded sample limit", "too many points",
                   "memory", "limit of", "the query hit the", "too many", "timed out", "query timed out", "max-series")


@dataclass(frozen=True, slots=True)
class Access:
    """How to get in. token, user, password: as read from their files. ca_file: trusted in place of the system's.
    headers: further ones, such as a tenant's."""

    token: str | None = None
    user: str | None = None
    password: str | None = None
    ca_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def all_headers(self) -> dict[str, str]:
        """The headers of each request."""
        out = dict(self.headers)
        if self.token is not None:
            out["Authorization"] = f"Bearer {self.token}"
        elif self.user is not None:
            pair = f"{self.user}:{self.password or ''}".encode()
            out["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        return out


Answer = TypeVar("Answer")


class NotThere(Exception):
    """The server has nothing at this path."""


def check_url(url: str, where: str = "--from") -> str:
    """The URL without a slash at its end. Raises BadInput for what is no http(s) address."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise BadInput(where, "", url, "an address is needed, such as http://prometheus:9090")
    if parts.username or parts.password:
        raise BadInput(where, "", "an address with a password in it", "give --user and --password-file instead")
    return url.rstrip("/")


class Server:
    """One server. sleep: waits some seconds between two tries. Close it with `close`."""

    def __init__(self, url: str, access: Access, sleep: Callable[[float], None]) -> None:
        self.url = check_url(url)
        self._sleep = sleep
        verify: ssl.SSLContext | bool = True
        if access.ca_file is not None:
            try:
                verify = ssl.create_default_context(cafile=access.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise BadInput("--ca-file", "", access.ca_file, f"a readable PEM file is needed ({error})") from None
        time_out = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        self._http = httpx.Client(timeout=time_out, verify=verify, headers=access.all_headers(), trust_env=False)

    def close(self) -> None:
        self._http.close()

    # --- asking -------------------------------------------------------------------------------------------------------
    def data(self, path: str, params: Mapping[str, Any] | None = None, form: Mapping[str, Any] | None = None) -> Any:
        """The `data` of a Prometheus-like answer. Raises NotThere, TooMuch, BadInput, Unavailable."""
        body = self.whole("GET" if form is None else "POST", path, params=params, data=form)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise BadInput(self.url + path, "", "an answer that is no JSON", "the address of a Prometheus-like API is needed") from None
        if not isinstance(answer, dict) or answer.get("status") != "success":
            raise BadInput(self.url + path, "", _message(body), "an answer with status `success` was expected")
        return answer.get("data")

    def whole(self, method: str, path: str, **kwargs: Any) -> bytes:
        """The body of an answer. Raises as `data` does."""
        with self.stream(method, path, **kwargs) as answer:
            pieces, size = [], 0
            for piece in answer.iter_bytes():
                size += len(piece)
                if size > MOST_BODY_BYTES:
                    raise TooMuch(f"an answer of over {MOST_BODY_BYTES >> 20} MiB")
                pieces.append(piece)
            return b"".join(pieces)

    def patiently(self, work: Callable[[], Answer]) -> Answer:
        """What `work` gives, with up to three tries while the server cannot be reached or says "later"."""
        for attempt in range(TRIES - 1):
            try:
                return work()
            except Unavailable:
                self._sleep(PAUSE_SECONDS * 2**attempt)
        return work()

    @contextmanager
    def stream(self, method: str, path: str, **kwargs: Any) -> Iterator[httpx.Response]:
        """A 2xx answer, its body not yet read. Raises as `data` does; no second try."""
        try:
            with self._http.stream(method, self.url + path, **kwargs) as answer:
                if not answer.is_success:
                    answer.read()
                    self._refuse(answer, path)
                yield answer
        except httpx.TransportError as error:
            raise self._cannot(error) from None

    def _refuse(self, answer: httpx.Response, path: str) -> None:
        status, said = answer.status_code, _message(answer.content)
        where = self.url + path
        if status in (400, 401, 403) and "org id" in said.lower():
            raise BadInput(where, "", "no tenant", f"--header '{TENANT}: TENANT' is needed (the server says: {said})")
        if status in (401, 403):
            raise BadInput(where, "", f"a refusal ({status})", f"credentials are needed: --token-file, or --user and --password-file (the server says: {said})")
        if answer.is_redirect:
            raise BadInput(where, "", f"a redirect to {answer.headers.get('location', '?')}", "give the address that it leads to as --from")
        if status in (404, 405, 501) or (status == 400 and "unsupported path" in said):
            raise NotThere(f"{where}: {status} {said}")
        if status == 413 or (status in (400, 422, 500, 503) and any(word in said.lower() for word in TOO_LARGE_WORDS)):
            raise TooMuch(f"{status} {said}")
        if status in AGAIN or status >= 500:
            raise Unavailable(f"{where} answered {status}: {said}; the same command goes on where this one ended")
        raise BadInput(where, "", f"a refusal ({status})", f"the server says: {said}")

    def _cannot(self, error: httpx.TransportError) -> Exception:
        text = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return BadInput(self.url, "", "a certificate that is not trusted", f"give its authority with --ca-file ({_after(text, 'failed: ')})")
        if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text or "UNKNOWN_PROTOCOL" in text.upper():
            return BadInput(self.url, "", "a server that speaks no TLS", "an address with http:// is needed")
        if isinstance(error, httpx.RemoteProtocolError) and "https" not in self.url and "illegal" in text:
            return BadInput(self.url, "", "an answer that is no HTTP", "the address of a Prometheus-like API is needed")
        return Unavailable(f"{self.url} could not be asked ({text[:LONGEST_MESSAGE]}); the same command goes on where this one ended")


def _after(text: str, mark: str) -> str:
    return text.partition(mark)[2].partition(" (_ssl")[0] or text


def _message(body: bytes) -> str:
    """What a server says in an error's body: the `error` of its JSON, else its first line."""
    try:
        found = json.loads(body)
        if isinstance(found, dict) and found.get("error"):
            return str(found["error"])[:LONGEST_MESSAGE]
    except (ValueError, RecursionError):
        pass
    lines = body.decode(errors="replace").strip().splitlines()
    return lines[0][:LONGEST_MESSAGE] if lines else "nothing"


def secret_file(path: str | None, option: str) -> str | None:
    """The first line of a file that holds a secret. Raises BadInput where it cannot be read."""
    if path is None:
        return None
    try:
        return (Path(path).read_text(encoding="utf-8").splitlines() or [""])[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(option, "", path, f"a readable file is needed ({getattr(error, 'strerror', None) or 'no UTF-8'})") from None
