"""A small client of Greylag's own API: for the command line, the demo and the explorer.

Its token is that of the environment: GREYLAG_TOKEN, else the content of the file GREYLAG_TOKEN_FILE (which `--token-file` sets).
"""

from __future__ import annotations

import os
import re
from typing import Any

import httpx

from core.errors import BadInput, Unavailable
from core.signing import read_secret

TOKEN, TOKEN_FILE = "GREYLAG_TOKEN", "GREYLAG_TOKEN_FILE"


def own_token() -> str | None:
    """The token to ask with, None where there is none. Raises BadInput for a file that cannot be read."""
    file = os.environ.get(TOKEN_FILE)
    if file:
        try:
            return read_secret(file)
        except Unavailable as error:
            raise BadInput("--token-file", "", file, f"a readable file with the token is needed: {error}") from None
    return os.environ.get(TOKEN, "").strip() or None


class Client:
    """JSON over HTTP on the owner's address. Raises Unavailable where nobody answers, BadInput where the API says 4xx or the
    address is none."""

    def __init__(self, url: str, timeout_seconds: float = 10.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput("--url", "", url, "an address such as http://127.0.0.1:9470 is needed")
        self.url = url.rstrip("/")
        token = own_token()
        self._http = httpx.Client(base_url=self.url, timeout=timeout_seconds,
                                  headers={"Authorization": f"Bearer {token}"} if token else None)

    def get(self, path: str, **params: Any) -> Any:
        """GET of a JSON document; parameters that are None are left out."""
        return self._ask("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Any = None) -> Any:
        """POST of a JSON document."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            answer = self._http.request(method, path, **kwargs)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"Greylag does not answer at {self.url} ({_plainly(error)}). Is it running (greylag run -c greylag.yaml)?"
                              " --url says where it listens") from None
        if answer.status_code >= 500:
            raise Unavailable(f"Greylag at {self.url} failed on {path}: HTTP {answer.status_code}, {_said(answer)}")
        if answer.status_code in (401, 403):
            raise BadInput(self.url, "", "no token that allows this", _said(answer))
        if answer.status_code >= 400:
            raise BadInput(f"{self.url}{path}", "", f"an answer of HTTP {answer.status_code}", _said(answer))
        try:
            return answer.json()
        except ValueError:
            raise BadInput(self.url, "", "an answer that is no JSON", "the address of a running Greylag is needed") from None

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()


def _plainly(error: Exception) -> str:
    """The reason without the number of the system's error."""
    return re.sub(r"^\[Errno -?[0-9]+\] ", "", str(error)).rstrip(".") or type(error).__name__


def _said(answer: httpx.Response) -> str:
    """The sentence of an error's body."""
    try:
        body = answer.json()
        return str(body["error"] if "error" in body else body["reason"])
    except (ValueError, KeyError, TypeError):
        return "without a reason"
