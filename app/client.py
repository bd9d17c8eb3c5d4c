"""A small client of Greylag's own API: for the command line, the demo and the explorer.

Its token is that of the environment: GREYLAG_TOKEN, else the content of the file GREYLAG_TOKEN_FILE (which `--token-file` sets).
"""

from __future__ import annotations

import os
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
    """JSON over HTTP on the owner's address. Raises Unavailable where nobody answers, BadInput where the API says 4xx."""

    def __init__(self, url: str, timeout_seconds: float = 10.0) -> None:
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
        except httpx.HTTPError as error:
            raise Unavailable(f"Greylag does not answer at {self.url}: {error}") from None
        if answer.status_code >= 500:
            raise Unavailable(f"Greylag at {self.url} failed on {path}: HTTP {answer.status_code}")
        if answer.status_code in (401, 403):
            raise BadInput(self.url, "", "no token that allows this", _said(answer))
        if answer.status_code >= 400:
            raise BadInput(f"{self.url}{path}", "", answer.text, f"the API answered HTTP {answer.status_code}")
        return answer.json()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()


def _said(answer: httpx.Response) -> str:
    """The sentence of an error's body."""
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"the API answered HTTP {answer.status_code}"
